"""The head of a report for readers with little room: chat clients, and agents that called a tool."""

from __future__ import annotations

import time

from consilience.domain.events import CallCompleted
from consilience.reporting.formatting import (
    count,
    demote_markdown,
    describe_awaited,
    duration,
    format_range,
    one_line,
    reply_text,
)
from consilience.reporting.markdown import blocks_markdown
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import report_document

MAX_HEAD_CHARS = 8_000
"""About 2,000 tokens."""


def report_head(record: SessionRecord, max_chars: int = MAX_HEAD_CHARS) -> str:
    """Return a finished session's status, which says what is missing, its answer, and of the other parts as many as have room, in
    Markdown. The answer is whole, whatever its length; parts that are left out are named."""
    report = record.report
    assert report is not None
    document = report_document(report, record.with_comments, stored=False)
    lines, left_out = [f"**{document.status}**"], []
    for chapter in document.chapters:
        text = f"## {chapter.heading}\n\n{blocks_markdown(chapter.blocks)}"
        if len(lines) == 1 or len("\n\n".join((*lines, text))) <= max_chars:
            lines.append(text)
        else:
            left_out.append(chapter.heading)
    if left_out:
        lines.append(f"Not shown here: {', '.join(left_out)}.")
    return "\n\n".join((*lines, document.footer))


def transcript_markdown(record: SessionRecord) -> str:
    """Return what the agents said, in program order, each reply below a heading that says who, when and on which model."""
    entries = []
    for call in record.calls:
        if isinstance(call, CallCompleted):
            agent = record.agents[call.agent]
            heading = (
                f"## {record.place(call.key, call.agent)} · {record.names.get(agent.id, agent.id)} ({agent.model})"
            )
            entries.append(f"{heading}\n\n{demote_markdown(reply_text(record.text(call.text)))}")
    return "\n\n".join(entries) or "Nothing was said yet."


def progress_line(record: SessionRecord) -> str:
    """Return how far a session without a report is, in a line."""
    state = record.state
    if state.started is None:
        return "not begun"
    if state.awaited and not record.holder:
        return f"waiting for an answer to {one_line(describe_awaited(state.awaited, state.people), 200)}"
    estimate = state.started.estimate
    place = state.place(state.calls[-1].key, state.calls[-1].agent) if state.calls else ""
    age = duration(max(0.0, time.time() - (record.created or 0)))
    calls = f"{state.made:,} of {format_range(estimate.min, estimate.max)} calls made, begun {age} ago"
    flying = f", {count(len(record.flights), 'call')} under way" if record.flights else ""
    return f"{calls}{flying}{f'; last: {place}' if place else ''}"
