"""How the seats of a session stand, and how far it is: what a page shows of one that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from consilience.domain.agents import Agent
from consilience.domain.events import CallAwaited, CallCompleted, CallFailed, Ended, ReplyRejected
from consilience.domain.sections import Tone
from consilience.reporting.formatting import (
    count,
    describe_output_tokens,
    duration,
    format_range,
    money,
    one_line,
    time_range,
)
from consilience.reporting.limits import describe_limits
from consilience.reporting.record import SessionRecord, phase_of
from consilience.reporting.report_sections import missing_words
from consilience.reporting.transcript import phase_headings

MAX_WHY_CHARS = 200
MAX_NAMED = 3
"""Agents that are named for whom another one waits."""
MAX_PHASES = 12
"""Phases that are listed, the last ones."""


@dataclass(frozen=True)
class SeatState:
    """How a seat stands."""

    agent: Agent
    words: str
    tone: Tone
    why: str = ""
    """Why its last call has no reply."""
    takes_part: bool = False
    """Whether it was asked anything."""
    call: str = ""
    """Key of its call in flight; "" without one."""
    until: float | None = None
    """When the time of the person who is asked ends, in seconds since the epoch."""

    @property
    def has_failed(self) -> bool:
        return self.tone == "bad"


def seat_states(record: SessionRecord) -> dict[str, SeatState]:
    """Return how every agent stands, by id."""
    calls: dict[str, list[Ended]] = {}
    for call in record.state.calls:
        calls.setdefault(call.agent, []).append(call)
    waiting, waits = _waiting(record), _waits_in_a_tree(record)
    flying = {agent: key for key, agent in record.flights.items()}
    started = record.state.started
    seconds = started.human_deadline if started else None
    asked = {question.agent: question.asked_at for question in record.state.asked.values()}
    states = {}
    for id, agent in record.agents.items():
        words, tone = _state(calls.get(id, []), waiting.get(id, ""), record)
        if id in waits and tone in ("plain", "quiet"):
            words = f"{waits[id]}, {words}"
        last = calls[id][-1] if id in calls else None
        states[id] = SeatState(
            agent,
            words,
            tone,
            why=one_line(_why(last), MAX_WHY_CHARS),
            takes_part=id in calls or id in waiting,
            call=flying.get(id, ""),
            until=asked[id] + seconds if id in asked and seconds is not None else None,
        )
    return states


def _why(call: Ended | None) -> str:
    match call:
        case CallFailed():
            return call.reason
        case ReplyRejected():
            return call.error
    return ""


def describe_waited_for(record: SessionRecord) -> str:
    """Return for whom a session waits, with the step: `Ada (round 1 · own answers), L2N2 (round 1 · own answers)`."""
    agents = {key: question.agent for key, question in record.state.asked.items()}
    who = [(agents.get(key) or _named(key, record), key) for key in record.state.awaited]
    return ", ".join(f"{record.names.get(agent, agent)} ({record.place(key, agent)})" for agent, key in who)


def _waiting(record: SessionRecord) -> dict[str, str]:
    """Return what goes on by agent: a call in flight, or one that somebody outside answers."""
    flying = "composing" if record.holder else "in flight when it stopped"
    outside = {
        record.flights.get(key) or _named(key, record): state
        for state, keys in (
            ("answered", record.state.answered),
            ("awaited", (*record.state.awaited, *record.state.asked)),
        )
        for key in keys
    }
    return dict.fromkeys(record.flights.values(), flying) | outside


def _waits_in_a_tree(record: SessionRecord) -> dict[str, str]:
    """Return for whom each agent of a running tree waits: for those below it that are composing, else for its peers, else for those
    above it."""
    topology, composing = record.topology, set(record.flights.values())
    if not record.holder or not any(topology.parents.values()):
        return {}
    below, above = dict[str, list[str]](), dict[str, list[str]]()
    for id in topology.agents:
        above[id] = [one for parent in topology.parents.get(id, ()) for one in (parent, *above[parent])]
    for id in topology.agents:
        for one in above[id]:
            below.setdefault(one, []).append(id)
    waits = {}
    for id in topology.agents:
        groups = (below.get(id, ()), topology.siblings(id), above[id])
        others = next(filter(None, ([one for one in group if one in composing] for group in groups)), [])
        if others and id not in composing:
            named = [record.names.get(one, one) for one in dict.fromkeys(others)]
            more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
            waits[id] = f"waits for {', '.join(named[:MAX_NAMED])}{more}"
    return waits


def _named(key: str, record: SessionRecord) -> str:
    return next((part for part in reversed(key.split("/")) if part in record.agents), "")


def _state(calls: Sequence[Ended], waiting: str, record: SessionRecord) -> tuple[str, Tone]:
    """Return what became of an agent's calls, and how its box is drawn."""
    answered = [call.key for call in calls if isinstance(call, CallCompleted)]
    replies = count(len(answered), "reply")
    if lacking := {call.key for call in calls}.difference(answered):
        replies += f", {count(len(lacking), 'call')} without a reply"
    tone: Tone = "plain" if answered else "quiet"
    if waiting:
        return f"{waiting}, {replies}", "wait"
    if not calls:
        return f"{'never asked' if record.report else 'not asked yet'}, {replies}", tone
    match calls[-1]:
        case CallCompleted():
            return replies, tone
        case CallFailed(failure=failure) if failure.is_limit:
            return f"cut short by {failure.value}, {replies}", tone
        case CallFailed(failure=failure):
            return f"failed: {failure.value}, {replies}", "bad"
    return f"last reply unusable, {replies}", "bad"


