"""How well something planted was found, and how sure a figure of a study is."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from math import comb

RESAMPLES = 2_000


@dataclass(frozen=True)
class Interval:
    """A mean over worlds with its percentile bootstrap interval of 95 %."""

    mean: float
    low: float
    high: float
    count: int
    """Worlds that it is over."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] (n = {self.count})"


def f1(
    recovered: Collection[Hashable], planted: Collection[Hashable]
) -> tuple[float | None, float | None, float | None]:
    """Return precision, recall and F1 of a set: TP ÷ found, TP ÷ planted, 2·TP ÷ (found + planted). None where nothing is to divide
    by."""
    hits = len(set(recovered) & set(planted))
    total = len(recovered) + len(planted)
    return (
        hits / len(recovered) if recovered else None,
        hits / len(planted) if planted else None,
        2 * hits / total if total else None,
    )


def adjusted_rand(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Return the adjusted Rand index of two partitions, given as the group of each item (Hubert & Arabie 1985): 1 for the same
    partition, 0 on average for random ones of the same sizes. Two trivial partitions that are equal give 1."""
    pairs = comb(len(first), 2)
    common_pairs = sum(comb(count, 2) for count in Counter(zip(first, second, strict=True)).values())
    first_pairs, second_pairs = (
        sum(comb(count, 2) for count in Counter(groups).values()) for groups in (first, second)
    )
    expected = first_pairs * second_pairs / pairs if pairs else 0.0
    max_both = (first_pairs + second_pairs) / 2
    return 1.0 if max_both == expected else (common_pairs - expected) / (max_both - expected)


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval | None:
    """Return the mean with its percentile bootstrap interval (Efron 1979) over `RESAMPLES` seeded draws; None without values.

    A share of 0 or 1 gets the bound 3 ÷ n instead (Hanley & Lippman-Hand 1983), since every resample is the same.
    """
    if not values:
        return None
    mean, count = statistics.fmean(values), len(values)
    if set(values) in ({0.0}, {1.0}):
        bound = min(1.0, 3 / count)
        return Interval(mean, 0.0 if mean == 0 else 1 - bound, bound if mean == 0 else 1.0, count)
    draw = random.Random(seed)
    means = sorted(statistics.fmean(draw.choices(values, k=count)) for _ in range(RESAMPLES))
    return Interval(mean, means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1], count)
