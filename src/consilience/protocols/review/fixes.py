"""Fixes as unified diffs, made from the text that an agent proposes for the lines it quotes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from consilience.engine.sources import same_form

MAX_FIX_LINES = 20
"""Max lines that a fix removes and adds."""
CONTEXT_LINES = 3
NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True)
class KnownLines:
    """The lines of a file that are known, by number from 1, without line ends: all, or those that a diff shows."""

    path: str
    lines: Mapping[int, str]
    unended: int = 0
    """The number of the last line, if it has no line end; else 0."""


def make_fix(file: KnownLines, first: int, last: int, quotation: str, replacement: str | None) -> str:
    """Return a unified diff that puts `replacement` in the place of lines `first` to `last`.

    "" without a replacement, if the diff changes nothing or more than `MAX_FIX_LINES` lines, if a line is unknown, or if the
    replacement is for the quoted words and not for their lines.
    """
    if replacement is None or any(n not in file.lines for n in range(first, last + 1)):
        return ""
    quoted = [file.lines[n] for n in range(first, last + 1)]
    if _is_fragment(quoted, quotation, replacement):
        return ""
    new = _indented(replacement.removesuffix("\n").splitlines(), quoted, quotation)
    start = first
    while start > max(first - CONTEXT_LINES, 1) and start - 1 in file.lines:
        start -= 1
    end = last
    while end < last + CONTEXT_LINES and end + 1 in file.lines:
        end += 1
    before = [file.lines[n] for n in range(start, first)]
    after = [file.lines[n] for n in range(last + 1, end + 1)]
    return _diff(file, start, [*before, *quoted, *after], [*before, *new, *after], end)


def _is_fragment(quoted: list[str], quotation: str, replacement: str) -> bool:
    """Return whether only a part of the lines is quoted and the replacement keeps nothing of what stands around that part."""
    line, words, new = same_form(" ".join(quoted)), same_form(quotation), same_form(replacement)
    if not new or words not in line:
        return False
    around = [part.strip() for part in line.split(words, 1)]
    return any(around) and not any(part in new for part in around if part)


def _indented(new: list[str], quoted: list[str], quotation: str) -> list[str]:
    """Return the replacement with the indentation of the first quoted line, if its author left it out as in the quotation."""
    indent = quoted[0][: len(quoted[0]) - len(quoted[0].lstrip())]
    if not indent or not new or quotation[:1].isspace() or new[0][:1].isspace():
        return new
    others = [line for line in new[1:] if line.strip()]
    if others and all(line.startswith(indent) for line in others):
        return [indent + new[0], *new[1:]]
    return [indent + line if line.strip() else line for line in new]


def _diff(file: KnownLines, start: int, old: list[str], new: list[str], end: int) -> str:
    """Return a diff with one hunk for lines `start` to `end`."""
    body: list[str] = []
    changed = 0
    for tag, i, j, k, m in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "equal":
            body += [f" {line}" for line in old[i:j]]
            continue
        changed += j - i + m - k
        body += [f"-{line}" for line in old[i:j]]
        body += [f"+{line}" for line in new[k:m]]
    if not 0 < changed <= MAX_FIX_LINES:
        return ""
    if end == file.unended:
        body = _marked(body)
    header = f"@@ -{start},{len(old)} +{start if new else start - 1},{len(new)} @@"
    return "\n".join([f"--- a/{file.path}", f"+++ b/{file.path}", header, *body]) + "\n"


def _marked(body: list[str]) -> list[str]:
    """Mark the last line of the old and of the new text as lines without an end."""
    last_old = max(n for n, line in enumerate(body) if line[0] != "+")
    last_new = max((n for n, line in enumerate(body) if line[0] != "-"), default=-1)
    marked: list[str] = []
    for n, line in enumerate(body):
        marked += [line, NO_NEWLINE] if n in (last_old, last_new) else [line]
    return marked
