"""The result: a header common to all protocols; each protocol's report adds its own fields beside it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from consilience.domain.agents import Agent
from consilience.domain.events import AnyEvent, SessionStarted
from consilience.domain.messages import Quotation
from consilience.domain.outcome import Check, Estimate, FailureKind, StopReason
from consilience.domain.positions import PositionChange
from consilience.domain.sections import Presentation
from consilience.domain.topology import Topology


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Claim(Frozen):
    """A statement of the answer and the messages it rests on. `from_memory`: sources were given and it quotes none."""

    text: str
    ids: tuple[str, ...] = ()
    from_memory: bool = False


class Against(Frozen):
    """The strongest position that the answer decided against, and why."""

    text: str
    ids: tuple[str, ...] = ()
    """Messages that hold the position."""


class FactsKept(Frozen):
    """How many of the figures, names and quotations of the first drafts are in the answer or its claims."""

    kept: int
    total: int
    lost: tuple[str, ...] = ()
    """Those that are not, as they were written."""


class StrangeLoop(Frozen):
    """One self-review of the root: what it started from and what it made of it, None when the call failed."""

    index: int
    before: str
    after: str | None
    domain: bool = False


class UsageTotals(Frozen):
    """`calls` asks, `requests` sendings, `retries` and `repairs` among them; `fallbacks` calls that another model answered
    than the one asked first; `cost` in US dollars, None where unknown; `estimated` replies whose model told no tokens.

    `inherited` calls were made by the session this one is forked from, `cached` ones answered by a recorded reply to the same
    request, `lost` ones in flight when a process ended and perhaps paid for; none of these are in any other figure.

    `timed_out` calls had a request in flight when a limit on time ended them. They may have been charged. They count as calls,
    and their requests as requests; their tokens and cost are unknown and in no figure.
    """

    calls: int = 0
    requests: int = 0
    retries: int = 0
    repairs: int = 0
    fallbacks: int = 0
    lost: int = 0
    timed_out: int = 0
    inherited: int = 0
    cached: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_thought: int = 0
    """The part of `tokens_out` that models used for thinking, which no text shows."""
    tokens_cached: int = 0
    estimated: int = 0
    cost: float | None = None
    seconds: float = 0.0


class LedgerReport(Frozen):
    estimated: Estimate
    actual: UsageTotals
    reserve_drawn: bool = False


class Confidence(Frozen):
    """`level` in [0, 1] of what `kind` names; None where nothing was measured."""

    level: float | None = None
    kind: str = "none"


class MissingAgent(Frozen):
    """A seat without a reply where one was due; `since` is the key of the first call it failed."""

    agent: str
    since: str
    reason: str


class FailedCall(Frozen):
    """A call that gave no reply, also where its agent replied to others."""

    key: str
    agent: str
    phase: tuple[str, int] | None = None
    kind: FailureKind
    detail: str = ""


class Dissent(Frozen):
    """Somebody against the answer: a final ballot, or an objection that stands where no ballots were cast."""

    agent: str
    text: str
    position: str | None = None
    id: str | None = None


ObjectionFate = Literal["yielded", "refuted", "stands", "unanswered"]
"""What became of an objection: its target changed its text, or refuted it; it was raised again after a refutation; or the run
ended before its target's next turn."""


class Objection(Frozen):
    """An objection to a text of another agent."""

    id: str
    agent: str
    to: str
    """The agent whose text it is against."""
    text: str
    read: bool
    """Whether a later call was shown it."""
    fate: ObjectionFate | None = None
    """None in sessions recorded before fates were declared; those list only objections that no later reply answered."""
    how: str = ""
    """How the target met it, in the target's words."""
    ruled: Literal["upheld", "rejected"] | None = None
    """Whether the text of the parent of both follows it."""
    ruling: str = ""
    """What the parent of both decided about it, in the parent's words."""

    @property
    def outcome(self) -> str:
        """The fate in the word that readers see: `Conceded`, `Refuted`, `Upheld` by a ruling, or `Open`."""
        met = {"yielded": "Conceded", "refuted": "Refuted"}.get(self.fate or "")
        return met or ("Open" if self.is_open else "Upheld")

    @property
    def is_open(self) -> bool:
        """Whether neither its target met it nor the parent of both followed it."""
        return self.fate not in ("yielded", "refuted") and self.ruled != "upheld"


class SharedModel(Frozen):
    model: str
    agents: tuple[str, ...]


class Independence(Frozen):
    """Agents on one model are not independent.

    `effective` voices are n/(1+(n−1)ρ) per model where ρ was estimated, or n where no model is shared.
    """

    shared: tuple[SharedModel, ...] = ()
    rho: float | None = None
    effective: float | None = None


@dataclass(frozen=True)
class UnfinishedSession:
    """A session that has no report yet, as its protocol sees it to show it. `text` looks up a stored text by its id."""

    started: SessionStarted
    events: Sequence[AnyEvent]
    text: Callable[[str], str]


INCIDENTAL: dict[str, Any] = {
    "session": True,
    "cut_replies": True,
    "facts": True,
    "same_material": True,
    "ledger": {
        "reserve_drawn": True,
        "actual": {"requests", "retries", "fallbacks", "lost", "tokens_cached", "seconds"},
    },
}
"""What two runs of one program need not share, and what follows from the rest; no part of the digest."""


@dataclass(frozen=True)
class ReportRenderers:
    """How a report is written."""

    markdown: Callable[[Report], str]
    html: Callable[[Report], str]
    """A page of its own."""
    fragment: Callable[[Report], str]
    """A part of another page, such as a notebook."""
    save: Callable[[Report, Path], list[Path]]


