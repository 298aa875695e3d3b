"""Limits in words: which one ended a run, what it left, and the command that goes on after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from consilience.domain.outcome import EACH, Limits, LimitUnit, SpendingLimits, StopReason
from consilience.domain.report import Report, ReportLimit
from consilience.reporting.formatting import count, duration, money

_AMOUNTS: Mapping[LimitUnit, Callable[[float], str]] = {
    "calls": lambda value: count(int(value), "call"),
    "tokens": lambda value: count(int(value), "token"),
    "cost": lambda value: f"${value:,.2f}" if value == round(value, 2) else f"${value:g}",
    "time": lambda value: f"{value:g} s",
}
_OPTIONS: Mapping[LimitUnit, str] = {
    "calls": "--max-calls N",
    "tokens": "--max-tokens N",
    "cost": "--max-cost DOLLARS",
    "time": "--max-time SECONDS",
}


def describe_limits(limits: Limits) -> str:
    """Return `7 calls, 60 s; agent A: 2 calls`; empty without limits."""
    own = [*_amounts(limits), *([] if limits.steps is None else [count(limits.steps, "step")])]
    named = (f"{name}: {', '.join(_amounts(limit))}" for name, limit in limits.named())
    return "; ".join(filter(None, (", ".join(own), *named)))


def _amounts(limits: SpendingLimits) -> Iterator[str]:
    for unit, words in _AMOUNTS.items():
        if (value := limits.of(unit)) is not None:
            yield words(value)


def limit_words(limit: ReportLimit) -> str:
    """Return `reached the limit of 7 calls`; `on calls` if an earlier version did not record the value."""
    amount = f"on {limit.unit}" if limit.value is None else f"of {_AMOUNTS[limit.unit](limit.value)}"
    return f"reached the limit {amount}{f' for {limit.whose}' if limit.whose else ''}"


def use_words(report: Report, limit: ReportLimit) -> str:
    """Return what a run used of the session's limit that ended it, with a comma before; empty if that was all of it."""
    spent, held = report.ledger.actual, report.ledger.held_back
    if limit.whose or limit.value is None:
        return ""
    if limit.unit == "calls":
        kept = f" and {held} reserved in case there was no answer" if held else ""
        return f", with {spent.requests} used{kept}" if spent.requests != limit.value else ""
    if limit.unit == "time":
        is_early = spent.seconds < 0.9 * limit.value
        return f", with {duration(spent.seconds)} used and the rest reserved for the closing answer" if is_early else ""
    used = {"tokens": spent.tokens_in + spent.tokens_out, "cost": spent.cost}.get(limit.unit)
    if used is None:
        return ""
    words = f", with {money(used) if limit.unit == 'cost' else f'{used:,}'} used"
    return f"{words} and too little left for another call" if used < limit.value else words


def way_on(report: Report) -> str:
    """Return how to go on after a run that failed or that a limit ended, as Markdown; empty for other runs."""
    fork = f"consilience fork {report.session} --at end"
    if report.stop_reason is StopReason.FAILED and report.failed_calls:
        if all(call.kind.is_of_reply for call in report.failed_calls):
            return f"To ask another model for the replies that could not be used: `{fork} --model MODEL`."
        return f"To make the failed calls again, once their cause is fixed: `{fork}`. With another model: add `--model MODEL`."
    limit = report.limit_reached
    if limit is None:
        return ""
    option = _OPTIONS[limit.unit]
    if limit.whose:
        each, name = limit.whose.startswith("each "), limit.whose.split()[-1]
        kind = limit.whose.removeprefix("each ").split()[0].rstrip(":")
        option = f"--{kind}-limit '{EACH if each else name}:{limit.unit}=N'"
    return f"To go on: `{fork} {option}`. Replies are inherited; the limit counts only the calls of the fork."
