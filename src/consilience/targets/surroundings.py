"""What belongs beside the hunks of a change, in the order in which room is given to it. Pure: of documents alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.domain.document_shares import Lines
from consilience.engine.sources import Document
from consilience.targets.diffs import FileChange
from consilience.targets.names import ChangedNames, is_history, is_test, names_of
from consilience.targets.outline import Definition, FileOutline, is_code, outline_of

SurroundingKind = Literal["enclosing", "imports", "called", "tests", "mentions", "wider"]
RELATIONS: tuple[SurroundingKind, ...] = ("enclosing", "imports", "called", "tests", "mentions", "wider")
"""Definitions around the changed lines; imports of the file; definitions of what the lines name; tests of what they define; lines
elsewhere that name it; more of the file. Room is given in this order."""

MAX_DEFINITION_LINES = 120
"""A longer definition is shown as its head and as lines around what matters in it."""
MAX_CALLED_LINES = 40
MAX_IMPORT_LINES = 60
MAX_TEST_LINES = 40
NEAR_LINES = 20
"""Around changed lines in a long definition."""
MENTION_LINES = 2
"""Before and after a line that names what changed; half as many in prose."""
WIDER_LINES = (10, 40)
MAX_MENTIONS_OF_A_NAME = 24
MAX_MENTIONS_OF_A_FILE = 12


@dataclass(frozen=True)
class Surrounding:
    """Lines of a document that belong beside a changed file."""

    relation: SurroundingKind
    document: str
    lines: Lines
    of: str
    """Path of the changed file."""


def surroundings_of(file: FileChange, documents: tuple[Document, ...]) -> Iterator[Surrounding]:
    """Yield what belongs beside the hunks of a changed file, in order of relation, and within one in order of weight."""
    by_id = {document.id: document for document in documents}
    names = names_of(documents)
    own = by_id.get(file.document or "")
    if own is not None:
        outline = outline_of(own.name, own.text)
        count = own.line_count
        yield from (Surrounding("enclosing", own.id, lines, file.path) for lines in _enclosing(file, outline, count))
        yield from (Surrounding("imports", own.id, lines, file.path) for lines in _imports(outline))
    yield from _elsewhere(file, names, documents)
    if own is not None:
        for reach in WIDER_LINES:
            for first, last in file.added:
                yield Surrounding("wider", own.id, _clipped(first - reach, last + reach, count), file.path)


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
            yield _clipped(first - MENTION_LINES, last + MENTION_LINES, count)


def _imports(outline: FileOutline) -> Iterator[Lines]:
    left = MAX_IMPORT_LINES
    for first, last in outline.imports:
        left -= last - first + 1
        if left >= 0:
            yield first, last


def _elsewhere(file: FileChange, names: ChangedNames, documents: Sequence[Document]) -> Iterator[Surrounding]:
    """Yield definitions that changed lines name, then tests, then lines that name what the file defines, or the file."""
    used = {name for name, paths in names.used.items() if file.path in paths}
    wanted = [name for name, paths in names.wanted.items() if file.path in paths]
    symbols = set(names.symbols)
    others = [
        d for d in documents[1:] if d.name != file.path and d.purpose in ("", "repository") and not is_history(d.name)
    ]
    called: list[Surrounding] = []
    tests: list[Surrounding] = []
    mentions: list[Surrounding] = []
    hits = _hits(wanted, others)
    for document in others:
        outline = outline_of(document.name, document.text) if is_code(document.name) else FileOutline()
        called += [
            Surrounding("called", document.id, _head_or_whole(definition), file.path)
            for definition in outline.definitions
            if definition.name in used and not is_test(document.name)
        ]
        into = tests if is_test(document.name) else mentions
        relation: SurroundingKind = "tests" if into is tests else "mentions"
        found = [
            Surrounding(relation, document.id, lines, file.path)
            for number, name in hits.get(document.id, ())
            for lines in _mention(document, outline, number)
            if name in symbols or relation == "mentions" or not is_code(document.name)
        ]
        into += found[: 2 * MAX_MENTIONS_OF_A_FILE]
    yield from called
    yield from _in_turn(tests)
    yield from _in_turn(mentions)


def _in_turn(passages: Sequence[Surrounding]) -> Iterator[Surrounding]:
    """Yield passages of the documents in turn, so that many in one leave room for the others."""
    by_document: dict[str, list[Surrounding]] = defaultdict(list)
    for passage in passages:
        by_document[passage.document].append(passage)
    for n in range(max(map(len, by_document.values()), default=0)):
        yield from (of[n] for of in by_document.values() if n < len(of))


def _head_or_whole(definition: Definition) -> Lines:
    if definition.last - definition.first < MAX_CALLED_LINES:
        return definition.first, definition.last
    return definition.first, min(definition.head, definition.first + MAX_CALLED_LINES)


def _hits(names: Sequence[str], documents: Sequence[Document]) -> Mapping[str, list[tuple[int, str]]]:
    """Return the lines that name one of the names, by document, with the name; names that fewer lines have come first, and of
    one name calls."""
    if not names:
        return {}
    ordered = sorted(names, key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, ordered))})(?!\w)")
    by_name: dict[str, list[tuple[bool, str, int]]] = defaultdict(list)
    for document in documents:
        seen: dict[str, int] = defaultdict(int)
        for number, line in enumerate(document.text.splitlines(), 1):
            for match in pattern.finditer(line):
                name = match[0]
                seen[name] += 1
                if seen[name] <= 2 * MAX_MENTIONS_OF_A_FILE:
                    is_call = line[match.end() : match.end() + 1] == "(" or not is_code(document.name)
                    by_name[name].append((not is_call, document.id, number))
    hits: dict[str, dict[int, str]] = defaultdict(dict)
    for name in sorted(by_name, key=lambda name: (len(by_name[name]), names.index(name))):
        for _, id, number in sorted(by_name[name], key=lambda hit: hit[0])[:MAX_MENTIONS_OF_A_NAME]:
            hits[id].setdefault(number, name)
    return {id: list(lines.items()) for id, lines in hits.items()}


def _mention(document: Document, outline: FileOutline, number: int) -> Iterator[Lines]:
    """Yield the lines around a mention: a short test whole; else its neighbours, after the first line of the definition around."""
    around = outline.around(number, number)
    innermost = max(around, key=lambda definition: definition.depth, default=None)
    if innermost and is_test(document.name) and innermost.last - innermost.first < MAX_TEST_LINES:
        yield innermost.first, innermost.last
        return
    is_import = any(first <= number <= last for first, last in outline.imports)
    reach = 0 if is_import else MENTION_LINES if is_code(document.name) else MENTION_LINES // 2
    first, last = _clipped(number - reach, number + reach, document.line_count)
    if innermost is not None:
        first, last = max(first, innermost.first), min(last, innermost.last)
        if innermost.first < first:
            line = innermost.first + _decorators(document, innermost)
            yield line, line
    lines = document.text.splitlines()
    while first < number and not lines[first - 1].strip():
        first += 1
    while last > number and not lines[last - 1].strip():
        last -= 1
    yield first, last


def _decorators(document: Document, definition: Definition) -> int:
    """Return how many lines precede the one that names a definition."""
    lines = document.text.splitlines()[definition.first - 1 : definition.head]
    return next((n for n, line in enumerate(lines) if definition.name in line and not line.lstrip().startswith("@")), 0)
