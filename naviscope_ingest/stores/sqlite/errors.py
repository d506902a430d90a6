"""What can go wrong with a file, and the one place where the driver's errors are translated."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec

from naviscope_spi import StoreFailed, StoreRefused

__all__ = [
    "NOT_UNDERSTOOD",
    "BackupFailed",
    "NewerFormat",
    "NotAStore",
    "OlderFormat",
    "StoreClosed",
    "StoreCorrupt",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "StoreUnavailable",
    "corrupt",
    "translated",
]


class StoreUnavailable(StoreRefused):
    """The file cannot be opened: no such directory, no permission, a disk that does not answer."""


class NotAStore(StoreRefused):
    """The file is something else. It was not touched."""


class NewerFormat(StoreRefused):
    """The file was written by a later version of the library. It was not touched.

    Args:
        path: the file.
        found: its format.
        known: the latest format that this version knows.
    """

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}, and this version knows formats up to {known}: open it with the version that "
            "wrote it, or a later one"
        )
        self.found = found
        self.known = known


class OlderFormat(StoreRefused):
    """The file was written by an earlier version of the library, and was opened to be read. It was not touched.

    Args:
        path: the file.
        found: its format.
        known: the format that this version reads.
    """

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}, and this version reads format {known}: open it, or a copy of it, without "
            "read_only=True, which upgrades it"
        )
        self.found = found
        self.known = known


class StoreLocked(StoreRefused):
    """Another process has the file.

    Args:
        path: the file.
        holder: who has it, in words.
    """

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path} is in use by {holder}: one process at a time; stop that one, or take another file")
        self.holder = holder


class BackupFailed(StoreRefused):
    """A copy could not be made. Nothing has its name, and the store goes on."""


class StoreReadOnly(StoreRefused):
    """The store was opened to be read."""


class StoreClosed(StoreFailed):
    """The store was closed."""


class StoreFull(StoreFailed):
    """The disk is full."""


class StoreCorrupt(StoreFailed):
    """The file is damaged: truncated, overwritten, or a bit has changed."""


NOT_UNDERSTOOD = (TypeError, ValueError, LookupError, OverflowError, msgspec.MsgspecError)
"""What reading a row raises that holds something else than what was written."""


def corrupt(exc: Exception, path: str | Path, doing: str) -> StoreCorrupt:
    """Return the error that the user gets for a row that cannot be understood."""
    return StoreCorrupt(
        f"{path}: {doing}: a row cannot be understood ({type(exc).__name__}: {exc}); the file is damaged: restore a "
        "backup, or read what is left with read_only=True"
    )


def translated(exc: Exception, path: str | Path, doing: str) -> StoreFailed | StoreRefused:
    """Return the error that the user gets for one of the driver."""
    why = f"{path}: {doing}: {exc}"
    if isinstance(exc, apsw.FullError):
        return StoreFull(f"{why}; make room on the disk, then open the store again")
    if isinstance(exc, apsw.NotADBError):
        return NotAStore(f"{why}; this is no SQLite database")
    if isinstance(exc, apsw.CorruptError):
        return StoreCorrupt(f"{why}; the file is damaged: restore a backup, or read what is left with read_only=True")
    if isinstance(exc, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
        return StoreUnavailable(f"{why}; does the directory exist, and may this process write there?")
    if isinstance(exc, apsw.BusyError | apsw.LockedError):
        return StoreLocked(str(path), "another SQLite connection")
    return StoreFailed(f"{why}; the store has stopped, and what was acknowledged is safe: open it again")
