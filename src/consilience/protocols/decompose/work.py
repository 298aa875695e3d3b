"""What a run comes to: every agent's job, and the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from consilience.domain.messages import Message
from consilience.domain.report import StrangeLoop
from consilience.engine.work import Failure, Reply
from consilience.protocols.decompose.replies import PartReply


@dataclass(frozen=True, slots=True)
class Job:
    """What one agent did: `part` is what it was given, None for the task as a whole; `text` what it came to; `below` the jobs it
    handed out. `surplus` counts parts beyond its children."""

    agent: str
    part: PartReply | None = None
    text: Reply[Any] | None = None
    below: tuple[Job, ...] = ()
    surplus: int = 0
    failures: tuple[Failure, ...] = ()

    def walk(self) -> Iterator[Job]:
        """Itself, and all beneath it."""
        yield self
        for job in self.below:
            yield from job.walk()


@dataclass(frozen=True, slots=True)
class Given:
    """A part as it is handed to a child, published for that child alone."""

    part: PartReply
    message: Message


@dataclass
class Course:
    """`closing` is the latest text that answers the task."""

    root: Job | None = None
    closing: Reply[Any] | None = None
    loops: list[StrangeLoop] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def jobs(self) -> list[Job]:
        """All, parents first."""
        return list(self.root.walk()) if self.root is not None else []

    @property
    def all_failures(self) -> list[Failure]:
        return [*(failure for job in self.jobs for failure in job.failures), *self.failures]
