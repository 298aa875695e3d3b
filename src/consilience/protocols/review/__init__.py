"""Red and blue review of code and documents: few findings, each with a verified quotation and a way to check it (seed 003)."""

from consilience.protocols.review.protocol import Review
from consilience.protocols.review.report import ReviewReport

__all__ = ["Review", "ReviewReport"]
