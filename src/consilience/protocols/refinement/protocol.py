"""The protocol `refinement`: its steps, the calls of the coordinator and of the critic, and the critiques that are handed back.

intent → [draft → specialist → revise → integrate → critique → revision request] … until good enough; the best pass is the answer
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from consilience.domain.detail import capped
from consilience.domain.hierarchies import from_cosine
from consilience.domain.messages import Message, is_no_finding
from consilience.domain.outcome import Check, StopReason
from consilience.domain.positions import LEVELS, exact
from consilience.engine.analysis import SentenceIndex, sentences
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols._common.conclusion import quoted, step_limit
from consilience.protocols._common.presenting import format_score
from consilience.protocols._common.protected import extract_protected
from consilience.protocols.refinement.outcome import conclude, has_judgement, record_pass
from consilience.protocols.refinement.passes import PassResult, PassWriter, words_in
from consilience.protocols.refinement.report import RefinementReport
from consilience.protocols.refinement.report_data import HANDED_NOTE, PASS_NOTE, WHOLE, HandedDown, RecordedPass, Scores
from consilience.protocols.refinement.settings import (
    MAX_MARK,
    MAX_POINTS,
    Assessment,
    DraftReply,
    IntegratedReply,
    PassState,
    RefinementRun,
    RefinementSettings,
    RevisionRequests,
    TitledReply,
    mark_from,
)

MAX_EXTRA_WORDS = 100
"""Words that a whole may have in addition to 1.5 times those of its parts, for short parts."""

FULL_LENGTH_CHARS = 500
"""Length of a text with the best mark by length (seed 004, M7)."""

MIN_PART_CHARS, MIN_CONFIDENCE_MARK = 100, 700
"""Rules of the heuristic critic (seed 004, M6)."""


class Refinement(RefinementSettings):
    """A coordinator, authors of parts, specialists who help them, and a critic; passes until the text is good enough."""

    # 1 took a heading of words that others wrote for new, and "nothing is missing" for an issue; 2 converged with a useless part,
    # failed calls or a cut answer, and compared passes by rounded floats; 3 judged the parts and not the whole, did not judge the
    # draft, and started from the last pass instead of the best;
    # 4 took "none found" for an issue, counted no unknown labels, and hid critiques from sections that help others;
    # 5 recorded of a pass only how it was judged
    version: ClassVar[int] = 6
    report: ClassVar[type[RefinementReport]] = RefinementReport
    phase_names: ClassVar[tuple[str, ...]] = ("intent", "draft", "specialist", "integrate", "critique", "revise")
    notes: ClassVar[Mapping[str, type[BaseModel]]] = {PASS_NOTE: RecordedPass, HANDED_NOTE: HandedDown}
    closing: ClassVar[bool] = True

    async def run(self, session: Session) -> RefinementReport:
        draft, distances = extract_protected(self.draft, self.protect), await self._distances(session)
        run = RefinementRun(session, self, draft, distances, [PassState(0, self.hierarchy)])
        passes = step_limit(session, self.max_passes)
        if passes > 0:
            await self._judge_draft(run)
            await self._set_intent(run)
        for index in range(1, passes + 1):
            state = PassState(index, self.hierarchy, run.base, requests=self._requests(run))
            run.passes.append(state)
            work = self._run_pass(run, state)
            replies = (DraftReply, IntegratedReply, TitledReply)
            (await session.settled("pass", index, PassResult, work, replies=replies)).give(state)
            if index == 1 and not session.has_quorum(state.opening(self.first_speakers)):
                return await conclude(run, StopReason.FAILED)
            self._record_check(run, state)
            if state.is_begun:
                record_pass(run, state)
            if stop := self._stop_reason(run, state):
                return await conclude(run, stop)
        return await conclude(run, StopReason.EXHAUSTED_STEPS)

    async def _distances(self, session: Session) -> dict[str, dict[str, float]]:
        """Return the distances of all roles, from their vectors or, if the filter needs them, from embedded descriptions."""
        if self.hierarchy.has_vectors:
            return self.hierarchy.distances
        if not self.needs_encoder:
            return {}  # nothing is embedded for the report alone
        roles = self.hierarchy.roles
        cosines = await session.cosines([role.description for role in roles])
        if cosines is None:
            return {}
        return {a.name: {b.name: from_cosine(cosines[i][j]) for j, b in enumerate(roles)} for i, a in enumerate(roles)}

    async def _judge_draft(self, run: RefinementRun) -> None:
        """Publish the draft, and judge it as pass 0, as a whole."""
        if not run.draft.text:
            return
        run.origin.draft = Message(id="draft", sender="draft", kind="draft", text=run.draft.text, audience=run.everyone)
        run.session.publish(run.origin.draft)
        if self.critic == "model":
            await self._criticise(run, run.origin)
            if has_judgement(run.origin):
                record_pass(run, run.origin)

    async def _set_intent(self, run: RefinementRun) -> None:
        """Ask the coordinator once what the text is for, given the critique of the draft."""
        session, tree, draft = run.session, self.hierarchy, run.origin.draft
        critiques = self._requests(run).get(WHOLE, {})
        words = session.render_template(
            "intent",
            duty=tree.by_name[tree.coordinator].description,
            parts=tuple((part, tree.by_name[part].description) for part in tree.sections),
            tone=self.tone,
            draft=draft is not None,
            length=self.target("the task"),
            of_draft=tuple(critiques),
        )
        quotes = tuple(session.quote(message, label) for label, message in critiques.items())
        async with session.phase("intent", 0):
            reply = await session.ask(
                tree.coordinator,
                Prompt(words, quotes, quoted(session, draft, "draft")),
                key=f"intent/{tree.coordinator}",
                kind="intent",
                audience=run.everyone,
            )
        if isinstance(reply, Reply):
            run.intent = reply

    async def _run_pass(self, run: RefinementRun, state: PassState) -> PassResult:
        """draft → specialist → revise, from the best pass so far or, in the first one, from the draft; then integrate → critique.
        After a limit in a later pass the judged text stands, not half a pass."""
        await PassWriter(run, state).write()
        if state.index == 1:
            goes_on = run.session.has_quorum(state.opening(self.first_speakers))
        else:
            rewritten = any(output.written for output in state.parts.values())
            state.unchanged = not rewritten and not state.concerns_only_whole
            goes_on = not (run.session.limit_hit or state.unchanged)
        if goes_on:
            await self._integrate(run, state)
            await self._criticise(run, state)
        return PassResult.of(state)

    async def _integrate(self, run: RefinementRun, state: PassState) -> None:
        """Ask the coordinator for one text. It may be the answer, so the call may draw on the reserve."""
        session, lead, parts, draft = run.session, self.hierarchy.coordinator, state.parts, run.origin.draft
        last = state.base.whole if state.base is not None else None
        critiques, texts = state.requests.get(WHOLE, {}), list(state.part_texts.values())
        below = {name: output.text for name, output in state.below(lead).items()}
        helpers = tuple(name for name in below if name not in parts)
        words = session.render_template(
            "integrate",
            duty=self.hierarchy.by_name[lead].description,
            parts=tuple(parts),
            helpers=helpers,
            intent=run.intent is not None,
            draft=draft is not None,
            changed=tuple(name for name, part in parts.items() if part.written) if last is not None else (),
            again=last is not None,
            of_whole=tuple(critiques),
            length=self.target(),
            tone=self.tone,
            markers=bool(run.draft.blocks),
            documents=bool(session.sources),
            most=session.caps.claims,
            size=words_in(last) if last is not None else words_in(*texts),
        )
        shown = {"intent": run.intent, **{name: below[name] for name in (*helpers, *parts)}, "text": last, **critiques}
        quotes = [quote for label, text in shown.items() for quote in quoted(session, text, label)]
        async with session.phase("integrate", state.index):
            reply = await session.ask(
                lead,
                Prompt(words, tuple(quotes), quoted(session, draft, "draft")),
                key=f"pass-{state.index}/integrate/{lead}",
                returns=TitledReply if session.detail == "brief" else IntegratedReply,
                kind="whole",
                audience=run.everyone,
                accept=partial(_accept_whole, [text.text for text in texts], len(self.draft.split())),
                closing=True,
                max_tokens=self.longest_reply,
            )
        if isinstance(reply, Failure):
            return
        state.whole = reply
        if state.concerns_only_whole and last is not None:
            state.unchanged = reply.value.document.split() == last.value.document.split()

    async def _criticise(self, run: RefinementRun, state: PassState) -> None:
        """Have the pass judged, unless its text is unchanged or a limit was hit."""
        if state.unchanged or run.session.limit_hit:
            return
        async with run.session.phase("critique", state.index):
            state.assessment = await judge(run, state)

    def _record_check(self, run: RefinementRun, state: PassState) -> None:
        """Record whether a pass that was judged is good enough."""
        assessment = state.assessment
        if not state.is_judged or assessment.failure is not None:
            return
        quality = None if assessment.quality is None else float(assessment.quality)
        state.silences = tuple(_silences(run))
        check = self._check(assessment, quality)
        state.reached, state.check = check.met, check.vetoed(*state.silences)
        run.session.record_check(state.check, state.index)

    def _check(self, assessment: Assessment, score: float | None) -> Check:
        """Return whether a pass is good enough: the mean mark of the parts and the mark of the whole reach the threshold, no mark
        is missing, and no part is useless."""
        threshold, quality, whole = exact(self.threshold), assessment.quality, assessment.marks.get(WHOLE, MAX_MARK)
        is_met = quality is not None and whole is not None and min(quality, Fraction(whole, MAX_MARK)) >= threshold
        detail = ", ".join(f"{part} {format_score(value)}" for part, value in assessment.confidences.items())
        check = Check(met=is_met, kind=self.confidence, score=score, threshold=self.threshold, detail=detail)
        return check.vetoed(assessment.useless) if assessment.useless else check

    def _stop_reason(self, run: RefinementRun, state: PassState) -> StopReason | None:
        """Return why the run ends with a pass; None if another pass may follow."""
        if limit := run.session.limit_hit:
            return limit
        if state.unchanged:  # a failed call is no decision to keep the text
            return None if state.whole is None and state.failures else StopReason.STALLED
        if state.check is None:
            return StopReason.INCONCLUSIVE
        if state.check.met:
            return StopReason.CONVERGED
        missing = len(state.parts) < len(self.hierarchy.sections)
        if missing or any(state.assessment.issues.values()):
            return None
        return StopReason.INCONCLUSIVE if state.reached else StopReason.STALLED

    # --- critiques, as messages

    def _requests(self, run: RefinementRun) -> RevisionRequests:
        """Return the critiques of the pass that the next one starts from and, if the last pass was worse, also that one's critiques
        of the same parts."""
        base, last = run.base, run.passes[-1]
        states = {"": base} if last is base else {"": base, "later ": last}
        requests: dict[str, dict[str, Message]] = {}
        for part in (*(part for part, issues in base.assessment.issues.items() if issues and part != WHOLE), WHOLE):
            label = base.whole_label if part == WHOLE else "critique"
            handed = {f"{when}{label}": self._handed_back(run, state, part) for when, state in states.items()}
            if critiques := {label: message for label, message in handed.items() if message is not None}:
                requests[part] = critiques
        return requests

    def _handed_back(self, run: RefinementRun, state: PassState, part: str) -> Message | None:
        """Return the critique of a part in a pass; None without issues. It is published once: that of a part to its writers, their
        specialists and the coordinator, that of the whole to every role."""
        if not state.assessment.issues.get(part):
            return None
        if part not in state.critiques:
            tree, text = self.hierarchy, state.text_of(part)
            writers = [name for name in (*tree.inner, part) if part != WHOLE and part in tree.writes_for(name)]
            readers = dict.fromkeys((*writers, *(child for name in writers for child in tree.children(name))))
            state.critiques[part] = Message(
                id=self.critique_id(state.index, part),
                sender=self.judge,
                kind="critique",
                text=state.assessment.critique(part),
                audience=tree.shape.agents if part == WHOLE else tuple(readers),
                reply_to=run.session.quote(text, part).id if text is not None else None,
                phase=("critique", state.index),
            )
            run.session.publish(state.critiques[part])
        return state.critiques[part]


def _accept_whole(parts: Sequence[str], drafted: int, reply: IntegratedReply) -> None:
    """Reject a whole that integrates nothing: shorter than half an average part, or far longer than the parts and the draft.

    Raises `ValueError`.
    """
    words, words_of_parts = len(reply.text.split()), sum(len(part.split()) for part in parts)
    if 2 * words * len(parts) < words_of_parts:
        raise ValueError(f"text: it has {words} words, the parts have {words_of_parts}; write out the whole text")
    if parts and words > 1.5 * words_of_parts + drafted + MAX_EXTRA_WORDS:
        raise ValueError(
            f"text: it has {words} words, the parts have {words_of_parts}; add nothing of your own, and stop at the end"
        )


def _silences(run: RefinementRun) -> Iterator[str]:
    """Yield which replies are missing in the last pass: of a seat that spoke in this pass or the one before, of all specialists, of
    the coordinator."""
    before, state = run.passes[-2:]
    spoke = state.speakers | before.speakers
    failed = dict.fromkeys(failure.agent for failure in state.failures if failure.agent in spoke)
    if silent := [agent for agent in failed if agent not in state.speakers]:
        yield f"silent in pass {state.index}: {', '.join(silent)}"
    if partly := [agent for agent in failed if agent in state.speakers]:
        yield f"not every reply came in pass {state.index}: {', '.join(partly)}"
    outputs_asked = [output for output in state.served.values() if output.replied or output.failures]
    if outputs_asked and not any(output.replied for output in outputs_asked):
        yield f"no specialist replied in pass {state.index}"
    if run.intent is None and state.index == 1:
        yield "the coordinator gave no intent"
    if state.whole is None:
        yield "the coordinator put no whole together"


# --- the critic

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


async def judge(run: RefinementRun, state: PassState) -> Assessment:
    """Judge the parts and the whole of a pass, or the draft as a whole. One call, none with the heuristic critic."""
    settings, parts, cap = run.settings, state.part_texts, run.session.caps.issues
    # in brief the critic is not asked about earlier issues
    earlier = state.base if state.base is not None and state.base.critiques and run.session.detail != "brief" else None
    reply: Reply[Critique] | Failure | None = None
    if settings.critic == "model" and (parts or not state.index):
        reply = await _ask_critic(run, state, earlier)
    judgements = reply.value.judgements() if isinstance(reply, Reply) else {}
    scores = {part: _scores_of(judgement) for part, judgement in judgements.items()}
    sections = settings.hierarchy.sections if state.index else ()
    marks = {part: mark_of(settings.confidence, parts.get(part), scores.get(part)) for part in sections}
    if settings.critic == "heuristic":
        return Assessment(marks, issues={part: heuristic_issues(parts[part], marks[part]) for part in parts})
    if settings.confidence == "critic" or not state.index:
        marks[WHOLE] = mark_from(scores[WHOLE].overall) if WHOLE in scores else None
    if not isinstance(reply, Reply):
        return Assessment(marks, failure=reply)
    issues = {part: _stated_issues(judgement) for part, judgement in judgements.items()}
    standing = None
    if earlier is not None:
        earlier_issues = earlier.assessment.issues
        standing = {part: _standing(earlier_issues.get(part, ()), judgement) for part, judgement in judgements.items()}
        issues = {part: tuple(dict.fromkeys((*standing[part], *named))) for part, named in issues.items()}
    kept_issues = {part: named[:cap] for part, named in issues.items()}
    return Assessment(
        marks=marks,
        scores=scores,
        issues=kept_issues,
        standing=standing,
        surplus=sum(len(named[cap:]) for named in issues.values()),
        echoes=sum(_is_echo(issue, state.text_of(part)) for part, named in kept_issues.items() for issue in named),
        cut=reply.cut,
    )


def _ask_critic(run: RefinementRun, state: PassState, earlier: PassState | None) -> Ask[Critique]:
    """Ask about the whole, or the parts if there is none, beside what the text should be: the intent, the draft. `earlier`: the
    version before, if the critic is to say which of its issues still hold."""
    session, settings, parts = run.session, run.settings, state.part_texts
    shown = {"intent": run.intent, "draft": run.origin.draft, **({"text": state.whole} if state.whole else parts)}
    labels = tuple(label for label, text in shown.items() if text is not None)
    criticised = earlier.critiques if earlier is not None else {}
    of_whole = earlier.whole_label if earlier is not None else ""
    critiques = {of_whole if part == WHOLE else f"critique of {part}": text for part, text in criticised.items()}
    words = session.render_template(
        "critique",
        parts=tuple((part, settings.hierarchy.by_name[part].description) for part in parts),
        labels=labels,
        length=settings.target(),
        tone=settings.tone,
        size=words_in(state.whole),
        earlier=tuple(critiques),
        most=session.caps.issues,
        documents=bool(session.sources),
    )
    quotes = (quote for label, text in (*shown.items(), *critiques.items()) for quote in quoted(session, text, label))
    return session.ask(
        settings.judge,
        Prompt(words, tuple(quotes)),
        key=f"pass-{state.index}/critique/{settings.judge}",
        returns=critique_of((*parts, WHOLE), frozenset(criticised), brief=session.detail == "brief"),
        kind="judgement",
        closing=True,  # an answer exists then, and one that was judged is worth more than the reserve
        max_tokens=settings.critique_tokens,
    )


def _scores_of(judgement: Judgement | BriefJudgement) -> Scores:
    """Return the critic's points as shares of the best ones, to a hundredth of a point."""
    return Scores(**{n: mark_from(getattr(judgement, n) / MAX_POINTS) / MAX_MARK for n in Scores.model_fields})


