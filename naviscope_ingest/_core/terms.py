"""How the dependencies of one message stand: a case, with one term for each dependency.

A term has a *status*: open, go, or the end its target came to. The term of several (a `Group`) counts its members. The
status of a root, one of the message's own dependencies, meets the policy and becomes a *word*: run, fail, cancel, skip
or hold. The case counts words, so that judging takes a few comparisons however many dependencies there are.

Ends must not depend on timing, so a word waits for worse ones: fail acts at once; cancel when no open dependency can
still say fail; skip when none can say fail or cancel; hold comes last. (With "the first bad parent decides", a message
that waits for a skipped and for a dead parent ends by whichever came first.) The same holds inside a group: it fails as
dead, the worst, as soon as a member died, but as cancelled or skipped only when no open member can still die.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from naviscope_spi import (
    AnyOf,
    BadEnd,
    Dependency,
    OnBarrier,
    OnEpoch,
    OnMessage,
    OnResource,
    OnUnresolved,
    Word,
    Words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from naviscope_ingest._core.nodes import Node

__all__ = [
    "GO",
    "LOST",
    "Case",
    "Group",
    "Said",
    "Status",
    "Term",
    "Verdict",
    "can_say",
    "policy_of",
    "unresolved_word",
]

GO: Final = "go"
LOST: Final = "lost"

Status: TypeAlias = Literal["go", "lost"] | BadEnd | None
"""None is open. Lost is an id that a completed epoch does not have."""

Said: TypeAlias = Word | None
"""What a root tells its message; None while it is open. Satisfied, or passed by its policy, it says run."""

Verdict: TypeAlias = Literal["wait", "ready", "hold", "fail", "cancel", "skip"]

_FOLLOW: Final = Words()
_AFTER_UNRESOLVED: Final[dict[OnUnresolved, Said]] = {"fail": "fail", "skip": "skip", "run": "run", "wait": None}


class Term:
    """One dependency, or one member of a group.

    Attributes:
        case: whose dependency it is.
        up: the group it is a member of; None for a root.
        dependency: what is waited for; a string is the id of a message of the same epoch.
        status: how its target stands.
        word: what it tells its message (roots only).
        resolved: what it was resolved to when nothing alive could release it (roots only).
        timed_out: whether its time has passed (roots only).
    """

    __slots__ = ("case", "dependency", "resolved", "status", "timed_out", "up", "word")

    def __init__(self, case: Case, dependency: str | Dependency, up: Group | None = None) -> None:
        self.case = case
        self.up = up
        self.dependency = dependency
        self.status: Status = None
        self.word: Said = None
        self.resolved: Said = None
        self.timed_out = False

    @property
    def is_live(self) -> bool:
        """Whether its message still goes by it."""
        return self.case.node.case is self.case

    @property
    def can_die(self) -> bool:
        """Whether it is open and its target could still end dead."""
        return self.status is None and isinstance(self.dependency, str | OnMessage | OnEpoch)

    def leaves(self) -> Iterator[Term]:
        """Yield the open dependencies at the ends of this tree."""
        # A root that is lost and told to wait is open too.
        if self.status is None or (self.word is None and self.up is None):
            yield self

    def complain(self) -> str:
        """Say what is wrong with a dependency that does not say run (roots only)."""
        if self.timed_out and (self.resolved is not None or self.status is None):
            return f"{self.describe()} did not come within {getattr(self.dependency, 'timeout', None)} seconds"
        if self.resolved is not None:
            return f"nothing alive can bring {self.describe()}"
        if self.status == LOST:
            return f"{self.describe()} does not exist, and its epoch is completed"
        if isinstance(self, Group):
            return f"too many failed of {self.describe()}"
        return f"{self.describe()} ended {self.status}"

    def describe(self) -> str:
        """Name what is waited for."""
        dependency = self.dependency
        return f"message {dependency!r}" if isinstance(dependency, str) else dependency.describe()


class Group(Term):
    """The term of a group: counts how its members stand.

    Attributes:
        members: the terms of its members.
        need: how many must be satisfied.
        satisfied: how many are.
        open: how many are open.
        deadly: how many are open and could still end dead.
        dead: how many ended dead or expired, or are lost.
        cancelled: how many ended cancelled.
    """

    __slots__ = ("cancelled", "dead", "deadly", "members", "need", "open", "satisfied")

    def __init__(self, case: Case, dependency: AnyOf, up: Group | None = None) -> None:
        super().__init__(case, dependency, up)
        self.members: list[Term] = []
        self.need = dependency.at_least
        self.satisfied = 0
        self.open = 0
        self.deadly = 0
        self.dead = 0
        self.cancelled = 0

    @property
    def can_die(self) -> bool:
        """Whether it is open and a member could still end dead."""
        return self.status is None and self.deadly > 0

    def count(self, member: Term, by: Literal[1, -1]) -> None:
        """Add a member with its present status, or take it out."""
        status = member.status
        if status is None:
            self.open += by
            if member.can_die:
                self.deadly += by
        elif status == "go":
            self.satisfied += by
        elif status == "cancelled":
            self.cancelled += by
        elif status != "skipped":
            self.dead += by

    def outcome(self) -> Status:
        """Return how the group stands by its counts."""
        if self.satisfied >= self.need:
            return GO
        if self.satisfied + self.open >= self.need:
            return None
        if self.dead:
            return "dead"
        if self.deadly:
            return None
        return "cancelled" if self.cancelled else "skipped"

    def leaves(self) -> Iterator[Term]:
        """Yield the open dependencies at the ends of this tree."""
        if self.status is None:
            for member in self.members:
                yield from member.leaves()


class Case:
    """How the dependencies of one waiting message stand.

    Attributes:
        node: the message.
        roots: a term for each dependency.
        open: how many are open.
        harmless: how many of the open ones cannot say fail.
        mild: how many of the open ones cannot say cancel.
        fail, cancel, skip, hold: how many say that.
        opened_at: since when its timeouts count.
        is_queued: whether it is about to be judged.
    """

    __slots__ = (
        "cancel",
        "fail",
        "harmless",
        "hold",
        "is_queued",
        "mild",
        "node",
        "open",
        "opened_at",
        "roots",
        "skip",
    )

    def __init__(self, node: Node, opened_at: float) -> None:
        self.node = node
        self.opened_at = opened_at
        self.roots: list[Term] = []
        self.open = 0
        self.harmless = 0
        self.mild = 0
        self.fail = 0
        self.cancel = 0
        self.skip = 0
        self.hold = 0
        self.is_queued = False

    def add(self, root: Term) -> None:
        """Take in a root with the word it says."""
        self.roots.append(root)
        self._count(root, 1)

    def reword(self, root: Term, word: Said) -> bool:
        """Let a root say something else; return whether the message should be judged again."""
        if root.word == word:
            return False
        self._count(root, -1)
        root.word = word
        self._count(root, 1)
        return word != "run" or not self.open or bool(self.cancel or self.skip) or self.fail > 0

    def _count(self, root: Term, by: Literal[1, -1]) -> None:
        word = root.word
        if word is None:
            self.open += by
            fails, cancels = can_say(root)
            if not fails:
                self.harmless += by
            if not cancels:
                self.mild += by
        elif word == "fail":
            self.fail += by
        elif word == "cancel":
            self.cancel += by
        elif word == "skip":
            self.skip += by
        elif word == "hold":
            self.hold += by

    def timeouts(self) -> Iterator[tuple[int, float]]:
        """Yield the places of roots whose time is limited, and when that is over."""
        for place, root in enumerate(self.roots):
            if not isinstance(root.dependency, str) and root.dependency.timeout is not None:
                yield place, self.opened_at + root.dependency.timeout

    def judge(self) -> Verdict:
        """Decide by the words said so far."""
        if self.fail:
            return "fail"
        if self.cancel and self.open == self.harmless:
            return "cancel"
        if self.skip and self.open == self.harmless == self.mild:
            return "skip"
        if self.open:
            return "wait"
        return "hold" if self.hold else "ready"

    def why(self) -> str:
        """Say in words which dependency ends the message, the worst first."""
        for word in ("fail", "cancel", "skip"):
            for root in self.roots:
                if root.word == word:
                    return root.complain()
        return ""


def policy_of(root: Term) -> Words:
    """Return the words of a root for each bad end."""
    dependency = root.dependency
    return _FOLLOW if isinstance(dependency, str) else dependency.otherwise


def unresolved_word(root: Term) -> Said:
    """Return what a root says when nothing alive can release it; None means that it waits on."""
    dependency = root.dependency
    own = None if isinstance(dependency, str) else dependency.on_unresolved
    return _AFTER_UNRESOLVED[own or root.case.node.epoch.on_unresolved]


def can_say(root: Term) -> tuple[bool, bool]:
    """Tell whether an open root could still say fail, and cancel."""
    dependency = root.dependency
    unresolved = unresolved_word(root)
    if isinstance(dependency, str):
        return True, True
    words = dependency.otherwise
    said: tuple[Said, ...]
    if isinstance(dependency, OnMessage):
        said = (*words, unresolved)
    elif isinstance(dependency, OnEpoch):
        said = (words.dead, words.cancelled, unresolved)
    elif isinstance(dependency, AnyOf):
        said = (words.dead, words.skipped, words.cancelled, unresolved)
    elif isinstance(dependency, OnResource):
        said = () if dependency.external else (unresolved,)
    else:
        assert isinstance(dependency, OnBarrier)
        said = ()
    if dependency.timeout is not None:
        said = (*said, words.expired)
    return "fail" in said, "cancel" in said
