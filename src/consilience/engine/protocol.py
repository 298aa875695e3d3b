"""The base class of protocols, and finding a protocol by name."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar
from typing import Protocol as Structural

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.domain.agents import Agent
from consilience.domain.detail import REPLY_TOKENS, Detail
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.findings import EarlierReviews
from consilience.domain.messages import NO_OPTION
from consilience.domain.outcome import EACH, CallKind, Estimate, Limits
from consilience.domain.panels import MAX_PERSONAS, Panel
from consilience.domain.report import Report, register_report_finder
from consilience.domain.topology import Topology
from consilience.domain.validation import InvalidValues, describe_invalid, did_you_mean
from consilience.engine.drafts import Drafts, PlannedCalls
from consilience.engine.sources import Document
from consilience.engine.templates import Templates, load
from consilience.reporting import renderers as renderers  # lets every report of a protocol render itself

if TYPE_CHECKING:
    from consilience.engine.session import Session

ENTRY_POINT_GROUP = "consilience.protocols"
ENGINE_PHASES = ("inventory", "matching")
"""Phases that the engine adds to any protocol if documents are dealt."""

R_co = TypeVar("R_co", bound=Report, covariant=True)


_registered: dict[str, type[Protocol]] = {}
_defined: dict[str, type[Protocol]] = {}
"""The class last defined under each name, so that sessions of a script's or notebook's protocol resume and replay there."""


class ReportingProtocol(Structural[R_co]):
    """A protocol with its type of report, for type checkers."""

    async def run(self, session: Session) -> R_co: ...


@dataclass(frozen=True)
class Telling:
    """What `engine.fork.plan_telling` has to know of a protocol.

    The protocol asks for positions on the fact in calls whose keys a session without it does not have.
    """

    setting: str
    """The setting, a tuple of texts, to which the fact is added."""
    positions: str
    """The phase whose replies are the positions that a fact may change, one for each agent."""
    again: tuple[str, ...]
    """Phases whose calls are made again, since they follow from the positions."""


class Protocol(BaseModel, ABC):
    """A coordination pattern: a frozen model of its settings, whose fields are the options of its command.

    A subclass defines at least `topology`, `estimate` and `run`, and a template `instructions`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    """Its command, and its name in journals. Default: the name of the class in lower case, words joined by hyphens."""
    summary: ClassVar[str]
    """What its command's help begins with. Default: that of its base class, else the first paragraph of the class's docstring."""
    version: ClassVar[int] = 1
    """Raised by a change after which recorded sessions no longer replay, such as other keys or other prompts."""
    report: ClassVar[type[Report]] = Report
    """The type of its report."""
    templates: ClassVar[Mapping[str, str]] = {}
    """Prompt templates (Jinja) by name, in addition to the files `prompts/NAME.j2`, `prompts/full/NAME.j2` and
    `prompts/brief/NAME.j2` beside the module of the class. Those of base classes are inherited, one by one."""
    without_encoder: ClassVar[str] = "use another similarity"
    """What a user can do if texts would be compared by embedding and no encoder is configured."""
    notes: ClassVar[Mapping[str, type[BaseModel]]] = {}
    """The events that this protocol defines, by name. They belong to its `version`."""
    telling: ClassVar[Telling | None] = None
    """How a finished session is told a new fact; None for a protocol whose sessions cannot be told any."""
    reads_target: ClassVar[bool] = False
    """Whether its command takes files, directories and changes that Git records in place of a task and documents. It then has a
    setting `left_out`, a tuple of texts without an option: what was not read. By `settings_after` it goes on from a report."""
    phase_names: ClassVar[tuple[str, ...]] = ()
    """Names of all phases in which it makes calls; `observe_L*` stands for any ending. A limit on another phase is then refused
    before the run. Empty if they are not known: such a limit is a warning in the report. A subclass with a `run` of its own does
    not inherit them."""
    after_answer: ClassVar[frozenset[str]] = frozenset()
    """Phases of calls on which the answer does not rest: a limit that refuses one is not why the run stopped, a cancelling is."""
    must_be_read: ClassVar[frozenset[str]] = frozenset()
    """Kinds of messages that become a warning if no later call reads them."""
    closing: ClassVar[bool] = True
    """Whether a run ends in a call asked with `closing=True`. One call's calls, tokens, money and a share of the time are reserved
    for it; a protocol without such a call gets no reserve."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__).lower()
        if "run" in vars(cls) and "phase_names" not in vars(cls):
            cls.phase_names = ()
        if not hasattr(cls, "summary"):
            cls.summary = cleandoc(cls.__doc__ or cls.name).partition("\n\n")[0].replace("\n", " ").rstrip(".")
        _defined[cls.name] = cls

    def __init__(self, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            what, owner = describe_invalid(error, model=type(self)), f"of {type(self).name}"
            raise InvalidValues(error, what, field="settings", where=owner, do="Change them and try again.") from None

    reply_tokens: Annotated[
        int | None, Field(ge=16, le=100_000, description="max tokens per reply; default: 4096, 1024 with brief prompts")
    ] = None
    closing_reply_tokens: Annotated[
        int | None,
        Field(description="max tokens of the closing reply where dealt documents made replies shorter"),
        NO_OPTION,
    ] = None

    @classmethod
    def own_settings(cls) -> tuple[str, ...]:
        """Return the names of the settings that users set. The other ones follow from panel, target or a told fact."""
        return tuple(name for name, info in cls.model_fields.items() if NO_OPTION not in info.metadata)

    @classmethod
    def load_templates(cls, override: Path | None = None, detail: Detail = "full") -> Templates:
        """Its prompt templates; the files of a directory may override some."""
        return load(cls, override, detail)

    def with_detail(self, detail: Detail) -> Self:
        """Return a copy with the settings that follow from the detail: the size of a reply, if none is set."""
        return self if self.reply_tokens is not None else self.model_copy(update={"reply_tokens": REPLY_TOKENS[detail]})

    @property
    def max_reply_tokens(self) -> int:
        """Max tokens per reply; before `with_detail` that of detailed prompts, unless one is set."""
        return REPLY_TOKENS["full"] if self.reply_tokens is None else self.reply_tokens

    def with_documents(self, documents: Sequence[Document], window: int | None) -> Self:
        """Return a copy with the settings that follow from the documents, which are recorded. Called when all else is settled, with
        the smallest known context window (tokens) of the models. It must not change the agents or the topology."""
        return self

    @abstractmethod
    def topology(self) -> Topology: ...

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        """The agents, in the order in which models are assigned; service seats (`voice=False`) come after the others. A panel
        replaces the protocol's own perspectives.

        By default `agents_without_panel`, with the personas of the panel assigned to `first_speakers` in turn.
        """
        seats = {seat.id: seat for seat in self.agents_without_panel()}
        check_agents(self, tuple(seats.values()))
        for n, id in enumerate(self.first_speakers if panel else ()):
            seats[id] = panel.personas[n % len(panel.personas)].seat(seats[id])  # type: ignore[union-attr]
        return tuple(seats.values())

    def agents_without_panel(self) -> list[Agent]:
        """The same agents with the protocol's own perspectives, if it has any."""
        return [Agent(id=id, role="agent") for id in self.topology().agents]

    @classmethod
    def settings_after(
        cls, earlier: EarlierReviews, texts: Mapping[str, str], renamed: Mapping[tuple[str, str], str]
    ) -> Mapping[str, object]:
        """Return the settings of a run on a target of which earlier reports have findings, those of a `FindingsReport`.

        `texts` are those of the files that these are about, by the names that they have now; `renamed` has these names for files
        that were called otherwise at a commit. Raises `SettingsError`, as here, if the protocol cannot go on from earlier reports.
        """
        if earlier.known:
            raise SettingsError(f"{cls.name} cannot go on from a report", where="--since", do="Give a commit.")
        return {}

    def with_panel(self, panel: Panel | None) -> Self:
        """Return a copy with the settings that a panel decides, which are recorded. See `PanelSeats`."""
        return self

    @abstractmethod
    def estimate(self) -> Estimate:
        """Calls this will make, without retries. `max` is a bound under any replies."""

    @property
    def usual_calls(self) -> int | None:
        """Calls that recorded runs with such settings took, without retries. None if there are no such runs, or the estimate is
        narrow."""
        return None

    @property
    def outlook(self) -> str:
        """What these settings mean for a run, in a clause that is shown with the estimate before anything is spent; empty for
        nothing."""
        return ""

    def limit_warnings(self, limits: Limits) -> tuple[str, ...]:
        """Sentences on what these settings and limits are too small for, shown before a new run."""
        return ()

    @property
    def first_speakers(self) -> tuple[str, ...]:
        """The agents that speak first, before they see the text of another agent."""
        return self.topology().leaves

    holders_setting: ClassVar[str] = ""
    """The setting, a number, with which the number of `share_holders` grows; empty if that does not follow from one."""

    @property
    def share_holders(self) -> tuple[str, ...]:
        """The agents that documents are dealt to; empty if agents do not pass on what they read."""
        return self.first_speakers

    def with_share_holders(self, number: int) -> Self:
        """Return a copy with at least `number` share holders, unless the setting of their number is set by the user."""
        setting = self.holders_setting
        if not setting or setting in self.model_fields_set:
            return self
        own = {name: getattr(self, name) for name in self.model_fields_set}
        for value in range(2, number + 1):
            sized = type(self)(**{**own, setting: value})
            if len(sized.share_holders) >= number:
                return sized
        return self

    def seat(self, n: int) -> str | None:
        """Return the agent for what is private to the n-th seat, from 1. Numbers above the last seat wrap. None without seats."""
        seats = self.first_speakers
        return seats[(n - 1) % len(seats)] if seats else None

    @property
    def readers(self) -> tuple[str, ...] | None:
        """The agents that are shown the documents open to all; None for every agent. Others may still repeat a quotation."""
        return None

    @property
    def shown_together(self) -> tuple[tuple[str, ...], ...] | None:
        """The groups of documents, or of lines of them (`S4:120-380`), of which one call shows at most one; None if a call may show
        all that are open to its agent. Sizes of calls follow from it."""
        return None

    @property
    def call_kinds(self) -> tuple[CallKind, ...]:
        """The calls of a run by size, as many as `estimate().max`, where they follow from the documents; empty if each may be the
        largest. The closing call is one of them."""
        return ()

    def planned_calls(self, drafts: Drafts) -> PlannedCalls | None:
        """Return the calls of a run with the tokens of their prompts, counted before it begins; None if they are not known."""
        return None

    @property
    def longest_reply(self) -> int:
        """Max tokens of its longest reply."""
        return self.max_reply_tokens

    def resized_for_calls(self, calls: int) -> Self:
        """Return a copy with the largest size that fits in `calls` calls (≥ 1). Fixed-size protocols return themselves."""
        return self

    @property
    def needs_encoder(self) -> bool:
        """Whether it compares texts by embedding."""
        return False

    @property
    def max_quoted_replies(self) -> int:
        """Upper bound on the text that one prompt quotes, in replies of full length. Default: one reply of every agent."""
        return len(self.topology().agents)

    def quoted_by(self, agent: str) -> int:
        """Return the same bound for the prompts of one agent, where it is lower."""
        return self.max_quoted_replies

    @abstractmethod
    async def run(self, session: Session) -> Report:
        """Deliberate. It touches the world through `session` only: a run depends on settings, task, sources, seed and replies."""


