"""What becomes of messages whose attempts failed: another attempt, or a dead letter with everything that was tried.

The history of a message that failed is a record in the store, in the space "attempts" under its place. It rides in the
settlement that sets the message waiting, and goes in the one that ends it; so it survives a restart, the time since the
first attempt counts across restarts, and a message that never fails costs nothing. Here only the places are known of
messages that have such a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec
from attrs import evolve, frozen

from naviscope_ingest._core import Core, Decided
from naviscope_ingest._kernel.breakers import Breakers
from naviscope_ingest._kernel.membership import Membership
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.outcomes import Batch, Failed, Rest, describe_error
from naviscope_ingest.config import RuntimeConfig
from naviscope_ingest.failures import Classified
from naviscope_ingest.letters import (
    MAX_ATTEMPTS,
    MAX_CAUSES,
    MAX_STACK,
    AttemptRecord,
    DeadLetter,
    fingerprint_of,
    origin_of,
    printable,
)
from naviscope_spi import BadEnd, Ended, ErrorKind, Record, Seq, SupportsRecords, SystemFailure, Waits

__all__ = ["Judge"]

_log = logging.getLogger("naviscope_ingest")

_SPACE: Final = "attempts"
_SAYS_NO: Final = ("rate_limit", "timeout")
"""Kinds of errors by which a service asks for less."""

_FRAMES: Final = 30
"""How many frames of a stack are looked at, from the innermost."""


@frozen(kw_only=True)
class _History:
    """What was tried in a run.

    Attributes:
        first_at: when the first attempt began.
        attempts: the last ones that failed.
        tried: how many failed.
        strikes: when it stopped the runtime.
    """

    first_at: float
    attempts: tuple[AttemptRecord, ...] = ()
    tried: int = 0
    strikes: tuple[float, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_History).decode


class Judge:
    """Decides on failed attempts, and writes dead letters.

    Args:
        core: knows when a message was started.
        config: classifier and policies.
        membership: whose store keeps histories.
        now: wall-clock time.
        chance: random numbers from 0 to 1, for retries.
        meter: is told of failures.
        breakers: are told of failures, and make some of them their own affair.

    Attributes:
        tried: messages that have a history. Callers on the hot path ask whether there are any.
    """

    def __init__(
        self,
        *,
        core: Core,
        config: RuntimeConfig,
        membership: Membership,
        now: Callable[[], float],
        chance: Callable[[], float],
        meter: Meter,
        breakers: Breakers,
    ) -> None:
        # With the history itself, if the store could not give it back.
        self.tried: dict[Seq, bytes | None] = {}
        self._core = core
        self._config = config
        self._membership = membership
        self._now = now
        self._chance = chance
        self._meter = meter
        self._breakers = breakers
        store = membership.store
        self._records = store if isinstance(store, SupportsRecords) else None

    def remember(self, seqs: Iterable[Seq]) -> None:
        """Learn at the start which messages may have a history."""
        if self._records is not None:
            self.tried.update(dict.fromkeys(seqs))

    async def judge(self, batch: Batch) -> None:
        """Decide on all that failed in a batch: each message waits or ends."""
        rest = batch.more()
        failed, rest.failed = rest.failed, []
        if not failed:
            return
        histories = await self._read(
            [each.lease.seq for each in failed if each.lease.attempt or each.lease.seq in self.tried]
        )
        now = self._now()
        for each in failed:
            if self._core.is_unfinished(each.lease.seq):
                self._judge(rest, each, histories.get(each.lease.seq), now)

    def _judge(self, rest: Rest, failed: Failed, history: _History | None, now: float) -> None:
        lease, error = failed.lease, failed.error
        meaning = self._config.classifier.classify(error, now)
        text = describe_error(error)
        self._meter.failed(lease.message.kind, meaning.kind)
        if meaning.kind in _SAYS_NO and self._core.control.is_on:
            self._core.control.back_off(lease.message.kind, meaning.retry_after)
        if history is None:
            node = self._core.node(lease.seq)
            history = _History(first_at=now if node is None else min(now, node.since))
        record = AttemptRecord(
            at=now,
            error=text,
            kind=meaning.kind,
            stack=_stack(error),
            attempt=lease.attempt + 1,
            worker=self._membership.worker,
        )
        history = evolve(history, attempts=(*history.attempts, record)[-MAX_ATTEMPTS:], tried=history.tried + 1)
        if not failed.is_final:
            is_down = meaning.decision != "system" and self._breakers.failed(lease, meaning.kind, text, rest.records)
            if meaning.decision == "system":
                if self._stop(rest, failed, history, now):
                    return
                meaning = Classified("permanent", "poison")
                text = f"it stopped the runtime {self._config.poison_failures} times within a short time: {text}"
            elif meaning.decision == "transient":
                if is_down and meaning.retry_after is None:
                    # It fails because what it needs is down, as everybody knows by now: that spends nothing.
                    meaning = evolve(meaning, retry_after=0.0)
                if self._retry(rest, failed, meaning, history, now):
                    return
        self._tell(logging.WARNING, "message %r of epoch %r ended dead: %s", failed, kind=meaning.kind, text=text)
        letter = self._letter(text, meaning.kind, history, now)
        where = fingerprint_of(meaning.kind, type(error).__name__, describe_error(error), _place(error))
        letter = evolve(letter, fingerprint=where, origin=origin_of(lease.message.headers))
        rest.ended.append((lease, Ended(lease.seq, "dead", letter=letter.encode()), text))
        self._forget(lease.seq, rest.records)

    def _retry(self, rest: Rest, failed: Failed, meaning: Classified, history: _History, now: float) -> bool:
        """Let a message run again later, if its policy allows for it."""
        lease = failed.lease
        policy = self._config.policy(lease.message.kind)
        if policy.delivery == "at_most_once":
            return False
        spent = lease.attempt + (meaning.retry_after is None)
        delay = policy.retry.delay(spent, now - history.first_at, self._chance(), meaning.retry_after)
        if delay is None:
            return False
        self._wait(rest, failed, history, now + delay, spent)
        self._meter.retried(lease.message.kind, delay)
        what = "an attempt of message %r of epoch %r failed, it runs again: %s"
        self._tell(logging.INFO, what, failed, kind=meaning.kind, text=describe_error(failed.error), delay=delay)
        return True

    def _tell(
        self, level: int, what: str, failed: Failed, *, kind: ErrorKind, text: str, delay: float | None = None
    ) -> None:
        """Log what became of a message whose attempt failed."""
        if not _log.isEnabledFor(level):
            return
        lease = failed.lease
        facts = {
            "epoch": lease.epoch.name,
            "epoch_number": lease.epoch.number,
            "message_id": lease.message.id,
            "kind": lease.message.kind,
            "attempt": lease.attempt + 1,
            "run": lease.run,
            "error_kind": kind,
        }
        _log.log(
            level,
            what,
            lease.message.id,
            lease.epoch.name,
            text,
            extra=facts if delay is None else {**facts, "delay": delay},
        )

    def _stop(self, rest: Rest, failed: Failed, history: _History, now: float) -> bool:
        """Stop the runtime, unless this very message has done so again and again."""
        lease, error = failed.lease, failed.error
        since = now - self._config.poison_window
        # In company nobody can tell who it was.
        strikes = (*(each for each in history.strikes if each > since), *((now,) if failed.is_alone else ()))
        if len(strikes) >= self._config.poison_failures:
            return False
        if rest.fatal is None:
            rest.fatal = error if isinstance(error, SystemFailure) else _system_failure(error)
        self._wait(rest, failed, evolve(history, strikes=strikes), now, lease.attempt)
        return True

    def _wait(self, rest: Rest, failed: Failed, history: _History, until: float, spent: int) -> None:
        lease = failed.lease
        rest.waits.append(Waits(lease.seq, None, until, spent, lease.run))
        kept = _encode(history)
        rest.records.append(Record(_SPACE, str(lease.seq), kept))
        self.tried[lease.seq] = kept if self._records is None else None

    def _letter(self, text: str, kind: ErrorKind, history: _History | None, now: float) -> DeadLetter:
        return DeadLetter(
            error=text,
            kind=kind,
            attempts=() if history is None else history.attempts,
            tried=0 if history is None else history.tried,
            worker=self._membership.worker,
            ended_at=now,
        )

    # Histories

    async def _read(self, seqs: Sequence[Seq]) -> dict[Seq, _History]:
        """Return the histories of those messages that have one."""
        if not seqs:
            return {}
        if self._records is None:
            kept: Mapping[str, bytes | None] = {str(seq): self.tried.get(seq) for seq in seqs}
        else:
            kept = await self._records.read(_SPACE, [str(seq) for seq in seqs])
        return {seq: _decode(value) for seq in seqs if (value := kept.get(str(seq))) is not None}

    def _forget(self, seq: Seq, records: list[Record]) -> None:
        if seq in self.tried:
            del self.tried[seq]
            records.append(Record(_SPACE, str(seq), None))

    def forget(self, seqs: Iterable[Seq]) -> list[Record]:
        """Return what deletes the histories of messages that end."""
        records: list[Record] = []
        for seq in seqs:
            self._forget(seq, records)
        return records

    # Ends that the core decided

    async def ends(self, decided: Sequence[Decided]) -> tuple[list[Ended], list[Record]]:
        """Return what the store is told of ends that the core decided, and what deletes their histories."""
        tried = self.tried
        histories = await self._read([each.seq for each in decided if each.seq in tried]) if tried else {}
        now = self._now()
        ended = [
            Ended(
                each.seq,
                each.end,
                tuple(sorted(each.causes)),
                tuple(sorted(each.epoch_causes)),
                self._encoded(each, histories.get(each.seq), now),
            )
            for each in decided
        ]
        return ended, self.forget(each.seq for each in decided) if tried else []

    def _encoded(self, decided: Decided, history: _History | None, now: float) -> bytes | None:
        if decided.end not in _LETTERS:
            return printable(decided.reason).encode() or None
        kind: ErrorKind = "expired" if decided.end == "expired" else decided.kind or "dependency"
        letter = self._letter(printable(decided.reason), kind, history, now)
        causes = (self._core.node(seq) for seq in sorted(decided.causes)[:MAX_CAUSES])
        return evolve(
            letter,
            fingerprint=fingerprint_of(kind, "", decided.reason),
            causes=tuple((cause.epoch.name, cause.id) for cause in causes if cause is not None),
        ).encode()


_LETTERS: Final[Collection[BadEnd]] = ("dead", "expired")


def _system_failure(error: BaseException) -> SystemFailure:
    failure = SystemFailure(describe_error(error))
    failure.__cause__ = error
    return failure


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    """Return file, line and function of the innermost frames."""
    frames: list[tuple[str, int, str]] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno, code.co_qualname))
        traceback = traceback.tb_next
    return frames[-_FRAMES:]


def _stack(error: BaseException) -> str:
    """Return where an error was raised, and where those that it was raised from; its end, if it is long.

    Without source lines: they cost a file each to read, and are not there in every installation.
    """
    parts: list[str] = []
    each: BaseException | None = error
    relation: Literal["", "raised from "] = ""
    for _ in range(3):
        if each is None:
            break
        lines = [f'  File "{file}", line {line}, in {name}' for file, line, name in _frames(each)]
        parts.append("\n".join([*lines, f"{relation}{describe_error(each)}"]))
        each, relation = each.__cause__, "raised from "
    return printable("\n".join(reversed(parts)))[-MAX_STACK:]


def _place(error: BaseException) -> str:
    """Return the function that raised an error."""
    frames = _frames(error)
    return frames[-1][2] if frames else ""
