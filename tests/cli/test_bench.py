"""What is seen of a comparison while it runs."""

from __future__ import annotations

import io
import sys

import pytest

from consilience.cli import display as module
from consilience.cli.display import ComparisonProgress, run_line
from consilience.domain.events import CallCompleted
from consilience.domain.outcome import StopReason
from consilience.evaluation import Run, Task

TASK = Task(id="t1", task="?")


def run(**more: object) -> Run:
    given: dict[str, object] = {
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
    return Run.model_validate({**given, **more})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def call() -> CallCompleted:
    return CallCompleted(place="0", key="k", agent="A1", digest="d", prompt="p", text="t")


def test_a_run_that_ended_is_a_line() -> None:
    assert run_line(run()) == "solo on t1: 12, wrong; 1 call, 310 tokens, 4.2 s"
    assert run_line(run(correct=True, recorded=True)) == "solo on t1: 12, right; recorded before"
    assert run_line(run(correct=None, position=None, answer="Yes\n\x1b[2Jno")).startswith(
        "solo on t1: Yes [2Jno; 1 call"
    )
    assert run_line(run(answered=False, answer=None, position=None)).startswith("solo on t1: no answer; ")


def test_silence_is_broken_after_ten_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    bench = ComparisonProgress(6, quiet=False)
    observer = bench.observer
    observer.begins("circle", TASK, 0)
    observer.event(call())
    clock[0] += 9
    bench.tick()
    assert capsys.readouterr().err == ""
    clock[0] += 1
    bench.tick()
    bench.tick()
    assert capsys.readouterr().err == "… 0 of 6: circle on t1 · 1 call · 10 s\n"
    observer.ended(run())
    assert capsys.readouterr().err.startswith("1 of 6: solo on t1")


def test_quiet_is_quiet(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    bench = ComparisonProgress(1, quiet=True)
    bench.observer.begins("circle", TASK, 0)
    bench.loading("loading local:x")
    clock[0] += 60
    bench.tick()
    bench.observer.ended(run())
    bench.close()
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar_that_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    bench = ComparisonProgress(3, quiet=False)
    bench.observer.begins("circle", Task(id="t[red]1", task="?"), 0)
    bench.tick()
    bench.observer.ended(run())
    bench.tell("Stopping.")
    bench.tick()
    bench.close()
    assert "1/3" in screen.getvalue()
    assert "circle on t[red]1" in screen.getvalue()
    assert "Stopping." in screen.getvalue()
    assert "solo on t1" not in screen.getvalue()
