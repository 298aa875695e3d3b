"""Requests through pydantic-ai's low-level interface to the provider of a model.

One `complete` is one request: the SDK's own retries are off, so that limits bound what is sent. The exception is an error that
refuses a part of the request (`refusals.REFUSALS`): it is sent again at once in another form, with the permission of
`limiter.may_retry`, and so are later requests. Every failure of the library becomes a `ProviderError` with advice and without keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from consilience.domain.errors import ProviderError, Refused, ServerError, replace_surrogates
from consilience.domain.outcome import ThinkingLevel, Thinks
from consilience.models.connections import Connections
from consilience.models.endpoints import answering_name
from consilience.models.facts import ModelFacts, in_dollars, listed_cost, thinks_of
from consilience.models.failures import refusal_of, translate
from consilience.models.limiter import retry_allowed, running_count
from consilience.models.parsing import reply_in_reasoning
from consilience.models.port import Completion, ModelRequest
from consilience.models.redaction import scrub, without_keys
from consilience.models.refusals import Change, OutputMode, RequestForm, Sent, combined, next_form
from consilience.models.transfer import bound_requests

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, UserContent
    from pydantic_ai.models import Model as LibraryModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage

_OUTPUT_TOOL = "reply"
_MAX_CREDIBLE_TOKENS = 100_000_000
"""Bound on the reported tokens of one request, ten times the longest known context."""
_NO_TAGS = ("\0<think>", "\0</think>")
"""Tags that no text contains: with the default tags the library returns an unclosed trace as the answer."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
_MAX_WORD_CHARS = 200
"""Length of a word from the provider that is recorded."""
_MIN_CACHED_CHARS = 4_096
"""Min length of a cached prefix: providers require at least 1,024 tokens."""


