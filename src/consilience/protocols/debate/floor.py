"""What the seats of a debate share while it runs: threads, messages, attention, counts. It publishes, and it records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from consilience.domain.agents import seat_names
from consilience.domain.messages import Message
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.debate import lock, notes
from consilience.protocols.debate.attention import (
    NOTICED,
    Interests,
    Mode,
    embedding_score,
    keyword_score,
    keywords,
)
from consilience.protocols.debate.fold import DebateFold
from consilience.protocols.debate.moves import (
    MAX_CHARS,
    MAX_REPLIES_PER_MESSAGE,
    MOVES,
    THINK_MS,
    BlockReason,
    Intervention,
    Move,
)
from consilience.protocols.debate.records import (
    Crux,
    DebateBallot,
    DebateMessage,
    Framing,
    TurnData,
    UnopenedQuestion,
)
from consilience.protocols.debate.scoring import Coalitions, detect_coalitions
from consilience.protocols.debate.settings import DebateSettings
from consilience.protocols.debate.threads import Budgets, Thread

T = TypeVar("T", bound=BaseModel)

MODERATOR, CRYSTALLIZER, SECOND_OPINION = "moderator", "crystallizer", "second_opinion"
MAX_REFUSALS = 2
WINDOW_MIN, WINDOW_MAX = 8, 24
"""Messages of a thread that a prompt shows: the anchor moves in jumps, so that prompts share their beginning."""


MAX_KEY_QUOTES = 40
LAST_OF_THREAD = 3
"""Last messages of each thread that every ballot shows."""
HISTORY = 500
"""Messages that can be asked for."""
OWN_MESSAGES = 3
"""Earlier messages of its own that an agent is shown beside the window."""


def window(messages: list[DebateMessage]) -> list[DebateMessage]:
    """The last 8 to 24 messages, from an anchor that moves by 16 at a time and is the same for all readers."""
    step = WINDOW_MAX - WINDOW_MIN
    jumps = max(0, -(-(len(messages) - WINDOW_MAX) // step))
    return messages[jumps * step :]


def quotes_of(messages: Iterable[DebateMessage]) -> tuple[Quote, ...]:
    return tuple(Quote(message.id, message.label) for message in messages)


class Unpublished(NamedTuple):
    """A turn that the gate blocked."""

    thread: str
    key: str
    reason: BlockReason


@dataclass
class Member:
    """What the debate keeps of an agent."""

    interests: Interests
    ready_at: int = 0
    """When its cooldown ends."""
    seen: int = 0
    """The number of the last message that it has considered."""
    unanswered: dict[str, list[DebateMessage]] = field(default_factory=dict)
    """Messages that mention it, by thread, since it last spoke there."""
    held_back: bool = False
    turns: int = 0
    spoken: int = 0
    composing: bool = False
    opposing: bool = False
    """Whether it was asked to argue the other side in its next turn."""
    unpublished: Unpublished | None = None
    """Its last turn if that was blocked: shown to it in its next turn there."""
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Failed or blocked deliveries, by thread and kind."""

    def gave_up(self, thread: str, kind: str) -> bool:
        """Whether what the process asks of this agent in a thread has failed too often to be asked again."""
        return self.refusals[thread, kind] >= MAX_REFUSALS


def aside(
    session: Session,
    request: str,
    quotes: tuple[Quote, ...] = (),
    shared: tuple[Quote, ...] = (),
) -> Prompt:
    """Return the prompt of an ask about messages whose reply is none: it explains labels, and no moves."""
    return Prompt(request, quotes, shared, preface=(session.render_template("debate"),))


