"""The steps of an agent with tools within one attempt of a call. Recorded steps are returned as recorded; a new step is funded,
taken and recorded before it has effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from consilience.domain.errors import ProviderError, Rejected
from consilience.domain.events import StepCompleted, text_id
from consilience.domain.outcome import FailureKind
from consilience.engine.activity import Phase
from consilience.engine.ledger import CallBudget, LimitHit
from consilience.engine.ports import AgentPort
from consilience.engine.sizes import Usage
from consilience.engine.state import State
from consilience.models.limiter import running_count
from consilience.models.port import Completion, ModelRequest, StepResult


class StepRefused(ProviderError):
    """A limit refused a further step."""

    kind = FailureKind.BUDGET

    def __init__(self, hit: LimitHit) -> None:
        self.hit = hit
        super().__init__("no budget for another step")


@dataclass
class StepLog:
    """Implements `models.port.Steps`. The first request is reserved with the call; each further one reserves `size`.

    If the budget cannot fund another step, a `closing` call answers without tools, and another call is refused.
    """

    state: State
    agent: str
    call: str
    place: str
    attempt: int
    phase: Phase | None
    size: Usage
    closing: bool
    budget: CallBudget
    steps_taken: int = 0
    spent: Usage = field(default_factory=Usage)
    """What the steps used."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_thought: int = 0
    tokens_cached: int = 0
    cost: float | None = 0.0
    ended: bool = False
    """Set when a time limit ends the call. Then no step is taken or recorded, even if the agent ignores its cancellation."""

    @property
    def max_steps(self) -> int:
        return self.state.ledger.sizes.steps.get(self.agent, 1)

    @property
    def last(self) -> bool:
        if self.steps_taken + 1 >= self.max_steps:
            return True
        return self.closing and not self.budget.covers(self.size * (2 if self.steps_taken else 1))

    async def ask(self, digest: str, send: Callable[[], Awaitable[StepResult]]) -> StepResult:
        if self.steps_taken >= self.max_steps:
            raise Rejected(f"no answer within {self.max_steps} steps")
        self.steps_taken += 1
        if self.steps_taken > 1 and (hit := self.budget.reserve_step(self.size)) is not None:
            self.steps_taken -= 1
            raise StepRefused(hit)
        key = f"{self.call}/step-{self.steps_taken}"
        try:
            result = await self._step("model", key, f"{self.place}.{self.steps_taken}.0", digest, send)
        except ProviderError as failure:
            self.spent += Usage(failure.requests)
            running_count().settle()
            raise
        running_count().settle()
        self.spent += Usage(result.requests, result.tokens_in + result.tokens_out, result.cost or 0)
        self.tokens_in += result.tokens_in
        self.tokens_out += result.tokens_out
        self.tokens_thought += result.tokens_thought
        self.tokens_cached += result.tokens_cached
        self.cost = None if self.cost is None or result.cost is None else self.cost + result.cost
        return result

    async def use(self, number: int, digest: str, work: Callable[[], Awaitable[StepResult]]) -> StepResult:
        key = f"{self.call}/step-{self.steps_taken}/tool-{number}"
        return await self._step("tool", key, f"{self.place}.{self.steps_taken}.{number}", digest, work)

    async def _step(
        self, kind: Literal["model", "tool"], key: str, place: str, digest: str, do: Callable[[], Awaitable[StepResult]]
    ) -> StepResult:
        recorder = self.state.recorder
        step = recorder.step(key, self.attempt, digest)
        if step is not None:
            cached = int(step.volatile.get("cached") or 0)
            requests = int(step.volatile.get("requests", 1) or 0) if kind == "model" else 0
            if requests > 1:  # its retries were reserved too
                self.budget.reserve_step(Usage(requests - 1))
            tokens = step.tokens_in, step.tokens_out, cached
            return StepResult(recorder.text(step.text), step.form, *tokens, step.cost, requests, step.tokens_thought)
        self._check_running()
        result = await do()
        self._check_running()
        event = StepCompleted(
            place=place,
            key=key,
            call=self.call,
            agent=self.agent,
            phase=self.phase,
            attempt=self.attempt,
            kind=kind,
            digest=digest,
            text=text_id(result.text),
            form=result.form,
            tokens_in=result.tokens_in,
            tokens_out=result.tokens_out,
            tokens_thought=result.tokens_thought,
            cost=result.cost,
        )
        if kind == "model" and result.requests != 1:
            event.volatile["requests"] = result.requests
        if result.tokens_cached:
            event.volatile["cached"] = result.tokens_cached
        self.state.faults("after_reply", self.phase)
        await recorder.commit(event, [result.text])
        self.state.faults("after_commit", self.phase)
        return result

    def _check_running(self) -> None:
        if self.ended:
            raise asyncio.CancelledError


async def run_worker(port: AgentPort, request: ModelRequest, steps: StepLog) -> Completion:
    """Return the answer of an agent with tools, with the sum of its steps. Before its first step it has sent nothing."""
    running_count().expect()
    text = await port.work(request, steps)
    return Completion(
        text=text,
        model=port.name,
        tokens_in=steps.tokens_in,
        tokens_out=steps.tokens_out,
        tokens_thought=steps.tokens_thought,
        tokens_cached=steps.tokens_cached,
        cost=steps.cost,
        requests=int(steps.spent.calls),
    )
