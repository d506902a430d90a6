"""A disk in memory for SQLite, which can be stopped, lose its power and fail at any operation.

It is a VFS of SQLite. A write goes to the page cache, and to a list of what has not reached the platter yet; a sync of
the file makes what is on that list durable, and its name. Other names are durable when the directory is synced: on a
real system SQLite does so with the first sync that succeeds of each log or journal it opens to write, new or not, and
when it is told to as it deletes one. The troubles:

- *The process is killed* at operation k: that operation and every later one fail, and the page cache survives.
- *The power is cut*: of what was not synced, nothing survives, or everything, or what came first, or a random part, or
  a random part with torn sectors. `image` makes the disk that is found after the next start.
- *An operation fails*: an I/O error (half of a write may have happened), a full disk, or a failed sync. After a failed
  sync the system thinks the pages are clean, so a later sync does not save them: this is what Linux does.

The same calls give the same operations and the same bytes: SQLite's random numbers come from the disk too. A VFS in
Python has no shared memory, so a database in WAL mode needs `PRAGMA locking_mode = EXCLUSIVE` first.

Rejected: real files with a shim that counts. It can kill, but it cannot forget what was written and not synced.
"""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import apsw

from naviscope_ingest.testing._disk_files import SECTOR, File, surviving

__all__ = [
    "BEFALLS",
    "CHANGES",
    "NOW",
    "VFS_NAME",
    "Fault",
    "Kind",
    "Operation",
    "ProcessDied",
    "SimulatedDisk",
    "Survival",
    "located",
]

VFS_NAME = "simulated-disk"
# The moment at which simulated disks live, in milliseconds of the Julian day.
NOW = 212_000_000_000_000

Kind = Literal["create", "read", "write", "truncate", "sync", "delete", "rename"]
Fault = Literal["io", "full", "sync"]
CHANGES: frozenset[Kind] = frozenset({"create", "write", "truncate", "sync", "delete", "rename"})
# What each fault can befall.
BEFALLS: dict[Fault, frozenset[Kind]] = {
    "io": frozenset({"create", "read", "write", "truncate", "sync", "delete", "rename"}),
    "full": frozenset({"create", "write"}),
    "sync": frozenset({"sync"}),
}


class ProcessDied(apsw.IOError):
    """The process that uses this disk has been killed; it can do nothing any more."""


class Operation(NamedTuple):
    """One call of SQLite: its number, what it does, and to which file."""

    number: int
    kind: Kind
    file: str


class Survival(NamedTuple):
    """What a power cut leaves of what was not synced.

    Attributes:
        mode: "none", "all", "prefix" (the first `amount` changes), "subset" (a random half), "torn" (a random half,
            with torn sectors).
        amount: how many, for "prefix"; the seed, for the random ones.
    """

    mode: Literal["none", "all", "prefix", "subset", "torn"]
    amount: int = 0


