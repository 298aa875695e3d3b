"""Rounds that a resume does not execute again.

A protocol passes a round to `Session.settled` as a coroutine, with the type of its result. When it has ended, one event records
the result and what the calls of the round left in the session, unless that follows from their own events. A resume that finds
the event restores both. Replays and forks execute the round, and compare.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from consilience.domain.errors import ProtocolViolation, RequestMismatch
from consilience.domain.events import (
    CallCompleted,
    CallFailed,
    Ended,
    Event,
    MessagePublished,
    Settled,
    TextsEmbedded,
    place_key,
    text_id,
)
from consilience.domain.outcome import FailureKind, StopReason
from consilience.engine.messages import Messages
from consilience.engine.recalled import RoundReplies
from consilience.engine.usage import usage_of
from consilience.engine.work import Branch, Pending, Reply, current_branch

if TYPE_CHECKING:
    from consilience.engine.state import State

T = TypeVar("T")

ReplyTypes = Sequence[type[Any]] | Mapping[str, type[Any]]
"""Types of replies, or the type of each reply by its key."""


class References:
    """The replies in the result of a round. Each is a reference there: its key, and the name of its type unless that is text."""

    def __init__(self, state: State, replies: ReplyTypes) -> None:
        self._state = state
        self.unnamed = ""
        """What is wrong with a reply whose type is not known."""
        by_key = replies if isinstance(replies, Mapping) else {}
        self._types: dict[str, type[Any]] = {
            **by_key,
            **{cls.__name__: cls for cls in replies if isinstance(cls, type)},
        }

    def refer(self, reply: Reply[Any], types: Sequence[type[Any]]) -> str | list[str]:
        cls = type(reply.value)
        if cls is str:
            return reply.key
        if self._find(cls.__name__, reply.key, types) is not cls:
            self.unnamed = (
                f"the reply {reply.key!r} is a {cls.__name__}, which the type of the result does not name. "
                f"Annotate it as Reply[{cls.__name__}], or pass the class in `replies` of session.settled"
            )
            raise ProtocolViolation(self.unnamed)  # which pydantic may swallow
        return [cls.__name__, reply.key]

    def reply(self, reference: Any, types: Sequence[type[Any]]) -> Reply[Any]:
        if isinstance(reference, str):
            return self._state.recalled.reply(reference, str)
        name, key = reference
        cls = self._find(name, key, types)
        if cls is None:
            raise ValueError(f"there is no type {name}")
        return self._state.recalled.reply(key, cls)

    def _find(self, name: str, key: str, types: Sequence[type[Any]]) -> type[Any] | None:
        named = next((cls for cls in types if cls.__name__ == name), None)
        return self._types.get(key) or self._types.get(name) or named


def _adapter(result: type[T]) -> TypeAdapter[T]:
    if result not in _adapters:
        _adapters[result] = TypeAdapter(result)
    return _adapters[result]


_adapters: dict[Any, TypeAdapter[Any]] = {}
"""Of the types of results, which are few. Making one takes milliseconds."""


class Before:
    """The session as it was before a round."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._warnings = len(state.warnings)
        self._counts = [Counter(state.dropped), Counter(state.timeouts)]
        self._unintroduced = set(state.unintroduced)
        self._rendered = set(state.template_use.rendered)

    def left(self, made: RoundReplies) -> dict[str, object]:
        """Return what the calls of the round left and no event of theirs tells (`State.restore`), without what is empty."""
        state = self._state
        dropped, timeouts = (
            dict(sorted((now - before).items()))
            for now, before in zip((state.dropped, state.timeouts), self._counts, strict=True)
        )
        warnings = sorted(state.warnings[self._warnings :], key=lambda warning: place_key(warning[0].rstrip(".")))
        left: dict[str, object] = {
            **made.dump(),
            "warnings": warnings,
            "dropped": dropped,
            "timeouts": timeouts,
            "introduced": sorted(self._unintroduced - state.unintroduced.keys()),
            "rendered": sorted(state.template_use.rendered - self._rendered),
        }
        return {name: value for name, value in left.items() if value}


