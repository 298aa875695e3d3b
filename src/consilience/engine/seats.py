"""Who sits where: dealing models to agents, and what they and their encoder are reached through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from consilience.domain.agents import Agent, in_dealing_order
from consilience.domain.detail import Detail, DetailChoice
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Estimate, ThinkingLevel, thinking_tokens
from consilience.engine.ports import AgentPort, ModelPort, Person, WorkerPort, to_port
from consilience.engine.similarity import Encoder
from consilience.models.fallback import Fallback
from consilience.models.port import Completion, Model, ModelRequest, Worker, context_window, thinks
from consilience.models.registry import SERVER_DEADLINE, is_embedded, is_person, resolve

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent

AnyModel: TypeAlias = "str | Model | AgentPort | Worker | LibraryAgent[Any, Any]"
"""A model by name, a model, an agent with tools, or whatever else answers."""

Models: TypeAlias = "AnyModel | Sequence[AnyModel] | Mapping[str, AnyModel]"


@dataclass(frozen=True)
class Seats:
    """Agents with what they are reached through."""

    agents: tuple[Agent, ...]
    """Each with the name of its model."""
    ports: Mapping[str, AgentPort]
    """By agent."""
    opened: tuple[Model, ...] = ()
    """Models to close at the end; those that the caller passed as objects stay open."""

    async def aclose(self) -> None:
        for model in self.opened:
            await model.close()


def make_seats(agents: Sequence[Agent], models: Models, deadline: float | None = None) -> Seats:
    """Give every agent its model: one for all, several in turn in the order of agents, or by agent id.

    Service seats are dealt last, and stand last in the result. Names are resolved once each; `deadline` is max seconds of one
    request to a model.
    """
    opened: dict[str, Model] = {}
    ports_by_model: dict[int, AgentPort] = {}
    agents = in_dealing_order(agents)

    def port(model: AnyModel) -> AgentPort:
        if isinstance(model, str):
            if is_person(model):
                return Person(model)
            if model not in opened:
                opened[model] = resolve(model, deadline=deadline)
            model = opened[model]
        if id(model) not in ports_by_model:
            ports_by_model[id(model)] = to_port(model)
        return ports_by_model[id(model)]

    dealt = models_by_agent(agents, models)
    ports = {id: port(model) for id, model in dealt.items()}

    def seated(agent: Agent) -> Agent:
        name = ports[agent.id].name
        return agent.model_copy(update={"model": name, "own_model": agent.own_model and name == agent.model})

    return Seats(tuple(map(seated, agents)), ports, tuple(opened.values()))


def models_by_agent(agents: Sequence[Agent], models: Models) -> dict[str, AnyModel]:
    """The model of each agent, by id, in dealing order. Raises `SettingsError` if an agent has none, or an id is unknown."""
    ids = [agent.id for agent in in_dealing_order(agents)]
    if isinstance(models, Mapping):
        lacking = [id for id in ids if id not in models]
        unknown = [id for id in models if id not in ids]
        if lacking or unknown:
            raise SettingsError(
                f"models are given by agent, but {', '.join(lacking or unknown)} {'has none' if lacking else 'is no agent'}",
                do=f"Give one for each of: {', '.join(ids)}.",
            )
        return {id: models[id] for id in ids}
    in_turn = [models] if isinstance(models, str) or not isinstance(models, Sequence) else list(models)
    if not in_turn:
        raise SettingsError("no model is given", do="Name at least one.")
    return {id: in_turn[i % len(in_turn)] for i, id in enumerate(ids)}


def choose_detail(choice: DetailChoice | None, agents: Sequence[Agent], models: Models) -> Detail:
    """The set of prompts: as chosen, else brief if an agent with a voice has a model of the embedded catalogue."""
    if choice is not None and choice != "auto":
        return choice
    dealt = models_by_agent(agents, models)
    voices = [dealt[agent.id] for agent in agents if agent.voice]
    names = [model if isinstance(model, str) else getattr(model, "name", None) for model in voices]
    return "brief" if any(isinstance(name, str) and is_embedded(name) for name in names) else "full"


def with_own_models(agents: Sequence[Agent], models: Models) -> Models:
    """`models`, where an agent whose persona brings a model has that one unless `models` names its seat."""
    own: dict[str, AnyModel] = {agent.id: agent.model for agent in agents if agent.own_model and agent.model}
    if not own or isinstance(models, Mapping):
        return {**own, **models} if isinstance(models, Mapping) else models
    dealt = [models] if isinstance(models, str) or not isinstance(models, Sequence) else list(models)
    seats = in_dealing_order(agents)
    return {agent.id: own.get(agent.id, dealt[n % len(dealt)]) for n, agent in enumerate(seats)} if dealt else models


def prices_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, tuple[float, float]]:
    """US dollars per token (input, output) by agent, taken from a million tokens; of a chain, its most expensive known links.

    Free agents are left out, and agents without any known price.
    """
    million = 1_000_000
    found: dict[str, tuple[float, float]] = {}
    for agent, port in ports.items():
        chain = port.model.models if isinstance(port, ModelPort) and isinstance(port.model, Fallback) else (port,)
        read = max(link.price(million, 0) or 0.0 for link in chain)
        written = max(link.price(0, million) or 0.0 for link in chain)
        if read or written:
            found[agent] = (read / million, written / million)
    return found


def request_deadline(given: float | None, level: ThinkingLevel | None) -> float | None:
    """Max seconds of one request: as given, else longer than is usual where models think at length."""
    return SERVER_DEADLINE if given is None and level in ("medium", "high") else given


def thinking_by_agent(ports: Mapping[str, AgentPort], level: ThinkingLevel) -> dict[str, int]:
    """Tokens for the thinking before one reply, by agent; an agent whose model never thinks is left out."""
    found = {id: thinks(_answering(port)) for id, port in ports.items()}
    return {id: thinking_tokens(level, one) for id, one in found.items() if one != "never"}


def windows_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, int]:
    """Tokens of context of each agent's model; agents for which they are unknown are left out."""
    return {id: window for id, port in ports.items() if (window := context_window(_answering(port)))}


def _answering(port: AgentPort) -> object:
    match port:
        case ModelPort():
            return port.model
        case WorkerPort():
            return port.worker
        case _:
            return port


def max_steps_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, int]:
    """The most steps of agents with tools, by agent; recorded, since a replay must fund their calls as the run did."""
    return {agent: port.worker.max_steps for agent, port in ports.items() if isinstance(port, WorkerPort)}


def estimate_with_steps(estimate: Estimate, steps: Mapping[str, int]) -> Estimate:
    """An estimate of calls with their steps. A protocol does not say who makes how many calls, so any may be the longest."""
    return Estimate(min=estimate.min, max=estimate.max * max(steps.values(), default=1))


def open_encoder(encoder: str | Encoder | None) -> Encoder | None:
    if not isinstance(encoder, str):
        return encoder
    from consilience.models import embeddings

    return embeddings.open_encoder(encoder)


def replay_seats(agents: Sequence[Agent]) -> Seats:
    """The seats of a replay, through which nothing is sent."""
    return Seats(tuple(agents), {agent.id: ReplayPort(agent.model) for agent in agents})


class ReplayPort:
    """The network in a replay."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, request: ModelRequest) -> Completion:
        raise AssertionError("a replay sends nothing")

    async def collect(self, key: str, digest: str) -> None:
        return None

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def close(self) -> None:
        return None
