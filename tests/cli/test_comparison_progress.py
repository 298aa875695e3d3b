"""Progress of a comparison on standard error."""

from __future__ import annotations

import io
import sys

import pytest

from consilience.cli import display as module
from consilience.cli.compare import ComparisonProgress, run_line
from consilience.cli.display import Display
from consilience.domain.events import CallCompleted
from consilience.domain.outcome import StopReason
from consilience.evaluation import Run, Task

TASK = Task(id="t1", task="?")


def run(**more: object) -> Run:
    fields: dict[str, object] = {
        "row": "solo",
        "task": "t1",
        "seed": 0,
        "session": "c1",
        "answer": "It is 12.",
        "position": "12",
        "answered": True,
        "correct": False,
        "stop_reason": StopReason.SETTLED,
        "limit": 100,
        "calls": 1,
        "tokens_in": 300,
        "tokens_out": 10,
        "cost": 0.0,
        "seconds": 4.2,
    }
    return Run.model_validate({**fields, **more})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def call() -> CallCompleted:
    return CallCompleted(place="0", key="k", agent="A1", digest="d", prompt="p", text="t")


def test_run_line_names_answer_verdict_and_usage() -> None:
    assert run_line(run()) == "solo on t1: 12, wrong; 1 call, 310 tokens, 4.2 s"
    assert run_line(run(correct=True, recorded=True)) == "solo on t1: 12, right; recorded before"
    assert run_line(run(correct=None, position=None, answer="Yes\n\x1b[2Jno")).startswith(
        "solo on t1: Yes [2Jno; 1 call"
    )
    assert run_line(run(answered=False, answer=None, position=None)).startswith("solo on t1: no answer; ")


def test_comparison_heartbeat_is_printed_after_ten_silent_seconds(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ComparisonProgress(6)
    screen = Display(progress)
    progress.begin("circle", TASK, 0)
    screen.observe(call())
    clock[0] += 9
    screen.tick()
    assert capsys.readouterr().err == ""
    clock[0] += 1
    screen.tick()
    screen.tick()
    assert capsys.readouterr().err == "… 0 of 6: circle on t1 · 1 call · 10 s\n"
    screen.line(progress.end(run()))
    assert capsys.readouterr().err.startswith("1 of 6: solo on t1")


def test_quiet_comparison_prints_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = ComparisonProgress(1)
    screen = Display(progress, quiet=True)
    progress.begin("circle", TASK, 0)
    screen.loading("loading local:x")
    clock[0] += 60
    screen.tick()
    screen.line(progress.end(run()))
    screen.close()
    assert capsys.readouterr() == ("", "")


def test_comparison_on_a_terminal_is_a_bar_that_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    progress = ComparisonProgress(3)
    screen = Display(progress)
    progress.begin("circle", Task(id="t[red]1", task="?"), 0)
    screen.tick()
    screen.line(progress.end(run()))
    screen.tell("Stopping.")
    screen.tick()
    screen.close()
    assert "1/3" in terminal.getvalue()
    assert "circle on t[red]1" in terminal.getvalue()
    assert "Stopping." in terminal.getvalue()
    assert "solo on t1" not in terminal.getvalue()
