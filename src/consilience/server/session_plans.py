"""From a request to a deliberation and its plan: what a caller may run, on which models, at what cost. Nothing is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from consilience.deliberation import Deliberation
from consilience.domain.agents import in_dealing_order
from consilience.domain.errors import UnknownName
from consilience.domain.panels import CATALOG, Panel, load_panel
from consilience.domain.report import Report
from consilience.engine.dealing import deal_for
from consilience.engine.execution import Options
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.journal.store import Store
from consilience.planning import RunPlan
from consilience.run_plans import plan_deliberation
from consilience.server.bodies import NewSession
from consilience.server.callers import Caller
from consilience.server.checks import assigned_models, check_priced, check_settings
from consilience.server.settings import ServerSettings

INTERNAL = frozenset({"choose", "propose"})
"""Protocols that no caller names: they are parts of other requests."""
SERVED = "server"
"""Key among the recorded deliveries of a session that a server began, and takes up after a restart."""


class SessionPlans:
    """Plans the sessions of a server. Blocks, since it counts what agents are to read."""

    def __init__(self, store: Store, settings: ServerSettings, options: Options) -> None:
        """`options` are those of every session: endpoints and connections."""
        self._store = store
        self._settings = settings
        self._options = options

    def planned(
        self, caller: Caller, body: NewSession, derived: Mapping[str, Any] = {}
    ) -> tuple[Deliberation[Report], RunPlan]:
        """Return what a request asks for. `derived` are settings that follow from documents. Raises `UserError`, `Forbidden`."""
        cls, settings, panel, named = self._named(body)
        caller.check_protocol(cls.name)
        check_settings(cls, settings)
        protocol = cls(**settings, **derived).with_panel(panel)
        agents = in_dealing_order(protocol.agents(panel))
        models = assigned_models(caller, self._settings, agents, named)
        options = replace(self._options, deal=body.deal, thinking=body.thinking, inventory_tokens=body.inventory_tokens)
        dealt, sources = deal_for(protocol, body.sources, options, models, panel, body.task)
        body = body.model_copy(update={"sources": tuple(sources)})
        if dealt is not protocol:  # it has other agents
            protocol, agents = dealt, in_dealing_order(dealt.agents(panel))
            models = assigned_models(caller, self._settings, agents, named)
        return self.deliberation(caller, protocol, models, body, panel)

    def deliberation(
        self,
        caller: Caller,
        protocol: Protocol,
        models: dict[str, str],
        body: NewSession,
        panel: Panel | None = None,
        prompts: Path | None = None,
    ) -> tuple[Deliberation[Report], RunPlan]:
        """Return a deliberation of a protocol on these models, by agent. Raises `Forbidden` where its cost cannot be bounded."""
        check_priced(caller, models.values(), self._options.endpoints)
        require = {"require": ",".join(body.require)} if body.require else {}
        deliberation = Deliberation[Report](
            protocol,
            model=models,
            panel=panel,
            sources=body.sources,
            seed=body.seed,
            limits=body.limits,
            quorum=body.quorum,
            store=self._store.of(caller.beginner(body.team)),
            prompts=prompts,
            options=replace(
                self._options,
                thinking=body.thinking,
                name=body.name,
                inventory_tokens=body.inventory_tokens,
                deliveries={SERVED: "yes", **require},
            ),
        )
        return deliberation, plan_deliberation(deliberation, body.task)

    def _named(
        self, body: NewSession
    ) -> tuple[type[Protocol], dict[str, Any], Panel | None, Sequence[str] | Mapping[str, str]]:
        """Return protocol, settings, panel and models of a request, completed by the preset that it names."""
        name, settings, panel, models = body.protocol, dict(body.settings), body.panel, body.models
        if (preset := self._settings.presets.get(name)) is not None:
            name, settings = preset.protocol, {**preset.settings, **settings}
            panel, models = panel or preset.panel, models or preset.models
        if name in INTERNAL or name not in protocol_names():
            known = sorted({*protocol_names(), *self._settings.presets} - INTERNAL)
            raise UnknownName(f"there is no protocol {name!r}", where="protocol", do=f"Known: {', '.join(known)}.")
        if isinstance(panel, str):
            if panel not in CATALOG.names():
                raise UnknownName(
                    f"there is no panel {panel!r}", where="panel", do=f"Known: {', '.join(CATALOG.names())}."
                )
            panel = load_panel(panel)
        return find_protocol(name), settings, panel, models
