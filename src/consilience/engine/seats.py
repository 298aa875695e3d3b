"""Who sits where: dealing models to agents, and what they and their encoder are reached through."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Estimate
from consilience.engine.people import Person
from consilience.engine.ports import AgentPort, WorkerPort, as_port
from consilience.engine.similarity import Encoder
from consilience.models.names import is_person, resolve
from consilience.models.port import Completion, Model, ModelRequest, Worker

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent

One: TypeAlias = "str | Model | AgentPort | Worker | LibraryAgent[Any, Any]"
"""A model by name, a model, an agent with tools, or whatever else answers."""

Models: TypeAlias = "One | Sequence[One] | Mapping[str, One]"

Close = Callable[[], Coroutine[Any, Any, None]]


def deal(agents: Sequence[Agent], models: Models) -> tuple[tuple[Agent, ...], dict[str, AgentPort], Close]:
    """Give every agent its model: one for all, several in turn in the order of agents, or by agent id.

    Names are resolved once each. Returns the agents with their models' names, their ports, and what closes those opened here.
    """
    opened: dict[str, Model] = {}

    def port(model: One) -> AgentPort:
        if isinstance(model, str):
            if is_person(model):
                return Person(model)
            if model not in opened:
                opened[model] = resolve(model)
            return as_port(opened[model])
        return as_port(model)

    ids = [agent.id for agent in agents]
    if isinstance(models, Mapping):
        lacking = [id for id in ids if id not in models]
        unknown = [id for id in models if id not in ids]
        if lacking or unknown:
            raise SettingsError(
                f"models are given by agent, but {', '.join(lacking or unknown)} {'has none' if lacking else 'is no agent'}",
                do=f"Give one for each of: {', '.join(ids)}.",
            )
        ports = {id: port(models[id]) for id in ids}
    else:
        dealt = [models] if isinstance(models, str) or not isinstance(models, Sequence) else list(models)
        if not dealt:
            raise SettingsError("no model is given", do="Name at least one.")
        ports = {id: port(dealt[i % len(dealt)]) for i, id in enumerate(ids)}

    async def close() -> None:
        for model in opened.values():
            await model.close()

    named = tuple(agent.model_copy(update={"model": ports[agent.id].name}) for agent in agents)
    return named, ports, close


def recorded_models(agents: Sequence[Agent]) -> dict[str, str]:
    return {agent.id: agent.model for agent in agents}


def prices_of(ports: Mapping[str, AgentPort]) -> dict[str, tuple[float, float]]:
    """Per token, taken from a million of them. What is free, or of no known price, is left out."""
    million = 1_000_000
    found: dict[str, tuple[float, float]] = {}
    for agent, port in ports.items():
        read, written = port.price(million, 0), port.price(0, million)
        if read is not None and written is not None and (read or written):
            found[agent] = (read / million, written / million)
    return found


def steps_of(ports: Mapping[str, AgentPort]) -> dict[str, int]:
    """The most steps of agents with tools, by agent; recorded, since a replay must fund their calls as the run did."""
    return {agent: port.worker.max_steps for agent, port in ports.items() if isinstance(port, WorkerPort)}


def foreseen(estimate: Estimate, steps: Mapping[str, int]) -> Estimate:
    """An estimate of calls with their steps. A protocol does not say who makes how many calls, so any may be the longest."""
    return Estimate(min=estimate.min, max=estimate.max * max(steps.values(), default=1))


def open_encoder(encoder: str | Encoder | None) -> Encoder | None:
    if not isinstance(encoder, str):
        return encoder
    from consilience.models.embeddings import ProviderEncoder

    return ProviderEncoder(encoder)


def shut(agents: Sequence[Agent]) -> tuple[dict[str, AgentPort], Close]:
    """The seats of a replay, through which nothing is sent."""
    return {agent.id: Shut(agent.model) for agent in agents}, _nothing


async def _nothing() -> None:
    return None


class Shut:
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
