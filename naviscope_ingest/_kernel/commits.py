"""Getting a batch into the sink: try again what may work later, and find who spoils it.

No good message dies for its company. What the sink names in `SinkRejected` is taken out and the rest goes again; for
any other error the batch is tried once more, then in halves, until the culprit is alone. A transient failure never ends
a message: it is tried again for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from naviscope_ingest.errors import SinkMisbehaved
from naviscope_spi import CommitBatch, CommitSink, Entry, SinkRejected, SystemFailure, Transient

__all__ = ["check_answer", "commit_entries"]

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 60.0


async def commit_entries(
    sink: CommitSink[Any],
    entries: Sequence[Entry[Any]],
    sleep: Callable[[float], Awaitable[object]],
    first: Exception,
) -> dict[str, BaseException]:
    """Commit entries that failed once; return the errors of those that the sink refuses, by task key.

    Args:
        sink: where they go.
        entries: what they are.
        sleep: waits some seconds.
        first: the error they failed with.

    Raises:
        SystemFailure: the sink says that nothing can succeed.
        SinkMisbehaved: the sink returned something.
    """
    if isinstance(first, SystemFailure):
        raise first
    if isinstance(first, Transient):
        await sleep(_FIRST_DELAY if first.retry_after is None else first.retry_after)
    refused: dict[str, BaseException] = {}
    todo = _without(list(entries), first, refused) if isinstance(first, SinkRejected) else [list(entries)]
    was_tried = not isinstance(first, SinkRejected | Transient)
    while todo:
        batch = todo.pop()
        error = await _try(sink, batch, sleep)
        if isinstance(error, SinkRejected):
            todo += _without(batch, error, refused)
        elif error is not None and len(batch) == 1:
            refused[batch[0].task_key] = error
        elif error is not None and not was_tried:
            was_tried = True
            todo.append(batch)
        elif error is not None:
            half = len(batch) // 2
            todo += [batch[half:], batch[:half]]
    return refused


async def _try(
    sink: CommitSink[Any], batch: list[Entry[Any]], sleep: Callable[[float], Awaitable[object]]
) -> Exception | None:
    """Commit a batch, however long a transient failure lasts; return the error it fails with."""
    delay = _FIRST_DELAY
    # A sink is somebody else's code: what it returns is looked at, whatever its type says.
    commit: Callable[[CommitBatch[Any]], Awaitable[object]] = sink.commit
    while True:
        try:
            answer: object = await commit(CommitBatch(batch))
        except Transient as error:
            await sleep(delay if error.retry_after is None else error.retry_after)
            delay = min(delay * 2, _LONGEST_DELAY)
        except SystemFailure:
            raise
        except Exception as error:
            return error
        else:
            check_answer(sink, answer)
            return None


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
