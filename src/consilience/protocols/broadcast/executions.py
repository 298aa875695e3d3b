"""Results of branches: one execution of an agent, and one iteration of a parent with its children. They make no calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from consilience.domain.messages import Message
from consilience.domain.outcome import Check
from consilience.domain.positions import exact
from consilience.domain.report import StrangeLoop
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import Conclusion
from consilience.protocols.broadcast.replies import (
    Evaluation,
    Goal,
    RatedReply,
    Tag,
    is_revision,
)

TextReply = Reply[Any]
"""A reply whose text may go up."""

CONTENT = 0.9
"""Siblings who rate themselves above this and flag nothing need not coordinate (seed 001, §8)."""

EVALUATOR_SAYS_NO = "the evaluator says no"


@dataclass(frozen=True, slots=True)
class RaisedFlag:
    """A flag, published as a message."""

    tag: Tag
    message: Message

    @property
    def node(self) -> str:
        return self.message.sender

    @property
    def link(self) -> str:
        """As chains list it."""
        return f"{self.tag} ({self.node})"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A point in which an author departs from a sibling's text, published as a message. `text` is its words alone."""

    to: str
    text: str
    message: Message


@dataclass(frozen=True, slots=True)
class Remarks:
    """What was published from a rated reply beside its text. `surplus` counts flags beyond those that a reply may raise."""

    flags: tuple[RaisedFlag, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    missing: Message | None = None
    surplus: int = 0


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of an agent."""

    agent: str
    path: tuple[int, ...]
    """Iterations of its ancestors, the root's first."""
    response: TextReply | None = None
    """A leaf's text or a parent's synthesis, before any revision."""
    reflection: Reply[Any] | None = None
    brought: TextReply | None = None
    """The text with which it entered coordination."""
    talks: tuple[Reply[Any], ...] = ()
    """Its replies in coordination."""
    text: TextReply | None = None
    """The text that goes up."""
    kept: TextReply | None = None
    """Its text of the last execution that had one, if this one has none."""
    rating: float | None = None
    """The latest; None if it could not be read."""
    flags: tuple[RaisedFlag, ...] = ()
    """Its own."""
    disagreements: tuple[Disagreement, ...] = ()
    """Those of its last reply in coordination."""
    superseded: tuple[Disagreement, ...] = ()
    """Those of its earlier replies in coordination."""
    missing: Message | None = None
    """What it found wrong or missing in its text."""
    iterations: tuple[IterationResult, ...] = ()
    """Of a parent."""
    failures: tuple[Failure, ...] = ()
    surplus: int = 0

    @property
    def carried(self) -> tuple[RaisedFlag, ...]:
        """Flags that stood beneath it when its last iteration ended."""
        return tuple(flag for child in latest(self.iterations) for flag in child.standing)

    @property
    def standing(self) -> tuple[RaisedFlag, ...]:
        """What its parent hears of: its own flags, then those from beneath."""
        return (*self.flags, *self.carried)

    def after(self, before: Execution | None) -> Execution:
        """Complete it from the execution before. Without a text of its own it keeps the earlier one; without a judgement it
        keeps the earlier flags, since silence withdraws none."""
        if before is None:
            return self
        kept = before.last_text if self.text is None else None
        judged = self.reflection is not None or self.talks
        return replace(
            self,
            kept=kept,
            disagreements=self.disagreements if self.text is not None else before.disagreements,
            flags=self.flags if judged else (*before.flags, *self.flags),
        )

    @property
    def last_text(self) -> TextReply | None:
        return self.text or self.kept

    @property
    def content(self) -> bool:
        return self.rating is not None and exact(self.rating) > exact(CONTENT) and not self.standing

    @property
    def refined(self) -> bool:
        """It went up with other words than it was first written in."""
        return self.text is not None and self.response is not None and self.text.text != self.response.text

    def responded(self, reply: TextReply | Failure) -> Execution:
        """After its first reply."""
        if isinstance(reply, Failure):
            return replace(self, failures=(*self.failures, reply))
        return replace(self, response=reply, text=reply, brought=reply)

    def reflected(self, reply: Reply[Any] | Failure, remarks: Remarks) -> Execution:
        """After it judged its own text. A revised text replaces it."""
        run = self._rated(reply, remarks)
        if isinstance(reply, Failure):
            return run
        text = reply if is_revision(reply.text) else self.text
        return replace(run, reflection=reply, missing=remarks.missing, text=text, brought=text)

    def coordinated(self, reply: Reply[Any] | Failure, remarks: Remarks) -> Execution:
        """After it read its siblings."""
        run = self._rated(reply, remarks)
        if isinstance(reply, Failure):
            return run
        return replace(
            run,
            talks=(*self.talks, reply),
            text=reply,
            disagreements=remarks.disagreements,
            superseded=(*self.superseded, *self.disagreements),
        )

    def _rated(self, reply: Reply[Any] | Failure, remarks: Remarks) -> Execution:
        """A failed call leaves no rating: the text was not judged as it stands."""
        if isinstance(reply, Failure):
            return replace(self, rating=None, failures=(*self.failures, reply))
        assert isinstance(reply.value, RatedReply)
        return replace(
            self,
            rating=reply.value.rating,
            flags=(*self.flags, *remarks.flags),
            surplus=self.surplus + remarks.surplus,
        )

    @property
    def beneath(self) -> tuple[Execution, ...]:
        """Its children as its last iteration left them."""
        return self.iterations[-1].children if self.iterations else ()

    def last_walk(self) -> Iterator[Execution]:
        """The last executions beneath it and then itself."""
        for child in self.beneath:
            yield from child.last_walk()
        yield self

    def walk(self) -> Iterator[Execution]:
        """All executions beneath it and then itself, as words and flags go up."""
        for iteration in self.iterations:
            for child in iteration.children:
                yield from child.walk()
        yield self


@dataclass(frozen=True, slots=True)
class IterationResult:
    """One iteration of a parent."""

    agent: str
    path: tuple[int, ...]
    """Iterations of its ancestors and this one, the root's first."""
    broadcast: Reply[Goal] | None
    children: tuple[Execution, ...]
    """Their executions as the iteration left them."""
    rounds: int
    """Rounds of coordination held."""
    check: Check
    unmet: tuple[str, ...] = ()
    """Why it does not satisfy."""
    evaluation: Reply[Evaluation] | None = None
    failures: tuple[Failure, ...] = ()
    """The parent's own."""
    unquoted: int = 0
    """Flags that were too many for its prompts."""

    @property
    def all_failures(self) -> tuple[Failure, ...]:
        """Its own and those beneath it."""
        below = (run for child in self.children for run in child.walk())
        inner = [
            f
            for run in below
            for f in (*run.failures, *(f for iteration in run.iterations for f in iteration.failures))
        ]
        return (*self.failures, *inner)

    @property
    def limited(self) -> bool:
        return any(failure.kind.is_limit for failure in self.all_failures)


def latest(iterations: Sequence[IterationResult]) -> tuple[Execution, ...]:
    """The children's last executions, each with its latest text: one that fell silent keeps its earlier text and flags."""
    if not iterations:
        return ()
    return tuple(replace(run, text=run.last_text) for run in iterations[-1].children)


def declares(conclusion: Conclusion) -> bool:
    """Whether a reply gives anything but a text."""
    return bool(conclusion.claims or conclusion.against or conclusion.would_change or conclusion.unknown)


def heard(iterations: Sequence[IterationResult]) -> bool:
    """Whether any child gave a text in any of them."""
    return any(child.text is not None for iteration in iterations for child in iteration.children)


def last_evaluation(iterations: Sequence[IterationResult]) -> Reply[Evaluation] | None:
    """The evaluation of the latest texts; None if it failed."""
    for iteration in reversed(iterations):
        if iteration.evaluation is not None or any(run.text is not None for run in iteration.children):
            return iteration.evaluation
    return None


def last_goal(iterations: Sequence[IterationResult]) -> Reply[Goal] | None:
    """The goal that a parent broadcast last; None if every broadcast failed."""
    return next((iteration.broadcast for iteration in reversed(iterations) if iteration.broadcast is not None), None)


def first_runs(first: IterationResult, leaves: Sequence[str]) -> list[Execution]:
    """The first execution of every leaf."""
    found: dict[str, Execution] = {}
    for child in first.children:
        for run in child.walk():
            found.setdefault(run.agent, run)
    return [found[leaf] for leaf in leaves]


@dataclass
class BroadcastRun:
    """The root's results so far."""

    iterations: list[IterationResult] = field(default_factory=list)
    check: Check | None = None
    synthesis: TextReply | None = None
    loops: list[StrangeLoop] = field(default_factory=list)
    reviews: list[TextReply] = field(default_factory=list)
    """Replies to self-reviews."""
    declared: Message | None = None
    """The conclusion that these and the synthesis declared last, as their author reads it."""
    root: Execution | None = None
    closing: TextReply | None = None
    """The latest text that answers the task."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def conclusion(self) -> TextReply | None:
        """The latest reply that declares a conclusion. A reflection that revises the text without one leaves the earlier."""
        replies = [self.closing, *reversed(self.reviews), self.synthesis]
        said = [reply for reply in replies if reply is not None]
        return next((reply for reply in said if declares(reply.value)), said[0] if said else None)

    @property
    def rulings(self) -> tuple[TextReply, ...]:
        """The root's replies that may decide about disagreements."""
        reflection = self.root.reflection if self.root is not None else None
        return tuple(reply for reply in (self.synthesis, *self.reviews, reflection) if reply is not None)

    @property
    def standing(self) -> tuple[RaisedFlag, ...]:
        """Flags that stand at the root: those from beneath, then its own."""
        own = self.root.flags if self.root is not None else ()
        return (*(flag for child in latest(self.iterations) for flag in child.standing), *own)

    @property
    def last_iterations(self) -> tuple[IterationResult, ...]:
        """The last iteration of every parent in its last execution, the root's at the end."""
        if not self.iterations:
            return ()
        below = [
            run.iterations[-1] for child in self.iterations[-1].children for run in child.last_walk() if run.iterations
        ]
        return (*below, self.iterations[-1])

    @property
    def unsatisfied(self) -> tuple[IterationResult, ...]:
        """Those that ended unsatisfied."""
        return tuple(iteration for iteration in self.last_iterations if not iteration.check.met)

    @property
    def all_failures(self) -> list[Failure]:
        return [*(failure for iteration in self.iterations for failure in iteration.all_failures), *self.failures]


def shortfalls(
    children: Sequence[Execution],
    threshold: float,
    critical: Sequence[Tag],
    evaluation: Reply[Evaluation] | None,
    failures: Sequence[Failure],
) -> tuple[str, ...]:
    """Why a parent is not satisfied; empty where it is: every child's latest rating could be read, their mean reaches the
    threshold, no critical flag stands, the evaluator does not say no, and no call of the iteration failed. `failures` are the
    parent's own."""
    mean, unread = mean_rating(children), [child.agent for child in children if child.rating is None]
    short = mean is not None and sum(exact(child.rating or 0) for child in children) < exact(threshold) * len(children)
    flags = dict.fromkeys(flag.link for child in children for flag in child.standing if flag.tag in critical)
    failed = [*failures, *(failure for child in children for failure in child.failures)]
    return tuple(
        filter(
            None,
            (
                f"no readable rating of {', '.join(unread)}" if unread else "",
                f"mean rating {mean:.2f}, needed {threshold:g}" if short else "",
                f"critical flags: {', '.join(flags)}" if flags else "",
                EVALUATOR_SAYS_NO if evaluation is not None and evaluation.value.satisfied is False else "",
                f"no reply to {', '.join(failure.key for failure in failed)}" if failed else "",
            ),
        )
    )


def mean_rating(children: Sequence[Execution]) -> float | None:
    """None where a rating is missing."""
    known = [child.rating for child in children if child.rating is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(children) else None


def satisfaction(children: Sequence[Execution], threshold: float, unmet: Sequence[str]) -> Check:
    """The judgement of an iteration, with its `shortfalls`."""
    rated = ", ".join(f"{c.agent} {'unreadable' if c.rating is None else f'{c.rating:.2f}'}" for c in children)
    check = Check(met=True, kind="satisfaction", score=mean_rating(children), threshold=threshold, detail=rated)
    return check.vetoed(*unmet)
