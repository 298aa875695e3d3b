"""The command line as a user meets it: an empty directory, no server on this machine, a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.town import Cli, Town
from consilience.cli.main import app
from consilience.engine import seats
from consilience.models import endpoints


@pytest.fixture
def town(monkeypatch: pytest.MonkeyPatch) -> Town:
    town = Town()
    monkeypatch.setattr(seats, "resolve", town.resolve)
    return town


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no server on this machine."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setattr(endpoints, "probe", lambda environ, seconds=0.0: None)
    return directory


@pytest.fixture
def cli() -> Cli:
    """Run a command; what it raises beyond its exit is raised here."""

    def invoke(*arguments: str, input: str | bytes | None = None, env: dict[str, str | None] | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=input, env=env, prog_name="consilience")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke
