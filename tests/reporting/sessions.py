"""Sessions to look at: real runs of a scripted model, and some made by hand of events no protocol here makes yet."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from consilience.domain.agents import Agent
from consilience.domain.events import CallCompleted, Event, SessionStarted
from consilience.domain.outcome import Estimate
from consilience.domain.sections import Grid
from consilience.domain.topology import Topology
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.emergence import Emergence
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.views import view_of
from consilience.testing import Scripted, ScriptedModel
from kit import runner

FIXTURE = Path(__file__).parent.parent / "fixtures" / "demo.db"

HOSTILE = (
    "</pre></article><script>alert(1)</script></style>]]> &amp; <img src=https://evil.example/x.png onerror=alert(2)>\n"
    "![pixel](https://evil.example/p.png) [press](javascript:alert(3)) <https://evil.example>\n"
    '# Not a heading of ours\n\x1b[31mred\x00\u202e 🦉 "quoted" `code` ```\n---\n%% mermaid\n'
)
"""What an agent might say to break out of where it is shown."""


def saying(request: ModelRequest, words: str = "") -> Scripted:
    """A reply of the asked type with all it can hold; the text differs by key."""
    text = words or f"{request.agent} thinks of {request.key}."
    kind = request.returns
    if kind is None or not issubclass(kind, BaseModel):
        return Scripted(text, tokens_in=100, tokens_out=20)
    if "confidence" in kind.model_fields:
        held = "yes" if "round-2" in request.key or request.agent.endswith("1") else "no"
        return Scripted(kind(position=held, confidence="certain", reason=text), tokens_in=100, tokens_out=20)
    values: dict[str, Any] = {"text": text}
    if "points" in kind.model_fields:
        values["points"] = [text]
    if "objections" in kind.model_fields and "/lateral/L2N3" in request.key:
        values["objections"] = [{"to": "A", "text": f"I object. {words}"}]
    return Scripted(kind(**values), tokens_in=100, tokens_out=20)


async def ran(
    store: SqliteStore,
    protocol: Emergence | None = None,
    *,
    reply: Callable[[ModelRequest], Any] = saying,
    task: str = "Is it so?",
    session: str = "s",
) -> SessionRecord:
    """A finished run, read back."""
    await runner.start(
        task, protocol or Emergence(max_rounds=2), models=ScriptedModel(reply), store=store, session=session
    )
    return read_record(store, session)


def turns(record: SessionRecord) -> dict[tuple[str, str], tuple[str, ...]]:
    """What the evolution view draws, by label of the agent and step."""
    picture = view_of("evolution", record).picture
    assert isinstance(picture, Grid)
    return {(cell.row, cell.column): cell.lines for cell in picture.cells}


def demo(directory: Path) -> tuple[SqliteStore, str]:
    """The recorded run of the real small model."""
    shutil.copy(FIXTURE, directory / "demo.db")
    store = SqliteStore(directory / "demo.db")
    return store, store.sessions()[-1]


def by_hand(
    topology: Topology, events: Iterable[Event] = (), *, task: str = "Is it so?", views: Mapping[str, str] | None = None
) -> SessionRecord:
    """A session of no protocol: texts are their own ids, and so are prompts, whose parts are divided by spaces."""
    agents = tuple(
        Agent(id=id, role="seat", perspective=(views or {}).get(id, ""), model="m") for id in topology.agents
    )
    started = SessionStarted(
        schema_version=3, prompt_format=2, protocol="seance", protocol_version=1, settings={}, task=task, seed=0, agents=agents,
        topology=topology, quorum=0.5, estimate=Estimate(min=1, max=9), templates={},
    )  # fmt: skip
    numbered: Sequence[Any] = [started, *events]
    for seq, event in enumerate(numbered, 1):
        event.seq = seq
    return SessionRecord(session="rhand", events=numbered, text=lambda id: id, prompt=lambda id: tuple(id.split()))


def call(key: str, text: str, place: str, *read: str, kind: str = "reply") -> CallCompleted:
    """A reply of the agent that the key ends in, in the phase and at the index the key begins with (`talk-2/A1`)."""
    step, _, agent = key.partition("/")
    name, _, index = step.partition("-")
    return CallCompleted(
        key=key, agent=agent.rpartition("/")[2], phase=(name, int(index)), text=text, place=place, kind=kind,
        prompt=" ".join(read), tokens_in=10, tokens_out=5, cost=0.0,
    )  # fmt: skip


class Counted:
    """A record's look-ups, counted."""

    def __init__(self, record: SessionRecord) -> None:
        self.texts = self.prompts = 0
        self._record = record
        self.record = replace(record, text=self._text, prompt=self._prompt)

    def _text(self, id: str) -> str:
        self.texts += 1
        return self._record.text(id)

    def _prompt(self, id: str) -> Sequence[str]:
        self.prompts += 1
        return self._record.prompt(id)
