"""A journal that is removed, replaced or emptied while a command runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cli.loopback import MODEL, PATIENCE, begin, environment, provider
from cli.test_privacy import PYTHONPATH


@pytest.mark.parametrize("how", ["removed", "replaced", "emptied"])
def test_journal_removed_during_a_run_is_an_error(how: str, home: Path, here: Path) -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "CONSILIENCE_HOME": str(home), "HOME": str(here)}
    journal = home / "journal.db"
    with provider() as server:
        server.open.clear()
        env |= environment(server.url) | {"OPENAI_API_KEY": "sk-planted-0123"}
        run = begin("vote", "Daily?", "--model", MODEL, "--votes", "3", env=env, cwd=here)
        assert server.arrived.wait(PATIENCE)
        if how == "removed":
            for file in home.glob("journal.db*"):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        elif how == "replaced":
            shutil.copy(journal, home / "other.db")
            os.replace(home / "other.db", journal)
        else:
            os.truncate(journal, 0)
        server.open.set()
        output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 2, (output, errors)
    assert "the journal was removed, replaced or emptied while it was in use" in errors
    assert "Traceback" not in errors
