"""The plugin for pytest: fixtures for those who ask for them, and nothing for those who do not."""

from pathlib import Path

import pytest

from tests.test_documentation import blocks

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "test-with-pytest.md"

pytest_plugins = ["pytester"]

CONFIGURATION = """
    [pytest]
    filterwarnings = error
    addopts = --strict-markers -p no:cacheprovider
    trio_mode = true
"""


@pytest.fixture
def project(pytester):
    pytester.makefile(".ini", pytest=CONFIGURATION)
    return pytester


def run(project, source, *arguments):
    project.makepyfile(source)
    return project.runpytest_subprocess(*arguments)


def test_those_who_do_not_use_it_do_not_import_it(project):
    source = """
        import sys

        def test_nothing_is_loaded():
            heavy = ("trio", "naviscope_ingest", "naviscope_spi", "attr", "apsw")
            loaded = [each for each in heavy if each in sys.modules]
            assert "naviscope_pytest" in sys.modules
            assert loaded == []
    """
    project.makefile(".ini", pytest="[pytest]")
    result = run(project, source, "-p", "no:trio", "-p", "no:hypothesispytest", "-p", "no:anyio")
    result.assert_outcomes(passed=1)


def test_its_fixtures_are_listed_with_what_they_do(project):
    result = run(project, "def test_nothing(): ...", "--fixtures")
    for name in ("virtual_runtime", "run_until_idle", "advance", "simulation"):
        assert any(line.startswith(f"{name} --") for line in result.outlines), name


def test_a_runtime_in_virtual_time_with_what_it_did(project):
    source = """
        import time

        import trio
        from naviscope_ingest import Dependency, Executed, KindPolicy, Message, Permanent, Resource
        from naviscope_ingest import RetryPolicy, Transient

        async def work(message):
            if message.id == "bad":
                raise Permanent("no")
            if message.kind == "flaky" and not message.attempt:
                raise Transient("busy")
            derived = [Message("child", 1)] if message.id == "parent" else []
            await trio.sleep(3600)
            return Executed(ops=[message.id], derived=derived)

        async def test_ends_and_messages(virtual_runtime):
            began = time.perf_counter()
            async with virtual_runtime(work) as world:
                after = Message("after", 0, depends_on=["bad"])
                report = await world.batch(Message("parent", 0), Message("bad", 0), after)
                assert (report.committed, report.dead) == (2, 2)
                assert world.ends == {"parent": "committed", "child": "committed", "bad": "dead", "after": "dead"}
                assert world.messages["child"].payload == 1
                assert sorted(world.sink.ops) == ["child", "parent"]
                assert world.clock.wall() >= 1_000 + 7_200
            assert time.perf_counter() - began < 60

        async def test_time_is_advanced(virtual_runtime, advance, run_until_idle):
            late = KindPolicy(retry=RetryPolicy(initial_delay=60, max_delay=60, jitter=0))
            async with virtual_runtime(work, kinds={"flaky": late}) as world:
                epoch = await world.intake.new_epoch()
                await epoch.submit([Message("a", 0, kind="flaky")])
                await run_until_idle()
                assert world.ends == {}
                await advance(59)
                assert world.runtime.statistics().in_flight == 0
                await advance(2)
                assert world.runtime.statistics().in_flight == 1
                await run_until_idle()
                assert world.ends == {"a": "committed"}

        async def test_what_waits_is_idle(virtual_runtime, run_until_idle):
            async with virtual_runtime(work) as world:
                epoch = await world.intake.new_epoch()
                gate = Dependency.resource("gate", external=True)
                await epoch.submit([Message("a", 0, depends_on=[gate])])
                await run_until_idle()
                assert (list(world.messages), world.ends) == (["a"], {})
                await world.intake.notify_dependency_ready(Resource("gate"))
                await run_until_idle()
                assert world.ends == {"a": "committed"}
    """
    run(project, source, "-v").assert_outcomes(passed=3)


