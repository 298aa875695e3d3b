"""What a comparison may use: calls, and tokens at most and as usual."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.domain.outcome import Estimate
from consilience.evaluation.comparison import ComparisonPlan
from consilience.evaluation.rows import CompareRow


@dataclass(frozen=True)
class RowEstimate:
    """The estimate of a row over all its runs."""

    row: str
    runs: int
    calls: Estimate
    tokens: int
    """Max tokens, with every prompt at its max length."""
    usual: int
    """Tokens of runs that end early, with replies of `USUAL_REPLY_TOKENS`."""
    read: int
    """Max input tokens of one call."""
    written: int
    """Max output tokens of one call."""
    needs: int = 0
    """Max calls of a run whose budget pays for fewer; 0 if no run can be cut short."""
    allowed: int = 0
    """Min calls that such a budget pays for."""


def estimate_rows(planned: ComparisonPlan) -> list[RowEstimate]:
    """Estimate every row, without retries. Runs that are already recorded count: the journal is not read."""
    rows = [*planned.rows, *([planned.ceiling] if planned.ceiling else [])]
    return [_estimate_row(planned, row) for row in rows]


def _estimate_row(planned: ComparisonPlan, row: CompareRow) -> RowEstimate:
    min_calls = max_calls = tokens = usual = tokens_read = runs = needs = 0
    allowed: list[int] = []
    for task in planned.tasks:
        if row.ceiling and not task.private:
            continue
        allotment, task_row = planned.allotments[task.id], row.on(task)
        size = allotment.call_tokens(task_row, task)
        estimate = allotment.estimate(task_row, task)
        probe = None if row.ceiling else allotment.probe(task_row, task)
        probes = probe.protocol.estimate().max if probe else 0
        run_tokens = estimate.max * size
        runs += 1
        max_needed, affordable = task_row.protocol.estimate().max, allotment.max_calls(task_row, task)
        if not allotment.resized(task_row) and max_needed > affordable:
            needs = max(needs, max_needed)
            allowed.append(affordable)
        min_calls += estimate.min + (probe.protocol.estimate().min if probe else 0)
        max_calls += estimate.max + probes
        tokens += run_tokens if planned.budget.calls is not None else min(run_tokens, allotment.bound)
        tokens += min(probes * size, allotment.bound) if probe else 0
        matched = planned.budget.matched and allotment.resized(task_row) and not row.ceiling
        measure = next(r for r in planned.rows if r.label == allotment.anchor).on(task) if matched else task_row
        run_usual = measure.usual_tokens(task, allotment.estimate(measure, task).min)
        usual += min(run_usual, run_tokens if planned.budget.calls is not None else allotment.bound)
        tokens_read = max(tokens_read, size - task_row.protocol.max_reply_tokens)
    repeats = len(planned.seeds)
    return RowEstimate(
        row=row.label,
        runs=runs * repeats,
        calls=Estimate(min=min_calls * repeats, max=max_calls * repeats),
        tokens=tokens * repeats,
        usual=usual * repeats,
        read=tokens_read,
        written=row.protocol.max_reply_tokens,
        needs=needs,
        allowed=min(allowed, default=0),
    )
