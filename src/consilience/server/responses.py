"""`/v1/responses`: the object is a session. The shapes are those of the Open Responses specification (openresponses.org).

A response's id holds all that its session does not: the model that was named and what it follows up. So a restart forgets nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from sse_starlette import EventSourceResponse, ServerSentEvent

from consilience.domain.errors import ConsilienceError, UnknownName
from consilience.domain.outcome import StopReason
from consilience.journal.store import Records
from consilience.reporting.record import read_record
from consilience.server.chat import TurnsOf
from consilience.server.chat_bodies import (
    ANY_TOOL_CHOICE,
    ChatEntry,
    ChatTurn,
    SessionOptions,
    Signature,
    parts_of,
    turn_of,
    unsupported_parameter,
)
from consilience.server.dependencies import Service, Who
from consilience.server.errors import openai_error
from consilience.server.feeds import HEARTBEAT_SECONDS
from consilience.server.joins import Joined
from consilience.server.openai_errors import OPENAI_ERRORS, RefusedRequest, as_data
from consilience.server.stories import SESSION_HEADER, Story, StoryEnd, page_of, tokens_of
from consilience.server.uploads import BodyRoute

Json = dict[str, Any]
Status = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
PASSED_OVER = ("reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
"""Types of input items that say nothing of what was asked or answered."""

ResponseId = Annotated[str, Path(description="Id of a response.")]
routes = APIRouter(prefix="/v1", route_class=BodyRoute, responses=OPENAI_ERRORS, tags=["OpenAI"])


class ResponsesRequest(BaseModel):
    """A request for a response. What is not listed has no effect."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    input: str | tuple[Json, ...]
    instructions: str | None = None
    background: bool | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    conversation: Json | str | None = None
    prompt: Json | None = None
    max_output_tokens: int | None = None
    reasoning: Json | None = None
    text: Json | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    top_logprobs: int | None = None
    consilience: SessionOptions = SessionOptions()

    def check(self) -> None:
        """Raise `RefusedRequest` for what this server does not do."""
        if ((self.text or {}).get("format") or {}).get("type", "text") != "text":
            raise unsupported_parameter("text.format")
        if self.tool_choice not in ANY_TOOL_CHOICE:
            raise unsupported_parameter("tool_choice")
        if self.top_logprobs:
            raise unsupported_parameter("top_logprobs")
        for name in ("conversation", "prompt"):
            if getattr(self, name):
                what = f"{name} is not supported: nothing of that kind is stored here. Send its content as input."
                raise RefusedRequest(what, param=name, code="unsupported_parameter")

    @property
    def entries(self) -> tuple[ChatEntry, ...]:
        """The conversation. Raises `RefusedRequest` for an item or a part that is no text."""
        entries = [ChatEntry("system", (self.instructions,))] if self.instructions else []
        if self.previous_response_id:
            entries.append(_referred(self.previous_response_id))
        if isinstance(self.input, str):
            return (*entries, ChatEntry("user", (self.input,)))
        for n, item in enumerate(self.input):
            kind = item.get("type", "message")
            if kind == "item_reference" and str(item.get("id")).startswith("msg_"):
                entries.append(_referred(str(item.get("id"))))
                continue
            if kind in PASSED_OVER or kind == "item_reference":
                continue
            if kind != "message":
                what = f"input[{n}] is of type {kind!r}, which no agent can read."
                raise RefusedRequest(what, param=f"input[{n}]", code="unsupported_input_item")
            entries.append(ChatEntry(str(item.get("role", "user")), parts_of(item.get("content"), f"input[{n}]")))
        return tuple(entries)

    def turn(self) -> ChatTurn:
        """Return what is asked for. Raises `RefusedRequest`."""
        return turn_of(
            self.entries,
            model=self.model,
            options=self.consilience,
            effort=(self.reasoning or {}).get("effort"),
            tools=bool(self.tools),
            max_tokens=self.max_output_tokens,
        )


# --- ids


def response_id(session: str, turn: ChatTurn, kind: str = "resp") -> str:
    """Return the id of a response or of an item of its output: its session, and what the session does not record."""
    rest = json.dumps([turn.model, turn.parent, list(turn.ignored), turn.helper_tokens])
    return f"{kind}_{session}_{base64.urlsafe_b64encode(rest.encode()).decode().rstrip('=')}"


