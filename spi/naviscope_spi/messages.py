"""Messages, resources, and what an executor answers.

A message checks itself when it is made: a malformed one is refused where the mistake was written, and nothing later
has to ask again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from attrs import define, field, frozen

from naviscope_spi.dependencies import AnyOf, Dependency, OnBarrier, OnMessage, check_version
from naviscope_spi.errors import InvalidMessage
from naviscope_spi.names import check_name, shown

__all__ = [
    "MAX_DEPENDENCIES",
    "Deferred",
    "DependsOn",
    "Executed",
    "Fatal",
    "Message",
    "Outcome",
    "Resource",
    "Skipped",
    "check_depends_on",
]

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)
Op_co = TypeVar("Op_co", covariant=True)

MAX_DEPENDENCIES = 100_000
"""How many dependencies one message may have."""

DependsOn: TypeAlias = tuple[str | Dependency, ...]
"""What a message waits for; a plain string is a message of the same epoch under the default policy."""

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


def check_depends_on(depends_on: Iterable[str | Dependency]) -> DependsOn:
    """Return the dependencies as a tuple without repetitions.

    Raises:
        InvalidMessage: a bare string, something that is not iterable, or a member that is no dependency.
    """
    if depends_on == ():
        return ()
    if isinstance(depends_on, str | bytes):
        raise InvalidMessage(f"depends_on={shown(depends_on)} is a bare string: write depends_on=[{shown(depends_on)}]")
    if isinstance(depends_on, Dependency):
        raise InvalidMessage("depends_on is a single Dependency: put it in a list")
    if not isinstance(depends_on, Iterable):
        raise InvalidMessage(f"depends_on must be a list of ids or dependencies, not {shown(depends_on)}")
    checked = tuple(dict.fromkeys(_check_dependency(each) for each in depends_on))
    if len(checked) > MAX_DEPENDENCIES:
        raise InvalidMessage(f"depends_on has {len(checked)} entries: at most {MAX_DEPENDENCIES} are allowed")
    return checked


def _check_dependency(each: object) -> str | Dependency:
    if isinstance(each, str):
        return check_name("id in depends_on", each)
    if isinstance(each, OnMessage) and each.epoch_name is None and each.is_plain:
        return each.id
    if isinstance(each, Dependency):
        return each
    raise InvalidMessage(f"depends_on holds {shown(each)}: each entry is a message id or a Dependency")


def _check_priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise InvalidMessage(f"priority={shown(priority)}: it must be an integer of at most 32 bits; higher runs first")
    return priority


def is_number(value: object) -> bool:
    """Tell whether something is a finite number. An integer may be too large for a float, so it is only compared."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_time(name: str, moment: object) -> None:
    """Refuse what is no wall-clock time."""
    if moment is not None and not is_number(moment):
        raise InvalidMessage(f"{name}={shown(moment)}: give seconds since the Unix epoch as a number, or None")


def _check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    if headers is _NO_HEADERS:
        return _NO_HEADERS
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a mapping of strings, not {shown(headers)}")
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidMessage(f"header {shown(name)} = {shown(value)}: names and values are strings")
    return MappingProxyType(dict(headers))


