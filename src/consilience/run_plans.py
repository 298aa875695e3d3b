"""Plans of runs, each from the very object that is begun: a deliberation, or a fork."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from consilience.deliberation import Deliberation
from consilience.domain.agents import in_dealing_order
from consilience.domain.messages import Source
from consilience.domain.outcome import Estimate, Limits, ThinkingLevel
from consilience.domain.panels import Panel
from consilience.domain.presenting import try_present
from consilience.engine.execution import Options
from consilience.engine.fork import Fork
from consilience.engine.protocol import Protocol
from consilience.engine.readers import with_inventories
from consilience.engine.seats import choose_detail
from consilience.journal.store import Records
from consilience.model_words import recorded_level
from consilience.models.endpoints import Endpoints
from consilience.models.registry import Choice
from consilience.planning import AS_ASKED, RunPlan, make_plan, with_documents
from consilience.reporting.record import read_record


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
        inventory_tokens=options.inventory_tokens,
    )


def leads_nowhere(planned: Fork, records: Records) -> bool:
    """Return whether a fork would only write its parent's report again, which the installed code shows as it is stored."""
    if not planned.makes_no_call:
        return False
    record = read_record(records, planned.parent)
    return record.report is None or try_present(record.report)[0] == record.presentation


def plan_of_fork(planned: Fork, choice: Choice, *, known: Endpoints, thinking: ThinkingLevel | None = None) -> RunPlan:
    """Return the plan of a fork. Its calls are those that it makes itself or, where that is not known, all."""
    models = {id: str(model) for id, model in planned.models.items()}
    sources = [Source(d.text, d.name, d.agents, d.remarks, d.shares, d.purpose) for d in planned.documents]
    protocol = with_documents(planned.protocol, sources, models.values(), known)
    inventory = planned.started.inventory_tokens
    max_calls = with_inventories(protocol.estimate(), planned.documents, planned.agents, inventory).max
    plan = make_plan(
        protocol,
        planned.agents,
        models,
        choice,
        known=known,
        limits=planned.limits,
        task=planned.task,
        sources=sources,
        templates=planned.templates,
        encoder=planned.encoder if isinstance(planned.encoder, str) else None,
        thinking=thinking or recorded_level(planned.started.thinking),
        detail=planned.detail,
        inventory_tokens=inventory,
        calls_made=0 if planned.calls is None else max(max_calls - planned.calls, 0),
    )
    if planned.calls is not None:
        return replace(plan, expected=None, estimate=Estimate(min=planned.calls, max=planned.calls))
    return replace(plan, expected=None, calls_note=" in all, inherited ones included") if planned.replies else plan
