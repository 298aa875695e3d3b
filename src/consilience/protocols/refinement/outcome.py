"""From the course of a run to its report: the best pass, what changed and why, how far the figures go."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from consilience.domain.outcome import StopReason
from consilience.domain.positions import LEVELS
from consilience.domain.report import Confidence, Dissent, Objection
from consilience.engine.analysis import novelty, sentences, survival
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols.refinement.course import Course, Turn
from consilience.protocols.refinement.differences import change, differences, unified
from consilience.protocols.refinement.filtering import NEVER_CUT
from consilience.protocols.refinement.judging import aggregate, critique_id, critique_text
from consilience.protocols.refinement.passes import Piece
from consilience.protocols.refinement.report import Aggregate, Handed, Pass, RefinementReport, Revision, Section
from consilience.protocols.refinement.settings import Settings

_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+", re.MULTILINE)

LITTLE = 0.05
"""Filtering that removes less than this share of what is handed down has little effect."""

LOOP = 4
"""A sentence said so often is a loop; small models fall into them."""

FEW = 0.5
"""A whole that keeps less than this share of its parts' sentences, or has more of its own, is another text than the one that
the critic judged."""


async def conclude(session: Session, settings: Settings, course: Course, stop: StopReason) -> RefinementReport:
    """The report. The answer is the best pass, its quality the confidence; issues that stand in it are the dissent."""
    failed = stop is StopReason.FAILED
    turns = course.begun
    documents = {} if failed else {turn.index: document_of(settings, turn) for turn in turns}
    best = max((turn for turn in turns if documents.get(turn.index)), key=_worth, default=None)
    passes = _passes(course, settings, documents)
    answer, lost = course.draft.restored(documents[best.index] or "") if best else (None, [])
    document = documents[best.index] or "" if best else ""
    handed = tuple(handed for turn in turns for handed in turn.made.handed)
    aggregated = _aggregated(settings, best) if best else {}
    standing = _standing(session, settings, best)
    whole = best.whole if best else None
    claims = session.claims(whole)
    metrics = {
        "words": len((answer or "").split()),
        **_metrics(session, course, best, document, passes, handed, aggregated),
    }
    _warn(session, settings, course, best, metrics, lost)
    judged = [turn for turn in turns if turn.judged is not None and turn.judged.failure is None]
    return await session.report(
        RefinementReport,
        first=_first(settings, course),
        stop_reason=stop,
        check=best.check if best else None,
        confidence=_confidence(settings, best),
        steps=len(turns),
        answer=answer,
        closing=drawn_on(whole, course.failures),
        claims=claims,
        objections=standing,
        dissent=tuple(Dissent(agent=one.agent, text=one.text, id=one.id) for one in standing),
        metrics=metrics,
        passes=passes,
        best_pass=best.index if best else None,
        coordinator_intent=course.intent.text if course.intent else None,
        coordinator_critique=_critique(judged[-1]) if judged else {},
        revision_requested=any(turn.requests for turn in turns[:-1]),
        quality_threshold_met=best is not None and best.check is not None and best.check.met,
        aggregated_children=aggregated,
        distances=course.distances,
        handed_down=handed,
        revisions=_revisions(passes),
    )


def _confidence(settings: Settings, best: Turn | None) -> Confidence:
    quality = best.check.score if best is not None and best.check is not None else None
    return Confidence() if quality is None else Confidence(level=quality, kind=f"quality by {settings.confidence}")


def document_of(settings: Settings, turn: Turn) -> str | None:
    """The text of a pass: what the coordinator made of the parts, or these one after another where it could not; None where
    the pass was cut off before."""
    if turn.whole is not None:
        return turn.whole.value.document
    if turn.index > 1 and turn.judged is None:
        return None
    parts = turn.made.parts(settings.hierarchy)
    texts = [piece.text.text for piece in parts.values() if piece.text is not None]
    return "\n\n".join(texts) or None


def _worth(turn: Turn) -> tuple[float, int, int]:
    """Of equals the earlier, since nothing says that the later is better; without any quality the last."""
    quality, issues = turn.rank
    return quality, issues, turn.index if quality < 0 else -turn.index


def _first(settings: Settings, course: Course) -> list[Reply[object] | Failure]:
    """What each author came to in the first pass."""
    if not course.turns:
        return []
    made = course.turns[0].made
    found: list[Reply[object] | Failure] = []
    for seat in settings.first_seats:
        piece = made.authors.get(seat) or made.served[settings.hierarchy.coordinator, seat]
        found.append(piece.text if piece.text is not None else piece.failures[0])
    return found


def _passes(course: Course, settings: Settings, documents: Mapping[int, str | None]) -> tuple[Pass, ...]:
    found: list[Pass] = []
    draft = course.draft
    before = draft.comparable(draft.text) if draft.text else ""
    earlier: dict[str, Piece] = {}
    for turn in course.begun:
        document = documents.get(turn.index)
        after = draft.comparable(document) if document else ""
        parts = turn.made.parts(settings.hierarchy)
        found.append(
            Pass(
                index=turn.index,
                sections={name: _section(turn, name, piece, earlier.get(name)) for name, piece in parts.items()},
                document=draft.restored(document)[0] if document else None,
                quality=turn.check.score if turn.check else None,
                met=turn.check.met if turn.check else False,
                change=change(before, after) if before and after else None,
                diff=draft.told(unified(before, after)) if before and after else "",
            )
        )
        before = after or before
        earlier = {**earlier, **parts}
    return tuple(found)


def _section(turn: Turn, name: str, piece: Piece, before: Piece | None) -> Section:
    assert piece.text is not None
    judged = turn.judged
    earlier = before.text.text if before is not None and before.text is not None else None
    return Section(
        text=piece.text.text,
        confidence=judged.confidence.get(name) if judged else None,
        declared=piece.declared,
        scores=judged.scores.get(name) if judged else None,
        issues=judged.issues.get(name, ()) if judged else (),
        written=piece.written,
        change=change(earlier, piece.text.text) if earlier is not None else None,
    )


def _critique(turn: Turn) -> dict[str, str]:
    judged = turn.judged
    assert judged is not None
    said = {part: critique_text(issues, judged.scores.get(part)) for part, issues in judged.issues.items()}
    return {part: text for part, text in said.items() if text}


def _standing(session: Session, settings: Settings, best: Turn | None) -> tuple[Objection, ...]:
    """The issues of the answer's own pass: nothing that came later and was better has answered them."""
    if best is None or best.judged is None:
        return ()
    shown = session.shown()
    return tuple(
        Objection(
            id=f"{critique_id(settings, best.index, part)}.{n}",
            agent=settings.judge,
            to=part,
            text=issue,
            read=critique_id(settings, best.index, part) in shown,
        )
        for part, issues in best.judged.issues.items()
        for n, issue in enumerate(issues, 1)
    )


