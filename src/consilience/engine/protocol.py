"""What a coordination pattern is, and finding one by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self, TypeVar
from typing import Protocol as Structural

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.outcome import Estimate
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.topology import Topology
from consilience.engine.templates import Templates, load

if TYPE_CHECKING:
    from consilience.engine.session import Session

GROUP = "consilience.protocols"

R_co = TypeVar("R_co", bound=Report, covariant=True)


class Reporting(Structural[R_co]):
    """A protocol as type checkers see it where its own type of report matters."""

    async def run(self, session: Session) -> R_co: ...


class Protocol(BaseModel, ABC):
    """A frozen model of its settings; `name` is its command. `version` counts changes after which old journals run differently.

    `widest` is how many replies at full length the messages are worth that one of its prompts quotes; `report` the type of its
    report; `without_encoder` what to do where there is none and texts would be compared by embedding.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    version: ClassVar[int] = 1
    without_encoder: ClassVar[str] = "use another similarity"
    report: ClassVar[type[Report]]

    def __init__(self, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise SettingsError(
                _in_words(error), where=f"settings of {type(self).name}", do="Change them and try again."
            ) from None

    reply_tokens: Annotated[int, Field(ge=16, le=100_000, description="most tokens a reply may have")] = 1024

    @classmethod
    def templates(cls, override: Path | None = None) -> Templates:
        """The prompt templates in the folder `prompts` beside the protocol's module; a directory may override some."""
        return load(cls.__module__.rpartition(".")[0], override)

    @abstractmethod
    def topology(self) -> Topology: ...

    @abstractmethod
    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        """The seats, in the order in which models are dealt. A panel replaces the protocol's own perspectives."""

    @abstractmethod
    def estimate(self) -> Estimate:
        """Calls this will make, without retries. `max` is a bound under any replies."""

    @property
    def first_seats(self) -> tuple[str, ...]:
        """The agents that speak first, before they see anybody else's text."""
        return self.topology().leaves

    def seat(self, n: int) -> str | None:
        """The agent that holds what is private to the n-th seat, from 1; None where nobody does. Surplus seats wrap."""
        seats = self.first_seats
        return seats[(n - 1) % len(seats)] if seats else None

    @property
    def readers(self) -> tuple[str, ...] | None:
        """The agents that are shown the documents open to all; None for everybody. Others may still repeat a quotation."""
        return None

    @property
    def longest_reply(self) -> int:
        """The most tokens that one of its replies may have."""
        return self.reply_tokens

    def sized_to(self, calls: int) -> Self:
        """This, grown or shrunk to the most that `calls` calls pay for (at least 1). Most protocols have one size."""
        return self

    @property
    def needs_encoder(self) -> bool:
        """Whether it compares texts by embedding."""
        return False

    @property
    @abstractmethod
    def widest(self) -> int: ...

    @abstractmethod
    async def run(self, session: Session) -> Report: ...


_registered: dict[str, type[Protocol]] = {}


def register(protocol: type[Protocol]) -> type[Protocol]:
    """Make a protocol known by name in this process, as an entry point does for all."""
    _registered[protocol.name] = protocol
    return protocol


@cache
def _installed() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}


def protocol_names() -> list[str]:
    return sorted({*_installed(), *_registered})


def find_protocol(name: str) -> type[Protocol]:
    """The protocol of that name. Raises `UnknownName`."""
    if name in _registered:
        return _registered[name]
    if name not in _installed():
        raise UnknownName(f"there is no protocol {name!r}", do=f"Known: {', '.join(protocol_names())}.")
    import importlib

    module, _, attribute = _installed()[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Protocol)):
        raise UnknownName(f"the entry point {name!r} is no protocol", where=_installed()[name], do="Mend that package.")
    return found


def _in_words(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    return "; ".join(
        (f"{'.'.join(map(str, p['loc']))}: " if p["loc"] else "")
        + p["msg"].removeprefix("Value error, ")
        + (f" (given: {p['input']!r:.60})" if p["loc"] else "")
        for p in problems
    )
