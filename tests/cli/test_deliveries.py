"""Options, formats and exit codes that the reports of protocols declare, and that a resume keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded
from consilience.cli import main as commands
from kit.council import Jury


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = {**commands.entry_point_targets(), Jury.name: "kit.council:Jury"}
    monkeypatch.setattr(commands, "entry_point_targets", lambda: targets)


JURY = ("jury", TASK, "--model", MODEL)
SEATS = ["A1", "A2", "A3", "moderator", "crystallizer"]


def broken(request: Any) -> Any:
    raise RuntimeError("boom")


@pytest.mark.parametrize(("size", "code"), [("many", 9), ("few", 0)])
def test_command_of_a_protocol_has_the_options_that_its_report_declares(
    cli: Cli, town: Town, here: Path, size: str, code: int
) -> None:
    result = cli(*JURY, "--unless", size, "--format", "seats", "--roll", "roll.txt")
    assert result.exit_code == code, result.stderr
    assert ("--unless many: only 5 sat." in result.stderr) == bool(code)
    assert json.loads(result.stdout) == SEATS
    assert (here / "roll.txt").read_text() == "\n".join(SEATS)


def test_help_lists_the_declared_options_of_the_command_and_for_any_session(cli: Cli) -> None:
    own = " ".join(cli("jury", "--help-all").stdout.split())
    assert "--unless many|few Exit with 9." in own
    assert "--format text|markdown|json|seats" in own
    assert "--fail-on" not in own
    for command in ("resume", "fork"):
        text = cli(command, "--help").stdout
        assert all(option in text for option in ("--unless", "--roll", "--fail-on", "--write-baseline", "sarif"))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--unless", "some"), "Invalid value for '--unless'"),
        (("--format", "sarif"), "Invalid value for '--format'"),
    ],
)
def test_invalid_declared_option_is_refused_before_any_call(
    cli: Cli, town: Town, option: tuple[str, str], message: str
) -> None:
    refused = cli(*JURY, *option)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in " ".join(refused.stderr.split())
    assert town.requests == []


def test_resume_refuses_what_the_reports_of_other_protocols_declare(cli: Cli, town: Town) -> None:
    assert cli(*JURY).exit_code == 0
    for option, where in ((("--fail-on", "major"), "--fail-on"), (("--format", "sarif"), "--format")):
        refused = cli("resume", "last", *option)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"Where: {where}." in refused.stderr


def test_resume_delivers_as_the_session_was_begun_unless_told_otherwise(
    cli: Cli, town: Town, here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply, town.reply = town.reply, broken
    cli(*JURY, "--unless", "many", "--format", "seats", "--roll", "roll.txt")
    (session,) = recorded()
    town.reply = reply
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    resumed = cli("resume", session)
    assert resumed.exit_code == 9, resumed.stderr
    assert json.loads(resumed.stdout) == SEATS
    assert (here / "roll.txt").read_text() == "\n".join(SEATS)
    (here / "roll.txt").write_text("mine")
    told = cli("resume", session)
    assert told.exit_code == 9, "a build that failed does not turn green"
    assert told.stdout.startswith("**Finished**")
    assert (here / "roll.txt").read_text() == "mine", "a finished session's file is written when asked for only"
    assert cli("resume", session, "--unless", "few", "--roll", "roll.txt").exit_code == 0
    assert Path("roll.txt").exists()


def test_resume_writes_the_files_to_where_the_run_was_told_to(
    cli: Cli, town: Town, here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply, town.reply = town.reply, broken
    stopped = cli(*JURY, "--out", "report", "--require", "converged")
    assert "--out" not in stopped.stderr
    assert "--require converged" in stopped.stderr, "no session records it"
    town.reply = reply
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    resumed = cli("resume", "last")
    assert resumed.exit_code == 0, resumed.stderr
    assert f"`{here / 'report' / 'report.html'}`" in resumed.stdout
    (here / "report" / "report.md").unlink()
    assert cli("resume", "last").exit_code == 0
    assert not (here / "report" / "report.md").exists(), "that of a finished session is written when asked for only"


def test_resume_with_out_writes_the_files_there_only(cli: Cli, town: Town, here: Path) -> None:
    reply, town.reply = town.reply, broken
    cli(*JURY, "--out", "first")
    town.reply = reply
    assert cli("resume", "last", "--out", "second").exit_code == 0
    assert [path.name for path in here.glob("*/report.json")] == ["report.json"]
    assert (here / "second" / "report.json").exists()


def test_session_begun_with_json_is_resumed_with_json(cli: Cli, town: Town) -> None:
    reply, town.reply = town.reply, broken
    cli("solo", TASK, "--model", MODEL, "--json")
    town.reply = reply
    assert json.loads(cli("resume", "last").stdout)["protocol"] == "solo"
