"""The critic, the scorers, and what follows from them: scores and issues of every part, the quality of a pass."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from consilience.domain.messages import Message, is_empty_remark
from consilience.domain.outcome import Check
from consilience.domain.positions import LEVELS, exact
from consilience.engine.analysis import SentenceIndex, sentences
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.refinement.passes import Piece, words_in
from consilience.protocols.refinement.replies import (
    MAX_POINTS,
    WHOLE,
    BriefJudgement,
    Critique,
    IntegratedReply,
    Judgement,
    LaterJudgement,
    critique_of,
)
from consilience.protocols.refinement.report import JudgedPass, Scores
from consilience.protocols.refinement.settings import Settings

MAX_MARK = 1000
"""Marks are integers, in hundredths of a point of ten: what is compared is never a rounded float."""

FULL_LENGTH = 500
"""Characters from which a text is as long as the length scorer asks (seed 004, M7)."""

TOO_SHORT, LOW_MARK = 100, 700
"""The heuristic critic's rules (seed 004, M6): characters a part must have, and the mark of its confidence."""

CONTRADICTION = 300
"""An overall mark this far from the mean of the others contradicts them."""


Issues = Mapping[str, tuple[str, ...]]
"""By part, and of the whole."""


@dataclass(frozen=True)
class Earlier:
    """Issues with the version that a text began with, and the critiques that hold them, by label."""

    issues: Issues = field(default_factory=dict)
    critiques: Mapping[str, Message] = field(default_factory=dict)

    def standing(self, part: str, judgement: Judgement | BriefJudgement) -> tuple[str, ...]:
        """Those of a part that still hold."""
        numbers = judgement.standing if isinstance(judgement, LaterJudgement) else ()
        return tuple(issue for n, issue in enumerate(self.issues.get(part, ()), 1) if n in numbers)


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of each part and, under `WHOLE`, of the whole text.

    `marks` are from 0 to `MAX_MARK`, of the kind that the settings name, None without one; they have every part of the hierarchy,
    also one that was not written, and the whole if a critic marks it. `scores` and `issues` are the critic's.
    `standing` are the issues with the version before that still hold, by part, None if nobody was asked for them; `issues` holds
    them too. `surplus` counts issues beyond the most that one part may have, `echoes` those that were the text itself;
    `failure` is the critic's if it gave nothing usable, `cut`: its reply ended at the token limit.
    """

    marks: Mapping[str, int | None] = field(default_factory=dict)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    issues: Issues = field(default_factory=dict)
    standing: Issues | None = None
    surplus: int = 0
    echoes: int = 0
    failure: Failure | None = None
    cut: bool = False

    @property
    def criticised(self) -> tuple[str, ...]:
        """The parts with issues, in their order."""
        return tuple(part for part, issues in self.issues.items() if issues and part != WHOLE)

    @property
    def total(self) -> int | None:
        """The sum of all marks; None if one is missing."""
        return _sum(self.marks.values())

    @property
    def quality(self) -> float | None:
        """The mean mark of the parts, from 0 to 1."""
        parts = {part: mark for part, mark in self.marks.items() if part != WHOLE}
        total = _sum(parts.values())
        return None if total is None else total / (MAX_MARK * len(parts))

    def confidence(self, part: str) -> float | None:
        """The part's mark as a share of the best one."""
        mark = self.marks.get(part)
        return None if mark is None else mark / MAX_MARK

    @property
    def useless(self) -> tuple[str, ...]:
        """What the critic marks so."""
        return tuple(part for part, one in self.scores.items() if one.overall == 0)

    @property
    def contradictory(self) -> tuple[str, ...]:
        """Parts whose overall score has little to do with the others."""
        found = []
        for part, one in self.scores.items():
            others = mark_from(one.coherence) + mark_from(one.accuracy) + mark_from(one.depth)
            if abs(3 * mark_from(one.overall) - others) >= 3 * CONTRADICTION:
                found.append(part)
        return tuple(found)


def _sum(marks: Collection[int | None]) -> int | None:
    known = [mark for mark in marks if mark is not None]
    return sum(known) if known and len(known) == len(marks) else None


