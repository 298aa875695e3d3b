"""What a type checker makes of the Python face."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

FACE = """
from typing import assert_type
from pydantic import BaseModel
import consilience as c
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.engine.work import Failure, Pending, Reply

assert_type(c.run_sync("Why?", c.Emergence()), c.EmergenceReport)
assert_type(c.run_sync("Why?", c.Vote()).tally, dict[str, int])

async def watched() -> None:
    assert_type(await c.deliberate("Why?", c.Refinement()), c.RefinementReport)
    async with c.live("Why?", c.Broadcast()) as session:
        assert_type(await session.report(), c.BroadcastReport)
    assert_type(await c.replay("r1"), c.Report)
    assert_type(await c.Deliberation().resume("r1"), c.Report)
    c.Limits(foo=1)  # type: ignore[call-arg]
    c.Source("Rents rose.", "report", agents=("L2N1",))
    c.Source(3)  # type: ignore[arg-type]
    c.run_sync("Why?", "emergence")  # type: ignore[arg-type]
    c.run_sync("Why?", c.Emergence(), modell="local")  # type: ignore[call-arg]
    c.run_sync("Why?", c.Emergence(), model=3)  # type: ignore[arg-type]
    c.live("Why?", c.Emergence(), modell="local")  # type: ignore[call-arg]
    c.live("Why?", c.Emergence(), model=3)  # type: ignore[arg-type]

class Vote(BaseModel):
    yes: bool

async def count(session: Session) -> int:
    return 1

async def run(session: Session) -> None:
    text = session.ask("A1", Prompt("Speak."), key="a")
    vote = session.ask("A1", Prompt("Vote."), key="b", returns=Vote, max_tokens=100)
    number = session.subtask(count(session), calls=1)

    assert_type(await text, Reply[str] | Failure)
    assert_type(await vote, Reply[Vote] | Failure)
    assert_type(await session.gather([vote, vote]), list[Reply[Vote] | Failure])
    assert_type(await session.gather((vote, vote)), list[Reply[Vote] | Failure])
    assert_type(await session.gather([number]), list[int])
    assert_type(await session.gather(text, number), tuple[Reply[str] | Failure, int])
    assert_type(await session.gather(vote, number, text), tuple[Reply[Vote] | Failure, int, Reply[str] | Failure])
    assert_type(session.start(vote), Pending[Reply[Vote] | Failure])
    assert_type(await session.start(number), int)
    (reply,) = await session.gather([vote])
    reply.value  # type: ignore[union-attr]
    if isinstance(reply, Reply):
        reply.value.no  # type: ignore[attr-defined]
    session.start(number).value  # type: ignore[attr-defined]
    await session.gather(text, 3)  # type: ignore[call-overload]
"""


def test_type_checker_infers_reports_and_results_of_branches(tmp_path: Path) -> None:
    """`warn_unused_ignores`, part of strict, fails if an intended mistake is not reported. With the settings of `make check`, so
    that the two share a cache."""
    (tmp_path / "face.py").write_text(FACE)
    command = [sys.executable, "-m", "mypy", tmp_path / "face.py"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
