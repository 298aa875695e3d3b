"""How a text that was written in passes is shown: its quality, its scores, what the critic said and what then changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from consilience.domain.agents import seat_names, voices
from consilience.domain.outcome import StopReason
from consilience.domain.report import Objection
from consilience.domain.sections import (
    Block,
    Details,
    Diff,
    Item,
    KeyFigure,
    Paragraph,
    Section,
    Subheading,
    Table,
)
from consilience.protocols._common.presenting import bullets, figures_of, plural, share, single_call_section, two_places
from consilience.protocols.refinement import report as reports
from consilience.protocols.refinement.replies import WHOLE
from consilience.protocols.refinement.report import Pass, RefinementReport, Revision

ENDINGS: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "the text is good enough",
    StopReason.EXHAUSTED_STEPS: "ran out of passes before the text was good enough",
    StopReason.STALLED: "nothing more was criticised, and the text is not good enough",
    StopReason.INCONCLUSIVE: "the text does not count as good enough",
}
MAX_COLUMNS = 8
MAX_SENTENCES = 8
"""Sentences shown of those that a revision removed, and of those that it added. The view of the passes has them all."""

MEASURED: Mapping[str, str] = {"length": "length", "self": "declared"}
"""What quality is the mean of where that is not the critic's overall scores. The critic's own are shown beside it."""
_EACH: Mapping[str, str] = {
    "length": "From 0 to 1: what each part has of a full length",
    "self": "From 0 to 1: what its author declares of each part",
}
_SHARES: Mapping[str, str] = {
    "share_kept": "Share of what was handed down that was shown",
    "parts_kept": "Sentences of the parts found again in the whole",
    "beyond_parts": "Sentences of the whole that stand in none of its parts",
}
_NAMES: Mapping[str, str] = {
    "words": "Words in the answer, code, front matter and markup included",
    "distance_share_correlation": "Correlation of the distance of two roles and the share shown (Pearson's)",
    "aggregated_minus_best": "Weighted confidence of helpers less that of the surest one, on average",
    "critic_drift": "How far the critic's score moved of a text that had not changed, on average (0 to 1)",
}


def quality_kind(report: RefinementReport) -> str:
    return str(report.settings.get("confidence", ""))


def quality_needed(report: RefinementReport) -> float | None:
    threshold = report.settings.get("threshold")
    return float(threshold) if isinstance(threshold, int | float) else None


def is_judged(one: Pass) -> bool:
    """Whether there is any judgement of a pass."""
    judged = one.quality is not None or one.whole is not None
    return judged or any(part.scores or part.issues for part in one.sections.values())


def count_issues(one: Pass) -> int:
    """Issues with the parts and with the whole."""
    return len(one.whole_issues) + sum(len(part.issues) for part in one.sections.values())


def pass_name(index: int) -> str:
    return f"pass {index}" if index else "the draft"


def overall_score(part: reports.Section | None) -> float | None:
    return part.scores.overall if part is not None and part.scores else None


def _part(report: RefinementReport, index: int, name: str) -> reports.Section | None:
    return next((one.sections.get(name) for one in report.passes if one.index == index), None)


# --- sections


def sections(report: RefinementReport) -> tuple[Section, ...]:
    return (
        _quality(report),
        _dissent(report),
        _scores(report),
        _revisions(report),
        _left_out(report),
        single_call_section(report),
    )


def figures(report: RefinementReport) -> Iterator[KeyFigure]:
    if any(one.quality is not None for one in report.passes):
        needed = quality_needed(report)
        scores = " → ".join(_marks(one) for one in report.passes if not one.unchanged)
        kind = quality_kind(report)
        name = f"Quality from pass to pass{f' ({kind})' if kind else ''}"
        yield KeyFigure(name=name, value=scores + (f", needed {needed:g}" if needed is not None else ""))
    yield from figures_of(report.metrics, step="pass", shares=_SHARES, names=_NAMES)


def _quality(report: RefinementReport) -> Section:
    """One line: how good every pass was, and which one is the answer."""
    if not any(one.quality is not None for one in report.passes):
        return Section(name="quality", part="answer")
    scores = [
        _marks(one) + (" (the answer)" if one.index == report.best_pass else "")
        for one in report.passes
        if not one.unchanged
    ]
    needed = quality_needed(report)
    kind = f" ({MEASURED[quality_kind(report)]})" if quality_kind(report) in MEASURED else ""
    line = " → ".join(scores) + (f", needed {needed:.2f}" if needed is not None else "")
    return Section(name="quality", part="answer", blocks=(Paragraph(lead=f"Quality by pass{kind}:", text=line),))


def _marks(one: Pass) -> str:
    """The mean mark of the parts, and that of the whole."""
    if not one.index:
        return f"draft {two_places(one.whole.overall if one.whole else None)}"
    return two_places(one.quality) + (f", whole {one.whole.overall:.2f}" if one.whole else "")


def _dissent(report: RefinementReport) -> Section:
    """The critic's issues that stand in the answer, or what it means that there are none."""
    if standing := [one for one in report.objections if one.is_open]:
        names = {**seat_names(report.agents), **dict.fromkeys(report.topology.roots, "the whole")}
        items = bullets(
            Item(
                lead=f"{one.outcome}:",
                text=one.text,
                by=_sides(one, names),
                note="Handed back, and still not resolved." * one.read,
            )
            for one in standing
        )
        return Section(name="dissent", part="differences", heading="Dissent and open objections", blocks=items)
    unheard = report.answer is None or len(voices(report.agents)) == 1 or report.replied == 0
    if unheard:
        return Section(name="dissent", part="differences")
    return Section(name="dissent", part="differences", blocks=(Paragraph(lead="Dissent:", text=_silence(report)),))


