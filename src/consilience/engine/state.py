"""What all branches of a running session stand on. Protocols never see it; they see `Session`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from consilience.domain.agents import Agent
from consilience.domain.errors import ProtocolViolation
from consilience.domain.messages import Message
from consilience.domain.outcome import Estimate, Limits
from consilience.domain.topology import Topology
from consilience.engine.activity import Activity
from consilience.engine.allowances import Allowances
from consilience.engine.branch import Account, Amount, Phase
from consilience.engine.ports import AgentPort
from consilience.engine.prompt import Opening, Prompt, Rendered, render
from consilience.engine.recorder import Recorder
from consilience.engine.similarity import Encoder
from consilience.engine.templates import Templates

Faults = Callable[[str, Phase | None], None]


def no_faults(point: str, phase: Phase | None) -> None:
    return None


def nothing_held(phase: Phase | None) -> bool:
    return False


@dataclass
class State:
    """`reserve` is what is held back for the closing call: one call of the greatest size, or all there is if that is less.

    `ages` says of every call how many forks ago it was made; `outdated` are those that a fork had inherited and made anew.
    """

    id: str
    protocol: str
    settings: Mapping[str, object]
    agents: tuple[Agent, ...]
    topology: Topology
    opening: Opening
    templates: Templates
    ports: Mapping[str, AgentPort]
    recorder: Recorder
    activity: Activity
    limits: Limits
    estimate: Estimate
    quorum: float
    seed: int
    repairs: int
    call_size: Amount
    prices: Mapping[str, tuple[float, float]]
    steps: Mapping[str, int]
    root: Account
    reserve: Account
    allowances: Allowances
    encoder: Encoder | None = None
    parent: str | None = None
    resumed: bool = False
    lost: int = 0
    temperature: float | None = None
    cache: bool = False
    faults: Faults = no_faults
    hold: Callable[[Phase | None], bool] = nothing_held
    warnings: list[tuple[str, str]] = field(default_factory=list)
    shown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ages: dict[str, int] = field(default_factory=dict)
    outdated: list[str] = field(default_factory=list)
    dropped: int = 0
    late: bool = False
    reserve_drawn: bool = False
    _messages: dict[str, Message] = field(default_factory=dict)

    def render(self, agent: str, prompt: Prompt, correction: str | None = None) -> Rendered:
        return render(self.opening, agent, prompt, self.message, correction)

    def register(self, message: Message) -> None:
        if message.id in self._messages:
            raise ProtocolViolation(f"the message id {message.id!r} is used twice")
        self._messages[message.id] = message

    def message(self, id: str) -> Message:
        try:
            return self._messages[id]
        except KeyError:
            raise ProtocolViolation(f"no message {id!r} to quote") from None

    def said_by_other(self, id: str, agent: str) -> bool:
        """Whether there is such a message, of somebody else."""
        found = self._messages.get(id)
        return found is not None and found.sender != agent

    def age(self, prompt: Prompt) -> float:
        """How many forks ago the youngest message of a prompt came into being; infinity for a prompt without any."""
        return min((self._age(quote.id) for quote in (*prompt.shared, *prompt.quotes)), default=math.inf)

    def _age(self, id: str) -> float:
        """Of a message: that of the youngest reply that it is, is made of, or replies to."""
        found = self._messages.get(id)
        if found is None:
            return math.inf
        parts = id.split("/")
        origins = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        return min((self.ages[key] for key in (*origins, found.reply_to or "") if key in self.ages), default=math.inf)

    @property
    def messages(self) -> Mapping[str, Message]:
        return self._messages

    def price(self, agent: str, tokens_in: int, tokens_out: int) -> float:
        """US dollars foreseen for a request, from the prices recorded at the start; 0 where none is known."""
        read, written = self.prices.get(agent, (0.0, 0.0))
        return tokens_in * read + tokens_out * written

    def out_of_time(self) -> bool:
        """Once late, always late: the first refusal decides for all later live calls."""
        if not self.late and self.limits.seconds is not None:
            self.late = self.recorder.now() >= self.limits.seconds
        return self.late
