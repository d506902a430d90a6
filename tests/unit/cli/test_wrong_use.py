"""Every wrong use gets one line with a reason, one with a hint, and exit code 2."""

import re
import sys

import pytest

WRONG = [
    (["epcoh"], "there is no command naviscope-ingest epcoh", "did you mean naviscope-ingest epoch?"),
    (["zzz"], "there is no command", "there are completion, config"),
    (["epoch", "lsit"], "there is no command naviscope-ingest epoch lsit", "did you mean naviscope-ingest epoch list?"),
    (["epoch", "list", "--limt", "3"], "there is no option --limt", "did you mean --limit?"),
    (["epoch", "list", "--limit", "0"], "Invalid value for '--limit'", "epoch list --help"),
    (["epoch", "list", "--limit", "x"], "'x' is not a valid integer", "epoch list --help"),
    (["epoch", "list", "--state", "opne"], "'opne' is not one of 'open'", "epoch list --help"),
    (["epoch", "show"], "Missing argument 'EPOCH'", "epoch show --help"),
    (["epoch", "show", "sunday"], "there is no epoch 'sunday'", "epoch list"),
    (["epoch", "show", "monday", "tuesday"], "unexpected extra argument", "epoch show --help"),
    (["epoch", "wait", "sunday"], "there is no epoch 'sunday'", "epoch list"),
    (["epoch", "wait", "monday", "--timeout", "soon"], "'soon' is no duration", "epoch wait --help"),
    (["epoch", "cancel", "sunday"], "there is no epoch 'sunday'", "epoch list"),
    (["epoch", "seal", "sunday"], "there is no epoch 'sunday'", "epoch list"),
    (["message", "show", "monday"], "Missing argument 'ID'", "message show --help"),
    (["message", "show", "monday", "nobody"], "has no message 'nobody'", "epoch show"),
    (["message", "explain", "sunday", "a"], "there is no epoch 'sunday'", "epoch list"),
    (["message", "cancel", "tuesday", "nobody"], "has no message 'nobody'", "epoch show"),
    (["dead-letter", "list", "--epoch", "sunday"], "there is no epoch 'sunday'", "epoch list"),
    (["dead-letter", "list", "--error-kind", "odd"], "'odd' is not one of", "dead-letter list --help"),
    (["dead-letter", "list", "--since", "soon"], "'soon' is no time", "dead-letter list --help"),
    (["dead-letter", "show", "monday", "a"], "has no dead letter: ", "dead-letter list"),
    (["dead-letter", "show", "tuesday", "b"], "has no dead letter: it is waiting", "dead-letter list"),
    (["dead-letter", "replay"], "it is not said which letters to replay", "--all means all"),
    (["dead-letter", "replay", "--all", "--epoch", "monday"], "exclude each other", "leave one of them out"),
    (["dead-letter", "replay", "--all", "--patch", "x"], "it names no path and value", "--patch lines.3.amount=5"),
    (["dead-letter", "replay", "--all", "--patch", "tabel=1"], "did you mean 'table'?", "dead-letter show"),
    (["dead-letter", "replay", "--all", "--payload", "{"], "--payload is no JSON", "in quotes"),
    (["dead-letter", "replay", "--all", "--payload", "1"], "a whole payload is for one message", "dead-letter show"),
    (["dead-letter", "replay", "--all", "--per-second", "0"], "per_second", "dead-letter list --help"),
    (["dead-letter", "replay", "-e", "monday", "--id", "after"], "would end so again", "dead-letter show"),
    (["dead-letter", "discard", "--all"], "Missing option '--reason'", "dead-letter discard --help"),
    (["dead-letter", "discard", "--reason", "x"], "it is not said which letters to discard", "--all"),
    (["dead-letter", "discard", "--all", "--reason", " "], "say why", "dead-letter list --help"),
    (["dead-letter", "import", "nothing.jsonl", "-e", "x"], "'nothing.jsonl' does not exist", "--help"),
    (["dead-letter", "import", "bad.jsonl", "-e", "x"], "line 1: it is no dead letter", ""),
    (["limit", "set", "max_in_flight"], "Missing argument 'NUMBER'", "limit set --help"),
    (["limit", "set", "max_in_flight", "many"], "'many' is not a valid float", "limit set --help"),
    (["kind", "pause", "a", "b"], "unexpected extra argument", "kind pause --help"),
    (["store", "backup"], "Missing argument 'PATH'", "store backup --help"),
    (["store", "backup", "x.db"], "exists", "name a path that does not exist"),
    (["store", "prune", "--older-than", "old"], "'old' is no duration", "store prune --help"),
    (["submit", "nothing.jsonl"], "'nothing.jsonl' does not exist", "submit --help"),
    (["submit", "bad.jsonl", "-e", "x"], "bad.jsonl:1: it is no JSON", "each line is one object"),
    (["submit", "field.jsonl", "-e", "x"], "field.jsonl:2: a message has no field 'pyload'", "submit --help"),
    (["submit", "field.jsonl", "-e", "x", "--deadline", "x"], "'x' is no time", "submit --help"),
    (["submit", "good.jsonl", "-e", "monday"], "epoch 'monday' is sealed", "--epoch NAME"),
    (["submit", "good.jsonl", "--wait", "--keep-open"], "would wait for ever", "leave one of them out"),
    (["run"], "Missing argument 'MODULE:APP'", "run --help"),
    (["run", "shop"], "'shop' names no app", 'such as "shop:app"'),
    (["run", "nomodule:app"], "there is no module 'nomodule'", "run it in the folder that holds it"),
    (["run", "shop:ap"], "module 'shop' has no 'ap'", "did you mean shop:app?"),
    (["run", "shop:number"], "shop:number is 3", "name an Ingest"),
    (["run", "shop:app", "--max-restarts", "3"], "--max-restarts without --restart", "add --restart"),
    (["run", "shop:empty"], "the app has no handlers", "where the app is declared"),
    (["run", "untyped:app"], "untyped.py:3: HandlerError", "--debug"),
    (["run", "broken:app"], "broken.py:1: invalid syntax", "--debug"),
    (["run", "raising:app"], "raising.py:1: ZeroDivisionError", "--debug"),
    (["run", "shop:make_broken"], "shop:make_broken() failed: ", "--debug"),
    (["run", "shop:app", "--config", "bad.toml"], "bad.toml:1: max_inflight", "config schema"),
    (["config", "show", "--config", "bad.toml"], "bad.toml:1: max_inflight", "config schema"),
    (["config", "show", "--config", "nothing.toml"], "nothing.toml", "config schema"),
    (["completion", "tcsh"], "'tcsh' is not one of 'bash'", "completion --help"),
    (["epoch", "list", "--store", "nothing.db"], "there is no store at nothing.db", "submit and run make one"),
    (["epoch", "list", "--store", "memory://"], "gone with its process", "--store ingest.db"),
    (["epoch", "list", "--store", "mysql://x"], "names no store that is installed", "--help"),
    (["epoch", "list", "--app", "nomodule:app"], "there is no module 'nomodule'", "run it in the folder"),
]


