"""A real server on 127.0.0.1 that speaks as four providers do, with a model that thinks before it answers.

Every reply takes `hidden` tokens of thinking out of the same cap as the answer. A cap that they use up gives what each provider
gives then: no text, the reason that the limit was reached, and the hidden tokens in the usage.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
TOKEN_CHARACTERS = 4


def answer(schema: Body | None, defs: Body | None = None) -> object:
    """Something that satisfies a JSON Schema: the first choice, the number 9, which every mark may be, one short text."""
    if schema is None:
        return "Keep the halt: it costs 12,000 a year and carries 40 people a day."
    defs = defs if defs is not None else schema.get("$defs", {})
    if "$ref" in schema:
        return answer(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return answer(schema[several][0], defs)
    match schema.get("type"):
        case "object":
            return {
                name: answer(property_schema, defs) for name, property_schema in schema.get("properties", {}).items()
            }
        case "array":
            least = max(int(schema.get("minItems", 0)), 1)
            return [answer(schema["items"], defs) for _ in range(least)] if "items" in schema else []
        case "integer" | "number":
            return min(9, schema.get("maximum", 9))
        case "boolean":
            return True
        case "null":
            return None
    return "Keep the halt: it costs 12,000 a year and carries 40 people a day."


@dataclass(frozen=True)
class Reply:
    """What the model made of a request: the text that fits below the cap after the thinking, and the tokens."""

    text: str
    thought: int
    written: int
    cut: bool

    @property
    def out(self) -> int:
        return self.thought + self.written


@dataclass
class ThinkingServer:
    """`requests` are paths and bodies as they came. In chat completions, with `trace` the text is a trace that runs into the cap,
    and with `apart` the hidden tokens are not counted among the output's."""

    hidden: int
    trace: bool = False
    apart: bool = False
    url: str = ""
    requests: list[tuple[str, Body]] = field(default_factory=list)

    def reply(self, schema: Body | None, cap: int, hidden: int | None = None) -> Reply:
        wanted = self.hidden if hidden is None else hidden
        made = answer(schema)
        text = made if isinstance(made, str) else json.dumps(made)
        thought = min(wanted, cap)
        room = (cap - thought) * TOKEN_CHARACTERS
        kept = text[:room]
        cut = wanted > cap or len(kept) < len(text)
        return Reply(kept, thought, -(-len(kept) // TOKEN_CHARACTERS), cut)


def chat(server: ThinkingServer, body: Body) -> Body:
    form = body.get("response_format") or {}
    made = server.reply(
        (form.get("json_schema") or {}).get("schema"), body.get("max_completion_tokens") or body["max_tokens"]
    )
    if server.trace:
        made = Reply(
            "<think>Let me see. Hm, hm, hm", 0, body.get("max_completion_tokens") or body["max_tokens"], cut=True
        )
    out = made.written if server.apart else made.out
    message = {"role": "assistant", "content": made.text}
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": body["model"],
        "choices": [{"index": 0, "finish_reason": "length" if made.cut else "stop", "message": message}],
        "usage": {
            "prompt_tokens": 300,
            "completion_tokens": out,
            "total_tokens": 300 + made.out,
            "completion_tokens_details": {"reasoning_tokens": made.thought},
        },
    }


def responses(server: ThinkingServer, body: Body) -> Body:
    form = (body.get("text") or {}).get("format") or {}
    made = server.reply(form.get("schema"), body["max_output_tokens"])
    output: list[Body] = [{"type": "reasoning", "id": "rs-1", "summary": []}]
    if made.text:
        part = {"type": "output_text", "text": made.text, "annotations": [], "logprobs": []}
        status = "incomplete" if made.cut else "completed"
        output.append({"type": "message", "id": "m-1", "role": "assistant", "status": status, "content": [part]})
    return {
        "id": "r-1",
        "object": "response",
        "created_at": 1_790_000_000,
        "model": body["model"],
        "status": "incomplete" if made.cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if made.cut else None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 300,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": made.out,
            "output_tokens_details": {"reasoning_tokens": made.thought},
            "total_tokens": 300 + made.out,
        },
    }


