"""Fixes as unified diffs: made from the text that an agent proposes for the lines it quotes, and read again by exports."""

from __future__ import annotations

import re
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
    headers = [f"--- a/{file.path}", f"+++ b/{file.path}", f"@@ -{start},{old} +{start if now else start - 1},{now} @@"]
    return "\n".join([*headers, *body]) + "\n"


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
    later_lines = [line for line in new[1:] if line.strip()]
    quoted_others = [line for line in quoted[1:] if line.strip()]
    min_indent = min(map(_indent, later_lines), key=len, default="")
    as_in_file = (
        not set(later_lines).isdisjoint(quoted_others)
        or len(min_indent) > len(indent)
        or (quoted_others and len(min_indent) >= min(len(_indent(line)) for line in quoted_others))
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


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class Edit:
    """Neighbouring lines that a fix replaces."""

    first: int
    """The first line that is removed, from 1; without removed lines, the line before which lines are added."""
    removed: int
    """How many lines are removed."""
    added: tuple[str, ...]
    """The lines in their place, without line ends."""


@dataclass(frozen=True)
class Patch:
    """A unified diff of one file."""

    edits: tuple[Edit, ...]
    kept: dict[int, str]
    """The context lines by their number in the old file."""

    def replaced(self, first: int, last: int) -> tuple[str, ...] | None:
        """Return lines `first` to `last` with the fix applied; None if it changes other lines or does not show all of these."""
        lines: list[str] = []
        number = first
        for edit in self.edits:
            if not first <= edit.first or edit.first + edit.removed > last + 1:
                return None
            between = range(number, edit.first)
            if any(line not in self.kept for line in between):
                return None
            lines += [self.kept[line] for line in between]
            lines += edit.added
            number = edit.first + edit.removed
        rest = range(number, last + 1)
        if not self.edits or any(line not in self.kept for line in rest):
            return None
        return (*lines, *(self.kept[line] for line in rest))


def parse_patch(text: str) -> Patch:
    """Parse a unified diff of one file, with or without file names. Text before the first hunk is skipped."""
    edits: list[Edit] = []
    kept: dict[int, str] = {}
    removed: list[str] = []
    added: list[str] = []
    old = lines_left = 0  # the next line of the old file, and how many of them the hunk still shows

    def close() -> None:
        if removed or added:
            edits.append(Edit(old - len(removed), len(removed), tuple(added)))
            removed.clear()
            added.clear()

    in_hunk = False
    for line in text.split("\n"):
        if header := _HUNK.match(line):
            close()
            lines_left = int(header[2] or 1)
            old = int(header[1]) + (lines_left == 0)  # `-7,0` stands behind line 7
            in_hunk = True
        elif not in_hunk or line.startswith("\\"):
            continue
        elif line.startswith("+"):
            added.append(line[1:])
        elif lines_left and line.startswith("-"):
            removed.append(line[1:])
            old, lines_left = old + 1, lines_left - 1
        elif lines_left:
            close()
            kept[old] = line[1:]
            old, lines_left = old + 1, lines_left - 1
        else:
            close()
            in_hunk = False
    close()
    return Patch(tuple(edits), kept)
