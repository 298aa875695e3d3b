"""Routes of what can be asked for: protocols, panels, models, choices; and of what is due and how forecasts came out."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from consilience.choosing import choice_json
from consilience.domain.model_names import PERSON
from consilience.domain.panels import CATALOG, load_panel
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.models.registry import paid, window_by_name
from consilience.server.bodies import ChoicesBody
from consilience.server.callers import Caller
from consilience.server.checks import allowed_models
from consilience.server.choices import choose_for
from consilience.server.dependencies import ERRORS, Service, Who
from consilience.server.replies import ChoiceView, ModelView, PanelView, ProtocolView, ScoresView
from consilience.server.session_plans import INTERNAL
from consilience.server.settings import ServerSettings
from consilience.server.uploads import FORM, BodyRoute, UploadRoute
from consilience.sessions.follow_up import MIN_RANKED, NEAR_DAYS, deadline_row, score_rows

READING_SECONDS = 30.0
"""How long the reading of a task is waited for in the request that began it."""

catalog = APIRouter(prefix="/api", tags=["catalog"], route_class=BodyRoute, responses=ERRORS)
choosing = APIRouter(prefix="/api", tags=["catalog"], route_class=UploadRoute, responses=ERRORS)


@catalog.get("/protocols")
async def protocols(sessions: Service, caller: Who) -> list[ProtocolView]:
    """List the protocols and presets that the caller may run, with their settings."""
    return protocol_views(sessions.settings, caller)


def protocol_views(settings: ServerSettings, caller: Caller) -> list[ProtocolView]:
    """Return the protocols and presets that a caller may run."""
    names = [name for name in protocol_names() if name not in INTERNAL]
    views = [_protocol(name, find_protocol(name), "", {}) for name in names if name not in settings.presets]
    for name, preset in settings.presets.items():
        views.append(_protocol(name, find_protocol(preset.protocol), preset.summary, dict(preset.settings)))
    return [view for view in views if caller.protocols is None or view.protocol in caller.protocols]


def _protocol(name: str, cls: type[Protocol], summary: str, defaults: dict[str, Any]) -> ProtocolView:
    schema = cls.model_json_schema()
    own = {name: schema["properties"][name] for name in cls.own_settings()}
    return ProtocolView(
        name=name,
        summary=summary or cls.summary,
        protocol=cls.name,
        settings={"type": "object", "properties": own, "$defs": schema.get("$defs", {})},
        defaults=defaults,
        estimate=cls(**defaults).estimate().model_dump(mode="json"),
    )


@catalog.get("/panels")
async def panels() -> list[PanelView]:
    """List the shipped panels of personas."""
    return [PanelView.model_validate(load_panel(name).model_dump(mode="json")) for name in CATALOG.names()]


@catalog.get("/models")
async def models(sessions: Service, caller: Who) -> list[ModelView]:
    """List the models that the caller may name, the default first; a person may take any seat."""
    known = sessions.endpoints
    allowed = [
        ModelView(name=name, default=not n, context_window=window_by_name(name, known), paid=paid(name, known))
        for n, name in enumerate(allowed_models(caller, sessions.settings))
    ]
    return [*allowed, ModelView(name=PERSON, default=not allowed, context_window=None, paid=False)]


@choosing.post("/choices", openapi_extra=FORM, responses={202: {"model": ChoiceView}})
async def choices(body: ChoicesBody, sessions: Service, caller: Who, response: Response) -> ChoiceView:
    """Say how `ask` would work on a task. Where a model has to read it first, that is one call, in a session of its own; status 202
    while it is not finished."""
    chosen = await choose_for(sessions, caller, body, seconds=READING_SECONDS)
    choice = chosen.choice
    if choice is None:
        response.status_code = 202
        return ChoiceView(choice=None, sources=[], session=chosen.session)
    settings = choice.protocol.model_dump(mode="json", exclude_unset=True)
    dealt = [{"name": s.name, "agents": s.agents, "shares": s.shares} for s in choice.documents]
    return ChoiceView(
        choice={**choice_json(choice, unread=False), "settings": settings}, sources=dealt, session=chosen.session
    )


@catalog.get("/due")
async def due(
    sessions: Service,
    caller: Who,
    within: Annotated[int, Query(ge=0, le=100_000, description="Also deadlines within so many days.")] = NEAR_DAYS,
    on: Annotated[date | None, Query(description="The day to compare with; default: today, UTC.")] = None,
) -> dict[str, list[dict[str, Any]]]:
    """List findings that would change an agent's mind and whose deadline is past or near, over all sessions; `unreadable` are
    those whose words name no date."""
    groups = await sessions.due(caller, today=on or datetime.now(UTC).date(), within=within)
    return {name: [dict(deadline_row(deadline)) for deadline in group] for name, group in groups.items()}


@catalog.get("/scores")
async def scores(sessions: Service, caller: Who) -> ScoresView:
    """Return Brier scores of agents and models over all resolved questions, in total and by month, each with its number."""
    agents, by_model = await sessions.scores(caller)
    return ScoresView(agents=score_rows(agents), models=score_rows(by_model), ranked_from=MIN_RANKED)
