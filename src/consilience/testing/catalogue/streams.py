"""Streamed answers, of servers that only stream or stream whatever they are asked, and bodies that end early."""

from __future__ import annotations

from dataclasses import replace

from consilience.domain.outcome import FailureKind
from consilience.testing.catalogue.entry import DONE, KnownAnswer, chat, chunk, fails, openai_error, response, stream
from consilience.testing.misbehaving_server import TEXT, ServerAnswer, chat_completion

_CHUNKS = "https://platform.openai.com/docs/api-reference/chat/streaming"
_OPENROUTER = "https://openrouter.ai/docs/api/reference/streaming"
_ROLE = chunk(role="assistant")
_SAID = chunk(TEXT)
_END = chunk(finish="stop")
_USAGE = {**chunk(), "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}}
_HALF = chunk("The first half of a sen")
_COMPLETED = response().body


def _delta(text: str) -> dict[str, object]:
    return {
        "type": "response.output_text.delta",
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": text,
    }


STREAMS = (
    KnownAnswer("stream-unasked", "any", _CHUNKS, (stream(_ROLE, _SAID, _END, DONE),), "text"),
    KnownAnswer(
        "stream-with-usage",
        "vLLM",
        "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
        (stream(_ROLE, _SAID, _END, _USAGE, DONE),),
        "text",
    ),
    KnownAnswer(
        "stream-without-done",
        "Gemini",
        "https://ai.google.dev/gemini-api/docs/openai",
        (stream(_ROLE, _SAID, _END),),
        "text",
    ),
    KnownAnswer("stream-without-finish", "any", _CHUNKS, (stream(_ROLE, _SAID, DONE),), "text"),
    KnownAnswer(
        "stream-role-in-every-event",
        "llama.cpp",
        "https://github.com/ggml-org/llama.cpp/issues",
        (stream(chunk(TEXT, role="assistant"), chunk("", role="assistant", finish="stop"), DONE),),
        "text",
    ),
    KnownAnswer(
        "stream-of-reasoning-first",
        "DeepSeek",
        "https://api-docs.deepseek.com/guides/reasoning_model",
        (stream(chunk(reasoning_content="Hm."), _SAID, _END, DONE),),
        "text",
    ),
    KnownAnswer(
        "stream-as-json-type",
        "LiteLLM",
        "https://docs.litellm.ai/docs/completion/stream",
        (replace(stream(_ROLE, _SAID, _END, DONE), headers={"Content-Type": "application/json"}),),
        "text",
    ),
    KnownAnswer(
        "stream-only",
        "any, behind a proxy",
        _CHUNKS,
        (
            replace(stream(_ROLE, _SAID, _END, DONE), when=lambda body: bool(body.get("stream"))),
            fails(400, openai_error("Stream must be set to true", param="stream")),
        ),
        "text",
    ),
    KnownAnswer("stream-cut-silently", "OpenRouter", _OPENROUTER, (stream(_ROLE, _HALF),), FailureKind.TRUNCATED),
    KnownAnswer(
        "stream-ends-by-length",
        "SGLang",
        "https://docs.sglang.ai/basic_usage/openai_api_completions.html",
        (stream(_ROLE, _HALF, chunk(finish="length"), DONE),),
        FailureKind.TRUNCATED,
    ),
    KnownAnswer(
        "stream-error-in-the-middle",
        "OpenRouter",
        _OPENROUTER,
        (
            stream(
                _ROLE,
                _HALF,
                {**chunk("", finish="error"), "error": {"code": 502, "message": "Provider disconnected unexpectedly"}},
            ),
        ),
        FailureKind.SERVER,
        says="Provider disconnected",
    ),
    KnownAnswer(
        "stream-error-at-once",
        "TGI",
        "https://github.com/huggingface/text-generation-inference/issues/2749",
        (stream({"error": "Input validation error: `inputs` must be shorter", "error_type": "validation"}, DONE),),
        FailureKind.REJECTED,
        says="Input validation error",
    ),
    KnownAnswer("stream-empty", "any", _CHUNKS, (stream(DONE),), FailureKind.SERVER),
    KnownAnswer(
        "responses-stream-unasked",
        "OpenAI",
        "https://platform.openai.com/docs/api-reference/responses-streaming",
        (stream(_delta(TEXT), {"type": "response.completed", "response": _COMPLETED}),),
        "text",
        api="responses",
    ),
    KnownAnswer(
        "responses-stream-failed",
        "OpenAI",
        "https://platform.openai.com/docs/api-reference/responses-streaming",
        (
            stream(
                _delta("Half"),
                {"type": "error", "code": "server_error", "message": "The server had an error", "param": None},
            ),
        ),
        FailureKind.SERVER,
        says="had an error",
        api="responses",
    ),
    KnownAnswer(
        "body-cut",
        "any",
        "https://www.rfc-editor.org/rfc/rfc9112#section-8",
        (ServerAnswer(body=chat_completion("Half."), cut=60),),
        FailureKind.UNREACHABLE,
    ),
    KnownAnswer(
        "body-cut-in-the-json",
        "any",
        "https://www.rfc-editor.org/rfc/rfc9112#section-8",
        (ServerAnswer(body=b'{"id": "c-1", "choices": [{"ind'),),
        FailureKind.SERVER,
    ),
    KnownAnswer(
        "body-empty",
        "any",
        "https://api-docs.deepseek.com/quick_start/rate_limit",
        (ServerAnswer(body=b""),),
        FailureKind.SERVER,
    ),
    KnownAnswer(
        "body-in-latin-1",
        "any",
        "https://www.rfc-editor.org/rfc/rfc8259#section-8.1",
        (
            ServerAnswer(
                body=b'{"model": "caf\xe9", "choices": [{"message": {"role": "assistant", "content": "@@text@@"}}]}'
            ),
        ),
        "text",
    ),
    KnownAnswer(
        "reply-cut-by-length",
        "Ollama",
        "https://docs.ollama.com/api/openai-compatibility",
        (chat("The first half of a sen", finish="length"),),
        FailureKind.TRUNCATED,
    ),
)