def _decoded(id: str) -> tuple[str, ChatTurn]:
    """Return session and turn of an id. Raises `RefusedRequest`, status 404, for any other text."""
    prefix, _, rest = id.partition("_")
    session, _, encoded = rest.partition("_")
    try:
        model, parent, ignored, tokens = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        helper = None if tokens is None else int(tokens)
        turn = ChatTurn(
            model=str(model), task="", parent=str(parent), ignored=tuple(map(str, ignored)), helper_tokens=helper
        )
    except (ValueError, TypeError, binascii.Error):
        prefix, turn = "", ChatTurn(model="", task="")
    if prefix not in ("resp", "msg") or not session:
        raise _unknown(id)
    return session, turn


def _referred(id: str) -> ChatEntry:
    """Return the answer to which an id refers, as a message of the conversation. Raises as `_decoded` does."""
    session, turn = _decoded(id)
    return ChatEntry("assistant", (Signature(session, "", turn.model, turn.parent).markdown("stored"),))


def _unknown(id: str) -> RefusedRequest:
    return RefusedRequest(f"There is no response {id!r}.", param="response_id", code="not_found", status=404)


# --- routes


@routes.post("/responses", response_model=None)
async def respond(body: ResponsesRequest, request: Request, turns: TurnsOf, sessions: Service, caller: Who) -> Response:
    """Deliberate, or follow up. With `background` the response is returned as soon as its session is recorded."""
    body.check()
    turn = body.turn()
    joined = await turns.join(caller, turn)
    story = Story(sessions, caller, turn, joined, page_of(request, joined.session))
    await story.begun()
    headers = {SESSION_HEADER: joined.session}
    if body.stream:
        return EventSourceResponse(_stream(story), ping=int(HEARTBEAT_SECONDS), headers=headers)
    await asyncio.shield(joined.beginning)
    if not body.background:
        await story.ended()
    return JSONResponse(await response_json(story), headers=headers)


@routes.get("/responses/{response}", response_model=None)
async def retrieve(
    response: ResponseId,
    request: Request,
    sessions: Service,
    caller: Who,
    stream: Annotated[bool, Query(description="Whether to stream events.")] = False,
    starting_after: Annotated[int, Query(description="The number of the last event that is not sent again.")] = -1,
) -> Response:
    """Return a response as it stands, or stream its events behind a number."""
    story = await _story(response, request, sessions, caller)
    if stream:
        return EventSourceResponse(_stream(story, starting_after), ping=int(HEARTBEAT_SECONDS))
    return JSONResponse(await response_json(story))


@routes.post("/responses/{response}/cancel", response_model=None)
async def cancel(response: ResponseId, request: Request, sessions: Service, caller: Who) -> Response:
    """End the session of a response. One that is finished stays as it is."""
    story = await _story(response, request, sessions, caller)
    if await sessions.ending(caller, story.joined.session) is None:
        await sessions.cancel(caller, story.joined.session)
        await story.ended()
    return JSONResponse(await response_json(story))


async def _story(id: str, request: Request, sessions: Service, caller: Who) -> Story:
    session, turn = _decoded(id)
    try:
        await sessions.ending(caller, session)
    except UnknownName:
        raise _unknown(id) from None
    joined = Joined(session, asyncio.create_task(asyncio.sleep(0)))
    return Story(sessions, caller, turn, joined, page_of(request, session))


# --- the object


async def response_json(story: Story) -> Json:
    """Return a response as it stands, with the transcript and the answer of a session that has ended."""
    status, detail = await _status(story)
    head = _common(response_id(story.joined.session, story.turn), story.turn.model, await story.created())
    value: Json = {**head, "status": status, "metadata": {"session": story.joined.session, "url": story.url}}
    if status == "incomplete":
        value["incomplete_details"] = {"reason": "awaiting_person", "url": story.url}
    if status == "failed":
        value["error"] = {"code": "server_error", "message": detail}
    if await story.sessions.ending(story.caller, story.joined.session) is not None:
        transcript = [passage async for passage in story.passages()]
        end = await story.answer()
        value["output"] = [*_reasoning(story, transcript), _message(_item_id("msg", story), end.text)]
        value["usage"] = _usage(end)
    return value


