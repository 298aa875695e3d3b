"""The part of a report that is the same for all protocols, from what was recorded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from consilience.domain.events import CallCompleted, CallFailed, Ended, ReplyRejected, place_key
from consilience.domain.messages import Quotation
from consilience.domain.report import Claim, LedgerReport, Missing, Spent
from consilience.engine.allowances import CUT_OFF
from consilience.engine.analysis import independence
from consilience.engine.sources import quotations
from consilience.engine.state import State
from consilience.engine.work import Failure, Reply

MUST_BE_READ = ("nudge", "flag", "critique")


def header(state: State, first: Sequence[Reply[object] | Failure]) -> dict[str, object]:
    """Header fields that follow from the journal; `first` are the results of the first phase, for quorum and degradation."""
    ended = calls(state)
    replied = sum(isinstance(result, Reply) for result in first)
    needed = quorum_of(state.quorum, len(first))
    cited = all_quotations(state)
    said = sorted(state.warnings, key=lambda warning: place_key(warning[0].rstrip(".")))
    return {
        "session": state.id,
        "parent": state.parent,
        "protocol": state.protocol,
        "task": state.opening.task,
        "settings": dict(state.settings),
        "seed": state.seed,
        "agents": state.agents,
        "topology": state.topology,
        "replied": replied,
        "quorum_met": bool(first) and replied >= max(needed, 1),
        "degraded": _degraded(first, replied),
        "ledger": LedgerReport(estimated=state.estimate, actual=spent(ended, state), reserve_drawn=state.reserve_drawn),
        "missing": missing(ended),
        "warnings": (*_warnings(state, ended, cited), *(text for _, text in said)),
        "independence": independence(state.agents),
        "quotations": tuple(cited),
    }


def quorum_of(share: float, n: int) -> int:
    """How many of n agents a share of them is, rounded up but for what a float is off by."""
    return math.ceil(share * n - 1e-9)


def calls(state: State) -> list[Ended]:
    """Ended attempts that the run came to, in program order."""
    return sorted(state.recorder.reached.values(), key=lambda event: (place_key(event.place), event.attempt))


def spent(ended: Sequence[Ended], state: State) -> Spent:
    def total(name: str) -> int:
        return sum(int(event.volatile.get(name) or 0) for event in ended)

    inherited = {event.key for event in ended if event.inherited}
    ended = [event for event in ended if not event.inherited]
    cached = sum(isinstance(event, CallCompleted) and event.cached for event in ended)
    ended = [event for event in ended if not (isinstance(event, CallCompleted) and event.cached)]
    made = [event for event in ended if not _unfunded(event)]
    repairs = sum(map(_repair, ended))
    requests = sum(event.requests for event in ended)
    further = sum(event.steps - 1 for event in made)
    costs = [event.cost for event in ended]
    return Spent(
        calls=len({event.key for event in made}) + further,
        requests=requests,
        retries=sum(max(event.requests - event.steps - int(event.volatile.get("fallback") or 0), 0) for event in made),
        repairs=repairs,
        fallbacks=total("fallback"),
        lost=state.lost,
        inherited=len(inherited),
        cached=cached,
        tokens_in=sum(event.tokens_in for event in ended),
        tokens_out=sum(event.tokens_out for event in ended),
        tokens_cached=total("cached"),
        estimated=sum(event.estimated for event in ended),
        cost=math.fsum(cost for cost in costs if cost is not None) if None not in costs else None,
        seconds=round(state.recorder.now(), 3),
    )


def missing(ended: Sequence[Ended]) -> tuple[Missing, ...]:
    """Agents whose last call failed for good, limits aside."""
    since: dict[str, Missing] = {}
    for event in ended:
        if isinstance(event, CallCompleted):
            since.pop(event.agent, None)
            continue
        if isinstance(event, CallFailed) and event.failure.is_limit:
            continue
        reason = (
            f"malformed: {event.error}"
            if isinstance(event, ReplyRejected)
            else f"{event.failure.value}: {event.detail}"
        )
        since.setdefault(event.agent, Missing(agent=event.agent, since=event.key, reason=reason.rstrip(": ")))
    return tuple(since.values())


def all_quotations(state: State) -> list[Quotation]:
    """Every quotation of a document in what was said, in program order, judged once per place where it stands."""
    found: list[Quotation] = []
    if state.opening.documents:
        for event in calls(state):
            if isinstance(event, CallCompleted) and event.key in state.messages:
                text = state.messages[event.key].text
                found.extend(quotations(text, state.opening.documents, event.agent))
    return found


def claim(text: str, ids: tuple[str, ...], state: State, agent: str) -> Claim:
    """A claim of the answer. Where documents were given, one that quotes none truly is from the model's memory."""
    documents = state.opening.documents
    cited = quotations(text, documents, agent)
    return Claim(text=text, ids=ids, from_memory=bool(documents) and not any(q.verified for q in cited))


