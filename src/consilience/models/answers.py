"""Reads what OpenAI-compatible servers answer: of a reply only the message's text is needed, whatever else is missing or odd.

Such servers put an error into a 200, stream without being asked, leave fields out or fill them with other types, and send other
encodings. `normalize` turns the body into one that the client library reads, or into an error with the status that it names, before
the library parses it. So a reply that was paid for is read, and an error keeps the provider's words.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

JsonBody = dict[str, Any]


def normalize(path: str, status: int, content_type: str, raw: bytes) -> tuple[int, bytes] | None:
    """Return the status and the body that the client library should read; None if there is nothing to change or to read.

    `path` is that of the request: only chat completions and responses are read.
    """
    build = next((build for suffix, build in _INTERFACES.items() if path.rstrip("/").endswith(suffix)), None)
    if build is None or 300 <= status < 400 or not raw.strip():
        return None
    values = list(_json_values(_decoded(raw, content_type)))
    body = _body(values)
    if body is None:
        return None
    reply = None if status >= 400 else build(body)
    if reply is not None:
        return status, json.dumps(reply).encode()
    error = _error_of(body)
    if error is None:
        return None
    status = status if status >= 400 else _status_of(error)
    stated = error.get("message")
    words = {"message": words_of(error), "details": error.get("details", None if isinstance(stated, str) else stated)}
    return status, json.dumps({"error": {**error, **words}}).encode()


# text and JSON


def _decoded(raw: bytes, content_type: str) -> str:
    """Return the text: UTF-8 as a rule, else in the declared encoding, else in that of Windows."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16", "replace")
    declared = re.search(r"charset=\"?([\w.-]+)", content_type)
    for encoding in ("utf-8-sig", declared[1] if declared else "cp1252", "cp1252"):
        try:
            return raw.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    return raw.decode("latin-1")


_EVENT_LINE = re.compile(r"^data:[ \t]?(.*)$", re.MULTILINE)
_COMMENTS = re.compile(r"\A(?:\s*:[^\n]*(?:\n|\Z))+")
"""What keeps a connection alive before the body."""
DONE = "[DONE]"


