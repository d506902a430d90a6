"""Every cell of the table of states and events in docs/explanation/semantics.md.

`TABLE` is that table, with what shows each cell. The text of a cell is compared with the documentation, so neither can
change alone. A dash means that the event does not happen in that state. If a fact says that it did, for instance after
a restart, when the steps before it are not known, it is believed of a message that has not ended; of one that has, it
changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from naviscope_ingest._core import Refused, RetryPolicy
from naviscope_ingest.stores import MemoryStore
from naviscope_spi import Dependency, Ended, EpochOptions, Message, Settlement
from tests.unit.core import stage as at
from tests.unit.core.stage import CHILD, EPOCH, PARENT, Stage, X

DASH = "\N{EN DASH}"
STATES = ("waiting", "ready", "running", "committing", "ended")
IN_STATE: dict[str, tuple[Callable[..., Stage], ...]] = {
    "waiting": (at.waiting, at.held, at.in_retry),
    "ready": (at.ready,),
    "running": (at.running,),
    "committing": (at.committing,),
    "ended": (at.committed, at.dead, at.expired),
}

Check = Callable[[], None]
Event = Callable[[Stage], object]


class Cell(NamedTuple):
    """What the documentation says, and what shows it."""

    text: str
    checks: tuple[Check, ...]


class Row(NamedTuple):
    event: str
    cells: tuple[Cell, ...]


def unchanged(event: Event, *makers: Callable[..., Stage], **fields) -> list[Check]:
    """Let the event happen and see that nothing about the message changed."""

    def check_of(make: Callable[..., Stage]) -> Check:
        def check() -> None:
            stage = make(**fields)
            before = stage.look()
            event(stage)
            assert stage.look() == before

        return check

    return [check_of(make) for make in makers]


def becomes(event: Event, state: str, *makers: Callable[..., Stage], **fields) -> list[Check]:
    """Let the event happen and see where the message stands then."""

    def check_of(make: Callable[..., Stage]) -> Check:
        def check() -> None:
            stage = make(**fields)
            event(stage)
            assert stage.state == state

        return check

    return [check_of(make) for make in makers]


def row(event: str, default: Event, *, believed: str | None = None, **cells: Cell) -> Row:
    """Make a row. States that are not given have a dash.

    Args:
        event: its name.
        default: what happens; in states with a dash it changes nothing.
        believed: or else leads here, if the message has not ended.
        **cells: by state.
    """

    def dash(state: str) -> Cell:
        if believed is None or state == "ended":
            return Cell(DASH, tuple(unchanged(default, *IN_STATE[state])))
        return Cell(DASH, tuple(becomes(default, believed, *IN_STATE[state])))

    return Row(event, tuple(cells.get(state) or dash(state) for state in STATES))


def cell(text: str, *checks: Check | list[Check]) -> Cell:
    flat = [each for check in checks for each in (check if isinstance(check, list) else [check])]
    assert flat, text
    return Cell(text, tuple(flat))


def no_effect(event: Event, state: str, text: str = "no effect") -> Cell:
    return cell(text, unchanged(event, *IN_STATE[state]))


# Events


def executed(stage: Stage) -> None:
    stage.core.hand_to_sink([X])


def settled(stage: Stage) -> None:
    stage.core.commit([X])


def deferred(stage: Stage) -> None:
    stage.core.defer(X, [Dependency.resource("r")])


def skipped(stage: Stage) -> None:
    stage.core.end(Ended(X, "skipped"))


def transient(stage: Stage, policy: RetryPolicy | None = None) -> None:
    """What the kernel does with a transient failure: ask the policy, then retry or end the message."""
    if stage.state != "running":
        stage.core.retry(X, 1.0)
        return
    spent = (stage.x.rare.attempts if stage.x.rare else 0) + 1
    delay = (policy or RetryPolicy()).delay(spent, elapsed=0.0)
    if delay is None:
        stage.core.end(Ended(X, "dead"))
    else:
        stage.core.retry(X, stage.core.now + delay)


def handed_back(stage: Stage) -> None:
    stage.core.release([X])


def refused_by_sink(stage: Stage) -> None:
    stage.core.end(Ended(X, "dead"))


def parent_satisfied(stage: Stage) -> None:
    if stage.of(PARENT) == "ready":
        stage.commit_parent()


def parent_dies(stage: Stage) -> None:
    if stage.of(PARENT) == "ready":
        stage.kill_parent()


def cancel(stage: Stage) -> None:
    stage.core.cancel(X)


def ten_seconds(stage: Stage) -> None:
    stage.core.advance(stage.core.now + 10)


def a_moment(stage: Stage) -> None:
    stage.core.advance(stage.core.now + 0.1)


def duplicate(stage: Stage) -> None:
    stage.core.count_duplicates(EPOCH, 1)


def accepted_again(stage: Stage) -> None:
    """A delivery that comes twice: accepted, claimed and handed back in a repeated fact."""
    stage.core.accept(EPOCH, [X], [stage.x.message])


def replay(stage: Stage) -> None:
    stage.core.replay(X)


def discard(stage: Stage) -> None:
    stage.core.discard(X)


def refuses(event: Event, *makers: Callable[..., Stage]) -> list[Check]:
    def check_of(make: Callable[..., Stage]) -> Check:
        def check() -> None:
            stage = make()
            before = stage.look()
            with pytest.raises(Refused):
                event(stage)
            assert stage.look() == before

        return check

    return [check_of(make) for make in makers]


# Single cells


def store_refuses_an_ended_message() -> None:
    """A second settlement of the same lease, and one of a session that is gone, are listed as refused."""

    async def main() -> None:
        store: MemoryStore[None] = MemoryStore()
        epoch = (await store.open_epoch("e", EpochOptions())).key
        (seq,) = (await store.put(epoch, [Message("x", None)])).accepted
        async with store.join("test") as session:
            leases = await store.pop_ready(session, [seq])
            first = await store.settle(session, Settlement(ended=[Ended(seq, "dead")]))
            assert not first.refused
            assert list((await store.settle(session, Settlement(committed=leases))).refused) == [seq]

    trio.run(main)


def policy_decides(otherwise: str, end: str, state: str) -> Check:
    def check() -> None:
        stage = Stage(Dependency.message("parent", otherwise=otherwise))  # type: ignore[arg-type]
        stage.core.claim([PARENT])
        stage.core.end(Ended(PARENT, end))  # type: ignore[arg-type]
        assert stage.state == state

    return check


def timeout_decides(otherwise: str, state: str) -> Check:
    def check() -> None:
        stage = Stage(Dependency.message("parent", otherwise=otherwise, timeout=5))  # type: ignore[arg-type]
        stage.core.advance(4.9)
        assert stage.state == "waiting"
        stage.core.advance(5.0)
        assert stage.state == state

    return check


def timeout_is_called_off(make: Callable[..., Stage]) -> Check:
    """A dependency that was satisfied cannot time out any more."""

    def check() -> None:
        stage = make()
        before = stage.look()
        stage.core.advance(1e6)
        assert stage.look() == before

    return check


def satisfied_with_timeout(state: str) -> Callable[..., Stage]:
    def make() -> Stage:
        stage = Stage(Dependency.message("parent", timeout=5)).commit_parent()
        if state != "ready":
            stage.start()
        if state in ("committing", "committed"):
            stage.core.hand_to_sink([X])
        if state == "committed":
            stage.core.commit([X])
        assert stage.state == state
        return stage

    return make


def unresolved(word: str, state: str) -> Check:
    def check() -> None:
        stage = Stage(Dependency.message("ghost", on_unresolved=word)).commit_parent()  # type: ignore[arg-type]
        stage.core.seal(EPOCH)
        stage.core.advance(100.0)
        stage.core.advance(104.9)
        assert stage.state == "waiting"
        stage.core.advance(105.0)
        assert stage.state == state

    return check


def circle_is_named() -> None:
    stage = Stage("y").commit_parent()
    stage.core.accept(EPOCH, [at.Seq(9)], [Message("y", None, depends_on=["x"])])
    stage.core.seal(EPOCH)
    stage.core.advance(0.0)
    assert stage.state == "dead"
    assert stage.x.rare is not None
    assert "'x' → 'y' → 'x'" in stage.x.rare.reason


def executor_is_cancelled(event: Event, state: str, **fields) -> Check:
    def check() -> None:
        stage = at.running(**fields)
        event(stage)
        assert stage.state == state
        assert stage.core.drain().stop == [X]

    return check


def no_further_attempt() -> None:
    stage = at.running(expires_at=5.0)
    stage.core.advance(10.0)
    assert stage.state == "running"
    stage.core.retry(X, 11.0)
    assert stage.state == "expired"


def attempts_are_spent() -> None:
    stage = at.running()
    transient(stage)
    assert stage.state == "delayed"
    assert stage.x.rare is not None
    assert stage.x.rare.attempts == 1
    stage.core.advance(stage.core.now + 60)
    assert stage.state == "ready"


def exhausted() -> None:
    stage = at.running()
    transient(stage, RetryPolicy(max_attempts=1))
    assert stage.state == "dead"


def hand_back_spends_no_attempt() -> None:
    stage = at.running()
    handed_back(stage)
    assert stage.state == "ready"
    assert stage.x.rare is None or stage.x.rare.attempts == 0


def commit_finishes() -> None:
    """What runs is handed back; what the sink has is not, and commits."""
    stage = at.committing()
    stage.core.claim([PARENT])
    stage.core.release([PARENT])
    assert stage.state == "committing"
    stage.core.commit([X])
    assert stage.state == "committed"


def stays_with_the_sink() -> None:
    """However long the sink takes, and whatever else happens, the outcome is the sink's."""
    stage = at.committing(expires_at=5.0, deadline=6.0)
    stage.core.advance(1e6)
    assert not stage.core.cancel(X)
    stage.core.cancel_epoch(EPOCH)
    assert stage.state == "committing"
    stage.core.commit([X])
    assert stage.state == "committed"


