"""The limits that ids, kinds, keys and resource names have in common, and the check for them."""

from __future__ import annotations

import unicodedata

from naviscope_spi.errors import InvalidMessage

__all__ = ["MAX_NAME_BYTES", "check_name", "shown"]

MAX_NAME_BYTES = 255
"""The longest id, kind, key, epoch or resource name, in bytes of UTF-8."""

# A character takes at most four bytes, so a name this short needs no encoding to be measured.
_SURELY_SHORT = MAX_NAME_BYTES // 4
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def shown(value: object) -> str:
    """Print a value in few characters, whatever it does when it is printed: it may be nested too deeply, or raise."""
    try:
        return f"{value!r:.80}"
    except Exception:
        return f"<{type(value).__name__} that cannot be printed>"


def check_name(what: str, value: object) -> str:
    """Return the value if it is a usable name.

    Args:
        what: what the name is for, as the error should call it ("message id", "resource name").
        value: the name.

    Raises:
        InvalidMessage: it is not a string, empty, longer than 255 bytes, or has control characters.
    """
    if type(value) is str and 0 < len(value) <= _SURELY_SHORT and value.isprintable():
        return value
    return _check_slowly(what, value)


def _check_slowly(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidMessage(f"the {what} must be a string, not {type(value).__name__}: {shown(value)}")
    if not value:
        raise InvalidMessage(f"the {what} is empty: give it at least one character")
    for character in value[: MAX_NAME_BYTES + 1]:
        if unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise InvalidMessage(f"the {what} {shown(value)} has a control character or line separator: {character!r}")
    # What follows the first 256 characters was not looked at, but cannot be encoded if it is a lone surrogate.
    size = len(value.encode(errors="surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise InvalidMessage(f"the {what} {shown(value)} has {size} bytes: at most {MAX_NAME_BYTES} are allowed")
    # str() of an enum whose members are strings is its name, not its value.
    return str.__str__(value)
