"""Getting a batch into the sink: try again what may work later, and find who spoils it.

No good message dies for its company. What the sink names in `SinkRejected` is taken out and the rest goes again; for
any other error the batch is tried once more, then in halves, until the culprit is alone. A transient failure never ends
a message: it is tried again for as long as it takes. When the policy's attempts are used up, the sink's breaker opens,
and the sink is called only now and then. Meanwhile outcomes wait here and count as in flight, so that no more messages
are started than there is room for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from naviscope_ingest._core.breaker import Breaker
from naviscope_ingest._kernel.meter import Meter
from naviscope_ingest._kernel.outcomes import describe_error
from naviscope_ingest.config import RuntimeConfig
from naviscope_ingest.errors import SinkMisbehaved
from naviscope_ingest.failures import Classified
from naviscope_spi import CommitBatch, CommitSink, Entry, Record, SinkRejected, SupportsRecords, SystemFailure

__all__ = ["SinkLine", "check_answer"]

_log = logging.getLogger("naviscope_ingest")

_SPACE: Final = "breakers"
_KEY: Final = "sink"


class SinkLine:
    """The way into a sink.

    Args:
        config: how often it is tried, when its breaker opens, and what errors mean.
        now: wall-clock time.
        sleep: waits some seconds.
        chance: random numbers from 0 to 1.
        meter: is told of failures.
        tell: says to those who ask why the sink is not called, and until when; None when it is again.
        keep: writes down that the breaker is open, or that it is no longer, for the next runtime.

    Attributes:
        is_troubled: whether the breaker wants to hear of what works. Asked for every batch.
    """

    def __init__(
        self,
        *,
        config: RuntimeConfig,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
        chance: Callable[[], float],
        meter: Meter,
        tell: Callable[[str, float | None], None],
        keep: Callable[[Record], Awaitable[object]],
    ) -> None:
        self.is_troubled = False
        self._config = config
        self._retry = config.sink_retry
        self._breaker = None if config.sink_breaker is None else Breaker(config.sink_breaker)
        self._now = now
        self._sleep = sleep
        self._chance = chance
        self._meter = meter
        self._tell = tell
        self._keep = keep

    async def restore(self, store: object) -> None:
        """Be as the last runtime was: a sink that was down is left alone until its time has come."""
        if self._breaker is None or not isinstance(store, SupportsRecords):
            return
        kept = (await store.read(_SPACE, [_KEY])).get(_KEY)
        if kept is not None:
            until, text = msgspec.json.decode(kept, type=tuple[float, str])
            self._breaker.open_until(until)
            self.is_troubled = True
            self._tell(text, until)

    async def until_worth_a_call(self) -> None:
        """Wait while the breaker is open."""
        if self._breaker is not None and self._breaker.state == "open":
            await self._sleep(max(0.0, self._breaker.until - self._now()))
            self._breaker.half_open()
            self._meter.breaker_changed("sink", "half-open")

    async def commit(
        self, sink: CommitSink[Any], entries: Sequence[Entry[Any]], first: Exception
    ) -> dict[str, BaseException]:
        """Commit entries that failed once; return the errors of those that the sink refuses, by task key.

        Args:
            sink: where they go.
            entries: what they are.
            first: the error they failed with.

        Raises:
            SystemFailure: the sink says that nothing can succeed.
            SinkMisbehaved: the sink returned something.
        """
        refused: dict[str, BaseException] = {}
        todo = [list(entries)]
        was_tried = False
        error: Exception | None = first
        while todo:
            batch = todo.pop()
            error = await self._try(sink, batch, error)
            if isinstance(error, SinkRejected):
                todo += _without(batch, error, refused)
            elif error is not None and len(batch) == 1 and was_tried:
                refused[batch[0].task_key] = error
            elif error is not None and not was_tried:
                was_tried = True
                todo.append(batch)
            elif error is not None:
                half = len(batch) // 2
                todo += [batch[half:], batch[:half]]
            error = None
        return refused

    async def _try(self, sink: CommitSink[Any], batch: list[Entry[Any]], error: Exception | None) -> Exception | None:
        """Commit a batch, however long a transient failure lasts; return the error it fails with.

        Args:
            sink: where it goes.
            batch: what it is.
            error: what it failed with just now, if it did.
        """
        # A sink is somebody else's code: what it returns is looked at, whatever its type says.
        commit: Callable[[CommitBatch[Any]], Awaitable[object]] = sink.commit
        failures = 0
        while True:
            if error is None:
                try:
                    check_answer(sink, await commit(CommitBatch(batch)))
                except Exception as raised:
                    error = raised
                else:
                    await self.worked()
                    return None
            if isinstance(error, SystemFailure | SinkMisbehaved):
                raise error
            meaning = self._config.classifier.classify(error, self._now())
            if isinstance(error, SinkRejected) or meaning.decision != "transient" or not meaning.is_known:
                if meaning.decision == "system":
                    raise SystemFailure(describe_error(error)) from error
                return error
            failures += 1
            self._meter.sink_failed(meaning.kind)
            await self._wait(failures, meaning, error)
            error = None

    async def _wait(self, failures: int, meaning: Classified, error: Exception) -> None:
        """Wait until the sink is worth another call."""
        breaker = self._breaker
        delay = None
        if breaker is None or breaker.state == "closed":
            delay = self._retry.delay(failures, 0.0, self._chance(), meaning.retry_after)
        if delay is not None:
            await self._sleep(delay)
            return
        if breaker is None:
            await self._sleep(self._retry.max_delay)
            return
        assert self._config.sink_breaker is not None
        policy = self._config.sink_breaker
        self.is_troubled = True
        while True:
            breaker.trip(self._now())
            self._meter.breaker_changed("sink", "open")
            text = f"the breaker of the sink is open: {describe_error(error)}"
            _log.warning(
                "%s; it is tried again in %g s", text, policy.open_for, extra={"breaker": "sink", "state": "open"}
            )
            self._tell(text, breaker.until)
            await self._keep(Record(_SPACE, _KEY, msgspec.json.encode((breaker.until, text))))
            await self._sleep(policy.open_for if meaning.retry_after is None else meaning.retry_after)
            if policy.probe is None:
                break
            try:
                await policy.probe()
            except Exception as raised:
                error = raised
            else:
                break
        breaker.half_open()
        self._meter.breaker_changed("sink", "half-open")

    async def worked(self) -> None:
        """Learn that the sink took a batch."""
        if self._breaker is not None and self._breaker.succeeded(1, self._now()):
            _log.info("the breaker of the sink is closed", extra={"breaker": "sink", "state": "closed"})
            self._meter.breaker_changed("sink", "closed")
            await self._keep(Record(_SPACE, _KEY, None))
        self.is_troubled = self._breaker is not None and self._breaker.state != "closed"
        self._tell("", None)


def check_answer(sink: CommitSink[Any], answer: object) -> None:
    """Raise if a sink returned something: nobody can tell whether it applied the batch.

    Raises:
        SinkMisbehaved: it did.
    """
    if answer is not None:
        raise SinkMisbehaved(
            f"{type(sink).__name__}.commit returned {answer!r:.80}: it must apply the batch, or raise, and return None"
        )


def _without(batch: list[Entry[Any]], error: SinkRejected, refused: dict[str, BaseException]) -> list[list[Entry[Any]]]:
    """Take out the entries that a sink named."""
    named = {entry.task_key: error.rejected[entry.task_key] for entry in batch if entry.task_key in error.rejected}
    if not named:
        # It named none of ours. Alone each will show whether it is meant.
        if len(batch) == 1:
            refused[batch[0].task_key] = error
            return []
        return [[entry] for entry in batch]
    refused.update(named)
    rest = [entry for entry in batch if entry.task_key not in named]
    return [rest] if rest else []
