"""The format of the file: its number, the scripts that make it, and how an older file is upgraded.

Script N turns format N - 1 into N. A new file runs them all, an older one those it lacks, in one transaction: a crash
in the middle leaves the file as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import apsw

from naviscope_ingest.stores.sqlite.errors import NewerFormat, NotAStore
from naviscope_ingest.stores.sqlite.queries import fetch

__all__ = ["APPLICATION_ID", "find_format", "load_scripts", "upgrade"]

APPLICATION_ID = 0x4E565331
"""What tells our files from other SQLite files: "NVS1"."""


def load_scripts() -> Sequence[str]:
    """Return the scripts of all formats, in order."""
    folder = files("naviscope_ingest.stores.sqlite").joinpath("schema")
    names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".sql"))
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in names]


def upgrade(connection: apsw.Connection, path: str, scripts: Sequence[str], *, is_writable: bool) -> int | None:
    """Bring a file to the format of the last script; return the format it had, or None if it was new.

    Raises:
        NotAStore: it is a database of somebody else.
        NewerFormat: it was written by a later version.
    """
    found = find_format(connection, path, scripts)
    if found == len(scripts):
        return found
    if not is_writable:
        raise NotAStore(f"{path} has format {found or 0}: open it once for writing, which makes it {len(scripts)}")
    connection.execute("begin immediate")
    try:
        for script in scripts[found or 0 :]:
            connection.execute(script)
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        connection.execute(f"pragma user_version = {len(scripts)}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    return found


def find_format(connection: apsw.Connection, path: str, scripts: Sequence[str]) -> int | None:
    """Return the format of a file, or None if it is empty.

    Raises:
        NotAStore: it is a database of somebody else.
        NewerFormat: it was written by a later version.
    """
    application = connection.pragma("application_id")
    if application == APPLICATION_ID:
        version = connection.pragma("user_version")
        assert isinstance(version, int)
        if version > len(scripts):
            raise NewerFormat(path, version, len(scripts))
        return version
    if application == 0 and not fetch(connection, "select 1 from sqlite_schema limit 1"):
        return None
    raise NotAStore(f"{path} is a database of another program (application_id {application}): take another file")
