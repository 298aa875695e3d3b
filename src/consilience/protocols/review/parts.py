"""Parts of a target: what one call reads, and what it is shown beside it. One part wherever that fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from consilience.documents.numbered import FENCE_TOKENS, NumberedLines
from consilience.documents.related import related_lines
from consilience.domain.document_shares import Lines, Purpose
from consilience.domain.tokens import BYTES_PER_TOKEN
from consilience.engine.sources import Document, parse_reference
from consilience.targets.diffs import Changes, FileChange, parse_changes
from consilience.targets.surroundings import RELATIONS, Surrounding, SurroundingKind, elsewhere, within_file

SURROUNDING_TOKENS = 8_000
"""Of what is shown beside the hunks of a part, at most; of a large change, twice its hunks."""
MATERIAL_TOKENS: Mapping[Purpose, int] = {"rules": 4_000, "intent": 3_000, "context": 16_000}
"""Of the material beside each part, at most."""
MATERIAL_SHARE: Mapping[Purpose, float] = {"rules": 1 / 6, "intent": 1 / 8, "context": 1 / 4}
"""The same, of a part."""
RELATION_SHARE: Mapping[SurroundingKind, float] = {
    "enclosing": 0.3,
    "imports": 0.05,
    "called": 0.1,
    "tests": 0.15,
    "mentions": 0.4,
    "wider": 0,
}
"""Shares of the room beside hunks, so that each relation leaves room for the next. What is left is then given in the same order."""
HUNK_SHARE = 1 / 2
"""Of a part, if there are several, which its hunks take; the rest is for what belongs beside them."""
GAP_LINES = 2
"""Lines between two ranges that are shown, too."""


@dataclass(frozen=True)
class Unit:
    """References that are read in one call, with their estimated tokens."""

    references: tuple[str, ...]
    tokens: int
    file: FileChange | None = None
    """The change that it is of."""


@dataclass(frozen=True)
class Parts:
    """What each call reads."""

    under_review: tuple[tuple[str, ...], ...]
    """References to documents, by part."""
    beside: tuple[tuple[str, ...], ...]
    """References to what is shown beside each part and is not under review."""
    cut: tuple[tuple[tuple[str, int], ...], ...]
    """What had no room beside each part: passages by relation, and lines by purpose of the material."""


def make_parts(documents: Sequence[Document], tokens: int) -> Parts:
    """Return the parts of a target, of at most `tokens` tokens with what stands beside them; a longer line is a part of its own.

    Of a diff, a part holds hunks, as lines of the document with the diff, and what belongs beside them.
    """
    material, cut_material, taken = _material(documents, tokens)
    tokens = max(tokens - taken, tokens // 3)
    target = tuple(document for document in documents if not document.purpose)
    changes = parse_changes(documents)
    units = list(_hunks(target, changes, tokens)) if changes else []
    in_diff = {changes.document, *(file.document for file in changes.files)} if changes else set()
    units += [unit for document in target if document.id not in in_diff for unit in _cut(document, tokens)]
    if sum(unit.tokens for unit in units) > tokens and changes:
        units = [piece for unit in units for piece in _halved(unit, documents, int(tokens * HUNK_SHARE))]
        groups = list(_packed(units, int(tokens * HUNK_SHARE)))
    else:
        groups = list(_packed(units, tokens))
    filled = [_filled(group, tuple(documents), changes, tokens) for group in groups]
    if not filled:
        return Parts(((documents[0].id,),), (tuple(material),), (tuple(cut_material.items()),))
    return Parts(
        tuple(part for part, _, _ in filled),
        tuple((*material, *beside) for _, beside, _ in filled),
        tuple((*cut_material.items(), *cut.items()) for _, _, cut in filled),
    )


def related_to_parts(
    documents: Sequence[Document], parts: Sequence[Sequence[str]], tokens: int
) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Return for each part the lines of other parts that are most related to it, as references, in at most `tokens` tokens, and how
    many passages had no room."""
    numbers = {document.id: n for n, document in enumerate(documents)}
    hands: list[dict[int, list[Lines]]] = []
    for part in parts:
        hand: dict[int, list[Lines]] = {}
        for document in (parse_reference(reference, documents) for reference in part):
            hand.setdefault(numbers[document.id], []).append(document.lines or (1, document.line_count))
        hands.append(hand)
    chosen = related_lines([NumberedLines(document.text) for document in documents], hands, [tokens] * len(parts))
    related = tuple(
        tuple(f"{documents[n].id}:{first}-{last}" for n, ranges in sorted(of.ranges.items()) for first, last in ranges)
        for of in chosen
    )
    return related, sum(sum(of.left_out.values()) for of in chosen)


