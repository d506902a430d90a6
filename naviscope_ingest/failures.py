"""What went wrong, and what that means for the message."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

__all__ = ["ERROR_KINDS", "ErrorKind"]

ErrorKind: TypeAlias = Literal[
    "connection",
    "timeout",
    "rate_limit",
    "auth",
    "not_found",
    "client",
    "server",
    "schema",
    "parse",
    "constraint",
    "deadlock",
    "quota",
    "dependency",
    "poison",
    "expired",
    "bug",
]
"""What sort of thing went wrong. The same words stand in dead letters, metrics and logs."""

ERROR_KINDS: Final[tuple[ErrorKind, ...]] = get_args(ErrorKind)
"""Every kind of error."""