def test_an_app_of_handlers_runs_without_threads(project):
    source = """
        import threading
        import trio
        from naviscope_ingest import Ingest, MemorySink, Message

        app = Ingest("sqlite:///never-made.db")
        app.sink(MemorySink())

        @app.handler("number", derives=["half"])
        def number(value: int):
            is_here = threading.current_thread() is threading.main_thread()
            return [(value, is_here), Message("h", value / 2, kind="half")]

        @app.handler("half", timeout=5, derives=[])
        async def half(value: float):
            await trio.sleep(10 if value > 100 else 1)
            return [(value, True)]

        async def test_app(virtual_runtime):
            async with virtual_runtime(app) as world:
                await world.batch(Message("a", 3, kind="number"))
                assert world.sink.ops == [(3, True), (1.5, True)]
                report = await world.batch(Message("b", 300.0, kind="half"))
                assert report.dead == 1
    """
    run(project, source).assert_outcomes(passed=1)
    assert not list(project.path.glob("*.db"))


def test_what_would_hang_fails_and_says_so(project):
    source = """
        import trio
        from naviscope_ingest import Executed

        async def work(message):
            return Executed()

        async def test_hangs(virtual_runtime):
            async with virtual_runtime(work):
                await trio.sleep_forever()

        async def test_spins(virtual_runtime):
            async with virtual_runtime(work):
                while True:
                    await trio.sleep(0)
    """
    result = run(project, source)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*100000 virtual seconds have passed, and no end*"])
    result.stdout.fnmatch_lines(["*steps of tasks, and no end*"])


def test_an_error_of_a_test_is_shown_as_it_is(project):
    source = """
        async def test_fails(virtual_runtime):
            async with virtual_runtime(print) as world:
                assert world.ends == {"a": "committed"}
    """
    result = run(project, source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*E*assert {} == {'a': 'committed'}"])


@pytest.mark.parametrize(
    ("test", "arguments", "hint"),
    [
        ("async def test_x(virtual_runtime): ...", ["-p", "no:trio"], "needs pytest-trio"),
        ("def test_x(virtual_runtime): ...", [], "write it as an async function"),
    ],
)
def test_a_runtime_that_cannot_run_is_refused(project, test, arguments, hint):
    project.makefile(".ini", pytest="[pytest]\n" if arguments else CONFIGURATION)
    result = run(project, test, *arguments)
    assert result.ret != 0
    assert hint in result.stdout.str()


PROGRAM = """
    from naviscope_ingest import Executed, Message, RuntimeComponents
    from naviscope_ingest.sinks import Insert, SqliteSink
    from naviscope_ingest.testing import Program

    class Booking:
        async def execute(self, message):
            return Executed(ops=[Insert("row", {"id": message.id})])

    class Books(Program):
        def components(self, world):
            sink = SqliteSink(schema="create table row (id text primary key)")
            return RuntimeComponents(executor=Booking(), commit_sink=sink)

        async def workload(self, intake):
            async with intake.epoch("a") as epoch:
                await epoch.submit([Message(f"m{n}", n) for n in range(3)])

    def test_seeds(simulation):
        count = simulation.seeds if isinstance(simulation.seeds, int) else len(simulation.seeds)
        assert simulation(Books).seeds == count

    def test_crashes(simulation):
        assert simulation.crash_everywhere(Books, at=["write 3"]).crashes == 1
"""


@pytest.mark.parametrize("arguments", [["--simulation-seeds=3"], ["--simulation-seed=7", "--simulation-seed=9"]])
def test_programs_are_simulated(project, arguments):
    run(project, PROGRAM, *arguments).assert_outcomes(passed=2)


def test_the_tests_of_the_guide_pass(project):
    source = "\n".join(block.source for block in blocks(GUIDE.read_text(encoding="utf-8")))
    run(project, source, "--simulation-seeds=5").assert_outcomes(passed=4)
