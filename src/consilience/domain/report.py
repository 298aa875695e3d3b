"""The result: a header common to all protocols; each protocol's report adds its own fields beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from consilience.domain.agents import Agent
from consilience.domain.messages import Quotation
from consilience.domain.outcome import Check, Estimate, StopReason
from consilience.domain.positions import PositionChange
from consilience.domain.topology import Topology


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Claim(Frozen):
    """A statement of the answer and the messages it rests on. `from_memory`: sources were given and it quotes none."""

    text: str
    ids: tuple[str, ...] = ()
    from_memory: bool = False


class StrangeLoop(Frozen):
    """One self-review of the root: what it started from and what it made of it, None when the call failed."""

    index: int
    before: str
    after: str | None
    domain: bool = False


class Spent(Frozen):
    """`calls` asks, `requests` sendings, `retries` and `repairs` among them; `fallbacks` calls that another model answered
    than the one asked first; `cost` in US dollars, None where unknown; `estimated` replies whose model told no tokens.

    `inherited` calls were made by the session this one is forked from, `cached` ones answered by a recorded reply to the same
    request, `lost` ones in flight when a process ended and perhaps paid for; none of these are in any other figure.
    """

    calls: int = 0
    requests: int = 0
    retries: int = 0
    repairs: int = 0
    fallbacks: int = 0
    lost: int = 0
    inherited: int = 0
    cached: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    estimated: int = 0
    cost: float | None = None
    seconds: float = 0.0


class LedgerReport(Frozen):
    estimated: Estimate
    actual: Spent
    reserve_drawn: bool = False


class Confidence(Frozen):
    """`level` in [0, 1] of what `kind` names; None where nothing was measured."""

    level: float | None = None
    kind: str = "none"


class Missing(Frozen):
    """A seat without a reply where one was due; `since` is the key of the first call it failed."""

    agent: str
    since: str
    reason: str


class Dissent(Frozen):
    """Somebody against the answer: a final ballot, or an objection that stands where no ballots were cast."""

    agent: str
    text: str
    position: str | None = None
    id: str | None = None


class Objection(Frozen):
    """Raised against what `to` said and answered by no later reply. `read`: whether a later call was shown it at all."""

    id: str
    agent: str
    to: str
    text: str
    read: bool


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


INCIDENTAL: dict[str, Any] = {
    "session": True,
    "ledger": {
        "reserve_drawn": True,
        "actual": {"requests", "retries", "fallbacks", "lost", "tokens_cached", "seconds"},
    },
}
"""What two runs of one program need not share; no part of the digest."""


@dataclass(frozen=True)
class Display:
    """How a report is written for a notebook."""

    markdown: Callable[[Report], str]
    html: Callable[[Report], str]


_display: list[Display] = []


def display_with(display: Display) -> None:
    """Have reports show themselves so from now on. The layer that can write them calls this: what is plain data knows no
    rendering, and imports nothing that does."""
    _display[:] = [display]


class Report(Frozen):
    """Common header. `answer` is None when the run ended without one; `degraded` says in words what was missing.

    In a notebook it shows itself as the command line does, once `consilience` was imported from (see `display_with`).
    """

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
    degraded: str | None = None
    replied: int
    quorum_met: bool
    confidence: Confidence = Confidence()
    steps: int = 0
    answer: str | None = None
    closing: Literal["ordinary", "reserve"] | None = None
    claims: tuple[Claim, ...] = ()
    ledger: LedgerReport
    missing: tuple[Missing, ...] = ()
    warnings: tuple[str, ...] = ()
    independence: Independence = Independence()
    position_changes: tuple[PositionChange, ...] = ()
    dissent: tuple[Dissent, ...] = ()
    objections: tuple[Objection, ...] = ()
    quotations: tuple[Quotation, ...] = ()
    metrics: dict[str, float | int | None] = {}

    def digest(self) -> str:
        """SHA-256 (hex) of the report without session id, times, retries and cached tokens.

        Fields that hold their default are left out, so one that a later version adds changes no digest.
        """
        data = self.model_dump(mode="json", exclude=INCIDENTAL, exclude_defaults=True)
        data["warnings"] = [w for w in self.warnings if not w.startswith("lost calls")]
        return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def _repr_markdown_(self) -> str | None:
        return _display[0].markdown(self) if _display else None

    def _repr_html_(self) -> str | None:
        return _display[0].html(self) if _display else None
