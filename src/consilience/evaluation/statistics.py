"""Statistics of rows, and of the difference between two rows on the same tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from importlib.util import find_spec
from operator import attrgetter
from statistics import fmean

from consilience.domain.errors import SettingsError
from consilience.domain.positions import position_key
from consilience.evaluation.results import Difference, RowResult, RowSetup, Run, Verdict
from consilience.reporting.formatting import count, percent

RESAMPLES = 10_000
LEVEL = 0.95
POWER = 0.8

EXACT_TASKS = 16
"""Up to this many differing tasks all choices of signs are enumerated: 65,536."""

MAX_DENOMINATOR = 10_000  # of a share of repeats

MIN_DIFFERING = 6
"""Min number of differing tasks with which an exact two-sided test can fall below 5 %: 2/2⁶ = 0.031."""

_CELLS = 5_000_000  # of one block of resampled indices, 40 MB


def require_libraries() -> None:
    """Raise `SettingsError` if a library for the statistics is not installed."""
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
    tail_probability = (1 - LEVEL) / 2
    low, high = numpy.quantile(means, [tail_probability, 1 - tail_probability])
    return float(low), float(high)


def mcnemar(only_row: int, only_reference: int) -> float:
    """Two-sided exact p of McNemar's test: among tasks that one of the two alone got right, either is as likely.

    (McNemar, Psychometrika 12, 1947; in its exact form a binomial test.) 1.0 if they never differ.
    """
    if only_row + only_reference == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(only_row, only_row + only_reference, 0.5).pvalue)


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p of the paired permutation test: without a difference between the rows, each task's has either sign.

    (Fisher, The Design of Experiments, 1935, §21; SciPy's `permutation_test`.) Exact for up to `EXACT_TASKS` tasks that
    differ, else from `RESAMPLES` seeded draws of the signs. Uses all repeats of a task, through their mean; with one repeat the
    exact test is McNemar's. 1.0 if no task differs.
    """
    differing = [difference for difference in differences if difference]
    if len(differing) < 2:
        return 1.0
    import numpy
    from scipy.stats import permutation_test

    # integers, so that equal sums compare equal
    fractions = [Fraction(difference).limit_denominator(MAX_DENOMINATOR) for difference in differing]
    unit = math.lcm(*(fraction.denominator for fraction in fractions))
    resamples = 2 ** len(differing) if len(differing) <= EXACT_TASKS else RESAMPLES
    result = permutation_test(
        ([float(fraction * unit) for fraction in fractions],),
        numpy.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _CELLS // len(differing)),
        random_state=numpy.random.default_rng(seed),
    )
    return float(result.pvalue)


def detectable_by_means(differences: Sequence[float]) -> float | None:
    """The smallest true mean difference that `sign_flip` shows on tasks that differ by as much, with probability `POWER`.

    From the normal approximation (z₀.₉₇₅ + z₀.₈) · rms / √n, where the root mean square is the spread under random signs.
    None if fewer than six tasks differ, since no choice of signs is then rarer than 5 %, or if it would exceed 1.
    """
    from scipy.stats import norm

    if sum(difference != 0 for difference in differences) < MIN_DIFFERING:
        return None
    spread = math.sqrt(fmean(difference**2 for difference in differences))
    detectable_mean = float(norm.isf((1 - LEVEL) / 2) + norm.isf(1 - POWER)) * spread / math.sqrt(len(differences))
    return detectable_mean if detectable_mean <= 1 else None


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
    """Return the probability that the exact test shows δ, summed over all likely numbers of differing tasks."""
    import numpy
    from scipy.stats import binom

    mean, width = tasks * psi, 9 * math.sqrt(tasks * psi * (1 - psi)) + 30
    differing = numpy.arange(max(0, int(mean - width)), min(tasks, int(mean + width)) + 1)
    min_wins = binom.isf((1 - level) / 2, differing, 0.5) + 1  # min number whose upper tail is below half of 1 − level
    share = min(1.0, (psi + delta) / (2 * psi)) if psi > 0 else 1.0
    likely = numpy.exp(binom.logpmf(differing, tasks, psi))  # pmf itself overflows on the smallest floats
    return float(likely @ binom.sf(min_wins - 1, differing, share))


ALPHA = 0.05


