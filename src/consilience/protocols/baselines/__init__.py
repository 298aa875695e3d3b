"""What a deliberation has to beat: one call, one well-asked call, and a vote among independent calls (protocols §6)."""

from consilience.protocols.baselines.report import SoloReport, VoteReport
from consilience.protocols.baselines.solo import Solo
from consilience.protocols.baselines.vote import Vote

__all__ = ["Solo", "SoloReport", "Vote", "VoteReport"]
