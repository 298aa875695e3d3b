"""Reading the unified diff of a finding's fix."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    old = left = 0  # the next line of the old file, and how many of them the hunk still shows

    def close() -> None:
        if removed or added:
            edits.append(Edit(old - len(removed), len(removed), tuple(added)))
            removed.clear()
            added.clear()

    in_hunk = False
    for line in text.split("\n"):
        if header := _HUNK.match(line):
            close()
            left = int(header[2] or 1)
            old = int(header[1]) + (left == 0)  # `-7,0` stands behind line 7
            in_hunk = True
        elif not in_hunk or line.startswith("\\"):
            continue
        elif line.startswith("+"):
            added.append(line[1:])
        elif left and line.startswith("-"):
            removed.append(line[1:])
            old, left = old + 1, left - 1
        elif left:
            close()
            kept[old] = line[1:]
            old, left = old + 1, left - 1
        else:
            close()
            in_hunk = False
    close()
    return Patch(tuple(edits), kept)
