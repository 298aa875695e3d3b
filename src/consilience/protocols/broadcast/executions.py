"""Records of a run: one execution of an agent, one iteration of a parent with its children, the whole run, and its notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from consilience.domain.messages import Message
from consilience.domain.notes import LongText
from consilience.domain.outcome import Check
from consilience.domain.positions import exact
from consilience.domain.report import Frozen
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import Conclusion, TextReply, TreeRun
from consilience.protocols._common.presenting import describe_calls
from consilience.protocols._common.remarks import LeftOut, RecordedLeftOut
from consilience.protocols._common.revisions import loses_draft
from consilience.protocols.broadcast.settings import (
    Evaluation,
    Goal,
    RatedReply,
    Tag,
    TagSeverity,
    is_revision,
)

MIN_CONTENT_RATING = 0.9
"""Siblings who rate themselves above this and raise no flag need not coordinate (seed 001, §8)."""

Shortfall = Literal["ratings", "mean", "flags", "evaluator", "calls"]
"""What keeps a parent from being satisfied: a rating that cannot be read, the mean rating, critical flags, the evaluator's no, or
calls without a reply."""

Path = tuple[int, ...]
"""Iterations from the root's down."""


def key_at(path: Path, step: str, agent: str) -> str:
    """Return `iteration-2/1/execute/L3N1` for a step in the root's second iteration and in its parent's first."""
    return f"iteration-{'/'.join(map(str, path))}/{step}/{agent}"


# Notes: from them a session without a report shows goals, ratings, flags and satisfaction.


class GoalBroadcast(BaseModel):
    """A parent stated its goal."""

    node: str
    path: tuple[int, ...]
    """Iterations of its ancestors and its own, the root's first."""
    text: LongText


class Rated(BaseModel):
    """An agent rated its text in the reply `call`."""

    agent: str
    path: tuple[int, ...]
    call: str
    rating: float | None
    """None if it could not be read."""


class FlagRaised(BaseModel):
    """An agent raised a flag, published as the message `id`."""

    model_config = ConfigDict(frozen=True)

    id: str
    tag: Tag
    severity: TagSeverity
    critical: bool
    """By the settings."""
    node: str
    path: tuple[int, ...] = ()
    """The iterations it was raised in, the root's first."""
    text: LongText

    @property
    def link(self) -> str:
        """The flag as the seed writes it: `goal_mismatch (L3N2)`."""
        return f"{self.tag} ({self.node})"


class IterationEnded(BaseModel):
    """A parent judged its children's texts."""

    node: str
    path: tuple[int, ...]
    ratings: dict[str, float | None]
    mean: float | None
    coordination_rounds: int
    flags: tuple[str, ...]
    """Ids of the flags that stand, up to those that a prompt may quote."""
    feedback: LongText
    said_satisfied: bool | None
    satisfied: bool
    unmet: LongText
    """Why the parent is not satisfied."""


class Disagreement(Frozen):
    """A point in which an author departs from a sibling's text, published as the message `id`."""

    id: str
    agent: str
    to: str
    text: str
    path: tuple[int, ...]
    """The iterations it was raised in, the root's first."""


class Disagreed(BaseModel):
    """An agent has read its siblings: `entries` replace what it disagreed with before."""

    agent: str
    entries: tuple[Disagreement, ...]


NOTES: Mapping[str, type[BaseModel]] = {
    "goal": GoalBroadcast,
    "rating": Rated,
    "flag": FlagRaised,
    "disagreements": Disagreed,
    "iteration": IterationEnded,
}


