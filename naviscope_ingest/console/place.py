"""Where the control socket of a store is: beside its file, so that whoever knows the file finds it.

The name of a socket has room for about a hundred bytes. A longer one goes to a folder of the user's own, under a name
made from the path of the store.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Final

__all__ = ["MAX_NAME", "control_path", "is_supported"]

MAX_NAME: Final = 100
"""The longest name of a socket, in bytes: 104 are allowed on macOS, 108 on Linux, one of them for the end."""


def is_supported() -> bool:
    """Tell whether this system has such sockets, and says who is at the other end."""
    return sys.platform != "win32"


def control_path(store: str | os.PathLike[str]) -> Path:
    """Return where the control socket of a store in this file is. Its folder exists, if it is not the store's own.

    Raises:
        PermissionError: the folder for long names belongs to somebody else.
    """
    file = Path(store).resolve()
    path = file.with_name(f"{file.name}.control")
    if len(os.fsencode(path)) <= MAX_NAME or not is_supported():
        return path
    return _own_folder() / f"{blake2b(os.fsencode(file), digest_size=12).hexdigest()}.control"


def _own_folder() -> Path:
    """Return a folder with a short name that nobody else can write to."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(os.fsencode(runtime)) < MAX_NAME // 2 and Path(runtime).is_dir():
        folder = Path(runtime) / "naviscope"
    else:
        folder = Path(tempfile.gettempdir()) / f"naviscope-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(
            f"{folder} must be a folder that belongs to you alone (mode 0700): remove it, or name the store by a "
            "shorter path"
        )
    return folder
