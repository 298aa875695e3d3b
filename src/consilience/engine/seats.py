"""Seats: assigning models to agents, and opening the ports through which agents are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from consilience.domain.agents import Agent, in_dealing_order, list_ids
from consilience.domain.detail import Detail, DetailChoice
from consilience.domain.errors import SettingsError, UserError
from consilience.domain.model_names import kind_of
from consilience.domain.outcome import DEFAULT_THINKING, EACH, Estimate, Limits, ThinkingLevel, thinking_tokens
from consilience.engine.ports import AgentPort, Person, ReplayPort, to_port
from consilience.engine.similarity import Encoder
from consilience.models.connections import Connections
from consilience.models.endpoints import NO_ENDPOINTS, Endpoints
from consilience.models.hosted import SERVER_DEADLINE_SECONDS
from consilience.models.port import Model, Worker, context_window, links, thinks
from consilience.models.registry import (
    PersonName,
    WorkspaceName,
    canonical_name,
    facts_of,
    is_embedded,
    parse,
    resolve,
    window_by_name,
)

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent

    from consilience.domain.panels import Panel
    from consilience.engine.protocol import Protocol

SeatModel: TypeAlias = "str | Model | AgentPort | Worker | LibraryAgent[Any, Any]"
"""What can answer for an agent: the name of a model, a model, an agent with tools or a port."""

Models: TypeAlias = "SeatModel | Sequence[SeatModel] | Mapping[str, SeatModel]"
"""One for all agents, several to assign in turn, or one per agent id; the id `"*"` stands for all agents not named."""


@dataclass(frozen=True)
class Seats:
    """The agents of a session and their ports."""

    agents: tuple[Agent, ...]
    """Each with the name of its model."""
    ports: Mapping[str, AgentPort]
    """By agent."""
    opened: tuple[Model, ...] = ()
    """Models to close at the end; those that the caller passed as objects stay open."""
    connections: Connections | None = None
    """What to close after them, if no other session uses it."""

    async def aclose(self) -> None:
        for model in self.opened:
            await model.close()
        if self.connections is not None:
            await self.connections.close()


def make_seats(
    agents: Sequence[Agent],
    models: Models,
    deadline: float | None = None,
    known: Endpoints = NO_ENDPOINTS,
    connections: Connections | None = None,
) -> Seats:
    """Assign models to agents and open their ports. Service seats come last. Each name is resolved once.

    `deadline`: max seconds of one request to a model. Only endpoints that `known` or the environment names get a key. Without
    `connections` the seats share clients among themselves, which end with them.
    """
    own_connections = Connections() if connections is None else None
    opened: dict[str, Model] = {}
    ports_by_model: dict[int, AgentPort] = {}
    agents = in_dealing_order(agents)

    def port(model: SeatModel) -> AgentPort:
        if isinstance(model, str):
            chain = parse(model, known)
            chain.check_form()
            match chain.waiting:
                case PersonName() as person:
                    return Person(person.text)
                case WorkspaceName() as workspace:
                    from consilience.engine.external import open_seat

                    return open_seat(workspace)
            name = chain.canonical
            if name not in opened:
                opened[name] = resolve(name, deadline=deadline, known=known, connections=connections or own_connections)
            model = opened[name]
        if id(model) not in ports_by_model:
            ports_by_model[id(model)] = to_port(model)
        return ports_by_model[id(model)]

    ports: dict[str, AgentPort] = {}
    models_by_id = models_by_agent(agents, models)
    for agent in agents:
        try:
            ports[agent.id] = port(models_by_id[agent.id])
        except UserError as error:
            if not agent.own_model or models_by_id[agent.id] != agent.model:
                raise
            raise of_persona(error, agent, f"model={{{agent.id!r}: MODEL, {EACH!r}: MODEL}}") from None

    def seated(agent: Agent) -> Agent:
        name = ports[agent.id].name
        own_model = agent.own_model and name == canonical_name(agent.model)
        return agent.model_copy(update={"model": name, "own_model": own_model})

    return Seats(tuple(map(seated, agents)), ports, tuple(opened.values()), own_connections)


def of_persona(error: UserError, agent: Agent, way: str) -> UserError:
    """Return an error about the model that a persona names, with the persona, its seat and the `way` to give that another."""
    return type(error)(
        error.what,
        where=f"the model of the persona {agent.persona} ({agent.id})",
        do=f"{error.do} For another model of this seat: {way}.".lstrip(),
    )


def model_names(models: object) -> list[str]:
    """Return the names among `Models` or an encoder; the caller's objects have none."""
    if isinstance(models, str):
        return [models]
    given = models.values() if isinstance(models, Mapping) else models if isinstance(models, list | tuple) else ()
    return [name for name in given if isinstance(name, str)]


