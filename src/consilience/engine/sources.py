"""Documents given with the task, and quotations that are really in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from consilience.domain.events import SourceRef, text_id
from consilience.domain.messages import Quotation, Source

_QUOTATION = re.compile(r"[\"“]([^\"“”]{2,}?)[\"”]\s*\[(S\d+):(\d+)\]")


@dataclass(frozen=True)
class Document:
    """A source as the session holds it. `agents` None: open to all."""

    id: str
    name: str
    text: str
    agents: tuple[str, ...] | None = None

    @property
    def text_id(self) -> str:
        return text_id(self.text)

    @cached_property
    def numbered(self) -> str:
        """As shown: every line with its number, since a quotation names the line where it begins."""
        lines = self._lines or ("",)
        body = "\n".join(f"{n}| {line}" for n, line in enumerate(lines, 1))
        title = f"{' '.join(self.name.split())}\n" if self.name else ""
        return f"{title}{body}"

    def holds(self, words: str, line: int) -> bool:
        """True when the words begin in that line (from 1), after collapsing whitespace."""
        wanted = _collapse(words)
        if not wanted or not 1 <= line <= len(self._lines):
            return False
        collapsed, spans = self._collapsed
        start, end = spans[line - 1]
        return collapsed.find(wanted, start, end - 1 + len(wanted)) >= 0

    @cached_property
    def _lines(self) -> tuple[str, ...]:
        return tuple(self.text.splitlines())

    @cached_property
    def _collapsed(self) -> tuple[str, list[tuple[int, int]]]:
        """The text with whitespace collapsed, and where in it each line lies; an empty one lies nowhere: (n, n)."""
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        at = 0
        for line in self._lines:
            part = _collapse(line)
            spans.append((at, at + len(part)))
            if part:
                parts.append(part)
                at += len(part) + 1
        return " ".join(parts), spans


def documents(sources: Iterable[Source]) -> tuple[Document, ...]:
    """Numbered S1, S2, … in the order given."""
    return tuple(Document(f"S{n}", s.name, s.text, s.agents) for n, s in enumerate(sources, 1))


def references(found: Sequence[Document]) -> tuple[SourceRef, ...]:
    return tuple(SourceRef(id=d.id, name=d.name, text=d.text_id, agents=d.agents) for d in found)


def quotations(text: str, found: Sequence[Document], agent: str) -> list[Quotation]:
    """Every `"words" [S2:41]` in the text, judged; a document closed to the agent verifies nothing."""
    by_id = {d.id: d for d in found if d.agents is None or agent in d.agents}
    return [
        Quotation(
            words=words,
            source=source,
            line=number,
            verified=source in by_id and by_id[source].holds(words, number),
            agent=agent,
        )
        for words, source, number in ((w, s, _line(line)) for w, s, line in _QUOTATION.findall(text))
    ]


def _line(digits: str) -> int:
    """A line number; 0, which no document has, for one that is longer than any document."""
    return int(digits) if len(digits) < 10 else 0


def _collapse(text: str) -> str:
    return " ".join(text.split())
