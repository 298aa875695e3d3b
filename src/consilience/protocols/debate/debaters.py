"""A debater in virtual time: it looks, decides what to answer, composes, and what it composed is published if it is still open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from consilience.domain.positions import LEVELS
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.debate import lock
from consilience.protocols.debate.floor import Floor, Unpublished, quotes_of, window
from consilience.protocols.debate.lock import blocked, replies_to
from consilience.protocols.debate.moderator import Moderator
from consilience.protocols.debate.moves import (
    BLOCKED,
    COOLDOWN_MS,
    HOLD_BACK_MESSAGES,
    IDLE_MS,
    MAX_CHARS,
    MAX_REPLIES_PER_MESSAGE,
    MOVES,
    PASS_MS,
    SHIFTING,
    THINK_MS,
    Move,
    TurnKind,
)
from consilience.protocols.debate.records import DebateMessage, SteelmanAttempt
from consilience.protocols.debate.replies import (
    CommitReply,
    FalsifierTurn,
    GradeTurn,
    SpokenReply,
    SteelmanTurn,
    TurnReply,
    falsifier_of,
    refuse_bare_grade,
    refuse_empty_steelman,
    refuse_incomplete,
    turn_type,
)
from consilience.protocols.debate.threads import Thread
from consilience.protocols.debate.turns import declared_in, declared_parts, record_turn, spoken_words

STATE_LINES = 4
"""The last concessions, and proposed threads, that a prompt shows beside its window."""
STANDING_COMMITMENTS = 6
"""Commitments quoted before the window, those of agents who put one another's case first; the side of everybody is stated."""
_MOVE_OF: dict[TurnKind, Move] = {
    "commit": "COMMIT_POSITION",
    "falsify": "DECLARE_FALSIFIER",
    "steelman": "STEELMAN",
    "grade": "GRADE_STEELMAN",
}


@dataclass(frozen=True)
class Intent:
    """What an agent is about to say: a free turn, or what the process asks of it."""

    thread: Thread
    kind: TurnKind
    target: DebateMessage | None = None
    attention: float | None = None
    of: str | None = None
    """The agent whose position a steelman represents."""
    steelman: SteelmanAttempt | None = None
    """The steelman to grade, or the earlier one to correct."""


