"""The runtime for programs that are not on trio: blocking ones, and those on asyncio.

The runtime lives in a thread of its own, with a trio run of its own; callers hold a handle with the same methods. Which
of the two it is, is said by the name of the call, and never guessed.
"""

from naviscope_ingest.interop.blocking import BlockingEpoch, BlockingIntake, running_in_thread
from naviscope_ingest.interop.for_asyncio import AsyncioEpoch, AsyncioIntake, running_for_asyncio

__all__ = [
    "AsyncioEpoch",
    "AsyncioIntake",
    "BlockingEpoch",
    "BlockingIntake",
    "running_for_asyncio",
    "running_in_thread",
]