class Floor:
    """The shared state of one debate."""

    def __init__(self, session: Session, settings: DebateSettings, mode: Mode, framing: Framing) -> None:
        self.session, self.settings, self.mode, self.framing = session, settings, mode, framing
        self.debaters = settings.seat_ids
        first = (document.text for document in session.sources if document.generations is None)
        budgets = Budgets(settings.discovery_messages, settings.evidence_messages)
        self.fold = DebateFold(self.debaters, (session.task, *first), budgets)
        self.fold.apply(framing)
        self.letters, self.threads = self.fold.letters, self.fold.threads
        self.messages, self.said, self.by_id = self.fold.messages, self.fold.said, self.fold.by_id
        self.agent_of = {letter: agent for agent, letter in self.letters.items()}
        self.names = seat_names(session.agents)
        self.readers = (*self.debaters, MODERATOR, CRYSTALLIZER, SECOND_OPINION)
        self.openings: dict[str, DebateBallot] = {}
        self.claims: dict[str, str] = {}
        """What each agent argues for now."""
        self.members: dict[str, Member] = {}
        self.unopened: tuple[UnopenedQuestion, ...] = ()
        """Questions that two agents wanted and no thread asked."""
        self.missing: dict[str, Failure] = {}
        """The failed ballot of each debater that has none that counts: the opening one, the final one, or one on a new fact."""
        self.unanswered: list[str] = []
        """Calls of service seats without a reply, by key."""
        self.blocked: Counter[BlockReason] = Counter()
        self.attempts = self.in_flight = self.failed_turns = 0
        self.attended = self.attended_highly = 0
        self.framings = self.comparisons = 0
        self.mismatches = self.alignments = self.promotions = 0
        self.last_progress = 0
        """The number of messages at the last question framed, lock tried or crux extracted."""
        self.coalitions = Coalitions()
        """As far as they were looked for while the debate runs."""
        self.coalitions_since = self.crux_since = 0
        """The number of debaters' messages at the last change of coalitions, and at the last extraction of a crux."""
        self.promoted: str | None = None
        self.advocate: str | None = None
        self.over: str | None = None
        """Why the exchange ended."""
        self.closed = False
        """Whether virtual time has ended."""
        self.duration_ms = settings.duration_limit(1) * 1000
        """When the exchange ends at the latest."""
        self.keep_ballots: Callable[[], None] = lambda: None
        """Keeps what final ballots cost now from the calls of the exchange."""
        self.disputes: dict[str, tuple[float, frozenset[str]]] = {}
        """What the agenda adds to the attention to messages about an active dispute, with its words, by thread."""
        self.question_of: dict[str, str] = {}
        """The question in a message that proposes one."""
        self.rules = tuple(filter(None, (session.render_template("debate"), session.render_template("moves"))))
        """How the debate works, for those who speak in it."""
        self._words: dict[str, frozenset[str]] = {}
        self._cosines: dict[str, dict[str, float]] = {}
        self._thoughts: Counter[str] = Counter()

    @property
    def now(self) -> int:
        return self.session.clock.now

    @property
    def spoken(self) -> int:
        """Published messages of debaters."""
        return len(self.said)

    @property
    def active(self) -> list[Thread]:
        return [thread for thread in self.threads.values() if thread.active]

    @property
    def can_compose(self) -> bool:
        """Whether another reply may be begun within the limits on messages and attempts, what is being composed included."""
        settings = self.settings
        return (
            self.over is None
            and self.spoken + self.in_flight < settings.message_limit(self.session.limits.steps)
            and self.attempts < settings.max_attempts
        )

    @property
    def ballot_growth(self) -> int:
        """Characters by which a final ballot's prompt may still grow: a message of every debater, and candidates to vote on."""
        return (len(self.debaters) + 2) * MAX_CHARS[self.session.detail]

    def note(self, data: BaseModel) -> None:
        """Record what happened, and change what follows from it."""
        self.fold.apply(data)
        self.session.note(notes.NAMES[type(data)], data)

    def end(self, reason: str) -> None:
        """End the exchange; nobody begins another reply."""
        self.over = self.over or reason

    async def open_thread(
        self, topic: str, members: Sequence[str], *, question: str | None = None, parent: str | None = None
    ) -> Thread:
        """Open a thread and ask its members to speak; they are in it from the beginning."""
        id, seats = f"thread-{len(self.threads) + 1}", tuple(members)
        note = notes.ThreadCreated(at=self.now, thread=id, topic=topic, question=question, parent=parent, members=seats)
        self.note(note)
        thread = self.threads[id]
        await self.intervene(thread, "open", tuple(members))
        return thread

    def owing(self, thread: Thread) -> set[str]:
        """Agents from whom the lock of a thread awaits something that has not been given up."""
        return {agent for agent, kind in lock.owing(thread) if not self.members[agent].gave_up(thread.id, kind)}

    def progress(self) -> None:
        """Note that a question was framed, a lock tried or a crux extracted."""
        self.last_progress = self.spoken

    @property
    def cruxes(self) -> list[Crux]:
        """Cruxes by thread; of those that ask the same only the first."""
        later = self.fold.repeated
        return [t.crux for t in self.threads.values() if t.crux is not None and t.id not in later]

    def find_coalitions(self) -> None:
        """Look who stands with whom after another crux, and record it where it changed."""
        before, self.coalitions = (
            self.coalitions,
            detect_coalitions(self.cruxes, [*self.openings.values()], self.messages),
        )
        if self.coalitions.partition != before.partition:
            self.coalitions_since = self.spoken
            found, finding = self.coalitions.found, self.coalitions.finding
            self.note(notes.CoalitionDetected(at=self.now, coalitions=found, finding=finding))

    # messages

    def published(
        self,
        *,
        thread: str | None = None,
        since: int = 0,
        agent: str | None = None,
        mentions: str | None = None,
        topic: str | None = None,
    ) -> list[DebateMessage]:
        """The bus: messages of the last `HISTORY` with a number above `since`, as far as named of a thread, by an agent, with a
        mention of an agent, on a topic; in order of publication."""
        return [
            message
            for message in self.messages[max(since, len(self.messages) - HISTORY) :]
            if (thread is None or message.thread == thread)
            and (agent is None or message.agent == agent)
            and (mentions is None or mentions in message.mentions)
            and (topic is None or topic in message.topics)
        ]

    @property
    def asked(self) -> list[Thread]:
        """Threads whose question is on the final ballot."""
        return [thread for thread in self.threads.values() if thread.on_ballot]

    def key_quotes(self) -> tuple[Quote, ...]:
        """What carries the exchange: commitments, accurate steelmen, evidence, concessions, updates, challenges to evidence; where
        these are few, the last messages as well."""
        accurate = {s.message for thread in self.threads.values() for s in thread.steelmen if s.grade == "ACCURATE"}
        kept = [m.id for m in self.said if MOVES[m.move].key or m.id in accurate][-MAX_KEY_QUOTES:]
        chosen, last = set(kept), reversed(self.said)
        while len(chosen) < MAX_KEY_QUOTES and (message := next(last, None)) is not None:
            chosen.add(message.id)
        return self._quotes_in_order(chosen)

    def quotes(self, thread: Thread) -> tuple[Quote, ...]:
        """The window of a thread, the same for all its readers."""
        return quotes_of(window(thread.messages))

    def overview(self) -> tuple[Quote, ...]:
        """What a ballot is cast on: what carries the exchange, the last messages of every thread, and what the candidates for
        common ground are taken from."""
        chosen = {quote.id for quote in self.key_quotes()}
        chosen |= {source for candidate in self.fold.candidates for source in candidate.sources}
        for thread in self.threads.values():
            chosen |= {message.id for message in thread.spoken[-LAST_OF_THREAD:]}
        return self._quotes_in_order(chosen)

    def _quotes_in_order(self, ids: Iterable[str]) -> tuple[Quote, ...]:
        return quotes_of(sorted((self.by_id[id] for id in ids), key=lambda message: message.number))

    def own_quotes(self, thread: Thread, agent: str) -> tuple[Quote, ...]:
        """The last messages of an agent that the window of the thread shows no more."""
        shown = {message.id for message in window(thread.messages)}
        standing = {commitment.message for commitment in thread.commitments.values()}
        own_messages = [m for m in thread.messages if m.agent == agent and m.id not in shown | standing]
        return quotes_of(own_messages[-OWN_MESSAGES:])

    def message(self, thread: Thread, agent: str, **fields: Any) -> DebateMessage:
        """Return the next message, to be published now."""
        number = len(self.messages) + 1
        label = f"{self.letters.get(agent, 'M')}{number}"
        return DebateMessage(number=number, label=label, agent=agent, thread=thread.id, at=self.now, **fields)

    async def publish(self, message: DebateMessage, words: str, phase: tuple[str, int], **declared: Any) -> None:
        """Publish a message with the words by which prompts quote it, which end with its own. `declared` is what else it adds to
        its thread."""
        session = self.session
        published = Message(
            message.id, message.agent, message.move.lower(), words, self.readers, message.reply_to, phase
        )
        session.publish(published)
        self.fold.publish(published.id, published.sender, published.kind, words, published.reply_to)
        lead, parts = len(words) - len(message.words), tuple(map(len, message.parts))
        shared = {name: getattr(message, name) for name in TurnData.model_fields}
        self.note(notes.Said(message=message.id, lead=lead, parts=parts, **shared, **declared))
        message = self.by_id[message.id]
        if not message.by_moderator:
            self.members[message.agent].spoken += 1
        self._keep_mentions(message)
        self.keep_ballots()
        self._words[message.id] = frozenset([*keywords(message.text), *(topic.casefold() for topic in message.topics)])
        if self.mode == "embedding":
            topics = sorted({topic for member in self.members.values() for topic in member.interests.topics})
            rows = await session.cosines([message.text], topics) if topics else None
            self._cosines[message.id] = dict(zip(topics, rows[0], strict=True)) if rows else {}

    def _keep_mentions(self, message: DebateMessage) -> None:
        """Keep a message open for those it mentions. A message of the moderator replaces its earlier ones in the thread."""
        for agent, member in self.members.items():
            if agent == message.agent:
                member.unanswered.pop(message.thread, None)
                continue
            earlier = member.unanswered.get(message.thread, [])
            kept = [m for m in earlier if not (message.by_moderator and m.by_moderator)]
            kept += [message] if agent in message.mentions else []
            if kept != earlier:
                member.unanswered[message.thread] = kept

    def awaits_answer(self, thread: Thread) -> bool:
        """Whether a message that mentions an agent may still be answered in a thread."""
        return thread.has_room and any(
            lock.replies_to(thread, message) < MAX_REPLIES_PER_MESSAGE
            for member in self.members.values()
            for message in member.unanswered.get(thread.id, ())
        )

    def untaken(self, topic: str) -> str:
        """Return the side of a proposition that no opening ballot takes while one takes the opposite side; otherwise ""."""
        if topic not in self.framing.propositions:
            return ""
        n = self.framing.propositions.index(topic)
        sides = {ballot.positions[n] for ballot in self.openings.values() if ballot.positions}
        return "NO" if "YES" in sides and "NO" not in sides else "YES" if "NO" in sides and "YES" not in sides else ""

    async def intervene(
        self, thread: Thread, kind: Intervention, mentions: tuple[str, ...], **values: object
    ) -> DebateMessage:
        """Publish a message of the moderator from its templates, addressed to `mentions`. It counts toward no budget."""
        template: dict[str, object] = {
            "kind": kind,
            "topic": thread.topic,
            "question": thread.question or "",
            "horizon": thread.horizon or "",
            "names": tuple(self.letters[agent] for agent in mentions),
            "missing": (),
            "hang": (),
            "criteria": (),
            "unclear": "",
            "agreed": self.untaken(thread.topic),
        }
        text = self.session.render_template("moderator", **(template | values))
        id = f"moderator/{len(self.messages) + 1}"
        message = self.message(thread, MODERATOR, id=id, move="CLARIFY", text=text, mentions=mentions)
        await self.publish(message, text, (thread.stage.lower(), thread.number), intervention=kind)
        return message

    # calls of service seats

    async def call(self, seat: str, ask: Ask[T]) -> Reply[T] | Failure:
        """Make a call that takes the thinking time of `seat` while the debate goes on."""
        if self.closed:
            reply = await ask
        else:
            pending = self.session.start(ask)
            await self.think(seat)
            reply = await pending
        if isinstance(reply, Failure):
            self.unanswered.append(ask.key)
        return reply

    async def think(self, seat: str) -> None:
        """Let the thinking time of a service seat pass."""
        self._thoughts[seat] += 1
        await self.session.clock.sleep(self.session.rng(seat, self._thoughts[seat]).randint(*THINK_MS))

    def refuse(self, key: str, thread: Thread, agent: str, move: Move, reason: BlockReason) -> None:
        """Record a reply that the gate blocked."""
        self.blocked[reason] += 1
        data = notes.MessageBlocked(at=self.now, key=key, thread=thread.id, agent=agent, move=move, reason=reason)
        self.note(data)

    # attention

    def score(self, message: DebateMessage, agent: str) -> float:
        """How relevant a message is to an agent now."""
        thread, member = self.threads[message.thread], self.members[agent]
        in_thread = agent in thread.members
        age, mentioned, boost = self.now - message.at, agent in message.mentions, self.boost(message)
        if self.mode == "embedding":
            semantic = member.interests.semantic(self._cosines.get(message.id, {}))
            return embedding_score(
                semantic, in_thread=in_thread, age_ms=age, move=message.move, mentioned=mentioned, boost=boost
            )
        overlap = member.interests.overlap(self._words[message.id])
        return keyword_score(
            overlap, in_thread=in_thread, age_ms=age, move=message.move, mentioned=mentioned, boost=boost
        )

    def boost(self, message: DebateMessage) -> float:
        """What the agenda adds to the attention to a message: that of the first dispute whose thread it is in or whose words it
        uses."""
        words = self._words[message.id]
        amounts = (amount for id, (amount, about) in self.disputes.items() if message.thread == id or words & about)
        return max(amounts, default=0.0)

    def attend(self, score: float | None) -> None:
        """Count a published answer to a message that its author chose."""
        if score is not None:
            self.attended += 1
            self.attended_highly += score >= NOTICED
