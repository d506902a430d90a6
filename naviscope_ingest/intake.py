"""What callers hold: the handle that takes messages in, and epochs."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

import trio

from naviscope_ingest._core.explain import EpochExplanation, MessageExplanation, explain_epoch, explain_message
from naviscope_ingest._core.limits import check_count
from naviscope_ingest._kernel import Kernel
from naviscope_ingest._kernel.epochs import EpochPage
from naviscope_ingest.admission import WhenFull, check_when_full
from naviscope_ingest.dead_letters import DeadLetters
from naviscope_ingest.errors import EpochTimeout, IngestError, UnknownMessage
from naviscope_ingest.reports import EpochReport, MessageOutline, SubmitReceipt
from naviscope_spi import EpochOptions, InvalidMessage, Message, OnUnresolved, PutReceipt, Resource, Seq, check_name
from naviscope_spi.messages import is_number
from naviscope_spi.names import shown

if TYPE_CHECKING:
    from naviscope_ingest.runtime import IngestRuntime

__all__ = ["Epoch", "IntakeHandle", "Messages", "chunks_of", "cut_messages"]

P = TypeVar("P")

Messages: TypeAlias = "Iterable[Message[P]] | AsyncIterable[Message[P]] | Message[P]"

_MOST_CONFLICTS = 1_000

_USUAL: Final = EpochOptions()
_USUAL_GIVEN: Final = (_USUAL.if_exists, _USUAL.deadline, _USUAL.on_unresolved, _USUAL.retain)


class Epoch(Generic[P]):
    """An open, sealed or completed epoch. Any number of handles may stand for the same one."""

    __slots__ = ("__weakref__", "_intake", "_page")

    def __init__(self, intake: IntakeHandle[P], page: EpochPage) -> None:
        self._intake = intake
        self._page = page

    def __repr__(self) -> str:
        return f"<Epoch {self.number} {self.name!r}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._page.key.name

    @property
    def number(self) -> int:
        """Its number, which is never used again."""
        return self._page.key.number

    @property
    def intake(self) -> IntakeHandle[P]:
        """The handle it was opened with."""
        return self._intake

    @property
    def report(self) -> EpochReport:
        """How it stands now."""
        return self._intake.report(self)

    async def submit(
        self, messages: Messages[P], *, strict: bool = False, unique_for: float | None = None
    ) -> SubmitReceipt:
        """Submit messages; see `IntakeHandle.submit`."""
        return await self._intake.submit(self, messages, strict=strict, unique_for=unique_for)

    async def submit_nowait(self, messages: Messages[P], *, strict: bool = False) -> SubmitReceipt:
        """Submit messages without waiting for room; see `IntakeHandle.submit_nowait`."""
        return await self._intake.submit_nowait(self, messages, strict=strict)

    async def seal(self) -> None:
        """Take no more messages but derived ones."""
        await self._intake.seal_epoch(self)

    async def wait(
        self, timeout: float | None = None, *, until: Literal["completed", "blocked"] = "completed"
    ) -> EpochReport:
        """Wait until it has completed; see `IntakeHandle.wait_epoch`."""
        return await self._intake.wait_epoch(self, timeout, until=until)

    async def cancel(self, message_id: str | None = None) -> bool:
        """Cancel all of it, or one message; return whether that had an effect."""
        if message_id is not None:
            return await self._intake.cancel(self, message_id)
        await self._intake.cancel_epoch(self)
        return True

    @overload
    async def explain(self) -> EpochExplanation: ...
    @overload
    async def explain(self, message_id: str) -> MessageExplanation: ...
    async def explain(self, message_id: str | None = None) -> EpochExplanation | MessageExplanation:
        """Say why it, or one of its messages, is not done."""
        if message_id is None:
            return await self._intake.explain(self)
        return await self._intake.explain(self, message_id)

    async def progress(self, every: float = 0.5) -> AsyncIterator[EpochReport]:
        """Yield a report at once, one every so many seconds, and the last one when it has completed."""
        while True:
            report = self.report
            yield report
            if report.is_completed:
                return
            with trio.move_on_after(every):
                await self._intake.wait_epoch(self)


class IntakeHandle(Generic[P]):
    """Takes messages into a running runtime. May be used from any task of the same trio run.

    Wherever a call takes an epoch, it takes the handle or the name.
    """

    def __init__(self, runtime: IngestRuntime[P, Any], kernel: Kernel) -> None:
        self._runtime = runtime
        self._kernel = kernel
        self._dead_letters: DeadLetters[P] = DeadLetters(self, kernel)

    @property
    def runtime(self) -> IngestRuntime[P, Any]:
        """The runtime behind this handle."""
        return self._runtime

    @property
    def dead_letters(self) -> DeadLetters[P]:
        """What ended dead or expired: to be found, replayed, edited, discarded or exported."""
        return self._dead_letters

    # Epochs

    async def new_epoch(
        self,
        name: str | None = None,
        *,
        deadline: float | None = None,
        on_unresolved: OnUnresolved | None = None,
        retain: float | None = None,
        weight: int = 1,
        cap: int | None = None,
        when_full: WhenFull | None = None,
        if_exists: Literal["rejoin", "refuse"] = "rejoin",
    ) -> Epoch[P]:
        """Open an epoch, or rejoin the kept one of that name in whatever state it is.

        Args:
            name: what it is called; a name is made up unless it is given.
            deadline: wall-clock time after which what has not ended expires.
            on_unresolved: the default for dependencies that nothing alive can release.
            retain: how long ids and report are kept after completion, in seconds.
            weight: its share when epochs compete.
            cap: how many of its messages may be started and not yet settled, in this runtime: it is not kept.
            when_full: what a submit to it does while intake is slow; as for `IntakePolicy`, whose choice it replaces.
            if_exists: "refuse" makes a taken name an error.

        Raises:
            EpochExists: the name is taken and `if_exists="refuse"`.
            RuntimeStopped: the runtime takes no more work.
        """
        given = (if_exists, deadline, on_unresolved, retain)
        # Thousands of epochs may be kept, nearly all of them with the usual options: one object serves them all.
        is_usual = given == _USUAL_GIVEN and type(weight) is int and weight == 1
        options = _USUAL if is_usual else EpochOptions(*given, weight)
        if cap is not None:
            check_count("new_epoch(cap", cap)
        if when_full is not None:
            check_when_full(when_full, "new_epoch")
        page = await self._kernel.door.open_epoch(name, options)
        page.when_full = when_full or page.when_full
        if cap is not None:
            self._kernel.steering.cap_epoch(page, cap)
        return Epoch(self, page)

    @asynccontextmanager
    async def epoch(self, name: str | None = None, **options: Any) -> AsyncIterator[Epoch[P]]:  # noqa: ANN401 - as new_epoch
        """Open an epoch for a block: sealed when the block is left, and waited for.

        If the block raises, the epoch is not sealed: one with a name stays open, to be rejoined when the program is run
        again; one without is cancelled.
        """
        epoch = await self.new_epoch(name, **options)
        try:
            yield epoch
        except BaseException:
            if name is None:
                # A runtime that has ended cannot cancel it; what the block raised matters more.
                with trio.CancelScope(shield=True), suppress(IngestError):
                    await epoch.cancel()
            raise
        await epoch.seal()
        await epoch.wait()

    async def get_epoch(self, name: str) -> Epoch[P]:
        """Return the kept epoch of that name.

        Raises:
            UnknownEpoch: there is none.
        """
        await trio.lowlevel.checkpoint()
        return Epoch(self, self._kernel.book.find(check_name("epoch name", name)))

    def epochs(self) -> Sequence[EpochReport]:
        """Report on every epoch that is kept."""
        return [self._kernel.book.report(page) for page in self._kernel.book]

    def report(self, epoch: Epoch[P] | str) -> EpochReport:
        """Say how an epoch stands now.

        Raises:
            UnknownEpoch: there is none of that name.
        """
        return self._kernel.book.report(self._page(epoch))

    async def seal_epoch(self, epoch: Epoch[P] | str) -> None:
        """Take no more messages into an epoch but derived ones. Sealing again changes nothing.

        Submits to it that are under way are waited for.
        """
        await self._kernel.seal(self._page(epoch))

    async def wait_epoch(
        self,
        epoch: Epoch[P] | str,
        timeout: float | None = None,
        *,
        until: Literal["completed", "blocked"] = "completed",
    ) -> EpochReport:
        """Wait until an epoch has completed. May be called by anyone, any number of times, also afterwards.

        Args:
            epoch: which epoch.
            timeout: seconds to wait at most.
            until: "blocked" returns as well when all that remains waits for a person or the world.

        Raises:
            EpochTimeout: it did not complete in time; the error carries the report.
            RuntimeFailed, RuntimeStopped: the runtime ended before.
        """
        page = self._page(epoch)
        report = self._reached(page, until)
        if report is not None:
            await trio.lowlevel.checkpoint()
            return report
        if timeout is None:
            return await self._wait(page, until)
        with trio.move_on_after(timeout):
            return await self._wait(page, until)
        raise EpochTimeout(self._kernel.book.report(page), timeout)

    async def _wait(self, page: EpochPage, until: Literal["completed", "blocked"]) -> EpochReport:
        while True:
            self._kernel.check_alive()
            await page.changed()
            report = self._reached(page, until)
            if report is not None:
                return report

    def _reached(self, page: EpochPage, until: Literal["completed", "blocked"]) -> EpochReport | None:
        """Return the report that somebody waits for, once there is one."""
        if page.last is None and until == "blocked":
            report = self._kernel.book.report(page)
            return report if report.is_blocked else None
        return page.last

    async def cancel_epoch(self, epoch: Epoch[P] | str) -> None:
        """Seal an epoch and cancel what has not ended and is not being committed."""
        await trio.lowlevel.checkpoint()
        await self._kernel.cancel_epoch(self._page(epoch))

    # Messages

    async def submit_nowait(
        self, epoch: Epoch[P] | str, messages: Messages[P], *, strict: bool = False
    ) -> SubmitReceipt:
        """Submit without waiting for room: while intake is slow it raises where `submit` would wait.

        It waits for the store, and for an async iterable, as `submit` does.

        Raises:
            IntakeFull: intake is slow; the error says when to try again.
        """
        return await self._submit(epoch, messages, strict, None, may_wait=False)

    async def submit(
        self,
        epoch: Epoch[P] | str,
        messages: Messages[P],
        *,
        strict: bool = False,
        unique_for: float | None = None,
    ) -> SubmitReceipt:
        """Store messages and let them run as soon as what they depend on has committed.

        When it returns they are as safe as the store is durable. An iterator is read chunk by chunk. If something is
        wrong, the error has two attributes: `receipt`, for what was stored before, and `index`, the place of the first
        message that was not.

        While more is to be done than workers get through, it waits, unless `IntakePolicy` or the epoch says otherwise.
        In an executor or a sink it never waits, for it would wait for itself: there it raises.

        Args:
            epoch: where they belong.
            messages: a message, an iterable or an async iterable of them.
            strict: whether an id that is known with another content is an error.
            unique_for: for producers that deliver again, perhaps into another epoch: seconds for which a message that
                is accepted now is remembered by its kind and id. One that is remembered from another epoch is a
                duplicate: it is not stored here, and what depends on it here does not find it.

        Raises:
            EpochSealed: the epoch is not open, and a message is unknown in it.
            InvalidMessage: something is not a message, or conflicts and `strict` is set; or `unique_for` is no number
                of seconds.
            StoreRefused: the store cannot remember ids beyond their epoch.
            IntakeFull: too many messages wait or are unfinished, or intake is slow and this submit does not wait.
            Struck: a message is of a kind, or has an id, that somebody refuses.
        """
        if unique_for is not None and not (is_number(unique_for) and 0 < unique_for < inf):
            raise InvalidMessage(f"unique_for={shown(unique_for)}: give seconds, as a finite number above zero")
        return await self._submit(epoch, messages, strict, unique_for, may_wait=True)

    async def _submit(
        self, epoch: Epoch[P] | str, messages: Messages[P], strict: bool, unique_for: float | None, *, may_wait: bool
    ) -> SubmitReceipt:
        page = self._page(epoch)
        total, put = _Total(strict), self._kernel.door.put
        size = self._runtime.config.submit_chunk
        try:
            if isinstance(messages, list | tuple) and len(messages) <= size:
                # Most submits are small, and need nothing that cuts them.
                if messages:
                    total.add(messages, *await put(page, _checked(messages), unique_for, may_wait=may_wait))
            else:
                async with aclosing(chunks_of(messages, size)) as chunks:
                    async for chunk in chunks:
                        total.add(chunk, *await put(page, chunk, unique_for, may_wait=may_wait))
                        if len(chunk) == size:
                            await trio.lowlevel.checkpoint()
        except Exception as error:
            error.receipt, error.index = total.receipt(), total.given  # type: ignore[attr-defined]  # for the caller
            raise
        if not total.given:
            await trio.lowlevel.checkpoint()
        return total.receipt()

    async def cancel(self, epoch: Epoch[P] | str, message_id: str) -> bool:
        """Cancel one message; return whether that had an effect. What is being committed is not cancelled.

        Raises:
            UnknownMessage: the epoch has no such message.
        """
        await trio.lowlevel.checkpoint()
        page = self._page(epoch)
        message_id = check_name("message id", message_id)
        tracker = self._kernel.core.epochs.get(page.key.number)
        if tracker is None or (message_id not in tracker.live and message_id not in tracker.done):
            raise UnknownMessage(page.key.name, message_id)
        node = tracker.live.get(message_id)
        return False if node is None else await self._kernel.cancel(node.seq)

    # Resources

    async def notify_dependency_ready(self, *resources: Resource) -> None:
        """Provide resources to every epoch. Versions only grow: a lower one changes nothing."""
        for resource in resources:
            if not isinstance(resource, Resource):
                raise InvalidMessage(f"{shown(resource)} is not a Resource: write Resource(name, version)")
        await trio.lowlevel.checkpoint()
        await self._kernel.provide(resources)

    async def forget(self, name: str) -> None:
        """Take a resource back that was provided to every epoch. Who was satisfied by it stays so."""
        await self._kernel.forget(check_name("resource name", name))

    # Questions

    @overload
    async def explain(self, epoch: Epoch[P] | str) -> EpochExplanation: ...
    @overload
    async def explain(self, epoch: Epoch[P] | str, message_id: str) -> MessageExplanation: ...
    async def explain(
        self, epoch: Epoch[P] | str, message_id: str | None = None
    ) -> EpochExplanation | MessageExplanation:
        """Say why an epoch or a message is not done: what holds it, what would release it, what waits for it.

        Raises:
            UnknownEpoch, UnknownMessage: there is no such thing, or it is no longer kept.
        """
        await trio.lowlevel.checkpoint()
        page = self._page(epoch)
        core = self._kernel.core
        tracker = core.epochs[page.key.number]
        if message_id is None:
            return explain_epoch(core, tracker, self._kernel.whereabouts())
        node = tracker.live.get(check_name("message id", message_id))
        if node is not None:
            return explain_message(core, node, self._kernel.whereabouts())
        if message_id in tracker.done:
            return MessageExplanation.committed(message_id, page.key.name)
        if message_id in (page.dropped_ids or ()):
            return MessageExplanation.dropped(message_id, page.key.name)
        raise UnknownMessage(page.key.name, message_id)

    def outline(self, epoch: Epoch[P] | str, message_id: str) -> MessageOutline | None:
        """Return what is known of a message but its payload; None if it committed, or there is no such message.

        Raises:
            UnknownEpoch: there is no such epoch.
        """
        page = self._page(epoch)
        tracker = self._kernel.core.epochs.get(page.key.number)
        node = None if tracker is None else tracker.live.get(message_id)
        if node is None:
            return None
        message, rare = node.message, node.rare
        return MessageOutline(
            id=message.id,
            epoch=page.key.name,
            kind=message.kind,
            key=message.key,
            priority=message.priority,
            depends_on=message.depends_on,
            added=() if rare is None else rare.added,
            not_before=message.not_before,
            expires_at=message.expires_at,
            run=node.run,
        )

    async def wait_quiet(self) -> None:
        """Wait until nothing is going on, and nothing will but by somebody's doing.

        Other than for `wait_idle`, messages in retry and those that start at a set time are waited for, and so is what
        becomes of those that nothing can release. Messages may still wait for others that were not submitted, for a
        person, or for something outside; that their time may run out is not waited for.
        """
        await trio.lowlevel.checkpoint()
        await self._kernel.wait_quiet()

    async def wait_idle(self) -> None:
        """Wait until nothing is ready, running or being committed. Messages may still wait for something."""
        await trio.lowlevel.checkpoint()
        await self._kernel.wait_idle()

    def _page(self, epoch: Epoch[P] | str) -> EpochPage:
        if type(epoch) is Epoch and epoch._intake is self and not epoch._page.is_forgotten:
            return epoch._page
        if isinstance(epoch, str):
            return self._kernel.book.find(epoch)
        number = getattr(epoch, "number", None)
        if type(number) is not int:
            raise InvalidMessage(f"{shown(epoch)} is no epoch: give its handle, or its name")
        return self._kernel.book.find(number)


class _Total:
    """What the chunks of one submit came to."""

    __slots__ = ("_accepted", "_conflicts", "_dropped", "_duplicates", "_is_strict", "_last", "given")

    def __init__(self, is_strict: bool) -> None:
        self.given = 0
        self._is_strict = is_strict
        self._dropped = 0
        self._accepted = 0
        self._duplicates = 0
        self._conflicts: Sequence[str] = ()
        self._last: Seq | None = None

    def add(self, chunk: Sequence[object], receipt: PutReceipt, dropped: int) -> None:
        self.given += len(chunk)
        self._dropped += dropped
        self._duplicates += receipt.duplicates
        if receipt.accepted:
            self._accepted += len(receipt.accepted)
            self._last = receipt.accepted[-1]
        if receipt.conflicts:
            self._conflicts = (*self._conflicts, *receipt.conflicts)[:_MOST_CONFLICTS]
            if self._is_strict:
                raise InvalidMessage(f"message {receipt.conflicts[0]!r} is known with another content")

    def receipt(self) -> SubmitReceipt:
        return SubmitReceipt(self._accepted, self._duplicates, self._conflicts, self._last, self._dropped)


async def chunks_of(messages: Any, size: int) -> AsyncGenerator[Sequence[Message[Any]], None]:  # noqa: ANN401 - it is checked here
    """Cut anything that yields messages into checked chunks."""
    if isinstance(messages, AsyncIterable):
        iterator = aiter(messages)
        chunk: list[Message[Any]] = []
        try:
            async for message in iterator:
                chunk.append(message)
                if len(chunk) == size:
                    yield _checked(chunk)
                    chunk = []
            if chunk:
                yield _checked(chunk)
        finally:
            # A generator that is left to the garbage collector is closed too late, if at all.
            if isinstance(iterator, AsyncGenerator):
                await iterator.aclose()
    else:
        for each in cut_messages(messages, size):
            yield each


def cut_messages(messages: Any, size: int) -> Iterator[Sequence[Message[Any]]]:  # noqa: ANN401 - it is checked here
    """Cut what yields messages without waiting into checked chunks."""
    if isinstance(messages, Message):
        yield [messages]
    elif isinstance(messages, list | tuple):
        yield from (_checked(messages[at : at + size]) for at in range(0, len(messages), size))
    elif isinstance(messages, Iterable) and not isinstance(messages, str | bytes):
        iterator = iter(messages)
        while chunk := list(itertools.islice(iterator, size)):
            yield _checked(chunk)
    else:
        raise InvalidMessage(f"{shown(messages)} is not a message: submit a Message, or an iterable of them")


def _checked(chunk: Sequence[Any]) -> Sequence[Message[Any]]:
    if {*map(type, chunk)} == {Message}:
        return chunk
    for index, message in enumerate(chunk):
        if not isinstance(message, Message):
            raise InvalidMessage(f"item {index} of this chunk is {shown(message)}: it must be a Message")
    return chunk
