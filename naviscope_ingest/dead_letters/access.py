"""Dead letters as callers see them: found, shown, replayed, discarded, exported.

Letters stay in the store and are read a page at a time. A filter is judged here, letter by letter: what a letter says
is not the store's business, and letters are few among messages.

Everything that changes something, or takes letters out, leaves an audit entry. That of a replay or a discard is in the
settlement that does it: there is no entry without the deed, and no deed without the entry.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack

import msgspec
import trio
from attrs import evolve, fields

from naviscope_ingest._encoding import Scribe
from naviscope_ingest._kernel import Kernel
from naviscope_ingest._kernel.prepared import scribe_for
from naviscope_ingest._kernel.repairs import Repair
from naviscope_ingest.codecs import MsgspecCodec
from naviscope_ingest.dead_letters.filters import LetterFilter, Selection, check_filter, check_rate
from naviscope_ingest.dead_letters.lines import read_line, write_line
from naviscope_ingest.dead_letters.pages import Pages
from naviscope_ingest.dead_letters.patching import KEEP, Edit
from naviscope_ingest.dead_letters.records import (
    AuditEntry,
    DiscardReceipt,
    Letter,
    LetterGroup,
    ReplayReceipt,
    WholeLetter,
    letter_of,
)
from naviscope_ingest.errors import ImportRefused, IngestError, InvalidFilter, PatchRefused, ReplayInVain, UnknownLetter
from naviscope_ingest.reports import SubmitReceipt
from naviscope_spi import (
    KeptLetter,
    Message,
    Record,
    Seq,
    SupportsLetters,
    SupportsRecords,
)
from naviscope_spi.names import shown

if TYPE_CHECKING:
    from naviscope_ingest.intake import Epoch, IntakeHandle

__all__ = ["DeadLetters"]

P = TypeVar("P")
T = TypeVar("T")

_log = logging.getLogger("naviscope_ingest")

_PAGE: Final = 500
"""How many letters are read at a time."""

_STEP: Final = 100
"""How many letters are replayed or discarded with one settlement."""

_SHOWN: Final = 100
"""How many letters a receipt lists."""

_MOST_LINES: Final = 100_000
"""How many lines one import may have: all of them are checked before the first is submitted."""

_AUDIT: Final = "audit"
"""The space of the records that audit entries are."""

_encode_entry = msgspec.json.Encoder().encode
_decode_entry = msgspec.json.Decoder(AuditEntry).decode


class DeadLetters(Generic[P]):
    """The dead letters of a runtime's store. Reached as `intake.dead_letters`.

    Calls that take a filter take the keys of `LetterFilter`. Those that change something want at least one key.
    """

    def __init__(self, intake: IntakeHandle[P], kernel: Kernel) -> None:
        self._intake = intake
        self._kernel = kernel
        self._scribe = scribe_for(kernel.store)
        # What writes and reads payloads of lines: a store in memory has no codec of its own.
        self._lines = self._scribe or Scribe(MsgspecCodec(), sys.maxsize)
        self._numbers = itertools.count()

    # Reading

    def find(self, **where: Unpack[LetterFilter[P]]) -> AsyncIterator[Letter]:
        """Iterate over letters in the order in which their messages were accepted.

        They are read a page at a time, while work goes on: what is replayed meanwhile may be missing.

        Raises:
            InvalidFilter: a key is unknown, or a value impossible.
            UnknownEpoch: there is no such epoch.
        """
        return self._pages(self._selection(where))

    async def count(self, **where: Unpack[LetterFilter[P]]) -> int:
        """Count letters."""
        count = 0
        async for _ in self.find(**where):
            count += 1
        return count

    async def groups(self, **where: Unpack[LetterFilter[P]]) -> Sequence[LetterGroup]:
        """Count letters that failed alike, by their fingerprint; the largest group first."""
        groups: dict[str, LetterGroup] = {}
        async for letter in self.find(**where):
            fingerprint, at = letter.details.fingerprint, letter.ended_at
            known = groups.get(fingerprint)
            if known is None:
                groups[fingerprint] = LetterGroup(
                    fingerprint=fingerprint,
                    error_kind=letter.details.kind,
                    count=1,
                    first_seen=at,
                    last_seen=at,
                    example=letter,
                )
            else:
                groups[fingerprint] = evolve(
                    known,
                    count=known.count + 1,
                    first_seen=min(known.first_seen, at),
                    last_seen=max(known.last_seen, at),
                )
        return sorted(groups.values(), key=lambda group: (-group.count, group.example.seq))

    async def show(self, epoch: Epoch[P] | str, message_id: str) -> WholeLetter[P]:
        """Return one letter with its message.

        Raises:
            UnknownEpoch: there is no such epoch.
            UnknownLetter: the message has none; the error says how it stands.
        """
        kept = await self._kept(self._number(epoch), message_id)
        brief = letter_of(kept)
        repairs = self._kernel.repairs
        return WholeLetter(
            **{each.name: getattr(brief, each.name) for each in fields(Letter)},
            message=kept.message,
            edited=kept.edited,
            brings_back=len(repairs.would_revive([kept.seq])),
            follows=repairs.is_follower(kept.seq),
        )

    def audit(
        self, *, since: float = 0.0, epoch: Epoch[P] | str | None = None, message_id: str | None = None
    ) -> AsyncIterator[AuditEntry]:
        """Iterate over audit entries, the oldest first.

        Args:
            since: a wall-clock time.
            epoch: only of this epoch, also after it was forgotten.
            message_id: only of messages with this id.
        """
        name = epoch if epoch is None or isinstance(epoch, str) else epoch.name
        after = _key(since, "")

        async def read() -> list[AuditEntry] | None:
            nonlocal after
            page = await self._records.scan(_AUDIT, after=after, limit=_PAGE)
            if not page:
                return None
            after = page[-1][0]
            entries = [_decode_entry(value) for _, value in page]
            return [each for each in entries if name in (None, each.epoch) and message_id in (None, each.message_id)]

        return Pages(read)

    # Repairing

    async def replay(
        self,
        *,
        patch: Mapping[str, Any] | None = None,
        payload: Any = KEEP,  # noqa: ANN401 - payloads are the user's
        per_second: float | None = None,
        dry_run: bool = False,
        who: str = "",
        reason: str = "",
        **where: Unpack[LetterFilter[P]],
    ) -> ReplayReceipt:
        """Start a new run of letters, and of everything that their ends took down.

        A letter that only followed from another one is left alone: it comes back when that one is replayed. Each letter
        is replayed once by one call, also if it fails again meanwhile. Killed or cancelled at any time, each was
        replayed whole or not at all, and the same call again goes on with the rest.

        Args:
            patch: new values for parts of the payload, by path: `{"url": "https://…", "lines.3.amount": 5}`. All
                letters are checked before the first is replayed.
            payload: a whole new payload, for one message.
            per_second: how many letters are replayed in a second at most.
            dry_run: whether to say only what would be done.
            who: who asks for it, for the audit entry.
            reason: why, for the audit entry.
            **where: which letters; `epoch` and `message_id` together are one.

        Raises:
            UnknownLetter: a single message was named that has no dead letter.
            ReplayInVain: a single message was named that only followed from others.
            PatchRefused: an edited payload does not fit; nothing was replayed.
            InvalidFilter: a key is unknown, a value impossible, or there is no key at all.
        """
        selection = self._selection(where, changes="replay")
        check_rate(per_second)
        edit = self._edit(patch, payload, selection)
        if selection.is_single:
            await self._check_cause(selection)
        started, total = self._now(), _Total()
        if edit:
            await self._try(edit, selection)
        letters = await self._chosen(selection)
        step = _STEP if per_second is None else max(1, min(_STEP, int(per_second / 10)))
        while chunk := await letters.take(step):
            old = [each for each in chunk if each.ended_at <= started]
            chosen = [each for each in old if not self._kernel.repairs.is_follower(each.seq)]
            total.followers += len(old) - len(chosen)
            if dry_run:
                total.add_dry(chosen, len(self._kernel.repairs.would_revive([each.seq for each in chosen])))
                continue
            entry = AuditEntry(at=self._now(), who=who, action="replay", reason=reason, patch=edit.told)
            repairs = [self._repair(each, entry, await self._edited(edit, each)) for each in chosen]
            total.add(chosen, await self._kernel.replay(repairs))
            await trio.sleep(0 if per_second is None else len(repairs) / per_second)
        receipt = total.receipt(is_dry=dry_run)
        if receipt.letters and not dry_run:
            _log.info(
                "replayed %d dead letters, which brought back %d messages",
                receipt.letters,
                receipt.revived,
                extra={"letters": receipt.letters, "revived": receipt.revived, "who": who, "reason": reason},
            )
        return receipt

    async def _try(self, edit: Edit, selection: Selection) -> None:
        """Edit every payload that is meant, and change nothing: what does not fit is found before the first replay."""
        letters = await self._chosen(selection)
        async for letter in letters:
            if not self._kernel.repairs.is_follower(letter.seq):
                await self._edited(edit, letter)

    async def _edited(self, edit: Edit, letter: Letter) -> Any:  # noqa: ANN401 - payloads are the user's
        """Return the payload of the next run, None to leave it as it is."""
        kept = await self._store.letter(letter.seq) if edit else None
        return None if kept is None else edit.of(kept.edited or kept.message)

    async def discard(
        self, *, reason: str, dry_run: bool = False, who: str = "", **where: Unpack[LetterFilter[P]]
    ) -> DiscardReceipt:
        """Give letters up. Their messages stay dead, those that are held by them follow, and nothing pins the epoch.

        Args:
            reason: why, for the audit entry.
            dry_run: whether to say only what would be done.
            who: who asks for it, for the audit entry.
            **where: which letters; `epoch` and `message_id` together are one.

        Raises:
            UnknownLetter: a single message was named that has no dead letter.
            InvalidFilter: a key is unknown, a value impossible, there is no key at all, or no reason.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidFilter("reason", "say why: what is discarded cannot be replayed any more")
        selection = self._selection(where, changes="discard")
        total = _Total()
        letters = await self._chosen(selection)
        while chunk := await letters.take(_STEP):
            if dry_run:
                total.add_dry(chunk, 0)
                continue
            entry = AuditEntry(at=self._now(), who=who, action="discard", reason=reason)
            repairs = [self._repair(each, entry) for each in chunk]
            total.add(chunk, dict.fromkeys(await self._kernel.discard(repairs), 0))
        return DiscardReceipt(letters=total.letters, first=tuple(total.first), is_dry=dry_run)

    # Taking letters elsewhere

    def export_lines(self, *, who: str = "", reason: str = "", **where: Unpack[LetterFilter[P]]) -> AsyncIterator[str]:
        """Iterate over letters as JSON lines, each with its message and a newline at its end.

        An audit entry is kept when the last of them was taken. Taking one raises `PayloadNotEncodable` if its payload
        has no form outside of this process, as may be with a store in memory.

        Raises:
            InvalidFilter: a key is unknown, or a value impossible.
        """
        letters = self._pages(self._selection(where))
        store_id = self._kernel.store.info.store_id
        epoch = where.get("epoch", "")
        name = epoch if isinstance(epoch, str) else epoch.name
        count = 0

        async def read() -> list[str] | None:
            nonlocal count
            chunk = await letters.take(1)
            if not chunk:
                entry = AuditEntry(at=self._now(), who=who, action="export", reason=reason, epoch=name, messages=count)
                await self._note(entry)
                return None
            kept = await self._store.letter(chunk[0].seq)
            if kept is None:
                return []
            count += 1
            return [write_line(kept, chunk[0].details, store_id, self._lines)]

        return Pages(read)

    async def import_lines(
        self,
        epoch: Epoch[P] | str,
        lines: Iterable[str | bytes] | AsyncIterable[str | bytes],
        *,
        who: str = "",
        reason: str = "",
    ) -> SubmitReceipt:
        """Submit exported letters as new messages of an open epoch. All lines are checked before any is submitted.

        A message that had run does not ask again for what it depended on; one that never ran keeps its dependencies,
        which name messages of this epoch now. Lines that were imported before are duplicates.

        Raises:
            ImportRefused: a line is malformed, its payload is none of its kind, or two lines have one id and another
                content.
            EpochSealed: the epoch takes no more messages.
        """
        messages = await self._read_lines(lines)
        receipt = await self._intake.submit(epoch, messages)
        name = epoch if isinstance(epoch, str) else epoch.name
        entry = AuditEntry(at=self._now(), who=who, action="import", reason=reason, epoch=name)
        await self._note(evolve(entry, messages=receipt.accepted))
        return receipt

    async def _read_lines(self, lines: Any) -> list[Message[Any]]:  # noqa: ANN401 - it is checked here
        """Return the messages of all lines, if nothing is wrong with any."""
        if isinstance(lines, str | bytes) or not isinstance(lines, AsyncIterable | Iterable):
            raise ImportRefused(0, f"{shown(lines)} is not lines: give an iterable of lines, such as an open file")
        known: dict[str, tuple[int, Message[Any], tuple[object, ...]]] = {}
        now, number = self._now(), 0
        if isinstance(lines, AsyncIterable):
            async for line in lines:
                number += 1
                self._read_line(number, line, known, now)
        else:
            for number, line in enumerate(lines, 1):
                self._read_line(number, line, known, now)
        return [message for _, message, _ in known.values()]

    def _read_line(
        self, number: int, line: object, known: dict[str, tuple[int, Message[Any], tuple[object, ...]]], now: float
    ) -> None:
        if number > _MOST_LINES:
            raise ImportRefused(number, f"one import has at most {_MOST_LINES} lines: part it")
        if not isinstance(line, str | bytes):
            raise ImportRefused(number, f"it is {shown(line)}: give text, a line at a time")
        if not line.strip():
            return
        try:
            message = read_line(line, self._lines, now)
        except ValueError as error:
            raise ImportRefused(number, str(error)) from error
        content = self._lines.write(message)
        first, _, before = known.setdefault(message.id, (number, message, content))
        if before != content:
            raise ImportRefused(
                number, f"message {message.id!r} stands in line {first} with another content: import epoch by epoch"
            )

    async def forget_audit(self, before: float) -> int:
        """Delete audit entries from before a wall-clock time; return how many. They are kept until then."""
        deleted, limit = 0, _key(before, "")
        while page := await self._records.scan(_AUDIT, limit=_PAGE):
            old = [Record(_AUDIT, key, None) for key, _ in page if key < limit]
            if old:
                await self._kernel.record(old)
                deleted += len(old)
            if len(old) < len(page):
                break
        return deleted

    # What several of these need

    @property
    def _store(self) -> SupportsLetters:
        store = self._kernel.store
        if not isinstance(store, SupportsLetters):
            raise IngestError(f"{type(store).__name__} cannot read dead letters: it has no letters() and letter()")
        return store

    @property
    def _records(self) -> SupportsRecords:
        store = self._kernel.store
        if not isinstance(store, SupportsRecords):
            raise IngestError(f"{type(store).__name__} cannot read records: it has no read() and scan()")
        return store

    def _now(self) -> float:
        return self._kernel.clock.wall()

    def _number(self, epoch: Any) -> int:  # noqa: ANN401 - a handle or a name
        if isinstance(epoch, str):
            return self._kernel.book.find(epoch).key.number
        number = getattr(epoch, "number", None)
        if not isinstance(number, int):
            raise InvalidFilter("epoch", f"it is {shown(epoch)}: give the name of an epoch, or its handle")
        return number

    def _selection(self, where: Mapping[str, Any], changes: str = "") -> Selection:
        """Check a filter."""
        for key, value in where.items():
            check_filter(key, value)
        if changes and not where:
            raise InvalidFilter("", f"name what to {changes}, such as epoch= or fingerprint=; since=0 is everything")
        return Selection(self._number(where["epoch"]) if "epoch" in where else None, where)

    def _pages(self, selection: Selection) -> Pages[Letter]:
        after: Seq | None = None

        async def read() -> list[Letter] | None:
            nonlocal after
            page = await self._store.letters(epoch=selection.number, after=after, limit=_PAGE)
            if not page:
                return None
            after = page[-1].seq
            return [letter for letter in map(letter_of, page) if selection.takes(letter)]

        return Pages(read)

    async def _chosen(self, selection: Selection) -> Pages[Letter]:
        """Return the letters that are meant. If a single message is named, it must have one."""
        if not selection.is_single:
            return self._pages(selection)
        assert selection.number is not None
        letter = letter_of(await self._kept(selection.number, selection.where["message_id"]))
        return Pages.of([letter] if selection.takes(letter) else [])

    async def _check_cause(self, selection: Selection) -> None:
        """Refuse to replay a single letter that would only die again."""
        async for letter in await self._chosen(selection):
            if self._kernel.repairs.is_follower(letter.seq):
                raise ReplayInVain(letter.message_id, self._kernel.repairs.causes(letter.seq))

    async def _kept(self, number: int, message_id: str) -> KeptLetter[P]:
        core, name = self._kernel.core, self._kernel.book.find(number).key.name
        tracker = core.epochs.get(number)
        node = None if tracker is None else tracker.live.get(message_id)
        kept = None if node is None else await self._store.letter(node.seq)
        if kept is not None:
            return kept
        if node is None:
            has_committed = tracker is not None and message_id in tracker.done
            raise UnknownLetter(name, message_id, "it committed" if has_committed else "there is no such message")
        if node.rare is not None and node.rare.discarded:
            raise UnknownLetter(name, message_id, "it was discarded")
        raise UnknownLetter(name, message_id, f"it is {node.end or node.state.value}")

    def _edit(self, patch: Mapping[str, Any] | None, payload: object, selection: Selection) -> Edit:
        if patch is not None and payload is not KEEP:
            raise PatchRefused("", "give a patch or a payload, not both")
        if payload is not KEEP and not selection.is_single:
            raise PatchRefused("", "a whole payload is for one message: name epoch and message_id, or give a patch")
        return Edit(patch, payload, self._scribe)

    def _repair(self, letter: Letter, entry: AuditEntry, payload: object = None) -> Repair:
        """Ask for one letter, with its audit entry."""
        key = _key(entry.at, f"{letter.seq:020}-{letter.run}")
        entry = evolve(entry, epoch=letter.epoch, message_id=letter.message_id, run=letter.run)

        def record(messages: int) -> Record:
            return Record(_AUDIT, key, _encode_entry(evolve(entry, messages=messages)))

        return Repair(letter.seq, letter.run, payload, record)

    async def _note(self, entry: AuditEntry) -> None:
        key = _key(entry.at, f"{entry.action}-{next(self._numbers)}")
        await self._kernel.record([Record(_AUDIT, key, _encode_entry(entry))])


class _Total:
    """What the steps of one call came to."""

    def __init__(self) -> None:
        self.letters = 0
        self.revived = 0
        self.followers = 0
        self.first: list[tuple[str, str]] = []

    def add(self, chunk: Sequence[Letter], done: Mapping[Seq, int]) -> None:
        self.add_dry([each for each in chunk if each.seq in done], sum(done.values()))

    def add_dry(self, letters: Sequence[Letter], revived: int) -> None:
        self.letters += len(letters)
        self.revived += revived
        self.first += [(each.epoch, each.message_id) for each in letters[: _SHOWN - len(self.first)]]

    def receipt(self, *, is_dry: bool) -> ReplayReceipt:
        return ReplayReceipt(
            letters=self.letters,
            revived=self.revived,
            followers=self.followers,
            first=tuple(self.first),
            is_dry=is_dry,
        )


def _key(at: float, rest: str) -> str:
    """Return the key of an audit entry: keys are in order of time."""
    return f"{max(0, round(at * 1_000_000)):018}{rest and '-'}{rest}"
