"""The rounds of `emergence`, restored from the events of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from consilience.domain.events import CallCompleted, CallFailed, CheckRecorded, Ended, Event, SessionStarted
from consilience.domain.messages import LeafReply
from consilience.engine.work import Failure, Reply
from consilience.models.parsing import parse_reply
from consilience.protocols._common.trees import ROOT
from consilience.protocols.emergence.turns import (
    EmergenceRun,
    ObservationReply,
    PeerReply,
    RevisitReply,
    RootReply,
    RootRevision,
    Turn,
)


def restore_rounds(
    events: Iterable[Event], text: Callable[[str], str], *, spoken: Callable[[int, str], bool]
) -> EmergenceRun:
    """Return the rounds so far, with the turns of those agents that have `spoken` (round, agent).

    `text` looks texts up by id. Objections, ballots and self-reviews are left out.
    """
    events = list(events)
    started = next(event for event in events if isinstance(event, SessionStarted))
    calls = _RecordedCalls(started, text, {})
    for event in events:
        if isinstance(event, Ended) and event.phase is not None and (step := _step(event.phase[0])):
            calls.ended[event.phase[1], step, event.agent] = event
    last = max((n for n, _, _ in calls.ended), default=0)
    run = EmergenceRun(nudges=[calls.nudges(n) for n in range(last + 1)])
    for n in range(1, last + 1):
        before = run.rounds[-1] if run.rounds else {}
        agents = [agent for agent in started.topology.agents if spoken(n, agent)]
        run.rounds.append({agent: calls.turn(n, agent, before.get(agent)) for agent in agents})
    checks = {event.index: event.check for event in events if isinstance(event, CheckRecorded)}
    run.checks.extend(checks.get(n) for n in range(1, last + 1))
    return run


def _step(phase: str) -> str:
    name = phase.partition("_")[0]
    return {"leaf": "first", "observe": "first", "lateral": "lateral", "signal": "signal"}.get(name, "")


@dataclass(frozen=True)
class _RecordedCalls:
    """The last attempts of calls by round, step (`first`, `lateral`, `signal`) and agent."""

    started: SessionStarted
    text: Callable[[str], str]
    ended: dict[tuple[int, str, str], Ended]

    def turn(self, n: int, agent: str, before: Turn | None) -> Turn:
        earlier = before.text if before else None
        parents = self.started.topology.parents.get(agent, ())
        nudge = next((self.nudges(n - 1).get(parent) for parent in parents), None)
        turn = Turn(agent, nudge=nudge, text=earlier)
        if response := self._result(n, "first", agent, self._first_type(agent, again=earlier is not None)):
            turn = turn.responded(response)
        lateral = self._result(n, "lateral", agent, PeerReply)
        return turn.revised_by(lateral) if lateral else turn

    def nudges(self, n: int) -> dict[str, Reply[str]]:
        senders = [agent for m, step, agent in self.ended if (m, step) == (n, "signal")]
        replies = {agent: self._result(n, "signal", agent, str) for agent in senders}
        return {agent: reply for agent, reply in replies.items() if isinstance(reply, Reply)}

    def _first_type(self, agent: str, *, again: bool) -> type[Any]:
        if not self.started.topology.children[agent]:
            return RevisitReply if again else LeafReply
        if agent == ROOT:
            return RootRevision if again else RootReply
        return PeerReply if again else ObservationReply

    def _result(self, n: int, step: str, agent: str, returns: type[Any]) -> Reply[Any] | Failure | None:
        event = self.ended.get((n, step, agent))
        if isinstance(event, CallCompleted):
            value = parse_reply(self.text(event.text), returns)
            return Reply(event.key, event.agent, value, value if isinstance(value, str) else value.text)
        if isinstance(event, CallFailed):
            return Failure(event.key, event.agent, event.failure, event.reason)
        if event is not None and event.attempt > self.started.repairs:
            return Failure(event.key, event.agent, event.failure, event.error)  # which has no event of its own
        return None