NO_ISSUES = Earlier()


async def judge(
    session: Session,
    settings: Settings,
    index: int,
    parts: Mapping[str, Piece],
    whole: Reply[IntegratedReply] | None,
    context: Sequence[Quote],
    earlier: Earlier,
) -> Judged:
    """The critic's judgement of `parts`, all of which have a text, and of the whole; without one it reads the parts alone.
    `context` is what the text was to be: the intent, the draft. Of `earlier` issues it says which
    still hold. No call with the heuristic critic."""
    reply: Reply[Critique] | Failure | None = None
    if settings.critic == "model" and parts:
        texts = {part: piece.text for part, piece in parts.items() if piece.text is not None}
        read = [session.quote(text, part) for part, text in texts.items()]
        quotes = [*context, *([session.quote(whole, "text")] if whole is not None else read)]
        reply = await _ask(session, settings, index, tuple(parts), quotes, words_in(whole), earlier)
    said = reply.value.judgements() if isinstance(reply, Reply) else {}
    scores = {part: _scores(one) for part, one in said.items()}
    marks = {
        part: mark_of(settings.confidence, parts[part], scores.get(part)) if part in parts else None
        for part in settings.hierarchy.sections
    }
    if settings.critic == "heuristic":
        return Judged(marks, scores, {part: heuristic_issues(piece, marks[part]) for part, piece in parts.items()})
    if settings.confidence == "critic":
        marks[WHOLE] = mark_from(scores[WHOLE].overall) if WHOLE in scores else None
    written = {part: piece.text.text for part, piece in parts.items() if piece.text is not None}
    return _judged(session, reply, marks, scores, {**written, WHOLE: whole.text if whole is not None else ""}, earlier)


async def judge_draft(session: Session, settings: Settings, draft: Message) -> Judged:
    """The critic's judgement, as a whole, of the draft given with the task."""
    reply = await _ask(session, settings, 0, (), [session.quote(draft, "draft")])
    said = reply.value.judgements() if isinstance(reply, Reply) else {}
    scores = {part: _scores(one) for part, one in said.items()}
    marks = {WHOLE: mark_from(scores[WHOLE].overall) if WHOLE in scores else None}
    return _judged(session, reply, marks, scores, {WHOLE: draft.text})


