"""Contributors each work on the whole goal, rate their results and flag doubts, which can send the goal back (seed 001)."""

from consilience.protocols.broadcast.protocol import Broadcast
from consilience.protocols.broadcast.report import BroadcastReport

__all__ = ["Broadcast", "BroadcastReport"]