class Rounds(Messages):
    """The part of a `Session` that settles rounds."""

    _started: list[Pending[Any]]
    _refused: dict[str, StopReason]

    async def settled(
        self,
        name: str,
        index: int,
        result: type[T],
        work: Coroutine[Any, Any, T],
        *,
        replies: ReplyTypes = (),
    ) -> T:
        """Return the result of a round. A resume takes it from the journal, and does not run `work`, if the round has ended before.

        `result` is what pydantic writes as JSON: models, dataclasses, lists. A `Reply[X]` in it is recorded by its key; `replies`
        are types of replies that the annotations do not name. `work` must change nothing but through the session, and await all
        that it starts. It runs in the branch of the caller, which must be the main one.
        """
        state, branch = self._state, current_branch.get()
        references, adapter = References(state, replies), _adapter(result)
        with closing(work):
            self._check_settling(f"round {name} {index} begins", branch)
            if (event := state.recorder.settled_at(str(branch.ordinal), name, index)) is not None:
                return self._restored(event, branch, adapter, references)
            first, before, made = branch.ordinal, Before(state), RoundReplies()
            state.round = made
            try:
                value = await work
            finally:
                state.round = None
        self._check_settling(f"round {name} {index} ends", branch)
        if branch.ordinal > first:
            left = json.dumps(before.left(made), ensure_ascii=False)
            self._record(name, index, first, "\n".join((_dump(adapter, value, references), left)))
        return value

    def _check_settling(self, when: str, branch: Branch) -> None:
        if branch.prefix or self._state.round is not None:
            raise ProtocolViolation(
                f"{when} inside another round or branch. Settle rounds in `run` itself, one after another"
            )
        if open_calls := [pending.place for pending in self._started if not pending.joined]:
            raise ProtocolViolation(
                f"{when}, and what was started at {open_calls[0]} is not awaited. Await it in its round"
            )
        self._started.clear()

    def _record(self, name: str, index: int, first: int, body: str) -> None:
        state, branch, phase = self._state, current_branch.get(), (name, index)
        state.faults("before_settled", phase)
        calls = int(branch.pending_calls) if branch.budget.limited else 0
        event = Settled(place=str(first), name=name, index=index, until=branch.ordinal, calls=calls, body=text_id(body))
        state.recorder.settle(event, body)
        state.faults("at_settled", phase)

    def _restored(self, event: Settled, branch: Branch, adapter: TypeAdapter[T], references: References) -> T:
        """Restore what a round left, and return its result."""
        state, recorder = self._state, self._state.recorder
        value, _, left = recorder.body(event).partition("\n")
        events = recorder.recall(int(event.place), event.until)
        branch.ordinal = event.until
        if branch.budget.limited:
            branch.pending_calls = event.calls
        ends = [end for end in events if isinstance(end, Ended)]
        for end in ends:
            self._spend(end, branch)
        for vectors in (e for e in events if isinstance(e, TextsEmbedded) and not e.error):
            branch.embedded.update(vectors.texts)
        self._refuse(ends, branch)
        replies = {end.key: end for end in sorted(ends, key=_in_order) if isinstance(end, CallCompleted)}
        published = (e for e in events if isinstance(e, MessagePublished))
        state.restore(list(replies.values()), published, json.loads(left))
        try:
            return adapter.validate_json(value, context=references)
        except ValidationError as error:
            raise RequestMismatch(
                f"the recorded result of {event.name} {event.index} cannot be read: {error}. The code of the protocol has changed: "
                f"raise the `version` of its class. What was recorded can be kept in a fork: "
                f"consilience fork {state.id} --at {event.seq}"
            ) from None

    def _spend(self, end: Ended, branch: Branch) -> None:
        """Account for an attempt as when it was made."""
        ledger, spent = self._state.ledger, usage_of(end)
        if end.reserve:
            ledger.pay_reserve_to(branch.budget)
        branch.budget.settle(spent)
        for cap in ledger.caps_of(end.agent, end.phase) if ledger.is_capped else ():
            cap.settle(spent)
            cap.seconds -= float(end.volatile.get("s") or 0)

    def _refuse(self, ends: Sequence[Ended], branch: Branch) -> None:
        for end in _failures(ends):
            branch.budget.refused |= not end.limit
            phase = end.phase[0] if end.phase else ""
            if end.failure is FailureKind.CANCELLED or phase not in self._state.after_answer:
                self._refused[end.place] = end.failure.exhaustion


def _in_order(end: Event) -> tuple[tuple[int, ...], int]:
    return place_key(end.place), getattr(end, "attempt", 1)


def _failures(ends: Sequence[Ended]) -> Iterator[CallFailed]:
    """Yield the ends of calls that a limit left without a reply."""
    answered = {end.key for end in ends if isinstance(end, CallCompleted)}
    for end in ends:
        if isinstance(end, CallFailed) and end.failure.is_limit and end.key not in answered:
            yield end


def _dump(adapter: TypeAdapter[Any], value: object, references: References) -> str:
    try:
        return adapter.dump_json(value, context=references, exclude_defaults=True).decode()
    except PydanticSerializationError as error:
        raise ProtocolViolation(f"the result of a round cannot be recorded: {references.unnamed or error}") from None
