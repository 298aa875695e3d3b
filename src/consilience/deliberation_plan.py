"""The plan of a deliberation, from the very object that is begun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.deliberation import Deliberation
from consilience.domain.agents import in_dealing_order
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.engine.execution import Options
from consilience.engine.protocol import Protocol
from consilience.engine.seats import choose_detail
from consilience.models.registry import Choice
from consilience.planning import AS_ASKED, RunPlan, make_plan, with_documents


def plan_deliberation(
    deliberation: Deliberation[Any], task: str, choice: Choice = AS_ASKED, *, encoder: str | None = None
) -> RunPlan:
    """Return the plan of a run. The deliberation names its models by agent, has its panel in its protocol, and its sources read.

    `encoder` is the name of its encoder.
    """
    protocol, models, options = deliberation.protocol, deliberation.model, deliberation.options or Options()
    assert isinstance(protocol, Protocol)
    assert isinstance(models, Mapping)
    names, known = {id: str(model) for id, model in models.items()}, options.endpoints
    panel, limits = deliberation.panel, deliberation.limits
    agents = in_dealing_order(protocol.agents(panel if isinstance(panel, Panel) else None))
    sources = [source for source in deliberation.sources if isinstance(source, Source)]
    detail = choose_detail(options.detail, agents, names)
    protocol = with_documents(protocol.with_detail(detail), sources, names.values(), known)
    return make_plan(
        protocol,
        agents,
        names,
        choice,
        known=known,
        limits=limits if isinstance(limits, Limits) else Limits(),
        task=task,
        sources=sources,
        templates=protocol.load_templates(deliberation.prompts, detail),
        encoder=encoder,
        thinking=options.thinking,
        detail=detail,
    )
