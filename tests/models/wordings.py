"""What servers have answered, by kind: from documentation and public reports of OpenAI-compatible servers.

Each error is (where it was seen, HTTP status, body). The tables are plain data, which other tests read too.
"""

from __future__ import annotations

Wording = tuple[str, int, object]


def _error(message: str, **more: object) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", **more}}


def _google(message: str, code: int = 400) -> list[dict[str, object]]:
    return [{"error": {"code": code, "message": message, "status": "INVALID_ARGUMENT"}}]


REFUSED_SCHEMAS: tuple[Wording, ...] = (
    (
        "vllm",
        400,
        {"object": "error", "message": "The provided JSON schema contains features not supported by xgrammar."},
    ),
    ("vllm guided", 400, _error("Failed to convert the grammar from GBNF to Lark")),
    ("vllm 500", 500, _error("EngineCore: xgrammar compile_json_schema failed", type="InternalServerError", code=500)),
    ("vllm structural", 400, _error("Failed to compile structural_tag grammar: Cannot find field x in #/properties/x")),
    ("llama.cpp", 400, {"error": {"code": 400, "message": "Failed to parse grammar", "type": "invalid_request_error"}}),
    (
        "llama.cpp samplers",
        400,
        {"error": {"code": 400, "message": "Failed to initialize samplers: failed to parse grammar"}},
    ),
    (
        "llama.cpp 500",
        500,
        {"error": {"code": 500, "message": 'JSON schema conversion failed:\nUnrecognized schema: {"not":{}}'}},
    ),
    (
        "sglang",
        400,
        {"object": "error", "message": "Failed to compile json grammar: unsupported keyword multipleOf", "code": 400},
    ),
    ("sglang 422", 422, {"detail": "Grammar backend xgrammar: Invalid grammar request"}),
    ("tgi", 422, {"error": "Input validation error: grammar is not valid: Grammar must have a 'properties' field"}),
    ("tgi disabled", 422, {"error": "Grammar support is disabled", "error_type": "validation"}),
    ("tgi compile", 424, {"error": "Request failed during generation: Server error: Error compiling FSM grammar"}),
    (
        "gemini states",
        400,
        _google("The specified schema produces a constraint that has too many states for serving."),
    ),
    (
        "gemini field",
        400,
        _google("Invalid JSON payload received. Unknown name \"additionalProperties\" at 'response_schema'"),
    ),
    (
        "gemini generation",
        400,
        _google("* GenerateContentRequest.generation_config.response_schema.properties: should be non-empty"),
    ),
    (
        "groq",
        400,
        _error(
            "Failed to generate JSON. Please adjust your prompt.", code="json_validate_failed", failed_generation="{"
        ),
    ),
    ("groq model", 400, _error("This model does not support response format `json_schema`. See the documentation.")),
    ("deepseek", 400, _error("This response_format type is unavailable now")),
    (
        "deepseek 422",
        422,
        "Failed to deserialize the JSON body into the target type: response_format.type: invalid type: map",
    ),
    (
        "openai",
        400,
        _error("Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."),
    ),
    (
        "openai schema",
        400,
        _error("Invalid schema for response_format 'Reply': In context=(), 'additionalProperties' is required."),
    ),
    ("lm studio", 400, {"error": "'response_format.type' must be 'text'"}),
    ("anthropic", 400, _error("The compiled grammar is too large, which would cause performance issues.")),
    (
        "mistral",
        422,
        {"object": "error", "message": {"detail": [{"loc": ["body", "response_format"], "msg": "invalid"}]}},
    ),
    (
        "openrouter raw",
        400,
        _error(
            "Provider returned error",
            code=400,
            metadata={"raw": '{"error":{"message":"json_schema: keyword $defs is not permitted"}}'},
        ),
    ),
    (
        "openrouter 200",
        200,
        _error("Provider returned error", code=400, metadata={"raw": "structured outputs are off"}),
    ),
    ("ollama", 500, {"error": {"message": "invalid JSON schema in format", "type": "api_error"}}),
    ("tabby", 400, {"detail": "Failed to parse schema: GrammarParseError"}),
    (
        "litellm",
        400,
        _error("litellm.UnsupportedParamsError: together_ai does not support parameters: ['response_format']"),
    ),
    ("fireworks", 400, _error("JSON Schema not supported: could not understand the instance")),
    ("own server", 501, {"error": {"message": "schema-to-grammar conversion is missing", "type": "not_implemented"}}),
)
"""To requests that ask for a form by a schema."""

