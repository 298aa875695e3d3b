"""The pages on which a session is forked or told a fact: what changes, then the plan, then the new session begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.requests import Request

from consilience.domain.errors import ConsilienceError
from consilience.domain.events import SessionStarted
from consilience.domain.model_names import PERSON
from consilience.domain.report import Forecast
from consilience.engine.fork import END
from consilience.journal.store import Records
from consilience.planning import (
    AS_ASKED,
    RunPlan,
    amount_words,
    calls_words,
    inheritance_words,
    time_words,
)
from consilience.reporting.record import read_record
from consilience.run_plans import plan_of_fork
from consilience.server.bodies import ForkBody, TellBody
from consilience.server.callers import Caller
from consilience.server.catalog_routes import protocol_views
from consilience.server.checks import allowed_models
from consilience.server.dependencies import Service, SessionId, Who
from consilience.server.joins import digest_of
from consilience.server.pages import PageRoute, PostedForm, app_page, go_to, read_form
from consilience.server.replies import ProtocolView
from consilience.server.service import Sessions
from consilience.server.setting_fields import setting_controls, typed_settings
from consilience.server.start_form import SessionDraft, WrongFields, placed, wrong_fields
from consilience.server.start_page import LIMITS, usual_seconds

routes = APIRouter(prefix="/sessions/{session}", include_in_schema=False, route_class=PageRoute)
Kind = Literal["fork", "tell"]
SETTINGS = "settings"
OUTCOMES = ("yes", "no")


@dataclass(frozen=True)
class Parent:
    """The session that is continued from."""

    session: str
    started: SessionStarted
    task: str
    forecasts: tuple[Forecast, ...]
    view: ProtocolView | None
    """None for a protocol that the caller may not run any more."""


@dataclass(frozen=True)
class ForkProposal:
    """What would run."""

    body: ForkBody | TellBody
    plan: RunPlan
    inherited: str

    @property
    def digest(self) -> str:
        return digest_of(self.body.model_dump(mode="json"))


@routes.get("/fork")
async def fork_form(session: SessionId, request: Request, sessions: Service, caller: Who, at: str = END) -> Response:
    """Show what can be changed. `at`: the point from which the fork goes on."""
    return await _form(request, sessions, caller, session, "fork", PostedForm([("at", at)]))


@routes.get("/tell")
async def tell_form(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Show the form of a fact."""
    return await _form(request, sessions, caller, session, "tell", PostedForm([]))


