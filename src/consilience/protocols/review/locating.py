"""Locating a quotation: in which document, at which of its lines, and in which lines of which file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from consilience.engine.sources import Document
from consilience.protocols.review.changes import Changes, DiffSide, FileChange, parse_changes
from consilience.protocols.review.findings import FindingReply
from consilience.protocols.review.fixes import KnownLines

MIN_EVIDENCE_CHARS = 2
"""Letters and digits that a quotation has at least. Fewer are found anywhere and prove nothing."""
NOT_EVIDENCE = "a quotation needs at least two letters or digits"

_NUMBERING = re.compile(r"^[ \t]*\d{1,9}\|[ \t]?", re.MULTILINE)
"""What prompts write before each line of a document."""
_WRAPPED = re.compile(r"\s*(?:```\w*\n(?P<fenced>.*)\n```|(?P<mark>[`\"'])(?P<marked>.+)(?P=mark))\s*", re.DOTALL)
"""Words in a code fence, or in backticks or quotation marks."""
_MARKS = re.compile(r"^[+\- ]", re.MULTILINE)


@dataclass(frozen=True)
class Location:
    """Where quoted words are."""

    document: Document
    line: int
    """Where they begin in the document."""
    words: str
    """As found: without numbers or marks before the lines if these had to be left out."""
    file: str
    first: int
    last: int
    side: DiffSide = "new"
    changed: bool = True
    change: FileChange | None = None
    """The change of the file; None if the diff does not change it, or without a diff."""


@lru_cache(maxsize=2)
def locator_of(documents: tuple[Document, ...]) -> Locator:
    """Return the locator of a session's documents, which keeps what it has read of them."""
    return Locator(documents)


