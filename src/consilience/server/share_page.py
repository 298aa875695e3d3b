"""What a link to a finished session opens, for people who were not there: the summary, the whole report, and one opinion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from starlette.requests import Request

from consilience.domain.errors import UnknownSession, UserError
from consilience.journal.store import Opinion, ReaderVote, Records, SessionLink
from consilience.reporting.export import as_html
from consilience.reporting.record import read_record
from consilience.reporting.styles import style_sheet
from consilience.reporting.summary import summary_parts
from consilience.server.links import LinkToken, TheSeats, closed
from consilience.server.pages import SANDBOX, go_to, page, problem_of, read_form

routes = APIRouter(include_in_schema=False)
MAX_OBJECTION_CHARS = 2_000
MAX_OPINION_BYTES = 20_000


@dataclass(frozen=True)
class SharedSession:
    """What a link shows."""

    summary: Mapping[str, object]
    asks: bool
    """Whether the link still takes an opinion."""
    opinions: Sequence[Opinion]
    """Those of all readers, once this link has given its own; none before."""


@routes.get("/summary.css")
async def style() -> Response:
    """Return what a summary has beside the style of all pages: two sheets of paper."""
    return Response(style_sheet("summary"), media_type="text/css")


@routes.get("/share/{token}")
async def shared(token: LinkToken, request: Request, seats: TheSeats) -> Response:
    """Show the summary."""
    return await _page(token, request, seats)


@routes.post("/share/{token}")
async def give_opinion(token: LinkToken, request: Request, seats: TheSeats) -> Response:
    """Take the one opinion of a link."""
    try:
        await seats.shared(token, lambda records, link: None)
    except UnknownSession as error:
        return closed(request, error)
    form = await read_form(request, MAX_OPINION_BYTES)
    vote, objection = form.get("vote"), form.get("objection").strip()
    wrong = dict[str, str]()
    if vote not in get_args(ReaderVote):
        wrong["vote"] = "Choose one."
    if len(objection) > MAX_OBJECTION_CHARS:
        wrong["objection"] = f"It has {len(objection):,} characters, and at most {MAX_OBJECTION_CHARS:,} are taken."
    if wrong:
        return await _page(
            token, request, seats, typed=form.values, wrong=wrong, problem="Nothing was recorded: see below."
        )
    try:
        await seats.give_opinion(token, cast(ReaderVote, vote), objection)
    except UnknownSession as error:
        return closed(request, error)
    except UserError as error:
        return await _page(token, request, seats, typed=form.values, problem=problem_of(error))
    return go_to(f"/share/{token}")


@routes.get("/share/{token}/report")
async def whole(token: LinkToken, request: Request, seats: TheSeats) -> Response:
    """Show the page of the session as its file has it."""

    def render(records: Records, link: SessionLink) -> str:
        return as_html(read_record(records, link.session))

    try:
        return HTMLResponse(await seats.shared(token, render), headers=SANDBOX)
    except UnknownSession as error:
        return closed(request, error)


async def _page(
    token: str,
    request: Request,
    seats: TheSeats,
    *,
    typed: Mapping[str, str] = {},
    wrong: Mapping[str, str] = {},
    problem: str = "",
) -> Response:
    try:
        shown = await seats.shared(token, _shown)
    except UnknownSession as error:
        return closed(request, error)
    return page(
        request,
        "share",
        str(shown.summary["title"]),
        status=422 if problem else 200,
        problem=problem,
        token=token,
        summary=shown.summary,
        asks=shown.asks,
        opinions=shown.opinions,
        typed=typed,
        wrong=wrong,
        most=MAX_OBJECTION_CHARS,
    )


def _shown(records: Records, link: SessionLink) -> SharedSession:
    record = read_record(records, link.session)
    assert record.report is not None  # only finished sessions are shared
    given = records.opinions(link.session) if link.kind == "hearing" else []
    has_given = any(opinion.link == link.number for opinion in given)
    asks = link.kind == "hearing" and not has_given
    return SharedSession(
        summary_parts(record.report, record, full="the whole report"), asks, given if has_given else []
    )
