"""The critic's replies, the scorers, and what follows from them: marks and issues of every part, the order of passes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from consilience.domain.detail import capped
from consilience.domain.messages import Message, is_empty_remark
from consilience.domain.outcome import Check, StopReason
from consilience.domain.positions import LEVELS, exact
from consilience.engine.analysis import SentenceIndex, sentences
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply, exhaustion
from consilience.protocols.refinement.passes import IntegratedReply, PassResult, RevisionRequests, RoleOutput, words_in
from consilience.protocols.refinement.report_data import WHOLE, JudgedPass, Scores
from consilience.protocols.refinement.settings import RefinementSettings
from consilience.protocols.refinement.texts import ProtectedDraft

MAX_POINTS = 10.0

MAX_MARK = 1000
"""Marks are integers, in hundredths of a point of ten, to compare exactly."""

FULL_LENGTH_CHARS = 500
"""Length of a text with the best mark by length (seed 004, M7)."""

MIN_PART_CHARS, MIN_CONFIDENCE_MARK = 100, 700
"""Rules of the heuristic critic (seed 004, M6)."""

CONTRADICTION = 300
"""Min distance of an overall mark that contradicts the mean of the other marks."""

NAMED_POINTS: Mapping[str, float] = {"useless": 0.0, "weak": 3.0, "passable": 5.0, "good": 8.0, "excellent": 10.0}
"""Words for points: small models do not choose numbers with care (docs/design/refinement.md). The values are this project's."""


def _points_from_name(value: object) -> object:
    return NAMED_POINTS.get(value.strip().casefold(), value) if isinstance(value, str) else value


_ACCEPTED = (BeforeValidator(_points_from_name), Field(ge=0, le=MAX_POINTS, allow_inf_nan=False))
_NUMBER = WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_POINTS})

Points = Annotated[float, *_ACCEPTED, _NUMBER]
"""0 to 10. Asks for a number; a name is accepted."""
NamedPoints = Annotated[float, *_ACCEPTED, WithJsonSchema({"type": "string", "enum": list(NAMED_POINTS)})]
"""0 to 10. Asks for a name; a number is accepted."""
CriticIssues = Annotated[list[str], Field(json_schema_extra=capped("issues"))]


# The names of the following classes are part of the schema in every recorded request.


class Judgement(BaseModel):
    """What the critic says of one part or of the whole. Issues come first: marks that follow from them are better."""

    issues: CriticIssues = Field(default_factory=list)
    coherence: Points
    accuracy: Points
    depth: Points
    overall: Points


class StandingIssues(BaseModel):
    """The issues with the version before that still hold."""

    standing: list[int] = Field(default_factory=list)
    """Their numbers."""


class LaterJudgement(Judgement, StandingIssues):
    """A judgement of what the critic has judged before."""


class BriefJudgement(BaseModel):
    """A judgement by a small model, which finds the same issues in every part unless it gives marks first."""

    coherence: NamedPoints
    accuracy: NamedPoints
    depth: NamedPoints
    overall: NamedPoints
    issues: CriticIssues = Field(default_factory=list)


class Critique(BaseModel):
    """A judgement of every part and of the whole, each under its own name."""

    def judgements(self) -> Mapping[str, Judgement | BriefJudgement]:
        """Return them by part, and for the whole."""
        fields = type(self).model_fields
        return {str(field.alias): getattr(self, name) for name, field in fields.items()}


@lru_cache(maxsize=256)
def critique_of(
    names: tuple[str, ...], earlier: frozenset[str] = frozenset(), *, brief: bool = False
) -> type[Critique]:
    """Return the type of a critique of these parts, all required. `earlier`: the parts that had issues before."""
    kinds = {name: BriefJudgement if brief else LaterJudgement if name in earlier else Judgement for name in names}
    fields = {f"part_{n}": (kinds[name], Field(alias=name)) for n, name in enumerate(names, 1)}
    return create_model("Critique", __base__=Critique, **fields)  # type: ignore[call-overload,no-any-return]


