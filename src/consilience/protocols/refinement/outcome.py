"""From a run to its report: the best pass, what changed and why, metrics, warnings."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, unified_diff
from functools import partial
from typing import Any

from consilience.domain.outcome import StopReason
from consilience.domain.positions import LEVELS
from consilience.domain.report import ConfidenceScore, Objection
from consilience.engine.analysis import novelty, sentences, survival
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Reply
from consilience.protocols._common.conclusion import claims_of, open_dissent
from consilience.protocols._common.presenting import describe_calls
from consilience.protocols.refinement.passes import MAX_UNCUT_SENTENCES
from consilience.protocols.refinement.report import RefinementReport
from consilience.protocols.refinement.report_data import (
    PASS_NOTE,
    WHOLE,
    Aggregate,
    Contribution,
    HandedDownText,
    PartReport,
    PassReport,
    RecordedPass,
    Revision,
    pass_name,
)
from consilience.protocols.refinement.settings import Assessment, PassState, RefinementRun, RoleOutput, mark_from

_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+", re.MULTILINE)

CONTRADICTION = 300
"""Min distance of an overall mark that contradicts the mean of the other marks."""

MIN_FILTERED_SHARE = 0.05
"""Filtering that removes less than this share of what is handed down has little effect."""

LOOP_REPETITIONS = 4
"""A sentence repeated so often is a loop; small models fall into them."""

MIN_KEPT_SHARE = 0.5
"""A whole that keeps less than this share of its parts' sentences, or has more of its own, is another text than its parts."""

MIN_LENGTH_SHARE = 0.7
"""A whole shorter than this share of its target length has lost something."""


async def conclude(run: RefinementRun, stop: StopReason) -> RefinementReport:
    """Return the report. The answer is the best pass, its quality the confidence; its open issues are the dissent."""
    session, outcome = run.session, _Outcome(run, failed=stop is StopReason.FAILED)
    best, chosen = outcome.best, outcome.chosen
    answer, missing_blocks = run.draft.restored(outcome.document) if outcome.document else (None, [])
    aggregated = {parent: weighed for parent, _, weighed in _helped(best)} if best else {}
    passes, objections = outcome.passes(), outcome.objections()
    claims = claims_of(session, outcome.whole)
    words = len((answer or "").split())
    metrics = {"words": words, **outcome.metrics(passes, aggregated), "dropped_labels": session.dropped}
    for warning in outcome.warnings(metrics, missing_blocks):
        session.warn(warning)
    judged = [state.assessment for state in outcome.begun if state.is_judged and not state.assessment.failure]
    critique = {part: judged[-1].critique(part) for part in judged[-1].issues} if judged else {}
    return await session.close(
        RefinementReport,
        outcome.whole,
        first=run.passes[1].opening(run.settings.first_speakers) if len(run.passes) > 1 else (),
        stop_reason=stop,
        enough=True,
        unmet=outcome.unmet(),
        answer_cut=chosen is not None and chosen.is_cut,
        check=best.check if best else None,
        confidence=outcome.confidence(),
        steps=len(outcome.begun),
        answer=answer,
        claims=claims,
        objections=objections,
        dissent=open_dissent(objections),
        metrics=metrics,
        passes=passes,
        best_pass=chosen.index if chosen else None,
        coordinator_intent=run.intent.text if run.intent else None,
        coordinator_critique={part: text for part, text in critique.items() if text},
        revision_requested=any(state.index > 1 and state.base and state.base.critiques for state in outcome.begun),
        quality_threshold_met=best is not None and best.reached,
        aggregated_children=aggregated,
        distances=run.distances,
        handed_down=outcome.handed,
        revisions=outcome.revisions(passes),
        contributions=tuple(entry for state in outcome.begun for entry in _contributions(state)),
    )


def has_judgement(state: PassState) -> bool:
    return state.is_judged and state.assessment.failure is None


def report_pass(run: RefinementRun, state: PassState, document: str | None) -> PassReport:
    """Return a pass, or the judged draft, with its text, compared with the pass that it started from."""
    draft, base, assessment = run.draft, state.base, state.assessment
    before = draft.comparable(base.document or "") if base is not None else ""
    after = draft.comparable(document) if document else ""
    earlier = base.part_texts if base is not None else {}
    return PassReport(
        index=state.index,
        sections={name: _part_report(assessment, name, part, earlier.get(name)) for name, part in state.parts.items()},
        document=draft.restored(document)[0] if document else None,
        quality=state.check.score if state.check else None,
        whole=assessment.scores.get(WHOLE),
        whole_issues=assessment.issues.get(WHOLE, ()),
        met=state.reached,
        base=base.index if base is not None else 0,
        unchanged=state.unchanged,
        change=change(before, after) if before and after else None,
        diff=draft.expand_markers(unified(before, after)) if before and after else "",
    )


