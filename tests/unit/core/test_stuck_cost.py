"""Looking for what is stuck costs little beside the work, and dealing with large knots takes no more than linear time.

Times are compared with each other, not with a clock, and the bounds leave room: what they must catch is quadratic.
"""

from __future__ import annotations

from naviscope_spi import Dependency, Message
from tests.unit.core.desk import Desk
from tests.unit.core.timing import ratio

MANY = 30_000


def work(*, beside: int) -> None:
    """Run many messages one by one, as they come, beside others that wait for a person in a sealed epoch."""
    desk = Desk(epochs=2)
    approval = Dependency.resource("approval", external=True)
    desk.core.accept(2, range(1, beside + 1), [Message(f"w{i}", None, depends_on=[approval]) for i in range(beside)])
    desk.core.seal(2)
    desk.core.accept(1, range(MANY, 2 * MANY), [Message(f"m{i}", None) for i in range(MANY)])
    desk.core.seal(1)
    while taken := desk.core.take(10):
        desk.core.hand_to_sink(taken)
        desk.core.commit(taken)
        desk.core.advance(desk.core.now + 0.001)
    assert desk.epoch(1).is_completed
    assert desk.epoch(2).unfinished == beside


def test_many_that_wait_for_a_person_do_not_slow_down_the_others():
    # Without them as many messages are made; three times would be fair, a look at every step a thousand times.
    assert ratio(lambda: work(beside=MANY), lambda: work(beside=1)) < 6


def doomed_chain(length: int) -> None:
    """Submit a chain the last message first; the first of it waits for what never comes."""
    desk = Desk(stall_grace=1.0)
    chain = [Message(f"m{i}", None, depends_on=[f"m{i - 1}" if i else "ghost"]) for i in reversed(range(length))]
    desk.core.accept(1, range(1, length + 1), chain)
    desk.core.seal(1)
    for now in (0.0, 1.0, 2.0):
        desk.core.advance(now)
    assert desk.epoch().is_completed
    assert desk.epoch().ends["dead"] == length


def test_a_doomed_chain_ends_in_linear_time():
    assert ratio(lambda: doomed_chain(50_000), lambda: doomed_chain(5_000), repeats=1) < 25


def circle(length: int) -> None:
    desk = Desk()
    ring = [Message(f"m{i}", None, depends_on=[f"m{(i + 1) % length}"]) for i in range(length)]
    desk.core.accept(1, range(1, length + 1), ring)
    desk.core.seal(1)
    desk.core.advance(0.0)
    assert desk.epoch().ends["dead"] == length


def test_a_large_circle_ends_in_linear_time():
    assert ratio(lambda: circle(20_000), lambda: circle(2_000), repeats=1) < 30


def fan_in(width: int) -> None:
    """Let two messages wait for many others, which commit one by one."""
    desk = Desk()
    parents = [Message(f"p{i}", None) for i in range(width)]
    chosen = [Dependency.message(f"p{i}", otherwise="run") for i in range(width)]
    desk.core.accept(1, range(1, width + 1), parents)
    desk.core.accept(1, [width + 1, width + 2], [
        Message("plain", None, depends_on=[f"p{i}" for i in range(width)]),
        Message("chosen", None, depends_on=chosen),
    ])  # fmt: skip
    desk.core.seal(1)
    while taken := desk.core.take(1):
        desk.core.commit(taken)
        desk.core.advance(0.0)
    assert desk.epoch().is_completed
    assert desk.epoch().ends["committed"] == width + 2


def test_a_large_fan_in_takes_linear_time():
    assert ratio(lambda: fan_in(20_000), lambda: fan_in(2_000), repeats=1) < 30


def knots(count: int) -> None:
    """Make many small circles, and messages that wait behind them."""
    desk = Desk()
    messages = [
        message
        for i in range(count)
        for message in (
            Message(f"a{i}", None, depends_on=[f"b{i}"]),
            Message(f"b{i}", None, depends_on=[f"a{i}"]),
            Message(f"c{i}", None, depends_on=[f"b{i}", f"c{i + 1}"]),
        )
    ]
    desk.core.accept(1, range(1, len(messages) + 1), messages)
    desk.core.seal(1)
    desk.core.advance(0.0)
    assert desk.epoch().is_completed
    assert desk.epoch().ends["dead"] == len(messages)


def test_many_small_circles_end_in_linear_time():
    assert ratio(lambda: knots(8_000), lambda: knots(800), repeats=1) < 30
