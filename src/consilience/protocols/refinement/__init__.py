"""A hierarchy writes a text: authors draft, specialists help, a critic judges, and further passes revise (seed 004)."""

from consilience.protocols.refinement.protocol import Refinement
from consilience.protocols.refinement.report import RefinementReport

__all__ = ["Refinement", "RefinementReport"]
