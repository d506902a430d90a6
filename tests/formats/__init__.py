"""Files of every format there was, as the version of its day wrote them: what later versions must go on with.

Of each format there are two. "killed" is the file and the log that a process leaves which is killed in the middle of
its work, with messages leased, staged and recorded. "copy" is a backup of that moment. The work is the script of
`tests.durability.store_scenario`, up to `CALLS`.

Before the format changes, `python -m tests.formats` writes the files of the present one. They are never written again.
"""

from __future__ import annotations

import gzip
from pathlib import Path

CALLS = 13
"""How many calls of the script were answered."""

_FOLDER = Path(__file__).parent


def kept_formats() -> list[int]:
    """Return the formats of which files are kept."""
    return sorted(int(each.name) for each in _FOLDER.iterdir() if each.name.isdecimal())


def kept_files(number: int, which: str) -> dict[str, bytes]:
    """Return the files of a format by their names: `ingest.db`, and the log if there is one."""
    folder = _FOLDER / str(number) / which
    return {each.stem: gzip.decompress(each.read_bytes()) for each in sorted(folder.iterdir())}


def keep_files(number: int, which: str, contents: dict[str, bytes]) -> None:
    """Write the files of a format.

    Raises:
        FileExistsError: there are some.
    """
    folder = _FOLDER / str(number) / which
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