@pytest.fixture
def files(tmp_path, monkeypatch):
    for module in ("shop", "broken", "raising"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    (tmp_path / "field.jsonl").write_text('{"id": "a"}\n{"id": "b", "pyload": 1}\n')
    (tmp_path / "good.jsonl").write_text('{"id": "new"}\n')
    (tmp_path / "bad.toml").write_text("max_inflight = 3\n")
    (tmp_path / "broken.py").write_text("def\n")
    (tmp_path / "untyped.py").write_text(
        "from naviscope_ingest import Ingest\napp = Ingest()\napp.handler('order')(lambda payload: None)\n"
    )
    (tmp_path / "raising.py").write_text("1 / 0\n")
    (tmp_path / "shop.py").write_text(
        "from naviscope_ingest import Ingest\n"
        "app = Ingest('sqlite:///shop.db')\n"
        "@app.handler('order')\n"
        "def order(payload: int) -> None: ...\n"
        "empty = Ingest()\n"
        "number = 3\n"
        "def make_broken(): return number.nothing\n"
    )


@pytest.mark.usefixtures("files", "store")
@pytest.mark.parametrize(("arguments", "reason", "hint"), WRONG, ids=lambda value: " ".join(value)[:40])
def test_a_wrong_use_gets_a_reason_a_hint_and_exit_code_2(call, arguments, reason, hint):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert reason in first
    assert second.startswith("hint: ")
    assert hint in second
    assert "Traceback" not in err


def test_without_a_store_it_says_how_to_name_one(call):
    code, _, err = call("epoch", "list")
    assert (code, err) == (2, "error: no store was named\nhint: give --store ingest.db, or set NAVISCOPE_STORE\n")


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("place", [["--debug", "epoch", "show", "x"], ["epoch", "show", "x", "--debug"]])
def test_a_traceback_is_shown_when_it_is_asked_for(call, place):
    code, _, err = call(*place)
    assert code == 2
    assert "Traceback" in err
    assert err.endswith(
        "error: there is no epoch 'x': it was never opened in this store, or it was forgotten\n"
        "hint: naviscope-ingest epoch list shows those that there are\n"
    )


UNREACHABLE = [
    (["limit", "list"], 4, "no process works on this store"),
    (["kind", "pause"], 4, "no process works on this store"),
    (["kind", "strike", "x"], 4, "no process works on this store"),
    (["epoch", "wait", "tuesday"], 4, "nothing runs here"),
    (["epoch", "wait", "tuesday", "--timeout", "0"], 3, "epoch 'tuesday' is open after 0"),
    (["epoch", "list", "--store", "text.db"], 4, "is no SQLite database"),
    (["epoch", "list", "--socket", "nowhere.control"], 4, "there is no nowhere.control"),
]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("arguments", "expected", "reason"), UNREACHABLE, ids=lambda value: str(value)[:40])
def test_what_cannot_be_reached_has_a_code_of_its_own(call, tmp_path, arguments, expected, reason):
    (tmp_path / "text.db").write_text("no database" * 20)
    code, out, err = call(*arguments)
    assert (code, out) == (expected, "")
    assert re.fullmatch(rf"error: .*{reason}.*\nhint: .+\n", err)


