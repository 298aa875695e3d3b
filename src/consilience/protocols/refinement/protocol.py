"""The algorithm of `refinement`, top to bottom as the seed describes it:

intent → [draft → specialist → revise] → integrate → critique → revision request … until good enough; the best pass is the answer
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
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.refinement.course import Course, Turn
from consilience.protocols.refinement.judging import (
    NO_ISSUES,
    Earlier,
    Judged,
    check_of,
    critique_id,
    critique_text,
    judge,
    judge_draft,
    judged_pass,
)
from consilience.protocols.refinement.outcome import conclude
from consilience.protocols.refinement.passes import OF_DRAFT, OF_WHOLE, Pass, PassResult, Piece, Requests, words_in
from consilience.protocols.refinement.protected import extract_protected
from consilience.protocols.refinement.replies import WHOLE, IntegratedReply, TitledReply
from consilience.protocols.refinement.report import JudgedPass, RefinementReport
from consilience.protocols.refinement.settings import Settings

MAX_EXTRA_WORDS = 100
"""Words that a whole may have beyond its parts, however short these are."""


class Refinement(Settings):
    """A coordinator, authors of parts, specialists who help them, and a critic; passes until the text is good enough."""

    # 1 took a heading of words that others wrote for new, and "nothing is missing" for an issue; 2 converged over a useless part,
    # failed calls and a cut answer, and compared passes by rounded floats; 3 judged the parts and not the whole, did not judge the
    # draft, and started from the last pass instead of the best
    version: ClassVar[int] = 4
    report: ClassVar[type[RefinementReport]] = RefinementReport
    notes: ClassVar[Mapping[str, type[BaseModel]]] = {"pass": JudgedPass}
    closing: ClassVar[bool] = True

    async def run(self, session: Session) -> RefinementReport:
        course = Course(extract_protected(self.draft, self.protect))
        course.distances = await self._distances(session)
        passes = self.max_passes if session.limits.steps is None else min(self.max_passes, session.limits.steps)
        if passes == 0:
            return await conclude(session, self, course, StopReason.EXHAUSTED_STEPS)
        course.given = self._publish_draft(session, course)
        await self._judge_draft(session, course)
        course.intent = await self._intent(session, course)
        stop = StopReason.EXHAUSTED_STEPS
        for index in range(1, passes + 1):
            ended = await self._pass(session, course, index)
            if ended is not None:
                stop = ended
                break
        return await conclude(session, self, course, stop)

    async def _judge_draft(self, session: Session, course: Course) -> None:
        """The draft is pass 0, judged as a whole."""
        if course.given is None or self.critic != "model":
            return
        async with session.phase("critique", 0):
            course.drafted = await judge_draft(session, self, course.given)
        if course.drafted.failure is not None:
            course.failures.append(course.drafted.failure)
            return
        session.note("pass", judged_pass(0, course.drafted))

    async def _intent(self, session: Session, course: Course) -> Reply[str] | None:
        """What the whole text is for, once, in view of what is wrong with the draft."""
        requests = self._requests(session, course, None)
        tree = self.hierarchy
        words = session.words(
            "intent",
            duty=tree.by_name[tree.coordinator].description,
            parts=tuple((part, tree.by_name[part].description) for part in tree.sections),
            tone=self.tone,
            draft=course.given is not None,
            length=self.target("the task"),
            of_draft=tuple(requests.whole),
        )
        critiques = tuple(session.quote(message, label) for label, message in requests.whole.items())
        shared = (session.quote(course.given, "draft"),) if course.given is not None else ()
        async with session.phase("intent", 0):
            reply = await session.ask(
                tree.coordinator,
                Prompt(words, critiques, shared),
                key=f"intent/{tree.coordinator}",
                kind="intent",
                audience=tuple(agent.id for agent in session.agents),
            )
        if isinstance(reply, Failure):
            course.failures.append(reply)
            return None
        return reply

    async def _pass(self, session: Session, course: Course, index: int) -> StopReason | None:
        """One pass from drafts to critique; the reason if the run ends with it."""
        base = course.base
        requests = self._requests(session, course, base)
        turn = Turn(index, PassResult(), base=base.index if base is not None else 0)
        turn.made = await Pass(
            session=session,
            settings=self,
            index=index,
            before=base.made if base is not None else self._before(course),
            requests=requests,
            distances=course.edges,
            intent=course.intent,
            whole=base.whole if base is not None else None,
            draft=course.given,
            markers=bool(course.draft.blocks),
        ).run()
        course.turns.append(turn)
        course.failures.extend(turn.made.failures)
        parts = turn.made.parts(self.hierarchy)
        if index == 1 and not self._quorum(session, turn.made):
            return StopReason.FAILED
        if course.exhausted and index > 1:
            return course.exhausted  # what stands was judged; what is half done was not
        only_whole = not requests.parts and bool(requests.whole)
        turn.unchanged = base is not None and not any(piece.written for piece in parts.values()) and not only_whole
        if turn.unchanged:
            return None if turn.made.failures else StopReason.STALLED
        async with session.phase("integrate", index):
            whole = await self._integration(session, index, course, turn.made, base, requests)
        if isinstance(whole, Failure):
            course.failures.append(whole)
        else:
            turn.whole = whole
        if only_whole and base is not None and base.whole is not None and turn.whole is not None:
            turn.unchanged = turn.whole.value.document.split() == base.whole.value.document.split()
        if turn.unchanged:
            return StopReason.STALLED
        return await self._judgement(session, course, turn, parts)

    async def _judgement(
        self, session: Session, course: Course, turn: Turn, parts: Mapping[str, Piece]
    ) -> StopReason | None:
        """The critic reads the whole; the reason if the run ends with what it says."""
        if not course.exhausted:
            async with session.phase("critique", turn.index):
                context, earlier = self._context(session, course), self._earlier(session, course, turn)
                turn.judged = await judge(session, self, turn.index, parts, turn.whole, context, earlier)
            course.failures += [turn.judged.failure] if turn.judged.failure is not None else []
        if turn.judged is not None and turn.judged.failure is None:
            turn.silences = tuple(course.silences())
            judgement = check_of(self, turn.judged)
            turn.reached, turn.check = judgement.met, judgement.vetoed(*turn.silences)
            session.record_check(turn.check, turn.index)
            session.note("pass", judged_pass(turn.index, turn.judged, met=turn.reached))
        if course.exhausted or turn.judged is None:
            return course.exhausted
        if turn.check is None:
            return StopReason.INCONCLUSIVE
        if turn.check.met:
            return StopReason.CONVERGED
        if any(turn.judged.issues.values()) or len(parts) < len(self.hierarchy.sections):
            return None
        return StopReason.INCONCLUSIVE if turn.reached else StopReason.STALLED

    def _earlier(self, session: Session, course: Course, turn: Turn) -> Earlier:
        """What was handed back of the pass that this one started from, or of the draft.
        Not in brief, where a judgement is short."""
        base = course.turns[turn.base - 1] if turn.base else None
        judged, critiques = (base.judged, base.critiques) if base is not None else (course.drafted, {})
        if base is None and course.critique is not None and turn.index == 1:
            critiques = {WHOLE: course.critique}
        if session.detail == "brief" or judged is None:
            return NO_ISSUES
        whole = OF_WHOLE if base is not None else OF_DRAFT
        return Earlier(
            {part: judged.issues[part] for part in critiques},
            {whole if part == WHOLE else f"critique of {part}": message for part, message in critiques.items()},
        )

    def _context(self, session: Session, course: Course) -> tuple[Quote, ...]:
        """What the critic holds a text against."""
        intent = (session.quote(course.intent, "intent"),) if course.intent is not None else ()
        draft = (session.quote(course.given, "draft"),) if course.given is not None else ()
        return (*intent, *draft)

    def _before(self, course: Course) -> PassResult:
        """What an unjudged pass left, if no pass was judged."""
        return course.turns[-1].made if course.turns else PassResult()

    def _quorum(self, session: Session, made: PassResult) -> bool:
        """Whether enough authors wrote something in the first pass."""
        pieces = [made.authors.get(s) or made.served[self.hierarchy.coordinator, s] for s in self.first_speakers]
        return session.quorum([(piece.text, piece.failures) for piece in pieces])

    def _integration(
        self,
        session: Session,
        index: int,
        course: Course,
        made: PassResult,
        base: Turn | None,
        requests: Requests,
    ) -> Ask[IntegratedReply]:
        """The parts as one text, which may be the answer and may draw on the reserve."""
        lead = self.hierarchy.coordinator
        below = made.below(lead, self.hierarchy)
        parts = made.parts(self.hierarchy)
        helpers = tuple(name for name in below if name not in parts)
        last = base.whole if base is not None else None
        words = session.words(
            "integrate",
            duty=self.hierarchy.by_name[lead].description,
            parts=tuple(parts),
            helpers=helpers,
            intent=course.intent is not None,
            draft=course.given is not None,
            changed=tuple(name for name, piece in parts.items() if piece.written) if last is not None else (),
            again=last is not None,
            of_whole=tuple(requests.whole),
            length=self.target(),
            tone=self.tone,
            markers=bool(course.draft.blocks),
            documents=bool(session.sources),
            most=session.caps.claims,
            size=words_in(last) if last is not None else words_in(*(piece.text for piece in parts.values())),
        )
        intent = [session.quote(course.intent, "intent")] if course.intent is not None else []
        quotes = [session.quote(text, name) for name in (*helpers, *parts) if (text := below[name].text) is not None]
        quotes += [session.quote(last, "text")] if last is not None else []
        quotes += [session.quote(message, label) for label, message in requests.whole.items()]
        shared = (session.quote(course.given, "draft"),) if course.given is not None else ()
        return session.ask(
            lead,
            Prompt(words, (*intent, *quotes), shared),
            key=f"pass-{index}/integrate/{lead}",
            returns=TitledReply if session.detail == "brief" else IntegratedReply,
            kind="whole",
            audience=tuple(agent.id for agent in session.agents),
            accept=partial(
                _accept_whole,
                [piece.text.text for piece in parts.values() if piece.text is not None],
                len(self.draft.split()),
            ),
            closing=True,
            max_tokens=self.longest_reply,
        )

    def _requests(self, session: Session, course: Course, base: Turn | None) -> Requests:
        """What the next pass is to mend: the critique of the pass that it starts from and, if the last pass was worse, that one's
        issues with the same parts. In the first pass, what was said of the draft."""
        if base is None:
            if course.drafted is None or not course.drafted.issues.get(WHOLE) or course.given is None or course.turns:
                return Requests()
            if course.critique is None:
                course.critique = self._critique(session, course.drafted, 0, WHOLE, course.given.id)
            return Requests(whole={OF_DRAFT: course.critique})
        last = course.turns[-1]
        turns = {"": base, **({"later ": last} if last is not base and last.judged is not None else {})}
        assert base.judged is not None
        parts = {
            part: {
                f"{when}critique": one
                for when, turn in turns.items()
                if (one := self._handed_back(session, turn, part))
            }
            for part in base.judged.criticised
        }
        whole = {
            f"{when}{OF_WHOLE}": one for when, turn in turns.items() if (one := self._handed_back(session, turn, WHOLE))
        }
        return Requests(parts, whole)

    def _handed_back(self, session: Session, turn: Turn, part: str) -> Message | None:
        """The critique of a part in a pass, published once; None without issues."""
        if turn.judged is None or not turn.judged.issues.get(part):
            return None
        if part not in turn.critiques:
            text = turn.whole if part == WHOLE else turn.made.parts(self.hierarchy)[part].text
            turn.critiques[part] = self._critique(
                session, turn.judged, turn.index, part, text.key if text is not None else None
            )
        return turn.critiques[part]

    def _critique(self, session: Session, judged: Judged, index: int, part: str, of: str | None) -> Message:
        """A critique as a message to those who write a part, to their specialists and to the coordinator."""
        message = Message(
            id=critique_id(self, index, part),
            sender=self.judge,
            kind="critique",
            text=critique_text(judged.issues[part], judged.scores.get(part)),
            audience=self._concerned(part),
            reply_to=of,
            phase=("critique", index),
        )
        session.publish(message)
        return message

    def _concerned(self, part: str) -> tuple[str, ...]:
        """Who writes a part, and the specialists of those who do; everybody, of the whole."""
        tree = self.hierarchy
        if part == WHOLE:
            return tree.shape.agents
        writers = [name for name in (*tree.inner, part) if part in tree.writes_for(name)]
        return tuple(dict.fromkeys((*writers, *(child for name in writers for child in tree.children(name)))))

    def _publish_draft(self, session: Session, course: Course) -> Message | None:
        if not course.draft.text:
            return None
        everybody = tuple(agent.id for agent in session.agents)
        draft = Message(id="draft", sender="draft", kind="draft", text=course.draft.text, audience=everybody)
        session.publish(draft)
        return draft

    async def _distances(self, session: Session) -> dict[str, dict[str, float]]:
        """Between all roles, from their vectors or, if everything is filtered by them, from the embeddings of what they do."""
        roles = self.hierarchy.roles
        if self.hierarchy.has_vectors:
            return {a.name: {b.name: distance(a.vector, b.vector) for b in roles} for a in roles}
        if not self.needs_encoder:
            return {}  # nothing is embedded for the report alone
        cosines = await session.cosines([role.description for role in roles])
        if cosines is None:
            return {}
        return {a.name: {b.name: from_cosine(cosines[i][j]) for j, b in enumerate(roles)} for i, a in enumerate(roles)}


def _accept_whole(parts: Sequence[str], drafted: int, reply: IntegratedReply) -> None:
    """Reject a whole that is shorter than half an average part, or far longer than all of them and the draft together: nobody put
    anything together. Raises `ValueError`."""
    words, of = len(reply.text.split()), sum(len(part.split()) for part in parts)
    if 2 * words * len(parts) < of:
        raise ValueError(f"text: it has {words} words, the parts have {of}; write out the whole text")
    if parts and words > 1.5 * of + drafted + MAX_EXTRA_WORDS:
        raise ValueError(
            f"text: it has {words} words, the parts have {of}; add nothing of your own, and stop at the end"
        )