@frozen(eq=False)
class Message(Generic[P_co]):
    """One unit of work. Its identity is its epoch and its id.

    Attributes:
        id: unique within the epoch; at most 255 bytes, no control characters.
        payload: whatever the executor needs.
        kind: which sort of work it is; barriers, caps, retries and handlers go by kind.
        depends_on: what must be ready first.
        key: messages with the same key run one at a time, in order of acceptance among those that are ready.
        priority: higher runs first.
        not_before: do not start before this wall-clock time.
        expires_at: do not start after this wall-clock time.
        headers: strings that travel with it (trace ids, source coordinates).
    """

    id: str
    payload: P_co
    kind: str = "message"
    depends_on: DependsOn = field(default=(), converter=check_depends_on)
    key: str | None = None
    priority: int = 0
    not_before: float | None = None
    expires_at: float | None = None
    headers: Mapping[str, str] = field(default=_NO_HEADERS, converter=_check_headers)

    def __attrs_post_init__(self) -> None:
        """Refuse what could never run."""
        # Names become plain strings: one of an enum, for instance, prints differently from what it is equal to.
        if (name := check_name("message id", self.id)) is not self.id:
            object.__setattr__(self, "id", name)
        if (name := check_name("kind", self.kind)) is not self.kind:
            object.__setattr__(self, "kind", name)
        if self.key is not None and (name := check_name("key", self.key)) is not self.key:
            object.__setattr__(self, "key", name)
        if self.priority != 0 or type(self.priority) is not int:
            _check_priority(self.priority)
        if self.not_before is not None or self.expires_at is not None:
            check_time("not_before", self.not_before)
            check_time("expires_at", self.expires_at)
        if self.depends_on:
            self.check_dependencies(self.depends_on)

    @staticmethod
    def known(  # noqa: PLR0917 - called with the columns of a row
        id: str,  # noqa: A002 - the attribute's name
        payload: Any,  # noqa: ANN401 - whatever the executor needs
        kind: str,
        depends_on: DependsOn = (),
        key: str | None = None,
        priority: int = 0,
        not_before: float | None = None,
        expires_at: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Message[Any]:
        """Return a message that was checked before: for stores, which read back what they have taken.

        Attributes are as given, in their final form. It takes a tenth of the time.
        """
        proxy = MappingProxyType(headers) if headers else _NO_HEADERS
        return _finished(_Draft(id, payload, kind, depends_on, key, priority, not_before, expires_at, proxy))

    def __reduce__(self) -> tuple[Any, ...]:
        # For executors that work in other processes: the view of the headers cannot be copied, what it shows can.
        fields = (self.id, self.payload, self.kind, self.depends_on, self.key, self.priority)
        return type(self).known, (*fields, self.not_before, self.expires_at, dict(self.headers))

    def outline(self, *, with_headers: bool = False) -> Message[None]:
        """Return the message without its payload, and without headers unless told otherwise: what decisions need."""
        fields = (self.key, self.priority, self.not_before, self.expires_at)
        headers = self.headers if with_headers else _NO_HEADERS
        return _finished(_Draft(self.id, None, self.kind, self.depends_on, *fields, headers))

    def check_dependencies(self, depends_on: Iterable[str | Dependency]) -> None:
        """Refuse dependencies that this very message could never satisfy.

        Raises:
            InvalidMessage: it would wait for itself, or for the barrier of its own kind.
        """
        for each in depends_on:
            if type(each) is str:
                if each == self.id:
                    raise InvalidMessage(f"message {self.id!r} depends on itself")
            elif isinstance(each, AnyOf):
                self.check_dependencies(each.members)
            elif isinstance(each, OnMessage):
                if each.id == self.id and each.epoch_name is None:
                    raise InvalidMessage(f"message {self.id!r} depends on itself")
            elif isinstance(each, OnBarrier) and each.kind == self.kind:
                raise InvalidMessage(
                    f"message {self.id!r} of kind {self.kind!r} waits for the barrier of its own kind: "
                    "it would wait for itself; give it another kind"
                )


class _Draft(Message[Any]):
    """A message that is being filled in, and becomes a `Message` when it is.

    A frozen class sets each attribute by a call, which takes four times as long as to set them here: and one of these
    is made for every message that is read.
    """

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __init__(  # noqa: PLR0917 - called with the columns of a row
        self,
        id: str,  # noqa: A002 - the attribute's name
        payload: Any,  # noqa: ANN401 - whatever the executor needs
        kind: str,
        depends_on: DependsOn,
        key: str | None,
        priority: int,
        not_before: float | None,
        expires_at: float | None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        self.id = id  # type: ignore[misc]  # it is not frozen yet, here and below
        self.payload = payload  # type: ignore[misc]
        self.kind = kind  # type: ignore[misc]
        self.depends_on = depends_on  # type: ignore[misc]
        self.key = key  # type: ignore[misc]
        self.priority = priority  # type: ignore[misc]
        self.not_before = not_before  # type: ignore[misc]
        self.expires_at = expires_at  # type: ignore[misc]
        self.headers = headers  # type: ignore[misc]


def _finished(draft: Message[Any]) -> Message[Any]:
    draft.__class__ = Message
    return draft


MAX_VALUE_BYTES = 64 * 1024
"""The largest value a resource or an outcome may carry."""


def _check_value(value: bytes | None) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, bytes):
        raise InvalidMessage(f"a value is bytes, not {type(value).__name__}: encode it first")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidMessage(f"the value has {len(value)} bytes: at most {MAX_VALUE_BYTES} are allowed; keep it small")
    return value


def _check_resource_name(name: str) -> str:
    return check_name("resource name", name)


@frozen
class Resource:
    """Something that messages wait for and that somebody provides.

    Attributes:
        name: what it is called.
        version: provides every version up to this one. Versions only grow.
        add: count instead: raise the version by this much.
        value: a few bytes handed to those who waited.
    """

    name: str = field(converter=_check_resource_name)
    version: int = field(default=0, converter=check_version)
    add: int = field(default=0, kw_only=True, converter=check_version)
    value: bytes | None = field(default=None, kw_only=True, converter=_check_value)

    def __attrs_post_init__(self) -> None:
        """Refuse a resource that is both set and counted."""
        if self.version and self.add:
            raise InvalidMessage(f"resource {self.name!r} has both version= and add=: set it or count it")


@define(init=False)
class Executed(Generic[P, Op_co]):
    """It worked.

    Nobody changes it; it is not frozen, and makes itself, because there is one for every message.

    Attributes:
        ops: operations for the sink.
        derived: new messages of the same epoch, accepted with this message's commit. A generator is read bit by bit, so
            that a million of them are never in memory together; what it raises counts as raised by the executor.
        ready: resources this message provides within its epoch.
        value: a few bytes kept with the end and handed to dependents.
    """

    ops: Sequence[Op_co]
    derived: Iterable[Message[P]]
    ready: Sequence[Resource]
    value: bytes | None

    def __init__(
        self,
        ops: Sequence[Op_co] = (),
        derived: Iterable[Message[P]] = (),
        ready: Sequence[Resource] = (),
        value: bytes | None = None,
    ) -> None:
        self.ops = ops
        self.derived = derived
        self.ready = ready
        self.value = value if value is None else _check_value(value)


@frozen
class Deferred:
    """It cannot run yet: run it again when these dependencies are satisfied too."""

    depends_on: DependsOn = field(converter=check_depends_on)


@frozen
class Skipped:
    """There is nothing to do. The message ends skipped."""

    reason: str = ""


@frozen
class Fatal:
    """It can never work. The message ends dead, as if `Permanent` had been raised."""

    error: BaseException | str


Outcome: TypeAlias = Executed[Any, Op_co] | Deferred | Skipped | Fatal
"""What an executor returns."""
