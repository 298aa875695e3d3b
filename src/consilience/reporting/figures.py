"""The figures of a report as pairs of words: what, and how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from consilience.domain.report import Report
from consilience.reporting.passes import passes_of
from consilience.reporting.words import count, duration, money, most_steps, several, share, span, step_word

_SHARES: Mapping[str, str] = {
    "fact_survival": "Facts of the first texts found again in the answer",
    "novelty": "Sentences of the answer that nobody had written before",
    "revision_rate": "Texts changed after reading those of others",
    "share_kept": "Share of what was handed down that was shown",
    "parts_kept": "Sentences of the parts found again in the whole",
    "beyond_parts": "Sentences of the whole that stand in none of its parts",
}
_NAMES: Mapping[str, str] = {
    "words": "Words in the answer, code, front matter and markup included",
    "flags": "Flags raised",
    "distance_share_correlation": "Correlation of the distance of two roles and the share shown (Pearson's)",
    "aggregated_minus_best": "Weighted confidence of helpers less that of the surest one, on average",
    "critic_drift": "How far the critic's score moved of a text that had not changed, on average (0 to 1)",
}
_SAID_ELSEWHERE = {"facts", "conformity", "dropped_labels"}
_BY_STEP: Mapping[str, str] = {
    "sibling_similarity": "Likeness of sibling texts, {} (1 is identical), by {}",
    "change": "Share of sentences that changed, by {1}",
}
"""Figures that come once for every step: `NAME/STEP` or `NAME/PHASE/STEP`."""


def figures(report: Report, data: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """`data` is the report's own JSON, for what a protocol adds to the header."""
    yield "Calls", _calls(report)
    yield "Tokens", _tokens(report)
    yield "Money", money(report.ledger.actual.cost)
    yield "Time", duration(report.ledger.actual.seconds)
    step = step_word(report.settings)
    most = report.settings.get(most_steps(step))
    yield (
        several(step).capitalize(),
        f"{report.steps} of at most {most}" if isinstance(most, int) else str(report.steps),
    )
    if (scores := _trajectory(report, data)) is not None:
        yield scores
    if report.confidence.level is not None:
        yield "Confidence", f"{share(report.confidence.level)} ({report.confidence.kind})"
    yield from _metrics(report)


def _calls(report: Report) -> str:
    spent, foreseen = report.ledger.actual, report.ledger.estimated
    text = f"{spent.calls:,} of {span(foreseen.min, foreseen.max)} foreseen"
    extra = [
        f"{spent.repairs} asked again for a readable reply" if spent.repairs else "",
        count(spent.retries, "retry", "retries") if spent.retries else "",
        f"{spent.fallbacks} answered by a fallback model" if spent.fallbacks else "",
        f"{spent.lost} lost in a crash" if spent.lost else "",
        f"{spent.cached} from recorded replies to the same request" if spent.cached else "",
        f"{spent.inherited} inherited, not paid for here" if spent.inherited else "",
    ]
    more = ", ".join(filter(None, extra))
    return f"{text}; {more}" if more else text


def _tokens(report: Report) -> str:
    spent = report.ledger.actual
    reused = (
        f" ({share(spent.tokens_cached / spent.tokens_in)} reused)" if spent.tokens_cached and spent.tokens_in else ""
    )
    guessed = (
        f"; estimated for {count(spent.estimated, 'reply', 'replies')} whose model told none" if spent.estimated else ""
    )
    return f"{spent.tokens_in:,} read{reused}, {spent.tokens_out:,} written{guessed}"


def _trajectory(report: Report, data: Mapping[str, object]) -> tuple[str, str] | None:
    """The score of every check that had one, in order, against the threshold of the last."""
    if step_word(report.settings) == "pass":
        return _qualities(data)
    convergence = data.get("convergence")
    found = convergence.get("score_trajectory") if isinstance(convergence, dict) else None
    scores = [s for s in found if isinstance(s, int | float)] if isinstance(found, list) else []
    check = report.check
    if not scores and check is not None and check.score is not None:
        scores = [check.score]
    if not scores:
        return None
    kind = f" ({check.kind})" if check else ""
    needed = f", needed {check.threshold:g}" if check and check.threshold is not None else ""
    what = (
        "Satisfaction of those below the root"
        if check and check.kind == "satisfaction"
        else f"Stability from round to round{kind}"
    )
    return what, " → ".join(f"{score:.2f}" for score in scores) + needed


def _qualities(data: Mapping[str, object]) -> tuple[str, str] | None:
    found = passes_of(data)
    scores = ["–" if one.quality is None else f"{one.quality:.2f}" for one in found.all]
    if not any(one.quality is not None for one in found.all):
        return None
    kind = f" ({found.kind})" if found.kind else ""
    needed = f", needed {found.needed:g}" if found.needed is not None else ""
    return f"Quality from pass to pass{kind}", " → ".join(scores) + needed


def _metrics(report: Report) -> Iterator[tuple[str, str]]:
    by_step: dict[tuple[str, str], list[str]] = {}
    for name, value in report.metrics.items():
        first, _, rest = name.partition("/")
        if first in _BY_STEP:
            said = "–" if value is None else share(value) if first == "change" else f"{value:.2f}"
            by_step.setdefault((first, rest.rpartition("/")[0]), []).append(said)
        elif name in _SHARES:
            of = f" (of {report.metrics.get('facts')})" if name == "fact_survival" else ""
            yield _SHARES[name], "–" if value is None else share(float(value)) + of
        elif name not in _SAID_ELSEWHERE:
            yield _NAMES.get(name, name.replace("_", " ")), _number(value)
    for (first, phase), steps in by_step.items():
        yield _BY_STEP[first].format(phase, step_word(report.settings)), ", ".join(steps)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
