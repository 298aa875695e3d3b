"""Programs that the file of a directory names: the real command in directories of other people.

A program leaves a file if it runs.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.loopback import command
from cli.test_privacy import PYTHONPATH
from cli.town import Cli, recorded
from consilience.deliberation import Deliberation
from consilience.domain.errors import SettingsError
from consilience.domain.report import Report
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.protocols.baselines import Solo
from consilience.protocols.review import Review
from kit.reviewing import SOURCES, script

QUESTION = "Should the market be daily?"
SOLO = ("solo", QUESTION)


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "CONSILIENCE_HOME": str(home), "HOME": str(here)}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture
def program(marker: Path) -> str:
    return f"exec:sh -c {shlex.quote(f'cat > {marker}; echo Yes.')}"


def names(directory: Path, model: str) -> None:
    """Write a configuration file that names a model."""
    (directory / "consilience.toml").write_text(f"model = {json.dumps(model)}\n")


@pytest.mark.parametrize("form", ["{}", "  {}", "http://127.0.0.1:9/v1#m|{}", "local | \t{}", "{}|local"])
@pytest.mark.parametrize(
    "run",
    [
        (*SOLO, "--yes"),
        (*SOLO, "--max-cost", "1"),
        (*SOLO, "--yes", "--panel", "auto"),
        ("emergence", QUESTION, "--yes", "--agent", "L2N1=http://127.0.0.1:9/v1#m"),
        ("propose", QUESTION, "--yes"),
        ("compare", QUESTION, "--protocols", "solo", "--yes"),
        ("review", "code.py", "--yes"),
        (*SOLO, "--dry-run"),
    ],
)
def test_program_of_a_directory_is_refused_before_the_run(
    cli: Cli, here: Path, home: Path, marker: Path, program: str, run: tuple[str, ...], form: str
) -> None:
    (here / "code.py").write_text("def first(values):\n    return values[1]\n")
    names(here, form.format(program))
    done = cli(*run)
    assert done.exit_code == 2
    assert "the configuration of the current directory must not name a program: " in done.stderr
    assert program in done.stderr
    assert f"Where: {here / 'consilience.toml'}, key 'model'." in done.stderr
    assert "give --model 'exec:COMMAND', set CONSILIENCE_MODEL, or move the line to " in done.stderr
    assert str(home / "consilience.toml") in done.stderr
    assert (recorded(), marker.exists()) == ([], False)


def test_real_command_does_not_run_a_program_of_a_directory(
    env: dict[str, str], here: Path, marker: Path, program: str
) -> None:
    names(here, program)
    refused = command(*SOLO, "--yes", "--json", env=env, cwd=here)
    assert refused.returncode == 2
    assert "must not name a program" in json.loads(refused.stdout)["what"]
    doctor = command("doctor", env=env, cwd=here)
    assert doctor.returncode == 2
    assert "NOT USABLE: the configuration of the current directory must not name a program" in doctor.stdout
    assert not marker.exists()


def test_program_of_a_directory_is_refused_on_a_terminal(
    cli: Cli, here: Path, marker: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.cli.plan.can_confirm", lambda: True)
    names(here, program)
    refused = cli(*SOLO, input="y\n")
    assert (refused.exit_code, marker.exists()) == (2, False)
    assert "must not name a program" in refused.stderr


@pytest.mark.parametrize("way", ["--model", "--agent", "CONSILIENCE_MODEL", "env file", "own file", "link to own file"])
def test_program_that_the_user_names_runs(
    way: str, env: dict[str, str], here: Path, home: Path, marker: Path, program: str
) -> None:
    names(here, "exec:false")
    run = [*SOLO, "--yes"]
    if way.startswith("--"):
        run += [way, program if way == "--model" else f"S1={program}"]
    elif way == "CONSILIENCE_MODEL":
        env[way] = program
    elif way == "env file":
        (here / "my.env").write_text(f"CONSILIENCE_MODEL={program}\n")
        run += ["--env-file", "my.env"]
    else:
        names(home, program)
        (here / "consilience.toml").unlink()
        if way.startswith("link"):
            (here / "consilience.toml").symlink_to(home / "consilience.toml")
    done = command(*run, env=env, cwd=here)
    assert done.returncode == 0, done.stderr
    assert marker.exists()


def test_workspace_of_a_directory_is_refused(cli: Cli, here: Path) -> None:
    assert cli("workspace", "new", "shop").exit_code == 0
    before = sorted(path for path in here.rglob("*"))
    names(here, "workspace:shop")
    refused = cli(*SOLO, "--yes")
    assert refused.exit_code == 2
    assert "must not name a workspace: workspace:shop" in refused.stderr
    (here / "consilience.toml").unlink()
    assert sorted(path for path in here.rglob("*")) == before
    assert recorded() == []


def test_recorded_program_needs_consent_that_names_it(
    env: dict[str, str], here: Path, marker: Path, program: str
) -> None:
    """A journal is the user's own, so `--yes` is enough."""
    kill = {"CONSILIENCE_FAULT": "after_commit@leaf_respond/1#2"}
    tree = ("emergence", QUESTION, "--children", "2", "--max-rounds", "1")
    begun = command(*tree, "--yes", "--model", program, env={**env, **kill}, cwd=here)
    assert begun.returncode == -signal.SIGKILL, begun.stderr
    marker.unlink(missing_ok=True)
    for again in (("resume", "last"), ("fork", "last", "--at", "0")):
        refused = command(*again, env=env, cwd=here)
        assert refused.returncode == 2
        assert program in refused.stderr
        assert not marker.exists()
    assert command("resume", "last", "--yes", env=env, cwd=here).returncode == 0
    assert marker.exists()


