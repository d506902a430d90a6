"""The errors that faults raise. Each is what the real thing would raise, and says that it was made on purpose."""

from __future__ import annotations

from naviscope_ingest.faults.spec import Fault
from naviscope_spi import Permanent, StoreFailed, SystemFailure, Transient

__all__ = ["InjectedFault", "error_of"]


class InjectedFault(Exception):  # noqa: N818 - the name says what it is
    """What all errors made on purpose have in common.

    Attributes:
        fault: which fault raised it.
    """

    fault: Fault


class InjectedError(InjectedFault):
    """An error of which nothing is known."""


class InjectedConnectionError(InjectedFault, ConnectionError):
    """Nobody could be reached: the call was not made."""


class InjectedTimeoutError(InjectedFault, TimeoutError):
    """The answer did not come in time: the call was made, and may well have had its effect."""


class InjectedStatus(InjectedFault):
    """The other side answered with an HTTP status.

    Attributes:
        status_code: the status.
    """

    status_code: int


class InjectedBusy(InjectedFault, Transient):
    """The other side asked us to come again later, which spends no attempt."""


class InjectedRefusal(InjectedFault, Permanent):
    """The message can never succeed."""


class InjectedStop(InjectedFault, SystemFailure):
    """Nothing can succeed: the runtime stops."""


class InjectedStoreFailure(InjectedFault, StoreFailed):
    """The store cannot go on."""


_CLASSES: dict[str, type[InjectedFault]] = {
    "error": InjectedError,
    "connection": InjectedConnectionError,
    "timeout": InjectedTimeoutError,
    "permanent": InjectedRefusal,
    "refuse": InjectedRefusal,
    "stop": InjectedStop,
}


def error_of(fault: Fault) -> InjectedFault:
    """Make the error of a fault."""
    text = f"injected on purpose by the fault {str(fault)!r}"
    error: InjectedFault
    if fault.status is not None:
        error = status = InjectedStatus(text)
        status.status_code = fault.status
    elif fault.what == "busy":
        error = InjectedBusy(text, retry_after=fault.pause)
    elif fault.what == "stop" and fault.point in ("store", "commit"):
        error = InjectedStoreFailure(text)
    else:
        error = _CLASSES[fault.what](text)
    error.fault = fault
    return error
