"""The state of a session, folded from its events: the same fold for a run that is watched and for one that is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from consilience.domain.agents import Agent
from consilience.domain.events import (
    AnswerReceived,
    BlindnessLifted,
    CallAwaited,
    CallCompleted,
    CallEvent,
    CallFailed,
    CallLost,
    CallStarted,
    CancelRequested,
    CheckRecorded,
    CommentPosted,
    Ended,
    Event,
    SessionFinished,
    SessionParked,
    SessionResumed,
    SessionStarted,
    StepCompleted,
)
from consilience.domain.outcome import FailureKind
from consilience.domain.report import find_report
from consilience.reporting.formatting import describe_place


@dataclass
class SessionState:
    """What the events so far amount to. Steps of a tool agent count while its call is still in flight."""

    started: SessionStarted | None = None
    calls: list[Ended] = field(default_factory=list)
    """Ended attempts in the order they were recorded."""
    flying: dict[str, CallStarted] = field(default_factory=dict)
    """Calls in flight, by key."""
    lost: list[CallLost] = field(default_factory=list)
    checks: list[CheckRecorded] = field(default_factory=list)
    awaited: tuple[str, ...] = ()
    """Keys of calls that a person or an outside process still has to answer."""
    answered: tuple[str, ...] = ()
    """Keys of calls whose answer was posted to the session, until it is read."""
    asked: dict[str, CallAwaited] = field(default_factory=dict)
    """Questions to people without a recorded answer, by key of the call."""
    tickets: dict[str, str] = field(default_factory=dict)
    """Ids of the tickets by which outside agents are asked, by key of the call."""
    cancel: CancelRequested | None = None
    """The last cancel of the session."""
    comments: list[CommentPosted] = field(default_factory=list)
    lifted: bool = False
    """Whether somebody with a seat chose to see all of the session before its end."""
    finished: SessionFinished | None = None
    seconds: float = 0.0
    """Time during which a process held the session."""
    _tokens_in: int = 0
    _tokens_out: int = 0
    _tokens_thought: int = 0
    _cost: float | None = 0.0
    _ended_keys: set[str] = field(default_factory=set)
    _extra_steps: int = 0
    _steps: dict[str, list[StepCompleted]] = field(default_factory=dict)

    @property
    def agents(self) -> tuple[Agent, ...]:
        return self.started.agents if self.started else ()

    def place(self, key: str, agent: str = "") -> str:
        """Return the step and phase in a key, in the words of the protocol."""
        return describe_place(key, agent, find_report(self.started.protocol).labels if self.started else {})

    @property
    def repairs(self) -> int:
        """Max times that an invalid reply is asked for again."""
        return self.started.repairs if self.started else 1

    @property
    def made(self) -> int:
        """Calls that ended, including each step of a tool agent; excludes calls refused by a limit."""
        return len(self._ended_keys) + self._extra_steps + sum(step.kind == "model" for step in self._open_steps)

    @property
    def inherited(self) -> int:
        """Calls inherited from the session that this one was forked from."""
        return len({call.key for call in self.calls if call.inherited})

    @property
    def people(self) -> dict[str, str]:
        """Names of the people who are asked, by key of the call, without those that have none."""
        names = {agent.id: agent.person for agent in self.agents if agent.person}
        return {key: names[question.agent] for key, question in self.asked.items() if question.agent in names}

    @property
    def failed(self) -> list[str]:
        """Keys of calls without any answer of their model: a resume leaves them so, a fork makes them again."""
        last = {call.key: call for call in self.calls}
        return [
            key
            for key, call in last.items()
            if isinstance(call, CallFailed)
            and call.failure is not FailureKind.REFUSED
            and not call.failure.is_withdrawn
        ]

    @property
    def tokens_in(self) -> int:
        return self._tokens_in + sum(step.tokens_in for step in self._open_steps)

    @property
    def tokens_out(self) -> int:
        return self._tokens_out + sum(step.tokens_out for step in self._open_steps)

    @property
    def tokens_thought(self) -> int:
        """The part of `tokens_out` spent on thinking."""
        return self._tokens_thought + sum(step.tokens_thought for step in self._open_steps)

    @property
    def cost(self) -> float | None:
        """US dollars; None if any price is unknown."""
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
        elif isinstance(event, CallAwaited) and event.ticket:
            self.tickets[event.key] = event.ticket
        elif isinstance(event, CallAwaited):
            self.asked[event.key] = event
        elif isinstance(event, SessionParked):
            self.awaited = event.awaited
        elif isinstance(event, AnswerReceived):
            self._record_answer(event)
        elif isinstance(event, CancelRequested):
            self.cancel = event
        elif isinstance(event, CommentPosted):
            self.comments.append(event)
        elif isinstance(event, BlindnessLifted):
            self.lifted = True
        elif isinstance(event, SessionResumed):
            self.awaited = ()
        elif isinstance(event, SessionFinished):
            self.finished = event

    def _record_answer(self, answer: AnswerReceived) -> None:
        if not answer.inherited:  # else it belongs to the session this was forked from
            self.awaited = tuple(key for key in self.awaited if key != answer.key)
            self.asked.pop(answer.key, None)
            self.answered = tuple(dict.fromkeys((*self.answered, answer.key)))

    def _end(self, event: Ended) -> None:
        self.flying.pop(event.key, None)
        self.tickets.pop(event.key, None)
        self.asked.pop(event.key, None)
        self.answered = tuple(key for key in self.answered if key != event.key)
        self._steps.pop(event.key, None)  # the call has their sum
        self.calls.append(event)
        if event.inherited or (isinstance(event, CallCompleted) and event.cached):
            return
        if not (isinstance(event, CallFailed) and event.unsent):
            self._ended_keys.add(event.key)
            self._extra_steps += event.steps - 1
        self._tokens_in += event.tokens_in
        self._tokens_out += event.tokens_out
        self._tokens_thought += event.tokens_thought
        self._cost = None if self._cost is None or event.cost is None else self._cost + event.cost


def fold_events(events: Iterable[Event]) -> SessionState:
    state = SessionState()
    for event in events:
        state.take(event)
    return state


def call_seconds(event: CallEvent) -> float | None:
    """Return how long a call took, None if that was not recorded."""
    seconds = event.volatile.get("s")
    return float(seconds) if isinstance(seconds, int | float) else None


def status_of(state: SessionState, holder: str | None) -> str:
    """Return `finished`, `running`, `waiting` or `unfinished`. `holder` is the process that runs the session now."""
    if state.finished:
        return "finished"
    if holder:
        return "running"
    return "waiting" if state.awaited else "unfinished"
