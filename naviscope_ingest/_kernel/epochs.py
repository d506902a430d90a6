"""What the kernel knows of epochs beyond the core: reports, failures, times, and who waits.

The core is told to let go of an epoch once it has completed; its report stays here, for the last so many epochs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import trio
from attrs import define

from naviscope_ingest._core import Core, Decided, EpochTracker
from naviscope_ingest.admission import WhenFull
from naviscope_ingest.reports import EpochReport, Failure
from naviscope_spi import BadEnd, EpochKey, EpochRecord, EpochState, UnknownEpoch

__all__ = ["EpochBook", "EpochPage"]

_MOST_DROPPED = 10_000
"""How many ids of dropped messages are remembered for each epoch."""


@define(eq=False)
class EpochPage:
    """One epoch in the book.

    Attributes:
        key: its number and name.
        opened_at, sealed_at, completed_at: wall-clock times.
        failures: the first messages that ended badly, if any did.
        revision: how often it had completed again before this process began.
        last: the report of its completion, once the core has let go of it.
        when_full: what a submit to it does while intake is slow, if that differs from the rest.
        dropped: how many messages were left out.
        dropped_ids: the last of those, if there are any.
        submits: submits that are under way; sealing waits for them.
        is_forgotten: whether it is no longer in the book.
        news: set, and made anew, whenever the epoch changes state; made by the first who waits.
    """

    key: EpochKey
    opened_at: float | None = None
    sealed_at: float | None = None
    completed_at: float | None = None
    failures: list[Failure] | None = None
    revision: int = 0
    last: EpochReport | None = None
    submits: int = 0
    when_full: WhenFull | None = None
    dropped: int = 0
    dropped_ids: dict[str, None] | None = None
    is_forgotten: bool = False
    news: trio.Event | None = None

    def restore(self, report: EpochReport, state: EpochState) -> None:
        """Take over what an earlier process reported when the epoch completed."""
        self.opened_at, self.sealed_at, self.completed_at = report.opened_at, report.sealed_at, report.completed_at
        self.revision = report.revision
        if state == "completed":
            self.last = report

    async def changed(self) -> None:
        """Wait until the epoch changes state."""
        if self.news is None:
            self.news = trio.Event()
        await self.news.wait()

    def drop(self, message_ids: Iterable[str]) -> None:
        """Note messages that were left out."""
        known = self.dropped_ids or {}
        for each in message_ids:
            self.dropped += 1
            known[each] = None
        while len(known) > _MOST_DROPPED:
            del known[next(iter(known))]
        self.dropped_ids = known

    def tell(self) -> None:
        """Wake those who wait."""
        news, self.news = self.news, None
        if news is not None:
            news.set()


class EpochBook:
    """Every epoch that is kept.

    Args:
        core: where unfinished epochs live.
        keep: how many completed ones are kept.
        max_failures: how many failures a report lists.
    """

    def __init__(self, core: Core, keep: int, max_failures: int) -> None:
        self._core = core
        self._keep = keep
        self._max_failures = max_failures
        self._pages: dict[int, EpochPage] = {}
        self._names: dict[str, EpochPage] = {}
        self._completed: OrderedDict[int, None] = OrderedDict()

    def __iter__(self) -> Iterator[EpochPage]:
        return iter(tuple(self._pages.values()))

    def open(self, record: EpochRecord) -> EpochPage:
        """Return the page of an epoch, made on demand."""
        key = record.key
        page = self._pages.get(key.number)
        if page is None:
            page = self._pages[key.number] = self._names[key.name] = EpochPage(key, record.opened_at, record.sealed_at)
            if record.report:
                page.restore(EpochReport.decode(record.report), record.state)
            if record.state == "completed":
                self._completed[key.number] = None
        return page

    def knows(self, name: str | None) -> bool:
        """Tell whether there is an epoch of that name."""
        return name in self._names

    def find(self, which: str | int) -> EpochPage:
        """Return the page of an epoch by number or name.

        Raises:
            UnknownEpoch: there is none.
        """
        page = self._names.get(which) if isinstance(which, str) else self._pages.get(which)
        if page is None:
            raise UnknownEpoch(str(which))
        return page

    def fail(self, number: int, message_id: str, end: BadEnd, error: str, causes: Sequence[str]) -> None:
        """Note a message that ended badly. Skipped ones are no failures."""
        page = self._pages.get(number)
        if page is None or end == "skipped":
            return
        if page.failures is None:
            page.failures = []
        if len(page.failures) < self._max_failures:
            page.failures.append(Failure(message_id, end, error, causes))

    def note(self, decided: Decided) -> None:
        """Note a message that the core let end badly."""
        node = self._core.node(decided.seq)
        if node is not None:
            causes = [cause.id for seq in sorted(decided.causes) if (cause := self._core.node(seq)) is not None]
            self.fail(node.epoch.number, node.id, decided.end, decided.reason, causes)

    def report(self, page: EpochPage) -> EpochReport:
        """Say how an epoch stands."""
        if page.last is not None:
            return page.last
        return self._report(page, self._core.epochs[page.key.number])

    def final_report(self, tracker: EpochTracker, at: float) -> EpochReport:
        """Report on an epoch that is about to be recorded as completed."""
        page = self._pages[tracker.number]
        if page.completed_at is None:
            page.completed_at = at
        return self._report(page, tracker)

    def complete(self, tracker: EpochTracker, report: EpochReport) -> None:
        """Note that an epoch completed, and let the core forget what nobody can ask for any more."""
        page = self._pages[tracker.number]
        page.last = report
        page.failures = None
        self._core.free_epoch(tracker.number)
        self._keep_for_now(tracker.number)
        page.tell()

    def release(self, number: int) -> None:
        """Let an epoch go whose dead letters were discarded, if it has completed and nothing else pins it."""
        page = self._pages.get(number)
        if page is not None and page.last is not None and self._core.free_epoch(number):
            self._keep_for_now(number)

    def _keep_for_now(self, number: int) -> None:
        self._completed.pop(number, None)
        self._completed[number] = None
        while len(self._completed) > self._keep:
            oldest = self._completed.popitem(last=False)[0]
            if not self._core.epochs[oldest].is_pinned:
                self._forget(oldest)

    def reopen(self, number: int) -> None:
        """Note that an epoch is being repaired."""
        self._completed.pop(number, None)
        page = self._pages[number]
        page.last = None
        page.tell()

    def _failures(self, tracker: EpochTracker) -> Iterator[Failure]:
        """Yield the messages of an epoch that are dead, cancelled or expired now: a replay changes which."""
        for node in tracker.live.values():
            if node.end in ("dead", "cancelled", "expired") and node.rare is not None:
                causes = (self._core.node(seq) for seq in sorted(node.rare.causes))
                ids = [cause.id for cause in causes if cause is not None]
                yield Failure(node.id, node.end, node.rare.reason, ids)

    def wake_all(self) -> None:
        """Wake everybody who waits for any epoch."""
        for page in self._pages.values():
            page.tell()

    def _forget(self, number: int) -> None:
        page = self._pages.pop(number)
        page.is_forgotten = True
        if self._names.get(page.key.name) is page:
            del self._names[page.key.name]
        self._core.forget_epoch(number)

    def _report(self, page: EpochPage, tracker: EpochTracker) -> EpochReport:
        ends, revision = tracker.ends, page.revision + tracker.revision
        failures: Iterable[Failure] = page.failures or ()
        if revision or tracker.state == "repairing":
            failures = islice(self._failures(tracker), self._max_failures)
        return EpochReport(
            name=page.key.name,
            number=page.key.number,
            state=tracker.state,
            is_blocked=tracker.is_blocked,
            revision=revision,
            submitted=tracker.submitted,
            unfinished=tracker.unfinished,
            committed=ends["committed"],
            dead=ends["dead"],
            skipped=ends["skipped"],
            cancelled=ends["cancelled"],
            expired=ends["expired"],
            duplicates=tracker.duplicates,
            conflicts=tracker.conflicts,
            dropped=page.dropped,
            failures=tuple(failures),
            opened_at=page.opened_at,
            sealed_at=page.sealed_at,
            completed_at=page.completed_at,
        )
