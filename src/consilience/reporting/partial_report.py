"""A session without a report: its progress as a document and as JSON. Its protocol may add sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from consilience.domain.events import CallCompleted, CallFailed, Ended, ReplyRejected
from consilience.domain.sections import Bullets, Item, Paragraph
from consilience.reporting.event_lines import check_words
from consilience.reporting.formatting import (
    count,
    describe_agents,
    describe_awaited,
    describe_output_tokens,
    duration,
    format_range,
    one_line,
    price,
    printable,
    reply_text,
)
from consilience.reporting.limits import describe_limits
from consilience.reporting.markdown import blocks_markdown, document_markdown
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import (
    MAX_TITLE_CHARS,
    Chapter,
    ReportDocument,
    task_below_title,
)
from consilience.reporting.session_state import call_seconds
from consilience.reporting.trust import documents_blocks

MAX_EXCERPT_CHARS = 400
MAX_ERROR_CHARS = 200


def partial_markdown(record: SessionRecord) -> str:
    return document_markdown(partial_document(record))


def partial_document(record: SessionRecord, *, with_replies: bool = True) -> ReportDocument:
    """Return what happened so far, and how to continue unless a process runs the session now."""
    started = record.state.started
    if started is None:
        status = f"Session `{record.session}` was killed before it began."
        return ReportDocument(None, status, (Chapter("", (Paragraph(text="Nothing was spent; run it again."),)),))
    chapters = [Chapter("", (Paragraph(text=" ".join(_progress(record))),))]
    chapters += [Chapter(section.heading, section.blocks) for section in record.with_comments.sections]
    if with_replies and record.state.calls:
        replies = Bullets(items=tuple(_call_item(call, record) for call in record.state.calls))
        chapters.append(Chapter("Replies so far", (replies,)))
    if documents := tuple(documents_blocks(record.documents, record.state.agents, record.names)):
        chapters.append(Chapter("What was read so far", documents))
    return ReportDocument(
        title=one_line(record.text(started.task), MAX_TITLE_CHARS),
        status=_status_line(record),
        chapters=tuple(chapters),
        commands="" if record.holder else _next_step(record),
        task=task_below_title(record.text(started.task)),
    )


def replies_without_answer(record: SessionRecord) -> str:
    """Return the replies of a session that ended without an answer as a section in Markdown; empty for any other."""
    if record.report is None or record.report.answer is not None:
        return ""
    replies = tuple(_call_item(call, record) for call in record.state.calls if isinstance(call, CallCompleted))
    return f"## Replies before the end\n\n{blocks_markdown([Bullets(items=replies)])}" if replies else ""


def partial_json(record: SessionRecord) -> dict[str, object]:
    """Return the same for programs; `state` distinguishes it from a report, which has no such field."""
    state, started = record.state, record.state.started
    return {
        "session": record.session,
        "state": record.status,
        "holder": record.holder,
        "protocol": started.protocol if started else None,
        "task": record.text(started.task) if started else None,
        "settings": started.settings if started else None,
        "agents": [agent.model_dump(mode="json") for agent in state.agents],
        "estimate": started.estimate.model_dump(mode="json") if started else None,
        "limits": started.limits.model_dump(mode="json") if started else None,
        "spent": {
            "calls": state.made,
            "tokens_in": state.tokens_in,
            "tokens_out": state.tokens_out,
            "tokens_thought": state.tokens_thought,
            "cost": state.cost,
            "seconds": state.seconds,
        },
        "documents": [document.model_dump(mode="json") for document in record.documents],
        "calls": [_call_json(call, record) for call in state.calls],
        "in_flight": list(record.flights),
        "lost": [event.key for event in state.lost],
        "awaited": list(state.awaited),
        "answered": list(state.answered),
        "tickets": state.tickets,
        "resume": f"consilience resume {record.session}",
    }


def _status_line(record: SessionRecord) -> str:
    state = record.state
    if record.holder:
        return f"Running now: {record.holder}"
    if state.awaited:
        return f"Waiting for an answer to: {describe_awaited(state.awaited, state.people)}"
    if state.answered:
        return f"Answered, to be read when it is resumed: {', '.join(state.answered)}"
    return "Not finished: the run was interrupted"


def _next_step(record: SessionRecord) -> str:
    resume = f"`consilience resume {record.session}`. Recorded calls are not paid for again."
    if failed := record.state.failed:
        resume += f" {count(len(failed), 'failed call')} stay{'s' if len(failed) == 1 else ''} failed;"
        resume += (
            f" a fork makes {'it' if len(failed) == 1 else 'them'} again: `consilience fork {record.session} --at end`."
        )
    is_asked = record.state.awaited or (record.state.asked and not record.holder)
    if not is_asked:
        return f"Resume: {resume}"
    return f"Read the question and answer it: `consilience sessions answer {record.session}`. Then resume: {resume}"


def _progress(record: SessionRecord) -> Iterator[str]:
    """Sentences on calls, tokens, cost, time and the last check."""
    state, started = record.state, record.state.started
    assert started is not None
    inherited = f", {state.inherited} more inherited" if state.inherited else ""
    yield (
        f"{started.protocol}, {describe_agents(state.agents)}: "
        f"{state.made} of {format_range(started.estimate.min, started.estimate.max)} estimated calls done{inherited}, "
        f"{state.tokens_in:,} tokens read and {describe_output_tokens(state.tokens_out, state.tokens_thought)}, "
        f"{price(state.cost)}, {duration(state.seconds)} up to the last recorded event."
    )
    if limits := describe_limits(started.limits):
        yield f"Limits: {limits}."
    yield from _questions(record)
    outside = (*state.awaited, *state.answered, *state.tickets, *state.asked)
    open_calls = [key for key in record.flights if key not in outside]
    if open_calls and record.holder:
        yield f"In flight: {_as_code(open_calls)}."
    elif open_calls:
        calls = count(len(open_calls), "call").capitalize()
        yield f"{calls} in flight when it stopped, possibly charged: {_as_code(open_calls)}."
    if state.answered and state.awaited:
        yield f"Answered meanwhile: {_as_code(state.answered)}."
    if state.tickets:
        tickets = ", ".join(f"`{ticket}` for `{key}`" for key, ticket in state.tickets.items())
        yield f"Tickets of outside agents: {tickets}."
    if state.lost:
        yield f"Interrupted earlier, possibly charged: {count(len(state.lost), 'call')}."
    if state.checks and (words := check_words(state.checks[-1])):
        yield f"Last check, after {record.presentation.step} {state.checks[-1].index}: {words}."


def _questions(record: SessionRecord) -> Iterator[str]:
    """Sentences on the questions that were put to people: those of a process that was killed, and until when to answer."""
    state, seconds = record.state, record.state.started.human_deadline if record.state.started else None
    if state.asked and not state.awaited and not record.holder:
        yield f"Asked and not answered: {describe_awaited(state.asked, state.people)}."
    asked_at = [question.asked_at for question in state.asked.values()]
    if seconds is not None and asked_at:
        until = datetime.fromtimestamp(min(asked_at) + seconds, UTC)
        has_passed = until < datetime.now(UTC)
        then = "a resume goes on without an answer" if has_passed else "later a resume goes on without an answer"
        yield f"The deadline for people {'was' if has_passed else 'is'} {until:%Y-%m-%d %H:%M:%S} UTC; {then}."


def _as_code(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _call_item(call: Ended, record: SessionRecord) -> Item:
    lead = f"{record.place(call.key, call.agent)} · {record.names.get(call.agent, call.agent)}:"
    match call:
        case CallCompleted():
            return Item(lead=lead, text=one_line(reply_text(record.text(call.text)), MAX_EXCERPT_CHARS))
        case ReplyRejected():
            return Item(lead=f"{lead} invalid reply:", text=one_line(call.error, MAX_ERROR_CHARS))
        case CallFailed():
            return Item(lead=f"{lead} no reply, {call.failure.value}:", text=one_line(call.reason, MAX_ERROR_CHARS))


def _call_json(call: Ended, record: SessionRecord) -> dict[str, object]:
    row: dict[str, object] = {
        "type": call.__class__.model_fields["type"].default,
        "key": call.key,
        "agent": call.agent,
        "attempt": call.attempt,
        "seconds": call_seconds(call),
    }
    match call:
        case CallCompleted():
            row |= {
                "text": printable(reply_text(record.text(call.text))),
                "tokens_in": call.tokens_in,
                "tokens_out": call.tokens_out,
                "tokens_thought": call.tokens_thought,
            }
        case ReplyRejected():
            row |= {"error": call.error}
        case CallFailed():
            row |= {"failure": call.failure.value, "detail": call.reason}
    return row