def models_by_agent(agents: Sequence[Agent], models: Models) -> dict[str, SeatModel]:
    """Return the model of each agent, service seats last. Raises `SettingsError` if an agent has none, or an id is unknown."""
    agents = in_dealing_order(agents)
    ids = [agent.id for agent in agents]
    if isinstance(models, Mapping):
        if unknown := [id for id in models if id not in (*ids, EACH)]:
            raise SettingsError(
                f"a model is given for {', '.join(unknown)}, but there is no such agent",
                where="model",
                do=f"Agents: {list_ids(agents)}.",
            )
        if EACH not in models and (missing := [agent for agent in agents if agent.id not in models]):
            raise SettingsError(
                f"models are given by agent, but none for {list_ids(missing)}",
                where="model",
                do=f"Give one for each of them, or one for all agents not named: {{{EACH!r}: MODEL}}.",
            )
        return {id: models[id] if id in models else models[EACH] for id in ids}
    models_in_turn = [models] if isinstance(models, str) or not isinstance(models, Sequence) else models
    if not models_in_turn:
        raise SettingsError("no model is given", do="Name at least one.")
    return {id: models_in_turn[n % len(models_in_turn)] for n, id in enumerate(ids)}


def smallest_window(models: Models, known: Endpoints) -> int | None:
    """Return the smallest known context window (tokens) of these models; None if none is known."""
    given = list(models.values()) if isinstance(models, Mapping) else models
    windows = (
        window_by_name(model, known) if isinstance(model, str) else context_window(model)
        for model in ([given] if isinstance(given, str) or not isinstance(given, Sequence) else given)
    )
    return min((window for window in windows if window is not None), default=None)


def longest_thinking(models: Models, known: Endpoints, level: ThinkingLevel | None) -> int:
    """Return the most tokens that any of these models may think before a reply."""
    given = list(models.values()) if isinstance(models, Mapping) else models
    kinds = (
        kind
        for model in ([given] if isinstance(given, str) or not isinstance(given, Sequence) else given)
        for kind in ([facts.thinks for facts in facts_of(model, known)] if isinstance(model, str) else [thinks(model)])
    )
    return max((thinking_tokens(level or DEFAULT_THINKING, kind) for kind in kinds), default=0)


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


def seat_warnings(protocol: Protocol, panel: Panel | None) -> tuple[str, ...]:
    """Return a warning about personas for whom there is no seat, with the setting that gives each one; the one with the fewest
    agents."""
    if panel is None or not (unseated := _unseated(protocol, panel)):
        return ()
    sizes: dict[str, int] = {}
    for name, value in protocol.model_dump().items():
        for number in range(value + 1, value + 1 + len(unseated)) if type(value) is int else ():
            with suppress(ValidationError):
                larger = type(protocol).model_validate({**protocol.model_dump(), name: number})
                if not _unseated(larger, panel):
                    sizes[f"{name} to {number}"] = len(larger.agents(panel))
                    break
    advice = "name fewer personas, or use a protocol with more seats"
    if sizes:
        advice = f"to give each one a seat, set {min(sizes, key=sizes.__getitem__)}"
    return (f"personas without a seat: {', '.join(unseated)}; {advice}",)


