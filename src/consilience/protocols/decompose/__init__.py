"""A lead splits the task into parts, workers do them alone, and the lead combines the results."""

from consilience.protocols.decompose.protocol import Decompose
from consilience.protocols.decompose.report import DecomposeReport

__all__ = ["Decompose", "DecomposeReport"]
