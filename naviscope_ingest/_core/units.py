"""Units of numbers, as annotations. In Python they are plain numbers; in a configuration file the key carries the unit.

`timeout: Seconds` is `timeout_seconds` in a file.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

__all__ = ["Bytes", "Seconds"]

Seconds: TypeAlias = Annotated[float, "seconds"]
"""A duration."""

Bytes: TypeAlias = Annotated[int, "bytes"]
"""A size."""
