"""Answers of further hosted services and of gateways before them, and of odd streams: modelled on public reports."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from consilience.domain.outcome import FailureKind
from consilience.testing.catalogue.entry import (
    DONE,
    KnownAnswer,
    Outcome,
    asks_for_schema,
    chat,
    chunk,
    fails,
    failure,
    first,
    has,
    odd,
    openai_error,
    stream,
)
from consilience.testing.misbehaving_server import TEXT, ServerAnswer, chat_completion

_CHUNKS = "https://html.spec.whatwg.org/multipage/server-sent-events.html"
_HTTP = "https://www.rfc-editor.org/rfc/rfc9110"
_CEREBRAS = "https://github.com/nminaya/grammar-nazi-bot/issues/957"
_ZHIPU = "https://github.com/zhukunpenglinyutong/jetbrains-cc-gui/issues/897"
_KIMI = "https://github.com/opencyvis/opencyvis-phone/issues/12"
_OPENROUTER = "https://github.com/router-for-me/CLIProxyAPI/issues/2690"
_CLOUDFLARE = "https://developers.cloudflare.com/workers-ai/platform/errors/"
_AZURE = "https://learn.microsoft.com/azure/ai-services/openai/quotas-limits"
_MISTRAL = "https://docs.mistral.ai/capabilities/reasoning/"


def _is_warm(body: Any) -> bool:
    return body.get("temperature") not in (None, 1, 1.0)


def _extra(name: str) -> dict[str, object]:
    detail = [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": 7}]
    return {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "code": None}


_REFUSED = tuple(
    KnownAnswer(name, server, source, first(answer, when=when), "text")
    for name, server, source, answer, when in (
        (
            "modelscope-thinking-needs-a-stream",
            "ModelScope",
            "https://github.com/musistudio/claude-code-router/issues/948",
            fails(400, openai_error("enable thinking can not be support when `stream=False`.")),
            lambda body: not body.get("stream"),
        ),
        (
            "dashscope-thinking-needs-a-stream-in-chinese",
            "DashScope",
            "https://github.com/alibaba/spring-ai-alibaba/issues/867",
            fails(400, openai_error("parameter.enable_thinking必须设置为false才能进行非流式调用")),
            lambda body: not body.get("stream"),
        ),
        (
            "mistral-seed-forbidden",
            "Mistral",
            "https://github.com/editor-code-assistant/eca/issues/231",
            fails(422, _extra("seed")),
            has("seed"),
        ),
        (
            "mistral-max-completion-tokens-forbidden",
            "Mistral",
            "https://github.com/editor-code-assistant/eca/issues/231",
            fails(422, _extra("max_completion_tokens")),
            has("max_completion_tokens"),
        ),
        (
            "cerebras-schema-fields",
            "Cerebras",
            "https://github.com/musistudio/claude-code-router/issues/708",
            fails(
                400,
                {
                    "message": "Unsupported JSON schema fields: {'minItems', 'items'}",
                    "param": "response_format",
                    "code": "wrong_api_format",
                },
            ),
            asks_for_schema,
        ),
        (
            "moonshot-temperature",
            "Moonshot",
            _KIMI,
            fails(400, {"error": {"message": "invalid temperature: only 1 is allowed for this model"}}),
            _is_warm,
        ),
        (
            "compatible-temperature-range",
            "DeepSeek",
            "https://api-docs.deepseek.com/quick_start/error_codes",
            fails(400, openai_error("Invalid temperature value, the valid range of temperature is [0, 0.5]")),
            _is_warm,
        ),
    )
)

_FAILURES = (
    failure(
        "cerebras-requests-per-minute",
        "Cerebras",
        _CEREBRAS,
        fails(
            429, {"message": "Requests per minute limit exceeded.", "param": "quota", "code": "request_quota_exceeded"}
        ),
        FailureKind.RATE_LIMITED,
        "per minute limit exceeded",
    ),
    failure(
        "zhipu-rate-in-200",
        "Zhipu",
        _ZHIPU,
        ServerAnswer(body={"error": {"code": "1302", "message": "您的账户已达到速率限制，请您控制请求频率"}}),
        FailureKind.RATE_LIMITED,
        "速率限制",
    ),
    failure(
        "zhipu-no-balance-as-429",
        "Zhipu",
        _ZHIPU,
        fails(429, {"error": {"code": "1113", "message": "余额不足或无可用资源包,请充值。"}}),
        FailureKind.REJECTED,
        "余额不足",
    ),
    failure(
        "zhipu-sensitive",
        "Zhipu",
        _ZHIPU,
        fails(400, {"error": {"code": "1301", "message": "系统检测到输入或生成内容可能包含不安全或敏感内容"}}),
        FailureKind.REFUSED,
        "敏感内容",
    ),
    failure(
        "cloudflare-daily-allocation",
        "Cloudflare",
        _CLOUDFLARE,
        fails(
            429,
            {
                "errors": [{"message": "AiError: you have used up your daily free allocation of 10,000 neurons"}],
                "success": False,
                "result": {},
            },
        ),
        FailureKind.REJECTED,
        "daily free allocation",
    ),
    failure(
        "azure-content-filter",
        "Azure",
        "https://github.com/compl-ai/compl-ai/issues/20",
        fails(
            400,
            {
                "error": {
                    "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
                    "param": "prompt",
                    "code": "content_filter",
                    "innererror": {"code": "ResponsibleAIPolicyViolation"},
                }
            },
        ),
        FailureKind.REFUSED,
        "content management policy",
    ),
    failure(
        "azure-gateway-call-volume",
        "Azure",
        _AZURE,
        fails(403, {"statusCode": 403, "message": "Out of call volume quota. Quota will be replenished in 01:12:03."}),
        FailureKind.REJECTED,
        "access was refused (HTTP 403): Out of call volume quota",
    ),
    failure(
        "litellm-invalid-model-name",
        "LiteLLM",
        "https://docs.litellm.ai/docs/proxy/configs",  # seen with its version 1.108.7
        fails(
            400,
            openai_error(
                "/chat/completions: Invalid model name passed in model=nosuch. Call `/v1/models` to view models"
            ),
        ),
        FailureKind.REJECTED,
        "Check the model's name.",
    ),
    failure(
        "vertex-cancelled",
        "Vertex",
        "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/api-errors",
        fails(499, [{"error": {"code": 499, "message": "The operation was cancelled.", "status": "CANCELLED"}}]),
        FailureKind.SERVER,
        "operation was cancelled",
    ),
    failure(
        "openrouter-no-choices",
        "OpenRouter",
        "https://github.com/speakeasy-api/gram/pull/3129",
        odd(choices=[]),
        FailureKind.SERVER,
        "holds no message",
    ),
    failure(
        "ninerouter-choices-null",
        "9router",
        "https://github.com/decolua/9router/issues/2727",
        odd(choices=None),
        FailureKind.SERVER,
        "holds no message",
    ),
    failure(
        "another-interface",
        "TGI",
        "https://huggingface.co/docs/text-generation-inference/reference/api_reference",
        ServerAnswer(body={"generated_text": TEXT}),
        FailureKind.REJECTED,
        "holds no message",
    ),
    failure("answer-null", "any", _HTTP, ServerAnswer(body=b"null"), FailureKind.SERVER, "it is no JSON: null"),
    failure("answer-empty", "any", _HTTP, ServerAnswer(202, b""), FailureKind.SERVER, "it is empty"),
    failure(
        "answer-nested-too-deeply",
        "any",
        _HTTP,
        ServerAnswer(body=b"[" * 100_000),
        FailureKind.REJECTED,
        "nested too deeply",
    ),
    failure(
        "page-of-a-network",
        "any, behind a gateway",
        _HTTP,
        ServerAnswer(
            200,
            b"<!DOCTYPE html><html><head><title>Welcome</title><style>p{}</style></head><body><p>Please sign in</p></body></html>",
            {"Content-Type": "text/html"},
        ),
        FailureKind.SERVER,
        "it is no JSON: Welcome Please sign in",
    ),
    failure(
        "page-with-401",
        "any, behind a gateway",
        _HTTP,
        ServerAnswer(401, b"<html><body><h1>401 Authorization Required</h1><hr>nginx</body></html>"),
        FailureKind.REJECTED,
        "(HTTP 401): 401 Authorization Required nginx",
    ),
    failure(
        "redirect-to-a-sign-in",
        "any, behind a gateway",
        _HTTP,
        ServerAnswer(302, b"", {"Location": "https://login.example/start?next=x"}),
        FailureKind.REJECTED,
        "(HTTP 302): https://login.example/start. Name",
    ),
    failure(
        "wrong-method",
        "any",
        _HTTP,
        ServerAnswer(405, b"Method Not Allowed", {"Content-Type": "text/plain"}),
        FailureKind.REJECTED,
        "no such model or address (HTTP 405): Method Not Allowed. Check the server's address.",
    ),
)


def _raw(body: bytes, content_type: str = "application/json") -> ServerAnswer:
    return ServerAnswer(body=body, headers={"Content-Type": content_type})


_GOOD = json.dumps(chat_completion()).encode()
_EVENTS = [json.dumps(event).encode() for event in (chunk(TEXT), chunk(finish="stop"))]
_WHOLE = {**chunk(), "choices": [{"index": 0, "message": {"content": TEXT}, "finish_reason": "stop"}]}
_OTHER_REPLY = {**chunk(), "choices": [{"index": 1, "delta": {"content": "No!"}}]}
_PART = {"type": "text", "text": TEXT}
_CALL = {"id": "c", "type": "function", "function": {"name": "json", "arguments": TEXT}}
_EMPTY: Outcome = FailureKind.MALFORMED

_READ = tuple(
    KnownAnswer(name, server, source, (answer,), "text", untyped)
    for name, server, source, answer, untyped in (
        ("warning-before-the-json", "any", _HTTP, _raw(b"Warning: deprecated\n" + _GOOD), None),
        ("json-behind-a-callback", "any", _HTTP, _raw(b"cb(" + _GOOD + b");"), None),
        (
            "answer-in-an-envelope",
            "any, behind a gateway",
            "https://github.com/QuantumNous/new-api",
            ServerAnswer(body={"code": 200, "msg": "success", "data": chat_completion()}),
            None,
        ),
        (
            "answer-in-a-body-field",
            "AWS API Gateway",
            "https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html",
            ServerAnswer(body={"statusCode": 200, "body": chat_completion()}),
            None,
        ),
        ("numbers-without-end", "any", _HTTP, _raw(_GOOD[:-1] + b', "x": ' + b"9" * 5_000 + b"}"), None),
        ("blank-lines-before-the-json", "OpenRouter", _OPENROUTER, _raw(b"\n      \n\n" + _GOOD), None),
        ("comments-before-the-json", "OpenRouter", _OPENROUTER, _raw(b": OPENROUTER PROCESSING\n\n" + _GOOD), None),
        ("content-as-one-part", "any", _MISTRAL, odd(choices=[{"message": {"content": _PART}}]), None),
        (
            "content-as-parts-of-responses",
            "any, behind a gateway",
            "https://platform.openai.com/docs/api-reference/responses",
            odd(choices=[{"message": {"content": [{"type": "output_text", "text": TEXT}]}}]),
            None,
        ),
        (
            "content-with-thinking-parts",
            "Mistral",
            _MISTRAL,
            odd(
                choices=[
                    {
                        "message": {
                            "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, _PART]
                        }
                    }
                ]
            ),
            None,
        ),
        (
            "reply-in-a-call-of-another-name",
            "vLLM",
            "https://docs.vllm.ai/en/latest/features/tool_calling.html",
            chat(None, finish="tool_calls", tool_calls=[_CALL]),
            _EMPTY,
        ),
        (
            "reply-in-a-function-call",
            "LiteLLM",
            "https://docs.litellm.ai/docs/completion/function_call",
            chat(None, finish="function_call", function_call=_CALL["function"]),
            _EMPTY,
        ),
        ("stream-with-carriage-returns", "any", _CHUNKS, _raw(b"data: " + b"\r\rdata: ".join(_EVENTS)), None),
        ("stream-with-a-bare-end", "any", _CHUNKS, _raw(b"data: " + _EVENTS[0] + b"\n\n[DONE]\n"), None),
        (
            "stream-with-the-whole-message-last",
            "MiniMax",
            "https://www.minimax.io/platform/document/ChatCompletion_v2",
            stream(chunk(TEXT), _WHOLE, DONE),
            None,
        ),
        ("stream-of-two-replies", "any", _CHUNKS, stream(chunk(TEXT), _OTHER_REPLY, chunk(finish="stop"), DONE), None),
        (
            "stream-of-parts",
            "Mistral",
            _MISTRAL,
            stream({**chunk(), "choices": [{"index": 0, "delta": {"content": [_PART]}}]}, chunk(finish="stop"), DONE),
            None,
        ),
        (
            "stream-error-after-the-end",
            "LiteLLM",
            "https://docs.litellm.ai/docs/completion/stream",
            stream(chunk(TEXT), chunk(finish="stop"), {"error": {"message": "usage failed", "code": 500}}, DONE),
            None,
        ),
        (
            "stream-of-lines",
            "Ollama",
            "https://docs.ollama.com/api/chat",
            _raw(
                b"".join(
                    json.dumps({"message": {"role": "assistant", "content": part}, "done": not part}).encode() + b"\n"
                    for part in (TEXT, "")
                )
            ),
            None,
        ),
        (
            "length-too-long",
            "any, behind a gateway",
            _HTTP,
            replace(_raw(_GOOD), headers={"Content-Length": "5000"}, cut=5_000),
            None,
        ),
    )
)

_ENDS = tuple(
    KnownAnswer(f"ended-by-{word.lower().replace('_', '-')}", server, source, (chat(text, finish=word),), outcome)
    for word, server, source, text, outcome in (
        ("MAX_TOKENS", "Vertex", "https://github.com/BerriAI/litellm/issues", "Half a sen", FailureKind.TRUNCATED),
        ("model_length", "Mistral", "https://docs.mistral.ai/api/", "Half a sen", FailureKind.TRUNCATED),
        ("abort", "SGLang", "https://github.com/sgl-project/sglang/issues", "Half a sen", FailureKind.TRUNCATED),
        (
            "insufficient_system_resource",
            "DeepSeek",
            "https://api-docs.deepseek.com/api/create-chat-completion",
            "Half a sen",
            FailureKind.TRUNCATED,
        ),
        ("network_error", "Zhipu", "https://docs.bigmodel.cn/api-reference", "", FailureKind.SERVER),
        ("sensitive", "Zhipu", "https://docs.bigmodel.cn/api-reference", "", FailureKind.REFUSED),
        ("SAFETY", "Vertex", "https://github.com/BerriAI/litellm/issues", "", FailureKind.REFUSED),
        ("guardrail_intervened", "Bedrock", "https://docs.aws.amazon.com/bedrock/", "Blocked.", FailureKind.REFUSED),
    )
)

HOSTED = (*_REFUSED, *_FAILURES, *_READ, *_ENDS)
