"""Progress of a run on standard error."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from consilience.cli import display
from consilience.cli import display as module
from consilience.cli.display import HEARTBEAT_SECONDS, Display, RunProgress
from consilience.domain.agents import Agent
from consilience.domain.events import (
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    CheckRecorded,
    Event,
    ReplyRejected,
    SessionStarted,
)
from consilience.domain.outcome import Check, Estimate, FailureKind
from consilience.domain.topology import tree

AGENTS = (
    Agent(id="L1N1", role="integrator"),
    Agent(id="L2N1", role="specialist", perspective="critical"),
    Agent(id="L2N2", role="specialist", perspective="practical"),
)
STARTED = SessionStarted(
    schema_version=3,
    prompt_format=1,
    protocol="emergence",
    protocol_version=1,
    settings={},
    task="t",
    seed=0,
    agents=AGENTS,
    topology=tree(2, 2),
    quorum=0.5,
    estimate=Estimate(min=7, max=15),
    templates={},
)
KEY = "round-1/leaf_respond/L2N1"


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            CallCompleted(key=KEY, agent="L2N1", text="t", tokens_out=143, volatile={"s": 6.2}),
            "round 1 · own answers · critical (L2N1) 6.2 s, 143 tokens",
        ),
        (
            CallCompleted(key=KEY, agent="L2N1", text="t", tokens_out=1, finish="length"),
            "round 1 · own answers · critical (L2N1), 1 token, cut at the limit",
        ),
        (
            ReplyRejected(key=KEY, agent="L2N1", text="t", error="text: missing"),
            "round 1 · own answers · critical (L2N1): the reply could not be used, asking again (text: missing)",
        ),
        (
            ReplyRejected(key=KEY, agent="L2N1", attempt=2, text="t", error="text: missing"),
            "round 1 · own answers · critical (L2N1): the reply could not be used, giving up (text: missing)",
        ),
        (
            CallFailed(key=KEY, agent="L2N1", failure=FailureKind.DEADLINE, detail="no answer\nwithin 300 s"),
            "round 1 · own answers · critical (L2N1): no reply, deadline (no answer within 300 s)",
        ),
        (
            CallFailed(key=KEY, agent="L2N1", failure=FailureKind.BUDGET),
            "round 1 · own answers · critical (L2N1): refused by a limit (budget)",
        ),
        (
            CheckRecorded(index=2, check=Check(met=False, kind="jaccard", score=0.41, threshold=0.85)),
            "check after round 2: jaccard 0.41, needed 0.85",
        ),
        (
            CheckRecorded(index=2, check=Check(met=True, kind="all", detail="both met")),
            "check after round 2: both met",
        ),
        (
            CallLost(key=KEY, agent="L2N1"),
            "round 1 · own answers · critical (L2N1): was in flight at the end of the last process",
        ),
    ],
)
def test_display_prints_a_line_for_calls_checks_and_losses(
    event: Event, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Display(RunProgress())
    lines.observe(STARTED)
    lines.observe(CallStarted(key=KEY, agent="L2N1"))
    lines.observe(event)
    assert capsys.readouterr().err == f"{line}\n"


def test_heartbeat_is_printed_after_ten_silent_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Display(RunProgress())
    lines.loading("loading local:smollm2-135m")
    assert capsys.readouterr().err == "loading local:smollm2-135m\n"
    clock.now = HEARTBEAT_SECONDS - 0.1
    lines.tick()
    assert capsys.readouterr().err == ""
    clock.now = HEARTBEAT_SECONDS
    lines.tick()
    lines.tick()
    assert capsys.readouterr().err == "… 10 s: loading local:smollm2-135m\n"
    lines.loading("")
    lines.observe(STARTED)
    lines.observe(CallStarted(key=KEY, agent="L2N1"))
    lines.observe(CallCompleted(key=KEY, agent="L2N1", text="t", tokens_in=9, tokens_out=3))
    lines.observe(CallStarted(key="round-1/lateral/L2N2", agent="L2N2"))
    capsys.readouterr()
    clock.now = 2 * HEARTBEAT_SECONDS + 5
    lines.tick()
    assert capsys.readouterr().err == (
        "… 25 s: 1 of 7–15 calls, 9 tokens read, 3 written, price not known; waiting for practical (L2N2), longest 15 s\n"
    )


def test_heartbeat_names_a_rate_limit_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = RunProgress()
    progress.take(STARTED)
    progress.take(CallStarted(key=KEY, agent="L2N1"))
    monkeypatch.setattr(display, "pauses", lambda: {"acme": 42.0})
    waiting = "waiting for the rate limit of acme for 42 s"
    assert progress.heartbeat.endswith(waiting)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(progress.screen(40, 200))
    assert waiting in console.export_text()


def test_run_progress_counts_events_of_earlier_processes(capsys: pytest.CaptureFixture[str]) -> None:
    before = [STARTED, CallCompleted(key=KEY, agent="L2N1", text="t", cost=0.0, volatile={"t": 60.0})]
    progress = RunProgress(before)
    assert progress.state.made == 1
    assert progress.seconds >= 60


def test_quiet_display_prints_only_messages(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Display(RunProgress(title="t"), quiet=True)
    screen.observe(STARTED)
    screen.loading("weights")
    screen.tell("Stopping.")
    assert capsys.readouterr().err == "Stopping.\n"


@pytest.mark.parametrize(("term", "is_live"), [("xterm", True), ("dumb", False), ("unknown", False)])
def test_display_is_live_only_on_a_terminal_that_can_be_redrawn(
    term: str, is_live: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    screen = Display(RunProgress(title="t"))
    screen.observe(STARTED)
    screen.close()
    assert (capsys.readouterr().err == "t begins\n") == (not is_live)


def test_run_screen_shows_levels_if_there_are_more_agents_than_lines(clock: Clock) -> None:
    progress = RunProgress(title="big")
    shape = tree(9, 3)
    agents = tuple(Agent(id=id, role=f"role {shape.levels[id]}") for id in shape.agents)
    progress.take(STARTED.model_copy(update={"agents": agents, "topology": shape}))
    progress.take(CallStarted(key="a", agent="L3N80"))
    clock.now = 5.0
    progress.take(CallStarted(key="b", agent="L3N2"))
    progress.take(CallStarted(key="c", agent="L2N1"))
    progress.take(CallCompleted(key="c", agent="L2N1", text="t"))
    assert [agent.id for agent in progress.longest_in_flight(10)] == ["L3N80", "L3N2"]
    assert [agent.id for agent in progress.longest_in_flight(1)] == ["L3N80"]
    screen = io.StringIO()
    Console(file=screen, width=100).print(progress.screen(25))
    shown = " ".join(screen.getvalue().split())
    assert "level 2 9 role 2s 8 waiting, 1 done" in shown
    assert "level 3 81 role 3s 2 composing, 79 waiting" in shown


def test_time_left_is_estimated_from_the_first_reply_on(clock: Clock) -> None:
    """At the pace so far, for the estimated calls that are left: 7 to 15."""
    progress = RunProgress()
    progress.take(STARTED)
    clock.now = 5.0
    progress.take(CallStarted(key=KEY, agent="L2N1"))
    assert progress.time_left == ""
    clock.now = 25.0
    progress.take(CallCompleted(key=KEY, agent="L2N1", text="t"))
    assert progress.time_left == "about 2 min 0 s to 4 min 40 s left"
    clock.now = 145.0
    assert progress.time_left == "about 2 min 0 s to 4 min 40 s left", "it moves when a call ends"
    clock.now = 600.0
    assert progress.time_left == "", "an estimate that has passed is not repeated"


def test_time_left_is_not_estimated_while_a_call_hangs(clock: Clock) -> None:
    progress = RunProgress()
    progress.take(STARTED)
    progress.take(CallStarted(key=KEY, agent="L2N1"))
    progress.take(CallStarted(key=f"{KEY}2", agent="L2N2"))
    clock.now = 4.0
    progress.take(CallCompleted(key=KEY, agent="L2N1", text="t"))
    clock.now = 12.0
    assert progress.time_left
    clock.now = 21.0
    assert progress.time_left == ""


def test_time_left_is_one_value_if_the_number_of_calls_is_known(clock: Clock) -> None:
    progress = RunProgress()
    progress.take(STARTED.model_copy(update={"estimate": Estimate(min=7, max=7)}))
    for n in range(6):
        progress.take(CallStarted(key=f"{KEY}{n}", agent="L2N1"))
        clock.now += 20
        progress.take(CallCompleted(key=f"{KEY}{n}", agent="L2N1", text="t"))
        if n == 0:
            assert progress.time_left == "about 2 min 0 s left"
    assert progress.time_left == "about 20 s left"
