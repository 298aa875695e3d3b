"""One structured call on the same documents, made within the run, and what the debate added to it.

The call sees neither the debate nor its ballots, and no agent sees its reply. What the debate added follows from typed fields and
figures: neither an agent of the debate nor its closing call judges its own worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from consilience.domain.positions import LEVELS
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure, Pending, Reply
from consilience.protocols._common.presenting import plural
from consilience.protocols.debate.floor import Floor
from consilience.protocols.debate.records import Crux, SingleCall
from consilience.protocols.debate.replies import SingleReply, named_type, single_type
from consilience.protocols.debate.report_data import DebateData
from consilience.protocols.debate.words import SIDES, crux_numbers, joined

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
                returns=single_type(len(propositions)),
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
    propositions: int,
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
        positions=tuple(getattr(value, f"p{n}") for n in range(1, propositions + 1)),
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


def added_sentence(report: DebateData, cruxes: Sequence[Crux]) -> str:
    """Return what the debate has that the single call has not, in one sentence; empty without the call.

    `cruxes` are those of the report in the order in which it numbers them. The sentence counts and does not judge: which of two
    texts is the better one follows from no figure.
    """
    single = report.single_call
    if single is None:
        return ""
    added = [*_additions(report, single, cruxes)]
    more = f"the debate added {joined(added)}" if added else "by these figures the debate added nothing to it"
    return f"One call on the same documents {_compared(report, single)}; {more}."


def _compared(report: DebateData, single: SingleCall) -> str:
    if not report.decided:
        return "has an answer, and the debate has none"
    differing = [
        n for n, pair in enumerate(zip(report.decided, single.positions, strict=True), 1) if pair[0] != pair[1]
    ]
    several = len(report.decided) > 1
    if not differing:
        sides = ", ".join(
            f"{n}: {SIDES[side]}" if several else SIDES[side] for n, side in enumerate(single.positions, 1)
        )
        return f"came to the same answer ({sides})"
    parts = (
        f"{f'on proposition {n} ' if several else ''}{SIDES[single.positions[n - 1]]} where the debate's is "
        f"{SIDES[report.decided[n - 1]]}"
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
        yield f"{plural(caused, 'change')} of position with a named argument"
    if report.dissent:
        yield f"{plural(len(report.dissent), 'reasoned ballot')} against the answer"
