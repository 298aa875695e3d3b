"""What a type checker makes of the Python face."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OPTIONS = ("--strict", "--follow-imports", "silent")  # as where the package is installed: its own files are not judged

FACE = """
from typing import assert_type
import consilience as c

assert_type(c.run_sync("Why?", c.Emergence()), c.EmergenceReport)
assert_type(c.run_sync("Why?", c.Vote()).tally, dict[str, int])

async def watched() -> None:
    assert_type(await c.deliberate("Why?", c.Refinement()), c.RefinementReport)
    async with c.live("Why?", c.Broadcast()) as session:
        assert_type(await session.report(), c.BroadcastReport)
    assert_type(await c.replay("r1"), c.Report)
    c.Limits(foo=1)  # type: ignore[call-arg]
    c.Source("Rents rose.", "report", agents=("L2N1",))
    c.Source(3)  # type: ignore[arg-type]
    c.run_sync("Why?", "emergence")  # type: ignore[arg-type]
    c.run_sync("Why?", c.Emergence(), modell="local")  # type: ignore[call-arg]
    c.run_sync("Why?", c.Emergence(), model=3)  # type: ignore[arg-type]
    c.live("Why?", c.Emergence(), modell="local")  # type: ignore[call-arg]
    c.live("Why?", c.Emergence(), model=3)  # type: ignore[arg-type]
"""


def test_a_type_checker_knows_the_report_of_a_protocol(tmp_path: Path) -> None:
    """`warn_unused_ignores`, part of strict, fails where a mistake at the end is not seen."""
    (tmp_path / "face.py").write_text(FACE)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", *OPTIONS, "--cache-dir", ROOT / ".mypy_cache", "face.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
