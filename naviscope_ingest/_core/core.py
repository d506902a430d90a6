"""The core: facts in, decisions out.

Every method that tells a fact (`accept`, `claim`, `commit`, …) changes what the core knows and notes what follows from
it. `advance` tells the time, and looks for what nothing alive can release. `take` returns messages that may start;
`drain` returns everything else that was decided. The core never waits, reads no clock and touches nothing outside.

Facts that come again change nothing. Folding a store's facts from the beginning is therefore recovery, and a leader may
read back what it wrote itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from naviscope_ingest._core.committed import CommittedIds
from naviscope_ingest._core.control import Control
from naviscope_ingest._core.epochs import EpochTracker
from naviscope_ingest._core.graph import Graph
from naviscope_ingest._core.lookout import Lookout
from naviscope_ingest._core.nodes import COMMITTING, ENDED, READY, RUNNING, WAITING, Node, State
from naviscope_ingest._core.outlines import Outlines
from naviscope_ingest._core.replay import closure, revive
from naviscope_ingest._core.schedule import Schedule
from naviscope_ingest._core.timers import Timer, TimerKind
from naviscope_ingest._core.transitions import Decisions, Transitions
from naviscope_spi import (
    AnyOf,
    Dependency,
    Ended,
    EpochRecord,
    EpochState,
    InvalidMessage,
    Message,
    OnMessage,
    OnResource,
    OnUnresolved,
    Resource,
    Seq,
)

__all__ = ["Core", "Refused"]


_RECENT = 50_000
"""Of how many messages of an epoch that have committed the core keeps the whole ids, if a store keeps all of them."""

_FOLDED = 5_000
"""How many of them become old in one step, which must not hold up anything."""


class Refused(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The core cannot do what it was asked to: the message is unknown or in the wrong state."""


