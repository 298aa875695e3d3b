"""What is to be posted to a pull request after a review: only what is new, and what became of what was posted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from consilience.domain.markdown import code_span
from consilience.domain.messages import JsonObject
from consilience.integrations.pull_requests.threads import PullRequest
from consilience.protocols.review import ReviewReport
from consilience.reporting.formats.github import MAX_BODY_CHARS, OTHERS, older_findings, other_findings
from consilience.reporting.formats.marks import Mark, marked, without_mark


@dataclass(frozen=True)
class Posting:
    """The requests to make, in this order."""

    replies: Sequence[tuple[str, str]] = ()
    """Pairs of the comment that begins a thread and the reply."""
    review: JsonObject | None = None
    """The request that creates a review: with new findings, or the first to say up to where all was read; None without either."""
    review_in_text: JsonObject | None = None
    """The same without comments on lines, for the case that GitHub knows one of the lines not."""
    update: tuple[str, str] | None = None
    """The last own review, and its text with what became of earlier findings."""
    notes: Sequence[str] = field(default_factory=list)
    """For the log."""


def plan_posting(report: ReviewReport, pull: PullRequest) -> Posting:
    """Return what to post for a report to a pull request as it is now.

    A thread is told that its finding no longer applies if the review is complete: else nobody has read what is there now. Without a
    new finding the first review is posted all the same, once: what was read is kept nowhere else.
    """
    if report.reviewed_commit and report.reviewed_commit != pull.head:
        return Posting(
            notes=[f"Commit {report.reviewed_commit[:12]} is no longer the head: the run of the newer one posts."]
        )
    gone = [entry for entry in report.known_findings if entry.status == "gone"]
    new = tuple(f for f in report.findings if not f.identities or not pull.has(f.identities, gone))
    threads = {thread.id: thread for thread in pull.threads}
    told = [threads[entry.thread] for entry in gone if entry.thread in threads] if report.complete else []
    text = _gone_text(report.reviewed_commit)
    replies = [(t.comments[0].id, text) for t in told if not t.is_told_gone and not t.is_resolved]
    is_first = not pull.own_reviews and report.read_to is not None and not report.is_without_target
    if not new and not is_first:
        return Posting(replies, update=_update(pull, report), notes=["No new findings: no review is posted."])

    def request(shown: ReviewReport) -> JsonObject:
        return shown.github_comments(pull.name, pull.earlier)

    shown = report.model_copy(update={"findings": new})
    return Posting(replies, review=request(shown), review_in_text=request(shown.model_copy(update={"hunks": ()})))


def _update(pull: PullRequest, report: ReviewReport) -> tuple[str, str] | None:
    """Return the last own review with its text brought up to date; None without one, or if nothing changes."""
    if not pull.own_reviews:
        return None
    review, mark = pull.own_reviews[-1]
    text, others, read = without_mark(review.body), other_findings(report), report.read_to or pull.earlier
    kept = text.rpartition(f"\n\n{OTHERS}")[0] or text
    known = (*mark.known, *older_findings(report))
    own = mark.model_copy(update={"commit": read.commit, "base": read.base, "known": known})
    body = marked(f"{kept}\n\n{others}" if others else kept, Mark(name=pull.name, review=own))
    return (review.id, body) if body != review.body and len(body) <= MAX_BODY_CHARS + 5_000 else None


def _gone_text(commit: str) -> str:
    at = f" as of {code_span(commit[:12])}" if commit else ""
    text = (
        f"The lines that this is about, or those that cause it, have changed{at}, so it no longer applies as written."
    )
    return marked(text, Mark(is_gone=True))
