"""What a set of tasks can tell about a difference between two rows that answered the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from statistics import NormalDist

from consilience.domain.errors import SettingsError

RESAMPLES = 10_000
LEVEL = 0.95
POWER = 0.8

_CELLS = 5_000_000  # of one block of resampled indices, 40 MB


def need_libraries() -> None:
    """Raise `SettingsError` where what the statistics are computed with is not installed."""
    if missing := [name for name in ("numpy", "scipy") if find_spec(name) is None]:
        raise SettingsError(
            f"comparing on a set of tasks needs {' and '.join(missing)}, not installed here",
            do="Run: pip install 'consilience[evaluation]'",
        )


def interval(
    row: Sequence[float], reference: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap interval, at `LEVEL`, of the mean of `row − reference`; tasks are drawn, and pairs stay pairs.

    (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13.) Seeded: the same scores give the same interval, and
    with row and reference swapped its negative. Takes time and memory in proportion to tasks × resamples, in blocks.
    """
    import numpy

    paired = numpy.asarray(row, dtype=float) - numpy.asarray(reference, dtype=float)
    generator = numpy.random.default_rng(seed)
    block = max(1, _CELLS // len(paired))
    means = numpy.concatenate(
        [
            paired[generator.integers(0, len(paired), (min(block, resamples - start), len(paired)))].mean(axis=1)
            for start in range(0, resamples, block)
        ]
    )
    tail = (1 - LEVEL) / 2
    low, high = numpy.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def mcnemar(only_row: int, only_reference: int) -> float:
    """Two-sided exact p of McNemar's test: among tasks that one of the two alone got right, either is as likely.

    (McNemar, Psychometrika 12, 1947; in its exact form a binomial test.) 1.0 where they never differ.
    """
    if only_row + only_reference == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(only_row, only_row + only_reference, 0.5).pvalue)


def detectable(tasks: int, discordant: float, *, power: float = POWER, level: float = LEVEL) -> float | None:
    """The smallest true difference in accuracy that a set of this size shows with probability `power`.

    `discordant` is the share ψ of tasks that one of the two alone gets right. Connor (Biometrics 43, 1987, 207–211) gives the
    tasks needed to show δ: n = (z₁√ψ + z₂√(ψ − δ²))² / δ², with z₁ the normal quantile of 1 − (1 − level)/2 and z₂ of the
    power; here it is solved for δ. A difference cannot exceed ψ: where the formula asks for more, the answer is the smallest δ
    for which all differing tasks, then a share δ of them, point one way. None where no difference at all could be shown.
    """
    z1, z2 = NormalDist().inv_cdf(1 - (1 - level) / 2), NormalDist().inv_cdf(power)
    n, psi = tasks, discordant
    if psi > 0:
        root = 1 - (z1**2 - z2**2) / n
        if root >= 0:
            delta = math.sqrt(psi / n) * (z1 + z2 * math.sqrt(root)) / (1 + z2**2 / n)
            if delta <= psi:
                return delta
    # ψ = δ: nδ = (z₁ + z₂√(1 − δ))², a quadratic in √(1 − δ)
    square = (z1 * z2) ** 2 - (z2**2 + n) * (z1**2 - n)
    left = (-z1 * z2 + math.sqrt(square)) / (z2**2 + n) if square >= 0 else -1.0
    return 1 - left**2 if left >= 0 else None