def _revisions(passes: Sequence[Pass]) -> tuple[Revision, ...]:
    """For every part that was criticised and written again: the issues, and the sentences that went and came."""
    found: list[Revision] = []
    for before, after in pairwise(passes):
        for role, section in before.sections.items():
            later = after.sections.get(role)
            if not section.issues or later is None or not later.written:
                continue
            removed, added = differences(section.text, later.text)
            found.append(
                Revision(
                    step=before.index,
                    role=role,
                    issues=section.issues,
                    removed=removed,
                    added=added,
                    before=section.confidence,
                    after=later.confidence,
                )
            )
    return tuple(found)


def _aggregated(settings: Settings, turn: Turn) -> dict[str, Aggregate]:
    """What came up to every parent in the answer's pass, weighed by what each child declares of itself."""
    found: dict[str, Aggregate] = {}
    for parent in settings.hierarchy.shape.agents:
        below = turn.made.below(parent, settings.hierarchy)
        if not below:
            continue
        declared = {name: LEVELS[one.declared] if one.declared else 0.0 for name, one in below.items()}
        weights, mean = aggregate(declared)
        found[parent] = Aggregate(
            weights=weights,
            weighted_confidence=mean,
            best_individual=max(declared.values()),
            combined_content="\n\n".join(one.text.text for one in below.values() if one.text is not None),
            sources=tuple(below),
        )
    return found


def _metrics(
    session: Session,
    course: Course,
    best: Turn | None,
    document: str,
    passes: Sequence[Pass],
    handed: Sequence[Handed],
    aggregated: Mapping[str, Aggregate],
) -> dict[str, float | int | None]:
    parts = [_headless(section.text) for section in passes[best.index - 1].sections.values()] if best else []
    document = _headless(document)
    revised = [
        p for turn in course.turns for p in turn.made.authors.values() if p.draft is not None and p.text is not p.draft
    ]
    changed = [
        p for p in revised if p.text is not None and p.draft is not None and p.text.text.split() != p.draft.text.split()
    ]
    gains = [one.weighted_confidence - one.best_individual for one in aggregated.values() if one.best_individual]
    found: dict[str, float | int | None] = {
        "novelty": novelty(document, map(_headless, _written(session, course, best)))
        if document and best and best.whole
        else None,
        "beyond_parts": novelty(document, parts) if document and best and best.whole else None,
        "parts_kept": survival([s for part in parts for s in sentences(part)], document) if document else None,
        "revision_rate": len(changed) / len(revised) if revised else None,
        "dropped_labels": session.dropped,
        "share_kept": statistics.fmean([one.share for one in handed]) if handed else None,
        "distance_share_correlation": _correlation(handed),
        "aggregated_minus_best": statistics.fmean(gains) if gains else None,
        "critic_drift": _drift(passes),
    }
    for one in passes:
        if one.change is not None:
            found[f"change/{one.index}"] = one.change
        texts = [section.text for section in one.sections.values()]
        found[f"sibling_similarity/revise/{one.index}"] = mean_pairwise(texts)
    return found


