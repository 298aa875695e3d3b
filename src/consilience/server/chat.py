"""An OpenAI-compatible face: `GET /v1/models` and `POST /v1/chat/completions`. A chat program becomes a client by its base URL."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from consilience.domain.errors import ConsilienceError
from consilience.server.chat_bodies import ASK, PREFIX, ChatRequest, turn_of
from consilience.server.dependencies import Service, Who
from consilience.server.errors import openai_error
from consilience.server.feeds import HEARTBEAT_SECONDS
from consilience.server.openai_errors import OPENAI_ERRORS, RefusedRequest, as_data
from consilience.server.service import Sessions
from consilience.server.stories import SESSION_HEADER, Story, StoryEnd, chat_usage, page_of
from consilience.server.turns import Turns, chat_models
from consilience.server.uploads import BodyRoute

DONE = "[DONE]"
"""The last event of a stream."""

routes = APIRouter(prefix="/v1", route_class=BodyRoute, responses=OPENAI_ERRORS, tags=["OpenAI"])


def attach(app: FastAPI, sessions: Sessions) -> None:
    """Add the routes to an application."""
    app.state.turns = Turns(sessions)
    app.include_router(routes)


def turns_of(request: Request) -> Turns:
    turns: Turns = request.app.state.turns
    return turns


ModelPath = Annotated[str, Path(description="Name of a model, as the list has it.")]
TurnsOf = Annotated[Turns, Depends(turns_of)]


# --- models


@routes.get("/models")
async def models(sessions: Service, caller: Who) -> dict[str, Any]:
    """List what a chat may name as its model: `consilience/ask`, the protocols, the operator's presets."""
    return {"object": "list", "data": [model_json(name) for name in (ASK, *chat_models(sessions, caller))]}


@routes.get("/models/{model:path}")
async def model(model: ModelPath, sessions: Service, caller: Who) -> dict[str, Any]:
    """Return one of them."""
    name = model.removeprefix(PREFIX)
    if name not in (ASK, *chat_models(sessions, caller)):
        raise RefusedRequest(f"There is no model {model!r}.", param="model", code="model_not_found", status=404)
    return model_json(name)


def model_json(name: str) -> dict[str, Any]:
    return {"id": PREFIX + name, "object": "model", "created": 0, "owned_by": "consilience"}


# --- completions


@routes.post("/chat/completions", response_model=None)
async def completions(body: ChatRequest, request: Request, turns: TurnsOf, sessions: Service, caller: Who) -> Response:
    """Deliberate on the last message of a conversation, or follow up an earlier answer in it.

    A repeated request joins the session of the first.
    """
    body.check()
    turn = turn_of(
        body.entries,
        model=body.model,
        options=body.consilience,
        seed=body.seed,
        effort=body.reasoning_effort,
        tools=bool(body.tools or body.functions),
        max_tokens=body.max_completion_tokens or body.max_tokens,
    )
    joined = await turns.join(caller, turn)
    story = Story(sessions, caller, turn, joined, page_of(request, joined.session))
    await story.begun()
    headers = {SESSION_HEADER: joined.session}
    if body.stream:
        usage = bool(body.stream_options and body.stream_options.include_usage)
        return EventSourceResponse(_chunks(story, usage=usage), ping=int(HEARTBEAT_SECONDS), headers=headers)
    transcript = [passage async for passage in story.passages()]
    answer = await story.answer()
    message = {
        "role": "assistant",
        "content": answer.text,
        "reasoning_content": "\n\n".join(transcript),
        "refusal": None,
    }
    completion = {
        **_head(story.joined.session, turn.model, await story.created(), "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}],
        "usage": chat_usage(answer),
    }
    return JSONResponse(completion, headers=headers)


async def _chunks(story: Story, *, usage: bool) -> AsyncIterator[ServerSentEvent]:
    """The stream of a story: its transcript as reasoning, its answer as content, and an error wherever one comes."""
    head = _head(story.joined.session, story.turn.model, int(time.time()), "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> ServerSentEvent:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return ServerSentEvent(as_data({**head, "choices": [choice]}))

    try:
        yield chunk({"role": "assistant", "content": ""})
        async with aclosing(story.passages()) as passages:
            async for passage in passages:
                yield chunk({"reasoning_content": f"{passage}\n\n"})
        answer = await story.answer()
        yield chunk({"content": answer.text})
        yield chunk({}, _finish(answer))
        if usage:
            yield ServerSentEvent(as_data({**head, "choices": [], "usage": chat_usage(answer)}))
    except ConsilienceError as error:
        yield ServerSentEvent(as_data(openai_error(error)))
    yield ServerSentEvent(DONE)


def _head(id: str, model: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": created, "model": model}


def _finish(answer: StoryEnd) -> str:
    return "length" if answer.was_cut else "stop"
