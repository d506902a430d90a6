"""Handlers: plain functions as the work of a runtime, one for each kind of message."""

from naviscope_ingest.handlers.app import Ingest

__all__ = ["Ingest"]
