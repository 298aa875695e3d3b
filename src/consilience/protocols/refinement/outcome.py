"""From a run to its report: the best pass, what changed and why, metrics, warnings."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from consilience.domain.outcome import StopReason
from consilience.domain.positions import LEVELS
from consilience.domain.report import Confidence, Dissent, Objection
from consilience.engine.analysis import novelty, sentences, survival
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols._common.conclusion import claims_of
from consilience.protocols.refinement.passes import IntegratedReply, RoleOutput
from consilience.protocols.refinement.report import RefinementReport
from consilience.protocols.refinement.report_data import (
    WHOLE,
    Aggregate,
    Contribution,
    HandedDownText,
    PartReport,
    PassReport,
    Revision,
)
from consilience.protocols.refinement.scoring import Assessment, PassState, RefinementRun, critique_id, critique_text
from consilience.protocols.refinement.settings import RefinementSettings
from consilience.protocols.refinement.texts import MAX_UNCUT_SENTENCES, change, differences, unified

_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+", re.MULTILINE)

MIN_FILTERED_SHARE = 0.05
"""Filtering that removes less than this share of what is handed down has little effect."""

LOOP_REPETITIONS = 4
"""A sentence repeated so often is a loop; small models fall into them."""

MIN_KEPT_SHARE = 0.5
"""A whole that keeps less than this share of its parts' sentences, or has more of its own, is another text than its parts."""

MIN_LENGTH_SHARE = 0.7
"""A whole shorter than this share of its target length has lost something."""


async def conclude(
    session: Session, settings: RefinementSettings, run: RefinementRun, stop: StopReason
) -> RefinementReport:
    """Return the report. The answer is the best pass, its quality the confidence; its open issues are the dissent."""
    documents = {} if stop is StopReason.FAILED else {state.index: document_of(settings, state) for state in run.begun}
    best = max((p for p in run.begun if documents.get(p.index)), key=lambda p: p.rank, default=None)
    drafted = stop is not StopReason.FAILED and run.is_draft_better(best)
    outcome = _Outcome(session, settings, run, best, drafted, documents)
    answer, lost = run.draft.restored(outcome.document) if outcome.document else (None, [])
    aggregated = _aggregated(settings, best) if best else {}
    passes, objections = outcome.passes(), outcome.objections()
    metrics = {"words": len((answer or "").split()), **outcome.metrics(passes, aggregated)}
    outcome.warn(metrics, lost)
    judged = [state.assessment for state in run.begun if state.assessment and not state.assessment.failure]
    return await session.report(
        RefinementReport,
        first=_first_replies(settings, run),
        stop_reason=stop,
        unmet=outcome.unmet(),
        answer_cut=best is not None and not drafted and _is_cut(settings, best),
        check=best.check if best else None,
        confidence=outcome.confidence(),
        steps=len(run.begun),
        answer=answer,
        closing=drawn_on(outcome.whole, run.failures),
        claims=claims_of(session, outcome.whole),
        objections=objections,
        dissent=tuple(Dissent(agent=o.agent, text=o.text, id=o.id) for o in objections if o.is_open),
        metrics=metrics,
        passes=passes,
        best_pass=0 if drafted else best.index if best else None,
        coordinator_intent=run.intent.text if run.intent else None,
        coordinator_critique=_critique_by_part(judged[-1]) if judged else {},
        revision_requested=any(state.base and run.passes[state.base - 1].critiques for state in run.begun),
        quality_threshold_met=best is not None and best.reached,
        aggregated_children=aggregated,
        distances=run.distances,
        handed_down=tuple(handed for state in run.begun for handed in state.result.handed),
        revisions=outcome.revisions(passes),
        contributions=tuple(_contributions(settings, run.begun)),
    )


def document_of(settings: RefinementSettings, state: PassState) -> str | None:
    """Return the text of a pass: the coordinator's or, if the coordinator failed, its parts in order; None if the pass was cut
    off before."""
    if state.whole is not None:
        return state.whole.value.document
    if state.index > 1 and state.assessment is None:
        return None
    return "\n\n".join(_part_texts(settings, state)) or None


def _part_texts(settings: RefinementSettings, state: PassState) -> list[str]:
    outputs = state.result.parts(settings.hierarchy).values()
    return [output.text.text for output in outputs if output.text is not None]


