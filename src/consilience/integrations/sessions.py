"""A session that a framework may ask for more than once: begun, gone on with, or read back, under an id it derives itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from consilience import api
from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel, load_panel
from consilience.domain.report import Report
from consilience.engine import given, runner
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models, Options
from consilience.engine.similarity import Encoder
from consilience.engine.sources import documents, references
from consilience.journal.sqlite import opened
from consilience.journal.store import Store


@dataclass(frozen=True, kw_only=True)
class Deliberation:
    """How to deliberate, as `consilience.deliberate` takes it, without the task."""

    protocol: Protocol
    model: Models | None = None
    panel: Panel | str | Path | None = None
    seed: int = 0
    limits: Limits | None = None
    quorum: float = 0.5
    encoder: str | Encoder | None = None
    store: Store | None = None
    prompts: Path | None = None
    options: Options = field(default_factory=Options)

    async def take_up(
        self, session: str, task: str, *, sources: Sequence[Source | str] = (), options: Options | None = None
    ) -> Report:
        """Begin the session, or go on where it is recorded; a finished one gives its report, and nothing is paid twice.

        Raises `SettingsError` where another deliberation is recorded under that id.
        """
        options = options or self.options
        with opened(self.store) as store:
            if self._begun(store, session, task, sources):
                return await runner.resume(
                    session, store=store, models=self.model, encoder=self.encoder, options=options
                )
            return await self.begin(task, session=session, sources=sources, store=store, options=options)

    async def begin(
        self,
        task: str,
        *,
        session: str | None = None,
        sources: Sequence[Source | str] = (),
        store: Store | None = None,
        options: Options | None = None,
    ) -> Report:
        """A new session."""
        return await api.deliberate(
            task,
            self.protocol,
            model=self.model,
            panel=self.panel,
            sources=sources,
            seed=self.seed,
            limits=self.limits,
            quorum=self.quorum,
            encoder=self.encoder,
            store=store or self.store,
            prompts=self.prompts,
            session=session,
            options=options or self.options,
        )

    def digest(self, task: str, *names: str) -> str:
        """An id of a session: the same for the same names, task, protocol, settings and seed."""
        parts = [*names, task, self.protocol.name, self.protocol.model_dump(mode="json"), self.seed]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]

    def _begun(self, store: Store, session: str, task: str, sources: Sequence[Source | str]) -> bool:
        if session not in store.sessions():
            return False
        started = store.beginning(session)
        if started is None:  # killed before anything was asked
            store.remove([session])
            return False
        for what, recorded, now in (
            ("another protocol", started.protocol, self.protocol.name),
            ("other settings", started.settings, self.protocol.model_dump(mode="json")),
            ("another seed", started.seed, self.seed),
            ("another task", store.text(started.task), task),
            ("other documents", started.sources, references(documents(given.sources_of(sources)))),
            ("other limits", started.limits, given.limits_of(self.limits) or Limits()),
            ("another quorum", started.quorum, self.quorum),
            ("another panel", _views(started.agents), _views(self.protocol.agents(self._seated))),
        ):
            if recorded != now:
                raise SettingsError(
                    f"session {session} is recorded with {what}", do="Give this deliberation an id of its own."
                )
        return True

    @property
    def _seated(self) -> Panel | None:
        return load_panel(self.panel) if isinstance(self.panel, str | Path) else self.panel


def _views(agents: Sequence[Agent]) -> list[tuple[str, str, str]]:
    """Who looks at it how; models are compared where a session goes on."""
    return [(agent.id, agent.perspective, agent.persona) for agent in agents]
