"""The lock that keeps a second process away from a store.

SQLite's own locks would let two processes write in turn, and each would go by what it remembers of the file. The lock
is one of the operating system, on a file beside the store: it ends with its process, however that dies. The text in the
file only tells people who has it; what a dead process left there does no harm.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

from naviscope_ingest.stores.sqlite.errors import StoreLocked, StoreUnavailable

__all__ = ["LockFile", "holder_of"]

# Windows locks bytes, and keeps others from reading them. This one is far behind the text.
_LOCKED_BYTE = 1 << 30


class LockFile:
    """A lock that is held until `release`.

    Args:
        store: the file that is protected; the lock is on another one beside it.
        who: a name for people.

    Raises:
        StoreLocked: somebody has it; the error says who.
        StoreUnavailable: the file cannot be made.
    """

    def __init__(self, store: Path, who: str) -> None:
        # By the file itself, not by the name it was opened with: a link must not open it a second time.
        place = store.resolve()
        self.path = place.with_name(f"{place.name}.lock")
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as exc:
            raise StoreUnavailable(
                f"{store}: the lock {self.path.name} cannot be made: {exc.strerror}; does the directory exist, and may "
                "this process write there?"
            ) from exc
        try:
            _lock(self._file)
        except OSError as exc:
            holder = _holder(self._file)
            os.close(self._file)
            raise StoreLocked(str(store), holder) from exc
        self._write({"pid": os.getpid(), "host": socket.gethostname(), "who": who, "since": time.time()})

    def release(self) -> None:
        """Let others have it. The file stays: removing it could take the lock from under somebody who waits for it."""
        self._write(None)
        os.close(self._file)

    def _write(self, holder: dict[str, object] | None) -> None:
        # The text is for people: a full disk must not keep anybody from working.
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            if holder is not None:
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, json.dumps(holder).encode())


def holder_of(store: Path) -> str | None:
    """Say who works on a store, None if nobody does. Nothing is changed by asking."""
    place = store.resolve()
    try:
        file = os.open(place.with_name(f"{place.name}.lock"), os.O_RDONLY)
    except OSError:
        return None
    try:
        _try_lock(file)
    except OSError:
        return _holder(file)
    finally:
        os.close(file)
    return None


def _holder(file: int) -> str:
    try:
        os.lseek(file, 0, os.SEEK_SET)
        known = json.loads(os.read(file, 4096))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(known["since"]))
        return f"process {known['pid']} on {known['host']} ({known['who']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    _try_lock = _lock

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _try_lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