IssuesByPart = Mapping[str, tuple[str, ...]]
"""Issues by part, and of the whole under `WHOLE`."""


@dataclass(frozen=True)
class EarlierIssues:
    """Issues with the version that a text started from."""

    issues: IssuesByPart = field(default_factory=dict)
    critiques: Mapping[str, Message] = field(default_factory=dict)
    """The messages that contain them, by label."""

    def standing(self, part: str, judgement: Judgement | BriefJudgement) -> tuple[str, ...]:
        """Return the issues with a part that still hold."""
        numbers = judgement.standing if isinstance(judgement, LaterJudgement) else ()
        return tuple(issue for n, issue in enumerate(self.issues.get(part, ()), 1) if n in numbers)


NO_ISSUES = EarlierIssues()


@dataclass(frozen=True, slots=True)
class Assessment:
    """The marks and issues of each part and, under `WHOLE`, of the whole text."""

    marks: Mapping[str, int | None] = field(default_factory=dict)
    """From 0 to `MAX_MARK`, of the kind in the settings. Of every part of the hierarchy, also missing ones, and of the whole if
    the critic gives them. None: no mark."""
    scores: Mapping[str, Scores] = field(default_factory=dict)
    """Given by the critic."""
    issues: IssuesByPart = field(default_factory=dict)
    """Including those in `standing`."""
    standing: IssuesByPart | None = None
    """Issues with the version before that still hold; None if the critic was not asked for them."""
    surplus: int = 0
    """Issues beyond the cap, left out."""
    echoes: int = 0
    """Issues that repeat the criticised text itself."""
    failure: Failure | None = None
    """Of a critic without a usable reply."""
    cut: bool = False
    """The critic's reply ended at the token limit."""

    @property
    def criticised(self) -> tuple[str, ...]:
        """The parts with issues, in order."""
        return tuple(part for part, issues in self.issues.items() if issues and part != WHOLE)

    @property
    def total(self) -> int | None:
        """The sum of all marks; None if one is missing."""
        return _sum(self.marks.values())

    @property
    def quality(self) -> float | None:
        """The mean mark of the parts, from 0 to 1; None if one is missing."""
        parts = [mark for part, mark in self.marks.items() if part != WHOLE]
        total = _sum(parts)
        return None if total is None else total / (MAX_MARK * len(parts))

    def confidence(self, part: str) -> float | None:
        """Return the mark of a part, from 0 to 1."""
        mark = self.marks.get(part)
        return None if mark is None else mark / MAX_MARK

    @property
    def useless(self) -> tuple[str, ...]:
        """The parts with an overall score of 0."""
        return tuple(part for part, scores in self.scores.items() if scores.overall == 0)

    @property
    def contradictory(self) -> tuple[str, ...]:
        """The parts whose overall score is far from the mean of the other scores."""

        def gap(scores: Scores) -> int:
            others = mark_from(scores.coherence) + mark_from(scores.accuracy) + mark_from(scores.depth)
            return abs(3 * mark_from(scores.overall) - others)

        return tuple(part for part, scores in self.scores.items() if gap(scores) >= 3 * CONTRADICTION)


def _sum(marks: Collection[int | None]) -> int | None:
    known = [mark for mark in marks if mark is not None]
    return sum(known) if known and len(known) == len(marks) else None


