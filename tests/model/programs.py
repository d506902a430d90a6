"""Random programs: small worlds of messages that wait for each other in every way the library allows.

A program is data. It says what is submitted and what each attempt of each message comes to; when things happen is
left to an interleaving (see `interleavings`). Names come from small sets, so that things meet.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from attrs import evolve, frozen

from naviscope_spi import (
    AnyOf,
    Dependency,
    InvalidMessage,
    Message,
    OnBarrier,
    OnEpoch,
    OnMessage,
    OnResource,
    Otherwise,
    Resource,
)

KINDS = ("a", "b", "c", "d")
RESOURCES = ("r", "s")
EXTERNAL = "approval"
BAD_ENDS = ("dead", "skipped", "cancelled", "expired")


@frozen(eq=False)
class Attempt:
    """What one execution of a message comes to: ok, skip, fail, refuse (by the sink), retry or defer."""

    outcome: str
    depends_on: tuple[str | Dependency, ...] = ()


@frozen(eq=False)
class Spec:
    """A message and its fate; after the last attempt of the script everything is ok."""

    message: Message
    script: tuple[Attempt, ...] = ()
    derived: tuple[Spec, ...] = ()
    staged: tuple[Spec, ...] = ()
    ready: tuple[Resource, ...] = ()


@frozen(eq=False)
class EpochSpec:
    """An epoch and what is submitted to it."""

    number: int
    name: str
    messages: tuple[Spec, ...]
    deadline: float | None = None
    on_unresolved: str | None = None


@frozen(eq=False)
class Program:
    """Everything that is decided before the first event."""

    seed: int
    epochs: tuple[EpochSpec, ...]
    derives: Mapping[str, tuple[str, ...]] | None = None
    on_unresolved: str = "fail"
    max_deferrals: int = 100

    def describe(self) -> str:
        """Print the program so that a person can play it by hand."""
        lines = [
            f"program {self.seed}: derives={self.derives} on_unresolved={self.on_unresolved} "
            f"max_deferrals={self.max_deferrals}"
        ]
        for epoch in self.epochs:
            lines.append(
                f"epoch {epoch.number} {epoch.name!r} deadline={epoch.deadline} on_unresolved={epoch.on_unresolved}"
            )
            for spec in epoch.messages:
                lines += _describe_spec(spec, "  ")
        return "\n".join(lines)


def _describe_spec(spec: Spec, indent: str) -> Iterator[str]:
    message = spec.message
    times = {name: getattr(message, name) for name in ("key", "not_before", "expires_at")}
    extras = "".join(f" {name}={value}" for name, value in times.items() if value is not None)
    yield f"{indent}{message.id} ({message.kind}){extras} waits for [{_describe_all(message.depends_on)}]"
    for attempt in spec.script:
        yield f"{indent}  then {attempt.outcome} [{_describe_all(attempt.depends_on)}]"
    for resource in spec.ready:
        yield f"{indent}  provides {resource.name} version={resource.version} add={resource.add}"
    for how, children in (("derives", spec.derived), ("stages", spec.staged)):
        for child in children:
            yield f"{indent}  {how}"
            yield from _describe_spec(child, indent + "    ")


def _describe_all(depends_on: tuple[str | Dependency, ...]) -> str:
    return ", ".join(each if isinstance(each, str) else describe_dependency(each) for each in depends_on)


def describe_dependency(dependency: Dependency) -> str:
    """Print a dependency in short."""
    if type(dependency) is OnMessage:
        what = f"message {dependency.id}" + (f" of {dependency.epoch_name}" if dependency.epoch_name else "")
    elif type(dependency) is OnResource:
        what = f"{'external ' * dependency.external}resource {dependency.name}>={dependency.min_version}"
    elif type(dependency) is OnBarrier:
        what = f"barrier {dependency.kind}"
    elif type(dependency) is OnEpoch:
        what = f"epoch {dependency.name}"
    else:
        assert type(dependency) is AnyOf
        what = f"{dependency.at_least} of ({_describe_all(dependency.members)})"
    if not dependency.is_plain:
        words = "/".join(word for word in dependency.otherwise)
        what += f" <{words} timeout={dependency.timeout} unresolved={dependency.on_unresolved}>"
    return what


def generate(seed: int) -> Program:
    """Make the program of a seed."""
    return _Generator(random.Random(seed)).program(seed)


def generate_timeless(seed: int) -> Program:
    """Make a program whose ends must not depend on timing.

    Nothing in it looks at a clock or waits for a person, and kinds say truly what they derive: a message that is
    derived into a kind whose barrier has opened ends its parent, and when a barrier opens is a matter of timing. Nor
    does it wait for another epoch to bring what may never come: how long that is waited for is a grace period.
    """
    return _Timeless(random.Random(seed)).program(seed)


def generate_steadfast(seed: int) -> Program:
    """Make a program whose ends depend neither on timing nor on crashes.

    What nothing can bring fails its message: to have passed it is known to a process only, and so is what barrier was
    opened because nothing else was left to do.
    """
    return _Steadfast(random.Random(seed)).program(seed)


class _Shape:
    """The id and kind of a message and the shapes of its children: made first, so that all may refer to all."""

    def __init__(self, id: str, kind: str, children: list[_Shape]) -> None:  # noqa: A002 - as messages call it
        self.id, self.kind, self.children = id, kind, children

    def ids(self) -> Iterator[str]:
        yield self.id
        for child in self.children:
            yield from child.ids()


class _Generator:
    """The dice, and what the messages of the present program may refer to."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        # Some programs are about one feature; a uniform mix would drown what needs several of a kind to happen.
        self.timeouts = rng.choice((0.0, 0.2, 0.5))
        self.holds = rng.choice((0.1, 0.3, 0.7))
        self.failures = rng.choice((0.1, 0.25, 0.4))
        self.tastes = rng.choices(
            ("message", "group", "barrier", "resource", "epoch", "cross", "ghost"),
            weights=[*(rng.choice((2, 4, 12)) for _ in range(6)), 1],
            k=5,
        ) + ["message"] * 3  # fmt: skip
        self.names: list[str] = []
        self.shapes: dict[str, list[_Shape]] = {}
        self.ids: dict[str, list[str]] = {}

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def program(self, seed: int) -> Program:
        rng = self.rng
        self.names = [f"e{number}" for number in range(1, rng.choice((1, 1, 2, 2, 3)) + 1)]
        budget = rng.randrange(2, 15)
        for name in self.names:
            count = rng.randint(1, budget // len(self.names) + 1)
            self.shapes[name] = [self.shape(f"m{i}", 2) for i in range(count)]
            self.ids[name] = [each for shape in self.shapes[name] for each in shape.ids()]
        return Program(
            seed=seed,
            epochs=tuple(self.epoch(number, name) for number, name in enumerate(self.names, 1)),
            derives=self.derives(),
            on_unresolved=rng.choice(("fail", "fail", "fail", "run", "skip")),
            max_deferrals=rng.choice((100, 2, 1)),
        )

    def shape(self, id: str, depth: int) -> _Shape:  # noqa: A002 - as messages call it
        count = self.rng.choice((0, 0, 0, 0, 1, 2)) if depth else 0
        kind = self.rng.choice(KINDS)
        return _Shape(id, kind, [self.shape(f"{id}.{i}", depth - 1) for i in range(count)])

    def derives(self) -> dict[str, tuple[str, ...]] | None:
        """Declare, most of the time, what the kinds derive; sometimes falsely."""
        rng = self.rng
        if self.chance(0.35):
            return None
        declared: dict[str, set[str]] = {kind: set() for kind in KINDS if self.chance(0.8)}
        todo = [shape for shapes in self.shapes.values() for shape in shapes]
        for shape in todo:
            todo += shape.children
            if shape.kind in declared and self.chance(0.85):
                declared[shape.kind] |= {child.kind for child in shape.children}
        return {kind: tuple(sorted(kinds)) for kind, kinds in rng.sample(sorted(declared.items()), len(declared))}

    def epoch(self, number: int, name: str) -> EpochSpec:
        return EpochSpec(
            number=number,
            name=name,
            messages=tuple(self.spec(name, shape) for shape in self.shapes[name]),
            deadline=self.rng.choice((4.0, 9.0, 25.0)) if self.chance(0.12) else None,
            on_unresolved=self.rng.choice(("fail", "run", "skip", "wait")) if self.chance(0.2) else None,
        )

    def spec(self, epoch: str, shape: _Shape) -> Spec:
        children = [self.spec(epoch, child) for child in shape.children]
        staged = [child for child in children if self.chance(0.3)]
        return Spec(
            message=self.message(epoch, shape),
            script=tuple(self.attempt(epoch, shape) for _ in range(self.rng.choice((1, 1, 2, 3)))),
            derived=tuple(child for child in children if child not in staged),
            staged=tuple(staged),
            ready=tuple(self.resource() for _ in range(self.rng.choice((0, 0, 1, 2)))),
        )

    def message(self, epoch: str, shape: _Shape) -> Message:
        rng = self.rng
        return Message(
            shape.id,
            None,
            kind=shape.kind,
            depends_on=self.depends_on(epoch, shape, rng.choice((0, 0, 0, 1, 1, 2, 2, 3))),
            key=rng.choice(("k1", "k2")) if self.chance(0.35) else None,
            priority=rng.choice((0, 0, 1, -1)),
            not_before=rng.choice((1.0, 3.0, 8.0)) if self.chance(0.08) else None,
            expires_at=rng.choice((2.0, 5.0, 12.0)) if self.chance(0.06) else None,
        )

    def attempt(self, epoch: str, shape: _Shape) -> Attempt:
        if self.chance(self.failures):
            return Attempt(self.rng.choice(("fail", "fail", "skip", "skip", "refuse")))
        outcome = self.rng.choice(("ok", "ok", "ok", "retry", "defer"))
        if outcome != "defer":
            return Attempt(outcome)
        if self.chance(0.1):  # A bug of the executor: nothing, itself, or its own kind's barrier.
            return Attempt("defer", self.rng.choice(((), (shape.id,), (OnBarrier(kind=shape.kind),))))
        return Attempt("defer", self.depends_on(epoch, shape, self.rng.choice((1, 1, 2))))

    def depends_on(self, epoch: str, shape: _Shape, count: int) -> tuple[str | Dependency, ...]:
        """Throw some dependencies and keep those that a message of this shape may have."""
        probe = Message(shape.id, None, kind=shape.kind)
        found: list[str | Dependency] = []
        for each in [self.dependency(epoch) for _ in range(count)]:
            try:
                probe.check_dependencies([each])
            except InvalidMessage:
                continue
            found.append(each)
        return tuple(found)

    def dependency(self, epoch: str) -> str | Dependency:
        what = self.rng.choice(self.tastes)
        if what == "message" and self.chance(0.3):
            return self.rng.choice(self.ids[epoch])
        return self.leaf(epoch, what, **self.policy()) if what != "group" else self.group(epoch, 2, **self.policy())

    def policy(self) -> dict[str, object]:
        """Choose what a top-level dependency does when things go wrong."""
        policy: dict[str, object] = {}
        if self.chance(0.5):
            policy["otherwise"] = self.otherwise()
        if self.chance(self.timeouts):
            policy["timeout"] = self.rng.choice((1.0, 3.0, 7.0, 20.0))
        if self.chance(0.2):
            policy["on_unresolved"] = self.rng.choice(("fail", "run", "skip", "wait"))
        return policy

    def otherwise(self) -> Otherwise:
        if self.chance(self.holds):
            return "hold"
        if self.chance(0.5):
            return self.rng.choice(("follow", "fail", "skip", "run"))
        words = {end: self.rng.choice(("follow", "fail", "skip", "run")) for end in BAD_ENDS if self.chance(0.6)}
        for end in ("dead", "expired"):
            if self.chance(self.holds):
                words[end] = "hold"
        return words

    def group(self, epoch: str, depth: int, **policy: object) -> AnyOf:
        members = [self.member(epoch, depth) for _ in range(self.rng.choice((1, 2, 2, 3)))]
        # A member that was thrown twice counts once.
        count = len(Dependency.any_of(*members).members)
        return Dependency.any_of(*members, at_least=self.rng.randint(1, count), **policy)

    def member(self, epoch: str, depth: int) -> str | Dependency:
        if depth > 1 and self.chance(0.2):
            return self.group(epoch, depth - 1)
        tastes = ("message", "message", "message", *self.tastes)
        what = self.rng.choice([taste for taste in tastes if taste != "group"])
        return self.leaf(epoch, what)

    def leaf(self, epoch: str, what: str, **policy: object) -> Dependency:
        rng = self.rng
        if what == "barrier":
            return Dependency.barrier(rng.choice(KINDS), **policy)
        if what == "resource":
            return self.on_resource(**policy)
        if what == "epoch":
            return Dependency.epoch(rng.choice((*self.names, *self.names, "nowhere")), **policy)
        if what == "cross":
            name = rng.choice(self.names)
            return Dependency.message(rng.choice((*self.ids[name], *self.ids[name], "ghost")), name, **policy)
        if what == "ghost":
            return Dependency.message("ghost", rng.choice((None, None, "nowhere")), **policy)
        return Dependency.message(rng.choice(self.ids[epoch]), **policy)

    def on_resource(self, **policy: object) -> OnResource:
        version = self.rng.choice((0, 0, 1, 2))
        if self.chance(0.3):
            return Dependency.resource(EXTERNAL, version, external=True, **policy)
        return Dependency.resource(self.rng.choice(RESOURCES), version, **policy)

    def resource(self) -> Resource:
        name = self.rng.choice(RESOURCES)
        if self.chance(0.4):
            return Resource(name, add=self.rng.choice((1, 2)))
        return Resource(name, self.rng.choice((0, 1, 2)))


class _Timeless(_Generator):
    """Dice that never show a time or a person."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.timeouts = self.holds = 0.0

    def derives(self) -> dict[str, tuple[str, ...]]:
        declared: dict[str, set[str]] = {kind: set() for kind in KINDS}
        todo = [shape for shapes in self.shapes.values() for shape in shapes]
        for shape in todo:
            todo += shape.children
            declared[shape.kind] |= {child.kind for child in shape.children}
        return {kind: tuple(sorted(kinds)) for kind, kinds in declared.items()}

    def epoch(self, number: int, name: str) -> EpochSpec:
        on_unresolved = self.rng.choice(("fail", "run", "skip")) if self.chance(0.2) else None
        messages = tuple(self.spec(name, shape) for shape in self.shapes[name])
        return EpochSpec(number, name, messages, on_unresolved=on_unresolved)

    def message(self, epoch: str, shape: _Shape) -> Message:
        return evolve(super().message(epoch, shape), not_before=None, expires_at=None)

    def policy(self) -> dict[str, object]:
        policy = super().policy()
        if policy.get("on_unresolved") == "wait":
            del policy["on_unresolved"]
        return policy

    def leaf(self, epoch: str, what: str, **policy: object) -> Dependency:
        rng = self.rng
        if what == "epoch":
            return Dependency.epoch(rng.choice(self.names), **policy)
        if what == "cross":
            name = rng.choice(self.names)
            return Dependency.message(rng.choice([shape.id for shape in self.shapes[name]]), name, **policy)
        if what == "ghost":
            return Dependency.message("ghost", **policy)
        return super().leaf(epoch, what, **policy)

    def on_resource(self, **policy: object) -> OnResource:
        return Dependency.resource(self.rng.choice(RESOURCES), self.rng.choice((0, 0, 1, 2)), **policy)


class Recorded(_Generator):
    """Dice for programs in which a message that has not started remembers nothing but the ends of its parents.

    There are no timeouts and no barriers, and what nothing can bring fails its message or is waited for.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.timeouts = 0.0
        self.tastes = ["message" if taste == "barrier" else taste for taste in self.tastes]

    def program(self, seed: int) -> Program:
        return evolve(super().program(seed), on_unresolved="fail")

    def epoch(self, number: int, name: str) -> EpochSpec:
        epoch = super().epoch(number, name)
        return evolve(epoch, on_unresolved=_fail_or_wait(epoch.on_unresolved))

    def policy(self) -> dict[str, object]:
        policy = super().policy()
        return policy | {"on_unresolved": _fail_or_wait(policy.get("on_unresolved"))}


class _Steadfast(Recorded, _Timeless):
    """Dice that show what a crash cannot change."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        # Whether a message is on a cycle through an epoch depends on when it was deferred.
        self.tastes = ["message" if taste in ("cross", "epoch") else taste for taste in self.tastes]

    def resource(self) -> Resource:
        # The version of one that counts and is set as well depends on what came first, so one counts, the other is set.
        made = super().resource()
        if made.name == RESOURCES[0]:
            return Resource(made.name, add=made.add or made.version)
        return Resource(made.name, made.version or made.add)


def _fail_or_wait(word: object) -> str | None:
    return "wait" if word == "wait" else None
