"""An app runs handlers: in tasks, threads and processes, on both stores."""

import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass

import pytest
import trio

from naviscope_ingest import (
    BadOutcome,
    Deferred,
    Delivery,
    Dependency,
    Executed,
    Fatal,
    HandlerError,
    Ingest,
    KindPolicy,
    MemorySink,
    Message,
    PayloadNotEncodable,
    Permanent,
    Resource,
    RetryPolicy,
    RuntimeConfig,
    RuntimeStopped,
    Skipped,
    Transient,
    UnknownKind,
)
from naviscope_ingest.handlers.answer import outcome_of
from naviscope_ingest.sinks import Insert, SqliteSink

SCHEMA = "CREATE TABLE seen (id TEXT PRIMARY KEY, name TEXT NOT NULL)"


@dataclass
class Person:
    name: str
    age: int = 0


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'app.db'}"


async def run(app, *messages):
    async with app.running() as intake, intake.epoch() as epoch:
        await epoch.submit(messages)
    return epoch.report


async def test_a_payload_arrives_as_the_annotated_type_on_every_store(url):
    app = Ingest(url)
    seen = []

    @app.handler("person")
    async def person(person: Person, message: Delivery[Person]):
        seen.append((person, message.payload, message.id))

    report = await run(app, Message("a", {"name": "Ada"}, kind="person"), Message("b", Person("Bo", 3), kind="person"))
    assert report.succeeded
    assert sorted(seen, key=lambda each: each[2]) == [
        (Person("Ada"), Person("Ada"), "a"),
        (Person("Bo", 3), Person("Bo", 3), "b"),
    ]


@pytest.mark.parametrize("payload", [{"nme": "Ada"}, {"name": 7}, "Ada", b"Ada"])
async def test_a_payload_of_another_type_is_refused_before_anything_is_stored(url, payload):
    app = Ingest(url)

    @app.handler("person")
    async def person(person: Person): ...

    async with app.running() as intake:
        epoch = await intake.new_epoch()
        good = Message("good", Person("Ada"), kind="person")
        with pytest.raises(PayloadNotEncodable, match=r"message 'bad' of kind 'person'.*not of the type declared"):
            await epoch.submit([good, Message("bad", payload, kind="person")])
        assert epoch.report.submitted == 0


async def test_bytes_are_left_alone_where_they_are_declared(url):
    app = Ingest(url)
    sink = app.sink(MemorySink())

    @app.handler("raw")
    async def raw(data: bytes):
        return [data]

    assert (await run(app, Message("a", b"\xff", kind="raw"))).succeeded
    assert sink.ops == [b"\xff"]


async def test_a_kind_without_a_handler_is_refused_with_the_nearest_one(url):
    app = Ingest(url)

    @app.handler("person")
    async def person(person: Person): ...

    async with app.running() as intake:
        epoch = await intake.new_epoch()
        with pytest.raises(UnknownKind, match=r"message 'a' is of kind 'persn'.*did you mean 'person'"):
            await epoch.submit(Message("a", {"name": "Ada"}, kind="persn"))
        with pytest.raises(UnknownKind, match="there are handlers for 'person'"):
            await epoch.submit(Message("a", None))
        assert epoch.report.submitted == 0


