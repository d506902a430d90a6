"""The core: decides from facts what may run, what must end, and which epochs are done.

Plain synchronous classes: no await, clock, randomness or I/O. From the ground up:

- outlines, nodes, terms: what is kept of a message, where it stands, and how its dependencies do;
- timers, barriers, resources, epochs: what else it may wait for;
- graph: who waits for whom; lanes, schedule: who starts next;
- transitions: the states, and the only place where they change;
- stuck, lookout: what nothing alive can release; replay: dead letters that come back;
- core: the facade, facts in and decisions out; fold: facts as a store has them; explain: why something has not ended.
"""

from naviscope_ingest._core.core import Core, Refused
from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.fold import Fold
from naviscope_ingest._core.nodes import COMMITTING, RUNNING, Node, State
from naviscope_ingest._core.retry import RetryPolicy
from naviscope_ingest._core.transitions import Decided, Decisions, EpochEvent

__all__ = [
    "COMMITTING",
    "RUNNING",
    "Core",
    "Decided",
    "Decisions",
    "EpochEvent",
    "EpochTracker",
    "Fold",
    "Node",
    "Refused",
    "RetryPolicy",
    "State",
]
