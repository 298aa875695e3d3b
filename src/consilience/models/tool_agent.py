"""A pydantic-ai `Agent` with tools in a seat. Its requests and its tools' results are recorded as steps.

The agent's own loop runs unchanged; a capability between it and its model and tools makes each request and result a step. On the
last allowed step no tools are offered, so that the model must answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, StructuredDict
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import AgentRunError, ToolRetryError, UserError
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart, ToolReturn
from pydantic_ai.models import Model as LibraryModel
from pydantic_ai.models import infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_core import to_json

from consilience.domain.errors import ProviderError, Rejected, SettingsError, UnavailableModel
from consilience.domain.outcome import Thinks
from consilience.models.facts import listed_cost
from consilience.models.failures import translate
from consilience.models.hosted import DEADLINE_SECONDS, RETRIES
from consilience.models.limiter import Limited
from consilience.models.parsing import Malformed, parse_reply
from consilience.models.port import Completion, Model, ModelRequest, StepResult, Steps
from consilience.models.provider import (
    ProviderModel,
    credible_usage,
    keys_of,
    thought_tokens,
)
from consilience.models.redaction import scrub, without_keys
from consilience.models.transfer import bound_requests

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

MAX_STEPS = 8


class ToolAgent:
    """A pydantic-ai agent that answers in at most `max_steps` requests to its model. `deps` are passed to its tools.

    It is recorded as `agent:NAME` and must be passed again on resume. A tool may run twice if a process ended while it ran.
    """

    def __init__(
        self, agent: Agent[Any, Any], *, name: str | None = None, deps: Any = None, max_steps: int = MAX_STEPS
    ) -> None:
        if max_steps < 1:
            raise SettingsError("an agent needs at least one step", where="max_steps", do="Give 1 or more.")
        if agent.model is None:
            raise SettingsError("the agent has no model", do="Set one: Agent('openai:…', tools=[…]).")
        self._agent = agent
        self._deps = deps
        self._model = _library_model(agent.model)
        self._provider = ProviderModel(self._model.model_id, self._model.system, self._model)
        self.max_steps = max_steps
        self.name = f"agent:{name or agent.name or self._model.model_name}"

    @property
    def thinks(self) -> Thinks:
        return self._provider.thinks

    async def work(self, request: ModelRequest, steps: Steps) -> str:
        """Return the agent's answer. Raises `ProviderError`s."""
        output: Any = str
        if request.schema is not None:
            output = StructuredDict(dict(request.schema), name=request.returns.__name__ if request.returns else "Reply")
        settings = self._provider.settings
        settings["max_tokens"] = request.max_tokens + request.thinking_tokens
        if request.thinking is not None and not _sets_thinking(self._agent.model_settings):
            settings["thinking"] = False if request.thinking == "off" else request.thinking
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        try:
            result = await self._agent.run(
                request.user,
                output_type=output,
                model=self._model,
                instructions=request.system or None,
                deps=self._deps,
                model_settings=settings,
                capabilities=[_RecordedRun(steps=steps, request=request)],
            )
        except ProviderError:
            raise
        except (UserError, AgentRunError) as error:
            raise Rejected(f"{self.name}: {scrub(str(error), [])[:300]}") from None
        answer = result.output
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return self._provider.price(tokens_in, tokens_out)

    async def close(self) -> None:
        return None


@dataclass
class _RecordedRun(AbstractCapability[Any]):
    """Records the requests and tool calls of one run."""

    steps: Steps
    request: ModelRequest
    tool_calls: dict[str, int] = field(default_factory=dict)
    """Numbers of the tool calls of the latest response, by id."""

    def get_wrapper_model(self, model: LibraryModel) -> LibraryModel:
        return _RecordedModel(model, self)

    async def wrap_tool_execute(self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: Any, handler: Any) -> Any:
        async def work() -> StepResult:
            try:
                result = await handler(args)
            except (ModelRetry, ToolRetryError) as error:
                return StepResult(_retry_message(error), "retry")
            except ProviderError:
                raise
            except Exception as error:
                raise Rejected(
                    f"the tool {call.tool_name} failed: {type(error).__name__}: {scrub(str(error), [])[:300]}"
                ) from error
            return _tool_result(call.tool_name, result)

        digest = _digest(["tool", call.tool_name, call.args_as_dict()])
        step_result = await self.steps.use(self.tool_calls[call.tool_call_id], digest, work)
        if step_result.form == "retry":
            raise ModelRetry(step_result.text)
        return json.loads(step_result.text) if step_result.form == "json" else step_result.text


