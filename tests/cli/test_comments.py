"""`sessions comment` from another terminal: on the record of a session that runs or waits, and shown to no agent."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cli.loopback import MODEL, begin, command, environment, provider
from cli.town import recorded
from kit.forks import PYTHONPATH

pytestmark = pytest.mark.processes

PATIENCE = 300
COMMENT = "The ferry was sold in **March**."


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "CONSILIENCE_HOME": str(home),
        "HOME": str(here),
        "OPENAI_API_KEY": "none-needed",
    }


def until_shown(session: str, words: str, *, env: dict[str, str], cwd: Path) -> bool:
    """Whether `show` has the words within the patience."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if words in command("show", session, env=env, cwd=cwd).stdout:
            return True
    return False


def test_comment_on_a_running_session_is_shown_with_its_author_and_read_by_no_agent(
    env: dict[str, str], here: Path
) -> None:
    with provider() as server:
        server.open.clear()
        env |= environment(server.url)
        running = begin("vote", "Bridge or ferry?", "--votes", "3", "--model", MODEL, env=env, cwd=here)
        assert server.arrived.wait(PATIENCE)
        (session,) = recorded()
        posted = command("sessions", "comment", session, COMMENT, "--by", "Ada", env=env, cwd=here)
        assert posted.returncode == 0, posted.stderr
        (here / "second.txt").write_text("And it was old.")
        assert command("sessions", "comment", session, "@second.txt", env=env, cwd=here).returncode == 0
        assert until_shown(session, "And it was old", env=env, cwd=here), "the process that runs the session takes it"
        server.open.set()
        running.communicate(timeout=PATIENCE)
        shown = command("show", session, env=env, cwd=here).stdout
        assert "### Comments" in shown
        assert "- The ferry was sold in \\*\\*March\\*\\*. — *Ada*\n- And it was old." in shown
        assert not any("sold in" in str(asked) for asked in server.asked)
        assert command("replay", session, env=env, cwd=here).returncode == 0
        late = command("sessions", "comment", session, "Too late.", env=env, cwd=here)
        assert (late.returncode, "is finished" in late.stderr) == (2, True)


def test_empty_comment_is_refused(env: dict[str, str], here: Path) -> None:
    with provider() as server:
        env |= environment(server.url)
        fault = {"CONSILIENCE_FAULT": "after_commit#2"}
        command("emergence", "Bridge or ferry?", "--children", "2", "--model", MODEL, env={**env, **fault}, cwd=here)
        (session,) = recorded()
        refused = command("sessions", "comment", session, " ", env=env, cwd=here)
        assert (refused.returncode, "the comment is empty" in refused.stderr) == (2, True)
        assert command("sessions", "comment", session, "Go on.", env=env, cwd=here).returncode == 0
        assert command("resume", session, env=env, cwd=here).returncode == 0
        assert "Go on." in command("show", session, env=env, cwd=here).stdout