class ProviderModel:
    """One model of one provider account.

    `facts` are by default those of its name. `extra_body` is merged into the body of requests if the adapter supports it. An
    instance serves one event loop at a time; on another one it reopens its connections. `connections` are what keeps them open
    for later models.
    """

    def __init__(
        self,
        name: str,
        account: str,
        model: LibraryModel,
        *,
        extra_body: dict[str, object] | None = None,
        facts: ModelFacts | None = None,
        connections: Connections | None = None,
    ) -> None:
        self.name = name
        self.account = account
        self._model = model
        self._facts = facts or ModelFacts(name)
        self._connections = connections
        self._form = RequestForm(_strongest_mode(model.profile))
        self._notes: list[str] = []
        self._said: set[str] = set()
        self._window: int | None = None
        self._other_limit = _other_limit(model)
        self._settings = _fixed_settings(model, extra_body)
        declared = self._facts.declared.thinks
        if declared is not None:
            model.profile["supports_thinking"] = declared != "never"
            model.profile["thinking_always_enabled"] = declared == "always"
        self.thinks: Thinks = declared or thinks_of(model.profile, name, account)
        model.profile["thinking_tags"] = _NO_TAGS
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entering: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def settings(self) -> ModelSettings:
        """Settings of every request to this model, among them the SDK's retries turned off."""
        return self._settings.copy()

    async def complete(self, request: ModelRequest) -> Completion:
        """Send one request, and one more for each part of it that the server refuses.

        Raises `RateLimited`, `ServerError`, `Timeout`, `Unreachable`, `Refused` or `Rejected`. An empty text is an answer. A
        `Refused` that was charged has the text and its cost in its attribute `completion`.
        """
        if self._loop is not asyncio.get_running_loop():
            await self._enter()
        sent, room = 0, None
        while True:
            form = self._form
            sent += 1
            try:
                response = await self._send(request, form, room)
            except Exception as error:
                change = self._next_form(error, request, form, room)
                if change is not None:  # also without permission, for the next call
                    room = change.room or room
                    self._learn(form, change)
                failure = (
                    None
                    if change is not None and retry_allowed()
                    else translate(error, self.account, self._scrub, self._facts.key_advice)
                )
            else:
                return self._completion(response, sent, request.returns)
            if failure is not None:  # raised here, so that the library's exception is not its context
                is_loading = isinstance(failure, ServerError) and failure.loading
                vars(failure)["requests"] = sent - is_loading
                raise failure
            running_count().repeated()

    def _next_form(self, error: Exception, request: ModelRequest, form: RequestForm, room: int | None) -> Change | None:
        """Return how to send the request again if its server refuses the form in which it was sent."""
        refusal = refusal_of(error)
        if refusal is None:
            return None
        name = re.escape(self._model.model_name)  # it may contain the name of a part
        status, words, message = (
            part if isinstance(part, int) else re.sub(rf"(?<!\w){name}(?!\w)", "", part, flags=re.IGNORECASE)
            for part in refusal
        )
        sent = Sent(
            form,
            typed=request.schema is not None,
            system=bool(request.system),
            max_tokens=_max_tokens(request, form, room),
            optional=self._optional(request),
            tools=bool(self._model.profile.get("supports_tools", True)),
        )
        return next_form(sent, int(status), str(words), str(message))

    def _optional(self, request: ModelRequest) -> frozenset[str]:
        """Return the settings of a request that can be left out."""
        sent = {
            "seed": request.seed is not None,
            "temperature": request.temperature is not None and _takes_temperature(self._model, request.thinking),
            "max_tokens": self._other_limit is not None,
            "thinking": "thinking" in self._settings
            or (request.thinking is not None and self._model.profile.get("supports_thinking", False)),
        }
        return frozenset(name for name, is_sent in sent.items() if is_sent)

    def _learn(self, sent: RequestForm, change: Change) -> None:
        self._form = combined(self._form, sent, change.form)
        if change.note and change.note not in self._said:
            self._said.add(change.note)
            self._notes.append(change.note)

    async def _send(self, request: ModelRequest, form: RequestForm, room: int | None) -> ModelResponse:
        from pydantic_ai import messages
        from pydantic_ai.direct import model_request

        settings = self._settings_for(request, form, room)
        if form.folds_system and request.system:
            before = f"{request.system}\n\n"
            shared = tuple(len(before) + n for n in request.shared)
            request = replace(request, system="", user=before + request.user, shared=shared)
        parts: list[messages.ModelRequestPart] = []
        if request.system:
            parts.append(messages.SystemPromptPart(request.system))
        parts.append(messages.UserPromptPart(self._prompt(request, form)))
        bound_requests(self._model)
        return await model_request(
            self._model,
            [messages.ModelRequest(parts=parts)],
            model_settings=settings,
            model_request_parameters=_parameters(request, form.output),
        )

    def _settings_for(self, request: ModelRequest, form: RequestForm, room: int | None) -> ModelSettings:
        """Return max tokens and sampling settings, without those that the server does not take."""
        settings = self._settings.copy()
        settings["max_tokens"] = _max_tokens(request, form, room)
        if request.thinking is not None and self._model.profile.get("supports_thinking", False):
            settings["thinking"] = False if request.thinking == "off" else request.thinking
        if request.temperature is not None and _takes_temperature(self._model, request.thinking):
            settings["temperature"] = request.temperature
        if request.seed is not None:
            settings["seed"] = request.seed
        self._leave_out(settings, form.left_out)
        if form.streams:
            body = settings.get("extra_body")
            settings["extra_body"] = {**(body if isinstance(body, dict) else {}), "stream": True}
        return settings

    def _prompt(self, request: ModelRequest, form: RequestForm) -> str | list[UserContent]:
        """Return the prompt, with the form of the reply if it is asked for in words, and with shared prefixes marked for a provider
        that caches only marked prefixes."""
        if request.schema is not None and form.output == "prompted":
            schema = json.dumps(request.schema, ensure_ascii=False)
            request = replace(request, user=f"{request.user}\n\n{_PROMPTED_FORM}\n\n{schema}")
        lengths = [n for n in request.shared if len(request.system) + n >= _MIN_CACHED_CHARS]
        if not lengths or not self._model.profile.get("supports_cache", False):
            return request.user
        from pydantic_ai.messages import CachePoint

        marked: list[UserContent] = []
        for begin, end in pairwise([0, *lengths]):
            marked += [request.user[begin:end], CachePoint()]
        return [*marked, request.user[lengths[-1] :]]

    def _leave_out(self, settings: ModelSettings, left_out: AbstractSet[str]) -> None:
        """Remove the left-out settings. The limit on tokens is kept under its other name."""
        loose = cast("dict[str, object]", settings)
        dropped = {name: loose.pop(name, None) for name in left_out}
        if "max_tokens" in dropped and self._other_limit is not None:
            body = settings.get("extra_body")
            details = body if isinstance(body, dict) else {}
            settings["extra_body"] = {**details, self._other_limit: dropped["max_tokens"]}

    def _completion(self, response: ModelResponse, sent: int, returns: type | None) -> Completion:
        usage = credible_usage(response)
        details = response.provider_details or {}
        keys = keys_of(self._model)
        written = _text(response, typed=returns is not None)
        misplaced = "" if written.strip() or returns is None else reply_in_reasoning(_reasoning(response), returns)
        text = replace_surrogates(without_keys(misplaced or written, keys))
        reason = response.finish_reason or _clean_word(details.get("finish_reason") or "stop", keys)
        model_name = _clean_word(response.model_name or self._model.model_name, keys)
        completion = Completion(
            text=text,
            model=answering_name(self.name, model_name),
            tokens_in=usage.input_tokens,
            tokens_out=usage.output_tokens,
            tokens_thought=0 if misplaced else thought_tokens(response),
            tokens_cached=usage.cache_read_tokens,
            cost=self._cost(response),
            finish_reason="stop" if reason == "tool_call" else reason,
            requests=sent,
            notes=tuple(self._notes),
        )
        self._notes.clear()
        failure: ProviderError | None = None
        if reason == "content_filter":
            reason_given = str(details.get("refusal") or details.get("refusal_category") or "") or text
            failure = Refused(self._scrub(f"{self.account}: the model refused to answer. {reason_given[:300]}".strip()))
        elif reason == "error" and not text:
            failure = ServerError(f"{self.account}: the provider reported a failed generation")
        if failure is not None:
            vars(failure).update(requests=sent, completion=completion)
            raise failure
        return completion

    def _cost(self, response: ModelResponse) -> float | None:
        """Return the exact cost, with tiers and cache reads and writes; None if no price is known."""
        prices = self._facts.prices
        if isinstance(prices, tuple):
            return in_dollars(prices, response.usage.input_tokens, response.usage.output_tokens)
        return listed_cost(response) if prices == "listed" else None

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        """Return US dollars for a request of that size without cache reads; None if no price is known."""
        return self._facts.price(tokens_in, tokens_out)

    @property
    def context_window(self) -> int | None:
        """Max tokens of prompt and reply together; None if unknown."""
        return self._window or self._facts.context_window

    async def ask_window(self) -> bool:
        """Ask the user's own server for its context window, which it may only know once it has loaded the model. Returns whether it
        said so."""
        self._window = await asyncio.to_thread(self._facts.served_window, anew=True)
        return self._window is not None

    async def close(self) -> None:
        """Close the connections. The model may be used again afterwards, on this event loop or another."""
        if self._loop is not None:
            closed_with_its_loop = self._loop.is_closed()
            self._loop = None
            with contextlib.suppress(*((RuntimeError,) if closed_with_its_loop else ())):
                await self._model.__aexit__(None, None, None)

    async def _enter(self) -> None:
        """Reopen the library's connections: they belong to the event loop that opened them."""
        loop = asyncio.get_running_loop()
        if self._entering is None or self._entering[0] is not loop:
            self._entering = (loop, asyncio.Lock())
        async with self._entering[1]:
            if self._loop is not loop:
                await self.close()
                if self._connections is not None:
                    await self._connections.hold(self._model)
                await self._model.__aenter__()
                self._loop = loop

    def _scrub(self, text: str) -> str:
        return scrub(text, keys_of(self._model))


