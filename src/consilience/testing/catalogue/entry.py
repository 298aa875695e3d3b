"""The form of the catalogue's entries, and the parts that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from consilience.domain.outcome import FailureKind
from consilience.testing.misbehaving_server import TEXT, ServerAnswer, chat_completion

Outcome = Literal["text"] | FailureKind


def unchanged(text: str) -> str:
    return text


@dataclass(frozen=True)
class KnownAnswer:
    """What a server has been documented or reported to answer, and what must come out of it."""

    name: str
    server: str
    source: str
    """The documentation or report that it is modelled on."""
    answers: tuple[ServerAnswer, ...]
    """Each request gets the first that applies to it."""
    outcome: Outcome
    """`"text"`: the reply is used. Else how the call fails."""
    untyped: Outcome | None = None
    """The outcome of a request for free text, where it is another."""
    says: str = ""
    """Words that the failure must repeat."""
    api: Literal["chat", "responses"] = "chat"
    write: Callable[[str], str] = unchanged
    """How the model writes the text that replaces `TEXT`."""

    def outcome_of(self, *, typed: bool) -> Outcome:
        """Return the outcome of a request with or without a schema."""
        return self.outcome if typed or self.untyped is None else self.untyped


def chat(content: str | None = TEXT, *, finish: str | None = "stop", **more: object) -> ServerAnswer:
    """A chat completion; `more` goes into its message."""
    return ServerAnswer(body=chat_completion(content, finish=finish, **more))


def odd(**changes: object) -> ServerAnswer:
    """A chat completion with other fields; `...` leaves one out."""
    body = {**chat_completion(), **changes}
    return ServerAnswer(body={name: value for name, value in body.items() if value is not ...})


def response(text: str = TEXT, *, status: str = "completed", **more: object) -> ServerAnswer:
    """A reply of the Responses API."""
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    body = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "stub-2026-01-01",
        "status": status,
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 12,
            "output_tokens": 3,
            "total_tokens": 15,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    body.update(more)
    return ServerAnswer(body={name: value for name, value in body.items() if value is not ...})


def fails(status: int, error: object, **headers: str) -> ServerAnswer:
    """An error; header names are written with underscores."""
    return ServerAnswer(status, error, {name.replace("_", "-"): value for name, value in headers.items()})


def openai_error(
    message: str, *, code: object = None, kind: str = "invalid_request_error", param: object = None
) -> Any:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def chunk(content: str | None = None, *, finish: str | None = None, **delta: object) -> dict[str, Any]:
    """One event of a streamed chat completion."""
    delta |= {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "stub",
        "choices": [choice],
    }


DONE = b"[DONE]"


def stream(*events: object) -> ServerAnswer:
    return ServerAnswer(events=events)


def asks_for_schema(body: Mapping[str, Any]) -> bool:
    """Whether a request has a JSON schema for its reply, of either interface."""
    form = body.get("response_format") or body.get("text", {}).get("format") or {}
    return isinstance(form, Mapping) and form.get("type") == "json_schema"


def asks_for_form(body: Mapping[str, Any]) -> bool:
    """Whether a request has a JSON schema, or tools."""
    return asks_for_schema(body) or bool(body.get("tools"))


def has_system(body: Mapping[str, Any]) -> bool:
    return any(message.get("role") in ("system", "developer") for message in body.get("messages", ()))


def asks_more_than(tokens: int) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a request allows a longer reply."""
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    return lambda body: any((body.get(name) or 0) > tokens for name in names)


def has(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda body: body.get(name) is not None


def first(
    answer: ServerAnswer, *then: ServerAnswer, when: Callable[[Mapping[str, Any]], bool]
) -> tuple[ServerAnswer, ...]:
    """Give an answer to the requests it is for, and a good one to others."""
    refused = ServerAnswer(answer.status, answer.body, answer.headers, when=when)
    return (refused, *(then or (chat(),)))


def failure(
    name: str,
    server: str,
    source: str,
    answer: ServerAnswer,
    kind: FailureKind,
    says: str,
    api: Literal["chat", "responses"] = "chat",
) -> KnownAnswer:
    """An answer to every request, which fails."""
    return KnownAnswer(name, server, source, (answer,), kind, says=says, api=api)
