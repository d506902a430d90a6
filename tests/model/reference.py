"""The reference model: the rules of the kernel, computed from scratch after each event.

It is slow and plain on purpose. The fast core must agree with it after every event of every random program; so nothing
here is incremental, nothing is cached, and each rule is a method of its own.

`facts` holds what is remembered, `judgement` what a dependency says and what follows for its message, `stuck` what
happens when nothing moves. Here are the events, the waves after each of them, the timers and the lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from naviscope_spi import AnyOf, Dependency, InvalidMessage, Message, OnBarrier, OnMessage, Resource, check_depends_on
from tests.model.facts import BAD, CALM, ENDED, STOPPABLE, Entry, Epoch, Facts, Rules, Snapshot, Wait
from tests.model.judgement import SATISFIED, causes, status, verdict
from tests.model.stuck import Analysis

__all__ = ["Model", "Rules", "Snapshot"]

Accepted = Sequence[tuple[int, Message]]


class Model(Facts):
    """A world that takes the events of the kernel as method calls and answers questions about their outcome.

    Args:
        derives: which kinds a kind may derive; kinds that are not in it may derive any.
        on_unresolved: what happens to dependencies that nobody can satisfy, unless they or their epoch say it.
        stall_grace: how long a doomed message is left alone.
        max_deferrals: how often one run may be deferred.
        rules: switches that turn single rules wrong.
        seen: counts how often interesting things happened.
    """

    def __init__(
        self,
        *,
        derives: Mapping[str, Collection[str]] | None = None,
        on_unresolved: str = "fail",
        stall_grace: float = 5.0,
        max_deferrals: int = 100,
        rules: Rules = Rules(),  # noqa: B008 - it is frozen
        seen: Counter[str] | None = None,
    ) -> None:
        super().__init__(derives, on_unresolved, rules, seen)
        self.stall_grace = stall_grace
        self.max_deferrals = max_deferrals

    # Epochs.

    def open_epoch(
        self, number: int, name: str, *, deadline: float | None = None, on_unresolved: str | None = None
    ) -> None:
        """Begin an epoch."""
        epoch = Epoch(number, name, deadline, on_unresolved)
        epoch.is_overdue = deadline is not None and deadline <= self.now
        self.epochs[number] = self.names[name] = epoch
        self._run_waves()

    def accept(self, number: int, messages: Accepted) -> None:
        """Take new messages into an open epoch."""
        assert not self.epochs[number].is_sealed, "a sealed epoch takes derived messages only"
        for seq, message in messages:
            self._add(number, seq, message)
        self._run_waves()

    def _add(self, number: int, seq: int, message: Message) -> None:
        """Accept one message, submitted or derived."""
        epoch = self.epochs[number]
        assert seq not in self.entries and message.id not in epoch.ids, "duplicates are filtered before"
        epoch.ids[message.id] = seq
        x = self.entries[seq] = Entry(seq, number, message)
        if epoch.is_overdue:
            self.seen["accepted after the deadline"] += 1
        if not self._is_stopped(x):
            self._ask(x, message.depends_on)

    def _ask(self, x: Entry, depends_on: Iterable[str | Dependency]) -> None:
        """Make a message wait for these dependencies; timeouts count from now."""
        for each in depends_on:
            dependency = OnMessage(id=each) if isinstance(each, str) else each
            due = None if dependency.timeout is None else self.now + dependency.timeout
            x.waits.append(Wait(dependency, due))
            self.epochs[x.epoch].barriers |= _barriers_in(dependency)

    def seal(self, number: int) -> None:
        """Close an epoch to new submissions."""
        epoch = self.epochs[number]
        if epoch.state == "open":
            epoch.state = "sealed"
        self._run_waves()

    def cancel_epoch(self, number: int) -> None:
        """Seal an epoch and cancel what has not been handed to the sink."""
        epoch = self.epochs[number]
        if epoch.state != "completed":
            self.seen["epoch cancelled"] += 1
            epoch.state = "sealed" if epoch.state == "open" else epoch.state
            epoch.is_cancelled = True
            self._stop_all(epoch, "cancelled")
        self._run_waves()

    def _stop_all(self, epoch: Epoch, end: str) -> None:
        """End everything of an epoch that has not been handed to the sink."""
        for x in self.alive(epoch.number):
            if x.state != "committing":
                self._end(x, end)

    # Outcomes.

    def start(self, seq: int) -> None:
        """Begin to execute a runnable message."""
        assert seq in self.runnable(), f"message {seq} is not runnable"
        self.entries[seq].state = "running"
        self._run_waves()

    def executed(self, seq: int) -> None:
        """Hand the outcome of a running message to the sink."""
        self._expect(seq, "running").state = "committing"
        self._run_waves()

    def committed(
        self, seqs: Sequence[int], derived: Mapping[int, Accepted], ready: Mapping[int, Sequence[Resource]]
    ) -> None:
        """Settle messages that the sink has committed, with what they derive and provide."""
        for seq in seqs:
            x = self._expect(seq, "committing")
            self._settle(x, [*x.staged, *derived.get(seq, ())], ready.get(seq, ()))
        self._run_waves()

    def _settle(self, x: Entry, children: Accepted, resources: Sequence[Resource]) -> None:
        """Accept the children and provide the resources of one message, then end it; or refuse it as a whole."""
        epoch = self.epochs[x.epoch]
        if epoch.is_cancelled:
            self.seen["cancelled epoch derives nothing"] += bool(children)
            children = ()
        # Whoever went through the barrier was promised that no such message would come any more.
        if any(child.kind in epoch.opened for _, child in children):
            self.seen["BarrierPassed"] += 1
            self._end(x, "dead")
            return
        self.seen["staged"] += bool(x.staged)
        x.staged = []
        for seq, child in children:
            self._add(x.epoch, seq, child)
        for resource in resources:
            _provide(epoch.versions, resource)
        self._end(x, "committed")

    def failed(self, seq: int) -> None:
        """End a running or committing message dead."""
        self._end(self._expect(seq, "running", "committing"), "dead")
        self._run_waves()

    def skipped(self, seq: int) -> None:
        """End a running message skipped."""
        self._end(self._expect(seq, "running"), "skipped")
        self._run_waves()

    def deferred(self, seq: int, depends_on: Iterable[str | Dependency]) -> None:
        """Let a running message wait for more, unless that could never work."""
        x = self._expect(seq, "running")
        asked = check_depends_on(depends_on)
        x.deferrals += 1
        if not asked or x.deferrals > self.max_deferrals or not _may_wait_for(x.message, asked):
            self.seen["deferred into death"] += 1
            self._end(x, "dead")
        elif not self._is_stopped(x):
            self._put_back(x, "waiting")
            self._ask(x, asked)
        self._run_waves()
        self.seen["deferred on what is there"] += x.state == "ready"

    def retry(self, seq: int, at: float) -> None:
        """Let a running message be tried again at a later time; it keeps its lane."""
        x = self._expect(seq, "running")
        if not self._is_stopped(x):
            self._put_back(x, "delayed" if at > self.now else "ready")
            x.until, x.in_retry = at, True
        self._run_waves()

    def release(self, seqs: Sequence[int]) -> None:
        """Hand back what was running or committing, as a stop or a crash does."""
        for seq in seqs:
            x = self._expect(seq, "running", "committing")
            if not self._is_stopped(x):
                self.seen["released"] += 1
                self._put_back(x, "ready")
        self._run_waves()

    def stage(self, parent: int, messages: Accepted) -> None:
        """Put aside children of a running message; they do not exist before it commits."""
        self._expect(parent, "running", "committing").staged += messages

    def _expect(self, seq: int, *states: str) -> Entry:
        x = self.entries[seq]
        assert x.state in states, f"message {seq} is {x.state}, not {' or '.join(states)}"
        return x

    def _put_back(self, x: Entry, state: str) -> None:
        """Return a message that was at work to those that are not; it leaves its lane and loses what it staged."""
        self.seen["staged in vain"] += bool(x.staged)
        x.state, x.staged, x.in_retry, x.doomed_since = state, [], False, None

    def _is_stopped(self, x: Entry) -> bool:
        """End a message that would go back to work, or begin to, although its time or its epoch is over."""
        epoch = self.epochs[x.epoch]
        expires_at = x.message.expires_at
        if epoch.is_cancelled:
            self._end(x, "cancelled")
        elif epoch.is_overdue or (expires_at is not None and expires_at <= self.now and not x.ignores_expiry):
            self._end(x, "expired")
        return x.state in ENDED

    def _end(self, x: Entry, end: str, blame: tuple[frozenset[int], frozenset[int]] | None = None) -> None:
        """End the present run of a message."""
        assert x.state not in ENDED, f"a second end of message {x.seq}"
        self._put_back(x, end)
        x.waits = []
        x.causes = blame or (frozenset(), frozenset())

    # Operators and the outer world.

    def cancel(self, seq: int) -> None:
        """Cancel one message, unless it was handed to the sink or has ended."""
        x = self.entries[seq]
        if x.state in STOPPABLE or x.state == "running":
            self._end(x, "cancelled")
        self._run_waves()

    def provide(self, resource: Resource) -> None:
        """Provide a resource to all epochs."""
        _provide(self.versions, resource)
        self._run_waves()

    def discard(self, seq: int) -> None:
        """Give up a dead or expired message, so that those held for it follow.

        Raises:
            ValueError: it is neither dead nor expired.
        """
        self._letter(seq).discarded = True
        self._run_waves()

    def replay(self, seq: int) -> list[int]:
        """Revive a dead or expired message and all that ended because of it; return them in order.

        Raises:
            ValueError: it is neither dead nor expired.
        """
        revived = self._closure(self._letter(seq))
        self.seen["replay closure > 1"] += len(revived) > 1
        self.seen["cross-epoch replay"] += len({x.epoch for x in revived}) > 1
        for x in revived:
            self._reopen(self.epochs[x.epoch], x.message.kind)
        for x in revived:
            self._revive(x)
        self._run_waves()
        return sorted(x.seq for x in revived)

    def _letter(self, seq: int) -> Entry:
        x = self.entries[seq]
        if x.state not in ("dead", "expired"):
            raise ValueError(f"message {seq} is {x.state}: only dead and expired messages are replayed or discarded")
        return x

    def _closure(self, root: Entry) -> list[Entry]:
        """Collect what ended because of the root, over any number of steps and across epochs."""
        revived = [root]
        for parent in revived:  # The list grows while it is walked.
            for x in self.entries.values():
                messages, epochs = x.causes
                if x.state in BAD and x not in revived and (parent.seq in messages or parent.epoch in epochs):
                    revived.append(x)
            if self.rules.direct_children_replay:
                break
        return revived

    def _reopen(self, epoch: Epoch, kind: str) -> None:
        """Put an epoch under repair: its stops are lifted, and barriers close that may see a new message."""
        if epoch.state == "completed":
            epoch.state = "repairing"
        epoch.is_cancelled = epoch.is_overdue = False
        epoch.ignores_deadline = epoch.deadline is not None and epoch.deadline <= self.now
        closed = {each for each in epoch.opened if self.may_derive(kind, each)}
        self.seen["barrier closed by replay"] += len(closed)
        epoch.opened -= closed

    def _revive(self, x: Entry) -> None:
        """Begin a new run of a message as if it were accepted now, without an expiry that has passed."""
        x.run += 1
        x.state, x.causes, x.discarded, x.deferrals = "waiting", (frozenset(), frozenset()), False, 0
        expires_at = x.message.expires_at
        x.ignores_expiry = expires_at is not None and expires_at <= self.now
        x.passed = []
        self._ask(x, x.message.depends_on)

    # Waves.

    def _run_waves(self) -> None:
        """Let consequences follow until there are none; each wave looks at one state of the world."""
        changed = True
        while changed:
            opened = self._open_barriers()
            completed = self._complete_epochs()
            changed = self._judge() or opened or completed
        for epoch in self.epochs.values():
            if not self.is_quiet(epoch):
                epoch.was_blocked = False
                for x in self.alive(epoch.number):
                    x.doomed_since = None

    def _open_barriers(self) -> bool:
        """Open the barriers of sealed epochs of whose kind no message can come any more (rule 1)."""
        opened = [
            (epoch, kind)
            for epoch in self.epochs.values()
            if epoch.is_sealed
            for kind in epoch.barriers - epoch.opened
            if not any(self._may_bring(x, kind) for x in self.alive(epoch.number))
        ]
        for epoch, kind in opened:
            self.seen["barrier rule 1"] += bool(self.alive(epoch.number))
            epoch.opened.add(kind)
        return bool(opened)

    def _may_bring(self, x: Entry, kind: str) -> bool:
        """Say whether an unfinished message is of the kind or may, over any number of steps, derive it."""
        if self.rules.early_barriers:
            return x.message.kind == kind
        return self.may_derive(x.message.kind, kind)

    def _complete_epochs(self) -> bool:
        """Complete sealed epochs in which nothing is unfinished; their resources stay, for a replay may come."""
        done = [e for e in self.epochs.values() if e.state in ("sealed", "repairing") and not self.alive(e.number)]
        for epoch in done:
            self.seen["repair completed"] += epoch.state == "repairing"
            epoch.revision += epoch.state == "repairing"
            epoch.state = "completed"
        return bool(done)

    def _judge(self) -> bool:
        """Judge all waiting and held messages on the present state, then apply the verdicts together."""
        judged = [(x, verdict(self, x)) for x in self.entries.values() if x.state in CALM]
        verdicts = [
            (x, decided, causes(self, x) if decided in BAD else None) for x, decided in judged if decided != x.state
        ]
        for x, decided, blame in verdicts:
            self._apply(x, decided, blame)
        return bool(verdicts)

    def _apply(self, x: Entry, decided: str, blame: tuple[frozenset[int], frozenset[int]] | None) -> None:
        """Let a waiting or held message become what was decided."""
        self._notice(x, decided, blame)
        if decided in BAD:
            self._end(x, decided, blame)
            return
        x.doomed_since = None
        x.state = decided
        if decided in ("ready", "delayed"):
            x.until = x.message.not_before
            x.passed += [wait.dependency for wait in x.waits]
            x.waits = []

    def _notice(self, x: Entry, decided: str, blame: tuple[frozenset[int], frozenset[int]] | None) -> None:
        """Count what a good set of random programs must have shown."""
        self.seen[decided] += 1
        if x.state == "held":
            self.seen[f"held, then {decided}"] += 1
        if blame is not None:
            self.seen["ended by an epoch"] += bool(blame[1])
            self.seen["ended by another epoch's message"] += any(self.entries[y].epoch != x.epoch for y in blame[0])
            self.seen["several causes"] += len(blame[0]) > 1
            groups = [wait for wait in x.waits if type(wait.dependency) is AnyOf and wait.resolved is None]
            self.seen["group failed"] += any(status(self, x, wait) in ("fail", "skip", "cancel") for wait in groups)

    # Time.

    def advance(self, now: float) -> None:
        """Move the clock: handle the timers that fell due in their order, then look for what is stuck."""
        self.now = now
        while (timer := min(self._due_timers(), default=None)) is not None:
            self._fire(*timer)
            self._run_waves()
        while self._resolve_stuck():
            self._run_waves()

    def _due_timers(self) -> Iterable[tuple[float, int, int]]:
        """Yield (time, rank, epoch number or seq) of every timer that is due."""
        for epoch in self.epochs.values():
            if epoch.deadline is None or epoch.is_overdue or epoch.ignores_deadline:
                continue
            if epoch.deadline <= self.now:
                yield epoch.deadline, 0, epoch.number
        for x in self.entries.values():
            expires_at = x.message.expires_at
            if expires_at is not None and expires_at <= self.now and x.state in STOPPABLE and not x.ignores_expiry:
                yield expires_at, 1, x.seq
            for wait in x.waits:
                if wait.has_timer and wait.due <= self.now:
                    yield wait.due, 2, x.seq
            if x.state == "delayed" and x.until <= self.now:
                yield x.until, 3, x.seq

    def _fire(self, time: float, rank: int, key: int) -> None:
        """Handle one timer."""
        if rank == 0:
            self.seen["deadline"] += bool(self.alive(key))
            self.epochs[key].is_overdue = True
            self._stop_all(self.epochs[key], "expired")
        elif rank == 1:
            self.seen["expired by expires_at"] += 1
            self._end(self.entries[key], "expired")
        elif rank == 2:
            for wait in self.entries[key].waits:
                wait.fired = wait.fired or wait.due == time
        else:
            self.entries[key].state = "ready"

    def _resolve_stuck(self) -> bool:
        """Do the first thing that the stuck analysis asks for; say whether there was one."""
        analysis = Analysis(self)
        self._remember_doomed(analysis.doomed)
        found = self._open_idle(analysis) or self._end_cycles(analysis) or self._resolve_due(analysis)
        if not found:
            for epoch in self.epochs.values():
                epoch.was_blocked = analysis.is_blocked(epoch)
                self.seen["blocked"] += epoch.was_blocked
        return found

    def _remember_doomed(self, doomed: list[Entry]) -> None:
        """Note since when each message has been found doomed without a break."""
        for x in self.entries.values():
            if x not in doomed:
                x.doomed_since = None
            elif x.doomed_since is None:
                x.doomed_since = self.now

    def _open_idle(self, analysis: Analysis) -> bool:
        """Open the barriers that nothing else can open (rule 2)."""
        opened = analysis.barriers_to_open()
        for epoch, kind in opened:
            self.seen["barrier rule 2"] += 1
            epoch.opened.add(kind)
        return bool(opened)

    def _end_cycles(self, analysis: Analysis) -> bool:
        """End the messages that wait in a circle, all at once."""
        circling = analysis.circling()
        self.seen["cycle"] += bool(circling)
        self.seen["cycle across epochs"] += len({x.epoch for x in circling}) > 1
        for x in circling:
            self._end(x, "dead")
        return bool(circling)

    def _resolve_due(self, analysis: Analysis) -> bool:
        """Give the dependencies that nobody can satisfy their unresolved word, once their grace is over."""
        due = [(x, wait) for x, wait in analysis.unresolved() if self.now >= x.doomed_since + self.stall_grace]
        for x, wait in due:
            word = wait.dependency.on_unresolved or self.epochs[x.epoch].on_unresolved or self.on_unresolved
            self.seen[f"unresolved {word}"] += 1
            self.seen["group unresolved"] += type(wait.dependency) is AnyOf
            wait.resolved = word
        return bool(due)

    # Questions.

    def runnable(self) -> list[int]:
        """List what may start: all that is ready, but of each lane only one, and none while it has a holder."""
        entries = self.entries.values()
        busy = {x.message.key for x in entries if x.state in ("running", "committing")}
        retrying = {x.message.key: x.seq for x in entries if x.in_retry and x.message.key is not None}
        chosen = []
        for x in sorted((x for x in entries if x.state == "ready"), key=lambda x: x.seq):
            key = x.message.key
            if key is None:
                chosen.append(x.seq)
            elif key not in busy and retrying.get(key, x.seq) == x.seq:
                chosen.append(x.seq)
                busy.add(key)
            elif retrying.get(key, x.seq) != x.seq:
                self.seen["lane held in retry"] += 1
        return chosen

    def unfinished(self) -> list[int]:
        """List the messages that have not ended."""
        return [x.seq for x in self.entries.values() if x.state not in ENDED]

    def dependency_status(self, seq: int) -> list[tuple[Dependency, str]]:
        """Tell what each dependency of an unfinished message says now, the earlier ones of this run included."""
        x = self.entries[seq]
        asked = [(wait.dependency, status(self, x, wait)) for wait in x.waits]
        return [(dependency, SATISFIED) for dependency in x.passed] + asked

    def is_terminal(self) -> bool:
        """Say whether every epoch is completed."""
        return all(epoch.state == "completed" for epoch in self.epochs.values())

    def is_blocked(self, number: int) -> bool:
        """Say whether the last analysis found that only a person can help, and nothing has begun to move since."""
        epoch = self.epochs[number]
        return epoch.was_blocked and self.is_quiet(epoch)

    def snapshot(self) -> Snapshot:
        """Take what another world must agree on."""
        entries = self.entries
        return Snapshot(
            states={seq: x.state for seq, x in entries.items()},
            causes={seq: x.causes for seq, x in entries.items() if x.state in BAD},
            runs={seq: x.run for seq, x in entries.items()},
            runnable=frozenset(self.runnable()),
            epochs={e.number: (e.state, self.is_blocked(e.number), e.revision) for e in self.epochs.values()},
            opened=frozenset((e.number, kind) for e in self.epochs.values() for kind in e.opened),
        )


def _provide(versions: dict[str, int], resource: Resource) -> None:
    """Raise a version: to at least the one given, or by so much."""
    old = versions.get(resource.name, 0)
    versions[resource.name] = old + resource.add if resource.add else max(old, resource.version)


def _barriers_in(dependency: Dependency) -> set[str]:
    """Collect the kinds whose barriers a dependency or any member of it names."""
    if type(dependency) is AnyOf:
        return set().union(*map(_barriers_in, dependency.members))
    return {dependency.kind} if type(dependency) is OnBarrier else set()


def _may_wait_for(message: Message, depends_on: Iterable[str | Dependency]) -> bool:
    """Say whether a deferral names neither the message itself nor the barrier of its own kind."""
    try:
        message.check_dependencies(depends_on)
    except InvalidMessage:
        return False
    return True
