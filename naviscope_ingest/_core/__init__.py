"""The core: decides from facts what may run, what must end, and which epochs are done.

Plain synchronous classes: no await, clock, randomness or I/O. Modules import upwards in this list only: nodes, terms,
timers, barriers, resources, epochs, graph, lanes, schedule, stuck, retry, core, explain.
"""

from naviscope_ingest._core.core import Core, Decided, Decisions, EpochEvent, Refused
from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.nodes import Node, State
from naviscope_ingest._core.retry import RetryPolicy

__all__ = [
    "Core",
    "Decided",
    "Decisions",
    "EpochEvent",
    "EpochTracker",
    "Node",
    "Refused",
    "RetryPolicy",
    "State",
]
