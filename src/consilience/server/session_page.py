"""The page of one session: while it runs, when it is finished, and as it was after any event; its calls, documents and views.

What a page shows is folded by `live_session` from what the caller may see. Its script (`page/page.js`) asks for the parts that have
changed (`fragments`) whenever an event arrives on the session's stream.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from consilience.domain.errors import UnknownName, UserError
from consilience.domain.events import AnyEvent, CallCompleted, Ended
from consilience.engine.sent_prompts import SentPrompt
from consilience.journal.store import Records
from consilience.reporting.formatting import describe_output_tokens, duration, money, one_line, strip_invalid_xml
from consilience.reporting.html import DocumentLines, page_parts
from consilience.reporting.page_parts import environment
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.session_state import call_seconds
from consilience.reporting.transcript import PagePlace, places_of
from consilience.reporting.views import view_of
from consilience.server.access import cookie_value
from consilience.server.blindness import valid_links
from consilience.server.dependencies import Service, SessionId, Who
from consilience.server.live_session import (
    LiveSessions,
    SessionLog,
    ShownSession,
    page_address,
    render_part,
)
from consilience.server.pages import FORM_COOKIE, PageRoute, app_page, part, templates

CALLS_PER_PAGE = 50
LINES_PER_PAGE = 500
MAX_LINE_CHARS = 4_000
"""Of a line of a document; its file has all of it."""
MAX_APPENDED = 50
"""Messages that are sent to a page at once; it asks for more."""
EVENT_TYPES = " ".join(("call_started", *(cls.model_fields["type"].default for cls in get_args(get_args(AnyEvent)[0]))))
"""Names of the server-sent events that a page listens for. Notes come with others."""


pages = APIRouter(prefix="/sessions/{session}", include_in_schema=False, route_class=PageRoute)
fragments = APIRouter(prefix="/sessions/{session}", include_in_schema=False)


def live_of(request: Request) -> LiveSessions:
    live: LiveSessions = request.app.state.live
    return live


@pages.get("")
async def show(
    session: SessionId, request: Request, caller: Who, before: Annotated[int | None, Query(ge=1, lt=2**53)] = None
) -> Response:
    """Show a session, or its messages before a number."""
    shown = await live_of(request).of(caller, session).opened()
    if before is not None:
        numbers = await asyncio.to_thread(shown.log.window, (), before)
        title = f"Messages · {one_line(shown.title, 120)}"
        return app_page(request, "older", title, base=page_address(session), **_messages(shown.log, numbers))
    return _session_page(request, shown, shown.parts, shown.log, shown.window)


def _session_page(
    request: Request,
    shown: ShownSession,
    parts: Mapping[str, str],
    log: SessionLog,
    window: Sequence[int],
    n: int | None = None,
) -> Response:
    """Return the page of a session, or as it was after its first `n` events."""
    base, record = page_address(shown.record.session), shown.record
    is_finished = record.report is not None
    return app_page(
        request,
        "session",
        one_line(shown.title, 120),
        base=base,
        parts=parts,
        layout="replay" if n is not None else "finished" if is_finished else "running",
        follows=n is None and not is_finished,
        events=f"/api{base}/events?after={shown.stamp.last}",
        kinds=EVENT_TYPES,
        version=shown.version,
        after=log.numbers[-1] if log.numbers else 0,
        actions=shown.actions,
        **_steps(shown, n),
        **_messages(log, window),
        **_forms(shown),
    )


def _messages(log: SessionLog, window: Sequence[int]) -> dict[str, Any]:
    older = bool(window) and log.numbers[0] < window[0]
    return {
        "entries": [log.entry(n) for n in window],
        "total": len(log.numbers),
        "older": window[0] if older else None,
        "is_last": not window or window[-1] == log.numbers[-1],
    }


def _steps(shown: ShownSession, n: int | None) -> dict[str, Any]:
    total = len(shown.record.events)
    values = {"n": total if n is None else min(n, total), "total_events": total}
    base = page_address(shown.record.session)
    return {**values, "steps": render_part(templates(), "steps", {**values, "base": base})}


def _forms(shown: ShownSession) -> dict[str, Any]:
    """Return what the forms of a session's page are given, beside a form token."""
    given = valid_links(dict(shown.stamp.given), time.time())
    return {"session": shown.record.session, "record": shown.record, "questions": shown.questions, "given_seats": given}


