"""Opening the file as the rules of durability want it, and checkpointing it.

FULL sync and WAL, and no automatic checkpoints: one inside COMMIT can let a COMMIT raise although it was committed. The
store checkpoints by itself, between commits. `pragma journal_mode = wal` may answer "wal" and be wrong after an I/O
error, so the answer is checked by a checkpoint. A log that is found is written anew before it is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
from attrs import define, field

from naviscope_ingest._sqlite_log import has_log, rewrite_log
from naviscope_ingest.stores.sqlite.errors import NewerFormat, NotAStore, StoreCorrupt
from naviscope_ingest.stores.sqlite.schema import APPLICATION_ID, find_format, load_scripts, upgrade
from naviscope_spi import StoreFailed

__all__ = ["Database"]

_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
_READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
# A log of this many pages is copied into the file when the writer has nothing else to do; of that many, in any case.
_CHECKPOINT_PAGES = 2_000
_LIMIT_PAGES = 16_000
# How long somebody who looks at the file with another program may hold it, in milliseconds.
_BUSY = 5_000


@define(eq=False)
class Database:
    """A file and the connection to it.

    Attributes:
        path: the file.
        vfs: an apsw VFS by name; such a file is locked exclusively, because a VFS in Python has no shared memory.
        read_only: whether it is only read.
        scripts: the scripts of the format.
        wal_pages: how many pages the log has.
        prepare: called with each connection that may write.
        before_close: called before the connection is closed: backups end that read from it.
    """

    path: str
    vfs: str | None = None
    read_only: bool = False
    scripts: Sequence[str] = field(factory=load_scripts)
    wal_pages: int = 0
    prepare: Callable[[apsw.Connection], None] | None = None
    before_close: list[Callable[[], None]] = field(factory=list)
    _connection: apsw.Connection | None = None
    _syncs: bool = True

    @property
    def connection(self) -> apsw.Connection:
        """The one connection that writes."""
        assert self._connection is not None, "the file is closed"
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    @property
    def is_exclusive(self) -> bool:
        """Whether there can be no second connection."""
        return self.vfs is not None

    def open(self) -> None:
        """Open the file, making or upgrading it.

        Raises:
            NotAStore: it is something else.
            NewerFormat: it was written by a later version.
            OlderFormat: it would have to be upgraded, and is only read.
            StoreCorrupt: it is truncated, or a row that an upgrade has to write anew is damaged.
        """
        if self.vfs is None:
            _look_at(Path(self.path), len(self.scripts))
        if not self.read_only and has_log(self.path, self.vfs):
            self._make_sure_of_log()
        connection = self._connect(_READ_ONLY if self.read_only else _READ_WRITE)
        try:
            self._prepare(connection)
        except BaseException:
            # Nothing of what is in the log is ours to copy.
            _close_as_it_is(connection)
            raise
        if self.prepare is not None:
            self.prepare(connection)
        self._connection = connection
        self._syncs = True

    def adopt(self, connection: apsw.Connection) -> None:
        """Use a connection that is open already."""
        self._connection = connection

    def _connect(self, flags: int) -> apsw.Connection:
        return apsw.Connection(self.path, flags=flags, vfs=self.vfs, statementcachesize=200)

    def _make_sure_of_log(self) -> None:
        connection = self._connect(_READ_WRITE)
        try:
            self._share(connection)
            # A file of somebody else is not touched.
            is_ours = find_format(connection, self.path, self.scripts) is not None
        except BaseException:
            _close_as_it_is(connection)
            raise
        if is_ours:
            rewrite_log(connection, self.vfs)
        else:
            _close_as_it_is(connection)

    def _share(self, connection: apsw.Connection) -> None:
        """Say how the file is shared with others."""
        if self.is_exclusive:
            connection.execute("pragma locking_mode = exclusive").fetchall()
        connection.set_busy_timeout(_BUSY)

    def _prepare(self, connection: apsw.Connection) -> None:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        self._share(connection)
        connection.execute("pragma synchronous = full")
        # Pages that were read are checked; a changed cell size is an error and not a wrong row.
        connection.execute("pragma cell_size_check = on").fetchall()
        connection.execute("pragma cache_size = -16000")
        connection.wal_autocheckpoint(0)
        # A file of somebody else must not be turned into a WAL database.
        upgrade(connection, self.path, self.scripts, is_writable=not self.read_only)
        if self.read_only:
            return
        answer = connection.execute("pragma journal_mode = wal").fetchall()
        connection.set_wal_hook(self._note_wal)
        if answer != [("wal",)] or connection.wal_checkpoint()[1] == -1:
            raise StoreFailed(
                f"{self.path} cannot be put into WAL mode: SQLite answered {answer}; is it on a network disk?"
            )

    def _note_wal(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self.wal_pages = pages
        return apsw.SQLITE_OK

    def snapshot(self) -> apsw.Connection:
        """Return a second connection that reads the file as it is now, whatever is written later. Close it."""
        reader = self._connect(_READ_ONLY)
        try:
            reader.execute("begin")
            reader.execute("select commits from state").fetchall()
        except BaseException:
            reader.close()
            raise
        return reader

    def sync(self, *, at_commit: bool) -> None:
        """Have commits synced or not. One that is not survives the process; a power cut may take it, until the next."""
        if at_commit != self._syncs:
            self.connection.execute(f"pragma synchronous = {'full' if at_commit else 'normal'}")
            self._syncs = at_commit

    def checkpoint(self, *, is_idle: bool) -> None:
        """Copy the log into the file if it is long. Readers may keep part of it from being copied; it comes later."""
        if self.wal_pages < (_CHECKPOINT_PAGES if is_idle else _LIMIT_PAGES // 2):
            return
        self.sync(at_commit=True)
        size, copied = self.connection.wal_checkpoint()
        # Once all is copied the next commit starts the log anew. A log that grows on is cut when nobody reads.
        if size == copied:
            self.wal_pages = 0
        elif self.wal_pages > _LIMIT_PAGES:
            self.wal_pages = 0
            _restart(self.connection)

    def reopen(self) -> None:
        """Close and open the file, and copy its log: what is there then is what was committed."""
        self.close(is_clean=False)
        self.open()
        if not self.read_only:
            self.connection.wal_checkpoint()

    def close(self, *, is_clean: bool = True) -> None:
        """Close the file. After an error nothing is copied: the log is the truth, and opening reads it."""
        connection, self._connection = self._connection, None
        self.wal_pages = 0
        if connection is None:
            return
        while self.before_close:
            self.before_close.pop()()
        try:
            if is_clean and not self.read_only:
                # A reader of ours may still be open: nobody waits for it.
                connection.set_busy_timeout(0)
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            else:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        except apsw.Error:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close(True)


def _close_as_it_is(connection: apsw.Connection) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close(True)


def _restart(connection: apsw.Connection) -> None:
    """Have the log start anew, unless somebody reads from it."""
    connection.set_busy_timeout(0)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    except apsw.BusyError:
        pass
    finally:
        connection.set_busy_timeout(_BUSY)


def _look_at(path: Path, known: int) -> None:
    """Refuse a file that is not ours before SQLite touches it."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
        size = path.stat().st_size
    except FileNotFoundError:
        return
    except OSError:
        return  # The error that SQLite gives says more.
    if not header:
        return
    if header[:16] != _MAGIC:
        raise NotAStore(f"{path} is no SQLite database: take another file")
    if len(header) < _HEADER:
        raise StoreCorrupt(f"{path} is cut off after {size} bytes: restore a backup")
    if int.from_bytes(header[68:72], "big") == APPLICATION_ID:
        found = int.from_bytes(header[60:64], "big")
        if found > known:
            raise NewerFormat(str(path), found, known)
    _check_size(path, header, size)


def _check_size(path: Path, header: bytes, size: int) -> None:
    """Refuse a file that is shorter than it says, unless its log or its journal may have the rest."""
    if has_log(path, None) or Path(f"{path}-journal").exists():
        return
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    expected = pages * (65_536 if page == 1 else page)
    if header[24:28] == header[92:96] and size < expected:
        raise StoreCorrupt(f"{path} has {size} bytes and should have {expected}: it is cut off; restore a backup")
