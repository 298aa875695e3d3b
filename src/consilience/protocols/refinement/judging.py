"""The critic, the scorers, and what follows from them: scores and issues of every part, the quality of a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from consilience.domain.outcome import Check
from consilience.domain.positions import LEVELS
from consilience.domain.replies import says_nothing
from consilience.engine.analysis import Said, sentences
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.protocols.refinement.passes import Piece
from consilience.protocols.refinement.replies import MOST_ISSUES, MOST_POINTS, Critique, Judgement, critique_of
from consilience.protocols.refinement.report import Scores
from consilience.protocols.refinement.settings import Settings

FULL_LENGTH = 500
"""Characters from which a text is as long as the length scorer asks (seed 004, M7)."""

TOO_SHORT, LOW_CONFIDENCE = 100, 0.7
"""The heuristic critic's rules (seed 004, M6): characters a part must have, and confidence."""

CONTRADICTION = 0.3
"""An overall score this far from the mean of the others contradicts them."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of each part: `confidence` of the kind the settings name, the critic's `scores`, `issues`.

    `surplus` counts issues beyond the most that one part may have, `echoes` those that were the part itself;
    `failure` is the critic's where it gave nothing usable."""

    confidence: Mapping[str, float | None] = field(default_factory=dict)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    issues: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    surplus: int = 0
    echoes: int = 0
    failure: Failure | None = None

    @property
    def criticised(self) -> tuple[str, ...]:
        """The parts with issues, in their order."""
        return tuple(part for part, issues in self.issues.items() if issues)

    @property
    def contradictory(self) -> tuple[str, ...]:
        """Parts whose overall score has little to do with the others."""
        return tuple(
            part
            for part, one in self.scores.items()
            if abs(one.overall - (one.coherence + one.accuracy + one.depth) / 3) >= CONTRADICTION
        )


async def judge(session: Session, settings: Settings, index: int, parts: Mapping[str, Piece]) -> Judged:
    """The critic's word on each of `parts`, all of which have a text; no call with the heuristic one."""
    reply: Reply[Critique] | Failure | None = None
    if settings.critic == "model" and parts:
        quotes = [session.quote(piece.text, part) for part, piece in parts.items() if piece.text is not None]
        words = session.words(
            "critique",
            parts=tuple(parts),
            length=settings.length,
            tone=settings.tone,
        )
        reply = await session.ask(
            settings.judge,
            Prompt(words, tuple(quotes)),
            key=f"pass-{index}/critique/{settings.judge}",
            returns=critique_of(tuple(parts)),
            kind="judgement",
            max_tokens=settings.reply_tokens,
        )
    said = reply.value.parts() if isinstance(reply, Reply) else {}
    scores = {part: _scores(one) for part, one in said.items()}
    confidence = {part: confidence_of(settings.confidence, piece, scores.get(part)) for part, piece in parts.items()}
    if settings.critic == "heuristic":
        return Judged(confidence, scores, {p: heuristic_issues(piece, confidence[p]) for p, piece in parts.items()})
    named = {part: _issues(one) for part, one in said.items()}
    return Judged(
        confidence=confidence,
        scores=scores,
        issues={part: found[:MOST_ISSUES] for part, found in named.items()},
        surplus=sum(len(found[MOST_ISSUES:]) for found in named.values()),
        echoes=sum(_echo(issue, parts[part]) for part, found in named.items() for issue in found[:MOST_ISSUES]),
        failure=reply if isinstance(reply, Failure) else None,
    )


def confidence_of(kind: str, piece: Piece, scores: Scores | None) -> float | None:
    """In [0, 1], of one kind: the critic's overall score, `min(len/500, 1)` of the text, or what its author declares."""
    match kind:
        case "critic":
            return scores.overall if scores is not None else None
        case "length":
            return min(len(piece.text.text) / FULL_LENGTH, 1.0) if piece.text is not None else None
        case _:
            return LEVELS[piece.declared] if piece.declared is not None else None


def heuristic_issues(piece: Piece, confidence: float | None) -> tuple[str, ...]:
    """The seed's two rules. A confidence that nobody declared is low."""
    text = piece.text.text if piece.text is not None else ""
    found = ["too short"] if len(text) < TOO_SHORT else []
    return (*found, "low confidence") if confidence is None or confidence < LOW_CONFIDENCE else tuple(found)


def check_of(settings: Settings, judged: Judged, parts: Sequence[str]) -> Check:
    """Whether the pass is good enough: the mean confidence of all `parts`. One without a confidence never is."""
    known = [judged.confidence.get(part) for part in parts]
    values = [value for value in known if value is not None]
    quality = math.fsum(values) / len(values) if values and len(values) == len(known) else None
    return Check(
        met=quality is not None and quality >= settings.threshold - 1e-9,
        kind=settings.confidence,
        score=quality,
        threshold=settings.threshold,
        detail=", ".join(
            f"{part} {'–' if value is None else f'{value:.2f}'}" for part, value in zip(parts, known, strict=True)
        ),
    )


def aggregate(declared: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Weights c/Σc of the confidences c, and the weighted mean Σc²/Σc; equal weights and 0.5 where Σc is 0 (seed 004, M7).

    Rounding does not take the mean above the highest confidence.
    """
    total = math.fsum(declared.values())
    if total <= 0:
        return dict.fromkeys(declared, 1 / len(declared) if declared else 0.0), 0.5
    mean = math.fsum(c * c for c in declared.values()) / total
    return {name: c / total for name, c in declared.items()}, min(mean, max(declared.values()))


def critique_id(settings: Settings, index: int, part: str) -> str:
    """The message that holds a part's critique; its beginning is the key of the critic's reply, of which it is made."""
    return f"pass-{index}/critique/{settings.judge}/{part}"


def critique_text(issues: Sequence[str], scores: Scores | None) -> str:
    """A part's critique as its author is shown it."""
    lines = [f"{n}. {issue}" for n, issue in enumerate(issues, 1)]
    if scores is None:
        return "\n".join(lines)
    given = " · ".join(f"{name} {value * MOST_POINTS:g} of 10" for name, value in scores)
    return "\n".join([*lines, given])


def _scores(one: Judgement) -> Scores:
    return Scores(
        coherence=one.coherence / MOST_POINTS,
        accuracy=one.accuracy / MOST_POINTS,
        depth=one.depth / MOST_POINTS,
        overall=one.overall / MOST_POINTS,
    )


def _echo(issue: str, piece: Piece) -> bool:
    """Whether an issue is the part itself, which small critics give back as a whole. It counts as an issue all the same: what
    words say decides nothing."""
    written = sentences(piece.text.text) if piece.text is not None else []
    return bool(written) and all(map(Said(sentences(issue)).holds, written))


def _issues(one: Judgement) -> tuple[str, ...]:
    """Those that say something; small models write "None" where nothing is wrong."""
    found = (" ".join(issue.split()) for issue in one.issues)
    return tuple(issue for issue in found if not says_nothing(issue))
