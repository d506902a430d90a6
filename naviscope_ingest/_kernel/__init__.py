"""The kernel: trio tasks, cancellation and timers around the core. It knows stores, sinks and buses as contracts."""

from naviscope_ingest._kernel.clock import SystemClock
from naviscope_ingest._kernel.kernel import Kernel

__all__ = ["Kernel", "SystemClock"]
