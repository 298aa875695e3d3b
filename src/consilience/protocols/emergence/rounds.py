"""One round: families respond, talk among themselves, and are observed, from the leaves up.

The natural form is recursive and has no barriers: a call starts as soon as what it reads exists. Branches read what they
were passed and what the round before left; they return what they made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from consilience.domain.messages import Message
from consilience.domain.positions import BallotReply
from consilience.domain.replies import LeafReply
from consilience.engine.answers import extract, form
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.trees import letter
from consilience.engine.work import Ask, Failure, Pending, Reply
from consilience.protocols.emergence.replies import (
    MOST_OBJECTIONS,
    ObjectionReply,
    PeerReply,
    ReviewReply,
    RootReply,
)
from consilience.protocols.emergence.settings import PERSPECTIVES, Settings

Said = Reply[LeafReply] | Reply[PeerReply] | Reply[RootReply] | Reply[ReviewReply]
Nudge = Pending[Reply[str] | Failure]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one agent did in one round.

    `before` is what it went into lateral talk with, `text` what it leaves with: its latest words, of an earlier round if need be.
    """

    agent: str
    response: Said | None = None
    lateral: Reply[PeerReply] | None = None
    nudge: Reply[str] | None = None
    text: Said | None = None
    before: Said | None = None
    objections: tuple[Message, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def said_something(self) -> bool:
        return self.response is not None or self.lateral is not None


@dataclass(frozen=True, slots=True)
class Harvest:
    """What a branch made: the turn of its top node, the turns below it, and ballots still being cast, by step and leaf."""

    top: Turn
    below: tuple[Turn, ...] = ()
    ballots: Mapping[tuple[int, str], Pending[Reply[BallotReply] | Failure]] = field(default_factory=dict)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (self.top, *self.below)


Observe = Callable[[str, list[Turn], Reply[str] | None], Ask[Any]]
"""How a node observes its children: node, their turns, its own nudge."""


@dataclass(frozen=True)
class RoundRun:
    """`previous` are the turns of the round before, `nudges` those sent since, both by agent."""

    session: Session
    settings: Settings
    index: int
    previous: Mapping[str, Turn]
    nudges: Mapping[str, Nudge]

    async def family(self, node: str, observe: Observe) -> Harvest:
        """The children of `node` respond and talk among themselves; then the node observes them."""
        children = self.session.topology.children[node]
        async with self.session.phase("leaf_respond", self.index):
            harvests = await self._first(children)
        ballots = {key: ballot for harvest in harvests for key, ballot in harvest.ballots.items()}
        if self.index == 1:
            ballots |= await self._ballots(0, [harvest.top for harvest in harvests], blind=True)
        after = await self._laterals([harvest.top for harvest in harvests])
        ballots |= await self._ballots(self.index, after)
        below = [turn for top, harvest in zip(after, harvests, strict=True) for turn in (top, *harvest.below)]
        return Harvest(await self._observe(node, after, below, observe), tuple(below), ballots)

    async def _first(self, children: tuple[str, ...]) -> list[Harvest]:
        session = self.session
        if session.topology.children[children[0]]:
            return await session.gather(
                [session.procedure(self.family(c, self.observation), calls=self.need(c)) for c in children]
            )
        if self.index == 1:
            replies = await session.gather([self._respond(leaf) for leaf in children])
            return [Harvest(_turn(leaf, reply)) for leaf, reply in zip(children, replies, strict=True)]
        return await session.gather([session.procedure(self._revisit(leaf), calls=1) for leaf in children])

    def _respond(self, leaf: str) -> Ask[LeafReply]:
        return self._ask_leaf(leaf, Prompt(self._words("leaf_respond", leaf)))

    def _ask_leaf(self, leaf: str, prompt: Prompt) -> Ask[LeafReply]:
        return self.session.ask(
            leaf,
            prompt,
            key=f"round-{self.index}/leaf_respond/{leaf}",
            returns=LeafReply,
            audience=(*self.session.topology.siblings(leaf), *self.session.topology.parents[leaf]),
            max_tokens=self.settings.reply_tokens,
        )

    async def _revisit(self, leaf: str) -> Harvest:
        """Round 2 and later: own previous text and the parent's nudge; without a nudge the text may simply stand."""
        nudge = await self.nudge(leaf)
        before = self.previous[leaf]
        if before.text is not None and nudge is None and not self.settings.leaf_reask:
            return Harvest(Turn(leaf, text=before.text))
        quotes: list[Quote] = []
        if before.text is not None:
            quotes.append(self.session.quote(before.text, "you"))
        if nudge is not None:
            quotes.append(self.session.quote(nudge, "parent"))
        template = "leaf_respond" if before.text is None else "leaf_revisit"
        words = self._words(template, leaf, nudged=nudge is not None)
        reply = await self._ask_leaf(leaf, Prompt(words, tuple(quotes)))
        return Harvest(replace(_turn(leaf, reply, before.text), nudge=nudge))

    async def _laterals(self, tops: list[Turn]) -> list[Turn]:
        """Siblings read each other's texts and revise their own; all of them see the same quotations in the same order."""
        speaking = [turn for turn in tops if turn.text is not None]
        if len(speaking) < 2:
            return tops
        labels = self._labels(tops)
        shared = tuple(self._texts(speaking, labels))
        level = self.session.topology.levels[tops[0].agent]
        leaves = not self.session.topology.children[tops[0].agent]
        asks = [self._lateral(turn, labels, shared, [t for t in speaking if t is not turn]) for turn in speaking]
        async with self.session.phase("lateral_leaves" if leaves else f"lateral_L{level}", self.index):
            replies = await self.session.gather(asks)
        spoken = dict(zip((turn.agent for turn in speaking), replies, strict=True))
        return [self._revised(turn, spoken[turn.agent]) if turn.agent in spoken else turn for turn in tops]

    def _lateral(
        self, turn: Turn, labels: Mapping[str, str], shared: tuple[Quote, ...], peers: list[Turn]
    ) -> Ask[PeerReply]:
        objections = self._objection_quotes(peers, labels)
        words = self._words("lateral", turn.agent, label=labels[turn.agent], objected=bool(objections))
        return self.session.ask(
            turn.agent,
            Prompt(words, tuple(objections), shared),
            key=f"round-{self.index}/lateral/{turn.agent}",
            returns=PeerReply,
            audience=(*self.session.topology.siblings(turn.agent), *self.session.topology.parents[turn.agent]),
            max_tokens=self.settings.reply_tokens,
        )

    def _revised(self, turn: Turn, reply: Reply[PeerReply] | Failure) -> Turn:
        if isinstance(reply, Failure):
            return replace(turn, failures=(*turn.failures, reply))
        return replace(
            turn, lateral=reply, before=turn.text, text=reply, objections=(*turn.objections, *self.objections(reply))
        )

    async def _observe(self, node: str, children: list[Turn], below: list[Turn], observe: Observe) -> Turn:
        root = not self.session.topology.parents.get(node)
        before = self.previous[node].text if node in self.previous else None
        nudge = await self.nudge(node)
        if not root and not any(turn.text is not None for turn in children):
            return Turn(node, text=before, nudge=nudge)
        if root and not (self._worth_observing(children, before) and self.quorum(below)):
            return Turn(node, text=before)
        name = "observe_root" if root else f"observe_L{self.session.topology.levels[node]}"
        async with self.session.phase(name, self.index):
            reply = await observe(node, children, nudge)
        turn = _turn(node, reply, before)
        if isinstance(reply, Failure):
            return replace(turn, nudge=nudge)
        return replace(turn, nudge=nudge, objections=self.objections(reply))

    def _worth_observing(self, children: list[Turn], before: Said | None) -> bool:
        """The root is asked unless nothing new was said, or nobody it reads lives: limits alone leave it to answer by itself."""
        failures = [failure for turn in children for failure in turn.failures]
        limited = any(failure.kind.is_limit for failure in failures)
        if any(turn.text is not None for turn in children):
            return before is None or not limited or any(turn.said_something for turn in children)
        return before is None and (limited or not failures)

    def quorum(self, turns: list[Turn]) -> bool:
        """Whether enough leaves answered in the first round."""
        leaves = self.session.topology.leaves
        return self.index > 1 or self.session.quorum([(t.text, t.failures) for t in turns if t.agent in leaves])

    def observation(self, node: str, children: list[Turn], nudge: Reply[str] | None) -> Ask[PeerReply]:
        """A coordinator's observation of its children's texts after lateral talk."""
        topology = self.session.topology
        return self.session.ask(
            node,
            self.observe_prompt("observe", node, children, nudge),
            key=f"round-{self.index}/observe/{node}",
            returns=PeerReply,
            audience=(*topology.siblings(node), *topology.parents[node]),
            max_tokens=self.settings.reply_tokens,
        )

    def observe_prompt(self, template: str, node: str, children: list[Turn], nudge: Reply[str] | None) -> Prompt:
        labels = self._labels(children)
        shared = tuple(self._texts(children, labels))
        quotes = self._objection_quotes(children, labels)
        objected = bool(quotes)
        before = self.previous[node].text if node in self.previous else None
        if before is not None:
            quotes.append(self.session.quote(before, "you"))
        if nudge is not None:
            quotes.append(self.session.quote(nudge, "parent"))
        words = self._words(
            template,
            node,
            objected=objected,
            again=before is not None,
            nudged=nudge is not None,
            texts=bool(shared),
            pattern=form(self.settings.answer_pattern),
        )
        return Prompt(words, tuple(quotes), shared)

    def review_prompt(self, children: list[Turn], result: Said, domain: str) -> Prompt:
        """The root looks at its own result once more, beside what it rests on and the objections made on the way."""
        labels = self._labels(children)
        objections = self._objection_quotes(children, labels)
        words = self._words(
            "finalize",
            result.agent,
            objected=bool(objections),
            domain=domain,
            pattern=form(self.settings.answer_pattern),
        )
        return Prompt(words, (*objections, self.session.quote(result, "you")), tuple(self._texts(children, labels)))

    def nudge_ask(self, node: str, children: list[Turn], own: Said) -> Ask[str]:
        """The parent's suggestion to its children, for the next round."""
        labels = self._labels(children)
        return self.session.ask(
            node,
            Prompt(
                self._words("signal", node), (self.session.quote(own, "you"),), tuple(self._texts(children, labels))
            ),
            key=f"round-{self.index}/signal/{node}",
            kind="nudge",
            audience=self.session.topology.children[node],
            max_tokens=self.settings.reply_tokens,
        )

    async def _ballots(
        self, step: int, turns: list[Turn], *, blind: bool = False
    ) -> dict[tuple[int, str], Pending[Reply[BallotReply] | Failure]]:
        """Leaves begin to cast their sealed ballots, `blind` ones before they saw anybody."""
        if not self.settings.ballots or self.session.topology.children[turns[0].agent]:
            return {}
        labels = self._labels(turns)
        async with self.session.phase("ballot", step):
            return {
                (step, turn.agent): self.session.start(self._ballot(step, turn, turns, labels, blind))
                for turn in turns
                if turn.text is not None
            }

    def _ballot(
        self, step: int, turn: Turn, turns: list[Turn], labels: Mapping[str, str], blind: bool
    ) -> Ask[BallotReply]:
        """The texts a ballot may name as the cause are those its leaf has read this round."""
        quotes = [] if blind else [
            self.session.quote(peer.before or peer.text, labels[peer.agent])
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
            max_tokens=min(self.settings.reply_tokens, 300),
        )

    def _accept(self, ballot: BallotReply) -> None:
        """A position must hold an answer of the pattern asked for."""
        if extract(self.settings.answer_pattern, ballot.position) is None:
            raise ValueError(f"position: {ballot.position!r:.80} does not match {self.settings.answer_pattern!r}")

    async def nudge(self, agent: str) -> Reply[str] | None:
        """The nudge this agent's parent sent it since the last round, if one came."""
        for parent in self.session.topology.parents.get(agent, ()):
            if parent in self.nudges:
                reply = await self.nudges[parent]
                return reply if isinstance(reply, Reply) else None
        return None

    def objections(self, reply: Reply[Any]) -> tuple[Message, ...]:
        """Publish the objections of a reply, each a message of its own that the reply's readers may be shown."""
        made: list[Message] = []
        source = self.session.message(reply.key)
        for objection in reply.value.objections[:MOST_OBJECTIONS]:
            target = self._target(reply, objection)
            if target is None:
                continue
            message = Message(
                id=f"{reply.key}/objection-{len(made) + 1}",
                sender=reply.agent,
                kind="objection",
                text=objection.text.strip(),
                audience=source.audience,
                reply_to=target,
                phase=source.phase,
            )
            self.session.publish(message)
            made.append(message)
        return tuple(made)

    def _target(self, reply: Reply[Any], objection: ObjectionReply) -> str | None:
        if not objection.text.strip():
            return None
        named = self.session.named(reply, [objection.to])
        return named[0] if named else None

    def need(self, node: str) -> int:
        """The most calls of a round below `node`, its own observation included."""
        children = self.session.topology.children[node]
        if not children:
            return 1
        leaves = not self.session.topology.children[children[0]]
        ballots = len(children) * (2 if self.index == 1 else 1) if leaves and self.settings.ballots else 0
        return sum(self.need(c) for c in children) + (len(children) if len(children) > 1 else 0) + ballots + 1

    def _texts(self, turns: list[Turn], labels: Mapping[str, str]) -> list[Quote]:
        return [self.session.quote(turn.text, labels[turn.agent]) for turn in turns if turn.text is not None]

    def _objection_quotes(self, turns: list[Turn], labels: Mapping[str, str]) -> list[Quote]:
        return [
            self.session.quote(objection, f"{labels[turn.agent]}.{n}")
            for turn in turns
            for n, objection in enumerate(turn.objections, 1)
        ]

    def _labels(self, turns: list[Turn]) -> dict[str, str]:
        """Letters by place in the family, the same in every prompt; names where peers are not anonymous."""
        if not self.settings.anonymous_peers:
            return {turn.agent: turn.agent for turn in turns}
        return {turn.agent: letter(n) for n, turn in enumerate(turns)}

    def _words(self, template: str, agent: str, **values: Hashable) -> str:
        seat = self.session.agent(agent)
        meaning = PERSPECTIVES.get(seat.perspective)
        perspective = f"Your perspective: {seat.perspective}. {meaning}" if meaning else seat.perspective
        who = f"You are {seat.persona}. " if seat.persona else ""
        return self.session.words(template, role=seat.role, seat=f"{who}{perspective}", **values)


def _turn(agent: str, reply: Said | Failure, before: Said | None = None) -> Turn:
    if isinstance(reply, Failure):
        return Turn(agent, text=before, failures=(reply,))
    return Turn(agent, response=reply, text=reply)