REFUSED_SYSTEM: tuple[Wording, ...] = (
    (
        "vllm gemma",
        400,
        {"object": "error", "message": "System role not supported", "type": "BadRequestError", "code": 400},
    ),
    (
        "sglang gemma",
        500,
        {"error": {"message": "jinja2.exceptions.TemplateError: System role not supported", "code": 500}},
    ),
    (
        "llama.cpp",
        500,
        {"error": {"code": 500, "message": "Conversation roles must alternate user/assistant/user/assistant/..."}},
    ),
    ("mistral", 400, _error("After the optional system message, conversation roles must alternate user/assistant")),
    ("gemini", 400, _google("Developer instruction is not enabled for models/gemma-3-27b-it")),
    ("openai o1", 400, _error("Unsupported value: 'messages[0].role' does not support 'system' with this model.")),
    ("deepseek", 400, _error("messages[0].role: unknown variant `system`, expected one of `user`, `assistant`")),
    ("own server", 422, {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "role 'system' is not allowed"}]}),
    (
        "lm studio",
        400,
        {"error": 'Error rendering prompt with jinja template: "Only user and assistant roles are supported!"'},
    ),
    ("ai21", 400, {"detail": "System messages are not supported by this model"}),
)

OUTPUT_CAPS: tuple[tuple[str, int, object, int], ...] = (
    (
        "openai",
        400,
        _error(
            "max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you provided 8192."
        ),
        4096,
    ),
    ("deepseek", 400, _error("Invalid max_tokens value, the valid range of max_tokens is [1, 4096]"), 4096),
    ("qwen", 400, _error("<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 2048]"), 2048),
    (
        "groq",
        400,
        _error(
            "`max_tokens` must be less than or equal to `4096`, the maximum value for `max_tokens` is less than the window"
        ),
        4096,
    ),
    (
        "anthropic",
        400,
        _error(
            "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for claude-3-opus-20240229"
        ),
        4096,
    ),
    (
        "cohere",
        400,
        {"message": "too many tokens: max tokens must be less than or equal to 4096 - received 8192."},
        4096,
    ),
    (
        "vertex",
        400,
        _google("maxOutputTokens must be in the supported range from 1 (inclusive) to 4097 (exclusive)"),
        4096,
    ),
    ("bedrock", 400, {"message": "The maximum tokens you requested exceeds the model limit of 4,096."}, 4096),
    ("tgi", 422, {"error": "Input validation error: `max_new_tokens` must be <= 1024. Given: 8192"}, 1024),
    ("scaleway", 416, _error("max_completion_tokens is limited to 4096 for this model"), 4096),
    (
        "fastapi",
        422,
        {"detail": [{"loc": ["body", "max_tokens"], "msg": "Input should be less than or equal to 4096"}]},
        4096,
    ),
    (
        "openrouter",
        400,
        _error("Provider returned error", code=400, metadata={"raw": "max_tokens must be at most 4096"}),
        4096,
    ),
    (
        "openai context",
        400,
        _error(
            "This model's maximum context length is 8192 tokens. However, you requested 8256 tokens (64 in the messages, 8192 in "
            "the completion). Please reduce the length of the messages or completion.",
            code="context_length_exceeded",
        ),
        8128,
    ),
    (
        "vllm context",
        400,
        _error(
            "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 8193 tokens and "
            "your request has 193 input tokens (8192 > 8193 - 193)."
        ),
        8000,
    ),
    (
        "vllm total",
        400,
        _error(
            "This model's maximum context length is 4096 tokens. However, you requested 8192 output tokens and your prompt "
            "contains at least 96 input tokens, for a total of at least 8288 tokens."
        ),
        4000,
    ),
    (
        "tgi context",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
            "Given: 96 `inputs` tokens and 8192"
        },
        4000,
    ),
)
"""To requests for 8192 tokens, with the number to send next."""

STREAMS_ONLY: tuple[Wording, ...] = (
    (
        "qwen",
        400,
        _error("This model only support stream mode, please enable the stream parameter to access the model. "),
    ),
    ("qwen thinking", 400, _error("parameter.enable_thinking must be set to false for non-streaming calls")),
    ("codex", 400, {"detail": "Stream must be set to true"}),
    ("meilisearch", 501, {"message": "Non-streaming chat completions is not implemented", "code": "unimplemented"}),
    ("own server", 400, _error("'stream' must be true: only streaming responses are supported")),
    ("gateway", 422, {"error": "stream=false is not supported: this endpoint only supports streaming"}),
)

