"""Parts of a target: what one call reads. Small files are read together in order, large ones in ranges of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from consilience.documents.numbered import FENCE_TOKENS, NumberedLines
from consilience.documents.related import related_lines
from consilience.engine.sources import Document, parse_reference
from consilience.targets.diffs import Changes, FileChange

CONTEXT_LINES = 40
"""Lines of a large file that are shown before and after changed lines."""

Range = tuple[int, int]


@dataclass(frozen=True)
class Unit:
    """References that are read in one call, with their estimated tokens."""

    references: tuple[str, ...]
    tokens: int


def make_parts(documents: Sequence[Document], changes: Changes | None, tokens: int) -> tuple[tuple[str, ...], ...]:
    """Return the references of each part, of at most `tokens` tokens; a longer line is a part of its own.

    Of a diff, a part holds hunks, as lines of the document with the diff, and the new text around them.
    """
    units = list(_changed(documents, changes, tokens)) if changes else []
    in_diff = {changes.document, *(file.document for file in changes.files)} if changes else set()
    units += [unit for document in documents if document.id not in in_diff for unit in _cut(document, tokens)]
    return tuple(_packed(units, tokens)) or ((documents[0].id,),)


def related_to_parts(
    documents: Sequence[Document], parts: Sequence[Sequence[str]], tokens: int
) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Return for each part the lines of other parts that are most related to it, as references, in at most `tokens` tokens, and how
    many passages had no room."""
    numbers = {document.id: n for n, document in enumerate(documents)}
    hands: list[dict[int, list[Range]]] = []
    for part in parts:
        hand: dict[int, list[Range]] = {}
        for document in (parse_reference(reference, documents) for reference in part):
            hand.setdefault(numbers[document.id], []).append(document.lines or (1, document.line_count))
        hands.append(hand)
    chosen = related_lines([NumberedLines(document.text) for document in documents], hands, [tokens] * len(parts))
    related = tuple(
        tuple(f"{documents[n].id}:{first}-{last}" for n, ranges in sorted(of.ranges.items()) for first, last in ranges)
        for of in chosen
    )
    return related, sum(sum(of.left_out.values()) for of in chosen)


def unshown_documents(
    documents: Sequence[Document], parts: Sequence[Sequence[str]], changes: Changes | None
) -> tuple[str, ...]:
    """Return the documents, by name, of which no part shows any line. The diff is shown in other words if all its files are new."""
    shown = {changes.document} if changes else set()
    shown |= {parse_reference(reference, documents).id for part in parts for reference in part}
    return tuple(document.name or document.id for document in documents if document.id not in shown)


def _packed(units: Sequence[Unit], tokens: int) -> Iterator[tuple[str, ...]]:
    """Fill parts in order. References to adjacent lines of one document stay apart: each is a document in the prompt."""
    part: dict[str, None] = {}
    used = 0
    for unit in units:
        if part and used + unit.tokens > tokens:
            yield tuple(part)
            part, used = {}, 0
        part |= dict.fromkeys(unit.references)
        used += unit.tokens
    if part:
        yield tuple(part)


class _Lines(NumberedLines):
    """The lines of a document as units."""

    def __init__(self, document: Document) -> None:
        super().__init__(document.text)
        self.document = document

    def reference(self, first: int, last: int) -> str:
        return self.document.id if (first, last) == self.all else f"{self.document.id}:{first}-{last}"

    def unit(self, first: int, last: int) -> Unit:
        return Unit((self.reference(first, last),), self.tokens(first, last))


def _cut(document: Document, tokens: int) -> Iterator[Unit]:
    lines = _Lines(document)
    if not lines.texts:
        yield Unit((document.id,), FENCE_TOKENS)
    for first, last in lines.cut(1, len(lines.texts), tokens):
        yield lines.unit(first, last)


def _changed(documents: Sequence[Document], changes: Changes, tokens: int) -> Iterator[Unit]:
    """Yield a unit of each changed file, several of one that is too large for a part."""
    by_id = {document.id: document for document in documents}
    diff = _Lines(by_id[changes.document])
    for file in changes.files:
        hunks = diff.unit(*file.diff_lines)
        text = _Lines(by_id[file.document]) if file.document in by_id else None
        if text is None or not text.texts:
            yield from (diff.unit(*lines) for lines in diff.cut(*file.diff_lines, tokens))
            continue
        whole = text.unit(1, len(text.texts))
        if file.is_new:
            yield from _cut(text.document, tokens)
        elif hunks.tokens + whole.tokens <= tokens:
            yield Unit((*hunks.references, *whole.references), hunks.tokens + whole.tokens)
        else:
            yield from _around_hunks(file, diff, text, tokens)


def _around_hunks(file: FileChange, diff: _Lines, text: _Lines, tokens: int) -> Iterator[Unit]:
    """Yield some lines of the diff with the regions of the new text around them, half of the tokens for each."""
    for first, last in diff.cut(*file.diff_lines, tokens // 2):
        hunk = diff.unit(first, last)
        regions = [text.unit(*region) for region in _regions(file, first, last, text, tokens - hunk.tokens)]
        references = (*hunk.references, *(reference for region in regions for reference in region.references))
        yield Unit(references, hunk.tokens + sum(region.tokens for region in regions))


def _regions(file: FileChange, first: int, last: int, text: _Lines, tokens: int) -> list[Range]:
    """Return the lines of the new text that these lines of the diff are about, with as much around them as fits."""
    places = [place for line in range(first, last + 1) if (place := file.places.get(line)) is not None]
    numbers = sorted({min(number, len(text.texts)) for side, number in places if side == "new"})
    for context in (CONTEXT_LINES, CONTEXT_LINES // 2, CONTEXT_LINES // 8, 0):
        regions = _joined([(max(n - context, 1), min(n + context, len(text.texts))) for n in numbers])
        if sum(text.tokens(*region) for region in regions) <= tokens:
            return regions
    return []


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Join overlapping and adjacent ranges, which are in order."""
    joined: list[Range] = []
    for first, last in ranges:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined
