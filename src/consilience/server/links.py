"""Routes of links: those by which an owner makes and withdraws them, and the pages that they open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from consilience.domain.errors import ConsilienceError, SettingsError, UnknownSession, UserError
from consilience.journal.store import SessionLink
from consilience.reporting.formatting import one_line
from consilience.reporting.forms import answer_from, mistakes
from consilience.reporting.questions import question_json
from consilience.reporting.report_sections import MAX_TITLE_CHARS
from consilience.server.access import door_of
from consilience.server.bounds import parse_json
from consilience.server.dependencies import SessionId, Who
from consilience.server.pages import APP_POLICY, go_to, page, problem_of, read_body, read_form
from consilience.server.seats import MAX_LINK_DAYS, NewLink, OpenSeat, SessionSeats
from consilience.server.uploads import BodyRoute

owner_routes = APIRouter(prefix="/api/sessions/{session}", route_class=BodyRoute)
link_routes = APIRouter(include_in_schema=False)
FIELD = "field:"
"""What the name of a field of the answer begins with in a posted form."""


class LinkBody(BaseModel):
    """A link that is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    days: float = Field(default=7, gt=0, le=MAX_LINK_DAYS)
    """How long it is valid."""


class ShareBody(LinkBody):
    """A link to a finished session that is asked for."""

    asks: bool = False
    """Whether its reader may give one vote and one objection."""


class PassBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    """Key of the call, or a name of it that is unique."""


