"""From the course of a run to its report: the best pass, what changed and why, how far the figures go."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from consilience.domain.outcome import StopReason
from consilience.domain.positions import LEVELS
from consilience.domain.report import Confidence, Dissent, Objection
from consilience.engine.analysis import novelty, sentences, survival
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols._common.conclusion import claims_of
from consilience.protocols.refinement.course import Course, Turn
from consilience.protocols.refinement.differences import change, differences, unified
from consilience.protocols.refinement.filtering import NEVER_CUT
from consilience.protocols.refinement.judging import Judged, aggregate, critique_id, critique_text
from consilience.protocols.refinement.passes import Piece
from consilience.protocols.refinement.replies import WHOLE
from consilience.protocols.refinement.report import (
    Aggregate,
    Contribution,
    HandedDownText,
    Pass,
    RefinementReport,
    Revision,
    Section,
)
from consilience.protocols.refinement.settings import Settings

_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+", re.MULTILINE)

MIN_FILTERED_SHARE = 0.05
"""Filtering that removes less than this share of what is handed down has little effect."""

LOOP_REPETITIONS = 4
"""A sentence repeated so often is a loop; small models fall into them."""

MIN_KEPT_SHARE = 0.5
"""A whole that keeps less than this share of its parts' sentences, or has more of its own, is another text than its parts."""

MIN_LENGTH_SHARE = 0.7
"""A whole shorter than this share of its target length has lost something."""


async def conclude(session: Session, settings: Settings, course: Course, stop: StopReason) -> RefinementReport:
    """The report. The answer is the best pass, its quality the confidence; issues that stand in it are the dissent."""
    failed = stop is StopReason.FAILED
    turns = course.begun
    documents = {} if failed else {turn.index: document_of(settings, turn) for turn in turns}
    best = max((turn for turn in turns if documents.get(turn.index)), key=lambda turn: turn.worth, default=None)
    drafted = not failed and course.is_draft_better(best)
    passes = _passes(course, settings, documents)
    document = course.draft.text if drafted else documents[best.index] or "" if best else ""
    answer, lost = course.draft.restored(document) if document else (None, [])
    handed = tuple(handed for turn in turns for handed in turn.made.handed)
    aggregated = _aggregated(settings, best) if best else {}
    objections = _objections(session, settings, course, best, drafted)
    whole = best.whole if best and not drafted else None
    metrics = {
        "words": len((answer or "").split()),
        **_metrics(session, settings, course, best if not drafted else None, document, passes, handed, aggregated),
    }
    _warn(session, settings, course, best, metrics, lost)
    if drafted:
        session.warn("the answer is the draft that was given: no pass had a better mark for the whole text")
    judged = [turn for turn in turns if turn.judged is not None and turn.judged.failure is None]
    return await session.report(
        RefinementReport,
        first=_first(settings, course),
        stop_reason=stop,
        unmet=_unmet(settings, course, best),
        answer_cut=best is not None and not drafted and _cut(settings, best),
        check=best.check if best else None,
        confidence=_confidence(settings, course, best, drafted),
        steps=len(turns),
        answer=answer,
        closing=drawn_on(whole, course.failures),
        claims=claims_of(session, whole),
        objections=objections,
        dissent=tuple(Dissent(agent=one.agent, text=one.text, id=one.id) for one in objections if one.is_open),
        metrics=metrics,
        passes=passes,
        best_pass=0 if drafted else best.index if best else None,
        coordinator_intent=course.intent.text if course.intent else None,
        coordinator_critique=_critique(judged[-1]) if judged else {},
        revision_requested=any(turn.base and course.turns[turn.base - 1].critiques for turn in turns),
        quality_threshold_met=best is not None and best.reached,
        aggregated_children=aggregated,
        distances=course.distances,
        handed_down=handed,
        revisions=_revisions(course, settings, best, passes),
        contributions=tuple(_contributions(settings, turns)),
    )