def check_phases(protocol: Protocol, limits: Limits) -> None:
    """Raise `UnknownName` for a limit on a phase that the protocol does not have."""
    known = protocol.phase_names
    for limited in limits.phases:
        name, slash, index = limited.partition("/")
        if not known or name in (EACH, *ENGINE_PHASES) or any(fnmatchcase(name, pattern) for pattern in known):
            continue
        meant = did_you_mean(limited, (f"{other}{slash}{index}" for other in known if "*" not in other))
        raise UnknownName(
            f"{protocol.name} has no phase {name!r}",
            where="the limit of a phase",
            do=f"{meant}Its phases: {', '.join(known)}.",
        )


def check_agents(protocol: Protocol, agents: Sequence[Agent]) -> None:
    """Raise `SettingsError` unless the agents with a voice are those of the topology. Service seats may be outside of it."""
    ids, placed = [agent.id for agent in agents], protocol.topology().agents
    missing = [id for id in placed if id not in ids]
    unplaced = [agent.id for agent in agents if agent.voice and agent.id not in placed]
    differences = [f"the topology has {', '.join(missing)}, not among its agents"] if missing else []
    differences += [f"its agents have {', '.join(unplaced)}, not in the topology"] if unplaced else []
    if differences:
        raise SettingsError(
            f"the agents of {protocol.name} do not fit: {'; '.join(differences)}",
            where=f"{type(protocol).__module__}.{type(protocol).__qualname__}",
            do="Use the same ids in topology() and in the agents. Only agents with voice=False may be outside of the topology.",
        )


