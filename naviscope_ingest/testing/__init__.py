"""Checks that hold an implementation to its contract, and a clock for virtual time. They need no test framework.

Each check takes a factory, tries every promise of the contract on things the factory opens, and raises
`ContractViolation` for the first promise that is broken. The implementations of this project pass the very same checks.
"""

from naviscope_ingest.errors import ContractViolation
from naviscope_ingest.testing.clock import TrioClock
from naviscope_ingest.testing.commit_sink import check_commit_sink
from naviscope_ingest.testing.deferred_store import check_deferred_store
from naviscope_ingest.testing.deliveries import make_delivery
from naviscope_ingest.testing.executor import check_executor
from naviscope_ingest.testing.pipeline_bus import check_pipeline_bus

__all__ = [
    "ContractViolation",
    "TrioClock",
    "check_commit_sink",
    "check_deferred_store",
    "check_executor",
    "check_pipeline_bus",
    "make_delivery",
]
