"""How far a debate can be trusted: its mechanics in figures, and the single call beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from consilience.domain.sections import AgentText, Block, Details, Item, Paragraph, Table
from consilience.protocols._common.presenting import bullets, format_share, plural
from consilience.protocols.debate.attention import NOTICED
from consilience.protocols.debate.records import SingleCall
from consilience.protocols.debate.report_data import DebateData
from consilience.protocols.debate.state import DebateState, thread_name
from consilience.protocols.debate.words import BLOCKED, CRITERIA, SIDES, certainty, crux_numbers, tally

SINGLE_HEADING = "Compared with one call"


def trust_items(report: DebateData, state: DebateState) -> Iterator[Item]:
    """What the mechanics of the debate say about its worth."""
    metrics = report.system_metrics
    evidence = [m for m in state.messages if m.move == "PROVIDE_EVIDENCE"]
    if evidence:
        memory = [m for m in evidence if m.from_memory]
        which = f": {state.marks(memory)}" if memory else ""
        verified = len(evidence) - len(memory)
        yield Item(
            text=f"Evidence: {plural(len(evidence), 'message')}; {verified} quote a document with verified words, "
            f"{len(memory)} rest on the model's memory{which}.",
            refs=tuple(message.id for message in evidence),
        )
    elif state.messages:
        yield Item(text="Evidence: no message gave any.", refs=state.last_refs)
    if metrics.attended:
        how = {"keyword": "shared words", "embedding": "similarity of meaning"}.get(report.attention_mode, "attention")
        yield Item(
            text=f"Attention by {how}: of {plural(metrics.attended, 'reply').replace('replys', 'replies')} to a message of the "
            f"agent's own choice, {metrics.attended_highly} answered one with a score of at least {NOTICED:g} "
            f"({format_share(metrics.attended_highly / metrics.attended)}).",
            refs=tuple(message.id for message in state.messages if message.attention is not None),
        )
    if metrics.messages_blocked:
        reasons = _counted(metrics.reasons_blocked, BLOCKED)
        yield Item(
            text=f"Replies blocked before any agent read them: {metrics.messages_blocked} ({reasons}).",
            refs=state.last_refs,
        )
    yield from _lock_items(report, state)
    if asked := [message for message in state.messages if message.opposing]:
        who = ", ".join(f"{state.names[message.agent]} [{message.label}]" for message in asked)
        yield Item(
            text=f"Asked to argue the other side, since nobody challenged anything: {who}.",
            refs=tuple(m.id for m in asked),
        )


def _lock_items(report: DebateData, state: DebateState) -> Iterator[Item]:
    metrics = report.system_metrics
    if metrics.crux_lock_attempts:
        text = f"Crux locks: {plural(metrics.crux_lock_attempts, 'attempt')}, {metrics.crux_lock_failures} failed"
        reasons = _counted(metrics.failure_reasons, CRITERIA)
        committed = tuple(c.message for thread in report.threads for c in thread.commitments) or state.last_refs
        yield Item(text=f"{text} ({reasons})." if reasons else f"{text}.", refs=committed)
    for thread in report.threads:
        for n, attempt in enumerate(thread.lock_attempts, 1):
            if not attempt.success:
                failures = "; ".join(_named(failure, state) for failure in attempt.failures)
                before = tuple(message.id for message in state.said_in(thread.id) if message.at <= attempt.at)
                yield Item(text=f"Lock {n} of {thread_name(thread.id)} failed: {failures}.", refs=before[-1:])
    if metrics.steelman_attempts:
        rate = metrics.steelman_accuracy_rate
        graded = "none was graded" if rate is None else f"{format_share(rate)} of the graded ones accepted"
        retries = f", {metrics.steelman_retries} of them another try" if metrics.steelman_retries else ""
        refs = tuple(steelman.message for thread in report.threads for steelman in thread.steelmen)
        yield Item(text=f"Steelmen: {metrics.steelman_attempts}{retries}; {graded}.", refs=refs)


def _named(failure: str, state: DebateState) -> str:
    """Return a failure of a lock with its grade in plain words."""
    for grade in ("INCOMPLETE", "WRONG", "PENDING"):
        failure = failure.replace(f": {grade}", f": {grade.lower()}")
    return failure.replace("commits to YES", "commits to yes").replace("commits to NO", "commits to no")


def _counted(numbers: Mapping[str, int], words: Mapping[str, str]) -> str:
    return ", ".join(f"{number} {words.get(name, name)}" for name, number in numbers.items())


# --- the single call


def single_blocks(report: DebateData, state: DebateState) -> Iterator[Block]:
    """The single call beside the debate: both answers, both costs, which cruxes it named, and what the debate added."""
    single = report.single_call
    if single is None:
        failed = [call for call in report.failed_calls if call.key == "single"]
        if failed:
            text = f"The single call has no reply: {failed[-1].kind.value}. Nothing is compared with it."
            yield Paragraph(text=text, refs=(failed[-1].key,))
        return
    own = (single.key, "closing") if report.decided else (single.key,)
    rows = tuple(_beside(report, state, single))
    yield Paragraph(text=report.added, tone="strong", refs=own)
    yield Table(heads=("", "the debate", "one call"), rows=rows, left=3, refs=(own,) * len(rows))
    yield from bullets(_single_items(state, single))
    yield Details(summary="The answer of the single call", blocks=(AgentText(text=single.answer or " "),))


def _beside(report: DebateData, state: DebateState, single: SingleCall) -> Iterator[tuple[str, str, str]]:
    spent = report.ledger.actual
    several = len(state.propositions) > 1
    for n, position in enumerate(single.positions):
        decided = SIDES[report.decided[n]] if report.decided else "no answer"
        votes = tally([ballot.positions[n] for ballot in state.final.values()])
        name = f"proposition {n + 1}" if several else "answer"
        sure = f", {certainty(single.confidence)}" if n == 0 else ""
        yield name, f"{decided} (ballots: {votes or 'none'})", f"{SIDES[position]}{sure}"
    own = 1 + bool(single.compared_by)
    yield "calls", f"{spent.calls + spent.inherited + spent.cached - own:,}", "1"
    tokens = spent.tokens_in + spent.tokens_out, single.tokens_in + single.tokens_out
    yield "tokens", f"{max(tokens[0] - tokens[1], 0):,}", f"{tokens[1]:,}"
    if spent.cost is not None and single.cost is not None:
        yield "cost", f"${max(spent.cost - single.cost, 0.0):.4f}", f"${single.cost:.4f}"


def _single_items(state: DebateState, single: SingleCall) -> Iterator[Item]:
    """The questions that the single call named, each with the crux that asks the same, and the cruxes that it missed."""
    numbers = {crux.thread: n for n, crux in enumerate(state.cruxes, 1)}
    refs = tuple(filter(None, (single.key, single.compared_by)))
    for n, question in enumerate(single.cruxes, 1):
        same = [numbers[thread] for thread, named in single.named.items() if named == n and thread in numbers]
        near = [numbers[thread] for thread, touched in single.touched.items() if touched == n and thread in numbers]
        asks = [f"asks the same as {crux_numbers(same)}"] if same else []
        asks += [f"on the subject of {crux_numbers(near)}, and another question"] if near else []
        note = "; ".join(asks) or ("on the subject of no crux" if single.named else "not compared with the cruxes")
        yield Item(lead="It named:", text=question, note=note, refs=refs)
    missed = [
        numbers[thread]
        for thread, named in single.named.items()
        if named is None and thread in numbers and thread not in single.touched
    ]
    if missed:
        yield Item(lead="It did not name:", text=f"{crux_numbers(sorted(missed))}.", refs=refs)
    if single.cut:
        yield Item(text="Its answer was cut off at the token limit.", refs=refs)
