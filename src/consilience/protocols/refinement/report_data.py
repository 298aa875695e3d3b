"""The data of a report of `refinement`, and the sections and figures that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from consilience.domain.agents import Agent, seat_names, voices
from consilience.domain.outcome import StopReason
from consilience.domain.report import Frozen, Report
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
from consilience.domain.topology import Topology
from consilience.domain.wording import count, percent
from consilience.protocols._common.presenting import (
    bullets,
    format_score,
    key_figures,
    single_call_section,
    threshold_in,
)

WHOLE = "whole"
"""The name of the whole text among the names of parts."""

ENDINGS: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "the text is good enough",
    StopReason.EXHAUSTED_STEPS: "ran out of passes before the text was good enough",
    StopReason.STALLED: "nothing more was criticised, and the text is not good enough",
    StopReason.INCONCLUSIVE: "nothing shows that the text is good enough",
}
PASS_NOTE, HANDED_NOTE = "pass", "handed"
MAX_COLUMNS = 8
MAX_SENTENCES = 8
"""Max removed and max added sentences shown of a revision. The view of the passes has all."""


class QualityMeasure(NamedTuple):
    """What quality is, in words."""

    mean: str
    """It is the mean of this."""
    each: str = "overall"
    """What the number of a part is."""
    unit: str = ""
    """Empty if it is the critic's overall score, which is otherwise shown in addition."""