def files_of_part(shown: Sequence[Document], changes: Changes | None) -> frozenset[str]:
    """Return the names of the files of which a part shows anything, also those that only hunks show; of a diff alone, its own."""
    names = {document.name or document.id for document in shown if changes is None or document.id != changes.document}
    for document in (document for document in shown if changes and document.id == changes.document):
        first, last = document.lines or (1, document.line_count)
        of = changes.files if changes else ()
        names |= {file.path for file in of if file.diff_lines[0] <= last and first <= file.diff_lines[1]}
    return frozenset(names)


def unshown_documents(
    documents: Sequence[Document], parts: Sequence[Sequence[str]], changes: Changes | None
) -> tuple[str, ...]:
    """Return the documents under review, by name, of which no part shows any line."""
    shown = [parse_reference(reference, documents) for part in parts for reference in part]
    names = files_of_part(shown, changes)
    diff = changes.document if changes else ""
    under_review = (document for document in documents if not document.purpose and document.id != diff)
    return tuple(name for document in under_review if (name := document.name or document.id) not in names)


def _packed(units: Sequence[Unit], tokens: int) -> Iterator[list[Unit]]:
    """Fill parts in order."""
    part: list[Unit] = []
    used = 0
    for unit in units:
        if part and used + unit.tokens > tokens:
            yield part
            part, used = [], 0
        part.append(unit)
        used += unit.tokens
    if part:
        yield part


class _NumberedUnits(NumberedLines):
    """The lines of a document as units."""

    def __init__(self, document: Document) -> None:
        super().__init__(document.text)
        self.document = document

    def reference(self, first: int, last: int) -> str:
        return self.document.id if (first, last) == self.all else f"{self.document.id}:{first}-{last}"

    def unit(self, first: int, last: int, file: FileChange | None = None) -> Unit:
        return Unit((self.reference(first, last),), self.tokens(first, last), file)


def _cut(document: Document, tokens: int, file: FileChange | None = None) -> Iterator[Unit]:
    lines = _NumberedUnits(document)
    if not lines.texts:
        yield Unit((document.id,), FENCE_TOKENS, file)
    for first, last in lines.cut(1, len(lines.texts), tokens):
        yield lines.unit(first, last, file)


def _material(documents: Sequence[Document], tokens: int) -> tuple[list[str], dict[str, int], int]:
    """Return references to the material that every part is shown, how many lines of each purpose had no room, and its tokens."""
    references: list[str] = []
    cut: dict[str, int] = {}
    taken = 0
    for purpose, most in MATERIAL_TOKENS.items():
        room = min(most, int(tokens * MATERIAL_SHARE[purpose]))
        for document in (document for document in documents if document.purpose == purpose):
            lines = _NumberedUnits(document)
            last = next(lines.cut(1, len(lines), room), (1, 0))[1] if len(lines) and lines.tokens(1, 1) <= room else 0
            if last < len(lines):
                cut[purpose] = cut.get(purpose, 0) + len(lines) - last
            if last:
                used = lines.tokens(1, last)
                references.append(lines.reference(1, last))
                room, taken = room - used, taken + used
    return references, cut, taken


