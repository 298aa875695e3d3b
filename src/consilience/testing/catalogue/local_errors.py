"""Errors of servers that run on a machine of one's own, and of what stands between."""

from __future__ import annotations

from consilience.domain.outcome import FailureKind
from consilience.testing.catalogue.entry import fails, failure, openai_error
from consilience.testing.misbehaving_server import ServerAnswer

_LLAMACPP = "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md"
_OLLAMA = "https://docs.ollama.com/api/errors"

LOCAL_ERRORS = (
    # Ollama
    failure(
        "ollama-no-such-model",
        "Ollama",
        _OLLAMA,
        fails(404, {"error": {"message": 'model "stub" not found, try pulling it first', "type": "api_error"}}),
        FailureKind.REJECTED,
        "try pulling it first",
    ),
    failure(
        "ollama-out-of-memory",
        "Ollama",
        _OLLAMA,
        fails(500, {"error": "model requires more system memory (8.4 GiB) than is available (3.1 GiB)"}),
        FailureKind.SERVER,
        "more system memory",
    ),
    failure(
        "ollama-runner-crashed",
        "Ollama",
        "https://docs.ollama.com/troubleshooting",
        fails(500, openai_error("llama runner process has terminated: exit status 2", kind="api_error")),
        FailureKind.SERVER,
        "runner process has terminated",
    ),
    failure(
        "ollama-busy",
        "Ollama",
        "https://docs.ollama.com/faq",
        fails(503, {"error": "server busy, please try again. maximum pending requests exceeded"}),
        FailureKind.SERVER,
        "server busy",
    ),
    # vLLM
    failure(
        "vllm-error-without-envelope",
        "vLLM",
        "https://github.com/vllm-project/vllm/issues/6862",
        fails(
            400,
            {
                "object": "error",
                "message": "The prompt is empty after templating",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
        ),
        FailureKind.REJECTED,
        "empty after templating",
    ),
    failure(
        "vllm-no-such-model",
        "vLLM",
        "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
        fails(
            404,
            {
                "object": "error",
                "message": "The model `stub` does not exist.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            },
        ),
        FailureKind.REJECTED,
        "does not exist",
    ),
    failure(
        "vllm-engine-dead",
        "vLLM",
        "https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
        fails(
            500,
            {
                "object": "error",
                "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "type": "InternalServerError",
                "code": 500,
            },
        ),
        FailureKind.SERVER,
        "EngineCore",
    ),
    # llama.cpp
    failure(
        "llamacpp-context-size",
        "llama.cpp",
        _LLAMACPP,
        fails(
            400,
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available context size. try increasing the context size",
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 9000,
                    "n_ctx": 4096,
                }
            },
        ),
        FailureKind.REJECTED,
        "available context size",
    ),
    failure(
        "llamacpp-wrong-key",
        "llama.cpp",
        _LLAMACPP,
        fails(401, {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}),
        FailureKind.REJECTED,
        "Invalid API Key",
    ),
    # SGLang, TGI, LM Studio, LiteLLM
    failure(
        "sglang-input-too-long",
        "SGLang",
        "https://docs.sglang.ai/basic_usage/openai_api_completions.html",
        fails(
            400,
            {
                "object": "error",
                "message": "Input length (9000 tokens) exceeds the maximum allowed length (4096 tokens).",
                "type": "BadRequestError",
                "code": 400,
            },
        ),
        FailureKind.REJECTED,
        "exceeds the maximum allowed length",
    ),
    failure(
        "tgi-overloaded",
        "TGI",
        "https://huggingface.co/docs/text-generation-inference/messages_api",
        fails(429, {"error": "Model is overloaded", "error_type": "overloaded"}),
        FailureKind.RATE_LIMITED,
        "Model is overloaded",
    ),
    failure(
        "tgi-generation-failed",
        "TGI",
        "https://huggingface.co/docs/text-generation-inference/messages_api",
        fails(
            424,
            {"error": "Request failed during generation: Server error: CUDA out of memory", "error_type": "generation"},
        ),
        FailureKind.SERVER,
        "failed during generation",
    ),
    failure(
        "lmstudio-wrong-path-in-200",
        "LM Studio",
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/618",
        ServerAnswer(body={"error": "Unexpected endpoint or method. (POST /chat/completions)"}),
        FailureKind.REJECTED,
        "Unexpected endpoint or method",
    ),
    failure(
        "lmstudio-no-model-loaded",
        "LM Studio",
        "https://lmstudio.ai/docs/developer/openai-compat",
        fails(400, {"error": "No models loaded. Please load a model in the developer page."}),
        FailureKind.REJECTED,
        "No models loaded",
    ),
    failure(
        "litellm-no-deployment",
        "LiteLLM",
        "https://github.com/BerriAI/litellm/issues/5177",
        fails(
            429,
            openai_error(
                "No deployments available for selected model, Try again in 60 seconds. Passed model=stub.",
                code="429",
                kind="None",
            ),
        ),
        FailureKind.RATE_LIMITED,
        "No deployments available",
    ),
    failure(
        "litellm-budget",
        "LiteLLM",
        "https://docs.litellm.ai/docs/proxy/users",
        fails(
            400,
            openai_error(
                "Budget has been exceeded! Current cost: 10.2, Max budget: 10.0", code="400", kind="budget_exceeded"
            ),
        ),
        FailureKind.REJECTED,
        "Budget has been exceeded",
    ),
    failure(
        "litellm-wrapped-context-error",
        "LiteLLM",
        "https://github.com/OpenHands/OpenHands/issues/5350",
        fails(
            400,
            openai_error(
                "litellm.ContextWindowExceededError: AnthropicError - prompt is too long: 209303 tokens > 200000 maximum",
                code="400",
                kind="None",
            ),
        ),
        FailureKind.REJECTED,
        "prompt is too long",
    ),
    failure(
        "proxy-page-of-a-gateway",
        "any, behind a gateway",
        "https://developers.cloudflare.com/support/troubleshooting/http-status-codes/cloudflare-5xx-errors/",
        ServerAnswer(
            502,
            b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>",
            {"Content-Type": "text/html"},
        ),
        FailureKind.SERVER,
        "502",
    ),
    failure(
        "proxy-sign-in-page",
        "any, behind a gateway",
        "https://platform.openai.com/docs/guides/error-codes",
        ServerAnswer(200, b"<html><title>Sign in</title></html>", {"Content-Type": "text/html"}),
        FailureKind.SERVER,
        "",
    ),
)
