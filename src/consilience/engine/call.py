"""Making one call: render, match, fund, send, read, record. A reply is durable before it has effect."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar, cast

from pydantic import BaseModel

from consilience.domain.errors import ProtocolViolation, ProviderError
from consilience.domain.events import (
    CallAwaited,
    CallCompleted,
    CallFailed,
    CallStarted,
    Ended,
    ReplyRejected,
    Volatile,
    age_of,
    text_id,
)
from consilience.domain.messages import Message
from consilience.domain.outcome import FailureKind
from consilience.engine.allowances import Refusal
from consilience.engine.branch import Amount, Branch, Phase, current_phase
from consilience.engine.failing import failed, refused
from consilience.engine.ports import Awaited, Later, ModelPort, WorkerPort
from consilience.engine.prompt import Rendered, correction, request_digest, schema_for
from consilience.engine.state import State
from consilience.engine.steps import StepLog
from consilience.engine.telemetry import describe, span
from consilience.engine.usage import counted
from consilience.engine.work import Ask, Failure, Reply
from consilience.models.limiter import may_retry
from consilience.models.parsing import Malformed, parse_reply, prose_field
from consilience.models.port import Completion, ModelRequest

T = TypeVar("T")

ONE = Amount(1)


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[T]):
    """What one attempt came to, and what it was shown."""

    ended: Ended
    text: str
    value: T | None
    shown: tuple[str, ...]
    labels: Mapping[str, str]


class Call(Generic[T]):
    """One ask at one place, up to its last attempt."""

    def __init__(self, state: State, ask: Ask[T], branch: Branch, place: str) -> None:
        self.state = state
        self.ask = ask
        self.account = branch.account
        self.place = place
        self.phase: Phase | None = current_phase.get()
        self.port = state.ports[ask.agent]
        self.reserve = False
        self.permitted = 0
        self.refused: Refusal | None = None
        self.outside = 0.0

    async def run(self) -> Reply[T] | Failure:
        state, ask = self.state, self.ask
        state.recorder.claim(ask.key)
        self._check_visibility()
        fix: str | None = None
        error = ""
        for attempt in range(1, 2 + state.repairs):
            made = self._inherited(attempt) or await self._made(attempt, fix, error)
            ended = made.ended
            if isinstance(ended, CallFailed):
                return Failure(ask.key, ask.agent, ended.failure, ended.detail)
            if isinstance(ended, CallCompleted):
                state.shown[ask.key] = made.shown
                return self._reply(ended, made)
            error = ended.error
            fix = correction(made.text, error)
        return Failure(ask.key, ask.agent, FailureKind.MALFORMED, error)

    def _reply(self, ended: CallCompleted, made: _Attempt[T]) -> Reply[T]:
        ask, value = self.ask, cast(T, made.value)
        prose = value if isinstance(value, str) else str(getattr(value, "text", made.text))
        self.state.register(
            Message(id=ask.key, sender=ask.agent, kind=ask.kind, text=prose, audience=ask.audience, phase=self.phase)
        )
        return Reply(ask.key, ask.agent, value, prose, made.shown, made.labels, ended.reserve)

    def _inherited(self, attempt: int) -> _Attempt[T] | None:
        """What the session this one is forked from got; None where it got nothing that these settings can use.

        A reply is taken over only by a call that is shown nothing younger than it: it would be about other texts. The same
        holds for an answer from outside that nobody had read yet.
        """
        state, key = self.state, self.ask.key
        recorder = state.recorder
        found = recorder.inherited(key, attempt)
        youngest = state.age(self.ask.prompt) if recorder.inherits else math.inf
        outdated = recorder.drop_answer(key, youngest)
        if found is not None and youngest < age_of(found):
            found, outdated = None, True
        if outdated and attempt == 1:
            state.outdated.append(key)
        if found is None:
            return None
        state.ages[key] = age_of(found)
        text = "" if isinstance(found, CallFailed) else recorder.text(found.text)
        value: T | None = None
        if isinstance(found, CallCompleted):
            try:
                value = self._value(text)
            except Malformed:
                return None
        recorder.inherit(found, self.place)
        parts = recorder.journal.prompt(found.prompt) if isinstance(found, CallCompleted) else ()
        quotes = [part.split(":", 2)[1:] for part in parts if part.startswith("q:")]
        others = {label: id for label, id in quotes if self.state.said_by_other(id, self.ask.agent)}
        return _Attempt(found, text, value, tuple(id for _, id in quotes), others)

    async def _made(self, attempt: int, fix: str | None, error: str) -> _Attempt[T]:
        """What is recorded of this attempt, or what comes of it now."""
        state, ask = self.state, self.ask
        state.ages[ask.key] = 0
        rendered = state.render(ask.agent, ask.prompt, fix)
        returns: type[Any] = ask.returns
        schema, schema_digest = schema_for(returns, rendered.kinds)
        digest = request_digest(rendered, ask.agent, self.port.name, self._parameters(attempt), schema_digest)
        ended = state.recorder.recorded(ask.key, attempt, self.place, digest, rendered)
        value: T | None
        if ended is None:
            ended, text, value = await self._live(attempt, rendered, schema, digest, error)
        else:
            self._charge(ended)
            text = "" if isinstance(ended, CallFailed) else state.recorder.text(ended.text)
            value = parse_reply(text, ask.returns) if isinstance(ended, CallCompleted) else None
        return _Attempt(ended, text, value, rendered.shown, rendered.labels)

    async def _live(
        self, attempt: int, rendered: Rendered, schema: dict[str, object] | None, digest: str, error: str
    ) -> tuple[Ended, str, T | None]:
        """Fund, send, read and record one attempt."""
        state, ask = self.state, self.ask
        common = self._common(attempt, digest, rendered)
        if state.hold(self.phase):
            state.activity.hold(ask.key, self.phase)
            await _for_ever()
        if state.cache and (cached := await self._cached(common, rendered)) is not None:
            return cached
        cost = self._amount(rendered)
        answered = ask.key in state.recorder.answers
        refusal = None if answered else self._fund(cost, attempt)
        if refusal is not None:
            taken = state.recorder.steps_of(ask.key, attempt)
            over = refused(common, refusal, error, taken, again=attempt > 1)
            if taken:
                self._charge(over)
                await state.recorder.commit(over, rendered.texts, rendered.parts)
            else:
                await state.recorder.commit(over)
            return over, "", None
        state.faults("before_call", self.phase)
        if ask.closing:
            state.faults("closing_call", self.phase)
        await state.recorder.start(CallStarted(**common))
        began, self.outside = time.monotonic(), 0.0
        steps = self._steps(attempt, cost)
        with span(f"call {ask.agent}", session=state.id, agent=ask.agent, key=ask.key, attempt=attempt) as current:
            try:
                completion = await self._send(attempt, rendered, schema, digest, steps)
            except ProviderError as failure:
                paid = failure.completion if isinstance(failure.completion, Completion) else None
                told = counted(paid, rendered, self.port) if paid is not None else None
                event: Ended = failed(
                    common, failure, steps=steps, paid=told, refusal=self.refused, reserve=self.reserve
                )
                text, value = "", None
            else:
                completion, estimated = (completion, False) if answered else counted(completion, rendered, self.port)
                more = {"steps": steps.taken if steps else 1, "estimated": estimated}
                event, text, value = self._read({**common, **more}, completion)
            describe(current, event)
        reserved = Amount() if answered else cost + (steps.drawn if steps else Amount())
        seconds = time.monotonic() - began - self.outside
        self._settle(reserved, _amount_of(event), seconds)
        event.volatile["s"] = round(seconds, 3)
        state.faults("after_reply", self.phase)
        texts = rendered.texts if isinstance(event, CallFailed) else (text, *rendered.texts)
        await state.recorder.commit(event, texts, rendered.parts)
        state.faults("after_commit", self.phase)
        return event, text, value

    async def _cached(self, common: dict[str, object], rendered: Rendered) -> tuple[Ended, str, T | None] | None:
        """A reply that any session of the store got from a model to the very same request."""
        recorder = self.state.recorder
        found = recorder.journal.reply(str(common["digest"])) if isinstance(self.port, ModelPort) else None
        if found is None:
            return None
        completion = Completion(
            text=recorder.journal.text(found.text),
            model=str(found.volatile.get("model", self.port.name)),
            finish_reason=found.finish,
            fallback=bool(found.volatile.get("fallback")),
            cost=0.0,
            requests=0,
        )
        event, text, value = self._read(common, completion)
        if not isinstance(event, CallCompleted):
            return None
        event.cached = True
        self._charge(event)
        await recorder.commit(event, (text, *rendered.texts), rendered.parts)
        self.state.faults("after_commit", self.phase)
        return event, text, value

    def _steps(self, attempt: int, cost: Amount) -> StepLog | None:
        """Where an agent with tools records its steps; None for everybody else."""
        if not isinstance(self.port, WorkerPort):
            return None
        state, ask = self.state, self.ask

        def draw(amount: Amount) -> bool:
            if self.state.allowances.draw(ask.agent, self.phase, amount) is not None:
                return False
            if self.account.draw(amount):
                return True
            self.state.allowances.charge(ask.agent, self.phase, Amount() - amount)
            return False

        def affordable(amount: Amount) -> bool:
            return self.account.left.covers(amount)

        return StepLog(state, ask.agent, ask.key, self.place, attempt, self.phase, cost, ask.closing, draw, affordable)

    async def _send(
        self, attempt: int, rendered: Rendered, schema: dict[str, object] | None, digest: str, steps: StepLog | None
    ) -> Completion:
        state, ask = self.state, self.ask
        if ask.key in state.recorder.answers:
            return Completion(
                text=state.recorder.answers.pop(ask.key), model=self.port.name, cost=self.port.price(0, 0)
            )
        if self.account.limited or state.allowances:
            may_retry.set(self._fund_retry)
        request = ModelRequest(
            agent=ask.agent,
            key=ask.key,
            system=rendered.system,
            user=rendered.user,
            returns=None if ask.returns is str else ask.returns,
            schema=schema,
            attempt=attempt,
            max_tokens=ask.max_tokens,
            temperature=state.temperature,
            seed=_seed(state.seed, ask.key, attempt),
        )
        if steps is not None and isinstance(self.port, WorkerPort):
            return await _worked(self.port, request, steps)
        answer = await self.port.collect(ask.key, digest) if state.resumed else None
        if answer is None:
            answer = await self.port.send(request)
        return await self._arrival(answer, attempt, rendered, schema) if isinstance(answer, Awaited) else answer

    async def _arrival(
        self, answer: Awaited, attempt: int, rendered: Rendered, schema: dict[str, object] | None
    ) -> Completion:
        """What comes from outside, while the session is up for it."""
        state, ask = self.state, self.ask
        form = json.dumps(schema, ensure_ascii=False) if schema else ""
        question = CallAwaited(
            key=ask.key,
            agent=ask.agent,
            attempt=attempt,
            prompt=rendered.parts.id,
            form=text_id(form) if form else "",
            prose=prose_field(ask.returns) if schema and issubclass(ask.returns, BaseModel) else "",
        )
        texts = (*rendered.texts, form) if form else rendered.texts
        await state.recorder.ask_outside(question, texts, rendered.parts)
        state.activity.wait_outside(ask.key, ask.agent)
        asked = time.monotonic()
        try:
            completion = await answer.arrival
        except ProviderError:
            state.activity.answered(ask.key)
            raise
        except Later:
            state.activity.gone(ask.key)
            return await _for_ever()  # until the session is parked
        finally:
            self.outside = time.monotonic() - asked  # no limit on time counts what others take
        state.activity.answered(ask.key)
        return completion

    def _read(self, common: dict[str, object], completion: Completion) -> tuple[Ended, str, T | None]:
        """The event of a completion, and the text it keeps: at most 8 characters for every token allowed."""
        ask = self.ask
        text = _unicode(completion.text[: max(8 * ask.max_tokens, 2000)])
        volatile: Volatile = {}
        if completion.requests != 1:
            volatile["requests"] = completion.requests
        for name, figure in (("cached", completion.tokens_cached), ("waited", round(completion.waited, 3))):
            if figure:
                volatile[name] = figure
        if completion.fallback:
            volatile["fallback"] = 1
        if completion.model != self.port.name:
            volatile["model"] = _unicode(completion.model)
        figures = {
            "text": text_id(text),
            "tokens_in": completion.tokens_in,
            "tokens_out": completion.tokens_out,
            "cost": completion.cost,
            "reserve": self.reserve,
        }
        try:
            value = self._value(text)
        except Malformed as wrong:
            return ReplyRejected(**common, **figures, error=str(wrong), volatile=volatile), text, None
        finish = "length" if len(text) < len(completion.text) else _unicode(completion.finish_reason)
        done = CallCompleted(**common, **figures, audience=ask.audience, finish=finish, volatile=volatile)
        return done, text, value

    def _value(self, text: str) -> T:
        """The reply as asked for. Raises `Malformed`."""
        value = parse_reply(text, self.ask.returns)
        if self.ask.accept is not None:
            try:
                self.ask.accept(value)
            except ValueError as wrong:
                raise Malformed(str(wrong)) from None
        return value

    def _fund(self, cost: Amount, attempt: int) -> Refusal | None:
        """Reserve the request; the closing call may draw on what is held back for it, and is then not refused for time."""
        state = self.state
        refused = state.allowances.draw(self.ask.agent, self.phase, cost) if state.allowances else None
        if refused is not None:
            return refused
        late = state.out_of_time()
        if not late and self.account.draw(cost):
            return None
        held = state.reserve.left
        enough = held.covers(cost) or held.covers(state.call_size)  # replies may be longer than their tokens foresaw
        if self.ask.closing and attempt == 1 and not state.reserve_drawn and enough:
            self._draw_reserve()
            self.account.charge(cost)
            return None
        state.allowances.charge(self.ask.agent, self.phase, Amount() - cost)
        return Refusal(FailureKind.TIME if late else FailureKind.BUDGET)

    def _fund_retry(self) -> bool:
        """Whether a provider may be asked once more for the same."""
        self.refused = self.state.allowances.draw(self.ask.agent, self.phase, ONE)
        if self.refused is not None:
            return False
        if self.account.draw(ONE):
            self.permitted += 1
            return True
        self.state.allowances.charge(self.ask.agent, self.phase, Amount() - ONE)
        self.refused = Refusal(FailureKind.BUDGET)
        return False

    def _draw_reserve(self) -> None:
        self.state.reserve_drawn = self.reserve = True
        self.account = self.state.reserve

    def _settle(self, reserved: Amount, spent: Amount, seconds: float) -> None:
        """Retries drew their own calls when they were permitted, also one that was then not sent."""
        if self.account.limited or self.state.allowances:
            difference = spent - reserved - Amount(calls=self.permitted)
            self.account.charge(difference)
            self.state.allowances.charge(self.ask.agent, self.phase, difference, seconds)
        self.permitted, self.refused = 0, None

    def _charge(self, ended: Ended) -> None:
        if ended.reserve:
            self._draw_reserve()
        if not self.account.limited and not self.state.allowances:
            return
        amount = _amount_of(ended)
        self.account.charge(amount)
        self.state.allowances.charge(self.ask.agent, self.phase, amount, float(ended.volatile.get("s") or 0))

    def _amount(self, rendered: Rendered) -> Amount:
        if not self.account.limited and not self.state.allowances:
            return ONE
        tokens = rendered.tokens
        return Amount(1, tokens + self.ask.max_tokens, self.state.price(self.ask.agent, tokens, self.ask.max_tokens))

    def _common(self, attempt: int, digest: str, rendered: Rendered) -> dict[str, object]:
        ask = self.ask
        return {
            "place": self.place,
            "key": ask.key,
            "agent": ask.agent,
            "phase": self.phase,
            "kind": ask.kind,
            "attempt": attempt,
            "digest": digest,
            "prompt": rendered.parts.id,
        }

    def _parameters(self, attempt: int) -> dict[str, object]:
        state, ask = self.state, self.ask
        return {
            "max_tokens": ask.max_tokens,
            "temperature": state.temperature,
            "seed": _seed(state.seed, ask.key, attempt),
        }

    def _check_visibility(self) -> None:
        ask = self.ask
        for quote in (*ask.prompt.shared, *ask.prompt.quotes):
            said = self.state.message(quote.id)
            if said.sender != ask.agent and ask.agent not in said.audience:
                raise ProtocolViolation(
                    f"{ask.key}: {ask.agent} may not be shown {quote.id}, which is for {said.audience}"
                )


def _unicode(words: str) -> str:
    """With a mark in place of what no encoding can hold."""
    return words.encode("utf-8", "replace").decode()


async def _for_ever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody fulfils it")


def _amount_of(ended: Ended) -> Amount:
    """What an attempt spent."""
    return Amount(ended.requests, ended.tokens_in + ended.tokens_out, ended.cost or 0)


async def _worked(port: WorkerPort, request: ModelRequest, steps: StepLog) -> Completion:
    """The answer of an agent with tools, and what all its steps came to."""
    text = await port.worker.work(request, steps)
    return Completion(
        text=text,
        model=port.name,
        tokens_in=steps.tokens_in,
        tokens_out=steps.tokens_out,
        tokens_cached=steps.tokens_cached,
        cost=steps.cost,
        requests=int(steps.spent.calls),
    )


def _seed(seed: int, key: str, attempt: int) -> int:
    digest = hashlib.sha256(f"{seed}/{key}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
