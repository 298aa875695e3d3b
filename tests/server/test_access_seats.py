"""What the holder of a seat sees of a running session, and what links open."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consilience import Deliberation, Options
from consilience.domain.events import CallCompleted, CallFailed, MessagePublished, SessionFinished
from consilience.domain.outcome import FailureKind
from consilience.domain.report import Report
from consilience.journal.store import Records
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence import Emergence
from consilience.reporting.export import as_events, as_html, as_json, as_markdown
from consilience.reporting.record import read_record
from consilience.reporting.views import views_of
from consilience.server.blindness import SeatView, SeenReader
from consilience.server.callers import LOCAL, Forbidden
from consilience.server.mcp_face import ToolFace, session_text
from consilience.server.service import Sessions
from server.inprocess import Served, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PERSON, OTHER = "L2N1", "L2N2"
SETTINGS = {"children": 2, "depth": 2, "max_rounds": 2, "answer_pattern": "yes|no"}
TASK = "Is it so, yes or no?"


def reply(request: Any) -> str:
    """A text that names its call, so that it is known where it appears."""
    if "ballot" in request.key:
        return json.dumps({"position": "no", "confidence": "certain", "reason": f"ballot-of-{request.agent}"})
    return f"secret-{request.agent}-{request.key.replace('/', '-')}: yes"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(
        tmp_path, models={"L1N1": ScriptedModel(reply), PERSON: "human", OTHER: ScriptedModel(reply)}
    ) as server:
        yield server


@pytest.fixture
def session(server: Served) -> str:
    """A session in which the others have replied, and a person is asked for the first time."""
    models: Any = {"L1N1": ScriptedModel(reply), PERSON: "human", OTHER: ScriptedModel(reply)}
    deliberation: Any = Deliberation(
        Emergence(**SETTINGS), model=models, store=server.store.of(""), options=Options(human_deadline=86_400)
    )
    id = asyncio.run(deliberation.prepare(TASK, session="s1"))
    server.executor.submit(id)
    server.settle()
    return str(id)


def all_that_is_shown(server: Served, session: str) -> str:
    """Everything that the faces can show of a session to its owner."""
    client = server.client()
    parts = [client.get(f"/api/sessions/{session}").text]

    def shown(records: Records) -> list[str]:
        record = read_record(records, session)
        views = [view.model_dump_json() for view in views_of(record).values()]
        others = [str(records.flights(session)), str(records.mail(session)), str(records.arrivals(session))]
        exports = [as_json(record), as_markdown(record), as_html(record), as_events(record)]
        return [*exports, *views, *others, str(records.beginning(session)), str(records.ending(session))]

    parts += asyncio.run(server.sessions.read(LOCAL, shown))
    for path in ("", "/fragments", "/at/3", "/at/999", "/calls", "/views/evolution", "?before=999"):
        answer = client.get(f"/sessions/{session}{path}")
        assert answer.status_code == 200, path
        parts.append(answer.text)
    return "\n".join(parts)


def truth(server: Served, session: str) -> str:
    return "\n".join(event.model_dump_json() for event in server.store.read(session))


def test_owner_with_a_seat_sees_of_a_running_session_only_what_the_seat_was_shown(server: Served, session: str) -> None:
    replied = [e for e in server.store.read(session) if isinstance(e, CallCompleted)]
    assert {e.agent for e in replied} == {OTHER}  # the others went on
    shown = all_that_is_shown(server, session)
    assert TASK in shown
    assert f"secret-{OTHER}" not in shown
    assert f"ballot-of-{OTHER}" not in shown
    for event in replied:
        assert event.text not in shown
        assert event.prompt not in shown


def answer_all(server: Served, session: str) -> list[str]:
    """Answer every question to its end, and return what was shown before each answer."""
    before = []
    while server.client().get(f"/api/sessions/{session}").json()["state"] == "waiting":
        before.append(all_that_is_shown(server, session))
        questions = asyncio.run(server.sessions.questions(LOCAL, session))
        typed = '{"position": "yes", "confidence": "certain", "reason": "mine"}'
        text = typed if "ballot" in questions[0].key else "my own words: yes"
        answered = server.client().post(f"/api/sessions/{session}/answer", json={"key": questions[0].key, "text": text})
        assert answered.status_code == 200, answered.text
        server.settle()
    return before


def test_blindness_holds_to_the_end_and_then_everything_is_there(server: Served, session: str) -> None:
    before = answer_all(server, session)
    assert len(before) > 3
    words = set(re.findall(rf"secret-(?:{OTHER}|L1N1)-[\w-]+", truth_texts(server, session)))
    for shown in before:
        assert f"ballot-of-{OTHER}" not in shown
    quoted = {word for word in words if any(word in shown for shown in before)}
    assert quoted  # what others said to the seat is there,
    assert quoted < words  # and what was said elsewhere is not
    after = all_that_is_shown(server, session)
    assert f"ballot-of-{OTHER}" in after
    assert all(word in after for word in words)


def truth_texts(server: Served, session: str) -> str:
    return "\n".join(
        server.store.text(event.text) for event in server.store.read(session) if isinstance(event, CallCompleted)
    )


def test_quoted_message_is_there_under_its_label_only_with_the_call_that_quotes_it(
    server: Served, session: str
) -> None:
    while not (quoted := quotes(server, session)):
        answer_one(server, session)
    assert not {message.sender for message in quoted} & {OTHER, "L1N1"}
    assert {message.id for message in quoted} == {f"quoted-{n}" for n in range(1, len(quoted) + 1)}
    assert all("secret-" in server.store.text(message.text) for message in quoted)


def answer_one(server: Served, session: str) -> None:
    question = asyncio.run(server.sessions.questions(LOCAL, session))[0]
    typed = '{"position": "yes", "confidence": "certain", "reason": "mine"}'
    asyncio.run(
        server.sessions.answer(LOCAL, session, question.key, typed if "ballot" in question.key else "my words: yes")
    )
    server.settle()


def quotes(server: Served, session: str) -> list[MessagePublished]:
    seen = asyncio.run(server.sessions.read(LOCAL, lambda records: records.read(session)))
    return [event for event in seen if isinstance(event, MessagePublished) and event.kind == "quoted"]


def test_events_are_the_same_read_or_followed_and_no_continuation_misses_one(server: Served, session: str) -> None:
    answer_all_but_last(server, session)
    raw = server.store.read(session)
    view = SeatView(frozenset({PERSON}))
    steps = [(event.seq, seen.model_dump_json()) for event in raw for seen in view.take(event, server.store)]
    seen = asyncio.run(server.sessions.read(LOCAL, lambda records: records.read(session)))
    assert [body for _, body in steps] == [event.model_dump_json() for event in seen]
    assert [event.seq for event in seen] == sorted(event.seq for event in seen)
    for position, event in enumerate(seen):  # a reader who stopped after any event gets all that follow it

        async def rest(after: int = event.seq) -> list[str]:
            reader = SeenReader(server.store.reader).of("")
            events = await reader.run(lambda records: records.read(session, after=after))
            return [e.model_dump_json() for e in events]

        following = [event.model_dump_json() for event in seen[position + 1 :]]
        assert following == asyncio.run(rest())[-len(following) :] if following else True

    async def follow() -> list[str]:
        found = []
        async for event in server.sessions.tail(LOCAL, session):
            found.append(event.model_dump_json())
            if len(found) == len(seen):
                break
        return found

    assert asyncio.run(follow()) == [event.model_dump_json() for event in seen]


def answer_all_but_last(server: Served, session: str) -> None:
    for _ in range(3):
        answer_one(server, session)
    assert server.client().get(f"/api/sessions/{session}").json()["state"] == "waiting"


def test_lifting_blindness_shows_everything_is_recorded_and_is_in_the_report(server: Served, session: str) -> None:
    assert server.client().post(f"/api/sessions/{session}/lift").status_code == 200
    server.settle()
    assert f"secret-{OTHER}" in all_that_is_shown(server, session)
    assert "blindness_lifted" in truth(server, session)
    server.client().post(f"/api/sessions/{session}/cancel", json={})
    server.settle()
    record = read_record(server.store, session)
    for text in (as_markdown(record), as_html(record)):
        assert "lifted the blindness of the seats of people" in text


def test_nobody_who_is_blind_forks_the_session_to_see_it(server: Served, session: str) -> None:
    with pytest.raises(Forbidden, match="hold a seat"):
        asyncio.run(server.sessions.seats.check_whole(LOCAL, session))
    asyncio.run(server.sessions.seats.lift(LOCAL, session))
    asyncio.run(server.sessions.seats.check_whole(LOCAL, session))


def test_a_person_s_pass_ends_the_call_and_the_session_goes_on(server: Served, session: str) -> None:
    passed = []
    while asked := asyncio.run(server.sessions.questions(LOCAL, session)):
        passed.append(asked[0].key)
        assert server.client().post(f"/api/sessions/{session}/pass", json={"key": passed[-1]}).status_code == 200
        server.settle()
    failed = [e for e in server.store.read(session) if isinstance(e, CallFailed)]
    assert [e.key for e in failed] == passed
    assert {(e.failure, e.detail) for e in failed} == {(FailureKind.REFUSED, "the person passed")}
    replayed = Deliberation[Report](store=server.store).replay_sync(session)
    finished = server.store.ending(session)
    assert isinstance(finished, SessionFinished)
    assert finished.report_digest == replayed.digest()


# --- seat links


def link(server: Served, session: str, agent: str = PERSON, days: float = 1) -> str:
    made = server.client().post(f"/api/sessions/{session}/seats/{agent}/link", json={"days": days})
    assert made.status_code == 201, made.text
    assert made.json()["url"].endswith(f"/seat/{made.json()['token']}")
    return str(made.json()["token"])


def test_seat_link_shows_the_question_and_takes_the_answer(server: Served, session: str) -> None:
    token = link(server, session)
    asked = server.client().get(f"/seat/{token}")
    assert asked.status_code == 200
    question = asked.json()["question"]
    assert TASK in question["text"]
    assert f"secret-{OTHER}" not in asked.text
    sent = server.client().post(f"/seat/{token}", json={"key": question["key"], "text": "not json"})
    assert sent.status_code in (200, 422)
    if sent.status_code == 422:
        typed = '{"position": "yes", "confidence": "certain", "reason": "mine"}'
        sent = server.client().post(f"/seat/{token}", json={"key": question["key"], "text": typed})
    assert sent.status_code == 200, sent.text
    server.settle()
    done = [e for e in server.store.read(session) if isinstance(e, CallCompleted) and e.agent == PERSON]
    assert [e.key for e in done] == [question["key"]]


def test_seat_page_is_a_form_with_its_deadline_that_needs_its_own_token(server: Served, session: str) -> None:
    token = link(server, session)
    browser = server.client(Accept="text/html")
    page = browser.get(f"/seat/{token}")
    assert "Answer before 20" in page.text
    assert re.findall("<script[^>]*>", page.text) == [f'<script src="/seat/{token}/page.js" defer>']
    assert browser.get(f"/seat/{token}/page.js").headers["content-type"].startswith("text/javascript")
    assert browser.get("/seat/guessed/page.js").status_code == 404
    assert page.headers["referrer-policy"] == "same-origin"
    assert f"secret-{OTHER}" not in page.text
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]+)"', page.text))
    names = re.findall(r'name="(field:[^"]+)"', page.text)
    values = {"field:position": "yes", "field:confidence": "certain", "field:reason": "since <b>"}
    sent = {**fields, "do": "answer", **{name: values.get(name, "yes") for name in names}}
    assert browser.post(f"/seat/{token}", data={**sent, "form_token": "guessed"}).status_code == 403
    posted = browser.post(f"/seat/{token}", data=sent)
    assert posted.status_code == 303, posted.text
    server.settle()
    assert [e.agent for e in server.store.read(session) if isinstance(e, CallCompleted) and e.agent == PERSON]


def test_seat_link_can_pass(server: Served, session: str) -> None:
    token = link(server, session)
    key = server.client().get(f"/seat/{token}").json()["question"]["key"]
    assert server.client().post(f"/seat/{token}", json={"key": key, "pass": True}).status_code == 200
    server.settle()
    assert any(isinstance(e, CallFailed) and e.key == key for e in server.store.read(session))


def test_seat_link_opens_nothing_else(server: Served, session: str) -> None:
    token = link(server, session)
    for path in (f"/share/{token}", f"/seat/{token}/x", f"/seat/{token}x", "/seat/", "/seat/x"):
        assert server.client().get(path).status_code == 404, path
    other = server.client().post(f"/seat/{token}", json={"key": "another/key", "text": "x"})
    assert other.status_code == 404
    assert server.client().post(f"/seat/{token}", json={"key": "k", "text": "x", "session": "other"}).status_code == 422
    assert server.client().delete(f"/seat/{token}").status_code == 405


def test_owner_does_not_answer_for_a_seat_that_was_given_away_and_sees_the_rest(server: Served, session: str) -> None:
    link(server, session)
    refused = server.client().post(f"/api/sessions/{session}/answer", json={"key": PERSON, "text": "x"})
    assert refused.status_code == 403
    assert server.client().post(f"/api/sessions/{session}/pass", json={"key": PERSON}).status_code == 403
    assert f"secret-{OTHER}" in all_that_is_shown(server, session)  # they hold no seat any more


def test_tools_do_not_ask_for_the_answer_of_a_seat_that_was_given_away(server: Served, session: str) -> None:
    async def sessions() -> Sessions:
        return server.sessions

    face = ToolFace(sessions, lambda request: LOCAL)
    asked = asyncio.run(session_text(server.sessions, face, None, session))
    link(server, session)
    assert f'answer(session="{session}"' in asked
    assert "answer(" not in asyncio.run(session_text(server.sessions, face, None, session))


def test_link_is_stored_as_a_digest_ends_is_withdrawn_and_survives_a_restart(
    server: Served, session: str, tmp_path: Path
) -> None:
    first, second = link(server, session), link(server, session)
    listed = server.client().get(f"/api/sessions/{session}/links").json()
    assert [(entry["kind"], entry["agent"]) for entry in listed] == [("seat", PERSON)] * 2
    for file in tmp_path.iterdir():
        if file.is_file():
            assert first.encode() not in file.read_bytes()
    assert server.client().delete(f"/api/sessions/{session}/links/{listed[0]['link']}").status_code == 200
    assert server.client().get(f"/seat/{first}").status_code == 404
    assert server.client().get(f"/seat/{second}").status_code == 200
    with served(tmp_path, access=server.access) as again:
        assert again.client().get(f"/seat/{second}").status_code == 200
        again.sessions.seats.now = lambda: 4e9
        assert again.client().get(f"/seat/{second}").status_code == 404


def test_seat_link_ends_with_its_session_and_is_removed_with_it(server: Served, session: str) -> None:
    token = link(server, session)
    server.client().post(f"/api/sessions/{session}/cancel", json={})
    server.settle()
    assert server.client().get(f"/seat/{token}").status_code == 404
    assert server.client().post(f"/api/sessions/{session}/seats/{PERSON}/link", json={}).status_code == 422
    assert server.client().delete(f"/api/sessions/{session}").status_code == 200
    assert server.store._rows("SELECT * FROM links") == []


@pytest.mark.parametrize("agent", ["L2N2", "nobody", "..", "L1N1"])
def test_link_is_made_into_seats_of_people_only(server: Served, session: str, agent: str) -> None:
    assert server.client().post(f"/api/sessions/{session}/seats/{agent}/link", json={}).status_code in (404, 405)
    assert server.client().get(f"/api/sessions/{session}/links").json() == []


# --- share links


def test_share_link_shows_the_page_of_a_finished_session_and_nothing_else(server: Served, session: str) -> None:
    assert server.client().post(f"/api/sessions/{session}/share", json={}).status_code == 422
    server.client().post(f"/api/sessions/{session}/cancel", json={})
    server.settle()
    made = server.client().post(f"/api/sessions/{session}/share", json={"days": 2})
    assert made.status_code == 201, made.text
    token = made.json()["token"]
    page = server.client().get(f"/share/{token}")
    assert page.status_code == 200
    assert TASK in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    whole = server.client().get(f"/share/{token}/report")
    assert whole.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert server.client().get(f"/seat/{token}").status_code == 404
    assert server.client().post(f"/share/{token}").status_code == 403  # from no page
    number = server.client().get(f"/api/sessions/{session}/links").json()[0]["link"]
    server.client().delete(f"/api/sessions/{session}/links/{number}")
    assert server.client().get(f"/share/{token}").status_code == 404
