"""`due`, `resolve` and `scores`, which follow forecasts up over all sessions."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Literal

import typer

from consilience.cli.errors import print_result
from consilience.cli.options import Id, JsonOption, argument, new_app
from consilience.cli.sessions import find_session, user_store
from consilience.domain.errors import SettingsError
from consilience.reporting.follow_up import BrierScore, Deadline
from consilience.reporting.formatting import count
from consilience.sessions.follow_up import (
    NEAR_DAYS,
    all_scores,
    deadline_row,
    due_groups,
    followed_sessions,
    resolve_question,
    score_rows,
)

MAX_DUE_LINES = 50
"""Findings of each kind that `due` prints; its JSON has all."""

due, resolve, scores = new_app(), new_app(), new_app()


@due.command("due")
def _due(
    within: Annotated[
        int, typer.Option("--within", min=0, help="Also list deadlines within this many days.", metavar="DAYS")
    ] = NEAR_DAYS,
    max_lines: Annotated[
        int, typer.Option("--limit", min=1, help="Max number of findings of each kind, printed.", metavar="N")
    ] = MAX_DUE_LINES,
    on: Annotated[
        str | None, typer.Option(help="The day to compare with, YYYY-MM-DD. Default: today.", metavar="DATE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List findings that would change an agent's mind and whose deadline is past or near, over all sessions.

    Agents state deadlines in their own words; "in six weeks" counts from the day of the session. A deadline without a date is
    listed separately: ask for dates in the task. Resolved questions are left out.
    """
    with user_store() as store:
        groups = due_groups(followed_sessions(store), store.path, today=_day(on), within=within)
    heads = ("Past", f"In the next {count(within, 'day')}", "Deadlines that name no date")
    lines: list[str] = []
    for heading, group in zip(heads, groups.values(), strict=True):
        lines += [f"{heading}:", *map(_deadline_line, group[:max_lines])] if group else []
        if len(group) > max_lines:
            lines.append(f"  {len(group) - max_lines:,} more: --limit {len(group)} shows all.")
    value = {name: [deadline_row(deadline) for deadline in group] for name, group in groups.items()}
    print_result(value, "\n".join(lines) or "Nothing is due.", as_json=as_json)


@resolve.command("resolve")
def _resolve(
    id: Id,
    question: Annotated[str, argument("Id of a crux or proposition of the session: crux-1, p1.", "QUESTION")],
    outcome: Annotated[Literal["yes", "no"], argument("The outcome.", "yes|no")],
    as_json: JsonOption = False,
) -> None:
    """Record the outcome of a question of a session. The session itself is not changed; a later outcome replaces an earlier one."""
    with user_store() as store:
        resolved = resolve_question(store, store.path, find_session(store, id), question, outcome == "yes")
    session = resolved.resolution.session
    scored = resolved.scores
    value = {"session": session, "question": question, "outcome": outcome, "recorded": resolved.resolution.on}
    lines = [f"{session} {question}: {outcome} ({resolved.question})"]
    lines += [f"  {row.name}: Brier score {row.score:.3f}" for row in scored]
    print_result({**value, "agents": score_rows(scored)}, "\n".join(lines), as_json=as_json)


@scores.command("scores")
def _scores(as_json: JsonOption = False) -> None:
    """Show Brier scores of agents and of models over all resolved questions, in total and by month.

    0 is perfect, 0.25 is chance, 1 is certain and wrong. Agents that took no side on a question are not scored on it.
    """
    with user_store() as store:
        agents, models = all_scores(followed_sessions(store), store.path)
    value = {"agents": score_rows(agents), "models": score_rows(models)}
    text = "No question is resolved yet: consilience resolve SESSION QUESTION yes|no."
    if agents:
        text = "\n".join([*_table("agent", agents), "", *_table("model", models)])
    print_result(value, text, as_json=as_json)


def _table(heading: str, rows: list[BrierScore]) -> list[str]:
    width = max(len(heading), *(len(row.name) for row in rows))
    lines = [f"{row.name:{width}}  {row.period:7}  {row.forecasts:9}  {row.score:11.3f}" for row in rows]
    return [f"{heading:{width}}  {'month':7}  forecasts  Brier score", *lines]


def _day(text: str | None) -> date:
    try:
        return datetime.now(UTC).astimezone().date() if text is None else date.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a date", where="--on", do="Write it as 2027-12-31.") from None


def _deadline_line(deadline: Deadline) -> str:
    description = f"{deadline.agent}: {deadline.finding} ({deadline.question})"
    return f"  {deadline.day or deadline.deadline}  {deadline.session} {deadline.forecast}  {description}"