def _sides(one: Objection, names: Mapping[str, str]) -> str:
    return " → ".join(names.get(id, id) for id in (one.agent, one.to))


def _silence(report: RefinementReport) -> str:
    best = next((one for one in report.passes if one.index == report.best_pass), None)
    if best is None:
        return "none was declared, and no objection stands unanswered."
    if not is_judged(best):
        return "none was declared, but nobody judged this text either."
    if best.met:
        return "nobody has an issue left with this text."
    if not best.index:
        return "the critic named no issue with the draft."
    if best.quality is None:
        return "no issue was named, but not every part was judged."
    needed = quality_needed(report)
    of = f" of the {needed:.2f} needed" if needed is not None else ""
    return f"no issue was named, but the text is not good enough: {best.quality:.2f}{of}."


def _scores(report: RefinementReport) -> Section:
    """A row for each pass, a column for each part, or the other way round where there are more parts."""
    rated = [one for one in report.passes if is_judged(one)]
    if not rated:
        return Section(name="scores", part="differences")
    kind = quality_kind(report)
    parts = list(dict.fromkeys(part for one in rated for part in one.sections))
    by_pass = [(one, {name: _scored(part, kind) for name, part in one.sections.items()}) for one in rated]
    if len(parts) <= MAX_COLUMNS:
        heads = ["pass", "quality", "whole", *parts]
        rows = [
            (_name(one, report), two_places(one.quality), _whole(one), *(cells.get(p, "–") for p in parts))
            for one, cells in by_pass
        ]
    else:
        by_pass = by_pass[-MAX_COLUMNS:]
        heads = ["part", *(_name(one, report) for one, _ in by_pass)]
        rows = [(part, *(cells.get(part, "–") for _, cells in by_pass)) for part in parts]
        rows.append(("whole", *(_whole(one) for one, _ in by_pass)))
    scored = any(part.scores for one in rated for part in one.sections.values())
    critic = ", then the critic's overall score" if kind in _EACH and scored else ""
    what = Paragraph(text=f"{_EACH.get(kind, 'From 0 to 1: overall')}{critic}, with the number of issues.")
    table = Table(heads=tuple(heads), rows=tuple(rows))
    return Section(name="scores", part="differences", heading="Scores", blocks=(what, table))


