"""What was promised and what was seen, and the promises that follow from it.

The history is told twice. While a process lives, the store's facts arrive here in the moment in which they are
committed, before anybody acts on them. After each process a snapshot is read from what it left on the disk. What the
history knows must be in the snapshot: then the snapshot becomes the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from naviscope_ingest.reports import EpochReport
from naviscope_ingest.testing.simulation.program import Name
from naviscope_spi import (
    Accepted,
    Committed,
    Delivery,
    DependsOn,
    End,
    Ended,
    EpochForgotten,
    EpochKey,
    EpochMarked,
    EpochOpened,
    EpochRecord,
    Fact,
    FactBody,
    Message,
    OnBarrier,
    OnMessage,
    OnResource,
    Provided,
    ResourceForgotten,
    Seq,
    Waits,
)

__all__ = ["History", "Known", "Violation"]

_COUNTED: tuple[End, ...] = ("committed", "dead", "skipped", "cancelled", "expired")


class Violation(AssertionError):  # noqa: N818 - it is what is found
    """A promise was broken."""


@frozen
class Known:
    """A message that the store has.

    Attributes:
        epoch: the number of its epoch.
        id: its id.
        message: the message, without payload; None if its epoch has completed and gives it out no more.
    """

    epoch: int
    id: str
    message: Message[Any] | None


@define(eq=False)
class History:
    """Everything that is known, and what callers were told.

    Attributes:
        epochs: by number.
        messages: by place.
        ends: how they ended, by place.
        runs: the run they are in, by place, if it is not the first.
        moved: places whose order in a lane is not that of their places any more: they waited, or were tried again.
        added: what messages were deferred for, by place.
        passed: dependencies that messages passed without being satisfied, by place. A message that had begun goes on
            after a crash, and is not told of them again.
        values: what messages left for their dependents, by place.
        provided: the highest version of each resource, by the number of the epoch (None is global) and name.
        taken: names of resources that were forgotten.
        acknowledged: messages whose submit returned, by the number of the epoch and id.
        opened: epochs whose opening was acknowledged, by number.
        sealed: epochs whose sealing was acknowledged, by number.
        reports: reports that somebody waited for, by number.
        effects: the task keys of messages that were answered with ops, by place.
        delivered: how often a sink has committed each task key.
        inside: the task keys that a sink has written inside the store; whether it stays is decided by the COMMIT.
        answers: the encoded ops that came to a sink first, by task key and run.
    """

    epochs: dict[int, EpochRecord] = field(factory=dict)
    messages: dict[int, Known] = field(factory=dict)
    ends: dict[int, End] = field(factory=dict)
    runs: dict[int, int] = field(factory=dict)
    moved: set[int] = field(factory=set)
    added: dict[int, set[str]] = field(factory=dict)
    passed: dict[int, set[str]] = field(factory=dict)
    values: dict[int, bytes] = field(factory=dict)
    provided: dict[tuple[int | None, str], int] = field(factory=dict)
    taken: set[str] = field(factory=set)
    acknowledged: dict[tuple[int, str], None] = field(factory=dict)
    opened: dict[int, str] = field(factory=dict)
    sealed: dict[int, str] = field(factory=dict)
    reports: dict[int, EpochReport] = field(factory=dict)
    effects: dict[int, str] = field(factory=dict)
    delivered: Counter[str] = field(factory=Counter)
    inside: set[str] = field(factory=set)
    answers: dict[tuple[str, int], bytes] = field(factory=dict)
    _places: dict[tuple[int, str], int] = field(factory=dict)
    _of_epoch: dict[int, list[int]] = field(factory=dict)
    _lanes: dict[str, list[int]] = field(factory=dict)

    # What is known.

    def end_of(self, epoch: int, message_id: str) -> End | None:
        """Return how a message ended; None if it has not, or is unknown."""
        place = self._places.get((epoch, message_id))
        return None if place is None else self.ends.get(place)

    def place_of(self, epoch: int, message_id: str) -> int | None:
        """Return the place of a message."""
        return self._places.get((epoch, message_id))

    def run_of(self, epoch: int, message_id: str) -> int:
        """Return the run that a message is in."""
        return self.runs.get(self._places.get((epoch, message_id), 0), 0)

    def named_ends(self) -> dict[Name, End]:
        """Return how messages ended, by the name of their epoch and their id."""
        found = {}
        for place, end in self.ends.items():
            known = self.messages[place]
            epoch = self.epochs.get(known.epoch)
            if epoch is not None:
                found[epoch.key.name, known.id] = end
        return found

    def counts(self, epoch: int) -> Counter[str]:
        """Count the messages of an epoch by their ends."""
        return Counter(str(self.ends.get(place, "unfinished")) for place in self._of_epoch.get(epoch, ()))

    def tell(self, body: FactBody) -> None:
        """Take in what a recovery tells: what is, in no order that could be wrong."""
        match body:
            case Committed(seqs=seqs, values=values):
                self.ends.update(dict.fromkeys(seqs, "committed"))
                self._keep(values)
            case Ended(seq=seq, end=end):
                self.ends[seq] = end
            case Waits(seq=seq, run=run, depends_on=added):
                self._defer(seq, added)
                if run:
                    self.runs[seq] = run
            case EpochMarked(record=record):
                self.epochs[record.key.number] = record
            case _:
                self._fold(body, set())

    # Facts of a process that lives.

    def take(self, step: Sequence[Fact]) -> None:
        """Take the facts of one atomic step in.

        Raises:
            Violation: they must not have happened.
        """
        together: set[int] = {seq for fact in step if isinstance(fact.body, Committed) for seq in fact.body.seqs}
        last = max(self.messages, default=0)
        for fact in step:
            self._fold(fact.body, together)
            if isinstance(fact.body, Accepted):
                # A message that was staged has an older place than others that were there, and ran, before it was.
                self.moved.update(seq for seq in fact.body.seqs if seq < last)

    def _fold(self, body: FactBody, together: set[int]) -> None:
        match body:
            case Accepted(epoch=key, seqs=seqs, messages=messages):
                for seq, message in zip(seqs, messages, strict=True):
                    self.accept(seq, Known(key.number, message.id, message))
            case Committed(seqs=seqs, values=values):
                self._keep(values)
                for seq in seqs:
                    self._see_to_order(seq, together)
                for seq in seqs:
                    self._see_to_effect(seq)
                    self._end(seq, "committed")
            case Ended(seq=seq, end=end, discarded=False):
                self._end(seq, end)
            case Waits(seq=seq, run=run, depends_on=added):
                self._defer(seq, added)
                if run > self.runs.get(seq, 0):
                    self._revive(seq, run)
            case EpochOpened(record=record):
                self.epochs[record.key.number] = record
            case EpochMarked(record=record):
                self._mark(record)
            case EpochForgotten(epoch=key):
                self.forget(key)
            case Provided(resource=resource, epoch=epoch):
                place = epoch, resource.name
                self.provided[place] = max(self.provided.get(place, 0), resource.version)
            case ResourceForgotten(name=name):
                self.taken.add(name)

    def accept(self, seq: int, known: Known) -> None:
        """Learn of a message."""
        before = self._places.get((known.epoch, known.id))
        if before is not None and before != seq:
            raise Violation(f"message {known.id!r} is in its epoch twice, at places {before} and {seq}")
        self._places[known.epoch, known.id] = seq
        if seq in self.messages:
            return
        self.messages[seq] = known
        self._of_epoch.setdefault(known.epoch, []).append(seq)
        message = known.message
        if message is not None and message.key is not None:
            if message.depends_on or message.not_before is not None:
                self.moved.add(seq)
            self._lanes.setdefault(message.key, []).append(seq)

    def _end(self, seq: int, end: End) -> None:
        known = self.messages.get(seq)
        if known is None:
            raise Violation(f"the message at place {seq} ended {end} and was never accepted")
        before = self.ends.get(seq)
        if before is not None:
            raise Violation(f"message {known.id!r} ended {before}, and then {end}")
        self.ends[seq] = end

    def _revive(self, seq: int, run: int) -> None:
        if self.ends.get(seq) == "committed":
            raise Violation(f"message {self.messages[seq].id!r} had committed, and runs again")
        self.runs[seq] = run
        self.ends.pop(seq, None)

    def _keep(self, values: Mapping[Seq, bytes]) -> None:
        for seq, value in values.items():
            self.values[seq] = value

    def _defer(self, seq: int, added: DependsOn | None) -> None:
        self.moved.add(seq)
        if added:
            self.added.setdefault(seq, set()).update(map(str, added))

    def _mark(self, record: EpochRecord) -> None:
        self.epochs[record.key.number] = record
        unfinished = self.counts(record.key.number)["unfinished"]
        if record.state == "completed" and unfinished:
            raise Violation(f"epoch {record.key.name!r} completed with {unfinished} messages that have not ended")

    def forget(self, key: EpochKey) -> None:
        """Forget an epoch, as the store did."""
        self.epochs.pop(key.number, None)
        for place in self._of_epoch.pop(key.number, ()):
            known = self.messages.pop(place)
            self._places.pop((known.epoch, known.id), None)
            self.ends.pop(place, None)
        for told in (self.opened, self.sealed, self.reports):
            told.pop(key.number, None)
        self.acknowledged = {each: None for each in self.acknowledged if each[0] != key.number}

    # Order

    def _see_to_order(self, seq: int, together: set[int]) -> None:
        known = self.messages.get(seq)
        if known is None or known.message is None:
            return
        for place in self.parents(seq, known):
            if place in together or place not in self.ends:
                raise Violation(
                    f"message {known.id!r} committed before {self.messages[place].id!r}, which it depends on, had ended"
                )
        if known.message.key is not None and seq not in self.moved:
            for place in self._lanes[known.message.key]:
                if place < seq and place not in self.ends and place not in self.moved:
                    ahead = self.messages[place].id
                    raise Violation(f"{known.id!r} overtook {ahead!r} in lane {known.message.key!r}")

    def _see_to_effect(self, seq: int) -> None:
        key = self.effects.get(seq)
        if key is not None and key not in self.delivered and key not in self.inside:
            raise Violation(f"message {self.messages[seq].id!r} is settled as committed, and no sink has committed it")

    def parents(self, seq: int, known: Known) -> list[int]:
        """Return the places of messages that must have ended before this one, whatever its policies."""
        assert known.message is not None
        found = []
        passed = self.passed.get(seq, set())
        for each in known.message.depends_on:
            if str(each) in passed:
                continue
            if isinstance(each, str):
                place = self._places.get((known.epoch, each))
            elif isinstance(each, OnMessage) and each.epoch_name is None:
                place = self._places.get((known.epoch, each.id))
            else:
                continue
            if place is not None:
                found.append(place)
        return found

    def see_to_start(self, delivery: Delivery[Any]) -> None:
        """See that a message may be executed now.

        Raises:
            Violation: it has ended, or something it depends on is not there.
        """
        epoch = delivery.epoch.number
        place = self._places.get((epoch, delivery.id))
        if place is None:
            raise Violation(f"{delivery.id!r} is executed, and the store does not have it")
        if place in self.ends:
            raise Violation(f"{delivery.id!r} is executed, and has ended {self.ends[place]}")
        passed = self.passed.get(place, set()) | set(map(str, delivery.unmet))
        if passed:
            self.passed[place] = passed
        for each in delivery.message.depends_on:
            if str(each) in passed:
                continue
            if isinstance(each, str):
                self._see_to_parent(delivery, epoch, each)
            elif isinstance(each, OnMessage) and each.epoch_name is None:
                self._see_to_parent(delivery, epoch, each.id)
            elif isinstance(each, OnBarrier):
                self._see_to_barrier(delivery, each.kind)
            elif isinstance(each, OnResource) and each.name not in self.taken:
                versions = [self.provided.get((scope, each.name), -1) for scope in (epoch, None)]
                if max(versions) < each.min_version:
                    raise Violation(f"{delivery.id!r} is executed before resource {each.name!r} was provided")

    def _see_to_parent(self, delivery: Delivery[Any], epoch: int, parent: str) -> None:
        end = self.end_of(epoch, parent)
        if end != "committed":
            state = "has not ended" if end is None else f"ended {end}"
            raise Violation(f"{delivery.id!r} is executed, and {parent!r}, which it depends on, {state}")

    def _see_to_barrier(self, delivery: Delivery[Any], kind: str) -> None:
        for place in self._of_epoch.get(delivery.epoch.number, ()):
            message = self.messages[place].message
            if message is not None and message.kind == kind and place not in self.ends and place not in self.runs:
                raise Violation(
                    f"{delivery.id!r} is executed behind the barrier of kind {kind!r}, and {message.id!r} has not ended"
                )

    # What callers are told

    def see_to_report(self, report: EpochReport) -> None:
        """See that a report counts what there is.

        Raises:
            Violation: it does not.
        """
        if report.number not in self.epochs:
            return
        counts = self.counts(report.number)
        told = Counter({end: getattr(report, end) for end in (*_COUNTED, "unfinished")})
        if +told != +counts or report.submitted != counts.total():
            raise Violation(f"the report of epoch {report.name!r} says {dict(+told)}, and there are {dict(+counts)}")

    # From process to process

    def compare(self, found: History) -> None:
        """See that everything that was promised or seen is in what was found on the disk.

        Raises:
            Violation: something is missing or different.
        """
        for number, name in self.opened.items():
            if number not in found.epochs:
                raise Violation(f"epoch {name!r} was opened, and is gone")
        for number, name in self.sealed.items():
            if found.epochs[number].state == "open":
                raise Violation(f"epoch {name!r} was sealed, and is open")
        for number, message_id in self.acknowledged:
            if found.place_of(number, message_id) is None:
                raise Violation(f"message {message_id!r} was acknowledged, and is gone")
        for place, end in self.ends.items():
            known = self.messages[place]
            if place not in found.messages:
                raise Violation(f"message {known.id!r} ended {end}, and is gone")
            now = found.ends.get(place)
            if now != end and found.runs.get(place, 0) <= self.runs.get(place, 0):
                raise Violation(f"message {known.id!r} ended {end}, and is {now or 'unfinished'} after a restart")
        self._compare_reports(found.epochs)

    def _compare_reports(self, epochs: Mapping[int, EpochRecord]) -> None:
        for number, report in self.reports.items():
            record = epochs[number]
            if record.state == "repairing":
                continue
            if record.state != "completed":
                raise Violation(f"epoch {report.name!r} had completed, and is {record.state} after a restart")
            kept = EpochReport.decode(record.report)
            if kept.completed_at != report.completed_at:
                raise Violation(f"epoch {report.name!r} completed twice")
            if kept.revision == report.revision and any(
                getattr(kept, each) != getattr(report, each) for each in ("submitted", *_COUNTED)
            ):
                raise Violation(f"the report of epoch {report.name!r} was {report}, and is {kept} after a restart")

    def go_on_from(self, found: History) -> None:
        """Know what was found, and remember what was promised."""
        for each in ("epochs", "messages", "ends", "runs", "added", "provided", "_places", "_of_epoch", "_lanes"):
            setattr(self, each, getattr(found, each))
        self.moved |= found.moved
        self.values |= found.values
