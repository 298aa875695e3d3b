"""What is done to a session from its page: answer, cancel, comment, continue, lift, delete, and links into it.

The forms are in `page/actions.html.j2`, which the page of a session includes with `session`, `record`, `questions`, `form_token`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.requests import Request

from consilience.domain.errors import UserError
from consilience.domain.events import SessionFinished
from consilience.journal.store import Records
from consilience.reporting.forms import answer_from, mistakes
from consilience.reporting.questions import Question
from consilience.reporting.record import read_record
from consilience.server.blindness import seat_links, valid_links
from consilience.server.bodies import CommentBody
from consilience.server.callers import Caller
from consilience.server.dependencies import Service, SessionId, Who
from consilience.server.links import FIELD, TheSeats, checked, url_of
from consilience.server.pages import PageRoute, PostedForm, app_page, go_to, problem_of, read_form
from consilience.server.seats import MAX_LINK_DAYS, SHARES, NewLink
from consilience.server.service import Sessions

routes = APIRouter(prefix="/sessions/{session}", include_in_schema=False, route_class=PageRoute)
DEFAULT_DAYS = 7


@routes.post("/answer")
async def answer(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Answer an open question, or pass on it. What is wrong stands beside the fields of the question, with what was typed."""
    form = await read_form(request)
    key, given = form.get("key"), form.below(FIELD)
    if form.get("do") == "pass":
        await sessions.decline(caller, session, key)
        return go_to(f"/sessions/{session}")
    question = next((asked for asked in await sessions.questions(caller, session) if asked.key == key), None)
    if question is None or question.answered:
        problem = "This question is not open any more: it was answered, its time is over, or the session has ended."
        return await _acted_page(request, sessions, caller, session, problem)
    wrong = mistakes(question, given)
    if form.get("do") == "check":
        return checked(wrong)
    try:
        if not wrong:
            await sessions.answer(caller, session, key, answer_from(question, given))
            return go_to(f"/sessions/{session}")
        problem = "Nothing was sent: see below."
    except UserError as error:
        problem = problem_of(error)
    return _answer_page(request, session, question, given, wrong, problem)


