"""Fixes as unified diffs, made from the text that an agent proposes for the lines it quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    lines = replacement.replace("\r\n", "\n").removesuffix("\n").split("\n") if replacement else []
    new = _indented(lines, quoted, quotation)
    start = first
    while start > max(first - CONTEXT_LINES, 1) and start - 1 in file.lines:
        start -= 1
    end = last
    while end < last + CONTEXT_LINES and end + 1 in file.lines:
        end += 1
    before = [file.lines[n] for n in range(start, first)]
    after = [file.lines[n] for n in range(last + 1, end + 1)]
    if not after and last == file.unended and new[-1:] == [""]:  # an empty line without an end is no line
        return ""
    body = [*(f" {line}" for line in before), *_compared(quoted, new), *(f" {line}" for line in after)]
    removed, added = (sum(line[0] == sign for line in body) for sign in "-+")
    if not 0 < removed + added <= MAX_FIX_LINES:
        return ""
    if end == file.unended:
        body = _without_last_end(body)
    old, now = end - start + 1, end - start + 1 - removed + added
    head = [f"--- a/{file.path}", f"+++ b/{file.path}", f"@@ -{start},{old} +{start if now else start - 1},{now} @@"]
    return "\n".join([*head, *body]) + "\n"


def _is_fragment(quoted: list[str], quotation: str, replacement: str) -> bool:
    """Return whether only a part of the lines is quoted and the replacement keeps nothing of what stands around that part."""
    line, words, new = same_form(" ".join(quoted)), same_form(quotation), same_form(replacement)
    if not new or words not in line:
        return False
    around = [part.strip() for part in line.split(words, 1)]
    return any(around) and not any(part in new for part in around if part)


def _indented(new: list[str], quoted: list[str], quotation: str) -> list[str]:
    """Return the replacement with the indentation of the first quoted line, if its author left it out as in the quotation.

    The other lines get it too, unless they seem to be written as in the file.
    """
    indent = _indent(quoted[0])
    if not indent or not new or quotation[:1].isspace() or new[0][:1].isspace():
        return new
    others = [line for line in new[1:] if line.strip()]
    quoted_others = [line for line in quoted[1:] if line.strip()]
    least = min(map(_indent, others), key=len, default="")
    as_in_file = (
        not set(others).isdisjoint(quoted_others)
        or len(least) > len(indent)
        or (quoted_others and len(least) >= min(len(_indent(line)) for line in quoted_others))
    )
    if as_in_file:
        return [indent + new[0], *new[1:]]
    return [indent + line if line.strip() else line for line in new]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _compared(old: list[str], new: list[str]) -> Iterator[str]:
    """Yield the lines of a diff. What stands around it is no part of the comparison, so a change stays where it is quoted."""
    for tag, i, j, k, m in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (f" {line}" for line in old[i:j])
        else:
            yield from (f"-{line}" for line in old[i:j])
            yield from (f"+{line}" for line in new[k:m])


def _without_last_end(body: list[str]) -> list[str]:
    """Mark the last line of the old and of the new text as lines without an end."""
    last_old = max((n for n, line in enumerate(body) if line[0] != "+"), default=-1)
    last_new = max((n for n, line in enumerate(body) if line[0] != "-"), default=-1)
    marked: list[str] = []
    for n, line in enumerate(body):
        if n not in (last_old, last_new):
            marked.append(line)
        elif line[0] == " " and last_old != last_new:  # it has an end in the text in which lines follow it
            removed, added = f"-{line[1:]}", f"+{line[1:]}"
            marked += [removed, NO_NEWLINE, added] if n == last_old else [removed, added, NO_NEWLINE]
        else:
            marked += [line, NO_NEWLINE]
    return marked
