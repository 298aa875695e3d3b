"""Related lines: passages of other agents' shares that speak of the same things as an agent's own.

A pair of passages has to meet in one prompt only, so one of its two readers is sent the other passage: the reader for whom that
takes fewer tokens, and no one if another pair has brought the two together. Passages are compared by the words that they share,
rare ones most (BM25's inverse document frequency, squared, over the lengths of both). Figures count little: passages that
contradict each other have different ones, and unrelated passages often have equal ones.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt

from consilience.documents.numbered import NumberedLines, heading
from consilience.domain.document_shares import Lines
from consilience.domain.tokens import BYTES_PER_TOKEN

MAX_PASSAGE_TOKENS = 120
"""A passage ends after the line that exceeds this, or at the end of a sentence."""
MAX_SHARING = 60
"""Words that more passages have do not bring two of them together; they count where other words did."""
MAX_PAIRS = 1_500_000
"""Comparisons, at most, those of the rarest words first."""
STEM_CHARS = 6
"""Letters by which two forms of a word are the same word."""
FIGURE_WEIGHT = 0.3
HEADING_WEIGHT = 0.5
MIN_SCORE_SHARE = 0.02
"""Pairs with less than this share of the best score are not related."""

_WORD = re.compile(r"[^\W_]+(?:[.,'’/-][^\W_]+)*")
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
    sent: list[set[int]] = [set() for _ in hands]
    missed: list[set[int]] = [set() for _ in hands]
    used = [0] * len(hands)
    for a, b in _pairs(passages):
        one, other = passages[a], passages[b]
        if b in sent[one.owner] or a in sent[other.owner]:
            continue
        ways = [(one.owner, b), (other.owner, a)]
        ways.sort(key=lambda way: (passages[way[1]].tokens, used[way[0]]))
        for owner, passage in ways:
            if used[owner] + passages[passage].tokens <= room[owner]:
                sent[owner].add(passage)
                used[owner] += passages[passage].tokens
                break
        else:
            missed[ways[0][0]].add(ways[0][1])
    return [
        Related(_ranges(passages, sent[n]), _count(passages, missed[n] - sent[n]), used[n]) for n in range(len(hands))
    ]


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
                    lines, title = [], dict.fromkeys(_words(heading(line)), HEADING_WEIGHT)
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
    if lines:
        words = dict(title) | {
            word: FIGURE_WEIGHT if word[0].isdigit() else 1.0 for n in lines for word in _words(text.texts[n - 1])
        }
        yield SharePassage(owner, source, (lines[0], lines[-1]), words, _tokens(text, lines))


def _words(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text):
        word = match[0].casefold()
        yield word if any(map(str.isdigit, word)) else word[:STEM_CHARS]


def _tokens(text: NumberedLines, lines: Sequence[int]) -> int:
    size = sum(len(text.texts[n - 1].encode("utf-8", "surrogatepass")) + len(str(n)) + 7 for n in lines)
    return int(size / BYTES_PER_TOKEN) + 1


def _pairs(passages: Sequence[SharePassage]) -> Iterator[tuple[int, int]]:
    """Yield pairs of passages of different shares, the most related first."""
    holders: dict[str, list[int]] = defaultdict(list)
    for n, passage in enumerate(passages):
        for word in passage.words:
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
    norms = [sqrt(sum(weight * rarity[word] for word, weight in p.words.items())) or 1.0 for p in passages]

    def score(a: int, b: int) -> float:
        one, other = passages[a].words, passages[b].words
        if one.keys() == other.keys():
            return 0.0  # the same text twice contradicts nothing
        shared = sum(rarity[word] * min(one[word], other[word]) for word in one.keys() & other.keys())
        return shared / (norms[a] * norms[b]) * sqrt(shared)

    scored = sorted(((-score(a, b), a, b) for a, b in candidates))
    least = MIN_SCORE_SHARE * scored[0][0] if scored else 0.0
    return ((a, b) for negative, a, b in scored if negative <= least and negative < 0)


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
