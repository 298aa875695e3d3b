"""Views on the terminal, exports to files, the schemas, and all session commands under one roof."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded, sensible
from consilience import EmergenceReport
from consilience.engine import protocol as registry
from consilience.models.port import ModelRequest
from kit.cases import broadcasting
from reporting.refinements import editing

RUN = ("emergence", TASK, "--model", MODEL, "--max-rounds", "2")
SCHEMAS = Path(__file__).parent.parent.parent / "docs" / "schema"


@pytest.fixture
def session(cli: Cli, town: Town) -> str:
    assert cli(*RUN).exit_code == 0
    return recorded()[-1]


@pytest.fixture
def broken_off(cli: Cli, town: Town) -> str:
    def until_then(request: ModelRequest) -> object:
        if "/observe/" in request.key:
            raise RuntimeError("boom")
        return sensible(request)

    town.reply = until_then
    assert cli(*RUN).exit_code == 1
    return recorded()[-1]


BEGINNINGS = {
    "a.json": "{\n",
    "a.md": "# ",
    "a.html": "<!doctype html>",
    "a.svg": "<svg ",
    "a.jsonl": '{"seq": 1, "type": "session_started"',
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_export_format_follows_the_suffix_and_mode_is_0600(cli: Cli, session: str, here: Path, name: str) -> None:
    result = cli("export", session[:5], "--out", name)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == f"Written: {name}\n"
    assert (here / name).read_text().startswith(BEGINNINGS[name])
    assert stat.S_IMODE((here / name).stat().st_mode) == 0o600
    assert [path.name for path in here.iterdir()] == [name], "no draft is left"


def test_export_over_a_readable_file_makes_it_private(cli: Cli, session: str, here: Path) -> None:
    (here / "a.json").write_text("old")
    (here / "a.json").chmod(0o666)
    assert cli("export", "last", "--out", "a.json").exit_code == 0
    assert stat.S_IMODE((here / "a.json").stat().st_mode) == 0o600


def test_report_files_are_private(cli: Cli, town: Town, here: Path) -> None:
    assert cli(*RUN, "--out", "reports").exit_code == 0
    for path in (here / "reports").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name


def test_export_without_out_prints_to_stdout(cli: Cli, session: str) -> None:
    assert cli("export", session).stdout.startswith(BEGINNINGS["a.md"])
    assert cli("export", session, "--out", "-", "--format", "json").stdout == cli("show", session, "--json").stdout
    assert EmergenceReport.model_validate_json(cli("export", session, "--format", "json").stdout).session == session


@pytest.mark.parametrize("view", ["tree", "evolution", "convergence", "reads"])
def test_views_are_shown_and_drawn(cli: Cli, session: str, view: str) -> None:
    shown = cli("show", session, "--view", view)
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert shown.stdout.strip()
    assert isinstance(json.loads(cli("show", session, "--view", view, "--json").stdout), dict)
    drawn = ElementTree.fromstring(cli("export", session, "--format", "svg", "--view", view).stdout)
    assert drawn.attrib["aria-labelledby"].startswith(f"{view}-")


def test_the_view_of_iterations_is_shown_and_drawn(cli: Cli, town: Town) -> None:
    town.reply = broadcasting
    assert cli("broadcast", TASK, "--model", MODEL, "--children", "2").exit_code == 0
    shown = cli("show", "last", "--view", "iterations")
    assert shown.exit_code == 0
    assert "L1N1" in shown.stdout
    assert isinstance(json.loads(cli("show", "last", "--view", "iterations", "--json").stdout), dict)
    drawn = ElementTree.fromstring(cli("export", "last", "--format", "svg", "--view", "iterations").stdout)
    assert drawn.attrib["aria-labelledby"].startswith("iterations-")


@pytest.mark.parametrize("view", ["passes", "flow", "distances", "tree"])
def test_views_of_passes_are_shown_and_drawn(cli: Cli, town: Town, view: str) -> None:
    town.reply = editing
    assert cli("refinement", TASK, "--model", MODEL, "--max-passes", "2").exit_code == 0
    shown = cli("show", "last", "--view", view)
    assert shown.exit_code == 0
    assert "body" in shown.stdout
    assert isinstance(json.loads(cli("show", "last", "--view", view, "--json").stdout), dict)
    drawn = ElementTree.fromstring(cli("export", "last", "--format", "svg", "--view", view).stdout)
    assert drawn.attrib["aria-labelledby"].startswith(f"{view}-")


@pytest.mark.parametrize(
    "command",
    [["show", "last", "--view"], ["show", "last", "--json", "--view"], ["export", "last", "--format", "svg", "--view"]],
)
def test_unknown_view_error_lists_the_views(cli: Cli, session: str, command: list[str]) -> None:
    result = cli(*command, "passes")
    assert result.exit_code == 2
    assert ("--json" in command) == (result.stdout != "")
    output = " ".join(result.stderr.split())
    assert "a session of emergence has no view 'passes'" in output
    assert "Its views: tree, evolution, convergence, reads, figures, glossary, objections." in output


def test_export_svg_defaults_to_the_tree(cli: Cli, session: str) -> None:
    assert cli("export", session, "--format", "svg").stdout == cli(
        "export", session, "--format", "svg", "--view", "tree"
    ).stdout  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["export", "last", "--out", "a.txt"], "--format json|markdown|html|svg|events"),
        (["export", "last", "--out", "a.html", "--view", "tree"], "--format svg or markdown"),
        (["export", "last", "--format", "pdf"], "pdf"),
        (["export", "zzz"], "there is no session 'zzz'"),
        (["export", "last", "--out", "no/such/a.md"], "cannot be written"),
        (["show", "last", "--view", "tree", "--events"], "exclude each other"),
        (["show", "last", "--view", "moon"], "moon"),
        (["schema", "moon"], "there is no schema 'moon'"),
        (["schema", "moon"], "For another protocol, install its package"),
    ],
)
def test_invalid_export_options_are_refused(cli: Cli, session: str, arguments: list[str], expected: str) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())


def test_unfinished_session_is_exported(cli: Cli, broken_off: str) -> None:
    output = json.loads(cli("export", "last", "--format", "json").stdout)
    assert output == json.loads(cli("show", "last", "--json").stdout)
    assert output["state"] == "unfinished"
    written = cli("export", "last").stdout
    assert f"`consilience resume {broken_off}`" in written
    assert "Progress" in cli("export", "last", "--format", "html").stdout
    assert "integrator (L1N1): in flight when it stopped, 0 replies" in cli("show", "last", "--view", "tree").stdout


def test_views_and_exports_work_without_the_protocol(cli: Cli, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "installed_protocols", dict)
    for name in ("json", "markdown", "html", "svg", "events"):
        assert cli("export", session, "--format", name).exit_code == 0
    assert cli("show", session, "--view", "evolution").exit_code == 0


def test_session_commands_exist_below_sessions(cli: Cli, session: str) -> None:
    listed = cli("sessions", "--help").stdout
    for name in ("list", "show", "resume", "replay", "fork", "diff", "export"):
        assert f"\n  {name} " in listed
        assert "Usage: consilience sessions" in cli("sessions", name, "--help").stdout
    for arguments in (["show", session], ["export", session, "--format", "html"], ["diff", session, session]):
        assert cli("sessions", *arguments).stdout == cli(*arguments).stdout
    assert cli("sessions", "fork", session, "--at", "end", "--dry-run").exit_code == 0


@pytest.mark.parametrize("published", sorted(SCHEMAS.glob("*.schema.json")), ids=lambda path: path.name)
def test_the_published_schemas_are_current(cli: Cli, published: Path) -> None:
    assert cli("schema", published.name.removesuffix(".schema.json")).stdout == published.read_text(), (
        "write them anew: consilience schema --out docs/schema"
    )


def test_json_option_is_accepted_by_commands_that_print_json(cli: Cli, session: str) -> None:
    assert cli("schema", "emergence", "--json").stdout == cli("schema", "emergence").stdout
    exported = cli("export", session, "--json").stdout
    assert json.loads(exported)["session"] == session
    assert exported == cli("export", session, "--format", "json").stdout
    refused = cli("export", session, "--json", "--format", "svg")
    assert refused.exit_code == 2
    assert "--json and --format svg exclude each other" in refused.stderr


def test_unwritable_export_error_suggests_another_path(cli: Cli, session: str, here: Path) -> None:
    (here / "file").write_text("x")
    (here / "taken.html").mkdir()
    for place, text, advice in (
        ("taken.html", "a directory is named where a file is written", "Name a file: taken.html/report.html"),
        ("file/report.html", "there is no directory file", "Name another file with --out"),
        ("nowhere/report.html", "there is no directory nowhere", "Name another file with --out"),
    ):
        result = cli("export", session, "--out", place)
        assert result.exit_code == 2
        assert text in result.stderr
        assert advice in result.stderr


def test_schemas_are_written_into_a_directory(cli: Cli, here: Path) -> None:
    assert cli("schema", "--out", "schemas").exit_code == 0
    for path in SCHEMAS.glob("*.schema.json"):
        assert (here / "schemas" / path.name).read_text() == path.read_text()
