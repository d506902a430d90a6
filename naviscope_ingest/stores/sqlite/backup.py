"""A copy of the file while it is written, page by page between the groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from naviscope_ingest.stores.sqlite.errors import BackupFailed
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.steps import leave
from naviscope_spi import Session

__all__ = ["Copy", "Folder"]

# How many pages one step copies. The writer does nothing else meanwhile.
_PAGES = 500


class Folder:
    """What is done with names of files. A simulated disk has one of its own."""

    def exists(self, path: str) -> bool:
        """Whether there is something of that name."""
        return Path(path).exists()

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        Path(path).unlink(missing_ok=True)

    def publish(self, path: str, name: str) -> None:
        """Give a file its name for good: what it holds is safe before it has it, and the name when this returns."""
        _sync(path)
        Path(path).rename(name)
        if os.name == "posix":
            _sync(str(Path(name).parent))


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class Copy:
    """A copy that is being made. Until it is whole it has another name.

    What is written while it is made is copied too, since it comes through the same connection. The session of the
    running process is left in the copy: whoever opens that is not told of a crash. And the copy knows that it is one,
    because whoever goes on from it must not give numbers to epochs that the original has given since.
    """

    folder = Folder()

    def __init__(self, ledger: Ledger, path: str) -> None:
        if self.folder.exists(path):
            raise FileExistsError(f"{path} exists: a backup takes a path that does not")
        self._path = path
        self._partial = f"{path}.partial"
        with self._trouble():
            for suffix in ("", "-journal", "-wal"):
                self.folder.remove(f"{self._partial}{suffix}")
            self._target = apsw.Connection(self._partial, vfs=ledger.database.vfs)
            # Nobody else has it, and a VFS in Python has no shared memory.
            self._target.execute("pragma locking_mode = exclusive").fetchall()
            self._backup = self._target.backup("main", ledger.connection, "main")
        # After an error the store opens its file anew, and what rests on the old connection has to go before it.
        ledger.database.before_close.append(self._abandon)
        self._is_abandoned = False

    def step(self, ledger: Ledger) -> bool:
        """Copy some pages; return whether it is done.

        Raises:
            BackupFailed: the copy cannot be written, or the file cannot be read.
        """
        with self._trouble():
            if self._is_abandoned:
                raise apsw.AbortError("the store met an error meanwhile, and opened its file anew")
            if not self._backup.step(_PAGES):
                return False
            ledger.database.before_close.remove(self._abandon)
            self._backup.finish()
            self._mark(ledger)
            self._target.close()
            self.folder.publish(self._partial, self._path)
        return True

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError) as exc:
            raise BackupFailed(
                f"{self._path} cannot be made: {exc}; nothing has that name, and the store goes on: see that the "
                "directory is there and has room, and try again"
            ) from exc

    def _mark(self, ledger: Ledger) -> None:
        # Without a log the copy is one file, and can be read where nobody may write.
        self._target.execute("pragma journal_mode = delete").fetchall()
        mine = ledger.on(self._target)
        mine.load()
        self._target.execute("begin immediate")
        mine.begin_group()
        if mine.state.token is not None:
            leave(mine, Session(mine.state.token, None))
        mine.state.is_copy = 1
        mine.flush()
        self._target.execute("commit")

    def _abandon(self) -> None:
        self._is_abandoned = True
        with contextlib.suppress(apsw.Error):
            self._backup.close()

    def close(self) -> None:
        """End it, whole or not."""
        # What cannot be closed or removed does no harm: it has another name, and the next copy begins by removing it.
        with contextlib.suppress(apsw.Error):
            self._backup.close()
        with contextlib.suppress(apsw.Error):
            self._target.close()
        with contextlib.suppress(OSError, apsw.Error):
            self.folder.remove(self._partial)