def credible_usage(response: ModelResponse) -> RequestUsage:
    """Return the reported usage. Impossible figures are removed from the response. Thinking that was not counted as output, so that
    the output is less than the thinking, is added to it."""
    from pydantic_ai.usage import RequestUsage

    usage = response.usage
    if (hidden := _counted_thinking(usage)) > usage.output_tokens > 0:
        usage.output_tokens += hidden
    if max(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) > _MAX_CREDIBLE_TOKENS:
        response.usage = RequestUsage()
    return response.usage


_THOUGHT_DETAILS = ("reasoning_tokens", "thinking_tokens", "thoughts_tokens")


def thought_tokens(response: ModelResponse) -> int:
    """Return the output tokens used for thinking: as counted by the provider, else estimated from the visible thinking."""
    usage = response.usage
    counted_tokens = _counted_thinking(usage)
    if not counted_tokens:
        thinking_bytes = len(_reasoning(response).encode("utf-8", "replace"))
        text_bytes = len(_text(response).encode("utf-8", "replace"))
        counted_tokens = usage.output_tokens * thinking_bytes // (thinking_bytes + text_bytes) if thinking_bytes else 0
    return min(counted_tokens, usage.output_tokens)


def _counted_thinking(usage: RequestUsage) -> int:
    return max(usage.output_reasoning_tokens, *(usage.details.get(name, 0) for name in _THOUGHT_DETAILS))


def _strongest_mode(profile: Mapping[str, object]) -> OutputMode:
    """Return the strongest form of structured output in a profile."""
    if profile.get("supports_json_schema_output", False):
        return "native"
    return "tool" if profile.get("supports_tools", True) else "prompted"