MEASURES: Mapping[str, QualityMeasure] = {
    "critic": QualityMeasure("the critic's overall scores"),
    "length": QualityMeasure("what each part has of a full length", "what each part has of a full length", "length"),
    "self": QualityMeasure("what the authors declare", "what its author declares of each part", "declared"),
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

HandedDownKind = Literal["intent", "text", "draft", "before", "part"]
"""The coordinator's intent, the whole text of the last pass, an author's draft or its version before, another part."""


class Scores(Frozen):
    """The critic's scores of a text, each from 0 to 1."""

    coherence: float
    accuracy: float
    depth: float
    overall: float


class PartReport(Frozen):
    """One part at the end of a pass."""

    text: str
    confidence: float | None = None
    """Of the kind in the settings."""
    declared: str | None = None
    """Its author's own confidence, in words."""
    scores: Scores | None = None
    issues: tuple[str, ...] = ()
    """Named by the critic."""
    written: bool = True
    """In this pass; else kept from an earlier one."""
    change: float | None = None
    """Share of its sentences that differ from the pass before."""

    @property
    def overall(self) -> float | None:
        return self.scores.overall if self.scores else None


def pass_name(index: int) -> str:
    return f"pass {index}" if index else "the draft"


class PassReport(Frozen):
    """One pass, or the draft as pass 0."""

    index: int
    sections: dict[str, PartReport] = {}
    document: str | None = None
    """The text, with protected parts; None if the pass was cut off before its parts were put together."""
    quality: float | None = None
    """Mean confidence of the parts; None if one is missing."""
    whole: Scores | None = None
    """Of the whole text."""
    whole_issues: tuple[str, ...] = ()
    met: bool = False
    """Its quality and the mark of the whole reached the threshold."""
    base: int = 0
    """The pass that it started from; 0 for none."""
    unchanged: bool = False
    """It changed no text, so it was neither integrated nor judged."""
    change: float | None = None
    """Share of sentences that differ from the document of the base; in the first pass, from the draft."""
    diff: str = ""
    """Unified diff to that document, a sentence per line. A protected block counts as one sentence."""

    @property
    def name(self) -> str:
        return pass_name(self.index)

    @property
    def whole_mark(self) -> float | None:
        return self.whole.overall if self.whole else None

    @property
    def issue_count(self) -> int:
        """Issues with the parts and with the whole."""
        return len(self.whole_issues) + sum(len(part.issues) for part in self.sections.values())

    @property
    def is_judged(self) -> bool:
        """Whether there is any judgement of it."""
        judged = self.quality is not None or self.whole is not None
        return judged or any(part.scores or part.issues for part in self.sections.values())


class HandedDownText(Frozen):
    """A text handed down from parent to child."""

    step: int
    parent: str
    """For another `part`, its author."""
    child: str
    what: HandedDownKind
    distance: float | None = None
    """Of the two roles; None if the text was not to be cut."""
    strength: float
    sentences: int
    kept: int
    """Sentences that were shown."""

    @property
    def share(self) -> float:
        """Share of sentences that were shown."""
        return self.kept / self.sentences if self.sentences else 1.0

    @property
    def shown(self) -> str:
        """`3 of 4, 75 %`."""
        return f"{self.kept} of {self.sentences}" + (f", {percent(self.share)}" if self.sentences else "")


class Contribution(Frozen):
    """What a parent had from a child at the end of a pass."""

    step: int
    parent: str
    child: str
    declared: str | None = None
    """The confidence that the child declares."""
    weight: float | None = None
    """Its share c/Σc of the confidence of all children of that parent."""
    new: bool = True
    """Written in this pass."""


class RecordedPass(Frozen):
    """A note: a pass, or the judged draft as pass 0, without its texts. The difference to the pass before is there."""

    report: PassReport
    contributions: tuple[Contribution, ...] = ()


class HandedDown(Frozen):
    """A note: what a role is about to be shown of others."""

    texts: tuple[HandedDownText, ...]


class Aggregate(Frozen):
    """What a parent got from its children, weighted by the confidence c that each declares."""

    weights: dict[str, float]
    """c/Σc."""
    weighted_confidence: float
    """Σc²/Σc."""
    best_individual: float
    """The greatest c."""
    combined_content: str
    sources: tuple[str, ...]


class Revision(Frozen):
    """A critique that was handed back, and its result."""

    step: int
    """The criticised pass."""
    role: str
    """A part, or `whole`."""
    issues: tuple[str, ...]
    removed: tuple[str, ...]
    """Sentences."""
    added: tuple[str, ...]
    """Sentences."""
    before: float | None = None
    """Confidence of the kind in the settings."""
    after: float | None = None
    """Confidence of the kind in the settings."""
    into: int = 0
    """The pass with the result. 0 in reports of version 3 and before."""
    written: bool = True
    """The text changed."""
    discarded: bool = False
    """The answer is not based on that pass."""


class RefinementState(Frozen):
    """The passes and what flowed in them. A report is one; an unfinished session has only this."""

    settings: dict[str, object]
    agents: tuple[Agent, ...]
    topology: Topology
    passes: tuple[PassReport, ...] = ()
    best_pass: int | None = None
    """The pass whose document is the answer; 0 for the draft."""
    distances: dict[str, dict[str, float]] = {}
    """Between roles."""
    handed_down: tuple[HandedDownText, ...] = ()
    contributions: tuple[Contribution, ...] = ()

    @property
    def quality_kind(self) -> str:
        return str(self.settings.get("confidence", ""))

    @property
    def measure(self) -> QualityMeasure:
        return MEASURES.get(self.quality_kind, QualityMeasure("all parts"))

    @property
    def needed_quality(self) -> float | None:
        return threshold_in(self.settings)

    @property
    def needed_text(self) -> str:
        """`, needed 0.80`; empty without a threshold."""
        return "" if self.needed_quality is None else f", needed {self.needed_quality:.2f}"


class RefinementData(RefinementState, Report):
    """The fields of the report of `refinement`."""

    step: ClassVar[str] = "pass"
    step_setting: ClassVar[str] = "max_passes"
    asides: ClassVar[frozenset[str]] = frozenset({"judgement"})

    protocol: str = "refinement"
    coordinator_intent: str | None = None
    coordinator_critique: dict[str, str] = {}
    """The last critique of each part."""
    revision_requested: bool = False
    """A critique was handed back."""
    quality_threshold_met: bool = False
    """The best pass reached the threshold."""
    aggregated_children: dict[str, Aggregate] = {}
    """By parent, in the best pass."""
    revisions: tuple[Revision, ...] = ()

    def document(self) -> str:
        """Return the text as a file of its own; empty without an answer."""
        return f"{self.answer.rstrip()}\n" if self.answer else ""

    def part(self, index: int, name: str) -> PartReport | None:
        """Return a part at the end of a pass."""
        return next((p.sections.get(name) for p in self.passes if p.index == index), None)


def sections(report: RefinementData) -> tuple[Section, ...]:
    return (
        _quality(report),
        _dissent(report),
        _scores(report),
        _revisions(report),
        _left_out(report),
        single_call_section(report),
    )


def figures(report: RefinementData) -> Iterator[KeyFigure]:
    if any(entry.quality is not None for entry in report.passes):
        threshold = report.needed_quality
        scores = " → ".join(_marks(entry) for entry in report.passes if not entry.unchanged)
        kind = report.quality_kind
        name = f"Quality from pass to pass{f' ({kind})' if kind else ''}"
        yield KeyFigure(name=name, value=scores + (f", needed {threshold:g}" if threshold is not None else ""))
    yield from key_figures(report.metrics, step="pass", shares=_SHARES, names=_NAMES)


def _quality(report: RefinementData) -> Section:
    """The quality of every pass, on a line."""
    if not any(entry.quality is not None for entry in report.passes):
        return Section(name="quality", part="answer")
    scores = [
        _marks(entry) + (" (the answer)" if entry.index == report.best_pass else "")
        for entry in report.passes
        if not entry.unchanged
    ]
    kind = f" ({report.measure.unit})" if report.measure.unit else ""
    line = " → ".join(scores) + report.needed_text
    return Section(name="quality", part="answer", blocks=(Paragraph(lead=f"Quality by pass{kind}:", text=line),))


def _marks(entry: PassReport) -> str:
    """The mean mark of the parts, and that of the whole."""
    if not entry.index:
        return f"draft {format_score(entry.whole_mark)}"
    return format_score(entry.quality) + (f", whole {entry.whole.overall:.2f}" if entry.whole else "")


def _dissent(report: RefinementData) -> Section:
    """The open issues with the answer, or what it means that there are none."""
    if standing := [objection for objection in report.objections if objection.is_open]:
        names = {**seat_names(report.agents), **dict.fromkeys(report.topology.roots, "the whole")}
        items = bullets(
            Item(
                lead=f"{objection.outcome}:",
                text=objection.text,
                by=" → ".join(names.get(id, id) for id in (objection.agent, objection.to)),
                note="Handed back, and still not resolved." * objection.read,
            )
            for objection in standing
        )
        return Section(name="dissent", part="differences", heading="Dissent and open objections", blocks=items)
    if report.answer is None or len(voices(report.agents)) == 1 or report.replied == 0:
        return Section(name="dissent", part="differences")
    return Section(name="dissent", part="differences", blocks=(Paragraph(lead="Dissent:", text=_silence(report)),))


def _silence(report: RefinementData) -> str:
    best = next((entry for entry in report.passes if entry.index == report.best_pass), None)
    if best is None:
        return "none was declared, and no objection stands unanswered."
    if not best.is_judged:
        return "none was declared, but nobody judged this text either."
    if best.met:
        return "nobody has an issue left with this text."
    if not best.index:
        return "the critic named no issue with the draft."
    if best.quality is None:
        return "no issue was named, but not every part was judged."
    threshold = report.needed_quality
    threshold_note = f" of the {threshold:.2f} needed" if threshold is not None else ""
    return f"no issue was named, but the text is not good enough: {best.quality:.2f}{threshold_note}."


def _scores(report: RefinementData) -> Section:
    """A row for each pass and a column for each part; transposed if there are many parts."""
    rated = [entry for entry in report.passes if entry.is_judged]
    if not rated:
        return Section(name="scores", part="differences")
    parts = list(dict.fromkeys(part for entry in rated for part in entry.sections))
    scored = any(part.scores for entry in rated for part in entry.sections.values())
    wide = len(parts) > MAX_COLUMNS
    if wide:
        rated = rated[-MAX_COLUMNS:]
    names = [_name(entry, report) for entry in rated]
    whole = ("whole", *(format_score(entry.whole_mark) + _counted(entry.whole_issues) for entry in rated))
    cells = [(name, *(_scored(entry.sections.get(name), report.measure) for entry in rated)) for name in parts]
    if wide:
        heads, rows = ("part", *names), [*cells, whole]
    else:
        quality = ("quality", *(format_score(entry.quality) for entry in rated))
        heads, *rows = zip(("pass", *names), quality, whole, *cells, strict=True)
    critic = ", then the critic's overall score" if report.measure.unit and scored else ""
    explanation = Paragraph(text=f"From 0 to 1: {report.measure.each}{critic}, with the number of issues.")
    table = Table(heads=heads, rows=tuple(rows))
    return Section(name="scores", part="differences", heading="Scores", blocks=(explanation, table))


def _name(entry: PassReport, report: RefinementData) -> str:
    name = str(entry.index) if entry.index else "draft"
    return f"{name}, the answer" if entry.index == report.best_pass else name


def _counted(issues: Sequence[str]) -> str:
    return f" ({count(len(issues), 'issue')})" if issues else ""


def _scored(part: PartReport | None, measure: QualityMeasure) -> str:
    if part is None:
        return "–"
    score = format_score(part.overall)
    if measure.unit:
        score = f"{format_score(part.confidence)}{f', critic {score}' if part.scores else ''}"
    return f"{score}{_counted(part.issues)}{'' if part.written else ', kept'}"


def _revisions(report: RefinementData) -> Section:
    """Every critique and its result; folded, since it repeats much of the text."""
    blocks: list[Block] = []
    for revision in report.revisions:
        lines = [*_marked("-", revision.removed), *_marked("+", revision.added)]
        changes = (Diff(heading="changes (− removed, + added):", text="\n".join(lines)),) if lines else ()
        summary = f"{revision.role}, {pass_name(revision.step)}{_moved(revision, report)}; {_outcome(revision)}"
        blocks.append(
            Details(summary=summary, blocks=(*bullets(Item(text=issue) for issue in revision.issues), *changes))
        )
    return Section(
        name="revisions",
        part="differences",
        heading="Criticism and revisions",
        blocks=(*blocks, *_last_word(report)),
        folded=True,
    )


def _outcome(revision: Revision) -> str:
    if not revision.written:
        return f"left as it was in pass {revision.into}"
    if revision.role == WHOLE and not revision.step:
        return f"handed to the authors of pass {revision.into}"
    action = "put together again" if revision.role == WHOLE else "rewritten"
    pass_note = f" in pass {revision.into}" if revision.into else ""  # not recorded by version 3 and before
    return f"{action}{pass_note}{', which was discarded' if revision.discarded else ''}"


def _moved(revision: Revision, report: RefinementData) -> str:
    """The critic's score of the part before and after; without scores, the confidence."""
    part = report.part(revision.step, revision.role)
    if part is not None and part.scores:
        later = report.part(revision.into or revision.step + 1, revision.role)
        return f", {format_score(part.overall)} → {format_score(later.overall if later else None)}"
    if revision.before is None:
        return ""
    kind = f"{report.measure.unit} " if report.measure.unit and revision.role != WHOLE else ""
    return f", {kind}{format_score(revision.before)} → {format_score(revision.after)}"


def _marked(mark: str, sentences: Sequence[str]) -> Iterator[str]:
    for sentence in sentences[:MAX_SENTENCES]:
        yield f"{mark}{' '.join(sentence.split())}"
    if (left_over := len(sentences) - MAX_SENTENCES) > 0:
        yield f"{mark}and {left_over:,} more."


def _last_word(report: RefinementData) -> tuple[Block, ...]:
    """The last critique of each part, unless it is about the answer, whose issues are the dissent."""
    judged = [entry.index for entry in report.passes if entry.is_judged]
    if not judged or judged[-1] == report.best_pass:
        return ()
    items = bullets(
        Item(lead=f"{part}:", text=" · ".join(words.splitlines()))
        for part, words in report.coordinator_critique.items()
        if words.strip()
    )
    return (Subheading(text=f"Critique after {pass_name(judged[-1])}"), *items) if items else ()


def _left_out(report: RefinementData) -> Section:
    """The texts that were handed down shortened, by edge."""
    rows = [
        (f"{text.parent} → {text.child}", f"pass {text.step}", text.what, text.shown)
        for text in report.handed_down
        if text.kept < text.sentences
    ]
    table = Table(heads=("from → to", "", "what", "sentences shown"), rows=tuple(rows), left=3)
    return Section(name="left_out", part="differences", heading="Shortened texts", blocks=(table,) if rows else ())
