"""One round: families respond, talk among themselves, and are observed, from the leaves up.

It is recursive and has no barriers: a call starts as soon as what it reads exists. Branches read what they were passed and
what the round before left, and return what they made.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consilience.domain.messages import LeafReply, bare_label, is_empty_remark
from consilience.domain.positions import BallotReply
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Pending, Reply
from consilience.protocols._common.answers import declared_answer, describe_pattern
from consilience.protocols._common.conclusion import TextReply, publish_from, with_position
from consilience.protocols._common.remarks import (
    ObjectionBook,
    ObjectionMet,
    ObjectionRaised,
    find_repeated,
    find_words,
    quote_objection,
    take,
)
from consilience.protocols._common.trees import ROOT, siblings_and_parents
from consilience.protocols.emergence.turns import (
    AnswerReply,
    ObjectionReply,
    ObservationReply,
    PeerReply,
    RevisitReply,
    RootReply,
    RootRevision,
    Turn,
    addressed,
    replaced_texts,
    with_answers,
    with_list,
)

PERSPECTIVES: Mapping[str, str] = {
    "analytical": "You take the question apart and check whether the reasoning holds.",
    "creative": "You look for options that nobody has named yet.",
    "critical": "You doubt the obvious answer and look for what goes wrong and who pays for it.",
    "practical": "You ask what it takes to do this on Monday morning.",
    "theoretical": "You ask which general principle decides the case.",
    "empirical": "You ask what has been measured and what has not.",
    "ethical": "You ask who is affected and whether it is fair to them.",
    "systemic": "You look at side effects, feedback and the long run.",
}
"""The seed's eight in its order, each with a sentence that says what it means."""

Nudge = Pending[Reply[str] | Failure]
PendingBallots = dict[tuple[int, str], Pending[Reply[BallotReply] | Failure]]
"""Ballots being cast, by step and leaf."""


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """The result of a branch: the turn of its top node, the turns below it, and ballots that are being cast."""

    top: Turn
    below: tuple[Turn, ...] = ()
    ballots: PendingBallots = field(default_factory=dict)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (self.top, *self.below)


