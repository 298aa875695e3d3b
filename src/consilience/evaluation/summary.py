"""From runs to rows, and from rows to what can be said of the difference between two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from consilience.evaluation.results import Difference, RowResult, Run, Setup, Verdict
from consilience.evaluation.statistics import detectable, interval, mcnemar
from consilience.reporting.words import count, share

ALPHA = 0.05


def row_of(setup: Setup, runs: Sequence[Run], *, calls: bool = False) -> RowResult:
    """`calls`: the budget is of calls."""
    by_task = _by_task(runs)
    scored = [run for run in runs if run.correct is not None]
    accuracies = accuracy_by_task(runs)
    orders = [run.orders for run in scored if run.orders is not None]
    costs = [run.cost for run in runs if run.cost is not None]
    alike = [run.likeness for run in runs if run.likeness is not None]
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
        likeness=fmean(alike) if alike else None,
        voices=fmean(run.voices for run in runs),
        changes=sum(run.changes for run in runs),
        conformity=sum(run.conformity for run in runs),
        holds=fmean(holding(group) for group in by_task.values()) if len(runs) > len(by_task) else None,
        orders=fmean(orders) if orders else None,
        stops=dict(Counter(run.stop_reason for run in runs).most_common()),
    )


def notes_of(runs: Sequence[Run], *, calls: bool) -> list[str]:
    """What went otherwise than promised: rows beyond their bound, and calls that no figure holds."""
    notes = []
    by_row = _by_row(runs)
    over = {row: [_spent(r, calls=calls) / r.limit - 1 for r in group] for row, group in by_row.items()}
    if beyond := [
        f"{row} in {sum(part > 0 for part in parts)} of {count(len(parts), 'run')}, by up to {share(max(parts))}"
        for row, parts in over.items()
        if max(parts) > 0
    ]:
        notes.append(f"Beyond the bound, since calls took more than was estimated: {'; '.join(beyond)}.")
    if lost := {row: n for row, group in by_row.items() if (n := sum(run.lost for run in group))}:
        counted = ", ".join(f"{row} {n}" for row, n in lost.items())
        notes.append(f"Calls lost in flight when a process ended, perhaps paid for and in no figure: {counted}.")
    return notes


def _spent(run: Run, *, calls: bool) -> int:
    """What the limit counts: requests, repairs and retries among them, or tokens."""
    return run.requests if calls else run.tokens


def holding(repeats: Sequence[Run]) -> float:
    """Share of the repeats of one task that end in its most frequent position; no position is not one."""
    counts = Counter(run.position for run in repeats if run.position is not None)
    return max(counts.values(), default=0) / len(repeats)


def accuracy_by_task(runs: Iterable[Run]) -> dict[str, float]:
    """Share of the repeats that were right, by task; tasks without a reference are left out."""
    scored = _by_task([run for run in runs if run.correct is not None])
    return {task: fmean(run.correct is True for run in group) for task, group in scored.items()}


def difference_of(row: Sequence[Run], reference: Sequence[Run], *, seed: int = 0) -> Difference | None:
    """None where fewer than two tasks were scored for both."""
    ours, theirs = accuracy_by_task(row), accuracy_by_task(reference)
    shared = [task for task in ours if task in theirs]
    if len(shared) < 2:
        return None
    low, high = interval([ours[t] for t in shared], [theirs[t] for t in shared], seed=seed)
    only_row = sum(ours[t] > 0.5 >= theirs[t] for t in shared)
    only_reference = sum(theirs[t] > 0.5 >= ours[t] for t in shared)
    p = mcnemar(only_row, only_reference)
    return Difference(
        row=row[0].row,
        reference=reference[0].row,
        tasks=len(shared),
        difference=fmean(ours[t] - theirs[t] for t in shared),
        low=low,
        high=high,
        only_row=only_row,
        only_reference=only_reference,
        p=p,
        detectable=detectable(len(shared), (only_row + only_reference) / len(shared)),
        verdict=_verdict(low, high, p, only_row - only_reference),
    )


def _verdict(low: float, high: float, p: float, more: int) -> Verdict:
    """`more`: tasks that the row alone got right beyond those that the reference did. With repeats, means and majorities may
    point opposite ways; then nothing was shown."""
    if p < ALPHA and low > 0 and more > 0:
        return "won"
    return "lost" if p < ALPHA and high < 0 and more < 0 else "cannot tell"


def _by_task(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.task, []).append(run)
    return found


def _by_row(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.row, []).append(run)
    return found
