"""Seats: assigning models to agents, and opening the ports through which agents are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from consilience.domain.agents import Agent, in_dealing_order
from consilience.domain.detail import Detail, DetailChoice
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import EACH, Estimate, Limits, ThinkingLevel, thinking_tokens
from consilience.engine.ports import AgentPort, ModelPort, Person, ReplayPort, WorkerPort, to_port
from consilience.engine.similarity import Encoder
from consilience.models.fallback import Fallback
from consilience.models.port import Model, Worker, context_window, thinks
from consilience.models.registry import SERVER_DEADLINE_SECONDS, is_embedded, is_person, is_workspace, resolve

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent

SeatModel: TypeAlias = "str | Model | AgentPort | Worker | LibraryAgent[Any, Any]"
"""What can answer for an agent: the name of a model, a model, an agent with tools or a port."""

Models: TypeAlias = "SeatModel | Sequence[SeatModel] | Mapping[str, SeatModel]"
"""One for all agents, several to assign in turn, or one per agent id."""


@dataclass(frozen=True)
class Seats:
    """The agents of a session and their ports."""

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
    """Assign models to agents and open their ports. Service seats come last. Each name is resolved once.

    `deadline`: max seconds of one request to a model.
    """
    opened: dict[str, Model] = {}
    ports_by_model: dict[int, AgentPort] = {}
    agents = in_dealing_order(agents)

    def port(model: SeatModel) -> AgentPort:
        if isinstance(model, str):
            if is_person(model):
                return Person(model)
            if is_workspace(model):
                from consilience.engine.external import open_seat

                return open_seat(model)
            if model not in opened:
                opened[model] = resolve(model, deadline=deadline)
            model = opened[model]
        if id(model) not in ports_by_model:
            ports_by_model[id(model)] = to_port(model)
        return ports_by_model[id(model)]

    ports = {id: port(model) for id, model in models_by_agent(agents, models).items()}

    def seated(agent: Agent) -> Agent:
        name = ports[agent.id].name
        return agent.model_copy(update={"model": name, "own_model": agent.own_model and name == agent.model})

    return Seats(tuple(map(seated, agents)), ports, tuple(opened.values()))


def models_by_agent(agents: Sequence[Agent], models: Models) -> dict[str, SeatModel]:
    """Return the model of each agent, service seats last. Raises `SettingsError` if an agent has none, or an id is unknown."""
    ids = [agent.id for agent in in_dealing_order(agents)]
    if isinstance(models, Mapping):
        missing = [id for id in ids if id not in models]
        unknown = [id for id in models if id not in ids]
        if missing or unknown:
            raise SettingsError(
                f"models are given by agent, but {', '.join(missing or unknown)} {'has none' if missing else 'is not an agent'}",
                do=f"Give one for each of: {', '.join(ids)}.",
            )
        return {id: models[id] for id in ids}
    models_in_turn = [models] if isinstance(models, str) or not isinstance(models, Sequence) else models
    if not models_in_turn:
        raise SettingsError("no model is given", do="Name at least one.")
    return {id: models_in_turn[n % len(models_in_turn)] for n, id in enumerate(ids)}


def choose_detail(choice: DetailChoice | None, agents: Sequence[Agent], models: Models) -> Detail:
    """Return the set of prompts: as chosen, else brief if an agent with a voice has a model of the embedded catalogue."""
    if choice is not None and choice != "auto":
        return choice
    by_agent = models_by_agent(agents, models)
    voices = [by_agent[agent.id] for agent in agents if agent.voice]
    names = [model if isinstance(model, str) else getattr(model, "name", None) for model in voices]
    return "brief" if any(isinstance(name, str) and is_embedded(name) for name in names) else "full"


def with_own_models(agents: Sequence[Agent], models: Models) -> Models:
    """Return `models`, in which an agent whose persona brings a model has that one, unless `models` names its seat."""
    own_models: dict[str, SeatModel] = {agent.id: agent.model for agent in agents if agent.own_model and agent.model}
    if not own_models:
        return models
    return (
        {**own_models, **models} if isinstance(models, Mapping) else {**models_by_agent(agents, models), **own_models}
    )


def prices_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, tuple[float, float]]:
    """US dollars per token (input, output) by agent, without agents that are free or have no known price.

    A chain of fallbacks has the prices of its most expensive known links. Prices are computed from a million tokens.
    """
    million = 1_000_000
    prices: dict[str, tuple[float, float]] = {}
    for agent, port in ports.items():
        input_price = max(link.price(million, 0) or 0.0 for link in _chain(port))
        output_price = max(link.price(0, million) or 0.0 for link in _chain(port))
        if input_price or output_price:
            prices[agent] = (input_price / million, output_price / million)
    return prices


def check_prices(ports: Mapping[str, AgentPort], limits: Limits) -> None:
    """Raise `SettingsError` if an agent that a limit on money bounds has a model without a known price."""
    caps = {name: cap for name, cap in limits.agents.items() if cap.money is not None}
    bounds_all = (
        limits.money is not None or EACH in caps or any(cap.money is not None for cap in limits.phases.values())
    )
    bounded = ports.values() if bounds_all else [port for agent, port in ports.items() if agent in caps]
    unpriced = dict.fromkeys(link.name for port in bounded for link in _chain(port) if link.price(1, 1) is None)
    if unpriced:
        raise SettingsError(
            f"a limit on money does not bound the cost of {', '.join(unpriced)}, whose price is not known",
            where="limits",
            do="Declare the price of an address with consilience.configure_endpoint, give a model of your own the method "
            "`price`, limit calls or tokens instead of money, or allow it with consilience.Options(allow_unpriced=True).",
        )


def _chain(port: AgentPort) -> Sequence[AgentPort | Model]:
    return port.model.models if isinstance(port, ModelPort) and isinstance(port.model, Fallback) else (port,)


def request_deadline(chosen: float | None, level: ThinkingLevel | None) -> float | None:
    """Max seconds of one request: as chosen, else longer than usual if models think at length."""
    return SERVER_DEADLINE_SECONDS if chosen is None and level in ("medium", "high") else chosen


def thinking_by_agent(ports: Mapping[str, AgentPort], level: ThinkingLevel) -> dict[str, int]:
    """Tokens for the thinking before one reply, by agent, without agents whose model never thinks."""
    kinds = {id: thinks(_model_or_port(port)) for id, port in ports.items()}
    return {id: thinking_tokens(level, kind) for id, kind in kinds.items() if kind != "never"}


def windows_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, int]:
    """Context window in tokens, by agent, without agents whose window is unknown."""
    return {id: window for id, port in ports.items() if (window := context_window(_model_or_port(port)))}


def _model_or_port(port: AgentPort) -> object:
    match port:
        case ModelPort():
            return port.model
        case WorkerPort():
            return port.worker
        case _:
            return port


def max_steps_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, int]:
    """Max steps of agents with tools, by agent. Recorded, since a replay must fund their calls as the run did."""
    return {agent: port.worker.max_steps for agent, port in ports.items() if isinstance(port, WorkerPort)}


def estimate_with_steps(estimate: Estimate, steps: Mapping[str, int]) -> Estimate:
    """Return the estimate with steps counted as calls. Any call may be the one with the most steps."""
    return Estimate(min=estimate.min, max=estimate.max * max(steps.values(), default=1))


def open_encoder(encoder: str | Encoder | None) -> Encoder | None:
    if not isinstance(encoder, str):
        return encoder
    from consilience.models import embeddings

    return embeddings.open_encoder(encoder)


def replay_seats(agents: Sequence[Agent]) -> Seats:
    """The seats of a replay, through which nothing is sent."""
    return Seats(tuple(agents), {agent.id: ReplayPort(agent.model) for agent in agents})
