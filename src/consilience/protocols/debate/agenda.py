"""What a debate takes up (seed 002, "Agenda Manager" and "Thread Controls"): the active disputes, and further threads.

At most two disputes are active, by crux score; agents attend more to them. A thread is proposed by agents or by keywords, and
opened once two agents want one that asks something new.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from statistics import pvariance
from typing import Any, Literal

from consilience.engine.prompt import Prompt
from consilience.engine.work import Failure, Reply
from consilience.protocols.debate import notes
from consilience.protocols.debate.attention import keywords
from consilience.protocols.debate.floor import MODERATOR, SECOND_OPINION, Floor, aside, quotes_of
from consilience.protocols.debate.moves import (
    COMMIT_EVERY,
    FIRM,
    MAX_ACTIVE_THREADS,
    MAX_BOOST,
    MAX_DISPUTES,
    MAX_THREADS,
    MIN_SPLIT_AGENTS,
    MONTHS,
    SPAWN_MIN_AGENTS,
    SPAWN_MIN_MENTIONS,
    dominant_horizon,
)
from consilience.protocols.debate.records import CruxScore, DebateMessage, UnopenedQuestion
from consilience.protocols.debate.replies import QuestionReply, SameReply, refuse_no_question
from consilience.protocols.debate.scoring import crux_score, declared_flips
from consilience.protocols.debate.threads import Thread


class Agenda:
    """The active disputes of one debate. Without the setting the best crux is still named, and nothing else follows from it."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self._asked_at = 0
        self._scores: dict[str, CruxScore] = {}

    def locked(self, thread: Thread) -> None:
        """Score a crux that was just locked, by what its agents declared with their commitments."""
        floor = self.floor
        score = self._scores[thread.id] = self._score(thread)
        floor.note(notes.DcgCalculated(at=floor.now, thread=thread.id, score=score))
        self.update()

    def _score(self, thread: Thread) -> CruxScore:
        return crux_score(thread.declared_sides, declared_flips(thread), len(self.floor.debaters))

    def update(self) -> None:
        """Take the locked cruxes with the highest scores as the active disputes; one whose thread has ended makes room."""
        floor = self.floor
        self._scores |= {thread.id: self._score(thread) for thread in floor.active if thread.id in self._scores}
        ranked = sorted((t for t in floor.active if t.id in self._scores), key=self._agenda_order, reverse=True)
        active = [thread.id for thread in ranked[:MAX_DISPUTES]]
        if active and active[0] != floor.promoted:
            floor.promoted = active[0]
            floor.promotions += 1
            score = self._scores[active[0]].score
            floor.note(notes.CruxPromoted(at=floor.now, thread=active[0], score=score))
        if floor.settings.agenda and active != list(floor.disputes):
            floor.disputes = {
                id: (MAX_BOOST / place, self._distinct_words(floor.threads[id])) for place, id in enumerate(active, 1)
            }
            scores = tuple(self._scores[id].score for id in active)
            floor.note(notes.AgendaNote(at=floor.now, active=tuple(active), scores=scores))

    def _agenda_order(self, thread: Thread) -> tuple[float, int, float, int]:
        """The crux score; ties to the dispute with more agents undecided, then with more varied confidence, then the earlier. The
        seed's third criterion, dependencies, is known of ended threads only."""
        firm_agents = sum(side in FIRM for side in thread.declared_sides.values())
        confidences = [c.confidence for c in thread.commitments.values()]
        undecided = len(self.floor.debaters) - firm_agents
        return self._scores[thread.id].score, undecided, pvariance(confidences) if confidences else 0.0, -thread.number

    def _distinct_words(self, thread: Thread) -> frozenset[str]:
        """The words of a question that no other thread's has; all of them if there are none."""
        own_words = set(keywords(thread.question or thread.topic))
        others = [other for other in self.floor.threads.values() if other is not thread]
        shared = {word for other in others for word in keywords(other.question or other.topic)}
        return frozenset(own_words - shared or own_words)

    async def ask_positions(self) -> None:
        """Every 10 messages, ask the agents without a position on an active dispute to commit themselves on it."""
        floor = self.floor
        if floor.spoken - self._asked_at < COMMIT_EVERY:
            return
        self._asked_at = floor.spoken
        self.update()
        for id in floor.disputes:
            thread = floor.threads[id]
            agents_asked = thread.members if thread.half else floor.openings
            silent = [a for a in agents_asked if a not in thread.commitments and a not in thread.to_commit]
            if thread.busy or not thread.active or not silent:
                continue
            thread.members += [agent for agent in silent if agent not in thread.members]
            thread.to_commit += silent
            thread.grant(len(silent))
            await floor.intervene(thread, "commit", tuple(silent))


