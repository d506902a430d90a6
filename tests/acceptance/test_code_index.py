"""The demo: its answers are right, it survives being killed, and it does again only what an edit touched."""

import importlib
import inspect
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import apsw
import pytest

from examples.code_index.names import Resolver
from examples.code_index.pipeline import SURVEY, make_app
from examples.code_index.tables import OF_A_FILE, Index
from naviscope_ingest.faults import CRASH_CODE, VARIABLE

ROOT = Path(__file__).resolve().parents[2]
STDLIB = Path(sysconfig.get_path("stdlib"))
TABLES = (*OF_A_FILE, "module", "summary")


def copy_of_stdlib(folder, *names):
    folder.mkdir()
    for name in names:
        source = STDLIB / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "test", "tests"))
        else:
            shutil.copy(source, folder)
    return folder


def dump(database):
    """Return every row of the index, sorted."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return {table: sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}
    finally:
        connection.close()


class Ends:
    """Which messages ended, and how; told by the runtime."""

    def __init__(self):
        self.counts = {}

    def ended(self, end, kind, count):
        self.counts[kind, end] = self.counts.get((kind, end), 0) + count

    def __getattr__(self, name):
        return lambda *arguments: None


async def index(tree, database):
    """Run the app once; return how many messages ended, by kind and end."""
    ends = Ends()
    async with make_app(tree, database, metrics=ends).running() as intake, intake.epoch() as epoch:
        await epoch.submit(SURVEY)
    return ends.counts


def command(*arguments):
    return [sys.executable, "-m", "examples.code_index", *map(str, arguments)]


def public_names(module_name):
    """Yield names that `inspect` can find: dotted name, file, first line."""
    module = importlib.import_module(module_name)
    for name in sorted(vars(module)):
        thing = getattr(module, name)
        if name.startswith("__") or not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        try:
            file, (_, line) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
        except (OSError, TypeError):
            continue  # It is written in C, or made while the program runs.
        yield f"{module_name}.{name}", thing, Path(file), line


async def test_definitions_are_where_inspect_finds_them(tmp_path):
    packages = ("json", "logging", "asyncio", "unittest", "email", "http", "urllib", "concurrent", "collections")
    files = ("argparse.py", "os.py", "posixpath.py", "textwrap.py", "shutil.py", "pathlib.py", "tempfile.py")
    tree = copy_of_stdlib(tmp_path / "tree", *packages, *files)
    await index(tree, tmp_path / "index.db")
    modules = (
        "json",
        "json.decoder",
        "logging",
        "logging.handlers",
        "asyncio",
        "asyncio.tasks",
        "unittest",
        "argparse",
    )
    modules += ("email.message", "http.client", "urllib.parse", "concurrent.futures.thread", "collections", "os")
    modules += ("os.path", "textwrap", "shutil", "tempfile", "unittest.mock")
    compared, aliases, wrong = 0, 0, []
    with Index.open(tmp_path / "index.db") as found:
        resolver = Resolver(found)
        for module in modules:
            for name, thing, file, first_line in public_names(module):
                home = tree / file.relative_to(STDLIB) if file.is_relative_to(STDLIB) else None
                if home is None or not home.exists() or thing.__qualname__ != thing.__name__:
                    continue
                target = resolver.resolve(name)
                places = found.where(target) if target is not None and target.is_exact else []
                kinds = "SELECT DISTINCT kind FROM definition WHERE module = ? AND name = ?"
                if target is not None and found.rows(kinds, target.module, target.name) == [("variable",)]:
                    aliases += 1  # `_PyTask = Task`: the index shows the assignment, inspect what was assigned.
                    continue
                compared += 1
                if (str(file.relative_to(STDLIB)), first_line) not in [(path, first) for path, _, first in places]:
                    wrong.append((name, str(file), first_line, target, places))
    assert compared >= 200
    assert aliases < 20
    assert not wrong, wrong[:5]


async def test_calls_are_found_through_imports_reexports_and_base_classes(tmp_path):
    tree = make_tree(
        tmp_path / "tree",
        {
            "shop/__init__.py": "from .prices import total\nfrom .basket import *\n",
            "shop/prices.py": "def total(items):\n    return sum(items)\n",
            "shop/basket.py": "class Basket:\n    def add(self): ...\n\nclass Big(Basket):\n    def fill(self):\n"
            "        self.add()\n",
            "main.py": "import shop\nfrom shop import Big as Box\n\ndef run(total):\n    total()\n\nshop.total([])\n"
            "Box().fill()\nBox.add(None)\n",
        },
    )
    await index(tree, tmp_path / "index.db")
    with Index.open(tmp_path / "index.db") as found:
        resolver = Resolver(found)
        calls = {
            name: [(use.path, use.line) for use in found.uses(resolver.resolve(name)) if use.is_call]
            for name in ("shop.total", "shop.Basket.add", "shop.basket.Big")
        }
    assert calls == {
        "shop.total": [("main.py", 7)],
        "shop.Basket.add": [("main.py", 9), ("shop/basket.py", 6)],
        "shop.basket.Big": [("main.py", 8)],
    }


def make_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CIRCLE = {
    "a.py": "import b\n\ndef f():\n    b.g()\n",
    "b.py": "import a\nfrom c import h\n\ndef g():\n    a.f()\n    h()\n",
    "c.py": "def h(): ...\n",
    "lonely.py": "def alone(): ...\n",
}


async def test_modules_may_import_each_other_in_circles(tmp_path):
    ends = await index(make_tree(tmp_path / "tree", CIRCLE), tmp_path / "index.db")
    assert ends == {
        ("survey", "committed"): 1,
        ("declare", "committed"): 4,
        ("resolve", "committed"): 4,
        ("summarize", "committed"): 1,
    }
    assert ("b", "a:f", "a", "f", 1) in dump(tmp_path / "index.db")["link"]


async def test_a_missing_module_is_reported_and_holds_up_nothing(tmp_path):
    tree = make_tree(tmp_path / "tree", CIRCLE | {"c.py": "import nowhere, sys, os.path\nfrom b.deep import x\n"})
    ends = await index(tree, tmp_path / "index.db")
    assert ends["resolve", "committed"] == 4
    assert dump(tmp_path / "index.db")["missing"] == [("c", "b.deep", 2), ("c", "nowhere", 1)]


async def test_a_file_that_is_not_python_costs_itself(tmp_path):
    tree = make_tree(tmp_path / "tree", CIRCLE | {"c.py": "def h(:\n"})
    ends = await index(tree, tmp_path / "index.db")
    assert ends["declare", "dead"] == 1
    assert ends["resolve", "committed"] == 3
    assert ("b", "c", 2) in dump(tmp_path / "index.db")["missing"]


NOTHING = {("survey", "committed"): 1}


@pytest.mark.parametrize(
    ("edit", "declared", "resolved"),
    [
        ({"lonely.py": "def alone(): ...\n\ndef other(): ...\n"}, 1, 1),
        ({"c.py": "\n\ndef h(): ...\n"}, 1, 2),
        ({"a.py": "import b\n\ndef f2():\n    b.g()\n"}, 1, 2),
        ({"new.py": "import lonely\n"}, 1, 1),
        ({"c.py": None}, 0, 1),
        ({"lonely.py": None}, 0, 0),
        ({"c.py": None, "c/__init__.py": "from .d import h\n", "c/d.py": "def h(): ...\n"}, 2, 3),
    ],
)
async def test_an_edit_costs_what_it_touched_and_leads_to_the_same_index(tmp_path, edit, declared, resolved):
    tree, database = make_tree(tmp_path / "tree", CIRCLE), tmp_path / "index.db"
    await index(tree, database)
    assert await index(tree, database) == NOTHING
    for name, text in edit.items():
        (tree / name).unlink() if text is None else make_tree(tree, {name: text})
    ends = await index(tree, database)
    assert (ends.get(("declare", "committed"), 0), ends.get(("resolve", "committed"), 0)) == (declared, resolved)
    await index(tree, tmp_path / "fresh.db")
    assert dump(database) == dump(tmp_path / "fresh.db")


def steps(database):
    """Count what has been committed: files read, modules resolved, packages summarized."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(10_000)
    try:
        ((count,),) = connection.execute(
            "SELECT (SELECT count(*) FROM module WHERE hash IS NOT NULL) + (SELECT count(*) FROM summary)"
            " + (SELECT count(DISTINCT module) FROM consulted)"
        )
    except apsw.SQLError:
        return 0  # There are no tables yet.
    finally:
        connection.close()
    return count


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing can be killed here")
def test_killed_at_ten_instants_it_ends_with_the_same_index(tmp_path):
    names = ("json", "email", "logging", "collections", "html", "http", "os.py", "posixpath.py")
    tree = copy_of_stdlib(tmp_path / "tree", *names)
    undisturbed, database = tmp_path / "undisturbed.db", tmp_path / "killed.db"
    done = subprocess.run(command("--path", tree, "--database", undisturbed), cwd=ROOT, capture_output=True, check=True)
    assert b"\x1b" not in done.stdout
    total = steps(undisturbed)
    kills = 0
    for least in sorted(random.Random(os.urandom(4)).sample(range(1, total - 8), 10)):
        with subprocess.Popen(
            command("--path", tree, "--database", database), cwd=ROOT, stdout=subprocess.DEVNULL
        ) as process:
            while process.poll() is None and (not database.exists() or steps(database) < least):
                try:
                    process.wait(timeout=0.01)
                except subprocess.TimeoutExpired:
                    continue
            process.kill()
        kills += steps(database) < total
    assert kills >= 8
    subprocess.run(command("--path", tree, "--database", database), cwd=ROOT, capture_output=True, check=True)
    assert dump(database) == dump(undisturbed)


