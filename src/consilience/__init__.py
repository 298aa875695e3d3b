"""Consilience: a deliberation engine.

    report = consilience.run_sync("Should we …?", consilience.Emergence(children=3), model="local")
    print(report.answer, report.dissent)

Names are imported when first used, so that `import consilience` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consilience.api import deliberate as deliberate
    from consilience.api import fork as fork
    from consilience.api import fork_sync as fork_sync
    from consilience.api import live as live
    from consilience.api import replay as replay
    from consilience.api import replay_sync as replay_sync
    from consilience.api import resume as resume
    from consilience.api import resume_sync as resume_sync
    from consilience.api import run_sync as run_sync
    from consilience.deliberation import Deliberation as Deliberation
    from consilience.deliberation import Live as Live
    from consilience.domain.errors import ConsilienceError as ConsilienceError
    from consilience.domain.errors import UserError as UserError
    from consilience.domain.hierarchies import Hierarchy as Hierarchy
    from consilience.domain.messages import Source as Source
    from consilience.domain.outcome import Limits as Limits
    from consilience.domain.outcome import SpendingLimits as SpendingLimits
    from consilience.domain.outcome import StopReason as StopReason
    from consilience.domain.panels import Panel as Panel
    from consilience.domain.panels import Persona as Persona
    from consilience.domain.report import Report as Report
    from consilience.journal.open_store import open_store as open_store
    from consilience.journal.sqlite import SqliteStore as SqliteStore
    from consilience.models.tool_agent import ToolAgent as ToolAgent
    from consilience.protocols.baselines import Solo as Solo
    from consilience.protocols.baselines import SoloReport as SoloReport
    from consilience.protocols.baselines import Vote as Vote
    from consilience.protocols.baselines import VoteReport as VoteReport
    from consilience.protocols.broadcast import Broadcast as Broadcast
    from consilience.protocols.broadcast import BroadcastReport as BroadcastReport
    from consilience.protocols.debate import Debate as Debate
    from consilience.protocols.debate import DebateReport as DebateReport
    from consilience.protocols.decompose import Decompose as Decompose
    from consilience.protocols.decompose import DecomposeReport as DecomposeReport
    from consilience.protocols.emergence import Emergence as Emergence
    from consilience.protocols.emergence import EmergenceReport as EmergenceReport
    from consilience.protocols.refinement import Refinement as Refinement
    from consilience.protocols.refinement import RefinementReport as RefinementReport

_HOME = {
    "deliberate": "consilience.api",
    "fork": "consilience.api",
    "fork_sync": "consilience.api",
    "live": "consilience.api",
    "replay_sync": "consilience.api",
    "resume_sync": "consilience.api",
    "resume": "consilience.api",
    "replay": "consilience.api",
    "run_sync": "consilience.api",
    "ConsilienceError": "consilience.domain.errors",
    "UserError": "consilience.domain.errors",
    "Hierarchy": "consilience.domain.hierarchies",
    "Source": "consilience.domain.messages",
    "SpendingLimits": "consilience.domain.outcome",
    "Limits": "consilience.domain.outcome",
    "StopReason": "consilience.domain.outcome",
    "Panel": "consilience.domain.panels",
    "Persona": "consilience.domain.panels",
    "Report": "consilience.domain.report",
    "SqliteStore": "consilience.journal.sqlite",
    "open_store": "consilience.journal.open_store",
    "ToolAgent": "consilience.models.tool_agent",
    "Broadcast": "consilience.protocols.broadcast",
    "BroadcastReport": "consilience.protocols.broadcast",
    "Debate": "consilience.protocols.debate",
    "DebateReport": "consilience.protocols.debate",
    "Decompose": "consilience.protocols.decompose",
    "DecomposeReport": "consilience.protocols.decompose",
    "Emergence": "consilience.protocols.emergence",
    "Deliberation": "consilience.deliberation",
    "Live": "consilience.deliberation",
    "Solo": "consilience.protocols.baselines",
    "SoloReport": "consilience.protocols.baselines",
    "Vote": "consilience.protocols.baselines",
    "VoteReport": "consilience.protocols.baselines",
    "EmergenceReport": "consilience.protocols.emergence",
    "Refinement": "consilience.protocols.refinement",
    "RefinementReport": "consilience.protocols.refinement",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith("Report"):
        import_module("consilience.api")  # has reports show themselves in notebooks
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