def prepared_is_committed_again() -> None:
    stage = at.committing()
    stage.core.release([X])
    assert stage.state == "ready"
    stage.core.claim([X])
    stage.core.hand_to_sink([X])
    stage.core.commit([X])
    assert stage.state == "committed"


def duplicates_are_counted(make: Callable[..., Stage]) -> Check:
    def check() -> None:
        stage = make()
        before = stage.look()
        duplicate(stage)
        assert stage.core.epochs[EPOCH].duplicates == 1
        assert stage.look() == before

    return check


def replay_starts_a_run(make: Callable[..., Stage]) -> Check:
    def check() -> None:
        stage = make()
        assert stage.core.replay(X) == [X]
        assert stage.x.run == 1
        # It waits, is judged by the present ends of its parents, and has none that are open.
        assert stage.state == "ready"

    return check


def replay_takes_the_closure() -> None:
    stage = Stage("parent").kill_parent()
    assert stage.state == "dead"
    assert stage.core.replay(PARENT) == [PARENT, X]
    assert stage.state == "waiting"
    assert stage.x.run == 1


def children_follow(make: Callable[..., Stage]) -> Check:
    def check() -> None:
        stage = make()
        assert stage.of(CHILD) == "held"
        discard(stage)
        assert stage.of(CHILD) == "dead"
        assert stage.state in ("dead", "expired")

    return check


