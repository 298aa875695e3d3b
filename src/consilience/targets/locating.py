"""Locating a quotation: in which document, at which of its lines, and in which lines of which file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol

from consilience.engine.sources import Document
from consilience.targets.diffs import Changes, DiffSide, FileChange, parse_changes
from consilience.targets.fixes import KnownLines

MIN_EVIDENCE_CHARS = 2
"""Letters and digits that a quotation has at least. Fewer are found anywhere and prove nothing."""
NOT_EVIDENCE = "a quotation needs at least two letters or digits"

_NUMBERING = re.compile(r"^[ \t]*\d{1,9}\|[ \t]?", re.MULTILINE)
"""What prompts write before each line of a document."""
_WRAPPED = re.compile(r"\s*(?:```\w*\n(?P<fenced>.*)\n```|(?P<mark>[`\"'])(?P<marked>.+)(?P=mark))\s*", re.DOTALL)
"""Words in a code fence, or in backticks or quotation marks."""
_MARKS = re.compile(r"^[+\- ]", re.MULTILINE)
_POSITION = re.compile(r":\d+(?:[-:]\d+)?$")
_FILE_NAME = re.compile(r"/|\.\w{1,8}$")
MAX_PLACES = 3
"""Places that the reason of a false quotation names."""


class Quoting(Protocol):
    """What quotes a document."""

    document: str
    """Id or name of the document, as its author writes it."""
    line: int
    """Where the quotation begins."""
    quotation: str
    cause: str
    """The words of the changed line that causes what is quoted; "" for none."""


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


def _is_evidence(words: str) -> bool:
    return sum(char.isalnum() for char in _NUMBERING.sub("", words)) >= MIN_EVIDENCE_CHARS


def _variants(quotation: str) -> list[str]:
    """Return the words as quoted, then without what a prompt or a diff has before each line, or what is around them."""
    unnumbered = _NUMBERING.sub("", quotation)
    wrapped = _WRAPPED.fullmatch(quotation)
    variants = (
        quotation,
        unnumbered,
        _MARKS.sub("", unnumbered),
        *(wrapped.group("fenced", "marked") if wrapped else ()),
    )
    return [words for words in dict.fromkeys(variants) if words is not None]


def _ending_with(name: str, paths: Sequence[str]) -> set[str]:
    """Return the path that ends with a name, as of `pager.py` or `b/src/pager.py`, if it is one."""
    short = re.sub(r"^(?:\./|[ab]/)", "", name)
    found = {path for path in paths if short and f"/{path}".endswith(f"/{short}")}
    return found if len(found) == 1 else set()


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
        self._changed: dict[Document, tuple[Document, ...]] = {}
        self._split: dict[tuple[str, DiffSide | None], list[str]] = {}
        self._lines: dict[str, KnownLines] = {}
        self._numbers: dict[str, list[int]] = {}

    @property
    def files(self) -> tuple[str, ...]:
        """The files in the order of the diff or of the documents."""
        changed = [change.path for change in self.changes.files] if self.changes else []
        return tuple(dict.fromkeys([*changed, *(d.name or d.id for d in self._documents.values())]))

    def locate(self, finding: Quoting, shown: Sequence[Document]) -> Location | str:
        """Return where the words of a finding are, in what its call was shown, or why they are no evidence for it.

        They must be in the document or file that it names; of several occurrences the nearest to its line counts. If it names
        nothing that exists, the words may be in any one file.
        """
        if not _is_evidence(finding.quotation):
            return NOT_EVIDENCE
        named = self._named(finding, shown)
        if named and (location := self._find(finding, named)):
            return location
        found = [location for document in shown if (location := self._find(finding, [document]))]
        if named is None and len({location.file for location in found}) == 1:
            return found[0]
        places = dict.fromkeys(f"{found.file}:{found.first} ({found.document.id}:{found.line})" for found in found)
        elsewhere = f"; they stand in {' and '.join(list(places)[:MAX_PLACES])}" if places else ""
        if not named:
            return f"there is no document {finding.document!r:.60} among those shown{elsewhere}"
        name = f" ({named[0].name})" if named[0].name else ""
        return f"these words are not in {named[0].reference}{name}{elsewhere}"

    def cause(self, finding: Quoting, shown: Sequence[Document]) -> Location | None:
        """Return the changed line that a finding names as its cause; None without one, or if no changed line that was shown has
        these words."""
        if not _is_evidence(finding.cause):
            return None
        if self.changes is None:
            return self._under_review(finding.cause, shown)
        for document in shown:
            for words in _variants(finding.cause):
                for text in self._changed_texts(document):
                    if lines := text.find(words, 1):
                        return self._location(document, lines, words)
            for text, words in self._attempts(document, finding.cause, 1):  # with unchanged lines around it
                if (lines := text.find(words, 1)) and (location := self._location(document, lines, words)).changed:
                    return location
        return None

    def _under_review(self, words: str, shown: Sequence[Document]) -> Location | None:
        """Return where words stand in what is under review, without a diff."""
        for document in (document for document in shown if not document.purpose):
            for variant in _variants(words):
                if lines := self._text(document, None).find(variant, 1):
                    return self._location(document, lines, variant)
        return None

    def place_of(self, words: str, document: Document) -> tuple[int, str] | None:
        """Return where words begin in a document, and these words; None if it does not have them."""
        variants = _variants(words) if _is_evidence(words) else ()
        return next(((lines[0], variant) for variant in variants if (lines := document.find(variant, 1))), None)

    def _named(self, finding: Quoting, shown: Sequence[Document]) -> list[Document] | None:
        """Return where a finding says that its words are: a document, and what else was shown of the same file. None if it names
        nothing that there is, such as `S99`; nothing if it names a document or file that was not shown."""
        named = finding.document.strip(" []`\"'")
        names = [named, _POSITION.sub("", named), named.split(" ")[0].partition(":")[0]]
        documents = [d for d in self._documents.values() if d.id in names or (d.name and d.name in names)]
        changed = self.changes.files if self.changes else ()
        paths = [
            path
            for path in (
                *(d.name for d in self._documents.values()),
                *(path for f in changed for path in (f.path, f.old_path)),
            )
            if path
        ]
        files = {path for path in paths if path in names} or _ending_with(names[1], paths)
        documents = documents or [d for d in self._documents.values() if d.name in files]
        if not documents and not files:
            return [] if _FILE_NAME.search(named) else None
        ids = {document.id for document in documents}
        parts = [document for document in shown if document.id in ids]
        if self._diff_id in ids:
            changes = [file for file in changed if file.diff_lines[0] <= finding.line <= file.diff_lines[1]]
            texts = {file.document for file in changes or changed}
            return [*parts, *(document for document in shown if document.id in texts)]
        changes = [file for file in changed if file.document in ids or {file.path, file.old_path} & files]
        return [*parts, *(part for file in changes for part in self._sections(file, shown))]

    def _sections(self, file: FileChange, shown: Sequence[Document]) -> Iterator[Document]:
        """Yield what was shown of the diff of a file."""
        for document in shown:
            if document.id == self._diff_id:
                first, last = document.lines or (1, document.line_count)
                first, last = max(first, file.diff_lines[0]), min(last, file.diff_lines[1])
                if first <= last:
                    yield replace(document, lines=(first, last))

    def _find(self, finding: Quoting, documents: Sequence[Document]) -> Location | None:
        for document in documents:
            for text, words in self._attempts(document, finding.quotation, finding.line):
                if lines := text.find(words, finding.line):
                    return self._location(document, lines, words)
        return None

    def _changed_texts(self, document: Document) -> tuple[Document, ...]:
        """Return a document with its changed lines only, of the new file and, for the diff, of the old one. Others are empty."""
        if document not in self._changed:
            self._changed[document] = tuple(self._only_changed(document))
        return self._changed[document]

    def _only_changed(self, document: Document) -> Iterator[Document]:
        lines = document.text.splitlines()
        if self.changes is not None and document.id == self._diff_id:
            sides = zip(*(self.changes.texts[side].splitlines() for side in ("new", "old")), strict=True)
            may_cause = self._may_cause(self.changes)
            differing = [pair if pair[0] != pair[1] and n in may_cause else ("", "") for n, pair in enumerate(sides, 1)]
            texts = [[pair[n] for pair in differing] for n in (0, 1)]
        else:
            numbers = [self._number(document, n) for n in range(1, len(lines) + 1)]
            changes = self._changes_of.get(document.id, [])
            texts = [
                [
                    line
                    * any(c.is_changed(n, n) or (c.is_moved("new", n, n) and c.may_cause("new", n)) for c in changes)
                    for n, line in zip(numbers, lines, strict=True)
                ]
            ]
        for kept in texts:
            yield replace(document, text="\n".join(kept) + "\n")

    def _may_cause(self, changes: Changes) -> set[int]:
        """Return the lines of the diff that may be named as a cause: changed ones, and the ends of what was moved."""
        places = ((line, change, place) for change in changes.files for line, place in change.places.items())
        return {line for line, change, (side, number) in places if change.may_cause(side, number)}

    def _attempts(self, document: Document, quotation: str, line: int) -> Iterator[tuple[Document, str]]:
        """Yield the words as quoted, then without what a prompt or a diff has before each line, or what is around them."""
        is_diff = self.changes is not None and document.id == self.changes.document
        # words that are in both are taken from the new file, unless the line that is named is a removed one
        sides: tuple[DiffSide | None, ...] = ("new", None, "old") if is_diff else (None,)
        variants = _variants(quotation)
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
        changed = not document.purpose and (self.changes is None or any(c.is_changed(first, last) for c in changes))
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
            changed = any(not change.is_moved("old", n, n) for n in old) or change.is_changed(min(new), max(new))
            return Location(document, lines[0], words, change.path, min(new), max(new), "new", changed, change)
        if old:
            changed = not change.is_moved("old", min(old), max(old))
            return Location(document, lines[0], words, change.path, min(old), max(old), "old", changed, change)
        # a header: what it says of the file is a change, what a hunk's header repeats of the file is not
        first = next((start for start, _ in change.added), 1)
        header = Location(document, lines[0], words, change.path, first, first, "new", change=change)
        return replace(header, changed=not self.line_text(header).startswith("@@"))

    def _number(self, document: Document, line: int) -> int:
        """Return the number that editors and Git give a line of a document. Documents also end lines at form feeds and the like."""
        if document.id not in self._numbers:
            numbers: list[int] = []
            for number, text in enumerate(document.text.split("\n"), 1):
                numbers += [number] * len((text + "\n").splitlines())
            self._numbers[document.id] = numbers
        return self._numbers[document.id][line - 1]

    def line_text(self, location: Location) -> str:
        """Return the first line of a location, whole."""
        is_diff = self.changes is not None and location.document.id == self._diff_id
        key = location.document.id, location.side if is_diff else None
        if key not in self._split:
            text = self.changes.texts[location.side] if self.changes and is_diff else location.document.text
            self._split[key] = text.splitlines()
        return self._split[key][location.line - 1]

    def length_of(self, file: str) -> int | None:
        """Return how many lines a file has whose text is a document; None for another one."""
        texts = (document.text for document in self._documents.values() if document.name == file)
        return next((len(text.removesuffix("\n").split("\n")) for text in texts), None)

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

    def lines_of_side(self, location: Location) -> Mapping[int, str]:
        """Return the known lines of the file as it is on the side of a location, by number."""
        if location.side == "new" or location.change is None or self.changes is None:
            return self.known_lines(location).lines
        texts = self.changes.texts["old"].split("\n")
        places = location.change.places.items()
        return {number: texts[line - 1] for line, (side, number) in places if side == "old"}

    @cached_property
    def _changes_of(self) -> dict[str, list[FileChange]]:
        """The changes of each document that has the new text of a file."""
        changes: dict[str, list[FileChange]] = {}
        for change in self.changes.files if self.changes else ():
            if change.document is not None:
                changes.setdefault(change.document, []).append(change)
        return changes

    @cached_property
    def _diff_id(self) -> str | None:
        return self.changes.document if self.changes else None
