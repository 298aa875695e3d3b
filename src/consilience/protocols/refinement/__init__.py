"""A text written by a hierarchy: authors draft, specialists help, a critic judges, and what it criticises is revised (seed 004)."""

from consilience.protocols.refinement.protocol import Refinement
from consilience.protocols.refinement.report import RefinementReport

__all__ = ["Refinement", "RefinementReport"]
