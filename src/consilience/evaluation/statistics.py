"""What a set of tasks can tell about a difference between two rows that answered the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec

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
    """The smallest true difference in accuracy that the exact test shows on a set of this size with probability `power`.

    `discordant` is the share ψ of tasks that one of the two alone gets right. For a difference δ the number D of such tasks is
    binomial in n and ψ, and those of them that the better one gets right in D and (ψ + δ)/2ψ; it is shown where `mcnemar` is
    below 1 − level, in its favour. A difference cannot exceed ψ: where that is not enough, the answer is the smallest δ for which
    all differing tasks, then a share δ of them, point one way. None where no difference at all could be shown.
    """
    from scipy.optimize import brentq

    def surplus(delta: float, psi: float) -> float:
        return _power(tasks, psi, delta, level) - power

    if discordant > 0 and surplus(discordant, discordant) >= 0:
        return float(brentq(lambda delta: surplus(delta, discordant), 0.0, discordant))
    if surplus(1.0, 1.0) < 0:
        return None
    return float(brentq(lambda delta: surplus(delta, delta), discordant, 1.0))


def _power(tasks: int, psi: float, delta: float, level: float) -> float:
    """The probability that the exact test shows δ, summed over the numbers of differing tasks that are at all likely."""
    import numpy
    from scipy.stats import binom

    mean, width = tasks * psi, 9 * math.sqrt(tasks * psi * (1 - psi)) + 30
    differing = numpy.arange(max(0, int(mean - width)), min(tasks, int(mean + width)) + 1)
    enough = (
        binom.isf((1 - level) / 2, differing, 0.5) + 1
    )  # the fewest of them whose upper tail is below half of 1 − level
    share = min(1.0, (psi + delta) / (2 * psi)) if psi > 0 else 1.0
    likely = numpy.exp(binom.logpmf(differing, tasks, psi))  # pmf itself overflows on the smallest floats
    return float(likely @ binom.sf(enough - 1, differing, share))
