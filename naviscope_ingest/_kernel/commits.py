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

__all__ = ["commit_entries"]

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 60.0


async def commit_entries(
    sink: CommitSink[Any], entries: Sequence[Entry[Any]], sleep: Callable[[float], Awaitable[object]]
) -> dict[str, BaseException]:
    """Commit entries; return the errors of those that the sink refuses, by task key.

    Raises:
        SystemFailure: the sink says that nothing can succeed.
        SinkMisbehaved: the sink returned something.
    """
    refused: dict[str, BaseException] = {}
    todo = [list(entries)]
    has_failed_before = False
    while todo:
        batch = todo.pop()
        error = await _try(sink, batch, sleep)
        if error is None:
            has_failed_before = False
        elif isinstance(error, SinkRejected):
            todo += _without(batch, error, refused)
        elif len(batch) == 1:
            refused[batch[0].task_key] = error
        elif not has_failed_before:
            has_failed_before = True
            todo.append(batch)
        else:
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
            if answer is not None:
                raise SinkMisbehaved(
                    f"{type(sink).__name__}.commit returned {answer!r:.80}: it must apply the batch, or raise, and "
                    "return None"
                )
            return None


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