def _unmet(settings: Settings, course: Course, best: Turn | None) -> tuple[str, ...]:
    """Why the run cannot count as good enough: who fell silent in the answer's pass or the last one, and what the answer lacks."""
    if best is None:
        return ()
    found = list(dict.fromkeys((*best.silences, *course.begun[-1].silences)))
    if failures := [turn.judged.failure.key for turn in course.begun if turn.judged and turn.judged.failure]:
        found.append(f"no reply to {', '.join(failures)}")
    if best.judged is not None and best.judged.cut:
        found.append(f"the critic's reply was cut at the token limit in pass {best.index}")
    if best.judged is not None and best.judged.useless:
        found.append(f"marked useless: {', '.join(best.judged.useless)}")
    if missing := _missing(settings, best):
        found.append(f"missing parts: {', '.join(missing)}")
    return tuple(found)


def _missing(settings: Settings, best: Turn) -> list[str]:
    return [part for part in settings.hierarchy.sections if part not in best.made.parts(settings.hierarchy)]


def _cut(settings: Settings, turn: Turn) -> bool:
    """Whether the text of a pass, or where it has no whole one of the parts that it consists of, ended at the token limit."""
    if turn.whole is not None:
        return turn.whole.cut
    return any(piece.text is not None and piece.text.cut for piece in turn.made.parts(settings.hierarchy).values())


def _confidence(settings: Settings, course: Course, best: Turn | None, drafted: bool) -> Confidence:
    if drafted and course.drafted is not None:
        return Confidence(level=course.drafted.scores[WHOLE].overall, kind="the critic's mark of the draft")
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


def _first(settings: Settings, course: Course) -> list[Reply[object] | Failure]:
    """What each author came to in the first pass."""
    if not course.turns:
        return []
    made = course.turns[0].made
    found: list[Reply[object] | Failure] = []
    for seat in settings.first_speakers:
        piece = made.authors.get(seat) or made.served[settings.hierarchy.coordinator, seat]
        found.append(piece.text if piece.text is not None else piece.failures[0])
    return found


def _passes(course: Course, settings: Settings, documents: Mapping[int, str | None]) -> tuple[Pass, ...]:
    draft = course.draft
    compared = {0: draft.comparable(draft.text) if draft.text else ""}
    made: dict[int, Mapping[str, Piece]] = {0: {}}
    found = [_given(course)] if course.drafted is not None and course.drafted.failure is None else []
    for turn in course.begun:
        document = documents.get(turn.index)
        before, after = compared[turn.base], draft.comparable(document) if document else ""
        compared[turn.index] = after
        parts = made[turn.index] = turn.made.parts(settings.hierarchy)
        judged = turn.judged
        found.append(
            Pass(
                index=turn.index,
                sections={
                    name: _section(turn, name, piece, made[turn.base].get(name)) for name, piece in parts.items()
                },
                document=draft.restored(document)[0] if document else None,
                quality=turn.check.score if turn.check else None,
                whole=judged.scores.get(WHOLE) if judged else None,
                whole_issues=judged.issues.get(WHOLE, ()) if judged else (),
                met=turn.reached,
                base=turn.base,
                unchanged=turn.unchanged,
                change=change(before, after) if before and after else None,
                diff=draft.expand_markers(unified(before, after)) if before and after else "",
            )
        )
    return tuple(found)


def _given(course: Course) -> Pass:
    """The draft as pass 0."""
    assert course.drafted is not None
    return Pass(
        index=0,
        document=course.draft.restored(course.draft.text)[0],
        whole=course.drafted.scores.get(WHOLE),
        whole_issues=course.drafted.issues.get(WHOLE, ()),
    )