class Locator:
    """Finds quotations in the documents of a session. What a call is shown is brought to normal form once."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.changes = parse_changes(documents)
        self._documents = {document.id: document for document in documents}
        self._texts: dict[tuple[Document, DiffSide | None], Document] = {}
        self._lines: dict[str, KnownLines] = {}
        self._numbers: dict[str, list[int]] = {}

    @property
    def files(self) -> tuple[str, ...]:
        """The files in the order of the diff or of the documents."""
        changed = [change.path for change in self.changes.files] if self.changes else []
        return tuple(dict.fromkeys([*changed, *(d.name or d.id for d in self._documents.values())]))

    def locate(self, finding: FindingReply, shown: Sequence[Document]) -> Location | str:
        """Return where the words of a finding are in the documents that its call was shown, or why they are no evidence.

        The document that it names comes first, by id or by name; in each, the occurrence nearest to the line that it names.
        """
        if sum(char.isalnum() for char in _NUMBERING.sub("", finding.quotation)) < MIN_EVIDENCE_CHARS:
            return NOT_EVIDENCE
        named = finding.document.strip(" []`").partition(":")[0]
        ordered = sorted(shown, key=lambda d: named not in (d.id, d.name) and finding.document != d.name)
        for document in ordered:
            for text, words in self._attempts(document, finding.quotation, finding.line):
                if lines := text.find(words, finding.line):
                    return self._location(document, lines, words)
        if not any(named in (d.id, d.name) or finding.document == d.name for d in shown):
            return f"there is no document {finding.document!r:.60} among those shown"
        return f"these words are not in {ordered[0].reference}"

    def _attempts(self, document: Document, quotation: str, line: int) -> Iterator[tuple[Document, str]]:
        """Yield the words as quoted, then without what a prompt or a diff has before each line, or what is around them."""
        unnumbered = _NUMBERING.sub("", quotation)
        bare = _MARKS.sub("", unnumbered)
        wrapped = _WRAPPED.fullmatch(quotation)
        is_diff = self.changes is not None and document.id == self.changes.document
        # words that are in both are taken from the new file, unless the line that is named is a removed one
        sides: tuple[DiffSide | None, ...] = ("new", None, "old") if is_diff else (None,)
        variants = dict.fromkeys((quotation, unnumbered, bare, *(wrapped.group("fenced", "marked") if wrapped else ())))
        variants.pop(None, None)
        if is_diff:
            whole = self._text(document, None)
            yield from ((whole, words) for words in variants if whole.contains(words, line))
        yield from ((self._text(document, side), words) for side in sides for words in variants)

    def _text(self, document: Document, side: DiffSide | None) -> Document:
        key = document, side
        if key not in self._texts:
            text = self.changes.texts[side] if self.changes and side else document.text
            self._texts[key] = replace(document, text=text)
        return self._texts[key]

    # from lines of a document to lines of a file

    def _location(self, document: Document, lines: tuple[int, int], words: str) -> Location:
        if self.changes is not None and document.id == self.changes.document:
            return self._in_diff(self.changes, document, lines, words)
        first, last = (self._number(document, line) for line in lines)
        file = document.name or document.id
        changes = self._changes_of.get(document.id, [])
        changed = self.changes is None or any(change.is_changed(first, last) for change in changes)
        change = changes[0] if changes else None
        return Location(document, lines[0], words, file, first, last, "new", changed, change)

    def _in_diff(self, changes: Changes, document: Document, lines: tuple[int, int], words: str) -> Location:
        change = changes.file_at(lines[0])
        if change is None:  # in no file, such as the message of a commit
            first, last = (self._number(document, line) for line in lines)
            return Location(document, lines[0], words, document.name or document.id, first, last, changed=False)
        places = [place for line in range(lines[0], lines[1] + 1) if (place := change.places.get(line)) is not None]
        new = [number for side, number in places if side == "new"]
        old = [number for side, number in places if side == "old"]
        if new:
            changed = bool(old) or change.is_changed(min(new), max(new))
            return Location(document, lines[0], words, change.path, min(new), max(new), "new", changed, change)
        if old:
            return Location(document, lines[0], words, change.path, min(old), max(old), "old", True, change)
        # a header: what it says of the file is a change, what a hunk's header repeats of the file is not
        first = next((start for start, _ in change.added), 1)
        is_changed = not self._diff_lines[lines[0] - 1].startswith("@@")
        return Location(document, lines[0], words, change.path, first, first, "new", is_changed, change)

    def _number(self, document: Document, line: int) -> int:
        """Return the number that editors and Git give a line of a document. Documents also end lines at form feeds and the like."""
        if document.id not in self._numbers:
            numbers: list[int] = []
            for number, text in enumerate(document.text.split("\n"), 1):
                numbers += [number] * len((text + "\n").splitlines())
            self._numbers[document.id] = numbers
        return self._numbers[document.id][line - 1]

    def known_lines(self, location: Location) -> KnownLines:
        """Return the lines of the file in which a quotation is, as it is after the change."""
        change = location.change
        document = location.document
        if change is not None and document.id == self._diff_id:
            if change.document is None:
                unended = max(change.new_lines, default=0) if change.ends_without_newline else 0
                return KnownLines(change.path, change.new_lines, unended)
            document = self._documents[change.document]
        if document.id not in self._lines:
            lines = dict(enumerate(document.text.removesuffix("\n").split("\n"), 1))
            unended = 0 if document.text.endswith("\n") else len(lines)
            self._lines[document.id] = KnownLines(location.file, lines, unended)
        return self._lines[document.id]

    @cached_property
    def _changes_of(self) -> dict[str, list[FileChange]]:
        """The changes of each document that has the new text of a file."""
        changes: dict[str, list[FileChange]] = {}
        for change in self.changes.files if self.changes else ():
            if change.document is not None:
                changes.setdefault(change.document, []).append(change)
        return changes

    @cached_property
    def _diff_lines(self) -> list[str]:
        return self.changes.texts["new"].splitlines() if self.changes else []

    @cached_property
    def _diff_id(self) -> str | None:
        return self.changes.document if self.changes else None
