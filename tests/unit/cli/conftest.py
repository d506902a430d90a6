"""The command line in this process, and a store to try it on."""

import json

import pytest
import trio

from naviscope_ingest import Executed, IngestRuntime, MemorySink, Message, Permanent
from naviscope_ingest.cli.program import run_program


class Load:
    async def execute(self, message):
        if message.id.startswith("bad"):
            raise Permanent(f"no such table: {message.id}")
        return Executed()


async def fill(url):
    async with IngestRuntime.open(url, executor=Load(), commit_sink=MemorySink()) as intake:
        async with intake.epoch("monday") as epoch:
            await epoch.submit(
                [
                    Message("a", 1),
                    Message("bad-1", {"table": "x", "rows": [1, 2]}, kind="load"),
                    Message("bad-2", {"table": "y", "rows": []}, kind="load", headers={"source": "test"}),
                    Message("after", 2, depends_on=["bad-1"]),
                ]
            )
        epoch = await intake.new_epoch("tuesday")
        await epoch.submit([Message("b", 1, depends_on=["nobody"], key="k")])
        await intake.wait_idle()


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """The bytes of a store with an epoch that failed and one that is open."""
    file = tmp_path_factory.mktemp("filled") / "x.db"
    trio.run(fill, f"sqlite:///{file}")
    return file.read_bytes()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for variable in ("NAVISCOPE_STORE", "NAVISCOPE_CONFIG", "SUDO_USER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("USER", "anna")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def store(filled, tmp_path, monkeypatch):
    file = tmp_path / "x.db"
    file.write_bytes(filled)
    monkeypatch.setenv("NAVISCOPE_STORE", str(file))
    return file


@pytest.fixture
def call(capsys):
    """Run a command; return its exit code, output and errors."""

    def run(*arguments):
        code = run_program([str(each) for each in arguments])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def asked(call):
    """Run a command with `--json`; return its answer."""

    def run(*arguments, code=0):
        found, out, err = call(*arguments, "--json")
        assert (found, err) == (code, "")
        return json.loads(out)

    return run
