"""One structured call on the documents open to all, made within the run, and what the debate added to it.

The call sees neither the debate nor its ballots, and no agent sees its reply. What the debate added follows from typed fields and
figures: neither an agent of the debate nor its closing call judges its own worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from consilience.domain.positions import LEVELS
from consilience.domain.sections import AgentText, Block, Details, Item, Paragraph, Table
from consilience.domain.wording import count, join_names
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure, Pending, Reply
from consilience.protocols._common.presenting import bullets
from consilience.protocols.debate.ballots import sides_of
from consilience.protocols.debate.floor import Floor
from consilience.protocols.debate.moves import SIDES
from consilience.protocols.debate.records import Crux, SingleCall
from consilience.protocols.debate.replies import SingleReply, ballot_type, named_type
from consilience.protocols.debate.state import DebateData, DebateState, certainty, crux_numbers, tally

SEAT, KEY, COMPARED = "single_call", "single", "named"
MAX_QUESTIONS = 4
"""Questions of the single call that a report keeps."""


async def start_single(floor: Floor) -> Pending[Reply[SingleReply] | Failure]:
    """Start the call: it runs beside the debate and takes no time of its own."""
    session, propositions = floor.session, floor.framing.propositions
    async with session.phase("single", 1):
        return session.start(
            session.ask(
                SEAT,
                Prompt(session.render_template("single", propositions=propositions)),
                key=KEY,
                returns=ballot_type(SingleReply, len(propositions)),
                kind="single",
                audience=("second_opinion",),
                accept=_refuse_empty,
                quoted=lambda value: "\n".join(f"{n}. {text}" for n, text in enumerate(_stated(value.cruxes), 1)),
            )
        )


async def compare_questions(
    floor: Floor, single: Reply[SingleReply] | Failure | None, cruxes: Sequence[Crux]
) -> Reply[Any] | Failure | None:
    """Ask which questions of the single call are cruxes of the debate; None where either has none."""
    session = floor.session
    asked = _stated(single.value.cruxes) if isinstance(single, Reply) else ()
    if not (asked and cruxes):
        return None
    words = session.render_template("named", questions=tuple(crux.question for crux in cruxes))
    async with session.phase("single", 2):
        return await session.ask(
            "second_opinion",
            Prompt(words, (Quote(KEY, "S"),), documents=()),
            key=COMPARED,
            returns=named_type(len(cruxes), len(asked)),
            kind="comparison",
        )


def single_record(
    session: Session,
    single: Reply[SingleReply] | Failure | None,
    compared: Reply[Any] | Failure | None,
    cruxes: Sequence[Crux],
) -> SingleCall | None:
    """Return the call as the report holds it; None without a reply."""
    if not isinstance(single, Reply):
        return None
    value = single.value
    tokens_in, tokens_out, cost = session.spent_on(single.key)
    named: dict[str, int | None] = {}
    touched: dict[str, int] = {}
    if isinstance(compared, Reply):
        for n, crux in enumerate(cruxes, 1):
            nearest, same = getattr(compared.value, f"q{n}"), getattr(compared.value, f"same{n}")
            named[crux.thread] = nearest if nearest and same else None
            if nearest and not same:
                touched[crux.thread] = nearest
    return SingleCall(
        key=single.key,
        model=session.agent(SEAT).model,
        positions=sides_of(value, "p"),
        confidence=LEVELS[value.confidence],
        answer=value.text,
        cruxes=_stated(value.cruxes),
        against=_stated(value.against),
        would_change=_stated(value.would_change),
        unknown=_stated(value.unknown),
        named=named,
        touched=touched,
        compared_by=compared.key if isinstance(compared, Reply) else "",
        cut=single.cut,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        cost=cost,
    )


def _stated(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(text.strip() for text in texts[:MAX_QUESTIONS] if text.strip())


def _refuse_empty(reply: SingleReply) -> None:
    if not reply.text.strip():
        raise ValueError("`text` is empty: give the complete answer")


# --- what the debate added

NOTHING_ADDED = "by these figures the debate added nothing to it"


def added_sentence(report: DebateData) -> str:
    """Return what the debate has that the single call has not, in one sentence; empty without the call. It counts and does not
    judge: which of two texts is the better one follows from no figure."""
    single = report.single_call
    if single is None:
        return ""
    added, unread = [*_additions(report, single, report.cruxes)], unread_documents(report)
    read = len(report.documents) - unread
    which = f", which read {read or 'none'} of the {count(len(report.documents), 'document')}," if unread else ""
    more = f"; the debate added {join_names(added)}" if added else "" if unread else f"; {NOTHING_ADDED}"
    return f"One call on the same task{which} {_compared(report, single)}{more}."


def unread_documents(report: DebateData) -> int:
    """Return how many documents the single call was not shown, because they are for other agents only: with any, the call does not
    show what one model makes of the same material."""
    return sum(all(reader.agent != SEAT for reader in document.readers) for document in report.documents)


def _compared(report: DebateData, single: SingleCall) -> str:
    if not report.decided:
        return "has an answer, and the debate has none"
    differing = [n for n, pair in enumerate(zip(report.decided, single.positions, strict=True)) if pair[0] != pair[1]]
    several = len(report.decided) > 1
    if not differing:
        sides = ", ".join(
            f"{report.proposition_name(n)}: {SIDES[side]}" if several else SIDES[side]
            for n, side in enumerate(single.positions)
        )
        return f"came to the same answer ({sides})"
    parts = (
        f"{f'on {report.proposition_name(n)} ' if several else ''}{SIDES[single.positions[n]]} where the debate's is "
        f"{SIDES[report.decided[n]]}"
        for n in differing
    )
    return f"came to another answer ({'; '.join(parts)}), and no figure here shows which is right"


def _additions(report: DebateData, single: SingleCall, cruxes: Sequence[Crux]) -> Iterator[str]:
    missed = [
        (n, crux.thread in single.touched)
        for n, crux in enumerate(cruxes, 1)
        if single.named.get(crux.thread, 0) is None and crux.validated
    ]
    if unseen := [n for n, touched in missed if not touched]:
        yield f"{crux_numbers(unseen)}, which it did not name"
    if asked_otherwise := [n for n, touched in missed if touched]:
        yield f"{crux_numbers(asked_otherwise)}, where it asks something else about the same subject"
    caused = sum(not change.conformity for change in report.position_changes)
    if caused:
        yield f"{count(caused, 'change')} of position with a named argument"
    if report.dissent:
        yield f"{count(len(report.dissent), 'reasoned ballot')} against the answer"


# --- its section


def single_blocks(report: DebateData) -> Iterator[Block]:
    """The single call beside the debate: both answers, both costs, which cruxes it named, and what the debate added."""
    single = report.single_call
    if single is None:
        failed = [call for call in report.failed_calls if call.key == "single"]
        if failed:
            text = f"The single call has no reply: {failed[-1].kind.value}. Nothing is compared with it."
            yield Paragraph(text=text, refs=(failed[-1].key,))
        return
    own = (single.key, "closing") if report.decided else (single.key,)
    rows = tuple(_comparison_rows(report, single))
    added = report.added.replace(NOTHING_ADDED, "a limit cut the debate off") if report.limit_reached else report.added
    yield Paragraph(text=added, tone="strong", refs=own)
    yield Table(heads=("", "the debate", "one call"), rows=rows, left=3, refs=(own,) * len(rows))
    yield from bullets(_single_items(report, single))
    yield Details(summary="The answer of the single call", blocks=(AgentText(text=single.answer or " "),))


def _comparison_rows(report: DebateData, single: SingleCall) -> Iterator[tuple[str, str, str]]:
    spent = report.ledger.actual
    several = len(report.propositions) > 1
    for n, position in enumerate(single.positions):
        decided = SIDES[report.decided[n]] if report.decided else "no answer"
        votes = tally(report.positions_on(n))
        name = report.proposition_name(n) if several else "answer"
        sure = f", {certainty(single.confidence)}" if n == 0 else ""
        yield name, f"{decided} (ballots: {votes or 'none'})", f"{SIDES[position]}{sure}"
    own = 1 + bool(single.compared_by)
    yield "calls", f"{spent.calls + spent.inherited + spent.cached - own:,}", "1"
    tokens = spent.tokens_in + spent.tokens_out, single.tokens_in + single.tokens_out
    if spent.inherited or spent.cached:
        alone = f"{tokens[1]:,}" if tokens[1] else "not known: its reply was reused"
        yield "tokens", "not known: it inherited or reused calls", alone
        return
    yield "tokens", f"{max(tokens[0] - tokens[1], 0):,}", f"{tokens[1]:,}"
    if spent.cost is not None and single.cost is not None:
        yield "cost", _dollars(max(spent.cost - single.cost, 0.0)), _dollars(single.cost)


def _dollars(amount: float) -> str:
    return f"${amount:.4f}" if amount else "$0"


def _single_items(state: DebateState, single: SingleCall) -> Iterator[Item]:
    """The questions that the single call named, each with the crux that asks the same, and the cruxes that it missed."""
    numbers = {crux.thread: n for n, crux in enumerate(state.cruxes, 1)}
    refs = tuple(filter(None, (single.key, single.compared_by)))
    for n, question in enumerate(single.cruxes, 1):
        same = [numbers[thread] for thread, named in single.named.items() if named == n and thread in numbers]
        near = [numbers[thread] for thread, touched in single.touched.items() if touched == n and thread in numbers]
        asks = [f"asks the same as {crux_numbers(same)}"] if same else []
        asks += [f"on the subject of {crux_numbers(near)}, but a different question"] if near else []
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