@pages.get("/at")
async def go_to(session: SessionId, n: Annotated[int, Query(ge=1, lt=2**53)]) -> Response:
    """Lead to the session as it was after an event, for a form without script."""
    return RedirectResponse(f"{page_address(session)}/at/{n}", 303)


@pages.get("/at/{n}")
async def show_at(session: SessionId, n: int, request: Request, caller: Who) -> Response:
    """Show a session as it was after its first `n` events that the caller may see."""
    shown, parts, log = await live_of(request).at(caller, session, max(n, 1))
    window = await asyncio.to_thread(log.window, parts.values())
    return _session_page(request, shown, parts, log, window, max(n, 1))


@fragments.get("/fragments")
async def changes(
    session: SessionId,
    request: Request,
    caller: Who,
    version: Annotated[str, Query(max_length=40)] = "",
    after: Annotated[int, Query(ge=0, lt=2**53)] = 0,
    actions: Annotated[str | None, Query(max_length=100_000)] = None,
    at: Annotated[int | None, Query(ge=1, lt=2**53)] = None,
) -> Response:
    """Return the parts of a page that changed since a version, and the messages after a number; or all as it was `at` an event.

    With `actions`, as the page has it, the forms are among the parts if they have changed.
    """
    if at is not None:
        shown, parts, log = await live_of(request).at(caller, session, at)
        window = await asyncio.to_thread(log.window, parts.values())
        whole = {"parts": {**parts, "steps": _steps(shown, at)["steps"]}, "log": [log.entry(n) for n in window]}
        return JSONResponse(whole)
    shown = await live_of(request).of(caller, session).current()
    numbers = [n for n in shown.log.numbers if n > after]
    sent = numbers[:MAX_APPENDED]
    entries = await asyncio.to_thread(lambda: [shown.log.entry(n) for n in sent])
    changed: dict[str, str] = {**shown.changed_since(version)}
    if actions is not None and actions != shown.actions:
        token = cookie_value(request.headers, FORM_COOKIE)
        changed["actions"] = part("actions", form_token=token, **_forms(shown))
    body = {
        "version": shown.version,
        "parts": changed,
        "log": entries,
        "after": sent[-1] if sent else after,
        "more": len(numbers) > len(sent),
        "actions": shown.actions,
        "layout": "finished" if shown.record.report is not None else "running",
    }
    return JSONResponse(body)


# --- calls


@dataclass(frozen=True)
class CallRow:
    """An attempt of a call in the list of all of them."""

    number: int
    href: str
    place: str
    agent: str
    result: str
    figures: str


