"""The HTTP endpoint, over real sockets."""

import json
import logging
import sys

import pytest
import trio

from naviscope_ingest import Executed, Ingest, IngestRuntime, MemorySink, Message, RuntimeComponents
from naviscope_ingest.endpoint import Progress, serve_endpoint
from naviscope_ingest.endpoint import server as serving
from naviscope_ingest.metrics import PrometheusMetrics
from naviscope_spi import Statistics


class Commits:
    async def execute(self, message):
        return Executed(ops=[message.id])


class Fixed:
    """A runtime that says what it is told to say."""

    def __init__(self, **values):
        self.values = {"state": "running", "executed": 0, "batches": 0, "in_flight": 0, "backlog": 0, **values}

    def statistics(self):
        rest = dict.fromkeys(("epochs", "unfinished", "waiting", "workers", "committed"), 0)
        return Statistics(**rest, **self.values)


async def exchange(address, data, *, sends_eof=False):
    """Send bytes, and return everything that comes back."""
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(data)
        if sends_eof:
            await stream.send_eof()
        return b"".join([part async for part in stream])


async def get(address, path, *, method="GET", headers=""):
    """Return status, headers and body."""
    answer = await exchange(address, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


async def test_a_runtime_that_works_is_healthy_ready_and_measured():
    metrics = PrometheusMetrics()
    runtime = IngestRuntime(RuntimeComponents(executor=Commits(), commit_sink=MemorySink(), metrics=metrics))
    async with runtime.running() as intake, serve_endpoint(runtime, metrics=metrics, port=0) as address:
        assert address[0] == "127.0.0.1"
        async with intake.epoch() as epoch:
            await epoch.submit([Message("a", None)])
        status, headers, body = await get(address, "/healthz")
        assert (status, json.loads(body)) == (200, {"state": "running"})
        assert (headers["connection"], headers["content-type"]) == ("close", "application/json")
        status, _, body = await get(address, "/readyz?verbose=1")
        assert (status, json.loads(body)) == (200, {"ready": True, "state": "running"})
        status, headers, body = await get(address, "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        assert b'naviscope_ended_total{end="committed",kind="message"} 1.0' in body
        assert int(headers["content-length"]) == len(body)
        _, headers, body = await get(address, "/metrics", headers="Accept: application/openmetrics-text\r\n")
        assert headers["content-type"].startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")


async def test_an_app_serves_it_where_its_configuration_says(caplog):
    caplog.set_level(logging.INFO, "naviscope_ingest")
    app = Ingest()

    @app.handler("row")
    async def row(payload: int) -> None: ...

    app.configure(environ={"NAVISCOPE_ENDPOINT__PORT": "0"})
    for total in (1, 2):
        caplog.clear()
        async with app.running() as intake:
            (port,) = (record.port for record in caplog.records if record.getMessage().startswith("listening"))
            async with intake.epoch() as epoch:
                await app.submit(epoch, [Message("a", 1, kind="row")])
            _, _, body = await get(("127.0.0.1", port), "/metrics")
            # Counters go on when the app runs again.
            assert f'naviscope_ended_total{{end="committed",kind="row"}} {total}.0'.encode() in body
            assert (await get(("127.0.0.1", port), "/readyz"))[0] == 200


async def test_an_app_without_a_port_serves_nothing(caplog):
    caplog.set_level(logging.INFO, "naviscope_ingest")
    app = Ingest()

    @app.handler("row")
    async def row(payload: int) -> None: ...

    app.configure(environ={})
    async with app.running():
        assert "listening" not in caplog.text


async def test_a_runtime_that_hangs_is_alive_but_not_ready(autojump_clock):
    runtime = Fixed(in_flight=3, backlog=2)
    progress = Progress(60)
    assert progress.look(runtime.statistics(), 0).is_ready
    assert progress.look(runtime.statistics(), 59).is_ready
    health = progress.look(runtime.statistics(), 60)
    assert not health.is_ready
    assert health.reason == ("nothing was executed or settled for 60 seconds: 3 messages are in flight and 2 are ready")
    runtime.values["executed"] = 1
    assert progress.look(runtime.statistics(), 61).is_ready


async def test_a_real_runtime_whose_executor_hangs_is_not_ready():
    class Hangs:
        async def execute(self, message):
            await trio.sleep_forever()

    runtime = IngestRuntime(RuntimeComponents(executor=Hangs(), commit_sink=MemorySink()))
    async with runtime.running() as intake, serve_endpoint(runtime, port=0, stall_after=0.05) as address:
        assert (await get(address, "/readyz"))[0] == 200
        epoch = await intake.new_epoch()
        await epoch.submit([Message("a", None)])
        with trio.fail_after(10):
            while (answer := await get(address, "/readyz"))[0] != 503:
                pass
        assert "1 messages are in flight" in json.loads(answer[2])["reason"]
        assert (await get(address, "/healthz"))[0] == 200
        runtime.stop(timeout=0)


def test_rest_is_no_stall():
    runtime, progress = Fixed(), Progress(60)
    assert progress.look(runtime.statistics(), 0).is_ready
    assert progress.look(runtime.statistics(), 1000).is_ready
    runtime.values["in_flight"] = 1
    assert progress.look(runtime.statistics(), 1059).is_ready
    assert not progress.look(runtime.statistics(), 1060).is_ready


def test_a_pause_is_no_stall():
    runtime, progress = Fixed(state="paused", backlog=5), Progress(60)
    assert progress.look(runtime.statistics(), 0).is_ready
    assert progress.look(runtime.statistics(), 1000).is_ready
    runtime.values["state"] = "running"
    assert progress.look(runtime.statistics(), 1001).is_ready


@pytest.mark.parametrize("state", ["created", "starting", "draining", "stopped", "failed"])
async def test_a_runtime_that_does_not_work_is_not_ready(state):
    async with serve_endpoint(Fixed(state=state), port=0) as address:
        status, _, body = await get(address, "/readyz")
        assert (status, json.loads(body)["reason"]) == (503, f"the runtime is {state}")
        assert (await get(address, "/healthz"))[0] == (503 if state == "failed" else 200)


async def test_the_runtime_is_looked_at_also_when_nobody_asks(autojump_clock):
    runtime = Fixed()
    async with serve_endpoint(runtime, port=0, stall_after=60) as address:
        await trio.sleep(1000)
        runtime.values["backlog"] = 1
        autojump_clock.autojump_threshold = float("inf")
        assert (await get(address, "/readyz"))[0] == 200


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", 404),
        ("GET /metrics HTTP/1.1", 404),
        ("POST /healthz HTTP/1.1", 405),
        ("HEAD /healthz HTTP/1.1", 200),
        ("GET /healthz HTTP/1.0", 200),
        ("GET /healthz", 400),
        ("\x00\x01\x02 \xff", 400),
        ("GET /" + "x" * 20_000 + " HTTP/1.1", 431),
    ],
)
async def test_every_request_is_answered_with_what_is_wrong_with_it(request_line, status):
    async with serve_endpoint(Fixed(), port=0) as address:
        answer = await exchange(address, f"{request_line}\r\nHost: x\r\n\r\n".encode("latin-1"))
        assert answer.split(b" ", 2)[1] == str(status).encode()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert (b"error" in body) == (status >= 400)
        if request_line.startswith("HEAD"):
            assert body == b""
            assert b"Content-Length: 21" in head.replace(b"content-length", b"Content-Length")


