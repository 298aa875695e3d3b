"""The report of a session: a header common to all protocols, to which each protocol adds its own fields."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, computed_field

from consilience.domain.across import AcrossDocuments
from consilience.domain.agents import Agent
from consilience.domain.delivery import Delivery
from consilience.domain.events import AnyEvent, Noted, SessionStarted
from consilience.domain.messages import Quotation, ReadDocument
from consilience.domain.objections import Objection as Objection
from consilience.domain.objections import ObjectionFate as ObjectionFate
from consilience.domain.outcome import Check, FailureKind, LimitOwner, Limits, LimitUnit, OptionalOwner, StopReason
from consilience.domain.positions import PositionChange
from consilience.domain.sections import Presentation
from consilience.domain.topology import Topology
from consilience.domain.usage import LedgerReport
from consilience.domain.validation import Frozen as Frozen
from consilience.domain.wording import count


class Claim(Frozen):
    """A statement of the answer."""

    text: str
    ids: tuple[str, ...] = ()
    """Ids of the messages that support it."""
    from_memory: bool = False
    """Whether it quotes no document although documents were given."""


class Against(Frozen):
    """The strongest position against the answer, and why it was rejected."""

    text: str
    ids: tuple[str, ...] = ()
    """Ids of the messages that state the position."""


class FactsKept(Frozen):
    """Figures, names and quotations of the first drafts that the answer or its claims kept."""

    kept: int
    total: int
    lost: tuple[str, ...] = ()
    """Those that the answer does not contain, as they were written."""


class StrangeLoop(Frozen):
    """One self-review of the root."""

    index: int
    before: str
    after: str | None
    """None if the call failed, or its text was discarded."""
    discarded: str | None = None
    """A text that kept less than a third of the answer and did not replace it."""
    domain: bool = False
    """Whether it followed the user's instructions for the last self-review."""


class ConfidenceScore(Frozen):
    """The confidence in an answer."""

    level: float | None = None
    """From 0 to 1; None if nothing was measured."""
    kind: str = "none"
    """What was measured."""


class MissingAgent(Frozen):
    """A seat that gave no reply to its last call."""

    agent: str
    since: str
    """Key of the first call without a reply."""
    reason: str


class FailedCall(Frozen):
    """A call without a reply; its agent may have replied to other calls."""

    key: str
    agent: str
    phase: tuple[str, int] | None = None
    kind: FailureKind
    detail: str = ""
    limit: OptionalOwner = None
    """The agent or phase whose limit refused or ended the call; None for the session's limit and for other failures."""
    exhausted: LimitUnit = ""
    """The unit of the limit that refused or ended the call."""


class Dissent(Frozen):
    """A disagreement with the answer: a final ballot against it or, without ballots, an open objection."""

    agent: str
    text: str
    position: str | None = None
    id: str | None = None
    """Id of the objection."""


@dataclass(frozen=True)
class ReportLimit:
    """The limit that ended a run."""

    unit: LimitUnit
    owner: LimitOwner | None
    """The agent or phase that it is for; None for the session's own."""
    value: float
    """Calls, tokens, US dollars or seconds."""


MAX_REPR_CHARS = 60
"""Characters of the answer in the `repr` of a report."""


class SharedModel(Frozen):
    model: str
    agents: tuple[str, ...]


class Independence(Frozen):
    """How independent the agents are; agents on one model are not."""

    shared: tuple[SharedModel, ...] = ()
    rho: float | None = None
    """Correlation of agents on one model, if it was estimated."""
    effective: float | None = None
    """Effective number of voices: n/(1+(n−1)ρ) per shared model; n if no model is shared."""


class Forecast(Frozen):
    """A yes/no question on which agents took sides, and which the future may answer."""

    id: str
    """The name of the question within its session, as in `consilience resolve`."""
    question: str
    sides: dict[str, tuple[bool, float]] = {}
    """The final side of each firm agent, True for yes, with its confidence from 0 to 1. Uncertain agents are missing."""
    falsifiers: tuple[tuple[str, str, str], ...] = ()
    """What would change an agent's mind: the agent, the finding, and the deadline in its own words, which may be empty."""


FORECASTS: TypeAdapter[tuple[Forecast, ...]] = TypeAdapter(tuple[Forecast, ...])
"""How a finished session stores its forecasts."""


