"""The critic's replies, the scorers, and what follows from them: marks and issues of every part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from consilience.domain.detail import capped
from consilience.domain.messages import Message, is_empty_remark
from consilience.domain.outcome import Check
from consilience.domain.positions import LEVELS, exact
from consilience.engine.analysis import SentenceIndex, sentences
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols._common.presenting import format_score
from consilience.protocols.refinement.records import (
    MAX_MARK,
    Assessment,
    PassState,
    RoleOutput,
    mark_from,
    total_of,
    words_in,
)
from consilience.protocols.refinement.report_data import WHOLE, JudgedPass, Scores
from consilience.protocols.refinement.settings import RefinementSettings

MAX_POINTS = 10.0

FULL_LENGTH_CHARS = 500
"""Length of a text with the best mark by length (seed 004, M7)."""

MIN_PART_CHARS, MIN_CONFIDENCE_MARK = 100, 700
"""Rules of the heuristic critic (seed 004, M6)."""

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


async def judge(
    session: Session, settings: RefinementSettings, state: PassState, context: Sequence[Quote]
) -> Assessment:
    """Judge the parts and the whole of a pass, or the draft as a whole. One call, none with the heuristic critic.

    Without a whole the critic reads the parts. `context` is what the text should be: the intent, the draft.
    """
    parts, index = state.result.parts, state.index
    # in brief the critic is not asked about earlier issues
    earlier = state.base.critiques if state.base is not None and session.detail != "brief" else {}
    reply: Reply[Critique] | Failure | None = None
    if settings.critic == "model" and (parts or not index):
        reply = await _ask(session, settings, state, context, earlier)
    scores = _scores_of(reply.value) if isinstance(reply, Reply) else {}
    marks: dict[str, int | None] = {}
    for part in settings.hierarchy.sections if index else ():
        marks[part] = mark_of(settings.confidence, parts[part], scores.get(part)) if part in parts else None
    if settings.critic == "heuristic":
        return Assessment(marks, issues={part: heuristic_issues(parts[part], marks[part]) for part in parts})
    if settings.confidence == "critic" or not index:
        marks[WHOLE] = mark_from(scores[WHOLE].overall) if WHOLE in scores else None
    if not isinstance(reply, Reply):
        return Assessment(marks, failure=reply)
    issues = {part: _stated_issues(judgement) for part, judgement in reply.value.judgements().items()}
    standing = None
    if earlier and state.base is not None:
        before = state.base.assessment.issues
        standing = {part: _standing(before.get(part, ()), one) for part, one in reply.value.judgements().items()}
        issues = {part: tuple(dict.fromkeys((*standing[part], *named))) for part, named in issues.items()}
    cap = session.caps.issues
    kept = {part: named[:cap] for part, named in issues.items()}
    return Assessment(
        marks=marks,
        scores=scores,
        issues=kept,
        standing=standing,
        surplus=sum(len(named[cap:]) for named in issues.values()),
        echoes=sum(_is_echo(issue, state.text_of(part)) for part, named in kept.items() for issue in named),
        cut=reply.cut,
    )


def _ask(
    session: Session,
    settings: RefinementSettings,
    state: PassState,
    context: Sequence[Quote],
    earlier: Mapping[str, Message],
) -> Ask[Critique]:
    """`earlier` are the critiques of the version before, by part."""
    parts = state.result.part_texts
    read = {"text": state.whole} if state.whole is not None else parts
    quotes = [*context, *(session.quote(text, label) for label, text in read.items())]
    of_whole = state.base.whole_label if state.base is not None else ""
    labelled = {of_whole if part == WHOLE else f"critique of {part}": message for part, message in earlier.items()}
    words = session.render_template(
        "critique",
        parts=tuple((part, settings.hierarchy.by_name[part].description) for part in parts),
        labels=tuple(quote.label for quote in quotes),
        length=settings.target(),
        tone=settings.tone,
        size=words_in(state.whole),
        earlier=tuple(labelled),
        most=session.caps.issues,
        documents=bool(session.sources),
    )
    return session.ask(
        settings.judge,
        Prompt(words, (*quotes, *(session.quote(message, label) for label, message in labelled.items()))),
        key=f"pass-{state.index}/critique/{settings.judge}",
        returns=critique_of((*parts, WHOLE), frozenset(earlier), brief=session.detail == "brief"),
        kind="judgement",
        closing=True,  # an answer exists then, and one that was judged is worth more than the reserve
        max_tokens=settings.critique_tokens,
    )


def _scores_of(critique: Critique) -> dict[str, Scores]:
    """Return the critic's points as shares of the best ones, to a hundredth of a point."""
    return {
        part: Scores(**{n: mark_from(getattr(judgement, n) / MAX_POINTS) / MAX_MARK for n in Scores.model_fields})
        for part, judgement in critique.judgements().items()
    }


def _stated_issues(judgement: Judgement | BriefJudgement) -> tuple[str, ...]:
    """Return the issues with content. Small models write "None" if nothing is wrong."""
    issues = (" ".join(issue.split()) for issue in judgement.issues)
    return tuple(issue for issue in issues if not is_empty_remark(issue))


def _standing(before: Sequence[str], judgement: Judgement | BriefJudgement) -> tuple[str, ...]:
    """Return the issues with the version before that still hold."""
    numbers = judgement.standing if isinstance(judgement, LaterJudgement) else ()
    return tuple(issue for n, issue in enumerate(before, 1) if n in numbers)


def _is_echo(issue: str, text: Reply[object] | Message | None) -> bool:
    """Whether an issue is the text itself, which small critics return. It counts as an issue: wording decides nothing."""
    written = sentences(text.text) if text is not None else []
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


def heuristic_issues(output: RoleOutput, mark: int | None) -> tuple[str, ...]:
    """Return the issues by the seed's two rules. A missing confidence counts as low."""
    short = output.text is None or len(output.text.text) < MIN_PART_CHARS
    low = mark is None or mark < MIN_CONFIDENCE_MARK
    return (*["too short"] * short, *["low confidence"] * low)


def check_of(settings: RefinementSettings, assessment: Assessment) -> Check:
    """Return whether a pass is good enough: the mean mark of the parts and the mark of the whole reach the threshold, no mark is
    missing, and no part is useless."""
    needed, parts = exact(settings.threshold) * MAX_MARK, assessment.part_marks
    total, whole = total_of(parts), assessment.marks.get(WHOLE, MAX_MARK)
    check = Check(
        met=total is not None and total >= needed * len(parts) and whole is not None and whole >= needed,
        kind=settings.confidence,
        score=assessment.quality,
        threshold=settings.threshold,
        detail=", ".join(f"{part} {format_score(value)}" for part, value in assessment.confidences.items()),
    )
    return check.vetoed(assessment.useless) if assessment.useless else check


def judged_pass(state: PassState) -> JudgedPass:
    """Return the note that records a judgement."""
    assessment = state.assessment
    return JudgedPass(
        index=state.index,
        quality=assessment.quality,
        met=state.reached,
        scores=assessment.confidences,
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
