"""Related lines: passages of other agents' shares that speak of the same things as an agent's own.

A pair of passages has to meet in one prompt only, so passages on one subject are gathered at one reader: sent is, again and again,
the passage whose pairs that then meet are worth most for its tokens. Passages are compared by the words that they share, rare ones
most (BM25's inverse document frequency, squared). A word that is written in lower case, and so is no name, brings nothing together
alone. Figures count little: passages that contradict each other have different ones, and unrelated passages often have equal ones.
Numbers of sections do not count, nor do figures of one or two digits.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import log

from consilience.documents.numbered import NumberedLines, heading
from consilience.documents.words import words_in
from consilience.domain.document_shares import Lines
from consilience.domain.tokens import BYTES_PER_TOKEN

MAX_PASSAGE_TOKENS = 120
"""A passage ends after the line that exceeds this, or at the end of a sentence."""
MIN_WORDS = 2
"""A rule, the dashes below the head of a table or a number alone tell nobody anything."""
MAX_SHARING = 60
"""Words that more passages have do not bring two of them together; they count where other words did."""
MAX_PARTNERS = 64
"""Pairs of one passage, the most related first."""
MAX_PAIRS = 300_000
"""Comparisons, at most, those of the rarest words first."""
STEM_CHARS = 6
"""Letters by which two forms of a word are the same word."""
MIN_WORTH = 1e-9
"""What rounding may leave of the worth of a passage whose pairs have all met."""
FIGURE_WEIGHT = 0.3
MIN_DIGITS = 3
"""Figures with fewer digits say nothing of what two passages have in common."""
HEADING_WEIGHT = 0.5
WITHOUT_FIGURES = 0.3
"""Weight of pairs of which a passage has no figure: what contradicts is most often an amount, a number or a date."""
SHARPNESS = 1.5
"""Exponent of the worth of a pair: how much rather a passage is sent for one close partner than for many distant ones."""
MIN_SCORE_SHARE = 0.02
"""Pairs with less than this share of the best score are not related."""

_SECTION_NUMBER = re.compile(
    r"\A[\s>*_#-]*(?:\d{1,3}[.)]|\(?[a-z\d]{1,3}\)|\d{1,3}(?:\.\d{1,3})+\.?(?!\s+[a-z]))(?=\s)"
)
_SENTENCE_END = re.compile(r"""[.!?:;。！？|][*_"'”’)\]]*\s*$""")


@dataclass(frozen=True)
class SharePassage:
    """Neighbouring lines of one share."""

    owner: int
    source: int
    lines: Lines
    words: Mapping[str, float]
    """Their weight, without regard to how rare they are."""
    tokens: int


@dataclass
class Related:
    """What is sent to one agent, and what was left out, by document."""

    ranges: dict[int, tuple[Lines, ...]] = field(default_factory=dict)
    left_out: dict[int, int] = field(default_factory=dict)
    tokens: int = 0


def related_lines(
    texts: Sequence[NumberedLines], hands: Sequence[Mapping[int, Sequence[Lines]]], room: Sequence[int]
) -> list[Related]:
    """Return for each share the lines of other shares that are most related to it, in at most so many tokens.

    `hands` has the ranges of lines of each share, by document. Time grows linearly with the text, and with `MAX_PAIRS`.
    """
    passages = [p for owner, hand in enumerate(hands) for p in _passages(owner, hand, texts)]
    sending = _Sending(passages, _pairs(passages, _ordinary_words(texts)), room)
    sending.run()
    return [
        Related(_ranges(passages, sent), _count(passages, missed), used)
        for sent, missed, used in zip(sending.sent, sending.missed(), sending.used, strict=True)
    ]


