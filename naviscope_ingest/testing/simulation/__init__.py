"""Runs a program again and again from seeds, in virtual time and on a simulated disk, with everything going wrong.

`simulate` draws the faults of each seed; `crash_everywhere` kills the program at every write. Both check what the
runtime promises, and ask the program to check its own.
"""

from naviscope_ingest.testing.simulation.campaigns import (
    CrashReport,
    SimulationFailed,
    SimulationReport,
    crash_everywhere,
    simulate,
)
from naviscope_ingest.testing.simulation.faults import FAULTS, FaultName
from naviscope_ingest.testing.simulation.history import Violation
from naviscope_ingest.testing.simulation.program import Program, World

__all__ = [
    "FAULTS",
    "CrashReport",
    "FaultName",
    "Program",
    "SimulationFailed",
    "SimulationReport",
    "Violation",
    "World",
    "crash_everywhere",
    "simulate",
]