def _name(one: Pass, report: RefinementReport) -> str:
    name = str(one.index) if one.index else "draft"
    return f"{name}, the answer" if one.index == report.best_pass else name


def _whole(one: Pass) -> str:
    issues = f" ({plural(len(one.whole_issues), 'issue')})" if one.whole_issues else ""
    return two_places(one.whole.overall if one.whole else None) + issues


def _scored(part: reports.Section, kind: str) -> str:
    score = two_places(overall_score(part))
    if kind in MEASURED:
        score = f"{two_places(part.confidence)}{f', critic {score}' if part.scores else ''}"
    issues = f" ({plural(len(part.issues), 'issue')})" if part.issues else ""
    return f"{score}{issues}{'' if part.written else ', kept'}"


def _revisions(report: RefinementReport) -> Section:
    """What the critic said, and what became of it; folded, since it repeats much of the text."""
    blocks: list[Block] = []
    for one in report.revisions:
        lines = [*_marked("-", one.removed), *_marked("+", one.added)]
        changes = (Diff(heading="− removed, + added:", text="\n".join(lines)),) if lines else ()
        summary = f"{one.role}, {pass_name(one.step)}{_moved(one, report)}; {_outcome(one)}"
        blocks.append(Details(summary=summary, blocks=(*bullets(Item(text=issue) for issue in one.issues), *changes)))
    return Section(
        name="revisions",
        part="differences",
        heading="Criticism and revisions",
        blocks=(*blocks, *_last_word(report)),
        folded=True,
    )


def _outcome(one: Revision) -> str:
    if not one.written:
        return f"left as it was in pass {one.into}"
    if one.role == WHOLE and not one.step:
        return f"handed to the authors of pass {one.into}"
    how = "put together again" if one.role == WHOLE else "rewritten"
    into = f" in pass {one.into}" if one.into else ""  # not recorded by version 3 and before
    return f"{how}{into}{', which was discarded' if one.discarded else ''}"


def _moved(one: Revision, report: RefinementReport) -> str:
    """What the critic gave the part before and after; where it gives no scores, what quality is made of."""
    part, later = _part(report, one.step, one.role), _part(report, one.into or one.step + 1, one.role)
    if part is not None and part.scores:
        return f", {two_places(overall_score(part))} → {two_places(overall_score(later))}"
    kind = f"{MEASURED[quality_kind(report)]} " if quality_kind(report) in MEASURED and one.role != WHOLE else ""
    return f", {kind}{two_places(one.before)} → {two_places(one.after)}" if one.before is not None else ""


def _marked(mark: str, sentences: Sequence[str]) -> Iterator[str]:
    for sentence in sentences[:MAX_SENTENCES]:
        yield f"{mark}{' '.join(sentence.split())}"
    if (more := len(sentences) - MAX_SENTENCES) > 0:
        yield f"{mark}and {more:,} more."


def _last_word(report: RefinementReport) -> tuple[Block, ...]:
    """What the critic said last of each part, if that was not of the answer, whose issues are the dissent."""
    judged = [one.index for one in report.passes if is_judged(one)]
    if not judged or judged[-1] == report.best_pass:
        return ()
    items = bullets(
        Item(lead=f"{part}:", text=" · ".join(words.splitlines()))
        for part, words in report.coordinator_critique.items()
        if words.strip()
    )
    return (Subheading(text=f"Critique after {pass_name(judged[-1])}"), *items) if items else ()


def _left_out(report: RefinementReport) -> Section:
    """What specialists and authors were not shown of what was handed to them, by edge."""
    cut = [one for one in report.handed_down if one.kept < one.sentences]
    rows = [
        (
            f"{one.parent} → {one.child}",
            f"pass {one.step}",
            one.what,
            f"{one.kept} of {one.sentences}, {share(one.share)}",
        )
        for one in cut
    ]
    table = Table(heads=("from → to", "", "what", "sentences shown"), rows=tuple(rows), left=3)
    return Section(name="left_out", part="differences", heading="Shortened texts", blocks=(table,) if rows else ())