def _ask(
    session: Session,
    settings: Settings,
    index: int,
    parts: tuple[str, ...],
    quotes: Sequence[Quote],
    size: int = 0,
    earlier: Earlier = NO_ISSUES,
) -> Ask[Critique]:
    words = session.words(
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


def _judged(
    session: Session,
    reply: Reply[Critique] | Failure | None,
    marks: Mapping[str, int | None],
    scores: Mapping[str, Scores],
    texts: Mapping[str, str],
    earlier: Earlier = NO_ISSUES,
) -> Judged:
    most = session.caps.issues
    named = {part: _issues(one) for part, one in reply.value.judgements().items()} if isinstance(reply, Reply) else {}
    standing = None
    if isinstance(reply, Reply) and earlier.issues:
        standing = {part: earlier.standing(part, one) for part, one in reply.value.judgements().items()}
        named = {part: tuple(dict.fromkeys((*standing[part], *found))) for part, found in named.items()}
    return Judged(
        marks=marks,
        scores=scores,
        issues={part: found[:most] for part, found in named.items()},
        standing=standing,
        surplus=sum(len(found[most:]) for found in named.values()),
        echoes=sum(_echo(issue, texts.get(part, "")) for part, found in named.items() for issue in found[:most]),
        failure=reply if isinstance(reply, Failure) else None,
        cut=isinstance(reply, Reply) and reply.cut,
    )


def mark_of(kind: str, piece: Piece, scores: Scores | None) -> int | None:
    """From 0 to `MAX_MARK`, of one kind: the critic's overall score, `min(len/500, 1)` of the text, or what its author declares."""
    match kind:
        case "critic":
            return mark_from(scores.overall) if scores is not None else None
        case "length":
            return min(len(piece.text.text) * MAX_MARK // FULL_LENGTH, MAX_MARK) if piece.text is not None else None
        case _:
            return mark_from(LEVELS[piece.declared]) if piece.declared is not None else None


def mark_from(share: float) -> int:
    """The mark of a score in [0, 1]."""
    return round(share * MAX_MARK)


def heuristic_issues(piece: Piece, mark: int | None) -> tuple[str, ...]:
    """The seed's two rules. A confidence that nobody declared is low."""
    text = piece.text.text if piece.text is not None else ""
    found = ["too short"] if len(text) < TOO_SHORT else []
    return (*found, "low confidence") if mark is None or mark < LOW_MARK else tuple(found)


def check_of(settings: Settings, judged: Judged) -> Check:
    """Whether the pass is good enough: the mean mark of all parts and the mark of the whole reach the threshold, none lacks a mark,
    and nothing is useless."""
    needed = exact(settings.threshold) * MAX_MARK
    parts = [mark for part, mark in judged.marks.items() if part != WHOLE]
    total, whole = _sum(parts), judged.marks.get(WHOLE, MAX_MARK)
    check = Check(
        met=total is not None and total >= needed * len(parts) and whole is not None and whole >= needed,
        kind=settings.confidence,
        score=judged.quality,
        threshold=settings.threshold,
        detail=", ".join(
            f"{part} {'–' if mark is None else f'{mark / MAX_MARK:.2f}'}" for part, mark in judged.marks.items()
        ),
    )
    return check.vetoed(f"marked useless: {', '.join(judged.useless)}") if judged.useless else check


def aggregate(declared: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Weights c/Σc of the confidences c, and the weighted mean Σc²/Σc; equal weights and 0.5 where Σc is 0 (seed 004, M7).

    Rounding does not take the mean above the highest confidence.
    """
    total = math.fsum(declared.values())
    if total <= 0:
        return dict.fromkeys(declared, 1 / len(declared) if declared else 0.0), 0.5
    mean = math.fsum(c * c for c in declared.values()) / total
    return {name: c / total for name, c in declared.items()}, min(mean, max(declared.values()))


def judged_pass(index: int, judged: Judged, *, met: bool = False) -> JudgedPass:
    """What is recorded of a judgement."""
    return JudgedPass(
        index=index,
        quality=judged.quality if index else None,
        met=met,
        scores={part: judged.confidence(part) for part in judged.marks},
        issues=dict(judged.issues),
    )


def critique_id(settings: Settings, index: int, part: str) -> str:
    """The message that holds a part's critique; its beginning is the key of the critic's reply, of which it is made."""
    return f"pass-{index}/critique/{settings.judge}/{part}"


def critique_text(issues: Sequence[str], scores: Scores | None) -> str:
    """A part's critique as its author is shown it."""
    lines = [f"{n}. {issue}" for n, issue in enumerate(issues, 1)]
    if scores is None:
        return "\n".join(lines)
    given = " · ".join(f"{name} {value * MAX_POINTS:g} of 10" for name, value in scores)
    return "\n".join([*lines, given])


def _scores(one: Judgement | BriefJudgement) -> Scores:
    """The critic's points as shares of the best mark, to a hundredth of a point."""
    return Scores(
        coherence=mark_from(one.coherence / MAX_POINTS) / MAX_MARK,
        accuracy=mark_from(one.accuracy / MAX_POINTS) / MAX_MARK,
        depth=mark_from(one.depth / MAX_POINTS) / MAX_MARK,
        overall=mark_from(one.overall / MAX_POINTS) / MAX_MARK,
    )


def _echo(issue: str, text: str) -> bool:
    """Whether an issue is the text itself, which small critics give back as a whole. It counts as an issue all the same: what
    words say decides nothing."""
    written = sentences(text)
    return bool(written) and all(map(SentenceIndex(sentences(issue)).contains, written))


def _issues(one: Judgement | BriefJudgement) -> tuple[str, ...]:
    """Those that say something; small models write "None" where nothing is wrong."""
    found = (" ".join(issue.split()) for issue in one.issues)
    return tuple(issue for issue in found if not is_empty_remark(issue))
