"""Provider faults as a user of the command line meets them: exit codes, JSON, showing and replaying agree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from consilience import EmergenceReport
from consilience.cli.main import app
from consilience.engine import seats
from consilience.models.registry import resolve
from consilience.reporting.formatting import seat_labels as seat_words
from faults.house import FaultyServer, faulty_server_in_a_thread
from models.misbehaving import KEY, Answer, completion, error

pytestmark = pytest.mark.processes

TASK = "Should a small town replace its weekly market day with a daily one?"
SEATS = ("L1N1", "L2N1", "L2N2", "L2N3")
MODELS = tuple(word for seat in SEATS for word in ("--agent", f"{seat}=openai-chat:{seat}"))
RUN = ("emergence", TASK, "--max-rounds", "1", "--model", "openai-chat:any", *MODELS)

Misbehaviour = Callable[[str, int], Answer | None]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and little patience: there is no public setting for either figure."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setattr(seats, "resolve", lambda name, **_: resolve(name, deadline=5.0, retries=1))


def invoke(at: FaultyServer, *arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments), env=at.environment, prog_name="consilience")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert KEY not in result.output
    return result


@pytest.mark.parametrize(
    ("bad", "options", "code", "reason", "missing"),
    [
        (lambda seat, n: None, (), 0, "exhausted_steps", []),
        (lambda seat, n: error(429, Retry_After="0") if n == 1 else None, (), 0, "exhausted_steps", []),
        (lambda seat, n: completion("{}") if seat == "L2N3" else None, (), 0, "exhausted_steps", ["L2N3"]),
        (lambda seat, n: error(404) if seat in SEATS[2:] else None, (), 1, "failed", ["L2N2", "L2N3"]),
        (
            lambda seat, n: error(404) if seat in SEATS[2:] else None,
            ("--quorum", "0.3"),
            0,
            "exhausted_steps",
            ["L2N2", "L2N3"],
        ),
        (lambda seat, n: completion("") if seat == "L1N1" else None, (), 1, "failed", ["L1N1"]),
        (lambda seat, n: completion(None, refusal="No."), (), 1, "failed", ["L2N1", "L2N2", "L2N3"]),
        (lambda seat, n: None, ("--max-calls", "0"), 3, "exhausted_budget", []),
        (lambda seat, n: None, ("--max-calls", "1"), 3, "exhausted_budget", []),
        (lambda seat, n: error(404) if seat == "L1N1" else None, ("--max-calls", "1"), 3, "exhausted_budget", ["L1N1"]),
    ],
    ids=[
        "all well",
        "429 once each",
        "a seat lost",
        "no quorum",
        "a smaller quorum",
        "the chair lost",
        "all refuse",
        "no budget",
        "a budget of one",
        "a budget of one, and the chair lost",
    ],
)
def test_exit_code_json_show_and_replay_agree(
    bad: Misbehaviour, options: tuple[str, ...], code: int, reason: str, missing: list[str]
) -> None:
    with faulty_server_in_a_thread(bad) as at:
        result = invoke(at, *RUN, *options, "--json")
        report = EmergenceReport.model_validate_json(result.stdout)
        assert (result.exit_code, report.stop_reason.value) == (code, reason)
        assert [m.agent for m in report.missing] == missing
        assert (code == 0) == (report.answer is not None and report.quorum_met)
        names = seat_words(report.agents)
        for seat in missing:
            assert re.search(rf" · {re.escape(names[seat])} \d+\.\d s: ", result.stderr)
        sent = sum(at.asked.values())
        assert report.ledger.actual.requests == sent

        replayed = json.loads(invoke(at, "replay", "last", "--json").stdout)
        assert (replayed["calls"], replayed["report_digest"]) == (0, report.digest())
        assert EmergenceReport.model_validate_json(invoke(at, "show", "last", "--json").stdout) == report
        resumed = invoke(at, "resume", "last", "--quiet")
        assert resumed.exit_code == code
        assert resumed.stdout.splitlines()[0].startswith(("**Finished", "**Stopped: "))
        shown = invoke(at, "show", "last").stdout
        assert shown.startswith(f"# {TASK}\n")
        assert resumed.stdout in shown
        assert sum(at.asked.values()) == sent


def test_hanging_request_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        seats, "resolve", lambda name, **_: resolve(name, deadline=0.1 if name.endswith("L2N2") else 60, retries=1)
    )
    with faulty_server_in_a_thread(lambda seat, n: Answer(hang=True) if seat == "L2N2" else None) as at:
        result = invoke(at, *RUN)
    assert result.exit_code == 0
    assert "2 of 3 agents replied in the first phase · 1 call failed (deadline)" in result.stdout.splitlines()[0]
    assert "no answer within the deadline of 0.1 s" in result.stderr


def test_control_characters_in_a_provider_error_are_not_printed() -> None:
    evil = "\x1b]0;owned\x07 \x9b2J \u202egnihton\u2028next"
    with faulty_server_in_a_thread(lambda seat, n: error(400, evil) if seat == "L2N2" else None) as at:
        result = invoke(at, *RUN)
        shown = invoke(at, "show", "last")
    for output in (result.stdout, result.stderr, shown.stdout):
        assert not set(output) & {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"}
    assert "owned" in result.stderr
