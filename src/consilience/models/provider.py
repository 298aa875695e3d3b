"""A request through pydantic-ai's low-level interface to whichever provider its model names.

One `complete` is one sending: the SDK's own retries are off, so that limits bound what is really sent. The one
exception is an answer that says structured output is not supported: then the next weaker means is remembered, and tried
at once with the permission of `limiter.may_retry`. Every failure of the library becomes a `ProviderError`
whose detail says what to do and holds no key.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Literal

from consilience.domain.errors import ProviderError, Refused, ServerError
from consilience.models.failures import scrub, translate, without_keys
from consilience.models.limiter import retry_allowed
from consilience.models.port import Completion, ModelRequest

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model as LibraryModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage

OutputMode = Literal["native", "tool", "prompted"]

_OUTPUT_TOOL = "reply"
_MOST_TOKENS = 100_000_000
"""Tokens of one request, ten times what the longest known context holds."""
_LINEAR_UP_TO = 100_000
"""Input tokens below which no known price list has a further tier."""


class ProviderModel:
    """One model of one provider account.

    `prices` are US dollars per million tokens (in, out) and replace the price data; (0.0, 0.0) is for a server of
    one's own. `extra_body` is merged into the body of requests of adapters that can. An instance serves one event
    loop at a time; used on another, it opens its connections anew.
    """

    def __init__(
        self,
        name: str,
        account: str,
        model: LibraryModel,
        *,
        extra_body: dict[str, object] | None = None,
        prices: tuple[float, float] | None = None,
    ) -> None:
        self._name = name
        self._account = account
        self._model = model
        self._prices = prices
        self._mode: OutputMode | None = None
        self._settings = _fixed_settings(model, extra_body)
        self._takes_temperature = _takes_temperature(model)
        self._unpriced: set[str] = set()
        self._rates: tuple[float, float] | Literal["unread"] | None = "unread"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entering: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def account(self) -> str:
        return self._account

    @property
    def settings(self) -> ModelSettings:
        """What every request to this model is sent with: above all, without retries of the SDK's own."""
        return self._settings.copy()

    async def complete(self, request: ModelRequest) -> Completion:
        """One sending (two where structured output had to be asked for by a weaker means).

        Raises `RateLimited`, `ServerError`, `Timeout`, `Unreachable`, `Refused` or `Rejected`. An empty text is an
        answer. A `Refused` that was paid for carries what came and what it cost in its attribute `completion`.
        """
        if self._loop is not asyncio.get_running_loop():
            await self._enter()
        sent = 0
        while True:
            mode = self._output_mode() if request.schema is not None else None
            sent += 1
            try:
                response = await self._send(request, mode)
            except Exception as error:
                weaker = self._weaker(mode, error)
                self._mode = weaker or self._mode  # before permission is asked: else the next call would fail alike
                failure = None if weaker and retry_allowed() else self._failure(error)
            else:
                return self._completion(response, sent)
            if failure is not None:  # raised here so that it does not drag the library's exception along
                vars(failure)["requests"] = sent
                raise failure

    async def _send(self, request: ModelRequest, mode: OutputMode | None) -> ModelResponse:
        from pydantic_ai import messages
        from pydantic_ai.direct import model_request

        parts: list[messages.ModelRequestPart] = []
        if request.system:
            parts.append(messages.SystemPromptPart(request.system))
        parts.append(messages.UserPromptPart(request.user))
        settings = self._settings.copy()
        settings["max_tokens"] = request.max_tokens
        if request.temperature is not None and self._takes_temperature:
            settings["temperature"] = request.temperature
        if request.seed is not None:
            settings["seed"] = request.seed
        return await model_request(
            self._model,
            [messages.ModelRequest(parts=parts)],
            model_settings=settings,
            model_request_parameters=_parameters(request, mode),
        )

    def _output_mode(self) -> OutputMode:
        """The strongest means of structured output the model's profile claims."""
        if self._mode is None:
            profile = self._model.profile
            if profile.get("supports_json_schema_output", False):
                self._mode = "native"
            elif profile.get("supports_tools", True):
                self._mode = "tool"
            else:
                self._mode = "prompted"
        return self._mode

    def _weaker(self, mode: OutputMode | None, error: Exception) -> OutputMode | None:
        """The next means to try when `error` says that this one is not supported; None otherwise."""
        from pydantic_ai.exceptions import ModelRequestRejectedError

        if mode in (None, "prompted") or type(error).__name__ != ModelRequestRejectedError.__name__:
            return None
        said = str(error).lower()
        if mode == "native" and re.search(r"response_format|json_schema|structured[ _]outputs?|text\.format", said):
            weaker: OutputMode = "tool" if self._model.profile.get("supports_tools", True) else "prompted"
        elif mode == "tool" and re.search(r"\btools?\b|tool_choice|function", said):
            weaker = "prompted"
        else:
            return None
        return weaker

    def _completion(self, response: ModelResponse, sent: int) -> Completion:
        usage = credible_usage(response)
        details = response.provider_details or {}
        keys = keys_of(self._model)
        text = without_keys(_text(response), keys)
        reason = response.finish_reason or _word(details.get("finish_reason") or "stop", keys)
        answered = _word(response.model_name or self._model.model_name, keys)
        completion = Completion(
            text=text,
            model=f"{self._name.partition(':')[0]}:{answered}",
            tokens_in=usage.input_tokens,
            tokens_out=usage.output_tokens,
            tokens_cached=usage.cache_read_tokens,
            cost=self._cost(response),
            finish_reason="stop" if reason == "tool_call" else reason,
            requests=sent,
        )
        failure: ProviderError | None = None
        if reason == "content_filter":
            said = str(details.get("refusal") or details.get("refusal_category") or "") or text
            failure = Refused(self._scrub(f"{self._account}: the model refused to answer. {said[:300]}".strip()))
        elif reason == "error" and not text:
            failure = ServerError(f"{self._account}: the provider reported a failed generation")
        if failure is not None:
            vars(failure).update(requests=sent, completion=completion)
            raise failure
        return completion

    def _cost(self, response: ModelResponse) -> float | None:
        """Exact, with tiers and cache reads and writes; None where no price is known."""
        if self._prices is not None:
            return (
                response.usage.input_tokens * self._prices[0] + response.usage.output_tokens * self._prices[1]
            ) / 1_000_000
        answered = response.model_name or ""
        if not answered or answered in self._unpriced:
            return None
        try:
            return float(response.cost().total_price)
        except LookupError:
            self._unpriced.add(answered)
        except ValueError:  # the response did not say what it used
            return None
        return None

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        """US dollars for a request of that size without cache reads; None where no price is known."""
        if self._prices is not None:
            return (tokens_in * self._prices[0] + tokens_out * self._prices[1]) / 1_000_000
        if tokens_in > _LINEAR_UP_TO:
            return self._listed_price(tokens_in, tokens_out)
        if self._rates == "unread":
            rate_in, rate_out = self._listed_price(10_000, 0), self._listed_price(0, 10_000)
            self._rates = None if rate_in is None or rate_out is None else (rate_in / 10_000, rate_out / 10_000)
        return None if self._rates is None else tokens_in * self._rates[0] + tokens_out * self._rates[1]

    def _listed_price(self, tokens_in: int, tokens_out: int) -> float | None:
        from pydantic_ai.messages import ModelResponse
        from pydantic_ai.usage import RequestUsage

        model = self._model
        response = ModelResponse(
            parts=[],
            usage=RequestUsage(input_tokens=tokens_in, output_tokens=tokens_out),
            model_name=model.model_name,
            provider_name=model.system,
            provider_url=model.provider.base_url if model.provider is not None else None,
        )
        try:
            return float(response.cost().total_price)
        except (LookupError, ValueError):
            return None

    async def close(self) -> None:
        """Close the connections. The model may be used again afterwards, on this event loop or another."""
        if self._loop is not None:
            closed_with_its_loop = self._loop.is_closed()
            self._loop = None
            with contextlib.suppress(*((RuntimeError,) if closed_with_its_loop else ())):
                await self._model.__aexit__(None, None, None)

    async def _enter(self) -> None:
        """Have the library open its connections anew: they belong to the event loop that opened them."""
        loop = asyncio.get_running_loop()
        if self._entering is None or self._entering[0] is not loop:
            self._entering = (loop, asyncio.Lock())
        async with self._entering[1]:
            if self._loop is not loop:
                await self.close()
                await self._model.__aenter__()
                self._loop = loop

    def _failure(self, error: Exception) -> ProviderError:
        return translate(error, self._account, self._scrub)

    def _scrub(self, text: str) -> str:
        return scrub(text, keys_of(self._model))