async def test_a_stored_message_whose_handler_is_gone_ends_dead_and_says_why(tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    old, new = Ingest(url), Ingest(url)

    @old.handler("person")
    async def person(person: Person): ...

    @new.handler("human")
    async def human(person: Person): ...

    async with old.running() as intake:
        epoch = await intake.new_epoch("people")
        later = Dependency.resource("later", external=True)
        await epoch.submit(Message("a", Person("Ada"), kind="person", depends_on=[later]))
        await epoch.seal()
    async with new.running() as intake:
        await intake.notify_dependency_ready(Resource("later"))
        report = await intake.wait_epoch("people")
    assert "which has no handler: there are handlers for 'human'" in report.failures[0].error


async def test_a_plain_function_runs_in_a_thread_and_the_function_stays_callable(url):
    app = Ingest(url)
    sink = app.sink(MemorySink())

    @app.handler("name")
    def name(value: str):
        return [value, threading.current_thread() is threading.main_thread()]

    assert name("Ada") == ["Ada", True]
    assert (await run(app, Message("a", "Bo", kind="name"))).succeeded
    assert sink.ops == ["Bo", False]


async def test_at_most_so_many_threads_are_used():
    app = Ingest(threads=3)
    both = threading.Barrier(3)
    running, most = [], []

    @app.handler("n")
    def handle(n: int):
        running.append(n)
        most.append(len(running))
        both.wait(timeout=10)
        running.remove(n)

    assert (await run(app, *(Message(str(n), n, kind="n") for n in range(9)))).succeeded
    assert max(most) <= 3


# What runs in processes is found by its name.


def compute(person: Person, message: Delivery[Person]):
    if person.age < 0:
        raise Permanent(f"{person.name} is not born")
    row = {"id": message.id, "name": f"{person.name} {os.getpid()}"}
    headers = {"by": "compute"}
    return [Insert("seen", row), Message(f"{message.id}-child", person, kind="child", headers=headers)]


def die(number: int):
    if number == 13:
        os._exit(1)
    return Insert("seen", {"id": f"n{number}", "name": "alive"})


class OddError(Exception):
    def __init__(self, one, *, two):
        super().__init__(f"{one} and {two}")


def raise_oddly(number: int):
    raise OddError("one", two="two")


async def test_processes_compute_fail_and_die_without_harm_to_others(tmp_path):
    file = tmp_path / "app.db"
    app = Ingest(f"sqlite:///{file}", processes=2)
    app.sink(SqliteSink(schema=SCHEMA))
    app.handler("compute", run_in="process", derives=["child"])(compute)
    app.handler("die", run_in="process")(die)
    app.handler("odd", run_in="process")(raise_oddly)

    @app.handler("child", derives=[])
    async def child(person: Person, message: Delivery[Person]):
        return Insert("seen", {"id": message.id, "name": f"{person.name} {message.message.headers['by']}"})

    report = await run(
        app,
        Message("a", Person("Ada"), kind="compute"),
        Message("b", Person("Bo", -1), kind="compute"),
        Message("odd", 1, kind="odd"),
        *(Message(f"n{n}", n, kind="die") for n in range(10, 16)),
    )
    errors = {failure.message_id: failure.error for failure in report.failures}
    assert errors == {
        "b": "Permanent: Bo is not born",
        "odd": "Permanent: OddError: one and two",
        "n13": "Transient: the process that ran it died",
    }
    with closing(sqlite3.connect(file)) as database:
        rows = dict(database.execute("SELECT id, name FROM seen"))
    assert rows.keys() == {"a", "a-child", "n10", "n11", "n12", "n14", "n15"}
    assert rows["a-child"] == "Ada compute"
    assert rows["a"] != f"Ada {os.getpid()}"


async def test_an_app_runs_again_and_goes_on(tmp_path):
    app = Ingest(f"sqlite:///{tmp_path / 'app.db'}")
    calls = []

    @app.handler("n")
    async def handle(n: int):
        calls.append(n)

    for _ in range(2):
        async with app.running() as intake, intake.epoch("once") as epoch:
            await app.submit(epoch, [Message("1", 1, kind="n")])
    assert calls == [1]


async def test_a_handler_may_submit(url):
    app = Ingest(url)
    seen = []

    @app.handler("first")
    async def first(n: int):
        await app.submit("others", Message("x", n + 1, kind="second"))

    @app.handler("second")
    async def second(n: int):
        seen.append(n)

    async with app.running() as intake, intake.epoch("others"), intake.epoch() as epoch:
        await epoch.submit(Message("a", 1, kind="first"))
    assert seen == [2]


async def test_submit_needs_an_app_that_runs():
    app = Ingest()
    app.handler("n")(noop)
    with pytest.raises(RuntimeStopped, match="the app is not running"):
        await app.submit("e", [])
    async with app.running():
        with pytest.raises(RuntimeError, match="running already"):
            async with app.running():
                pass
        with pytest.raises(HandlerError, match="declare handlers before it starts"):
            app.handler("m")(noop)


async def noop(n: int): ...


async def test_an_incomplete_app_does_not_start():
    app = Ingest()
    with pytest.raises(HandlerError, match="the app has no handlers"):
        async with app.running():
            pass
    app.handler("file", derives=["line"])(noop)
    with pytest.raises(HandlerError, match="derives kind 'line', and there is no handler for it"):
        async with app.running():
            pass


def test_an_app_has_one_sink_and_its_own_codec():
    app = Ingest()
    app.sink(MemorySink())
    with pytest.raises(HandlerError, match="SinkSet"):
        app.sink(MemorySink())
    with pytest.raises(ValueError, match="makes its own codec"):
        Ingest(codec=None)


async def test_a_sink_with_a_file_is_opened_before_work_and_closed_after(tmp_path):
    app = Ingest()
    app.sink(SqliteSink(tmp_path / "no" / "such" / "folder.db", schema=SCHEMA))
    app.handler("n")(noop)
    with pytest.raises(Exception, match=r"folder\.db"):
        async with app.running():
            pytest.fail("it started")


async def test_derives_is_told_to_barriers():
    app = Ingest(config=RuntimeConfig(derives={"other": ["line"]}))
    order = []

    @app.handler("file", derives=["line"])
    async def file(n: int):
        order.append("file")
        return [Message(f"line-{each}", each, kind="line") for each in range(n)]

    @app.handler("line", derives=[])
    async def line(n: int):
        order.append("line")

    @app.handler("end", derives=[])
    async def end(nothing: None):
        order.append("end")

    behind = [Dependency.barrier("line")]
    assert (await run(app, Message("end", None, kind="end", depends_on=behind), Message("f", 2, kind="file"))).succeeded
    assert order == ["file", "line", "line", "end"]


async def test_a_derived_message_nobody_takes_ends_its_parent():
    app = Ingest()

    @app.handler("file")
    async def file(n: int):
        return Message("x", n, kind="fiel")

    (failure,) = (await run(app, Message("f", 2, kind="file"))).failures
    assert "derived[0] cannot be stored: message 'x' is of kind 'fiel'" in failure.error


# What a handler returns.

CHILD = Message("child", 1)
OP = Insert("seen", {"id": "a"})


def answer(returned, derives=None, *, has_sink=True):
    return outcome_of(returned, "handler 'f' of kind 'k'", derives, has_sink=has_sink)


@pytest.mark.parametrize("outcome", [Executed(["op"]), Deferred(["x"]), Skipped("why"), Fatal("no")])
def test_an_outcome_is_taken_as_it_is(outcome):
    assert answer(outcome) is outcome


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, ([], [], [])),
        ([], ([], [], [])),
        (OP, ([OP], [], [])),
        ([OP, "op", 7], ([OP, "op", 7], [], [])),
        (CHILD, ([], [CHILD], [])),
        (Resource("r"), ([], [], [Resource("r")])),
        ((CHILD, OP, Resource("r")), ([OP], [CHILD], [Resource("r")])),
    ],
)
def test_what_is_returned_is_sorted(returned, expected):
    outcome = answer(returned)
    assert (list(outcome.ops), list(outcome.derived), list(outcome.ready)) == expected