FAULTS = (
    "seed=1,declare:0.05:5xx,resolve:0.05:connection,executor:0.02:timeout,executor:0.02:busy=0.01,executor:0.02:error,"
    "executor:0.05:slow=0.01,executor:0.005:crash,sink:0.05:timeout,sink:0.05:connection,sink:0.05:error,"
    "sink:0.05:slow=0.01,sink:0.02:crash,commit:0.05:slow=0.01,commit:0.02:crash,commit:0.02:stop,"
    "store:0.05:slow=0.01,store:0.01:crash,store:0.01:stop,lookup:0.5:error"
)


def test_under_faults_at_every_point_it_ends_with_the_same_index(tmp_path):
    tree = copy_of_stdlib(tmp_path / "tree", "json", "email", "logging", "collections", "html", "os.py", "posixpath.py")
    undisturbed, database = tmp_path / "undisturbed.db", tmp_path / "struck.db"
    subprocess.run(command("--path", tree, "--database", undisturbed), cwd=ROOT, capture_output=True, check=True)
    endings, struck = [], set()
    for _ in range(100):
        done = subprocess.run(
            command("--path", tree, "--database", database),
            cwd=ROOT,
            env={**os.environ, VARIABLE: FAULTS},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "FAULTS ARE ON" in done.stderr
        endings.append(done.returncode)
        struck |= {each.split()[-1] for each in done.stderr.splitlines() if each.startswith("the process crashes")}
        if not done.returncode:
            break
        assert done.returncode == CRASH_CODE or "on purpose" in done.stderr, done.stderr
    assert endings[-1] == 0, done.stderr
    assert endings.count(CRASH_CODE) >= 3
    assert len(struck) >= 2, struck
    assert dump(database) == dump(undisturbed)


def test_the_command_says_which_fault_it_cannot_read(tmp_path):
    done = subprocess.run(
        command("--path", tmp_path),
        cwd=ROOT,
        env={**os.environ, VARIABLE: "snik:0.1:error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "perhaps 'sink' was meant" in done.stderr


def test_the_command_says_what_is_wrong(tmp_path):
    done = subprocess.run(command("--path", tmp_path / "no"), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is no folder" in done.stderr