def credible_usage(response: ModelResponse) -> RequestUsage:
    """What it used, as it says. Figures that no model can reach are struck from the response, as if it had said nothing."""
    from pydantic_ai.usage import RequestUsage

    usage = response.usage
    if max(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) > _MOST_TOKENS:
        response.usage = RequestUsage()
    return response.usage


def keys_of(model: LibraryModel) -> list[str]:
    """The keys that requests to `model` carry, as far as its client tells."""
    client = getattr(model, "client", None)
    keys = (getattr(client, "api_key", None), getattr(getattr(client, "_api_client", None), "api_key", None))
    return [key for key in keys if isinstance(key, str)]


def _word(said: object, keys: list[str]) -> str:
    """A name or word of the provider's own, which is recorded; no reply, so whatever looks like a secret goes too."""
    return scrub(without_keys(str(said), keys), [])


def told_not_to_retry(client: object) -> bool:
    """Turn off the retries of an SDK's client, if it can be told once for all its requests."""
    if not isinstance(getattr(client, "max_retries", None), int):
        return False
    vars(client)["max_retries"] = 0
    return True


def _fixed_settings(model: LibraryModel, extra_body: dict[str, object] | None) -> ModelSettings:
    """SDK retries off, and the body's additions; only what the adapter supports, for it warns of the rest.

    A client that can be told once is (OpenAI, Anthropic, Groq): telling it with each request copies it, for 0.25 ms.
    """
    settings: ModelSettings = {}
    listed = model.profile.get("openai_unsupported_model_settings", ())
    unsupported = {*model.unsupported_settings, *(listed if isinstance(listed, tuple | list | frozenset) else ())}
    if not told_not_to_retry(getattr(model, "client", None)) and "max_retries" not in unsupported:
        settings["max_retries"] = 0
    if extra_body and "extra_body" not in unsupported:
        settings["extra_body"] = dict(extra_body)
    return settings


def _takes_temperature(model: LibraryModel) -> bool:
    """False for reasoning models that take none: the library would drop it too, with a warning at every request."""
    profile = model.profile
    if profile.get("openai_supports_reasoning", False):
        efforts = profile.get("openai_reasoning_efforts")
        quiet = "none" in efforts if isinstance(efforts, tuple | frozenset | list) else False
        quiet = quiet or bool(profile.get("openai_supports_reasoning_effort_none", False))
        return quiet and not profile.get("thinking_enabled_by_default", False)
    return not profile.get("anthropic_disallows_sampling_settings", False)


def _parameters(request: ModelRequest, mode: OutputMode | None) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    if mode is None or request.schema is None:
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
    output = OutputObjectDefinition(
        json_schema=schema, name=name, description=description, strict=True if mode == "native" else None
    )
    return ModelRequestParameters(output_mode=mode, output_object=output)


def _text(response: ModelResponse) -> str:
    """The text, or the arguments of the output tool where the answer came as a call of it."""
    for call in response.tool_calls:
        if call.tool_name == _OUTPUT_TOOL:
            return call.args_as_json_str()
    return response.text or ""
