"""The course of a run, retold from its events: for whoever follows it from outside while it is under way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from consilience.domain.events import CallCompleted, CallFailed, CheckRecorded, Ended, Event, SessionStarted
from consilience.domain.outcome import FailureKind
from consilience.domain.replies import LeafReply
from consilience.engine.trees import ROOT
from consilience.engine.work import Failure, Reply
from consilience.models.parsing import parse_reply
from consilience.protocols.emergence.course import Course
from consilience.protocols.emergence.replies import PeerReply, RootReply
from consilience.protocols.emergence.rounds import Turn

_PLACE = re.compile(r"round-(\d+)/(leaf_respond|lateral|observe|signal)/(\w+)")

Result = Reply[Any] | Failure
Made = Mapping[tuple[int, str, str], Result]
"""What calls came to, by round, step and agent."""


def course_of(events: Iterable[Event], text: Callable[[str], str], *, spoken: Callable[[int, str], bool]) -> Course:
    """The rounds so far, with the turns of those agents that have `spoken` (round, agent).

    `text` looks texts up by id. Ballots and self-reviews are left out.
    """
    told = list(events)
    started = next(event for event in told if isinstance(event, SessionStarted))
    made = _made(told, text, started.repairs)
    last = max((n for n, _, _ in made), default=0)
    course = Course()
    for n in range(1, last + 1):
        before = course.rounds[-1] if course.rounds else {}
        turns = {
            agent: _turn(started, made, n, agent, before.get(agent))
            for agent in started.topology.agents
            if spoken(n, agent)
        }
        course.rounds.append(turns)
        course.nudges.append(_nudges(made, n - 1))
    course.nudges.append(_nudges(made, last))
    checks = {event.index: event.check for event in told if isinstance(event, CheckRecorded)}
    course.checks.extend(checks.get(n) for n in range(1, last + 1))
    return course


def _made(events: Iterable[Event], text: Callable[[str], str], repairs: int) -> Made:
    found: dict[tuple[int, str, str], Result] = {}
    for event in events:
        if not isinstance(event, Ended):
            continue
        place = _PLACE.fullmatch(event.key)
        if place is None:
            continue
        n, step, agent = int(place[1]), place[2], place[3]
        if isinstance(event, CallCompleted):
            value = parse_reply(text(event.text), _returns(step, agent))
            found[n, step, agent] = Reply(event.key, agent, value, value if isinstance(value, str) else value.text)
        elif isinstance(event, CallFailed):
            found[n, step, agent] = Failure(event.key, agent, event.failure, event.detail)
        elif event.attempt > repairs:  # the failure that follows from it has no event of its own
            found[n, step, agent] = Failure(event.key, agent, FailureKind.MALFORMED, event.error)
    return found


def _returns(step: str, agent: str) -> type[Any]:
    if step == "observe" and agent == ROOT:
        return RootReply
    return {"leaf_respond": LeafReply, "signal": str}.get(step, PeerReply)


def _turn(started: SessionStarted, made: Made, n: int, agent: str, before: Turn | None) -> Turn:
    shape = started.topology
    response = made.get((n, "observe" if shape.children[agent] else "leaf_respond", agent))
    lateral = made.get((n, "lateral", agent))
    nudge = next((_reply(made.get((n - 1, "signal", parent))) for parent in shape.parents.get(agent, ())), None)
    first = _reply(response) or (before.text if before else None)
    said = _reply(lateral)
    return Turn(
        agent,
        response=_reply(response),
        lateral=said,
        nudge=nudge,
        text=said or first,
        before=first if said else None,
        failures=tuple(end for end in (response, lateral) if isinstance(end, Failure)),
    )


def _nudges(made: Made, n: int) -> dict[str, Reply[str]]:
    return {
        agent: end for (m, step, agent), end in made.items() if (m, step) == (n, "signal") and isinstance(end, Reply)
    }


def _reply(end: Result | None) -> Reply[Any] | None:
    return end if isinstance(end, Reply) else None
