"""The control socket: what it answers, whom it lets in, and what becomes of it."""

import json
import os
import socket
import stat

import pytest
import trio

from naviscope_ingest import Executed, IngestRuntime, KindPolicy, MemorySink, Message, Permanent, RuntimeConfig
from naviscope_ingest.console import (
    OPERATIONS,
    ControlUnavailable,
    LocalDesk,
    Refused,
    connect_control,
    control_path,
    is_served,
    serve_control,
)
from naviscope_ingest.console import server as server_module

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no such sockets here")


class Load:
    async def execute(self, message):
        if message.id.startswith("bad"):
            raise Permanent("it is bad")
        return Executed()


@pytest.fixture
async def intake(tmp_path):
    url = f"sqlite:///{tmp_path / 'x.db'}"
    config = RuntimeConfig(kinds={"order": KindPolicy()})
    async with IngestRuntime.open(url, executor=Load(), commit_sink=MemorySink(), config=config) as intake:
        yield intake


@pytest.fixture
async def place(intake):
    async with serve_control(intake) as place:
        yield place


async def test_it_stands_beside_the_store_and_is_ones_own(place, tmp_path):
    assert place == control_path(tmp_path / "x.db")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert is_served(place)


async def test_both_ends_answer_the_same(intake, place):
    async with connect_control(place) as remote:
        opened = await remote.ask("epoch.open", name="monday")
        receipt = await remote.ask(
            "submit", epoch="monday", messages=[{"id": "a"}, {"id": "bad", "payload": [1.5, None]}]
        )
        await remote.ask("epoch.seal", epoch="monday")
        reports = [report async for report in remote.stream("epoch.wait", epoch="monday")]
        assert (opened["state"], receipt["accepted"], reports[-1]["dead"]) == ("open", 2, 1)
        local = LocalDesk(intake)
        for name, given in {
            "epoch.list": {},
            "epoch.show": {"epoch": "monday"},
            "message.show": {"epoch": "monday", "id": "bad"},
            "dead-letter.group": {"kind": "message"},
            "dead-letter.show": {"epoch": "monday", "id": "bad"},
            "limit.list": {},
            "kind.list": {},
            "store.verify": {},
        }.items():
            here = json.loads(json.dumps(await local.ask(name, **given)))
            assert await remote.ask(name, **given) == here
        lines = [line async for line in remote.stream("dead-letter.export")]
        assert [json.loads(line)["payload"] for line in lines] == [{"json": [1.5, None]}]


async def test_a_refusal_is_the_same_error_at_the_other_end(place):
    async with connect_control(place) as remote:
        with pytest.raises(Refused, match="there is no epoch 'sunday'") as caught:
            await remote.ask("epoch.show", epoch="sunday")
        assert (caught.value.type, caught.value.facts["epoch"]) == ("UnknownEpoch", "sunday")
        assert await remote.ask("epoch.list") == []


async def test_a_bad_message_of_a_submit_stores_nothing(intake, place):
    await intake.new_epoch("monday")
    async with connect_control(place) as remote:
        with pytest.raises(Refused, match=r"message 1: it has no id"):
            await remote.ask("submit", epoch="monday", messages=[{"id": "a"}, {}])
    assert intake.report("monday").submitted == 0


async def test_limits_and_kinds_change_at_once(intake, place):
    async with connect_control(place) as remote:
        await remote.ask("limit.set", sort="cap", kind="order", limit=3)
        await remote.ask("limit.set", sort="max_in_flight", limit=7)
        found = {each["name"]: each["limit"] for each in await remote.ask("limit.list")}
        assert found == {"max_in_flight": 7, "cap:order": 3}
        await remote.ask("kind.pause", kind="order", reason="too much")
        (kind,) = await remote.ask("kind.list")
        assert kind == {"kind": "order", "unfinished": 0, "held_by": ["pause: too much"]}
        await remote.ask("kind.resume", kind="order")
        await remote.ask("limit.remove", name="cap:order")
        with pytest.raises(Refused, match="did you mean 'order'"):
            await remote.ask("limit.set", sort="cap", kind="ordr", limit=3)
        with pytest.raises(Refused, match="give a whole number"):
            await remote.ask("limit.set", sort="max_in_flight", limit=1.5)
        with pytest.raises(Refused, match="that is not struck"):
            await remote.ask("kind.unstrike", kind="order")


REQUESTS = [
    (b"nonsense\n", "InvalidRequest", "it is no request"),
    (b"[]\n", "InvalidRequest", "it is no request"),
    (b'{"version": 1}\n', "InvalidRequest", "missing required field `do`"),
    (b'{"version": 9, "do": "epoch.list"}\n', "InvalidRequest", "version 9 of the protocol"),
    (b'{"version": 1, "do": "epoch.lst"}\n', "UnknownOperation", "did you mean 'epoch.list'?"),
    (b'{"version": 1, "do": "epoch.show"}\n', "InvalidRequest", "missing required field `epoch`"),
    (b'{"version": 1, "do": "epoch.show", "given": {"epoch": 3}}\n', "InvalidRequest", "Expected `str`, got `int`"),
    (b'{"version": 1, "do": "epoch.list", "given": {"x": 3}}\n', "InvalidRequest", "unknown field `x`"),
    (b'{"version": 1, "do": "epoch.list", "given": ' + b"[" * 5_000 + b"\n", "InvalidRequest", "it is no request"),
    (b"\xff\xfe\n", "InvalidRequest", "it is no request"),
]


