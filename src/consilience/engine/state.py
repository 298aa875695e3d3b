"""The state that all branches of a running session share. Protocols see `Session` instead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import BaseModel

from consilience.domain.across import AcrossDocuments
from consilience.domain.agents import Agent
from consilience.domain.errors import ProtocolViolation
from consilience.domain.events import SessionStarted, text_id
from consilience.domain.messages import Message
from consilience.domain.notes import dump_note
from consilience.domain.report import Report
from consilience.engine.activity import Activity, Phase
from consilience.engine.cancelling import Cancellation
from consilience.engine.ledger import Ledger
from consilience.engine.ports import AgentPort
from consilience.engine.prompt import Opening, Prompt, Rendered, render
from consilience.engine.recorder import Recorder
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
    shown: dict[str, tuple[str, ...]] = field(default_factory=dict)
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
    told: dict[str, str] = field(default_factory=dict)
    """What the engine told calls of documents in place of its notes to their agents, by key."""
    across: AcrossDocuments | None = None
    """What the inventories of dealt documents gave."""
    timeouts: Counter[str] = field(default_factory=Counter)
    """How often outside agents were too late, by agent."""
    _messages: dict[str, Message] = field(default_factory=dict)

    @cached_property
    def models(self) -> Mapping[str, str]:
        """Names of the models by agent, as recorded."""
        return {agent.id: agent.model for agent in self.started.agents}

    @property
    def cancellation(self) -> Cancellation:
        return self.ledger.cancellation

    def render(self, agent: str, prompt: Prompt, correction: str | None = None) -> Rendered:
        return render(self.opening, agent, prompt, self.message, correction)

    def render_template(self, name: str, **values: Hashable) -> str:
        text = self.templates.render(name, **values)
        self.template_use.note_text(name, text)
        return text

    def register(self, message: Message) -> None:
        if message.id in self._messages:
            raise ProtocolViolation(f"the message id {message.id!r} is used twice")
        self._messages[message.id] = message

    def message(self, id: str) -> Message:
        try:
            return self._messages[id]
        except KeyError:
            raise ProtocolViolation(f"no message {id!r} to quote") from None

    def is_from_other_agent(self, id: str, agent: str) -> bool:
        """Return whether the message exists and another agent sent it."""
        message = self._messages.get(id)
        return message is not None and message.sender != agent

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
        message = self._messages.get(id)
        if message is None:
            return math.inf
        parts = id.split("/")
        origins = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        return min((self.ages[key] for key in (*origins, message.reply_to or "") if key in self.ages), default=math.inf)

    def forget(self) -> None:
        """Drop what the run recorded. It is part of reference cycles, and the collector takes a tenth of a resume to find them."""
        self._messages.clear()
        self.shown.clear()
        self.recorder.forget()

    @property
    def messages(self) -> Mapping[str, Message]:
        return self._messages