def _headless(text: str) -> str:
    """Without the marks of headings: one who says as a heading what others wrote says nothing new."""
    return _HEADING.sub("", text)


def _written(session: Session, course: Course, best: Turn) -> list[str]:
    """All that anybody had written when the whole of a pass was put together: documents, the draft, the intent, drafts, parts,
    advice, earlier wholes."""
    made = [one for turn in course.turns[: best.index] for piece in turn.made.all for one in (piece.draft, piece.text)]
    texts = [one.text for one in made if one is not None]
    wholes = [turn.whole.value.document for turn in course.turns[: best.index - 1] if turn.whole is not None]
    given = [document.text for document in session.sources]
    return [*given, course.draft.text, course.intent.text if course.intent is not None else "", *texts, *wholes]


def _cuttable(handed: Iterable[Handed]) -> list[Handed]:
    """What was long enough that the filter could cut it."""
    return [one for one in handed if one.sentences > NEVER_CUT]


def _correlation(handed: Sequence[Handed]) -> float | None:
    """Pearson's, of distance and share kept over everything handed down that was long enough to be cut; None under three
    distinct distances, or where nothing varies."""
    shares = [(one.distance, one.share) for one in _cuttable(handed) if one.distance is not None]
    if len({d for d, _ in shares}) < 3 or len({s for _, s in shares}) < 2:
        return None
    return statistics.correlation([d for d, _ in shares], [s for _, s in shares])


def _drift(passes: Sequence[Pass]) -> float | None:
    """How much the critic's overall score of a text moves when it reads the very same text again: mean over such parts."""
    moved = [
        abs(later.scores.overall - earlier.scores.overall)
        for before, after in pairwise(passes)
        for role, later in after.sections.items()
        if (earlier := before.sections.get(role)) and earlier.text == later.text and earlier.scores and later.scores
    ]
    return statistics.fmean(moved) if moved else None


def _warn(
    session: Session,
    settings: Settings,
    course: Course,
    best: Turn | None,
    metrics: Mapping[str, float | int | None],
    lost: Sequence[str],
) -> None:
    if best is not None and (later := course.begun[best.index :]):
        judged = any(turn.check is not None and turn.check.score is not None for turn in later)
        said = "no later one was judged better" if judged else "no later one was judged"
        session.warn(f"the answer is pass {best.index} of {later[-1].index}: {said}")
    if best is not None and best.whole is None:
        session.warn("the coordinator put no whole together; the text is its parts one after another")
    for turn in course.turns:
        if turn.judged is None:
            continue
        if turn.judged.failure is not None:
            session.warn(
                f"nobody judged pass {turn.index}: the critic gave no usable reply ({turn.judged.failure.kind.value})"
            )
        for part in turn.judged.contradictory:
            session.warn(f"in pass {turn.index} the critic's overall score of {part} contradicts its other scores")
        if turn.judged.echoes:
            session.warn(
                f"issues of pass {turn.index} that were the criticised text itself and say nothing of it: {turn.judged.echoes}"
            )
        if turn.judged.surplus:
            session.warn(
                f"issues beyond those that one part may have were left out of pass {turn.index}: {turn.judged.surplus}"
            )
    missing = [
        part
        for part in settings.hierarchy.sections
        if best is not None and part not in best.made.parts(settings.hierarchy)
    ]
    if missing:
        session.warn(f"parts that nobody wrote are missing from the text: {', '.join(missing)}")
    if session.dropped:
        session.warn(f"references to texts that were not shown were dropped: {session.dropped}")
    if lost:
        parts = "1 protected part was" if len(lost) == 1 else f"{len(lost)} protected parts were"
        session.warn(f"{parts} lost from the text and put back where it fits best")
    times = Counter(sentences(best.whole.value.text)) if best is not None and best.whole is not None else Counter()
    for sentence, n in times.most_common(1):
        if n >= LOOP:
            session.warn(f"the text says one sentence {n} times: {sentence[:80]}")
    kept = metrics["parts_kept"]
    if kept is not None and kept < FEW and best is not None and best.whole is not None:
        session.warn(
            f"the coordinator kept only {kept:.0%} of the parts' sentences; the critic judged the parts and not this text"
        )
    if (new := metrics["beyond_parts"]) is not None and new > FEW:
        session.warn(f"{new:.0%} of the whole's sentences stand in none of its parts; nobody has judged them")
    shown = metrics["share_kept"]
    handed = (one for turn in course.turns for one in turn.made.handed)
    if settings.filter and shown is not None and 1 - shown < LITTLE and _cuttable(handed):
        session.warn(
            f"filtering by distance has little effect here: it left out {1 - shown:.1%} of what was handed down"
        )
