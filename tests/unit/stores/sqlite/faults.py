"""A disk that fails when it is told to: a VFS over the real one."""

import itertools

import apsw

_NUMBERS = itertools.count()


class FaultyDisk(apsw.VFS):
    """Counts what is done with the disk, and calls `before` and `after` each write and sync of a log.

    A function of these names may raise `apsw.IOError` or `apsw.FullError`.
    """

    def __init__(self):
        self.name = f"faulty-{next(_NUMBERS)}"
        self.before = self.after = lambda what, file: None
        super().__init__(self.name, "")

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.before = self.after = lambda what, file: None
        self.unregister()

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's name
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk, name, flags):
        self.disk = disk
        self.of = str(name.filename() if isinstance(name, apsw.URIFilename) else name).rpartition(".")[2]
        super().__init__("", name, flags)

    def xWrite(self, data, offset):  # noqa: N802
        self.disk.before("write", self.of)
        super().xWrite(data, offset)
        self.disk.after("write", self.of)

    def xSync(self, flags):  # noqa: N802
        self.disk.before("sync", self.of)
        super().xSync(flags)
        self.disk.after("sync", self.of)


class Times:
    """Raises an error at the call of a number, counted from 1, and at so many calls from there on."""

    def __init__(self, error, what, file, first=1, times=1):
        self.error, self.what, self.file = error, what, file
        self.first, self.last = first, first + times
        self.calls = self.raised = 0

    def __call__(self, what, file):
        if (what, file) != (self.what, self.file):
            return
        self.calls += 1
        if self.first <= self.calls < self.last:
            self.raised += 1
            raise self.error("injected")