@dataclass(frozen=True)
class RoundRun:
    """One round of a run; makes all its calls."""

    session: Session
    pattern: str
    """Expression of an extractable answer; leaves cast ballots if there is one."""
    leaf_reask: bool
    index: int
    previous: Mapping[str, Turn]
    """Turns of the round before, by agent."""
    nudges: Mapping[str, Nudge]
    """Nudges sent since, by parent."""
    labels: Mapping[str, str]
    """Addresses of the agents in prompts."""
    book: ObjectionBook
    """Objections of earlier rounds."""
    ends: bool
    """Whether the root's text is the answer, and no prompt quotes it."""

    async def family(self, node: str) -> FamilyResult:
        """The children of `node` respond and talk among themselves; then the node observes them."""
        children = self.session.topology.children[node]
        async with self.session.phase("leaf_respond", self.index):
            results = await self._leaf_respond(children)
        ballots = {key: ballot for result in results for key, ballot in result.ballots.items()}
        if self.index == 1:
            ballots |= await self._cast_ballots(0, [result.top for result in results], blind=True)
        turns = await self._lateral([result.top for result in results])
        ballots |= await self._cast_ballots(self.index, turns)
        turns_below = [turn for top, result in zip(turns, results, strict=True) for turn in (top, *result.below)]
        return FamilyResult(await self._observe(node, turns, turns_below), tuple(turns_below), ballots)

    async def _leaf_respond(self, children: tuple[str, ...]) -> list[FamilyResult]:
        """Leaves write or revise their texts; children that are parents run their own families."""
        session = self.session
        if session.topology.children[children[0]]:
            return await session.gather([session.subtask(self.family(c), calls=self.need(c)) for c in children])
        if self.index > 1:
            turns = await session.gather([session.subtask(self._revisit(leaf), calls=1) for leaf in children])
        else:
            replies = await session.gather([self._first_draft(leaf) for leaf in children])
            turns = [self._leaf_turn(Turn(leaf), reply) for leaf, reply in zip(children, replies, strict=True)]
        return [FamilyResult(turn) for turn in turns]

    # leaf_respond

    def _first_draft(self, leaf: str) -> Ask[LeafReply]:
        return self._ask_leaf(leaf, Prompt(self._render("leaf_respond", leaf)), LeafReply)

    async def _revisit(self, leaf: str) -> Turn:
        """Round 2 and later: the leaf is shown its previous text, its parent's nudge and the objections to its texts. Without a
        nudge and an objection the text may be reused without a call."""
        nudge = await self.nudge(leaf)
        before = self.previous[leaf].text
        pending = self.book.pending(leaf)
        if before is None:
            return self._leaf_turn(Turn(leaf), await self._first_draft(leaf))
        if nudge is None and not pending and not self.leaf_reask:
            return Turn(leaf, text=before)
        quotes = [self.session.quote(before, "you"), *self._objections_to(before, pending)]
        if nudge is not None:
            quotes.append(self.session.quote(nudge, "parent"))
        words = self._render(
            "leaf_revisit", leaf, label=self.labels[leaf], nudged=nudge is not None, **addressed(before, pending)
        )
        reply = await self._ask_leaf(leaf, Prompt(words, tuple(quotes)), RevisitReply, pending)
        turn = self._leaf_turn(Turn(leaf, nudge=nudge, text=before), reply)
        return turn if isinstance(reply, Failure) else self._with_met(turn, reply, pending)

    def _ask_leaf(
        self, leaf: str, prompt: Prompt, returns: type[LeafReply], pending: Sequence[ObjectionRaised] = ()
    ) -> Ask[LeafReply]:
        def quoted(reply: LeafReply) -> str:
            text = with_list(reply.text, "points:", self._points(reply))
            return with_answers(text, reply.answers if isinstance(reply, RevisitReply) else (), pending)

        return self.session.ask(
            leaf,
            prompt,
            key=f"round-{self.index}/leaf_respond/{leaf}",
            returns=returns,
            audience=siblings_and_parents(self.session.topology, leaf),
            quoted=quoted,
        )

    def _leaf_turn(self, turn: Turn, reply: Reply[LeafReply] | Failure) -> Turn:
        return turn.responded(reply, self._points(reply.value) if isinstance(reply, Reply) else ())

    def _points(self, reply: LeafReply) -> tuple[str, ...]:
        return tuple(
            [point.strip() for point in reply.points if not is_empty_remark(point)][: self.session.caps.points]
        )

    # lateral_leaves and lateral_Lk

    async def _lateral(self, tops: list[Turn]) -> list[Turn]:
        """Siblings read each other's texts and revise their own. All see the same quotations in the same order."""
        speaking = [turn for turn in tops if turn.text is not None]
        if len(speaking) < 2:
            return tops
        shared = tuple(self._quote_texts(speaking))
        level = self.session.topology.levels[tops[0].agent]
        leaves = not self.session.topology.children[tops[0].agent]
        refuted = self.book.refuted_by(met for turn in speaking for met in turn.met)
        asks = [self._ask_lateral(turn, shared, again=turn.agent in refuted) for turn in speaking]
        async with self.session.phase("lateral_leaves" if leaves else f"lateral_L{level}", self.index):
            replies = await self.session.gather(asks)
            by_agent = dict(zip((turn.agent for turn in speaking), replies, strict=True))
            return [
                self._after_lateral(turn, by_agent[turn.agent], speaking) if turn.agent in by_agent else turn
                for turn in tops
            ]

    def _ask_lateral(self, turn: Turn, shared: tuple[Quote, ...], *, again: bool) -> Ask[PeerReply]:
        assert turn.text is not None
        pending = self._unshown(turn)
        words = self._render(
            "lateral",
            turn.agent,
            label=self.labels[turn.agent],
            leaf=not self.session.topology.children[turn.agent],
            again=again or turn.agent in self.book.refuted,
            **addressed(turn.text, pending),
        )
        answers = getattr(turn.response.value, "answers", ()) if turn.response else ()
        return self.session.ask(
            turn.agent,
            Prompt(words, tuple(self._objections_to(turn.text, pending)), shared),
            key=f"round-{self.index}/lateral/{turn.agent}",
            returns=PeerReply,
            audience=siblings_and_parents(self.session.topology, turn.agent),
            quoted=lambda reply: with_answers(reply.text, [*answers, *reply.answers], self.book.pending(turn.agent)),
        )

    def _after_lateral(self, turn: Turn, reply: Reply[PeerReply] | Failure, family: list[Turn]) -> Turn:
        if isinstance(reply, Failure):
            return turn.revised_by(reply)
        turn = self._with_met(turn, reply, self._unshown(turn))
        return self._with_objections(turn.revised_by(reply), reply, family)

    def _unshown(self, turn: Turn) -> Sequence[ObjectionRaised]:
        """Return the objections to an agent that it was not shown in an answered call of this round."""
        return self.book.pending(turn.agent) if turn.response is None else ()

    # observe_Lk and observe_root

    async def _observe(self, node: str, children: list[Turn], below: list[Turn]) -> Turn:
        """A parent reads its children's texts after lateral talk. The root's reply may be the answer and draw on the reserve."""
        root = node == ROOT
        before = self.previous[node].text if node in self.previous else None
        nudge = await self.nudge(node)
        if root and not (self._has_news(children, before) and self.is_quorum(below)):
            return Turn(node, text=before)
        turn = Turn(node, text=before, nudge=nudge)
        if not root and all(child.text is None for child in children):
            return turn
        name = "observe_root" if root else f"observe_L{self.session.topology.levels[node]}"
        async with self.session.phase(name, self.index):
            reply = await self._ask_observation(turn, children)
            turn = turn.responded(reply)
            if isinstance(reply, Failure):
                return turn
            turn = self._with_met(turn, reply, [*_raised(children), *self.book.pending(node)])
            return turn if root else self._with_objections(turn, reply, children)

    def _has_news(self, children: list[Turn], before: TextReply | None) -> bool:
        """Return whether the root is asked: not if nothing new was written, nor if all children failed for good. If only limits
        stopped them, the root answers by itself."""
        failures = [failure for turn in children for failure in turn.failures]
        limited = any(failure.kind.is_limit for failure in failures)
        if any(turn.text is not None for turn in children):
            return before is None or not limited or any(turn.replied for turn in children)
        return before is None and (limited or not failures)

    def is_quorum(self, turns: Sequence[Turn]) -> bool:
        """Return whether enough leaves answered in the first round."""
        leaves = self.session.topology.leaves
        return self.index > 1 or self.session.has_quorum(
            [t.response or t.failures[0] for t in turns if t.agent in leaves]
        )

    def _ask_observation(self, turn: Turn, children: list[Turn]) -> Ask[Any]:
        node, before, nudge = turn.agent, turn.text, turn.nudge
        root = node == ROOT
        pending, between = self.book.pending(node), _raised(children)
        quotes = self._quote_objections(between)
        if before is not None:
            quotes += [self.session.quote(before, "you"), *self._objections_to(before, pending)]
        if nudge is not None:
            quotes.append(self.session.quote(nudge, "parent"))
        words = self._render(
            "observe_root" if root else "observe",
            node,
            label=self.labels.get(node),
            again=before is not None,
            nudged=nudge is not None,
            **self._listed(children, between),
            **({} if root else addressed(before, pending)),
        )
        first, later = (RootReply, RootRevision) if root else (ObservationReply, PeerReply)
        return self.session.ask(
            node,
            Prompt(words, tuple(quotes), tuple(self._quote_texts(children))),
            key=f"round-{self.index}/observe/{node}",
            returns=with_position(first if before is None else later, self.pattern if root else ""),
            audience=() if root else siblings_and_parents(self.session.topology, node),
            closing=root,
            max_tokens=None if self.ends else self.session.reply_tokens,
            quoted=lambda reply: with_answers(str(reply.text), reply.answers, pending),
        )

    # signal_down

    def ask_nudge(self, node: str, children: list[Turn], own_text: TextReply) -> Ask[str]:
        """A parent's suggestion to its children, for the next round."""
        words = self._render("signal", node, texts=self._labels_of(children))
        return self.session.ask(
            node,
            Prompt(words, (self.session.quote(own_text, "you"),), tuple(self._quote_texts(children))),
            key=f"round-{self.index}/signal/{node}",
            kind="nudge",
            audience=self.session.topology.children[node],
        )

    async def nudge(self, agent: str) -> Reply[str] | None:
        """Return the nudge that this agent's parent sent since the last round, if there is one."""
        for parent in self.session.topology.parents.get(agent, ()):
            if parent in self.nudges:
                reply = await self.nudges[parent]
                return reply if isinstance(reply, Reply) else None
        return None

    # finalize: the root's self-reviews, with the texts and objections of the last round (`previous`)

    def review_prompt(self, result: TextReply, domain: str) -> Prompt:
        children = self._last_children()
        between = _raised(children)
        words = self._render("finalize", result.agent, domain=domain, **self._listed(children, between))
        quotes = (*self._quote_objections(between), self.session.quote(result, "you"))
        return Prompt(words, quotes, tuple(self._quote_texts(children)))

    def rulings(self, review: Reply[RootRevision]) -> tuple[ObjectionMet, ...]:
        """Record and return what a self-review rules on the objections it was shown."""
        return self._with_met(Turn(ROOT), review, _raised(self._last_children())).met

    def _last_children(self) -> list[Turn]:
        return [self.previous[child] for child in self.session.topology.children[ROOT]]

    # sealed ballots

    async def _cast_ballots(self, step: int, turns: list[Turn], *, blind: bool = False) -> PendingBallots:
        """Leaves begin to cast their ballots, `blind` ones before they have read any peer."""
        if not self.pattern or self.session.topology.children[turns[0].agent]:
            return {}
        async with self.session.phase("ballot", step):
            return {
                (step, turn.agent): self.session.start(self._ask_ballot(step, turn, turns, blind))
                for turn in turns
                if turn.text is not None
            }

    def _ask_ballot(self, step: int, turn: Turn, turns: list[Turn], blind: bool) -> Ask[BallotReply]:
        """The texts that a ballot may name as its cause are those that its leaf has read in this round."""
        assert turn.text is not None
        peers = [] if blind else [peer for peer in turns if peer is not turn]
        quotes = [self.session.quote(p.before or p.text, self.labels[p.agent]) for p in peers if p.text is not None]
        quotes.append(self.session.quote(turn.text, "you"))
        words = self._render("ballot", turn.agent, pattern=describe_pattern(self.pattern), blind=len(quotes) == 1)
        return self.session.ask(
            turn.agent,
            Prompt(words, tuple(quotes)),
            key=f"round-{step}/ballot/{turn.agent}",
            returns=with_position(BallotReply, self.pattern),
            kind="ballot",
            accept=self._accept_ballot,
            max_tokens=min(self.session.reply_tokens, 300),
        )

    async def _accept_ballot(self, ballot: BallotReply) -> None:
        if await declared_answer(self.session, self.pattern, ballot.position, "") is None:
            raise ValueError(f"position: {ballot.position!r:.80} does not match {self.pattern!r}")

    # objections

    def _with_objections(self, turn: Turn, reply: Reply[Any], family: list[Turn]) -> Turn:
        """Publish the objections of a reply to texts of `family` as messages for their targets and the reply's readers."""
        if not reply.value.objections:
            return turn
        targets = {self.labels[other.agent]: other.agent for other in family if other.agent != turn.agent}
        texts = [reply.text, *(self.session.message(other.text.key).text for other in family if other.text is not None)]
        cap = self.session.caps.objections
        entries, left_out = take(reply, "objection", reply.value.objections, targets, cap, texts)
        raised = list(turn.objections)
        for n, (entry, target) in enumerate(entries, 1):
            raised.append(self._raise(reply, n, entry, target, raised))
        return turn.altered(objections=tuple(raised), left_out=turn.left_out + left_out)

    def _raise(
        self, reply: Reply[Any], n: int, entry: ObjectionReply, target: str, this_round: Sequence[ObjectionRaised]
    ) -> ObjectionRaised:
        session, text = self.session, entry.text.strip()
        against = reply.labels[bare_label(entry.to)]
        own_objections = (*self.book.by(reply.agent), *this_round)
        words = find_words(entry.words, session.message(against).text)
        readers = dict.fromkeys((*session.message(reply.key).audience, target))
        message = publish_from(session, reply, "objection", n, quote_objection(words, text), readers, to=against)
        raised = ObjectionRaised(
            id=message.id,
            label=f"{self.labels[reply.agent]}.{len(own_objections) + 1}",
            agent=reply.agent,
            to=target,
            against=against,
            text=text,
            words=words,
            repeats=find_repeated(text, target, own_objections),
        )
        session.note("objection_raised", raised)
        return raised

    def _with_met(self, turn: Turn, reply: Reply[Any], shown: Sequence[ObjectionRaised]) -> Turn:
        """Record what a reply declares about the objections it was shown. An objection to the agent itself that the reply passes
        over is met without a fate; one that it may only rule on is not met."""
        answers: dict[str, AnswerReply] = {}
        for answer in getattr(reply.value, "answers", ()):
            answers |= dict.fromkeys(self.session.named(reply, [answer.objection]), answer)
        answered = [
            ObjectionMet(
                objection=objection.id,
                agent=turn.agent,
                fate=answers[objection.id].fate if objection.id in answers else None,
                how=answers[objection.id].how.strip().removesuffix(".") if objection.id in answers else "",
            )
            for objection in shown
            if objection.id in answers or objection.to == turn.agent
        ]
        for declared in answered:
            self.session.note("objection_met", declared)
        return turn.altered(met=(*turn.met, *answered))

    def _objections_to(self, text: TextReply, pending: Sequence[ObjectionRaised]) -> list[Quote]:
        """Quote the objections to an agent's texts, and each replaced text that an objection is against and does not quote."""
        replaced = [self.session.quote(self.session.message(id), "you before") for id in replaced_texts(text, pending)]
        return [*replaced, *self._quote_objections(pending)]

    def _quote_objections(self, objections: Sequence[ObjectionRaised]) -> list[Quote]:
        return [self.session.quote(self.session.message(o.id), o.label) for o in objections]

    # prompts

    def need(self, node: str) -> int:
        """Return the max calls of a round below `node`, its own observation included."""
        children = self.session.topology.children[node]
        if not children:
            return 1
        leaves = not self.session.topology.children[children[0]]
        ballots = len(children) * (2 if self.index == 1 else 1) if leaves and self.pattern else 0
        return sum(self.need(c) for c in children) + (len(children) if len(children) > 1 else 0) + ballots + 1

    def _quote_texts(self, turns: list[Turn]) -> list[Quote]:
        return [self.session.quote(turn.text, self.labels[turn.agent]) for turn in turns if turn.text is not None]

    def _labels_of(self, turns: list[Turn]) -> tuple[str, ...]:
        return tuple(self.labels[turn.agent] for turn in turns if turn.text is not None)

    def _listed(self, children: list[Turn], between: Sequence[ObjectionRaised]) -> dict[str, Hashable]:
        """Values of a parent's template: labels of texts, and of objections with their targets; the form of the answer."""
        return {
            "texts": self._labels_of(children),
            "between": tuple((objection.label, self.labels[objection.to]) for objection in between),
            "pattern": describe_pattern(self.pattern),
        }

    def _render(self, template: str, agent: str, **values: Hashable) -> str:
        seat = self.session.agent(agent)
        meaning = PERSPECTIVES.get(seat.perspective)
        perspective = meaning or seat.perspective
        if meaning and self.session.detail == "full":
            perspective = f"Your perspective: {seat.perspective}. {meaning}"
        return self.session.render_template(template, role=seat.role, seat=seat.introduction(perspective), **values)


def _raised(turns: Sequence[Turn]) -> list[ObjectionRaised]:
    return [objection for turn in turns for objection in turn.objections]