def test_an_app_whose_sink_cannot_be_opened_is_to_blame_itself(call, tmp_path):
    (tmp_path / "sinking.py").write_text(
        "from contextlib import AbstractAsyncContextManager\n"
        "from naviscope_ingest import Ingest\n"
        "class Sink(AbstractAsyncContextManager):\n"
        "    async def __aenter__(self): raise LookupError('no such warehouse')\n"
        "    async def __aexit__(self, *error): ...\n"
        "    async def commit(self, batch): ...\n"
        "app = Ingest()\n"
        "app.sink(Sink())\n"
        "@app.handler('order')\n"
        "def order(payload: int) -> None: ...\n"
    )
    code, out, err = call("run", "sinking:app", "--until-idle")
    assert (code, out) == (5, "")
    assert "sinking:app failed: " in err
    assert "sinking.py:4: LookupError: no such warehouse\nhint: --debug shows the traceback\n" in err


def test_a_command_that_nobody_expected_to_fail_says_so(call, store, monkeypatch):
    from naviscope_ingest.intake import IntakeHandle

    def fail(self):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(IntakeHandle, "epochs", fail)
    code, _, err = call("epoch", "list")
    assert (code, err.splitlines()[0]) == (70, "error: ZeroDivisionError: oops")
    assert "Traceback" not in err