def _section(turn: Turn, name: str, piece: Piece, before: Piece | None) -> Section:
    assert piece.text is not None
    judged = turn.judged
    earlier = before.text.text if before is not None and before.text is not None else None
    return Section(
        text=piece.text.text,
        confidence=judged.confidence(name) if judged else None,
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


def _lineage(course: Course, best: Turn | None) -> list[Turn]:
    """The passes that the answer rests on, the last first: the best one, the one that it started from, and so on."""
    by_index = {turn.index: turn for turn in course.turns}
    found: list[Turn] = []
    while best is not None:
        found.append(best)
        best = by_index.get(best.base)
    return found


def _objections(
    session: Session, settings: Settings, course: Course, best: Turn | None, drafted: bool
) -> tuple[Objection, ...]:
    """The issues with the answer, which stand, and with the texts that it grew from. One of these is met unless the critic says
    that it still holds, and then it is among the later ones; where nobody asked, it is met if its target wrote another text."""
    shown = session.shown()

    def of(judged: Judged, index: int, later: Turn | None) -> Iterator[Objection]:
        standing = later.judged.standing if later is not None and later.judged is not None else None
        for part, issues in judged.issues.items():
            id = critique_id(settings, index, part)
            met = standing is not None or (later is not None and (part == WHOLE or later.rewrote(part)))
            for n, issue in enumerate(issues, 1):
                if standing is not None and issue in standing.get(part, ()):
                    continue
                yield Objection(
                    id=f"{id}.{n}",
                    agent=settings.judge,
                    to=settings.hierarchy.coordinator if part == WHOLE else part,
                    text=issue,
                    read=id in shown,
                    fate="yielded" if met else "stands" if id in shown else "unanswered",
                )

    found: list[Objection] = []
    later: Turn | None = None
    for turn in [] if drafted else _lineage(course, best):
        found = [*(of(turn.judged, turn.index, later) if turn.judged is not None else ()), *found]
        later = turn
    if course.drafted is not None:
        found = [*of(course.drafted, 0, later), *found]
    return tuple(found)


def _revisions(course: Course, settings: Settings, best: Turn | None, passes: Sequence[Pass]) -> tuple[Revision, ...]:
    """For everything that was criticised and handed back: the issues, and the sentences that went and came."""
    kept = {turn.index for turn in _lineage(course, best)}
    by_index = {one.index: one for one in passes}
    found: list[Revision] = []
    for turn in course.begun:
        after, before = by_index[turn.index], by_index.get(turn.base)
        if before is None:
            continue
        discarded = turn.index not in kept
        for role, section in before.sections.items():
            later = after.sections.get(role)
            if section.issues and later is not None:
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
                        into=after.index,
                        written=later.written,
                        discarded=discarded,
                    )
                )
        if before.whole_issues and not after.unchanged:
            removed, added = differences(before.document or "", after.document or "")
            found.append(
                Revision(
                    step=before.index,
                    role=WHOLE,
                    issues=before.whole_issues,
                    removed=removed if before.index else (),
                    added=added if before.index else (),
                    before=before.whole.overall if before.whole else None,
                    after=after.whole.overall if after.whole else None,
                    into=after.index,
                    discarded=discarded,
                )
            )
    return tuple(found)


def _contributions(settings: Settings, turns: Sequence[Turn]) -> Iterator[Contribution]:
    """What every parent had of each of its children at the end of every pass."""
    for turn in turns:
        for parent in settings.hierarchy.shape.agents:
            below = turn.made.below(parent, settings.hierarchy)
            weights, _ = aggregate({name: LEVELS[one.declared] if one.declared else 0.0 for name, one in below.items()})
            for child, piece in below.items():
                yield Contribution(
                    step=turn.index,
                    parent=parent,
                    child=child,
                    declared=piece.declared,
                    weight=weights[child],
                    new=piece.written,
                )


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
    settings: Settings,
    course: Course,
    best: Turn | None,
    document: str,
    passes: Sequence[Pass],
    handed: Sequence[HandedDownText],
    aggregated: Mapping[str, Aggregate],
) -> dict[str, float | int | None]:
    texts = best.made.parts(settings.hierarchy).values() if best else ()
    parts = [_headless(piece.text.text) for piece in texts if piece.text is not None]
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
        if one.index:
            found[f"sibling_similarity/revise/{one.index}"] = mean_pairwise(
                [part.text for part in one.sections.values()]
            )
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


def _cuttable(handed: Iterable[HandedDownText]) -> list[HandedDownText]:
    """What was long enough that the filter could cut it."""
    return [one for one in handed if one.sentences > NEVER_CUT]