def what_is_missing(record: SessionRecord, states: Mapping[str, SeatState]) -> str:
    """Return what the answer lacks, or will lack as things stand: `1 of 3 agents without a reply: critic (deadline)`; "" for
    nothing."""
    if record.report is not None:
        return missing_words(record.report)
    failed = [
        f"{record.names.get(id, id)} ({state.words.partition(',')[0].removeprefix('failed: ')})"
        for id, state in states.items()
        if state.has_failed
    ]
    return (
        f"{len(failed)} of {count(len(states), 'agent')} without a usable last reply: {', '.join(failed)}"
        if failed
        else ""
    )


def progress_facts(record: SessionRecord) -> Iterator[tuple[str, str]]:
    """Yield how far a session is, against its estimate and its limits, with an estimate of what is left."""
    state, started = record.state, record.state.started
    if started is None:
        return
    estimate = started.estimate
    inherited = f", {state.inherited:,} more inherited" if state.inherited else ""
    yield "Calls", f"{state.made:,} of {format_range(estimate.min, estimate.max)} estimated{inherited}"
    yield "Tokens", f"{state.tokens_in:,} read, {describe_output_tokens(state.tokens_out, state.tokens_thought)}"
    yield "Cost", money(state.cost)
    yield "Time", duration(state.seconds)
    if state.finished is None and state.made:
        low, high = (max(calls - state.made, 0) / state.made for calls in (estimate.min, estimate.max))
        left = time_range(low * state.seconds, high * state.seconds)
        cost = f", up to {money(high * state.cost)}" if state.cost else ""
        yield "Left, at this pace", f"{left}{cost}" if high else "the last calls"
    if limits := describe_limits(started.limits):
        yield "Limits", limits


def phase_lines(record: SessionRecord) -> list[str]:
    """Return the last phases with their replies, and what is under way."""
    headings = phase_headings(record)
    phases: dict[str, Counter[bool]] = {}
    for call in record.calls:
        phases.setdefault(phase_of(call), Counter())[isinstance(call, CallCompleted)] += 1
    lines = [
        f"{headings.get(phase, phase)}: {count(ended[True], 'reply')}{f', {ended[False]:,} failed' if ended[False] else ''}"
        for phase, ended in phases.items()
    ]
    flying = Counter(record.place(key, agent) for key, agent in record.flights.items())
    return [*lines[-MAX_PHASES:], *(f"Under way: {place}, {count(n, 'call')}" for place, n in flying.items())]


class PostedTicket(NamedTuple):
    """A ticket by which an agent of another process is asked."""

    ticket: str
    agent: str
    """Name of the seat."""
    place: str
    """The step and phase that it is for."""
    asked_at: float
    """Seconds since the epoch."""
    words: str
    """`open`, or how it ended."""


def ticket_states(record: SessionRecord) -> list[PostedTicket]:
    """Return the tickets of a session in the order in which they were posted, without those that it inherited."""
    ended = {(call.key, call.attempt): call for call in record.state.calls}
    tickets: dict[str, PostedTicket] = {}
    for event in record.events:
        if isinstance(event, CallAwaited) and event.ticket:
            name, place = record.names.get(event.agent, event.agent), record.place(event.key, event.agent)
            words = _ticket_words(ended.get((event.key, event.attempt)))
            tickets[event.ticket] = PostedTicket(event.ticket, name, place, event.asked_at, words)
    return list(tickets.values())


def _ticket_words(call: Ended | None) -> str:
    match call:
        case CallCompleted():
            return "answered"
        case CallFailed(failure=failure):
            return f"ended without an answer: {failure.value}"
        case ReplyRejected():
            return "answered; the answer was not usable"
    return "open"
