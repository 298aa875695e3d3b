"""Consent before a run that costs money."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from cli.town import MODEL, TASK, Cli, Town, recorded
from consilience.cli import plan
from consilience.domain.errors import Timeout
from consilience.models.port import ModelRequest

PAID = ("emergence", TASK, "--model", "openai:gpt-4o", "--max-rounds", "2", "--reply-tokens", "1024")


class Terminal:
    """Somebody who sits at the terminal and answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
        self.asked: list[str] = []

        def confirm(text: str, **options: object) -> bool:
            self.asked.append(text)
            return answer

        monkeypatch.setattr(typer, "confirm", confirm)
        monkeypatch.setattr(plan, "can_confirm", lambda: True)


Sit = Callable[[bool], Terminal]


@pytest.fixture
def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Sit:
    return lambda answer: Terminal(monkeypatch, answer)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, town: Town) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    town.price = None


def test_paid_run_without_a_terminal_or_consent_is_refused(cli: Cli, town: Town) -> None:
    result = cli(*PAID)
    assert result.exit_code == 2
    error = result.stderr.splitlines()[-1]
    for words in ("openai:gpt-4o", "at most $", "--yes", "--max-cost", "--dry-run"):
        assert words in error
    assert town.requests == []
    assert recorded() == []


@pytest.mark.parametrize("agreed", [("--yes",), ("-y",), ("--max-cost", "0.3")])
def test_yes_option_starts_a_paid_run(cli: Cli, town: Town, agreed: tuple[str, ...]) -> None:
    result = cli(*PAID, *agreed)
    assert result.exit_code == 0
    assert "at most $" in result.stderr.splitlines()[0]
    assert "sk-planted" not in result.output


def test_plan_line_states_max_cost_as_upper_bound(cli: Cli, town: Town) -> None:
    assert "at most $0.30" in cli(*PAID, "--max-cost", "0.3").stderr.splitlines()[0]


def test_cost_above_confirm_above_asks_for_consent_on_a_terminal(
    cli: Cli, town: Town, open_terminal: Sit, here: Path
) -> None:
    (here / "consilience.toml").write_text("confirm_above = 0.01\n")
    terminal = open_terminal(False)
    result = cli(*PAID)
    assert result.exit_code == 2
    assert "Nothing was spent." in result.stderr
    (question,) = terminal.asked
    assert question.startswith("Spend at most $")
    assert question.endswith("on openai:gpt-4o?")
    assert recorded() == []
    assert open_terminal(True).asked == []
    assert cli(*PAID).exit_code == 0


def test_cost_below_confirm_above_needs_no_consent(cli: Cli, town: Town, open_terminal: Sit) -> None:
    terminal = open_terminal(False)
    assert cli(*PAID, "--max-calls", "3").exit_code == 0
    assert terminal.asked == []


def test_unknown_price_always_needs_consent(cli: Cli, town: Town, open_terminal: Sit) -> None:
    terminal = open_terminal(False)
    cli("emergence", TASK, "--model", "openai:of-next-year")
    assert "an unknown amount" in terminal.asked[0]


def test_run_with_zero_calls_needs_no_consent(cli: Cli, town: Town) -> None:
    assert cli(*PAID, "--max-calls", "0").exit_code == 3


def test_resume_of_a_paid_session_needs_consent(cli: Cli, town: Town) -> None:
    whole = town.reply

    def broken(request: object) -> object:
        raise RuntimeError("boom")

    town.reply = broken
    assert cli(*PAID, "--yes").exit_code == 1
    town.reply = whole
    refused = cli("resume", "last")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("and there is no terminal to confirm it. Give --yes to agree.\n")
    assert json.loads(cli("show", "last", "--json").stdout)["state"] == "unfinished"
    assert cli("resume", "last", "--yes").exit_code == 0


def test_resume_asks_for_the_cost_of_the_remaining_calls(cli: Cli, town: Town, open_terminal: Sit, here: Path) -> None:
    (here / "consilience.toml").write_text("confirm_above = 0.001\n")
    whole = town.reply

    def broken(request: ModelRequest) -> object:
        if request.key == "round-2/lateral/L2N3":
            raise RuntimeError("boom")
        return whole(request)

    town.reply = broken
    terminal = open_terminal(True)
    assert cli(*PAID).exit_code == 1
    town.reply = whole
    assert cli("resume", "last").exit_code == 0
    first, rest = (float(re.search(r"\$([\d.]+) without retries on", question)[1]) for question in terminal.asked)  # type: ignore[index]
    assert 0 < rest < first / 2


