"""Running a protocol: what is printed where, what is recorded, and how it ends."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from urllib.parse import unquote

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded, sensible
from consilience import EmergenceReport
from consilience.models.port import ModelRequest
from consilience.testing import Rejected, Scripted
from kit.debating import Debaters
from kit.golden import Golden, lines_with

QUICK = ("--model", MODEL, "--max-rounds", "2")


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--quiet"]])
def test_options_without_effect_are_reported(cli: Cli, town: Town, here: Path, more: list[str]) -> None:
    (here / "prompts").mkdir()
    (here / "prompts" / "answer.j2").write_text("{{ seat }} Name one number.")
    result = cli("solo", TASK, "--models", f"{MODEL},ollama:idle", "--prompts", "prompts", *more)
    assert result.exit_code == 0
    for line in (
        "More models than agents (1), unused: ollama:idle.",
        "prompts/answer.j2 does not use what the original uses: choice, named, pattern.",
    ):
        assert (line in result.stderr.splitlines()) == ("--quiet" not in more)


def test_run_prints_report_on_stdout_and_progress_on_stderr(cli: Cli, town: Town, golden: Golden) -> None:
    result = cli("emergence", TASK, *QUICK)
    assert result.exit_code == 0
    (session,) = recorded()
    assert f"`consilience replay {session}`" in result.stdout
    assert len(result.stderr.splitlines()) == 2 + len(town.requests) + 1, (
        "two lines of the plan, the calls, and a check"
    )
    golden(result.stderr, "progress")
    golden(result.stdout, "report")
    golden(cli("show", session, "--view", "figures").stdout, "figures")


def test_json_option_prints_only_the_report(cli: Cli, town: Town) -> None:
    result = cli("emergence", TASK, *QUICK, "--json")
    report = EmergenceReport.model_validate_json(result.stdout)
    assert report.task == TASK
    assert [report.session] == recorded()
    assert report.ledger.actual.calls == len(town.requests) == 15


def test_quiet_option_prints_only_the_report(cli: Cli, town: Town) -> None:
    result = cli("emergence", TASK, *QUICK, "--quiet")
    assert result.stderr == ""
    assert result.stdout.startswith("**Stopped:")


def test_no_store_records_nothing_and_prints_no_resume_hint(cli: Cli, town: Town) -> None:
    result = cli("emergence", TASK, *QUICK, "--no-store")
    assert result.exit_code == 0
    assert recorded() == []
    assert "consilience show" not in result.stdout


def test_unwritable_report_of_no_store_is_not_called_recorded(cli: Cli, town: Town, here: Path) -> None:
    (here / "out" / "report.json").mkdir(parents=True)
    result = cli("solo", TASK, "--model", MODEL, "--no-store", "--out", "out")
    assert result.exit_code == 2
    assert "report.json. Name another file" in result.stderr


def test_out_writes_the_report_files(cli: Cli, town: Town, here: Path) -> None:
    result = cli("emergence", TASK, *QUICK, "--out", "reports/first")
    directory = here / "reports" / "first"
    names = ["final_state.json", "mca_report.json", "report.html", "report.json", "report.md", "summary.html"]
    assert sorted(path.name for path in directory.iterdir()) == names
    assert "`reports/first/report.html`" in result.stdout
    page = (directory / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "by phase, each with what its agent had read" in page, "the transcript is there too"
    EmergenceReport.model_validate_json((directory / "report.json").read_text())
    assert (directory / "report.md").read_text().startswith(f"# {TASK}\n")
    assert json.loads((directory / "mca_report.json").read_text())["summary_metrics"]["total_llm_calls"] == 15
    assert json.loads((directory / "final_state.json").read_text())["original_task"] == TASK


def opened_by(browser: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a program of this machine the browser."""
    monkeypatch.setenv("BROWSER", str(browser))
    webbrowser.register("of-the-test", None, webbrowser.GenericBrowser([str(browser), "%s"]), preferred=True)


