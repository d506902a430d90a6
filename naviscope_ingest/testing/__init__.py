"""Checks that hold implementations to their contracts, a simulator, a clock for virtual time; no test framework.

Each check takes a factory, tries every promise of the contract on things the factory opens, and raises
`ContractViolation` for the first promise that is broken. The implementations of this project pass the very same checks.

`simulate` runs a program of yours, a `Program`, from seeds, with crashes, power cuts and much else; `crash_everywhere`
kills it at every write. Is your sink really safe to repeat?
"""

from naviscope_ingest.errors import ContractViolation
from naviscope_ingest.testing.clock import TrioClock
from naviscope_ingest.testing.commit_sink import check_commit_sink
from naviscope_ingest.testing.deferred_store import check_deferred_store
from naviscope_ingest.testing.deliveries import make_delivery
from naviscope_ingest.testing.executor import check_executor
from naviscope_ingest.testing.pipeline_bus import check_pipeline_bus
from naviscope_ingest.testing.simulation import (
    FAULTS,
    CrashReport,
    Program,
    SimulationFailed,
    SimulationReport,
    World,
    crash_everywhere,
    simulate,
)
from naviscope_ingest.testing.virtual import VirtualRuntime, open_virtual_runtime

__all__ = [
    "FAULTS",
    "ContractViolation",
    "CrashReport",
    "Program",
    "SimulationFailed",
    "SimulationReport",
    "TrioClock",
    "VirtualRuntime",
    "World",
    "check_commit_sink",
    "check_deferred_store",
    "check_executor",
    "check_pipeline_bus",
    "crash_everywhere",
    "make_delivery",
    "open_virtual_runtime",
    "simulate",
]
