"""Planted worlds: agents with known beliefs, so that what a protocol finds can be compared with what is there."""

from simulation.recovery import Interval, adjusted_rand, bootstrap, f1
from simulation.worlds import Mind, SimulatedModel, Statement, World, plant

__all__ = [
    "Interval",
    "Mind",
    "SimulatedModel",
    "Statement",
    "World",
    "adjusted_rand",
    "bootstrap",
    "f1",
    "plant",
]
