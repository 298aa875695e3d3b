"""The first page: a question, documents and what to do with them; then the plan with its estimate; then the session begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from consilience.choosing import REASONS, ProtocolChoice, follow_up_sources
from consilience.domain.errors import ConsilienceError
from consilience.domain.messages import Source
from consilience.domain.outcome import ThinkingLevel
from consilience.domain.panels import CATALOG, load_panel
from consilience.domain.tokens import estimate_tokens
from consilience.planning import RunPlan, amount_words, calls_words, time_words
from consilience.protocols.baselines import Solo
from consilience.reporting.record import read_record
from consilience.server.bodies import NewSession
from consilience.server.callers import Caller
from consilience.server.catalog_routes import READING_SECONDS, protocol_views
from consilience.server.checks import allowed_models
from consilience.server.choices import choose_for
from consilience.server.dependencies import Service, Who
from consilience.server.joins import digest_of
from consilience.server.pages import PageRoute, PostedForm, app_page, go_to, read_form
from consilience.server.replies import ProtocolView
from consilience.server.service import Sessions
from consilience.server.setting_fields import setting_controls
from consilience.server.start_form import ASK, SessionDraft, WrongFields, placed
from consilience.sessions.durations import MAX_CALLS, MAX_SESSIONS, session_seconds

routes = APIRouter(include_in_schema=False, route_class=PageRoute)
THINKING = ("", *get_args(ThinkingLevel))
LIMITS: Mapping[str, tuple[str, str]] = {
    "calls": ("Calls", "Requests to models, repeated ones included."),
    "cost": ("US dollars", "A call that might exceed it is not made."),
    "seconds": ("Seconds", "From begin to end. The last fifth is for the answer."),
    "tokens": ("Tokens", "Read and written."),
    "steps": ("Rounds", "Or passes, or iterations."),
}


@dataclass(frozen=True)
class PlannedStart:
    """What would run, if a model has not to read the task first."""

    body: NewSession
    plan: RunPlan
    choice: ProtocolChoice | None
    """Why this protocol; None if it was named."""
    reading: str
    """The session in which a model read the task; "" if none had to."""

    @property
    def digest(self) -> str:
        """By it the form says which plan was shown."""
        return digest_of(self.body.model_dump(mode="json"))


class ReadingGoesOn(Exception):
    """A model still reads the task, in a session of its own."""

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.session = session


@routes.get("/")
async def start(request: Request, sessions: Service, caller: Who, after: str = "", task: str = "") -> Response:
    """Show the form. `after` names a session whose answer is followed up."""
    first = Solo.name if after else ASK
    form = PostedForm([("after", after), ("task", task), ("protocol", first)])
    if after:
        await _left_by(sessions, caller, after)
    return _page(request, sessions, caller, SessionDraft(form, ()))


@routes.post("/")
async def propose_or_begin(request: Request, sessions: Service, caller: Who) -> Response:
    """Show the plan of what was asked for. If it is the one that was shown before, and `begin` is pressed, begin the session."""
    form = await read_form(request, with_files=True)
    draft = SessionDraft(form, ())
    try:
        draft = await SessionDraft.read(form, request.app.state.conversions)
        proposal = await _proposed(sessions, caller, draft)
        if form.get("do") == "begin" and form.get("planned") == proposal.digest and not draft.unread:
            try:
                begun = await sessions.begin(caller, proposal.body)
            except ConsilienceError as error:
                raise placed(error, proposal.body.protocol) from None
            return go_to(f"/sessions/{begun.session}")
    except ReadingGoesOn as pending:
        return _page(request, sessions, caller, draft, reading=pending.session, status=202)
    except WrongFields as wrong:
        return _page(request, sessions, caller, draft, wrong=wrong.fields, status=422)
    seconds = await usual_seconds(sessions, caller, proposal.plan.models)
    return _page(request, sessions, caller, draft, proposal=proposal, seconds=seconds)


async def _proposed(sessions: Sessions, caller: Caller, draft: SessionDraft) -> PlannedStart:
    """Return what would run. Raises `WrongFields`, `ReadingGoesOn`."""
    form, name = draft.form, draft.form.get("protocol", ASK)
    prefix = name
    try:
        sources = (*await _left_by(sessions, caller, form.get("after")), *draft.documents)
        views = {view.name: view for view in protocol_views(sessions.settings, caller)}
        choice, reading, settings = None, "", dict[str, Any]()
        if name == ASK:
            choice, reading = await _chosen(sessions, caller, draft, sources)
            prefix = name = choice.protocol.name
            settings, sources = choice.protocol.model_dump(mode="json", exclude_unset=True), tuple(choice.documents)
        if name not in views:
            raise WrongFields({"protocol": f"You may not run {name!r:.80}; choose one of those below."})
        body = draft.body(views[name], sources, settings)
        plan = await sessions.plan(caller, body)
        if draft.people:
            body = body.model_copy(update={"models": _seated(plan, draft.people)})
            plan = await sessions.plan(caller, body)
    except ConsilienceError as error:
        raise placed(error, prefix) from None
    return PlannedStart(body, plan, choice, reading)


async def _chosen(
    sessions: Sessions, caller: Caller, draft: SessionDraft, sources: Sequence[Source]
) -> tuple[ProtocolChoice, str]:
    """Return how `ask` works on the task, and the session that read it. A reading that was begun for this task is used again."""
    body = draft.choices(caller, sessions.settings, sources, "")
    digest = digest_of(body.model_dump(mode="json"))
    session, _, read = draft.form.get("reading").partition(":")
    asked = body.model_copy(update={"reading": session if read == digest else ""})
    chosen = await choose_for(sessions, caller, asked, seconds=READING_SECONDS)
    if chosen.choice is None:
        raise ReadingGoesOn(f"{chosen.session}:{digest}")
    return chosen.choice, f"{chosen.session}:{digest}" if chosen.session else ""


async def _left_by(sessions: Sessions, caller: Caller, session: str) -> Sequence[Source]:
    """Return what a session leaves for a follow-up; nothing for ""."""
    if not session:
        return ()
    return await sessions.read(caller, lambda records: follow_up_sources(read_record(records, session)))


def _seated(plan: RunPlan, people: Sequence[str]) -> dict[str, str]:
    """Return the models of a plan by seat, with people in the first seats."""
    seats = [agent.id for agent in plan.agents if agent.voice]
    if len(people) > len(seats):
        raise WrongFields({"people": f"There are {len(seats)} seats and {len(people)} people."})
    return plan.models_by_agent | dict(zip(seats, people, strict=False))


async def usual_seconds(sessions: Sessions, caller: Caller, models: Sequence[str]) -> list[float]:
    """Return how long the latest recorded calls of these models took; as `durations.recorded_seconds`, a session at a time."""
    found, looked = list[float](), 0
    for session in reversed(await sessions.read(caller, lambda records: records.sessions())):
        seconds = await sessions.read(caller, partial(session_seconds, session=session, models=models))
        looked += seconds is not None
        found += seconds or ()
        if looked >= MAX_SESSIONS or len(found) >= MAX_CALLS:
            break
    return found[:MAX_CALLS]


def _page(
    request: Request,
    sessions: Sessions,
    caller: Caller,
    draft: SessionDraft,
    *,
    proposal: PlannedStart | None = None,
    seconds: Sequence[float] = (),
    reading: str = "",
    wrong: Mapping[str, str] = {},
    status: int = 200,
) -> Response:
    after, views = draft.form.get("after"), protocol_views(sessions.settings, caller)
    wrong = dict(wrong)
    if draft.unread:
        wrong["sources"] = " ".join((*draft.unread, *filter(None, [wrong.get("sources")])))
    return app_page(
        request,
        "start",
        f"A further question on session {after}" if after else "What shall be deliberated?",
        status=status,
        problem=wrong.pop("", "Nothing was begun: see below." if wrong else ""),
        draft=draft,
        typed=draft.form.values,
        wrong=wrong,
        protocols=[(view, setting_controls(view)) for view in views],
        panels=[load_panel(name) for name in CATALOG.names()],
        models=allowed_models(caller, sessions.settings),
        chosen_models=draft.form.all("models"),
        limits=LIMITS,
        thinking=THINKING,
        team=caller.team,
        reading=reading or (proposal.reading if proposal else ""),
        is_reading=bool(reading),
        planned=proposal.digest if proposal else "",
        plan=_plan_words(proposal, views, seconds, draft.unread) if proposal else None,
    )


def _plan_words(
    proposal: PlannedStart, views: Sequence[ProtocolView], seconds: Sequence[float], unread: Sequence[str]
) -> dict[str, Any]:
    """Return what the page shows of a plan."""
    plan, body, choice = proposal.plan, proposal.body, proposal.choice
    view = next(view for view in views if view.name == body.protocol)
    settings = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in body.settings.items())
    why = REASONS[choice.rule] if choice else ""
    if choice and choice.reading and choice.reading.why:
        why += f". The task was read as {choice.reading.kind}: {choice.reading.why.rstrip('.')}"
    notes = [*plan.details, *(f"{line}." for line in plan.fitting if not plan.fits)]
    return {
        "what": f"{view.name}: {view.summary}",
        "settings": settings,
        "why": why,
        "read_in": proposal.reading.partition(":")[0],
        "calls": calls_words(plan),
        "cost": amount_words(plan) if plan.paid else "nothing",
        "time": time_words(plan, seconds),
        "outlook": plan.outlook,
        "seats": [(agent.id, agent.role, agent.perspective or "–", agent.model) for agent in plan.agents],
        "documents": [
            (source.name or "a document", estimate_tokens(source.text), ", ".join(source.agents or ()) or "all seats")
            for source in body.sources
        ],
        "left_out": [
            *unread,
            *(f"{source.name}: {remark}" for source in body.sources for remark in source.remarks),
        ],
        "notes": [note for note in dict.fromkeys(notes) if "--" not in note],
        "refused": plan.unfit.what if plan.unfit else "",
    }
