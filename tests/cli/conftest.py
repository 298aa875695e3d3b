"""The command line as a user meets it, with a scripted model behind the name `ollama:scripted`, which is free and needs no key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner, Result

from consilience.cli.main import app
from consilience.domain.places import journal_path
from consilience.engine import runner
from consilience.journal.sqlite import SqliteStore
from consilience.models import servers
from consilience.models.port import ModelRequest
from consilience.testing import Scripted, ScriptedModel

MODEL = "ollama:scripted"
TASK = "Should a small town replace its weekly market day with a daily one?"


class Cli(Protocol):
    def __call__(self, *arguments: str, input: str | bytes | None = None, env: dict[str, str | None] | None = None) -> Result: ...


def sensible(request: ModelRequest) -> Scripted:
    """A reply of the asked type with all it can hold; the text depends on the key alone."""
    text = f"{request.agent} thinks of {request.key}. The answer is yes."
    kind = request.returns
    if kind is None or not issubclass(kind, BaseModel):
        return Scripted(text, tokens_in=100, tokens_out=20)
    values: dict[str, Any] = {"text": text}
    if "points" in kind.model_fields:
        values["points"] = ["Stalls cost money.", "Farmers have one day off."]
    if "claims" in kind.model_fields:
        values["claims"] = [{"text": "One day is enough.", "ids": ["A", "B"]}]
    if "objections" in kind.model_fields and "/lateral/L2N3" in request.key:
        values["objections"] = [{"to": "A", "text": "Nobody counted who comes on a Tuesday."}]
    if "position" in kind.model_fields:
        values = {"position": "yes", "confidence": "certain", "reason": "Rents would double."}
    return Scripted(kind(**values), tokens_in=100, tokens_out=20)


class Town:
    """The scripted model, and what it was asked. `reply` may be replaced."""

    def __init__(self) -> None:
        self.reply: Callable[[ModelRequest], Any] = sensible
        self.requests: list[ModelRequest] = []
        self.named: list[str] = []
        self.latency: Callable[[ModelRequest], float] = lambda request: 0.0
        self.price: float | None = 0.0

    def resolve(self, name: str) -> ScriptedModel:
        self.named.append(name)
        return ScriptedModel(self._answer, latency=self.latency, name=name, price=self.price)

    def _answer(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        return self.reply(request)


@pytest.fixture
def town(monkeypatch: pytest.MonkeyPatch) -> Town:
    town = Town()
    monkeypatch.setattr(runner, "resolve", town.resolve)
    return town


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and no server on this machine."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setattr(servers, "probe", lambda environ, seconds=0.0: None)
    yield directory


@pytest.fixture
def cli() -> Cli:
    """Run a command; what it raises beyond its exit is raised here."""

    def invoke(*arguments: str, input: str | bytes | None = None, env: dict[str, str | None] | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=input, env=env, prog_name="consilience")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def recorded() -> list[str]:
    """Ids of the sessions in the user's journal."""
    if not journal_path().exists():
        return []
    store = SqliteStore(journal_path())
    try:
        return store.sessions()
    finally:
        store.close()
