"""Inspect: a solver that deliberates, and the model under evaluation as a model for seats. Needs the extra `inspect`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from consilience.deliberation import Deliberation
from consilience.domain.errors import ConsilienceError, Refused, ServerError, SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import StopReason, Thinks
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models
from consilience.integrations import DeliberationSettings, need
from consilience.models.port import Completion, Model, ModelRequest
from consilience.models.program import with_schema

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage, ModelOutput
    from inspect_ai.model import Model as InspectModel
    from inspect_ai.solver import Solver, TaskState

REPORT = "consilience:report"
"""Key of the report in a sample's store."""

_READABLE_CONTENT = frozenset({"text", "reasoning"})
"""Allowed content of a message. Earlier reasoning is not shown to agents; Inspect's own `text` drops it."""
_FINISH_REASONS = {"max_tokens": "length", "model_length": "length"}


class Evaluated(Model):
    """The model under evaluation, or that of one of its roles, as a model for seats. Only inside a running eval.

    Requests go through Inspect, so its cache, retries and limits apply, and its log has every request and all usage. The form of a
    typed reply is requested in words, because the provider's own means are not known here. If Inspect ends a sample at a limit, the
    deliberation ends with it. How much the model thinks is Inspect's setting (`reasoning_effort`); each request leaves room for it.
    """

    thinks: Thinks = "always"
    """Whether a model of Inspect thinks is not known here, so room is reserved."""

    def __init__(self, role: str | None = None) -> None:
        self._role = role

    @property
    def _model(self) -> InspectModel:
        model: InspectModel = need("inspect_ai.model", "inspect").get_model(role=self._role)
        return model

    @property
    def name(self) -> str:
        return f"inspect:{self._model}"

    async def complete(self, request: ModelRequest) -> Completion:
        library, limit = need("inspect_ai.model", "inspect"), need("inspect_ai.util", "inspect").LimitExceededError
        user = with_schema(request.user, request.schema)
        system = [library.ChatMessageSystem(content=request.system)] if request.system else []
        config = library.GenerateConfig(
            max_tokens=request.max_tokens + request.thinking_tokens,
            temperature=request.temperature,
            seed=request.seed,
        )
        try:
            output = await self._model.generate([*system, library.ChatMessageUser(content=user)], config=config)
        except Exception as failure:  # whatever a provider raises, after Inspect's own retries
            if isinstance(failure, limit):  # Inspect ends the sample with it
                raise
            raise ServerError(f"{self.name}: {' '.join(str(failure).split())[:300]}") from failure
        return self._completion(output)

    def _completion(self, output: ModelOutput) -> Completion:
        if output.empty:
            raise ServerError(f"{self.name}: {output.error or 'the reply is empty'}")
        usage = output.usage
        cached = (usage.input_tokens_cache_read or 0) if usage else 0
        written_to_cache = (usage.input_tokens_cache_write or 0) if usage else 0
        completion = Completion(
            text=output.completion,
            model=self.name,
            tokens_in=usage.input_tokens + cached + written_to_cache if usage else 0,
            tokens_out=usage.output_tokens if usage else 0,
            tokens_thought=min(usage.reasoning_tokens or 0, usage.output_tokens) if usage else 0,
            tokens_cached=cached,
            cost=usage.total_cost if usage else None,
            finish_reason=_FINISH_REASONS.get(output.stop_reason, output.stop_reason),
        )
        if output.stop_reason == "content_filter":
            refusal = Refused(f"{self.name}: {output.error or 'the reply was refused'}")
            refusal.completion = completion
            raise refusal
        return completion


def deliberation(
    protocol: Protocol,
    *,
    model: Models | None = None,
    task: Callable[[TaskState], str] | None = None,
    sources: Callable[[TaskState], Sequence[Source | Path]] | None = None,
    **settings: Unpack[DeliberationSettings],
) -> Solver:
    """Return a solver in which the agents of a protocol answer each sample.

    `model` None is the model under evaluation for every agent. Other models are given as for `deliberate`; a mapping may contain
    `Evaluated()`. `task` returns the task of a sample, by default all its messages, under their roles if there are several; they
    must be text. The answer becomes the sample's output, and the report is in the sample's store under `consilience:report`. A run
    that ended `failed` is an error of the sample, not a wrong answer. `settings` are further fields of `Deliberation`.
    """
    solvers = need("inspect_ai.solver", "inspect")
    deliberation = Deliberation[Report](protocol, model=Evaluated() if model is None else model, **settings)

    def logged(protocol: str, settings: Mapping[str, Any]) -> Solver:
        """Inspect logs the arguments."""

        async def solve(state: TaskState, generate: object) -> TaskState:
            question = task(state) if task else _task(state.messages)
            report = await replace(deliberation, sources=sources(state) if sources else ()).run(question)
            return _answered(state, report)

        return solve

    registered = solvers.solver(name="deliberation")(logged)
    solver: Solver = registered(
        protocol=protocol.name, settings=protocol.model_dump(mode="json", exclude_defaults=True)
    )
    return solver


def _task(messages: Sequence[ChatMessage]) -> str:
    """The messages so far. Raises `SettingsError` for content other than text, which agents would not see."""
    for number, message in enumerate(messages, 1):
        for part in () if isinstance(message.content, str) else message.content:
            if part.type not in _READABLE_CONTENT:
                raise SettingsError(
                    f"agents read text only, and this sample holds content of the type {part.type!r}",
                    where=f"message {number} ({message.role}) of the sample",
                    do="Give deliberation(…, task=…) a function that describes it in words, or leave such samples out.",
                )
    with_text = [message for message in messages if message.text.strip()]
    if len(with_text) == 1:
        return with_text[0].text
    return "\n\n".join(f"{message.role.capitalize()}: {message.text}" for message in with_text)


def _answered(state: TaskState, report: Report) -> TaskState:
    state.store.set(REPORT, report.model_dump(mode="json"))
    if report.stop_reason is StopReason.FAILED:
        reasons = "; ".join(f"{seat.agent}: {seat.reason}" for seat in report.missing[:3])
        raise ConsilienceError(f"the deliberation {report.session} failed: {reasons or 'no agent answered'}")
    library = need("inspect_ai.model", "inspect")
    models = ", ".join(dict.fromkeys(agent.model for agent in report.agents))
    state.output = library.ModelOutput.from_content(model=models, content=report.answer or "")
    state.messages.append(state.output.message)
    return state
