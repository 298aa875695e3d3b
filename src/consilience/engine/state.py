"""The state that all branches of a running session share. Protocols see `Session` instead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from consilience.domain.across import AcrossDocuments
from consilience.domain.agents import Agent
from consilience.domain.errors import ProtocolViolation
from consilience.domain.events import CallCompleted, MessagePublished, SessionStarted, text_id
from consilience.domain.messages import Message
from consilience.domain.notes import dump_note
from consilience.domain.report import Report
from consilience.domain.tokens import likely_tokens
from consilience.engine.activity import Activity, Phase
from consilience.engine.cancelling import Cancellation
from consilience.engine.ledger import Ledger
from consilience.engine.ports import AgentPort
from consilience.engine.prompt import Opening, Prompt, Rendered, render
from consilience.engine.recalled import Recalled, RoundReplies
from consilience.engine.recorder import Recorder
from consilience.engine.shortening import shorten_oldest
from consilience.engine.similarity import Encoder
from consilience.engine.sources import Document
from consilience.engine.template_use import TemplateUse
from consilience.engine.templates import Templates
from consilience.engine.timing import CallsInFlight
from consilience.journal.accounts import Account

FaultHook = Callable[[str, Phase | None], None]


def no_faults(point: str, phase: Phase | None) -> None:
    return None


def not_observed(key: str, attempt: int, agent: str, rendered: Rendered, schema: Mapping[str, object] | None) -> None:
    return None


def nothing_held(phase: Phase | None) -> bool:
    return False


@dataclass
class State:
    """What the branches of one running session share."""

    id: str
    started: SessionStarted
    """The event that began it: settings, agents, limits and all else that the run depends on."""
    opening: Opening
    templates: Templates
    template_use: TemplateUse
    """Of the replaced templates."""
    ports: Mapping[str, AgentPort]
    recorder: Recorder
    activity: Activity
    reply_tokens: int
    ledger: Ledger
    in_flight: CallsInFlight
    encoder: Encoder | None = None
    has_encoder: bool = False
    """Whether the session has an encoder. A replay has its vectors and opens none."""
    resumed: bool = False
    lost: int = 0
    report_type: type[Report] = Report
    notes: Mapping[str, type[BaseModel]] = field(default_factory=dict)
    must_be_read: frozenset[str] = frozenset()
    after_answer: frozenset[str] = frozenset()
    pace: float = 0.0
    """Real seconds per virtual second; 0 runs virtual time as fast as replies come."""
    human_deadline: float | None = None
    faults: FaultHook = no_faults
    hold: Callable[[Phase | None], bool] = nothing_held
    on_rendered: Callable[[str, int, str, Rendered, Mapping[str, object] | None], None] = not_observed
    """Called with the key, attempt, agent, prompt and schema of each attempt that is new or equals the recorded one."""
    account: Account | None = None
    """That of the session's owner, if something bounds it."""
    warnings: list[tuple[str, str]] = field(default_factory=list)
    documents: dict[str, tuple[Document, ...]] = field(default_factory=dict)
    """Documents that calls were shown which name them, by key."""
    ages: dict[str, int] = field(default_factory=dict)
    """Forks since each call was made, by key."""
    outdated: list[str] = field(default_factory=list)
    """Inherited calls that this fork had to repeat, by key."""
    unintroduced: dict[str, Agent] = field(default_factory=dict)
    """Agents with a persona that no prompt has contained so far."""
    prose: dict[str, bool] = field(default_factory=dict)
    """Whether a reply that must have a form was plain text, by key; without the replies of people, who may choose."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Labels that replies named without having been shown them."""
    shortened: dict[str, int] = field(default_factory=dict)
    """How many quotations of a prompt were shortened, by the key of its call."""
    told: dict[str, str] = field(default_factory=dict)
    """What the engine told calls of documents in place of its notes to their agents, by key."""
    across: AcrossDocuments | None = None
    """What the inventories of dealt documents gave."""
    timeouts: Counter[str] = field(default_factory=Counter)
    """How often outside agents were too late, by agent."""
    round: RoundReplies | None = None
    """The replies of the round that runs, if its protocol settles rounds."""
    _shown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _messages: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recalled = Recalled(self.recorder, self.sender)

    @cached_property
    def models(self) -> Mapping[str, str]:
        """Names of the models by agent, as recorded."""
        return {agent.id: agent.model for agent in self.started.agents}

    @property
    def cancellation(self) -> Cancellation:
        return self.ledger.cancellation

    def render(self, agent: str, prompt: Prompt, correction: str | None = None) -> Rendered:
        return render(self.opening, agent, prompt, self.message, correction)

    def closing_tokens(self, agent: str, prompt: Prompt) -> int:
        """Max tokens of the reply to a closing prompt: those of any reply or, if the deal made these shorter, up to the room that
        the prompt leaves in the window of its agent."""
        window = self.started.windows.get(agent)
        if window is None or self.ledger.sizes.protocol.closing_reply_tokens is None:
            return self.reply_tokens
        return self.ledger.sizes.closing_reply(agent, window - self.render(agent, prompt).tokens)

    def render_to_fit(self, key: str, agent: str, prompt: Prompt, correction: str | None, reply: int) -> Rendered:
        """Render a prompt that leaves room for a reply of so many tokens in the window of its agent: if it does not, the oldest
        texts of others are shortened to their points."""
        rendered, window = self.render(agent, prompt, correction), self.started.windows.get(agent)
        if window is None or rendered.tokens + reply <= window:
            return rendered
        excess = likely_tokens(rendered.system) + likely_tokens(rendered.user) + reply - window
        quoted = [self.message(quote.id) for quote in (*prompt.shared, *prompt.quotes)]
        short = shorten_oldest((message for message in quoted if message.sender != agent), excess)
        if not short:
            return rendered
        self.shortened[key] = len(short)
        return render(self.opening, agent, prompt, lambda id: short.get(id) or self.message(id), correction)

    def render_template(self, name: str, **values: Hashable) -> str:
        text = self.templates.render(name, **values)
        self.template_use.note_text(name, text)
        return text

    def register(self, message: Message) -> None:
        if message.id in self._messages or message.id in self.recalled:
            raise ProtocolViolation(f"the message id {message.id!r} is used twice")
        self._messages[message.id] = message

    def register_reply(self, place: str, message: Message, shown: tuple[str, ...], written: str, prose: str) -> None:
        """Register the message that a reply is. The model wrote `written`."""
        self.register(message)
        self._shown[message.id] = shown
        if self.round is not None:
            self.round.add(place, written, prose, message.text, self.prose.get(message.id))

    def name_documents(self, agent: str, key: str, named: tuple[str, ...], related: tuple[str, ...]) -> None:
        """Note that a call shows documents that it names, instead of all that are open to its agent."""
        self.documents[key] = self.opening.shown(agent, named, related)
        if self.round is not None:
            self.round.documents[key] = (agent, named, related)

    def restore(
        self, replies: Sequence[CallCompleted], published: Iterable[MessagePublished], left: Mapping[str, Any]
    ) -> None:
        """Restore what the calls of a settled round left (`settling.Before.left`). `replies` are in program order."""
        added = left.get("added", {})
        forms = ((int(form), added.get(str(n), "")) for n, form in enumerate(left.get("forms", "")))
        self.recalled.add(zip(replies, forms, strict=True), published)
        marks = zip(replies, left.get("typed", ""), strict=True)
        self.prose.update({reply.key: mark == "p" for reply, mark in marks if mark != "-"})
        for key, (agent, named, related) in left.get("documents", {}).items():
            self.documents[key] = self.opening.shown(agent, tuple(named), tuple(related))
        self.warnings.extend((place, text) for place, text in left.get("warnings", ()))
        self.dropped.update(left.get("dropped", {}))
        self.timeouts.update(left.get("timeouts", {}))
        for agent in left.get("introduced", ()):
            self.unintroduced.pop(agent, None)
        self.template_use.rendered.update(left.get("rendered", ()))

    def message(self, id: str) -> Message:
        message = self.find_message(id)
        if message is None:
            raise ProtocolViolation(f"no message {id!r} to quote")
        return message

    def find_message(self, id: str) -> Message | None:
        """Return a message; None if there is none."""
        if id not in self._messages and id in self.recalled:
            self._messages[id] = self.recalled.message(id)
        return self._messages.get(id)

    def is_from_other_agent(self, id: str, agent: str) -> bool:
        """Return whether the message exists and another agent sent it."""
        return self.sender(id) not in (None, agent)

    def sender(self, id: str) -> str | None:
        """Return who sent a message; None if there is none."""
        if id in self._messages:
            return self._messages[id].sender
        return self.recalled.sender(id) if id in self.recalled else None

    def messages_of(self, kinds: Container[str]) -> list[Message]:
        """Return all messages of these kinds; others are not read."""
        known = [id for id, message in self._messages.items() if message.kind in kinds]
        return [self.message(id) for id in dict.fromkeys((*known, *self.recalled.of_kinds(kinds)))]

    def dump_note(self, name: str, data: BaseModel) -> tuple[dict[str, object], dict[str, str]]:
        """Return a note as `consilience.domain.notes.dump_note` does. Raises `ProtocolViolation`."""
        declared = self.notes.get(name)
        if declared is None or not isinstance(data, declared):
            names = ", ".join(f"{note} ({model.__name__})" for note, model in self.notes.items()) or "none"
            raise ProtocolViolation(f"the note {name!r} ({type(data).__name__}) is not declared; declared: {names}")
        try:
            return dump_note(data)
        except ValueError as error:
            raise ProtocolViolation(f"the note {name!r} cannot be recorded: {error}") from None

    def digest_in_session(self, digest: str) -> str:
        """Return a digest that no request of another session has, also one of the same name in another store."""
        return text_id(f"{self._origin}\n{digest}")

    @cached_property
    def _origin(self) -> str:
        return f"{self.id}\n{self.recorder.journal.store.created(self.id)}"

    def age(self, prompt: Prompt) -> float:
        """Forks since the youngest message or document that a prompt names was made; infinity if it names none.

        Documents shown to all calls do not count, else a fork with a new document would inherit nothing.
        """
        named = {reference.partition(":")[0] for reference in prompt.documents or ()}
        documents = [d.generations for d in self.opening.documents if d.id in named and d.generations is not None]
        return min((*documents, *(self._age(quote.id) for quote in (*prompt.shared, *prompt.quotes))), default=math.inf)

    def _age(self, id: str) -> float:
        """Age of a message: that of the youngest reply which it is, is made of, or replies to."""
        message = self.find_message(id)
        if message is None:
            return math.inf
        parts = id.split("/")
        origins = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        return min((self.ages[key] for key in (*origins, message.reply_to or "") if key in self.ages), default=math.inf)

    def forget(self) -> None:
        """Drop what the run recorded. It is part of reference cycles, and the collector takes a tenth of a resume to find them."""
        self._messages.clear()
        self._shown.clear()
        self.recalled = Recalled(self.recorder, self.sender)
        self.recorder.forget()

    @property
    def shown(self) -> Mapping[str, tuple[str, ...]]:
        """Ids of the messages that calls were shown which were answered, by key."""
        self._shown.update(self.recalled.shown())
        return self._shown
