"""Money is spent with consent only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from cli.town import MODEL, TASK, Cli, Town, recorded
from consilience.cli import consent
from consilience.models.port import ModelRequest

PAID = ("emergence", TASK, "--model", "openai:gpt-4o", "--max-rounds", "2")


class Terminal:
    """Somebody who sits at the terminal and answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
        self.asked: list[str] = []

        def confirm(text: str, **options: object) -> bool:
            self.asked.append(text)
            return answer

        monkeypatch.setattr(typer, "confirm", confirm)
        monkeypatch.setattr(consent, "sys", self)

    class _Stream:
        def isatty(self) -> bool:
            return True

    stdin = stderr = _Stream()


Sit = Callable[[bool], Terminal]


@pytest.fixture
def sit(monkeypatch: pytest.MonkeyPatch) -> Sit:
    return lambda answer: Terminal(monkeypatch, answer)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, town: Town) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    town.price = None


def test_where_nobody_can_be_asked_it_is_refused(cli: Cli, town: Town) -> None:
    result = cli(*PAID)
    assert result.exit_code == 2
    error = result.stderr.splitlines()[-1]
    for words in ("openai:gpt-4o", "at most $0.", "--yes", "--max-cost", "--dry-run"):
        assert words in error
    assert town.requests == []
    assert recorded() == []


@pytest.mark.parametrize("agreed", [("--yes",), ("-y",), ("--max-cost", "0.3")])
def test_agreed_beforehand(cli: Cli, town: Town, agreed: tuple[str, ...]) -> None:
    result = cli(*PAID, *agreed)
    assert result.exit_code == 0
    assert "at most $0." in result.stderr.splitlines()[0]
    assert "sk-planted" not in result.output


def test_the_bound_is_the_most_that_is_said(cli: Cli, town: Town) -> None:
    assert "at most $0.30" in cli(*PAID, "--max-cost", "0.3").stderr.splitlines()[0]


def test_on_a_terminal_it_asks_above_the_amount(cli: Cli, town: Town, sit: Sit, here: Path) -> None:
    (here / "consilience.toml").write_text("confirm_above = 0.01\n")
    terminal = sit(False)
    result = cli(*PAID)
    assert result.exit_code == 2
    assert "Nothing was spent." in result.stderr
    (question,) = terminal.asked
    assert question.startswith("Spend at most $0.")
    assert question.endswith("on openai:gpt-4o?")
    assert recorded() == []
    assert sit(True).asked == []
    assert cli(*PAID).exit_code == 0


def test_below_the_amount_it_does_not_ask(cli: Cli, town: Town, sit: Sit) -> None:
    terminal = sit(False)
    assert cli(*PAID, "--max-calls", "3").exit_code == 0
    assert terminal.asked == []


def test_an_unknown_price_is_always_asked_about(cli: Cli, town: Town, sit: Sit) -> None:
    terminal = sit(False)
    cli("emergence", TASK, "--model", "openai:of-next-year")
    assert "an amount nobody can foresee" in terminal.asked[0]


def test_a_run_that_makes_no_call_needs_no_consent(cli: Cli, town: Town) -> None:
    assert cli(*PAID, "--max-calls", "0").exit_code == 3


def test_going_on_with_a_paid_session_needs_consent_again(cli: Cli, town: Town) -> None:
    whole = town.reply

    def broken(request: object) -> object:
        raise RuntimeError("boom")

    town.reply = broken
    assert cli(*PAID, "--yes").exit_code == 1
    town.reply = whole
    refused = cli("resume", "last")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("and nobody can be asked. Give --yes to agree.\n")
    assert json.loads(cli("show", "last", "--json").stdout)["state"] == "unfinished"
    assert cli("resume", "last", "--yes").exit_code == 0


def test_going_on_asks_for_what_the_rest_may_cost(cli: Cli, town: Town, sit: Sit, here: Path) -> None:
    (here / "consilience.toml").write_text("confirm_above = 0.001\n")
    whole = town.reply

    def broken(request: ModelRequest) -> object:
        if request.key == "round-2/lateral/L2N3":
            raise RuntimeError("boom")
        return whole(request)

    town.reply = broken
    terminal = sit(True)
    assert cli(*PAID).exit_code == 1
    town.reply = whole
    assert cli("resume", "last").exit_code == 0
    first, rest = (float(re.search(r"\$([\d.]+) on", question)[1]) for question in terminal.asked)  # type: ignore[index]
    assert 0 < rest < first / 2


def test_what_a_program_spends_is_not_known_and_has_to_be_agreed_to(cli: Cli, town: Town) -> None:
    run = ("emergence", TASK, "--model", MODEL, "--agent", "L2N1=exec:echo yes")
    plan = cli(*run, "--dry-run")
    assert "what exec:echo yes spends is not known" in plan.stdout
    for given in ((), ("--max-cost", "1")):
        refused = cli(*run, *given)
        assert refused.exit_code == 2
        assert "this run may cost money (what exec:echo yes spends is not known)" in refused.stderr
        assert "Give --yes to agree" in refused.stderr
        assert "max-cost" not in refused.stderr
    assert town.requests == []


EMBEDDING = (*PAID, "--similarity", "embedding", "--encoder", "openai:text-embedding-3-small")


def test_no_limit_on_money_bounds_what_an_encoder_takes(cli: Cli, town: Town) -> None:
    unlimited = cli(*EMBEDDING)
    assert "does not bound" not in unlimited.stderr
    limited = cli(*EMBEDDING, "--max-cost", "0.3")
    assert "--max-cost does not bound what openai:text-embedding-3-small takes" in limited.stderr.splitlines()[-1]
    for refused in (unlimited, limited):
        assert refused.exit_code == 2
        assert "openai:gpt-4o, openai:text-embedding-3-small; at most $0." in refused.stderr
        assert refused.stderr.endswith("Give --yes to agree; --dry-run says more.\n")
    assert town.requests == []
    assert recorded() == []


def test_an_encoder_that_is_paid_for_is_asked_about(cli: Cli, town: Town, sit: Sit, here: Path) -> None:
    (here / "consilience.toml").write_text("confirm_above = 0.01\n")
    terminal = sit(False)
    assert cli(*EMBEDDING, "--max-cost", "0.3").exit_code == 2
    (question,) = terminal.asked
    unbounded, _, rest = question.partition(" Spend at most $0.")
    assert unbounded == "(--max-cost does not bound what openai:text-embedding-3-small takes.)"
    assert rest.endswith("on openai:gpt-4o, openai:text-embedding-3-small?")


def test_an_encoder_of_ones_own_leaves_a_limit_a_bound(cli: Cli, town: Town) -> None:
    own = "sentence-transformers:all-MiniLM-L6-v2"
    planned = cli(*PAID, "--encoder", own, "--max-cost", "0.3", "--dry-run")
    assert planned.exit_code == 0
    assert "does not bound" not in planned.stdout


def test_a_program_is_looked_for_and_its_secret_refused_before_anything_is_asked(cli: Cli, town: Town) -> None:
    run = ("emergence", TASK, "--model", MODEL, "--yes", "--agent")
    missing = cli(*run, "L2N1=exec:no-such-program")
    assert missing.exit_code == 2
    assert "there is no program 'no-such-program'" in missing.stderr
    secret = cli(*run, "L2N1=exec:cat --api-key=hidden")
    assert secret.exit_code == 2
    assert "CONSILIENCE_EXEC_ENV" in secret.stderr
    assert "hidden" not in secret.stderr
