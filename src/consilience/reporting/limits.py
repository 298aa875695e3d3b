"""Limits in words: which one ended a run, what it left, and the command that goes on after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal

from consilience.domain.outcome import EACH, FailureKind, Limits, LimitUnit, SpendingLimits, StopReason
from consilience.domain.report import Report, ReportLimit
from consilience.domain.sections import Presentation
from consilience.reporting.formatting import count, duration, money

_AMOUNTS: Mapping[LimitUnit, Callable[[float], str]] = {
    "calls": lambda value: count(int(value), "call"),
    "tokens": lambda value: count(int(value), "token"),
    "cost": lambda value: f"${value:,.2f}" if value == round(value, 2) else f"${Decimal(str(value)):f}",
    "seconds": lambda value: f"{value:g} s",
}


def describe_limits(limits: Limits) -> str:
    """Return `7 calls, 60 s; agent A: 2 calls`; empty without limits."""
    own = [*_amounts(limits), *([] if limits.steps is None else [count(limits.steps, "step")])]
    named = (f"{owner}: {', '.join(_amounts(limit))}" for owner, limit in limits.named())
    return "; ".join(filter(None, (", ".join(own), *named)))


def _amounts(limits: SpendingLimits) -> Iterator[str]:
    for unit, words in _AMOUNTS.items():
        if (value := limits.of(unit)) is not None:
            yield words(value)


def limit_words(limit: ReportLimit) -> str:
    """Return `reached the limit of 7 calls`."""
    return f"reached the limit of {_AMOUNTS[limit.unit](limit.value)}{f' for {limit.owner}' if limit.owner else ''}"


def use_words(report: Report, limit: ReportLimit) -> str:
    """Return what a run used of the session's limit that ended it, with a comma before; empty if that was all of it."""
    spent, held = report.ledger.actual, report.ledger.held_back
    if limit.owner:
        return ""
    if limit.unit == "calls":
        kept = f" and {held} reserved in case there was no answer" if held else ""
        return f", with {spent.requests} used{kept}" if spent.requests != limit.value else ""
    if limit.unit == "seconds":
        is_early = spent.seconds < 0.9 * limit.value
        return f", with {duration(spent.seconds)} used and the rest reserved for the closing answer" if is_early else ""
    used = {"tokens": spent.tokens_in + spent.tokens_out, "cost": spent.cost}.get(limit.unit)
    if used is None:
        return ""
    words = f", with {money(used) if limit.unit == 'cost' else f'{used:,}'} used"
    return f"{words} and too little left for another call" if used < limit.value else words


def way_on(report: Report, presentation: Presentation) -> str:
    """Return how to go on after a run that a limit or its steps ended, or that lacks replies, as Markdown; empty for other runs."""
    fork = f"consilience fork {report.session} --at end"
    ways = (_to_raise_limit(report, fork), _to_ask_again(report, fork), _to_add_steps(report, presentation, fork))
    return " ".join(filter(None, ways))


def _to_raise_limit(report: Report, fork: str) -> str:
    limit = report.limit_reached
    if report.stop_reason is StopReason.FAILED:
        limit = report.limit_met(StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME)
    if limit is None:
        return ""
    value, need = _enough(report, limit)
    option = f"--max-{limit.unit} {value}"
    if limit.owner:
        name = EACH if limit.owner.each else limit.owner.name
        option = f"--{limit.owner.kind}-limit '{name}:{limit.unit}={value}'"
    return f"To go on: `{fork} {option}`. Replies are inherited; the limit counts only the calls of the fork.{need}"


def _enough(report: Report, limit: ReportLimit) -> tuple[str, str]:
    """Return a limit under which a fork makes a call, N if it is not known, and a sentence on what a call needs."""
    ledger, before = report.ledger, limit.value
    if limit.unit == "tokens" and ledger.next_tokens:
        value, words = f"{max(ledger.next_tokens, int(before))}", count(ledger.next_tokens, "token")
    elif limit.unit == "cost" and ledger.next_cost:
        value, words = f"{max(math.ceil(ledger.next_cost * 100) / 100, before):g}", money(ledger.next_cost)
    else:
        return {"cost": "DOLLARS", "seconds": "SECONDS"}.get(limit.unit, "N"), ""
    need = f" The next call and the closing answer may need up to {words}"
    if 2 * ledger.next_thinking > ledger.next_tokens:
        return value, f"{need}, mostly for thinking; `--thinking off` needs less."
    return value, f"{need}; a smaller `--set reply_tokens` needs less."


def _to_ask_again(report: Report, fork: str) -> str:
    """Return how to make failed calls again, and those whose reply was cut. After a limit any fork makes failed calls again."""
    failed = [call for call in report.failed_calls if not (call.kind.is_limit or call.kind.is_withdrawn)]
    agents = list(dict.fromkeys(call.agent for call in failed))
    other = "--model MODEL" if len(agents) > 1 else f"--replace-agent {''.join(agents)}=MODEL"
    ways = []
    if failed and all(call.kind.is_of_reply for call in failed):
        ways.append(f"To ask another model for the replies that could not be used: `{fork} {other}`.")
    elif failed and report.limit_reached is None:
        ways.append(
            f"To make the failed calls again, once their cause is fixed: `{fork}`. With another model: add `{other}`."
        )
    if report.answer_cut or any(call.kind is FailureKind.TRUNCATED for call in failed):
        ways.append(f"To ask for longer replies where they were cut: `{fork} --set reply_tokens=N`.")
    return " ".join(ways)


def _to_add_steps(report: Report, presentation: Presentation, fork: str) -> str:
    setting, steps, limit = presentation.step_setting, presentation.max_steps, report.limits.steps
    if ended_by := presentation.ended_by:
        return f"To go on beyond {ended_by.words}: `{fork} --set {ended_by.setting}=N`."
    if report.stop_reason is not StopReason.EXHAUSTED_STEPS or not setting or steps is None:
        return ""
    option = f"--set {setting}=N" if limit is None or limit >= steps else "--max-steps N"
    bound = steps if limit is None else min(limit, steps)
    return f"To go on beyond {count(bound, presentation.step)}: `{fork} {option}`."
