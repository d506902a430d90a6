"""A core with ids in place of numbers, and the few steps that most tests take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from naviscope_ingest._core import Core, EpochTracker, Node
from naviscope_spi import BadEnd, Dependency, Ended, EpochKey, EpochOptions, EpochRecord, Message, Resource, Seq

__all__ = ["Desk"]


class Desk:
    """Numbers messages in order of acceptance. Ids are unique over all epochs, so that an id is enough to name one."""

    def __init__(self, *, epochs: int = 1, **options: Any) -> None:
        self.core = Core(**options)
        self.nodes: dict[str, Node] = {}
        for number in range(1, epochs + 1):
            self.open(number)

    def open(self, number: int = 1, **options: Any) -> EpochTracker:
        """Open an epoch named e1, e2 and so on."""
        key = EpochKey(number, options.pop("name", f"e{number}"))
        return self.core.open_epoch(EpochRecord(key, "open", EpochOptions(**options)))

    def put(self, *messages: Message[Any], epoch: int = 1) -> None:
        """Accept messages together."""
        seqs = self.number(messages)
        self.core.accept(epoch, seqs, messages)
        self.remember(messages, seqs)

    def add(self, name: str, *depends_on: str | Dependency, epoch: int = 1, **fields: Any) -> None:
        """Accept one message."""
        self.put(Message(name, None, depends_on=depends_on, **fields), epoch=epoch)

    def number(self, messages: Sequence[Message[Any]]) -> list[Seq]:
        return [Seq(len(self.nodes) + index) for index in range(1, len(messages) + 1)]

    def remember(self, messages: Iterable[Message[Any]], seqs: Iterable[Seq]) -> None:
        for message, seq in zip(messages, seqs, strict=True):
            node = self.core.node(seq)
            assert node is not None
            self.nodes[message.id] = node

    def seq(self, name: str) -> Seq:
        return self.nodes[name].seq

    def epoch(self, number: int = 1) -> EpochTracker:
        return self.core.epochs[number]

    def state(self, name: str) -> str:
        node = self.nodes[name]
        return node.end or node.state.value

    def states(self, *names: str) -> list[str]:
        return [self.state(name) for name in names or self.nodes]

    def seal(self, *epochs: int) -> None:
        """Seal epochs, the first unless others are given, and look what follows."""
        for number in epochs or (1,):
            self.core.seal(number)
        self.core.advance(self.core.now)

    def start(self, *names: str) -> None:
        self.core.claim([self.seq(name) for name in names])

    def commit(
        self,
        *names: str,
        value: bytes | None = None,
        ready: Sequence[Resource] = (),
        derived: Sequence[Message[Any]] = (),
    ) -> None:
        """Start and commit messages. What they provide and derive is of the epoch of the first."""
        seqs = [self.seq(name) for name in names]
        number = self.nodes[names[0]].epoch.number
        self.core.claim(seqs)
        self.core.hand_to_sink(seqs)
        new = self.number(derived)
        self.core.commit(
            seqs,
            values={} if value is None else dict.fromkeys(seqs, value),
            ready=[(number, resource) for resource in ready],
            derived=[(number, new, derived)] if derived else (),
        )
        self.remember(derived, new)

    def end(self, name: str, end: BadEnd = "dead") -> None:
        """Start a message and end it otherwise."""
        self.start(name)
        self.core.end(Ended(self.seq(name), end))

    def take(self, limit: int = 1_000_000) -> list[str]:
        """Take what may start now, by id."""
        return [self.core._nodes[seq].id for seq in self.core.take(limit)]

    def events(self) -> list[tuple[str, str]]:
        """Return what happened to epochs since somebody asked."""
        return [(each.epoch.name, each.event) for each in self.core.drain().epochs]
