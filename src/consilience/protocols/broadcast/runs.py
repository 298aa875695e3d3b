"""What branches return: one execution of an agent, and one iteration of a parent with its children. They hold no calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from consilience.domain.messages import Message
from consilience.domain.outcome import Check
from consilience.domain.report import StrangeLoop
from consilience.engine.work import Failure, Reply
from consilience.protocols.broadcast.replies import Assessed, Evaluation, Goal, Tag

Said = Reply[Any]
"""A reply whose text may go up."""

CONTENT = 0.9
"""Siblings who rate themselves above this and flag nothing need no talk (seed 001, §8)."""

CLOSE = 1e-9
"""What sums of floats may be off by."""


@dataclass(frozen=True, slots=True)
class Raised:
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
class Run:
    """One execution of an agent, `path` the iterations of its ancestors that it belongs to.

    `response` is a leaf's execution or a parent's synthesis, `brought` what it went into the talk with, `text` the words it goes
    up with, `rating` its latest, None where that could not be read. `flags` are its own, `talks` what it said to its siblings,
    `cycles` a parent's iterations. `kept` is what it went up with when it was last heard, where it was not heard in this one.
    """

    agent: str
    path: tuple[int, ...]
    response: Said | None = None
    reflection: Reply[Any] | None = None
    brought: Said | None = None
    talks: tuple[Reply[Any], ...] = ()
    text: Said | None = None
    kept: Said | None = None
    rating: float | None = None
    flags: tuple[Raised, ...] = ()
    cycles: tuple[Cycle, ...] = ()
    failures: tuple[Failure, ...] = ()
    surplus: int = 0

    @property
    def carried(self) -> tuple[Raised, ...]:
        """Flags that stood beneath it when its last iteration ended."""
        return tuple(flag for child in latest(self.cycles) for flag in child.standing)

    @property
    def standing(self) -> tuple[Raised, ...]:
        """What its parent hears of: its own flags, then those from beneath."""
        return (*self.flags, *self.carried)

    def after(self, before: Run | None) -> Run:
        """With the words of the execution before, where it found none, and its flags, where it came to no judgement: silence
        withdraws nothing."""
        if before is None:
            return self
        kept = (before.text or before.kept) if self.text is None else None
        judged = self.reflection is not None or self.talks
        return replace(self, kept=kept, flags=self.flags if judged else (*before.flags, *self.flags))

    @property
    def content(self) -> bool:
        return self.rating is not None and self.rating > CONTENT + CLOSE and not self.standing

    @property
    def refined(self) -> bool:
        """It went up with other words than it was first written in."""
        return self.text is not None and self.response is not None and self.text.text != self.response.text

    def reflected(self, reply: Reply[Any] | Failure, raised: tuple[Raised, ...], surplus: int) -> Run:
        """After it judged its own text; a better version takes its place where it says that something is missing."""
        run = self._assessed(reply, raised, surplus)
        if isinstance(reply, Failure):
            return run
        text = reply if reply.value.wanting and reply.text.strip() else self.text
        return replace(run, reflection=reply, text=text, brought=text)

    def talked(self, reply: Reply[Any] | Failure, raised: tuple[Raised, ...], surplus: int) -> Run:
        """After it read its siblings."""
        run = self._assessed(reply, raised, surplus)
        return run if isinstance(reply, Failure) else replace(run, talks=(*self.talks, reply), text=reply)

    def _assessed(self, reply: Reply[Any] | Failure, raised: tuple[Raised, ...], surplus: int) -> Run:
        """Without a reply it has no rating: silence is no satisfaction."""
        if isinstance(reply, Failure):
            return replace(self, rating=None, failures=(*self.failures, reply))
        assert isinstance(reply.value, Assessed)
        return replace(self, rating=reply.value.rating, flags=(*self.flags, *raised), surplus=self.surplus + surplus)

    @property
    def beneath(self) -> tuple[Run, ...]:
        """Its children as its last iteration left them."""
        return self.cycles[-1].children if self.cycles else ()

    def walk(self) -> Iterator[Run]:
        """All executions beneath it and then itself, as words and flags go up."""
        for cycle in self.cycles:
            for child in cycle.children:
                yield from child.walk()
        yield self


@dataclass(frozen=True, slots=True)
class Cycle:
    """One iteration of a parent: `children` as they left it, `rounds` of coordination held. `unquoted` counts flags that were
    too many for its prompts."""

    agent: str
    path: tuple[int, ...]
    broadcast: Reply[Goal] | None
    children: tuple[Run, ...]
    rounds: int
    check: Check
    evaluation: Reply[Evaluation] | None = None
    failures: tuple[Failure, ...] = ()
    unquoted: int = 0

    @property
    def all_failures(self) -> tuple[Failure, ...]:
        """Its own and those beneath it."""
        below = (run for child in self.children for run in child.walk())
        inner = [f for run in below for f in (*run.failures, *(f for cycle in run.cycles for f in cycle.failures))]
        return (*self.failures, *inner)

    @property
    def limited(self) -> bool:
        return any(failure.kind.is_limit for failure in self.all_failures)


def latest(cycles: Sequence[Cycle]) -> tuple[Run, ...]:
    """What each child came to in the last iteration, with the text of the last one in which it had any: a limit that cuts in
    takes nothing away, neither texts nor flags."""
    return tuple(replace(run, text=run.text or run.kept) for run in cycles[-1].children) if cycles else ()


def heard(cycles: Sequence[Cycle]) -> bool:
    """Whether any child found words in any of them."""
    return any(child.text is not None for cycle in cycles for child in cycle.children)


def lacking(cycles: Sequence[Cycle]) -> Reply[Evaluation] | None:
    """What was last said to be missing in the texts there are; None where the last iteration satisfied."""
    if not cycles or cycles[-1].check.met:
        return None
    for cycle in reversed(cycles):
        if cycle.evaluation is not None or any(run.text is not None for run in cycle.children):
            return cycle.evaluation
    return None


def first_runs(first: Cycle, leaves: Sequence[str]) -> list[Run]:
    """The first execution of every leaf."""
    found: dict[str, Run] = {}
    for child in first.children:
        for run in child.walk():
            found.setdefault(run.agent, run)
    return [found[leaf] for leaf in leaves]


@dataclass
class Course:
    """What the root has come to so far. `closing` is the latest text that answers the task."""

    cycles: list[Cycle] = field(default_factory=list)
    check: Check | None = None
    synthesis: Said | None = None
    loops: list[StrangeLoop] = field(default_factory=list)
    root: Run | None = None
    closing: Said | None = None
    failures: list[Failure] = field(default_factory=list)

    @property
    def standing(self) -> tuple[Raised, ...]:
        """Flags that stand at the root: those from beneath, then its own."""
        own = self.root.flags if self.root is not None else ()
        return (*(flag for child in latest(self.cycles) for flag in child.standing), *own)

    @property
    def all_failures(self) -> list[Failure]:
        return [*(failure for cycle in self.cycles for failure in cycle.all_failures), *self.failures]


def satisfaction(children: Sequence[Run], threshold: float, critical: Sequence[Tag]) -> Check:
    """Met iff every child's latest rating could be read, their mean reaches the threshold, and no critical flag stands."""
    known = [child.rating for child in children if child.rating is not None]
    mean = math.fsum(known) / len(known) if known and len(known) == len(children) else None
    standing = [flag.link for child in children for flag in child.standing if flag.tag in critical]
    rated = ", ".join(f"{c.agent} {'unreadable' if c.rating is None else f'{c.rating:.2f}'}" for c in children)
    return Check(
        met=mean is not None and mean >= threshold - CLOSE and not standing,
        kind="satisfaction",
        score=mean,
        threshold=threshold,
        detail="; ".join(filter(None, (rated, f"flagged: {', '.join(standing)}" if standing else ""))),
    )