@pytest.mark.parametrize("data", [b"", b"GET /heal", b"\r\n\r\n"])
async def test_who_hangs_up_in_the_middle_gets_nothing_and_disturbs_nobody(data):
    async with serve_endpoint(Fixed(), port=0) as address:
        await exchange(address, data, sends_eof=True)
        assert (await get(address, "/healthz"))[0] == 200


async def test_who_says_nothing_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(serving, "TIME_LIMIT", 0.05)
    async with serve_endpoint(Fixed(), port=0) as address, await trio.open_tcp_stream(*address) as stream:
        with trio.fail_after(10):
            assert await stream.receive_some() == b""


async def test_more_connections_than_places_wait_for_one(monkeypatch):
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(serving, "TIME_LIMIT", 0.2)
    async with serve_endpoint(Fixed(), port=0) as address:
        held = [await trio.open_tcp_stream(*address) for _ in range(2)]
        with trio.fail_after(10):
            assert (await get(address, "/healthz"))[0] == 200
        for stream in held:
            await stream.aclose()


async def test_what_fails_while_answering_is_logged_and_costs_one_answer(caplog):
    class Broken:
        def exposition(self, accept):
            raise RuntimeError("out of order")

    async with serve_endpoint(Fixed(), metrics=Broken(), port=0) as address:
        with caplog.at_level(logging.ERROR):
            assert (await get(address, "/metrics"))[0] == 500
        assert (await get(address, "/healthz"))[0] == 200
    assert "cannot answer /metrics" in caplog.text


async def test_a_port_that_is_taken_is_an_error_before_the_block():
    async with serve_endpoint(Fixed(), port=0) as (host, port):
        with pytest.raises(OSError, match="in use"):
            async with serve_endpoint(Fixed(), host=host, port=port):
                raise AssertionError("it was opened")


async def test_the_error_of_the_block_is_raised_as_it_is():
    with pytest.raises(KeyError):
        async with serve_endpoint(Fixed(), port=0):
            raise KeyError("mine")


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
async def test_a_wrong_time_is_refused(wrong):
    with pytest.raises(ValueError, match="give seconds above 0"):
        async with serve_endpoint(Fixed(), port=0, stall_after=wrong):
            pass


async def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(ImportError, match=r"naviscope-ingest\[endpoint\]"):
        async with serve_endpoint(Fixed(), port=0):
            pass
