"""The writer: it owns the connection, and does everything that is done with it.

A group is what is queued when the writer comes round: no timer. Each request has a savepoint of its own, so that one
that is refused does not spoil the others; only small puts that are neighbours share one, see `puts`. The group has one
COMMIT, and answers after it returned. A sink whose statement ends the transaction for all is refused too, and the
others begin again without it.

The commit of a group of claims is not synced. It is in the log, so it survives the process, and that is what a claim is
kept for: to know what was being worked on when a process died. A power cut may take it; whoever runs then is none the
wiser about who was at work, and nothing else is lost. The next commit that is synced makes it safe too, for it syncs
the whole log. So a chain of messages costs one sync for each and not two.

A COMMIT that raised is not a commit that failed. So after any error of the driver the file is closed, opened and
looked at: the number of commits in `state` tells whether the group is there. If it is, its answers stand. If not, it is
run once more. A second error stops the store: nobody is told "not stored" by somebody who has not looked.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apsw
import msgspec
import outcome
import trio

from naviscope_ingest.stores.sqlite.errors import StoreClosed, StoreCorrupt, translated
from naviscope_ingest.stores.sqlite.feed import Feed
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.puts import Put, put_together, together
from naviscope_ingest.stores.sqlite.retention import drop_staged
from naviscope_ingest.stores.sqlite.transaction import GuestError, TransactionEnded
from naviscope_spi import FactBody, Position, StoreFailed

__all__ = ["InlineRunner", "Request", "ThreadRunner", "Writer"]

# How many requests a group has at most.
_GROUP = 1_000


class Request:
    """One thing to do.

    Attributes:
        work: what to do, with the ledger.
        task: who waits for the answer.
        is_light: whether it need not survive a power cut: a group of such requests is committed without a sync.
        is_apart: whether it runs outside of any transaction.
        answer: what came of it.
        step: its facts and their position.
    """

    __slots__ = ("answer", "is_apart", "is_light", "step", "task", "work")

    def __init__(self, work: Callable[[Ledger], Any], *, is_light: bool = False, is_apart: bool = False) -> None:
        self.work = work
        self.task: trio.lowlevel.Task | None = None
        self.is_light = is_light
        self.is_apart = is_apart
        self.answer: outcome.Outcome[Any] | None = None
        self.step: tuple[Position, Sequence[FactBody]] | None = None


class Writer:
    """Runs groups of requests.

    Attributes:
        ledger: what it works on.
        commits: how many groups were committed.
        failure: why the store has stopped.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.commits = 0
        self.failure: StoreFailed | None = None

    def run(self, group: Sequence[Request]) -> None:
        """Run requests; afterwards each has its answer. Never raises."""
        if self.failure is not None:
            _fail(group, self.failure)
        elif group[0].is_apart:
            self._run_apart(group[0])
        else:
            self._run_together(group)

    def _run_apart(self, request: Request) -> None:
        self.ledger.begin()
        try:
            request.answer = outcome.Value(request.work(self.ledger))
        except Exception as exc:
            request.answer = outcome.Error(self._translated(exc, "reading"))

    def _run_together(self, group: Sequence[Request]) -> None:
        before = self.ledger.state.commits
        try:
            try:
                self._attempt(group)
            except apsw.Error:
                self.ledger.database.reopen()
                self.ledger.load()
                if self.ledger.state.commits == before:
                    self._attempt(group)
        except Exception as exc:
            self._stop(group, exc)

    def _attempt(self, group: Sequence[Request]) -> None:
        left = list(group)
        while (culprit := self._try(left)) is not None:
            left.remove(culprit)
            self.ledger.load()

    def _try(self, group: Sequence[Request]) -> Request | None:
        """Run a group and commit it; or stop, and return who ended the transaction."""
        ledger = self.ledger
        connection = ledger.connection
        ledger.database.sync(at_commit=not all(request.is_light for request in group))
        connection.execute("begin immediate")
        ledger.begin_group()
        for part in _parts(group):
            if len(part) > 1 and self._do_together(part):
                continue
            for request in part:
                try:
                    self._do(request, is_alone=len(group) == 1)
                except TransactionEnded as exc:
                    request.answer = outcome.Error(_unwrapped(exc))
                    request.step = None
                    return request
        if not ledger.has_changed:
            connection.execute("rollback")
            return None
        ledger.flush()
        connection.execute("commit")
        self.commits += 1
        return None

    def _do(self, request: Request, *, is_alone: bool) -> None:
        ledger = self.ledger
        connection = ledger.connection
        ledger.begin()
        if not is_alone:
            connection.execute("savepoint request")
        try:
            answer = request.work(ledger)
        except (apsw.Error, TransactionEnded):
            raise
        except Exception as exc:
            connection.execute("rollback" if is_alone else "rollback to request")
            if is_alone:
                connection.execute("begin immediate")
            ledger.undo()
            request.answer = outcome.Error(_unwrapped(self._translated(exc, "writing")))
            request.step = None
        else:
            request.answer = outcome.Value(answer)
            request.step = (ledger.position, ledger.news) if ledger.news else None
        if not is_alone:
            connection.execute("release request")

    def _do_together(self, requests: Sequence[Request]) -> bool:
        """Do several puts in one step; return False, with nothing done, if each has to be looked at."""
        ledger = self.ledger
        connection = ledger.connection
        ledger.begin()
        connection.execute("savepoint request")
        try:
            receipts = put_together(ledger, [request.work for request in requests if isinstance(request.work, Put)])
        except apsw.Error:
            raise
        except Exception:
            # Whose error it is shows when they are done one by one.
            connection.execute("rollback to request")
            ledger.undo()
            receipts = None
        connection.execute("release request")
        if receipts is None:
            return False
        for request, receipt in zip(requests, receipts, strict=True):
            request.answer = outcome.Value(receipt)
            request.step = None
        requests[0].step = (ledger.position, ledger.news) if ledger.news else None
        return True

    def _stop(self, group: Sequence[Request], exc: Exception) -> None:
        """Stop for good, after a second error."""
        error = self._translated(exc, "writing")
        if not isinstance(error, StoreFailed):
            error = StoreFailed(f"{error}; the store has stopped: open it again, and ask what is there")
            error.__cause__ = exc
        self.failure = error
        self.ledger.database.close(is_clean=False)
        for request in group:
            request.step = None
        _fail(group, error)

    def _translated(self, exc: Exception, doing: str) -> Exception:
        if isinstance(exc, msgspec.MsgspecError):
            error: Exception = StoreCorrupt(f"{self.ledger.database.path}: {doing}: {exc}; a row is damaged")
            error.__cause__ = exc
            return error
        if not isinstance(exc, apsw.Error):
            return exc
        error = translated(exc, self.ledger.database.path, doing)
        error.__cause__ = exc
        return error

    @property
    def has_chores(self) -> bool:
        """Whether something is left to do that nobody waits for."""
        return self._may_write and self.ledger.stages.dropped() is not None

    @property
    def _may_write(self) -> bool:
        database = self.ledger.database
        return self.failure is None and not database.read_only and database.is_open

    def do_chores(self) -> None:
        """Do some of what nobody waits for. The rest comes later."""
        self.run([Request(drop_staged)])

    def tend(self, *, is_idle: bool) -> None:
        """Look after the log, between groups."""
        if not self._may_write:
            return
        database = self.ledger.database
        try:
            database.checkpoint(is_idle=is_idle)
        except apsw.Error:
            # Nothing that was acknowledged is in danger: it is in the log. But this connection is not to be trusted.
            try:
                database.reopen()
                self.ledger.load()
            except Exception as exc:
                self._stop((), exc)