def _correlation(handed: Sequence[HandedDownText]) -> float | None:
    """Pearson's, of distance and share kept over everything handed down that was long enough to be cut; None under three
    distinct distances, or where nothing varies."""
    shares = [(one.distance, one.share) for one in _cuttable(handed) if one.distance is not None]
    if len({d for d, _ in shares}) < 3 or len({s for _, s in shares}) < 2:
        return None
    return statistics.correlation([d for d, _ in shares], [s for _, s in shares])


def _drift(passes: Sequence[Pass]) -> float | None:
    """How much the critic's overall score of a text moves when it reads the very same text again: mean over such parts."""
    by_index = {one.index: one for one in passes}
    moved = [
        abs(later.scores.overall - earlier.scores.overall)
        for after in passes
        for role, later in after.sections.items()
        if (before := by_index.get(after.base))
        and (earlier := before.sections.get(role))
        and earlier.text == later.text
        and earlier.scores
        and later.scores
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
    if best is not None and (later := [turn for turn in course.begun[best.index :] if not turn.unchanged]):
        judged = any(turn.check is not None and turn.check.score is not None for turn in later)
        said = "no later one was judged better" if judged else "no later one was judged"
        session.warn(f"the answer is pass {best.index} of {later[-1].index}: {said}")
    if best is not None and best.whole is None:
        session.warn("the coordinator put no whole together; the text is its parts one after another")
    judgements = [("the draft", course.drafted), *((f"pass {turn.index}", turn.judged) for turn in course.turns)]
    for name, one in judgements:
        if one is not None:
            _warn_of_critic(session, name, one)
    if best is not None and (missing := _missing(settings, best)):
        session.warn(f"parts that nobody wrote are missing from the text: {', '.join(missing)}")
    if session.dropped:
        session.warn(f"references to texts that were not shown were dropped: {session.dropped}")
    if lost:
        parts = "1 protected part was" if len(lost) == 1 else f"{len(lost)} protected parts were"
        session.warn(f"{parts} lost from the text and put back where it fits best")
    times = Counter(sentences(best.whole.value.text)) if best is not None and best.whole is not None else Counter()
    for sentence, n in times.most_common(1):
        if n >= LOOP_REPETITIONS:
            session.warn(f"the text says one sentence {n} times: {sentence[:80]}")
    _warn_of_length(session, settings, course, best)
    kept = metrics["parts_kept"]
    if kept is not None and kept < MIN_KEPT_SHARE and best is not None and best.whole is not None:
        session.warn(f"the coordinator kept only {kept:.0%} of the parts' sentences")
    if (new := metrics["beyond_parts"]) is not None and new > MIN_KEPT_SHARE:
        session.warn(f"{new:.0%} of the whole's sentences stand in none of its parts")
    shown = metrics["share_kept"]
    handed = (one for turn in course.turns for one in turn.made.handed)
    if settings.filter == "always" and shown is not None and 1 - shown < MIN_FILTERED_SHARE and _cuttable(handed):
        session.warn(
            f"filtering by distance has little effect here: it left out {1 - shown:.1%} of what was handed down"
        )


def _warn_of_critic(session: Session, name: str, judged: Judged) -> None:
    """What is wrong with a judgement."""
    if judged.failure is not None:
        session.warn(f"nobody judged {name}: the critic gave no usable reply ({judged.failure.kind.value})")
    for part in judged.contradictory:
        session.warn(f"in {name} the critic's overall score of {part} contradicts its other scores")
    if judged.echoes:
        session.warn(f"issues of {name} that were the criticised text itself and say nothing of it: {judged.echoes}")
    if judged.surplus:
        session.warn(f"issues beyond those that one part may have were left out of {name}: {judged.surplus}")


def _warn_of_length(session: Session, settings: Settings, course: Course, best: Turn | None) -> None:
    """A text that shrank. Protected parts do not count on either side."""
    target = settings.target_words
    if best is None or course.is_draft_better(best) or not target:
        return
    words = len((document_of(settings, best) or "").split())
    if words < MIN_LENGTH_SHARE * target:
        of = "the target of" if settings.length else "the draft, which has"
        session.warn(f"the text has {words} words, {words / target:.0%} of {of} {target}")
