"""Kinds of models that an installed package adds by an entry point: names, plans, runs, chains, and packages that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import forks
from kit.forks import PYTHONPATH

pytestmark = pytest.mark.processes

PACKAGE = '''
from consilience.domain.errors import UnknownName, Unreachable
from consilience.models.kinds import ModelKind
from consilience.models.port import Completion, Model
from consilience.models.providers import Declaration


class Echo(Model):
    """Says what it was asked last, at a price."""

    def __init__(self, model):
        self.name = f"echo:{model}"

    async def complete(self, request):
        if self.name == "echo:deaf":
            raise Unreachable("it hears nothing")
        return Completion("Yes, says the echo.", self.name, tokens_in=10, tokens_out=5, cost=self.price(10, 5))

    def price(self, tokens_in, tokens_out):
        return (2 * tokens_in + 4 * tokens_out) / 1e6


class Kind(ModelKind):
    def open(self, model):
        return Echo(model)

    def check(self, model):
        if model not in ("loud", "deaf"):
            raise UnknownName(f"there is no echo {model!r}", do="Use echo:loud.")

    def canonical(self, model):
        return model.lower()

    def declared(self, model):
        return Declaration(prices=(2.0, 4.0), context_window=1000)


class Dearer(Kind):
    def open(self, model):
        opened = Echo(model)
        opened.name = f"dearer:{model}"
        return opened

    def declared(self, model):
        return Declaration(prices=(1.0, 1.0))


class Unpriceable(Kind):
    def open(self, model):
        opened = Echo(model)
        opened.name, opened.price = f"unpriceable:{model}", None
        return opened
'''
ENTRIES = """[consilience.models]
echo = echoing:Kind
dearer = echoing:Dearer
unpriceable = echoing:Unpriceable
broken = echoing:Missing
absent = no_such_module:Kind
local = echoing:Kind
"""


@pytest.fixture
def env(tmp_path: Path, home: Path) -> dict[str, str]:
    """An environment in which a package is installed that adds kinds."""
    site = tmp_path / "site"
    info = site / "echoing-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "echoing.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echoing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    path = os.pathsep.join((str(site), PYTHONPATH))
    return {"PATH": os.environ["PATH"], "PYTHONPATH": path, "CONSILIENCE_HOME": str(home), "HOME": str(tmp_path)}


def command(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "consilience", *arguments]
    return forks.run(program, env=env, cwd=env["HOME"], capture_output=True, text=True, timeout=300)


def test_model_of_an_added_kind_runs_at_its_price_and_replays(env: dict[str, str]) -> None:
    done = command(env, "solo", "Is it so?", "--model", "echo:LOUD", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["answer"], report["agents"][0]["model"]) == ("Yes, says the echo.", "echo:loud")
    assert report["ledger"]["actual"]["cost"] == pytest.approx(40e-6)
    assert command(env, "replay", report["session"]).returncode == 0


def test_plan_names_the_price_of_an_added_kind_before_anything_is_opened(env: dict[str, str]) -> None:
    plan = command(env, "solo", "Is it so?", "--model", "echo:loud", "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "$" in plan.stdout
    assert "1,000" in command(env, "solo", "Is it so? " * 2000, "--model", "echo:loud", "--dry-run").stdout


def test_chain_falls_back_on_and_from_an_added_kind(env: dict[str, str]) -> None:
    program = "exec:echo Yes, says the program."
    done = command(env, "solo", "Is it so?", "--model", f"echo:deaf|{program}", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answer"] == "Yes, says the program."


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("echo:quiet", "there is no echo 'quiet'"),
        ("echo", "names a provider without a model"),
        ("dearer:loud", "(1.0, 1.0) is declared"),
        ("unpriceable:loud", "entry point unpriceable = 'echoing:Unpriceable'"),
        ("broken:x", "entry point broken = 'echoing:Missing' of the package echoing"),
        ("absent:x", "No module named 'no_such_module'"),
        ("ecko:loud", "Did you mean 'echo'"),
    ],
)
def test_unusable_name_is_an_error_that_says_why(name: str, complaint: str, env: dict[str, str]) -> None:
    done = command(env, "solo", "Is it so?", "--model", name, "--yes")
    assert done.returncode in (2, 1), done.stdout
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_broken_package_harms_nobody_who_does_not_name_it(env: dict[str, str]) -> None:
    done = command(env, "solo", "Is it so?", "--model", "exec:echo Yes.", "--yes")
    assert (done.returncode, "Yes." in done.stdout) == (0, True), done.stderr
    assert "absent" not in done.stderr


def test_doctor_lists_added_kinds_and_what_is_wrong_with_them(env: dict[str, str]) -> None:
    shown = command(env, "doctor").stdout
    assert "echo" in shown
    assert "no_such_module" in shown
