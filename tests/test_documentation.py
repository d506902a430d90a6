"""Every Python block of the documentation runs.

Blocks of one file share a namespace, in order. A block that cannot run is preceded by a comment that says why:
`<!-- not run: needs a server -->`.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^\s*(?P<ticks>`{3,})\s*(?P<language>[\w+-]*)")
NOT_RUN = re.compile(r"^\s*<!--\s*not run\b:?\s*(?P<reason>.*?)\s*-->\s*$")


class Block(NamedTuple):
    """A Python block: the line its code starts on, the code, and why it does not run, if it does not."""

    line: int
    source: str
    not_run: str | None


def documents() -> list[Path]:
    candidates = [ROOT / "README.md", ROOT / "spi" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in candidates if path.is_file()]


def blocks(text: str) -> Iterator[Block]:
    """Yield the Python blocks of a Markdown text.

    Raises:
        ValueError: A block is not closed, or is not run without a reason.
    """
    lines = text.splitlines()
    before = ""
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            before = lines[at] if lines[at].strip() else before
            at += 1
            continue
        end = closing_fence(lines, at, fence["ticks"])
        if fence["language"].lower() == "python":
            source = textwrap.dedent("\n".join(lines[at + 1 : end])) + "\n"
            yield Block(at + 2, source, reason_not_to_run(before, at + 1))
        before = ""
        at = end + 1


def closing_fence(lines: list[str], start: int, ticks: str) -> int:
    for at in range(start + 1, len(lines)):
        stripped = lines[at].strip()
        if stripped.startswith(ticks) and not stripped.strip("`"):
            return at
    raise ValueError(f"line {start + 1}: the block is not closed")


def reason_not_to_run(before: str, line: int) -> str | None:
    comment = NOT_RUN.match(before)
    if comment is None:
        return None
    if not comment["reason"]:
        raise ValueError(f"line {line}: say why the block is not run: <!-- not run: reason -->")
    return comment["reason"]


def run(block: Block, path: Path, namespace: dict[str, object]) -> None:
    # The empty lines make a traceback point at the line of the document.
    source = "\n" * (block.line - 1) + block.source
    exec(compile(source, str(path), "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_document_run(path, monkeypatch, tmp_path):
    # A module of its own lets classes in a block find their annotations, as they would in a file.
    module = ModuleType("documentation")
    monkeypatch.setitem(sys.modules, "documentation", module)
    monkeypatch.chdir(tmp_path)
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.not_run is None:
            run(block, path, module.__dict__)


def test_there_are_documents():
    assert documents()


def test_only_python_blocks_are_found():
    text = "```python\na = 1\n```\n\n```console\n$ ls\n```\n\n````\n```python\nb\n```\n````\n"
    assert list(blocks(text)) == [Block(2, "a = 1\n", None)]


def test_a_block_in_a_list_loses_its_indent():
    assert [block.source for block in blocks("- x\n\n  ```python\n  if a:\n      b\n  ```\n")] == ["if a:\n    b\n"]


def test_a_block_with_a_reason_is_not_run():
    text = "<!-- not run: needs a server -->\n\n```python\na\n```\n\n```python\nb\n```\n"
    assert [block.not_run for block in blocks(text)] == ["needs a server", None]


@pytest.mark.parametrize("comment", ["<!-- not run -->", "<!-- not run: -->"])
def test_a_reason_is_required(comment):
    with pytest.raises(ValueError, match="line 2: say why"):
        list(blocks(f"{comment}\n```python\na\n```\n"))


def test_an_open_block_is_an_error():
    with pytest.raises(ValueError, match="line 1: the block is not closed"):
        list(blocks("```python\na\n"))


def test_blocks_share_a_namespace_in_order():
    namespace: dict[str, object] = {}
    for block in blocks("```python\na = 1\n```\n```python\nb = a + 1\n```\n"):
        run(block, Path("x.md"), namespace)
    assert namespace["b"] == 2


def test_a_failure_points_at_the_line_of_the_document():
    (block,) = blocks("text\n\n```python\na = 1\na / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(block, Path("x.md"), {})
    assert caught.traceback[-1].lineno == 4  # Counted from zero.
