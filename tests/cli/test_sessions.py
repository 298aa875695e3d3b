"""Recorded sessions: show, resume, replay, list."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from cli.town import MODEL, TASK, Cli, Town, recorded, sensible
from consilience import Emergence, EmergenceReport, ToolAgent, run_sync
from consilience.domain.errors import Rejected
from consilience.domain.events import SessionParked, SessionStarted, text_id
from consilience.domain.outcome import Estimate
from consilience.domain.paths import journal_path
from consilience.domain.topology import tree
from consilience.engine import protocol as registry
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import Scripted, ScriptedModel
from kit.golden import Golden, lines_with, section

RUN = ("emergence", TASK, "--model", MODEL, "--max-rounds", "2")


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(journal_path())
    yield store
    store.close()


@pytest.fixture
def session(cli: Cli, town: Town) -> str:
    """A finished one."""
    assert cli(*RUN).exit_code == 0
    return recorded()[-1]


@pytest.fixture
def broken_off(cli: Cli, town: Town) -> str:
    """One that broke off when its first parent observed: six of fifteen calls are recorded."""

    def until_then(request: ModelRequest) -> object:
        if "/observe/" in request.key:
            raise RuntimeError("boom")
        return sensible(request)

    town.reply = until_then
    assert cli(*RUN).exit_code == 1
    town.reply = sensible
    town.requests.clear()
    return recorded()[-1]


def test_list_marks_sessions_without_an_answer_or_a_quorum(cli: Cli, town: Town, golden: Golden) -> None:
    for calls in ("0", "1", "5"):
        cli(*RUN, "--max-calls", calls)
    rows = json.loads(cli("sessions", "list", "--json").stdout)
    assert [(row["has_answer"], row["quorum_met"]) for row in rows] == [(True, True), (True, False), (False, False)]
    assert {row["stop_reason"] for row in rows} == {"exhausted_budget"}
    town.reply = lambda request: Scripted("Yes.", cost=None)
    cli("solo", TASK, "--model", MODEL)
    lines = cli("sessions", "list").stdout.splitlines()
    golden(re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DATE", line) for line in lines)


def test_show_prints_task_and_report(cli: Cli, session: str) -> None:
    result = cli("show", session)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"# {TASK}\n\n**Stopped: ")
    assert result.stderr == ""


@pytest.mark.parametrize("length", [2, 4, 7])
def test_session_id_prefix_is_accepted(cli: Cli, session: str, length: int) -> None:
    assert f"consilience replay {session}`" in cli("show", session[:length]).stdout


def test_last_is_the_newest_and_an_ambiguous_prefix_is_refused(cli: Cli, session: str) -> None:
    cli(*RUN)
    newest = recorded()[-1]
    assert f"consilience replay {newest}`" in cli("show", "last").stdout
    result = cli("show", "r")
    assert result.exit_code == 2
    assert session in result.stderr
    assert newest in result.stderr
    unknown = cli("show", "zzz")
    assert unknown.exit_code == 2
    assert newest in unknown.stderr


def test_show_json_prints_the_report(cli: Cli, session: str) -> None:
    assert EmergenceReport.model_validate_json(cli("show", session, "--json").stdout).session == session


def test_show_of_an_unfinished_session_prints_progress(cli: Cli, broken_off: str, golden: Golden) -> None:
    result = cli("show", "last")
    assert result.exit_code == 0
    golden(result.stdout)


def test_failed_calls_of_an_interrupted_run_are_said_to_stay_failed_in_a_resume(
    cli: Cli, town: Town, golden: Golden
) -> None:
    def one_fails(request: ModelRequest) -> object:
        if "/observe/" in request.key:
            raise KeyboardInterrupt
        return Rejected("no") if request.agent == "L2N1" else sensible(request)

    town.reply = one_fails
    cli(*RUN, "--max-rounds", "1")
    id = recorded()[-1]
    golden(lines_with(f"fork {id}", cli("show", id).stdout), "show")
    town.reply = sensible
    golden(lines_with(f"fork {id}", cli("resume", id).stderr), "resume")


@pytest.mark.parametrize("command", [("resume",), ("sessions", "resume")])
def test_resume_with_an_option_of_a_fork_names_the_fork(cli: Cli, command: tuple[str, ...]) -> None:
    refused = cli(*command, "last", "--max-calls", "40")
    assert refused.exit_code == 2
    assert "a fork takes others: consilience fork ID --at end --max-calls …" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("option", ["--jsn", "--out"])
def test_resume_with_a_misspelt_option_or_without_its_value_names_no_fork(cli: Cli, option: str) -> None:
    refused = cli("resume", "last", option)
    assert refused.exit_code == 2
    assert "fork" not in refused.stderr


def test_show_of_an_unfinished_session_as_json(cli: Cli, broken_off: str) -> None:
    output = json.loads(cli("show", "last", "--json").stdout)
    assert output["state"] == "unfinished"
    assert output["spent"]["calls"] == 6
    assert output["in_flight"] == ["round-1/observe/L1N1"]
    assert output["resume"] == f"consilience resume {broken_off}"
    assert len(output["calls"]) == 6


def test_resume_makes_only_missing_calls(cli: Cli, town: Town, broken_off: str, here: Path, golden: Golden) -> None:
    result = cli("resume", broken_off[:5], "--out", "reports")
    assert result.exit_code == 0
    assert len(town.requests) == 9
    golden(result.stderr)
    golden(section(result.stdout, "How far to trust it"), "report")
    assert (here / "reports" / "report.json").exists()


def test_resume_of_a_finished_session_prints_its_report(cli: Cli, town: Town, session: str) -> None:
    town.requests.clear()
    result = cli("resume", "last")
    assert result.exit_code == 0
    assert "already finished" in result.stderr
    assert result.stdout.startswith("**Stopped:")
    assert town.requests == []


def test_replay_prints_number_of_matched_events(cli: Cli, town: Town, session: str) -> None:
    town.requests.clear()
    result = cli("replay", "last")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Replayed {session}: ")
    assert "events matched, 0 calls, " in result.stdout
    assert town.requests == []
    output = json.loads(cli("replay", "last", "--json").stdout)
    assert output["calls"] == 0
    assert (
        output["events_matched"] == 15 + 2 + 3 + 1 + 2 + 2
    )  # calls, objections, notes, a check, rounds, beginning and end


def test_replay_of_an_unfinished_session_is_refused(cli: Cli, broken_off: str) -> None:
    result = cli("replay", "last")
    assert result.exit_code == 2
    assert f"consilience resume {broken_off}" in result.stderr


def test_sessions_list_prints_one_line_per_session(cli: Cli, session: str, broken_off: str) -> None:
    first, second = cli("sessions", "list").stdout.splitlines()
    session_id, _, _, protocol, state, *_ = first.split()
    assert [session_id, protocol, state] == [broken_off, "emergence", "unfinished"]
    session_id, _, _, protocol, state, *_ = second.split()
    assert [session_id, protocol, state] == [session, "emergence", "exhausted_steps"]
    rows = json.loads(cli("sessions", "list", "--json", "--limit", "1").stdout)
    assert [(row["session"], row["calls"]) for row in rows] == [(broken_off, 6)]
    assert "1 older: --limit 2 shows all." in cli("sessions", "list", "--limit", "1").stderr


def test_sessions_list_of_an_empty_journal_says_so(cli: Cli) -> None:
    assert cli("sessions", "list").stdout == "No session is recorded yet.\n"
    assert cli("sessions", "list", "--json").stdout == "[]\n"


def test_a_finished_session_is_shown_and_resumed_without_the_code_of_its_protocol(
    cli: Cli, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, resumed = cli("show", session).stdout, cli("resume", session).stdout
    assert "### Changes of the answer" in resumed  # of this protocol alone
    monkeypatch.setattr(registry, "installed_protocols", dict)
    monkeypatch.setattr(registry, "_defined", {})
    assert cli("show", session).stdout == shown
    again = cli("resume", session)
    assert (again.exit_code, again.stdout) == (0, resumed)
    assert json.loads(cli("resume", session, "--json").stdout) == json.loads(cli("show", session, "--json").stdout)
    assert cli("resume", session, "--out", "reports").exit_code == 0
    assert "### Changes of the answer" in Path("reports/report.md").read_text()
    assert cli("replay", session).exit_code == 2


def test_resume_of_a_running_session_is_refused(cli: Cli, broken_off: str, store: SqliteStore) -> None:
    journal = store.open(broken_off)
    try:
        shown = cli("show", broken_off)
        assert "**Running now: process " in shown.stdout
        result = cli("resume", broken_off)
        assert result.exit_code == 2
        assert "is being run by process" in result.stderr
    finally:
        journal.release()


def _begin(store: SqliteStore, *, parked: bool) -> None:
    """A session of a protocol nobody has, by hand."""

    async def write() -> None:
        journal = store.create("rhand01")
        shape = tree(2, 2)
        started = SessionStarted(
            schema_version=3,
            prompt_format=1,
            protocol="seance",
            protocol_version=1,
            settings={},
            task=text_id("Who is there?"),
            seed=0,
            agents=(),
            topology=shape,
            quorum=0.5,
            estimate=Estimate(min=1, max=2),
            templates={},
        )
        await journal.commit(started, texts=["Who is there?"])
        if parked:
            await journal.commit(SessionParked(awaited=("round-1/ask/L2N1",)))
        await journal.close()

    asyncio.run(write())


def test_show_of_a_parked_session_lists_open_questions(cli: Cli, store: SqliteStore) -> None:
    _begin(store, parked=True)
    out = cli("show", "rhand01").stdout
    assert "**Waiting for an answer to: round-1/ask/L2N1**" in out
    assert "# Who is there?" in out
    assert "seance" in out
    assert json.loads(cli("show", "last", "--json").stdout)["state"] == "waiting"


def test_resume_of_an_unknown_protocol_is_refused(cli: Cli, store: SqliteStore) -> None:
    _begin(store, parked=False)
    result = cli("resume", "rhand01")
    assert result.exit_code == 2
    assert "'seance', which is not installed" in result.stderr


def test_resume_of_a_session_with_a_python_model_is_refused(cli: Cli, home: Path) -> None:
    def broken(request: ModelRequest) -> str:
        raise RuntimeError("boom")

    scripted = ScriptedModel(broken)
    agent = ToolAgent(Agent(TestModel(), name="archivist"))
    with pytest.raises(RuntimeError, match="boom"):
        run_sync(TASK, Emergence(children=2), model={"L1N1": scripted, "L2N1": scripted, "L2N2": agent}, session="s1")
    result = cli("resume", "s1", "--yes")
    assert result.exit_code == 2
    output = " ".join(result.stderr.split())
    assert "session s1 was started by a program with a model of its own" in output
    assert "consilience.resume('s1', model={" in output
    assert "defect" not in output


def test_session_killed_before_its_start_is_reported(cli: Cli, store: SqliteStore) -> None:
    asyncio.run(store.create("rnothing").close())
    assert "was killed before it began" in cli("show", "rnothing").stdout
    assert cli("resume", "rnothing").exit_code == 2
    assert "rnothing" in cli("sessions", "list").stdout


def test_list_shortens_tasks_to_the_width_of_the_terminal(
    cli: Cli, town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("solo", "Why? " * 60, "--model", MODEL)
    monkeypatch.setenv("COLUMNS", "140")
    (line,) = cli("sessions", "list").stdout.splitlines()
    assert len(line) <= 140
    assert line.endswith("…")
