"""Goals that are broadcast, not assigned: agents choose what they contribute, rate themselves and flag what is wrong (seed 001)."""

from consilience.protocols.broadcast.protocol import Broadcast
from consilience.protocols.broadcast.report import BroadcastReport

__all__ = ["Broadcast", "BroadcastReport"]
