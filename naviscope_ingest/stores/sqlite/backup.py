"""A copy of the file while it is written, page by page between the groups."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from naviscope_ingest.stores.sqlite.errors import StoreUnavailable
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.steps import leave
from naviscope_spi import Session

__all__ = ["Copy"]

# How many pages one step copies. The writer does nothing else meanwhile.
_PAGES = 500


class Copy:
    """A copy that is being made. Until it is whole it has another name.

    What is written while it is made is copied too, since it comes through the same connection. The session of the
    running process is left in the copy: whoever opens that is not told of a crash. And the copy knows that it is one,
    because whoever goes on from it must not give numbers to epochs that the original has given since.
    """

    def __init__(self, ledger: Ledger, path: str) -> None:
        if Path(path).exists():
            raise FileExistsError(f"{path} exists: a backup takes a path that does not")
        self._path = Path(path)
        self._partial = self._path.with_name(f"{self._path.name}.partial")
        self._partial.unlink(missing_ok=True)
        try:
            self._target = apsw.Connection(str(self._partial))
        except apsw.Error as exc:
            raise StoreUnavailable(f"{path} cannot be made: {exc}; does the directory exist?") from exc
        self._backup = self._target.backup("main", ledger.connection, "main")

    def step(self, ledger: Ledger) -> bool:
        """Copy some pages; return whether it is done."""
        if not self._backup.step(_PAGES):
            return False
        self._backup.finish()
        self._mark(ledger)
        self._target.close()
        with self._partial.open("rb") as file:
            os.fsync(file.fileno())
        self._partial.rename(self._path)
        return True

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

    def close(self) -> None:
        """End it, whole or not."""
        self._backup.close(True)
        self._target.close(True)
        self._partial.unlink(missing_ok=True)
