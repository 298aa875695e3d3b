"""What a comparison will take, before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.domain.outcome import Estimate
from consilience.evaluation.comparison import Plan
from consilience.evaluation.rows import Row


@dataclass(frozen=True)
class Foreseen:
    """A row over all its runs. `tokens` bounds runs whose every prompt is as long as it can be; `read` and `written` are the
    most of one call. `needs` are the most calls of one run where its budget pays for fewer, `allowed` the fewest that it pays
    for; 0 where no run can be cut short."""

    row: str
    runs: int
    calls: Estimate
    tokens: int
    read: int
    written: int
    needs: int = 0
    allowed: int = 0


def foresee(planned: Plan) -> list[Foreseen]:
    """Retries are not counted. What was finished before is: the journal is not looked at."""
    rows = [*planned.rows, *([planned.ceiling] if planned.ceiling else [])]
    return [_of(planned, row) for row in rows]


def _of(planned: Plan, row: Row) -> Foreseen:
    least = most = tokens = read = runs = needs = 0
    allowed: list[int] = []
    for task in planned.tasks:
        if row.ceiling and not task.private:
            continue
        allotment, asked = planned.allotments[task.id], row.on(task)
        size = allotment.call_tokens(asked, task)
        estimate = allotment.estimate(asked, task)
        probe = None if row.ceiling else allotment.probe(asked, task)
        probes = probe.protocol.estimate().max if probe else 0
        once = estimate.max * size
        runs += 1
        whole, pays_for = asked.protocol.estimate().max, allotment.most_calls(asked, task)
        if not allotment.resized(asked) and whole > pays_for:
            needs = max(needs, whole)
            allowed.append(pays_for)
        least += estimate.min + (probe.protocol.estimate().min if probe else 0)
        most += estimate.max + probes
        tokens += once if planned.budget.calls is not None else min(once, allotment.bound)
        tokens += min(probes * size, allotment.bound) if probe else 0
        read = max(read, size - asked.protocol.reply_tokens)
    repeats = len(planned.seeds)
    return Foreseen(
        row=row.label,
        runs=runs * repeats,
        calls=Estimate(min=least * repeats, max=most * repeats),
        tokens=tokens * repeats,
        read=read,
        written=row.protocol.reply_tokens,
        needs=needs,
        allowed=min(allowed, default=0),
    )
