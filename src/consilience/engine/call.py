"""Making one call: render, match, fund, send, read, record.

A reply is durable before anything is computed from it: the journal keeps it beside the log until it is read and recorded as an
event. The protocol continues once that event is queued for its commit. Whatever leaves the process afterwards, such as the next
request, waits for a commit of its own, which includes the event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar, cast

from pydantic import BaseModel

from consilience.domain.detail import CAPS
from consilience.domain.errors import ProviderError, Refused, replace_surrogates
from consilience.domain.events import (
    CUT,
    CallCompleted,
    CallFailed,
    CallStarted,
    Ended,
    ReplyRejected,
    age_of,
)
from consilience.domain.messages import Message
from consilience.domain.outcome import FailureKind
from consilience.domain.prompt_parts import QuotedMessage, read_part
from consilience.domain.report import find_report
from consilience.engine.activity import Phase
from consilience.engine.call_failures import failure_event, refusal_event, unreached
from consilience.engine.ledger import CallBudget, TimeLeft
from consilience.engine.outside import question_to
from consilience.engine.owners import claim_of, cost_of, reserve_for_owner
from consilience.engine.ports import AnswerDeadline, PendingAnswer, withdraw_sent
from consilience.engine.prompt import (
    Parameters,
    Rendered,
    check_visible,
    correction_text,
    request_digest,
    request_seed,
    schema_for,
)
from consilience.engine.sizes import ONE_REQUEST, Usage
from consilience.engine.state import State
from consilience.engine.steps import StepLog, run_worker
from consilience.engine.telemetry import set_outcome, span
from consilience.engine.timing import CallCancelled, CallEnded, TimeLimitReached, take_back
from consilience.engine.usage import completion_figures, usage_of, with_estimated_tokens
from consilience.engine.work import Ask, Branch, Failure, Reply, current_phase
from consilience.models.limiter import may_retry
from consilience.models.parsing import Malformed, is_prose, parse_reply
from consilience.models.port import Completion, ModelRequest
from consilience.models.visible import visible_text

T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class _Attempt(Generic[T]):
    """The outcome of one attempt, and what it was shown."""

    event: Ended
    text: str
    value: T | None
    shown: tuple[str, ...]
    labels: Mapping[str, str]


class Call(Generic[T]):
    """One ask at one place, through all its attempts."""

    def __init__(self, state: State, ask: Ask[T], branch: Branch, place: str) -> None:
        self.state = state
        self.ask = ask
        self.place = place
        self.phase: Phase | None = current_phase.get()
        self.budget = CallBudget(state.ledger, branch.budget, place, ask.agent, self.phase, closing=ask.closing)
        self.port = state.ports[ask.agent]
        self.seconds_outside = 0.0
        """Seconds in which the current attempt waited for a person."""
        self.posted = False
        """Whether the reply to the current attempt came through the session's mailbox."""
        self.size = state.ledger.sizes.reply(ask.agent, ask.max_tokens)
        self.seed = 0
        """Seed of the current attempt."""
        self.cut_outcome: _Attempt[T] | None = None
        """The reply of a closing call that was cut and is asked once more."""

    async def run(self) -> Reply[T] | Failure:
        state, ask = self.state, self.ask
        state.recorder.claim(ask.key)
        seat = state.unintroduced.get(ask.agent)
        if seat is not None and seat.is_introduced_in("\n".join((*ask.prompt.preface, ask.prompt.request))):
            del state.unintroduced[ask.agent]
        if ask.prompt.documents is not None:
            state.name_documents(ask.agent, ask.key, ask.prompt.documents, ask.prompt.related)
        fix: str | None = None
        error, kind = "", FailureKind.MALFORMED
        for attempt in range(1, 2 + state.started.repairs):
            result = await self._inherited(attempt) or await self._recorded_or_live(attempt, fix, error)
            event = result.event
            if self.cut_outcome is not None:
                return self._reply(result if isinstance(event, CallCompleted) else self.cut_outcome)
            if isinstance(event, CallFailed):
                self.budget.branch.refused |= event.failure.is_limit and not event.limit
                if ask.closing and event.failure is FailureKind.TIME:
                    state.warnings.append((self.place, f"no closing reply within the time limit: {ask.key}"))
                return Failure(ask.key, ask.agent, event.failure, event.reason)
            if isinstance(event, CallCompleted):
                if not (event.cut and self._may_ask_again(attempt)):
                    return self._reply(result)
                self.cut_outcome, self.size = result, self.size.doubled()
                self.budget.may_open_reserve = False  # there is an answer
                fix, error = None, "the reply was cut at its limit"
                continue
            error, kind = event.error, event.failure
            if kind is FailureKind.TRUNCATED and (self.size.thinking or ask.closing or not result.text.strip()):
                if self.size.enlarged:
                    break
                enlarged = state.ledger.sizes.reply(ask.agent, ask.max_tokens, enlarged=True)
                self.size = self.size.doubled() if ask.closing and result.text.strip() else enlarged
            fix = correction_text(result.text, error) if result.text.strip() or kind is FailureKind.MALFORMED else None
        return Failure(ask.key, ask.agent, kind, error)

    def _may_ask_again(self, attempt: int) -> bool:
        """Return whether to repeat a closing call whose reply was cut, with twice the room. It counts as a repair."""
        return self.ask.closing and attempt <= self.state.started.repairs and not self.size.enlarged

    def _reply(self, outcome: _Attempt[T]) -> Reply[T]:
        ask, value, event = self.ask, cast(T, outcome.value), outcome.event
        assert isinstance(event, CallCompleted)
        if isinstance(value, BaseModel) and not self._asks_person:
            self.state.prose[ask.key] = is_prose(outcome.text, value)
        prose = value if isinstance(value, str) else str(getattr(value, "text", outcome.text))
        quoted = prose if ask.quoted is None else ask.quoted(value)
        message = Message(ask.key, ask.agent, ask.kind, quoted, ask.audience, phase=self.phase)
        self.state.register_reply(self.place, message, outcome.shown, outcome.text, prose)
        return Reply(ask.key, ask.agent, value, prose, outcome.shown, outcome.labels, event.reserve, event.cut)

    async def _inherited(self, attempt: int) -> _Attempt[T] | None:
        """Return the attempt that a fork inherits; None if there is none that these settings can use.

        A call that is shown something younger than the inherited reply does not take it: the reply would be about other texts. The
        same holds for an answer from outside that no call has read yet.
        """
        state, recorder, ask, key = self.state, self.state.recorder, self.ask, self.ask.key
        if not recorder.inherits:
            return None
        event = recorder.inherited(key, attempt)
        youngest = state.age(ask.prompt)
        outdated = recorder.drop_answer(key, youngest)
        if event is not None and youngest < age_of(event):
            event, outdated = None, True
        if outdated and attempt == 1:
            state.outdated.append(key)
        if event is None:
            return None
        for quote in (*ask.prompt.shared, *ask.prompt.quotes):
            check_visible(state.message(quote.id), ask.agent)
        state.ages[key] = age_of(event)
        text = "" if isinstance(event, CallFailed) else recorder.text(event.text)
        value: T | None = None
        if isinstance(event, CallCompleted):
            try:
                value = await self._value(text)
            except Malformed:
                return None
        recorder.inherit(event, self.place)
        parts = recorder.journal.store.prompt(event.prompt) if isinstance(event, CallCompleted) else ()
        state.template_use.note_call(key, ask.prompt, recorded=parts)
        quotes = [part for part in map(read_part, parts) if isinstance(part, QuotedMessage)]
        quoted_messages = {q.label: q.message for q in quotes if state.is_from_other_agent(q.message, ask.agent)}
        return _Attempt(event, text, value, tuple(quote.message for quote in quotes), quoted_messages)

    async def _recorded_or_live(self, attempt: int, fix: str | None, error: str) -> _Attempt[T]:
        """Return this attempt as recorded, or make it now."""
        state, ask = self.state, self.ask
        state.ages[ask.key] = 0
        state.template_use.note_call(ask.key, ask.prompt)
        rendered = state.render_to_fit(ask.key, ask.agent, ask.prompt, fix, self.size.tokens)
        returns: type[Any] = ask.returns
        schema, schema_id = schema_for(returns, rendered.kinds, CAPS[state.started.detail])
        self.seed = request_seed(state.started.seed, ask.key, attempt)
        digest = request_digest(rendered, ask.agent, state.models[ask.agent], self._parameters(), self.seed, schema_id)
        event = state.recorder.recorded(ask.key, attempt, self.place, digest, rendered)
        state.on_rendered(ask.key, attempt, ask.agent, rendered, schema)
        value: T | None
        if event is None:
            event, text, value = await self._live(attempt, rendered, schema, digest, error)
        else:
            await self._settle_recorded(event, self._need(rendered))
            text = "" if isinstance(event, CallFailed) else state.recorder.text(event.text)
            value = parse_reply(text, ask.returns) if isinstance(event, CallCompleted) else None
        return _Attempt(event, text, value, rendered.shown, rendered.labels)

    async def _live(
        self, attempt: int, rendered: Rendered, schema: dict[str, object] | None, digest: str, error: str
    ) -> tuple[Ended, str, T | None]:
        """Fund, send, read and record one attempt. Return its event, text and value."""
        state, ask, recorder = self.state, self.ask, self.state.recorder
        recorder.on_live()
        common = self._common(attempt, digest, rendered)
        held = state.hold(self.phase)
        if state.started.cache and not held and (cached := await self._cached(common, rendered)) is not None:
            return cached
        need = self._need(rendered)
        arrived = state.recorder.take_arrival(ask.key, attempt, digest)
        was_asked = ask.key in recorder.answers or recorder.was_asked(ask.key, attempt)  # in time, by another process
        limit = await self.budget.reserve(need, attempt, forced=was_asked, arrived=arrived is not None)
        if held:  # only now: calls that are recorded may have waited for budget together with this one
            state.activity.hold(ask.key, self.phase)
            await _wait_forever()
        if limit is None and self.port.counts_tokens and not arrived:
            limit = await reserve_for_owner(state, ask.key, attempt, ask.agent, self._request_size(rendered))
        if limit is not None:
            taken = state.recorder.steps_of(ask.key, attempt)
            refusal = refusal_event(common, limit, error, taken, repeated=attempt > 1)
            return self._refuse(refusal, rendered), "", None
        state.faults("before_call", self.phase)
        if ask.closing:
            state.faults("closing_call", self.phase)
        await state.recorder.start(CallStarted(**common))
        began, self.seconds_outside, self.posted = time.monotonic(), 0.0, False
        steps = self._steps(attempt, need)
        with span(f"call {ask.agent}", session=state.id, agent=ask.agent, key=ask.key, attempt=attempt) as current:
            try:
                completion = arrived or await self._send(attempt, rendered, schema, digest, steps)
            except ProviderError as failure:
                event: Ended = self._failed(common, failure, rendered, steps)
                text, value = "", None
            else:
                # Without a check of the protocol's nothing but the parser comes before the event; steps are recorded already.
                if ask.accept is not None and not (arrived or self.posted or steps):
                    await state.recorder.keep(ask.key, attempt, digest, completion)
                completion, estimated = (
                    (completion, False) if self.posted else with_estimated_tokens(completion, rendered, self.port)
                )
                common |= {"steps": steps.steps_taken if steps else 1, "estimated": estimated}
                event, text, value = await self._read(common, completion)
            set_outcome(current, event)
        seconds = time.monotonic() - began - self.seconds_outside
        if self.budget.is_limited:
            self.budget.settle(usage_of(event), seconds)
        event.volatile["s"] = round(seconds, 3)
        if state.account is not None:
            state.account.settle(claim_of(event), cost_of(event))
        state.faults("after_reply", self.phase)
        texts = rendered.texts if isinstance(event, CallFailed) else (text, *rendered.texts)
        state.recorder.append(event, texts, rendered.parts)
        return event, text, value

    def _failed(
        self, common: Mapping[str, object], failure: ProviderError, rendered: Rendered, steps: StepLog | None
    ) -> CallFailed:
        """Return the event of a request that failed."""
        ledger = self.state.ledger
        ledger.late = ledger.late or (isinstance(failure, TimeLimitReached) and not failure.whose)
        if steps is not None:
            steps.ended = True
        charged = failure.completion if isinstance(failure.completion, Completion) else None
        return failure_event(
            common,
            failure,
            steps=steps,
            charged=with_estimated_tokens(charged, rendered, self.port) if charged is not None else None,
            budget=self.budget,
            port=self.port,
        )

    def _refuse(self, event: CallFailed, rendered: Rendered) -> CallFailed:
        """Record the refusal. An agent with tools may have taken steps before the session was interrupted."""
        self.budget.settle(usage_of(event))
        self.state.recorder.append(event, *(() if event.unsent else (rendered.texts, rendered.parts)))
        return event

    async def _cached(self, common: dict[str, object], rendered: Rendered) -> tuple[Ended, str, T | None] | None:
        """Return the reply of a model to an identical request in any session of the store."""
        recorder = self.state.recorder
        usable = self.port.cacheable and not self.state.cancellation.forbids(closing=self.ask.closing)
        recorded = recorder.journal.store.reply(str(common["digest"])) if usable else None
        if recorded is None:
            return None
        completion = Completion(
            text=recorder.journal.store.text(recorded.text),
            model=str(recorded.volatile.get("model", self.port.name)),
            finish_reason=recorded.finish,
            fallback=bool(recorded.volatile.get("fallback")),
            cost=0.0,
            requests=0,
        )
        event, text, value = await self._read(common, completion)
        if not isinstance(event, CallCompleted):
            return None
        event.cached = True
        recorder.append(event, (text, *rendered.texts), rendered.parts)
        return event, text, value

    def _steps(self, attempt: int, need: Usage) -> StepLog | None:
        """Return the log of an agent with tools; None for other agents."""
        if not self.port.max_steps:
            return None
        ask = self.ask
        return StepLog(self.state, ask.agent, ask.key, self.place, attempt, self.phase, need, ask.closing, self.budget)

    async def _send(
        self, attempt: int, rendered: Rendered, schema: dict[str, object] | None, digest: str, steps: StepLog | None
    ) -> Completion:
        state, ask = self.state, self.ask
        request_id = digest if self.port.cacheable else state.digest_in_session(digest)
        if ask.key in state.recorder.answers:
            return await self._take_posted(request_id)
        ended = [] if state.resumed else state.recorder.ends_so_far.values()
        if (failure := unreached(ended, self.phase, state.models[ask.agent], state.models)) is not None:
            raise failure
        if self.budget.is_limited:
            may_retry.set(self.budget.reserve_retry)
        request = ModelRequest(
            agent=ask.agent,
            key=ask.key,
            system=rendered.system,
            user=rendered.user,
            returns=None if ask.returns is str else ask.returns,
            schema=schema,
            attempt=attempt,
            max_tokens=self.size.answer,
            temperature=state.started.temperature,
            seed=self.seed,
            thinking=state.started.thinking,
            thinking_tokens=self.size.thinking,
            shared=rendered.shared if state.started.estimate.max > 1 else (),
            digest=request_id,
            session=state.id,
            for_person=self._for_person(rendered, attempt),
        )
        time_left = TimeLeft() if state.recorder.was_asked(ask.key, attempt) else self.budget.time_left()
        if steps is not None:
            return await self._await_within(time_left, run_worker(self.port, request, steps))
        try:
            answer = await self._await_within(time_left, self._answer(request))
        except CallCancelled as cancelled:  # an earlier process may have posted a ticket
            if (sent := await withdraw_sent(self.port, ask.key, request_id, cancelled.detail, cancelled.kind)) is None:
                raise
            return sent
        if not isinstance(answer, PendingAnswer):
            return answer
        completion = await self._arrival(answer, attempt, rendered, schema)
        return await self._take_posted(request_id) if completion is None else completion

    async def _await_within(self, left: TimeLeft, work: Coroutine[Any, Any, U]) -> U:
        return await self.state.in_flight.await_within(left, work, closing=self.ask.closing)

    async def _take_posted(self, request_id: str) -> Completion:
        """Return the answer that was posted to the session, `Refused` for a pass; take back the call's ticket if it has one."""
        self.posted = True
        await withdraw_sent(self.port, self.ask.key, request_id, "answered in the session's journal")
        if (text := self.state.recorder.answers.pop(self.ask.key)) is None:
            raise Refused("the person passed")
        return Completion(text=text, model=self.port.name, cost=self.port.price(0, 0))

    @property
    def _asks_person(self) -> bool:
        return any(agent.is_person for agent in self.state.started.agents if agent.id == self.ask.agent)

    def _for_person(self, rendered: Rendered, attempt: int) -> str:
        if not self._asks_person:
            return ""
        report = find_report(self.state.started.protocol)
        if not report.for_people:
            return ""
        asked = report.asked_of_people(self.ask.key)
        return rendered.for_person(report.for_people.get("", ""), asked, corrected=attempt > 1)

    async def _answer(self, request: ModelRequest) -> Completion | PendingAnswer:
        answer = await self.port.collect(request.key, request.digest) if self.state.resumed else None
        return await self.port.send(request) if answer is None else answer

    async def _arrival(
        self, answer: PendingAnswer, attempt: int, rendered: Rendered, schema: dict[str, object] | None
    ) -> Completion | None:
        """Wait for an answer from outside this process. Return None if it was posted to the session."""
        state, ask = self.state, self.ask
        question, texts = question_to(answer, ask, attempt, rendered, schema)
        asked_at = await state.recorder.ask_outside(question, (*rendered.texts, *texts), rendered.parts)
        answer_deadline = AnswerDeadline(asked_at, state.human_deadline if answer.person else None)
        time_left = TimeLeft() if answer.person else self.budget.time_left()
        state.activity.wait_outside(ask.key, answer)
        started_waiting = time.monotonic()
        try:
            posted = state.recorder.until_posted(ask.key)
            departed = partial(state.activity.mark_departed, ask.key)
            arrival = answer_deadline.wait_for(answer.arrival, posted, departed)
            completion = await self._await_within(time_left, arrival)
        except ProviderError as failure:
            state.activity.end_wait(ask.key)
            if answer.ticket is None or not isinstance(failure, CallEnded):
                raise
            if (late_completion := await take_back(answer.ticket, failure)) is None:
                raise
            return late_completion
        finally:
            if answer.person:
                self.seconds_outside = time.monotonic() - started_waiting  # counts toward no time limit
        state.activity.end_wait(ask.key)
        return completion

    async def _read(self, common: dict[str, object], completion: Completion) -> tuple[Ended, str, T | None]:
        """Return the event of a completion, its text and value. The text has no reasoning and at most 8 characters a token."""
        ask = self.ask
        full_text = visible_text(completion.text)
        text = replace_surrogates(full_text[: max(8 * self.size.answer, 2000)])
        figures: dict[str, Any] = completion_figures(completion, text, full_text, self.port.name)
        figures["reserve"] = self.budget.from_reserve
        tokens_thought = figures["tokens_thought"]
        try:
            value = await self._value(text)
        except Malformed as malformed:
            error = str(malformed)
            if tokens_thought and not text.strip():
                error += ": all that was written is reasoning"
            figures["finish"] = replace_surrogates(completion.finish_reason)
            if figures["finish"] == CUT:  # at the model's limit, so more room may help
                error = self.size.cut_error(text, tokens_thought, error)
            return ReplyRejected(**common, **figures, error=error), text, None
        if self.cut_outcome is not None and figures["finish"] == CUT and len(text) <= len(self.cut_outcome.text):
            error = "the reply was cut again, and is no longer than the one before"
            return ReplyRejected(**common, **figures, error=error), text, None
        return CallCompleted(**common, **figures, audience=ask.audience), text, value

    async def _value(self, text: str) -> T:
        """Parse the reply as the type that was asked for. Raises `Malformed`."""
        value = parse_reply(text, self.ask.returns)
        if self.ask.accept is not None:
            try:
                if (accepting := self.ask.accept(value)) is not None:
                    await accepting
            except ValueError as error:
                raise Malformed(str(error)) from None
        return value

    async def _settle_recorded(self, event: Ended, need: Usage) -> None:
        """Fund a recorded attempt as when it was made, so that later calls find the same budgets."""
        if not self.budget.is_limited and not isinstance(event, CallFailed) and not event.reserve:
            self.budget.branch.decide()
            return
        untouched = isinstance(event, CallCompleted) and event.cached
        if isinstance(event, CallFailed) and event.unsent:
            untouched = event.failure is not FailureKind.BUDGET or bool(event.limit)
        refused = isinstance(event, CallFailed) and event.unsent and not event.limit
        if not untouched:
            await self.budget.reserve(need, event.attempt, forced=True, refused=refused)
        self.budget.branch.decide(refused=refused)
        if event.reserve:
            self.budget.draw_reserve()
        self.budget.settle(usage_of(event), float(event.volatile.get("s") or 0))

    def _need(self, rendered: Rendered) -> Usage:
        if not self.budget.is_limited:
            return ONE_REQUEST
        return self._request_size(rendered)

    def _request_size(self, rendered: Rendered) -> Usage:
        return self.state.ledger.sizes.request(self.ask.agent, rendered.tokens, self.size.tokens)

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

    def _parameters(self) -> Parameters:
        state, size = self.state, self.size
        parameters = (("max_tokens", size.answer), ("temperature", state.started.temperature))
        if size.thinking or self.ask.agent in state.ledger.sizes.thinking_tokens:
            return (*parameters, ("thinking", state.started.thinking), ("thinking_tokens", size.thinking))
        return parameters


async def _wait_forever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("this future has no result")