class SimulatedDisk:
    """A disk with some files.

    Attributes:
        operations: how many operations there were.
        log: all of them, if it is kept.
        is_dead: whether the process was killed.
        faults_met: how many operations failed by a planned fault.
        keeps_names: whether a sync of a file makes its name durable too, as it does on ext4, XFS and Btrfs. POSIX
            promises it only for a sync of the directory.
    """

    def __init__(self, *, seed: int = 0, keep_log: bool = False, keeps_names: bool = True) -> None:
        self.operations = 0
        self.keeps_names = keeps_names
        self.log: list[Operation] | None = [] if keep_log else None
        self.is_dead = False
        self.faults_met = 0
        self._number = next(_numbers)
        _disks[self._number] = self
        self._seed = seed
        self._files: dict[str, File] = {}
        self._durable_names: dict[str, File] = {}
        self._pending_names: list[tuple[int, str, File | None]] = []
        self._stop_at: int | None = None
        self._plan: tuple[int, Fault, bool] | None = None
        self.power_on()

    # For those who use it.

    def path(self, name: str = "ingest.db") -> str:
        """Return how SQLite calls a file of this disk, with `vfs=VFS_NAME`."""
        return f"/{self._number}/{name}"

    def put(self, name: str, content: bytes) -> None:
        """Put a file there, as if it had been there for long."""
        self._files[name] = self._durable_names[name] = File(content)

    def power_on(self) -> None:
        """Seed SQLite's random numbers, so that a run is repeated byte by byte. Call it before a run."""
        source = _Seeding(random.Random(self._seed))
        apsw.randomness(0)
        apsw.randomness(1)
        source.unregister()

    def kill_at(self, number: int | None) -> None:
        """Kill the process when it asks for the operation of that number; None calls it off."""
        self._stop_at = number

    def kill(self) -> None:
        """Kill the process now."""
        self.is_dead = True

    def fail_at(self, number: int, fault: Fault, *, once: bool = True) -> None:
        """Let the first operation from that number on that can have the fault fail, or all of them."""
        self._plan = (number, fault, once)

    def heal(self) -> None:
        """Call every planned fault off."""
        self._plan = None
        self._stop_at = None

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""
        return sorted(self._files)

    def content(self, name: str = "ingest.db") -> bytes:
        """Return the content of a file as processes see it."""
        return bytes(self._files[name].now)

    def unsynced(self) -> int:
        """Return how many changes would be in doubt if the power were cut now."""
        return len(self._in_doubt())

    def killed_image(self) -> SimulatedDisk:
        """Return the disk as the next process finds it: everything that was written, and just as much in doubt."""
        image = self._image({})
        known: dict[int, File] = {}

        def same(file: File) -> File:
            return known.setdefault(id(file), file.copy(-self.operations))

        image._files = {name: same(file) for name, file in sorted(self._files.items())}
        image._durable_names = {name: same(file) for name, file in sorted(self._durable_names.items())}
        image._pending_names = [
            (number - self.operations, name, None if file is None else same(file))
            for number, name, file in self._pending_names
        ]
        return image

    def image(self, survival: Survival) -> SimulatedDisk:
        """Return the disk as it is found after a power cut."""
        keeps = self._choice(survival)
        names = dict(self._durable_names)
        for number, name, file in self._pending_names:
            if keeps(number):
                _set(names, name, file)
        rng = random.Random(f"torn:{survival.amount}") if survival.mode == "torn" else None
        return self._image({name: surviving(file, keeps, rng) for name, file in names.items()})

    def survivals(self, *, seeds: int = 2, most: int = 12) -> Iterator[Survival]:
        """Yield the variants of a power cut now; prefixes at most `most`, evenly spread."""
        count = self.unsynced()
        yield Survival("none")
        if count:
            yield Survival("all")
            step = max(1, -(-(count - 1) // most)) if most else count
            yield from (Survival("prefix", amount) for amount in range(1, count, step) if most)
            for seed in range(seeds):
                yield Survival("subset", seed)
                yield Survival("torn", seed)

    # For SQLite.

    def operate(self, kind: Kind, name: str) -> bool:
        """Count an operation, and let it fail if that is its fate; return whether half of it happens."""
        if self.is_dead:
            raise ProcessDied("the process is dead")
        number = self.operations
        self.operations += 1
        if self.log is not None:
            self.log.append(Operation(number, kind, name))
        if number == self._stop_at:
            self.is_dead = True
            raise ProcessDied("the process is killed")
        return self._plan is not None and self._meets(kind, number)

    def _meets(self, kind: Kind, number: int) -> bool:
        assert self._plan is not None
        start, fault, once = self._plan
        if number < start or kind not in BEFALLS[fault]:
            return False
        if once:
            self._plan = None
        self.faults_met += 1
        if fault == "full":
            raise apsw.FullError("the disk is full (planned)")
        if kind in ("write", "sync"):
            return True  # The file sees to it: half a write, or pages that are taken for clean.
        raise apsw.IOError(f"{kind} failed (planned)")

    def open(self, name: str, flags: int) -> _Handle:
        """Open a file, making it if the flags say so."""
        file = self._files.get(name)
        if file is None:
            if not flags & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(f"there is no file {name}")
            self.operate("create", name)
            file = File()
            self._name(name, file)
        is_log = bool(flags & (apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL))
        return _Handle(self, name, file, syncs_directory=is_log and bool(flags & apsw.SQLITE_OPEN_CREATE))

    def delete(self, name: str, *, sync: bool) -> None:
        """Delete a file."""
        if name not in self._files:
            raise apsw.IOError(f"there is no file {name}")
        self.operate("delete", name)
        self._name(name, None)
        if sync:
            self.sync_directory()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        self.operate("rename", new)
        file = self._files[old]
        # One operation, so that a power cut leaves one name or the other.
        self._name(old, None)
        self._name(new, file)

    def sync(self, name: str) -> None:
        """Make a file durable."""
        _Handle(self, name, self._files[name], syncs_directory=False).xSync(0)

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        if self.is_dead:
            raise ProcessDied("the process is dead")
        return name in self._files

    def sync_directory(self) -> None:
        """Make all names durable."""
        for _, name, file in self._pending_names:
            _set(self._durable_names, name, file)
        self._pending_names.clear()

    def sync_name(self, name: str) -> None:
        """Make a name durable."""
        for _, each, file in self._pending_names:
            if each == name:
                _set(self._durable_names, name, file)
        self._pending_names = [pending for pending in self._pending_names if pending[1] != name]

    def _name(self, name: str, file: File | None) -> None:
        _set(self._files, name, file)
        self._pending_names.append((self.operations - 1, name, file))

    def _in_doubt(self) -> list[int]:
        """Return the numbers of the operations that are not durable yet, in order."""
        files = {id(file): file for file in (*self._durable_names.values(), *self._files.values())}
        changes = {number for file in files.values() for number, _, _ in file.pending}
        return sorted(changes | {number for number, _, _ in self._pending_names})

    def _choice(self, survival: Survival) -> Callable[[int], bool]:
        doubtful = self._in_doubt()
        if survival.mode == "none":
            kept: set[int] = set()
        elif survival.mode == "all":
            kept = set(doubtful)
        elif survival.mode == "prefix":
            kept = set(doubtful[: survival.amount])
        else:
            rng = random.Random(f"{survival.mode}:{survival.amount}:{self.operations}")
            kept = {number for number in doubtful if rng.random() < 0.5}
        return kept.__contains__

    def _image(self, contents: dict[str, bytes]) -> SimulatedDisk:
        image = SimulatedDisk(seed=self._seed + 1, keep_log=self.log is not None, keeps_names=self.keeps_names)
        image._files = {name: File(content) for name, content in sorted(contents.items())}
        image._durable_names = dict(image._files)
        return image


def _set(names: dict[str, File], name: str, file: File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


class _Handle:
    """An open file, as SQLite calls it."""

    def __init__(self, disk: SimulatedDisk, name: str, file: File, *, syncs_directory: bool) -> None:
        self._disk = disk
        self._name = name
        self._file = file
        self._syncs_directory = syncs_directory

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's names, here and below
        self._fail_if(self._disk.operate("read", self._name))
        return bytes(self._file.now[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        is_half = self._disk.operate("write", self._name)
        whole = bytes(data)
        written = whole[: len(whole) // 2 // SECTOR * SECTOR] if is_half else whole
        if written:
            self._file.change(self._disk.operations - 1, offset, written)
        self._fail_if(is_half)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.operate("truncate", self._name)
        self._file.change(self._disk.operations - 1, size, None)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._disk.operate("sync", self._name):
            self._file.pending.clear()
            raise apsw.IOError("sync failed (planned): what was written is taken for clean and may never arrive")
        self._file.sync()
        if self._disk.keeps_names:
            self._disk.sync_name(self._name)
        if self._syncs_directory:
            self._disk.sync_directory()
            self._syncs_directory = False

    def xFileSize(self) -> int:  # noqa: N802
        return len(self._file.now)

    def xLock(self, level: int) -> None:  # noqa: N802
        others = max((held for handle, held in self._file.locks.items() if handle is not self), default=0)
        own = self._file.locks.get(self, 0)
        if level > own:
            is_free = {
                apsw.SQLITE_LOCK_SHARED: others < apsw.SQLITE_LOCK_PENDING,
                apsw.SQLITE_LOCK_RESERVED: others < apsw.SQLITE_LOCK_RESERVED,
                apsw.SQLITE_LOCK_PENDING: others < apsw.SQLITE_LOCK_RESERVED,
                apsw.SQLITE_LOCK_EXCLUSIVE: others == apsw.SQLITE_LOCK_NONE,
            }[level]
            if not is_free:
                raise apsw.BusyError("another connection has the lock")
            self._file.locks[self] = level

    def xUnlock(self, level: int) -> None:  # noqa: N802
        if level == apsw.SQLITE_LOCK_NONE:
            self._file.locks.pop(self, None)
        elif self in self._file.locks:
            self._file.locks[self] = min(level, self._file.locks[self])

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return any(held >= apsw.SQLITE_LOCK_RESERVED for held in self._file.locks.values())

    def xFileControl(self, operation: int, pointer: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return 4096

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        # As the VFS of Unix says: a torn write does no harm outside of the range it was for.
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xClose(self) -> None:  # noqa: N802
        self._file.locks.pop(self, None)

    def _fail_if(self, is_half: bool) -> None:
        if is_half:
            raise apsw.IOError("I/O error (planned)")


class _Vfs(apsw.VFS):
    """Leads SQLite to the disk that a path names. A late close of a dead connection so never meets another disk."""

    def __init__(self) -> None:
        super().__init__(VFS_NAME, base="")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _Handle:  # type: ignore[override]  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        disk, own = located(path)
        flags[1] = flags[0]
        return disk.open(own, flags[0])

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        disk, own = located(filename)
        disk.delete(own, sync=bool(syncdir))

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        disk, own = located(pathname)
        return disk.exists(own)

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return name

    def xCurrentTimeInt64(self) -> int:  # noqa: N802
        return NOW

    def xCurrentTime(self) -> float:  # noqa: N802
        return NOW / 86_400_000

    def xSleep(self, microseconds: int) -> int:  # noqa: N802
        return microseconds


class _Seeding(apsw.VFS):
    """Is SQLite's default for a moment, in which it seeds its random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        super().__init__(f"{VFS_NAME}-seeding", base="", makedefault=True)

    def xRandomness(self, numbytes: int) -> bytes:  # noqa: N802
        return self._rng.randbytes(numbytes)


def located(path: str) -> tuple[SimulatedDisk, str]:
    """Return the disk and the name of the file that SQLite calls so."""
    _, number, name = path.split("/", 2)
    return _disks[int(number)], name


_numbers = itertools.count(1)
_disks: weakref.WeakValueDictionary[int, SimulatedDisk] = weakref.WeakValueDictionary()
_vfs = _Vfs()