def keys_of(model: LibraryModel) -> list[str]:
    """Return the keys sent with requests to `model`, as far as its client exposes them."""
    client = getattr(model, "client", None)
    keys = (getattr(client, "api_key", None), getattr(getattr(client, "_api_client", None), "api_key", None))
    return [key for key in keys if isinstance(key, str)]


def _clean_word(word: object, keys: list[str]) -> str:
    """Return a word from the provider that is recorded, without anything that looks like a secret."""
    return _UNPRINTABLE.sub("", scrub(without_keys(str(word), keys), []))[:_MAX_WORD_CHARS]


def disable_retries(client: object) -> bool:
    """Turn off the retries of an SDK's client for all its requests. Returns whether that is possible."""
    if not isinstance(getattr(client, "max_retries", None), int):
        return False
    vars(client)["max_retries"] = 0
    return True


def _fixed_settings(model: LibraryModel, extra_body: dict[str, object] | None) -> ModelSettings:
    """Settings with SDK retries off and additions to the body, as far as the adapter supports them; it warns of others.

    Retries are turned off at the client where possible (OpenAI, Anthropic, Groq): per request, the client would be copied
    (0.25 ms).
    """
    settings: ModelSettings = {}
    listed = model.profile.get("openai_unsupported_model_settings", ())
    unsupported = {
        *model.unsupported_settings,
        *(listed if isinstance(listed, tuple | list | frozenset) else ()),
    }
    if not disable_retries(getattr(model, "client", None)) and "max_retries" not in unsupported:
        settings["max_retries"] = 0
    if extra_body and "extra_body" not in unsupported:
        settings["extra_body"] = dict(extra_body)
    return settings


def _other_limit(model: LibraryModel) -> str | None:
    """Return the alternative name of the token limit in Chat Completions; None for other interfaces."""
    if "OpenAIChatModel" not in {cls.__name__ for cls in type(model).__mro__}:
        return None
    newer = model.profile.get("openai_chat_supports_max_completion_tokens", True)
    return "max_tokens" if newer else "max_completion_tokens"


def _takes_temperature(model: LibraryModel, thinking: ThinkingLevel | None) -> bool:
    """Return False for a model that accepts none while it thinks: the library would drop it with a warning per request."""
    profile = model.profile
    if profile.get("anthropic_disallows_sampling_settings", False):
        return False
    by_default = profile.get("thinking_always_enabled", False) or profile.get("thinking_enabled_by_default", False)
    thinking_now = (
        by_default if thinking is None else thinking != "off" or profile.get("thinking_always_enabled", False)
    )
    if profile.get("openai_supports_reasoning", False):
        efforts = profile.get("openai_reasoning_efforts")
        can_be_off = "none" in efforts if isinstance(efforts, tuple | frozenset | list) else False
        can_be_off = can_be_off or bool(profile.get("openai_supports_reasoning_effort_none", False))
        return can_be_off and not thinking_now
    return not (thinking_now and model.system == "anthropic" and profile.get("supports_thinking", False))


_PROMPTED_FORM = "Reply with one JSON object that satisfies this JSON Schema, and with nothing else:"


def _max_tokens(request: ModelRequest, form: RequestForm, room: int | None) -> int:
    """Return the most tokens of a reply: of answer and thinking, which providers count together, as far as the server allows."""
    asked = request.max_tokens + request.thinking_tokens
    return min(limit for limit in (asked, form.max_tokens, room) if limit is not None)


def _parameters(request: ModelRequest, mode: OutputMode) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    if request.schema is None or mode == "prompted":
        return ModelRequestParameters()
    schema = dict(request.schema)
    described = schema.get("description")
    description = described if isinstance(described, str) else None
    name = re.sub(r"[^A-Za-z0-9_-]", "_", request.returns.__name__ if request.returns else "Reply")[:64]
    if mode == "tool":
        tool = ToolDefinition(
            name=_OUTPUT_TOOL,
            parameters_json_schema=schema,
            description=description or "Give the reply.",
            kind="output",
        )
        return ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=False)
    output = OutputObjectDefinition(json_schema=schema, name=name, description=description, strict=True)
    return ModelRequestParameters(output_mode=mode, output_object=output)


def _text(response: ModelResponse, *, typed: bool = True) -> str:
    """Return the text; of a typed reply the arguments of a call, if it is one of the output tool or there is nothing else."""
    text = response.text or ""
    for call in response.tool_calls if typed else ():
        if call.tool_name == _OUTPUT_TOOL or not text.strip():
            return call.args if isinstance(call.args, str) else call.args_as_json_str()
    return text


def _reasoning(response: ModelResponse) -> str:
    return "".join(part.content for part in response.parts if part.part_kind == "thinking")