ERRORS_IN_A_200: tuple[tuple[str, object, str, str], ...] = (
    (
        "openrouter",
        {
            "error": {
                "message": "Provider returned error",
                "code": 429,
                "metadata": {"raw": "model-x is temporarily rate-limited upstream", "provider_name": "P"},
            }
        },
        "RateLimited",
        "model-x is temporarily rate-limited upstream",
    ),
    ("no choices", {"choices": None, "error": {"message": "no capacity", "code": 503}}, "ServerError", "no capacity"),
    (
        "empty message",
        {
            "choices": [{"message": {"content": None}, "finish_reason": "stop"}],
            "error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": "error code: 1015"}},
        },
        "RateLimited",
        "error code: 1015",
    ),
    (
        "in the choice",
        {
            "choices": [
                {
                    "error": {"message": "upstream died", "code": 502},
                    "finish_reason": "error",
                    "message": {"content": "Ha"},
                }
            ]
        },
        "ServerError",
        "upstream died",
    ),
    ("credits", {"error": {"message": "Insufficient credits", "code": 402}}, "Rejected", "Insufficient credits"),
    (
        "no model",
        {"error": {"message": "No endpoints found for x/y.", "code": 404}},
        "Rejected",
        "No endpoints found for x/y",
    ),
    ("digits", {"error": {"message": "slow down", "code": "429"}}, "RateLimited", "slow down"),
    ("type", {"error": {"message": "slow down", "type": "rate_limit_exceeded"}}, "RateLimited", "slow down"),
    (
        "lm studio",
        {"error": "Unexpected endpoint or method. (POST /chat/completions). Returning 200 anyway"},
        "Rejected",
        "Unexpected endpoint or method",
    ),
    ("ollama", {"error": 'model "x" not found, try pulling it first'}, "Rejected", "try pulling it first"),
    (
        "vllm",
        {"object": "error", "message": "The model `x` does not exist.", "code": 404},
        "Rejected",
        "does not exist",
    ),
    ("a list", [{"error": {"message": "API key not valid", "code": 401}}], "Rejected", "API key not valid"),
    (
        "minimax",
        {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}},
        "Rejected",
        "insufficient balance",
    ),
    ("detail", {"detail": "Not Found"}, "Rejected", "Not Found"),
    ("unknown", {"error": "it did not work"}, "ServerError", "it did not work"),
    ("streamed", b'data: {"error":{"message":"slow down","code":429}}\n\ndata: [DONE]\n\n', "RateLimited", "slow down"),
    (
        "streamed half",
        b'data: {"choices":[{"delta":{"content":"Ha"}}]}\n\ndata: {"error":{"message":"died","code":502},"choices":[]}\n\n',
        "ServerError",
        "died",
    ),
)
"""Body, the error that it is, and words that the error shows."""

WAITS: tuple[tuple[str, object, float], ...] = (
    (
        "gemini",
        [
            {
                "error": {
                    "code": 429,
                    "message": "You exceeded your current quota. Please retry in 14.2s.",
                    "status": "RESOURCE_EXHAUSTED",
                    "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "14s"}],
                }
            }
        ],
        14.2,
    ),
    (
        "openai",
        _error("Rate limit reached for gpt-4o: Limit 3, Used 3. Please try again in 14s. Visit https://x.example"),
        14.0,
    ),
    ("openai ms", _error("Rate limit reached. Please try again in 350ms."), 0.35),
    ("groq", _error("Rate limit reached on tokens per minute (TPM): Limit 6000. Please try again in 1m30.5s."), 90.5),
    ("azure", _error("Requests have exceeded call rate limit. Please retry after 27 seconds."), 27.0),
    ("field", {"error": {"message": "slow down", "retry_after": 20}}, 20.0),
    ("field ms", {"error": {"message": "slow down"}, "retry_after_ms": 2500}, 2.5),
    ("discord", {"message": "You are being rate limited.", "retry_after": 1.5}, 1.5),
    ("minutes", {"error": "Too many requests, wait 2 minutes"}, 120.0),
    ("sentence", {"detail": "Too many requests. Try again in about 45 seconds"}, 45.0),
)
"""Bodies of a 429 without a header, with the seconds to wait."""

