"""The fields of a report that are the same for all protocols, from recorded events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Any

from consilience.domain.agents import voices
from consilience.domain.events import BlindnessLifted, CallCompleted, CallFailed, Ended, ReplyRejected, place_key
from consilience.domain.outcome import FailureKind, StopReason
from consilience.domain.positions import exact
from consilience.domain.report import (
    ConfidenceScore,
    FailedCall,
    MissingAgent,
)
from consilience.domain.usage import LedgerReport, UsageTotals
from consilience.domain.wording import count
from consilience.engine.analysis import independence
from consilience.engine.evidence import quotations_in_replies, read_documents
from consilience.engine.sizes import MIN_FIT
from consilience.engine.state import State
from consilience.engine.template_use import describe_inherited, pronoun
from consilience.engine.timing import ENDED_BY
from consilience.engine.work import Failure, Reply

MAX_LABEL_CHARS = 40


def report_header(state: State, first: Sequence[Reply[object] | Failure]) -> dict[str, object]:
    """Return the header fields. `first`: results of the first phase, for quorum and degradation; service seats do not count."""
    calls = EndedCalls(state)
    failures = failed_calls(calls)
    voiced = {agent.id for agent in voices(state.started.agents)}
    first = [result for result in first if result.agent in voiced]
    replied = sum(isinstance(result, Reply) for result in first)
    required = quorum_of(state.started.quorum, len(first))
    sizes = state.ledger.sizes
    warnings = sorted(state.warnings, key=lambda warning: place_key(warning[0].rstrip(".")))
    return {
        "session": state.id,
        "parent": state.started.parent,
        "protocol": state.started.protocol,
        "task": state.opening.task,
        "settings": dict(state.started.settings),
        "seed": state.started.seed,
        "replaced_prompts": state.templates.replaced,
        "agents": state.started.agents,
        "topology": state.started.topology,
        "replied": replied,
        "quorum_met": bool(first) and replied >= max(required, 1),
        "asked": len(first),
        "limits": state.started.limits,
        "ledger": LedgerReport(
            estimated=state.started.estimate,
            actual=usage_totals(calls, state),
            reserve_drawn=state.ledger.reserve_drawn,
            held_back=state.ledger.held_back,
            next_tokens=int(sizes.next_call.tokens),
            next_cost=sizes.next_call.cost,
            next_thinking=max(sizes.thinking_tokens.values(), default=0) * int(sizes.next_call.calls),
        ),
        "missing": tuple(seat for seat in missing_agents(calls) if seat.agent in voiced),
        "failed_calls": failures,
        "warnings": (*_warnings(state, calls), *(text for _, text in warnings)),
        "incidents": tuple(_incidents(state, calls)),
        "defects": tuple(_defects(state, calls)),
        "independence": independence(voices(state.started.agents)),
        "same_material": _same_material(state),
        "documents": read_documents(state, calls.attempts),
        "across": state.across,
        "quotations": quotations_in_replies(state, calls.replies.values()),
        "cut_replies": tuple(event.key for event in calls.cut),
        "typed_replies": len(state.prose),
        "prose_replies": tuple(key for key in calls.replies if state.prose.get(key)),
    }


def _same_material(state: State) -> bool:
    restricted = any(document.agents is not None for document in state.opening.documents)
    return not restricted and not any(steps > 1 for steps in state.ledger.sizes.steps.values())


def quorum_of(share: float, n: int) -> int:
    """Return a share of n agents, rounded up."""
    return math.ceil(exact(share) * n)


class EndedCalls:
    """The ended attempts that a run reached, sorted out in one pass: after a long run each pass takes milliseconds."""

    def __init__(self, state: State) -> None:
        attempts = state.recorder.ends_so_far.values()
        self.attempts: list[Ended] = sorted(attempts, key=lambda event: (place_key(event.place), event.attempt))
        """All, in program order, as the lists below are."""
        self.replies: dict[str, CallCompleted] = {}
        """The last reply of each answered call, by key: a closing call whose reply was cut may have a second one."""
        self.unusable: list[ReplyRejected | CallFailed] = []
        self.repairs: list[Ended] = []
        """Attempts made because the reply before was unusable."""
        self.by_fallback: list[Ended] = []
        self.requeued: list[Ended] = []
        self.unpriced: list[Ended] = []
        self.estimated: list[Ended] = []
        for event in self.attempts:
            if isinstance(event, CallCompleted):
                self.replies[event.key] = event
            else:
                self.unusable.append(event)
            if event.attempt > 1 and not _is_refusal(event):
                self.repairs.append(event)
            if event.volatile.get("fallback"):
                self.by_fallback.append(event)
            if event.volatile.get("requeued"):
                self.requeued.append(event)
            if event.cost is None:
                self.unpriced.append(event)
            if event.estimated:
                self.estimated.append(event)
        self.cut = [event for event in self.replies.values() if event.cut]
        self.unanswered = [event for event in self.unusable if event.key not in self.replies]
        """Attempts of calls without any reply."""


def call_usage(state: State, key: str) -> tuple[int, int, float | None]:
    """Return tokens read, tokens written and the cost of all attempts of a call; an unknown price makes the cost None."""
    attempts = [event for (call, _), event in state.recorder.ends_so_far.items() if call == key]
    costs = [event.cost for event in attempts]
    cost = math.fsum(cost for cost in costs if cost is not None) if None not in costs else None
    return sum(event.tokens_in for event in attempts), sum(event.tokens_out for event in attempts), cost


def usage_totals(calls: EndedCalls, state: State) -> UsageTotals:
    inherited, sent, unpriced = set[str](), set[str](), set[str]()
    cached = requests = retries = repairs = fallbacks = further = tokens_in = tokens_out = 0
    tokens_thought = tokens_cached = timed_out = estimated = 0
    costs: list[float] = []
    for event in calls.attempts:
        if event.inherited:
            inherited.add(event.key)
            continue
        if isinstance(event, CallCompleted) and event.cached:
            cached += 1
            continue
        fallback = int(event.volatile.get("fallback") or 0)
        if not _is_refusal(event):
            sent.add(event.key)
            further += event.steps - 1
            retries += max(event.requests - event.steps - fallback, 0)
            repairs += event.attempt > 1
        timed_out += isinstance(event, CallFailed) and event.possibly_charged
        requests += event.requests
        fallbacks += fallback
        tokens_in += event.tokens_in
        tokens_out += event.tokens_out
        tokens_thought += event.tokens_thought
        tokens_cached += int(event.volatile.get("cached") or 0)
        estimated += event.estimated
        if event.cost is None:
            unpriced.add(event.key)
        else:
            costs.append(event.cost)
    known_cost = math.fsum(costs)
    return UsageTotals(
        calls=len(sent) + further,
        requests=requests,
        retries=retries,
        repairs=repairs,
        fallbacks=fallbacks,
        lost=state.lost,
        timed_out=timed_out,
        inherited=len(inherited),
        cached=cached,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_thought=tokens_thought,
        tokens_cached=tokens_cached,
        estimated=estimated,
        cost=None if unpriced else known_cost,
        known_cost=known_cost if unpriced else 0.0,
        unpriced=len(unpriced),
        seconds=round(state.recorder.now(), 3),
    )


def missing_agents(calls: EndedCalls) -> tuple[MissingAgent, ...]:
    """Agents whose last call failed, except for calls refused by a limit."""
    if not calls.unanswered:
        return ()
    since: dict[str, MissingAgent] = {}
    for event in calls.attempts:
        if isinstance(event, CallCompleted):
            since.pop(event.agent, None)
            continue
        if event.key in calls.replies:
            continue
        if isinstance(event, CallFailed) and event.failure.is_limit:
            continue
        reason = f"{event.failure.value}: {event.error if isinstance(event, ReplyRejected) else event.reason}"
        first_key = since[event.agent].since if event.agent in since else event.key
        since[event.agent] = MissingAgent(agent=event.agent, since=first_key, reason=reason.rstrip(": "))
    return tuple(since.values())


def failed_calls(calls: EndedCalls) -> tuple[FailedCall, ...]:
    """Calls whose last attempt gave no usable reply, in program order."""
    last = {event.key: event for event in calls.unanswered}
    return tuple(
        FailedCall(
            key=event.key,
            agent=event.agent,
            phase=event.phase,
            kind=event.failure,
            detail=event.reason if isinstance(event, CallFailed) else event.error,
            limit=event.limit if isinstance(event, CallFailed) else None,
            exhausted=event.exhausted if isinstance(event, CallFailed) else "",
        )
        for event in last.values()
    )


def _warnings(state: State, calls: EndedCalls) -> list[str]:
    warnings = [remark for document in state.opening.documents for remark in document.remarks]
    warnings += sorted(_unread(state))
    if calls.cut:
        keys = ", ".join(event.key for event in calls.cut[:5])
        warnings.append(f"{count(len(calls.cut), 'reply')} cut at the token limit: {keys}")
    if state.shortened:
        keys = ", ".join(sorted(state.shortened)[:5]) + (" and others" if len(state.shortened) > 5 else "")
        quotations = count(sum(state.shortened.values()), "quotation")
        warnings.append(f"{quotations} shortened to points, because the prompt outgrew the context window: {keys}")
    if state.dropped:
        names = ", ".join(
            f"“{shorten(label, MAX_LABEL_CHARS, placeholder='…')}”" for label in sorted(state.dropped)[:5]
        )
        references = count(state.dropped.total(), "reference")
        warnings.append(f"left out: {references} to texts that the agent was not shown: {names}")
    if state.ledger.sizes.fit < 1:
        size = f"replies were limited to {state.ledger.sizes.fit:.0%} of their size"
        warnings.append(
            f"{size}, so that the limits last for every agent"
            if state.ledger.sizes.fit > MIN_FIT
            else f"{size}, the minimum, and the limits may not be enough for every agent. Raise them, or ask fewer agents"
        )
    rejected = sum(isinstance(event, ReplyRejected) for event in calls.unusable)
    if rejected:  # inherited ones too, unlike in the ledger
        again = f"; {len(calls.repairs)} had to be asked for again" if calls.repairs else ""
        warnings.append(f"{count(rejected, 'reply')} could not be used{again}")
    if calls.estimated:
        warnings.append(
            f"{count(len(calls.estimated), 'reply')} came without a count of tokens; limits use an estimate"
        )
    if calls.unpriced:
        warnings.append("the price of a model is not known; the cost is incomplete")
    warnings += _failure_warnings(calls.unanswered)
    warnings += _unused_limits(state, calls.attempts)
    if unclaimed := state.recorder.unclaimed():
        warnings.append(f"{count(len(unclaimed), 'inherited reply')} not used by this run: " + ", ".join(unclaimed[:5]))
    if outdated := sorted(state.outdated):
        warnings.append(
            f"{count(len(outdated), 'inherited reply')} about other texts; asked for again: " + ", ".join(outdated[:5])
        )
    return warnings


def _incidents(state: State, calls: EndedCalls) -> Iterator[str]:
    """Yield what another run with the same replies may not have."""
    yield from _fallbacks(calls.by_fallback)
    yield from _adaptations(state, calls.attempts)
    yield from _uncounted(state, calls.attempts)
    if calls.requeued:
        offered = ", ".join(f"{event.agent} on {event.key}" for event in calls.requeued[:5])
        yield f"tickets offered again after a claim that brought no answer: {offered}"
    yield from _replaced_without_effect(state)
    if state.lost:
        yield f"lost calls: {state.lost} in flight when a process ended, possibly charged"
    if lifted := next((event for event in state.recorder.events if isinstance(event, BlindnessLifted)), None):
        yield (
            f"before the end, {lifted.by or 'the owner'} lifted the blindness of the seats of people: answers that the owner gave "
            "afterwards may rest on more than the seat was shown"
        )


def _defects(state: State, calls: EndedCalls) -> Iterator[str]:
    """Yield a warning about agents whose persona the protocol did not print."""
    speakers = {event.agent for event in calls.attempts} if state.unintroduced else set()
    if unintroduced := [agent for agent in state.unintroduced if agent in speakers]:
        use = "The protocol's prompts have to contain session.agent(id).introduction()"
        yield f"points of view in no prompt, and so without effect: {', '.join(unintroduced)}. {use}"


def _failure_warnings(unanswered: Sequence[ReplyRejected | CallFailed]) -> list[str]:
    """Return the warnings about calls that time ended, that a limit refused, or that failed without a further attempt."""
    timed_out = [
        event
        for event in unanswered
        if isinstance(event, CallFailed)
        and (event.possibly_charged or (event.failure is FailureKind.TIME and not event.unsent))
    ]
    warnings = _timed_out(timed_out)
    failures = [event for event in unanswered if isinstance(event, CallFailed) and event not in timed_out]
    refused = Counter(str(event.limit) for event in failures if event.limit)
    warnings += [f"{count(n, 'call')} refused by the limit of {whose}" for whose, n in sorted(refused.items())]
    cut_off = [event.detail for event in failures if event.no_further_attempt]
    if cut_off:
        calls = count(len(cut_off), "call")
        warnings.append(f"{calls} failed where the share of the limits allowed no further attempt; {cut_off[0][:300]}")
    return warnings


def _replaced_without_effect(state: State) -> list[str]:
    """Return a warning about the replaced templates with which this run asked nothing; none if there are none."""
    unused, inherited = state.template_use.unused, state.template_use.inherited
    groups = []
    if unused:
        groups.append(f"{', '.join(sorted(unused))} (no call of this run uses {pronoun(unused)})")
    if inherited:
        ended = [event for event in state.recorder.events if isinstance(event, Ended) and event.inherited]
        reason = describe_inherited(inherited, state.started.parent or "ID", ended)
        groups.append(f"{', '.join(sorted(inherited))} ({reason})")
    return [f"prompt templates replaced without effect: {', '.join(groups)}"] if groups else []


def _fallbacks(by_fallback: Sequence[Ended]) -> Iterator[str]:
    """Yield a warning for each fallback model that answered, with the agents and how often it answered for each."""
    answers: dict[str, Counter[str]] = {}
    for event in by_fallback:
        answers.setdefault(str(event.volatile.get("model", "")), Counter())[event.agent] += 1
    for model, agents in sorted(answers.items()):
        names = ", ".join(agent if n == 1 else f"{agent} ×{n}" for agent, n in agents.items())
        yield f"answered by a fallback model, {model}, after another had failed: {names}"


def _adaptations(state: State, attempts: Sequence[Ended]) -> Iterator[str]:
    """Yield a warning for each model whose server refused a part of the requests, with what was changed."""
    notes: dict[str, dict[str, None]] = {}
    for event in attempts:
        if note := str(event.volatile.get("adapted") or ""):
            notes.setdefault(state.models[event.agent], {})[note] = None
    for model, changes in sorted(notes.items()):
        yield f"requests were adapted to the server of {model}: {'; '.join(changes)}"


def _uncounted(state: State, attempts: Sequence[Ended]) -> Iterator[str]:
    """Yield a warning for each model that may have read only parts of prompts, with the call of which it counted least."""
    most: dict[str, tuple[int, str]] = {}
    for event in attempts:
        if uncounted := int(event.volatile.get("uncounted") or 0):
            model = state.models[event.agent]
            most[model] = max(most.get(model, (0, "")), (uncounted, event.key))
    for model, (tokens, key) in sorted(most.items()):
        yield (
            f"estimated tokens that were not counted by the server of {model}: about {tokens:,} of {key}; "
            "it may have read only parts of prompts"
        )


def _unread(state: State) -> Iterator[str]:
    """Warnings about messages that must be read and that some addressees were shown in no answered call."""
    required = {message.id: message for message in state.messages_of(state.must_be_read)}
    readers: dict[str, set[str | None]] = {id: set() for id in required}
    for key, shown in state.shown.items() if required else ():
        for id in shown:
            if id in required:
                readers[id].add(state.sender(key))
    for id, message in required.items():
        unread = [agent for agent in message.audience if agent not in readers[id]]
        if not readers[id]:
            yield f"the {message.kind} {id} was read by no later call"
        elif unread:
            yield f"the {message.kind} {id} was not read by {', '.join(unread)}"


def _unused_limits(state: State, ended: Sequence[Ended]) -> Iterator[str]:
    """Yield warnings about limits under which no call fell; for a phase, with the phases that there were."""
    unused = state.ledger.unused_caps()
    made = ", ".join(dict.fromkeys(event.phase[0] for event in ended if event.phase)) if unused else ""
    for whose in unused:
        known = f"; phases of this run: {made}" if made and whose.kind == "phase" else ""
        yield f"no call was made under the limit of {whose}{known}"


def _timed_out(failures: Sequence[CallFailed]) -> list[str]:
    """Warnings that list calls ended by a time limit, the deadline of a request or a cancel, by owner of the limit and whether they
    may have been charged."""
    keys: dict[tuple[str, bool], list[str]] = {}
    for event in failures:
        ended_by = f"{ENDED_BY[event.failure]}{f' of {event.limit}' if event.limit else ''}"
        keys.setdefault((ended_by, event.possibly_charged), []).append(event.key)
    return [
        f"{count(len(call_keys), 'call')} {ended_by}, "
        f"{'possibly charged' if charged else 'no request in flight'}: {', '.join(call_keys)}"
        for (ended_by, charged), call_keys in sorted(keys.items())
    ]


def _is_refusal(event: Ended) -> bool:
    """Return whether a limit refused the attempt before anything was sent."""
    return isinstance(event, CallFailed) and event.unsent


def answer_fields(answer: Reply[Any] | Failure | None, limit: StopReason | None) -> dict[str, Any]:
    """Return what a report says of its answer. It was paid from the reserve only if a limit had refused calls."""
    if not isinstance(answer, Reply):
        return {"answer": None, "answer_cut": False, "closing": None}
    paid = "reserve" if answer.reserve and limit else "ordinary"
    return {"answer": answer.text, "answer_cut": answer.cut, "closing": paid}


def verdict_fields(
    stop: StopReason, confidence: ConfidenceScore | None, unmet: Sequence[str], answer_cut: bool
) -> dict[str, Any]:
    """Return how a run ended: with anything unmet, or a cut answer, it is not converged and states no confidence."""
    failed = stop is StopReason.FAILED
    unmet = () if failed else (*unmet, *(["the answer was cut at the token limit"] if answer_cut else []))
    stated = ConfidenceScore() if unmet or failed or confidence is None else confidence
    return {"stop_reason": stop.unless(unmet), "confidence": stated, "unmet": unmet, "answer_cut": answer_cut}
