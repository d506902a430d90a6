"""What people change while a runtime runs: limits, pauses, and what is refused at intake. Each change is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from attrs import frozen

from naviscope_ingest._core import Core
from naviscope_ingest._core.limits import Limit
from naviscope_ingest._kernel.lifecycle import Lifecycle
from naviscope_ingest.config import RuntimeConfig
from naviscope_ingest.errors import NoSuchKind, Struck, WrongState
from naviscope_spi import Message

if TYPE_CHECKING:
    from naviscope_ingest._kernel.epochs import EpochPage
    from naviscope_ingest._kernel.workers import Workers

__all__ = ["Steering"]

_log = logging.getLogger("naviscope_ingest")


@frozen
class _Strike:
    """What is refused at intake: a kind, ids like a pattern, or both at once."""

    kind: str | None
    pattern: str | None
    reason: str = ""

    @property
    def rule(self) -> str:
        """Say what is struck."""
        kind = "" if self.kind is None else f"kind {self.kind!r}"
        ids = "" if self.pattern is None else f"ids like {self.pattern!r}"
        return f"{kind} with {ids}" if kind and ids else kind or ids

    def hits(self, message: Message[Any]) -> bool:
        """Tell whether a message is refused."""
        return (self.kind is None or message.kind == self.kind) and (
            self.pattern is None or fnmatchcase(message.id, self.pattern)
        )


class Steering:
    """Changes limits, pauses and strikes.

    Args:
        core: keeps to limits.
        config: says which kinds are known.
        workers: have a limit of their own.
        life: whether the runtime is paused.
        now: wall-clock time.
        on_change: lets a change hold.

    Attributes:
        strikes: what is refused at intake. Callers on the hot path ask whether there is any.
    """

    def __init__(
        self,
        *,
        core: Core,
        config: RuntimeConfig,
        workers: Workers,
        life: Lifecycle,
        now: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self.strikes: list[_Strike] = []
        self._core = core
        self._control = core.control
        self._config = config
        self._workers = workers
        self._life = life
        self._now = now
        self._on_change = on_change

    def begin(self) -> None:
        """Put the limits into force that the configuration has."""
        control, config = self._control, self._config
        for limit in config.all_limits():
            control.put(limit)
        weights = {kind: policy.weight for kind, policy in config.kinds.items() if policy.weight != 1}
        if weights:
            control.weigh(weights)
        for kind, policy in config.kinds.items():
            if policy.adaptive is not None:
                control.adapt(kind, policy.adaptive)
        if config.epoch_cap is not None:
            control.cap_epochs(config.epoch_cap)

    # Limits

    @property
    def in_flight(self) -> int:
        """How many messages are started and not yet settled."""
        return self._workers.in_flight

    @property
    def max_in_flight(self) -> int:
        """How many messages may be."""
        return self._workers.most

    def change_max_in_flight(self, limit: int) -> None:
        """Let another number of messages be in flight."""
        self._workers.most = limit
        self._changed("max_in_flight is %d", limit)

    def change_limit(self, name: str, limit: Limit | None) -> None:
        """Set a limit, or take one away.

        Raises:
            NoSuchKind: it is a new one, for a kind that no message has and nothing is configured for.
        """
        if limit is not None and limit.kind is not None and name not in self._control.limits:
            self._check_kind(limit.kind)
        self._core.tell_time(self._now())
        if limit is None:
            self._control.drop(name)
        else:
            self._control.put(limit)
        self._changed("limit %s is %s", name, "gone" if limit is None else limit)

    def cap_epoch(self, page: EpochPage, limit: int | None) -> None:
        """Cap one epoch, or let it be as the others are. One that is not kept any more has nothing to cap."""
        tracker = self._core.epochs.get(page.key.number)
        if tracker is not None:
            self._control.cap_epoch(tracker, limit)
            self._changed("the cap of epoch %r is %s", page.key.name, limit)

    def weigh(self, kind: str, weight: int) -> None:
        """Change the share of a kind.

        Raises:
            NoSuchKind: no message has it, and nothing is configured for it.
        """
        self._check_kind(kind)
        self._control.weigh({kind: weight})
        self._changed("the weight of kind %r is %d", kind, weight)

    # Pauses

    def pause(self, kind: str | None, reason: str) -> None:
        """Start nothing more of a kind, or nothing at all."""
        if kind is not None:
            self._check_kind(kind)
        if kind is None or self._life.state not in ("running", "paused"):
            self._life.go("paused", "be paused")
        self._core.tell_time(self._now())
        self._control.close(kind, "pause", "pause", reason)
        self._changed("%s is paused: %s", _whom(kind), reason or "no reason was given")

    def resume(self, kind: str | None) -> None:
        """Start what was paused."""
        if kind is None or self._life.state not in ("running", "paused"):
            self._life.go("running", "be resumed")
        elif (kind, "pause") not in self._control.doors():
            self._check_kind(kind)
            raise WrongState(self._life.state, f"resume kind {kind!r}, which is not paused", ("paused",))
        self._control.open(kind, "pause")
        self._changed("%s is resumed", _whom(kind))

    def _check_kind(self, kind: str) -> None:
        """Refuse a kind that no message has, and that nothing is configured for."""
        if not isinstance(kind, str):
            raise ValueError(f"kind={kind!r:.80}: give the name of a kind")
        known = self._configured()
        if kind not in known and kind not in (present := self._core.kinds()):
            raise NoSuchKind(kind, sorted(known | present))

    def _configured(self) -> set[str]:
        """Return the kinds that the configuration names."""
        derives = self._config.derives or {}
        known = {*self._config.kinds, *derives, *(each for some in derives.values() for each in some)}
        known.update(each.kind for each in self._control.limits.values() if each.kind is not None)
        return known

    def kinds(self) -> list[tuple[str, int, list[str]]]:
        """Return every kind that is known, with how many of its messages are unfinished, and what holds them."""
        unfinished = self._core.unfinished_by_kind()
        held: dict[str | None, list[str]] = {}
        for (kind, _), door in self._control.doors().items():
            held.setdefault(kind, []).append(f"{door.kind}: {door.reason}" if door.reason else door.kind)
        for strike in self.strikes:
            if strike.kind is not None:
                held.setdefault(strike.kind, []).append(f"struck: {strike.rule}")
        known = sorted({*self._configured(), *self._core.kinds(), *(kind for kind in held if kind is not None)})
        return [(kind, unfinished.get(kind, 0), held.get(None, []) + held.get(kind, [])) for kind in known]

    # Strikes

    def strike(self, kind: str | None, pattern: str | None, reason: str) -> None:
        """Refuse a kind, or ids like a pattern, at intake."""
        if kind is None and pattern is None:
            raise ValueError("strike(): give a kind, a pattern id= such as 'import-*', or both")
        for what, value in (("kind", kind), ("id", pattern)):
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"strike({what}={value!r:.80}): give a string")
        strike = _Strike(kind, pattern, reason)
        self.strikes.append(strike)
        self._changed("%s is struck: %s", strike.rule, reason or "no reason was given")

    def unstrike(self, kind: str | None, pattern: str | None) -> bool:
        """Let in what was struck; return whether anything was."""
        left = [each for each in self.strikes if (each.kind, each.pattern) != (kind, pattern)]
        was_struck = len(left) < len(self.strikes)
        self.strikes[:] = left
        if was_struck:
            self._changed("%s is let in again", _Strike(kind, pattern).rule)
        return was_struck

    def check(self, messages: Sequence[Message[Any]]) -> None:
        """Refuse messages that were struck.

        Raises:
            Struck: one of them was.
        """
        for message in messages:
            for strike in self.strikes:
                if strike.hits(message):
                    raise Struck(message.id, strike.rule, strike.reason)

    def _changed(self, what: str, *arguments: object) -> None:
        _log.info(what, *arguments, extra={"change": what % arguments})
        self._on_change()


def _whom(kind: str | None) -> str:
    return "the runtime" if kind is None else f"kind {kind!r}"