# --- code to import

GATE = """
from pathlib import Path
from consilience.coordination.gates import gate

Path({marker!r}).write_text("imported")

@gate("a figure")
def figures(text):
    return True
"""


@pytest.fixture
def gate_module(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a gate in a module whose import leaves the marker."""
    (tmp_path / "gates_of_a_stranger.py").write_text(GATE.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "gates_of_a_stranger:figures"
    sys.modules.pop("gates_of_a_stranger", None)


@pytest.mark.parametrize("value", ['["{}"]', '["files_covered", "{}"]', '"{}"'])
@pytest.mark.parametrize("run", [("review", "code.py", "--yes"), ("review", "code.py", "--dry-run"), ("doctor",)])
def test_gate_of_a_directory_is_not_imported(
    cli: Cli, here: Path, home: Path, marker: Path, gate_module: str, run: tuple[str, ...], value: str
) -> None:
    (here / "code.py").write_text("x = 1\n")
    (here / "consilience.toml").write_text(f"[review]\ngates = {value.format(gate_module)}\n")
    done = cli(*run)
    assert f"must not name code to import: {gate_module}" in " ".join((done.stdout + done.stderr).split())
    assert done.exit_code == (2 if run[0] == "review" else done.exit_code)
    assert (recorded(), marker.exists()) == ([], False)


def test_gate_is_imported_at_the_users_own_word(
    cli: Cli, here: Path, home: Path, marker: Path, gate_module: str
) -> None:
    (here / "code.py").write_text("x = 1\n")
    (here / "consilience.toml").write_text(f'[review]\ngates = ["{gate_module}"]\n')
    assert cli("review", "code.py", "--dry-run", "--model", "local", "--gates", gate_module).exit_code == 0
    assert marker.exists()
    (here / "consilience.toml").write_text('[review]\ngates = ["files_covered"]\n')
    home.mkdir(exist_ok=True)
    (home / "consilience.toml").write_text(f'[review]\ngates = ["{gate_module}"]\n')
    assert cli("review", "code.py", "--dry-run", "--model", "local").exit_code == 0


@pytest.mark.parametrize("own", [True, False])
def test_program_that_another_journal_has_recorded_is_not_started_by_yes(
    cli: Cli, home: Path, here: Path, program: str, marker: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    assert cli(*SOLO, "--model", program, "--yes").exit_code == 0
    marker.unlink()
    if not own:
        (home / "journal.db").rename(here / "theirs.db")
        monkeypatch.setenv("CONSILIENCE_JOURNAL", str(here / "theirs.db"))
    result = cli("fork", "last", "--at", "1", "--task", "And weekly?", "--yes")
    assert (result.exit_code, marker.exists()) == ((0, True) if own else (2, False))
    if not own:
        assert "a journal outside of your own directory has recorded: exec:sh -c " in result.stderr
        assert "theirs.db" in result.stderr
        named = cli("fork", "last", "--at", "1", "--task", "And?", "--yes", "--replace-agent", f"S1={program}")
        assert (named.exit_code, marker.exists()) == (0, True), named.stderr


class Foreign:
    """A finished and an unfinished review with a gate of its own, in a journal whose module this process has not imported."""

    def __init__(self, path: Path, gate: str) -> None:
        self.path = path
        path.parent.mkdir(exist_ok=True)
        asyncio.run(self._record(gate))
        sys.modules.pop("gates_of_a_stranger")

    async def _record(self, gate: str) -> None:
        deliberation = Deliberation(
            Review(gates=(gate,)), model=ScriptedModel(script({})), sources=SOURCES, store=SqliteStore(self.path)
        )
        await deliberation.run("Review it.", session="finished")
        await deliberation.prepare("Review it.", session="begun")
        assert deliberation.store is not None
        deliberation.store.close()


AGAIN: list[tuple[str, ...]] = [
    ("replay", "finished"),
    ("show", "finished", "--prompt", "review-1/part-1/red"),
    ("fork", "finished", "--at", "0", "--dry-run"),
    ("fork", "finished", "--at", "0", "--set", 'gates=["files_covered"]', "--dry-run"),
    ("resume", "begun", "--yes"),
]


@pytest.mark.parametrize("run", AGAIN, ids=" ".join)
def test_gate_that_another_journal_has_recorded_is_imported_only_after_a_question(
    cli: Cli,
    here: Path,
    marker: Path,
    gate_module: str,
    monkeypatch: pytest.MonkeyPatch,
    run: tuple[str, ...],
) -> None:
    foreign = Foreign(here / "theirs.db", gate_module)
    marker.unlink()
    monkeypatch.setenv("CONSILIENCE_JOURNAL", str(foreign.path))
    refused = cli(*run)
    said = " ".join(refused.stderr.split())
    assert f"would import what a journal outside of your own directory has recorded: {gate_module}" in said
    assert (refused.exit_code, marker.exists()) == (2, False)
    monkeypatch.setattr("consilience.cli.settings.can_confirm", lambda: True)
    monkeypatch.setattr("consilience.cli.settings.confirm", lambda question, **_: asked.append(question))
    asked: list[str] = []
    cli(*run)
    assert marker.exists()
    assert [question.partition(",")[0] for question in asked] == [f"Import {gate_module}"]


def test_gate_of_the_users_own_journal_is_imported(
    cli: Cli, home: Path, here: Path, marker: Path, gate_module: str
) -> None:
    Foreign(home / "journal.db", gate_module)
    marker.unlink()
    assert cli("replay", "finished").exit_code == 0
    assert marker.exists()


@pytest.mark.parametrize("how", ["resume", "replay", "fork", "sent_prompts"])
def test_python_imports_no_gate_of_another_journal_unless_the_program_has_imported_it(
    home: Path, here: Path, marker: Path, gate_module: str, how: str
) -> None:
    path = here / "theirs.db"
    Foreign(path, gate_module)
    marker.unlink()
    store = SqliteStore(path)
    object_ = Deliberation[Report](model=ScriptedModel(script({})), store=store)
    calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "resume": lambda: object_.resume("begun"),
        "replay": lambda: object_.replay("finished"),
        "fork": lambda: object_.fork("finished", at=0),
        "sent_prompts": lambda: object_.sent_prompts("finished", "review-1/part-1/red"),
    }
    with pytest.raises(SettingsError, match=f"another journal than your own has recorded: {gate_module}"):
        asyncio.run(calls[how]())
    assert not marker.exists()
    importlib.import_module("gates_of_a_stranger")
    assert asyncio.run(calls[how]())
    store.close()


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("how", ["resume", "fork"])
def test_python_starts_no_program_of_another_journal_unless_the_caller_names_it(
    home: Path, here: Path, marker: Path, program: str, how: str, own: bool
) -> None:
    path = home / "journal.db" if own else here / "theirs.db"
    path.parent.mkdir(exist_ok=True)
    store = SqliteStore(path)
    asyncio.run(Deliberation(Solo(), model=program, store=store).prepare(QUESTION, session="begun"))

    def again(model: str | None) -> Report:
        deliberation = Deliberation[Report](model=model, store=store)
        if how == "resume":
            return deliberation.resume_sync("begun")
        return deliberation.fork_sync("begun", at=0, task="And weekly?")

    if not own:
        with pytest.raises(SettingsError, match="another journal than your own has recorded: exec:sh -c "):
            again(None)
        assert not marker.exists()
    assert again(None if own else program).answer == "Yes."
    assert marker.exists()
    store.close()