class Debater:
    """One agent's part of the debate."""

    def __init__(self, floor: Floor, moderator: Moderator, agent: str) -> None:
        self.floor, self.moderator, self.agent = floor, moderator, agent
        self.me = floor.members[agent]
        self._looks = 0
        profile = floor.session.agent(agent)
        self.by_request_only = profile.is_person_here

    async def take_part(self) -> None:
        """Look, speak, rest, until the exchange is over."""
        floor = self.floor
        await self._sleep("arrive", IDLE_MS)
        while floor.over is None:
            intent = self._due() or self._choose()
            if intent == "wait":
                await self._sleep("idle", IDLE_MS)
            elif intent == "pass":
                await self._sleep("pass", PASS_MS)
            else:
                assert isinstance(intent, Intent)
                await self._speak(intent)
                await self._sleep("look", IDLE_MS)

    async def _sleep(self, name: str, bounds: tuple[int, int]) -> None:
        self._looks += 1
        await self.floor.session.clock.sleep(self.floor.session.rng(name, self.agent, self._looks).randint(*bounds))

    # deciding

    def _due(self) -> Intent | None:
        """What the process asks of this agent now: a grade first, which waits for no cooldown."""
        if not self.floor.can_compose:
            return None
        threads = [thread for thread in self.floor.active if self.agent in thread.members]
        for thread in threads:
            steelman = thread.ungraded_for(self.agent)
            if steelman is not None and self._has_not_given_up(thread, "grade"):
                return Intent(thread, "grade", self.floor.by_id[steelman.message], steelman=steelman, of=steelman.agent)
        if self.floor.now < self.me.ready_at:
            return None
        return next((intent for thread in threads if (intent := self._due_in(thread)) is not None), None)

    def _due_in(self, thread: Thread) -> Intent | None:
        if thread.stage == "DISCOVERY" or thread.busy:
            return None
        if self.agent in thread.to_commit and self._has_not_given_up(thread, "commit"):
            return Intent(thread, "commit", thread.messages[-1])
        if thread.stage == "EVIDENCE":
            return None
        if self.agent in thread.to_falsify and self._has_not_given_up(thread, "falsify"):
            return Intent(thread, "falsify", thread.messages[-1])
        if self._has_not_given_up(thread, "steelman"):
            tries = {pair: thread.latest_steelman(*pair) for pair in lock.pending_pairs(thread)}
            untried = any(latest is None and not self._gave_up(a, thread) for (a, _), latest in tries.items())
            for (agent, of), latest in tries.items():
                is_open = latest is None if untried else latest is None or latest.grade not in ("PENDING", "ACCURATE")
                if agent == self.agent and is_open:
                    commitment = thread.commitments[of].message
                    return Intent(thread, "steelman", self.floor.by_id[commitment], of=of, steelman=latest)
        return None

    def _gave_up(self, agent: str, thread: Thread) -> bool:
        return self.floor.members[agent].gave_up(thread.id, "steelman")

    def _has_not_given_up(self, thread: Thread, kind: TurnKind) -> bool:
        return not self.me.gave_up(thread.id, kind)

    def _choose(self) -> Intent | Literal["wait", "pass"]:
        """Choose a message to answer among the new ones that this agent attends to, or wait, or pass."""
        floor, me = self.floor, self.me
        if floor.now < me.ready_at or not floor.can_compose:
            return "wait"
        mentions = self.agent if self.by_request_only else None
        new = [m for m in floor.published(since=me.seen, mentions=mentions) if m.agent != self.agent]
        unanswered = [m for messages in me.unanswered.values() for m in messages if m.number <= me.seen]
        messages = (message for message in (*unanswered, *new) if self._open(message))
        scored = [(floor.score(message, self.agent), message) for message in messages]
        open_now = [pair for pair in scored if pair[0] >= floor.settings.attention_threshold]
        named = [message for _, message in open_now if self.agent in message.mentions]
        if not open_now:
            return "wait"
        if not named and not me.held_back and self._is_crowded(new):
            me.held_back = True
            return "pass"
        me.held_back, me.seen = False, floor.messages[-1].number
        ranked = sorted(
            open_now, key=lambda pair: (-pair[0] - self._membership_bonus(pair[1]), *self._crowding_order(pair[1]))
        )
        index = self._draw()
        if named and index >= len(ranked):
            index = 0
        if index >= len(ranked):
            return "pass"
        score, message = ranked[index]
        return Intent(floor.threads[message.thread], "turn", message, score)

    def _open(self, message: DebateMessage) -> bool:
        """Whether a free turn may answer a message now."""
        thread = self.floor.threads[message.thread]
        if not thread.active or thread.busy or not thread.has_room:
            return False
        if message.by_moderator and self.agent not in message.mentions:
            return False
        if message.by_moderator and message.id != thread.last_request:
            return False  # the moderator has asked for something else since
        if thread.stage == "CRUX_LOCK" and (self.agent not in message.mentions or lock.awaits_delivery(thread)):
            return False
        composing = sum(m.composing for m in self.floor.members.values() if m is not self.me) if thread.in_flight else 0
        return (
            message.by_moderator
            or replies_to(thread, message) + min(composing, thread.in_flight) < MAX_REPLIES_PER_MESSAGE
        )

    def _is_crowded(self, new: list[DebateMessage]) -> bool:
        """Whether others have just had much to say in one thread: let them talk."""
        threads = [message.thread for message in new if not message.by_moderator]
        return any(threads.count(thread) >= HOLD_BACK_MESSAGES for thread in set(threads))

    def _crowding_order(self, message: DebateMessage) -> tuple[int, int]:
        """Order messages of equal attention: those of threads that fewer have taken up first, so that none goes unheard."""
        thread = self.floor.threads[message.thread]
        return len(thread.participants) + thread.in_flight, -message.number

    def _membership_bonus(self, message: DebateMessage) -> float:
        """Threads that the agent is in come first."""
        return 0.1 * (self.agent in self.floor.threads[message.thread].participants)

    def _draw(self) -> int:
        """0, 1 or 2 in 70, 20 and 10 of 100 looks. Where nothing could change its position, an agent passes twice as often."""
        self._looks += 1
        percent = self.floor.session.rng("choice", self.agent, self._looks).randrange(100)
        opening = self.floor.openings.get(self.agent)
        is_closed = opening is not None and opening.falsifier is None
        first, second = (40, 80) if is_closed else (70, 90)
        return 0 if percent < first else 1 if percent < second else 2

    # speaking

    async def _speak(self, intent: Intent) -> None:
        """Compose, wait out the thinking time, and publish what the gate lets through. Every attempt starts a cooldown."""
        floor, me, thread = self.floor, self.me, intent.thread
        me.turns += 1
        me.composing = True
        floor.attempts += 1
        floor.in_flight += 1
        thread.in_flight += 1
        phase = (thread.stage.lower(), thread.number)
        async with floor.session.phase(*phase):
            pending = floor.session.start(self._ask(intent))
            await self._sleep("think", THINK_MS)
            reply = await pending
        me.composing = False
        floor.in_flight -= 1
        thread.in_flight -= 1
        cooldown = floor.session.rng("cooldown", self.agent, me.turns).randint(*COOLDOWN_MS)
        if isinstance(reply, Failure):
            floor.failed_turns += not reply.kind.is_limit
            self._give_up(intent)
            if intent.kind == "turn":  # what it cannot answer holds nobody up
                me.unanswered.pop(thread.id, None)
        else:
            await self._publish(intent, reply, phase)
        if intent.kind != "grade":
            me.ready_at = floor.now + cooldown
        await self.moderator.lead(thread)

    async def _publish(self, intent: Intent, reply: Reply[Any], phase: tuple[str, int]) -> None:
        floor, thread = self.floor, intent.thread
        move: Move = reply.value.move if isinstance(reply.value, TurnReply) else _MOVE_OF[intent.kind]
        target = self._target(intent, reply)
        reason = blocked(thread, self.agent, move, floor.now, target=target, ready_at=self.me.ready_at)
        if reason is not None:
            floor.refuse(reply.key, thread, self.agent, move, reason)
            if intent.kind == "turn":
                self.me.unpublished = Unpublished(thread.id, reply.key, reason)
            self._give_up(intent)
            if reason == "thread_rate_limit" and thread.stage == "EVIDENCE":
                self.moderator.end_evidence(thread, "its rate limit was reached")
            return
        message = self._message(intent, reply, move, target)
        words, declared = spoken_words(floor, message, reply.value, intent.of), declared_in(floor, message, reply.value)
        await floor.publish(message, words, phase, **declared)
        if question := declared.get("question"):
            floor.question_of[message.id] = question
        if message.move == "PROPOSE_CRUX" and thread.stage == "DISCOVERY":
            floor.progress()
        floor.attend(message.attention)
        self.me.interests.follow(message.topics)
        self.me.opposing = False
        self.me.unpublished = None
        record_turn(floor, thread, message, reply.value, intent.of, intent.steelman)
        await self.moderator.after(thread, message)

    def _target(self, intent: Intent, reply: Reply[Any]) -> DebateMessage | None:
        """The message that a reply names, else the one that its agent set out to answer."""
        label = getattr(reply.value, "reply_to", None)
        named = self.floor.session.named(reply, [label]) if label else ()
        message = self.floor.by_id.get(named[0]) if named else None
        return message if message is not None and message.thread == intent.thread.id else intent.target

    def _message(self, intent: Intent, reply: Reply[Any], move: Move, target: DebateMessage | None) -> DebateMessage:
        floor, value = self.floor, reply.value
        words = value.text.strip() or (value.grade.lower() if isinstance(value, GradeTurn) else "")
        text = _clip(words, MAX_CHARS[floor.session.detail])
        quotations = tuple(floor.session.quotations(text, reply))
        commitment = intent.thread.commitments.get(self.agent)
        turn = value if isinstance(value, TurnReply) else None
        # A steelman addresses the agent that it represents, a grade the one that it grades.
        mentions: tuple[str, ...] = (intent.of,) if intent.of else ()
        if turn:
            mentions = tuple(floor.agent_of[letter] for letter in turn.mentions if letter in floor.agent_of)
        shift = (
            {name: getattr(value, name, "unchanged") for name in ("new_side", "top_claim")} if move in SHIFTING else {}
        )
        shift = {name: side for name, side in shift.items() if side != "unchanged"}
        side = value.side if isinstance(value, CommitReply) else shift.get("new_side")
        supported = getattr(value, "supports", None)
        bears_on = floor.agent_of.get(getattr(value, "bears_on", "nobody"))
        return floor.message(
            intent.thread,
            self.agent,
            id=f"{reply.key}/said",
            move=move,
            text=text,
            reply_to=target.id if target else None,
            mentions=mentions,
            topics=tuple(topic.strip() for topic in turn.topics if topic.strip())[:3] if turn else (),
            horizon=value.horizon if isinstance(value, CommitReply) else commitment.horizon if commitment else None,
            confidence=LEVELS[value.confidence] if isinstance(value, CommitReply) else None,
            refs=tuple(floor.session.named(reply, [supported])) if supported else (),
            prior_side=commitment.side if commitment and side and move in SHIFTING else None,
            new_side=side,
            top_claim=shift.get("top_claim"),
            attention=intent.attention,
            quotations=quotations,
            from_memory=move == "PROVIDE_EVIDENCE" and not any(q.verified for q in quotations),
            bears_on=bears_on,
            opposing=self.me.opposing,
            parts=declared_parts(value),
        )

    def _give_up(self, intent: Intent) -> None:
        """Count a delivery that failed; after two the process goes on without it."""
        if intent.kind == "turn":
            return
        thread = intent.thread
        self.me.refusals[thread.id, intent.kind] += 1
        if not self._has_not_given_up(thread, intent.kind):
            agents_owing = thread.to_commit if intent.kind == "commit" else thread.to_falsify
            if self.agent in agents_owing:
                agents_owing.remove(self.agent)

    # asking

    def _ask(self, intent: Intent) -> Ask[Any]:
        floor, thread = self.floor, intent.thread
        key = f"{intent.kind}/{self.agent}/{self.me.turns}/{thread.id}"
        returns, accept, extra = self._request(intent)
        blocked = self._unpublished(intent)
        unpublished = (Quote(blocked.key, "unpublished"),) if blocked else ()
        words = floor.session.render_template(
            intent.kind,
            seat=self._seat(),
            state=self._state_lines(thread),
            question=thread.question or "",
            provisional=thread.stage == "DISCOVERY",
            topic=thread.topic,
            chars=MAX_CHARS[floor.session.detail],
            own=self._own_position(thread),
            claim=floor.claims.get(self.agent, ""),
            **extra,
        )
        return floor.session.ask(
            self.agent,
            Prompt(
                words,
                (*floor.own_quotes(thread, self.agent), *unpublished),
                (*self._quotes_before_window(thread), *floor.quotes(thread)),
                preface=floor.rules,
            ),
            key=key,
            returns=returns,
            kind=intent.kind,
            accept=accept,
        )

    def _unpublished(self, intent: Intent) -> Unpublished | None:
        """Its last turn, if that was to be in this thread and was blocked."""
        last = self.me.unpublished
        return last if last and intent.kind == "turn" and last.thread == intent.thread.id else None

    def _request(self, intent: Intent) -> tuple[type[SpokenReply], Callable[[Any], None] | None, dict[str, Any]]:
        """The reply type of what is asked, its check, and what its template needs besides."""
        floor, thread = self.floor, intent.thread
        of = floor.letters[intent.of] if intent.of else ""
        match intent.kind:
            case "commit":
                return (
                    CommitReply,
                    None,
                    {"horizon": thread.horizon or "", "again": thread.reframed},
                )
            case "falsify":
                return FalsifierTurn, _refuse_empty_falsifier, {}
            case "steelman":
                corrections = intent.steelman.corrections if intent.steelman else ""
                position = thread.commitments[intent.of] if intent.of else None
                label = floor.by_id[position.message].label if position else ""
                return SteelmanTurn, refuse_empty_steelman, {"of": of, "label": label, "corrections": corrections}
            case "grade":
                assert intent.steelman is not None
                label = floor.by_id[intent.steelman.message].label
                return GradeTurn, refuse_bare_grade, {"of": of, "label": label}
            case "turn":
                moves = self._moves(thread)
                others = tuple(letter for agent, letter in floor.letters.items() if agent != self.agent)
                target, proposals, blocked = intent.target, self._supportable(thread), self._unpublished(intent)
                return (
                    turn_type(moves, others, proposals),
                    refuse_incomplete,
                    {
                        "moves": moves,
                        "offers": tuple((move, MOVES[move].gist) for move in moves),
                        "target": target.label if target else "",
                        "by_moderator": bool(target and target.by_moderator),
                        "opposing": self.me.opposing,
                        "blocked": BLOCKED[blocked.reason] if blocked else "",
                        "challengeable": self._challengeable(thread),
                        "propositions": floor.framing.propositions,
                        "proposals": proposals,
                    },
                )

    def _moves(self, thread: Thread) -> tuple[Move, ...]:
        """The moves open to this agent now, in the order of the vocabulary."""
        allowed = {move for move, row in MOVES.items() if thread.stage in row.stages and not row.delivered}
        if thread.stage == "EVIDENCE":
            if not lock.may_challenge_somebody(thread, self.agent):
                allowed = allowed - {"CHALLENGE_EVIDENCE"} | {"STEELMAN"}
            if self.agent not in thread.commitments:
                allowed -= {"UPDATE_POSITION"}
        return tuple(move for move in MOVES if move in allowed)

    def _supportable(self, thread: Thread) -> tuple[str, ...]:
        """Labels of the messages in the prompt whose question another agent proposed and this one does not support yet."""
        floor, spawning = self.floor, self.moderator.spawning
        wanted = (
            {id: supporters for id, (_, supporters) in thread.proposals.items()} if thread.stage == "DISCOVERY" else {}
        )
        wanted |= {id: set(spawning.proposals[id].supporters) for id in spawning.open_in(thread)}
        shown = (
            *(quote.id for quote in self._quotes_before_window(thread)),
            *(message.id for message in window(thread.messages)),
        )
        return tuple(floor.by_id[id].label for id in shown if self.agent not in wanted.get(id, {self.agent}))

    def _challengeable(self, thread: Thread) -> tuple[str, ...]:
        """Letters of the participants whose evidence this agent may challenge."""
        others = (other for other in thread.participants if other != self.agent)
        return tuple(self.floor.letters[other] for other in others if lock.may_challenge(thread, self.agent, other))

    def _seat(self) -> str:
        floor = self.floor
        agent = floor.session.agent(self.agent)
        others = [
            letter if floor.settings.anonymous_peers else f"{letter} ({floor.names[other]})"
            for other, letter in floor.letters.items()
            if other != self.agent
        ]
        return (
            f"You are {floor.letters[self.agent]}; the others are {', '.join(others)}. {agent.introduction()}".strip()
        )

    def _own_position(self, thread: Thread) -> str:
        """Where the agent's own position on the question stands."""
        commitment = thread.commitments.get(self.agent)
        return f"{commitment.side}, in {self.floor.by_id[commitment.message].label}" if commitment else ""

    def _open_proposals(self, thread: Thread) -> list[str]:
        return self.moderator.spawning.open_in(thread)[-STATE_LINES:]

    def _state_lines(self, thread: Thread) -> tuple[str, ...]:
        """Where a thread stands, for every participant alike. What others wrote stands in quotations, never in these lines."""
        letters, by_id = self.floor.letters, self.floor.by_id
        lines = [f"{letters[a]} answers {c.side}, in {by_id[c.message].label}." for a, c in thread.commitments.items()]
        proposed = self._open_proposals(thread)
        return (*lines, *(f"{by_id[id].label} proposes a question for a thread of its own." for id in proposed))

    def _quotes_before_window(self, thread: Thread) -> tuple[Quote, ...]:
        """Messages before the window that matter to all, in order: commitments, the last concessions, open proposals. They come
        first, so that prompts share their beginning."""
        by_id = self.floor.by_id
        shown = {message.id for message in window(thread.messages)}
        opposed = {agent for pair in thread.required or () for agent in pair}
        ranked = sorted(thread.commitments.values(), key=lambda commitment: commitment.agent not in opposed)
        ids = {c.message for c in [c for c in ranked if c.message not in shown][:STANDING_COMMITMENTS]}
        ids |= {c.message for c in [c for c in thread.concessions if c.message not in shown][-STATE_LINES:]}
        ids |= set(self._open_proposals(thread)) - shown
        return quotes_of(sorted((by_id[id] for id in ids), key=lambda message: message.number))


def _refuse_empty_falsifier(turn: FalsifierTurn) -> None:
    if falsifier_of(turn) is None:
        raise ValueError("`metric` and `threshold` must say what would change your mind")


def _clip(text: str, chars: int) -> str:
    """A text of at most that many characters, cut at a word; what is cut is marked."""
    return text if len(text) <= chars else text[: chars - 2].rsplit(" ", 1)[0] + " …"