def _stated_issues(judgement: Judgement | BriefJudgement) -> tuple[str, ...]:
    """Return the issues with content. Small models write "None" if nothing is wrong."""
    issues = (" ".join(issue.split()) for issue in judgement.issues)
    return tuple(issue for issue in issues if not is_no_finding(issue))


def _standing(before: Sequence[str], judgement: Judgement | BriefJudgement) -> tuple[str, ...]:
    """Return the issues with the version before that still hold."""
    numbers = judgement.standing if isinstance(judgement, LaterJudgement) else ()
    return tuple(issue for n, issue in enumerate(before, 1) if n in numbers)


def _is_echo(issue: str, text: Reply[object] | Message | None) -> bool:
    """Whether an issue is the text itself, which small critics return. It counts as an issue: wording decides nothing."""
    written_sentences = sentences(text.text) if text is not None else []
    return bool(written_sentences) and all(map(SentenceIndex(sentences(issue)).contains, written_sentences))


def mark_of(kind: str, text: Reply[DraftReply] | None, scores: Scores | None) -> int | None:
    """Return a part's mark of one kind: the critic's overall score, `min(len/500, 1)`, or the author's declared confidence."""
    match kind:
        case _ if text is None:
            return None
        case "critic":
            return mark_from(scores.overall) if scores is not None else None
        case "length":
            return min(len(text.text) * MAX_MARK // FULL_LENGTH_CHARS, MAX_MARK)
        case _:
            return mark_from(LEVELS[text.value.confidence])


def heuristic_issues(text: Reply[DraftReply], mark: int | None) -> tuple[str, ...]:
    """Return the issues by the seed's two rules."""
    low = mark is not None and mark < MIN_CONFIDENCE_MARK
    return (*["too short"] * (len(text.text) < MIN_PART_CHARS), *["low confidence"] * low)
