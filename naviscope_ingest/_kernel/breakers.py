"""Circuit breakers of what messages need: a closed door before their kinds while something is down.

A breaker has a name, that of the kind unless its policy gives another, and kinds that share a name share it. The core's
doors keep messages from starting; here is when they are closed and opened. A failure that opens a breaker, or comes in
while it is open, spends no attempt: it says of the message what is known of all. One that is let through on trial does
spend one. Otherwise a few messages that never work would keep a breaker open, and each other alive, for a day.

What is open is kept as one record, which rides in the settlement that changed it, and is read when a runtime starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import trio

from naviscope_ingest._core import Core
from naviscope_ingest._core.breaker import Breaker, BreakerPolicy, BreakerState
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.outcomes import Batch
from naviscope_ingest.config import RuntimeConfig
from naviscope_spi import ErrorKind, Lease, Record, SupportsRecords

__all__ = ["Breakers"]

_log = logging.getLogger("naviscope_ingest")

_SPACE: Final = "breakers"
_KEY: Final = "open"
_DOOR: Final = "breaker"


class _Named:
    """A breaker, the kinds that it guards, and why it is open."""

    __slots__ = ("breaker", "has_opened", "kinds", "name", "policy", "reason")

    def __init__(self, name: str, policy: BreakerPolicy) -> None:
        self.name = name
        self.policy = policy
        self.breaker = Breaker(policy)
        self.kinds: dict[str, None] = {}
        self.reason = ""
        # For the task that asks whether it is back, once there is one.
        self.has_opened: trio.Event | None = None


class Breakers:
    """Every breaker of a kind.

    Args:
        core: whose doors they close.
        config: the policies.
        now: wall-clock time.
        meter: is told of changes.
        spawn: starts a task that lives as long as the runtime, for probes.
        on_open: called when messages may start again.

    Attributes:
        is_alert: whether any of them wants to hear of what works. Callers on the hot path ask.
    """

    def __init__(
        self,
        *,
        core: Core,
        config: RuntimeConfig,
        now: Callable[[], float],
        meter: Meter,
        spawn: Callable[..., None],
        on_open: Callable[[], None],
    ) -> None:
        self.is_alert = False
        self._core = core
        self._config = config
        self._now = now
        self._meter = meter
        self._spawn = spawn
        self._on_open = on_open
        self._named: dict[str, _Named] = {}
        self._of_kind: dict[str, _Named | None] = {}

    def _of(self, kind: str) -> _Named | None:
        """Return the breaker of a kind, made on demand; None if it has none."""
        if kind in self._of_kind:
            return self._of_kind[kind]
        name = self._config.policy(kind).breaker or kind
        policy = self._config.breakers.get(name, self._config.breaker)
        found = None if policy is None else self._named.get(name) or self._named.setdefault(name, _Named(name, policy))
        self._of_kind[kind] = found
        if found is not None:
            found.kinds[kind] = None
            if found.breaker.state != "closed":
                self._shut(found, [kind])
        return found

    # What is learned

    def failed(self, lease: Lease[Any], error_kind: ErrorKind, reason: str, records: list[Record]) -> bool:
        """Learn that an attempt failed; return whether that is the breaker's affair and not the message's."""
        named = self._of(lease.message.kind)
        if named is None:
            return False
        now = self._now()
        if error_kind not in named.policy.counts:
            # Whatever it said, it was there.
            self._worked(named, 1, now, records)
            return False
        self._catch_up(named, now)
        # One that was on trial was let through on purpose: it spends an attempt, so that those end that never work.
        was_on_trial = named.breaker.state == "half-open"
        if named.breaker.failed(now, lease.seq):
            named.reason = reason
            self._opened(named, now)
            records.append(self._record())
        self.is_alert = True
        return named.breaker.state != "closed" and not was_on_trial

    def worked(self, batch: Batch) -> None:
        """Learn what worked in a batch, when any breaker is alert."""
        counts: dict[str, int] = {}
        rest = batch.rest
        leases = [*batch.leases]
        if rest is not None:
            leases += [lease for lease, _ in rest.deferred]
            leases += [lease for lease, _, _ in rest.ended]
        for lease in leases:
            counts[lease.message.kind] = counts.get(lease.message.kind, 0) + 1
        records: list[Record] = []
        now = self._now()
        for kind, count in counts.items():
            named = self._of(kind)
            if named is not None and named.breaker.is_alert:
                self._worked(named, count, now, records)
        if records:
            batch.more().records += records
        self.is_alert = any(named.breaker.is_alert for named in self._named.values())

    def _worked(self, named: _Named, count: int, now: float, records: list[Record]) -> None:
        self._catch_up(named, now)
        if named.breaker.succeeded(count, now):
            named.reason = ""
            for kind in named.kinds:
                self._core.control.open(kind, _DOOR)
            self._tell(named, "closed")
            records.append(self._record())
            self._on_open()

    def _catch_up(self, named: _Named, now: float) -> None:
        """Let a breaker whose time has come be half open; the core's doors see to themselves."""
        breaker = named.breaker
        if breaker.state == "open" and breaker.until <= now and named.policy.probe is None:
            breaker.half_open()
            self._tell(named, "half-open")

    # What is done

    def _opened(self, named: _Named, now: float) -> None:
        self._shut(named, list(named.kinds))
        self._tell(named, "open")
        self._start_probing(named)

    def _start_probing(self, named: _Named) -> None:
        if named.policy.probe is None:
            return
        if named.has_opened is None:
            named.has_opened = trio.Event()
            self._spawn(self._probe, named)
        named.has_opened.set()

    def _shut(self, named: _Named, kinds: Iterable[str]) -> None:
        breaker, control = named.breaker, self._core.control
        text = f"the breaker {named.name!r} is {breaker.state}: {named.reason}"
        first = next(iter(named.kinds))
        for kind in kinds:
            if kind != first:
                control.share(first, _DOOR, kind)
        if breaker.state == "half-open":
            control.half_open(first, _DOOR, "breaker", text)
        elif named.policy.probe is not None:
            # Time alone does not open it.
            control.close(first, _DOOR, "breaker", text)
        else:
            control.close(first, _DOOR, "breaker", text, breaker.until, then="half-open")

    async def _probe(self, named: _Named) -> None:
        """Ask whether something is back, every so often; then let one message at a time through."""
        probe = named.policy.probe
        assert probe is not None
        while True:
            assert named.has_opened is not None
            await named.has_opened.wait()
            await trio.sleep(max(0.0, named.breaker.until - self._now()))
            try:
                await probe()
            except Exception as error:
                named.breaker.trip(self._now())
                _log.info("the probe of breaker %r says: %r", named.name, error, extra={"breaker": named.name})
                continue
            named.has_opened = trio.Event()
            named.breaker.half_open()
            self._shut(named, list(named.kinds))
            self._tell(named, "half-open")
            self._on_open()

    def _tell(self, named: _Named, state: BreakerState) -> None:
        self._meter.breaker_changed(named.name, state)
        log = _log.warning if state == "open" else _log.info
        why = f": {named.reason}" if named.reason else ""
        log("the breaker %r is %s%s", named.name, state, why, extra={"breaker": named.name, "state": state})

    # Restarts

    def _record(self) -> Record:
        kept = {
            name: (named.breaker.until, named.reason)
            for name, named in self._named.items()
            if named.breaker.state != "closed"
        }
        return Record(_SPACE, _KEY, msgspec.json.encode(kept) if kept else None)

    async def restore(self, membership: Membership) -> None:
        """Be as the last runtime was."""
        store: Any = membership.store
        if not isinstance(store, SupportsRecords):
            return
        kept = (await store.read(_SPACE, [_KEY])).get(_KEY)
        if kept is None:
            return
        for name, (until, reason) in msgspec.json.decode(kept, type=dict[str, tuple[float, str]]).items():
            policy = self._config.breakers.get(name, self._config.breaker)
            if policy is None:
                continue
            named = self._named[name] = _Named(name, policy)
            named.reason = reason
            named.breaker.open_until(until)
            self.is_alert = True
            kinds = [kind for kind in self._config.kinds if (self._config.kinds[kind].breaker or kind) == name]
            for kind in kinds or [name]:
                self._of(kind)
            self._start_probing(named)
