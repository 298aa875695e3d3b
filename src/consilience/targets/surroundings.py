"""What belongs beside the hunks of a change, in the order in which room is given to it. Pure: of documents alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from consilience.domain.document_shares import Lines
from consilience.engine.sources import Document
from consilience.targets.diffs import FileChange
from consilience.targets.names import is_test, names_of
from consilience.targets.outline import Definition, FileOutline, outlines_of
from consilience.targets.sites import lines_around, sites_of

SurroundingKind = Literal["enclosing", "imports", "called", "tests", "mentions", "wider"]
RELATIONS: tuple[SurroundingKind, ...] = ("enclosing", "imports", "called", "tests", "mentions", "wider")
"""Definitions around the changed lines; imports of the file; definitions of what the lines name; tests of what they define; lines
elsewhere that name it; more of the file. Room is given in this order."""

MAX_DEFINITION_LINES = 120
"""A longer definition is shown as its head and as lines around what matters in it."""
MAX_CALLED_LINES = 40
MAX_IMPORT_LINES = 60
NEAR_LINES = 20
"""Around changed lines in a long definition."""
BARE_LINES = 2
"""Around changed lines in no definition."""
WIDER_LINES = (10, 40)


@dataclass(frozen=True)
class Surrounding:
    """Lines of a document that belong beside changed files."""

    relation: SurroundingKind
    document: str
    lines: Lines


def within_file(file: FileChange, documents: tuple[Document, ...]) -> Iterator[Surrounding]:
    """Yield what of a changed file belongs beside its hunks, in order of relation, and within one in order of weight."""
    own = next((document for document in documents if document.id == file.document), None)
    if own is not None and own.line_count:
        outline = outlines_of(documents).get(own.id, FileOutline())
        count = own.line_count
        yield from (Surrounding("enclosing", own.id, lines) for lines in _enclosing(file, outline, count))
        yield from (Surrounding("imports", own.id, lines) for lines in _imports(outline))
        for reach in WIDER_LINES:
            for first, last in file.added:
                yield Surrounding("wider", own.id, _clipped(first - reach, last + reach, count))


def elsewhere(paths: Collection[str], documents: tuple[Document, ...]) -> Iterator[Surrounding]:
    """Yield what outside of changed files belongs beside them: definitions that their changed lines name, tests of what they
    define, and other lines that name that, or the files. Within each the weightiest come first."""
    outlines, by_id = outlines_of(documents), {document.id: document for document in documents}
    for called in _called(documents):
        if not called.of.isdisjoint(paths):
            yield Surrounding("called", called.document, _head_or_whole(called.definition))
    for site in sites_of(documents):
        if not site.of.isdisjoint(paths):
            relation: SurroundingKind = "tests" if site.in_test else "mentions"
            outline = outlines.get(site.document, FileOutline())
            for lines in lines_around(site, by_id[site.document], outline):
                yield Surrounding(relation, site.document, lines)


def _clipped(first: int, last: int, count: int) -> Lines:
    first = min(max(first, 1), max(count, 1))
    return first, max(min(last, count), first)


def _enclosing(file: FileChange, outline: FileOutline, count: int) -> Iterator[Lines]:
    for first, last in file.added:
        around = outline.around(first, last)
        deepest = max((definition.depth for definition in around), default=0)
        for definition in around:
            if definition.depth < deepest:
                yield definition.first, definition.head
            elif definition.last - definition.first < MAX_DEFINITION_LINES:
                yield definition.first, definition.last
            else:
                yield definition.first, definition.head
                near = _clipped(first - NEAR_LINES, last + NEAR_LINES, count)
                yield max(near[0], definition.first), min(near[1], definition.last)
        if not around:
            yield _clipped(first - BARE_LINES, last + BARE_LINES, count)


def _imports(outline: FileOutline) -> Iterator[Lines]:
    left = MAX_IMPORT_LINES
    for first, last in outline.imports:
        left -= last - first + 1
        if left >= 0:
            yield first, last


@dataclass(frozen=True)
class _Called:
    """A definition that changed lines name."""

    document: str
    definition: Definition
    of: frozenset[str]
    """The changed files."""


@lru_cache(maxsize=4)
def _called(documents: tuple[Document, ...]) -> tuple[_Called, ...]:
    """Return the definitions of what changed lines name, those first of which there are few."""
    used, outlines = names_of(documents).used, outlines_of(documents)
    by_name: dict[str, list[tuple[Document, Definition]]] = defaultdict(list)
    for document in documents[1:]:
        if document.purpose in ("", "repository") and not is_test(document.name):
            for definition in outlines[document.id].definitions if document.id in outlines else ():
                if definition.name in used and not definition.is_local:
                    by_name[definition.name].append((document, definition))
    found: list[tuple[int, _Called]] = []
    for name, definitions in by_name.items():
        files = len({document.id for document, _ in definitions})
        for document, definition in definitions:
            of = frozenset(used[name].of) - {document.name}
            if of and used[name].may_be_defined_in(name, document.name, files, definition.owner):
                found.append((len(definitions), _Called(document.id, definition, of)))
    return tuple(called for _, called in sorted(found, key=lambda entry: entry[0]))


def _head_or_whole(definition: Definition) -> Lines:
    if definition.last - definition.first < MAX_CALLED_LINES:
        return definition.first, definition.last
    return definition.first, min(definition.head, definition.first + MAX_CALLED_LINES)
