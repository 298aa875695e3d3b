"""`sessions cancel` from another terminal: a run in progress, a killed one, one that waits for a person."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from cli.loopback import MODEL, begin, command, environment, provider
from cli.town import recorded
from kit.forks import PYTHONPATH

pytestmark = pytest.mark.processes

PATIENCE = 300
VOTE = ("vote", "Is a bridge better than a ferry?", "--votes", "3")


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "CONSILIENCE_HOME": str(home),
        "HOME": str(here),
        "OPENAI_API_KEY": "none-needed",
    }


def test_cancelled_command_prints_its_report_and_exits_3(env: dict[str, str], here: Path) -> None:
    with provider() as server:
        server.open.clear()
        env |= environment(server.url)
        running = begin(*VOTE, "--model", MODEL, env=env, cwd=here)
        assert server.arrived.wait(PATIENCE)
        (session,) = recorded()
        cancelled = command("sessions", "cancel", session, "--by", "Ada", "--json", env=env, cwd=here)
        assert (cancelled.returncode, json.loads(cancelled.stdout)) == (0, {"session": session, "ended": True})
        out, err = running.communicate(timeout=PATIENCE)
        assert running.returncode == 3, err
        assert ("cancelled" in out, "time limit" in out) == (True, False)
        shown = command("show", session, env=env, cwd=here)
        assert "3 calls cancelled" in shown.stdout
        again = command("sessions", "cancel", session, env=env, cwd=here)
        assert (again.returncode, "is finished" in again.stderr) == (2, True)
        assert command("replay", session, env=env, cwd=here).returncode == 0


def test_session_that_nobody_runs_is_ended_by_the_cancel_itself(env: dict[str, str], here: Path) -> None:
    with provider() as server:
        server.open.clear()
        env |= environment(server.url)
        running = begin(*VOTE, "--model", MODEL, env=env, cwd=here)
        assert server.arrived.wait(PATIENCE)
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=PATIENCE)
        (session,) = recorded()
        asked = len(server.asked)
        cancelled = command("sessions", "cancel", session, env=env, cwd=here)
        assert (cancelled.returncode, f"consilience show {session}" in cancelled.stdout) == (0, True), cancelled.stderr
        assert len(server.asked) == asked
        listed = json.loads(command("sessions", "list", "--json", env=env, cwd=here).stdout)
        assert [(row["state"], row["stop_reason"]) for row in listed] == [("finished", "cancelled")]
        shown = command("show", session, "--events", env=env, cwd=here).stdout
        assert ("not made, because the session was cancelled" in shown, "a limit" in shown) == (True, False)


def test_cancel_with_answer_of_a_killed_session_is_for_the_process_that_resumes(
    env: dict[str, str], here: Path
) -> None:
    with provider() as server:
        env |= environment(server.url)
        fault = {"CONSILIENCE_FAULT": "after_commit#2"}
        command("emergence", "Bridge or ferry?", "--children", "2", "--model", MODEL, env={**env, **fault}, cwd=here)
        (session,) = recorded()
        cancelled = command("sessions", "cancel", session, "--answer", "--json", env=env, cwd=here)
        assert json.loads(cancelled.stdout) == {"session": session, "ended": False}
        asked = len(server.asked)
        resumed = command("resume", session, "--json", env=env, cwd=here)
        report = json.loads(resumed.stdout)
        assert (resumed.returncode, report["stop_reason"]) == (0, "cancelled"), resumed.stderr
        assert len(server.asked) == asked + 1


def test_person_answers_while_another_process_runs_the_session(env: dict[str, str], here: Path) -> None:
    with provider() as server:
        server.open.clear()
        env |= environment(server.url)
        running = begin(*VOTE, "--model", MODEL, "--agent", "V2=human", env=env, cwd=here)
        assert server.arrived.wait(PATIENCE)
        (session,) = recorded()
        while (answered := command("sessions", "answer", session, "V2", "Yes.", env=env, cwd=here)).returncode:
            assert "no open question" in answered.stderr, "asked a moment later"
        server.open.set()
        _, err = running.communicate(timeout=PATIENCE)
        assert running.returncode == 0, err
        assert "a person (V2)" in err


@pytest.mark.parametrize(
    "letter", [("answer", "V1", "Yes."), ("comment", "Hm."), ("cancel",)], ids=lambda given: given[0]
)
def test_letter_that_is_not_unicode_is_a_mistake_of_the_user(
    letter: tuple[str, ...], env: dict[str, str], here: Path
) -> None:
    assert command(*VOTE, "--model", "human", env=env, cwd=here).returncode == 5
    (session,) = recorded()
    kind, *words = letter
    refused = command("sessions", kind, session, *words, "--by", os.fsdecode(b"Ad\xffa"), env=env, cwd=here)
    assert (refused.returncode, "is not valid Unicode" in refused.stderr) == (2, True), refused.stderr
