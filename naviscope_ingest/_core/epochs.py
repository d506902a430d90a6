"""Epochs: the set of messages that make a batch, and whether it is done.

Completion is decided by sets, never by counting events: an id is in `live` until it commits and in `done` afterwards,
so neither a duplicate nor a repeated delivery can complete an epoch early or keep it open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from naviscope_ingest._core.barriers import Barrier
from naviscope_ingest._core.nodes import Ghost, Node, State
from naviscope_spi import BadEnd, End, EpochKey, EpochOptions, EpochState, OnUnresolved, Seq

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from naviscope_ingest._core.terms import Status, Term

__all__ = ["EpochTracker"]

_BAD: tuple[BadEnd, ...] = ("dead", "cancelled", "expired")


class EpochTracker:
    """One epoch as the core knows it.

    Attributes:
        key: its number and name.
        options: how it behaves.
        on_unresolved: its default for dependencies that nothing alive can release.
        is_sealed: whether it takes no more messages but derived ones.
        state: open, sealed, completed or repairing.
        is_blocked: whether all that remains waits for a person or the world.
        revision: how often it completed again after a repair.
        verdict: the end of everything that has not ended, once the epoch was cancelled or its deadline passed.
        was_cancelled: whether its cancellation was asked for.
        live: messages that have not committed, by id; ended ones stay, to be replayed.
        done: ids of messages that committed; a dictionary, since the interpreter does not look through one of strings
            for garbage, and would through a set.
        ghosts: ids that are waited for and were never submitted.
        unfinished: how many messages have not ended; a parent counts until all that it derived is known here.
        waiting: how many of those wait or are held.
        ends: how many ended in each way.
        discarded: how many dead letters were given up.
        duplicates, conflicts: how many submits repeated a known id, with the same or another content.
        values: what committed messages left for their dependents, by id.
        barriers: by kind, those that somebody waited for.
        kinds: unfinished messages by kind; counted from the first barrier on.
        expected: the kinds of such parents, and how many there are.
        waiters: terms that wait for the whole epoch; made by the first.
        doomed: messages that nothing alive can release, as far as the last look found; None for none.
        is_freed: whether ids and ends are gone: it completed, and nothing in it can be replayed.
    """

    __slots__ = (
        "_succeeded_before",
        "barriers",
        "conflicts",
        "discarded",
        "done",
        "doomed",
        "duplicates",
        "ends",
        "expected",
        "ghosts",
        "is_blocked",
        "is_freed",
        "is_sealed",
        "key",
        "kinds",
        "live",
        "name",
        "number",
        "on_unresolved",
        "options",
        "revision",
        "state",
        "unfinished",
        "values",
        "verdict",
        "waiters",
        "waiting",
        "was_cancelled",
    )

    def __init__(
        self,
        key: EpochKey,
        options: EpochOptions,
        on_unresolved: OnUnresolved,
        state: EpochState = "open",
        succeeded: bool | None = None,
    ) -> None:
        self.key = key
        self.number = key.number
        self.name = key.name
        self.options = options
        self.on_unresolved: OnUnresolved = options.on_unresolved or on_unresolved
        self.state: EpochState = state
        self.is_sealed = state != "open"
        self.is_blocked = False
        self.revision = 0
        self.verdict: BadEnd | None = None
        self.was_cancelled = False
        self.live: dict[str, Node] = {}
        self.done: dict[str, None] = {}
        self.ghosts: dict[str, Ghost] = {}
        self.unfinished = 0
        self.waiting = 0
        self.ends: dict[End, int] = dict.fromkeys(("committed", "dead", "skipped", "cancelled", "expired"), 0)
        self.discarded = 0
        self.duplicates = 0
        self.conflicts = 0
        self.values: dict[str, bytes] = {}
        self.barriers: dict[str, Barrier] = {}
        self.kinds: dict[str, int] | None = None
        self.expected: dict[str, int] = {}
        self.waiters: list[Term] | None = None
        self.doomed: list[Node] | None = None
        self.is_freed = False
        # What an earlier process found at completion: the messages themselves may be gone.
        self._succeeded_before = succeeded

    def __repr__(self) -> str:
        return f"<EpochTracker {self.number} {self.name!r} {self.state}>"

    @property
    def is_completed(self) -> bool:
        """Whether it is sealed and every message has ended."""
        return self.state == "completed"

    @property
    def is_quiet(self) -> bool:
        """Whether it is sealed, and all that is unfinished waits or is held."""
        return self.is_sealed and self.unfinished == self.waiting > 0

    @property
    def succeeded(self) -> bool:
        """Whether no message is dead, cancelled or expired."""
        if self._succeeded_before is False and not any(self.ends.values()):
            return False
        return not any(self.ends[end] for end in _BAD)

    @property
    def is_pinned(self) -> bool:
        """Whether it has a dead letter that may be replayed."""
        return not self.is_freed and self.ends["dead"] + self.ends["expired"] > self.discarded

    @property
    def status(self) -> Status:
        """What it tells those who wait for the whole of it."""
        if self.state != "completed":
            return None
        if self.succeeded:
            return "go"
        return "cancelled" if self.was_cancelled else "dead"

    @property
    def submitted(self) -> int:
        """How many messages it has, derived ones included."""
        return self.unfinished + sum(self.ends.values())

    def counts(self) -> dict[str, int]:
        """Return how many messages are in each state, and how many ended in each way."""
        found: dict[str, int] = dict.fromkeys((state.value for state in State if state is not State.ENDED), 0)
        for node in self.pending():
            found[node.state.value] += 1
        return found | self.ends

    def pending(self) -> Iterator[Node]:
        """Yield the messages that have not ended."""
        return (node for node in self.live.values() if node.state is not State.ENDED)

    def node(self, message_id: str) -> Node | None:
        """Return a message that has not committed."""
        return self.live.get(message_id)

    def ghost(self, message_id: str) -> Ghost:
        """Return the place of an id that was never submitted, made on demand."""
        ghost = self.ghosts.get(message_id)
        if ghost is None:
            ghost = self.ghosts[message_id] = Ghost()
        return ghost

    def barrier(self, kind: str) -> Barrier:
        """Return the barrier of a kind, made on demand."""
        barrier = self.barriers.get(kind)
        if barrier is None:
            barrier = self.barriers[kind] = Barrier(kind)
            if self.kinds is None:
                self.kinds = {}
                for node in self.pending():
                    self.count_kind(node, 1)
                for each, count in self.expected.items():
                    _count(self.kinds, each, count)
        return barrier

    def expect(self, kind: str, by: Literal[1, -1]) -> None:
        """Count a parent of some kind in or out whose derived messages are alive, and not all known here yet."""
        self.unfinished += by
        _count(self.expected, kind, by)
        if self.kinds is not None:
            _count(self.kinds, kind, by)

    def free(self) -> None:
        """Let go of ids, ends, values and barriers. What the whole epoch came to stays known."""
        self.is_freed = True
        # New ones: the interpreter looks through a dictionary for garbage from the first node that it held, for good.
        self.live = {}
        self.done = {}
        self.values = {}
        self.barriers = {}
        self.doomed = None
        self.kinds = None

    def pardon(self, except_for: Collection[Seq] = ()) -> None:
        """Forget that messages were doomed: something moves again."""
        if not self.doomed:
            return
        for node in self.doomed:
            if node.seq not in except_for:
                node.more().doomed_since = None
        self.doomed = [node for node in self.doomed if node.seq in except_for] or None

    def has_kind(self, kind: str) -> bool:
        """Tell whether a message of a kind is unfinished. Only kinds that somebody waits for are counted."""
        return self.kinds is not None and kind in self.kinds

    def count_kind(self, node: Node, by: Literal[1, -1]) -> None:
        """Keep the count of unfinished messages by kind."""
        assert self.kinds is not None
        _count(self.kinds, node.message.kind, by)


def _count(kinds: dict[str, int], kind: str, by: int) -> None:
    left = kinds.get(kind, 0) + by
    if left:
        kinds[kind] = left
    else:
        kinds.pop(kind, None)
