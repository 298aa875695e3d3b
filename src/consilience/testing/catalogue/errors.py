"""Errors of hosted services: quotas and limits, keys, models, contexts, outages, and errors in the body of a 200."""

from __future__ import annotations

from consilience.domain.outcome import FailureKind
from consilience.testing.catalogue.entry import fails, failure, openai_error
from consilience.testing.misbehaving_server import ServerAnswer, chat_completion

_OPENAI = "https://platform.openai.com/docs/guides/error-codes"
_OPENROUTER = "https://openrouter.ai/docs/api/errors"
_DEEPSEEK = "https://api-docs.deepseek.com/quick_start/error_codes"
_GROQ = "https://console.groq.com/docs/errors"
_GEMINI = "https://ai.google.dev/gemini-api/docs/troubleshooting"
_NO_CONTENT = {**chat_completion(""), "choices": None}


def _upstream(code: int, raw: str) -> dict[str, object]:
    return {
        "error": {"message": "Provider returned error", "code": code, "metadata": {"raw": raw, "provider_name": "X"}}
    }


_RETRY_INFO = [
    {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "14s"},
]

ERRORS = (
    # OpenAI
    failure(
        "openai-rate-limit-says-when",
        "OpenAI",
        "https://platform.openai.com/docs/guides/rate-limits",
        fails(
            429,
            openai_error(
                "Rate limit reached for gpt-x on tokens per min. Please try again in 14s.", code="rate_limit_exceeded"
            ),
        ),
        FailureKind.RATE_LIMITED,
        "Rate limit reached",
    ),
    failure(
        "openai-quota-used-up",
        "OpenAI",
        _OPENAI,
        fails(
            429,
            openai_error(
                "You exceeded your current quota, please check your plan.",
                code="insufficient_quota",
                kind="insufficient_quota",
            ),
        ),
        FailureKind.REJECTED,
        "exceeded your current quota",
    ),
    failure(
        "openai-wrong-key",
        "OpenAI",
        _OPENAI,
        fails(401, openai_error("Incorrect API key provided.", code="invalid_api_key")),
        FailureKind.REJECTED,
        "Incorrect API",
    ),
    failure(
        "openai-region",
        "OpenAI",
        _OPENAI,
        fails(
            403,
            openai_error("Country, region, or territory not supported", code="unsupported_country_region_territory"),
        ),
        FailureKind.REJECTED,
        "territory not supported",
    ),
    failure(
        "openai-no-such-model",
        "OpenAI",
        _OPENAI,
        fails(
            404,
            openai_error("The model `stub` does not exist or you do not have access to it.", code="model_not_found"),
        ),
        FailureKind.REJECTED,
        "does not exist",
    ),
    failure(
        "openai-overloaded",
        "OpenAI",
        _OPENAI,
        fails(503, openai_error("The engine is currently overloaded, please try again later", kind="server_error")),
        FailureKind.SERVER,
        "currently overloaded",
    ),
    failure(
        "openai-server-error",
        "OpenAI",
        _OPENAI,
        fails(500, openai_error("The server had an error while processing your request.", kind="server_error")),
        FailureKind.SERVER,
        "had an error",
    ),
    failure(
        "openai-context-length",
        "OpenAI",
        "https://github.com/BerriAI/litellm/issues/2745",
        fails(
            400,
            openai_error(
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 10152 tokens.",
                code="context_length_exceeded",
                param="messages",
            ),
        ),
        FailureKind.REJECTED,
        "maximum context length",
    ),
    failure(
        "openai-policy",
        "OpenAI",
        _OPENAI,
        fails(
            400,
            openai_error(
                "Your request was rejected as a result of our safety system.", code="content_policy_violation"
            ),
        ),
        FailureKind.REFUSED,
        "safety system",
    ),
    failure(
        "openai-responses-rate-limit",
        "OpenAI",
        "https://platform.openai.com/docs/guides/rate-limits",
        fails(
            429,
            openai_error(
                "Rate limit reached on requests per min. Please try again in 20ms.", code="rate_limit_exceeded"
            ),
        ),
        FailureKind.RATE_LIMITED,
        "Rate limit reached",
        "responses",
    ),
    failure(
        "openai-responses-no-such-model",
        "OpenAI",
        _OPENAI,
        fails(404, openai_error("The model `stub` does not exist.", code="model_not_found")),
        FailureKind.REJECTED,
        "does not exist",
        "responses",
    ),
    # OpenRouter
    failure(
        "openrouter-429-in-200",
        "OpenRouter",
        _OPENROUTER,
        ServerAnswer(body=_upstream(429, "model-x is temporarily rate-limited upstream")),
        FailureKind.RATE_LIMITED,
        "temporarily rate-limited upstream",
    ),
    failure(
        "openrouter-402-in-200",
        "OpenRouter",
        _OPENROUTER,
        ServerAnswer(body={"error": {"message": "Insufficient credits. Add more using the dashboard.", "code": 402}}),
        FailureKind.REJECTED,
        "Insufficient credits",
    ),
    failure(
        "openrouter-402",
        "OpenRouter",
        _OPENROUTER,
        fails(402, {"error": {"message": "This request requires more credits, or fewer max_tokens.", "code": 402}}),
        FailureKind.REJECTED,
        "requires more credits",
    ),
    failure(
        "openrouter-404-in-200",
        "OpenRouter",
        _OPENROUTER,
        ServerAnswer(body={"error": {"message": "No endpoints found for stub.", "code": 404}}),
        FailureKind.REJECTED,
        "No endpoints found",
    ),
    failure(
        "openrouter-502-in-200",
        "OpenRouter",
        _OPENROUTER,
        ServerAnswer(body=_upstream(502, "upstream connect error or disconnect")),
        FailureKind.SERVER,
        "upstream connect error",
    ),
    failure(
        "openrouter-choices-null",
        "OpenRouter",
        _OPENROUTER,
        ServerAnswer(body={**_NO_CONTENT, **_upstream(429, "rate-limited upstream, retry shortly")}),
        FailureKind.RATE_LIMITED,
        "rate-limited upstream",
    ),
    failure(
        "openrouter-error-in-choice",
        "OpenRouter",
        _OPENROUTER,
        ServerAnswer(
            body={
                **chat_completion(""),
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "error",
                        "message": {"role": "assistant", "content": ""},
                        "error": {"code": 502, "message": "Upstream idle timeout exceeded"},
                    }
                ],
            }
        ),
        FailureKind.SERVER,
        "Upstream idle timeout",
    ),
    failure(
        "openrouter-reason-in-raw",
        "OpenRouter",
        _OPENROUTER,
        fails(400, _upstream(400, '{"message":"The prompt holds no user turn"}')),
        FailureKind.REJECTED,
        "holds no user turn",
    ),
    failure(
        "openrouter-moderation",
        "OpenRouter",
        _OPENROUTER,
        fails(
            403,
            {
                "error": {
                    "code": 403,
                    "message": "Input was flagged by moderation",
                    "metadata": {"reasons": ["violence"]},
                }
            },
        ),
        FailureKind.REFUSED,
        "flagged",
    ),
    failure(
        "openrouter-no-provider",
        "OpenRouter",
        _OPENROUTER,
        fails(503, {"error": {"code": 503, "message": "No available model provider meets your routing requirements"}}),
        FailureKind.SERVER,
        "routing requirements",
    ),
    # Groq
    failure(
        "groq-rate-limit",
        "Groq",
        "https://console.groq.com/docs/rate-limits",
        fails(
            429,
            openai_error(
                "Rate limit reached for model `x` on tokens per day. Please try again in 2m59.56s.",
                code="rate_limit_exceeded",
                kind="tokens",
            ),
            retry_after="179",
        ),
        FailureKind.RATE_LIMITED,
        "Rate limit reached",
    ),
    failure(
        "groq-request-too-large",
        "Groq",
        _GROQ,
        fails(
            413,
            openai_error(
                "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9512",
                code="rate_limit_exceeded",
                kind="tokens",
            ),
        ),
        FailureKind.REJECTED,
        "Request too large",
    ),
    failure(
        "groq-flex-capacity",
        "Groq",
        _GROQ,
        fails(498, openai_error("Flex tier capacity exceeded", code="capacity_exceeded")),
        FailureKind.SERVER,
        "capacity exceeded",
    ),
    failure(
        "groq-model-decommissioned",
        "Groq",
        "https://console.groq.com/docs/deprecations",
        fails(
            400,
            openai_error(
                "The model `x` has been decommissioned and is no longer supported.", code="model_decommissioned"
            ),
        ),
        FailureKind.REJECTED,
        "decommissioned",
    ),
    # DeepSeek
    failure(
        "deepseek-insufficient-balance",
        "DeepSeek",
        _DEEPSEEK,
        fails(402, openai_error("Insufficient Balance", kind="unknown_error")),
        FailureKind.REJECTED,
        "Insufficient Balance",
    ),
    failure(
        "deepseek-busy",
        "DeepSeek",
        _DEEPSEEK,
        fails(
            503,
            openai_error("Service is too busy. We advise users to try again later.", kind="service_unavailable_error"),
        ),
        FailureKind.SERVER,
        "too busy",
    ),
    failure(
        "deepseek-wrong-key",
        "DeepSeek",
        _DEEPSEEK,
        fails(401, openai_error("Authentication Fails (governor)", kind="authentication_error")),
        FailureKind.REJECTED,
        "Authentication Fails",
    ),
    # Gemini's compatible endpoint
    failure(
        "gemini-429-in-a-list",
        "Gemini",
        "https://github.com/google-gemini/gemini-cli/issues/6454",
        fails(
            429,
            [
                {
                    "error": {
                        "code": 429,
                        "message": "You exceeded the requests of a minute. Please retry in 14.2s.",
                        "status": "RESOURCE_EXHAUSTED",
                        "details": _RETRY_INFO,
                    }
                }
            ],
        ),
        FailureKind.RATE_LIMITED,
        "retry in 14.2s",
    ),
    failure(
        "gemini-400-in-a-list",
        "Gemini",
        _GEMINI,
        fails(
            400,
            [
                {
                    "error": {
                        "code": 400,
                        "message": "User location is not supported for the API use.",
                        "status": "FAILED_PRECONDITION",
                    }
                }
            ],
        ),
        FailureKind.REJECTED,
        "location is not supported",
    ),
    failure(
        "gemini-key-in-a-list",
        "Gemini",
        _GEMINI,
        fails(
            400,
            [
                {
                    "error": {
                        "code": 400,
                        "message": "API key not valid. Please pass a valid API key.",
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ],
        ),
        FailureKind.REJECTED,
        "API key not valid",
    ),
    failure(
        "gemini-overloaded",
        "Gemini",
        _GEMINI,
        fails(
            503,
            [
                {
                    "error": {
                        "code": 503,
                        "message": "The model is overloaded. Please try again later.",
                        "status": "UNAVAILABLE",
                    }
                }
            ],
        ),
        FailureKind.SERVER,
        "overloaded",
    ),
    failure(
        "gemini-error-as-text",
        "Gemini",
        "https://github.com/continuedev/continue/issues/10560",
        fails(
            429,
            {
                "error": {
                    "message": '{"error": {"code": 429, "message": "Resource has been exhausted (e.g. check quota)."}}',
                    "code": 429,
                }
            },
        ),
        FailureKind.RATE_LIMITED,
        "Resource has been exhausted",
    ),
)