def record_pass(run: RefinementRun, state: PassState) -> None:
    """Note a pass as it is at its end, for those who watch. Its texts are in the replies."""
    report = report_pass(run, state, state.document)
    sections = {name: part.model_copy(update={"text": ""}) for name, part in report.sections.items()}
    slim = report.model_copy(update={"document": None, "sections": sections})
    run.session.note(PASS_NOTE, RecordedPass(report=slim, contributions=tuple(_contributions(state))))


def aggregate(declared: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Return the weights c/Σc of the confidences c, and the weighted mean Σc²/Σc; equal weights and 0.5 if Σc is 0 (seed 004, M7).

    Rounding does not raise the mean above the highest confidence.
    """
    total = math.fsum(declared.values())
    if total <= 0:
        return dict.fromkeys(declared, 1 / len(declared) if declared else 0.0), 0.5
    mean = math.fsum(c * c for c in declared.values()) / total
    return {name: c / total for name, c in declared.items()}, min(mean, max(declared.values()))


def _helped(state: PassState) -> Iterator[tuple[str, dict[str, RoleOutput], Aggregate]]:
    """Yield what every parent had from its children at the end of a pass, weighted by the confidence that each child declares."""
    for parent in state.tree.shape.agents:
        if outputs := state.below(parent):
            levels = {name: LEVELS[output.declared] if output.declared else 0.0 for name, output in outputs.items()}
            weights, mean = aggregate(levels)
            yield (
                parent,
                outputs,
                Aggregate(
                    weights=weights,
                    weighted_confidence=mean,
                    best_individual=max(levels.values()),
                    combined_content="\n\n".join(output.text.text for output in outputs.values() if output.text),
                    sources=tuple(outputs),
                ),
            )


def _contributions(state: PassState) -> Iterator[Contribution]:
    for parent, below, weighed in _helped(state):
        for child, output in below.items():
            weight, declared, new = weighed.weights[child], output.declared, output.written
            yield Contribution(step=state.index, parent=parent, child=child, declared=declared, weight=weight, new=new)


class _Outcome:
    """A finished run with its best pass."""

    def __init__(self, run: RefinementRun, *, failed: bool) -> None:
        self.run, self.session, self.settings, self.begun = run, run.session, run.settings, run.begun
        states = (run.origin, *([] if failed else self.begun))
        self.documents = {state.index: state.document for state in states}
        """The text of each pass, with markers; after a failed run only the draft."""
        self.best = max((s for s in self.begun if self.documents.get(s.index)), key=lambda s: s.rank, default=None)
        """Of the passes with a text."""
        self.is_draft = not failed and self._is_draft_better()
        self.chosen = run.origin if self.is_draft else self.best
        """The best pass or the draft, whichever is the answer."""
        self.document = (self.documents[self.chosen.index] or "") if self.chosen else ""
        """The answer, with markers; empty without one."""
        self.whole = self.chosen.whole if self.chosen else None
        """The coordinator's reply that is the answer."""
        parts, sections = (
            self.best.parts if self.best else self.settings.hierarchy.sections,
            self.settings.hierarchy.sections,
        )
        self.missing = [part for part in sections if part not in parts]
        """The parts missing in the best pass."""
        self.handed = tuple(handed for state in self.begun for handed in state.handed)

    def _is_draft_better(self) -> bool:
        """Return whether the draft is the answer: it has a mark, and no pass has a better one for the whole."""
        draft_scores = self.run.origin.assessment.scores.get(WHOLE)
        best_scores = self.best.assessment.scores.get(WHOLE) if self.best is not None else None
        return draft_scores is not None and (best_scores is None or best_scores.overall <= draft_scores.overall)

    def confidence(self) -> ConfidenceScore:
        chosen = self.chosen
        if chosen is self.run.origin:
            return ConfidenceScore(level=chosen.assessment.scores[WHOLE].overall, kind="the critic's mark of the draft")
        if chosen is None or chosen.check is None or chosen.check.score is None:
            return ConfidenceScore()
        return ConfidenceScore(level=chosen.check.score, kind=f"quality by {self.settings.confidence}")

    def unmet(self) -> tuple[str, ...]:
        """Return why the run cannot count as good enough: silences in the best or last pass, and defects of the answer."""
        best = self.best
        if best is None:
            return ()
        reasons = list(dict.fromkeys((*best.silences, *self.begun[-1].silences)))
        if failures := [state.assessment.failure.key for state in self.begun if state.assessment.failure]:
            reasons.append(f"no reply: {describe_calls(failures)}")
        if best.assessment.cut:
            reasons.append(f"the critic's reply was cut at the token limit in pass {best.index}")
        if best.assessment.useless:
            reasons.append(best.assessment.useless)
        if self.missing:
            reasons.append(f"missing parts: {', '.join(self.missing)}")
        return tuple(reasons)

    def passes(self) -> tuple[PassReport, ...]:
        """Return the draft, if it was judged, and the passes, compared with those that they started from."""
        return tuple(
            report_pass(self.run, state, self.documents.get(state.index))
            for state in (self.run.origin, *self.begun)
            if state.index or has_judgement(state)
        )

    def objections(self) -> tuple[Objection, ...]:
        """Return the issues with the answer, which stand, and with the texts that it is based on."""
        chosen = self.chosen or self.run.origin
        pairs = zip(chosen.lineage, [None, *chosen.lineage], strict=False)
        return tuple(
            objection for state, later in reversed(list(pairs)) for objection in self._objections_to(state, later)
        )

    def _objections_to(self, state: PassState, later: PassState | None) -> Iterator[Objection]:
        """Yield the issues with a text. They are met unless the critic says of the `later` text that they still hold; then they are
        among its issues. If the critic was not asked, an issue is met if its target wrote another text."""
        shown, coordinator = self.session.shown(), self.settings.hierarchy.coordinator
        standing = later.assessment.standing if later is not None else None
        rewritten = (
            {output.role for output in later.outputs if output.written} | {WHOLE} if later is not None else set()
        )
        for part, issues in state.assessment.issues.items():
            id = self.settings.critique_id(state.index, part)
            is_answered = standing is not None or part in rewritten
            for n, issue in enumerate(issues, 1):
                if standing is None or issue not in standing.get(part, ()):
                    yield Objection(
                        id=f"{id}.{n}",
                        agent=self.settings.judge,
                        to=coordinator if part == WHOLE else part,
                        text=issue,
                        read=id in shown,
                        fate="yielded" if is_answered else "stands" if id in shown else "unanswered",
                    )

    def revisions(self, passes: Sequence[PassReport]) -> tuple[Revision, ...]:
        """Return the result of every critique that was handed back."""
        lineage = {state.index for state in self.best.lineage} if self.best else set()
        by_index = {report.index: report for report in passes}
        revisions: list[Revision] = []
        for after in passes:
            before = by_index.get(after.base)
            if before is None or not after.index:
                continue
            revision = partial(Revision, step=before.index, into=after.index, discarded=after.index not in lineage)
            for role, part in before.sections.items():
                later = after.sections.get(role)
                if part.issues and later is not None:
                    removed, added = differences(part.text, later.text)
                    marks = {"before": part.confidence, "after": later.confidence}
                    changes = {"removed": removed, "added": added, "written": later.written}
                    revisions.append(revision(role=role, issues=part.issues, **changes, **marks))
            if before.whole_issues and not after.unchanged:
                removed, added = differences(before.document or "", after.document or "") if before.index else ((), ())
                marks = {"before": before.whole_mark, "after": after.whole_mark}
                revisions.append(
                    revision(role=WHOLE, issues=before.whole_issues, removed=removed, added=added, **marks)
                )
        return tuple(revisions)

    def metrics(
        self, passes: Sequence[PassReport], aggregated: Mapping[str, Aggregate]
    ) -> dict[str, float | int | None]:
        chosen, handed = self.chosen, self.handed
        parts = [_without_headings(text.text) for text in chosen.part_texts.values()] if chosen else []
        document = _without_headings(self.document)
        integrated = document if self.whole else ""
        outputs = [output for state in self.run.passes for output in state.authors.values()]
        revised = [(o.draft, o.text) for o in outputs if o.draft and o.text and o.text is not o.draft]
        revised_texts = [text for draft, text in revised if text.text.split() != draft.text.split()]
        gains = [a.weighted_confidence - a.best_individual for a in aggregated.values() if a.best_individual]
        metrics: dict[str, float | int | None] = {
            "novelty": novelty(integrated, map(_without_headings, self._written_before(chosen)))
            if integrated and chosen
            else None,
            "beyond_parts": novelty(integrated, parts) if integrated else None,
            "parts_kept": survival([s for part in parts for s in sentences(part)], document) if document else None,
            "revision_rate": len(revised_texts) / len(revised) if revised else None,
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

    def _written_before(self, state: PassState) -> list[str]:
        """Return all texts that existed when the whole of a pass was put together."""
        run, passes = self.run, self.run.passes
        outputs = [output for earlier in passes[: state.index + 1] for output in earlier.outputs]
        texts = [reply.text for output in outputs for reply in (output.draft, output.text) if reply is not None]
        wholes = [earlier.whole.value.document for earlier in passes[: state.index] if earlier.whole is not None]
        documents = [document.text for document in self.session.sources]
        return [*documents, run.draft.text, run.intent.text if run.intent is not None else "", *texts, *wholes]

    def warnings(self, metrics: Mapping[str, float | int | None], missing: Sequence[str]) -> Iterator[str]:
        """Yield everything that makes the answer or its figures doubtful."""
        best, run = self.best, self.run
        if best is not None and (later := [state for state in self.begun[best.index :] if not state.unchanged]):
            judged = any(state.check is not None and state.check.score is not None for state in later)
            reason = "no later one was judged better" if judged else "no later one was judged"
            yield f"the answer is pass {best.index} of {later[-1].index}: {reason}"
        if best is not None and best.whole is None:
            yield "the coordinator did not integrate the parts; the text is the parts in order"
        for state in run.passes:
            yield from _critic_warnings(pass_name(state.index), state.assessment)
        if best is not None and self.missing:
            yield f"parts missing from the text, with no usable reply of an author: {', '.join(self.missing)}"
        if missing:
            parts = "1 protected part was" if len(missing) == 1 else f"{len(missing)} protected parts were"
            yield f"{parts} lost from the text and put back where it fits best"
        whole = best.whole.value.text if best is not None and best.whole is not None else ""
        for sentence, n in Counter(sentences(whole)).most_common(1):
            if n >= LOOP_REPETITIONS:
                yield f"the text repeats one sentence {n} times: {sentence[:80]}"
        target = self.settings.target_words
        if best is not None and target and not self.is_draft:
            words = len((best.document or "").split())
            if words < MIN_LENGTH_SHARE * target:
                reference = "the target of" if self.settings.length else "the draft, which has"
                yield f"the text has {words} words, {words / target:.0%} of {reference} {target}"
        if whole and (kept := metrics["parts_kept"]) is not None and kept < MIN_KEPT_SHARE:
            yield f"the coordinator kept only {kept:.0%} of the parts' sentences"
        if (new := metrics["beyond_parts"]) is not None and new > MIN_KEPT_SHARE:
            yield f"{new:.0%} of the whole's sentences are in none of its parts"
        shown, cuttable = metrics["share_kept"], _cuttable(handed for state in run.passes for handed in state.handed)
        if self.settings.filter == "always" and shown is not None and 1 - shown < MIN_FILTERED_SHARE and cuttable:
            yield f"filtering by distance has little effect: it left out {1 - shown:.1%} of the text handed down"
        if self.is_draft:
            yield "the answer is the draft: no pass had a better mark for the whole text"


def _critic_warnings(name: str, assessment: Assessment) -> Iterator[str]:
    """Yield what is wrong with a judgement."""
    if assessment.failure is not None:
        yield f"no judgement of {name}: the critic gave no usable reply ({assessment.failure.kind.value})"
    for part, scores in assessment.scores.items():
        other_marks = mark_from(scores.coherence) + mark_from(scores.accuracy) + mark_from(scores.depth)
        if abs(3 * mark_from(scores.overall) - other_marks) >= 3 * CONTRADICTION:
            yield f"in {name} the critic's overall score of {part} contradicts its other scores"
    if assessment.echoes:
        yield f"issues with {name} that only repeat the criticised text: {assessment.echoes}"
    if assessment.surplus:
        yield f"issues beyond the maximum per part, left out of {name}: {assessment.surplus}"


def _part_report(assessment: Assessment, name: str, output: RoleOutput, before: Reply[Any] | None) -> PartReport:
    assert output.text is not None
    return PartReport(
        text=output.text.text,
        confidence=assessment.confidences.get(name),
        declared=output.declared,
        scores=assessment.scores.get(name),
        issues=assessment.issues.get(name, ()),
        written=output.written,
        change=change(before.text, output.text.text) if before is not None else None,
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
    distances = [
        abs(later.scores.overall - earlier.scores.overall)
        for after in passes
        for role, later in after.sections.items()
        if (before := by_index.get(after.base))
        and (earlier := before.sections.get(role))
        and earlier.text == later.text
        and earlier.scores
        and later.scores
    ]
    return statistics.fmean(distances) if distances else None


def change(before: str, after: str) -> float:
    """Return the share of sentences that differ, from 0 to 1 (1 − difflib's ratio, symmetric up to order)."""
    return 1.0 - SequenceMatcher(None, sentences(before), sentences(after), autojunk=False).ratio()


def differences(before: str, after: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the removed and the added sentences, in order."""
    old, new = sentences(before), sentences(after)
    removed: list[str] = []
    added: list[str] = []
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += old[i:j]
            added += new[k:m]
    return tuple(removed), tuple(added)


def unified(before: str, after: str) -> str:
    """Return a unified diff with a sentence per line, without file names; empty if nothing changed."""
    old, new = ([" ".join(sentence.split()) for sentence in sentences(text)] for text in (before, after))
    return "\n".join(list(unified_diff(old, new, n=1, lineterm=""))[2:])