def _json_values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a body: one as a rule, several of a stream of events or of lines. `DONE` ends a stream."""
    text = _COMMENTS.sub("", text.replace("\r\n", "\n")).strip()
    if not text.startswith(("{", "[")) and _EVENT_LINE.search(text):
        for event in re.split(r"\n\n+", text):
            if data := "\n".join(_EVENT_LINE.findall(event)).strip():
                yield from [DONE] if data == DONE else _json_values(data)
        return
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError:
            if position and DONE in text[position:]:
                yield DONE
            return
        yield value
        position += len(text[position:]) - len(text[position:].lstrip())


def _body(values: list[Any]) -> JsonBody | None:
    """Return the one object of a body: the first of a list, or what the chunks of a stream say together."""
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    objects = [value for value in values if isinstance(value, dict)]
    if not objects:
        return None
    streamed = any("delta" in choice for value in objects for choice in _objects(value.get("choices")))
    if any(str(value.get("type", "")).startswith("response.") for value in objects):
        return _joined_events(objects)
    return _joined_chunks(objects, ended=DONE in values) if streamed else objects[0]


def _objects(value: object) -> list[JsonBody]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _joined_chunks(chunks: list[JsonBody], ended: bool) -> JsonBody:
    """Return the completion that streamed chunks make. Without a reason to end and without an end mark it was cut."""
    message: JsonBody = {}
    calls: dict[int, JsonBody] = {}
    choice_made: JsonBody = {"message": message, "finish_reason": "stop" if ended else "length"}
    joined: JsonBody = {"choices": [choice_made]}
    for chunk in chunks:
        joined.update({name: value for name, value in chunk.items() if name != "choices" and value})
        for choice in _objects(chunk.get("choices"))[:1]:
            delta = choice.get("delta") or choice.get("message") or {}
            for name, value in delta.items() if isinstance(delta, dict) else ():
                if name == "tool_calls":
                    _join_calls(calls, _objects(value))
                elif isinstance(value, str) and name != "role":
                    message[name] = message.get(name, "") + value
            choice_made.update({name: choice[name] for name in ("finish_reason", "error") if choice.get(name)})
    if calls:
        message["tool_calls"] = list(calls.values())
    if joined.get("error"):
        choice_made["finish_reason"] = "error"
    return joined


def _join_calls(calls: dict[int, JsonBody], deltas: list[JsonBody]) -> None:
    for delta in deltas:
        call = calls.setdefault(delta.get("index", len(calls)), {"function": {"name": "", "arguments": ""}})
        function = delta.get("function") or {}
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""
        call["id"] = delta.get("id") or call.get("id")


def _joined_events(events: list[JsonBody]) -> JsonBody:
    """Return the response that events of the Responses API make: that of the last one, with the streamed text if it has none."""
    last: JsonBody = next(
        (event["response"] for event in reversed(events) if isinstance(event.get("response"), dict)), {}
    )
    text = "".join(str(event.get("delta", "")) for event in events if event.get("type") == "response.output_text.delta")
    failed = next((event for event in events if event.get("type") == "error"), None)
    if failed is not None and not last.get("error"):
        last = {**last, "error": failed.get("error") or failed}
    kinds = {event.get("type") for event in events}
    if kinds & {"response.failed", "error"}:
        last = {**last, "status": "failed"}
    elif not kinds & {"response.completed", "response.incomplete"}:  # the stream was cut
        last = {**last, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return last if last.get("output") or not text else {**last, "output_text": text}


# replies


def _chat_completion(body: JsonBody) -> JsonBody | None:
    """Return a complete chat completion with the message of `body`; None if there is none, or an error instead."""
    choices = _objects(body.get("choices"))
    if not choices and isinstance(body.get("message"), dict):  # as Ollama's own interface answers
        choices = [{"message": body["message"], "finish_reason": body.get("done_reason")}]
    choice = next((choice for choice in choices if _message_of(choice)), {})
    message = _message_of(choice)
    if message is None or _failed(body, choice, message):
        return None
    reason = choice.get("finish_reason")
    return {
        **{name: value for name, value in body.items() if name not in ("error", "moderation", "message")},
        "id": _text(body.get("id")),
        "object": "chat.completion",
        "created": _whole(body.get("created")) or 0,
        "model": _text(body.get("model")),
        "choices": [
            {
                **{name: value for name, value in choice.items() if name not in ("error", "delta")},
                "index": 0,
                "finish_reason": reason if isinstance(reason, str) and reason else "stop",
                "logprobs": choice.get("logprobs") if isinstance(choice.get("logprobs"), dict) else None,
                "message": _clean_message(message),
            }
        ],
        "usage": _usage(body.get("usage"), _CHAT_COUNTS),
        "service_tier": _text(body.get("service_tier")) or None,
        "system_fingerprint": _text(body.get("system_fingerprint")) or None,
        "metadata": body["metadata"] if isinstance(body.get("metadata"), dict) else None,
    }


def _message_of(choice: JsonBody) -> JsonBody | None:
    """Return the message of a choice, as servers name it; None if there is none."""
    for name in ("message", "delta", "text"):
        value = choice.get(name)
        if isinstance(value, dict):
            return value
        if isinstance(value, str):
            return {"content": value}
    return None


def _failed(body: JsonBody, choice: JsonBody, message: JsonBody) -> bool:
    """Return whether an error stands in place of the reply, or ended it early."""
    error = body.get("error") or choice.get("error")
    if not error:
        return False
    return choice.get("finish_reason") == "error" or not any(
        message.get(name) for name in ("content", "tool_calls", "refusal", "reasoning_content", "reasoning")
    )


def _clean_message(message: JsonBody) -> JsonBody:
    content = message.get("content")
    calls = _objects(message.get("tool_calls"))
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [{"function": message["function_call"]}]
    kept = {
        name: value
        for name, value in message.items()
        if name not in _TEXT_FIELDS | {"tool_calls", "function_call", "audio", "annotations"}
    }
    texts = {name: message[name] for name in _TEXT_FIELDS if isinstance(message.get(name), str)}
    return {
        **kept,
        **texts,
        "role": "assistant",
        "content": content if content is None or isinstance(content, str | list) else json.dumps(content),
        "tool_calls": [_tool_call(call, n) for n, call in enumerate(calls)] or None,
        "annotations": _objects(message.get("annotations")) or None,
    }


_TEXT_FIELDS = {"refusal", "reasoning", "reasoning_content"}


def _tool_call(call: JsonBody, number: int) -> JsonBody:
    function = call["function"] if isinstance(call.get("function"), dict) else {}
    arguments = function.get("arguments")
    return {
        **call,
        "id": _text(call.get("id")) or f"call-{number}",
        "type": "function",
        "function": {
            "name": _text(function.get("name")),
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
        },
    }


def _response(body: JsonBody) -> JsonBody | None:
    """Return a complete response of the Responses API with the output of `body`; None if there is none, or an error instead."""
    output = _objects(body.get("output"))
    text = body.get("output_text")
    if not output and isinstance(text, str):
        output = [{"content": [{"text": text}]}]
    if not output and (completion := _chat_completion(body)) is not None:
        output = [{"content": [{"text": completion["choices"][0]["message"]["content"] or ""}]}]
    items = [_output_item(item, n) for n, item in enumerate(output)]
    has_failed = body.get("status") in ("failed", "cancelled") or not any(item["type"] == "message" for item in items)
    if not items or (body.get("error") and has_failed):
        return None
    return {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "status": "completed",
        **{name: value for name, value in body.items() if name not in ("output_text", "choices")},
        "id": _text(body.get("id")),
        "object": "response",
        "created_at": _whole(body.get("created_at")) or 0,
        "model": _text(body.get("model")),
        "error": None,
        "output": items,
        "usage": _usage(body.get("usage"), _RESPONSE_COUNTS),
    }


def _output_item(item: JsonBody, number: int) -> JsonBody:
    named = {**item, "id": _text(item.get("id")) or f"item-{number}"}
    content = item.get("content")
    if item.get("type", "message") != "message":
        return named
    parts = [{"text": content}] if isinstance(content, str) else _objects(content)
    return {
        **named,
        "type": "message",
        "role": "assistant",
        "status": _text(item.get("status")) or "completed",
        "content": [part if part.get("type") == "refusal" else _output_text(part) for part in parts],
    }


def _output_text(part: JsonBody) -> JsonBody:
    annotations = _objects(part.get("annotations"))
    return {**part, "type": "output_text", "text": _text(part.get("text")), "annotations": annotations}


_INTERFACES: Mapping[str, Callable[[JsonBody], JsonBody | None]] = {
    "/chat/completions": _chat_completion,
    "/responses": _response,
}
_CHAT_COUNTS = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}
_RESPONSE_COUNTS = {other: name for name, other in _CHAT_COUNTS.items()}


def _usage(usage: object, names: Mapping[str, str]) -> JsonBody | None:
    """Return the counts of tokens under `names`, or under those of the other interface; None if there is no count."""
    if not isinstance(usage, dict):
        return None
    counts: JsonBody = {name: value for name, value in usage.items() if name not in {*names, *names.values()}}
    counts = {name: count for name, value in counts.items() if (count := _count(value)) is not None}
    found = False
    for name, other in names.items():
        count = _count(usage[name] if usage.get(name) is not None else usage.get(other))
        found = found or isinstance(count, int)
        counts[name] = count if count is not None or "details" in name else 0
    counts["total_tokens"] = _whole(usage.get("total_tokens")) or 0
    return {name: count for name, count in counts.items() if count is not None} if found else None


def _count(value: object) -> int | JsonBody | None:
    if isinstance(value, dict):
        return {name: number for name, entry in value.items() if (number := _whole(entry)) is not None}
    return _whole(value)


def _whole(value: object) -> int | None:
    """Return a number that is not negative as an integer; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return max(0, int(float(value))) if not isinstance(value, int) else max(0, value)
    except (ValueError, OverflowError):
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None or isinstance(value, dict | list) else str(value)


