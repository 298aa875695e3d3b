"""Help comes at once, knows every protocol without importing it, and generates options from settings."""

from __future__ import annotations

import re
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field
from typer.main import get_command
from typer.testing import CliRunner

from cli.town import Cli
from consilience.cli import run
from consilience.cli.main import summary_of
from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Estimate
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.topology import Topology, complete
from consilience.engine import protocol as registry
from consilience.engine.protocol import Protocol
from consilience.engine.session import Session
from kit.golden import Golden

HEAVY = ("pydantic", "asyncio", "rich", "jinja2", "sqlite3", "consilience.protocols.emergence")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_top_level_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from consilience.cli.main import app\n"
        f"try:\n    app({arguments!r}, prog_name='consilience')\n"
        "except SystemExit:\n    pass\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stdout + done.stderr


def test_list_of_sessions_does_not_import_what_runs_them() -> None:
    code = "import sys, consilience.cli.session_admin\nprint('consilience.cli.run' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "False\n"


def test_python_dash_m_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "consilience", "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "emergence" in done.stdout


@pytest.mark.parametrize("command", ["", "solo", "fork"])
def test_help_page_of(command: str, golden: Golden) -> None:
    """In a process of its own: protocols of other tests would add their options."""
    arguments = [Path(sys.executable).with_name("consilience"), *command.split(), "--help"]
    golden(subprocess.run(arguments, env={"COLUMNS": "80"}, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("group", ["workspace", "models", "panels", "hierarchies", "sessions"])
def test_list_of_commands_has_whole_sentences(cli: Cli, group: str) -> None:
    commands = cli(group, "--help", env={"COLUMNS": "80"}).stdout.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


@pytest.mark.parametrize("target", ["no.such.module:X", "consilience:X", "math:X", "json.nothing:X"])
def test_summary_of_an_unloadable_protocol_raises_nothing(target: str) -> None:
    assert isinstance(summary_of(target), str)


@pytest.mark.parametrize(
    "command",
    [
        "emergence",
        "compare",
        "show",
        "resume",
        "replay",
        "sessions",
        "sessions list",
        "sessions rm",
        "sessions gc",
        "models",
        "models pull",
        "panels show",
        "export",
        "sessions export",
        "schema",
        "doctor",
        "workspace",
        *(f"workspace {command}" for command in ("new", "ticket", "claim", "submit", "wait", "sweep", "gate", "show")),
        *(f"workspace {command}" for command in ("ack", "shutdown", "gc", "renew", "withdraw")),
    ],
)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Usage: consilience " + command in result.stdout
    assert "--help" in result.stdout


@pytest.mark.parametrize("name", ["list", "ls"])
def test_list_without_its_group_suggests_the_command(cli: Cli, name: str) -> None:
    result = cli(name)
    assert result.exit_code == 2
    assert "Did you mean 'sessions list'?" in result.stderr


def test_mistyped_command_suggests_the_nearest(cli: Cli) -> None:
    result = cli("emergnce", "x")
    assert result.exit_code == 2
    assert "Did you mean 'emergence'" in result.stderr


def test_options_of_emergence_follow_from_its_settings(cli: Cli) -> None:
    output = " ".join(cli("emergence", "--help-all").stdout.split())
    for words in (
        "--children N Children of every internal node (1 to 64). [default: 3]",
        "--signals / --no-signals Parents nudge their children between rounds. [default: signals]",
        "--fallback none|vote",
        "--perspectives TEXT Perspectives assigned to the leaf agents in order. Repeatable.",
        "--reply-tokens N Max tokens per reply",
        "--max-tokens N Max tokens in total, input and output.",
        "--similarity TEXT Stop test: auto, declared, positions, jaccard, embedding or judge",
    ):
        assert words in output, words


# --- generation, on a protocol made for it


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Painted(Protocol):
    name: ClassVar[str] = "painted"
    summary: ClassVar[str] = "settings of every type"
    report: ClassVar[type[Report]] = Report

    colour: Annotated[Colour, Field(description="the colour")] = Colour.RED
    mode: Annotated[Literal["fast", "slow"], Field(description="how")] = "fast"
    ratio: Annotated[float | None, Field(ge=0, le=1, description="a share")] = None
    layers: Annotated[tuple[str, ...], Field(description="layers")] = ()
    numbers: Annotated[tuple[int, ...], Field(description="numbers")] = (1, 2)
    glossy: Annotated[bool, Field(description="shine")] = False
    seed: int = 7

    @property
    def max_quoted_replies(self) -> int:
        return 0

    def topology(self) -> Topology:
        return complete(1)

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return (Agent(id="A1", role="painter"),)

    def estimate(self) -> Estimate:
        return Estimate(min=0, max=0)

    async def run(self, session: Session) -> Report:
        raise NotImplementedError


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The protocol registered, and what its command was given each time."""
    monkeypatch.setitem(registry._registered, "painted", Painted)
    styles: list[dict[str, object]] = []

    def run(cls: type[Protocol], request: object, settings: dict[str, object]) -> int:
        styles.append(settings)
        cls(**settings)
        return 0

    monkeypatch.setattr("consilience.cli.run.run", run)
    return styles


def paint(*arguments: str) -> int:
    app = run.app_for("painted")
    assert get_command(app).name == "painted"
    result = CliRunner().invoke(app, ["task", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code


def test_only_options_that_were_given_reach_the_settings(painted: list[dict[str, object]]) -> None:
    assert paint() == 0
    assert (
        paint("--colour", "blue", "--mode", "slow", "--ratio", "0.5", "--glossy", "--layers", "a", "--layers", "b") == 0
    )
    assert paint("--numbers", "3,4", "--numbers", "5", "--no-glossy", "--reply-tokens", "99") == 0
    assert painted == [
        {},
        {"colour": "blue", "mode": "slow", "ratio": 0.5, "glossy": True, "layers": ["a", "b"]},
        {"numbers": [3, 4, 5], "glossy": False, "reply_tokens": 99},
    ]


@pytest.mark.parametrize("wrong", [["--colour", "green"], ["--mode", "medium"], ["--ratio", "much"]])
def test_a_value_of_another_type_is_refused(painted: list[dict[str, object]], wrong: list[str]) -> None:
    assert paint(*wrong) == 2
    assert painted == []


@pytest.mark.parametrize(("numbers", "reason"), [("1,x", "'x' is not valid here"), ("1,,2", "is empty")])
def test_a_list_of_numbers_with_something_else_in_it_is_refused(
    painted: list[dict[str, object]], numbers: str, reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        paint("--numbers", numbers)
    assert painted == []


def test_setting_named_like_a_common_option_gets_another_name(painted: list[dict[str, object]]) -> None:
    assert paint("--painted-seed", "9", "--seed", "3") == 0
    assert painted == [{"seed": 9}]


@pytest.mark.parametrize("protocol", ["emergence", "broadcast", "refinement", "solo", "vote"])
def test_help_shows_common_options_and_help_all_shows_all(cli: Cli, protocol: str) -> None:
    few, everything = (
        set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", cli(protocol, option).stdout, re.MULTILINE))
        for option in ("--help", "--help-all")
    )
    assert len(few - {"--help", "--help-all"}) <= 10
    assert {"--model", "--source", "--max-cost", "--out", "--panel", "--dry-run", "--help-all"} <= few
    assert few - {"--help-all"} < everything
    assert {"--phase-limit", "--human-deadline", "--env-file"} <= everything - few
    assert "Show all" in cli(protocol, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["run"], 'consilience ask "Should we …?"'),
        (["run", "Move the market?"], "consilience ask 'Move the market?'"),
        (["run", "solo", "Should it's market move?"], """consilience solo 'Should it'"'"'s market move?'"""),
        (["Move it?", "solo"], "consilience solo 'Move it?'"),
        (["ask", "solo", "Move it?"], "Put the task into quotation marks, before the files"),
        (["help"], "Try: consilience --help"),
        (["help", "solo"], "Try: consilience solo --help"),
        (["version"], "Try: consilience --version"),
        (["r1a2b3c"], "consilience show r1a2b3c"),
        (["r1a2b3c", "And in feet?"], "consilience ask r1a2b3c 'And in feet?'"),
        (["last", "And in feet?", "notes.md", "--yes"], "consilience ask last 'And in feet?' notes.md"),
        (["last"], 'consilience ask last "And …?"'),
        (["last", "show"], "To show a session: consilience show last."),
        (["ls"], "Did you mean 'sessions list'?"),
        (["emergance"], "Did you mean 'emergence'?"),
        (["--model", "local", "Move?"], 'follow the question: consilience "Should we …?" --model …'),
        (["solo"], 'Give the question or task: consilience solo "Should we …?"'),
        (["solo", "Should", "we", "move"], 'quotation marks: consilience solo "Should we …?"'),
        (["show"], "consilience sessions lists them"),
        (["sessions", "rm"], "consilience sessions lists them"),
        (["solo", "Move?", "--modle", "local"], "--model"),
    ],
)
def test_unusable_command_line_names_the_command_to_try(cli: Cli, arguments: list[str], advice: str) -> None:
    result = cli(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert advice in " ".join(result.stderr.split())
