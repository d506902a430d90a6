"""What a message may wait for, and what happens when it cannot have it.

There are five kinds of dependency. They are made by the functions of `Dependency`; a plain string in
`Message.depends_on` is short for `Dependency.message(id)`. Every dependency is checked when it is made.

A policy (`otherwise=`) says what the dependency tells its message when the parent ended without committing:

- "follow" (default): a dead or expired parent makes it dead, a skipped one skipped, a cancelled one cancelled;
- "fail", "skip": it ends dead, or skipped, whatever the parent's end was;
- "run": the dependency counts as satisfied, and the executor finds it listed in `unmet`;
- "hold": wait for somebody to replay or discard the dead (or expired) parent; other ends are followed.

A mapping gives one word for each end: `otherwise={"skipped": "run"}`; ends that it leaves out are followed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from attrs import Attribute, field, frozen
from attrs.validators import optional

from naviscope_spi.errors import InvalidMessage
from naviscope_spi.names import check_name, shown

__all__ = [
    "MAX_GROUP_DEPTH",
    "MAX_GROUP_MEMBERS",
    "AnyOf",
    "BadEnd",
    "Dependency",
    "End",
    "OnBarrier",
    "OnEpoch",
    "OnMessage",
    "OnResource",
    "OnUnresolved",
    "Otherwise",
    "Policy",
    "Word",
    "Words",
]

End: TypeAlias = Literal["committed", "dead", "skipped", "cancelled", "expired"]
"""How a run of a message ended."""

BadEnd: TypeAlias = Literal["dead", "skipped", "cancelled", "expired"]
"""Every end but committed."""

Policy: TypeAlias = Literal["follow", "fail", "skip", "run", "hold"]
"""What a user writes in `otherwise=`."""

Word: TypeAlias = Literal["fail", "cancel", "skip", "run", "hold"]
"""What a dependency says to its message once the policy met an end: "follow" has been resolved."""

OnUnresolved: TypeAlias = Literal["fail", "run", "skip", "wait"]
"""What to do when nothing alive can release the dependency."""

Otherwise: TypeAlias = Policy | Mapping[BadEnd, Policy]

MAX_GROUP_DEPTH = 8
"""How deeply `any_of` may be nested."""

MAX_GROUP_MEMBERS = 10_000
"""How many members one `any_of` may have."""


class Words(NamedTuple):
    """What a dependency says for each end of its parent that is not committed."""

    dead: Word = "fail"
    skipped: Word = "skip"
    cancelled: Word = "cancel"
    expired: Word = "fail"

    def on(self, end: BadEnd) -> Word:
        """Return the word for one end."""
        word: Word = getattr(self, end)
        return word


_FOLLOW: Final = Words()
_RUN: Final = Words("run", "run", "run", "run")
_BAD_ENDS: Final[tuple[BadEnd, ...]] = get_args(BadEnd)
_POLICIES = get_args(Policy)
_UNRESOLVED = get_args(OnUnresolved)


def _nearest(word: object, known: tuple[str, ...]) -> str:
    close = get_close_matches(word if isinstance(word, str) else shown(word), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it is one of {', '.join(map(repr, known))}"


def _resolve(end: BadEnd, policy: object) -> Word:
    if policy == "follow":
        return _FOLLOW.on(end)
    if policy == "hold":
        return "hold" if end in ("dead", "expired") else _FOLLOW.on(end)
    if policy in ("fail", "skip", "run"):
        return policy
    raise InvalidMessage(f"otherwise={shown(policy)} is not a policy: {_nearest(policy, _POLICIES)}")


def _words(otherwise: Otherwise | Words) -> Words:
    """Resolve a policy into one word for each bad end."""
    if isinstance(otherwise, Words):
        return otherwise
    if otherwise == "follow":
        return _FOLLOW
    if isinstance(otherwise, Mapping):
        for end, policy in otherwise.items():
            if end not in _BAD_ENDS:
                raise InvalidMessage(f"otherwise has the unknown end {shown(end)}: {_nearest(end, _BAD_ENDS)}")
            if policy == "hold" and end not in ("dead", "expired"):
                raise InvalidMessage(
                    f"otherwise={{{shown(end)}: 'hold'}}: only dead and expired parents can be replayed"
                )
        policies = [otherwise.get(end, "follow") for end in _BAD_ENDS]
    else:
        policies = [otherwise] * len(_BAD_ENDS)
    dead, skipped, cancelled, expired = map(_resolve, _BAD_ENDS, policies)
    return Words(dead, skipped, cancelled, expired)


def _check_timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise InvalidMessage(f"timeout={shown(timeout)}: give seconds as a number, or None")
    # Compared, not converted: an integer may be too large for a float.
    if not 0 < timeout <= sys.float_info.max:
        raise InvalidMessage(f"timeout={shown(timeout)}: it must be a finite number of seconds above zero")
    return float(timeout)


def _named(what: str) -> Callable[[object, Attribute[Any], str], None]:
    def validate(instance: object, attribute: Attribute[Any], name: str) -> None:
        plain = check_name(what, name)
        if plain is not name:
            object.__setattr__(instance, attribute.name, plain)

    return validate


def check_unresolved(word: object) -> OnUnresolved | None:
    """Return what to do about a dependency that nothing can release, or refuse it."""
    if word is None or word in _UNRESOLVED:
        return word  # type: ignore[return-value]  # narrowed by the membership test above
    raise InvalidMessage(f"on_unresolved={shown(word)} is unknown: {_nearest(word, _UNRESOLVED)}")


@frozen(kw_only=True)
class Dependency:
    """Something that must be ready before a message runs. Make one with the functions below.

    Attributes:
        otherwise: the word this dependency says for each end of its parent that is not committed.
        timeout: seconds after acceptance; then the parent counts as expired.
        on_unresolved: what happens when nothing alive can release it; None takes the default of epoch or runtime.
    """

    otherwise: Words = field(default=_FOLLOW, converter=_words)
    timeout: float | None = field(default=None, converter=_check_timeout)
    on_unresolved: OnUnresolved | None = field(default=None, converter=check_unresolved)

    def __attrs_post_init__(self) -> None:
        """Refuse a dependency on nothing in particular."""
        if type(self) is Dependency:
            raise InvalidMessage("a Dependency is made by one of its functions: Dependency.message(id), for instance")

    @staticmethod
    def message(
        id: str,  # noqa: A002 - `id` is what the message calls it
        epoch: str | None = None,
        *,
        otherwise: Otherwise = "follow",
        timeout: float | None = None,
        on_unresolved: OnUnresolved | None = None,
    ) -> OnMessage:
        """Wait until a message has committed.

        Args:
            id: the message's id; it need not be submitted yet.
            epoch: the name of its epoch; None is the epoch of the waiting message. A name means the kept epoch of that
                name, or the next one that gets it.
            otherwise: what happens when the parent ends without committing.
            timeout: seconds after which the parent counts as expired.
            on_unresolved: what happens when nothing alive can bring the parent.
        """
        return OnMessage(id=id, epoch_name=epoch, otherwise=otherwise, timeout=timeout, on_unresolved=on_unresolved)

    @staticmethod
    def resource(
        name: str,
        min_version: int = 0,
        *,
        external: bool = False,
        otherwise: Otherwise = "follow",
        timeout: float | None = None,
        on_unresolved: OnUnresolved | None = None,
    ) -> OnResource:
        """Wait until a resource of at least this version was provided.

        Args:
            name: the resource.
            min_version: the lowest version that will do.
            external: it comes from a person or another system, so it is never thought to be lost.
            otherwise: what happens when the timeout passes.
            timeout: seconds after which it counts as expired.
            on_unresolved: what happens when nothing alive can provide it.
        """
        return OnResource(
            name=name,
            min_version=min_version,
            external=external,
            otherwise=otherwise,
            timeout=timeout,
            on_unresolved=on_unresolved,
        )

    @staticmethod
    def barrier(
        kind: str,
        *,
        otherwise: Otherwise = "run",
        timeout: float | None = None,
        on_unresolved: OnUnresolved | None = None,
    ) -> OnBarrier:
        """Wait until every message of one kind in the same epoch has ended, however it ended.

        Args:
            kind: the kind of message.
            otherwise: what happens when the timeout passes; a barrier is about order, so its default is "run".
            timeout: seconds after which it counts as expired.
            on_unresolved: what happens when nothing alive can open it.
        """
        return OnBarrier(kind=kind, otherwise=otherwise, timeout=timeout, on_unresolved=on_unresolved)

    @staticmethod
    def epoch(
        name: str,
        *,
        otherwise: Otherwise = "follow",
        timeout: float | None = None,
        on_unresolved: OnUnresolved | None = None,
    ) -> OnEpoch:
        """Wait until a whole epoch has completed and succeeded.

        Args:
            name: the epoch's name: the kept epoch of that name, or the next one that gets it.
            otherwise: what happens when it completed without success; a cancelled epoch counts as cancelled, any other
                failure as dead.
            timeout: seconds after which it counts as expired.
            on_unresolved: what happens when nothing alive can complete it.
        """
        return OnEpoch(name=name, otherwise=otherwise, timeout=timeout, on_unresolved=on_unresolved)

    @staticmethod
    def any_of(
        *members: str | Dependency,
        at_least: int = 1,
        otherwise: Otherwise = "follow",
        timeout: float | None = None,
        on_unresolved: OnUnresolved | None = None,
    ) -> AnyOf:
        """Wait until some of several dependencies are satisfied.

        Members carry no policy or timeout of their own. The group fails when its count can no longer be reached; then
        its own policy acts, as for a dead parent if a member died or expired, else as for a cancelled or a skipped one.

        Args:
            *members: the dependencies; a plain string is a message of the same epoch.
            at_least: how many of them must be satisfied.
            otherwise: what happens when the group fails.
            timeout: seconds after which the group counts as expired.
            on_unresolved: what happens when nothing alive can satisfy it.
        """
        return AnyOf(
            members=members, at_least=at_least, otherwise=otherwise, timeout=timeout, on_unresolved=on_unresolved
        )

    @property
    def is_plain(self) -> bool:
        """Whether policy, timeout and on_unresolved are all as the defaults have them."""
        return self.otherwise == _FOLLOW and self.timeout is None and self.on_unresolved is None

    def describe(self) -> str:
        """Name what is waited for, as explanations and errors print it."""
        raise NotImplementedError


@frozen(kw_only=True)
class OnMessage(Dependency):
    """Waits for one message to commit."""

    id: str = field(validator=_named("id of a message dependency"))
    epoch_name: str | None = field(default=None, validator=optional(_named("epoch of a message dependency")))

    def describe(self) -> str:
        """Name what is waited for."""
        return (
            f"message {self.id!r}" if self.epoch_name is None else f"message {self.id!r} of epoch {self.epoch_name!r}"
        )


MAX_VERSION: Final = 2**63 - 1
"""The highest version of a resource: what stores can keep as an integer."""


def check_version(version: int) -> int:
    """Return the version of a resource, or refuse it."""
    if isinstance(version, bool) or not isinstance(version, int):
        raise InvalidMessage(f"a resource version must be an integer, not {shown(version)}")
    if version < 0:
        raise InvalidMessage(f"resource version {version} is negative: versions start at 0 and only grow")
    if version > MAX_VERSION:
        raise InvalidMessage(f"resource version {shown(version)} is too large: at most {MAX_VERSION} is allowed")
    return version


@frozen(kw_only=True)
class OnResource(Dependency):
    """Waits for a version of a resource."""

    name: str = field(validator=_named("resource name"))
    min_version: int = field(default=0, converter=check_version)
    external: bool = False

    def named(self, name: str) -> OnResource:
        """Return the same dependency on another resource, whose name was checked before. It takes no checks."""
        other = object.__new__(OnResource)
        put = object.__setattr__
        put(other, "otherwise", self.otherwise)
        put(other, "timeout", self.timeout)
        put(other, "on_unresolved", self.on_unresolved)
        put(other, "name", name)
        put(other, "min_version", self.min_version)
        put(other, "external", self.external)
        return other

    def describe(self) -> str:
        """Name what is waited for."""
        version = f" (version {self.min_version} or later)" if self.min_version else ""
        return f"{'external ' if self.external else ''}resource {self.name!r}{version}"


@frozen(kw_only=True)
class OnBarrier(Dependency):
    """Waits for every message of a kind to end."""

    otherwise: Words = field(default=_RUN, converter=_words)
    kind: str = field(validator=_named("kind of a barrier"))

    @property
    def is_plain(self) -> bool:
        """Whether policy, timeout and on_unresolved are all as the defaults have them."""
        return self.otherwise == _RUN and self.timeout is None and self.on_unresolved is None

    def describe(self) -> str:
        """Name what is waited for."""
        return f"barrier of kind {self.kind!r}"


@frozen(kw_only=True)
class OnEpoch(Dependency):
    """Waits for a whole epoch to succeed."""

    name: str = field(validator=_named("epoch name"))

    def describe(self) -> str:
        """Name what is waited for."""
        return f"epoch {self.name!r}"


def _check_members(members: tuple[str | Dependency, ...]) -> tuple[Dependency, ...]:
    if len(members) > MAX_GROUP_MEMBERS:
        raise InvalidMessage(f"any_of has {len(members)} members: at most {MAX_GROUP_MEMBERS} are allowed")
    # A repetition would count one message several times.
    return tuple(dict.fromkeys(_check_member(member) for member in members))


def _check_member(member: object) -> Dependency:
    if isinstance(member, str):
        return OnMessage(id=member)
    if not isinstance(member, Dependency):
        raise InvalidMessage(f"a member of any_of must be a Dependency or a message id, not {shown(member)}")
    if not member.is_plain:
        raise InvalidMessage(
            f"{member.describe()} inside any_of carries its own otherwise, timeout or on_unresolved: "
            "give them to any_of instead, since the group decides as a whole"
        )
    return member


@frozen(kw_only=True)
class AnyOf(Dependency):
    """Waits for some of several dependencies."""

    members: tuple[Dependency, ...] = field(converter=_check_members)
    at_least: int = 1
    depth: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Refuse a count that cannot be reached and nesting that is too deep."""
        count = self.at_least
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(self.members):
            raise InvalidMessage(
                f"any_of(at_least={shown(count)}): it must be from 1 to its {len(self.members)} members"
            )
        depth = 1 + max(member.depth if isinstance(member, AnyOf) else 0 for member in self.members)
        if depth > MAX_GROUP_DEPTH:
            raise InvalidMessage(f"any_of is nested {depth} deep: at most {MAX_GROUP_DEPTH} are allowed")
        object.__setattr__(self, "depth", depth)

    def describe(self) -> str:
        """Name what is waited for."""
        shown = ", ".join(member.describe() for member in self.members[:5])
        more = f" and {len(self.members) - 5} more" if len(self.members) > 5 else ""
        return f"{self.at_least} of {len(self.members)}: {shown}{more}"