def _parts(group: Sequence[Request]) -> Iterator[Sequence[Request]]:
    at = 0
    for size in together([request.work for request in group]):
        yield group[at : at + size]
        at += size


def _unwrapped(exc: Exception) -> BaseException:
    return exc.__cause__ if isinstance(exc, GuestError) and exc.__cause__ is not None else exc


def _fail(group: Sequence[Request], error: StoreFailed) -> None:
    for request in group:
        # One error object raised in many tasks would gather the tracebacks of all.
        copy = type(error)(*error.args)
        copy.__cause__ = error.__cause__
        request.answer = outcome.Error(copy)


class InlineRunner:
    """Runs each request where it is made, for simulation under virtual time: the same code, and no thread.

    Args:
        feed: hands out the facts of each step.
    """

    def __init__(self, ledger: Ledger, feed: Feed) -> None:
        self.writer = Writer(ledger)
        self._feed = feed

    async def start(self, work: Callable[[Ledger], None]) -> None:
        """Open."""
        await self.ask(work, is_apart=True)

    async def ask(
        self, work: Callable[[Ledger], Any], *, is_light: bool = False, is_apart: bool = False, is_quick: bool = False
    ) -> Any:  # noqa: ANN401 - what the work returns
        """Run a request and return its answer. A checkpoint before anything is done, unless it is a quick one."""
        if not is_quick:
            await trio.lowlevel.checkpoint()
        request = Request(work, is_light=is_light, is_apart=is_apart)
        self.writer.run([request])
        if request.step is not None:
            self._feed.publish(*request.step)
        if self.writer.has_chores:
            self.writer.do_chores()
        self.writer.tend(is_idle=True)
        if self.writer.failure is not None:
            self._feed.end(self.writer.failure)
        assert request.answer is not None
        return request.answer.unwrap()

    async def aside(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the call returns
        """Read from a connection of its own."""
        await trio.lowlevel.checkpoint()
        return call()

    async def stop(self, work: Callable[[Ledger], None]) -> None:
        """Close."""
        request = Request(work, is_apart=True)
        self.writer.run([request])
        self.writer.failure = self.writer.failure or StoreClosed("the store was closed")


class ThreadRunner:
    """Runs requests on a thread of its own, in groups. Each group wakes those who wait for it at once.

    Args:
        feed: hands out the facts of each step.
    """

    def __init__(self, ledger: Ledger, feed: Feed) -> None:
        self.writer = Writer(ledger)
        self._feed = feed
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="naviscope-sqlite", daemon=True)

    async def start(self, work: Callable[[Ledger], None]) -> None:
        """Start the thread and open."""
        self._token = trio.lowlevel.current_trio_token()
        self._thread.start()
        try:
            await self.ask(work, is_apart=True)
        except BaseException:
            self._is_closed = True
            self._queue.put(None)
            raise

    async def ask(
        self, work: Callable[[Ledger], Any], *, is_light: bool = False, is_apart: bool = False, is_quick: bool = False
    ) -> Any:  # noqa: ANN401 - what the work returns
        """Queue a request and wait for its answer.

        Cancelled before it is queued, nothing was done. Once queued it happens, and this waits for it.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._is_closed:
            raise StoreClosed("the store was closed")
        request = Request(work, is_light=is_light, is_apart=is_apart)
        request.task = trio.lowlevel.current_task()
        self._queue.put(request)
        return await trio.lowlevel.wait_task_rescheduled(_not_now)

    async def aside(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the call returns
        """Read from a connection of its own, on another thread: the writer goes on."""
        return await trio.to_thread.run_sync(call)

    async def stop(self, work: Callable[[Ledger], None]) -> None:
        """Close, and end the thread. Everything that was queued happens first."""
        # A store that has stopped is closed already, and has said so to those who asked.
        with trio.CancelScope(shield=True), contextlib.suppress(StoreFailed):
            try:
                await self.ask(work, is_apart=True)
            finally:
                self._is_closed = True
                self._queue.put(None)

    def _loop(self) -> None:
        waiting: Request | None = self._queue.get()
        while waiting is not None:
            group = [waiting]
            waiting = None
            is_over = False
            while len(group) < _GROUP and not group[0].is_apart:
                try:
                    following = self._queue.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    is_over = True
                    break
                if following.is_apart:
                    waiting = following
                    break
                group.append(following)
            self._run(group)
            if is_over:
                return
            if waiting is None:
                self.writer.tend(is_idle=self._queue.empty())
                while self._queue.empty() and self.writer.has_chores:
                    self.writer.do_chores()
                    self.writer.tend(is_idle=self._queue.empty())
                if self.writer.failure is not None:
                    self._soon(self._deliver, ())
                waiting = self._queue.get()

    def _run(self, group: Sequence[Request]) -> None:
        try:
            self.writer.run(group)
        except BaseException as exc:
            self.writer.failure = StoreFailed(f"the writer met a bug of ours: {exc!r}; please report it")
            self.writer.failure.__cause__ = exc
            _fail(group, self.writer.failure)
        self._soon(self._deliver, group)

    def _soon(self, call: Callable[[Any], None], argument: object) -> None:
        assert self._token is not None
        # If nobody is left to be told, what was done is done all the same.
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, argument)

    def _deliver(self, group: Sequence[Request]) -> None:
        for request in group:
            if request.step is not None:
                self._feed.publish(*request.step)
            assert request.task is not None
            assert request.answer is not None
            trio.lowlevel.reschedule(request.task, request.answer)
        if self.writer.failure is not None:
            self._feed.end(self.writer.failure)


def _not_now(raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
