"""Reads the body of an answer: its text in any encoding, and the one object that JSON, a stream of events or lines of JSON hold."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

JsonBody = dict[str, Any]

DONE = "[DONE]"
"""Ends a stream."""
_MAX_DIGITS = 4_000
"""Digits of an integer that Python reads."""
_MAX_BEGINNINGS = 20
"""Places in a text at which an object may begin that are tried."""
_MAX_VALUES = 200_000
"""Values of one body that are read, such as the events of a stream."""
_MAX_PAGE_CHARS = 8_000
"""Part of a page that is read for its words."""
_EVENT_LINE = re.compile(r"^data:[ \t]?(.*)$", re.MULTILINE)
_COMMENTS = re.compile(r"\A(?:\s*:[^\n]*(?:\n|\Z))+")
"""What keeps a connection alive before the body."""
_SPACE = re.compile(r"\s*")
_BEGINNING = re.compile(r'\{\s*"')
_ENVELOPES = ("data", "result", "response", "body")
"""Fields in which gateways put the whole answer of the server behind them."""
_DECODER = json.JSONDecoder(
    strict=False, parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else float(digits)
)


class ReplyUnreadable(Exception):
    """A body without an answer, with the reason. `retries` says how often another request may help."""

    def __init__(self, reason: str, retries: int = 0) -> None:
        super().__init__(reason)
        self.retries = retries


def decoded(raw: bytes, content_type: str) -> str:
    """Return the text: UTF-8 as a rule, with a few broken characters too, else in the declared encoding or in that of Windows."""
    detected = json.detect_encoding(raw)
    if not detected.startswith("utf-8"):
        return raw.decode(detected, "replace")
    text = raw.decode("utf-8-sig", "replace")
    broken = text.count("\ufffd")
    if not broken or broken < sum(character > "\x7f" for character in text) - broken:
        return text
    declared = re.search(r"charset=\"?([\w.-]+)", content_type)
    for encoding in (declared[1] if declared else "cp1252", "cp1252"):
        try:
            return raw.decode(encoding)
        except (UnicodeError, LookupError):
            continue
    return raw.decode("latin-1")


def object_in(text: str) -> JsonBody | None:
    """Return the object of a body: the only one, the first of a list, or what the parts of a stream say together; None if there is
    none. Text around it and an envelope of a gateway are left out."""
    values = list(islice(_json_values(text), _MAX_VALUES))
    if len(values) == 1 and isinstance(values[0], str):  # JSON in JSON
        values = list(_json_values(values[0]))
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    objects = [value for value in values if isinstance(value, dict)]
    objects = [_unwrapped(objects[0])] if len(objects) == 1 else [_as_chunk(value) for value in objects]
    if not objects:
        return None
    if any(str(value.get("type", "")).startswith("response.") for value in objects):
        return _joined_events(objects)
    streamed = any("delta" in choice for value in objects for choice in objects_in(value.get("choices")))
    return _joined_chunks(objects, ended=DONE in values) if streamed else objects[0]


def objects_in(value: object) -> list[JsonBody]:
    """Return the objects of a list; none for any other value."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def words_of_text(text: str) -> str:
    """Return the words of a body that is no JSON: of a page those that it shows."""
    text = text[:_MAX_PAGE_CHARS]
    if text.lstrip().startswith("<"):
        text = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->|<[^>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE)
    lines = [" ".join(line.split()) for line in html.unescape(text).splitlines()]
    return " ".join(dict.fromkeys(line for line in re.split(r" {2,}", "  ".join(lines)) if line))