_renderers: list[ReportRenderers] = []


def register_renderers(display: ReportRenderers) -> None:
    """Have reports show themselves so from now on. The layer that can write them calls this: what is plain data knows no
    rendering, and imports nothing that does."""
    _renderers[:] = [display]


_report_finders: list[Callable[[str], type[Report] | None]] = []


def register_report_finder(finder: Callable[[str], type[Report] | None]) -> None:
    """Have recorded sessions find the report of a protocol by its name. The layer that knows protocols calls this."""
    _report_finders[:] = [finder]


def find_report(protocol: str) -> type[Report]:
    """The report of that protocol, which knows how to show it; the common header where its code is not present."""
    return (_report_finders[0](protocol) if _report_finders else None) or Report


def present(report: Report) -> Presentation:
    """`report.presentation()`; an empty one, and a warning in the log, where the protocol's code fails: the run was paid for."""
    try:
        return report.presentation()
    except Exception:
        logging.getLogger("consilience").warning(
            "the sections of %s could not be built", report.protocol, exc_info=True
        )
        return Presentation()


class Report(Frozen):
    """Common header. `answer` is None when the run ended without one; `answer_cut`: it ended at the token limit.

    `degraded` names phase, agent and reason of every failed call, and the share of the first phase's agents that replied where
    one did not. `unmet` names what keeps the run from counting as converged or satisfied; a report with an entry there is never
    `converged` and states no confidence.

    In a notebook it shows itself as the command line does, once `consilience` was imported from (see `register_renderers`).
    """

    step: ClassVar[str] = "round"
    """What a step of the protocol is called."""
    asides: ClassVar[frozenset[str]] = frozenset()
    """Kinds of replies that do not contribute to the answer: a sealed position, a hint to another agent, a verdict."""

    asks_for_dissent: ClassVar[bool] = False
    """Whether the protocol asks its agents to object. Only then a report without dissent says that none was declared."""

    undigested: ClassVar[frozenset[str]] = frozenset()
    """Fields that are no part of the digest: a later version added them, and they follow from what is digested."""

    schema_version: int = 1
    session: str = ""
    parent: str | None = None
    protocol: str
    task: str
    settings: dict[str, object]
    seed: int
    agents: tuple[Agent, ...]
    topology: Topology
    stop_reason: StopReason
    check: Check | None = None
    unmet: tuple[str, ...] = ()
    degraded: str | None = None
    replied: int
    quorum_met: bool
    confidence: Confidence = Confidence()
    steps: int = 0
    answer: str | None = None
    answer_cut: bool = False
    cut_replies: tuple[str, ...] = ()
    """Keys of the replies that ended at their token limit."""
    closing: Literal["ordinary", "reserve"] | None = None
    claims: tuple[Claim, ...] = ()
    against: tuple[Against, ...] = ()
    would_change: tuple[str, ...] = ()
    """Findings that would change the answer, by its author."""
    unknown: tuple[str, ...] = ()
    """What the answer's author did not know."""
    ledger: LedgerReport
    missing: tuple[MissingAgent, ...] = ()
    failed_calls: tuple[FailedCall, ...] = ()
    warnings: tuple[str, ...] = ()
    independence: Independence = Independence()
    same_material: bool = False
    """Whether no document is restricted to some agents and no agent has tools. False in sessions recorded before this field."""
    position_changes: tuple[PositionChange, ...] = ()
    dissent: tuple[Dissent, ...] = ()
    objections: tuple[Objection, ...] = ()
    """All objections with their fate; without a fate, only those that no later reply answered."""
    quotations: tuple[Quotation, ...] = ()
    facts: FactsKept | None = None
    """None where no agent wrote points before it read others, or where there is no answer."""
    metrics: dict[str, float | int | None] = {}

    def digest(self) -> str:
        """SHA-256 (hex) of the report without session id, times, retries and cached tokens.

        Fields that hold their default are left out, so one that a later version adds changes no digest.
        """
        data = self.model_dump(
            mode="json", exclude=INCIDENTAL | dict.fromkeys(self.undigested, True), exclude_defaults=True
        )
        data["warnings"] = [w for w in self.warnings if not w.startswith("lost calls")]
        return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def presentation(self) -> Presentation:
        """Return what the protocol adds to how this report is shown. It must follow from the report's fields alone."""
        return self._presentation()

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        """Return what the protocol adds to how an unfinished session is shown: a fold over its messages and notes."""
        return cls._presentation()

    @classmethod
    def _presentation(cls) -> Presentation:
        return Presentation(step=cls.step, asides=tuple(sorted(cls.asides)), asks_for_dissent=cls.asks_for_dissent)

    def markdown(self) -> str:
        """Return the report as Markdown, as the command line prints it."""
        return self._required_renderers().markdown(self)

    def html(self) -> str:
        """Return the report as one HTML page, which loads nothing."""
        return self._required_renderers().html(self)

    def save(self, directory: Path | str) -> list[Path]:
        """Write `report.json`, `report.md`, `report.html` and the protocol's own files; return their paths.

        The directory is made if it is missing. Files are for their owner alone to read and replace those of the same name. Raises
        `SettingsError` where that fails.
        """
        return self._required_renderers().save(self, Path(directory))

    @staticmethod
    def _required_renderers() -> ReportRenderers:
        if not _renderers:
            raise RuntimeError("nothing that writes reports is loaded; import a name from consilience first")
        return _renderers[0]

    def _repr_markdown_(self) -> str | None:
        return _renderers[0].markdown(self) if _renderers else None

    def _repr_html_(self) -> str | None:
        return _renderers[0].fragment(self) if _renderers else None
