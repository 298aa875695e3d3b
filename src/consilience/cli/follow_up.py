"""`due`, `resolve` and `scores`, which follow forecasts up over all sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from consilience.cli.errors import print_result
from consilience.cli.options import Id, JsonOption, argument, new_app
from consilience.cli.sessions import find_session, user_store
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import SessionFinished
from consilience.domain.paths import journal_path
from consilience.domain.report import FORECASTS
from consilience.reporting.follow_up import (
    BrierScore,
    Deadline,
    FollowedSession,
    Resolution,
    brier_scores,
    open_deadlines,
    read_resolutions,
    record_resolution,
    resolutions_path,
)
from consilience.reporting.formatting import count

if TYPE_CHECKING:
    from consilience.journal.store import Store

NEAR_DAYS = 90
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
    today = _day(on)
    with user_store() as store:
        deadlines = open_deadlines(_followed(store), read_resolutions(resolutions_path(journal_path())))
    limit = today + timedelta(days=within)
    groups = {
        "past": [d for d in deadlines if d.day is not None and d.day < today],
        "near": [d for d in deadlines if d.day is not None and today <= d.day <= limit],
        "unreadable": [d for d in deadlines if d.day is None],
    }
    heads = ("Past", f"In the next {count(within, 'day')}", "Deadlines that name no date")
    lines: list[str] = []
    for heading, group in zip(heads, groups.values(), strict=True):
        lines += [f"{heading}:", *map(_deadline_line, group[:max_lines])] if group else []
        if len(group) > max_lines:
            lines.append(f"  {len(group) - max_lines:,} more: --limit {len(group)} shows all.")
    value = {name: [_deadline_row(deadline) for deadline in group] for name, group in groups.items()}
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
        session = find_session(store, id)
        followed = _follow(store, session, store.parents())
        forecasts = {forecast.id: forecast for forecast in followed.forecasts} if followed else {}
        if question not in forecasts:
            choices = f"Give one of them: {', '.join(forecasts)}."
            raise UnknownName(
                f"session {session} has no question {question!r} that can be resolved",
                do=choices if forecasts else "Only finished sessions with positions have such questions.",
            )
        resolution = Resolution(session, question, outcome == "yes", datetime.now(UTC).date().isoformat())
        record_resolution(resolutions_path(journal_path()), resolution)
        agents, _ = brier_scores([followed] if followed else [], [resolution])
    scored = [row for row in agents if row.period == "all"]
    value = {"session": session, "question": question, "outcome": outcome, "recorded": resolution.on}
    lines = [f"{session} {question}: {outcome} ({forecasts[question].question})"]
    lines += [f"  {row.name}: Brier score {row.score:.3f}" for row in scored]
    print_result({**value, "agents": [asdict(row) for row in scored]}, "\n".join(lines), as_json=as_json)


@scores.command("scores")
def _scores(as_json: JsonOption = False) -> None:
    """Show Brier scores of agents and of models over all resolved questions, in total and by month.

    0 is perfect, 0.25 is chance, 1 is certain and wrong. Agents that took no side on a question are not scored on it.
    """
    with user_store() as store:
        agents, models = brier_scores(_followed(store), read_resolutions(resolutions_path(journal_path())))
    value = {"agents": [asdict(row) for row in agents], "models": [asdict(row) for row in models]}
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


def _deadline_row(deadline: Deadline) -> dict[str, object]:
    return {**asdict(deadline), "day": deadline.day.isoformat() if deadline.day else None}


def _deadline_line(deadline: Deadline) -> str:
    description = f"{deadline.agent}: {deadline.finding} ({deadline.question})"
    return f"  {deadline.day or deadline.deadline}  {deadline.session} {deadline.forecast}  {description}"


def _followed(store: Store) -> Iterator[FollowedSession]:
    """The finished sessions with forecasts, oldest first."""
    parents = store.parents()
    yield from filter(None, (_follow(store, session, parents) for session in store.sessions()))


def _follow(store: Store, session: str, parents: Mapping[str, str]) -> FollowedSession | None:
    """Return a session with its forecasts; None if it has none. Its report is not read."""
    started, finished = store.beginning(session), store.ending(session)
    if started is None or not isinstance(finished, SessionFinished):
        return None
    forecasts = FORECASTS.validate_json(store.text(finished.forecasts)) if finished.forecasts else ()
    if not forecasts:
        return None
    root = session
    while root in parents:
        root = parents[root]
    held_on = datetime.fromtimestamp(store.created(session), UTC).date()
    return FollowedSession(session, root, started.agents, forecasts, held_on)
