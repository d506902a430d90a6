"""Replaying and discarding dead letters.

A replay is decided by the core, written by the store, and only then told to the core: a message that the core took for
alive too early would be claimed in vain. In between no other decision is carried out, so that no epoch completes, and
is let go of, while a message of it comes back to life.

What a letter took down is revived with it, in the same settlement, and so is the record of who asked for it. Killed at
any instant, a replay has happened whole or not at all. A closure that is too large for one settlement is written a part
at a time, and the letter itself comes last, with its record: if the process dies before that, what was revived waits
for a message that is dead, and follows it again.

Rejected: the letter first. Then what has not been revived yet would be dead by a cause that is alive, and recovery
would need a rule for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from attrs import field, frozen

from naviscope_ingest._core import Core, Node, State
from naviscope_ingest._kernel.epochs import EpochBook
from naviscope_ingest._kernel.membership import Membership
from naviscope_spi import BadEnd, Ended, EpochChange, Record, Seq, Settlement, Waits

__all__ = ["Repair", "Repairs"]

_STEP = 1_000
"""How many messages one settlement revives at most."""


@frozen
class Repair:
    """What is asked for one dead letter.

    Attributes:
        seq: its place.
        run: the run that ended so. If the message is in another one by now, somebody else was quicker.
        payload: an edited payload; None leaves it as it is.
        record: makes the record that rides along, of the number of messages that are revived.
    """

    seq: Seq
    run: int
    payload: Any = None
    record: Callable[[int], Record] | None = field(default=None, eq=False)


class Repairs:
    """Brings dead letters back to life, or gives them up.

    Args:
        core: decides what a replay revives.
        membership: settles.
        book: is told of epochs that nothing pins any more.
        deciding: a block in which nobody else carries out decisions, entered when none are left. It gives a call that
            carries out what was decided since.
    """

    def __init__(
        self,
        core: Core,
        membership: Membership,
        book: EpochBook,
        deciding: Callable[[], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]],
    ) -> None:
        self._core = core
        self._membership = membership
        self._book = book
        self._deciding = deciding

    def would_revive(self, seqs: Iterable[Seq]) -> list[Node]:
        """Return what a replay of these would bring back to life. What is no letter is left out."""
        return self._core.follow([node for seq in seqs if (node := self._letter(seq)) is not None])

    def is_follower(self, seq: Seq) -> bool:
        """Tell whether a letter would only die again: its end follows from another one that has not been repaired."""
        node = self._letter(seq)
        if node is None or node.rare is None:
            return False
        causes = [self._core.node(cause) for cause in sorted(node.rare.causes)]
        epochs = [self._core.epochs.get(number) for number in sorted(node.rare.epoch_causes)]
        return any(cause is not None and cause.state is State.ENDED for cause in causes) or any(
            epoch is not None and epoch.is_completed and not epoch.succeeded for epoch in epochs
        )

    def causes(self, seq: Seq) -> list[tuple[str, str]]:
        """Return epoch and id of the messages that a letter's end follows from, and that are still known."""
        node = self._letter(seq)
        causes = () if node is None or node.rare is None else sorted(node.rare.causes)
        return [(cause.epoch.name, cause.id) for each in causes if (cause := self._core.node(each)) is not None]

    def _letter(self, seq: Seq) -> Node | None:
        node = self._core.node(seq)
        is_letter = node is not None and node.end in ("dead", "expired") and not node.more().discarded
        return node if is_letter else None

    def _wanted(self, repairs: Sequence[Repair]) -> list[tuple[Repair, Node]]:
        """Return those that can be done: the letter is there, and nobody else was quicker."""
        found = ((repair, self._letter(repair.seq)) for repair in repairs)
        return [(repair, node) for repair, node in found if node is not None and node.run == repair.run]

    async def replay(self, repairs: Sequence[Repair]) -> dict[Seq, int]:
        """Start a new run of letters and of all that they took down.

        Returns:
            How many messages each of them brought back, itself included, and none that another one brought back. Those
            that could not be done are left out.
        """
        done: dict[Seq, int] = {}
        async with self._deciding() as carry_out:
            batch = _Batch()
            for repair, letter in self._wanted(repairs):
                nodes = self._core.follow([letter])
                if batch.nodes and len(batch.nodes) + len(nodes) > _STEP:
                    await self._revive(batch, carry_out)
                    batch = _Batch()
                    # Work went on meanwhile: it may have come back with another one.
                    if not self._wanted([repair]):
                        continue
                    nodes = self._core.follow([letter])
                done[repair.seq] = batch.add(repair, letter, nodes)
            await self._revive(batch, carry_out)
        return done

    async def _revive(self, batch: _Batch, carry_out: Callable[[], Awaitable[None]]) -> None:
        """Write what is revived, and then tell the core."""
        revived: set[Seq] = set()
        nodes = list(batch.nodes.values())
        while nodes:
            # The letters with the last, if there are too many for one settlement.
            nodes.sort(key=lambda node: (node.seq in batch.letters, node.seq))
            refused: set[Seq] = set()
            for at in range(0, len(nodes), _STEP):
                is_last = at + _STEP >= len(nodes)
                repairs = batch.letters if is_last and not revived else {}
                refused |= await self._write(nodes[at : at + _STEP], repairs)
            # Of an epoch that the store has freed nothing comes back, though it may be known here by name.
            self._core.revive([node for node in nodes if node.seq not in refused])
            revived.update(node.seq for node in nodes)
            await carry_out()
            # What came in meanwhile and died of them.
            followers = self._core.follow(batch.roots)
            nodes = [node for node in followers if node.state is State.ENDED and node.seq not in revived]

    async def _write(self, nodes: Sequence[Node], repairs: Mapping[Seq, tuple[Repair, int]]) -> set[Seq]:
        epochs = {node.epoch.number: node.epoch for node in nodes if node.epoch.is_completed}
        waits = [
            Waits(node.seq, run=node.run + 1, payload=repairs[node.seq][0].payload if node.seq in repairs else None)
            for node in nodes
        ]
        settlement: Settlement[Any] = Settlement(
            waits=waits,
            epochs=[EpochChange(epoch.key, "repairing") for epoch in epochs.values()],
            records=[repair.record(count) for repair, count in repairs.values() if repair.record is not None],
        )
        return set((await self._membership.write(settlement)).refused)

    async def discard(self, repairs: Sequence[Repair]) -> list[Seq]:
        """Give letters up: those who are held by them follow. Return which; those that could not be are left out."""
        done: list[Seq] = []
        async with self._deciding() as carry_out:
            wanted = self._wanted(repairs)
            for at in range(0, len(wanted), _STEP):
                chunk = wanted[at : at + _STEP]
                await self._membership.write(
                    Settlement(
                        ended=[Ended(node.seq, _bad(node), discarded=True) for _, node in chunk],
                        records=[repair.record(0) for repair, _ in chunk if repair.record is not None],
                    )
                )
                for _, node in chunk:
                    self._core.discard(node.seq)
                    done.append(node.seq)
                await carry_out()
            for number in dict.fromkeys(node.epoch.number for _, node in wanted):
                self._book.release(number)
        return done


class _Batch:
    """What one settlement revives, if it is not too much.

    Attributes:
        nodes: the messages, by place.
        letters: what was asked for each letter among them, and how many messages it brings back.
        roots: the letters.
    """

    def __init__(self) -> None:
        self.nodes: dict[Seq, Node] = {}
        self.letters: dict[Seq, tuple[Repair, int]] = {}
        self.roots: list[Node] = []

    def add(self, repair: Repair, letter: Node, nodes: Sequence[Node]) -> int:
        """Take in a letter and what it brings back; return how many that are, without those that come anyway."""
        before = len(self.nodes)
        self.nodes.update((node.seq, node) for node in nodes)
        count = len(self.nodes) - before
        self.letters[letter.seq] = (repair, count)
        self.roots.append(letter)
        return count


def _bad(node: Node) -> BadEnd:
    assert node.end is not None and node.end != "committed"
    return node.end
