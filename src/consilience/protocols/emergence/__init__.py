"""Bottom-up emergence: specialists think apart, talk among siblings, and parents make sense of what arises (seed 000)."""

from consilience.protocols.emergence.protocol import Emergence
from consilience.protocols.emergence.report import EmergenceReport

__all__ = ["Emergence", "EmergenceReport"]
