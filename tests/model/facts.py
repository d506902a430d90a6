"""What the reference model remembers: messages, their waits, epochs. No rule lives here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from attrs import define, field, frozen

from naviscope_spi import Dependency, Message, OnEpoch, OnMessage, OnResource

BAD = frozenset({"dead", "skipped", "cancelled", "expired"})
ENDED = BAD | {"committed"}
FAILURES = frozenset({"dead", "cancelled", "expired"})
"""The ends that keep an epoch from having succeeded."""
CALM = frozenset({"waiting", "held"})
"""The states in which a message is judged; an epoch that knows no other unfinished state is quiet."""
STOPPABLE = frozenset({"waiting", "held", "delayed", "ready"})
"""What expires_at may end; cancel and the deadline end running messages too."""


@frozen
class Rules:
    """Switches that turn one rule wrong, to show that a comparison would notice."""

    strict_lanes: bool = False
    early_barriers: bool = False
    first_bad_parent_decides: bool = False
    direct_children_replay: bool = False


@define(eq=False)
class Wait:
    """One top-level dependency that a message is still asked about in this run."""

    dependency: Dependency
    due: float | None = None
    fired: bool = False
    resolved: str | None = None
    latched: set[int] = field(factory=set)

    @property
    def has_timer(self) -> bool:
        """Say whether its timeout still lies ahead."""
        return self.due is not None and not self.fired


@define(eq=False)
class Entry:
    """One accepted message."""

    seq: int
    epoch: int
    message: Message
    state: str = "waiting"
    run: int = 0
    waits: list[Wait] = field(factory=list)
    passed: list[Dependency] = field(factory=list)
    """What was satisfied when it last became ready: never asked again in this run."""
    causes: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    discarded: bool = False
    deferrals: int = 0
    until: float | None = None
    in_retry: bool = False
    """It keeps its lane: delayed by a retry, or ready again after it."""
    ignores_expiry: bool = False
    doomed_since: float | None = None
    staged: list[tuple[int, Message]] = field(factory=list)


@define(eq=False)
class Epoch:
    """One epoch with its ids, resources and barriers."""

    number: int
    name: str
    deadline: float | None = None
    on_unresolved: str | None = None
    state: str = "open"
    is_cancelled: bool = False
    is_overdue: bool = False
    ignores_deadline: bool = False
    was_blocked: bool = False
    """What the last analysis said; it counts only while the epoch is still quiet."""
    revision: int = 0
    ids: dict[str, int] = field(factory=dict)
    versions: dict[str, int] = field(factory=dict)
    barriers: set[str] = field(factory=set)
    opened: set[str] = field(factory=set)

    @property
    def is_sealed(self) -> bool:
        """Say whether only derived messages can still come."""
        return self.state != "open"


class Snapshot(NamedTuple):
    """Everything two worlds must agree on after each event."""

    states: dict[int, str]
    causes: dict[int, tuple[frozenset[int], frozenset[int]]]
    runs: dict[int, int]
    runnable: frozenset[int]
    epochs: dict[int, tuple[str, bool, int]]
    opened: frozenset[tuple[int, str]]


class Facts:
    """All messages and epochs, and the plain questions about them."""

    def __init__(
        self,
        derives: Mapping[str, Collection[str]] | None,
        on_unresolved: str,
        rules: Rules,
        seen: Counter[str] | None,
    ) -> None:
        self.derives = derives or {}
        self.on_unresolved = on_unresolved
        self.rules = rules
        self.seen: Counter[str] = Counter() if seen is None else seen
        self.now = 0.0
        self.entries: dict[int, Entry] = {}
        self.epochs: dict[int, Epoch] = {}
        self.names: dict[str, Epoch] = {}
        self.versions: dict[str, int] = {}

    def alive(self, number: int) -> list[Entry]:
        """List the unfinished messages of an epoch."""
        return [x for x in self.entries.values() if x.epoch == number and x.state not in ENDED]

    def target_epoch(self, x: Entry, dependency: OnMessage | OnEpoch) -> Epoch | None:
        """Find the epoch that a dependency of `x` points to."""
        name = dependency.epoch_name if type(dependency) is OnMessage else dependency.name
        return self.epochs[x.epoch] if name is None else self.names.get(name)

    def target(self, x: Entry, dependency: OnMessage) -> Entry | None:
        """Find the message that a dependency of `x` points to, if it was accepted."""
        epoch = self.target_epoch(x, dependency)
        seq = None if epoch is None else epoch.ids.get(dependency.id)
        return None if seq is None else self.entries[seq]

    def is_provided(self, x: Entry, dependency: OnResource) -> bool:
        """Say whether the scope of the epoch, or the global one, has the version; the two are not summed."""
        scopes = (self.epochs[x.epoch].versions, self.versions)
        return any(scope.get(dependency.name, -1) >= dependency.min_version for scope in scopes)

    def has_succeeded(self, epoch: Epoch) -> bool:
        """Say whether nothing in the epoch is dead, cancelled or expired."""
        return not any(self.entries[seq].state in FAILURES for seq in epoch.ids.values())

    def is_quiet(self, epoch: Epoch) -> bool:
        """Say whether a sealed, unfinished epoch has nothing ready, running, committing or delayed."""
        if epoch.state not in ("sealed", "repairing"):
            return False
        return all(x.state in CALM for x in self.alive(epoch.number))

    def may_derive(self, kind: str, derived: str) -> bool:
        """Say whether messages of one kind may, over any number of steps, derive another kind (or are of it)."""
        reached, todo = {kind}, [kind]
        while todo:
            children = self.derives.get(todo.pop())
            if children is None:
                return True  # An undeclared kind may derive anything.
            todo += [child for child in children if child not in reached]
            reached |= set(children)
        return derived in reached
