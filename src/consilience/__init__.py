"""Consilience: a deliberation engine.

    report = consilience.run_sync("Should we …?", consilience.Emergence(children=3), model="local")
    print(report.answer, report.dissent)

Names are imported on first use, so that `import consilience` is fast.
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
    from consilience.engine.execution import Options as Options
    from consilience.journal.open_store import open_store as open_store
    from consilience.journal.sqlite import SqliteStore as SqliteStore
    from consilience.models.endpoints import Endpoints as Endpoints
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
    from consilience.protocols.review import Review as Review
    from consilience.protocols.review import ReviewReport as ReviewReport
    from consilience.targets import Target as Target
    from consilience.targets import read_target as read_target

_NAMES = {
    "consilience.api": (
        "deliberate",
        "fork",
        "fork_sync",
        "live",
        "replay",
        "replay_sync",
        "resume",
        "resume_sync",
        "run_sync",
    ),
    "consilience.deliberation": ("Deliberation", "Live"),
    "consilience.domain.errors": ("ConsilienceError", "UserError"),
    "consilience.domain.hierarchies": ("Hierarchy",),
    "consilience.domain.messages": ("Source",),
    "consilience.domain.outcome": ("Limits", "SpendingLimits", "StopReason"),
    "consilience.domain.panels": ("Panel", "Persona"),
    "consilience.domain.report": ("Report",),
    "consilience.engine.execution": ("Options",),
    "consilience.journal.open_store": ("open_store",),
    "consilience.journal.sqlite": ("SqliteStore",),
    "consilience.models.endpoints": ("Endpoints",),
    "consilience.models.tool_agent": ("ToolAgent",),
    "consilience.protocols.baselines": ("Solo", "SoloReport", "Vote", "VoteReport"),
    "consilience.protocols.broadcast": ("Broadcast", "BroadcastReport"),
    "consilience.protocols.debate": ("Debate", "DebateReport"),
    "consilience.protocols.decompose": ("Decompose", "DecomposeReport"),
    "consilience.protocols.emergence": ("Emergence", "EmergenceReport"),
    "consilience.protocols.refinement": ("Refinement", "RefinementReport"),
    "consilience.protocols.review": ("Review", "ReviewReport"),
    "consilience.targets": ("Target", "read_target"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith("Report"):
        import_module("consilience.reporting.renderers")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