_WHAT_ABOUT = re.compile(r"but what about (.+?)[?.!]", re.IGNORECASE)
KEYWORD_MESSAGES, REFRAME_MESSAGES = 10, 5
"""The last messages of a thread in which the moderator looks for a shared keyword, and for "but what about X?"."""


@dataclass
class Proposal:
    """A thread that somebody wants."""

    question: str
    parent: Thread
    supporters: list[str]
    mentions: int
    status: Literal["PROPOSED", "APPROVED", "REJECTED"] = "PROPOSED"
    reason: str = ""
    """Why it was rejected."""
    is_repeated: bool = False
    """Whether it was rejected because a thread asks the same."""


class Spawning:
    """Proposals of threads and their decision."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.proposals: dict[str, Proposal] = {}
        """By the message that made the proposal."""
        self.pending = 0
        """Decisions under way."""
        self._keywords: set[str] = set()

    async def consider(self, thread: Thread, message: DebateMessage) -> None:
        """Look for a proposal in a message that was just published, or for support of an earlier one."""
        if self.floor.settings.spawning == "moderator":
            self._by_keyword(thread)
            return
        question = self.floor.question_of.get(message.id, "")
        if question:
            self.proposals[message.id] = Proposal(question, thread, [message.agent], 1)
            if self._is_outside(message.id, self.proposals[message.id]):
                self._note(self.proposals[message.id])
        for supported in message.refs:
            proposal = self.proposals.get(supported)
            if proposal is None or proposal.status != "PROPOSED":
                continue
            proposal.mentions += 1
            if message.agent not in proposal.supporters:
                proposal.supporters.append(message.agent)
            self._begin_if_wanted(supported, proposal)

    def reconsider(self, thread: Thread) -> None:
        """Once a thread has its question, decide on the others that were proposed in it and that two agents wanted."""
        for id, proposal in self.proposals.items():
            if proposal.parent is thread and proposal.status == "PROPOSED":
                self._begin_if_wanted(id, proposal)

    def _begin_if_wanted(self, id: str, proposal: Proposal) -> None:
        has_support = len(proposal.supporters) >= SPAWN_MIN_AGENTS and proposal.mentions >= SPAWN_MIN_MENTIONS
        if has_support and self._is_outside(id, proposal):
            self._begin(self._decide(proposal))

    def open_in(self, thread: Thread) -> list[str]:
        """Messages that propose a question in a thread which waits for a second supporter; not those of its own question."""
        return [
            id
            for id, proposal in self.proposals.items()
            if proposal.parent is thread and proposal.status == "PROPOSED" and self._is_outside(id, proposal)
        ]

    def _is_outside(self, message: str, proposal: Proposal) -> bool:
        """Whether a proposal is for another thread: while a thread looks for its question, one proposed for it is not."""
        thread = proposal.parent
        if thread.stage == "DISCOVERY" and message in thread.proposals:
            return False
        return proposal.question != thread.question

    async def split(self, thread: Thread, question: str) -> None:
        """Give the second dispute of a thread a thread of its own, with the same agents."""
        proposal = Proposal(question, thread, list(thread.members), SPAWN_MIN_MENTIONS)
        self._note(proposal)
        self._begin(self._decide(proposal))

    def _by_keyword(self, thread: Thread) -> None:
        """The seed's first version: a keyword that two agents share, or "but what about X?"."""
        if len(self.floor.active) >= MAX_ACTIVE_THREADS:
            return
        topic_found = self._what_about(thread) or self._shared_keyword(thread)
        if topic_found is None:
            return
        topic, agents, mentions = topic_found
        self._keywords.add(topic.casefold())
        proposal = Proposal(topic, thread, agents, mentions)
        self._note(proposal)
        self._begin(self._frame_and_decide(proposal))

    def _shared_keyword(self, thread: Thread) -> tuple[str, list[str], int] | None:
        known_words = {
            word for other in self.floor.threads.values() for word in keywords(f"{other.topic} {other.question or ''}")
        }
        users: dict[str, list[str]] = {}
        mentions: Counter[str] = Counter()
        for message in thread.spoken[-KEYWORD_MESSAGES:]:
            for word in dict.fromkeys(keywords(" ".join(message.topics))):
                mentions[word] += 1
                users.setdefault(word, [])
                if message.agent not in users[word]:
                    users[word].append(message.agent)
        for word, agents in users.items():
            is_new = word not in known_words and word not in self._keywords
            if is_new and len(agents) >= SPAWN_MIN_AGENTS and mentions[word] >= SPAWN_MIN_MENTIONS:
                return word, agents, mentions[word]
        return None

    def _what_about(self, thread: Thread) -> tuple[str, list[str], int] | None:
        for message in thread.spoken[-REFRAME_MESSAGES:]:
            match = _WHAT_ABOUT.search(message.text)
            if match and match[1].casefold() not in self._keywords:
                words = set(keywords(match[1]))
                agents = [m.agent for m in thread.spoken[-KEYWORD_MESSAGES:] if words & set(keywords(m.text))]
                return match[1], list(dict.fromkeys([message.agent, *agents])), max(1, len(agents))
        return None

    def _begin(self, body: Coroutine[Any, Any, None]) -> None:
        self.pending += 1
        self.floor.session.clock.spawn(MODERATOR, body)

    async def _frame_and_decide(self, proposal: Proposal) -> None:
        reply = await self.ask_question(proposal.parent, "spawn", keyword=proposal.question)
        if isinstance(reply, Reply):
            proposal.question = " ".join(reply.value.question.split())
            await self._decide(proposal)
            return
        self.pending -= 1
        self._reject(proposal, "no question was framed")

    async def _decide(self, proposal: Proposal) -> None:
        """Open the thread, unless there are too many, too few want it, or one asks the same."""
        floor = self.floor
        obstacle = self._obstacle(proposal)
        if obstacle is None:
            obstacle = await self.same_as(proposal.question, self._asked_threads()) or self._obstacle(proposal)
        self.pending -= 1
        if obstacle is not None:
            self._reject(proposal, obstacle)
            return
        proposal.status = "APPROVED"
        self._note(proposal)
        parent = proposal.parent
        remaining = [agent for agent in parent.members if agent not in proposal.supporters]
        if parent.stage == "DISCOVERY" and len(remaining) >= 2:
            parent.members[:] = remaining
        await floor.open_thread(proposal.question, proposal.supporters, question=proposal.question, parent=parent.id)
        floor.progress()

    async def split_by_horizon(self, thread: Thread) -> bool:
        """Where more than three agents judge over months and more than three over years, give the latter a thread of their own.
        Return whether it was split; both then ask the question over their own horizon."""
        floor, question = self.floor, thread.question or thread.topic
        ballots = ((agent, floor.openings.get(agent)) for agent in thread.members)
        horizons = {agent: ballot.horizon for agent, ballot in ballots if ballot is not None and ballot.horizon}
        months = {agent: horizon for agent, horizon in horizons.items() if horizon in MONTHS}
        years = {agent: horizon for agent, horizon in horizons.items() if horizon not in MONTHS}
        full = len(floor.active) >= MAX_ACTIVE_THREADS or len(floor.threads) >= MAX_THREADS
        if thread.half or full or min(len(months), len(years)) < MIN_SPLIT_AGENTS:
            return False
        over = {half: dominant_horizon(group.values()) for half, group in (("months", months), ("years", years))}
        words = {
            half: floor.session.render_template("over", question=question, horizon=horizon)
            for half, horizon in over.items()
        }
        thread.half, thread.horizon, thread.question = "months", over["months"], words["months"]
        thread.left = frozenset(years)
        thread.members[:] = [agent for agent in thread.members if agent not in years]
        other = await floor.open_thread(words["years"], list(years), question=words["years"], parent=thread.id)
        other.half, other.horizon, other.left = "years", over["years"], frozenset(months)
        return True

    def _obstacle(self, proposal: Proposal) -> str | Thread | None:
        """Return why no thread is opened, which may be the one that asks the same; None if nothing forbids it."""
        floor = self.floor
        if floor.over is not None:
            return "the debate is over"
        if len(floor.active) >= MAX_ACTIVE_THREADS:
            return f"{MAX_ACTIVE_THREADS} threads are active"
        if len(floor.threads) >= MAX_THREADS:
            return f"{MAX_THREADS} threads were opened"
        if len(proposal.supporters) < SPAWN_MIN_AGENTS or proposal.mentions < SPAWN_MIN_MENTIONS:
            return "fewer than two agents want it"
        asked = proposal.question.casefold()
        return next((thread for thread in self._asked_threads() if (thread.question or "").casefold() == asked), None)

    def _asked_threads(self) -> list[Thread]:
        """Threads whose question is being debated, or was and came to a crux: nobody needs another one about it."""
        return [thread for thread in self.floor.threads.values() if thread.active or thread.crux is not None]

    def _reject(self, proposal: Proposal, obstacle: str | Thread) -> None:
        proposal.status, proposal.is_repeated = "REJECTED", isinstance(obstacle, Thread)
        proposal.reason = f"{obstacle.id} asks the same" if isinstance(obstacle, Thread) else obstacle
        self._note(proposal)

    def unopened(self) -> tuple[UnopenedQuestion, ...]:
        """Return the questions that an agent proposed and another supported, and that no thread asked."""
        floor = self.floor
        asked = {text.casefold() for t in floor.threads.values() for text in (t.question, t.locked_question) if text}
        questions = []
        for id, proposal in self.proposals.items():
            author = floor.by_id[id].agent
            supports = [m.id for m in floor.messages if id in m.refs and m.agent != author]
            same = proposal.question.casefold() in asked or proposal.is_repeated
            if supports and not same and proposal.status != "APPROVED":
                reason = proposal.reason or f"{proposal.parent.id.replace('-', ' ')} took up another question"
                question = UnopenedQuestion(
                    question=proposal.question, message=id, agent=author, supports=tuple(supports), reason=reason
                )
                questions.append(question)
        return tuple(questions)

    def _note(self, proposal: Proposal) -> None:
        data = notes.SpawnProposed(
            at=self.floor.now,
            question=proposal.question,
            parent=proposal.parent.id,
            supporters=tuple(proposal.supporters),
            mentions=proposal.mentions,
            status=proposal.status,
            reason=proposal.reason,
        )
        self.floor.note(data)

    async def ask_question(self, thread: Thread, template: str, **values: str) -> Reply[QuestionReply] | Failure | None:
        """Ask the moderator's model for a yes/no question; None once the debate's framings are used up."""
        floor = self.floor
        if floor.framings >= floor.settings.max_framings:
            return None
        floor.framings += 1
        agreed = floor.untaken(thread.topic)
        words = floor.session.render_template(
            template, topic=thread.topic, question=thread.question or "", agreed=agreed, **values
        )
        window = floor.quotes(thread)
        shown = {quote.id for quote in window}
        proposed = quotes_of(floor.by_id[id] for id in thread.proposals if id in floor.by_id and id not in shown)
        ask = floor.session.ask(
            MODERATOR,
            aside(floor.session, words, proposed, window),
            key=f"{template}/{thread.id}/{floor.framings}",
            returns=QuestionReply,
            kind="framing",
            accept=refuse_no_question,
        )
        async with floor.session.phase("framing", floor.framings + 1):
            return await floor.call(MODERATOR, ask)

    async def same_as(self, question: str, others: list[Thread]) -> Thread | None:
        """Return the thread among `others` that asks the same, by one typed call of the second opinion; None where none does, and
        where comparisons are used up or the call fails."""
        floor = self.floor
        candidates = await self._near(question, [(other, other.question or other.topic) for other in others])
        if not candidates or floor.comparisons >= floor.settings.max_comparisons:
            return None
        floor.comparisons += 1
        session = floor.session
        words = session.render_template("same", question=question, questions=tuple(text for _, text in candidates))
        ask = session.ask(
            SECOND_OPINION,
            Prompt(words, documents=()),
            key=f"same/{floor.comparisons}",
            returns=SameReply,
            kind="comparison",
        )
        async with session.phase("comparison", floor.comparisons):
            reply = await floor.call(SECOND_OPINION, ask)
        number = reply.value.same_as if isinstance(reply, Reply) else 0
        return candidates[number - 1][0] if 1 <= number <= len(candidates) else None

    async def _near(self, question: str, candidates: list[tuple[Thread, str]]) -> list[tuple[Thread, str]]:
        """Leave out what an encoder finds too far from a question to ask the same; without one all are compared by the call."""
        session = self.floor.session
        rows = await session.cosines([question], [text for _, text in candidates]) if session.has_encoder else None
        if not rows:
            return candidates
        least = self.floor.settings.question_similarity
        return [candidate for candidate, near in zip(candidates, rows[0], strict=True) if near >= least]