# errors

_MESSAGES = ("message", "detail", "msg", "error_msg", "error_message", "status_msg", "description", "error", "title")
"""Fields of an error that hold its words, best first."""


def _error_of(body: JsonBody) -> JsonBody | None:
    """Return the error that a body holds, with its fields; None if it holds none."""
    choice = next(iter(_objects(body.get("choices"))), {})
    status = body.get("base_resp")
    inner = body.get("error") or choice.get("error") or next(iter(_objects(body.get("errors"))), None) or status or body
    if isinstance(inner, list):
        inner = next(iter(_objects(inner)), None) or {"message": ", ".join(map(str, inner))}
    beside = {name: value for name, value in body.items() if isinstance(value, str | int | float) and name != "error"}
    error = beside | (inner if isinstance(inner, dict) else {"message": _text(inner)})
    return error if words_of(error) else None


def words_of(error: object) -> str:
    """Return the words of an error: its message, and the reason that a provider behind it gave (`metadata.raw`)."""
    if not isinstance(error, dict):
        return _text(error)
    found = next((error[name] for name in _MESSAGES if error.get(name)), "")
    if isinstance(found, list):
        found = "; ".join(words_of(entry) or str(entry) for entry in found)
    message = words_of(found)
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    reason = words_of(_parsed(raw))
    return f"{message}: {reason}" if message and reason and reason not in message else message or reason


def _parsed(raw: object) -> object:
    """Return the error that stands in a text as JSON; the text if it does not."""
    if isinstance(raw, str) and raw.lstrip().startswith(("{", "[")):
        try:
            raw = json.loads(raw)
        except ValueError:
            return raw
    if isinstance(raw, list):
        raw = next(iter(_objects(raw)), "")
    return _error_of(raw) if isinstance(raw, dict) else raw


_STATUSES: tuple[tuple[int, str], ...] = (
    (429, r"rate[- _]?limit|too many requests|resource_exhausted|throttl"),
    (402, r"insufficient|payment|credits|balance|billing|quota"),
    (401, r"unauthori[sz]ed|authenticat|api[ _-]?key"),
    (403, r"forbidden|permission|not allowed to"),
    (404, r"not[ _]found|does not exist|no such|unexpected endpoint|unknown (model|endpoint|url)|not exist"),
    (503, r"overloaded|unavailable|capacity|loading|warming|try again later"),
    (504, r"timed? ?out"),
    (400, r"invalid|unsupported|not support|must be|too (long|large|many)|maximum|bad request|required"),
)
"""The status of an error in a 200 that names none, by its words: the first that matches, else 500."""


def _status_of(error: JsonBody) -> int:
    for name in ("code", "status", "status_code", "http_code", "statusCode"):
        code = _whole(error.get(name))
        if code is not None and 400 <= code < 600:
            return code
    words = " ".join(_text(error.get(name)) for name in ("code", "type", "status")) + " " + words_of(error)
    return next((status for status, pattern in _STATUSES if re.search(pattern, words, re.IGNORECASE)), 500)