def register(protocol: type[Protocol]) -> type[Protocol]:
    """Register a protocol under its name in this process. It replaces an installed one."""
    _registered[protocol.name] = protocol
    return protocol


@cache
def installed_protocols() -> dict[str, EntryPoint]:
    """Return the entry points of protocols by name, from package metadata, without importing any."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def protocol_names() -> list[str]:
    """Names of the installed and the registered protocols."""
    return sorted({*installed_protocols(), *_registered})


def find_protocol(name: str) -> type[Protocol]:
    """Return the protocol of that name: registered, installed, or the last class defined under it. Raises `UnknownName`."""
    if name in _registered:
        return _registered[name]
    if name in installed_protocols():
        return _load(installed_protocols()[name])
    if name in _defined:
        return _defined[name]
    raise UnknownName(f"there is no protocol {name!r}", do=f"Known: {', '.join(protocol_names())}.")


def _load(point: EntryPoint) -> type[Protocol]:
    """Return the protocol of an entry point. Raises `UnknownName`, which names the package and its error."""
    cause: Exception | None = None
    try:
        protocol = point.load()
    except Exception as error:
        cause, problem = error, f"{type(error).__name__}: {error}"
    else:
        if isinstance(protocol, type) and issubclass(protocol, Protocol):
            if protocol.name == point.name:
                return protocol
            problem = f"its name is {protocol.name!r}; entry point and class must have the same name"
        else:
            problem = "it is not a protocol"
    raise UnknownName(
        f"the protocol {point.name!r} cannot be loaded: {problem}",
        where=f"entry point {point.name} = {point.value!r}{f' of the package {point.dist.name}' if point.dist else ''}",
        do="Fix or remove that package.",
    ) from cause


def recorded_protocol(name: str) -> type[Protocol]:
    """Return the protocol of a recorded session. Raises `UnknownName`, with advice for classes of scripts and notebooks."""
    if name not in (*protocol_names(), *_defined):
        raise UnknownName(
            f"the session was run by the protocol {name!r}, which is not installed",
            do="Install the package that it is in. For a class in a script or notebook, call consilience.resume, replay or fork "
            "there, after its definition.",
        )
    return find_protocol(name)


def report_type(name: str) -> type[Report] | None:
    """Return the type of report of a protocol; None if its code is not installed or fails to import."""
    try:
        return find_protocol(name).report
    except UnknownName:
        return None


register_report_finder(report_type)


class PanelSeats(Protocol):
    """A protocol with a seat for each persona of the panel; the seat's id is the slug of the persona's name.

    The ids are recorded as the setting `seats`, so that a resume, replay or fork needs no panel. Without a panel the ids are
    `default_seats`. Topology, estimate and run go by `seat_ids`.
    """

    seat_role: ClassVar[str] = "member"
    min_seats: ClassVar[int] = 1
    max_seats: ClassVar[int] = MAX_PERSONAS

    seats: Annotated[tuple[str, ...], Field(description="ids of the seats that a panel fills"), NO_OPTION] = ()

    @property
    @abstractmethod
    def default_seats(self) -> tuple[str, ...]:
        """Ids of the seats without a panel."""

    @property
    def service_seats(self) -> tuple[Agent, ...]:
        """Further agents, with `voice=False`, that no persona fills."""
        return ()

    @property
    def seat_ids(self) -> tuple[str, ...]:
        return self.seats or self.default_seats

    def with_panel(self, panel: Panel | None) -> Self:
        """Return a copy with a seat for each persona. Raises `SettingsError` for a wrong number of personas or equal ids."""
        if panel is None:
            return self
        if not self.min_seats <= len(panel.personas) <= self.max_seats:
            raise SettingsError(
                f"the panel {panel.name!r} has {len(panel.personas)} personas; {self.name} takes {self.min_seats} to "
                f"{self.max_seats}",
                where="panel",
                do="Remove or add personas, or name another panel.",
            )
        return type(self)(**{**dict(self), "seats": panel.slugs({agent.id for agent in self.service_seats})})

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        seats = [Agent(id=id, role=self.seat_role) for id in self.with_panel(panel).seat_ids]
        if panel is not None:
            seats = [persona.seat(seat) for persona, seat in zip(panel.personas, seats, strict=True)]
        return (*seats, *self.service_seats)
