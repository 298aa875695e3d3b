"""Restore the rounds of a run from its events, for an adapter that follows it from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from consilience.domain.events import CallCompleted, CallFailed, CheckRecorded, Ended, Event, SessionStarted
from consilience.domain.messages import LeafReply
from consilience.engine.work import Failure, Reply
from consilience.models.parsing import parse_reply
from consilience.protocols._common.trees import ROOT
from consilience.protocols.emergence.course import Course
from consilience.protocols.emergence.replies import ObservationReply, PeerReply, RevisitReply, RootReply, RootRevision
from consilience.protocols.emergence.turns import Turn

Result = Reply[Any] | Failure | None


def course_of(events: Iterable[Event], text: Callable[[str], str], *, spoken: Callable[[int, str], bool]) -> Course:
    """The rounds so far, with the turns of those agents that have `spoken` (round, agent).

    `text` looks texts up by id. Objections, ballots and self-reviews are left out.
    """
    told = list(events)
    started = next(event for event in told if isinstance(event, SessionStarted))
    calls = _Calls(started, text, {})
    for event in told:
        if isinstance(event, Ended) and event.phase is not None and (step := _step(event.phase[0])):
            calls.ended[event.phase[1], step, event.agent] = event
    last = max((n for n, _, _ in calls.ended), default=0)
    course = Course(nudges=[calls.nudges(n) for n in range(last + 1)])
    for n in range(1, last + 1):
        before = course.rounds[-1] if course.rounds else {}
        agents = [agent for agent in started.topology.agents if spoken(n, agent)]
        course.rounds.append({agent: calls.turn(n, agent, before.get(agent)) for agent in agents})
    checks = {event.index: event.check for event in told if isinstance(event, CheckRecorded)}
    course.checks.extend(checks.get(n) for n in range(1, last + 1))
    return course


def _step(phase: str) -> str:
    name = phase.partition("_")[0]
    return {"leaf": "first", "observe": "first", "lateral": "lateral", "signal": "signal"}.get(name, "")


@dataclass(frozen=True)
class _Calls:
    """The last attempts of calls by round, step (`first`, `lateral`, `signal`) and agent."""

    started: SessionStarted
    text: Callable[[str], str]
    ended: dict[tuple[int, str, str], Ended]

    def turn(self, n: int, agent: str, before: Turn | None) -> Turn:
        shape = self.started.topology
        earlier = before.text if before else None
        response = self._result(n, "first", agent, self._first_type(agent, again=earlier is not None))
        lateral = self._result(n, "lateral", agent, PeerReply)
        first = _reply(response) or earlier
        revision = _reply(lateral)
        return Turn(
            agent,
            response=_reply(response),
            lateral=revision,
            nudge=next((self.nudges(n - 1).get(parent) for parent in shape.parents.get(agent, ())), None),
            text=revision or first,
            before=first if revision else None,
            failures=tuple(end for end in (response, lateral) if isinstance(end, Failure)),
        )

    def nudges(self, n: int) -> dict[str, Reply[str]]:
        senders = [agent for m, step, agent in self.ended if (m, step) == (n, "signal")]
        replies = {agent: _reply(self._result(n, "signal", agent, str)) for agent in senders}
        return {agent: reply for agent, reply in replies.items() if reply is not None}

    def _first_type(self, agent: str, *, again: bool) -> type[Any]:
        if not self.started.topology.children[agent]:
            return RevisitReply if again else LeafReply
        if agent == ROOT:
            return RootRevision if again else RootReply
        return PeerReply if again else ObservationReply

    def _result(self, n: int, step: str, agent: str, returns: type[Any]) -> Result:
        event = self.ended.get((n, step, agent))
        if isinstance(event, CallCompleted):
            value = parse_reply(self.text(event.text), returns)
            return Reply(event.key, event.agent, value, value if isinstance(value, str) else value.text)
        if isinstance(event, CallFailed):
            return Failure(event.key, event.agent, event.failure, event.detail)
        if event is not None and event.attempt > self.started.repairs:
            return Failure(event.key, event.agent, event.failure, event.error)  # which has no event of its own
        return None


def _reply(result: Result) -> Reply[Any] | None:
    return result if isinstance(result, Reply) else None
