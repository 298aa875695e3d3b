"""Sessions that one finds again: by words, time, protocol and name."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pytest

from cli.town import MODEL, Cli, Town, recorded
from consilience.domain.paths import journal_path

BOOKS = "Should our book club of nine switch from printed books to e-books, given that two members travel every month?"
MARKET = "Should a small town replace its weekly market day with a daily one?"


def solo(cli: Cli, question: str, *options: str) -> str:
    assert cli("solo", question, "--model", MODEL, *options).exit_code == 0
    return recorded()[-1]


@pytest.fixture(autouse=True)
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output to no terminal, whose width a variable would tell."""
    monkeypatch.delenv("COLUMNS", raising=False)


def listed(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    rows = json.loads(cli("sessions", *arguments, "--json").stdout)
    assert isinstance(rows, list)
    return rows


def aged(session: str, days: float) -> None:
    """Make a session older."""
    with closing(sqlite3.connect(journal_path())) as db, db:
        db.execute("UPDATE sessions SET created=? WHERE id=?", (int((time.time() - days * 86_400) * 1000), session))


def test_words_find_the_sessions_whose_question_name_or_id_contains_all_of_them(cli: Cli, town: Town) -> None:
    books, market = solo(cli, BOOKS), solo(cli, MARKET, "--name", "Town hall")
    assert [row["session"] for row in listed(cli, "BOOK", "club")] == [books]
    assert [row["session"] for row in listed(cli, "should")] == [market, books]
    assert [row["session"] for row in listed(cli, "town HALL", "daily")] == [market]
    assert [row["session"] for row in listed(cli, books[1:])] == [books]
    assert listed(cli, "book", "daily") == []
    assert cli("sessions", "no such words").stdout == "No session matches.\n"


def test_words_of_the_answer_find_finished_sessions_in_the_list_only(cli: Cli, town: Town) -> None:
    town.reply = lambda request: "It gains 4,200 euros a year." if "market" in request.text else "It gains nothing."
    books, market = solo(cli, BOOKS), solo(cli, MARKET)
    assert [row["session"] for row in listed(cli, "gains")] == [market, books]
    assert [row["session"] for row in listed(cli, "Daily", "4,200 EUROS")] == [market], (
        "each word in question or answer"
    )
    assert [row["session"] for row in listed(cli, "book", "4,200")] == []
    refused = cli("show", "4,200 euros")
    assert (refused.exit_code, "there is no session '4,200 euros'" in refused.stderr) == (2, True)


def test_word_that_resembles_a_command_is_no_search(cli: Cli, town: Town) -> None:
    solo(cli, BOOKS)
    refused = cli("sessions", "cancle")
    assert refused.exit_code == 2
    assert "Did you mean 'cancel'? To search: sessions list cancle" in " ".join(refused.stderr.split())
    assert len(listed(cli, "list", "cancle", "book")) == 0
    assert len(listed(cli, "list", "book")) == 1


def test_since_takes_a_date_a_time_and_an_age(cli: Cli, town: Town) -> None:
    old, new = solo(cli, BOOKS), solo(cli, MARKET)
    aged(old, 10)
    for since in ("7d", "1.5w", "90m", (datetime.now() - timedelta(days=2)).strftime("%Y-%m-%d")):
        assert [row["session"] for row in listed(cli, "--since", since)][:1] == [new]
    moment = datetime.now() - timedelta(days=10, minutes=5)
    assert [row["session"] for row in listed(cli, "--since", moment.strftime("%Y-%m-%d %H:%M"))] == [new, old]
    assert [row["session"] for row in listed(cli, "--since", "9d")] == [new]
    assert [row["session"] for row in listed(cli, "should", "--since", "2w")] == [new, old]
    refused = cli("sessions", "--since", "last week")
    assert refused.exit_code == 2
    assert "neither a date nor an age: 'last week'. Where: --since." in refused.stderr


def test_protocol_and_name_select_sessions(cli: Cli, town: Town) -> None:
    named = solo(cli, BOOKS, "--name", "club")
    assert cli("vote", BOOKS, "--model", MODEL).exit_code == 0
    voted = recorded()[-1]
    assert [row["session"] for row in listed(cli, "--protocol", "vote,debate")] == [voted]
    assert [row["session"] for row in listed(cli, "--name", "Club")] == [named]
    assert listed(cli, "--name", "clu") == []


def test_name_is_given_at_the_run_or_later_and_shown_before_the_question(cli: Cli, town: Town) -> None:
    session = solo(cli, BOOKS, "--name", "club")
    assert f"  club: {BOOKS}" in cli("sessions").stdout
    changed = cli("sessions", "name", session, "reading round")
    assert changed.stdout == f"Session {session} is named 'reading round'.\n"
    assert f"  reading round: {BOOKS}" in cli("sessions").stdout
    assert cli("sessions", "name", session, "").exit_code == 0
    assert f"  {BOOKS}" in cli("sessions").stdout
    assert [row["name"] for row in listed(cli)] == [""]


def test_name_of_a_run_is_not_that_of_its_panel_or_fork(cli: Cli, town: Town) -> None:
    session = solo(cli, BOOKS, "--name", "club")
    assert cli("fork", session, "--at", "0", "--yes").exit_code == 0
    assert cli("fork", session, "--at", "0", "--yes", "--name", "second").exit_code == 0
    assert [row["name"] for row in listed(cli)] == ["second", "", "club"]


def test_list_in_a_pipe_has_the_question_whole(cli: Cli, town: Town) -> None:
    solo(cli, BOOKS)
    assert cli("sessions").stdout.rstrip("\n").endswith(BOOKS)


COMPARE = ("compare", MARKET, "--protocols", "solo,vote", "--model", MODEL, "--repeat", "3", "--quiet")


def test_comparison_is_one_line_and_its_id_lists_its_runs(cli: Cli, town: Town) -> None:
    books = solo(cli, BOOKS)
    assert cli(*COMPARE, "--name", "market").exit_code == 0
    after = solo(cli, BOOKS)
    rows = listed(cli)
    assert [row.get("session") for row in rows] == [after, None, books]
    runs = [session for session in recorded() if session not in (books, after)]
    assert (rows[1]["runs"], rows[1]["unfinished"], rows[1]["protocols"]) == (len(runs), 0, ["solo", "vote"])
    assert (rows[1]["name"], rows[1]["task"], rows[1]["tasks"]) == ("market", MARKET, 1)
    text = cli("sessions", "--limit", "3")
    assert len(text.stdout.splitlines()) == 3
    assert f"compare      {len(runs)} runs" in text.stdout
    assert f"The runs of a comparison: consilience sessions {rows[1]['comparison']}" in text.stderr
    assert sorted(row["session"] for row in listed(cli, rows[1]["comparison"])) == sorted(runs)
    assert [row["comparison"] for row in listed(cli, "--name", "market")] == [rows[1]["comparison"]]


def test_comparison_that_is_continued_with_more_repeats_stays_one_line(cli: Cli, town: Town) -> None:
    assert cli(*COMPARE).exit_code == 0
    assert cli(*COMPARE[:-2], "4", "--quiet").exit_code == 0
    assert cli("compare", BOOKS, *COMPARE[2:]).exit_code == 0
    assert [row["task"] for row in listed(cli)] == [BOOKS, MARKET]


def test_show_finds_a_session_by_words_of_its_question_and_says_which(cli: Cli, town: Town) -> None:
    session = solo(cli, BOOKS)
    solo(cli, MARKET)
    shown = cli("show", "book club")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("# Should our book club")
    assert f"Session {session} (" in shown.stderr
    assert cli("sessions", "name", "book club", "reading").exit_code == 0
    assert json.loads(cli("show", "READING", "--json").stdout)["session"] == session


def test_show_of_words_in_several_sessions_lists_them(cli: Cli, town: Town) -> None:
    sessions = [solo(cli, BOOKS), solo(cli, MARKET)]
    refused = cli("show", "should")
    assert refused.exit_code == 2
    output = " ".join(refused.stderr.split())
    assert "'should' is in the question or name of 2 sessions" in output
    assert all(session in output for session in sessions)
    assert "solo Should our book club of nine" in output
    assert "consilience sessions list should" in output


def test_show_prefers_the_session_that_no_comparison_began(cli: Cli, town: Town) -> None:
    session = solo(cli, MARKET)
    assert cli(*COMPARE).exit_code == 0
    assert json.loads(cli("show", "market day", "--json").stdout)["session"] == session


def test_show_prefers_the_run_to_the_reading_of_its_task_and_a_name_to_words(cli: Cli, town: Town) -> None:
    cli("choose", BOOKS, "--model", MODEL, "--name", "market")
    run = solo(cli, BOOKS, "--name", "market")
    assert json.loads(cli("show", "book club", "--json").stdout)["session"] == run
    solo(cli, MARKET)
    assert json.loads(cli("show", "market", "--json").stdout)["session"] == run


def test_show_of_an_unknown_session_names_the_latest_first(cli: Cli, town: Town) -> None:
    older, newer = solo(cli, BOOKS), solo(cli, MARKET)
    refused = " ".join(cli("show", "latest").stderr.split())
    assert f"The latest are: {newer}, {older} (last is the first of them)" in refused


@pytest.mark.parametrize("command", ["rm", "cancel"])
def test_command_that_ends_or_removes_a_session_takes_ids_only(cli: Cli, town: Town, command: str) -> None:
    session = solo(cli, BOOKS)
    options = ("--yes",) if command == "rm" else ()
    refused = cli("sessions", command, "book club", *options)
    assert refused.exit_code == 2
    assert "there is no session 'book club'" in refused.stderr
    assert recorded() == [session]