LOADING: tuple[Wording, ...] = (
    ("llama.cpp", 503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
    ("hugging face", 503, {"error": "Model x/y is currently loading", "estimated_time": 20.0}),
    ("in a 200", 200, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
    ("llamafile", 503, b"Loading model"),
)

_CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Four."}}
_GOOD = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [_CHOICE]}
ODD_ANSWERS: dict[str, object] = {
    "null id": {**_GOOD, "id": None},
    "number id": {**_GOOD, "id": 7},
    "empty usage": {**_GOOD, "usage": {}},
    "half usage": {**_GOOD, "usage": {"prompt_tokens": None, "completion_tokens": 3}},
    "words in usage": {**_GOOD, "usage": {"prompt_tokens": "many", "total_tokens": [1], "prompt_tokens_details": "no"}},
    "fraction in usage": {**_GOOD, "usage": {"prompt_tokens": 3.0, "completion_tokens": "4", "total_tokens": 7.5}},
    "usage as a list": {**_GOOD, "usage": []},
    "empty object": {**_GOOD, "object": ""},
    "other object": {**_GOOD, "object": "text_completion"},
    "float created": {**_GOOD, "created": 1718.25},
    "date created": {**_GOOD, "created": "2026-01-01T00:00:00Z"},
    "no model": {**_GOOD, "model": None},
    "empty reason": {**_GOOD, "choices": [{**_CHOICE, "finish_reason": ""}]},
    "null reason": {**_GOOD, "choices": [{**_CHOICE, "finish_reason": None}]},
    "number reason": {**_GOOD, "choices": [{**_CHOICE, "finish_reason": 1}]},
    "no role": {**_GOOD, "choices": [{**_CHOICE, "message": {"content": "Four."}}]},
    "other role": {**_GOOD, "choices": [{**_CHOICE, "message": {"role": "model", "content": "Four."}}]},
    "null index": {**_GOOD, "choices": [{**_CHOICE, "index": None}]},
    "text": {"choices": [{"text": "Four."}]},
    "message as text": {"choices": [{"message": "Four."}]},
    "only choices": {"choices": [{"message": {"content": "Four."}}]},
    "delta": {"choices": [{"delta": {"content": "Four."}, "finish_reason": "stop"}]},
    "parts": {"choices": [{"message": {"content": [{"type": "text", "text": "Four."}]}}]},
    "null error": {**_GOOD, "error": None},
    "empty error": {**_GOOD, "error": {}},
    "warning beside a text": {**_GOOD, "error": {"message": "usage is not known"}},
    "odd calls": {**_GOOD, "choices": [{**_CHOICE, "message": {"content": "Four.", "tool_calls": {}, "audio": "x"}}]},
    "null calls": {**_GOOD, "choices": [{**_CHOICE, "message": {"content": "Four.", "tool_calls": [None]}}]},
    "odd logprobs": {**_GOOD, "choices": [{**_CHOICE, "logprobs": []}], "service_tier": 3, "system_fingerprint": 4},
    "odd metadata": {**_GOOD, "metadata": [1], "moderation": "none"},
    "odd annotations": {**_GOOD, "choices": [{**_CHOICE, "message": {"content": "Four.", "annotations": "none"}}]},
    "a list": [_GOOD],
    "ollama": {"model": "m", "message": {"role": "assistant", "content": "Four."}, "done": True, "done_reason": "stop"},
    "second choice": {"choices": [None, _CHOICE]},
    "latin-1": '{"choices":[{"message":{"content":"Four."}}],"note":"caf\xe9"}'.encode("latin-1"),
    "byte order mark": b'\xef\xbb\xbf{"choices":[{"message":{"content":"Four."}}]}',
    "utf-16": '{"choices":[{"message":{"content":"Four."}}]}'.encode("utf-16"),
    "end mark": b'{"choices":[{"message":{"content":"Four."}}]}\n\ndata: [DONE]\n\n',
    "kept alive": b': PROCESSING\n\n: PROCESSING\n\n{"choices":[{"message":{"content":"Four."}}]}',
    "blank lines": b'\n\n   \n{"choices":[{"message":{"content":"Four."}}]}',
}
"""Bodies of good answers: each says `Four.`"""

_CHUNKS = (
    '{"choices":[{"delta":{"role":"assistant"}}]}',
    '{"choices":[{"delta":{"content":"Fo"}}],"model":"m"}',
    '{"choices":[{"delta":{"content":"ur."},"finish_reason":null}]}',
    '{"choices":[{"delta":{},"finish_reason":"stop"}]}',
    '{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}',
)
STREAMS: dict[str, bytes] = {
    "events": "".join(f"data: {chunk}\n\n" for chunk in (*_CHUNKS, "[DONE]")).encode(),
    "without spaces": "".join(f"data:{chunk}\n\n" for chunk in (*_CHUNKS, "[DONE]")).encode(),
    "carriage returns": "".join(f"data: {chunk}\r\n\r\n" for chunk in (*_CHUNKS, "[DONE]")).encode(),
    "named events": "".join(f"event: message\nid: 1\ndata: {chunk}\n\n" for chunk in (*_CHUNKS, "[DONE]")).encode(),
    "comments": (": hello\n\n" + "".join(f"data: {chunk}\n\n: ping\n\n" for chunk in _CHUNKS)).encode(),
    "no end mark": "".join(f"data: {chunk}\n\n" for chunk in _CHUNKS).encode(),
    "single line ends": "".join(f"data: {chunk}\n" for chunk in (*_CHUNKS, "[DONE]")).encode(),
    "lines": "\n".join(_CHUNKS).encode(),
    "whole": b'data: {"choices":[{"message":{"content":"Four."},"finish_reason":"stop"}],"usage":{"prompt_tokens":12,'
    b'"completion_tokens":3}}\n\ndata: [DONE]\n\n',
}
"""Streams that say `Four.`, with 12 tokens read and 3 written."""
