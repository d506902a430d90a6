"""Stores: where messages, epochs, resources and records are kept."""

from naviscope_ingest.stores.memory import MemoryStore, StoreStatistics

__all__ = ["MemoryStore", "StoreStatistics"]