TABLE = (
    row(
        "executed",
        executed,
        running=cell("→ committing", becomes(executed, "committing", at.running)),
        ended=cell("refused", unchanged(executed, *IN_STATE["ended"]), store_refuses_an_ended_message),
    ),
    row(
        "sink committed, settled",
        settled,
        believed="committed",
        committing=cell("→ committed", becomes(settled, "committed", at.committing)),
    ),
    row(
        "deferred",
        deferred,
        running=cell("→ waiting", becomes(deferred, "waiting", at.running)),
        ended=cell("refused", unchanged(deferred, *IN_STATE["ended"]), store_refuses_an_ended_message),
    ),
    row(
        "skipped / fatal, Permanent",
        skipped,
        believed="skipped",
        running=cell(
            "→ skipped / dead",
            becomes(skipped, "skipped", at.running),
            becomes(lambda stage: stage.core.end(Ended(X, "dead")), "dead", at.running),
        ),
        ended=cell("refused", unchanged(skipped, *IN_STATE["ended"]), store_refuses_an_ended_message),
    ),
    row(
        "Transient, time limit",
        transient,
        running=cell("→ waiting with a timer, attempt + 1; exhausted → dead", attempts_are_spent, exhausted),
        ended=cell("refused", unchanged(transient, *IN_STATE["ended"]), store_refuses_an_ended_message),
    ),
    row(
        "SystemFailure",
        handed_back,
        running=cell("→ ready, no attempt; the runtime stops", hand_back_spends_no_attempt),
        committing=cell("the commit finishes first", commit_finishes),
    ),
    row(
        "sink refuses it alone",
        refused_by_sink,
        believed="dead",
        committing=cell("→ dead", becomes(refused_by_sink, "dead", at.committing)),
    ),
    row("sink transient", a_moment, committing=cell("stays", stays_with_the_sink)),
    row(
        "last dependency satisfied",
        parent_satisfied,
        waiting=cell("→ ready", becomes(parent_satisfied, "ready", at.waiting)),
    ),
    row(
        "parent ended badly",
        parent_dies,
        waiting=cell(
            "by policy: → dead, cancelled, skipped or held, or it counts as satisfied",
            policy_decides("follow", "dead", "dead"),
            policy_decides("follow", "expired", "dead"),
            policy_decides("follow", "skipped", "skipped"),
            policy_decides("follow", "cancelled", "cancelled"),
            policy_decides("fail", "skipped", "dead"),
            policy_decides("skip", "dead", "skipped"),
            policy_decides("run", "dead", "ready"),
            policy_decides("hold", "dead", "held"),
            policy_decides("hold", "expired", "held"),
            policy_decides("hold", "skipped", "skipped"),
        ),
        ready=no_effect(parent_dies, "ready"),
        running=no_effect(parent_dies, "running"),
        committing=no_effect(parent_dies, "committing"),
        ended=no_effect(parent_dies, "ended"),
    ),
    row(
        "dependency timed out",
        ten_seconds,
        waiting=cell(
            "as if the parent had expired",
            timeout_decides("follow", "dead"),
            timeout_decides("skip", "skipped"),
            timeout_decides("run", "ready"),
            timeout_decides("hold", "held"),
        ),
        ready=Cell(DASH, (timeout_is_called_off(satisfied_with_timeout("ready")),)),
        running=Cell(DASH, (timeout_is_called_off(satisfied_with_timeout("running")),)),
        committing=Cell(DASH, (timeout_is_called_off(satisfied_with_timeout("committing")),)),
        ended=Cell(DASH, (timeout_is_called_off(satisfied_with_timeout("committed")),)),
    ),
    row(
        "stuck (idle + grace)",
        ten_seconds,
        waiting=cell(
            "fail, skip, run or wait",
            unresolved("fail", "dead"),
            unresolved("skip", "skipped"),
            unresolved("run", "ready"),
            unresolved("wait", "waiting"),
        ),
    ),
    row("on a circle (idle)", ten_seconds, waiting=cell("→ dead, circle named", circle_is_named)),
    row(
        "cancel",
        cancel,
        waiting=cell("→ cancelled", becomes(cancel, "cancelled", *IN_STATE["waiting"])),
        ready=cell("→ cancelled", becomes(cancel, "cancelled", at.ready)),
        running=cell("→ cancelled, executor cancelled", executor_is_cancelled(cancel, "cancelled")),
        committing=no_effect(cancel, "committing"),
        ended=no_effect(cancel, "ended"),
    ),
    row(
        "expires_at",
        ten_seconds,
        waiting=cell("→ expired", becomes(ten_seconds, "expired", *IN_STATE["waiting"], expires_at=5.0)),
        ready=cell("→ expired", becomes(ten_seconds, "expired", at.ready, expires_at=5.0)),
        running=cell(
            "no effect; no further attempt", unchanged(ten_seconds, at.running, expires_at=5.0), no_further_attempt
        ),
        committing=cell("no effect", unchanged(ten_seconds, at.committing, expires_at=5.0)),
        ended=cell("no effect", unchanged(ten_seconds, *IN_STATE["ended"], expires_at=5.0)),
    ),
    row(
        "epoch deadline",
        ten_seconds,
        waiting=cell("→ expired", becomes(ten_seconds, "expired", *IN_STATE["waiting"], deadline=5.0)),
        ready=cell("→ expired", becomes(ten_seconds, "expired", at.ready, deadline=5.0)),
        running=cell("→ expired, executor cancelled", executor_is_cancelled(ten_seconds, "expired", deadline=5.0)),
        committing=cell("no effect", unchanged(ten_seconds, at.committing, deadline=5.0)),
        ended=cell("no effect", unchanged(ten_seconds, *IN_STATE["ended"], deadline=5.0)),
    ),
    row(
        "process killed",
        handed_back,
        waiting=no_effect(handed_back, "waiting", "stays"),
        ready=no_effect(handed_back, "ready", "stays"),
        running=cell("→ ready, suspect", hand_back_spends_no_attempt),
        committing=cell("→ ready, suspect; a prepared outcome is committed again", prepared_is_committed_again),
        ended=no_effect(handed_back, "ended", "stays"),
    ),
    row(
        "hand back (stop)",
        handed_back,
        waiting=no_effect(handed_back, "waiting", "stays"),
        ready=no_effect(handed_back, "ready", "stays"),
        running=cell("→ ready, no attempt", hand_back_spends_no_attempt),
        committing=cell("finishes within the deadline", commit_finishes),
    ),
    row(
        "stale settlement, repeated delivery",
        accepted_again,
        **{state: no_effect(accepted_again, state) for state in STATES},
    ),
    row(
        "duplicate submit",
        duplicate,
        **{state: cell("counted", *map(duplicates_are_counted, IN_STATE[state])) for state in STATES},
    ),
    Row(
        "replay",
        (
            *(Cell(DASH, tuple(refuses(replay, *IN_STATE[state]))) for state in STATES[:-1]),
            cell(
                "dead, expired → waiting, run + 1, with its closure; else an error",
                replay_starts_a_run(at.dead),
                replay_starts_a_run(at.expired),
                replay_takes_the_closure,
                refuses(replay, at.committed),
            ),
        ),
    ),
    Row(
        "discard",
        (
            *(Cell(DASH, tuple(refuses(discard, *IN_STATE[state]))) for state in STATES[:-1]),
            cell(
                "stays dead; held children follow",
                children_follow(at.dead),
                children_follow(at.expired),
                refuses(discard, at.committed),
            ),
        ),
    ),
)


@pytest.mark.parametrize(
    ("text", "checks"),
    [
        pytest.param(each.text, each.checks, id=f"{line.event} | {state}")
        for line in TABLE
        for state, each in zip(STATES, line.cells, strict=True)
    ],
)
def test_cell(text, checks):
    for check in checks:
        check()


def documented() -> list[list[str]]:
    """Read the table of the documentation."""
    page = Path(__file__).parents[3] / "docs" / "explanation" / "semantics.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if re.match(r"\|\s*event\s*\|\s*waiting", line))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([each.strip() for each in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_the_documentation_has_this_table():
    header, *rows = documented()
    assert header == ["event", *STATES]
    assert rows == [[line.event, *(each.text for each in line.cells)] for line in TABLE]


if __name__ == "__main__":
    print("| event | " + " | ".join(STATES) + " |")
    print("|---" * 6 + "|")
    for line in TABLE:
        print(f"| {line.event} | " + " | ".join(each.text for each in line.cells) + " |")
