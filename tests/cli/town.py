"""A scripted model behind the name `ollama:scripted`, which is free and needs no key, and what tests look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel
from typer.testing import Result

from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import Scripted, ScriptedModel

MODEL = "ollama:scripted"
TASK = "Should a small town replace its weekly market day with a daily one?"


class Cli(Protocol):
    def __call__(
        self, *arguments: str, input: str | bytes | None = None, env: dict[str, str | None] | None = None
    ) -> Result: ...


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
    if "confidence" in kind.model_fields:
        values = {"position": "yes", "confidence": "certain", "reason": "Rents would double."}
    return Scripted(kind(**values), tokens_in=100, tokens_out=20)


class Town:
    """The scripted model, and what it was asked. `reply` may be replaced."""

    def __init__(self) -> None:
        self.reply: Callable[[ModelRequest], Any] = sensible
        self.requests: list[ModelRequest] = []
        self.named: list[str] = []
        self.deadlines: list[float | None] = []
        self.latency: Callable[[ModelRequest], float] = lambda request: 0.0
        self.price: float | None = 0.0

    def resolve(self, name: str, *, deadline: float | None = None, **more: object) -> ScriptedModel:
        self.named.append(name)
        self.deadlines.append(deadline)
        return ScriptedModel(self._answer, latency=self.latency, name=name, price=self.price)

    def _answer(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        return self.reply(request)


def recorded() -> list[str]:
    """Ids of the sessions in the user's journal."""
    if not journal_path().exists():
        return []
    store = SqliteStore(journal_path())
    try:
        return store.sessions()
    finally:
        store.close()
