"""Inspect: a solver that deliberates, and the model under evaluation as one that takes seats. Needs the extra `inspect`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.deliberation import Deliberation, deliberation_from
from consilience.domain.errors import ConsilienceError, Refused, ServerError, SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, StopReason, Thinks
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models, Options
from consilience.engine.similarity import Encoder
from consilience.integrations import need
from consilience.journal.store import Store
from consilience.models.port import Completion, ModelRequest
from consilience.models.program import with_schema

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage, ModelOutput
    from inspect_ai.model import Model as InspectModel
    from inspect_ai.solver import Solver, TaskState

REPORT = "consilience:report"
"""Where the report lies in a sample's store."""

_HEARD = frozenset({"text", "reasoning"})
"""What a message may hold. What a model thought before is kept from others, as Inspect's own `text` does."""
_FINISH = {"max_tokens": "length", "model_length": "length"}


class Evaluated:
    """The model under evaluation, or the one of a `role` in it, as a model that takes seats. Only inside a running eval.

    Requests go through Inspect: its cache, its retries and its limits hold, and its log has every request and all usage. The form
    of a typed reply is asked for in words, since what a provider can do natively is not known here. Where Inspect ends a sample
    for a limit, the deliberation is cut off with it. How much the model thinks is Inspect's setting (`reasoning_effort`); each
    request leaves room for it.
    """

    thinks: Thinks = "always"
    """Whether a model of Inspect thinks is not known here."""

    def __init__(self, role: str | None = None) -> None:
        self._role = role

    @property
    def _model(self) -> InspectModel:
        found: InspectModel = need("inspect_ai.model", "inspect").get_model(role=self._role)
        return found

    @property
    def name(self) -> str:
        return f"inspect:{self._model}"

    @property
    def account(self) -> str:
        return self.name

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
        except Exception as failure:  # whatever a provider raises once Inspect has tried again as often as it was told
            if isinstance(failure, limit):  # with this Inspect ends the sample
                raise
            raise ServerError(f"{self.name}: {' '.join(str(failure).split())[:300]}") from failure
        return self._completion(output)

    def _completion(self, output: ModelOutput) -> Completion:
        if output.empty:
            raise ServerError(f"{self.name}: {output.error or 'nothing came back'}")
        usage = output.usage
        cached = (usage.input_tokens_cache_read or 0) if usage else 0
        written_to_cache = (usage.input_tokens_cache_write or 0) if usage else 0
        found = Completion(
            text=output.completion,
            model=self.name,
            tokens_in=usage.input_tokens + cached + written_to_cache if usage else 0,
            tokens_out=usage.output_tokens if usage else 0,
            tokens_thought=min(usage.reasoning_tokens or 0, usage.output_tokens) if usage else 0,
            tokens_cached=cached,
            cost=usage.total_cost if usage else None,
            finish_reason=_FINISH.get(output.stop_reason, output.stop_reason),
        )
        if output.stop_reason == "content_filter":
            refusal = Refused(f"{self.name}: {output.error or 'the reply was refused'}")
            refusal.completion = found
            raise refusal
        return found

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return None

    async def close(self) -> None:
        return None


def deliberation(
    protocol: Protocol,
    *,
    model: Models | None = None,
    task: Callable[[TaskState], str] | None = None,
    sources: Callable[[TaskState], Sequence[Source | Path]] | None = None,
    panel: Panel | str | Path | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    quorum: float = 0.5,
    encoder: str | Encoder | None = None,
    store: Store | None = None,
    prompts: Path | None = None,
    options: Options | None = None,
) -> Solver:
    """A solver that puts each sample before the agents of a protocol.

    `model` None is the model under evaluation for every agent; names as everywhere here, or `Evaluated()` beside others in a
    mapping, give other seats to others. `task` makes the task of a sample, by default all messages so far, each under the role
    that said it where there are several; images and the like cannot be among them. The answer becomes the sample's output, the
    report its `consilience:report` in the sample's store. Of a run that ended `failed` the sample is an error, as it is when a
    model of Inspect fails: an outage is no wrong answer.
    """
    solvers = need("inspect_ai.solver", "inspect")
    how: Deliberation[Report] = deliberation_from(
        protocol, locals(), model=Evaluated() if model is None else model, sources=()
    )

    def logged(protocol: str, settings: Mapping[str, Any]) -> Solver:
        """Its arguments are what the log says of this step."""

        async def solve(state: TaskState, generate: object) -> TaskState:
            question = task(state) if task else _task(state.messages)
            report = await replace(how, sources=sources(state) if sources else ()).run(question)
            return _answered(state, report)

        return solve

    registered = solvers.solver(name="deliberation")(logged)
    found: Solver = registered(protocol=protocol.name, settings=protocol.model_dump(mode="json", exclude_defaults=True))
    return found


def _task(messages: Sequence[ChatMessage]) -> str:
    """What was said so far. Raises `SettingsError` where it is no text, since the agents would answer another question."""
    for at, message in enumerate(messages, 1):
        for part in () if isinstance(message.content, str) else message.content:
            if part.type not in _HEARD:
                raise SettingsError(
                    f"agents read text only, and this sample holds content of the type {part.type!r}",
                    where=f"message {at} ({message.role}) of the sample",
                    do="Give deliberation(…, task=…) a function that says it in words, or leave such samples out.",
                )
    said = [message for message in messages if message.text.strip()]
    if len(said) == 1:
        return said[0].text
    return "\n\n".join(f"{message.role.capitalize()}: {message.text}" for message in said)


def _answered(state: TaskState, report: Report) -> TaskState:
    state.store.set(REPORT, report.model_dump(mode="json"))
    if report.stop_reason is StopReason.FAILED:
        why = "; ".join(f"{seat.agent}: {seat.reason}" for seat in report.missing[:3])
        raise ConsilienceError(f"the deliberation {report.session} failed: {why or 'no agent answered'}")
    library = need("inspect_ai.model", "inspect")
    models = ", ".join(dict.fromkeys(agent.model for agent in report.agents))
    state.output = library.ModelOutput.from_content(model=models, content=report.answer or "")
    state.messages.append(state.output.message)
    return state
