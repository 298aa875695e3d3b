"""Documents as numbered lines: their size in a prompt, and cutting them into ranges of lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from consilience.domain.document_shares import Lines
from consilience.domain.messages import PLACE_LINE
from consilience.domain.tokens import BYTES_PER_TOKEN

FENCE_TOKENS = 48
"""Tokens around a document in a prompt: its marks and its name."""

_HEADING = re.compile(r"#{1,6} +(\S.*)")


def heading(line: str) -> str:
    """Return the words of a line that begins a section: a Markdown heading, or the mark of a page, sheet or slide; else nothing."""
    if match := _HEADING.match(line):
        return match[1].strip(" #")
    return line[1:-1] if PLACE_LINE.fullmatch(line) else ""


class NumberedLines:
    """The lines of a document with their sizes."""

    def __init__(self, text: str) -> None:
        self.texts: Sequence[str] = text.splitlines()
        sums = [0]
        for n, line in enumerate(self.texts, 1):
            sums.append(sums[-1] + len(line.encode("utf-8", "surrogatepass")) + len(str(n)) + 3)
        self._sums = sums

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def all(self) -> Lines:
        return (1, len(self.texts))

    def tokens(self, first: int, last: int) -> int:
        """Return the estimated size of lines in a prompt, with the marks around them."""
        return int((self._sums[last] - self._sums[first - 1]) / BYTES_PER_TOKEN) + FENCE_TOKENS

    def cut(self, first: int, last: int, tokens: int, *, sections: bool = False) -> Iterator[Lines]:
        """Yield ranges of at most `tokens`; a longer line is a range of its own.

        A range ends at the last blank line of its second half if there is one, with `sections` rather before the last heading.
        """
        while first <= last:
            end = first
            while end < last and self.tokens(first, end + 1) <= tokens:
                end += 1
            if end < last:
                ends: list[Callable[[int], bool]] = [lambda n: not self.texts[n - 1].strip()]
                if sections:
                    ends.insert(0, lambda n: bool(heading(self.texts[n])))
                second_half = range(end, first + (end - first) // 2, -1)
                end = next((n for is_end in ends for n in second_half if is_end(n)), end)
            yield first, end
            first = end + 1
