"""Requests refused for one of their parts, and waits: what is asked again in another form, or later, gets an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from consilience.testing.catalogue.entry import (
    KnownAnswer,
    asks_for_form,
    asks_for_schema,
    asks_more_than,
    chat,
    fails,
    first,
    has,
    has_system,
    openai_error,
    response,
)
from consilience.testing.misbehaving_server import ServerAnswer


def _refused(
    name: str,
    server: str,
    source: str,
    answer: ServerAnswer,
    when: Callable[[Mapping[str, Any]], bool],
    then: ServerAnswer | None = None,
) -> KnownAnswer:
    answers = first(answer, then or chat(), when=when)
    return KnownAnswer(name, server, source, answers, "text", api="chat" if then is None else "responses")


def _message(status: int, message: str) -> ServerAnswer:
    return fails(status, {"object": "error", "message": message, "type": "BadRequestError", "code": status})


_SCHEMAS = (
    _refused(
        "vllm-schema-not-supported-by-xgrammar",
        "vLLM",
        "https://github.com/vllm-project/vllm/issues/12028",
        _message(400, "The provided JSON schema contains features not supported by xgrammar."),
        asks_for_schema,
    ),
    _refused(
        "vllm-grammar-compilation-500",
        "vLLM",
        "https://github.com/vllm-project/vllm/pull/47312",
        _message(500, "Failed to compile grammar: xgrammar could not convert the JSON schema"),
        asks_for_schema,
    ),
    _refused(
        "llamacpp-failed-to-parse-grammar",
        "llama.cpp",
        "https://github.com/lidge-jun/opencodex/issues/2135",
        fails(
            400,
            {
                "error": {
                    "code": 400,
                    "message": "Failed to initialize samplers: failed to parse grammar",
                    "type": "invalid_request_error",
                }
            },
        ),
        asks_for_form,
    ),
    _refused(
        "llamacpp-schema-conversion",
        "llama.cpp",
        "https://github.com/ggml-org/llama.cpp/issues/19051",
        fails(
            400,
            {
                "error": {
                    "code": 400,
                    "message": "JSON schema conversion failed: Unrecognized schema: {}",
                    "type": "invalid_request_error",
                }
            },
        ),
        asks_for_schema,
    ),
    _refused(
        "sglang-grammar-failed",
        "SGLang",
        "https://docs.sglang.ai/advanced_features/structured_outputs.html",
        _message(400, "Failed to compile json_schema grammar: minItems is not implemented"),
        asks_for_schema,
    ),
    _refused(
        "sglang-structural-tag",
        "SGLang",
        "https://github.com/anomalyco/opencode/issues/33919",
        _message(422, "Failed to compile structural_tag grammar: items must be a boolean or an object"),
        asks_for_form,
    ),
    _refused(
        "tgi-grammar-not-valid",
        "TGI",
        "https://github.com/huggingface/text-generation-inference/pull/2309",
        fails(
            422,
            {
                "error": "Input validation error: grammar is not valid: Grammar must have a 'properties' field",
                "error_type": "validation",
            },
        ),
        asks_for_schema,
    ),
    _refused(
        "tgi-tools-and-grammar",
        "TGI",
        "https://huggingface.co/docs/text-generation-inference/basic_tutorials/using_guidance",
        fails(
            422, {"error": "Input validation error: grammar and tools are not supported", "error_type": "validation"}
        ),
        asks_for_form,
    ),
    _refused(
        "lmstudio-response-format",
        "LM Studio",
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/169",
        fails(400, {"error": "'response_format.type' must be 'text'"}),
        asks_for_schema,
    ),
    _refused(
        "gemini-schema-too-many-states",
        "Gemini",
        "https://ai.google.dev/gemini-api/docs/structured-output",
        fails(
            400,
            [
                {
                    "error": {
                        "code": 400,
                        "message": "The specified schema produces a constraint that has too many states for serving.",
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ],
        ),
        asks_for_schema,
    ),
    _refused(
        "deepseek-response-format-unavailable",
        "DeepSeek",
        "https://api-docs.deepseek.com/guides/json_mode",
        fails(400, openai_error("This response_format type is unavailable now")),
        asks_for_schema,
    ),
    _refused(
        "openai-invalid-schema",
        "OpenAI",
        "https://platform.openai.com/docs/guides/structured-outputs",
        fails(
            400,
            openai_error(
                "Invalid schema for response_format 'Reply': 'minLength' is not permitted.", param="response_format"
            ),
        ),
        asks_for_schema,
    ),
    _refused(
        "openai-responses-invalid-schema",
        "OpenAI",
        "https://platform.openai.com/docs/guides/structured-outputs",
        fails(
            400,
            openai_error(
                "Invalid schema for response_format 'Reply': 'default' is not permitted.", param="text.format.schema"
            ),
        ),
        asks_for_schema,
        response(),
    ),
    _refused(
        "groq-model-without-json-schema",
        "Groq",
        "https://console.groq.com/docs/structured-outputs",
        fails(400, openai_error("This model does not support response format `json_schema`.")),
        asks_for_schema,
    ),
    KnownAnswer(
        "groq-json-validate-failed-once",
        "Groq",
        "https://github.com/build-with-groq/g1/pull/23",
        (
            replace(
                fails(
                    400,
                    openai_error(
                        "Failed to generate JSON. Please adjust your prompt. See 'failed_generation' for more details.",
                        code="json_validate_failed",
                    ),
                ),
                when=asks_for_schema,
                times=1,
            ),
            chat(),
        ),
        "text",
    ),
    _refused(
        "ollama-model-without-tools",
        "Ollama",
        "https://docs.ollama.com/capabilities/tool-calling",
        fails(400, openai_error("registry.ollama.ai/library/stub does not support tools", kind="api_error")),
        asks_for_form,
    ),
    _refused(
        "litellm-unsupported-params",
        "LiteLLM",
        "https://docs.litellm.ai/docs/completion/drop_params",
        fails(
            400,
            openai_error(
                "litellm.UnsupportedParamsError: stub does not support parameters: ['response_format'], for model=stub.",
                code="400",
            ),
        ),
        asks_for_schema,
    ),
    _refused(
        "openrouter-no-endpoint-with-parameters",
        "OpenRouter",
        "https://openrouter.ai/docs/features/structured-outputs",
        fails(
            404,
            {
                "error": {
                    "code": 404,
                    "message": "No endpoints found that support the structured outputs (response_format) requested.",
                }
            },
        ),
        asks_for_schema,
    ),
)

_ROLES_AND_LIMITS = (
    _refused(
        "vllm-system-role-not-supported",
        "vLLM",
        "https://github.com/huggingface/chat-ui/issues/1386",
        _message(400, "System role not supported"),
        has_system,
    ),
    _refused(
        "vllm-roles-must-alternate",
        "vLLM",
        "https://github.com/suitenumerique/conversations/issues/197",
        _message(400, "Conversation roles must alternate user/assistant/user/assistant/..."),
        has_system,
    ),
    _refused(
        "llamacpp-roles-must-alternate-500",
        "llama.cpp",
        "https://github.com/ggml-org/llama.cpp/issues",
        fails(
            500,
            {
                "error": {
                    "code": 500,
                    "message": "Conversation roles must alternate user/assistant/user/assistant/... at row 1, column 1",
                    "type": "server_error",
                }
            },
        ),
        has_system,
    ),
    _refused(
        "gemini-developer-instruction",
        "Gemini",
        "https://ai.google.dev/gemma/docs/core/prompt-structure",
        fails(
            400,
            [
                {
                    "error": {
                        "code": 400,
                        "message": "Developer instruction is not enabled for models/stub",
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ],
        ),
        has_system,
    ),
    _refused(
        "openai-max-tokens-too-large",
        "OpenAI",
        "https://github.com/ChatGPTNextWeb/NextChat/issues/3195",
        fails(
            400,
            openai_error(
                "max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you provided 8192.",
                param="max_tokens",
            ),
        ),
        asks_more_than(4096),
    ),
    _refused(
        "deepseek-max-tokens-range",
        "DeepSeek",
        "https://api-docs.deepseek.com/api/create-chat-completion",
        fails(400, openai_error("Invalid max_tokens value, the valid range of max_tokens is [1, 4096]")),
        asks_more_than(4096),
    ),
    _refused(
        "groq-max-completion-tokens",
        "Groq",
        "https://console.groq.com/docs/api-reference",
        fails(
            400,
            openai_error(
                "`max_completion_tokens` must be less than or equal to `4096`, the maximum value for this model"
            ),
        ),
        asks_more_than(4096),
    ),
    _refused(
        "openai-max-tokens-renamed",
        "OpenAI",
        "https://github.com/koosoli/ESPHomeDesigner/issues/379",
        fails(
            400,
            openai_error(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
                code="unsupported_parameter",
                param="max_tokens",
            ),
        ),
        has("max_tokens"),
    ),
    _refused(
        "compatible-max-completion-tokens-unknown",
        "any, older",
        "https://docs.litellm.ai/docs/completion/input",
        _message(422, "Extra inputs are not permitted: max_completion_tokens"),
        has("max_completion_tokens"),
    ),
)

_STREAMS_AND_WAITS = (
    KnownAnswer(
        "llamacpp-loading-model",
        "llama.cpp",
        "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        (
            replace(
                fails(503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}), times=1
            ),
            chat(),
        ),
        "text",
    ),
    KnownAnswer(
        "huggingface-model-loading",
        "TGI",
        "https://huggingface.co/docs/inference-providers/index",
        (replace(fails(503, {"error": "Model stub is currently loading", "estimated_time": 1.0}), times=1), chat()),
        "text",
    ),
)

REFUSALS = (*_SCHEMAS, *_ROLES_AND_LIMITS, *_STREAMS_AND_WAITS)
