"""A core with one message in a chosen state, for tests that look at single transitions."""

from __future__ import annotations

from naviscope_ingest._core import Core, Node, State
from naviscope_spi import Dependency, Ended, EpochKey, EpochOptions, EpochRecord, Message, Resource, Seq

PARENT, CHILD, X = Seq(1), Seq(3), Seq(2)
EPOCH = 1


class Stage:
    """One epoch with the message X, brought into some state.

    X waits for nothing, or for PARENT where the state needs it. CHILD waits for X and is held when X dies.
    """

    def __init__(self, *depends_on: str | Dependency, **fields):
        options = {name: fields.pop(name) for name in ("derives", "stall_grace", "lanes") if name in fields}
        deadline = fields.pop("deadline", None)
        self.core = Core(**options)
        self.core.open_epoch(EpochRecord(EpochKey(EPOCH, "epoch"), "open", EpochOptions(deadline=deadline)))
        self.core.accept(EPOCH, [PARENT], [Message("parent", None)])
        self.core.accept(EPOCH, [X], [Message("x", None, depends_on=depends_on, **fields)])
        self.core.accept(
            EPOCH, [CHILD], [Message("child", None, depends_on=[Dependency.message("x", otherwise="hold")])]
        )
        node = self.core.node(X)
        assert node is not None
        self.x: Node = node

    @property
    def state(self) -> str:
        return self.x.end or self.x.state.value

    def of(self, seq: Seq) -> str:
        node = self.core.node(seq)
        return "committed" if node is None else node.end or node.state.value

    def look(self) -> tuple:
        """Return everything about X that an event could change."""
        rare = self.x.rare
        return self.state, self.x.run, rare and (rare.attempts, rare.deferrals, rare.discarded, rare.causes)

    def start(self) -> Stage:
        self.core.claim([X])
        return self

    def commit_parent(self) -> Stage:
        self.core.claim([PARENT])
        self.core.hand_to_sink([PARENT])
        self.core.commit([PARENT])
        return self

    def kill_parent(self) -> Stage:
        self.core.claim([PARENT])
        self.core.end(Ended(PARENT, "dead"))
        return self


def waiting(**fields) -> Stage:
    stage = Stage("parent", **fields)
    assert stage.x.state is State.WAITING
    return stage


def held(**fields) -> Stage:
    stage = Stage(Dependency.message("parent", otherwise="hold"), **fields).kill_parent()
    assert stage.x.state is State.HELD
    return stage


def in_retry(**fields) -> Stage:
    stage = Stage(**fields).start()
    stage.core.retry(X, stage.core.now + 1)
    assert stage.x.state is State.DELAYED
    return stage


def ready(**fields) -> Stage:
    stage = Stage(**fields)
    assert stage.x.state is State.READY
    return stage


def running(**fields) -> Stage:
    return ready(**fields).start()


def committing(**fields) -> Stage:
    stage = running(**fields)
    stage.core.hand_to_sink([X])
    return stage


def committed(**fields) -> Stage:
    stage = committing(**fields)
    stage.core.commit([X])
    return stage


def dead(**fields) -> Stage:
    stage = running(**fields)
    stage.core.end(Ended(X, "dead"))
    return stage


def expired(**fields) -> Stage:
    stage = ready(**fields)
    stage.core.end(Ended(X, "expired"))
    return stage


RESOURCE = Resource("r", 1)