@routes.post("/cancel")
async def cancel(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """End the session, with or without an answer."""
    form = await read_form(request)
    await sessions.cancel(caller, session, answer=form.get("do") == "answer")
    return go_to(f"/sessions/{session}")


@routes.post("/comment")
async def comment(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Put a comment on the record."""
    text = (await read_form(request)).get("text")
    try:
        await sessions.comment(caller, session, CommentBody(text=text).text)
    except ValidationError:
        problem = "Nothing was recorded: the comment is empty or too long."
        return await _acted_page(request, sessions, caller, session, problem, comment=text)
    except UserError as error:
        return await _acted_page(request, sessions, caller, session, problem_of(error), comment=text)
    return go_to(f"/sessions/{session}")


@routes.post("/resume")
async def resume(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Let an interrupted session go on."""
    await read_form(request)
    await sessions.resume(caller, session)
    return go_to(f"/sessions/{session}")


@routes.post("/lift")
async def lift(session: SessionId, request: Request, sessions: Service, caller: Who, seats: TheSeats) -> Response:
    """Let the owner see all of a running session in which they hold a seat. Asked for twice: it cannot be undone."""
    form = await read_form(request)
    if not form.get("sure"):
        await sessions.read(caller, lambda records: records.owner(session))
        return app_page(request, "lift", "See everything before the end?", session=session)
    await seats.lift(caller, session)
    return go_to(f"/sessions/{session}")


@routes.get("/delete")
async def ask_to_remove(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Ask whether the session shall be deleted."""
    task = await sessions.read(caller, lambda records: _task(records, session))
    return app_page(request, "delete", "Delete this session?", session=session, task=task)


@routes.post("/delete")
async def remove(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Delete the session with its texts, if that was confirmed."""
    form = await read_form(request)
    if not form.get("sure"):
        task = await sessions.read(caller, lambda records: _task(records, session))
        problem = "Nothing was deleted. Tick the box if you are sure."
        return app_page(
            request, "delete", "Delete this session?", status=422, problem=problem, session=session, task=task
        )
    await sessions.remove(caller, session)
    return go_to("/sessions")


# --- links


@routes.get("/links")
async def links(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Show the links into the session, and the forms that make others."""
    return await _links_page(request, sessions, caller, session)


@routes.post("/links")
async def make_link(session: SessionId, request: Request, sessions: Service, caller: Who, seats: TheSeats) -> Response:
    """Make a link. Its address is in this answer only, which is why it is no redirect."""
    form = await read_form(request)
    agent = form.get("agent")
    try:
        days = _days(form)
        made = await (
            seats.give(caller, session, agent, days)
            if agent
            else seats.share(caller, session, days, asks=bool(form.get("asks")))
        )
    except UserError as error:
        return await _links_page(request, sessions, caller, session, typed=form, problem=problem_of(error))
    url = url_of(request, "seat" if agent else "share", made)
    return await _links_page(request, sessions, caller, session, made=made, url=url, agent=agent)


@routes.post("/links/{number}/end")
async def end_link(
    session: SessionId, number: int, request: Request, sessions: Service, caller: Who, seats: TheSeats
) -> Response:
    """Withdraw a link."""
    await read_form(request)
    await seats.end_link(caller, session, number)
    return go_to(f"/sessions/{session}/links")


def _days(form: PostedForm) -> float:
    """Return for how many days a link shall be valid. Raises `UserError`."""
    try:
        days = float(form.get("days"))
    except ValueError:
        days = 0.0
    if not 0 < days <= MAX_LINK_DAYS:
        raise UserError(f"the link must be valid for 1 to {MAX_LINK_DAYS:g} days")
    return days


async def _links_page(
    request: Request,
    sessions: Sessions,
    caller: Caller,
    session: str,
    *,
    typed: PostedForm | None = None,
    made: NewLink | None = None,
    url: str = "",
    agent: str = "",
    problem: str = "",
) -> Response:
    def seats_of_people(records: Records) -> tuple[list[tuple[str, str]], bool]:
        started = records.beginning(session)
        people = [(a.id, a.person) for a in started.agents if a.is_person_here] if started else []
        return people, isinstance(records.ending(session), SessionFinished)

    listed = await sessions.seats.links(caller, session)
    people, is_finished = await sessions.read(caller, seats_of_people)
    now = sessions.seats.now()
    return app_page(
        request,
        "links",
        "Links into this session",
        status=422 if problem else 200,
        problem=problem,
        session=session,
        people=people,
        is_finished=is_finished,
        listed=[(link, link.until > now and (link.kind in SHARES) == is_finished) for link in listed],
        days=typed.get("days") if typed else DEFAULT_DAYS,
        chosen=typed.get("agent") if typed else agent,
        most_days=MAX_LINK_DAYS,
        asks=bool(typed and typed.get("asks")),
        opinions=await sessions.seats.opinions(caller, session),
        made=made,
        url=url,
    )


async def _acted_page(
    request: Request, sessions: Sessions, caller: Caller, session: str, problem: str, comment: str = ""
) -> Response:
    """Return all forms of a session again, with what was typed."""
    record = await sessions.read(caller, lambda records: read_record(records, session))
    questions = await sessions.questions(caller, session)
    links = await sessions.read(caller, lambda records: seat_links(records, session))
    return app_page(
        request,
        "acted",
        "This was not done",
        status=422,
        problem=problem,
        session=session,
        record=record,
        questions=questions,
        given_seats=valid_links(links, sessions.seats.now()),
        comment=comment,
    )


def _answer_page(
    request: Request,
    session: str,
    question: Question,
    given: Mapping[str, str],
    wrong: Mapping[str, str],
    problem: str,
) -> Response:
    return app_page(
        request,
        "answering",
        f"A question to {question.addressee}",
        status=422,
        problem=problem,
        session=session,
        question=question,
        given=given,
        wrong=wrong,
        before=FIELD,
    )


def _task(records: Records, session: str) -> str:
    started = read_record(records, session).state.started
    return records.text(started.task) if started else ""
