"""The core, driven by the same events as the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from naviscope_ingest._core import Core, Node, Refused, State
from naviscope_spi import Ended, EpochKey, EpochOptions, EpochRecord, Message, Resource, Seq
from tests.model.facts import Snapshot

__all__ = ["CoreWorld"]


class CoreWorld:
    """A world whose decisions are made by the core. It keeps what the store would: places, staged messages, ends."""

    def __init__(self, **options: Any) -> None:
        self.core = Core(**options)
        self.epoch_of: dict[int, int] = {}
        self.nodes: dict[int, Node] = {}
        self.staged: dict[int, list[tuple[int, Message[Any]]]] = {}

    @property
    def now(self) -> float:
        return self.core.now

    def open_epoch(self, number, name, *, deadline=None, on_unresolved=None):
        options = EpochOptions(deadline=deadline, on_unresolved=on_unresolved)
        self.core.open_epoch(EpochRecord(EpochKey(number, name), "open", options))

    def accept(self, number: int, messages: Sequence[tuple[int, Message[Any]]]) -> None:
        self.core.accept(number, [seq for seq, _ in messages], [message for _, message in messages])
        self._remember(number, messages)

    def _remember(self, number, messages):
        epoch = self.core.epochs[number]
        for seq, message in messages:
            self.epoch_of[seq] = number
            node = self.core.node(Seq(seq))
            assert node is not None and epoch.live[message.id] is node, (
                seq,
                message.id,
                node,
                epoch.live.get(message.id),
                message.id in epoch.done,
            )
            self.nodes[seq] = node

    def seal(self, number):
        self.core.seal(number)

    def cancel_epoch(self, number):
        self.core.cancel_epoch(number)

    def start(self, seq):
        node = self.nodes[seq]
        assert self.core.may_start(node), f"{node} may not start"
        self.staged.pop(seq, None)
        self.core.claim([Seq(seq)])

    def executed(self, seq):
        self.core.hand_to_sink([Seq(seq)])

    def stage(self, parent, messages):
        self.staged.setdefault(parent, []).extend(messages)

    def committed(
        self,
        seqs: Sequence[int],
        derived: Mapping[int, Sequence[tuple[int, Message[Any]]]],
        ready: Mapping[int, Sequence[Resource]],
    ) -> None:
        """Settle as the kernel would: who derives into an opened kind dies, a cancelled epoch derives nothing."""
        good, refused, new, provided = [], [], [], []
        for seq in seqs:
            epoch = self.core.epochs[self.epoch_of[seq]]
            children = [*self.staged.pop(seq, ()), *derived.get(seq, ())]
            if epoch.was_cancelled:
                children = []
            if self.core.barrier_passed(Seq(seq), [message for _, message in children]) is not None:
                refused.append(seq)
                continue
            good.append(Seq(seq))
            new += [(epoch.number, seq, message) for seq, message in children]
            provided += [(epoch.number, resource) for resource in ready.get(seq, ())]
        self.core.commit(
            good,
            ready=provided,
            derived=[(number, [Seq(seq)], [message]) for number, seq, message in new],
            ended=[(Ended(Seq(seq), "dead"), "barrier passed") for seq in refused],
        )
        for number, seq, message in new:
            self._remember(number, [(seq, message)])

    def failed(self, seq):
        self.core.end(Ended(Seq(seq), "dead"))

    def skipped(self, seq):
        self.core.end(Ended(Seq(seq), "skipped"))

    def deferred(self, seq, depends_on):
        self.core.defer(Seq(seq), depends_on)

    def retry(self, seq, at):
        self.core.retry(Seq(seq), at)

    def release(self, seqs):
        self.core.release([Seq(seq) for seq in seqs])

    def cancel(self, seq):
        self.core.cancel(Seq(seq))

    def provide(self, resource):
        self.core.provide(resource)

    def advance(self, now):
        self.core.advance(now)

    def replay(self, seq):
        try:
            return [int(each) for each in self.core.replay(Seq(seq))]
        except Refused as error:
            raise ValueError(str(error)) from error

    def discard(self, seq):
        try:
            self.core.discard(Seq(seq))
        except Refused as error:
            raise ValueError(str(error)) from error

    def snapshot(self) -> Snapshot:
        states, causes, runs = {}, {}, {}
        for seq, node in self.nodes.items():
            states[seq] = node.end if node.state is State.ENDED else node.state.value
            runs[seq] = node.run
            if node.end not in (None, "committed"):
                rare = node.rare
                causes[seq] = (rare.causes, rare.epoch_causes) if rare else (frozenset(), frozenset())
        return Snapshot(
            states=states,
            causes=causes,
            runs=runs,
            runnable=frozenset(seq for seq, node in self.nodes.items() if self.core.may_start(node)),
            epochs={e.number: (e.state, e.is_blocked, e.revision) for e in self.core.epochs.values()},
            opened=frozenset(
                (e.number, b.kind) for e in self.core.epochs.values() for b in e.barriers.values() if b.is_open
            ),
        )
