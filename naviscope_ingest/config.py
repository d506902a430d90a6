"""What a runtime is made of and how it behaves."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from attrs import Attribute, field, frozen
from attrs.validators import optional

from naviscope_ingest._core.limits import Cap, Limit, Rate
from naviscope_ingest._core.units import Seconds
from naviscope_ingest.admission import IntakePolicy
from naviscope_ingest.failures import Classifier
from naviscope_ingest.faults.spec import Faults
from naviscope_ingest.policies import BreakerPolicy, KindPolicy, RetryPolicy, instance_of
from naviscope_ingest.tracing import Tracing
from naviscope_spi import (
    Clock,
    CommitSink,
    DeferredStore,
    Executor,
    OnUnresolved,
    PipelineBus,
    RuntimeMetrics,
    SupportsBatch,
)
from naviscope_spi.names import shown

__all__ = ["RuntimeComponents", "RuntimeConfig"]

P = TypeVar("P")
Op = TypeVar("Op")

_LONGEST_NAME = 200


@frozen(kw_only=True)
class RuntimeComponents(Generic[P, Op]):
    """The parts that a runtime puts together.

    Attributes:
        executor: the user's work. One that has `execute_batch` gets messages of a kind together.
        commit_sink: where results become visible.
        store: where messages are kept; in memory unless it is given.
        bus: carries hints of ready work to workers. Within one process nothing needs to be carried, so there is none
            unless it is given.
        metrics: hooks for measurement.
        clock: where time comes from; the system's clock unless it is given.
        tracing: makes spans of what executor and sink do.
    """

    executor: Executor[P, Op] | SupportsBatch[P, Op]
    commit_sink: CommitSink[Op]
    store: DeferredStore[P] | None = None
    bus: PipelineBus | None = None
    metrics: RuntimeMetrics | None = None
    clock: Clock | None = None
    tracing: Tracing | None = None


def _at_least_one(instance: object, attribute: Attribute[int], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"RuntimeConfig({attribute.name}={shown(value)}): give a whole number of at least 1")


def _seconds(instance: object, attribute: Attribute[float], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 or math.isnan(value):
        raise ValueError(f"RuntimeConfig({attribute.name}={shown(value)}): give seconds, zero or more")


def _one_of(*known: str) -> Any:  # noqa: ANN401 - a validator, whatever attrs calls it
    def check(instance: object, attribute: Attribute[str], value: object) -> None:
        if value not in known:
            raise ValueError(
                f"RuntimeConfig({attribute.name}={shown(value)}): it is one of {', '.join(map(repr, known))}"
            )

    return check


def _kinds(instance: object, attribute: Attribute[Any], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise ValueError(f'RuntimeConfig(derives={shown(value)}): give a mapping, such as {{"file": ["row"]}}')
    for kind, derived in value.items():
        are_kinds = isinstance(derived, Collection) and not isinstance(derived, str | bytes)
        if not isinstance(kind, str) or not are_kinds or not all(isinstance(each, str) for each in derived):
            raise ValueError(
                f"RuntimeConfig(derives={{{shown(kind)}: {shown(derived)}}}): give each kind a list of what it derives"
            )


def _at_least_one_or_none(instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None:
        _at_least_one(instance, attribute, value)


def _above_zero(instance: object, attribute: Attribute[float], value: Any) -> None:  # noqa: ANN401 - it is checked here
    _seconds(instance, attribute, value)
    if not value:
        raise ValueError(f"RuntimeConfig({attribute.name}={shown(value)}): give seconds above 0")


def _limits(instance: object, attribute: Attribute[Any], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if not isinstance(value, Sequence) or not all(isinstance(each, Cap | Rate) for each in value):
        raise ValueError(f'RuntimeConfig(limits={shown(value)}): give a list of limits, such as [Cap(16, kind="http")]')


def _name(instance: object, attribute: Attribute[str], value: object) -> None:
    if not isinstance(value, str) or not value or len(value) > _LONGEST_NAME:
        raise ValueError(f"RuntimeConfig(name={shown(value)}): give a name of at most {_LONGEST_NAME} characters")


def _policies(instance: object, attribute: Attribute[Any], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if not isinstance(value, Mapping):
        raise ValueError(
            f'RuntimeConfig(kinds={shown(value)}): give a mapping, such as {{"http": KindPolicy(timeout=30)}}'
        )
    for kind, policy in value.items():
        if not isinstance(kind, str) or not isinstance(policy, KindPolicy):
            raise ValueError(f"RuntimeConfig(kinds={{{shown(kind)}: {shown(policy)}}}): give each kind a KindPolicy")


def _breakers(instance: object, attribute: Attribute[Any], value: Any) -> None:  # noqa: ANN401 - it is checked here
    if not isinstance(value, Mapping):
        raise ValueError(f'RuntimeConfig(breakers={shown(value)}): give a mapping, as {{"http": BreakerPolicy()}}')
    for name, policy in value.items():
        if not isinstance(name, str) or not (policy is None or isinstance(policy, BreakerPolicy)):
            raise ValueError(
                f"RuntimeConfig(breakers={{{shown(name)}: {shown(policy)}}}): give a BreakerPolicy, or None"
            )


def _faults(instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, Faults):
        raise ValueError(f'RuntimeConfig(faults={shown(value)}): give Faults, such as Faults.parse("http:0.05:5xx")')


@frozen(kw_only=True)
class RuntimeConfig:
    """How a runtime behaves.

    Attributes:
        name: what the runtime is called, in the store and in dead letters: a host and a process, say.
        max_in_flight: how many messages may be started and not yet settled.
        commit_batch: how many outcomes go to the sink together at most.
        commit_linger: how long an outcome may wait for company while others are still running, in seconds.
        execute_batch: how many messages a batch executor gets together at most.
        submit_chunk: how many messages `submit` stores in one step.
        max_derived: how many derived messages ride in a settlement; more are staged before.
        derives: for each kind that says so, the kinds it derives. Others may derive any, which barriers must allow for.
        on_unresolved: what happens to dependencies that nothing alive can release, when neither they nor their epoch
            say.
        stall_grace: how long they are left alone before that, in seconds.
        lanes: whether a message in retry blocks those of the same key, or lets them pass.
        limits: how many messages may run at once, and how many may start in a time: `Cap` and `Rate`, by kind, by what
            an expression finds in them, by both or by neither.
        intake: when messages are let in, and what happens when too much is to be done.
        epoch_cap: how many messages of any one epoch may be started and not yet settled.
        ageing: how many seconds of being ready are worth one priority, so that nothing waits for ever behind what is
            urgent all the time.
        max_deferrals: how often one run of a message may be deferred.
        poison_threshold: how often the process may die while a message runs alone before that message ends dead.
        poison_failures: how often a message may stop the runtime within `poison_window` before it ends dead.
        poison_window: that time, in seconds.
        kinds: how messages of a kind are run, for kinds that differ from the rest.
        other_kinds: how messages of all other kinds are run.
        breaker: when kinds whose messages fail one after the other are left alone for a while; None for never.
        breakers: the same for breakers that differ from the rest, by name: that of a kind, or of what its policy says.
        classifier: says what errors mean, those of executors and those of sinks.
        sink_retry: how often and how late a batch is handed to the sink again after a transient failure, before its
            breaker opens. `max_elapsed` is of no concern: such a failure never ends a message.
        sink_breaker: how long the sink is left alone then, and how many commits close it again; None for no breaker.
        slow_sink_seconds: a commit that takes longer is reported.
        max_failures: how many failures a report lists.
        keep_reports: of how many completed epochs the report is kept.
        start_timeout: how long a start may take, in seconds; then it fails.
        drain_timeout: how long `stop` waits for what is running, in seconds.
        faults: what goes wrong on purpose, to see what comes of it; None for nothing.
    """

    name: str = field(default="runtime", validator=_name)
    max_in_flight: int = field(default=256, validator=_at_least_one)
    commit_batch: int = field(default=512, validator=_at_least_one)
    commit_linger: Seconds = field(default=0.0, validator=_seconds)
    execute_batch: int = field(default=256, validator=_at_least_one)
    submit_chunk: int = field(default=512, validator=_at_least_one)
    max_derived: int = field(default=1_000, validator=_at_least_one)
    derives: Mapping[str, Collection[str]] | None = field(default=None, validator=_kinds)
    on_unresolved: OnUnresolved = field(default="fail", validator=_one_of("fail", "run", "skip", "wait"))
    stall_grace: Seconds = field(default=5.0, validator=_seconds)
    lanes: Literal["block", "pass"] = field(default="block", validator=_one_of("block", "pass"))
    limits: Sequence[Limit] = field(default=(), validator=_limits)
    intake: IntakePolicy = field(factory=IntakePolicy, validator=instance_of(IntakePolicy))
    epoch_cap: int | None = field(default=None, validator=_at_least_one_or_none)
    ageing: Seconds = field(default=60.0, validator=_above_zero)
    max_deferrals: int = field(default=100, validator=_at_least_one)
    poison_threshold: int = field(default=3, validator=_at_least_one)
    poison_failures: int = field(default=5, validator=_at_least_one)
    poison_window: Seconds = field(default=60.0, validator=_seconds)
    kinds: Mapping[str, KindPolicy] = field(factory=dict, validator=_policies)
    other_kinds: KindPolicy = field(factory=KindPolicy, validator=instance_of(KindPolicy))
    classifier: Classifier = field(factory=Classifier, validator=instance_of(Classifier))
    breaker: BreakerPolicy | None = field(factory=BreakerPolicy, validator=optional(instance_of(BreakerPolicy)))
    breakers: Mapping[str, BreakerPolicy | None] = field(factory=dict, validator=_breakers)
    sink_retry: RetryPolicy = field(
        factory=lambda: RetryPolicy(max_attempts=8, initial_delay=0.2, max_delay=60.0),
        validator=instance_of(RetryPolicy),
    )
    sink_breaker: BreakerPolicy | None = field(factory=BreakerPolicy, validator=optional(instance_of(BreakerPolicy)))
    slow_sink_seconds: Seconds = field(default=5.0, validator=_seconds)
    max_failures: int = field(default=100, validator=_at_least_one)
    keep_reports: int = field(default=10_000, validator=_at_least_one)
    start_timeout: Seconds = field(default=300.0, validator=_above_zero)
    drain_timeout: Seconds = field(default=600.0, validator=_seconds)
    faults: Faults | None = field(default=None, validator=_faults)

    def __attrs_post_init__(self) -> None:
        """Refuse two limits of one name."""
        names = [each.name for each in self.all_limits()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"RuntimeConfig(limits=..., kinds=...): two limits are called {name!r}; give one of the rates a "
                    "label=, or leave one of the caps out"
                )

    def all_limits(self) -> Sequence[Limit]:
        """Return the limits of all kinds, those of policies included."""
        return [*self.limits, *(each for kind, policy in self.kinds.items() for each in policy.limits(kind))]

    def policy(self, kind: str) -> KindPolicy:
        """Return how messages of a kind are run."""
        return self.kinds.get(kind, self.other_kinds)

    def records_outcomes(self, kind: str) -> bool:
        """Tell whether outcomes of a kind are recorded before a sink elsewhere sees them."""
        return self.policy(kind).delivery != "at_least_once"