def find_passage(text: NumberedLines, words: str, tokens: int) -> Lines | None:
    """Return the lines of a document that have most of these words, rare ones most, with what follows them in their section, in at
    most so many tokens if they have no more themselves; None if no line has any. The words may stand in two neighbouring lines."""
    wanted = {*_words(words)}
    lines = [wanted.intersection(_words(line)) for line in text.texts]
    held = Counter(word for line in lines for word in line)
    if not held:
        return None
    following = [*(set[str]() if heading(text.texts[n]) else lines[n] for n in range(1, len(lines))), set[str]()]
    worth = [
        sum(log(1 + len(lines) / held[word]) for word in (one | two if one else one))
        for one, two in zip(lines, following, strict=True)
    ]
    first = last = worth.index(max(worth)) + 1
    while last < len(text) and not heading(text.texts[last]) and text.tokens(first, last + 1) <= tokens:
        last += 1
    while not text.texts[last - 1].strip():
        last -= 1
    return first, last


class _Sending:
    """Chooses which passages are sent to which readers: again and again the one whose pairs that then meet are worth most for its
    tokens. So passages on one subject gather at one reader."""

    def __init__(
        self, passages: Sequence[SharePassage], pairs: Iterable[tuple[float, int, int]], room: Sequence[int]
    ) -> None:
        self.passages = passages
        self.room = room
        self.used = [0] * len(room)
        self.sent: list[set[int]] = [set() for _ in room]
        self._at = [{passage.owner} for passage in passages]
        self._partners: dict[int, dict[int, float]] = defaultdict(dict)
        for score, a, b in pairs:
            if len(self._partners[a]) < MAX_PARTNERS and len(self._partners[b]) < MAX_PARTNERS:
                self._partners[a][b] = self._partners[b][a] = score

    def run(self) -> None:
        worth: dict[tuple[int, int], float] = defaultdict(float)
        """By passage and reader: the score of the pairs that would meet."""
        for n, partners in self._partners.items():
            for other, score in partners.items():
                worth[n, self.passages[other].owner] += score
        queue = [(-score / self.passages[n].tokens, n, reader) for (n, reader), score in worth.items()]
        heapify(queue)
        while queue:
            entry, n, reader = heappop(queue)
            now = worth[n, reader] / self.passages[n].tokens
            if (
                now <= MIN_WORTH
                or reader in self._at[n]
                or self.used[reader] + self.passages[n].tokens > self.room[reader]
            ):
                continue
            if now < -entry and queue and now < -queue[0][0]:
                heappush(queue, (-now, n, reader))
                continue
            apart = [other for other in self._partners[n] if self._is_apart(n, other)]
            self.used[reader] += self.passages[n].tokens
            self.sent[reader].add(n)
            self._at[n].add(reader)
            for other in apart:
                score = self._partners[n][other]
                if reader in self._at[other]:
                    for met, at in ((other, self._at[n] - {reader}), (n, self._at[other])):
                        for place in at:
                            worth[met, place] -= score
                else:
                    worth[other, reader] += score
                    heappush(queue, (-worth[other, reader] / self.passages[other].tokens, other, reader))

    def missed(self) -> list[set[int]]:
        """Return for each reader the passages that would have been sent for pairs that meet nowhere, each at one reader."""
        missed: list[set[int]] = [set() for _ in self.room]
        for n, partners in self._partners.items():
            for other in partners:
                if n < other and self._is_apart(n, other):
                    missed[self.passages[n].owner].add(other)
        return missed

    def _is_apart(self, n: int, other: int) -> bool:
        return self._at[n].isdisjoint(self._at[other])


def _passages(
    owner: int, hand: Mapping[int, Sequence[Lines]], texts: Sequence[NumberedLines]
) -> Iterator[SharePassage]:
    for source, ranges in sorted(hand.items()):
        text, title = texts[source], dict[str, float]()
        for first, last in ranges:
            lines: list[int] = []
            for n in range(first, min(last, len(text)) + 1):
                line = text.texts[n - 1]
                if heading(line):
                    yield from _passage(owner, source, lines, text, title)
                    lines, title = [], {word: HEADING_WEIGHT * _weight(word) for word in _words(heading(line))}
                elif not line.strip():
                    yield from _passage(owner, source, lines, text, title)
                    lines = []
                else:
                    lines.append(n)
                    if _SENTENCE_END.search(line[-80:]) or _tokens(text, lines) > MAX_PASSAGE_TOKENS:
                        yield from _passage(owner, source, lines, text, title)
                        lines = []
            yield from _passage(owner, source, lines, text, title)


