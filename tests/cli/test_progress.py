"""What is said while a run goes on."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from consilience.cli import display as module
from consilience.cli.display import HEARTBEAT_SECONDS, Display, Lines, RunProgress, Table, open_display
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
            "round 1 · leaf_respond · critical (L2N1) 6.2 s, 143 tokens",
        ),
        (
            CallCompleted(key=KEY, agent="L2N1", text="t", tokens_out=1, finish="length"),
            "round 1 · leaf_respond · critical (L2N1), 1 token, cut at the limit",
        ),
        (
            ReplyRejected(key=KEY, agent="L2N1", text="t", error="text: missing"),
            "round 1 · leaf_respond · critical (L2N1): the reply could not be used, asking again (text: missing)",
        ),
        (
            ReplyRejected(key=KEY, agent="L2N1", attempt=2, text="t", error="text: missing"),
            "round 1 · leaf_respond · critical (L2N1): the reply could not be used, giving up (text: missing)",
        ),
        (
            CallFailed(key=KEY, agent="L2N1", failure=FailureKind.DEADLINE, detail="no answer\nwithin 300 s"),
            "round 1 · leaf_respond · critical (L2N1): no reply, deadline (no answer within 300 s)",
        ),
        (
            CallFailed(key=KEY, agent="L2N1", failure=FailureKind.BUDGET),
            "round 1 · leaf_respond · critical (L2N1): not asked, a limit is reached (budget)",
        ),
        (
            CheckRecorded(index=2, check=Check(met=False, kind="jaccard", score=0.41, threshold=0.85)),
            "check after round 2: jaccard 0.41, needed 0.85",
        ),
        (
            CheckRecorded(index=2, check=Check(met=True, kind="all", detail="both met")),
            "check after round 2: met",
        ),
        (
            CallLost(key=KEY, agent="L2N1"),
            "round 1 · leaf_respond · critical (L2N1): was in flight at the end of the last process",
        ),
    ],
)
def test_one_line_for_every_event_that_matters(event: Event, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.observe(STARTED)
    lines.observe(CallStarted(key=KEY, agent="L2N1"))
    lines.observe(event)
    assert capsys.readouterr().err == f"{line}\n"


def test_after_ten_silent_seconds_a_line_says_that_it_lives(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
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
        "… 25 s: 1 of 7–15 calls, 9 tokens read, 3 written, not known; waiting for practical (L2N2), longest 15 s\n"
    )


def test_a_resumed_run_counts_what_was_before(capsys: pytest.CaptureFixture[str]) -> None:
    before = [STARTED, CallCompleted(key=KEY, agent="L2N1", text="t", cost=0.0, volatile={"t": 60.0})]
    lines = Lines(before)
    assert lines.progress.state.made == 1
    assert lines.progress.seconds >= 60


def test_elsewhere_than_on_a_terminal_there_are_lines_or_nothing() -> None:
    assert isinstance(open_display(title="t", quiet=False), Lines)
    assert type(open_display(title="t", quiet=True)) is Display


@pytest.mark.parametrize(("term", "kind"), [("xterm", Table), ("dumb", Lines), ("unknown", Lines)])
def test_a_terminal_that_cannot_be_drawn_over_gets_lines(
    term: str, kind: type, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    screen = open_display(title="t", quiet=False)
    screen.observe(STARTED)
    screen.close()
    assert isinstance(screen, kind)
    if kind is Lines:
        assert capsys.readouterr().err == "t begins\n"


def test_a_tree_larger_than_the_screen_is_shown_by_level(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title="big")
    shape = tree(9, 3)
    agents = tuple(Agent(id=id, role=f"role {shape.levels[id]}") for id in shape.agents)
    try:
        table.observe(STARTED.model_copy(update={"agents": agents, "topology": shape}))
        table.observe(CallStarted(key="a", agent="L3N80"))
        clock.now = 5.0
        table.observe(CallStarted(key="b", agent="L3N2"))
        table.observe(CallStarted(key="c", agent="L2N1"))
        table.observe(CallCompleted(key="c", agent="L2N1", text="t"))
        assert [agent.id for agent in table.longest_in_flight(10)] == ["L3N80", "L3N2"]
        assert [agent.id for agent in table.longest_in_flight(1)] == ["L3N80"]
        table.tell("a sentence")
        table.tick()
        screen = io.StringIO()
        Console(file=screen, width=100).print(table._screen())
    finally:
        table.close()
    assert "a sentence" in capsys.readouterr().err
    said = " ".join(screen.getvalue().split())
    assert "level 2 9 role 2s 8 waiting, 1 done" in said
    assert "level 3 81 role 3s 2 composing, 79 waiting" in said


def test_the_time_left_is_told_from_the_first_reply_on(clock: Clock) -> None:
    """At the pace so far, for the calls that are still foreseen: 7 to 15."""
    progress = RunProgress()
    progress.take(STARTED)
    clock.now = 5.0
    progress.take(CallStarted(key=KEY, agent="L2N1"))
    assert progress.time_left == ""
    clock.now = 25.0
    progress.take(CallCompleted(key=KEY, agent="L2N1", text="t"))
    assert progress.time_left == "about 2 min 0 s to 4 min 40 s left"
    clock.now = 55.0
    assert progress.time_left == "about 1 min 30 s to 4 min 10 s left"
    clock.now = 600.0
    assert progress.time_left == "", "an estimate that has passed is not repeated"


def test_a_run_of_known_length_has_one_time_left(clock: Clock) -> None:
    progress = RunProgress()
    progress.take(STARTED.model_copy(update={"estimate": Estimate(min=7, max=7)}))
    for n in range(6):
        progress.take(CallStarted(key=f"{KEY}{n}", agent="L2N1"))
        clock.now += 20
        progress.take(CallCompleted(key=f"{KEY}{n}", agent="L2N1", text="t"))
        if n == 0:
            assert progress.time_left == "about 2 min 0 s left"
    assert progress.time_left == "about 20 s left"
