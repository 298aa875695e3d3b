"""What a deliberation has to beat: one call, one well-asked call, and a vote among independent calls (protocols §6).

Names are imported when first used: the list of commands reads what stands in the modules without running them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consilience.protocols.baselines.report import SoloReport, VoteReport
    from consilience.protocols.baselines.solo import Solo
    from consilience.protocols.baselines.vote import Vote

__all__ = ["Solo", "SoloReport", "Vote", "VoteReport"]

_HOME = {"Solo": "solo", "SoloReport": "report", "Vote": "vote", "VoteReport": "report"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
