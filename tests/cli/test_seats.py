"""Seats on the command line: service seats, personas with fields and models, seats from the panel."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from cli.town import Cli
from consilience.cli import main as commands
from kit.council import Council

TASK = "Is it so?"


class Run:
    """The command, its output in two streams."""

    def __init__(self, cli: Cli) -> None:
        self._cli = cli

    def __call__(self, *arguments: str) -> SimpleNamespace:
        result = self._cli(*arguments)
        return SimpleNamespace(code=result.exit_code, out=result.stdout, err=" ".join(result.stderr.split()))


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Run:
    """With the council among the installed protocols."""
    fields = {**commands.entry_point_targets(), Council.name: "kit.council:Council"}
    monkeypatch.setattr(commands, "entry_point_targets", lambda: fields)
    return Run(cli)


def test_service_seats_are_listed_in_plan_report_and_page(run: Run) -> None:
    dry = run("council", TASK, "--model", "local", "--agent", "crystallizer=exec:cat", "--dry-run")
    assert dry.code == 0
    assert " ".join(dry.out.split()).count("service seat") == 2
    planned = json.loads(run("council", TASK, "--models", "exec:cat,exec:true", "--dry-run", "--json").out)
    assert [(a["id"], a["model"]) for a in planned["agents"]][2:] == [
        ("A3", "exec:cat"),
        ("moderator", "exec:true"),
        ("crystallizer", "exec:cat"),
    ]
    done = run("council", TASK, "--model", "exec:echo so", "--agent", "crystallizer=exec:echo closed", "--yes")
    assert done.code == 0, done.err
    assert "3 agents and 2 service seats (moderator, crystallizer)" in done.err
    assert "closed" in done.out
    assert "All 3 agents run on exec:echo so" in " ".join(done.out.split())


def test_plan_lists_models_of_personas_with_their_cost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    persona = ("--persona", "CFO: You ask who pays. [model=openai:gpt-4o-mini; interests=cost, cash]")
    common = ("council", TASK, "--model", "exec:cat", *persona, "--persona", "Clerk", "--dry-run")
    plan = json.loads(run(*common, "--json").out)
    assert {agent["id"]: agent["model"] for agent in plan["agents"]} == {
        "cfo": "openai:gpt-4o-mini",
        "clerk": "exec:cat",
        "moderator": "exec:cat",
        "crystallizer": "exec:cat",
    }
    assert plan["paid"] == ["openai:gpt-4o-mini"]
    assert plan["named"] == {"cfo": "its persona"}
    assert plan["agents"][0]["interests"] == ["cost", "cash"]
    assert "openai:gpt-4o-mini (its persona)" in " ".join(run(*common).out.split())
    over = json.loads(run(*common, "--json", "--agent", "cfo=exec:true").out)
    assert (over["agents"][0]["model"], over["paid"], over["named"]) == ("exec:true", [], {"cfo": "--agent"})


def test_missing_key_of_a_persona_names_the_persona_and_its_seat(run: Run) -> None:
    persona = ("--persona", "Clerk: You count.", "--persona", "CFO: You ask who pays. [model=openai:gpt-4o-mini]")
    common = ("emergence", TASK, "--model", "exec:cat", "--children", "2", *persona)
    refused = run(*common)
    assert refused.code == 2
    assert "openai:gpt-4o-mini needs a key, and none is set. Where: the model of the persona CFO (L2N2)." in refused.err
    assert refused.err.endswith("local needs none. For another model of this seat: --agent L2N2=MODEL.")
    plan = " ".join(run(*common, "--dry-run").out.split())
    assert "Key not set: OPENAI_API_KEY, for openai:gpt-4o-mini" in plan
    assert "Model: exec:cat (as asked), openai:gpt-4o-mini" in plan
    assert "Cost: at most" in plan
    assert json.loads(run(*common, "--dry-run", "--json").out)["missing_keys"] == {
        "openai:gpt-4o-mini": "OPENAI_API_KEY"
    }
    wrong = run(*common, "--agent", "cfo=local")
    assert "Agents: L1N1, L2N1 (Clerk), L2N2 (CFO)." in wrong.err


def test_unknown_price_and_program_are_told_once(run: Run) -> None:
    persona = ("--persona", "CFO: You pay. [model=http://127.0.0.1:1/v1#it]")
    refused = run("council", TASK, "--model", "exec:cat", *persona)
    known = "the price of http://127.0.0.1:1/v1#it is not known; exec:cat may spend money of its own"
    assert f"({known})" in refused.err
    assert "named by personas: http://127.0.0.1:1/v1#it (cfo) ·" in refused.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CFO: You pay. [horizn=1]", "persona 1 (CFO) has an unknown key 'horizn' (did you mean 'horizon'?)"),
        ("CFO: You pay. [colour=1]", "horizon=5 years"),
        ("CFO: You pay. [horizon=1; horizon=2]", "the field 'horizon' of the persona is repeated"),
        ("CFO: You pay. [model=exec:cat]", "'model' of persona 1 (CFO) names a program; seat it yourself"),
        ("CFO: You pay. [claim=]", "'claim' of persona 1 (CFO) is empty"),
        ("CFO: You pay. [horizon=1; claim]", "'claim' of persona 1 (CFO) is empty"),
        (f"CFO: You pay. [horizon={'x' * 81}]", "'horizon' of persona 1 (CFO) has 81 characters, at most 80"),
        (f"CFO: You pay. [horizon={'x' * 81}]", "horizon=5 years"),
        ("CFO: You pay. [interests=cost,,cash]", "'interests' number 2 of persona 1 (CFO) is empty"),
        (f"CFO: You pay. [interests={'a,' * 12}b]", "must have at most 12 entries, not 13"),
        ("CFO: You pay. [horizon=1", "not in one pair of brackets at its end"),
        ("CFO: You pay. horizon=1]", "not in one pair of brackets at its end"),
        ("CFO: You pay. [horizon=[1]]", "not in one pair of brackets at its end"),
        ("CFO: You pay. [horizon=1] [claim=x]", "not in one pair of brackets at its end"),
        ("CFO: [horizon=1] You pay.", "not in one pair of brackets at its end"),
        ("CFO [horizon=1]]", "not in one pair of brackets at its end"),
    ],
)
def test_invalid_persona_field_is_named(run: Run, text: str, words: str) -> None:
    wrong = run("council", TASK, "--model", "exec:cat", "--persona", text, "--dry-run")
    assert wrong.code == 2
    assert words in " ".join(wrong.err.split())
    assert "Where: --persona." in wrong.err


@pytest.mark.parametrize("words", ["You pay [sic]", "You know that a[i]=1.", "You pay (see [1)."])
def test_persona_brackets_without_a_field_are_text(run: Run, words: str) -> None:
    plan = run("council", TASK, "--model", "exec:cat", "--persona", f"CFO: {words}", "--dry-run", "--json")
    assert json.loads(plan.out)["agents"][0]["perspective"] == words


def test_seats_come_from_the_panel_and_have_no_option(run: Run) -> None:
    options = ("--persona", "CFO: You pay.", "--persona", "हिन्दी वक्ता: You speak.")
    common = ("council", TASK, "--model", "exec:cat", *options, "--dry-run", "--json")
    plan = json.loads(run(*common, "--agent", "हिन्दी-वक्ता=exec:true").out)
    assert [agent["id"] for agent in plan["agents"]] == ["cfo", "हिन्दी-वक्ता", "moderator", "crystallizer"]
    assert plan["agents"][1]["model"] == "exec:true"
    assert run("council", TASK, "--seats", "x").code == 2