class Core:
    """Knows every message that has not committed, and decides what happens to it.

    Args:
        derives: for each kind that says so, the kinds it derives; others may derive any.
        on_unresolved: what happens to dependencies that nothing alive can release, when neither they nor their epoch
            say.
        stall_grace: seconds before that happens.
        lanes: whether a message in retry blocks its lane, or lets others pass.
        max_deferrals: how often one run of a message may be deferred.
        keeps_outlines: whether to keep of messages only what decisions need, for they are kept elsewhere.
        ageing: how many seconds of being ready are worth one priority.

    Attributes:
        control: changes limits, pauses and weights.
    """

    def __init__(
        self,
        *,
        derives: Mapping[str, Collection[str]] | None = None,
        on_unresolved: OnUnresolved = "fail",
        stall_grace: float = 5.0,
        lanes: Literal["block", "pass"] = "block",
        max_deferrals: int = 100,
        ageing: float = 60.0,
        keeps_outlines: bool = False,
    ) -> None:
        self._transitions = Transitions(derives, ageing)
        self._lookout = Lookout(self._transitions, stall_grace)
        self._on_unresolved: OnUnresolved = on_unresolved
        self._lanes_pass = lanes == "pass"
        self._max_deferrals = max_deferrals
        self._outlines = Outlines() if keeps_outlines else None
        self.control = Control(self._transitions, self._outlines)
        # Messages that a recovery finds started, whatever is known of their dependencies so far.
        self._begun: dict[Seq, Node] = {}
        # Why the sink is not called now, and until when; empty if it is.
        self.sink_hold: tuple[str, float | None] = ("", None)
        # Shared with the transitions, which change them; here they are read on every call.
        self._nodes = self._transitions.nodes
        self._take = self._transitions.schedule.take
        self._graph = self._transitions.graph

    # Questions

    @property
    def now(self) -> float:
        """The time as it was last told."""
        return self._transitions.now

    @property
    def epochs(self) -> Mapping[int, EpochTracker]:
        """The epochs that are kept, by number."""
        return self._transitions.epochs

    @property
    def graph(self) -> Graph:
        """The dependency graph."""
        return self._graph

    @property
    def schedule(self) -> Schedule:
        """The order of ready messages."""
        return self._transitions.schedule

    @property
    def next_due(self) -> float | None:
        """When `advance` has something to do next, if nothing happens before."""
        timer, look = self._transitions.timers.next_due, self._lookout.due
        if timer is None or look is None:
            return look if timer is None else timer
        return min(timer, look)

    @property
    def may_be_due(self) -> bool:
        """Whether there is such a time at all; quicker to say."""
        return self._transitions.timers.count > 0 or self._lookout.due is not None

    @property
    def will_go_on(self) -> bool:
        """Whether time alone brings more to do: a retry, a set start, or a look at what nothing can release.

        It asks every message, so it is for those who ask seldom.
        """
        if self._lookout.due is not None:
            return True
        left = (epoch for epoch in self._transitions.unfinished.values() if epoch.unfinished)
        return any(node.state is State.DELAYED for epoch in left for node in epoch.live.values())

    @property
    def size(self) -> int:
        """How many messages have not committed. At least as many as are unfinished, and quicker to say."""
        return len(self._nodes)

    def kinds(self) -> set[str]:
        """Return the kinds of messages that have not committed."""
        return {node.message.kind for node in self._nodes.values()}

    def unfinished_by_kind(self) -> Mapping[str, int]:
        """Return how many messages of each kind have not ended. It asks every message."""
        return Counter(node.message.kind for node in self._nodes.values() if node.state is not State.ENDED)

    @property
    def open_epochs(self) -> Mapping[int, EpochTracker]:
        """The epochs that have not completed, by number."""
        return self._transitions.unfinished

    @property
    def unfinished(self) -> int:
        """How many messages have not ended."""
        return sum(epoch.unfinished for epoch in self._transitions.unfinished.values())

    @property
    def waiting(self) -> int:
        """How many of them wait or are held."""
        return sum(epoch.waiting for epoch in self._transitions.unfinished.values())

    @property
    def delayed(self) -> int:
        """How many of them wait for nothing but a time."""
        return self._transitions.delayed

    @property
    def runnable(self) -> int:
        """How many of them are ready, run or are being committed."""
        epochs = self._transitions.unfinished.values()
        return sum(epoch.unfinished - epoch.waiting for epoch in epochs) - self._transitions.delayed

    def node(self, seq: Seq) -> Node | None:
        """Return a message that has not committed."""
        return self._nodes.get(seq)

    def finder(self) -> Callable[[Seq], Node | None]:
        """Return what does as `node`, for those who ask for every message."""
        return self._nodes.get

    def is_unfinished(self, seq: Seq) -> bool:
        """Tell whether a message has not ended."""
        node = self._nodes.get(seq)
        return node is not None and node.state is not State.ENDED

    def is_letter(self, seq: Seq) -> bool:
        """Tell whether a message ended dead or expired."""
        node = self._nodes.get(seq)
        return node is not None and node.end in ("dead", "expired")

    def find(self, number: int, message_id: str) -> Node | None:
        """Return a message that has not committed, by epoch and id."""
        return self._epoch(number).live.get(message_id)

    def may_start(self, node: Node) -> bool:
        """Tell whether a ready message could be taken now: its lane and its gates are free."""
        if node.state is not State.READY:
            return False
        key = node.message.key
        lane = None if key is None else self.schedule.lanes.get(key)
        return (lane is None or lane.next() is node) and not self.control.holds_of(node)

    @property
    def hands_over(self) -> bool:
        """Whether any message ever passed a dependency, or left or found a value. Most programs do neither."""
        return self._graph.hands_over

    def unmet(self, seq: Seq) -> Sequence[str | Dependency]:
        """Return the dependencies that a message passed although they are not satisfied."""
        rare = self._nodes[seq].rare
        return () if rare is None else rare.unmet

    def values(self, seq: Seq) -> dict[str, bytes]:
        """Return what the dependencies of a message left for it, by message id or resource name."""
        node = self._nodes[seq]
        found: dict[str, bytes] = {}
        self._collect(node.epoch, node.message.depends_on, found)
        if node.rare is not None:
            self._collect(node.epoch, node.rare.added, found)
        return found

    def _collect(self, epoch: EpochTracker, depends_on: Iterable[str | Dependency], found: dict[str, bytes]) -> None:
        for each in depends_on:
            value: bytes | None = None
            name = each if isinstance(each, str) else ""
            if isinstance(each, AnyOf):
                self._collect(epoch, each.members, found)
            elif isinstance(each, str):
                value = epoch.values.get(each)
            elif isinstance(each, OnMessage):
                home = epoch if each.epoch_name is None else self._graph.names.get(each.epoch_name)
                name, value = each.id, home.values.get(each.id) if home is not None else None
            elif isinstance(each, OnResource):
                name, value = each.name, self._graph.resources.value(epoch.number, each.name)
            if value is not None:
                found[name] = value

    def barrier_passed(self, seq: Seq, derived: Iterable[Message[Any]]) -> str | None:
        """Return a kind among derived messages whose barrier has opened: their parent must end dead."""
        barriers = self._nodes[seq].epoch.barriers
        if barriers:
            for message in derived:
                barrier = barriers.get(message.kind)
                if barrier is not None and barrier.is_open:
                    return message.kind
        return None

    # Facts about epochs

    def open_epoch(self, record: EpochRecord) -> EpochTracker:
        """Learn of an epoch."""
        number = record.key.number
        if number in self.epochs:
            return self.epochs[number]
        epoch = EpochTracker(record.key, record.options, self._on_unresolved, record.state, record.succeeded)
        if self._outlines is not None:
            epoch.done = CommittedIds()
        epoch.was_cancelled = record.cancel_requested
        if record.cancel_requested:
            epoch.verdict = "cancelled"
        self._transitions.epochs[number] = epoch
        if not epoch.is_completed:
            self._transitions.unfinished[number] = epoch
        deadline = record.options.deadline
        if deadline is not None and deadline > self.now:
            self._transitions.timers.set(deadline, TimerKind.DEADLINE, number)
        elif deadline is not None and record.state in ("open", "sealed") and epoch.verdict is None:
            epoch.verdict = "expired"
        self._graph.epoch_opened(epoch)
        self._transitions.touch(epoch)
        self._transitions.settle()
        return epoch

    def seal(self, number: int) -> None:
        """Take no more messages into an epoch but derived ones."""
        epoch = self._epoch(number)
        if not epoch.is_sealed:
            epoch.is_sealed = True
            epoch.state = "sealed"
            self._transitions.touch(epoch)
            self._transitions.settle()

    def cancel_epoch(self, number: int) -> None:
        """Seal an epoch and cancel what has not ended and is not being committed."""
        epoch = self._epoch(number)
        if epoch.is_completed or epoch.verdict == "cancelled":
            return
        epoch.was_cancelled = True
        epoch.is_sealed = True
        if epoch.state == "open":
            epoch.state = "sealed"
        if self._graph.is_recovering:
            # What was with the sink may have committed, as later facts say.
            epoch.verdict = "cancelled"
        else:
            self._transitions.condemn(epoch, "cancelled", "the epoch was cancelled")
        self._transitions.settle()

    def free_epoch(self, number: int) -> bool:
        """Let go of the ids of a completed epoch, unless a dead letter in it may be replayed; tell whether it did.

        Those who wait for the whole epoch still find it; a message of it is no longer known.
        """
        epoch = self._epoch(number)
        if epoch.is_freed or not epoch.is_completed or epoch.is_pinned:
            return epoch.is_freed
        for node in epoch.live.values():
            del self._nodes[node.seq]
        epoch.free()
        self._graph.resources.forget(number)
        return True

    def forget_epoch(self, number: int) -> None:
        """Drop a completed epoch, its ids and its ends.

        Raises:
            Refused: the epoch has not completed.
        """
        epoch = self.epochs.get(number)
        if epoch is None:
            return
        if not epoch.is_completed:
            raise Refused(f"epoch {epoch.name!r} is {epoch.state}: only a completed epoch can be forgotten")
        del self._transitions.epochs[number]
        self._transitions.unfinished.pop(number, None)
        for node in epoch.live.values():
            del self._nodes[node.seq]
        self._graph.epoch_forgotten(epoch)
        self._transitions.settle()

    def count_duplicates(self, number: int, duplicates: int, conflicts: int = 0) -> None:
        """Note that known ids were submitted again."""
        epoch = self._epoch(number)
        epoch.duplicates += duplicates
        epoch.conflicts += conflicts

    def expect(self, number: int, kind: str) -> None:
        """Learn that a message of some kind has derived others, which are told later: they are alive already."""
        self._epoch(number).expect(kind, 1)

    def expect_no_more(self, number: int, kind: str) -> None:
        """Learn that all of them were told."""
        epoch = self._epoch(number)
        epoch.expect(kind, -1)
        self._transitions.touch(epoch)
        self._transitions.settle()

    # Facts about messages

    def accept(self, number: int, seqs: Sequence[Seq], messages: Sequence[Message[Any]]) -> None:
        """Learn of new messages of an epoch. Somebody may wait for them already."""
        self._accept(self._epoch(number), seqs, messages)
        self._transitions.settle()

    def _accept(
        self, epoch: EpochTracker, seqs: Sequence[Seq], messages: Sequence[Message[Any]], *, raised: bool = False
    ) -> None:
        transitions, nodes, live = self._transitions, self._nodes, epoch.live
        now = transitions.now
        # While facts are incomplete, an end of its own may still follow.
        is_over = epoch.verdict is not None and not self._graph.is_recovering
        late: list[Node] = []
        # Most messages are plain. Those that wait for nothing go straight into the queue of their epoch.
        start: Callable[[Node], None] | None = None
        done, ghosts, link = epoch.done, epoch.ghosts, self._graph.link
        new = waiting = 0
        for seq, message in zip(seqs, messages, strict=True):
            name = message.id
            if seq in nodes or name in live or name in done:
                continue
            nodes[seq] = live[name] = node = Node(seq, epoch, message, now)
            new += 1
            if epoch.kinds is not None:
                epoch.count_kind(node, 1)
            if ghosts:
                self._graph.accepted(node)
            if is_over or (message.expires_at is not None and self._is_late(node, message.expires_at)):
                waiting += 1
                late.append(node)
                continue
            if message.depends_on:
                link(node, now)
                if node.missing:
                    waiting += 1
                    continue
            if message.key is None and not message.priority and message.not_before is None:
                if start is None:
                    start = transitions.schedule.usual_queue(epoch, raised=raised)
                node.state = READY
                start(node)
            else:
                transitions.make_ready(node)
        epoch.unfinished += new
        epoch.waiting += waiting
        if late:
            transitions.end_together(late, epoch.verdict or "expired", "its time was over before it was accepted")
        if self._outlines is not None:
            for seq, message in zip(seqs, messages, strict=True):
                accepted = nodes.get(seq)
                if accepted is not None and accepted.message is message:
                    accepted.message = self._outlines.of(message)
        transitions.touch(epoch)

    def _is_late(self, node: Node, expires_at: float) -> bool:
        """Tell whether a new message has expired; otherwise set the timer for it."""
        if expires_at <= self.now and not self._graph.is_recovering:
            return True
        self._transitions.timers.set(expires_at, TimerKind.EXPIRY, node.seq)
        return False

    def claim(self, seqs: Iterable[Seq], *, takes_lane: bool = True) -> None:
        """Learn that messages were started otherwise than by `take`, for instance by another process.

        Args:
            seqs: the messages.
            takes_lane: whether they have their lanes; one that was started and deferred long ago has not.
        """
        transitions = self._transitions
        for seq in seqs:
            node = self._nodes.get(seq)
            if node is None or node.state in (State.RUNNING, State.COMMITTING, State.ENDED):
                continue
            if node.state in (State.WAITING, State.HELD):
                # Only the fact of another leader says so: it knew more than was folded here so far.
                self._graph.close_case(node)
                node.epoch.waiting -= 1
                if self._graph.is_recovering:
                    self._begun[node.seq] = node
            transitions.undelay(node)
            node.state = State.RUNNING
            node.since = transitions.now
            if takes_lane:
                transitions.schedule.start(node)
            transitions.touch(node.epoch)

    def hand_to_sink(self, seqs: Iterable[Seq]) -> list[Seq]:
        """Learn that outcomes are handed to the sink: from here on, commit wins over cancel.

        Returns:
            Those that were not running any more, whose outcomes must not be handed over.
        """
        now, nodes = self._transitions.now, self._nodes
        late: list[Seq] = []
        for seq in seqs:
            node = nodes.get(seq)
            if node is not None and node.state is RUNNING:
                node.state = COMMITTING
                node.since = now
            else:
                late.append(seq)
        return late

    def record(self, seqs: Iterable[Seq]) -> None:
        """Learn that the outcomes of messages are recorded: the sink may have them, so commit wins over cancel."""
        for seq in seqs:
            node = self._nodes.get(seq)
            if node is not None and node.state is not State.ENDED:
                self.claim([seq])
                node.more().is_recorded = True

    def disregard_records(self, seqs: Sequence[Seq]) -> None:
        """Learn that recorded outcomes are of no use here: their messages have to run again."""
        for seq in seqs:
            node = self._nodes.get(seq)
            if node is not None:
                node.more().is_recorded = False
        self.release(seqs)

    def commit(
        self,
        seqs: Sequence[Seq],
        *,
        values: Mapping[Seq, bytes] | None = None,
        ready: Sequence[tuple[int, Resource]] = (),
        derived: Iterable[tuple[int, Sequence[Seq], Sequence[Message[Any]]]] = (),
        ended: Iterable[tuple[Ended, str]] = (),
    ) -> None:
        """Learn that messages committed, in one step with what they derived and provided.

        Args:
            seqs: the messages.
            ended: messages that ended otherwise in the same step, and why.
            values: what they leave for their dependents.
            ready: resources they provide, with the number of the epoch.
            derived: the messages they derived, with the number of the epoch.
        """
        # Derived messages first: otherwise the epoch could be seen without unfinished messages.
        for number, new, messages in derived:
            self._accept(self._epoch(number), new, messages, raised=self._transitions.schedule.is_pressed)
        if ready:
            self._transitions.provide(ready)
        if values:
            self._keep_values(values)
        self._commit([node for seq in seqs if (node := self._nodes.get(seq)) is not None])
        for fact, reason in ended:
            self._end(fact, reason)
        self._transitions.settle()

    def commit_plain(self, nodes: Sequence[Node], now: float) -> bool:
        """Learn at what time messages committed that bring nothing, as most do; return what `look` returns."""
        transitions, graph = self._transitions, self._graph
        transitions.now = now
        self._commit(nodes)
        if graph.freed or graph.disputed or graph.barriers or transitions.touched:
            transitions.settle()
        else:
            transitions.is_changed = True
        return self.look()

    def _commit(self, committed: Sequence[Node]) -> None:
        transitions, nodes, graph = self._transitions, self._nodes, self._graph
        now, freed, is_recovering = transitions.now, graph.freed, graph.is_recovering
        last: EpochTracker | None = None
        live: dict[str, Node] = {}
        done: dict[str, None] = {}
        # Of the last epoch: how many committed, and how many of those in the quick way. Counted where it changes.
        count = quick = 0
        for node in committed:
            if node.state is ENDED:
                continue
            del nodes[node.seq]
            epoch, message = node.epoch, node.message
            if epoch is not last:
                if last is not None:
                    last.unfinished -= quick
                    last.ends["committed"] += count
                    transitions.ended += quick
                    transitions.touch(last)
                    count = quick = 0
                last = epoch
                done, live = epoch.done, epoch.live
            count += 1
            if (
                node.state is COMMITTING
                and node.rare is None
                and message.key is None
                and message.expires_at is None
                and epoch.kinds is None
            ):
                # What `retire` would do for a message that is in nothing else. Nobody asks since when it has committed.
                node.state = ENDED
                quick += 1
            else:
                transitions.retire(node)
            node.end = "committed"
            del live[message.id]
            done[message.id] = None
            child = node.first
            if child is not None:
                child.missing = missing = child.missing - 1
                if not missing:
                    message = child.message
                    if (
                        freed
                        or is_recovering
                        or child.state is not WAITING
                        or child.rare is not None
                        or message.key is not None
                        or message.priority
                        or message.not_before is not None
                    ):
                        freed.append(child)
                    else:
                        # What `settle` would do for a plain message, of which a chain has one in every step.
                        epoch.waiting -= 1
                        child.state = READY
                        child.since = now
                        transitions.schedule.usual_queue(epoch)(child)
            if node.waiters:
                graph.committed(node.waiters)
        if transitions.schedule.slots:
            transitions.schedule.free_all(node.seq for node in committed)
        if last is None:
            return
        last.unfinished -= quick
        last.ends["committed"] += count
        transitions.ended += quick
        if self._outlines is not None and len(last.done) > _RECENT:
            assert isinstance(last.done, CommittedIds)
            last.done.fold(_RECENT - _FOLDED)
        if last.barriers or last.unfinished <= last.waiting or last.number in transitions.quiet:
            transitions.touch(last)

    def _keep_values(self, values: Mapping[Seq, bytes]) -> None:
        """Keep what messages that commit leave for their dependents."""
        for seq, value in values.items():
            node = self._nodes.get(seq)
            if node is not None and node.state is not State.ENDED:
                node.epoch.values[node.message.id] = value
                self._graph.hands_over = True

    def end(self, fact: Ended, reason: str = "") -> None:
        """Learn that a message ended without committing."""
        self._end(fact, reason)
        self._transitions.settle()

    def _end(self, fact: Ended, reason: str) -> None:
        node = self._nodes.get(fact.seq)
        if node is not None and node.state is not State.ENDED:
            self._transitions.end(node, fact.end, reason, frozenset(fact.causes), frozenset(fact.epoch_causes))

    def defer(self, seq: Seq, depends_on: Sequence[str | Dependency]) -> bool:
        """Let a running message wait for more; return whether that spent an attempt, for it need not wait at all.

        A deferral that could never end is a bug of the executor, and the message ends dead.
        """
        node = self._running(seq)
        if node is None:
            return False
        rare = node.more()
        rare.is_recorded = False
        rare.deferrals += 1
        spent = True
        fault = self._fault(node, depends_on)
        if fault is not None:
            self._transitions.decide(node, "dead", fault, kind="bug")
        elif not self._transitions.is_over(node):
            rare.added = (*rare.added, *depends_on)
            self.schedule.leave(node)
            case = self._transitions.wait(node, depends_on)
            spent = case.judge() == "ready"
            rare.attempts += spent
        self._transitions.settle()
        return spent

    def _fault(self, node: Node, depends_on: Sequence[str | Dependency]) -> str | None:
        """Say what is wrong with a deferral, if anything is."""
        if not depends_on:
            return "it was deferred without saying what for"
        if node.more().deferrals > self._max_deferrals:
            return f"it was deferred more than {self._max_deferrals} times"
        try:
            node.message.check_dependencies(depends_on)
        except InvalidMessage as error:
            return f"it was deferred in vain: {error}"
        return None

    def retry(self, seq: Seq, at: float, *, spent: bool = True) -> None:
        """Let a running message run again, not before that time.

        Args:
            seq: the message.
            at: when.
            spent: whether the attempt counts; one that was told when to come back does not.
        """
        node = self._running(seq)
        if node is None:
            return
        rare = node.more()
        rare.is_recorded = False
        rare.attempts += spent
        if not self._transitions.is_over(node):
            rare.retry_at = at
            if self._lanes_pass:
                self.schedule.leave(node)
            else:
                self.schedule.free(seq)
            self._transitions.delay(node, at)
            if at <= self.now:
                self._transitions.start_again(node)
        self._transitions.settle()

    def release(self, seqs: Iterable[Seq]) -> None:
        """Make started messages ready again: they were handed back, or their process died."""
        for seq in seqs:
            node = self._nodes.get(seq)
            if node is None or node.state not in (State.RUNNING, State.COMMITTING):
                continue
            if not self._transitions.is_over(node):
                self._transitions.hand_back(node)
        self._transitions.settle()

    def cancel(self, seq: Seq) -> bool:
        """Cancel a message; return whether that had an effect. What is being committed is not cancelled."""
        node = self._nodes.get(seq)
        if node is None or node.state in (State.COMMITTING, State.ENDED) or node.is_recorded:
            return False
        self._transitions.end_together([node], "cancelled", "it was cancelled")
        self._transitions.settle()
        return True

    def _running(self, seq: Seq) -> Node | None:
        node = self._nodes.get(seq)
        return node if node is not None and node.state is State.RUNNING else None

    # Facts about resources

    def provide(self, resource: Resource, number: int | None = None) -> None:
        """Learn of a resource, in the scope of an epoch or everywhere."""
        self._transitions.provide([(number, resource)])
        self._transitions.settle()

    def forget_resource(self, name: str) -> None:
        """Take a global resource back. Who was satisfied by it stays so."""
        self._graph.resources.forget(None, name)

    # Dead letters

    def replay(self, seq: Seq) -> list[Seq]:
        """Start a new run of a dead or expired message and of all that it took down; return their places.

        Raises:
            Refused: the message is unknown, or its end cannot be replayed.
        """
        revived = self.follow([self.letter(seq, "replayed")])
        self.revive(revived)
        return [node.seq for node in revived]

    def follow(self, letters: Iterable[Node]) -> list[Node]:
        """Return what a replay of these brings back to life: they, and all that their ends took down."""
        return closure(letters)

    def revive(self, nodes: Sequence[Node]) -> None:
        """Learn that ended messages were replayed together."""
        revive(self._transitions, nodes)
        self._transitions.settle()

    def discard(self, seq: Seq) -> None:
        """Give a dead or expired message up: those who are held by it follow its end.

        Raises:
            Refused: the message is unknown, or has no dead letter.
        """
        node = self.letter(seq, "discarded")
        node.epoch.discarded += not node.more().discarded
        node.more().discarded = True
        self._graph.discarded(node)
        self._transitions.settle()

    def letter(self, seq: Seq, what: str) -> Node:
        """Return a dead or expired message.

        Args:
            seq: which.
            what: what is to happen to it, in words.

        Raises:
            Refused: it is none.
        """
        node = self._nodes.get(seq)
        if node is None:
            raise Refused(f"message {seq} is not known here, or has committed: only a dead letter can be {what}")
        if node.end not in ("dead", "expired"):
            state = node.end or node.state.value
            raise Refused(f"message {node.id!r} is {state}: only a dead or expired message can be {what}")
        return node

    # Time

    def advance(self, now: float) -> bool:
        """Learn what time it is: let due timers act, then look for what nothing alive can release.

        Returns:
            Whether `drain` has something to return.
        """
        transitions = self._transitions
        transitions.now = max(transitions.now, now)
        if transitions.timers:
            while (timer := transitions.timers.pop_due(transitions.now)) is not None:
                self._fire(timer)
                transitions.settle()
        return self.look()

    def look(self) -> bool:
        """Look for what nothing alive can release; return whether `drain` has something to return."""
        transitions = self._transitions
        if transitions.quiet or self._lookout.due is not None:
            self._lookout.look()
        decisions = transitions.decisions
        return bool(decisions.ended or decisions.epochs or decisions.stop)

    def _fire(self, timer: Timer) -> None:
        if timer.kind is TimerKind.GATE:
            self.control.on_time(timer.number)
            return
        if timer.kind is TimerKind.DEADLINE:
            epoch = self.epochs.get(timer.number)
            if epoch is not None and not epoch.is_completed and epoch.verdict is None:
                self._transitions.condemn(epoch, "expired", "the deadline of the epoch passed")
            return
        node = self._nodes[Seq(timer.number)]
        if timer.kind is TimerKind.TIMEOUT:
            self._graph.timed_out(node, timer.root)
        elif timer.kind is TimerKind.START:
            self._transitions.start_again(node)
        elif node.state not in (State.RUNNING, State.COMMITTING, State.ENDED) and not node.is_recorded:
            self._transitions.decide(node, "expired", "its expires_at passed before it could run")

    # Decisions

    def take(self, limit: int) -> list[Seq]:
        """Return messages that may start now, in order. They count as running."""
        return self._take(limit, self._transitions.now)

    @property
    def has_decided(self) -> bool:
        """Whether `drain` has something to return."""
        decisions = self._transitions.decisions
        return bool(decisions.ended or decisions.epochs or decisions.stop)

    def drain(self) -> Decisions:
        """Return what was decided since the last time, and forget it."""
        decisions, self._transitions.decisions = self._transitions.decisions, Decisions()
        return decisions

    # Recovery, for `fold`

    def begin_recovery(self) -> None:
        """Expect facts from the beginning, and decide nothing before they are complete."""
        self._graph.is_recovering = True

    def end_recovery(self) -> None:
        """Decide by the facts that were told."""
        self._graph.is_recovering = False
        for node in self._begun.values():
            self._tell_passed(node)
        self._begun.clear()
        for epoch in self.epochs.values():
            if epoch.is_completed:
                self._graph.epoch_changed(epoch)
            elif epoch.verdict is not None:
                self._transitions.condemn(epoch, epoch.verdict, "the epoch had been ended before")
            self._transitions.touch(epoch)
        self._transitions.settle()

    def _tell_passed(self, node: Node) -> None:
        """Find out again what a message was let past before it was started, now that all facts are known."""
        if node.state is ENDED:
            return
        # What it waits for now, after a deferral, is another matter.
        waits_for = () if node.case is None else [root.dependency for root in node.case.roots]
        depends_on = (*node.message.depends_on, *(node.rare.added if node.rare is not None else ()))
        unmet = self._graph.passed(node, [each for each in depends_on if each not in waits_for])
        if unmet:
            node.more().unmet = unmet
            self._graph.hands_over = True

    def resume(self, seq: Seq, run: int) -> None:
        """Learn that one ended message was replayed, without its closure: each message has its own fact."""
        node = self._nodes.get(seq)
        if node is not None and node.state is State.ENDED and node.run < run:
            revive(self._transitions, [node])
            node.more().run = run
            self._transitions.settle()

    def tell_run(self, seq: Seq, run: int) -> None:
        """Learn that a message is in a later run: it was replayed, at a time that is not known any more."""
        node = self._nodes[seq]
        if node.run >= run:
            return
        rare = node.more()
        rare.run = run
        node.epoch.verdict = None if node.epoch.verdict == "expired" else node.epoch.verdict
        # Whoever replayed it after it had expired meant it to run.
        rare.has_outlived = node.message.expires_at is not None and node.message.expires_at <= self.now
        if node.message.expires_at is not None and rare.has_outlived:
            self._transitions.timers.drop(node.message.expires_at, TimerKind.EXPIRY, seq)
        if node.case is not None or node.resource is not None:
            # Timeouts began again with the run.
            self._graph.close_case(node)
            self._graph.open_case(node, node.message.depends_on, self.now)

    def tell_attempts(self, seq: Seq, attempts: int) -> None:
        """Learn how many attempts of its run a message has spent."""
        self._nodes[seq].more().attempts = attempts

    def tell_epoch(self, number: int, state: EpochState) -> None:
        """Learn that an epoch had completed, or was being repaired."""
        epoch = self._epoch(number)
        if self._graph.is_recovering and epoch.state != state:
            epoch.revision += epoch.state == "repairing"
            epoch.state = state
            if epoch.is_completed:
                self._transitions.unfinished.pop(number, None)
            else:
                self._transitions.unfinished[number] = epoch
            self._graph.epoch_changed(epoch)

    def tell_sink(self, trouble: str, until: float | None) -> None:
        """Learn why the sink is not called now, and until when; empty if it is."""
        self.sink_hold = (trouble, until)

    def tell_time(self, now: float) -> None:
        """Learn the time of a fact, without letting timers act."""
        self._transitions.now = now

    def _epoch(self, number: int) -> EpochTracker:
        epoch = self.epochs.get(number)
        if epoch is None:
            raise Refused(f"there is no epoch {number}: it was never opened, or it was forgotten")
        return epoch