async def judge(
    session: Session,
    settings: RefinementSettings,
    index: int,
    parts: Mapping[str, RoleOutput],
    whole: Reply[IntegratedReply] | None,
    context: Sequence[Quote],
    earlier: EarlierIssues,
) -> Assessment:
    """Judge a pass: `parts`, all of which have a text, and the whole. One call, none with the heuristic critic.

    Without a whole the critic reads the parts. `context` is what the text should be: the intent, the draft.
    """
    texts = {part: output.text for part, output in parts.items() if output.text is not None}
    reply: Reply[Critique] | Failure | None = None
    if settings.critic == "model" and parts:
        read = [session.quote(text, part) for part, text in texts.items()]
        quotes = [*context, *([session.quote(whole, "text")] if whole is not None else read)]
        reply = await _ask(session, settings, index, tuple(parts), quotes, words_in(whole), earlier)
    scores = _scores_of(reply)
    marks = {
        part: mark_of(settings.confidence, parts[part], scores.get(part)) if part in parts else None
        for part in settings.hierarchy.sections
    }
    if settings.critic == "heuristic":
        return Assessment(marks, issues={part: heuristic_issues(parts[part], marks[part]) for part in parts})
    if settings.confidence == "critic":
        marks[WHOLE] = mark_from(scores[WHOLE].overall) if WHOLE in scores else None
    written = {part: text.text for part, text in texts.items()}
    return _assessment(session, reply, marks, {**written, WHOLE: whole.text if whole is not None else ""}, earlier)


async def judge_draft(session: Session, settings: RefinementSettings, draft: Message) -> Assessment:
    """Judge the draft given with the task, as a whole. One call."""
    reply = await _ask(session, settings, 0, (), [session.quote(draft, "draft")])
    scores = _scores_of(reply)
    marks = {WHOLE: mark_from(scores[WHOLE].overall) if WHOLE in scores else None}
    return _assessment(session, reply, marks, {WHOLE: draft.text})


def _ask(
    session: Session,
    settings: RefinementSettings,
    index: int,
    parts: tuple[str, ...],
    quotes: Sequence[Quote],
    size: int = 0,
    earlier: EarlierIssues = NO_ISSUES,
) -> Ask[Critique]:
    words = session.render_template(
        "critique",
        parts=tuple((part, settings.hierarchy.by_name[part].description) for part in parts),
        labels=tuple(quote.label for quote in quotes),
        length=settings.target(),
        tone=settings.tone,
        size=size,
        earlier=tuple(earlier.critiques),
        most=session.caps.issues,
        documents=bool(session.sources),
    )
    return session.ask(
        settings.judge,
        Prompt(words, (*quotes, *(session.quote(message, label) for label, message in earlier.critiques.items()))),
        key=f"pass-{index}/critique/{settings.judge}",
        returns=critique_of((*parts, WHOLE), frozenset(earlier.issues), brief=session.detail == "brief"),
        kind="judgement",
        closing=True,  # an answer exists then, and one that was judged is worth more than the reserve
        max_tokens=settings.critique_tokens,
    )


def _scores_of(reply: Reply[Critique] | Failure | None) -> dict[str, Scores]:
    """Return the critic's points as shares of the best ones, to a hundredth of a point."""
    if not isinstance(reply, Reply):
        return {}
    return {
        part: Scores(**{n: mark_from(getattr(judgement, n) / MAX_POINTS) / MAX_MARK for n in Scores.model_fields})
        for part, judgement in reply.value.judgements().items()
    }


def _assessment(
    session: Session,
    reply: Reply[Critique] | Failure | None,
    marks: Mapping[str, int | None],
    texts: Mapping[str, str],
    earlier: EarlierIssues = NO_ISSUES,
) -> Assessment:
    """Return what a critic's reply says. `texts` are the judged ones."""
    if not isinstance(reply, Reply):
        return Assessment(marks, failure=reply)
    judgements = reply.value.judgements()
    issues = {part: _stated_issues(judgement) for part, judgement in judgements.items()}
    standing = None
    if earlier.issues:
        standing = {part: earlier.standing(part, judgement) for part, judgement in judgements.items()}
        issues = {part: tuple(dict.fromkeys((*standing[part], *named))) for part, named in issues.items()}
    cap = session.caps.issues
    kept = {part: named[:cap] for part, named in issues.items()}
    return Assessment(
        marks=marks,
        scores=_scores_of(reply),
        issues=kept,
        standing=standing,
        surplus=sum(len(named[cap:]) for named in issues.values()),
        echoes=sum(_is_echo(issue, texts.get(part, "")) for part, named in kept.items() for issue in named),
        cut=reply.cut,
    )