def test_run_with_a_program_needs_consent(cli: Cli, town: Town) -> None:
    run = ("emergence", TASK, "--model", MODEL, "--agent", "L2N1=exec:echo yes")
    shown = cli(*run, "--dry-run")
    assert "- Cost: not known: exec:echo yes may spend money of its own" in shown.stdout
    for arguments in ((), ("--max-cost", "1")):
        refused = cli(*run, *arguments)
        assert refused.exit_code == 2
        assert "this run may cost money (cost not known: exec:echo yes may spend money of its own" in refused.stderr
        assert "Give --yes to agree" in refused.stderr
        assert "or --max-cost" not in refused.stderr
    assert town.requests == []


CHAIN = f"{MODEL} | exec:touch started"
"""A free model, and a program that would leave a file if it ran."""

CHAINED = {
    "model": ("solo", TASK, "--model", CHAIN),
    "third link": ("solo", TASK, "--model", f"{MODEL}|{MODEL}|exec:touch started"),
    "models": ("emergence", TASK, "--models", f"{MODEL},{CHAIN}"),
    "agent": ("emergence", TASK, "--model", MODEL, "--agent", f"L2N1={CHAIN}"),
    "panel auto": ("emergence", TASK, "--model", CHAIN, "--panel", "auto"),
    "propose": ("propose", TASK, "--model", CHAIN),
    "compare": ("compare", TASK, "--protocols", "solo", "--model", CHAIN),
    "compare models": ("compare", TASK, "--protocols", "solo", "--models", f"{MODEL},{CHAIN}"),
    "environment": ("solo", TASK),
    "configuration": ("solo", TASK),
}


@pytest.mark.parametrize("place", CHAINED)
@pytest.mark.parametrize("bound", [(), ("--max-cost", "1")])
def test_program_as_fallback_needs_consent(
    cli: Cli, town: Town, here: Path, home: Path, place: str, bound: tuple[str, ...]
) -> None:
    if place == "configuration":
        (home / "consilience.toml").write_text(f'model = "{CHAIN}"\n')
    env: dict[str, str | None] | None = {"CONSILIENCE_MODEL": CHAIN} if place == "environment" else None
    run = (*CHAINED[place], "--source", __file__, *bound)
    refused = cli(*run, env=env)
    assert refused.exit_code == 2
    assert "cost not known: exec:touch started may spend money of its own" in refused.stderr.splitlines()[0]
    assert refused.stderr.endswith("Give --yes to agree; --dry-run shows the plan.\n")
    assert "costs nothing" not in refused.stderr
    assert (town.requests, recorded(), (here / "started").exists()) == ([], [], False)
    planned = cli(*run, "--dry-run", env=env).stdout
    assert "exec:touch started may spend money of its own" in " ".join(planned.split())
    output = json.loads(cli(*run, "--dry-run", "--json", env=env).stdout)
    assert (output["programs"], output["max_cost"]) == (["exec:touch started"], None)


def test_program_as_fallback_runs_with_consent(cli: Cli, town: Town) -> None:
    assert cli("solo", TASK, "--model", CHAIN, "--yes").exit_code == 0
    assert town.named == [f"{MODEL}|exec:touch started"]


def test_program_as_fallback_needs_consent_on_a_terminal(cli: Cli, town: Town, open_terminal: Sit) -> None:
    terminal = open_terminal(False)
    assert cli("solo", TASK, "--model", f"openai:gpt-4o|{CHAIN}").exit_code == 2
    (question,) = terminal.asked
    assert question.startswith("Spend an unknown amount")
    assert question.endswith("on openai:gpt-4o, exec:touch started?")
    assert town.requests == []


@pytest.mark.parametrize("change", [(), ("--replace-agent", f"S1={CHAIN}"), ("--model", CHAIN), ("--models", CHAIN)])
def test_fork_to_a_program_as_fallback_needs_consent(cli: Cli, town: Town, change: tuple[str, ...]) -> None:
    assert cli("solo", TASK, "--model", MODEL if change else CHAIN, "--yes").exit_code == 0
    before = (len(town.requests), recorded())
    refused = cli("fork", "last", "--at", "0", *change)
    assert refused.exit_code == 2
    assert "cost not known: exec:touch started may spend money of its own" in refused.stderr
    assert "Give --yes to agree" in refused.stderr
    assert (len(town.requests), recorded()) == before


def test_resume_with_a_program_as_fallback_needs_consent(cli: Cli, town: Town) -> None:
    def broken(request: object) -> object:
        raise RuntimeError("boom")

    whole, town.reply = town.reply, broken
    assert cli("solo", TASK, "--model", CHAIN, "--yes").exit_code == 1
    town.reply = whole
    made = len(town.requests)
    refused = cli("resume", "last")
    assert refused.exit_code == 2
    assert "cost not known: exec:touch started may spend money of its own" in refused.stderr
    assert len(town.requests) == made
    assert cli("resume", "last", "--yes").exit_code == 0


