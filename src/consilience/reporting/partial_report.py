"""A session without a report: what happened so far, as Markdown and as JSON. Nothing of its protocol's code is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from consilience.domain.events import CallCompleted, CallFailed, Ended, ReplyRejected
from consilience.reporting.formatting import (
    count,
    describe_agents,
    describe_output_tokens,
    describe_place,
    duration,
    escape_markdown,
    format_range,
    money,
    one_line,
    printable,
    reply_text,
    seat_labels,
)
from consilience.reporting.session_state import SessionState, call_seconds

Text = Callable[[str], str]
"""A stored text by its id."""

_LONGEST_EXCERPT = 400


def status_of(course: SessionState, holder: str | None) -> str:
    """`finished`, `running`, `waiting` or `unfinished`."""
    if course.finished:
        return "finished"
    if holder:
        return "running"
    return "waiting" if course.awaited else "unfinished"


def partial_markdown(
    session: str, course: SessionState, text: Text, *, flights: Sequence[str], holder: str | None
) -> str:
    """As Markdown. `flights` are the keys of calls that were sent and have not ended, `holder` who runs it now."""
    started = course.started
    if started is None:
        return f"**Session `{session}` was killed before it began.** Nothing was spent; run it anew.\n"
    names = seat_labels(course.agents)
    parts = [
        f"# {escape_markdown(one_line(text(started.task), 160))}",
        f"**{_headline(course, holder)}**",
        _so_far(course, flights, holder),
    ]
    if course.calls:
        parts.append("## What was said so far\n\n" + "\n".join(_said(call, names, text) for call in course.calls))
    if not holder:
        again = f"Go on: `consilience resume {session}`."
        if course.awaited:
            again = (
                f"What is asked, and how to answer: `consilience sessions answer {session}`. "
                f"Once that is answered, go on: `consilience resume {session}`."
            )
        parts.append(f"---\n\n{again} What is recorded is not paid for again.")
    return "\n\n".join(parts) + "\n"


def partial_json(
    session: str, course: SessionState, text: Text, *, flights: Sequence[str], holder: str | None
) -> dict[str, object]:
    """The same for programs; `state` tells it from a report, which has none."""
    started = course.started
    return {
        "session": session,
        "state": status_of(course, holder),
        "holder": holder,
        "protocol": started.protocol if started else None,
        "task": text(started.task) if started else None,
        "settings": started.settings if started else None,
        "agents": [agent.model_dump(mode="json") for agent in course.agents],
        "estimate": started.estimate.model_dump(mode="json") if started else None,
        "spent": {
            "calls": course.made,
            "tokens_in": course.tokens_in,
            "tokens_out": course.tokens_out,
            "tokens_thought": course.tokens_thought,
            "cost": course.cost,
            "seconds": course.seconds,
        },
        "calls": [_call_json(call, text) for call in course.calls],
        "in_flight": list(flights),
        "lost": [event.key for event in course.lost],
        "awaited": list(course.awaited),
        "answered": list(course.answered),
        "resume": f"consilience resume {session}",
    }


def _headline(course: SessionState, holder: str | None) -> str:
    if holder:
        return f"Running now: {escape_markdown(holder)}"
    if course.awaited:
        return f"Waiting for an answer to: {escape_markdown(', '.join(course.awaited))}"
    if course.answered:
        return f"Answered, and heard when it goes on: {escape_markdown(', '.join(course.answered))}"
    return "Not finished: the run was interrupted"


def _so_far(course: SessionState, flights: Sequence[str], holder: str | None) -> str:
    started = course.started
    assert started is not None
    foreseen = format_range(started.estimate.min, started.estimate.max)
    written = describe_output_tokens(course.tokens_out, course.tokens_thought)
    line = (
        f"{started.protocol}, {describe_agents(course.agents)}: {course.made} of {foreseen} foreseen calls done, "
        f"{course.tokens_in:,} tokens read and {written}, {money(course.cost)}, {duration(course.seconds)}."
    )
    open_calls = [key for key in flights if key not in (*course.awaited, *course.answered)]
    if open_calls and holder:
        line += f" In flight: {', '.join(f'`{key}`' for key in open_calls)}."
    elif open_calls:
        line += (
            f" {count(len(open_calls), 'call').capitalize()} in flight when it stopped, which may have been paid for: "
            f"{', '.join(f'`{key}`' for key in open_calls)}."
        )
    if course.answered and course.awaited:
        line += f" Answered meanwhile: {', '.join(f'`{key}`' for key in course.answered)}."
    if course.lost:
        line += f" Lost earlier, and possibly paid for: {count(len(course.lost), 'call')}."
    if course.checks and course.checks[-1].check.score is not None:
        check = course.checks[-1].check
        line += f" Last stability score: {check.score:.2f}"
        line += f", needed {check.threshold:g}." if check.threshold is not None else "."
    return line


def _said(call: Ended, names: dict[str, str], text: Text) -> str:
    head = f"- {escape_markdown(describe_place(call.key))} · **{escape_markdown(names.get(call.agent, call.agent))}**"
    match call:
        case CallCompleted():
            return f"{head}: {escape_markdown(one_line(reply_text(text(call.text)), _LONGEST_EXCERPT))}"
        case ReplyRejected():
            return f"{head}: *a reply that could not be used: {escape_markdown(one_line(call.error, 200))}*"
        case CallFailed():
            return f"{head}: *no reply, {call.failure.value}: {escape_markdown(one_line(call.detail, 200))}*"


def _call_json(call: Ended, text: Text) -> dict[str, object]:
    found: dict[str, object] = {
        "type": call.__class__.model_fields["type"].default,
        "key": call.key,
        "agent": call.agent,
        "attempt": call.attempt,
        "seconds": call_seconds(call),
    }
    match call:
        case CallCompleted():
            found |= {
                "text": printable(reply_text(text(call.text))),
                "tokens_in": call.tokens_in,
                "tokens_out": call.tokens_out,
                "tokens_thought": call.tokens_thought,
            }
        case ReplyRejected():
            found |= {"error": call.error}
        case CallFailed():
            found |= {"failure": call.failure.value, "detail": call.detail}
    return found
