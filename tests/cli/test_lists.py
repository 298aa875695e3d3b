"""Options that take several values: names and numbers by commas or repeated, everything that may hold a comma repeated only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.town import Cli
from consilience.cli.main import app
from consilience.cli.options import LISTED, REPEATED

NAMES: dict[str, list[str] | list[float]] = {
    "--agents": ["red", "blue", "lead"],
    "--critical-flags": ["goal_mismatch", "needs_reframing", "resource_request"],
    "--key-to": ["http://127.0.0.1:1/v1", "https://a.example/v1", "https://b.example/v1"],
    "--duties": ["contracts", "security", "tests"],
    "--gates": ["specific_examples", "own:gate", "balance"],
    "--models": ["local", "openai:a", "openai:b|local"],
    "--only": ["quick", "split", "task-1"],
    "--protect": ["code", "front_matter", "code"],
    "--protocol": ["solo", "vote", "emergence"],
    "--protocols": ["solo", "twice=vote", "emergence"],
    "--quality-threshold": [0.5, 0.75, 1.0],
    "--require": ["settled", "converged", "failed"],
}
"""Every option that lists names or numbers, with three of them."""

DOCUMENTED = (
    (Path(__file__).parents[2] / "docs/commands.md").read_text().partition("## Options that take several values")[2]
)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command below this one, by how it is called."""
    command = group.load() if hasattr(group, "load") else group
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(None, name), (*path, name))
    yield " ".join(path), command


OPTIONS = {
    f"{path} {option.opts[0]}": (command, option)
    for path, command in commands(get_command(app))
    for option in command.params
    if option.param_type_name == "option"
}


ONCE = {"--prompts"}
"""Options that are read as a list to refuse a second value."""


@pytest.mark.parametrize(
    "called", [name for name, (_, option) in OPTIONS.items() if option.multiple and option.opts[0] not in ONCE]
)
def test_list_option_accepts_the_form_in_its_help(called: str) -> None:
    command, option = OPTIONS[called]
    name = option.opts[0]
    context = command.make_context("x", [], resilient_parsing=True)
    first, two, three = NAMES.get(name, ["A1=one", "two", "three"])
    read = option.process_value(context, [f"{first}, {two}", str(three)])
    if name in NAMES:
        assert option.help.endswith(LISTED)
        assert option.metavar.endswith(",…")
        assert read == [first, two, three]
    else:
        assert option.help.endswith(REPEATED)
        assert read == [f"{first}, {two}", three]
    assert f"`{name}`" in DOCUMENTED


def test_list_options_are_those_of_the_table() -> None:
    listed = {name.rpartition(" ")[2] for name, (_, option) in OPTIONS.items() if LISTED in (option.help or "")}
    assert listed == NAMES.keys()
    assert all(option.multiple for _, option in OPTIONS.values() if LISTED in (option.help or ""))


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_name_in_a_list_is_refused(name: str) -> None:
    from consilience.domain.errors import SettingsError

    command, option = next(entry for entry in OPTIONS.values() if entry[1].opts[0] == name)
    context = command.make_context("x", [], resilient_parsing=True)
    with pytest.raises(SettingsError, match=f"empty.*{name}"):
        option.process_value(context, [f"{NAMES[name][0]},"])


def test_models_option_assigns_in_order_of_lists_and_repetitions(cli: Cli) -> None:
    arguments = ("--models", "openai:a,openai:b", "--models", "openai:c", "--votes", "4", "--dry-run", "--json")
    plan = json.loads(cli("vote", "Is it so?", *arguments).stdout)
    assert [agent["model"] for agent in plan["agents"]] == ["openai:a", "openai:b", "openai:c", "openai:a"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--source", "a.md,b.md"), "'a.md,b.md' lists several values"),
        (("--agent", "L2N1=openai:a,L2N2=openai:b"), "Repeat the option: --agent ID=MODEL --agent ID=MODEL"),
        (("--agent-limit", "L2N1:calls=1,L2N2:calls=2"), "Repeat the option: --agent-limit"),
        (("--phase-limit", "one:calls=1,two:calls=2"), "Repeat the option: --phase-limit"),
    ],
)
def test_comma_list_in_a_repeatable_option_is_refused(
    cli: Cli, here: Path, arguments: tuple[str, ...], reason: str
) -> None:
    for name in ("a.md", "b.md"):
        (here / name).write_text("A text.")
    refused = cli("emergence", "Is it so?", *arguments, "--model", "openai:x", "--dry-run")
    assert refused.exit_code == 2
    assert reason in " ".join(refused.stderr.split())


def test_a_file_with_a_comma_in_its_name_is_one_document(cli: Cli, here: Path) -> None:
    (here / "a.md,b.md").write_text("A text.")
    done = cli("solo", "Is it so?", "--source", "a.md,b.md", "--model", "openai:x", "--dry-run")
    assert (done.exit_code, done.stderr) == (0, "")


def test_compare_defaults_to_emergence_and_all_baselines(cli: Cli) -> None:
    plan = json.loads(cli("compare", "Is it so?", "--model", "openai:gpt-4o", "--dry-run", "--json").stdout)
    assert [row["row"] for row in plan["rows"]] == ["emergence", "solo", "solo+reviews", "vote"]
    shown = " ".join(cli("compare", "--help").stdout.split())
    assert "[default: emergence, solo, solo+reviews, vote]" in shown
