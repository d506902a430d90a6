"""Files: what is let in, what is refused, and on which line."""

import sys
import tomllib
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naviscope_ingest import ConfigurationError
from naviscope_ingest.settings.files import MAX_BYTES, MAX_DEPTH, read_file
from naviscope_ingest.settings.origins import shown_path
from naviscope_ingest.settings.toml_lines import lines_of


def read(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_file(path)


def refusal(path, text):
    with pytest.raises(ConfigurationError) as caught:
        read(path, text)
    (problem,) = caught.value.problems
    return problem


def plain(placed):
    if isinstance(placed.value, dict):
        return {key: plain(child) for key, child in placed.value.items()}
    return [plain(child) for child in placed.value] if isinstance(placed.value, list) else placed.value


@pytest.mark.parametrize("suffix", ["toml", "yaml"])
@pytest.mark.parametrize("text", ["", "# nothing\n", "\ufeff", "\n\n"])
def test_an_empty_file_says_nothing(tmp_path, suffix, text):
    assert plain(read(tmp_path / f"a.{suffix}", text)) == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("9" * 5000, float("inf")),
        ("<<", "<<"),
    ],
)
def test_scalars_of_yaml_go_by_the_core_schema(tmp_path, text, value):
    assert plain(read(tmp_path / "a.yaml", f"a: {text}")) == {"a": value}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: &x 1\nb: *x\n", 1, "is an anchor"),
        ("a: 1\nb: *x\n", 2, "is an alias"),
        ("a:\n  - &x [1]\n", 2, "is an anchor"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "is a tag"),
        ("a: !!str 1\n", 1, "is a tag"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' is there twice, first in line 1"),
        ("a: {b: 1, b: 2}\n", 1, "the key 'b' is there twice"),
        ("? [a]\n: 1\n", 1, "a key must be a plain string"),
        ("a: 1\n---\nb: 2\n", 2, "more than one document"),
        ("a: [1\nb: 2\n", 2, "it is no YAML"),
        ("a: 'x\n", 2, "it is no YAML"),
        ("a:\n\t- 1\n", 2, "it is no YAML"),
        ("a: \x00\n", None, "it is no YAML"),
        ("[" * 30, 1, "nested deeper than 20 levels"),
        ("a: " + "{a: " * 5000, 1, "nested deeper than 20 levels"),
    ],
)
def test_what_yaml_may_not_hold_is_refused_with_its_line(tmp_path, text, line, reason):
    problem = refusal(tmp_path / "a.yaml", text)
    assert reason in problem.reason
    assert problem.origin.line == line


def test_a_bomb_of_aliases_is_refused(tmp_path):
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    assert "is an anchor" in refusal(tmp_path / "a.yaml", bomb).reason


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a = \n", 1, "it is no TOML"),
        ("a = 1\na = 2\n", 2, "it is no TOML"),
        ("a = 1\n[a]\n", 2, "it is no TOML"),
        ("\n\nb\n", 3, "it is no TOML"),
        ("a = '", 1, "it is no TOML"),
        ("a = " + "[" * 30 + "]" * 30, 1, "nested deeper than 20 levels"),
        ("a = " + "[" * 50_000, None, "nested deeper than 20 levels"),
        ("a = 9" + "9" * 5000, None, "it is no TOML"),
    ],
)
def test_what_is_no_toml_is_refused_with_its_line(tmp_path, text, line, reason):
    problem = refusal(tmp_path / "a.toml", text)
    assert reason in problem.reason
    assert problem.origin.line == line


@pytest.mark.parametrize("suffix", ["toml", "yaml"])
def test_a_file_has_limits(tmp_path, suffix):
    assert "larger than 256 KiB" in refusal(tmp_path / f"a.{suffix}", "#" * (MAX_BYTES + 1)).reason
    problem = refusal(tmp_path / f"a.{suffix}", b"# fine\n# \xff\n")
    assert (problem.reason, problem.origin.line) == ("it is not UTF-8", 2)


@pytest.mark.parametrize("name", ["a.json", "a", "a.py"])
def test_the_suffix_says_what_a_file_is(tmp_path, name):
    assert "give a file that ends in .toml, .yaml or .yml" in refusal(tmp_path / name, "").reason


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"a\.toml: it cannot be read: No such file"):
        read_file(tmp_path / "a.toml")
    with pytest.raises(ConfigurationError, match="it cannot be read: Is a directory"):
        (tmp_path / "b.toml").mkdir()
        read_file(tmp_path / "b.toml")


def test_yaml_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert 'pip install "naviscope-ingest[yaml]"' in refusal(tmp_path / "a.yaml", "a: 1").reason


TOML = '''\
# a comment = 1
a = 1
"quoted key".b.'c d' = """
[not.a.table]
x = 1
"""
when = 1979-05-27 07:32:00
list = [
  1,  # one
  [2, 3],
  { x = 1, y.z = [
    4 ] },
]
many = \'\'\'it''s
two\'\'\'
[table."in a".table]
a.b = "]"
[[array]]
x = 1
[[array]]
x = { }
[array.sub]
y = "a\\"b # no comment"
[[array.deep]]
z = 1
'''


def test_every_line_of_toml_is_found():
    assert {shown_path(path): line for path, line in lines_of(TOML).items()} == {
        "a": 2,
        '"quoted key"': 3,
        '"quoted key".b': 3,
        '"quoted key".b."c d"': 3,
        "when": 7,
        "list": 8,
        "list[0]": 9,
        "list[1]": 10,
        "list[1][0]": 10,
        "list[1][1]": 10,
        "list[2]": 11,
        "list[2].x": 11,
        "list[2].y": 11,
        "list[2].y.z": 11,
        "list[2].y.z[0]": 12,
        "many": 14,
        'table."in a".table': 16,
        'table."in a".table.a': 17,
        'table."in a".table.a.b': 17,
        "array": 18,
        "array[0]": 18,
        "array[0].x": 19,
        "array[1]": 20,
        "array[1].x": 21,
        "array[1].sub": 22,
        "array[1].sub.y": 23,
        "array[1].deep": 24,
        "array[1].deep[0]": 24,
        "array[1].deep[0].z": 25,
    }
    assert tomllib.loads(TOML)["array"][1]["deep"] == [{"z": 1}]


KEYS = st.text("ab.'\" \\#=[", min_size=1, max_size=4)
VALUES = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), st.dates(), st.text("a\"'\\\n#=[]{},", max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | date):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "[" + ",\n".join(map(toml, value)) + "]"
    return "{" + ", ".join(f"{quoted(key)} = {toml(child)}" for key, child in value.items()) + "}"


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def paths(value, path=()):
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths(child, (*path, key))


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_toml_holds_each_path_has_a_line_that_never_goes_back(document):
    text = "".join(f"# {index}\n{quoted(key)} = {toml(value)}\n" for index, (key, value) in enumerate(document.items()))
    assert tomllib.loads(text) == document
    found = lines_of(text)
    assert list(found) == list(paths(document))
    assert list(found.values()) == sorted(found.values())


def test_the_limits_are_what_the_errors_say():
    assert (MAX_BYTES, MAX_DEPTH) == (256 * 1024, 20)