def _is_cut(settings: RefinementSettings, state: PassState) -> bool:
    """Return whether the text of a pass, or one of the parts that it consists of, ended at the token limit."""
    if state.whole is not None:
        return state.whole.cut
    return any(
        output.text is not None and output.text.cut for output in state.result.parts(settings.hierarchy).values()
    )


def _first_replies(settings: RefinementSettings, run: RefinementRun) -> list[Reply[object] | Failure]:
    """Return each author's reply or failure in the first pass."""
    if not run.passes:
        return []
    outputs = [run.passes[0].result.first(author, settings.hierarchy) for author in settings.first_speakers]
    return [output.text if output.text is not None else output.failures[0] for output in outputs]


def _critique_by_part(assessment: Assessment) -> dict[str, str]:
    texts = {p: critique_text(issues, assessment.scores.get(p)) for p, issues in assessment.issues.items()}
    return {part: text for part, text in texts.items() if text}


def aggregate(declared: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Return the weights c/Σc of the confidences c, and the weighted mean Σc²/Σc; equal weights and 0.5 if Σc is 0 (seed 004, M7).

    Rounding does not raise the mean above the highest confidence.
    """
    total = math.fsum(declared.values())
    if total <= 0:
        return dict.fromkeys(declared, 1 / len(declared) if declared else 0.0), 0.5
    mean = math.fsum(c * c for c in declared.values()) / total
    return {name: c / total for name, c in declared.items()}, min(mean, max(declared.values()))


def _levels(outputs: Mapping[str, RoleOutput]) -> dict[str, float]:
    return {name: LEVELS[output.declared] if output.declared else 0.0 for name, output in outputs.items()}


def _contributions(settings: RefinementSettings, states: Sequence[PassState]) -> Iterator[Contribution]:
    """Yield what every parent had from each of its children at the end of every pass."""
    for state in states:
        for parent in settings.hierarchy.shape.agents:
            below = state.result.below(parent, settings.hierarchy)
            weights, _ = aggregate(_levels(below))
            for child, output in below.items():
                yield Contribution(
                    step=state.index,
                    parent=parent,
                    child=child,
                    declared=output.declared,
                    weight=weights[child],
                    new=output.written,
                )


def _aggregated(settings: RefinementSettings, state: PassState) -> dict[str, Aggregate]:
    """Return what every parent got from its children in a pass, weighted by the confidence that each child declares."""
    aggregates: dict[str, Aggregate] = {}
    for parent in settings.hierarchy.shape.agents:
        if below := state.result.below(parent, settings.hierarchy):
            levels = _levels(below)
            weights, mean = aggregate(levels)
            aggregates[parent] = Aggregate(
                weights=weights,
                weighted_confidence=mean,
                best_individual=max(levels.values()),
                combined_content="\n\n".join(output.text.text for output in below.values() if output.text is not None),
                sources=tuple(below),
            )
    return aggregates


@dataclass(frozen=True)
class _Outcome:
    """A finished run with its best pass."""

    session: Session
    settings: RefinementSettings
    run: RefinementRun
    best: PassState | None
    drafted: bool
    """The answer is the draft given with the task."""
    documents: Mapping[int, str | None]
    """The text of each pass, with markers."""

    @property
    def document(self) -> str:
        """The answer, with markers; empty without one."""
        if self.drafted:
            return self.run.draft.text
        return (self.documents[self.best.index] or "") if self.best else ""

    @property
    def whole(self) -> Reply[IntegratedReply] | None:
        """The coordinator's reply that is the answer."""
        return self.best.whole if self.best and not self.drafted else None

    @property
    def missing(self) -> list[str]:
        """The parts missing in the best pass."""
        tree = self.settings.hierarchy
        parts = self.best.result.parts(tree) if self.best else tree.sections
        return [part for part in tree.sections if part not in parts]

    @property
    def lineage(self) -> list[PassState]:
        """The passes that the best one is based on, itself first."""
        states: list[PassState] = []
        state = self.best
        while state is not None:
            states.append(state)
            state = self.run.passes[state.base - 1] if state.base else None
        return states

    def confidence(self) -> Confidence:
        if self.drafted and self.run.draft_assessment is not None:
            overall = self.run.draft_assessment.scores[WHOLE].overall
            return Confidence(level=overall, kind="the critic's mark of the draft")
        quality = self.best.check.score if self.best is not None and self.best.check is not None else None
        kind = f"quality by {self.settings.confidence}"
        return Confidence() if quality is None else Confidence(level=quality, kind=kind)

    def unmet(self) -> tuple[str, ...]:
        """Return why the run cannot count as good enough: silences in the best or last pass, and defects of the answer."""
        best, begun = self.best, self.run.begun
        if best is None:
            return ()
        reasons = list(dict.fromkeys((*best.silences, *begun[-1].silences)))
        if failures := [p.assessment.failure.key for p in begun if p.assessment and p.assessment.failure]:
            reasons.append(f"no reply to {', '.join(failures)}")
        if best.assessment is not None and best.assessment.cut:
            reasons.append(f"the critic's reply was cut at the token limit in pass {best.index}")
        if best.assessment is not None and best.assessment.useless:
            reasons.append(f"marked useless: {', '.join(best.assessment.useless)}")
        if self.missing:
            reasons.append(f"missing parts: {', '.join(self.missing)}")
        return tuple(reasons)

    def passes(self) -> tuple[PassReport, ...]:
        """Return the passes, compared with those that they started from."""
        draft, assessment = self.run.draft, self.run.draft_assessment
        compared = {0: draft.comparable(draft.text) if draft.text else ""}
        parts: dict[int, Mapping[str, RoleOutput]] = {0: {}}
        reports: list[PassReport] = []
        if assessment is not None and assessment.failure is None:
            whole, issues = assessment.scores.get(WHOLE), assessment.issues.get(WHOLE, ())
            text = draft.restored(draft.text)[0]
            reports.append(PassReport(index=0, document=text, whole=whole, whole_issues=issues))
        for state in self.run.begun:
            document = self.documents.get(state.index)
            before, after = compared[state.base], draft.comparable(document) if document else ""
            compared[state.index] = after
            parts[state.index] = state.result.parts(self.settings.hierarchy)
            earlier, assessment = parts[state.base], state.assessment
            reports.append(
                PassReport(
                    index=state.index,
                    sections={
                        n: _part_report(state, n, part, earlier.get(n)) for n, part in parts[state.index].items()
                    },
                    document=draft.restored(document)[0] if document else None,
                    quality=state.check.score if state.check else None,
                    whole=assessment.scores.get(WHOLE) if assessment else None,
                    whole_issues=assessment.issues.get(WHOLE, ()) if assessment else (),
                    met=state.reached,
                    base=state.base,
                    unchanged=state.unchanged,
                    change=change(before, after) if before and after else None,
                    diff=draft.expand_markers(unified(before, after)) if before and after else "",
                )
            )
        return tuple(reports)

    def objections(self) -> tuple[Objection, ...]:
        """Return the issues with the answer, which stand, and with the texts that it is based on.

        An issue with an earlier text is met unless the critic says that it still holds; then it is among the later issues. If the
        critic was not asked, it is met if its target wrote another text.
        """
        objections: list[Objection] = []
        later: PassState | None = None
        for state in [] if self.drafted else self.lineage:
            if state.assessment is not None:
                objections = [*self._objections_to(state.assessment, state.index, later), *objections]
            later = state
        if self.run.draft_assessment is not None:
            objections = [*self._objections_to(self.run.draft_assessment, 0, later), *objections]
        return tuple(objections)

    def _objections_to(self, assessment: Assessment, index: int, later: PassState | None) -> Iterator[Objection]:
        shown, coordinator = self.session.shown(), self.settings.hierarchy.coordinator
        standing = later.assessment.standing if later is not None and later.assessment is not None else None
        for part, issues in assessment.issues.items():
            id = critique_id(self.settings, index, part)
            met = standing is not None or (later is not None and (part == WHOLE or later.rewrote(part)))
            for n, issue in enumerate(issues, 1):
                if standing is not None and issue in standing.get(part, ()):
                    continue
                yield Objection(
                    id=f"{id}.{n}",
                    agent=self.settings.judge,
                    to=coordinator if part == WHOLE else part,
                    text=issue,
                    read=id in shown,
                    fate="yielded" if met else "stands" if id in shown else "unanswered",
                )

    def revisions(self, passes: Sequence[PassReport]) -> tuple[Revision, ...]:
        """Return the result of every critique that was handed back."""
        kept = {state.index for state in self.lineage}
        by_index = {report.index: report for report in passes}
        revisions: list[Revision] = []
        for state in self.run.begun:
            after, before = by_index[state.index], by_index.get(state.base)
            if before is None:
                continue
            revision = partial(Revision, step=before.index, into=after.index, discarded=state.index not in kept)
            for role, part in before.sections.items():
                later = after.sections.get(role)
                if part.issues and later is not None:
                    removed, added = differences(part.text, later.text)
                    marks = {"before": part.confidence, "after": later.confidence}
                    changed = {"removed": removed, "added": added, "written": later.written}
                    revisions.append(revision(role=role, issues=part.issues, **changed, **marks))
            if before.whole_issues and not after.unchanged:
                removed, added = differences(before.document or "", after.document or "") if before.index else ((), ())
                marks = {
                    "before": before.whole.overall if before.whole else None,
                    "after": after.whole.overall if after.whole else None,
                }
                revisions.append(
                    revision(role=WHOLE, issues=before.whole_issues, removed=removed, added=added, **marks)
                )
        return tuple(revisions)

    def metrics(
        self, passes: Sequence[PassReport], aggregated: Mapping[str, Aggregate]
    ) -> dict[str, float | int | None]:
        best = self.best if not self.drafted else None
        parts = [_without_headings(text) for text in _part_texts(self.settings, best)] if best else []
        document = _without_headings(self.document)
        integrated = document if best and best.whole else ""
        outputs = [output for state in self.run.passes for output in state.result.authors.values()]
        revised = [(o.draft, o.text) for o in outputs if o.draft and o.text and o.text is not o.draft]
        changed = [text for draft, text in revised if text.text.split() != draft.text.split()]
        handed = [handed for state in self.run.begun for handed in state.result.handed]
        gains = [a.weighted_confidence - a.best_individual for a in aggregated.values() if a.best_individual]
        metrics: dict[str, float | int | None] = {
            "novelty": novelty(integrated, map(_without_headings, self._written_before(best)))
            if integrated and best
            else None,
            "beyond_parts": novelty(integrated, parts) if integrated else None,
            "parts_kept": survival([s for part in parts for s in sentences(part)], document) if document else None,
            "revision_rate": len(changed) / len(revised) if revised else None,
            "dropped_labels": self.session.dropped,
            "share_kept": statistics.fmean([text.share for text in handed]) if handed else None,
            "distance_share_correlation": _correlation(handed),
            "aggregated_minus_best": statistics.fmean(gains) if gains else None,
            "critic_drift": _drift(passes),
        }
        for report in passes:
            if report.change is not None:
                metrics[f"change/{report.index}"] = report.change
            if report.index:
                texts = [part.text for part in report.sections.values()]
                metrics[f"sibling_similarity/revise/{report.index}"] = mean_pairwise(texts)
        return metrics

    def _written_before(self, best: PassState) -> list[str]:
        """Return all texts that existed when the whole of a pass was put together."""
        run = self.run
        outputs = [output for state in run.passes[: best.index] for output in state.result.all]
        texts = [reply.text for output in outputs for reply in (output.draft, output.text) if reply is not None]
        wholes = [state.whole.value.document for state in run.passes[: best.index - 1] if state.whole is not None]
        documents = [document.text for document in self.session.sources]
        return [*documents, run.draft.text, run.intent.text if run.intent is not None else "", *texts, *wholes]

    def warn(self, metrics: Mapping[str, float | int | None], lost: Sequence[str]) -> None:
        """Warn about everything that makes the answer or its figures doubtful."""
        for warning in self._warnings(metrics, lost):
            self.session.warn(warning)

    def _warnings(self, metrics: Mapping[str, float | int | None], lost: Sequence[str]) -> Iterator[str]:
        best, run = self.best, self.run
        if best is not None and (later := [state for state in run.begun[best.index :] if not state.unchanged]):
            judged = any(state.check is not None and state.check.score is not None for state in later)
            reason = "no later one was judged better" if judged else "no later one was judged"
            yield f"the answer is pass {best.index} of {later[-1].index}: {reason}"
        if best is not None and best.whole is None:
            yield "the coordinator did not integrate the parts; the text is the parts in order"
        assessments = [("the draft", run.draft_assessment), *((f"pass {p.index}", p.assessment) for p in run.passes)]
        for name, assessment in assessments:
            if assessment is not None:
                yield from _critic_warnings(name, assessment)
        if best is not None and self.missing:
            yield f"parts missing from the text, with no usable reply of an author: {', '.join(self.missing)}"
        if self.session.dropped:
            yield f"references to texts that the agent was not shown, dropped: {self.session.dropped}"
        if lost:
            parts = "1 protected part was" if len(lost) == 1 else f"{len(lost)} protected parts were"
            yield f"{parts} lost from the text and put back where it fits best"
        whole = best.whole.value.text if best is not None and best.whole is not None else ""
        for sentence, n in Counter(sentences(whole)).most_common(1):
            if n >= LOOP_REPETITIONS:
                yield f"the text repeats one sentence {n} times: {sentence[:80]}"
        target = self.settings.target_words
        if best is not None and target and not self.drafted:
            words = len((document_of(self.settings, best) or "").split())
            if words < MIN_LENGTH_SHARE * target:
                of = "the target of" if self.settings.length else "the draft, which has"
                yield f"the text has {words} words, {words / target:.0%} of {of} {target}"
        if whole and (kept := metrics["parts_kept"]) is not None and kept < MIN_KEPT_SHARE:
            yield f"the coordinator kept only {kept:.0%} of the parts' sentences"
        if (new := metrics["beyond_parts"]) is not None and new > MIN_KEPT_SHARE:
            yield f"{new:.0%} of the whole's sentences are in none of its parts"
        shown = metrics["share_kept"]
        cuttable = _cuttable(handed for state in run.passes for handed in state.result.handed)
        if self.settings.filter == "always" and shown is not None and 1 - shown < MIN_FILTERED_SHARE and cuttable:
            yield (f"filtering by distance has little effect: it left out {1 - shown:.1%} of the text handed down")
        if self.drafted:
            yield "the answer is the draft: no pass had a better mark for the whole text"


def _critic_warnings(name: str, assessment: Assessment) -> Iterator[str]:
    """Yield what is wrong with a judgement."""
    if assessment.failure is not None:
        yield f"no judgement of {name}: the critic gave no usable reply ({assessment.failure.kind.value})"
    for part in assessment.contradictory:
        yield f"in {name} the critic's overall score of {part} contradicts its other scores"
    if assessment.echoes:
        yield f"issues with {name} that only repeat the criticised text: {assessment.echoes}"
    if assessment.surplus:
        yield f"issues beyond the maximum per part, left out of {name}: {assessment.surplus}"


def _part_report(state: PassState, name: str, output: RoleOutput, before: RoleOutput | None) -> PartReport:
    assert output.text is not None
    assessment = state.assessment
    earlier = before.text.text if before is not None and before.text is not None else None
    return PartReport(
        text=output.text.text,
        confidence=assessment.confidence(name) if assessment else None,
        declared=output.declared,
        scores=assessment.scores.get(name) if assessment else None,
        issues=assessment.issues.get(name, ()) if assessment else (),
        written=output.written,
        change=change(earlier, output.text.text) if earlier is not None else None,
    )


def _without_headings(text: str) -> str:
    """Remove heading marks: a sentence is not new because it became a heading."""
    return _HEADING.sub("", text)


def _cuttable(handed: Iterable[HandedDownText]) -> list[HandedDownText]:
    return [text for text in handed if text.sentences > MAX_UNCUT_SENTENCES]


def _correlation(handed: Sequence[HandedDownText]) -> float | None:
    """Return Pearson's correlation of distance and share kept, over all texts that could be cut; None under three distinct
    distances, or if one of the two does not vary."""
    shares = [(text.distance, text.share) for text in _cuttable(handed) if text.distance is not None]
    if len({d for d, _ in shares}) < 3 or len({s for _, s in shares}) < 2:
        return None
    return statistics.correlation([d for d, _ in shares], [s for _, s in shares])


def _drift(passes: Sequence[PassReport]) -> float | None:
    """Return how much the critic's overall score of an unchanged text moves, on average; None without such a text."""
    by_index = {report.index: report for report in passes}
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
