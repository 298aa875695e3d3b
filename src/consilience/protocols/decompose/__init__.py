"""Top-down division of work: the task is split into parts, agents do theirs alone, and what they bring is put together."""

from consilience.protocols.decompose.protocol import Decompose
from consilience.protocols.decompose.report import DecomposeReport

__all__ = ["Decompose", "DecomposeReport"]
