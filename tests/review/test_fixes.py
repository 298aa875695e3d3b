"""Fixes as diffs: each one that is made applies and has the proposed text, and none is made of half a line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consilience.targets.fixes import MAX_FIX_LINES, KnownLines, make_fix

LINE = st.sampled_from(["a = 1", "    b = 2", "", "c", "d d", "-- x", "++ y"])
CODE = ["def f(n):", "    for i in range(n + 1):", "        yield i", "    return None"]


def known(lines: list[str], *, ended: bool = True, first: int = 1) -> KnownLines:
    numbered = dict(enumerate(lines, first))
    return KnownLines("x.py", numbered, 0 if ended else max(numbered))


def fix(first: int, last: int, quotation: str, replacement: str | None) -> list[str]:
    """The changed lines of a fix for `CODE`."""
    diff = make_fix(known(CODE), first, last, quotation, replacement).splitlines()[3:]
    return [line for line in diff if line[:1] in "+-"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINE, min_size=1, max_size=9), st.lists(LINE, max_size=4), st.booleans(), st.data())
def test_fix_of_any_replacement_applies_as_a_patch(
    tmp_path: Path, lines: list[str], replacement: list[str], ended: bool, data: st.DataObject
) -> None:
    """Git applies it, and the result is the file with the replacement in the place of the quoted lines."""
    first = data.draw(st.integers(1, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    quotation = "\n".join(lines[first - 1 : last]) or "-"
    ended = ended or not lines[-1]
    text = "\n".join(replacement)
    diff = make_fix(known(lines, ended=ended), first, last, quotation, text)
    new = [*lines[: first - 1], *text.splitlines(), *lines[last:]]
    if not diff:
        assert new == lines or quotation == "-" or (not ended and new[-1:] == [""])
        return
    end = "\n" if ended else ""
    path = tmp_path / "x.py"
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    subprocess.run(["git", "apply", "-p1", "-"], cwd=tmp_path, input=diff.encode(), check=True, capture_output=True)
    result = path.read_text(encoding="utf-8") if path.exists() else ""
    assert result == ("\n".join(new) + end if new else "")


def test_fix_adds_the_indentation_missing_from_the_quotation() -> None:
    quoted = "for i in range(n + 1):"
    assert fix(2, 2, quoted, "for i in range(n):") == ["-    for i in range(n + 1):", "+    for i in range(n):"]
    both = "for i in range(n + 1):\n        yield i"
    expected = ["-    for i in range(n + 1):", "+    for i in range(n):"]
    assert fix(2, 3, both, "for i in range(n):\n        yield i") == expected
    assert fix(2, 3, both, "for i in range(n):\n    yield i") == expected
    assert fix(2, 2, quoted, "if n:\n    for i in range(n):")[1:] == ["+    if n:", "+        for i in range(n):"]
    assert fix(3, 4, "yield i\n    return None", "yield i\n    return n") == ["-    return None", "+    return n"]
    assert fix(2, 2, f"    {quoted}", "for i in range(n):")[1] == "+for i in range(n):", "meant as it is"


@pytest.mark.parametrize(
    ("quotation", "replacement"),
    [
        ("for i in range(n + 1):", None),
        ("for i in range(n + 1):", "    for i in range(n + 1):\n"),
        ("n + 1", "n"),
        ("range(n + 1)", "range(n)"),
        ("for i in range(n + 1):", "\n".join(f"line {n}" for n in range(MAX_FIX_LINES))),
    ],
)
def test_fix_of_no_change_part_of_a_line_or_many_lines_is_empty(quotation: str, replacement: str | None) -> None:
    assert fix(2, 2, quotation, replacement) == []


def test_fix_of_a_partly_quoted_line_needs_a_complete_replacement() -> None:
    assert fix(2, 2, "range(n + 1)", "for i in range(n):")[1] == "+    for i in range(n):"


def test_fix_of_lines_not_shown_is_empty() -> None:
    assert make_fix(known(CODE, first=40), 3, 3, "c", "d") == ""
    diff = make_fix(known(CODE, first=40), 41, 41, "for i in range(n + 1):", "for i in range(n):")
    assert "@@ -40,4 +40,4 @@" in diff
