"""`--prompts DIR`, and `show --prompt KEY`: which templates are replaced, and what a model was sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded

SMALL = ("--model", MODEL, "--max-rounds", "1")


@pytest.fixture
def own(here: Path) -> Path:
    directory = here / "ep"
    directory.mkdir()
    return directory


def test_dry_run_names_the_replaced_templates(cli: Cli, town: Town, own: Path) -> None:
    (own / "leaf_respond.j2").write_text("{{ seat }} Be short.")
    (own / "judge.j2").write_text("Compare.")
    arguments = ("emergence", TASK, *SMALL, "--prompts", "ep")
    assert "- Prompts: full, judge, leaf_respond from ep\n" in cli(*arguments, "--dry-run").stdout
    assert json.loads(cli(*arguments, "--dry-run", "--json").stdout)["replaced_prompts"] == ["judge", "leaf_respond"]
    result = cli(*arguments)
    assert " · full prompts, judge, leaf_respond from ep · " in result.stderr.splitlines()[0]
    assert "Prompt templates replaced: judge, leaf_respond." in result.stdout


def test_dry_run_refuses_a_template_with_an_unknown_variable(cli: Cli, town: Town, own: Path) -> None:
    (own / "leaf_respond.j2").write_text("{{ taks }}")
    result = cli("emergence", TASK, *SMALL, "--prompts", "ep", "--dry-run")
    assert result.exit_code == 2
    assert "leaf_respond.j2 uses 'taks'" in result.stderr
    assert "Where: ep/leaf_respond.j2. Use only: seat." in result.stderr


def test_failing_template_is_reported_with_the_fork_that_helps_and_no_resume(cli: Cli, town: Town, own: Path) -> None:
    (own / "lateral.j2").write_text("{{ seat.nothing }}")
    result = cli("emergence", TASK, *SMALL, "--prompts", "ep", "--json")
    assert result.exit_code == 2
    (session,) = recorded()
    assert "resume" not in result.stderr.splitlines()[-1]
    problem = json.loads(result.stdout)
    assert problem["where"] == "ep/lateral.j2"
    assert problem["do"].endswith(f"consilience fork {session} --at end --prompts ep")
    assert problem["session"] is None
    (own / "lateral.j2").write_text("{{ seat }}")
    assert cli("fork", session, "--at", "end", "--prompts", "ep").exit_code == 0