@dataclass(frozen=True)
class UnfinishedSession:
    """A session without a report, from which its protocol builds a presentation."""

    started: SessionStarted
    events: Sequence[AnyEvent]
    text: Callable[[str], str]
    """Returns a stored text by its id."""


INCIDENTAL: dict[str, Any] = {
    "session": True,
    "asked": True,
    "incidents": True,
    "defects": True,
    "cut_replies": True,
    "typed_replies": True,
    "prose_replies": True,
    "facts": True,
    "same_material": True,
    "limits": True,
    "documents": True,
    "quotations": {"__all__": {"relayed", "stands"}},
    "failed_calls": {"__all__": {"limit", "exhausted"}},
    "ledger": {
        "reserve_drawn": True,
        "held_back": True,
        "next_tokens": True,
        "next_cost": True,
        "next_thinking": True,
        "actual": {
            "requests",
            "retries",
            "fallbacks",
            "lost",
            "tokens_cached",
            "seconds",
            "known_cost",
            "unpriced",
        },
    },
}
"""Fields that may differ between two runs of one program, or that follow from other fields; excluded from the digest."""


@dataclass(frozen=True)
class ReportRenderers:
    """Functions that render a report."""

    markdown: Callable[[Report], str]
    html: Callable[[Report], str]
    """A page of its own."""
    fragment: Callable[[Report], str]
    """A part of another page, such as a notebook."""
    save: Callable[[Report, Path], list[Path]]


_renderers: list[ReportRenderers] = []


def register_renderers(renderers: ReportRenderers) -> None:
    """Set the functions behind `Report.markdown` and the like. Called by a layer that may import `reporting`."""
    _renderers[:] = [renderers]


_report_finders: list[Callable[[str], type[Report] | None]] = []


def register_report_finder(finder: Callable[[str], type[Report] | None]) -> None:
    """Set the function that returns the report type of a protocol by name. Called by the layer that knows protocols."""
    _report_finders[:] = [finder]


def find_report(protocol: str) -> type[Report]:
    """Return the report type of a protocol; `Report` if its code is not installed."""
    return (_report_finders[0](protocol) if _report_finders else None) or Report


ENGINE_LABELS: Mapping[str, str] = {"inventory": "inventory", "matching": "comparison of inventories"}
"""Words for the phases that the engine adds to any protocol."""


def labels_of(protocol: str, presentation: Presentation) -> Mapping[str, str]:
    """Return the protocol's words for phases: those stored with the session, else those of its code."""
    return {**ENGINE_LABELS, **(presentation.labels or find_report(protocol).labels)}


MAX_PROSE_SHARE = 0.5
"""A run in which more of the replies that must have a form are plain text is degraded."""