class SeatAnswer(BaseModel):
    """What a seat's link is sent: an answer, or a pass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    """Key of the question."""
    text: str = ""
    """The answer: words, or JSON for a typed one."""
    decline: bool = Field(default=False, alias="pass")
    """Do not answer."""


def seats_of(request: Request) -> SessionSeats:
    seats: SessionSeats = request.app.state.sessions.seats
    return seats


AgentId = Annotated[str, Path(max_length=120, description="Id of an agent that a person is.")]
LinkNumber = Annotated[int, Path(description="Number of the link, as the list has it.")]
LinkToken = Annotated[str, Path(max_length=200, description="The token of the link.")]
TheSeats = Annotated[SessionSeats, Depends(seats_of)]


@owner_routes.post("/seats/{agent}/link", status_code=201)
async def give(
    session: SessionId, agent: AgentId, body: LinkBody, request: Request, caller: Who, seats: TheSeats
) -> dict[str, Any]:
    """Make a link into the seat of a person, for who shall answer in it. Its token is in this answer only."""
    return _link_json(request, "seat", await seats.give(caller, session, agent, body.days))


@owner_routes.post("/share", status_code=201)
async def share(session: SessionId, body: ShareBody, request: Request, caller: Who, seats: TheSeats) -> dict[str, Any]:
    """Make a link by which anybody reads a finished session. Its token is in this answer only."""
    return _link_json(request, "share", await seats.share(caller, session, body.days, asks=body.asks))


@owner_routes.get("/opinions")
async def opinions(session: SessionId, caller: Who, seats: TheSeats) -> list[dict[str, Any]]:
    """List what readers gave by links: votes on the answer, and objections. They stand beside the report."""
    return [asdict(opinion) for opinion in await seats.opinions(caller, session)]


@owner_routes.get("/links")
async def links(session: SessionId, caller: Who, seats: TheSeats) -> list[dict[str, Any]]:
    """List the links into a session, without their tokens."""
    return [_listed(link) for link in await seats.links(caller, session)]


@owner_routes.delete("/links/{number}")
async def end_link(session: SessionId, number: LinkNumber, caller: Who, seats: TheSeats) -> dict[str, Any]:
    """Withdraw a link."""
    await seats.end_link(caller, session, number)
    return {"session": session, "link": number}


@owner_routes.post("/lift")
async def lift(session: SessionId, caller: Who, seats: TheSeats) -> dict[str, str]:
    """See all of a running session although you hold a seat in it. It is recorded, and reported."""
    await seats.lift(caller, session)
    return {"session": session}


@owner_routes.post("/pass")
async def decline(session: SessionId, body: PassBody, request: Request, caller: Who) -> dict[str, str]:
    """Pass on an open question of a session."""
    return {"session": session, "key": await request.app.state.sessions.decline(caller, session, body.key)}


@link_routes.get("/seat/{token}")
async def seat(token: LinkToken, request: Request, seats: TheSeats) -> Response:
    """Show what is asked of a seat, as a page or as JSON."""
    try:
        opened = await seats.seat(token)
    except UnknownSession as error:
        return closed(request, error)
    return _seat_page(request, opened) if _wants_page(request) else JSONResponse(_seat_json(opened))


@link_routes.post("/seat/{token}")
async def answer(token: LinkToken, request: Request, seats: TheSeats) -> Response:
    """Answer for a seat, or pass, by the form of its page or by JSON."""
    try:
        opened = await seats.seat(token)
        if request.headers.get("content-type", "").startswith("application/json"):
            body = _seat_answer(await read_body(request))
            await seats.answer_seat(token, body.key, None if body.decline else body.text)
            return JSONResponse({"session": opened.session, "key": body.key})
        form = await read_form(request)
        given, text = form.below(FIELD), None
        try:
            if form.get("do") != "pass" and opened.question is not None:
                wrong = mistakes(opened.question, given)
                if form.get("do") == "check":
                    return checked(wrong)
                if wrong:
                    return _seat_page(request, opened, given=given, wrong=wrong, status=422)
                text = answer_from(opened.question, given)
            await seats.answer_seat(token, form.get("key"), text)
        except UserError as error:
            if isinstance(error, UnknownSession):
                raise
            return _seat_page(request, opened, given=given, problem=problem_of(error), status=422)
        return go_to(f"/seat/{token}")
    except UnknownSession as error:
        return closed(request, error)


def checked(wrong: Mapping[str, str]) -> Response:
    """Answer what is wrong with a half-typed reply, by field of the form. Nothing is recorded."""
    return JSONResponse({f"{FIELD}{name}": words for name, words in wrong.items()})


def _seat_page(
    request: Request,
    opened: OpenSeat,
    *,
    given: Mapping[str, str] = {},
    wrong: Mapping[str, str] = {},
    problem: str = "",
    status: int = 200,
) -> Response:
    question = opened.question
    return page(
        request,
        "seat",
        one_line(opened.task, MAX_TITLE_CHARS) or f"Your seat: {opened.agent}",
        status=status,
        problem=problem or ("Nothing was sent: see below." if wrong else ""),
        policy=APP_POLICY,
        token=request.path_params["token"],
        seat=question.addressee if question else opened.agent,
        question=question,
        given=given,
        wrong=wrong,
        before=FIELD,
    )


def _seat_json(opened: OpenSeat) -> dict[str, Any]:
    question = question_json(opened.question) if opened.question else None
    return {"session": opened.session, "agent": opened.agent, "question": question}


def _seat_answer(body: bytes) -> SeatAnswer:
    try:
        return SeatAnswer.model_validate(parse_json(body))
    except ValidationError as error:
        wrong = json.loads(error.json(include_url=False, include_input=False))[0]
        where = ".".join(map(str, wrong["loc"]))
        raise SettingsError(wrong["msg"], where=where or "body", do="Send key, and text or pass.") from None


def closed(request: Request, error: ConsilienceError) -> Response:
    """Answer that a link is not valid, or not any more."""
    if _wants_page(request):
        problem = "It was withdrawn, has ended, or was never there. Ask whoever gave it to you."
        return page(request, "base", "This link is not valid", status=404, problem=problem)
    body = {"what": str(error).rstrip("."), "where": "", "do": "Ask whoever gave it to you."}
    return JSONResponse({"error": body}, 404)


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def url_of(request: Request, kind: str, made: NewLink) -> str:
    """Return the address of a link that was just made."""
    urls = door_of(request).access.public_urls
    base = urls[0] if urls else str(request.base_url).rstrip("/")
    return f"{base}/{kind}/{made.token}"


def _link_json(request: Request, kind: str, made: NewLink) -> dict[str, Any]:
    return {"url": url_of(request, kind, made), "token": made.token, "until": made.until}


def _listed(link: SessionLink) -> dict[str, Any]:
    return {"link": link.number, "kind": link.kind, "agent": link.agent, "until": link.until, "by": link.by}
