"""Joining what readers of different documents noted: rows on the same attribute of the same thing whose values differ.

Pure: the same rows give the same pairs, in the same order. A pair is a candidate, since code does not know what words mean; whether
the passages contradict each other is for a reader to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from unicodedata import normalize

from consilience.documents.values import ReadValue, ValueKind, compare_values, read_value
from consilience.documents.words import words_in

MAX_TOGETHER = 60
"""Rows that may share two words before these say no more about what the rows have in common."""
MIN_SHARED_ATTRIBUTE = 0.5
"""Share of the words of two attributes that are the same, if neither holds all words of the other."""
STEM_LETTERS = 6
"""Letters by which two forms of a word are the same word."""
MAX_TEXT_WORDS = 8
"""Longer values without a figure are worded in so many ways that a difference says little: they come last."""
MAX_FIELD_WORDS = 12
"""Words of an entity or an attribute that count."""
SPECIFIC_KINDS: frozenset[ValueKind] = frozenset({"date", "time", "money", "percent", "days", "months"})
"""Kinds of values of which two of one thing are worth a look, whatever the attributes are called."""

_ARTICLES = frozenset((
    "a", "an", "the", "of", "to", "in", "on", "at", "by", "for", "from", "and", "or", "is", "are", "be", "its", "his", "her",
    "their", "our", "this", "that", "per", "each",
))  # fmt: skip
_GENERAL = (
    "date", "amount", "number", "value", "total", "count", "level", "figure", "time", "day", "size", "name", "sum",
)  # fmt: skip
"""Words of attributes that say what kind of value there is, and not what it is a value of."""


@dataclass(frozen=True)
class StatedRow:
    """What a reader noted of a passage whose words were found in the document."""

    reader: str
    document: str
    """Its id (`S4`)."""
    line: int
    """Where the words begin."""
    words: str
    entity: str
    attribute: str
    value: str

    @cached_property
    def entity_stems(self) -> frozenset[str]:
        return frozenset(_stems(self.entity))

    @cached_property
    def attribute_stems(self) -> frozenset[str]:
        """Its stems without those that say no more than the kind of the value, if there are others."""
        stems = frozenset(_stems(self.attribute))
        return stems - _GENERAL_STEMS or stems

    @cached_property
    def read(self) -> ReadValue:
        return read_value(self.value)

    @property
    def place(self) -> tuple[str, int]:
        return self.document, self.line


@dataclass(frozen=True)
class RowPair:
    """Two rows that speak of one thing and state different values of it."""

    first: StatedRow
    second: StatedRow
    rank: int
    """How surely they speak of one thing: 3 for the same entity and attribute, 2 for an attribute that shares words, 1 for the same
    words spread otherwise over entity and attribute, 0 for the same entity and kind of value under another name of the attribute,
    unless a reader uses both names."""

    @property
    def places(self) -> frozenset[tuple[str, int]]:
        return frozenset((self.first.place, self.second.place))


def join_rows(rows: Sequence[StatedRow]) -> list[RowPair]:
    """Return the pairs of rows on one thing with different values, the surest first, one for two passages and an attribute.

    Only rows that share words are compared, so time grows with the rows and not with their square: two words that more than
    `MAX_TOGETHER` rows have in common bring none of them together.
    """
    known = _Entities(row.entity_stems for row in rows)
    vocabularies: dict[str, set[frozenset[str]]] = defaultdict(set)
    for row in rows:
        vocabularies[row.reader].add(row.attribute_stems)
    best: dict[object, RowPair] = {}
    for a, b in sorted(_candidates(rows)):
        first, second = sorted((rows[a], rows[b]), key=_order)
        rank = _rank(first, second, known)
        if rank == 0 and any(
            {first.attribute_stems, second.attribute_stems} <= names for names in vocabularies.values()
        ):
            continue  # a reader that uses both names means two attributes
        if rank is None or compare_values(first.value, second.value) != "different":
            continue
        pair = RowPair(first, second, rank)
        key = pair.places, frozenset((first.attribute_stems, second.attribute_stems))
        if len(pair.places) == 2 and (key not in best or _surest_first(pair) < _surest_first(best[key])):
            best[key] = pair
    return sorted(best.values(), key=_surest_first)


class _Entities:
    """Which shorter names of things are clear: `Ashton` is the Ashton depot as long as there is no Ashton clinic."""

    def __init__(self, entities: Iterable[frozenset[str]]) -> None:
        self._all = {*entities}
        by_stem: dict[str, set[frozenset[str]]] = defaultdict(set)
        for entity in self._all:
            for stem in entity:
                by_stem[stem].add(entity)
        self._by_stem: Mapping[str, set[frozenset[str]]] = by_stem
        self._clear: dict[frozenset[str], bool] = {}

    def are_same(self, one: frozenset[str], other: frozenset[str]) -> bool:
        if not one or not other:
            return False
        if one == other:
            return True
        shorter, longer = sorted((one, other), key=len)
        return shorter < longer and self._is_clear(shorter)

    def _is_clear(self, name: frozenset[str]) -> bool:
        """Return whether all longer names that hold this one hold each other, too."""
        if name not in self._clear:
            longer = sorted(
                (entity for entity in set.intersection(*(self._by_stem[stem] for stem in name)) if name < entity),
                key=len,
            )
            self._clear[name] = all(one <= other for one, other in pairwise(longer))
        return self._clear[name]


def _candidates(rows: Sequence[StatedRow]) -> set[tuple[int, int]]:
    """Return the pairs of rows that share two words, or a word of the entity and a kind of value; of very many rows with the same
    entity and attribute each with those that follow it."""
    together: dict[tuple[str, str], list[int]] = defaultdict(list)
    alike: dict[tuple[frozenset[str], frozenset[str]], list[int]] = defaultdict(list)
    for n, row in sorted(enumerate(rows), key=lambda item: _order(item[1])):
        alike[row.entity_stems, row.attribute_stems].append(n)
        for words in combinations(sorted(row.entity_stems | row.attribute_stems), 2):
            together[words].append(n)
        for stem in row.entity_stems:
            for kind in row.read.kinds & SPECIFIC_KINDS:
                together[f"kind {kind}", stem].append(n)
    pairs = {
        pair for members in together.values() if 1 < len(members) <= MAX_TOGETHER for pair in combinations(members, 2)
    }
    for members in alike.values():
        pairs |= {(a, b) for n, a in enumerate(members) for b in members[n + 1 : n + MAX_TOGETHER]}
    return {(min(pair), max(pair)) for pair in pairs}


def _rank(one: StatedRow, other: StatedRow, known: _Entities) -> int | None:
    same_entity = known.are_same(one.entity_stems, other.entity_stems)
    a, b = one.attribute_stems, other.attribute_stems
    if same_entity and a and a == b:
        return 3
    if same_entity and a & b and (a <= b or b <= a or len(a & b) >= MIN_SHARED_ATTRIBUTE * len(a | b)):
        return 2
    all_a, all_b = one.entity_stems | a, other.entity_stems | b
    if one.entity_stems & other.entity_stems and a & b and (all_a <= all_b or all_b <= all_a):
        return 1
    return 0 if same_entity and one.read.kinds & other.read.kinds & SPECIFIC_KINDS else None


def _surest_first(pair: RowPair) -> tuple[object, ...]:
    long_text = not pair.first.read.figures and len(pair.first.read.words | pair.second.read.words) > MAX_TEXT_WORDS
    across = pair.first.document != pair.second.document
    return long_text, -pair.rank, not across, not pair.first.read.figures, _order(pair.first), _order(pair.second)


def _order(row: StatedRow) -> tuple[int, int, str, str, str, str]:
    digits = row.document.lstrip("S")
    return int(digits) if digits.isdecimal() else 0, row.line, row.attribute, row.entity, row.value, row.reader


def _stems(text: str) -> Iterator[str]:
    words = (word for word in words_in(normalize("NFKC", text).casefold(), joints="") if word not in _ARTICLES)
    for _, word in zip(range(MAX_FIELD_WORDS), words, strict=False):
        yield word if any(map(str.isdigit, word)) else word.removesuffix("s")[:STEM_LETTERS]


_GENERAL_STEMS = frozenset(stem for word in _GENERAL for stem in _stems(word))
