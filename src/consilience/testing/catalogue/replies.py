"""Good answers in odd shapes: fields that are missing or of another type, traces of reasoning, JSON of broken form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from consilience.domain.outcome import FailureKind
from consilience.testing.catalogue.entry import KnownAnswer, chat, odd, response
from consilience.testing.misbehaving_server import TEXT, ServerAnswer

_VLLM_REASONING = "https://docs.vllm.ai/en/latest/features/reasoning_outputs.html"
_HARMONY = "https://cookbook.openai.com/articles/openai-harmony"
_OPENAI_OBJECT = "https://platform.openai.com/docs/api-reference/chat/object"
_DRAFT = '{"text": "A draft."}'


def _text(name: str, server: str, source: str, answer: ServerAnswer) -> KnownAnswer:
    return KnownAnswer(name, server, source, (answer,), "text")


def _choices(**message: object) -> list[dict[str, object]]:
    return [{"index": 0, "finish_reason": "stop", "message": message}]


_FIELDS = (
    _text("good", "OpenAI", _OPENAI_OBJECT, chat()),
    _text("id-null", "LiteLLM", "https://docs.litellm.ai/docs/completion/output", odd(id=None)),
    _text("id-number", "LM Studio", "https://lmstudio.ai/docs/developer/openai-compat", odd(id=17)),
    _text("usage-empty", "OpenRouter", "https://openrouter.ai/docs/api/reference/overview", odd(usage={})),
    _text("usage-missing", "llama.cpp", "https://github.com/ggml-org/llama.cpp/issues", odd(usage=...)),
    _text(
        "usage-of-floats",
        "LM Studio",
        "https://lmstudio.ai/docs/developer/openai-compat",
        odd(usage={"prompt_tokens": 12.0, "completion_tokens": 3.0, "total_tokens": 15.0}),
    ),
    _text(
        "usage-null-counts",
        "SGLang",
        "https://docs.sglang.ai/basic_usage/openai_api_completions.html",
        odd(usage={"prompt_tokens": None, "completion_tokens": None}),
    ),
    _text("object-empty", "any", "https://github.com/BerriAI/litellm/issues", odd(object="")),
    _text("object-missing", "any", _OPENAI_OBJECT, odd(object=...)),
    _text(
        "created-float", "LM Studio", "https://lmstudio.ai/docs/developer/openai-compat", odd(created=1_700_000_000.25)
    ),
    _text("created-text", "any", _OPENAI_OBJECT, odd(created="2026-01-01T00:00:00Z")),
    _text("model-missing", "TGI", "https://huggingface.co/docs/text-generation-inference/messages_api", odd(model=...)),
    _text("finish-reason-empty", "any", "https://github.com/BerriAI/litellm/issues", chat(finish="")),
    _text("finish-reason-null", "OpenRouter", "https://openrouter.ai/docs/api/reference/overview", chat(finish=None)),
    _text(
        "finish-reason-eos",
        "TGI",
        "https://huggingface.co/docs/text-generation-inference/messages_api",
        chat(finish="eos_token"),
    ),
    _text("role-missing", "any", _OPENAI_OBJECT, odd(choices=_choices(content=TEXT))),
    _text(
        "role-model",
        "Gemini",
        "https://ai.google.dev/gemini-api/docs/openai",
        odd(choices=_choices(role="model", content=TEXT)),
    ),
    _text(
        "content-as-parts",
        "any",
        "https://docs.mistral.ai/capabilities/reasoning/",
        odd(choices=_choices(role="assistant", content=[{"type": "text", "text": TEXT}])),
    ),
    _text(
        "index-missing",
        "Gemini",
        "https://ai.google.dev/gemini-api/docs/openai",
        odd(choices=[{"finish_reason": "stop", "message": {"role": "assistant", "content": TEXT}}]),
    ),
    _text("tool-calls-empty", "vLLM", "https://docs.vllm.ai/en/latest/features/tool_calling.html", chat(tool_calls=[])),
    _text(
        "function-call-null",
        "vLLM",
        "https://docs.vllm.ai/en/latest/features/tool_calling.html",
        chat(function_call=None, audio=None, refusal=None),
    ),
    _text(
        "service-tier-unknown",
        "Groq",
        "https://console.groq.com/docs/service-tiers",
        odd(service_tier="on_demand", x_groq={"id": "req_1"}),
    ),
    _text(
        "error-null-beside-reply", "OpenRouter", "https://openrouter.ai/docs/api/reference/overview", odd(error=None)
    ),
    KnownAnswer(
        "responses-good",
        "OpenAI",
        "https://platform.openai.com/docs/api-reference/responses/object",
        (response(),),
        "text",
        api="responses",
    ),
    KnownAnswer(
        "responses-usage-missing",
        "LM Studio",
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1396",
        (response(usage=...),),
        "text",
        api="responses",
    ),
    KnownAnswer(
        "responses-id-null",
        "vLLM",
        "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
        (response(id=None),),
        "text",
        api="responses",
    ),
    KnownAnswer(
        "responses-without-choice-of-tools",
        "SGLang",
        "https://docs.sglang.ai/",
        (response(tools=..., tool_choice=..., parallel_tool_calls=...),),
        "text",
        api="responses",
    ),
    KnownAnswer(
        "responses-output-text-only",
        "Ollama",
        "https://docs.ollama.com/api/openai-compatibility",
        (response(output=..., output_text=TEXT),),
        "text",
        api="responses",
    ),
    KnownAnswer(
        "refusal",
        "OpenAI",
        "https://platform.openai.com/docs/guides/structured-outputs",
        (chat(None, refusal="I will not do that."),),
        FailureKind.REFUSED,
        says="I will not do that",
    ),
    KnownAnswer(
        "content-filter", "OpenAI", _OPENAI_OBJECT, (chat("Hal", finish="content_filter"),), FailureKind.REFUSED
    ),
    KnownAnswer(
        "content-empty",
        "DeepSeek",
        "https://api-docs.deepseek.com/guides/json_mode",
        (chat(""),),
        FailureKind.MALFORMED,
    ),
    KnownAnswer(
        "content-null",
        "vLLM",
        "https://docs.vllm.ai/en/latest/features/reasoning_outputs.html",
        (chat(None),),
        FailureKind.MALFORMED,
    ),
)

_TRACES = tuple(
    _text(name, server, source, chat(written))
    for name, server, source, written in (
        (
            "trace-think",
            "Ollama",
            "https://docs.ollama.com/capabilities/thinking",
            f"<think>\nHm. {_DRAFT}\n</think>\n\n{TEXT}",
        ),
        ("trace-headless", "vLLM", _VLLM_REASONING, f"Hm. {_DRAFT}\n</think>\n\n{TEXT}"),
        (
            "trace-harmony",
            "llama.cpp",
            "https://github.com/ggml-org/llama.cpp/pull/15181",
            f"<|channel|>analysis<|message|>Hm. {_DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>{TEXT}",
        ),
        (
            "trace-harmony-with-end",
            "vLLM",
            _HARMONY,
            f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{TEXT}<|return|>",
        ),
        (
            "trace-harmony-final-json",
            "LM Studio",
            "https://github.com/openai/harmony/issues/56",
            f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final json<|message|>{TEXT}",
        ),
        ("trace-harmony-constrain", "vLLM", _HARMONY, f"<|channel|>final <|constrain|>json<|message|>{TEXT}<|return|>"),
        (
            "trace-harmony-bare",
            "LM Studio",
            "https://github.com/ggml-org/llama.cpp/pull/15181",
            f"<|channel|>analysis<|message|>Hm. {_DRAFT}<|end|>{TEXT}",
        ),
        (
            "trace-harmony-stripped",
            "SGLang",
            "https://docs.sglang.ai/basic_usage/gpt_oss.html",
            f"analysisHm, what to say.assistantfinal{TEXT}",
        ),
        (
            "trace-mistral",
            "vLLM",
            "https://docs.mistral.ai/capabilities/reasoning/",
            f"[THINK]Hm. {_DRAFT}[/THINK]{TEXT}",
        ),
        (
            "trace-seed",
            "vLLM",
            "https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct",
            f"<seed:think>Hm. {_DRAFT}</seed:think>{TEXT}",
        ),
        (
            "trace-cohere",
            "vLLM",
            "https://docs.cohere.com/docs/reasoning",
            f"<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>{TEXT}<|END_RESPONSE|>",
        ),
        ("trace-kimi", "SGLang", "https://huggingface.co/moonshotai/Kimi-VL-A3B-Thinking", f"◁think▷Hm.◁/think▷{TEXT}"),
        (
            "trace-gemma",
            "llama.cpp",
            "https://github.com/kekzl/imp/pull/768",
            f"<|channel>thought\nHm. {_DRAFT}<channel|>{TEXT}",
        ),
        ("end-mark-chatml", "llama.cpp", "https://github.com/ggml-org/llama.cpp/issues", f"{TEXT}<|im_end|>"),
        ("end-mark-llama", "vLLM", "https://github.com/vllm-project/vllm/issues", f"{TEXT}<|eot_id|>"),
        ("end-mark-sentence", "LM Studio", "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues", f"{TEXT}</s>"),
        ("end-mark-gemma", "Ollama", "https://ai.google.dev/gemma/docs/core/prompt-structure", f"{TEXT}<end_of_turn>"),
        (
            "end-mark-deepseek",
            "SGLang",
            "https://huggingface.co/deepseek-ai/DeepSeek-R1",
            f"{TEXT}<｜end▁of▁sentence｜>",
        ),
    )
) + tuple(
    KnownAnswer(name, server, source, (chat(written, finish=finish),), kind)
    for name, server, source, written, finish, kind in (
        (
            "trace-unfinished-think",
            "Ollama",
            "https://docs.ollama.com/capabilities/thinking",
            f"<think>\nHm. {_DRAFT}",
            "length",
            FailureKind.TRUNCATED,
        ),
        (
            "trace-unfinished-harmony",
            "vLLM",
            "https://github.com/raullenchai/Rapid-MLX/pull/794",
            f"<|channel|>analysis<|message|>Hm. {_DRAFT}",
            "length",
            FailureKind.TRUNCATED,
        ),
        (
            "trace-unfinished-mistral",
            "vLLM",
            "https://docs.mistral.ai/capabilities/reasoning/",
            f"[THINK]Hm. {_DRAFT}",
            "length",
            FailureKind.TRUNCATED,
        ),
        (
            "trace-unfinished-without-cut",
            "LM Studio",
            "https://lmstudio.ai/docs/developer/openai-compat",
            f"<seed:think>Hm. {_DRAFT}",
            "stop",
            FailureKind.MALFORMED,
        ),
    )
)


def _object(change: Callable[[str], str]) -> Callable[[str], str]:
    """Change only a JSON object."""
    return lambda text: change(text) if text.startswith("{") else text


def _single_quoted(text: str) -> str:
    return re.sub(r'(?<!\\)"', "'", text.replace("'", "\\'"))


def _commented(text: str) -> str:
    return "{ // the reply" + "\n" + text[1:]


_FORMS = tuple(
    KnownAnswer(name, server, source, (chat(),), "text", write=_object(change))
    for name, server, source, change in (
        ("json-trailing-comma", "Ollama", "https://github.com/josdejong/jsonrepair", lambda text: f"{text[:-1]},}}"),
        (
            "json-in-a-fence",
            "Gemini",
            "https://ai.google.dev/gemini-api/docs/structured-output",
            lambda text: f"```json\n{text}\n```",
        ),
        (
            "json-with-a-preamble",
            "llama.cpp",
            "https://github.com/ggml-org/llama.cpp/issues/24097",
            lambda text: f"Here is the JSON:\n\n{text}",
        ),
        ("json-with-a-comment", "Ollama", "https://github.com/josdejong/jsonrepair", _commented),
        ("json-in-a-string", "LiteLLM", "https://github.com/mangiucugna/json_repair", json.dumps),
        (
            "json-single-quotes",
            "Ollama",
            "https://github.com/mangiucugna/json_repair",
            _single_quoted,
        ),
        (
            "json-bad-escape",
            "DeepSeek",
            "https://github.com/mangiucugna/json_repair",
            lambda text: text.replace("'", "\\'"),
        ),
        (
            "json-in-tool-call-tags",
            "SGLang",
            "https://docs.sglang.ai/advanced_features/tool_parser.html",
            lambda text: f'<tool_call>\n{{"name": "reply", "arguments": {text}}}\n</tool_call>',
        ),
        ("json-without-end", "vLLM", "https://github.com/vllm-project/vllm/issues/15618", lambda text: text[:-1]),
        (
            "json-twice",
            "LM Studio",
            "https://lmstudio.ai/docs/developer/core/structured-output",
            lambda text: f"{text}\n{text}",
        ),
    )
)

_ELSEWHERE = (
    KnownAnswer(
        "reply-in-reasoning-content",
        "vLLM",
        "https://github.com/vllm-project/vllm/issues/15618",
        (chat(None, reasoning_content=TEXT),),
        "text",
        FailureKind.MALFORMED,
    ),
    KnownAnswer(
        "reply-in-reasoning",
        "Ollama",
        "https://github.com/run-llama/llama_index/pull/21643",
        (chat("", reasoning=TEXT),),
        "text",
        FailureKind.MALFORMED,
    ),
    KnownAnswer(
        "reply-behind-reasoning-content",
        "DeepSeek",
        "https://api-docs.deepseek.com/guides/reasoning_model",
        (chat(TEXT, reasoning_content=f"Hm. {_DRAFT}"),),
        "text",
    ),
    KnownAnswer(
        "prose-in-reasoning-content",
        "vLLM",
        _VLLM_REASONING,
        (chat(None, reasoning_content="Hm, what does the task ask for?"),),
        FailureKind.MALFORMED,
    ),
)

REPLIES = (*_FIELDS, *_TRACES, *_FORMS, *_ELSEWHERE)
