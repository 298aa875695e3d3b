"""Rendered texts as files. `golden(text)` compares a text with the section of its test in `golden/NAME.md` beside the module
`test_NAME.py`; `golden.page(name, text)` compares a whole file. A section has the name of its test, which says what to look for.

`make golden` writes the files anew. Read the difference before you commit it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

HEAD = re.compile(r"^={5} (.+) ={5}\n", re.MULTILINE)
VARYING = [
    (re.compile(r"\br[0-9a-f]{6}(?:[0-9a-f]{2}|[0-9a-f]{10})?\b"), "SESSION"),
    (re.compile(r"[^\s'\"`(]*/pytest-of-[^/]+/pytest-\d+/(?:popen-\w+/)?[^/\s]+"), "DIRECTORY"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d{5}\b"), "PORT"),
    (re.compile(r"\b\d+\.\d s\b"), "0.0 s"),
    (re.compile(r"(?<=having read )\d+(?= characters)|(?<=Tokens: at most )[\d,]*\d|(?<=at most \$)[\d.,]*\d"), "N"),
    (re.compile(r"[\d,]+ tokens read, [\d,]+ written"), "N tokens read, N written"),
    (re.compile(r"(?<=calls and )[\d,]+(?= tokens;)"), "N"),
    (re.compile(r"(?<=\| tokens \| )[\d,]+ \| [\d,]+"), "N | N"),
    (re.compile(r"\bconsilience \d+\.\d+\S*"), "consilience VERSION"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
]
"""What differs from run to run (ids, temporary directories, ports, times, the version) or with the length of prompts."""


def steady(text: str) -> str:
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return (text.strip("\n") or "(nothing)") + "\n"


def section(text: str, heading: str) -> str:
    """The sections of a Markdown text whose heading begins so, of any level, each up to the next heading."""
    found = re.findall(rf"^#+ {re.escape(heading)}.*\n(?:(?!##+ ).*\n?)*", text, re.MULTILINE)
    assert found, f"there is no {heading!r}"
    return "\n".join(found)


def lines_with(pattern: str, text: str) -> str:
    """The lines in which a regular expression is found. A golden file of nothing would show nothing: there must be one."""
    found = [line for line in text.splitlines() if re.search(pattern, line)]
    assert found, f"no line has {pattern!r}"
    return "\n".join(found)


def read_sections(path: Path) -> dict[str, str]:
    """The sections of a page, by title."""
    parts = HEAD.split(path.read_text(encoding="utf-8"))[1:] if path.exists() else []
    return {title: text.strip("\n") + "\n" for title, text in zip(parts[::2], parts[1::2], strict=True)}


def titles_in(module: Path) -> list[str]:
    """Titles of the tests of a module, in its order."""
    return [
        name.replace("_", " ") for name in re.findall(r"^(?:async )?def test_(\w+)", module.read_text(), re.MULTILINE)
    ]


def arranged(sections: dict[str, str], module: Path) -> dict[str, str]:
    """Sections in the order of their tests, without those whose test is gone."""
    order = {name: n for n, name in enumerate(titles_in(module))}
    kept = [title for title in sections if owner(title) in order]
    return {title: sections[title] for title in sorted(kept, key=lambda title: order[owner(title)])}


def owner(title: str) -> str:
    return re.split(r" \[|: ", title, maxsplit=1)[0]


class Golden:
    """The golden files of one test. With `write` they are written, not compared."""

    def __init__(self, module: Path, test: str, write: bool) -> None:
        name, _, case = test.removeprefix("test_").partition("[")
        self.title = name.replace("_", " ") + (f" [{case}" if case else "")
        self.module, self.write = module, write
        self.directory = module.parent / "golden"
        self.sections = self.directory / f"{module.stem.removeprefix('test_')}.md"
        self.seen: dict[str, str] = {}

    def __call__(self, text: str | Iterable[str], label: str = "") -> None:
        """Compare a text, or texts one below the other (of a mapping with their names), with the section of this test, or with
        its section of that label."""
        title = f"{self.title}: {label}" if label else self.title
        lines = (f"{name}: {line}" for name, line in text.items()) if isinstance(text, Mapping) else text
        sections, text = read_sections(self.sections), steady(lines if isinstance(lines, str) else "\n".join(lines))
        assert self.seen.setdefault(title, text) == text, f"a test has several texts: give them labels ({title})"
        if self.write:
            sections = arranged(sections | {title: text}, self.module)
            self.directory.mkdir(exist_ok=True)
            pages = (f"===== {name} =====\n\n{body}" for name, body in sections.items())
            self.sections.write_text("\n".join(pages), encoding="utf-8")
        else:
            self.compare(sections.get(title, ""), text, f"{self.sections.name}, {title}")

    def page(self, name: str, text: str) -> None:
        """Compare with a whole file."""
        path, text = self.directory / name, steady(text)
        if self.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            self.compare(path.read_text(encoding="utf-8") if path.exists() else "", text, name)

    def compare(self, expected: str, text: str, name: str) -> None:
        if expected != text:
            pytest.fail(f"{''.join(changes(expected, text, name))}\nIf it is right: make golden", pytrace=False)


def changes(expected: str, text: str, name: str) -> Iterator[str]:
    return difflib.unified_diff(
        expected.splitlines(keepends=True), text.splitlines(keepends=True), f"golden/{name}", "now"
    )
