"""The steps of an agent with tools, within one attempt of a call: what is recorded is given back, what is new is funded, taken
and recorded before it has effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from consilience.domain.errors import ProviderError, Rejected
from consilience.domain.events import StepCompleted, text_id
from consilience.engine.branch import Amount, Phase
from consilience.engine.state import State
from consilience.models.port import Taken


class OutOfBudget(ProviderError):
    """A limit refused a further step."""


@dataclass
class StepLog:
    """Implements `models.port.Steps`. The first request is paid for with the call; `draw` funds each further one.

    A call that is `closing` answers without tools where the budget would not bear another step; others are then refused.
    `drawn` is what was reserved for further steps and for retries that are recorded, `spent` what the steps came to.
    """

    state: State
    agent: str
    call: str
    place: str
    attempt: int
    phase: Phase | None
    size: Amount
    closing: bool
    draw: Callable[[Amount], bool]
    affordable: Callable[[Amount], bool]
    taken: int = 0
    drawn: Amount = field(default_factory=Amount)
    spent: Amount = field(default_factory=Amount)
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    cost: float | None = 0.0

    @property
    def most(self) -> int:
        return self.state.steps.get(self.agent, 1)

    @property
    def last(self) -> bool:
        if self.taken + 1 >= self.most:
            return True
        return self.closing and not self.affordable(self.size * (2 if self.taken else 1))

    async def ask(self, digest: str, send: Callable[[], Awaitable[Taken]]) -> Taken:
        if self.taken >= self.most:
            raise Rejected(f"no answer within {self.most} steps")
        self.taken += 1
        if self.taken > 1:
            if not self.draw(self.size):
                self.taken -= 1
                raise OutOfBudget("no budget for another step")
            self.drawn += self.size
        key = f"{self.call}/step-{self.taken}"
        try:
            taken = await self._step("model", key, f"{self.place}.{self.taken}.0", digest, send)
        except ProviderError as failure:
            self.spent += Amount(failure.requests)
            raise
        self.spent += Amount(taken.requests, taken.tokens_in + taken.tokens_out, taken.cost or 0)
        self.tokens_in += taken.tokens_in
        self.tokens_out += taken.tokens_out
        self.tokens_cached += taken.tokens_cached
        self.cost = None if self.cost is None or taken.cost is None else self.cost + taken.cost
        return taken

    async def use(self, number: int, digest: str, work: Callable[[], Awaitable[Taken]]) -> Taken:
        key = f"{self.call}/step-{self.taken}/tool-{number}"
        return await self._step("tool", key, f"{self.place}.{self.taken}.{number}", digest, work)

    async def _step(
        self, kind: Literal["model", "tool"], key: str, place: str, digest: str, do: Callable[[], Awaitable[Taken]]
    ) -> Taken:
        recorder = self.state.recorder
        found = recorder.step(key, self.attempt, digest)
        if found is not None:
            cached = int(found.volatile.get("cached") or 0)
            requests = int(found.volatile.get("requests", 1) or 0) if kind == "model" else 0
            if requests > 1 and self.draw(Amount(requests - 1)):  # as its retries did
                self.drawn += Amount(requests - 1)
            text = recorder.journal.text(found.text)
            return Taken(text, found.form, found.tokens_in, found.tokens_out, cached, found.cost, requests)
        taken = await do()
        event = StepCompleted(
            place=place,
            key=key,
            call=self.call,
            agent=self.agent,
            phase=self.phase,
            attempt=self.attempt,
            kind=kind,
            digest=digest,
            text=text_id(taken.text),
            form=taken.form,
            tokens_in=taken.tokens_in,
            tokens_out=taken.tokens_out,
            cost=taken.cost,
        )
        if kind == "model" and taken.requests != 1:
            event.volatile["requests"] = taken.requests
        if taken.tokens_cached:
            event.volatile["cached"] = taken.tokens_cached
        self.state.faults("after_reply", self.phase)
        await recorder.commit(event, [taken.text])
        self.state.faults("after_commit", self.phase)
        return taken
