"""Source documents: reading them, and verifying quotations of them."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

from consilience.domain.errors import ProtocolViolation, SourceError
from consilience.domain.events import SourceRef, text_id
from consilience.domain.messages import Quotation, Source, numbered_lines
from consilience.domain.paths import read_bounded

MAX_SOURCE_BYTES = 10_000_000
"""Max size of a file with a document, a task or an answer."""

PLAIN_MARKS = str.maketrans(dict.fromkeys("“”„‟«»″", '"') | dict.fromkeys("‘’‚‛′", "'") | dict.fromkeys("‐‑‒–—―−", "-"))
"""Maps typographic quotation marks, dashes and minus signs to plain ones."""

_REFERENCE = re.compile(r"(S\d+)(?::([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?)?")

_QUOTATION = re.compile(r"[\"“„«»]([^\"“”„«»]{2,}?)[\"”“«»]\s*\[(S\d+):(\d+)\]")


@dataclass(frozen=True)
class Document:
    """A source document of a session, or the part of it that a call is shown."""

    id: str
    name: str
    text: str
    agents: tuple[str, ...] | None = None
    """The agents that may read it; None for all."""
    lines: tuple[int, int] | None = None
    """First and last line that a call is shown, from 1; None for all."""
    generations: int | None = None
    """Forks since a fork added it; None if it is as old as the first session."""

    @property
    def text_id(self) -> str:
        return text_id(self.text)

    @property
    def reference(self) -> str:
        """Its name in prompts: `S4`, or `S4:120-380` for a part."""
        return f"{self.id}:{self.lines[0]}-{self.lines[1]}" if self.lines else self.id

    @property
    def line_count(self) -> int:
        """Lines of the whole document."""
        return len(self._lines)

    @cached_property
    def numbered(self) -> str:
        """The text as shown, with line numbers, since a quotation names the line where it begins."""
        return numbered_lines(self._lines, self.name, self.lines)

    @cached_property
    def part_id(self) -> str:
        """Id of the text that is shown."""
        return text_id("\n".join(self._lines[self.lines[0] - 1 : self.lines[1]])) if self.lines else self.text_id

    def contains(self, words: str, line: int) -> bool:
        """Return whether the words begin in that line (from 1) and lie within the lines shown. Case, whitespace, quotation marks,
        dashes and final punctuation do not count."""
        wanted = same_form(words).rstrip(".,;: ")
        first, last = self.lines or (1, len(self._lines))
        if not wanted or not first <= line <= last:
            return False
        collapsed, spans = self._collapsed
        start, end = spans[line - 1]
        return collapsed.find(wanted, start, min(end - 1 + len(wanted), spans[last - 1][1])) >= 0

    @cached_property
    def _lines(self) -> tuple[str, ...]:
        return tuple(self.text.splitlines())

    @cached_property
    def _collapsed(self) -> tuple[str, list[tuple[int, int]]]:
        """The text in normal form, and the span of each line in it; (n, n) for an empty line."""
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        at = 0
        for line in self._lines:
            part = same_form(line)
            spans.append((at, at + len(part)))
            if part:
                parts.append(part)
                at += len(part) + 1
        return " ".join(parts), spans


def read_text_file(path: Path, what: str) -> str:
    """Return the text of a file; `what` names it in errors. Raises `SourceError` if it is missing, too large or not UTF-8 text."""
    try:
        data = read_bounded(path, MAX_SOURCE_BYTES)
    except FileNotFoundError:
        raise SourceError(f"{what} does not exist", where=str(path), do="Check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        too_large = getattr(error, "errno", None) == errno.EFBIG
        do = "Give the part that matters." if too_large else "Check the path and your rights."
        raise SourceError(f"{what} cannot be read: {reason}", where=str(path), do=do) from None
    return decode_text(data, what, str(path))


def decode_text(data: bytes, what: str, where: str) -> str:
    """Return bytes as text with line ends as `\\n`. Raises `SourceError` if they are not UTF-8 text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SourceError(
            f"{what} is not UTF-8 text", where=where, do="Give text; convert other formats (PDF, Word) to text first."
        )
    return text.replace("\r\n", "\n")


def number_documents(sources: Iterable[Source]) -> tuple[Document, ...]:
    """Return documents numbered S1, S2, … in the order of their sources."""
    return tuple(Document(f"S{n}", s.name, s.text, s.agents) for n, s in enumerate(sources, 1))


def document_from_ref(ref: SourceRef, text: str, *, forks: int = 0) -> Document:
    """Return a recorded document, as of `forks` forks later."""
    generations = None if ref.generations is None else ref.generations + forks
    return Document(ref.id, ref.name, text, ref.agents, generations=generations)


def document_refs(found: Sequence[Document]) -> tuple[SourceRef, ...]:
    return tuple(
        SourceRef(id=d.id, name=d.name, text=d.text_id, agents=d.agents, generations=d.generations) for d in found
    )


def select_documents(references: Iterable[str], found: Sequence[Document], agent: str) -> tuple[Document, ...]:
    """Return the documents, or parts of them (`S4`, `S4:120-380`, `S4:7`), that a call names, in that order, once each.

    Raises `ProtocolViolation` for a reference to no document or no lines of it, or to one that the agent may not see.
    """
    by_id = {document.id: document for document in found}
    parts: dict[str, Document] = {}
    for reference in references:
        match = _REFERENCE.fullmatch(reference)
        document = by_id.get(match[1]) if match else None
        if match is None or document is None:
            known = ", ".join(by_id) or "there are none"
            raise ProtocolViolation(f"{reference!r} is not a document of this session ({known})")
        if document.agents is not None and agent not in document.agents:
            raise ProtocolViolation(f"{agent} may not be shown document {document.id}, which is for {document.agents}")
        if match[2] is not None:
            lines = int(match[2]), int(match[3] or match[2])
            if not lines[0] <= lines[1] <= document.line_count:
                raise ProtocolViolation(
                    f"{reference!r} is not in the document: {document.id} has {document.line_count} lines"
                )
            document = replace(document, lines=lines)
        parts[document.reference] = document
    return tuple(parts.values())


def find_quotations(
    text: str, found: Sequence[Document], agent: str, read: Iterable[tuple[str, str, int]] = ()
) -> list[Quotation]:
    """Return every `"words" [S2:41]` in the text, verified if a document that is open to the agent contains it, or `read` does.

    `found` are documents or parts of them.
    """
    known = set(read)
    return [
        Quotation(
            words=words,
            source=source,
            line=line,
            verified=(same_form(words), source, line) in known
            or any(
                d.contains(words, line) for d in found if d.id == source and (d.agents is None or agent in d.agents)
            ),
            agent=agent,
        )
        for words, source, line in _quoted(text)
    ]


def repeatable_quotations(text: str, found: Sequence[Document], agent: str) -> set[tuple[str, str, int]]:
    """Return the verified quotations in a text that `agent` reads and may repeat: words, document, line."""
    return {(same_form(q.words), q.source, q.line) for q in find_quotations(text, found, agent) if q.verified}


def _quoted(text: str) -> list[tuple[str, str, int]]:
    return [(words, source, _line(line)) for words, source, line in _QUOTATION.findall(text)]


def _line(digits: str) -> int:
    """Return a line number; 0, which no document has, if it has ten digits or more."""
    return int(digits) if len(digits) < 10 else 0


def same_form(text: str) -> str:
    """Return `text` without differences of case, whitespace, typographic quotation marks and dashes."""
    return " ".join(normalize("NFKC", text).translate(PLAIN_MARKS).casefold().split())
