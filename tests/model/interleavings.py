"""Random interleavings: one of the many orders in which the events of a program may happen.

The driver asks only the first world what is possible (it is the model); each event goes to every world, and then the
caller compares. First everything may happen in any order. Then the driver plays an operator who wants to go home: it
submits and seals the rest, provides what is external, and replays, discards or cancels what is held. After that every
epoch must complete. One that does not, although nothing is left that could move it, is a silent hang.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from naviscope_spi import Resource
from tests.model.programs import EXTERNAL, RESOURCES, Program, Spec
from tests.model.reference import Model

Event = tuple[str, tuple[Any, ...]]

MAX_STEPS = 2_000
FAR = 60.0
"""Later than every timer that a program can have set."""


class SilentHang(AssertionError):  # noqa: N818 - it is a finding, not an error of the driver
    """Nothing can move any more, nobody is asked for help, and yet an epoch is not completed."""


def apply(world: Any, event: Event) -> Any:
    """Let one event happen in one world."""
    method, args = event
    if method == "open_epoch":
        number, name, deadline, on_unresolved = args
        return world.open_epoch(number, name, deadline=deadline, on_unresolved=on_unresolved)
    return getattr(world, method)(*args)


def play(
    program: Program,
    rng: random.Random,
    worlds: Sequence[Any],
    after_event: Callable[[Event], object] = lambda event: None,
) -> list[Event]:
    """Play a program to its end in all worlds; the first one must be a `Model`. Return the events."""
    interleaving = Interleaving(program, rng, worlds, after_event)
    interleaving.run()
    return interleaving.events


class Interleaving:
    """One run of a program: what is yet to be submitted, and which message is at which attempt."""

    def __init__(
        self,
        program: Program,
        rng: random.Random,
        worlds: Sequence[Any],
        after_event: Callable[[Event], object] = lambda event: None,
    ) -> None:
        self.program = program
        self.rng = rng
        self.worlds = worlds
        self.model: Model = worlds[0]
        self.after_event = after_event
        self.events: list[Event] = []
        self.unopened = list(program.epochs)
        self.unsubmitted: dict[int, list[Spec]] = {}
        self.specs: dict[int, Spec] = {}
        self.attempts: dict[int, int] = {}
        self.next_seq = 1
        self.replays = rng.choice((0, 2, 4, 6))
        self.troubles = rng.choice((0, 1, 3))
        self.patience = rng.choice((15, 50, 90))
        self.is_mending = False
        """From now on every attempt succeeds."""

    def run(self) -> None:
        """Play to the end."""
        steps = 0
        while not (self.is_submitted() and self.model.is_terminal()):
            steps += 1
            if steps < self.patience:
                self.step()
            else:
                self.finish()
            if steps > MAX_STEPS:
                raise SilentHang(f"no end after {steps} steps\n{self.program.describe()}")
            # Most of the time the world is looked at after each event; sometimes several come first.
            if self.rng.random() < 0.8:
                self.emit("advance", self.model.now)
            if self.model.is_terminal() and self.is_submitted():
                self.maybe_repair()

    def emit(self, method: str, *args: Any) -> Any:
        """Let one event happen everywhere, and the caller compare."""
        event = (method, args)
        self.events.append(event)
        answers = [apply(world, event) for world in self.worlds]
        self.after_event(event)
        return answers[0]

    # What is possible.

    def in_state(self, *states: str) -> list[int]:
        return [seq for seq, x in self.model.entries.items() if x.state in states]

    def is_submitted(self) -> bool:
        return not self.unopened and not self.unsubmitted and all(e.is_sealed for e in self.model.epochs.values())

    def step(self) -> None:
        """Do one of the things that are possible now."""
        rng = self.rng
        actions: list[Callable[[], object]] = []
        actions += [self.open_epoch] * (2 if self.unopened else 0)
        actions += [self.submit] * (4 if self.unsubmitted else 0)
        actions += [self.start] * (4 if self.model.runnable() else 0)
        actions += [self.finish_attempt] * (4 if self.in_state("running") else 0)
        actions += [self.commit] * (2 if self.in_state("committing") else 0)
        actions += [self.pass_time, self.provide, self.trouble]
        letters = self.letters()
        actions += [self.replay] * (self.replays > 0 and bool(letters))
        actions += [self.discard] * (bool(letters) and rng.random() < 0.3)
        rng.choice(actions)()

    def trouble(self) -> None:
        """Do, a few times, what does not belong to the ordinary course of things."""
        if self.troubles:
            self.troubles -= 1
            self.rng.choice((self.cancel, self.cancel_epoch, self.crash))()

    def letters(self) -> list[int]:
        """List what may be replayed or discarded."""
        return [seq for seq in self.in_state("dead", "expired") if not self.model.entries[seq].discarded]

    # Submitting.

    def open_epoch(self) -> None:
        spec = self.unopened.pop(self.rng.randrange(len(self.unopened)))
        deadline = None if spec.deadline is None else self.model.now + spec.deadline
        self.unsubmitted[spec.number] = self.rng.sample(spec.messages, len(spec.messages))
        self.emit("open_epoch", spec.number, spec.name, deadline, spec.on_unresolved)

    def submit(self) -> None:
        """Submit a few of the messages of an epoch, or seal it if there are none left."""
        number = self.rng.choice(list(self.unsubmitted))
        left = self.unsubmitted[number]
        if left:
            count = self.rng.randint(1, len(left))
            self.unsubmitted[number], chunk = left[count:], left[:count]
            self.emit("accept", number, self.numbered(chunk))
        else:
            del self.unsubmitted[number]
            self.emit("seal", number)

    def numbered(self, specs: Sequence[Spec]) -> list[tuple[int, Any]]:
        """Give messages their sequence numbers."""
        numbered = []
        for spec in specs:
            self.specs[self.next_seq] = spec
            numbered.append((self.next_seq, spec.message))
            self.next_seq += 1
        return numbered

    # Working.

    def start(self) -> None:
        seq = self.rng.choice(self.model.runnable())
        self.emit("start", seq)
        staged = self.specs[seq].staged
        if staged:
            self.emit("stage", seq, self.numbered(staged[:1]))
            if staged[1:]:
                self.emit("stage", seq, self.numbered(staged[1:]))

    def finish_attempt(self) -> None:
        """Let a running message come to what its script says."""
        seq = self.rng.choice(self.in_state("running"))
        spec = self.specs[seq]
        number = self.attempts.get(seq, 0)
        self.attempts[seq] = number + 1
        attempt = spec.script[number] if number < len(spec.script) and not self.is_mending else None
        outcome = attempt.outcome if attempt is not None else "ok"
        if outcome == "skip":
            self.emit("skipped", seq)
        elif outcome == "fail":
            self.emit("failed", seq)
        elif outcome == "retry":
            self.emit("retry", seq, self.model.now + self.rng.choice((0.0, 0.5, 2.0, 6.0)))
        elif outcome == "defer":
            self.emit("deferred", seq, attempt.depends_on)
        else:
            self.emit("executed", seq)
            if outcome == "refuse":
                self.emit("failed", seq)

    def commit(self) -> None:
        """Commit one or several messages together."""
        committing = self.in_state("committing")
        seqs = self.rng.sample(committing, self.rng.randint(1, len(committing)))
        derived = {seq: self.numbered(self.specs[seq].derived) for seq in seqs}
        ready = {seq: list(self.specs[seq].ready) for seq in seqs}
        self.emit("committed", seqs, derived, ready)

    def crash(self) -> None:
        """Lose everything that is at work."""
        at_work = self.in_state("running", "committing")
        if at_work:
            self.emit("release", at_work)

    def provide(self) -> None:
        if self.rng.random() < 0.3:
            name = self.rng.choice((*RESOURCES, EXTERNAL))
            version = self.rng.choice((0, 1, 2))
            self.emit("provide", Resource(name, version) if self.rng.random() < 0.7 else Resource(name, add=1))

    def pass_time(self) -> None:
        self.emit("advance", self.model.now + self.rng.choice((0.5, 0.5, 1.0, 2.0, 5.0, 12.0)))

    # Operating.

    def cancel(self) -> None:
        if self.model.entries:
            self.emit("cancel", self.rng.choice(list(self.model.entries)))

    def cancel_epoch(self) -> None:
        """Cancel an epoch; what was not submitted yet never will be."""
        if self.model.epochs:
            number = self.rng.choice(list(self.model.epochs))
            self.unsubmitted.pop(number, None)
            self.emit("cancel_epoch", number)

    def replay(self) -> None:
        self.replays -= 1
        self.emit("replay", self.rng.choice(self.letters()))

    def discard(self) -> None:
        self.emit("discard", self.rng.choice(self.letters()))

    def maybe_repair(self) -> None:
        """Replay something although everything is completed."""
        if self.replays > 0 and self.letters():
            self.replay()

    # Finishing.

    def finish(self) -> None:
        """Do something that brings the end nearer."""
        actions: list[Callable[[], object]] = []
        actions += [self.open_epoch] * bool(self.unopened) + [self.submit] * bool(self.unsubmitted)
        actions += [self.start] * bool(self.model.runnable())
        actions += [self.finish_attempt] * bool(self.in_state("running"))
        actions += [self.commit] * bool(self.in_state("committing"))
        self.rng.choice(actions or [self.wake])()

    def wake(self) -> None:
        """Nothing is at work: let time pass; if that changes nothing, do what a person would have to do."""
        before = self.model.snapshot()
        for step in (5.0, FAR, 5.0):
            self.emit("advance", self.model.now + step)
        after = self.model.snapshot()
        if after != before:
            return
        stuck = [number for number, (state, blocked, _) in after.epochs.items() if state != "completed" and not blocked]
        if stuck:
            raise SilentHang(f"epochs {stuck} neither move nor ask for help\n{self.program.describe()}\n{after}")
        self.help()

    def help(self) -> None:
        """Free a blocked epoch: approve, replay, discard, and cancel only if nothing else is left."""
        self.is_mending = True
        letters = self.letters()
        if self.model.versions.get(EXTERNAL, 0) < 9:
            self.emit("provide", Resource(EXTERNAL, 9))
        elif letters and self.replays > 0:
            self.replay()
        elif letters:
            self.discard()
        else:
            self.emit("cancel", self.rng.choice(self.in_state("held", "waiting")))


class Undisturbed(Interleaving):
    """A run in which nobody interferes: no cancel, no replay, nothing from outside. Processes may still die."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.replays = self.troubles = 0

    def run(self) -> None:
        # All epochs exist from the beginning: to wait for one that never comes is a matter of timing.
        while self.unopened:
            self.open_epoch()
        super().run()

    def letters(self) -> list[int]:
        return []

    def provide(self) -> None:
        if self.rng.random() < 0.2:
            # An executor that runs again after a crash comes to the same outcome.
            for seq in self.in_state("committing"):
                self.attempts[seq] -= 1
            self.crash()
