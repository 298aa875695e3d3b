"""Attention: how relevant a message is to an agent, from 0 to 1 (seed 002, "Attention Scorer", and its first version)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from consilience.protocols.debate.moves import MOVES, Move

Mode = Literal["keyword", "embedding"]

FRESH_MS, RECENT_MS = 10_000, 30_000
MOVE_WEIGHTS = {"high": 0.7, "medium": 0.5, "low": 0.3}
MOVE_SCORES = {"high": 0.3, "medium": 0.2, "low": 0.1}
"""What a move adds by the interest that it draws: its weight with an encoder, its score with keywords."""
NOTICED = 0.7
"""The score from which the seed's success criterion counts a message as attended to."""
BOOST, DECAY = 1.1, 0.98

_COMMON = """that this with from have will would should could than then there their they them what when which while about into
over under also only more most some such very just because been being does were where your"""
_STOP_WORDS = frozenset(_COMMON.split())


def keywords(text: str) -> list[str]:
    """Words of more than three characters, in lower case, without common ones."""
    return [word for word in re.findall(r"[^\W_]{4,}", text.casefold()) if word not in _STOP_WORDS]


def move_weight(move: Move) -> float:
    """0.7, 0.5 or 0.3 by the move."""
    return MOVE_WEIGHTS[MOVES[move].interest]


def recency(age_ms: int) -> float:
    """1 under 10 s, 0.5 under 30 s, else 0."""
    return 1.0 if age_ms < FRESH_MS else 0.5 if age_ms < RECENT_MS else 0.0


def embedding_score(
    semantic: float, *, in_thread: bool, age_ms: int, move: Move, mentioned: bool = False, boost: float = 0.0
) -> float:
    """0.5·semantic + 0.25·thread + 0.15·recency + 0.10·move, and the agenda's boost of at most 0.2; 1 for a mention."""
    if mentioned:
        return 1.0
    base = 0.5 * max(semantic, 0.0) + 0.25 * in_thread + 0.15 * recency(age_ms) + 0.10 * move_weight(move)
    return min(1.0, base + min(boost, 0.2))


def keyword_score(
    overlap: int, *, in_thread: bool, age_ms: int, move: Move, mentioned: bool = False, boost: float = 0.0
) -> float:
    """0.5 for the thread, 0.3, 0.2 or 0.1 for the move, 0.2·recency, 0.1 for each shared keyword up to 0.2, and the boost; 1 for
    a mention."""
    if mentioned:
        return 1.0
    base = 0.5 * in_thread + MOVE_SCORES[MOVES[move].interest] + 0.2 * recency(age_ms) + min(0.2, 0.1 * overlap)
    return min(1.0, base + min(boost, 0.2))


class Interests:
    """What an agent attends to: topics with weights from 0 to 1, which follow what it says."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.weights: dict[str, float] = {}
        self._words: dict[str, frozenset[str]] = {}
        for topic in topics:
            self._add(topic, 0.8)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.weights)

    def overlap(self, words: frozenset[str]) -> int:
        """Interests that share a keyword with a message."""
        return sum(bool(words & self._words[topic]) for topic in self.weights)

    def semantic(self, cosines: Mapping[str, float]) -> float:
        """The greatest cosine with an interest, weighted by its weight; 0 without any."""
        return max((weight * cosines.get(topic, 0.0) for topic, weight in self.weights.items()), default=0.0)

    def follow(self, topics: Iterable[str]) -> None:
        """After an own message: its topics gain a tenth, at most to 1; the others fade; new ones are added."""
        topics_used = {topic.strip().casefold() for topic in topics if topic.strip()}
        for topic in self.weights:
            factor = BOOST if topic.casefold() in topics_used else DECAY
            self.weights[topic] = min(1.0, self.weights[topic] * factor)
        known_topics = {topic.casefold() for topic in self.weights}
        for topic in sorted(topics_used - known_topics):
            self._add(topic, 0.5)

    def _add(self, topic: str, weight: float) -> None:
        if topic.strip() and len(self.weights) < 24:
            self.weights[topic.strip()] = weight
            self._words[topic.strip()] = frozenset(keywords(topic)) or frozenset({topic.strip().casefold()})
