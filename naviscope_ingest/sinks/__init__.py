"""Sinks: where results become visible."""

from naviscope_ingest.sinks.memory import MemorySink
from naviscope_ingest.sinks.sink_set import SinkSet, To

__all__ = ["MemorySink", "SinkSet", "To"]
