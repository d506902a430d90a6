"""Commands on a store whose process does not run."""

import json

import pytest

from naviscope_ingest.cli.program import program


def test_epochs_are_listed_newest_first(asked, store):
    assert [(each["name"], each["state"], each["dead"]) for each in asked("epoch", "list")] == [
        ("tuesday", "open", 0),
        ("monday", "completed", 3),
    ]
    assert [each["name"] for each in asked("epoch", "list", "--state", "failed")] == ["monday"]
    assert [each["name"] for each in asked("epoch", "list", "--state", "unfinished")] == ["tuesday"]
    assert [each["name"] for each in asked("epoch", "list", "mon")] == ["monday"]
    assert [each["name"] for each in asked("epoch", "list", "--limit", "1")] == ["tuesday"]


def test_a_table_in_a_pipe_is_plain_and_whole(call, store):
    code, out, err = call("epoch", "list")
    heading, tuesday, monday = out.splitlines()
    assert (code, err) == (0, "")
    assert heading.split() == [
        "EPOCH",
        "STATE",
        "MESSAGES",
        "LEFT",
        "DONE",
        "DEAD",
        "SKIPPED",
        "CANCELLED",
        "EXPIRED",
        "OPENED",
        "COMPLETED",
    ]
    assert tuesday.split()[:6] == ["tuesday", "open", "1", "1", "0", "0"]
    assert monday.split()[:6] == ["monday", "failed", "4", "0", "1", "3"]
    assert "\x1b" not in out
    assert "\t" not in out


def test_an_epoch_is_shown_with_what_failed_or_what_holds_it(call, asked, store):
    _, monday, _ = call("epoch", "show", "monday")
    assert "dead: bad-1: Permanent: no such table: bad-1" in monday
    assert "dead: after: message 'bad-1' ended dead (because of bad-1)" in monday
    _, tuesday, _ = call("epoch", "show", "tuesday")
    assert "1  waiting for message 'nobody'" in tuesday
    assert asked("epoch", "show", "tuesday")["why"]["counts"]["waiting"] == 1


def test_waiting_for_an_epoch_that_completed_tells_by_the_exit_code(call, store):
    code, out, _ = call("epoch", "wait", "monday")
    assert code == 1
    assert "1 committed, 3 dead" in out


def test_a_message_is_shown_and_explained(call, asked, store):
    _, out, _ = call("message", "show", "monday", "bad-1")
    assert "error    Permanent: no such table: bad-1" in out
    shown = asked("message", "show", "tuesday", "b")
    assert (shown["state"], shown["message"]["depends_on"], shown["message"]["key"]) == ("waiting", ["nobody"], "k")
    _, out, _ = call("message", "explain", "tuesday", "b")
    assert "dependency: message 'nobody' was never submitted; released when it is submitted and commits" in out
    assert asked("message", "show", "monday", "a")["end"] == "committed"


def test_cancelling_is_done_at_rest(asked, call, store):
    assert asked("message", "cancel", "tuesday", "b") == {"cancelled": True}
    assert asked("message", "cancel", "tuesday", "b", code=1) == {"cancelled": False}
    report = asked("epoch", "cancel", "tuesday")
    assert (report["state"], report["cancelled"]) == ("completed", 1)


def test_sealing_lets_an_epoch_complete(call, store):
    assert call("epoch", "seal", "tuesday")[1] == "epoch 'tuesday' is sealed: sealed\n"


# Dead letters


def test_dead_letters_are_listed_line_by_line(call, store):
    code, out, err = call("dead-letter", "list", "--json")
    letters = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [letter["id"] for letter in letters] == ["bad-1", "bad-2", "after"]
    code, out, _ = call("dead-letter", "list", "--kind", "load", "--limit", "1")
    assert [line.split()[1] for line in out.splitlines()] == ["ID", "bad-1"]
    assert call("dead-letter", "list", "--kind", "none") == (0, "", "no dead letters\n")


def test_letters_that_failed_alike_are_counted(asked, store):
    groups = asked("dead-letter", "group", "--kind", "load")
    assert [(group["count"], group["example"]["id"]) for group in groups] == [(2, "bad-1")]