class Report(Frozen):
    """The result of a session: a header common to all protocols. It renders itself in notebooks."""

    step: ClassVar[str] = "round"
    """The noun for a step of the protocol."""
    step_setting: ClassVar[str] = ""
    """Name of the setting that limits the steps; empty without one."""
    asides: ClassVar[frozenset[str]] = frozenset()
    """Kinds of replies that do not contribute to the answer: a sealed position, a hint to another agent, a verdict."""
    published_kinds: ClassVar[frozenset[str]] = frozenset()
    """Kinds of replies that are published as messages, in words, right after they came. A transcript has the messages alone."""
    asks_for_dissent: ClassVar[bool] = False
    """Whether the protocol asks its agents to object. Only then a report without dissent says that none was declared."""

    labels: ClassVar[Mapping[str, str]] = {}
    """Words for readers by the names of phases and of parts of keys: `own answers` for `leaf_respond`."""
    glossary: ClassVar[Mapping[str, str]] = {}
    """What the protocol's own words mean, for readers who have never seen a report of it."""
    for_people: ClassVar[Mapping[str, str]] = {}
    """For a person in a seat: under "" what stands in place of the instructions, and by parts of keys what stands in place of the
    request. A call without an entry has its request; without any entry a person reads the prompt of a model."""
    exports: ClassVar[Mapping[str, str]] = {}
    """Further files of a report directory by name, each with the method that returns its content: text, or data for JSON."""
    formats: ClassVar[Mapping[str, str]] = {}
    """Names for --format, each with the file of `exports` that it prints."""
    deliveries: ClassVar[tuple[Delivery, ...]] = ()
    """Options of the commands that deliver the report, each with what it does and the exit code."""

    schema_version: int = 1
    session: str = ""
    parent: str | None = None
    protocol: str
    task: str
    settings: dict[str, object]
    seed: int
    replaced_prompts: tuple[str, ...] = ()
    """Names of the prompt templates that come from a directory of the user."""
    agents: tuple[Agent, ...]
    topology: Topology
    stop_reason: StopReason
    check: Check | None = None
    unmet: tuple[str, ...] = ()
    """Why the run does not count as converged or satisfied; with an entry it is never `converged` and has no confidence."""
    asked: int = 0
    """Agents asked in the first phase; service seats do not count."""
    replied: int
    """Those of them that replied."""
    quorum_met: bool
    confidence: ConfidenceScore = ConfidenceScore()
    steps: int = 0
    answer: str | None = None
    """None if the run ended without an answer."""
    answer_cut: bool = False
    """Whether the answer ended at the token limit."""
    cut_replies: tuple[str, ...] = ()
    """Keys of the replies that ended at their token limit."""
    typed_replies: int = 0
    """Replies of calls that asked for a form."""
    prose_replies: tuple[str, ...] = ()
    """Keys of those that were plain text: it was taken as the text of the form, and its other fields are empty."""
    closing: Literal["ordinary", "reserve"] | None = None
    claims: tuple[Claim, ...] = ()
    against: tuple[Against, ...] = ()
    would_change: tuple[str, ...] = ()
    """Findings that would change the answer, by its author."""
    unknown: tuple[str, ...] = ()
    """Unknowns named by the answer's author."""
    limits: Limits = Limits()
    """What the session was allowed to spend; of a fork, without inherited calls."""
    ledger: LedgerReport
    missing: tuple[MissingAgent, ...] = ()
    failed_calls: tuple[FailedCall, ...] = ()
    warnings: tuple[str, ...] = ()
    """What follows from the replies and the settings."""
    incidents: tuple[str, ...] = ()
    """Further warnings, which another run with the same replies may not have: lost calls, fallbacks, templates without effect."""
    defects: tuple[str, ...] = ()
    """Further warnings, about the protocol's code."""
    independence: Independence = Independence()
    same_material: bool = False
    """Whether no document is restricted to some agents and no agent has tools."""
    position_changes: tuple[PositionChange, ...] = ()
    dissent: tuple[Dissent, ...] = ()
    objections: tuple[Objection, ...] = ()
    """All objections with their fate; without a fate, only those that no later reply answered."""
    documents: tuple[ReadDocument, ...] = ()
    across: AcrossDocuments | None = None
    """What the inventories of dealt documents gave; None without inventories."""
    quotations: tuple[Quotation, ...] = ()
    facts: FactsKept | None = None
    """None if no agent wrote points before it read others, or without an answer."""
    metrics: dict[str, float | int | None] = {}

    @property
    def is_mostly_prose(self) -> bool:
        """Whether most replies that should have a form were plain text."""
        return len(self.prose_replies) > MAX_PROSE_SHARE * self.typed_replies

    @computed_field  # type: ignore[prop-decorator]
    @property
    def degraded(self) -> str | None:
        """What the run lacked: how many replies were plain text if most that should have a form were, the share of agents that
        replied in the first phase if some did not, and phase, agents and reason of the failed calls. None if it lacked nothing."""
        agents: dict[tuple[str, str], Counter[str]] = {}
        for call in self.failed_calls:
            phase = f"{call.phase[0]} {call.phase[1]}" if call.phase else call.key
            agents.setdefault((phase, call.kind.value), Counter())[call.agent] += 1
        missing = "; ".join(
            f"{phase} {', '.join(agent if n == 1 else f'{agent} ×{n}' for agent, n in counts.items())} ({kind})"
            for (phase, kind), counts in agents.items()
        )
        lacks = (
            f"{len(self.prose_replies)} of {count(self.typed_replies, 'reply')} not in the requested form"
            if self.is_mostly_prose
            else "",
            f"{self.replied} of {self.asked} agents" if self.replied < self.asked else "",
            f"no reply: {missing}" if missing else "",
        )
        return "; ".join(filter(None, lacks)) or None

    @property
    def limit_reached(self) -> ReportLimit | None:
        """The limit that ended the run; None if another reason did, or if it is unknown which limit."""
        return self.limit_met(self.stop_reason)

    def limit_met(self, *endings: StopReason) -> ReportLimit | None:
        """The first limit that refused or ended a call and may so end a run."""
        for call in self.failed_calls:
            if call.exhausted and call.kind.is_limit and call.kind.exhaustion in endings:
                named = dict(self.limits.of_call(call.agent, call.phase))
                limits = named.get(call.limit) if call.limit else self.limits
                value = limits.of(call.exhausted) if limits else None
                return None if value is None else ReportLimit(call.exhausted, call.limit, value)
        return None

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """The warnings with incidents and defects."""
        return (*self.warnings, *self.incidents, *self.defects)

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the report without session id, times, retries and cached tokens.

        Fields that hold their default are left out, so one that a later version adds changes no digest.
        """
        return hashlib.sha256(json.dumps(self.digested(), sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def digested(self) -> dict[str, object]:
        """Return the fields in the digest, as JSON data."""
        data = self.model_dump(mode="json", exclude=INCIDENTAL, exclude_defaults=True)
        if self.degraded is None:
            del data["degraded"]
        return data | {"warnings": list(self.warnings)}

    def presentation(self) -> Presentation:
        """Return what the protocol adds to how this report is shown. It must follow from the report's fields alone."""
        limit = self.settings.get(self.step_setting)
        return self._presentation().model_copy(update={"max_steps": limit if isinstance(limit, int) else None})

    def plain_presentation(self) -> Presentation:
        """Return the same for a summary, whose readers were not there and know none of the protocol's own words."""
        return self.presentation()

    def forecasts(self) -> tuple[Forecast, ...]:
        """Return the questions that can be followed up; none by default."""
        return ()

    @classmethod
    def asked_of_people(cls, key: str) -> str:
        """Return what a person is asked in a call, in place of the request; empty if the protocol has no words for it."""
        return next((cls.for_people[part] for part in key.split("/") if part in cls.for_people), "")

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        """Return what the protocol adds to how an unfinished session is shown: a fold over its messages and notes."""
        return cls._presentation()

    @classmethod
    def note_line(cls, note: Noted) -> str:
        """Return a note of the protocol as a line of progress; empty for one that readers need not see."""
        return ""

    @classmethod
    def _presentation(cls) -> Presentation:
        return Presentation(
            step=cls.step,
            step_setting=cls.step_setting,
            asides=tuple(sorted(cls.asides)),
            asks_for_dissent=cls.asks_for_dissent,
            labels=dict(cls.labels),
            glossary=dict(cls.glossary),
        )

    def __str__(self) -> str:
        """The report as Markdown."""
        return self.markdown() if _renderers else repr(self)

    def __repr__(self) -> str:
        """One line: type, session, stop reason, calls and the beginning of the answer."""
        answer = " ".join((self.answer or "no answer").split())
        excerpt = answer if len(answer) <= MAX_REPR_CHARS else f"{answer[: MAX_REPR_CHARS - 1]}…"
        calls = self.ledger.actual.calls
        return f"<{type(self).__name__} {self.session}: {self.stop_reason.value}, {calls} calls: {excerpt}>"

    def markdown(self) -> str:
        """Return the report as Markdown, as the command line prints it."""
        return self._required_renderers().markdown(self)

    def html(self) -> str:
        """Return the report as one HTML page, which loads nothing."""
        return self._required_renderers().html(self)

    def save(self, directory: Path | str) -> list[Path]:
        """Write `report.json`, `report.md`, `report.html`, `summary.html` and the protocol's own files; return their paths.

        The directory is created if missing. Files are readable by their owner only and replace files of the same name. Raises
        `SettingsError` on failure.
        """
        return self._required_renderers().save(self, Path(directory))

    @staticmethod
    def _required_renderers() -> ReportRenderers:
        if not _renderers:
            raise RuntimeError("no renderers are registered; import consilience.reporting.renderers first")
        return _renderers[0]

    def _repr_markdown_(self) -> str | None:
        return _renderers[0].markdown(self) if _renderers else None

    def _repr_html_(self) -> str | None:
        return _renderers[0].fragment(self) if _renderers else None