@routes.post("/fork")
async def fork(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Show the plan of a fork; begin the one that was shown."""
    return await _posted(request, sessions, caller, session, "fork")


@routes.post("/tell")
async def tell(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Show the plan of a session that is told a fact; begin the one that was shown."""
    return await _posted(request, sessions, caller, session, "tell")


async def _form(
    request: Request, sessions: Sessions, caller: Caller, session: str, kind: Kind, form: PostedForm
) -> Response:
    await sessions.seats.check_whole(caller, session)
    return _page(request, sessions, caller, await _parent(sessions, caller, session), kind, SessionDraft(form, ()))


async def _posted(request: Request, sessions: Sessions, caller: Caller, session: str, kind: Kind) -> Response:
    form = await read_form(request, with_files=True)
    parent = await _parent(sessions, caller, session)
    draft = SessionDraft(form, ())
    try:
        draft = await SessionDraft.read(form, request.app.state.conversions)
        body = _body(kind, parent, draft)
        proposal = await _proposed(sessions, caller, parent, body)
        if form.get("do") == "begin" and form.get("planned") == proposal.digest and not draft.unread:
            begun = await sessions.fork(caller, session, body)
            return go_to(f"/sessions/{begun.session}")
    except WrongFields as wrong:
        return _page(request, sessions, caller, parent, kind, draft, wrong=wrong.fields, status=422)
    except ConsilienceError as error:
        wrong_at = placed(error, SETTINGS).fields
        return _page(request, sessions, caller, parent, kind, draft, wrong=wrong_at, status=422)
    seconds = await usual_seconds(sessions, caller, proposal.plan.models)
    plan = {
        "inherited": proposal.inherited,
        "calls": f"{calls_words(proposal.plan)}{proposal.plan.calls_note}",
        "cost": amount_words(proposal.plan) if proposal.plan.paid else "nothing",
        "time": time_words(proposal.plan, seconds),
        "seats": [(agent.id, agent.role, agent.model) for agent in proposal.plan.agents],
        "planned": proposal.digest,
    }
    return _page(request, sessions, caller, parent, kind, draft, plan=plan)


async def _parent(sessions: Sessions, caller: Caller, session: str) -> Parent:
    views = {view.name: view for view in protocol_views(sessions.settings, caller)}

    def read(records: Records) -> Parent:
        record = read_record(records, session)
        started = record.state.started
        if started is None:
            raise ConsilienceError(f"session {session} has not begun yet")
        return Parent(session, started, records.text(started.task), record.forecasts, views.get(started.protocol))

    return await sessions.read(caller, read)


def _body(kind: Kind, parent: Parent, draft: SessionDraft) -> ForkBody | TellBody:
    """Return the request. Raises `WrongFields`."""
    form = draft.form
    given: dict[str, Any] = {
        "replace": {id: name for id, name in form.below("replace.").items() if name},
        "sources": draft.documents,
        "limits": draft.limits or None,
        "name": form.get("name").strip(),
    }
    if kind == "tell":
        given["fact"] = _fact(parent, form)
    else:
        task = form.get("task").strip()
        given |= {
            "at": form.get("at").strip() or END,
            "settings": typed_settings(parent.view, form.below(f"{SETTINGS}.")) if parent.view else {},
            "perspectives": {id: text.strip() for id, text in form.below("perspectives.").items() if text.strip()},
            "task": form.get("task") if task not in ("", parent.task.strip()) else None,
        }
    try:
        return TellBody.model_validate(given) if kind == "tell" else ForkBody.model_validate(given)
    except ValidationError as error:
        raise wrong_fields(error) from None


def _fact(parent: Parent, form: PostedForm) -> str:
    """Return the fact that was typed, or that a question of the session has been answered. Raises `WrongFields`."""
    fact, chosen = form.get("fact").strip(), form.get("question")
    if chosen:
        question = next((f.question for f in parent.forecasts if f.id == chosen), None)
        if question is None or form.get("outcome") not in OUTCOMES:
            raise WrongFields({"question": "Choose a question and how it came out."})
        answered = f"The question “{question}” has been answered: {form.get('outcome')}."
        return f"{answered} {fact}".strip()
    if not fact:
        raise WrongFields({"fact": "Write the fact in a sentence, or choose a question and how it came out."})
    return fact


async def _proposed(sessions: Sessions, caller: Caller, parent: Parent, body: ForkBody | TellBody) -> ForkProposal:
    planned = await sessions.plan_fork(caller, parent.session, body)
    plan = plan_of_fork(planned, AS_ASKED, known=sessions.endpoints)
    return ForkProposal(body, plan, inheritance_words(planned))


def _page(
    request: Request,
    sessions: Sessions,
    caller: Caller,
    parent: Parent,
    kind: Kind,
    draft: SessionDraft,
    *,
    plan: Mapping[str, object] | None = None,
    wrong: Mapping[str, str] = {},
    status: int = 200,
) -> Response:
    wrong = dict(wrong)
    if draft.unread:
        wrong["sources"] = " ".join(draft.unread)
    typed, started, view = draft.form.values, parent.started, parent.view
    return app_page(
        request,
        "fork",
        "A new fact" if kind == "tell" else "Fork this session",
        status=status,
        problem=wrong.pop("", "Nothing was begun: see below." if wrong else ""),
        kind=kind,
        parent=parent,
        draft=draft,
        typed={"task": parent.task, **typed},
        wrong=wrong,
        plan=plan,
        controls_of_settings=setting_controls(view, started.settings) if view else [],
        models=(*allowed_models(caller, sessions.settings), PERSON),
        limits=LIMITS,
        outcomes=OUTCOMES,
    )
