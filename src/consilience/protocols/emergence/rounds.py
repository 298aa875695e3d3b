"""One round: families respond, talk among themselves, and are observed, from the leaves up.

The natural form is recursive and has no barriers: a call starts as soon as what it reads exists. Branches read what they
were passed and what the round before left; they return what they made.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.domain.messages import LeafReply, Message, is_empty_remark
from consilience.domain.positions import BallotReply
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Pending, Reply
from consilience.protocols._common.answers import extract, form
from consilience.protocols._common.points import POINTS, points_in, with_list
from consilience.protocols._common.trees import ROOT
from consilience.protocols.emergence.objections import (
    ObjectionBook,
    ObjectionMet,
    ObjectionRaised,
    bare_label,
    in_words,
    repeated,
    restated,
    words_found,
)
from consilience.protocols.emergence.replies import (
    AnswerReply,
    ObjectionReply,
    ObservationReply,
    PeerReply,
    RevisitReply,
    RootReply,
    RootRevision,
)
from consilience.protocols.emergence.settings import PERSPECTIVES, Settings
from consilience.protocols.emergence.turns import FamilyResult, Nudge, TextReply, Turn, first_turn


@dataclass(frozen=True)
class RoundRun:
    """`previous` are the turns of the round before, `nudges` those sent since, both by agent.

    `labels` are the addresses of agents in prompts, `book` the objections of earlier rounds.
    """

    session: Session
    settings: Settings
    index: int
    previous: Mapping[str, Turn]
    nudges: Mapping[str, Nudge]
    labels: Mapping[str, str]
    book: ObjectionBook

    async def family(self, node: str) -> FamilyResult:
        """The children of `node` respond and talk among themselves; then the node observes them."""
        children = self.session.topology.children[node]
        async with self.session.phase("leaf_respond", self.index):
            results = await self._first(children)
        ballots = {key: ballot for result in results for key, ballot in result.ballots.items()}
        if self.index == 1:
            ballots |= await self._ballots(0, [result.top for result in results], blind=True)
        after = await self._laterals([result.top for result in results])
        ballots |= await self._ballots(self.index, after)
        below = [turn for top, result in zip(after, results, strict=True) for turn in (top, *result.below)]
        return FamilyResult(await self._observe(node, after, below), tuple(below), ballots)

    async def _first(self, children: tuple[str, ...]) -> list[FamilyResult]:
        session = self.session
        if session.topology.children[children[0]]:
            return await session.gather([session.procedure(self.family(c), calls=self.need(c)) for c in children])
        if self.index == 1:
            replies = await session.gather([self._respond(leaf) for leaf in children])
            return [FamilyResult(self._first_leaf_turn(c, reply)) for c, reply in zip(children, replies, strict=True)]
        return await session.gather([session.procedure(self._revisit(leaf), calls=1) for leaf in children])

    # leaves

    def _respond(self, leaf: str) -> Ask[LeafReply]:
        return self._ask_leaf(leaf, Prompt(self._words("leaf_respond", leaf)), LeafReply)

    def _ask_leaf(
        self, leaf: str, prompt: Prompt, returns: type[LeafReply], pending: Sequence[ObjectionRaised] = ()
    ) -> Ask[LeafReply]:
        def quoted(reply: LeafReply) -> str:
            text = with_list(reply.text, POINTS, self._points(reply))
            return _with_answers(text, reply.answers if isinstance(reply, RevisitReply) else (), pending)

        return self.session.ask(
            leaf,
            prompt,
            key=f"round-{self.index}/leaf_respond/{leaf}",
            returns=returns,
            audience=(*self.session.topology.siblings(leaf), *self.session.topology.parents[leaf]),
            quoted=quoted,
        )

    async def _revisit(self, leaf: str) -> FamilyResult:
        """Round 2 and later: own previous text, the parent's nudge and objections; without these the text may stand as it is."""
        nudge = await self.nudge(leaf)
        before = self.previous[leaf]
        pending = self.book.pending(leaf)
        if before.text is None:
            words = self._words("leaf_respond", leaf)
            reply = await self._ask_leaf(leaf, Prompt(words), LeafReply)
            return FamilyResult(self._first_leaf_turn(leaf, reply))
        if nudge is None and not pending and not self.settings.leaf_reask:
            return FamilyResult(Turn(leaf, text=before.text))
        quotes = [self.session.quote(before.text, "you"), *self._objections_to(before.text, pending)]
        if nudge is not None:
            quotes.append(self.session.quote(nudge, "parent"))
        words = self._words(
            "leaf_revisit", leaf, label=self.labels[leaf], nudged=nudge is not None, **_addressed(before.text, pending)
        )
        reply = await self._ask_leaf(leaf, Prompt(words, tuple(quotes)), RevisitReply, pending)
        turn = self._first_leaf_turn(leaf, reply, before.text, nudge)
        return FamilyResult(turn if isinstance(reply, Failure) else self._with_met(turn, reply, pending))

    def _first_leaf_turn(
        self,
        leaf: str,
        reply: Reply[LeafReply] | Failure,
        before: TextReply | None = None,
        nudge: Reply[str] | None = None,
    ) -> Turn:
        points = self._points(reply.value) if isinstance(reply, Reply) else ()
        return first_turn(leaf, reply, before, nudge, points)

    def _points(self, reply: LeafReply) -> tuple[str, ...]:
        return points_in(reply.points, self.session.caps.points)

    # lateral talk

    async def _laterals(self, tops: list[Turn]) -> list[Turn]:
        """Siblings read each other's texts and revise their own; all of them see the same quotations in the same order."""
        speaking = [turn for turn in tops if turn.text is not None]
        if len(speaking) < 2:
            return tops
        shared = tuple(self._texts(speaking))
        level = self.session.topology.levels[tops[0].agent]
        leaves = not self.session.topology.children[tops[0].agent]
        refuted = self.book.refuted_by(speaking)
        asks = [self._lateral(turn, shared, again=turn.agent in refuted) for turn in speaking]
        async with self.session.phase("lateral_leaves" if leaves else f"lateral_L{level}", self.index):
            replies = await self.session.gather(asks)
            spoken = dict(zip((turn.agent for turn in speaking), replies, strict=True))
            return [
                self._revised(turn, spoken[turn.agent], speaking) if turn.agent in spoken else turn for turn in tops
            ]

    def _unshown(self, turn: Turn) -> Sequence[ObjectionRaised]:
        """Objections to an agent that no answered call of this round was shown yet."""
        return self.book.pending(turn.agent) if turn.response is None else ()

    def _lateral(self, turn: Turn, shared: tuple[Quote, ...], *, again: bool) -> Ask[PeerReply]:
        assert turn.text is not None
        pending = self._unshown(turn)
        words = self._words(
            "lateral",
            turn.agent,
            label=self.labels[turn.agent],
            leaf=not self.session.topology.children[turn.agent],
            again=again or turn.agent in self.book.refuted,
            **_addressed(turn.text, pending),
        )
        answers = getattr(turn.response.value, "answers", ()) if turn.response else ()

        def quoted(reply: PeerReply) -> str:
            return _with_answers(reply.text, [*answers, *reply.answers], self.book.pending(turn.agent))

        return self.session.ask(
            turn.agent,
            Prompt(words, tuple(self._objections_to(turn.text, pending)), shared),
            key=f"round-{self.index}/lateral/{turn.agent}",
            returns=PeerReply,
            audience=(*self.session.topology.siblings(turn.agent), *self.session.topology.parents[turn.agent]),
            quoted=quoted,
        )

    def _revised(self, turn: Turn, reply: Reply[PeerReply] | Failure, family: list[Turn]) -> Turn:
        if isinstance(reply, Failure):
            return replace(turn, failures=(*turn.failures, reply))
        turn = self._with_met(turn, reply, self._unshown(turn))
        return self._with_objections(replace(turn, lateral=reply, before=turn.text, text=reply), reply, family)

    # observations

    async def _observe(self, node: str, children: list[Turn], below: list[Turn]) -> Turn:
        root = node == ROOT
        before = self.previous[node].text if node in self.previous else None
        nudge = await self.nudge(node)
        if not root and not any(turn.text is not None for turn in children):
            return Turn(node, text=before, nudge=nudge)
        if root and not (self._worth_observing(children, before) and self.quorum(below)):
            return Turn(node, text=before)
        name = "observe_root" if root else f"observe_L{self.session.topology.levels[node]}"
        async with self.session.phase(name, self.index):
            reply = await self._observation(node, children, before, nudge)
            turn = first_turn(node, reply, before, nudge)
            if isinstance(reply, Failure):
                return turn
            turn = self._with_met(turn, reply, [*self._raised(children), *self.book.pending(node)])
            return turn if root else self._with_objections(turn, reply, children)

    def _worth_observing(self, children: list[Turn], before: TextReply | None) -> bool:
        """The root is asked unless nothing new was said, or nobody it reads lives: limits alone leave it to answer by itself."""
        failures = [failure for turn in children for failure in turn.failures]
        limited = any(failure.kind.is_limit for failure in failures)
        if any(turn.text is not None for turn in children):
            return before is None or not limited or any(turn.replied for turn in children)
        return before is None and (limited or not failures)

    def quorum(self, turns: list[Turn]) -> bool:
        """Whether enough leaves answered in the first round."""
        leaves = self.session.topology.leaves
        return self.index > 1 or self.session.quorum([(t.text, t.failures) for t in turns if t.agent in leaves])

    def _observation(
        self, node: str, children: list[Turn], before: TextReply | None, nudge: Reply[str] | None
    ) -> Ask[Any]:
        """A parent reads its children's texts after lateral talk. The root's may be the answer and may draw on the reserve."""
        root, topology = node == ROOT, self.session.topology
        pending = self.book.pending(node)
        between = self._raised(children)
        quotes = [self.session.quote(self.session.message(one.id), one.label) for one in between]
        if before is not None:
            quotes += [self.session.quote(before, "you"), *self._objections_to(before, pending)]
        if nudge is not None:
            quotes.append(self.session.quote(nudge, "parent"))
        words = self._words(
            "observe_root" if root else "observe",
            node,
            label=self.labels.get(node),
            texts=self._labels_of(children),
            between=self._between(between),
            again=before is not None,
            nudged=nudge is not None,
            pattern=form(self.settings.answer_pattern),
            **({} if root else _addressed(before, pending)),
        )
        first, later = (RootReply, RootRevision) if root else (ObservationReply, PeerReply)

        def quoted(reply: Any) -> str:
            return _with_answers(str(reply.text), reply.answers, pending)

        return self.session.ask(
            node,
            Prompt(words, tuple(quotes), tuple(self._texts(children))),
            key=f"round-{self.index}/observe/{node}",
            returns=first if before is None else later,
            audience=() if root else (*topology.siblings(node), *topology.parents[node]),
            closing=root,
            quoted=quoted,
        )

    def review_prompt(self, result: TextReply, domain: str) -> Prompt:
        """The root looks at its own result once more, beside the last texts of its children and their objections (`previous`)."""
        children = [self.previous[child] for child in self.session.topology.children[ROOT]]
        between = self._raised(children)
        words = self._words(
            "finalize",
            result.agent,
            texts=self._labels_of(children),
            between=self._between(between),
            domain=domain,
            pattern=form(self.settings.answer_pattern),
        )
        objections = [self.session.quote(self.session.message(one.id), one.label) for one in between]
        return Prompt(words, (*objections, self.session.quote(result, "you")), tuple(self._texts(children)))

    def rulings(self, review: Reply[RootRevision]) -> tuple[ObjectionMet, ...]:
        children = [self.previous[child] for child in self.session.topology.children[ROOT]]
        return self._with_met(Turn(ROOT), review, self._raised(children)).met

    def nudge_ask(self, node: str, children: list[Turn], own: TextReply) -> Ask[str]:
        """The parent's suggestion to its children, for the next round."""
        words = self._words("signal", node, texts=self._labels_of(children))
        return self.session.ask(
            node,
            Prompt(words, (self.session.quote(own, "you"),), tuple(self._texts(children))),
            key=f"round-{self.index}/signal/{node}",
            kind="nudge",
            audience=self.session.topology.children[node],
        )

    async def nudge(self, agent: str) -> Reply[str] | None:
        """The nudge this agent's parent sent it since the last round, if one came."""
        for parent in self.session.topology.parents.get(agent, ()):
            if parent in self.nudges:
                reply = await self.nudges[parent]
                return reply if isinstance(reply, Reply) else None
        return None

    # ballots

    async def _ballots(
        self, step: int, turns: list[Turn], *, blind: bool = False
    ) -> dict[tuple[int, str], Pending[Reply[BallotReply] | Failure]]:
        """Leaves begin to cast their sealed ballots, `blind` ones before they saw anybody."""
        if not self.settings.ballots or self.session.topology.children[turns[0].agent]:
            return {}
        async with self.session.phase("ballot", step):
            return {
                (step, turn.agent): self.session.start(self._ballot(step, turn, turns, blind))
                for turn in turns
                if turn.text is not None
            }

    def _ballot(self, step: int, turn: Turn, turns: list[Turn], blind: bool) -> Ask[BallotReply]:
        """The texts a ballot may name as the cause are those its leaf has read this round."""
        quotes = [] if blind else [
            self.session.quote(peer.before or peer.text, self.labels[peer.agent])
            for peer in turns
            if peer is not turn and peer.text is not None
        ]  # fmt: skip
        assert turn.text is not None
        quotes.append(self.session.quote(turn.text, "you"))
        words = self._words("ballot", turn.agent, pattern=form(self.settings.answer_pattern), blind=len(quotes) == 1)
        return self.session.ask(
            turn.agent,
            Prompt(words, tuple(quotes)),
            key=f"round-{step}/ballot/{turn.agent}",
            returns=BallotReply,
            kind="ballot",
            accept=self._accept,
            max_tokens=min(self.session.reply_tokens, 300),
        )

    def _accept(self, ballot: BallotReply) -> None:
        """A position must hold an answer of the pattern asked for."""
        if extract(self.settings.answer_pattern, ballot.position) is None:
            raise ValueError(f"position: {ballot.position!r:.80} does not match {self.settings.answer_pattern!r}")

    # objections

    def _with_objections(self, turn: Turn, reply: Reply[Any], family: list[Turn]) -> Turn:
        """Publish the valid objections of a reply to texts of `family`, up to the cap, each as a message for its target and the
        reply's readers. Void ones are dropped first: to the author itself, to no text of the family, empty, or a copy of what
        the author's own text or one of the family says."""
        if not reply.value.objections:
            return turn
        targets = {self.labels[other.agent]: other.agent for other in family if other.agent != turn.agent}
        said = [reply.text, *(self.session.message(other.text.key).text for other in family if other.text is not None)]
        valid = [
            entry
            for entry in reply.value.objections
            if bare_label(entry.to) in targets
            and not is_empty_remark(entry.text)
            and not restated(entry.text, said)
            and not any(words_found(entry.text, text) for text in said)
        ]
        kept = valid[: self.session.caps.objections]
        raised = list(turn.objections)
        for n, entry in enumerate(kept, 1):
            raised.append(self._raise(reply, n, entry, targets[bare_label(entry.to)], raised))
        return replace(
            turn,
            objections=tuple(raised),
            void=turn.void + len(reply.value.objections) - len(valid),
            surplus=turn.surplus + len(valid) - len(kept),
        )

    def _raise(
        self, reply: Reply[Any], n: int, entry: ObjectionReply, to: str, this_round: Sequence[ObjectionRaised]
    ) -> ObjectionRaised:
        session, source, text = self.session, self.session.message(reply.key), entry.text.strip()
        against = reply.labels[bare_label(entry.to)]
        own = (*self.book.by(reply.agent), *this_round)
        raised = ObjectionRaised(
            id=f"{reply.key}/objection-{n}",
            label=f"{self.labels[reply.agent]}.{len(own) + 1}",
            agent=reply.agent,
            to=to,
            against=against,
            text=text,
            words=words_found(entry.words, session.message(against).text),
            repeats=repeated(text, to, own),
        )
        session.publish(
            Message(
                id=raised.id,
                sender=reply.agent,
                kind="objection",
                text=in_words(raised.words, text),
                audience=tuple(dict.fromkeys((*source.audience, to))),
                reply_to=against,
                phase=source.phase,
            )
        )
        session.note("objection_raised", raised)
        return raised

    def _with_met(self, turn: Turn, reply: Reply[Any], shown: Sequence[ObjectionRaised]) -> Turn:
        """Record what a reply declares about the objections it was shown. One to the agent itself that it passes over counts as
        met without a fate; one that it may only rule on does not."""
        answers: dict[str, AnswerReply] = {}
        for answer in getattr(reply.value, "answers", ()):
            answers |= dict.fromkeys(self.session.named(reply, [answer.objection]), answer)
        met: list[ObjectionMet] = []
        for one in shown:
            answer = answers.get(one.id)
            if answer is not None:
                met.append(
                    ObjectionMet(
                        objection=one.id, agent=turn.agent, fate=answer.fate, how=answer.how.strip().removesuffix(".")
                    )
                )
            elif one.to == turn.agent:
                met.append(ObjectionMet(objection=one.id, agent=turn.agent, fate=None))
        for declared in met:
            self.session.note("objection_met", declared)
        return replace(turn, met=(*turn.met, *met)) if met else turn

    def _objections_to(self, text: TextReply, pending: Sequence[ObjectionRaised]) -> list[Quote]:
        """Objections to an agent's texts, and such a text if it has been replaced and the objection does not quote it."""
        return [
            *(self.session.quote(self.session.message(id), "you before") for id in _replaced(text, pending)),
            *(self.session.quote(self.session.message(one.id), one.label) for one in pending),
        ]

    def _between(self, raised: Sequence[ObjectionRaised]) -> tuple[tuple[str, str], ...]:
        """Labels of objections with those of their targets."""
        return tuple((one.label, self.labels[one.to]) for one in raised)

    @staticmethod
    def _raised(turns: list[Turn]) -> list[ObjectionRaised]:
        return [one for turn in turns for one in turn.objections]

    # common

    def need(self, node: str) -> int:
        """The most calls of a round below `node`, its own observation included."""
        children = self.session.topology.children[node]
        if not children:
            return 1
        leaves = not self.session.topology.children[children[0]]
        ballots = len(children) * (2 if self.index == 1 else 1) if leaves and self.settings.ballots else 0
        return sum(self.need(c) for c in children) + (len(children) if len(children) > 1 else 0) + ballots + 1

    def _texts(self, turns: list[Turn]) -> list[Quote]:
        return [self.session.quote(turn.text, self.labels[turn.agent]) for turn in turns if turn.text is not None]

    def _labels_of(self, turns: list[Turn]) -> tuple[str, ...]:
        return tuple(self.labels[turn.agent] for turn in turns if turn.text is not None)

    def _words(self, template: str, agent: str, **values: Hashable) -> str:
        seat = self.session.agent(agent)
        meaning = PERSPECTIVES.get(seat.perspective)
        perspective = meaning or seat.perspective
        if meaning and self.session.detail == "full":
            perspective = f"Your perspective: {seat.perspective}. {meaning}"
        return self.session.words(template, role=seat.role, seat=seat.introduction(perspective), **values)


def _addressed(text: TextReply | None, pending: Sequence[ObjectionRaised]) -> dict[str, Hashable]:
    """What a template says of objections to the reader's own text: their labels, and whether an earlier text is shown."""
    return {
        "to_you": tuple(one.label for one in pending),
        "before": text is not None and bool(_replaced(text, pending)),
    }


def _replaced(text: TextReply, pending: Sequence[ObjectionRaised]) -> tuple[str, ...]:
    """Earlier texts of the agent that objections are against and do not quote."""
    return tuple(dict.fromkeys(one.against for one in pending if not one.words and one.against != text.key))


def _with_answers(text: str, answers: Sequence[AnswerReply], objections: Sequence[ObjectionRaised]) -> str:
    """`text`, with how its author met these objections below."""
    labels = {one.label for one in objections}
    lines = [
        f"{bare_label(answer.objection)} {answer.fate}: {answer.how}".rstrip(": ")
        for answer in answers
        if bare_label(answer.objection) in labels
    ]
    return with_list(text, "answers to objections:", lines)
