"""Faults on purpose, in a live runtime: what goes wrong, how often, and where.

Off unless a program asks for it: `RuntimeConfig(faults=Faults.parse("http:0.05:5xx"))`, or
`faults=Faults.from_environment()` for what `NAVISCOPE_FAULTS` says. The library reads no variable by itself. A runtime
without faults has nothing of this in its way: with faults, executor, sink and store are put behind stand-ins when it is
made.
"""

from naviscope_ingest.errors import InvalidFaults
from naviscope_ingest.faults.injected import InjectedFault
from naviscope_ingest.faults.spec import CRASH_CODE, POINTS, VARIABLE, Fault, Faults, Point

__all__ = ["CRASH_CODE", "POINTS", "VARIABLE", "Fault", "Faults", "InjectedFault", "InvalidFaults", "Point"]