def test_max_cost_of_a_chain_is_that_of_its_most_expensive_link(cli: Cli, town: Town) -> None:
    def max_cost(model: str) -> float:
        return float(json.loads(cli("solo", TASK, "--model", model, "--dry-run", "--json").stdout)["max_cost"])

    cheap, dear = max_cost("openai:gpt-4o-mini"), max_cost("openai:gpt-4o")
    assert 0 < cheap < dear
    for chain in ("openai:gpt-4o-mini|openai:gpt-4o", f"{MODEL}|openai:gpt-4o|openai:gpt-4o-mini"):
        assert max_cost(chain) == dear


@pytest.mark.parametrize("chain", ["human|ollama:town", "human:Anna|exec:cat", "ollama:town|human"])
def test_person_in_a_chain_is_refused(cli: Cli, town: Town, chain: str) -> None:
    for more in ((), ("--dry-run",)):
        refused = cli("solo", TASK, "--model", chain, "--yes", *more)
        assert refused.exit_code == 2
        assert "a person cannot be part of a chain of models" in refused.stderr
    assert recorded() == []


def test_chain_of_encoders_is_refused(cli: Cli, town: Town) -> None:
    assert cli("solo", TASK, "--model", MODEL).exit_code == 0
    chain = ("--encoder", "sentence-transformers:all-MiniLM-L6-v2|openai:text-embedding-3-small", "--yes")
    for command in (("solo", TASK, "--model", MODEL), ("fork", "last", "--at", "0")):
        for more in ((), ("--dry-run",)):
            refused = cli(*command, *chain, *more)
            assert refused.exit_code == 2
            assert "an encoder has no fallback" in refused.stderr
    assert len(recorded()) == 1


EMBEDDING = (*PAID, "--similarity", "embedding", "--encoder", "openai:text-embedding-3-small")


def test_max_cost_does_not_bound_a_paid_encoder(cli: Cli, town: Town) -> None:
    unlimited = cli(*EMBEDDING)
    assert "does not bound" not in unlimited.stderr
    limited = cli(*EMBEDDING, "--max-cost", "0.3")
    assert "--max-cost does not bound the cost of openai:text-embedding-3-small" in limited.stderr.splitlines()[-1]
    for refused in (unlimited, limited):
        assert refused.exit_code == 2
        assert "openai:gpt-4o, openai:text-embedding-3-small; at most $" in refused.stderr
        assert refused.stderr.endswith("Give --yes to agree; --dry-run shows the plan.\n")
    assert town.requests == []
    assert recorded() == []


def test_paid_encoder_needs_consent(cli: Cli, town: Town, open_terminal: Sit, here: Path) -> None:
    (here / "consilience.toml").write_text("confirm_above = 0.01\n")
    terminal = open_terminal(False)
    assert cli(*EMBEDDING, "--max-cost", "0.3").exit_code == 2
    (question,) = terminal.asked
    unbounded, _, rest = question.partition(" Spend at most $")
    assert unbounded == "(--max-cost does not bound the cost of openai:text-embedding-3-small.)"
    assert rest.endswith("on openai:gpt-4o, openai:text-embedding-3-small?")


def test_plan_with_a_local_encoder_has_no_unbounded_cost(cli: Cli, town: Town) -> None:
    own = "sentence-transformers:all-MiniLM-L6-v2"
    planned = cli(*PAID, "--encoder", own, "--max-cost", "0.3", "--dry-run")
    assert planned.exit_code == 0
    assert "does not bound" not in planned.stdout


def test_missing_program_or_secret_is_refused_before_consent(cli: Cli, town: Town) -> None:
    run = ("emergence", TASK, "--model", MODEL, "--yes", "--agent")
    missing = cli(*run, "L2N1=exec:no-such-program")
    assert missing.exit_code == 2
    assert "there is no program 'no-such-program'" in missing.stderr
    secret = cli(*run, "L2N1=exec:cat --api-key=hidden")
    assert secret.exit_code == 2
    assert "CONSILIENCE_EXEC_ENV" in secret.stderr
    assert "hidden" not in secret.stderr


def test_request_ended_by_its_deadline_is_possibly_charged_at_an_unknown_price(cli: Cli, town: Town) -> None:
    town.reply = lambda request: Timeout("no answer within the deadline")
    result = cli("solo", TASK, "--model", "openai:gpt-4o", "--yes")
    assert "1 call ended by the deadline of a request, possibly charged: answer/S1" in result.stdout
    assert "possibly charged) · 0 tokens read, 0 written · price not known" in result.stdout


def test_max_cost_does_not_bound_a_program_and_the_plan_says_so(cli: Cli) -> None:
    result = cli("solo", TASK, "--model", "exec:cat", "--max-cost", "0.01", "--dry-run")
    assert "exec:cat may spend money of its own, which --max-cost does not bound" in result.stdout
