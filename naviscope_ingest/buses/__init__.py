"""Buses: how hints of ready work reach the workers."""

from naviscope_ingest.buses.memory import BusStatistics, MemoryBus

__all__ = ["BusStatistics", "MemoryBus"]
