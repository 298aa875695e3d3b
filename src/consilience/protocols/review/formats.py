"""The report of `review` for other programs: SARIF 2.1.0, and a review for GitHub."""

from consilience.protocols.review.github import github_comments
from consilience.protocols.review.sarif import sarif

__all__ = ["github_comments", "sarif"]
