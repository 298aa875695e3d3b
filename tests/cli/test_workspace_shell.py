"""The shell commands of the example and of docs/workspaces.md, run by real shells."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kit.forks import PYTHONPATH

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "workspace_review.sh"
PAGE = (ROOT / "docs" / "workspaces.md").read_text()
PATIENCE = 300


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `consilience` is this interpreter's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "consilience").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m consilience "$@"\n')
    (programs / "consilience").chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": PYTHONPATH,
    }


def test_example_with_a_killed_reviewer_completes(here: Path, environment: dict[str, str]) -> None:
    script = here / "deploy.sh"
    script.write_text("rm -rf $target\ncurl http://example.com | sh\n")
    directory = here / "a [strange] place"
    directory.mkdir()
    done = subprocess.run(
        ["sh", str(EXAMPLE), str(script), str(directory)],
        env={**environment, "TTL": "15"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "red was killed." in done.stdout
    assert "red: no result from red within 15 s of its claim; offered again" in done.stdout
    assert "missing" not in done.stdout
    assert "Not acknowledged" not in done.stderr
    review = (directory / "review.md").read_text()
    assert (review.count("met  "), review.count("missed")) == (6, 0)
    assert "1:rm -rf $target" in review
    assert "2:curl http://example.com | sh" in review
    assert len([*(directory / "archive_workspace" / "artifacts").glob("*.md")]) == 2


def test_claim_that_cannot_be_printed_is_given_back(here: Path, environment: dict[str, str]) -> None:
    shell("consilience workspace new w; consilience workspace ticket w --id t1 'Why?'", here, environment)
    for output in (">/dev/full", ">&-"):
        shell(f"! consilience workspace claim w --agent red {output}", here, environment)
        state = shell("consilience workspace show w t1", here, environment)
        assert "(the claim could not be printed)" in state
    assert "permanently failed" in state


def blocks(heading: str) -> list[str]:
    """The shell commands of a section of docs/workspaces.md."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def shell(commands: str, here: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-e"], input=commands, cwd=here, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_documented_commands_without_a_deliberation_run(here: Path, environment: dict[str, str]) -> None:
    posted, reviewed, ended = blocks("Without a deliberation")
    (here / "deploy.sh").write_text("rm -rf $target\n")
    assert "security" in shell(posted, here, environment).splitlines()
    assert "security: pending (deploy.sh cannot be read)" in shell(reviewed, here, environment)
    output = shell(ended, here, environment)
    assert "met     specific_examples" in output
    assert output.splitlines()[-1] == str(here / "archive_shop")


def test_documented_gate_is_met(here: Path, environment: dict[str, str]) -> None:
    (code,) = [
        block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "@gate" in block
    ]
    (here / "my_gates.py").write_text(code)
    (command,) = re.findall(r"`(PYTHONPATH=.*?)`", PAGE)
    command = command.replace("PYTHONPATH=.", f'PYTHONPATH=".:{PYTHONPATH}"')
    (here / "review.md").write_text("Reviewed by: anna\n")
    assert shell(command, here, environment).startswith("met ")


TOWN = """
import sys
from cli.town import Town
from consilience.cli.main import main
from consilience.engine import seats
from consilience.testing import Scripted

town = Town()
town.reply = lambda request: Scripted("Answer: no", tokens_in=9, tokens_out=3)
seats.resolve = town.resolve
main()
"""


def test_documented_commands_answer_a_ticket_of_a_running_deliberation(
    here: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    started, claimed, submitted = blocks("A coding agent in another terminal")
    made, run = started.splitlines()
    shell(made, here, environment)
    (tmp_path / "town.py").write_text(TOWN)
    program, *arguments = shlex.split(run)
    assert program == "consilience"
    running = subprocess.Popen(
        [sys.executable, str(tmp_path / "town.py"), *arguments, "--json"],
        cwd=here,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        shell(claimed, here, environment)
        ticket = (here / "ticket.txt").read_text()
        assert ticket.startswith("claim: ")
        assert "Is it safe to run rm -rf build?" in ticket
        shell(submitted, here, environment)
        stdout, stderr = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0, stderr
    votes = {vote["agent"]: vote["position"] for vote in json.loads(stdout)["votes"]}
    assert votes == {"V1": "no", "V2": "yes", "V3": "no"}
