"""Reads what agent command lines print around a reply: the JSON of their machine-readable modes, and lines before an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from consilience.models.visible import without_sequences

_NOISE = (
    "Loaded cached credentials.",
    "Data collection is disabled.",
    "YOLO mode is enabled. All tool calls will be automatically approved.",
)
"""Lines that agents print before their answer."""


_OVERWRITTEN = re.compile(r"^[^\n]*\r(?=[^\n])", re.MULTILINE)
"""What a line showed before it was written anew. Tried at the start of a line only: else the time grows with its square."""


class AgentFailed(Exception):
    """The agent reported a failure, with its words."""


def reply_of(output: str) -> str:
    """Return the reply in the output of a program. Raises `AgentFailed`.

    Of events and results that known agents print as JSON (Claude Code, Codex, Gemini CLI, Cursor, OpenCode) the last one with a
    reply counts, and everything around it is left out. Any other output is the reply, without known lines before it.
    """
    output = _OVERWRITTEN.sub("", without_sequences(output).replace("\r\n", "\n"))
    for event in reversed(list(_events(output))):
        reply = _reply_in(event)
        if reply is not None:
            return reply.strip()
    output = output.strip()
    while (line := next((line for line in _NOISE if output.startswith(f"{line}\n")), None)) is not None:
        output = output[len(line) :].lstrip()
    return output


def _events(output: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an output: one as a whole, also behind other lines, those of a list, or one a line."""
    lines = output.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if line.startswith(("{", "["))), None)
    if first is None:
        return
    try:
        values = [json.loads("".join(lines[first:]))]
    except (ValueError, RecursionError):
        values = [value for line in lines[first:] if (value := _value(line)) is not None]
    for value in values:
        yield from (entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, dict))


def _value(line: str) -> object:
    if not line.startswith("{"):
        return None
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value


def _reply_in(event: dict[str, Any]) -> str | None:
    """Return the reply that an event holds; None if it holds none. Raises `AgentFailed`."""
    kind = event.get("type")
    item: dict[str, Any] = next(
        (event[name] for name in ("item", "msg", "part") if isinstance(event.get(name), dict)), {}
    )
    reply: object = None
    if kind == "result" and ("result" in event or "subtype" in event):  # Claude Code, Cursor, Qwen Code
        structured = event.get("structured_output")
        reply = json.dumps(structured, ensure_ascii=False) if isinstance(structured, dict) else event.get("result")
        if event.get("is_error") or not isinstance(reply, str):
            raise AgentFailed(str(reply or event.get("subtype")))
    elif "response" in event and {"stats", "session_id"} & event.keys():  # Gemini CLI
        reply = event["response"]
    elif isinstance(event.get("error"), dict) and (kind == "turn.failed" or {"stats", "session_id"} & event.keys()):
        raise AgentFailed(str(event["error"].get("message")))
    elif item.get("type") in ("agent_message", "assistant_message"):  # Codex
        reply = item.get("text", item.get("message"))
    elif kind == "text" == item.get("type"):  # OpenCode
        reply = item.get("text")
    return reply if isinstance(reply, str) else None