def test_open_opens_the_page_of_a_run_and_of_a_recorded_session(
    cli: Cli, town: Town, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = here / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o700)
    opened_by(browser, monkeypatch)
    result = cli("solo", TASK, "--model", MODEL, "--out", "r", "--open")
    assert result.exit_code == 0
    assert (here / "opened").read_text().strip() == (here / "r" / "report.html").as_uri()
    assert result.stderr.endswith("Opened r/report.html\n")
    alone = cli("solo", TASK, "--model", MODEL, "--no-store", "--open", "--quiet")
    page = Path(unquote((here / "opened").read_text().strip().removeprefix("file://")))
    assert page.name == "report.html"
    assert page.stat().st_mode & 0o777 == 0o600
    assert f"`{page}`" in alone.stdout
    for command in ("show", "resume"):
        again = cli(command, "last", "--open")
        page = Path(unquote((here / "opened").read_text().strip().removeprefix("file://")))
        assert (again.exit_code, page.name) == (0, "report.html")
        assert again.stderr.endswith(f"Opened {page}\n")
        assert TASK in page.read_text()


def test_open_without_a_display_prints_the_path(
    cli: Cli, town: Town, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    result = cli("solo", TASK, "--model", MODEL, "--out", "r", "--open")
    assert result.exit_code == 0
    assert result.stderr.endswith("There is no display to open the page on: r/report.html\n")
    assert (here / "r" / "report.html").exists()


def test_task_is_read_from_a_file_or_stdin(cli: Cli, town: Town, here: Path) -> None:
    (here / "task.txt").write_text("\ufeffFrom a file?\r\nYes.\n", encoding="utf-8")
    for argument, input, text in (("@task.txt", None, "From a file?\nYes."), ("-", "From a pipe?\n", "From a pipe?")):
        result = cli("emergence", argument, *QUICK, "--json", input=input)
        assert EmergenceReport.model_validate_json(result.stdout).task == text


def test_source_with_id_is_shown_to_that_agent_only(cli: Cli, town: Town, here: Path) -> None:
    (here / "rents.md").write_text("Rents rose.\n")
    (here / "secret.txt").write_text("A supermarket comes.\n")
    (here / "notes").mkdir()
    (here / "notes" / "a.txt").write_text("Note A.\n")
    (here / "notes" / "logo.png").write_bytes(b"\x89PNG\x00\xff")
    (here / "notes" / ".hidden").write_text("No.\n")
    sources = ("--source", "rents.md", "--source", "L2N2=secret.txt", "--source", "notes", "--source", "-")
    result = cli("emergence", TASK, *QUICK, *sources, input="From a pipe.\n")
    assert result.exit_code == 0
    assert "notes: left out: binary: notes/logo.png\n" in result.stderr
    for request in town.requests:
        assert "Rents rose." in request.text
        assert "Note A." in request.text
        assert "From a pipe." in request.text
        assert ("A supermarket comes." in request.text) == (request.agent == "L2N2")


def test_children_and_depth_set_the_number_of_agents(cli: Cli, town: Town) -> None:
    result = cli("emergence", TASK, *QUICK, "--children", "2", "--depth", "3", "--no-signals", "--json")
    report = EmergenceReport.model_validate_json(result.stdout)
    assert len(report.agents) == 7
    assert report.settings["signals"] is False
    assert not any(request.key.startswith("round-1/signal") for request in town.requests)


def test_models_are_assigned_in_turn_and_agent_overrides_one(cli: Cli, town: Town) -> None:
    models = ("--models", "ollama:a, ollama:b", "--agent", "L2N3=ollama:c")
    result = cli("emergence", TASK, "--max-rounds", "1", *models, "--json")
    report = EmergenceReport.model_validate_json(result.stdout)
    assert [agent.model for agent in report.agents] == ["ollama:a", "ollama:b", "ollama:a", "ollama:c"]


def test_personas_are_assigned_to_leaves(cli: Cli, town: Town) -> None:
    personas = (
        "--persona",
        "sceptical CFO",
        "--persona",
        "Farmer: You sell at dawn.",
        "--persona",
        "You clean the square. Daily.",
    )
    result = cli("emergence", TASK, *QUICK, *personas, "--json")
    report = EmergenceReport.model_validate_json(result.stdout)
    seats = [(agent.persona, agent.perspective) for agent in report.agents[1:]]
    assert seats == [
        ("Sceptical CFO", "sceptical CFO"),
        ("Farmer", "You sell at dawn."),
        ("You clean the square", "You clean the square. Daily."),
    ]


def test_unused_personas_of_a_panel_are_named(cli: Cli, town: Town, golden: Golden) -> None:
    result = cli("emergence", TASK, *QUICK, "--panel", "policy", "--children", "2")
    assert result.exit_code == 0
    golden(lines_with("Policy historian", result.stderr), "known before anything is spent")
    golden(lines_with("Policy historian", result.stdout), "report")
    (session,) = json.loads(cli("sessions", "list", "--json").stdout)
    report = json.loads(cli("show", session["session"], "--json").stdout)
    assert "Policy historian" in " ".join(report["warnings"])


def test_unused_personas_of_a_protocol_of_one_seat_are_named_without_a_setting(
    cli: Cli, town: Town, golden: Golden
) -> None:
    golden(cli("solo", TASK, "--model", MODEL, "--panel", "policy", "--dry-run").stdout)


def test_prompts_option_replaces_templates(cli: Cli, town: Town, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "instructions.j2").write_text("Answer like a grocer.")
    assert cli("emergence", TASK, *QUICK, "--prompts", "mine").exit_code == 0
    assert all("Answer like a grocer." in request.text for request in town.requests)


# --- how it ends


def test_max_calls_zero_ends_without_an_answer(cli: Cli, town: Town) -> None:
    result = cli("emergence", TASK, *QUICK, "--max-calls", "0", "--json")
    report = EmergenceReport.model_validate_json(result.stdout)
    assert result.exit_code == 3
    assert report.stop_reason.value == "exhausted_budget"
    assert report.answer is None
    assert town.requests == []


def test_exhausted_budget_still_ends_in_an_answer(cli: Cli, town: Town, golden: Golden) -> None:
    result = cli("emergence", TASK, *QUICK, "--max-calls", "4")
    assert result.exit_code == 0
    assert len(town.requests) <= 4
    golden(result.stdout)


def test_missing_agents_are_named_in_the_first_line(cli: Cli, town: Town, golden: Golden) -> None:
    whole = town.reply
    town.reply = lambda request: Rejected("no such model") if request.agent == "L2N2" else whole(request)
    result = cli("emergence", TASK, *QUICK)
    assert result.exit_code == 0
    golden(result.stdout)
    golden(lines_with("no reply", result.stderr), "progress")


def test_run_without_quorum_fails(cli: Cli, town: Town, golden: Golden) -> None:
    """What was paid for is shown."""
    whole = town.reply
    town.reply = lambda request: Rejected("no") if request.agent in ("L2N1", "L2N2") else whole(request)
    result = cli("emergence", TASK, *QUICK)
    assert result.exit_code == 1
    golden(result.stdout)
    assert cli("emergence", TASK, *QUICK, "--quorum", "0.3").exit_code == 0


def test_defect_is_reported_with_a_resumable_session(cli: Cli, town: Town, golden: Golden) -> None:
    def broken(request: object) -> object:
        raise RuntimeError("boom")

    town.reply = broken
    result = cli("emergence", TASK, *QUICK)
    (session,) = recorded()
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"consilience resume {session}" in result.stderr
    assert "Traceback" not in result.stderr
    golden(result.stderr)
    assert "Traceback" in cli("emergence", TASK, *QUICK, env={"CONSILIENCE_DEBUG": "1"}).stderr


# --- before it begins


def test_dry_run_needs_no_model_and_records_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setenv("CONSILIENCE_MODEL", "openai:gpt-4o")
    result = cli("emergence", TASK, "--dry-run")
    assert result.exit_code == 0
    golden(result.stdout)
    assert recorded() == []


@pytest.mark.parametrize(
    ("shown", "protocol", "options"),
    [
        ("one call", "solo", ["--model", MODEL]),
        ("chain of models in its cell", "solo", ["--model", "ollama:a|ollama:b"]),
        ("unknown price", "emergence", ["--model", "openai:of-next-year"]),
        ("paid, within limits", "debate", ["--model", "openai:gpt-4o", "--max-calls", "40", "--max-cost", "1"]),
        ("every agent", "vote", ["--model", MODEL, "--votes", "12"]),
        ("program", "broadcast", ["--model", MODEL, "--agent", "L2N1=exec:cat"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_dry_run_of(shown: str, protocol: str, options: list[str], cli: Cli, golden: Golden) -> None:
    golden(cli(protocol, TASK, "--dry-run", *options).stdout)


def test_dry_run_prints_json(cli: Cli) -> None:
    result = cli("emergence", TASK, "--dry-run", "--json", "--model", "anthropic:claude-sonnet-4-5", "--max-calls", "2")
    plan = json.loads(result.stdout)
    assert plan["estimate"] == {"min": 15, "max": 39}
    assert plan["paid"] == ["anthropic:claude-sonnet-4-5"]
    assert 0 < plan["max_cost"] < 1
    dear = json.loads(cli("emergence", TASK, "--dry-run", "--json", "--model", "anthropic:claude-sonnet-4-5").stdout)
    assert dear["max_cost"] == pytest.approx(plan["max_cost"] * 39 / 2)


def test_first_line_names_model_reason_and_unused_keys(cli: Cli, town: Town, golden: Golden) -> None:
    env: dict[str, str | None] = {"CONSILIENCE_MODEL": MODEL, "OPENAI_API_KEY": "sk-very-secret"}
    result = cli("emergence", TASK, "--max-rounds", "1", env=env)
    golden(result.stderr.splitlines()[0])
    assert "very-secret" not in result.output


def test_plan_includes_the_cost_of_an_encoder(cli: Cli) -> None:
    encoder = ("--similarity", "embedding", "--encoder", "openai:text-embedding-3-small")
    plan = json.loads(cli("emergence", TASK, "--dry-run", "--json", "--model", MODEL, *encoder).stdout)
    assert plan["paid"] == ["openai:text-embedding-3-small"]
    assert 0 < plan["max_cost"] < 0.01


@pytest.mark.parametrize("name", ["foo", "openai:", ":foo"])
@pytest.mark.parametrize("dry", [True, False])
def test_encoder_without_a_provider_is_refused(cli: Cli, town: Town, name: str, dry: bool) -> None:
    result = cli("emergence", TASK, "--model", MODEL, "--encoder", name, *(["--dry-run"] if dry else []))
    assert result.exit_code == 2
    output = " ".join(result.stderr.split())
    assert f"'{name}' is not the name of an encoder. Where: --encoder. Write minilm, PROVIDER:MODEL" in output
    assert recorded() == []


@pytest.mark.parametrize("second", [("--source", "-"), ("--source", "S1=-")])
def test_stdin_named_twice_is_refused(cli: Cli, town: Town, second: tuple[str, str]) -> None:
    result = cli("solo", "-", "--model", MODEL, *second, input="Is it so?")
    assert result.exit_code == 2
    output = " ".join(result.stderr.split())
    assert "standard input is named twice" in output
    assert "empty" not in output
    assert cli("solo", TASK, "--model", MODEL, *second, input="A document.").exit_code == 0


def test_conflicting_settings_error_has_no_pydantic_prefix(cli: Cli, town: Town) -> None:
    result = cli("emergence", TASK, "--model", MODEL, "--children", "8", "--depth", "6")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert "together" not in result.stderr
    assert "Value error" not in result.stderr


# --- configuration


def test_configuration_precedence_is_option_environment_directory_user(
    cli: Cli, town: Town, here: Path, home: Path
) -> None:
    def model(*options: str, env: dict[str, str | None] | None = None) -> str:
        return str(json.loads(cli("emergence", TASK, "--dry-run", "--json", *options, env=env).stdout)["models"][0])

    assert model() == "local:qwen2.5-coder-1.5b"
    (home / "consilience.toml").write_text('model = "ollama:user"\n[emergence]\nchildren = 5\nmax_rounds = 3\n')
    assert model() == "ollama:user"
    (here / "consilience.toml").write_text('model = "ollama:directory"\n[emergence]\nchildren = 2\n')
    assert model() == "ollama:directory"
    assert model(env={"CONSILIENCE_MODEL": "ollama:environment"}) == "ollama:environment"
    assert model("--model", "ollama:option", env={"CONSILIENCE_MODEL": "ollama:environment"}) == "ollama:option"
    plan = json.loads(cli("emergence", TASK, "--dry-run", "--json", "--max-rounds", "4").stdout)
    assert (plan["settings"]["children"], plan["settings"]["max_rounds"]) == (2, 4)
    assert "consilience.toml names it" in plan["why"]


def test_env_file_sets_only_missing_variables(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWN_NAME", "kept")
    monkeypatch.setenv("CONSILIENCE_MODEL", "")
    monkeypatch.delenv("CONSILIENCE_MODEL")
    (here / ".env").write_text("# models\nexport CONSILIENCE_MODEL='ollama:from-file'\n\nTOWN_NAME=other\n")
    result = cli("emergence", TASK, "--dry-run", "--json", "--env-file", ".env")
    assert json.loads(result.stdout)["models"] == ["ollama:from-file"]
    import os

    assert os.environ["TOWN_NAME"] == "kept"
    monkeypatch.delenv("CONSILIENCE_MODEL")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (["--max-calls", "5"], "exhausted_budget"),
        (["--max-tokens", "4000"], "exhausted_budget"),
        (["--max-seconds", "0"], "exhausted_time"),
        (["--max-time", "0"], "exhausted_time"),
        (["--agent-limit", "*:seconds=0"], "exhausted_time"),
        (["--max-steps", "1"], "exhausted_steps"),
        (["--agent-limit", "*:calls=1"], "exhausted_budget"),
        (["--phase-limit", "lateral_leaves:calls=1"], "exhausted_budget"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_limit_ends_in_a_report_with_its_reason(cli: Cli, town: Town, limit: list[str], reason: str) -> None:
    result = cli("emergence", TASK, "--model", MODEL, *limit, "--json")
    report = EmergenceReport.model_validate_json(result.stdout)
    assert report.stop_reason.value == reason
    assert result.exit_code == (0 if report.answer is not None and report.quorum_met else 3)
    assert "Stopped: " in cli("show", "last").stdout
    assert json.loads(cli("show", "last", "--json").stdout)["stop_reason"] == reason


def test_limit_has_one_name_in_options_records_and_advice(cli: Cli, town: Town) -> None:
    result = cli("emergence", TASK, "--model", MODEL, "--max-seconds", "0", "--max-cost", "1", "--yes", "--json")
    report = json.loads(result.stdout)
    named = {name: value for name, value in report["limits"].items() if value not in (None, {})}
    assert named == {"seconds": 0.0, "cost": 1.0}
    assert {call["exhausted"] for call in report["failed_calls"]} == {"seconds"}
    assert "--max-seconds SECONDS`" in cli("show", "last").stdout


def test_require_exits_4_for_another_stop_reason(cli: Cli, town: Town, golden: Golden) -> None:
    missed = cli("emergence", TASK, *QUICK, "--require", "converged", "--require", "settled")
    assert missed.exit_code == 4
    golden(missed.stderr.splitlines()[-1])
    assert missed.stdout.startswith("**Stopped:"), "the report is there all the same"
    assert cli("emergence", TASK, *QUICK, "--require", "exhausted_steps").exit_code == 0
    assert cli("emergence", TASK, *QUICK, "--require", "nonsense").exit_code == 2


def test_cut_answer_is_marked_and_not_converged(cli: Cli, town: Town, golden: Golden) -> None:
    def reply(request: ModelRequest) -> object:
        text = (
            "The answer is yes, since the stalls"
            if request.returns is None
            else '{"stance": "kept", "text": "Yes, since the stalls"}'
        )
        return Scripted(text, finish_reason="length" if "/observe/" in request.key else "stop")

    town.reply = reply
    arguments = ("emergence", TASK, "--model", MODEL, "--max-rounds", "2")
    result = cli(*arguments, "--require", "converged")
    assert result.exit_code == 4
    golden(result.stdout.partition("## Basis")[0])
    output = json.loads(cli(*arguments, "--json").stdout)
    assert (output["answer_cut"], output["stop_reason"], output["confidence"]["level"]) == (True, "inconclusive", None)


def proposing(request: ModelRequest) -> object:
    if request.key.startswith("propose/"):
        roles = [{"name": name, "asks": f"What does a {name} need?"} for name in ("Baker", "Mayor", "Nurse", "Priest")]
        return Scripted(json.dumps({"personas": roles}), tokens_in=50, tokens_out=50)
    return sensible(request)


def test_panel_auto_proposes_and_seats_a_panel(cli: Cli, town: Town) -> None:
    town.reply = proposing
    result = cli("emergence", TASK, *QUICK, "--panel", "auto", "--max-calls", "16", "--json")
    report = EmergenceReport.model_validate_json(result.stdout)
    assert [agent.persona for agent in report.agents if agent.persona] == ["Baker", "Mayor", "Nurse"]
    assert "Baker, Mayor, Nurse" in result.stderr
    assert len(recorded()) == 2, "the proposal is a session of its own"
    assert json.loads(cli("show", recorded()[0], "--json").stdout)["protocol"] == "propose"
    assert report.ledger.actual.calls == 15, "one of sixteen went to the proposal"
    assert all("What does a Nurse need?" in r.text for r in town.requests if r.agent == "L2N3")


def test_documents_are_dealt_to_the_seats_of_a_proposed_panel(cli: Cli, town: Town, tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    for name in ("costs", "staff", "roads"):
        (documents / f"{name}.md").write_text(f"The {name} grew.\n")
    debating = Debaters()
    town.reply = lambda request: proposing(request) if request.key.startswith("propose/") else debating(request)
    arguments = ("debate", TASK, "--model", MODEL, "--max-messages", "2", "--panel", "auto", "--deal", "document")
    result = cli(*arguments, "--source", str(documents), "--json")
    assert result.exit_code == 0, result.stderr
    readers = {reader["agent"] for document in json.loads(result.stdout)["documents"] for reader in document["readers"]}
    assert readers == {"baker", "mayor", "nurse"}
    proposal = next(request for request in town.requests if request.key.startswith("propose/"))
    assert "The staff grew." in proposal.text


def test_failed_panel_proposal_ends_before_the_run(cli: Cli, town: Town) -> None:
    town.reply = lambda request: Scripted("no idea", tokens_in=1, tokens_out=1)
    result = cli("emergence", TASK, *QUICK, "--panel", "auto")
    assert result.exit_code == 2
    assert "no panel could be proposed" in result.stderr
    assert {r.agent for r in town.requests} == {"P1"}
    assert cli("emergence", TASK, *QUICK, "--panel", "auto", "--dry-run").exit_code == 0