def _hunks(documents: Sequence[Document], changes: Changes, tokens: int) -> Iterator[Unit]:
    """Yield a unit of each changed file: its lines of the diff, or the text of a new file."""
    by_id = {document.id: document for document in documents}
    diff = _NumberedUnits(by_id[changes.document])
    for file in changes.files:
        text = by_id.get(file.document or "")
        if file.is_new and text is not None and text.line_count:
            yield from _cut(text, tokens, file)
        else:
            yield diff.unit(*file.diff_lines, file)


def _halved(unit: Unit, documents: Sequence[Document], tokens: int) -> Iterator[Unit]:
    """Yield a unit in pieces of at most so many tokens."""
    document = parse_reference(unit.references[0], documents)
    if unit.tokens <= tokens:
        yield unit
        return
    lines = _NumberedUnits(document)
    for first, last in lines.cut(*(document.lines or lines.all), tokens):
        yield lines.unit(first, last, unit.file)


def _filled(
    group: Sequence[Unit], documents: tuple[Document, ...], changes: Changes | None, tokens: int
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]:
    """Return what a part reads, what stands beside it, and what of that had no room. Room is given relation by relation, to the
    changed files in turn, so that the files with the most to show are cut first."""
    references = tuple(dict.fromkeys(reference for unit in group for reference in unit.references))
    files = [unit.file for unit in group if unit.file is not None]
    if changes is None or not files:
        return references, (), {}
    hunks = sum(unit.tokens for unit in group)
    room = max(min(tokens - hunks, max(SURROUNDING_TOKENS, 2 * hunks)), 0)
    filling = _Filling(documents, changes, references, room)
    waiting: dict[SurroundingKind, list[list[Surrounding]]] = {relation: [] for relation in RELATIONS}
    for file in (_in_group(unit, documents, changes) for unit in group if unit.file is not None):
        of: dict[SurroundingKind, list[Surrounding]] = defaultdict(list)
        for passage in within_file(file, documents):
            of[passage.relation].append(passage)
        for relation, passages in of.items():
            waiting[relation].append(passages)
    outside: dict[SurroundingKind, list[Surrounding]] = defaultdict(list)
    for passage in elsewhere({file.path for file in files}, documents):
        outside[passage.relation].append(passage)
    waiting |= {relation: [passages] for relation, passages in outside.items()}
    for relation, share in RELATION_SHARE.items():
        waiting[relation] = filling.fill(waiting[relation], room * share)
    for relation in RELATIONS:
        left = filling.fill(waiting[relation], filling.room)
        if (cut := sum(map(len, left))) and relation != "wider":
            filling.cut[relation] = cut
    filling.complete([file for file in files if not file.is_new])
    own = filling.references("")
    ids = {reference: parse_reference(reference, documents).id for reference in own}
    ordered: list[str] = []
    for unit in group:
        text = unit.file.document if unit.file is not None else None
        ordered += [*unit.references, *(reference for reference in own if ids[reference] == text)]
    return tuple(dict.fromkeys([*ordered, *own])), filling.references("repository"), filling.cut


def _in_group(unit: Unit, documents: Sequence[Document], changes: Changes) -> FileChange:
    """Return the change of a file, as far as this unit shows it."""
    file = unit.file
    assert file is not None
    part = parse_reference(unit.references[0], documents)
    if part.lines is None or part.lines == file.diff_lines:
        return file
    if part.id != changes.document:
        return replace(file, added=_clipped(file.added, *part.lines))
    shown = [
        number
        for line, (side, number) in file.places.items()
        if part.lines[0] <= line <= part.lines[1] and side == "new"
    ]
    if not shown:
        return replace(file, added=())
    return replace(file, added=_clipped(file.added, min(shown), max(shown)))


def _clipped(ranges: Sequence[Lines], first: int, last: int) -> tuple[Lines, ...]:
    return tuple((max(a, first), min(b, last)) for a, b in ranges if a <= last and first <= b)


