"""Figures that tell hollow agreement from real: what survived, what is new, who is independent of whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from consilience.domain.agents import Agent
from consilience.domain.report import Independence, SharedModel
from consilience.engine.similarity import jaccard

RESTATED = 0.7
"""Two sentences this alike say the same thing (protocols §0)."""


def sentences(text: str) -> list[str]:
    """Sentences of a text, without empty ones; English rules."""
    return [found for found in (s.strip() for s in _segmenter()(text)) if found]


@cache
def _segmenter() -> Callable[[str], list[str]]:
    from sentencex import segment

    return lambda text: list(segment("en", text))


def alike(a: str, b: str) -> bool:
    """Whether two sentences say the same in nearly the same words, punctuation aside."""
    return jaccard(_bare(a), _bare(b)) >= RESTATED


def _bare(sentence: str) -> str:
    return " ".join(word.strip(".,;:!?\"'()[]“”‘’") for word in sentence.split())


def survival(points: Sequence[str], answer: str, claims: Iterable[str] = ()) -> float | None:
    """Share of points restated by a sentence of the answer or by one of its claims; None without points."""
    if not points:
        return None
    said = [*sentences(answer), *claims]
    return sum(any(alike(point, s) for s in said) for point in points) / len(points)


def novelty(answer: str, inputs: Iterable[str]) -> float | None:
    """Share of the answer's sentences that no sentence of the inputs resembles; None for an empty answer."""
    own = sentences(answer)
    if not own:
        return None
    given = [s for text in inputs for s in sentences(text)]
    return sum(not any(alike(s, g) for g in given) for s in own) / len(own)


def effective_voices(n: int, rho: float) -> float:
    """n/(1+(n−1)ρ), ρ clamped to [0, 1]: how many independent voices n correlated ones amount to."""
    rho = min(max(rho, 0.0), 1.0)
    return n / (1 + (n - 1) * rho)


def independence(agents: Sequence[Agent], rho: float | None = None) -> Independence:
    """Who shares a model. `effective` stays None where voices are shared and ρ is unknown."""
    by_model: dict[str, list[str]] = {}
    for agent in agents:
        by_model.setdefault(agent.model, []).append(agent.id)
    shared = tuple(SharedModel(model=m, agents=tuple(ids)) for m, ids in by_model.items() if len(ids) > 1)
    if not shared:
        effective: float | None = float(len(agents))
    elif rho is None:
        effective = None
    else:
        effective = sum(effective_voices(len(ids), rho) for ids in by_model.values())
    return Independence(shared=shared, rho=rho, effective=effective)
