"""`consilience tell`: a finished session learns a fact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded
from kit.debating import Debaters

FACT = "The peak is 12.4k events a second."


@pytest.fixture
def parent(cli: Cli, town: Town) -> str:
    town.reply = Debaters({"told": lambda request: {"p1": "NO"} if request.agent == "D1" else {}})
    assert cli("debate", TASK, "--as-is", "--debaters", "2", "--max-messages", "20", "--model", MODEL).exit_code == 0
    town.requests.clear()
    return recorded()[-1]


def test_tell_repeats_ballots_and_answer_and_prints_who_moved(
    cli: Cli, town: Town, parent: str, tmp_path: Path
) -> None:
    (tmp_path / "load.txt").write_text("Replayed: 12,400 a second.\n")
    shown = cli("show", parent).stdout
    result = cli("tell", parent, FACT, "--source", str(tmp_path / "load.txt"))

    assert result.exit_code == 0, result.stderr
    assert f"Fork of {parent} with a new fact" in result.stderr
    assert "3 calls estimated · " in result.stderr
    assert [request.key for request in town.requests] == ["told/1/D1", "told/1/D2", "closing"]
    assert all("Replayed: 12,400" in request.text for request in town.requests)
    assert "1 of 2 moved" in " ".join(result.stdout.split())
    assert recorded()[0] == parent
    assert cli("replay", recorded()[-1], "--json").exit_code == 0
    assert cli("show", parent).stdout.startswith(shown.partition("## How far")[0])


def test_tell_as_json_lists_the_agents_that_moved(cli: Cli, parent: str) -> None:
    report = json.loads(cli("tell", parent, FACT, "--json").stdout)
    (fact,) = report["told"]
    assert (fact["fact"], [change["agent"] for change in fact["moved"]]) == (FACT, ["D1"])


def test_dry_run_of_tell_records_nothing(cli: Cli, town: Town, parent: str) -> None:
    plan = json.loads(cli("tell", parent, FACT, "--dry-run", "--json").stdout)
    assert (plan["estimate"]["max"], plan["parent"]) == (3, parent)
    assert (town.requests, recorded()) == ([], [parent])


def test_tell_to_a_session_of_another_protocol_is_a_user_error(cli: Cli, town: Town) -> None:
    town.reply = lambda request: "No."
    assert cli("solo", TASK, "--model", MODEL).exit_code == 0
    result = cli("tell", "last", FACT)
    assert result.exit_code == 2
    assert "solo, which takes no new fact" in result.stderr
    assert len(recorded()) == 1