async def forgotten(): ...


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (True, "returned True: return None, ops, messages"),
        ("op", "a plain value that is meant as an op goes into a list"),
        ({"id": 1}, "goes into a list"),
        ((each for each in "ab"), "return None, ops"),
        (ValueError("x"), "raise it, or return Fatal"),
        (ValueError, "raise it"),
        ([Skipped()], "return an outcome by itself"),
    ],
)
def test_what_can_only_be_a_mistake_is_refused(returned, text):
    with pytest.raises(BadOutcome, match=text):
        answer(returned)


def test_a_forgotten_await_is_named():
    with pytest.raises(BadOutcome, match="there is an await missing"):
        answer(forgotten())


def test_ops_need_a_sink():
    with pytest.raises(BadOutcome, match=r"declare one with app\.sink"):
        answer(OP, has_sink=False)
    assert answer(CHILD, has_sink=False).derived


def test_a_kind_that_was_not_declared_is_not_derived():
    with pytest.raises(BadOutcome, match="derived message 'child' of kind 'message', and declares derives="):
        answer(CHILD, derives=["line"])
    with pytest.raises(BadOutcome, match="declares"):
        answer(Executed(derived=[CHILD]), derives=[])


async def test_cancelling_waits_for_a_thread_and_drops_its_answer():
    app = Ingest()
    sink = app.sink(MemorySink())
    started, go_on = trio.Event(), threading.Event()

    @app.handler("n")
    def handle(n: int):
        trio.from_thread.run_sync(started.set)
        go_on.wait(10)
        return [n]

    async with app.running() as intake:
        epoch = await intake.new_epoch()
        await epoch.submit(Message("a", 1, kind="n"))
        await started.wait()
        await epoch.cancel()
        go_on.set()
        assert (await epoch.wait()).cancelled == 1
    assert sink.ops == []


async def test_options_of_the_policy_reach_the_runtime():
    app = Ingest(config=RuntimeConfig(other_kinds=KindPolicy(timeout=50)))
    attempts = []

    @app.handler("flaky", retry=RetryPolicy(max_attempts=5, initial_delay=0.001))
    async def flaky(n: int):
        attempts.append(n)
        raise Transient("again")

    async with app.running() as intake:
        assert intake.runtime.config.kinds["flaky"].timeout == 50
        async with intake.epoch() as epoch:
            await epoch.submit(Message("a", 1, kind="flaky"))
    assert epoch.report.dead == 1
    assert len(attempts) == 5


def test_an_option_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(HandlerError, match="did you mean 'timeout'"):
        Ingest().handler("n", timeuot=3)
    with pytest.raises(HandlerError, match="it takes retry"):
        Ingest().handler("n", zzz=3)
    with pytest.raises(ValueError, match="timeout=-1"):
        Ingest().handler("n", timeout=-1)