@pytest.mark.parametrize(("request_line", "kind", "reason"), REQUESTS, ids=lambda value: str(value)[:30])
async def test_what_is_no_request_is_answered_and_harms_nobody(place, request_line, kind, reason):
    stream = await trio.open_unix_socket(str(place))
    async with stream:
        await stream.send_all(request_line)
        answer = json.loads(await stream.receive_some())
        assert answer["error"]["type"] == kind
        assert reason in answer["error"]["text"]
        await stream.send_all(b'{"version": 1, "do": "epoch.list"}\n')
        assert json.loads(await stream.receive_some()) == {"answer": []}


async def test_a_line_that_is_too_long_ends_the_connection(intake, tmp_path):
    async with serve_control(intake, tmp_path / "c", max_line=1_000) as place:
        stream = await trio.open_unix_socket(str(place))
        async with stream:
            await stream.send_all(b"x" * 5_000)
            assert b"longer than 1000 bytes" in await stream.receive_some()
            assert await stream.receive_some() == b""


async def test_who_hangs_up_in_the_middle_harms_nobody(intake, place):
    await intake.new_epoch("monday")
    for _ in range(3):
        async with connect_control(place) as remote:
            reports = remote.stream("epoch.wait", epoch="monday")
            assert (await anext(reports))["state"] == "open"
            await reports.aclose()
    stream = await trio.open_unix_socket(str(place))
    await stream.send_all(b'{"version": 1, "do":')
    await stream.aclose()
    async with connect_control(place) as remote:
        assert len(await remote.ask("epoch.list")) == 1


async def test_another_user_is_refused(place, monkeypatch):
    monkeypatch.setattr(server_module, "_user_of", lambda stream: os.getuid() + 1)
    async with connect_control(place) as remote:
        with pytest.raises(Refused, match="belongs to another user"):
            await remote.ask("epoch.list")


async def test_the_socket_of_another_user_is_not_trusted(place, monkeypatch):
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        async with connect_control(place):
            pass


async def test_too_many_connections_are_told_so(place, monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_CONNECTIONS", 1)
    async with connect_control(place) as first:
        await first.ask("epoch.list")
        async with connect_control(place) as second:
            with pytest.raises(Refused, match="connections are open"):
                await second.ask("epoch.list")


async def test_it_goes_with_its_block(intake, tmp_path):
    async with serve_control(intake) as place:
        pass
    assert not place.exists()
    with pytest.raises(ConnectionRefusedError):
        async with connect_control(place):
            pass
    with pytest.raises(LookupError):
        async with serve_control(intake):
            raise LookupError
    assert not place.exists()


async def test_what_a_dead_process_left_is_replaced(intake):
    place = control_path(intake.runtime.store.path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
    async with serve_control(intake), connect_control(place) as remote:
        assert await remote.ask("epoch.list") == []


async def test_what_is_no_socket_is_left_alone(intake, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ControlUnavailable, match="no socket"):
        async with serve_control(intake, tmp_path / "file"):
            pass
    assert (tmp_path / "file").read_text() == "mine"


async def test_two_cannot_serve_one_place(intake, place):
    with pytest.raises(ControlUnavailable, match="served by another process"):
        async with serve_control(intake, place):
            pass
    assert is_served(place)


async def test_a_name_that_is_too_long_is_refused(intake, tmp_path):
    with pytest.raises(ControlUnavailable, match="at most 100 bytes"):
        async with serve_control(intake, tmp_path / ("x" * 120)):
            pass


async def test_a_client_learns_that_the_process_has_ended(tmp_path):
    url = f"sqlite:///{tmp_path / 'x.db'}"
    async with IngestRuntime.open(url, executor=Load(), commit_sink=MemorySink()) as intake:
        async with serve_control(intake) as place:
            connecting = connect_control(place)
            remote = await connecting.__aenter__()
            assert await remote.ask("epoch.list") == []
        with pytest.raises(Refused, match="has ended"):
            await remote.ask("epoch.list")
        await connecting.__aexit__(None, None, None)


async def test_every_operation_says_what_it_takes():
    assert len(OPERATIONS) > 25
    assert all(each.takes.__doc__ and each.call.__doc__ for each in OPERATIONS.values())


async def test_quiet_is_when_only_somebody_else_can_go_on(intake):
    epoch = await intake.new_epoch("monday")
    await epoch.submit([Message("a", 1), Message("later", 1, depends_on=["nobody"])])
    await intake.wait_quiet()
    assert (epoch.report.committed, epoch.report.unfinished) == (1, 1)
