"""Reads what OpenAI-compatible servers answer: of a reply only the message's text is needed, whatever else is missing or odd.

Such servers put an error into a 200, stream without being asked, leave fields out or fill them with other types, and send other
encodings. `normalize` turns the body into one that the client library reads, or into an error with the status that it names, before
the library parses it. So a reply that was paid for is read, and an error keeps the provider's words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from consilience.models.bodies import (
    JsonBody,
    ReplyUnreadable,
    decoded,
    object_in,
    objects_in,
    text_of_content,
    words_of_text,
)

_Build = Callable[[JsonBody], JsonBody | None]
_NO_CHOICE = ({"finish_reason": None},)
_SHOWN_CHARS = 200
"""Part of an answer that cannot be read that is shown."""


def normalize(
    path: str, status: int, content_type: str, raw: bytes, *, is_broken: bool = False
) -> tuple[int, bytes] | None:
    """Return the status and the body that the client library should read; None if there is nothing to change.

    `path` is that of the request: only chat completions and responses are read. Of a body whose connection broke (`is_broken`) only
    a reply that was whole by then counts. Raises `ReplyUnreadable` for an answer that holds neither a reply nor an error.
    """
    build = next((build for suffix, build in _INTERFACES.items() if path.rstrip("/").endswith(suffix)), None)
    if build is None or 300 <= status < 400:
        return None
    try:
        text = decoded(raw, content_type).strip()
        return _whole_reply(build, status, text) if is_broken else _normalized(build, status, text)
    except RecursionError:
        raise ReplyUnreadable("its JSON is nested too deeply") from None


def _whole_reply(build: _Build, status: int, text: str) -> tuple[int, bytes] | None:
    body = object_in(text) if status < 400 else None
    reply = build(body) if body is not None else None
    if (
        reply is None
        or reply.get("status") == "incomplete"
        or reply.get("choices", _NO_CHOICE)[0]["finish_reason"] == "length"
    ):
        return None
    return status, _encoded(reply)


def _normalized(build: _Build, status: int, text: str) -> tuple[int, bytes] | None:
    body = object_in(text)
    reply = None if status >= 400 or body is None else build(body)
    if reply is not None:
        return status, _encoded(reply)
    error = (
        _error_of(body) if body is not None else {"message": words_of_text(text)} if status >= 400 and text else None
    )
    if error is not None:
        status = status if status >= 400 else _status_of(error)
        stated = error.get("message")
        words = {
            "message": words_of(error),
            "details": error.get("details", None if isinstance(stated, str) else stated),
        }
        return status, _encoded({"error": {**error, **words}})
    if status >= 400:
        return None
    if body is not None:  # without a choice another server may have one; another form stays another form
        shown = json.dumps(body, ensure_ascii=False)[:_SHOWN_CHARS]
        raise ReplyUnreadable(f"it holds no message: {shown}", retries=1 if body.keys() & {"choices", "output"} else 0)
    words_shown = words_of_text(text)[:_SHOWN_CHARS]
    raise ReplyUnreadable(f"it is no JSON: {words_shown}" if words_shown else "it is empty", retries=1)


def _encoded(body: JsonBody) -> bytes:
    """Return JSON without lone surrogates, which UTF-8 cannot encode. Halves from two parts of a stream are joined."""
    text = json.dumps(body, ensure_ascii=False)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


# replies


def _chat_completion(body: JsonBody) -> JsonBody | None:
    """Return a complete chat completion with the message of `body`; None if there is none, or an error instead."""
    choices = objects_in(body.get("choices"))
    if not choices and isinstance(body.get("message"), dict):  # as Ollama's own interface answers
        choices = [{"message": body["message"], "finish_reason": body.get("done_reason")}]
    choice = next((choice for choice in choices if _message_of(choice)), {})
    message = _message_of(choice)
    if message is None or _failed(body, choice, message):
        return None
    cleaned = _clean_message(message)
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
                "finish_reason": _reason(choice.get("finish_reason"), cleaned),
                "logprobs": choice.get("logprobs") if isinstance(choice.get("logprobs"), dict) else None,
                "message": cleaned,
            }
        ],
        "usage": _usage(body.get("usage"), _CHAT_COUNTS),
        "service_tier": _text(body.get("service_tier")) or None,
        "system_fingerprint": _text(body.get("system_fingerprint")) or None,
        "metadata": body["metadata"] if isinstance(body.get("metadata"), dict) else None,
    }


_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("max_tokens", "max_output_tokens", "max_length", "model_length", "token_limit"), "length"),
    **dict.fromkeys(
        (
            "safety",
            "sensitive",
            "recitation",
            "blocklist",
            "spii",
            "prohibited_content",
            "guardrail_intervened",
            "refusal",
        ),
        "content_filter",
    ),
    **dict.fromkeys(("abort", "aborted", "cancelled", "canceled", "network_error", "incomplete"), "error"),
    **dict.fromkeys(("insufficient_system_resource", "repetition_truncation", "timeout"), "error"),
}
"""The reasons to end a reply for the words of other interfaces."""


def _reason(reason: object, message: JsonBody) -> str:
    """Return why a reply ended. One that was broken off was cut."""
    if not isinstance(reason, str) or not reason:
        return "stop"
    known = _REASONS.get(reason.lower(), reason.lower())
    return "length" if known == "error" and message["content"] else known


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
    content, thinking = _content(message.get("content"))
    calls = objects_in(message.get("tool_calls"))
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [{"function": message["function_call"]}]
    kept = {
        name: value
        for name, value in message.items()
        if name not in _TEXT_FIELDS | {"tool_calls", "function_call", "audio", "annotations"}
    }
    texts = {name: message[name] for name in _TEXT_FIELDS if isinstance(message.get(name), str)}
    if thinking:
        texts.setdefault("reasoning_content", thinking)
    return {
        **kept,
        **texts,
        "role": "assistant",
        "content": content,
        "tool_calls": [_tool_call(call, n) for n, call in enumerate(calls)] or None,
        "annotations": objects_in(message.get("annotations")) or None,
    }


def _content(content: object) -> tuple[str | None, str]:
    """Return the text of a content and its thinking. Parts are joined; an object that is no part is the reply itself."""
    if content is None or isinstance(content, str):
        return content, ""
    parts = content if isinstance(content, list) else [content]
    if not all(
        isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("type"), str)) for part in parts
    ):
        return json.dumps(content, ensure_ascii=False), ""
    is_thought = [isinstance(part, dict) and part["type"] in ("thinking", "reasoning") for part in parts]
    thoughts = [part for part, thought in zip(parts, is_thought, strict=True) if thought]
    text = text_of_content([part for part, thought in zip(parts, is_thought, strict=True) if not thought])
    return text, "".join(text_of_content(part.get("thinking", part)) for part in thoughts)


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
    output = objects_in(body.get("output"))
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
    parts = [{"text": content}] if isinstance(content, str) else objects_in(content)
    return {
        **named,
        "type": "message",
        "role": "assistant",
        "status": _text(item.get("status")) or "completed",
        "content": [part if part.get("type") == "refusal" else _output_text(part) for part in parts],
    }


def _output_text(part: JsonBody) -> JsonBody:
    annotations = objects_in(part.get("annotations"))
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
    choice = next(iter(objects_in(body.get("choices"))), {})
    status = body.get("base_resp")
    inner = (
        body.get("error") or choice.get("error") or next(iter(objects_in(body.get("errors"))), None) or status or body
    )
    if isinstance(inner, list):
        inner = next(iter(objects_in(inner)), None) or {"message": ", ".join(map(str, inner))}
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
        raw = next(iter(objects_in(raw)), "")
    return _error_of(raw) if isinstance(raw, dict) else raw


_STATUSES: tuple[tuple[int, str], ...] = (
    (429, r"rate[- _]?limit|too many requests|resource_exhausted|throttl|速率|频率|访问量过大|限流"),
    (402, r"insufficient|payment|credits|balance|billing|quota|余额|欠费|充值"),
    (401, r"unauthori[sz]ed|authenticat|api[ _-]?key|令牌|身份验证"),
    (403, r"forbidden|permission|not allowed to"),
    (404, r"not[ _]found|does not exist|no such|unexpected endpoint|unknown (model|endpoint|url)|not exist|模型不存在"),
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
