"""What is done with names of files, on a simulated disk."""

import apsw

from naviscope_ingest.stores.sqlite.backup import Folder
from naviscope_ingest.testing.disk import located


class SimulatedFolder(Folder):
    """What is done with names of files, on the disk that a path names."""

    def exists(self, path: str) -> bool:
        disk, name = located(path)
        return disk.exists(name)

    def remove(self, path: str) -> None:
        disk, name = located(path)
        if disk.exists(name):
            disk.delete(name, sync=False)

    def publish(self, path: str, name: str) -> None:
        disk, old = located(path)
        disk.sync(old)
        disk.rename(old, located(name)[1])
        if disk.operate("sync", "the directory"):
            raise apsw.IOError("sync failed (planned)")
        disk.sync_directory()
