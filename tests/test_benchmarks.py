"""The benchmarks run. `.ci/run` runs all of them, quick; here one group does, which imports every module of theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kit import forks

ROOT = Path(__file__).parents[1]


def test_benchmark_group_runs_and_writes_its_figures(tmp_path: Path) -> None:
    figures = tmp_path / "results.json"
    command = [sys.executable, "benchmarks/run.py", "--quick", "--repeats", "1", "--row", "prompts", "--json", figures]
    ran = forks.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(figures.read_text())["rows"]
    assert {row["group"] for row in rows} == {"prompts"}
    assert all(row["values"] for row in rows)


def test_benchmark_command_imports_every_benchmark_module() -> None:
    code = "import sys, run; print(*sorted(sys.modules))"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("study_")}
    assert modules <= set(ran.stdout.split())


def test_debate_study_runs_and_writes_its_figures(tmp_path: Path) -> None:
    figures = tmp_path / "worlds.json"
    command = [sys.executable, "benchmarks/study_debate.py", "--worlds", "2", "--develop", "--json", figures]
    ran = forks.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "crux F1 " in ran.stdout
    planted, lone = [1, 2], [10_000_001]
    assert [world["seed"] for world in json.loads(figures.read_text())] == planted + lone