def anthropic(server: ThinkingServer, body: Body) -> Body:
    thinking = body.get("thinking") or {"type": "disabled"}
    budget = thinking.get("budget_tokens")
    if budget is not None and budget >= body["max_tokens"]:
        raise BadRequest("max_tokens must be greater than thinking.budget_tokens")
    on = thinking["type"] in ("enabled", "adaptive")
    if on and body.get("temperature", 1) != 1:
        raise BadRequest("temperature may only be set to 1 when thinking is enabled")
    if on and (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        raise BadRequest("Thinking may not be enabled when tool_choice forces tool use.")
    form = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    hidden = min(server.hidden, budget or server.hidden) if on else 0
    made = server.reply(form.get("schema"), body["max_tokens"], hidden)
    content: list[Body] = [{"type": "thinking", "thinking": "Let me see.", "signature": "s"}] if on else []
    if made.text:
        content.append({"type": "text", "text": made.text})
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": "max_tokens" if made.cut else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 300,
            "output_tokens": made.out,
            "output_tokens_details": {"thinking_tokens": made.thought},
        },
    }


def gemini(server: ThinkingServer, body: Body) -> Body:
    config = body["generationConfig"]
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    made = server.reply(schema, config["maxOutputTokens"])
    candidate: Body = {"index": 0, "finishReason": "MAX_TOKENS" if made.cut else "STOP"}
    if made.text:
        candidate["content"] = {"role": "model", "parts": [{"text": made.text}]}
    return {
        "candidates": [candidate],
        "modelVersion": "gemini-2.5-pro",
        "usageMetadata": {
            "promptTokenCount": 300,
            "candidatesTokenCount": made.written,
            "thoughtsTokenCount": made.thought,
            "totalTokenCount": 300 + made.out,
        },
    }


def streamed(message: Body) -> bytes:
    """A message as Anthropic streams it."""
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    events: list[Body] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(message["content"]):
        field_name, delta = ("thinking", "thinking_delta") if block["type"] == "thinking" else ("text", "text_delta")
        empty = {**block, field_name: "", **({"signature": ""} if "signature" in block else {})}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events.append(
            {"type": "content_block_delta", "index": index, "delta": {"type": delta, field_name: block[field_name]}}
        )
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events += [{"type": "message_delta", "delta": ended, "usage": message["usage"]}, {"type": "message_stop"}]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


class BadRequest(Exception):
    """What the provider refuses, in its words."""


API_PATHS: tuple[tuple[str, Callable[[ThinkingServer, Body], Body]], ...] = (
    ("/chat/completions", chat),
    ("/responses", responses),
    ("/messages", anthropic),
    (":generateContent", gemini),
)


@contextmanager
def thinking_server(hidden: int = 1_400) -> Iterator[ThinkingServer]:
    """A server that runs while the block does."""
    server = ThinkingServer(hidden)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = self.path.partition("?")[0]
            server.requests.append((path, body))
            make = next((make for end, make in API_PATHS if path.endswith(end)), None)
            try:
                status, sent = (200, make(server, body)) if make else (404, {"error": {"message": f"no {path}"}})
            except BadRequest as refused:
                status, sent = (
                    400,
                    {"type": "error", "error": {"type": "invalid_request_error", "message": str(refused)}},
                )
            stream = status == 200 and make is anthropic and body.get("stream")
            data = streamed(sent) if stream else json.dumps(sent).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            return

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "openai chat": ("openai-chat:gpt-5-mini", {"OPENAI_BASE_URL": "/v1", "OPENAI_API_KEY": "k-1"}),
    "openai responses": ("openai:gpt-5-mini", {"OPENAI_BASE_URL": "/v1", "OPENAI_API_KEY": "k-1"}),
    "anthropic": ("anthropic:claude-haiku-4-5", {"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_KEY": "k-1"}),
    "anthropic adaptive": ("anthropic:claude-opus-5", {"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_KEY": "k-1"}),
    "gemini": ("google:gemini-2.5-pro", {"GOOGLE_GEMINI_BASE_URL": "", "GEMINI_API_KEY": "k-1"}),
}
"""A model of each provider, and the environment under which it is this server's; values of `…_URL` are paths on it."""


def environment(provider: str, server: ThinkingServer) -> dict[str, str]:
    """The variables that lead `provider` to the server."""
    return {
        name: server.url + value if name.endswith("_URL") else value for name, value in PROVIDERS[provider][1].items()
    }