async def _status(story: Story) -> tuple[Status, str]:
    """Return the status of a session as a response's, and why it failed."""
    session = story.joined.session

    def read(records: Records) -> tuple[Status, str]:
        record = read_record(records, session)
        report = record.report
        if report is not None:
            if report.stop_reason is StopReason.CANCELLED:
                return "cancelled", ""
            if report.stop_reason is StopReason.FAILED:
                return "failed", "Nothing could be concluded; the output says why."
            return "completed", ""
        if reason := story.sessions.failures.get(session):
            return "failed", reason
        if record.status == "waiting":
            return "incomplete", ""
        return ("in_progress" if record.holder or record.calls else "queued"), ""

    return await story.sessions.read(story.caller, read)


def _common(id: str, model: str, created: int) -> Json:
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "model": model,
        "background": True,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "output": [],
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
        "metadata": {},
    }


def _item_id(kind: str, story: Story) -> str:
    return response_id(story.joined.session, story.turn, kind)


def _message(id: str, text: str, status: str = "completed") -> Json:
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": [_text(text)]}


def _text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _reasoning(story: Story, transcript: Sequence[str]) -> list[Json]:
    if not transcript:
        return []
    summary = [{"type": "summary_text", "text": passage} for passage in transcript]
    return [{"id": _item_id("rs", story), "type": "reasoning", "status": "completed", "summary": summary}]


def _usage(end: StoryEnd) -> Json:
    read, cached, written, thought = tokens_of(end.spent)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": read + written,
    }


# --- the stream


async def _stream(story: Story, after: int = -1) -> AsyncIterator[ServerSentEvent]:
    """The events of a response behind a number. Numbers follow from the journal, so every reader has the same."""
    numbers = itertools.count()
    async for event in _events(story):
        number = next(numbers)
        if number > after:
            yield ServerSentEvent(as_data({**event, "sequence_number": number}), event=event["type"])


async def _events(story: Story) -> AsyncIterator[Json]:
    transcript: list[str] = []
    head = {
        **_common(response_id(story.joined.session, story.turn), story.turn.model, 0),
        "status": "in_progress",
        "metadata": {"session": story.joined.session, "url": story.url},
    }
    yield {"type": "response.created", "response": head}
    yield {"type": "response.in_progress", "response": head}
    reasoning = {"id": _item_id("rs", story), "type": "reasoning", "summary": [], "status": "in_progress"}
    try:
        async with aclosing(story.passages()) as passages:
            async for passage in passages:
                if not transcript:
                    yield {"type": "response.output_item.added", "output_index": 0, "item": reasoning}
                place = {"item_id": reasoning["id"], "output_index": 0, "summary_index": len(transcript)}
                transcript.append(passage)
                for event in _summary_part(passage, place):
                    yield event
        for item in _reasoning(story, transcript):
            yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        value = await response_json(story)
        for event in _message_events(value["output"][-1], len(value["output"]) - 1):
            yield event
        ending = {"completed": "completed", "failed": "failed"}.get(value["status"], "incomplete")
        yield {"type": f"response.{ending}", "response": value}
    except ConsilienceError as error:
        problem = openai_error(error)["error"]
        failed = {**head, "status": "failed", "error": {"code": "server_error", "message": problem["message"]}}
        yield {"type": "response.failed", "response": failed}


def _summary_part(passage: str, place: Mapping[str, Any]) -> list[Json]:
    kind, part = "response.reasoning_summary", {"type": "summary_text", "text": passage}
    return [
        {"type": f"{kind}_part.added", **place, "part": {**part, "text": ""}},
        {"type": f"{kind}_text.delta", **place, "delta": passage},
        {"type": f"{kind}_text.done", **place, "text": passage},
        {"type": f"{kind}_part.done", **place, "part": part},
    ]


def _message_events(message: Json, index: int) -> list[Json]:
    (part,) = message["content"]
    item, place = {"output_index": index}, {"item_id": message["id"], "output_index": index, "content_index": 0}
    text = {"text": part["text"], "logprobs": []}
    begun = {**message, "status": "in_progress", "content": []}
    return [
        {"type": "response.output_item.added", **item, "item": begun},
        {"type": "response.content_part.added", **place, "part": _text("")},
        {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []},
        {"type": "response.output_text.done", **place, **text},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", **item, "item": message},
    ]