@pages.get("/calls")
async def show_calls(
    session: SessionId, request: Request, caller: Who, page: Annotated[int, Query(ge=1, lt=2**31)] = 1
) -> Response:
    """List all calls, in pages."""
    shown = await live_of(request).of(caller, session).opened()
    calls = [(n, event) for n, event in shown.record.said if isinstance(event, Ended)]
    count_of_pages = max(1, -(-len(calls) // CALLS_PER_PAGE))
    page = min(page, count_of_pages)
    rows = calls[(page - 1) * CALLS_PER_PAGE : page * CALLS_PER_PAGE]
    return app_page(
        request,
        "calls",
        "All calls",
        base=page_address(session),
        calls=[_call_row(shown, n, call) for n, call in rows],
        page=page,
        pages=count_of_pages,
    )


def _call_row(shown: ShownSession, n: int, call: Ended) -> CallRow:
    record = shown.record
    result = "reply" if isinstance(call, CallCompleted) else call.failure.value
    seconds = call_seconds(call)
    figures = (
        f"{call.tokens_in:,} tokens read, {describe_output_tokens(call.tokens_out, call.tokens_thought)}",
        money(call.cost) if call.cost else "",
        duration(seconds) if seconds is not None else "",
    )
    return CallRow(
        n,
        shown.log.call_address(call.key),
        f"{record.place(call.key, call.agent)}{f', attempt {call.attempt}' if call.attempt > 1 else ''}",
        record.names.get(call.agent, call.agent),
        result,
        " · ".join(filter(None, figures)),
    )


@dataclass(frozen=True)
class ShownAttempt:
    """What one attempt of a call sent and received."""

    number: int
    texts: Sequence[tuple[str, str]]
    """With their headings."""


@pages.get("/calls/{key:path}")
async def show_call(session: SessionId, key: str, request: Request, sessions: Service, caller: Who) -> Response:
    """Show a call: its prompt as it was sent, and its reply as it was received."""
    shown = await live_of(request).of(caller, session).opened()
    record = shown.record
    calls = [event for _, event in record.said if isinstance(event, Ended) and event.key == key]
    agent = calls[0].agent if calls else record.flights.get(key)
    if agent is None:
        raise UnknownName(f"this session has no call {key!r}")
    unrendered = ""
    try:
        sent = await sessions.seats.sent_prompts(caller, session, key)
        attempts = [ShownAttempt(prompt.attempt, list(_prompt_texts(prompt))) for prompt in sent]
    except UserError as error:  # recorded by other code, so that only its replies can be read
        unrendered = str(error)
        attempts = [ShownAttempt(call.attempt, _reply_texts(record, call)) for call in calls]
    title = f"{record.names.get(agent, agent)}, {record.place(key, agent)}"
    return app_page(request, "call", title, base=page_address(session), attempts=attempts, unrendered=unrendered)


def _prompt_texts(sent: SentPrompt) -> Iterator[tuple[str, str]]:
    texts = {"Instructions": sent.system, "Prompt": sent.user}
    if sent.schema is not None:
        texts["JSON Schema of the reply"] = json.dumps(sent.schema, indent=2, ensure_ascii=False)
    if sent.reply is not None:
        texts["Reply"] = sent.reply
    return ((heading, strip_invalid_xml(text)) for heading, text in texts.items() if text)


def _reply_texts(record: SessionRecord, call: Ended) -> list[tuple[str, str]]:
    text = getattr(call, "text", "")
    return [("Reply", strip_invalid_xml(record.text(text)))] if text else []


# --- documents and views


@pages.get("/documents/{number}")
async def show_document(
    session: SessionId,
    number: int,
    request: Request,
    sessions: Service,
    caller: Who,
    line: Annotated[int, Query(ge=1, lt=2**53)] = 1,
) -> Response:
    """Show the lines of a document around one of them, each with a place of its own."""

    def read(records: Records) -> tuple[str, list[str]]:
        started = records.beginning(session)
        records.read(session)
        sources = started.sources if started is not None else ()
        if not 0 < number <= len(sources):
            raise UnknownName(f"this session has no document {number}")
        source = sources[number - 1]
        return f"{source.id} {source.name}".strip(), records.text(source.text).splitlines()

    name, lines = await sessions.read(caller, read)
    first = (min(line, max(len(lines), 1)) - 1) // LINES_PER_PAGE * LINES_PER_PAGE + 1
    shown = [
        cut if len(cut := one[:MAX_LINE_CHARS]) == len(one) else f"{cut} … [{len(one) - len(cut):,} more characters]"
        for one in lines[first - 1 : first - 1 + LINES_PER_PAGE]
    ]
    base = page_address(session)
    address = f"{base}/documents/{number}"
    document = DocumentLines(name, PagePlace(f"document-{number}", name, address), first, shown)
    return app_page(
        request,
        "document_lines",
        f"Document {strip_invalid_xml(one_line(name))}",
        base=base,
        address=address,
        lines=render_part(environment(), "lines", {"document": document}),
        first=first,
        last=first + len(shown) - 1,
        total=len(lines),
    )


@pages.get("/views/{name}")
async def show_view(session: SessionId, name: str, request: Request, sessions: Service, caller: Who) -> Response:
    """Show a view that has no room on the page of its session."""

    def read(records: Records) -> tuple[str, str]:
        record = read_record(records, session)
        view = view_of(name, record)
        return view.heading, page_parts(record, places_of(record, page_address(session))).view(view)

    heading, html = await sessions.read(caller, read)
    return app_page(request, "shown_view", heading, base=page_address(session), view=html)