class _RecordedModel(WrapperModel):
    """The agent's model. Each request to it is a step."""

    def __init__(self, wrapped: LibraryModel, run: _RecordedRun) -> None:
        super().__init__(wrapped)
        self._run = run

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        offered = model_request_parameters
        digest = _digest(["model", self.wrapped.model_id, _content_rows(messages), _tools(offered)])
        if self._run.steps.last:
            offered = replace(offered, function_tools=[])
        sending = _AgentRequest(self.wrapped, messages, model_settings, offered)

        async def send() -> StepResult:
            completion = await Limited(sending, deadline=DEADLINE_SECONDS, retries=RETRIES).complete(self._run.request)
            return StepResult(
                completion.text,
                "json",
                completion.tokens_in,
                completion.tokens_out,
                completion.tokens_cached,
                completion.cost,
                completion.requests,
                completion.tokens_thought,
            )

        result = await self._run.steps.ask(digest, send)
        (response,) = ModelMessagesTypeAdapter.validate_json(result.text)
        assert isinstance(response, ModelResponse)
        self._run.tool_calls = {part.tool_call_id: n for n, part in enumerate(response.tool_calls, 1)}
        return _answering(response, self._run.request.returns, offered)


@dataclass
class _AgentRequest(Model):
    """One request of the agent to its model, as a `Model`, so that limits, retries and failures apply as elsewhere."""

    model: LibraryModel
    messages: list[ModelMessage]
    settings: ModelSettings | None
    parameters: ModelRequestParameters

    @property
    def name(self) -> str:
        return self.model.model_id

    @property
    def account(self) -> str:
        return self.model.system

    async def complete(self, request: ModelRequest) -> Completion:
        bound_requests(self.model)
        try:
            response = await self.model.request(self.messages, self.settings, self.parameters)
        except AssertionError as error:  # pydantic-ai's test models refuse unsupported requests; a retry is useless
            failure: ProviderError = Rejected(f"{self.name} cannot take this request: {scrub(str(error), [])[:300]}")
        except Exception as error:
            failure = translate(error, self.account, lambda text: scrub(text, keys_of(self.model)))
        else:
            usage = credible_usage(response)
            return Completion(
                text=without_keys(ModelMessagesTypeAdapter.dump_json([response]).decode(), keys_of(self.model)),
                model=self.name,
                tokens_in=usage.input_tokens,
                tokens_out=usage.output_tokens,
                tokens_thought=thought_tokens(response),
                tokens_cached=usage.cache_read_tokens,
                cost=listed_cost(response),
            )
        raise failure


def _answering(response: ModelResponse, returns: type | None, offered: ModelRequestParameters) -> ModelResponse:
    """Return a response in words as the typed output that the agent expects, if it parses like a reply of any model; else return it
    unchanged, and the agent requests the form again."""
    if returns is None or response.tool_calls or not response.text:
        return response
    try:
        reply: BaseModel = parse_reply(response.text, returns)
    except Malformed:
        return response
    output = reply.model_dump_json(exclude_unset=True)
    if not offered.output_tools:
        return replace(response, parts=[TextPart(output)])
    return replace(response, parts=[*response.parts, ToolCallPart(offered.output_tools[0].name, output)])


def _sets_thinking(settings: object) -> bool:
    """Return whether an agent's own settings set its thinking; settings computed per step may."""
    if settings is None:
        return False
    return not isinstance(settings, dict) or any(re.search("thinking|reasoning|effort", name) for name in settings)


def _library_model(model: LibraryModel | str) -> LibraryModel:
    """Return the library's model. Raises `UnavailableModel` if its key or client is missing."""
    if isinstance(model, LibraryModel):
        return model
    try:
        return infer_model(model)
    except (UserError, ImportError, ValueError) as error:
        raise UnavailableModel(f"the agent's model {model} cannot be set up: {scrub(str(error), [])[:300]}") from None


def _tool_result(tool: str, result: object) -> StepResult:
    """Return a tool's result as text, from which the agent's value is read back. Raises `Rejected` if it cannot be stored."""
    if isinstance(result, str):
        return StepResult(result)
    if isinstance(result, ToolReturn):
        raise Rejected(f"the tool {tool} returned a ToolReturn, which cannot be recorded; return text or plain data")
    try:
        return StepResult(to_json(result).decode(), "json")
    except ValueError as error:
        raise Rejected(f"the result of the tool {tool} cannot be recorded: {error}") from None


def _retry_message(error: ModelRetry | ToolRetryError) -> str:
    """Return the tool's request for a correction."""
    if isinstance(error, ModelRetry):
        return error.message
    content = error.tool_retry.content
    return content if isinstance(content, str) else json.dumps(content, default=str)


_CONTENT_FIELDS = ("kind", "part_kind", "content", "args", "tool_name", "instructions", "outcome")


def _content_rows(messages: list[ModelMessage]) -> list[object]:
    """Return the messages' content, without times, usage, and ids that differ between runs."""
    rows: list[object] = []
    for message in ModelMessagesTypeAdapter.dump_python(messages, mode="json"):
        row = {name: message[name] for name in _CONTENT_FIELDS if name in message}
        rows.append(
            {
                **row,
                "parts": [{name: part[name] for name in _CONTENT_FIELDS if name in part} for part in message["parts"]],
            }
        )
    return rows


def _tools(parameters: ModelRequestParameters) -> list[object]:
    tools = (*parameters.function_tools, *parameters.output_tools)
    return [[tool.name, tool.description, tool.parameters_json_schema] for tool in tools]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def as_tool_agent(agent: object) -> ToolAgent | None:
    """Return the agent as a `ToolAgent` if it is one of pydantic-ai."""
    return ToolAgent(agent) if isinstance(agent, Agent) else None
