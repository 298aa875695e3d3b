"""A pull request with its threads and reviews, and what earlier runs and people left in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt

from consilience.domain.findings import EarlierReviews, Identity, KnownFinding
from consilience.domain.report import Frozen
from consilience.reporting.formats.marks import Mark, mark_in

MAINTAINERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
"""Associations of people whose word dismisses a finding, and whose replies are answered."""
_DISMISSAL = re.compile(r"^[ \t]*consilience:[ \t]*ignore\b[: \t]*([^\s:].*)", re.IGNORECASE | re.MULTILINE)
_MARKDOWN = MarkdownIt("commonmark")
MAX_REASON_CHARS = 300


class Comment(Frozen):
    """A comment in a thread."""

    id: str
    body: str
    url: str = ""
    is_own: bool = False
    """Whether the account of this program's token wrote it, and nobody else has edited it, by the word of the service."""
    author: str = ""
    is_person: bool = False
    association: str = "NONE"

    @property
    def own_mark(self) -> Mark | None:
        """Its mark, if this program wrote it. Anybody can write what looks like one."""
        return mark_in(self.body) if self.is_own else None

    @property
    def is_by_maintainer(self) -> bool:
        return self.is_person and not self.is_own and self.association in MAINTAINERS


class ReviewThread(Frozen):
    """A thread on lines of the diff."""

    id: str
    is_resolved: bool = False
    resolved_by: str = ""
    comments: tuple[Comment, ...]

    @property
    def finding(self) -> KnownFinding | None:
        """The finding that it is about, if this program began it."""
        mark = self.comments[0].own_mark
        return mark.finding if mark else None

    @property
    def is_told_gone(self) -> bool:
        """Whether it says that its finding no longer applies."""
        return any(mark.is_gone for mark in self._own_marks)

    @property
    def is_done(self) -> bool:
        """Whether it says that its finding no longer applies, and nobody else has written after that."""
        told = next((n for n, comment in enumerate(self.comments) if (m := comment.own_mark) and m.is_gone), None)
        return told is not None and all(comment.is_own for comment in self.comments[told:])

    @property
    def dismissal(self) -> tuple[str, str] | None:
        """Who dismissed its finding, and the reason: a maintainer who wrote `consilience: ignore REASON`, or who wrote the last
        reply of a maintainer and resolved the thread. Own comments do not count, so that no text of a model dismisses anything,
        and in a comment neither quotations nor blocks of code."""
        spoken = [comment for comment in self.comments if comment.is_by_maintainer]
        for comment in spoken:
            if found := _DISMISSAL.search(_own_words(comment.body)):
                return comment.author, _one_line(found[1])
        if self.is_resolved and spoken and spoken[-1].author == self.resolved_by and _one_line(spoken[-1].body):
            return spoken[-1].author, _one_line(spoken[-1].body)
        return None

    @property
    def unanswered(self) -> Comment | None:
        """The last reply of a maintainer, if the program has not answered it or one after it and it dismisses nothing."""
        if self.is_resolved or self.finding is None or self.dismissal or self.is_told_gone:
            return None
        spoken = [n for n, comment in enumerate(self.comments) if comment.is_by_maintainer]
        if not spoken or any(comment.is_own for comment in self.comments[spoken[-1] + 1 :]):
            return None
        reply = self.comments[spoken[-1]]
        return None if any(mark.answers == reply.id for mark in self._own_marks) else reply

    @property
    def _own_marks(self) -> list[Mark]:
        return [mark for comment in self.comments if (mark := comment.own_mark)]


def _own_words(body: str) -> str:
    """Return the paragraphs of a comment that are neither quoted nor code nor in a list."""
    return "\n".join(token.content for token in _MARKDOWN.parse(body) if token.type == "inline" and token.level == 1)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON_CHARS]


class PostedReview(Frozen):
    """A review of the pull request."""

    id: str
    body: str
    is_own: bool = False

    @property
    def own_mark(self) -> Mark | None:
        return mark_in(self.body) if self.is_own else None


class PullRequest(Frozen):
    """A pull request as it is now."""

    head: str
    """The commit at its head."""
    name: str = ""
    """Of the series of reviews that is posted to it."""
    threads: tuple[ReviewThread, ...] = ()
    reviews: tuple[PostedReview, ...] = ()
    """The oldest first."""

    def of_series(self, name: str) -> PullRequest:
        """Return it without the threads and reviews of other series."""
        threads = (thread for thread in self.threads if _is_of(thread.comments[0].own_mark, name))
        reviews = (review for review in self.reviews if _is_of(review.own_mark, name))
        return self.model_copy(update={"name": name, "threads": tuple(threads), "reviews": tuple(reviews)})

    @property
    def own_reviews(self) -> Sequence[tuple[PostedReview, EarlierReviews]]:
        marks = ((review, review.own_mark) for review in self.reviews)
        return [(review, mark.review) for review, mark in marks if mark is not None and mark.review is not None]

    @property
    def earlier(self) -> EarlierReviews:
        """What a review of a later push needs to know: up to which commit all was read, and the findings that were posted.

        One that its thread says is gone is not among them: if its lines come back, it is news.
        """
        reviews = [review for _, review in self.own_reviews]
        read = [review for review in reviews if review.commit]
        known = [*self._in_threads(), *(entry for review in reviews for entry in review.known)]
        distinct = {(_key(entry.identities[0]), _key(entry.cause)): entry for entry in reversed(known)}
        place = {"commit": read[-1].commit, "base": read[-1].base} if read else {}
        return EarlierReviews(known=tuple(reversed(distinct.values())), **place)

    def _in_threads(self) -> Iterator[KnownFinding]:
        for thread in self.threads:
            if (finding := thread.finding) is None or thread.is_told_gone:
                continue
            found = {"status": "stands", "thread": thread.id, "url": thread.comments[0].url}
            if dismissal := thread.dismissal:
                found |= {"status": "dismissed", "by": dismissal[0], "reason": dismissal[1]}
            yield finding.model_copy(update=found)

    def has(self, identities: Sequence[Identity], gone: Sequence[KnownFinding] = ()) -> bool:
        """Return whether a finding of the change with one of these identities was posted and is not gone, by its thread or as one
        of `gone`."""
        are_gone = {(entry.thread, _digests(entry)) for entry in gone}
        told = (entry for entry in self.earlier.known if entry.status != "older")
        standing = (entry for entry in told if (entry.thread, _digests(entry)) not in are_gone)
        posted = {_key(identity) for entry in standing for identity in entry.identities}
        return any(_key(identity) in posted for identity in identities)


def _is_of(mark: Mark | None, name: str) -> bool:
    return mark is None or mark.name == name


def _key(identity: Identity | None) -> Identity | None:
    return identity.model_copy(update={"line": 0, "category": ""}) if identity else None


def _digests(entry: KnownFinding) -> tuple[str, str]:
    """Return what stays of a finding when lines move and files are renamed."""
    return entry.identities[0].digest, entry.cause.digest if entry.cause else ""
