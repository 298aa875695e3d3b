"""Specialists answer alone, then object to each other's answers and revise; an integrator decides (seed 000)."""

from consilience.protocols.emergence.protocol import Emergence
from consilience.protocols.emergence.report import EmergenceReport

__all__ = ["Emergence", "EmergenceReport"]
