"""Answers of final ballots that were asked again, and what they count as."""

from __future__ import annotations

from collections.abc import Iterator

from consilience.domain.sections import Item
from consilience.protocols.debate.records import Recheck
from consilience.protocols.debate.report_data import DebateData
from consilience.protocols.debate.state import DebateState, thread_name
from consilience.protocols.debate.words import excerpt, side_word


def recheck_items(report: DebateData, state: DebateState) -> Iterator[Item]:
    """One item for each answer that was asked again: what its agent had answered, what it answers now, and what counts."""
    for check in report.rechecks:
        before = [f"{side_word(side)}{_where(key, state)}" for key, side in check.before.items()]
        history = ", ".join((*before, f"{side_word(check.ballot)} in its final ballot"))
        yield Item(
            lead=f"{state.names[check.agent]} on {_subject(check.question, state)}:",
            text=f"{history}; {_outcome(check)}",
            note=f"its reason: {excerpt(check.reason)}" if check.reason else "",
            refs=(*check.before, f"final/{check.agent}", *([check.key] if check.again else [])),
        )


def _outcome(check: Recheck) -> str:
    why = (
        "asked again"
        if check.why == "differs"
        else "asked to confirm it, since only such answers stood against a consensus"
    )
    if check.again is None:
        return f"{why}, it did not reply: {side_word(check.counts)} counts."
    if check.again == check.counts:
        return f"{why}, it answers {side_word(check.again)}, which counts."
    return f"{why}, it answers {side_word(check.again)}: it counts as undecided."


def _where(key: str, state: DebateState) -> str:
    if key in state.by_id:
        return f" in public{state.mark(key)}"
    kinds = {"opening": " in its opening ballot", "flip": " after the evidence", "recheck": " when asked again"}
    return kinds.get(key.partition("/")[0], "")


def _subject(question: str, state: DebateState) -> str:
    """Return the question of an answer in words: the task, a proposition, a crux by its number, or a thread."""
    if question.startswith("p"):
        return "the task" if len(state.propositions) == 1 else f"proposition {question[1:]}"
    cruxes = [crux.thread for crux in state.cruxes]
    return f"crux {cruxes.index(question) + 1}" if question in cruxes else f"the question of {thread_name(question)}"