@dataclass
class _Filling:
    """The room beside the hunks of a part, and what has been put there."""

    documents: tuple[Document, ...]
    changes: Changes
    read: tuple[str, ...]
    room: int
    cut: dict[str, int] = field(default_factory=dict)
    _lines: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        self._texts = {document.id: _NumberedUnits(document) for document in self.documents}
        self._purposes = {document.id: document.purpose for document in self.documents}
        self._seen: dict[str, set[int]] = defaultdict(set)
        """Lines that the part shows otherwise: a new file as a whole, or the new side of hunks."""
        for reference in self.read:
            part = parse_reference(reference, self.documents)
            first, last = part.lines or (1, part.line_count)
            if part.id != self.changes.document:
                self._seen[part.id].update(range(first, last + 1))
                continue
            for file in self.changes.files:
                if file.document is not None:
                    places = file.places.items()
                    self._seen[file.document].update(
                        n for line, (s, n) in places if s == "new" and first <= line <= last
                    )

    def fill(self, waiting: Sequence[Sequence[Surrounding]], room: float) -> list[list[Surrounding]]:
        """Take passages of the files in turn, until a share of the room is used; return the ones that do not fit."""
        left: list[list[Surrounding]] = [[] for _ in waiting]
        for n in range(max(map(len, waiting), default=0)):
            for passages, of in zip(waiting, left, strict=True):
                if n < len(passages):
                    cost = self._cost(passages[n])
                    if cost > min(room, self.room):
                        of.append(passages[n])
                    elif cost:
                        room, self.room = room - cost, self.room - cost
                        first, last = passages[n].lines
                        self._lines[passages[n].document].update(range(first, last + 1))
        return left

    def complete(self, files: Sequence[FileChange]) -> None:
        """Show files whole that fit, the shortest first."""
        ids = dict.fromkeys(file.document for file in files if file.document is not None)
        for id in sorted(ids, key=lambda id: len(self._texts[id])):
            cost = self._cost(Surrounding("wider", id, self._texts[id].all)) if len(self._texts[id]) else 0
            if cost and cost <= self.room:
                self.room -= cost
                self._lines[id].update(range(1, len(self._texts[id]) + 1))

    def _cost(self, passage: Surrounding) -> int:
        """Return the tokens that a passage adds; 0 if all of its lines are shown already."""
        first, last = passage.lines
        shown, seen = self._lines[passage.document], self._seen[passage.document]
        new = [n for n in range(first, last + 1) if n not in shown]
        if all(n in seen for n in new):
            return 0
        text = self._texts[passage.document]
        is_outside = self._purposes[passage.document] == "repository"
        around = len(text.document.id) + 2 if is_outside else 0
        size = sum(len(text.texts[n - 1].encode("utf-8", "surrogatepass")) + len(str(n)) + 3 + around for n in new)
        is_adjacent = any(n in shown for n in range(first - 1 - GAP_LINES, last + 2 + GAP_LINES))
        fence = 0 if is_adjacent else 16 if is_outside else FENCE_TOKENS
        return int(size / BYTES_PER_TOKEN) + fence + 1

    def references(self, purpose: Purpose) -> tuple[str, ...]:
        """Return what was taken of the documents of a purpose."""
        return tuple(
            self._texts[id].reference(first, last)
            for id, lines in sorted(self._lines.items(), key=lambda item: int(item[0][1:]))
            if self._purposes[id] == purpose
            for first, last in _ranges(sorted(lines), len(self._texts[id]))
        )


def _ranges(lines: Sequence[int], count: int) -> list[Lines]:
    """Return the ranges of sorted lines, with small gaps closed."""
    ranges: list[Lines] = []
    for n in lines:
        if ranges and n <= ranges[-1][1] + 1 + GAP_LINES:
            ranges[-1] = ranges[-1][0], n
        elif n <= count:
            ranges.append((n, n))
    return ranges
