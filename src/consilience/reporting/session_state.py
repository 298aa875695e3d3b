"""A session so far, folded from its events: the same fold for a run that is watched and for one that is read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from consilience.domain.agents import Agent
from consilience.domain.events import (
    AnswerReceived,
    CallCompleted,
    CallEvent,
    CallFailed,
    CallLost,
    CallStarted,
    CheckRecorded,
    Ended,
    Event,
    SessionFinished,
    SessionParked,
    SessionResumed,
    SessionStarted,
    StepCompleted,
)


@dataclass
class SessionState:
    """`calls` are ended attempts in the order they were recorded, `flying` those under way by key, `awaited` the keys of those
    that somebody outside has still to answer, `answered` of those answered while nobody ran it, until the answer is heard; `cost`
    is None once a price was not known, `seconds` are those in which a process held the session. What an agent with tools took of
    steps in a call that has not ended counts too."""

    started: SessionStarted | None = None
    calls: list[Ended] = field(default_factory=list)
    flying: dict[str, CallStarted] = field(default_factory=dict)
    lost: list[CallLost] = field(default_factory=list)
    checks: list[CheckRecorded] = field(default_factory=list)
    awaited: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    finished: SessionFinished | None = None
    seconds: float = 0.0
    _tokens_in: int = 0
    _tokens_out: int = 0
    _tokens_thought: int = 0
    _cost: float | None = 0.0
    _made: set[str] = field(default_factory=set)
    _further: int = 0
    _steps: dict[str, list[StepCompleted]] = field(default_factory=dict)

    @property
    def agents(self) -> tuple[Agent, ...]:
        return self.started.agents if self.started else ()

    @property
    def repairs(self) -> int:
        """How often a reply that cannot be used is asked for again."""
        return self.started.repairs if self.started else 1

    @property
    def made(self) -> int:
        """Calls that came to an end, each step of an agent with tools counted, refusals by a limit not."""
        return len(self._made) + self._further + sum(step.kind == "model" for step in self._open_steps)

    @property
    def tokens_in(self) -> int:
        return self._tokens_in + sum(step.tokens_in for step in self._open_steps)

    @property
    def tokens_out(self) -> int:
        return self._tokens_out + sum(step.tokens_out for step in self._open_steps)

    @property
    def tokens_thought(self) -> int:
        """The part of `tokens_out` that went into thinking."""
        return self._tokens_thought + sum(step.tokens_thought for step in self._open_steps)

    @property
    def cost(self) -> float | None:
        cost = self._cost
        for step in self._open_steps:
            cost = None if cost is None or step.cost is None else cost + step.cost
        return cost

    @property
    def _open_steps(self) -> Iterator[StepCompleted]:
        return chain.from_iterable(self._steps.values())

    def take(self, event: Event) -> None:
        t = event.volatile.get("t")
        if isinstance(t, int | float):
            self.seconds = max(self.seconds, float(t))
        if isinstance(event, CallStarted):
            self.flying[event.key] = event
        elif isinstance(event, Ended):
            self._end(event)
        elif isinstance(event, StepCompleted):
            self._steps.setdefault(event.call, []).append(event)
        elif isinstance(event, CallLost):
            self.flying.pop(event.key, None)
            self.lost.append(event)
        elif isinstance(event, CheckRecorded):
            self.checks.append(event)
        elif isinstance(event, SessionStarted):
            self.started = event
        elif isinstance(event, SessionParked):
            self.awaited = event.awaited
        elif isinstance(event, AnswerReceived):
            self._hear_of(event)
        elif isinstance(event, SessionResumed):
            self.awaited = ()
        elif isinstance(event, SessionFinished):
            self.finished = event

    def _hear_of(self, answer: AnswerReceived) -> None:
        if not answer.inherited:  # else it belongs to the session this was forked from
            self.awaited = tuple(key for key in self.awaited if key != answer.key)
            self.answered = tuple(dict.fromkeys((*self.answered, answer.key)))

    def _end(self, event: Ended) -> None:
        self.flying.pop(event.key, None)
        self.answered = tuple(key for key in self.answered if key != event.key)
        self._steps.pop(event.key, None)  # the call has their sum
        self.calls.append(event)
        if event.inherited or (isinstance(event, CallCompleted) and event.cached):
            return
        if not (isinstance(event, CallFailed) and event.unsent):
            self._made.add(event.key)
            self._further += event.steps - 1
        self._tokens_in += event.tokens_in
        self._tokens_out += event.tokens_out
        self._tokens_thought += event.tokens_thought
        self._cost = None if self._cost is None or event.cost is None else self._cost + event.cost


def fold_events(events: Iterable[Event]) -> SessionState:
    course = SessionState()
    for event in events:
        course.take(event)
    return course


def call_seconds(event: CallEvent) -> float | None:
    """Seconds a call took, where that was recorded."""
    seconds = event.volatile.get("s")
    return float(seconds) if isinstance(seconds, int | float) else None
