"""The kernel: trio tasks, cancellation and timers around the core. It knows stores, sinks and buses as contracts."""

from naviscope_ingest._kernel.clock import SystemClock
from naviscope_ingest._kernel.kernel import Kernel
from naviscope_ingest._kernel.statistics import Statistics

__all__ = ["Kernel", "Statistics", "SystemClock"]