def _passage(
    owner: int, source: int, lines: Sequence[int], text: NumberedLines, title: Mapping[str, float]
) -> Iterator[SharePassage]:
    own = {word: _weight(word) for n in lines for word in _words(_SECTION_NUMBER.sub("", text.texts[n - 1]))}
    if len(own) >= MIN_WORDS:
        yield SharePassage(owner, source, (lines[0], lines[-1]), dict(title) | own, _tokens(text, lines))


def _weight(word: str) -> float:
    if not word[0].isdigit():
        return 1.0
    return FIGURE_WEIGHT if sum(map(str.isdigit, word)) >= MIN_DIGITS else 0.0


def _words(text: str) -> Iterator[str]:
    for word in map(str.casefold, words_in(text)):
        yield word if any(map(str.isdigit, word)) else word[:STEM_CHARS]


def _tokens(text: NumberedLines, lines: Sequence[int]) -> int:
    size = sum(len(text.texts[n - 1].encode("utf-8", "surrogatepass")) + len(str(n)) + 7 for n in lines)
    return int(size / BYTES_PER_TOKEN) + 1


def _ordinary_words(texts: Iterable[NumberedLines]) -> set[str]:
    """Return the words that are written in lower case anywhere. In scripts without case there are none."""
    return {word[:STEM_CHARS] for text in texts for line in text.texts for word in words_in(line) if word.islower()}


def _pairs(passages: Sequence[SharePassage], ordinary: Collection[str]) -> Iterator[tuple[float, int, int]]:
    """Yield scored pairs of passages of different shares, the most related first."""
    holders: dict[str, list[int]] = defaultdict(list)
    for n, passage in enumerate(passages):
        for word, weight in passage.words.items():
            if weight:
                holders[word].append(n)
    rarity = {word: log(1 + len(passages) / len(held)) ** 2 for word, held in holders.items()}
    candidates: set[tuple[int, int]] = set()
    compared = 0
    for word in sorted(
        (w for w, held in holders.items() if 1 < len(held) <= MAX_SHARING), key=lambda w: len(holders[w])
    ):
        held = holders[word]
        compared += len(held) ** 2 // 2
        if compared > MAX_PAIRS:
            break
        candidates.update(
            (a, b) for i, a in enumerate(held) for b in held[i + 1 :] if passages[a].owner != passages[b].owner
        )
    has_figure = [any(word[0].isdigit() for word in p.words) for p in passages]

    def score(a: int, b: int) -> float:
        one, other = passages[a].words, passages[b].words
        if one.keys() == other.keys():
            return 0.0  # the same text twice contradicts nothing
        shared = [
            (rarity[word] * least, word in ordinary)
            for word, weight in one.items()
            if word in other and (least := min(weight, other[word]))
        ]
        worth = sum(value for value, _ in shared) - max((value for value, alone in shared if alone), default=0.0)
        with_figures = 1.0 if has_figure[a] and has_figure[b] else WITHOUT_FIGURES
        return float((worth * with_figures) ** SHARPNESS)

    scored = sorted(((-score(a, b), a, b) for a, b in candidates))
    least = MIN_SCORE_SHARE**SHARPNESS * scored[0][0] if scored else 0.0
    return ((-negative, a, b) for negative, a, b in scored if negative <= least and negative < 0)


def _ranges(passages: Sequence[SharePassage], chosen: set[int]) -> dict[int, tuple[Lines, ...]]:
    """Return the lines by document, those that meet as one range."""
    ranges: dict[int, list[Lines]] = defaultdict(list)
    for source, (first, last) in sorted((passages[n].source, passages[n].lines) for n in chosen):
        if ranges[source] and ranges[source][-1][1] + 1 >= first:
            first = ranges[source].pop()[0]
        ranges[source].append((first, last))
    return {source: tuple(lines) for source, lines in ranges.items()}


def _count(passages: Sequence[SharePassage], missed: set[int]) -> dict[int, int]:
    counts: dict[int, int] = defaultdict(int)
    for n in sorted(missed):
        counts[passages[n].source] += 1
    return dict(counts)