def summarize_row(setup: RowSetup, runs: Sequence[Run], *, calls: bool = False) -> RowResult:
    """Return a row over all its runs. `calls`: the budget is in calls."""
    by_task = _grouped(runs, attrgetter("task"))
    scored = [run for run in runs if run.correct is not None]
    accuracies = accuracy_by_task(runs)
    orders = [run.orders for run in scored if run.orders is not None]
    costs = [run.cost for run in runs if run.cost is not None]
    similarities = [run.draft_similarity for run in runs if run.draft_similarity is not None]
    return RowResult(
        row=setup.row,
        ceiling=setup.ceiling,
        tasks=len(by_task),
        runs=len(runs),
        scored=len(scored),
        right=sum(run.correct is True for run in scored),
        unanswered=sum(not run.answered for run in runs),
        accuracy=fmean(accuracies.values()) if accuracies else None,
        tokens=fmean(run.tokens for run in runs),
        calls=fmean(run.calls for run in runs),
        cost=fmean(costs) if len(costs) == len(runs) else None,
        seconds=fmean(run.seconds for run in runs),
        spent=fmean(_spent(run, calls=calls) / max(run.limit, 1) for run in runs),
        draft_similarity=fmean(similarities) if similarities else None,
        voices=fmean(run.voices for run in runs),
        changes=sum(run.changes for run in runs),
        conformity=sum(run.conformity for run in runs),
        holds=fmean(position_stability(group) for group in by_task.values()) if len(runs) > len(by_task) else None,
        orders=fmean(orders) if orders else None,
        stops=dict(Counter(run.stop_reason for run in runs).most_common()),
    )


def deviation_notes(runs: Sequence[Run], *, calls: bool) -> list[str]:
    """Return notes on rows that exceeded their limit and on calls missing from the figures."""
    notes = []
    by_row = _grouped(runs, attrgetter("row"))
    over = {row: [_spent(r, calls=calls) / r.limit - 1 for r in group] for row, group in by_row.items()}
    if beyond := [
        f"{row} in {sum(part > 0 for part in parts)} of {count(len(parts), 'run')}, by up to {percent(max(parts))}"
        for row, parts in over.items()
        if max(parts) > 0
    ]:
        notes.append(f"Over the limit, since calls used more than estimated: {'; '.join(beyond)}.")
    if lost_calls := {row: n for row, group in by_row.items() if (n := sum(run.lost for run in group))}:
        counts = ", ".join(f"{row} {n}" for row, n in lost_calls.items())
        notes.append(f"Calls interrupted when a process ended, possibly charged and in no figure: {counts}.")
    return notes


def _spent(run: Run, *, calls: bool) -> int:
    """Return what the limit counts: requests, including repairs and retries, or tokens."""
    return run.requests if calls else run.tokens


def position_stability(repeats: Sequence[Run]) -> float:
    """Return the share of a task's repeats that end in its most frequent position; a missing position never counts."""
    counts = Counter(position_key(run.position) for run in repeats if run.position is not None)
    return max(counts.values(), default=0) / len(repeats)


def accuracy_by_task(runs: Iterable[Run]) -> dict[str, float]:
    """Return the share of correct repeats by task, without tasks that have no reference."""
    scored = _grouped((run for run in runs if run.correct is not None), attrgetter("task"))
    return {task: fmean(run.correct is True for run in group) for task, group in scored.items()}


def row_difference(row: Sequence[Run], reference: Sequence[Run], *, seed: int = 0) -> Difference | None:
    """Return the difference between two rows; None if fewer than two tasks were scored for both."""
    ours, theirs = accuracy_by_task(row), accuracy_by_task(reference)
    shared = [task for task in ours if task in theirs]
    if len(shared) < 2:
        return None
    by_task = [ours[task] - theirs[task] for task in shared]
    low, high = interval([ours[t] for t in shared], [theirs[t] for t in shared], seed=seed)
    better, worse = sum(d > 0 for d in by_task), sum(d < 0 for d in by_task)
    single_runs = all(len(runs) == len({run.task for run in runs}) for runs in (row, reference))
    p = mcnemar(better, worse) if single_runs else sign_flip(by_task, seed=seed)
    return Difference(
        row=row[0].row,
        reference=reference[0].row,
        tasks=len(shared),
        difference=fmean(by_task),
        low=low,
        high=high,
        better=better,
        worse=worse,
        test="mcnemar" if single_runs else "sign-flip",
        p=p,
        detectable=detectable(len(shared), (better + worse) / len(shared))
        if single_runs
        else detectable_by_means(by_task),
        verdict=_verdict(low, high, p),
    )


def _verdict(low: float, high: float, p: float) -> Verdict:
    if p < ALPHA and low > 0:
        return "won"
    return "lost" if p < ALPHA and high < 0 else "cannot tell"


def _grouped(runs: Iterable[Run], by: Callable[[Run], str]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(by(run), []).append(run)
    return groups