def test_a_letter_is_shown_whole(call, asked, store):
    letter = asked("dead-letter", "show", "monday", "bad-2")
    assert letter["message"]["payload"] == {"table": "y", "rows": []}
    assert letter["origin"] == {"source": "test"}
    _, out, _ = call("dead-letter", "show", "monday", "bad-2")
    assert 'payload      {"table":"y","rows":[]}' in out
    assert "Load.execute" in out
    assert "in vain" in call("dead-letter", "show", "monday", "after")[1]


def test_a_replay_is_tried_done_and_audited(call, asked, store):
    would = asked("dead-letter", "replay", "--epoch", "monday", "--dry-run")
    assert (would["letters"], would["revived"], would["followers"]) == (2, 3, 1)
    done = asked("dead-letter", "replay", "--id", "bad-1", "-e", "monday", "--patch", "rows.1=7", "--reason", "mended")
    assert (done["letters"], done["revived"]) == (1, 2)
    _, out, _ = call("dead-letter", "audit", "--json")
    entry = json.loads(out)
    assert (entry["who"], entry["action"], entry["patch"], entry["reason"]) == (
        "anna",
        "replay",
        {"rows.1": 7},
        "mended",
    )
    assert "anna" in call("dead-letter", "audit")[1]
    assert [json.loads(line)["id"] for line in call("dead-letter", "list", "--json")[1].splitlines()] == ["bad-2"]
    assert asked("dead-letter", "replay", "--kind", "none", code=1)["letters"] == 0


def test_letters_are_discarded(call, store):
    assert call("dead-letter", "discard", "--all", "--reason", "x", "--dry-run")[1] == "3 letters would be discarded\n"
    assert call("dead-letter", "discard", "--all", "--reason", "x")[1] == "3 letters discarded\n"
    assert call("dead-letter", "list")[2] == "no dead letters\n"