def _unseated(protocol: Protocol, panel: Panel) -> list[str]:
    seated = {agent.persona for agent in protocol.agents(panel)}
    return [name for name in panel.names if name not in seated]


def prices_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, tuple[float, float]]:
    """US dollars per token (input, output) by agent, without agents that are free or have no known price.

    A chain of fallbacks has the prices of its most expensive known links. Prices are computed from a million tokens.
    """
    million = 1_000_000
    prices: dict[str, tuple[float, float]] = {}
    for agent, port in ports.items():
        input_price = max(link.price(million, 0) or 0.0 for link in links(port))
        output_price = max(link.price(0, million) or 0.0 for link in links(port))
        if input_price or output_price:
            prices[agent] = (input_price / million, output_price / million)
    return prices


def check_prices(ports: Mapping[str, AgentPort], limits: Limits) -> None:
    """Raise `SettingsError` if an agent that a limit on money bounds has a model without a known price."""
    caps = {name: cap for name, cap in limits.agents.items() if cap.cost is not None}
    bounds_all = limits.cost is not None or EACH in caps or any(cap.cost is not None for cap in limits.phases.values())
    bounded = ports.values() if bounds_all else [port for agent, port in ports.items() if agent in caps]
    unpriced = dict.fromkeys(link.name for port in bounded for link in links(port) if link.price(1, 1) is None)
    if unpriced:
        raise SettingsError(
            f"a limit on money does not bound the cost of {', '.join(unpriced)}, whose price is not known",
            where="limits",
            do="Declare the price of an address with Options(endpoints=consilience.Endpoints().declare(…)), give a model of "
            "your own the method `price`, limit calls or tokens instead of money, or allow it with "
            "consilience.Options(allow_unpriced=True).",
        )


def request_deadline(chosen: float | None, level: ThinkingLevel | None) -> float | None:
    """Max seconds of one request: as chosen, else longer than usual if models think at length."""
    return SERVER_DEADLINE_SECONDS if chosen is None and level in ("medium", "high") else chosen


def thinking_by_agent(ports: Mapping[str, AgentPort], level: ThinkingLevel) -> dict[str, int]:
    """Tokens for the thinking before one reply, by agent, without agents whose model never thinks."""
    kinds = {id: thinks(port) for id, port in ports.items()}
    return {id: thinking_tokens(level, kind) for id, kind in kinds.items() if kind != "never"}


def windows_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, int]:
    """Context window in tokens, by agent, without agents whose window is unknown."""
    return {id: window for id, port in ports.items() if (window := context_window(port))}


def max_steps_by_agent(ports: Mapping[str, AgentPort]) -> dict[str, int]:
    """Max steps of agents with tools, by agent. Recorded, since a replay must fund their calls as the run did."""
    return {agent: port.max_steps for agent, port in ports.items() if port.max_steps}


def estimate_with_steps(estimate: Estimate, steps: Mapping[str, int]) -> Estimate:
    """Return the estimate with steps counted as calls. Any call may be the one with the most steps."""
    return Estimate(min=estimate.min, max=estimate.max * max(steps.values(), default=1))


def open_encoder(encoder: str | Encoder | None, known: Endpoints) -> Encoder | None:
    if not isinstance(encoder, str):
        return encoder
    from consilience.models import embeddings

    return embeddings.open_encoder(encoder, known)


def replay_seats(agents: Sequence[Agent]) -> Seats:
    """The seats of a replay, through which nothing is sent."""
    return Seats(tuple(agents), {agent.id: ReplayPort(agent.model) for agent in agents})


def cancelled_seats(agents: Sequence[Agent]) -> Seats:
    """The seats of a cancelled session, through which nothing is sent. Tickets are taken back from workspaces that are there."""
    seats = replay_seats(agents)
    ports = dict(seats.ports)
    for agent in agents:
        if kind_of(agent.model) == "workspace":
            with suppress(UserError):
                ports[agent.id] = make_seats([agent], agent.model).ports[agent.id]
    return replace(seats, ports=ports)
