"""Making sure of the log that is found when a SQLite file is opened.

A sync that fails leaves what was written in the page cache alone: the system takes it for written, and no later sync
tries again. Whoever opens the file then finds commits in the log that a power cut takes away. Once such commits are
copied into the file, the log that is left after the cut is copied over them, and the file is neither the one nor the
other. Nobody can tell such a log from a good one, least of all the process after the one that saw the error.

So nothing is built on a log that was found before it was written once more, byte by byte the same, and synced. A cut
meanwhile does no harm: what was safe is written as it is, and what was in doubt ends at the first frame whose checksum
is wrong. The sync includes the directory, as always when SQLite opens a log to write.

Rejected: cutting the log off behind the last commit that is known to be safe, since the next process does not know it;
and a checkpoint, which syncs the log first, but to no avail.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

__all__ = ["has_log", "rewrite_log"]

_OPEN = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL
# SQLite writes less than 128 KiB at a time, and takes a longer write for one on a full disk.
_CHUNK = 1 << 16


def has_log(path: str | Path, vfs: str | None) -> bool:
    """Say whether a file may have a log. Where only SQLite can look, it may."""
    log = Path(f"{path}-wal")
    return vfs is not None or (log.exists() and log.stat().st_size > 0)


def rewrite_log(connection: apsw.Connection, vfs: str | None) -> None:
    """Write the log of a file anew, if there is one, and sync it.

    Args:
        connection: to the file. Nobody else writes while it holds its lock. It is closed, without a checkpoint: it has
            read the log before, and the next one shall read what was written.
        vfs: how the file is reached.
    """
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("begin immediate")
        if connection.pragma("journal_mode") == "wal":
            with closing(_Log(connection.filename_wal, vfs)) as log:
                log.rewrite()
        connection.execute("rollback")
    finally:
        connection.close(True)


class _Log:
    """The file of a log."""

    def __init__(self, path: str, vfs: str | None) -> None:
        self._file = apsw.VFSFile(vfs or "", path, [_OPEN, 0])

    def rewrite(self) -> None:
        size = self._file.xFileSize()
        for start in range(0, size, _CHUNK):
            self._file.xWrite(self._file.xRead(min(_CHUNK, size - start), start), start)
        if size:
            self._file.xSync(apsw.SQLITE_SYNC_FULL)

    def close(self) -> None:
        self._file.xClose()
