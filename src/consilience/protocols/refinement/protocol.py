"""The protocol `refinement`: its steps, the calls of the coordinator, and the critiques that are handed back.

intent → [draft → specialist → revise → integrate → critique → revision request] … until good enough; the best pass is the answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from pydantic import BaseModel

from consilience.domain.hierarchies import distance, from_cosine
from consilience.domain.messages import Message
from consilience.domain.outcome import StopReason
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure
from consilience.protocols.refinement.outcome import conclude
from consilience.protocols.refinement.passes import (
    CRITIQUE_OF_DRAFT,
    CRITIQUE_OF_WHOLE,
    IntegratedReply,
    PassResult,
    PassWriter,
    RevisionRequests,
    TitledReply,
    words_in,
)
from consilience.protocols.refinement.report import RefinementReport
from consilience.protocols.refinement.report_data import WHOLE, JudgedPass
from consilience.protocols.refinement.scoring import (
    NO_ISSUES,
    Assessment,
    EarlierIssues,
    PassState,
    RefinementRun,
    check_of,
    critique_id,
    critique_text,
    judge,
    judge_draft,
    judged_pass,
)
from consilience.protocols.refinement.settings import RefinementSettings
from consilience.protocols.refinement.texts import extract_protected

MAX_EXTRA_WORDS = 100
"""Words that a whole may have in addition to 1.5 times those of its parts, for short parts."""


class Refinement(RefinementSettings):
    """A coordinator, authors of parts, specialists who help them, and a critic; passes until the text is good enough."""

    # 1 took a heading of words that others wrote for new, and "nothing is missing" for an issue; 2 converged with a useless part,
    # failed calls or a cut answer, and compared passes by rounded floats; 3 judged the parts and not the whole, did not judge the
    # draft, and started from the last pass instead of the best
    version: ClassVar[int] = 4
    report: ClassVar[type[RefinementReport]] = RefinementReport
    notes: ClassVar[Mapping[str, type[BaseModel]]] = {"pass": JudgedPass}
    closing: ClassVar[bool] = True

    async def run(self, session: Session) -> RefinementReport:
        run = RefinementRun(extract_protected(self.draft, self.protect), distances=await self._distances(session))
        passes = self.max_passes if session.limits.steps is None else min(self.max_passes, session.limits.steps)
        if passes > 0:
            await self._judge_draft(session, run)
            await self._set_intent(session, run)
        for index in range(1, passes + 1):
            state = await self._write_parts(session, run, index)  # draft → specialist → revise
            if self._is_to_integrate(session, run, state):
                await self._integrate(session, run, state)
                await self._criticise(session, run, state)
            if stop := self._stop_reason(session, run, state):
                return await conclude(session, self, run, stop)
        return await conclude(session, self, run, StopReason.EXHAUSTED_STEPS)

    async def _judge_draft(self, session: Session, run: RefinementRun) -> None:
        """Publish the draft, and judge it as pass 0, as a whole."""
        if not run.draft.text:
            return
        run.draft_message = Message(
            id="draft", sender="draft", kind="draft", text=run.draft.text, audience=_everyone(session)
        )
        session.publish(run.draft_message)
        if self.critic != "model":
            return
        async with session.phase("critique", 0):
            run.draft_assessment = await judge_draft(session, self, run.draft_message)
        if run.draft_assessment.failure is not None:
            run.failures.append(run.draft_assessment.failure)
        else:
            session.note("pass", judged_pass(0, run.draft_assessment))

    async def _set_intent(self, session: Session, run: RefinementRun) -> None:
        """Ask the coordinator once what the text is for, given the critique of the draft."""
        requests = self._draft_requests(session, run)
        tree = self.hierarchy
        words = session.render_template(
            "intent",
            duty=tree.by_name[tree.coordinator].description,
            parts=tuple((part, tree.by_name[part].description) for part in tree.sections),
            tone=self.tone,
            draft=run.draft_message is not None,
            length=self.target("the task"),
            of_draft=tuple(requests.whole),
        )
        critiques = tuple(session.quote(message, label) for label, message in requests.whole.items())
        async with session.phase("intent", 0):
            reply = await session.ask(
                tree.coordinator,
                Prompt(words, critiques, _draft_quote(session, run)),
                key=f"intent/{tree.coordinator}",
                kind="intent",
                audience=_everyone(session),
            )
        if isinstance(reply, Failure):
            run.failures.append(reply)
        else:
            run.intent = reply

    async def _write_parts(self, session: Session, run: RefinementRun, index: int) -> PassState:
        """Write the parts of a pass, from the best pass so far or, if none was judged, from what the last one left."""
        base = run.base
        state = PassState(
            index,
            base=base.index if base is not None else 0,
            requests=self._requests(session, run, base) if base is not None else self._draft_requests(session, run),
        )
        last = run.passes[-1].result if run.passes else PassResult()
        state.result = await PassWriter(
            session=session,
            settings=self,
            index=index,
            before=base.result if base is not None else last,
            requests=state.requests,
            distances=run.edges,
            intent=run.intent,
            whole=base.whole if base is not None else None,
            draft=run.draft_message,
            markers=bool(run.draft.blocks),
        ).write()
        run.passes.append(state)
        run.failures.extend(state.result.failures)
        rewritten = any(output.written for output in state.result.parts(self.hierarchy).values())
        state.unchanged = base is not None and not rewritten and not state.requests.concern_only_whole
        return state

    def _is_to_integrate(self, session: Session, run: RefinementRun, state: PassState) -> bool:
        """Return whether the parts are to become a whole. After a limit in a later pass the judged text stands, not half a pass."""
        if state.index == 1:
            return self._is_quorum(session, state)
        return not run.exhausted and not state.unchanged

    def _is_quorum(self, session: Session, state: PassState) -> bool:
        """Return whether enough authors wrote something."""
        outputs = [state.result.first(author, self.hierarchy) for author in self.first_speakers]
        return session.has_quorum([(output.text, output.failures) for output in outputs])

    async def _integrate(self, session: Session, run: RefinementRun, state: PassState) -> None:
        """Ask the coordinator for one text. It may be the answer, so the call may draw on the reserve."""
        lead, base = self.hierarchy.coordinator, run.passes[state.base - 1] if state.base else None
        below, parts = state.result.below(lead, self.hierarchy), state.result.parts(self.hierarchy)
        helpers = tuple(name for name in below if name not in parts)
        last = base.whole if base is not None else None
        whole_critiques = state.requests.whole
        words = session.render_template(
            "integrate",
            duty=self.hierarchy.by_name[lead].description,
            parts=tuple(parts),
            helpers=helpers,
            intent=run.intent is not None,
            draft=run.draft_message is not None,
            changed=tuple(name for name, part in parts.items() if part.written) if last is not None else (),
            again=last is not None,
            of_whole=tuple(whole_critiques),
            length=self.target(),
            tone=self.tone,
            markers=bool(run.draft.blocks),
            documents=bool(session.sources),
            most=session.caps.claims,
            size=words_in(last) if last is not None else words_in(*(part.text for part in parts.values())),
        )
        quotes = [session.quote(run.intent, "intent")] if run.intent is not None else []
        quotes += [session.quote(text, name) for name in (*helpers, *parts) if (text := below[name].text) is not None]
        quotes += [session.quote(last, "text")] if last is not None else []
        quotes += [session.quote(message, label) for label, message in whole_critiques.items()]
        texts = [part.text.text for part in parts.values() if part.text is not None]
        async with session.phase("integrate", state.index):
            reply = await session.ask(
                lead,
                Prompt(words, tuple(quotes), _draft_quote(session, run)),
                key=f"pass-{state.index}/integrate/{lead}",
                returns=TitledReply if session.detail == "brief" else IntegratedReply,
                kind="whole",
                audience=_everyone(session),
                accept=partial(_accept_whole, texts, len(self.draft.split())),
                closing=True,
                max_tokens=self.longest_reply,
            )
        if isinstance(reply, Failure):
            run.failures.append(reply)
            return
        state.whole = reply
        if state.requests.concern_only_whole and last is not None:
            state.unchanged = reply.value.document.split() == last.value.document.split()

    async def _criticise(self, session: Session, run: RefinementRun, state: PassState) -> None:
        """Have the pass judged, unless its text is unchanged or a limit was hit, and record whether it is good enough."""
        if state.unchanged or run.exhausted:
            return
        context = (session.quote(run.intent, "intent"),) if run.intent is not None else ()
        async with session.phase("critique", state.index):
            parts, earlier = state.result.parts(self.hierarchy), self._earlier_issues(session, run, state)
            context = (*context, *_draft_quote(session, run))
            state.assessment = await judge(session, self, state.index, parts, state.whole, context, earlier)
        if state.assessment.failure is not None:
            run.failures.append(state.assessment.failure)
            return
        state.silences = tuple(run.silences())
        check = check_of(self, state.assessment)
        state.reached, state.check = check.met, check.vetoed(*state.silences)
        session.record_check(state.check, state.index)
        session.note("pass", judged_pass(state.index, state.assessment, met=state.reached))

    def _stop_reason(self, session: Session, run: RefinementRun, state: PassState) -> StopReason | None:
        """Return why the run ends with a pass; None if another pass may follow."""
        if state.index == 1 and not self._is_quorum(session, state):
            return StopReason.FAILED
        if run.exhausted:
            return run.exhausted
        if state.unchanged:  # a failed call is no decision to keep the text
            return None if state.whole is None and state.result.failures else StopReason.STALLED
        if state.assessment is None or state.check is None:
            return StopReason.INCONCLUSIVE
        if state.check.met:
            return StopReason.CONVERGED
        missing = len(state.result.parts(self.hierarchy)) < len(self.hierarchy.sections)
        if missing or any(state.assessment.issues.values()):
            return None
        return StopReason.INCONCLUSIVE if state.reached else StopReason.STALLED

    # --- critiques, as messages

    def _draft_requests(self, session: Session, run: RefinementRun) -> RevisionRequests:
        """Return the critique of the draft, for the intent and the first pass."""
        assessment, draft = run.draft_assessment, run.draft_message
        if assessment is None or not assessment.issues.get(WHOLE) or draft is None or run.passes:
            return RevisionRequests()
        if run.draft_critique is None:
            run.draft_critique = self._publish_critique(session, assessment, 0, WHOLE, draft.id)
        return RevisionRequests(whole={CRITIQUE_OF_DRAFT: run.draft_critique})

    def _requests(self, session: Session, run: RefinementRun, base: PassState) -> RevisionRequests:
        """Return the critiques of the pass that the next one starts from and, if the last pass was worse, also that one's critiques
        of the same parts."""
        assert base.assessment is not None
        last = run.passes[-1]
        states = {"": base, **({"later ": last} if last is not base and last.assessment is not None else {})}

        def critiques(part: str, label: str) -> dict[str, Message]:
            handed = {f"{when}{label}": self._handed_back(session, state, part) for when, state in states.items()}
            return {label: message for label, message in handed.items() if message is not None}

        return RevisionRequests(
            {part: critiques(part, "critique") for part in base.assessment.criticised},
            critiques(WHOLE, CRITIQUE_OF_WHOLE),
        )

    def _handed_back(self, session: Session, state: PassState, part: str) -> Message | None:
        """Return the critique of a part in a pass, published once; None without issues."""
        if state.assessment is None or not state.assessment.issues.get(part):
            return None
        if part not in state.critiques:
            text = state.whole if part == WHOLE else state.result.parts(self.hierarchy)[part].text
            key = text.key if text is not None else None
            state.critiques[part] = self._publish_critique(session, state.assessment, state.index, part, key)
        return state.critiques[part]

    def _publish_critique(
        self, session: Session, assessment: Assessment, index: int, part: str, of: str | None
    ) -> Message:
        """Publish the critique of a part to its writers, their specialists and the coordinator; of the whole, to every role."""
        tree = self.hierarchy
        writers = [name for name in (*tree.inner, part) if part != WHOLE and part in tree.writes_for(name)]
        readers = dict.fromkeys((*writers, *(child for name in writers for child in tree.children(name))))
        message = Message(
            id=critique_id(self, index, part),
            sender=self.judge,
            kind="critique",
            text=critique_text(assessment.issues[part], assessment.scores.get(part)),
            audience=tree.shape.agents if part == WHOLE else tuple(readers),
            reply_to=of,
            phase=("critique", index),
        )
        session.publish(message)
        return message

    def _earlier_issues(self, session: Session, run: RefinementRun, state: PassState) -> EarlierIssues:
        """Return what was handed back of the pass that this one started from, or of the draft.

        Nothing in brief, where the critic is not asked about earlier issues.
        """
        assessment, whole = run.draft_assessment, CRITIQUE_OF_DRAFT
        critiques = {WHOLE: run.draft_critique} if run.draft_critique is not None and state.index == 1 else {}
        if state.base:
            base = run.passes[state.base - 1]
            assessment, whole, critiques = base.assessment, CRITIQUE_OF_WHOLE, base.critiques
        if session.detail == "brief" or assessment is None:
            return NO_ISSUES
        return EarlierIssues(
            {part: assessment.issues[part] for part in critiques},
            {whole if part == WHOLE else f"critique of {part}": message for part, message in critiques.items()},
        )

    async def _distances(self, session: Session) -> dict[str, dict[str, float]]:
        """Return the distances of all roles, from their vectors or, if the filter needs them, from embedded descriptions."""
        roles = self.hierarchy.roles
        if self.hierarchy.has_vectors:
            return {a.name: {b.name: distance(a.vector, b.vector) for b in roles} for a in roles}
        if not self.needs_encoder:
            return {}  # nothing is embedded for the report alone
        cosines = await session.cosines([role.description for role in roles])
        if cosines is None:
            return {}
        return {a.name: {b.name: from_cosine(cosines[i][j]) for j, b in enumerate(roles)} for i, a in enumerate(roles)}


def _everyone(session: Session) -> tuple[str, ...]:
    return tuple(agent.id for agent in session.agents)


def _draft_quote(session: Session, run: RefinementRun) -> tuple[Quote, ...]:
    return (session.quote(run.draft_message, "draft"),) if run.draft_message is not None else ()


def _accept_whole(parts: Sequence[str], drafted: int, reply: IntegratedReply) -> None:
    """Reject a whole that integrates nothing: shorter than half an average part, or far longer than the parts and the draft.

    Raises `ValueError`.
    """
    words, of = len(reply.text.split()), sum(len(part.split()) for part in parts)
    if 2 * words * len(parts) < of:
        raise ValueError(f"text: it has {words} words, the parts have {of}; write out the whole text")
    if parts and words > 1.5 * of + drafted + MAX_EXTRA_WORDS:
        raise ValueError(
            f"text: it has {words} words, the parts have {of}; add nothing of your own, and stop at the end"
        )