def _stated_issues(judgement: Judgement | BriefJudgement) -> tuple[str, ...]:
    """Return the issues with content. Small models write "None" if nothing is wrong."""
    issues = (" ".join(issue.split()) for issue in judgement.issues)
    return tuple(issue for issue in issues if not is_empty_remark(issue))


def _is_echo(issue: str, text: str) -> bool:
    """Whether an issue is the text itself, which small critics return. It counts as an issue: wording decides nothing."""
    written = sentences(text)
    return bool(written) and all(map(SentenceIndex(sentences(issue)).contains, written))


def mark_of(kind: str, output: RoleOutput, scores: Scores | None) -> int | None:
    """Return a part's mark of one kind: the critic's overall score, `min(len/500, 1)`, or the author's declared confidence."""
    match kind:
        case "critic":
            return mark_from(scores.overall) if scores is not None else None
        case "length":
            length = len(output.text.text) if output.text is not None else None
            return None if length is None else min(length * MAX_MARK // FULL_LENGTH_CHARS, MAX_MARK)
        case _:
            return mark_from(LEVELS[output.declared]) if output.declared is not None else None


def mark_from(share: float) -> int:
    """Return the mark of a score in [0, 1]."""
    return round(share * MAX_MARK)


def heuristic_issues(output: RoleOutput, mark: int | None) -> tuple[str, ...]:
    """Return the issues by the seed's two rules. A missing confidence counts as low."""
    short = output.text is None or len(output.text.text) < MIN_PART_CHARS
    low = mark is None or mark < MIN_CONFIDENCE_MARK
    return (*["too short"] * short, *["low confidence"] * low)


def check_of(settings: RefinementSettings, assessment: Assessment) -> Check:
    """Return whether a pass is good enough: the mean mark of the parts and the mark of the whole reach the threshold, no mark is
    missing, and no part is useless."""
    needed = exact(settings.threshold) * MAX_MARK
    parts = [mark for part, mark in assessment.marks.items() if part != WHOLE]
    total, whole = _sum(parts), assessment.marks.get(WHOLE, MAX_MARK)
    check = Check(
        met=total is not None and total >= needed * len(parts) and whole is not None and whole >= needed,
        kind=settings.confidence,
        score=assessment.quality,
        threshold=settings.threshold,
        detail=", ".join(
            f"{part} {'–' if mark is None else f'{mark / MAX_MARK:.2f}'}" for part, mark in assessment.marks.items()
        ),
    )
    useless = assessment.useless
    return check.vetoed(f"marked useless: {', '.join(useless)}") if useless else check


def judged_pass(index: int, assessment: Assessment, *, met: bool = False) -> JudgedPass:
    """Return the note that records a judgement."""
    return JudgedPass(
        index=index,
        quality=assessment.quality if index else None,
        met=met,
        scores={part: assessment.confidence(part) for part in assessment.marks},
        issues=dict(assessment.issues),
    )


def critique_id(settings: RefinementSettings, index: int, part: str) -> str:
    """Return the id of the message with a part's critique. It begins with the key of the critic's reply."""
    return f"pass-{index}/critique/{settings.judge}/{part}"


def critique_text(issues: Sequence[str], scores: Scores | None) -> str:
    """Return a part's critique as its author reads it."""
    lines = [f"{n}. {issue}" for n, issue in enumerate(issues, 1)]
    if scores is not None:
        lines.append(" · ".join(f"{name} {value * MAX_POINTS:g} of 10" for name, value in scores))
    return "\n".join(lines)


@dataclass
class PassState:
    """One pass of a run. None stands for steps that were not reached."""

    index: int
    base: int = 0
    """Index of the pass that it started from; 0 for none."""
    requests: RevisionRequests = field(default_factory=RevisionRequests)
    """The critiques that it must meet."""
    result: PassResult = field(default_factory=PassResult)
    whole: Reply[IntegratedReply] | None = None
    assessment: Assessment | None = None
    check: Check | None = None
    reached: bool = False
    """Its quality is good enough, whatever `silences` says."""
    silences: tuple[str, ...] = ()
    """Why its `check` is not met although its quality is good enough."""
    unchanged: bool = False
    """Every part kept its text."""
    critiques: dict[str, Message] = field(default_factory=dict)
    """Critiques handed back for a later pass, by part."""

    @property
    def is_begun(self) -> bool:
        """Whether the pass produced any text. A pass whose first call hit a limit did not."""
        refused = all(failure.kind.is_limit for failure in self.result.failures)
        return self.whole is not None or any(output.replied for output in self.result.all) or not refused

    def rewrote(self, part: str) -> bool:
        """Return whether a part got another text."""
        return any(output.role == part and output.written for output in self.result.all)

    @property
    def speakers(self) -> frozenset[str]:
        """The authors and specialists who replied."""
        return frozenset(output.role for output in self.result.all if output.replied)

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Orders passes: good enough, then the sum of the marks, then fewer issues, then the earlier pass.

        A pass without marks ranks below those with marks, and then the later is better.
        """
        total = self.assessment.total if self.assessment is not None and self.check is not None else None
        issues = sum(map(len, self.assessment.issues.values())) if self.assessment is not None else 0
        met = self.check is not None and self.check.met
        return (met, -1, 0, self.index) if total is None else (met, total, -issues, -self.index)


@dataclass
class RefinementRun:
    """The state of a run: the draft, the intent and the passes so far."""

    draft: ProtectedDraft
    draft_message: Message | None = None
    """Quotes the draft; None without one."""
    draft_assessment: Assessment | None = None
    draft_critique: Message | None = None
    """Hands on the issues with the draft."""
    distances: dict[str, dict[str, float]] = field(default_factory=dict)
    intent: Reply[str] | None = None
    passes: list[PassState] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def begun(self) -> list[PassState]:
        """The passes that produced any text. The last one may not have."""
        return [state for state in self.passes if state.is_begun]

    @property
    def base(self) -> PassState | None:
        """The best pass that was judged, from which the next one starts; None if no pass was judged."""
        return max((p for p in self.passes if p.assessment is not None), key=lambda p: p.rank, default=None)

    @property
    def edges(self) -> dict[tuple[str, str], float]:
        """Distances by pair of roles."""
        return {(a, b): d for a, row in self.distances.items() for b, d in row.items()}

    def is_draft_better(self, best: PassState | None) -> bool:
        """Return whether the draft is the answer: it has a mark, and no pass has a better one for the whole."""
        if self.draft_assessment is None or WHOLE not in self.draft_assessment.scores:
            return False
        scores = best.assessment.scores if best is not None and best.assessment is not None else {}
        return WHOLE not in scores or scores[WHOLE].overall <= self.draft_assessment.scores[WHOLE].overall

    def silences(self) -> Iterator[str]:
        """Yield which replies are missing in the last pass: of a seat that spoke in this pass or the one before, of all
        specialists, of the coordinator."""
        state, before = self.passes[-1], self.passes[-2] if len(self.passes) > 1 else None
        speakers = state.speakers | (before.speakers if before is not None else frozenset())
        failed = [failure.agent for failure in state.result.failures if failure.agent in speakers]
        if silent := dict.fromkeys(agent for agent in failed if agent not in state.speakers):
            yield f"silent in pass {state.index}: {', '.join(silent)}"
        if partial := dict.fromkeys(agent for agent in failed if agent in state.speakers):
            yield f"not every reply came in pass {state.index}: {', '.join(partial)}"
        asked = [output for output in state.result.served.values() if output.replied or output.failures]
        if asked and not any(output.replied for output in asked):
            yield f"no specialist replied in pass {state.index}"
        if self.intent is None and before is None:
            yield "the coordinator gave no intent"
        if state.whole is None:
            yield "the coordinator put no whole together"

    @property
    def exhausted(self) -> StopReason | None:
        """What ran out, if a limit refused a call."""
        return exhaustion(self.failures)
