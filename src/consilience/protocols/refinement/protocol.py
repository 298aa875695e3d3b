"""The algorithm of `refinement`, top to bottom as the seed describes it:

intent → [draft → specialist → revise] → integrate → critique → revision request … until good enough; the best pass is the answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from consilience.domain.hierarchies import distance, from_cosine
from consilience.domain.messages import Message
from consilience.domain.outcome import StopReason
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.refinement.course import Course, Turn
from consilience.protocols.refinement.judging import check_of, critique_id, critique_text, judge
from consilience.protocols.refinement.outcome import conclude
from consilience.protocols.refinement.passes import Pass, Piece, Yield
from consilience.protocols.refinement.protected import taken_apart
from consilience.protocols.refinement.replies import Whole
from consilience.protocols.refinement.report import RefinementReport
from consilience.protocols.refinement.settings import Settings

MARGIN = 100
"""Words that a whole may have beyond its parts, however short these are."""


class Refinement(Settings):
    """A coordinator, authors of parts, specialists who help them, and a critic; passes until the text is good enough."""

    version: ClassVar[int] = (
        2  # 1 took a heading of words that others wrote for new, and "nothing is missing" for an issue
    )
    report: ClassVar[type[RefinementReport]] = RefinementReport

    async def run(self, session: Session) -> RefinementReport:
        course = Course(taken_apart(self.draft, self.protect))
        course.distances = await self._distances(session)
        passes = self.max_passes if session.limits.steps is None else min(self.max_passes, session.limits.steps)
        if passes == 0:
            return await conclude(session, self, course, StopReason.EXHAUSTED_STEPS)
        draft = self._publish_draft(session, course)
        course.intent = await self._intent(session, course)
        stop = StopReason.EXHAUSTED_STEPS
        for index in range(1, passes + 1):
            ended = await self._pass(session, course, index, draft)
            if ended is not None:
                stop = ended
                break
            if index < passes:
                self._request_revision(session, course.turns[-1])
        return await conclude(session, self, course, stop)

    async def _intent(self, session: Session, course: Course) -> Reply[str] | None:
        """What the whole text is for, once."""
        lead = self.hierarchy.coordinator
        words = session.words(
            "intent",
            duty=self.hierarchy.by_name[lead].description,
            tone=self.tone,
            draft=bool(course.draft.text),
        )
        shared = (session.quote(session.message("draft"), "draft"),) if course.draft.text else ()
        async with session.phase("intent", 0):
            reply = await session.ask(
                lead,
                Prompt(words, shared=shared),
                key=f"intent/{lead}",
                kind="intent",
                audience=self.hierarchy.children(lead),
                max_tokens=self.reply_tokens,
            )
        if isinstance(reply, Failure):
            course.failures.append(reply)
            return None
        return reply

    async def _pass(self, session: Session, course: Course, index: int, draft: Message | None) -> StopReason | None:
        """One pass from drafts to critique; the reason where the run ends with it."""
        before = course.turns[-1] if course.turns else Turn(0, Yield())
        made = await Pass(
            session=session,
            settings=self,
            index=index,
            before=before.made,
            critiques=before.requests,
            distances=course.edges if self.filter else {},
            intent=course.intent,
            whole=course.whole,
            draft=draft,
            markers=bool(course.draft.blocks),
        ).run()
        turn = Turn(index, made)
        course.turns.append(turn)
        course.failures.extend(made.failures)
        parts = made.parts(self.hierarchy)
        if index == 1 and not self._quorum(session, made):
            return StopReason.FAILED
        if course.exhausted and index > 1:
            return course.exhausted  # what stands was judged; what is half done was not
        judging = None
        if not course.exhausted:
            async with session.phase("critique", index):
                work = judge(session, self, index, parts)
                judging = session.start(session.procedure(work, calls=1 if self.critic == "model" else 0))
        async with session.phase("integrate", index):
            whole = await self._integration(session, index, course, made, parts)
        turn.whole = whole if isinstance(whole, Reply) else None
        turn.judged = await judging if judging is not None else None
        course.failures += [one for one in (whole, turn.judged and turn.judged.failure) if isinstance(one, Failure)]
        if turn.judged is not None and turn.judged.failure is None:
            turn.check = check_of(self, turn.judged, self.hierarchy.sections)
            session.record_check(turn.check, index)
        if course.exhausted or turn.judged is None:
            return course.exhausted
        if turn.check is None:
            return StopReason.INCONCLUSIVE
        if turn.check.met:
            return StopReason.CONVERGED
        missing = len(parts) < len(self.hierarchy.sections)
        return None if turn.judged.criticised or missing else StopReason.STALLED

    def _quorum(self, session: Session, made: Yield) -> bool:
        """Whether enough authors wrote something in the first pass."""
        pieces = [made.authors.get(s) or made.served[self.hierarchy.coordinator, s] for s in self.first_seats]
        return session.quorum([(piece.text, piece.failures) for piece in pieces])

    def _integration(
        self, session: Session, index: int, course: Course, made: Yield, parts: Mapping[str, Piece]
    ) -> Ask[Whole]:
        """The parts as one text, which may be the answer and may draw on the reserve."""
        lead = self.hierarchy.coordinator
        below = made.below(lead, self.hierarchy)
        words = session.words(
            "integrate",
            duty=self.hierarchy.by_name[lead].description,
            parts=tuple(parts),
            helpers=tuple(name for name in below if name not in parts),
            length=self.length,
            tone=self.tone,
            markers=bool(course.draft.blocks),
            documents=bool(session.sources),
        )
        order = [*(name for name in below if name not in parts), *parts]
        quotes = [session.quote(text, name) for name in order if (text := below[name].text) is not None]
        return session.ask(
            lead,
            Prompt(words, tuple(quotes)),
            key=f"pass-{index}/integrate/{lead}",
            returns=Whole,
            kind="whole",
            audience=self.hierarchy.children(lead),
            accept=partial(_whole, [piece.text.text for piece in parts.values() if piece.text is not None]),
            closing=True,
            max_tokens=self.longest_reply,
        )

    def _request_revision(self, session: Session, turn: Turn) -> None:
        """Every part with issues has its critique handed to those who write and serve it, and to nobody else."""
        assert turn.judged is not None
        requests: dict[str, Message] = {}
        for part in turn.judged.criticised:
            concerned = self._concerned(part)
            text = turn.made.parts(self.hierarchy)[part].text
            critique = Message(
                id=critique_id(self, turn.index, part),
                sender=self.judge,
                kind="critique",
                text=critique_text(turn.judged.issues[part], turn.judged.scores.get(part)),
                audience=concerned,
                reply_to=text.key if text is not None else None,
                phase=("critique", turn.index),
            )
            session.publish(critique)
            requests[part] = critique
        turn.requests = requests

    def _concerned(self, part: str) -> tuple[str, ...]:
        """Who writes a part, and the specialists of those who do."""
        writers = [name for name in (*self.hierarchy.inner, part) if part in self.hierarchy.writes_for(name)]
        return tuple(dict.fromkeys((*writers, *(child for name in writers for child in self.hierarchy.children(name)))))

    def _publish_draft(self, session: Session, course: Course) -> Message | None:
        if not course.draft.text:
            return None
        everybody = tuple(agent.id for agent in session.agents)
        draft = Message(id="draft", sender="draft", kind="draft", text=course.draft.text, audience=everybody)
        session.publish(draft)
        return draft

    async def _distances(self, session: Session) -> dict[str, dict[str, float]]:
        """Between all roles, from their vectors or, where something is filtered by them, from the embeddings of what they do."""
        roles = self.hierarchy.roles
        if self.hierarchy.has_vectors:
            return {a.name: {b.name: distance(a.vector, b.vector) for b in roles} for a in roles}
        if not self.filter:
            return {}  # nothing is embedded for the report alone
        cosines = await session.cosines([role.description for role in roles])
        if cosines is None:
            return {}
        return {a.name: {b.name: from_cosine(cosines[i][j]) for j, b in enumerate(roles)} for i, a in enumerate(roles)}


def _whole(parts: Sequence[str], reply: Whole) -> None:
    """Reject a whole that is shorter than half an average part, or half as long again as all of them and more: nobody put
    anything together. Raises `ValueError`."""
    words, of = len(reply.text.split()), sum(len(part.split()) for part in parts)
    if 2 * words * len(parts) < of:
        raise ValueError(f"text: it has {words} words, the parts have {of}; write out the whole text")
    if parts and words > 1.5 * of + MARGIN:
        raise ValueError(
            f"text: it has {words} words, the parts have {of}; add nothing of your own, and stop at the end"
        )
