"""Sinks: where results become visible."""

from naviscope_ingest.sinks.memory import MemorySink

__all__ = ["MemorySink"]
