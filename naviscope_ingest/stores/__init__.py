"""Stores: where messages, epochs, resources and records are kept."""

from naviscope_ingest.stores.memory import MemoryStore, StoreStatistics
from naviscope_ingest.stores.sqlite import SqliteStore
from naviscope_ingest.stores.urls import open_store

__all__ = ["MemoryStore", "SqliteStore", "StoreStatistics", "open_store"]