def _degraded(first: Sequence[Reply[object] | Failure], replied: int) -> str | None:
    if replied == len(first):
        return None
    reasons = Counter(result.kind.value for result in first if isinstance(result, Failure))
    return f"{replied} of {len(first)} agents ({', '.join(f'{n} {kind}' for kind, n in sorted(reasons.items()))})"


def _warnings(state: State, ended: Sequence[Ended], cited: Sequence[Quotation]) -> list[str]:
    found: list[str] = []
    read = {id for shown in state.shown.values() for id in shown}
    for message in state.messages.values():
        if message.kind in MUST_BE_READ and message.id not in read:
            found.append(f"the {message.kind} {message.id} was read by no later call")
    found.sort()
    cut = [event.key for event in ended if isinstance(event, CallCompleted) and event.finish == "length"]
    if cut:
        found.append(f"{counted(len(cut), 'reply', 'replies')} cut at the token limit: {', '.join(cut[:5])}")
    rejected = [event for event in ended if isinstance(event, ReplyRejected)]
    if (
        rejected
    ):  # the report rests on inherited replies too, though the ledger says only what this session was charged for
        again = sum(map(_repair, ended))
        asked = f"; {again} had to be asked for again" if again else ""
        found.append(f"{counted(len(rejected), 'reply', 'replies')} could not be used{asked}")
    false = sum(not quotation.verified for quotation in cited)
    if false:
        found.append(f"{false} of {len(cited)} quotations are not in the documents where they say they are")
    if estimated := sum(event.estimated for event in ended):
        found.append(
            f"{counted(estimated, 'reply', 'replies')} came without a count of tokens; theirs are estimated, and limits go by that"
        )
    if any(event.cost is None for event in ended):
        found.append("the price of a model is not known; money is not counted in full")
    refused = Counter(event.limit for event in ended if isinstance(event, CallFailed) and event.limit)
    found += [f"{counted(n, 'call', 'calls')} refused by the limit of {whose}" for whose, n in sorted(refused.items())]
    cut_off = [
        e.detail.removeprefix(CUT_OFF) for e in ended if isinstance(e, CallFailed) and e.detail.startswith(CUT_OFF)
    ]
    if cut_off:
        found.append(
            f"{counted(len(cut_off), 'call', 'calls')} failed where a limit allowed no further attempt: {cut_off[0][:300]}"
        )
    found += [f"no call fell under the limit of {whose}" for whose in state.allowances.unmet()]
    if unclaimed := state.recorder.unclaimed():
        found.append(
            f"{counted(len(unclaimed), 'inherited reply', 'inherited replies')} had no place in this run: "
            + ", ".join(unclaimed[:5])
        )
    if outdated := sorted(state.outdated):
        found.append(
            f"{counted(len(outdated), 'inherited reply', 'inherited replies')} asked for again, said of other texts: "
            + ", ".join(outdated[:5])
        )
    if state.lost:
        found.append(f"lost calls: {state.lost} in flight when a process ended, perhaps paid for")
    return found


def _unfunded(event: Ended) -> bool:
    """An attempt that a limit refused: nothing was sent. (An agent with tools may have been refused a later step.)"""
    return isinstance(event, CallFailed) and event.failure.is_limit and not event.prompt


def _repair(event: Ended) -> bool:
    """A further attempt at a call, made because the reply before could not be used."""
    return event.attempt > 1 and not _unfunded(event)


def counted(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"
