"""The type of report, until it has its sections."""

from consilience.protocols.review.report_data import ReviewData


class ReviewReport(ReviewData):
    """The report of a review."""
