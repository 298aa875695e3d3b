"""The figures of a report: those common to all protocols, and the protocol's own."""

from __future__ import annotations

from collections.abc import Iterator

from consilience.domain.report import Report
from consilience.domain.sections import KeyFigure, Presentation
from consilience.domain.usage import UsageTotals
from consilience.reporting.formatting import (
    count,
    describe_cost,
    describe_output_tokens,
    duration,
    format_range,
    percent,
    plural,
)
from consilience.reporting.limits import describe_limits


def key_figures(report: Report, presentation: Presentation) -> Iterator[KeyFigure]:
    """Yield calls, tokens, money, time, limits, steps, stop reason, confidence, then the protocol's figures or else the metrics."""
    steps = (
        f"{report.steps}" if presentation.max_steps is None else f"{report.steps} of at most {presentation.max_steps}"
    )
    yield KeyFigure(name="Calls", value=_calls(report))
    yield KeyFigure(name="Tokens", value=_tokens(report))
    yield KeyFigure(name="Money", value=describe_cost(report.ledger.actual))
    yield KeyFigure(name="Time", value=duration(report.ledger.actual.seconds))
    if limits := describe_limits(report.limits):
        yield KeyFigure(name="Limits", value=limits)
    yield KeyFigure(name=plural(presentation.step).capitalize(), value=steps)
    yield KeyFigure(name="Stop reason", value=report.stop_reason.value)
    if report.confidence.level is not None:
        yield KeyFigure(name="Confidence", value=f"{percent(report.confidence.level)} ({report.confidence.kind})")
    if presentation.figures is not None:
        yield from presentation.figures
        return
    for name, value in report.metrics.items():
        number = "–" if value is None else f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
        yield KeyFigure(name=name.replace("_", " "), value=number)


def _calls(report: Report) -> str:
    spent, estimate = report.ledger.actual, report.ledger.estimated
    text = f"{spent.calls:,} of {format_range(estimate.min, estimate.max)} estimated"
    extra = [
        f"{spent.repairs} asked again" if spent.repairs else "",
        count(spent.retries, "retry") if spent.retries else "",
        f"{spent.fallbacks} answered by a fallback model" if spent.fallbacks else "",
        timed_out(spent),
        *further_calls(spent),
    ]
    more = ", ".join(filter(None, extra))
    return f"{text}; {more}" if more else text


def timed_out(spent: UsageTotals) -> str:
    """Return how many of the calls a limit or a cancel ended in flight; empty for none."""
    of = "" if spent.timed_out == spent.calls == 1 else f"{spent.timed_out} of them "
    return f"{of}ended in flight, possibly charged" if spent.timed_out else ""


def further_calls(spent: UsageTotals) -> list[str]:
    """Return the calls that are not in the number of calls."""
    named = (
        (spent.lost, "interrupted, possibly charged"),
        (spent.cached, "from recorded replies to the same request"),
        (spent.inherited, "inherited, not paid for here"),
    )
    return [f"{number} more {words}" for number, words in named if number]


def _tokens(report: Report) -> str:
    spent = report.ledger.actual
    cached = (
        f" ({percent(spent.tokens_cached / spent.tokens_in)} reused)" if spent.tokens_cached and spent.tokens_in else ""
    )
    estimated = (
        f"; estimated for {count(spent.estimated, 'reply')} without figures from the model" if spent.estimated else ""
    )
    return (
        f"{spent.tokens_in:,} read{cached}, {describe_output_tokens(spent.tokens_out, spent.tokens_thought)}{estimated}"
    )