def test_letters_go_elsewhere_and_back(call, asked, store, tmp_path):
    assert call("dead-letter", "export", "-o", "letters.jsonl") == (0, "", "3 letters in letters.jsonl\n")
    lines = (tmp_path / "letters.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["bad-1", "bad-2", "after"]
    assert call("dead-letter", "export", "--kind", "load")[1].splitlines() == lines[:2]
    receipt = asked("dead-letter", "import", "letters.jsonl", "--epoch", "again", "--store", "other.db")
    assert receipt["accepted"] == 3


# Submitting


def lines(path, *messages):
    path.write_text("".join(json.dumps(each) + "\n" for each in messages))
    return path


def test_lines_are_submitted_once(asked, call, tmp_path):
    file = lines(tmp_path / "in.jsonl", {"id": "a"}, {"id": "b", "depends_on": ["a"]})
    first, second = (asked("submit", file, "-e", "monday", "-s", "new.db") for _ in range(2))
    assert (first["accepted"], first["duplicates"], first["state"]) == (2, 0, "sealed")
    assert (second["accepted"], second["duplicates"]) == (0, 2)
    lines(file, {"id": "a", "payload": "another"})
    code, _, err = call("submit", file, "-e", "monday", "-s", "new.db")
    assert (code, err) == (0, "conflict: a was known with another content, which counts\n")


def test_an_epoch_may_be_kept_open(asked, tmp_path):
    file = lines(tmp_path / "in.jsonl", {"id": "a"})
    answer = asked("submit", file, "-s", "new.db", "--keep-open", "--kind", "order")
    assert (answer["epoch"], answer["state"]) == ("epoch-1", "open")
    assert asked("message", "show", "epoch-1", "a", "-s", "new.db")["message"]["kind"] == "order"


def test_what_came_before_a_bad_line_is_said(call, asked, tmp_path):
    file = lines(tmp_path / "in.jsonl", *({"id": f"m{n}"} for n in range(1_200)), {"id": ""})
    code, _, err = call("submit", file, "-e", "monday", "-s", "new.db")
    assert code == 2
    assert f"{file}:1201: the message id is empty" in err
    assert "1,000 lines before were stored in epoch 'monday'" in err
    report = asked("epoch", "show", "monday", "-s", "new.db")["report"]
    assert (report["submitted"], report["state"]) == (1_000, "open")


def test_a_payload_is_checked_by_the_app(call, tmp_path, monkeypatch):
    (tmp_path / "typed.py").write_text(
        "from naviscope_ingest import Ingest\n"
        "app = Ingest('sqlite:///typed.db')\n"
        "@app.handler('order')\n"
        "def order(amount: int) -> None: ...\n"
    )
    file = lines(
        tmp_path / "in.jsonl", {"id": "a", "kind": "order", "payload": 1}, {"id": "b", "kind": "order", "payload": "x"}
    )
    code, _, err = call("submit", file, "--app", "typed:app")
    assert code == 2
    assert f"{file}:2: message 'b' of kind 'order': payload cannot be encoded: it is not of the type" in err
    assert "nothing was stored" in err
    lines(file, {"id": "a", "kind": "odrer"})
    assert "no handler: did you mean 'order'?" in call("submit", file, "--app", "typed:app")[2]


def test_empty_lines_are_nothing(asked, tmp_path):
    (tmp_path / "in.jsonl").write_text('\n{"id": "a"}\n  \n')
    assert asked("submit", tmp_path / "in.jsonl", "-s", "new.db")["lines"] == 1


# The store and the rest


def test_a_store_is_described_checked_and_copied(asked, call, store):
    found = asked("store", "info")
    assert (found["epochs"], found["unfinished"], found["process"]) == (2, 1, None)
    assert call("store", "verify")[:2] == (0, "sound\n")
    assert call("store", "backup", "copy.db")[0] == 0
    assert len(asked("epoch", "list", "-s", "copy.db")) == 2


def test_a_damaged_row_is_bad_news(call, store):
    data = bytearray(store.read_bytes())
    at = data.find(b"bad-2")
    data[at] ^= 1
    store.write_bytes(bytes(data))
    code, out, _ = call("store", "verify")
    assert code == 1
    assert "the row does not match its hash" in out


def test_old_epochs_are_pruned(asked, call, store):
    call("dead-letter", "discard", "--all", "--reason", "x")
    assert asked("store", "prune", "--older-than", "0s")["removed"] > 0
    assert [each["name"] for each in asked("epoch", "list")] == ["tuesday"]


def test_the_doctor_finds_a_sound_store_sound(asked, call, store):
    found = {each["what"]: each["verdict"] for each in asked("doctor")}
    assert found.pop("dead letters") == "note"
    assert set(found.values()) == {"good"}
    assert {"python", "sqlite", "disk", "file", "process", "store", "configuration"} <= found.keys()


def test_the_doctor_says_what_to_do(call, tmp_path, monkeypatch):
    (tmp_path / "text.db").write_text("no database" * 20)
    monkeypatch.setenv("NAVISCOPE_MAX_INFLIGHT", "3")
    code, out, _ = call("doctor", "-s", "text.db", "-a", "nomodule:app")
    assert code == 1
    assert "bad   store" in out
    assert "bad   app" in out
    assert "bad   configuration" in out
    assert "→ " in out
    code, out, _ = call("doctor", "-s", "no/folder/x.db")
    assert "→ mkdir -p no/folder" in out


def test_settings_are_shown_with_their_origin(asked, call, tmp_path, monkeypatch):
    (tmp_path / "ingest.toml").write_text("max_in_flight = 3\n")
    monkeypatch.setenv("NAVISCOPE_STORE", "some.db")
    found = {each["key"]: (each["value"], each["from"]) for each in asked("config", "show", "--config", "ingest.toml")}
    assert found == {"store": ("sqlite:///some.db", "NAVISCOPE_STORE"), "max_in_flight": (3, "ingest.toml:1")}
    assert len(asked("config", "show", "--all")) > 50
    assert [each["key"] for each in asked("config", "show", "intake.high")] == ["intake.high_mark"]
    assert json.loads(call("config", "schema")[1])["type"] == "object"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(call, shell):
    code, out, _ = call("completion", shell)
    assert code == 0
    assert "_COMPLETE" in out


def every_command(group=program, path=()):
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from every_command(found, (*path, name))
        else:
            yield (*path, name), found


@pytest.mark.parametrize(
    ("path", "found"), list(every_command()), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_has_help_and_json(call, path, found):
    if path == ("demo",):
        return
    code, out, err = call(*path, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: naviscope-ingest {' '.join(path)}")
    assert max(map(len, out.splitlines())) <= 100
    assert "--json" in out
    assert found.help