@dataclass(frozen=True, slots=True)
class Remarks:
    """What was published from a rated reply in addition to its text."""

    flags: tuple[FlagRaised, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    missing: Message | None = None
    left_out: LeftOut = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class AgentExecution:
    """One execution of an agent, with all below it."""

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
    flags: tuple[FlagRaised, ...] = ()
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
    lost: int = 0
    """Revisions that kept less than a third of its text and did not replace it."""
    left_out: RecordedLeftOut = field(default_factory=Counter)

    @property
    def standing(self) -> tuple[FlagRaised, ...]:
        """The flags its parent is shown: its own, then those that stood below it when its last iteration ended."""
        return (*self.flags, *standing_flags(self.children))

    def after(self, before: AgentExecution | None) -> AgentExecution:
        """Complete it from the execution before. Without a text it keeps the earlier text. Without a judgement it keeps the earlier
        flags, since silence withdraws none."""
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
        return self.rating is not None and exact(self.rating) > exact(MIN_CONTENT_RATING) and not self.standing

    @property
    def refined(self) -> bool:
        """Whether the text that went up differs from the first one."""
        return self.text is not None and self.response is not None and self.text.text != self.response.text

    def responded(self, reply: TextReply | Failure) -> AgentExecution:
        """After its first reply."""
        if isinstance(reply, Failure):
            return replace(self, failures=(*self.failures, reply))
        return replace(self, response=reply, text=reply, brought=reply)

    def reflected(self, reply: Reply[Any] | Failure, remarks: Remarks, task: str) -> AgentExecution:
        """After it judged its own text. A revised text replaces it, unless that loses it although the `task` sets no length."""
        run = self._rated(reply, remarks)
        if isinstance(reply, Failure):
            return run
        text = reply if is_revision(reply.text) else self.text
        if text is not self.text and self.text is not None and loses_draft(task, [self.text.text], reply.text):
            text, run = self.text, replace(run, lost=self.lost + 1)
        return replace(run, reflection=reply, missing=remarks.missing, text=text, brought=text)

    def coordinated(self, reply: Reply[Any] | Failure, remarks: Remarks) -> AgentExecution:
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

    def _rated(self, reply: Reply[Any] | Failure, remarks: Remarks) -> AgentExecution:
        """A failed call leaves no rating, since the text was not judged as it stands."""
        if isinstance(reply, Failure):
            return replace(self, rating=None, failures=(*self.failures, reply))
        assert isinstance(reply.value, RatedReply)
        return replace(
            self,
            rating=reply.value.rating,
            flags=(*self.flags, *remarks.flags),
            left_out=self.left_out + remarks.left_out,
        )

    @property
    def children(self) -> tuple[AgentExecution, ...]:
        """Its children as its last iteration left them."""
        return self.iterations[-1].children if self.iterations else ()

    def walk(self, *, last: bool = False) -> Iterator[AgentExecution]:
        """Yield all executions below it, or only the `last` ones, and then itself, in the order in which texts go up."""
        for iteration in self.iterations[-1:] if last else self.iterations:
            for child in iteration.children:
                yield from child.walk(last=last)
        yield self


@dataclass(frozen=True, slots=True)
class IterationResult:
    """One iteration of a parent."""

    agent: str
    path: tuple[int, ...]
    """Iterations of its ancestors and this one, the root's first."""
    broadcast: Reply[Goal] | None
    children: tuple[AgentExecution, ...]
    """Their executions as the iteration left them."""
    rounds: int
    """Rounds of coordination held."""
    check: Check
    unmet: Mapping[Shortfall, str] = field(default_factory=dict)
    """Why it does not satisfy, in words."""
    evaluation: Reply[Evaluation] | None = None
    failures: tuple[Failure, ...] = ()
    """The parent's own."""
    unquoted: int = 0
    """Flags that were too many for its prompts."""

    @property
    def limited(self) -> bool:
        """Whether a limit refused a call of its own or below it. Families beside it may be at work, so no more is asked for."""
        runs = [run for child in self.children for run in child.walk()]
        inner = (run.failures + tuple(f for iteration in run.iterations for f in iteration.failures) for run in runs)
        return any(failure.kind.is_limit for failures in (self.failures, *inner) for failure in failures)

    @property
    def judgement(self) -> dict[str, Any]:
        """The fields that its note and its entry in the report share."""
        return {
            "node": self.agent,
            "path": self.path,
            "ratings": {child.agent: child.rating for child in self.children},
            "mean": self.check.score,
            "coordination_rounds": self.rounds,
            "said_satisfied": self.evaluation.value.satisfied if self.evaluation else None,
            "satisfied": self.check.met,
            "unmet": "; ".join(self.unmet.values()),
        }


def latest_executions(iterations: Sequence[IterationResult]) -> tuple[AgentExecution, ...]:
    """Return the children's last executions, each with its latest text, of an earlier execution if need be."""
    return tuple(replace(run, text=run.last_text) for run in (iterations[-1].children if iterations else ()))


def standing_flags(children: Sequence[AgentExecution]) -> tuple[FlagRaised, ...]:
    """Return the flags that stand at these children and below them."""
    return tuple(flag for child in children for flag in child.standing)


def has_conclusion(reply: Conclusion) -> bool:
    """Return whether a reply declares more than a text."""
    return bool(reply.claims or reply.against or reply.would_change or reply.unknown)


def has_texts(iterations: Sequence[IterationResult]) -> bool:
    """Return whether any child gave a text in any of them."""
    return any(child.text is not None for iteration in iterations for child in iteration.children)


def last_evaluation(iterations: Sequence[IterationResult]) -> Reply[Evaluation] | None:
    """Return the evaluation of the latest texts; None if it failed."""
    for iteration in reversed(iterations):
        if iteration.evaluation is not None or any(run.text is not None for run in iteration.children):
            return iteration.evaluation
    return None


def last_goal(iterations: Sequence[IterationResult]) -> Reply[Goal] | None:
    """Return the goal that a parent broadcast last; None if every broadcast failed."""
    return next((iteration.broadcast for iteration in reversed(iterations) if iteration.broadcast is not None), None)


@dataclass
class BroadcastRun(TreeRun):
    """What a run has produced so far."""

    iterations: list[IterationResult] = field(default_factory=list)
    """The root's."""
    check: Check | None = None
    synthesis: TextReply | None = None
    declared: Message | None = None
    """The conclusion that the synthesis and the reviews declared last, as the root is shown it."""
    root: AgentExecution | None = None
    """The root's answer as its reflection left it."""

    @property
    def conclusion(self) -> TextReply | None:
        """The latest reply that declares a conclusion. A reflection that revises the text without one leaves the earlier."""
        replies = [reply for reply in (self.closing, *reversed(self.reviews), self.synthesis) if reply is not None]
        return next((reply for reply in replies if has_conclusion(reply.value)), replies[0] if replies else None)

    @property
    def rulings(self) -> tuple[TextReply, ...]:
        """The root's replies that may decide about disagreements."""
        reflection = self.root.reflection if self.root is not None else None
        return tuple(reply for reply in (self.synthesis, *self.reviews, reflection) if reply is not None)

    @property
    def executions(self) -> tuple[AgentExecution, ...]:
        """All executions in the order in which texts go up, the root's own at the end."""
        descendants = (run for iteration in self.iterations for child in iteration.children for run in child.walk())
        return (*descendants, *([self.root] if self.root is not None else []))

    def opening(self, leaves: Sequence[str]) -> list[TextReply | Failure]:
        """Return the reply or failure of every leaf when it was first asked; nothing without an iteration."""
        first: dict[str, AgentExecution] = {}
        for run in (run for iteration in self.iterations[:1] for child in iteration.children for run in child.walk()):
            first.setdefault(run.agent, run)
        return [first[leaf].response or first[leaf].failures[0] for leaf in leaves if first]

    @property
    def standing(self) -> tuple[FlagRaised, ...]:
        """Flags that stand at the root: those from below, then its own."""
        root_flags = self.root.flags if self.root is not None else ()
        return (*standing_flags(latest_executions(self.iterations)), *root_flags)

    @property
    def families(self) -> Iterator[tuple[IterationResult, Sequence[TextReply]]]:
        """The last iteration of every parent in its last execution, the root's at the end, with the replies that may decide about
        its disagreements."""
        for iteration in self.iterations[-1:]:
            for run in (run for child in iteration.children for run in child.walk(last=True)):
                if run.iterations:
                    yield run.iterations[-1], [run.response] if run.response is not None else []
            yield iteration, self.rulings

    @property
    def unsatisfied(self) -> tuple[IterationResult, ...]:
        """The last iterations of the parents that are not satisfied."""
        return tuple(iteration for iteration, _ in self.families if not iteration.check.met)


def shortfalls(
    children: Sequence[AgentExecution],
    threshold: float,
    critical: Sequence[Tag],
    evaluation: Reply[Evaluation] | None,
    failures: Sequence[Failure],
) -> dict[Shortfall, str]:
    """Return why a parent is not satisfied. It is if every child's latest rating is readable, their mean reaches the threshold, no
    critical flag stands, the evaluator does not say no, and no call of the iteration failed. `failures` are the parent's own."""
    mean, unrated = mean_rating(children), [child.agent for child in children if child.rating is None]
    short = mean is not None and sum(exact(child.rating or 0) for child in children) < exact(threshold) * len(children)
    flags = dict.fromkeys(flag.link for flag in standing_flags(children) if flag.tag in critical)
    failed = [*failures, *(failure for child in children for failure in child.failures)]
    reasons: dict[Shortfall, str] = {
        "ratings": f"no readable rating of {', '.join(unrated)}" if unrated else "",
        "mean": f"mean rating {mean:.2f}, needed {threshold:g}" if short else "",
        "flags": f"critical flags: {', '.join(flags)}" if flags else "",
        "evaluator": "the evaluator says no" if evaluation and evaluation.value.satisfied is False else "",
        "calls": f"no reply: {describe_calls(failure.key for failure in failed)}" if failed else "",
    }
    return {kind: words for kind, words in reasons.items() if words}


def mean_rating(children: Sequence[AgentExecution]) -> float | None:
    """Return the mean rating; None if one is missing."""
    ratings = [child.rating for child in children if child.rating is not None]
    return math.fsum(ratings) / len(ratings) if ratings and len(ratings) == len(children) else None


def satisfaction(children: Sequence[AgentExecution], threshold: float, unmet: Mapping[Shortfall, str]) -> Check:
    """Return the check of an iteration, with its `shortfalls`."""
    rated = ", ".join(f"{c.agent} {'unrated' if c.rating is None else f'{c.rating:.2f}'}" for c in children)
    check = Check(met=True, kind="satisfaction", score=mean_rating(children), threshold=threshold, detail=rated)
    return check.vetoed(*unmet.values())