def _json_values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a body: one as a rule, several of a stream of events or of lines. `DONE` ends a stream."""
    text = _COMMENTS.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).strip()
    if not text.startswith(("{", "[", '"')) and _EVENT_LINE.search(text):
        for event in re.split(r"\n\n+", text):
            if data := "\n".join(_EVENT_LINE.findall(event)).strip():
                yield from [DONE] if data == DONE else _json_values(data)
        if text.endswith(f"\n{DONE}"):
            yield DONE
        return
    position = 0
    while position < len(text):
        try:
            value, position = _DECODER.raw_decode(text, position)
        except ValueError:
            if position:
                yield from [DONE] if DONE in text[position:] else []
            elif (value := _embedded(text)) is not None:
                yield value
            return
        yield value
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]


def _embedded(text: str) -> JsonBody | None:
    """Return the answer that stands behind other text, such as a warning of the program that sent it."""
    for beginning in islice(_BEGINNING.finditer(text), _MAX_BEGINNINGS):
        try:
            value, _ = _DECODER.raw_decode(text, beginning.start())
        except ValueError:
            continue
        if isinstance(value, dict) and value.keys() & {"choices", "output", "error"}:
            return value
    return None


def _unwrapped(value: JsonBody) -> JsonBody:
    """Return the answer in an envelope; any other object unchanged."""
    if value.keys() & {"choices", "output", "error"}:
        return value
    for name in _ENVELOPES:
        inner = value.get(name)
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            inner = next(_json_values(inner), None)
        if isinstance(inner, dict) and inner.keys() & {"choices", "output"}:
            return inner
    return value


# streams


def _as_chunk(value: JsonBody) -> JsonBody:
    """Return a line of Ollama's own interface as a chunk; any other object unchanged."""
    if "choices" in value or not isinstance(value.get("message"), dict):
        return value
    choice = {
        "delta": value["message"],
        "finish_reason": value.get("done_reason") or ("stop" if value.get("done") else None),
    }
    return {**{name: entry for name, entry in value.items() if name != "message"}, "choices": [choice]}


def _joined_chunks(chunks: list[JsonBody], ended: bool) -> JsonBody:
    """Return the completion that streamed chunks make. Without a reason to end and without an end mark it was cut. An error after
    the reason to end changes nothing."""
    texts: dict[str, list[str]] = {}
    calls: dict[object, JsonBody] = {}
    choice_made: JsonBody = {}
    joined: JsonBody = {}
    index: object = None
    for chunk in chunks:
        joined.update({name: value for name, value in chunk.items() if name != "choices" and value})
        for choice in objects_in(chunk.get("choices")):
            index = choice.get("index") if index is None else index
            if choice.get("index") != index:
                continue  # of several replies the first
            whole = choice.get("message")
            delta = choice.get("delta") or whole
            for name, value in delta.items() if isinstance(delta, dict) else ():
                if name == "tool_calls":
                    _join_calls(calls, objects_in(value))
                elif name != "role" and (part := text_of_content(value)):
                    if delta is whole:
                        texts[name] = []
                    texts.setdefault(name, []).append(part)
            choice_made.update({name: choice[name] for name in ("finish_reason", "error") if choice.get(name)})
    message: JsonBody = {name: "".join(parts) for name, parts in texts.items()}
    if calls:
        message["tool_calls"] = list(calls.values())
    if joined.get("error") and "finish_reason" not in choice_made:
        choice_made["finish_reason"] = "error"
    return {
        **joined,
        "choices": [{"message": message, "finish_reason": "stop" if ended else "length", **choice_made}],
    }


def text_of_content(content: object) -> str:
    """Return the text of a message's content: of a list that of its parts; "" for anything else."""
    parts = content if isinstance(content, list) else [content]
    return "".join(
        part if isinstance(part, str) else part["text"]
        for part in parts
        if isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str))
    )


def _join_calls(calls: dict[object, JsonBody], deltas: list[JsonBody]) -> None:
    for delta in deltas:
        index = delta.get("index")
        call = calls.setdefault(
            index if isinstance(index, int) else len(calls), {"function": {"name": "", "arguments": ""}}
        )
        function: Mapping[str, object] = delta["function"] if isinstance(delta.get("function"), dict) else {}
        for name in ("name", "arguments"):
            part = function.get(name) or ""
            call["function"][name] += part if isinstance(part, str) else json.dumps(part)
        call["id"] = delta.get("id") or call.get("id")


def _joined_events(events: list[JsonBody]) -> JsonBody:
    """Return the response that events of the Responses API make: that of the last one, with the streamed text if it has none."""
    last: JsonBody = next(
        (event["response"] for event in reversed(events) if isinstance(event.get("response"), dict)), {}
    )
    text = "".join(str(event.get("delta", "")) for event in events if event.get("type") == "response.output_text.delta")
    failed = next((event for event in events if event.get("type") == "error"), None)
    kinds = {event.get("type") for event in events}
    if "response.completed" in kinds:
        failed = None
    if failed is not None and not last.get("error"):
        last = {**last, "error": failed.get("error") or failed}
    if failed is not None or "response.failed" in kinds:
        last = {**last, "status": "failed"}
    elif not kinds & {"response.completed", "response.incomplete"}:  # the stream was cut
        last = {**last, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return last if last.get("output") or not text else {**last, "output_text": text}
