"""What is done to a session from its pages: by forms alone, with mistakes said and nothing lost."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.domain.events import (
    AnswerReceived,
    CallCompleted,
    CallFailed,
    CancelRequested,
    CommentPosted,
    SessionFinished,
)
from consilience.models.scripted import ScriptedModel
from consilience.server import live_session
from consilience.server.callers import LOCAL
from kit.debating import Debaters
from server.browsing import Browser, Page
from server.inprocess import MODEL, PROXY, PUBLIC, Served, behind_proxy
from server.paged import HOSTILE, finished, paged

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SEATED = {
    "protocol": "emergence",
    "settings": {"children": 2, "max_rounds": 2, "answer_pattern": "yes|no"},
    "models": {"L2N1": "human"},
    "task": "Is it so, yes or no?",
}
"""A request for a session in which a person has a seat beside a model."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with paged(tmp_path) as server:
        yield server


def browser(server: Served) -> Browser:
    return Browser(server.client(Origin="http://127.0.0.1:8765"))


def forms_of(ada: Browser, session: str) -> Page:
    """The page with all forms of a session, as it is shown after a mistake."""
    page = ada.open(f"/sessions/{session}/delete")
    form = page.form("/delete")
    form.action = f"/sessions/{session}/comment"
    return ada.send(form, status=422)


def test_answer_has_the_form_of_the_question_and_mistakes_stand_beside_its_fields(server: Served) -> None:
    session = server.begin(server.client(), SEATED)
    ada = browser(server)
    page = forms_of(ada, session)
    form = page.form("/answer")
    assert page.unlabelled == []
    names = [field.name for field in form.fields if field.name.startswith("field:")]
    assert names
    wrong = ada.send(form, "answer", status=422)
    assert wrong.problems
    assert set(wrong.problems) <= set(names)
    form = wrong.form("/answer")
    check = ada.send(form, "check").answer.json()
    assert set(check) == set(wrong.problems), "while it is typed, by the same check"
    for field in form.fields:
        if field.name in names:
            field.value = (
                field.options[1] if field.kind == "select" else "0.5" if field.kind == "number" else "yes: mine"
            )
    assert ada.send(form, "check").answer.json() == {}
    assert not any(isinstance(event, AnswerReceived) for event in server.store.read(session)), "nothing is recorded"
    sent = ada.send(form, "answer", status=303)
    assert sent.answer.headers["location"] == f"/sessions/{session}"
    server.settle()
    assert [e.agent for e in server.store.read(session) if isinstance(e, CallCompleted) and e.agent == "L2N1"]


def test_seat_that_was_given_away_shows_its_holder_in_place_of_the_form(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_session, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(live_session, "MAX_SHARE", float("inf"))
    session = server.begin(server.client(), SEATED)
    ada = browser(server)
    assert any(form.action.endswith("/answer") for form in ada.open(f"/sessions/{session}").forms)
    form = ada.open(f"/sessions/{session}/links").form("/links")
    form.fill(agent="L2N1", days="2")
    ada.send(form)
    for page in (ada.open(f"/sessions/{session}"), forms_of(ada, session)):
        assert not any(form.action.endswith("/answer") for form in page.forms)
        assert "This seat was given away: who has a link into it answers, and nobody else." in page.text
        assert "A question waits for an answer" not in page.text
    withdrawn = ada.send(page.form("/links/1/end"), status=303)
    assert withdrawn.answer.headers["location"] == f"/sessions/{session}/links"
    page = ada.open(f"/sessions/{session}")
    assert "no link into it is valid now, so nobody can answer" in page.text
    assert f"/sessions/{session}/links" in page.links
    assert not any(form.action.endswith("/end") for form in page.forms)


def test_pass_and_a_question_that_is_not_open_any_more(server: Served) -> None:
    session = server.begin(server.client(), SEATED)
    ada = browser(server)
    form = forms_of(ada, session).form("/answer")
    ada.send(form, "pass", status=303)
    server.settle()
    assert any(isinstance(e, CallFailed) and e.agent == "L2N1" for e in server.store.read(session))
    late = ada.send(form, "answer", status=422)
    assert "not open any more" in late.alerts


def test_owner_with_a_seat_sees_nothing_of_the_others_on_these_pages(tmp_path: Path) -> None:
    with paged(tmp_path, model=ScriptedModel(lambda request: f"secret-{request.agent}: yes", name=MODEL)) as server:
        session = server.begin(server.client(), SEATED)
        told = [e for e in server.store.read(session) if isinstance(e, CallCompleted)]
        assert told
        assert any("secret-" in server.store.text(e.text) for e in told)
        ada = browser(server)
        pages = [forms_of(ada, session), *(ada.open(path) for path in ("/sessions", f"/sessions/{session}/links"))]
        assert "secret-" not in "".join(page.source for page in pages)
        refused = ada.open(f"/sessions/{session}/fork", status=403)
        assert "hold a seat" in refused.alerts
        sure = ada.send(pages[0].form("/lift"))
        assert "cannot be undone" in sure.text
        assert "blindness_lifted" not in str([e.type for e in server.store.read(session)])
        ada.send(sure.form("/lift"), "yes", status=303)
        server.settle()
        assert "blindness_lifted" in str([e.type for e in server.store.read(session)])


@pytest.mark.parametrize(("button", "text"), [("answer", "answer"), ("stop", "")])
def test_cancel_with_and_without_an_answer(server: Served, button: str, text: str) -> None:
    session = server.begin(server.client(), SEATED)
    ada = browser(server)
    ada.send(forms_of(ada, session).form("/cancel"), button, status=303)
    server.settle()
    cancel = next(e for e in server.store.read(session) if isinstance(e, CancelRequested))
    assert cancel.answer is (text == "answer")
    assert isinstance(server.store.ending(session), SessionFinished)


def test_comment_goes_on_the_record_and_an_empty_one_is_said(server: Served) -> None:
    session = server.begin(server.client(), SEATED)
    ada = browser(server)
    page = forms_of(ada, session)
    assert "Nothing was recorded" in page.alerts
    form = page.form("/comment")
    form.fill(text=f"Mind the tide.\n{HOSTILE}")
    ada.send(form, status=303)
    server.settle()
    posted = next(e for e in server.store.read(session) if isinstance(e, CommentPosted))
    assert server.store.text(posted.text) == f"Mind the tide.\n{HOSTILE}"
    server.client().post(f"/api/sessions/{session}/cancel", json={})
    server.settle()
    late = ada.send(form, status=422)
    assert "finished" in late.alerts
    assert "img" not in late.tags


def test_delete_asks_first(server: Served) -> None:
    session = finished(server, task=HOSTILE)
    ada = browser(server)
    page = ada.open(f"/sessions/{session}/delete")
    assert "img" not in page.tags
    kept = ada.send(page.form("/delete"), status=422)
    assert "Nothing was deleted" in kept.alerts
    form = kept.form("/delete")
    form.fill(sure="yes")
    ada.send(form, status=303)
    assert server.store.sessions() == []


def test_seat_link_is_made_shown_once_listed_and_withdrawn(server: Served) -> None:
    session = server.begin(server.client(), SEATED)
    ada, ben = browser(server), browser(server)
    form = ada.open(f"/sessions/{session}/links").form("/links")
    form.fill(days="0")
    wrong = ada.send(form, status=422)
    assert "1 to 366 days" in wrong.alerts
    form = wrong.form("/links")
    form.fill(days="2")
    made = ada.send(form)
    found = re.search(r"http://\S+(/seat/[\w-]+)", made.text)
    assert found
    listed = ada.open(f"/sessions/{session}/links")
    assert found[1] not in listed.source  # it was shown once
    assert "Is it so" in ben.open(found[1]).text
    ada.send(listed.form("/end"), status=303)
    assert "not valid" in ben.open(found[1], status=404).text


def test_fork_shows_its_plan_first_and_says_what_cannot_be(server: Served) -> None:
    parent = finished(server)
    ada = browser(server)
    form = ada.open(f"/sessions/{parent}/fork").form("")
    same = ada.send(form, "plan", status=422)
    assert list(same.problems) == ["at"]
    form = same.form("")
    form.fill(at="0", task="Cats, dogs or birds?", settings__votes="3")
    planned = ada.send(form, "plan")
    assert "0 replies inherited" in planned.text
    assert "3 calls" in planned.text
    assert server.store.sessions() == [parent]
    sent = ada.send(planned.form(""), "begin", status=303)
    child = sent.answer.headers["location"].rpartition("/")[2]
    started = server.store.beginning(child)
    assert started is not None
    assert (started.parent, started.settings["votes"], server.store.text(started.task)) == (
        parent,
        3,
        "Cats, dogs or birds?",
    )
    form.fill(at="nowhere")
    wrong = ada.send(form, "plan", status=422)
    assert "nowhere" in wrong.problems["at"]
    assert wrong.form("").named("settings.votes")[0].value == "3"


DEBATE = {"protocol": "debate", "settings": {"max_messages": 40}, "task": "Should we move to the new queue?"}


@pytest.fixture
def debated(tmp_path: Path) -> Iterator[tuple[Served, str]]:
    with paged(tmp_path, model=ScriptedModel(Debaters(), name=MODEL)) as server:
        yield server, server.begin(server.client(), DEBATE)


def test_tell_takes_a_fact_or_how_a_question_came_out(debated: tuple[Served, str]) -> None:
    server, parent = debated
    ada = browser(server)
    page = ada.open(f"/sessions/{parent}/tell")
    empty = ada.send(page.form(""), "plan", status=422)
    assert list(empty.problems) == ["fact"]
    form = empty.form("")
    chosen = form.named("question")[0].options[1]
    form.fill(question=chosen, outcome="yes")
    planned = ada.send(form, "plan")
    assert "inherited" in planned.text
    sent = ada.send(planned.form(""), "begin", status=303)
    server.settle()
    child = sent.answer.headers["location"].rpartition("/")[2]
    started = server.store.beginning(child)
    assert started is not None
    assert started.parent == parent
    assert "has been answered: yes" in json.dumps(started.settings, ensure_ascii=False)


def test_questions_of_a_session_are_answered_from_its_page(debated: tuple[Served, str]) -> None:
    server, session = debated
    ada = browser(server)
    shown = ada.open(f"/sessions/{session}")
    assert f"/sessions/{session}/outcomes" in shown.links
    stored = server.store.ending(session)
    assert isinstance(stored, SessionFinished)
    forecasts = json.loads(server.store.text(stored.forecasts))
    findings = sum(len(forecast["falsifiers"]) for forecast in forecasts)
    assert findings > 1
    words = f"{len(forecasts)} questions that the future may answer, and {findings} findings that would change a mind"
    assert words in shown.text
    page = ada.open(f"/sessions/{session}/outcomes")
    report = server.client().get(f"/api/sessions/{session}").json()["report"]
    assert report["framing"]["propositions"][0] in page.text
    assert "What would change their minds:" in page.text
    form = page.form("/resolve")
    sent = ada.send(form, "did not happen", status=303)
    assert sent.answer.headers["location"] == f"/sessions/{session}/outcomes"
    assert "It did not happen. Recorded on" in " ".join(ada.open(f"/sessions/{session}/outcomes").text.split())
    wrong = ada.send(form, status=422)
    assert "Choose whether it happened" in wrong.alerts
    assert ada.open("/sessions/none/outcomes", status=404).alerts


def test_due_forecasts_are_resolved_from_the_list(debated: tuple[Served, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.server.sessions_page.NEAR_DAYS", 99_999)
    server, _ = debated
    ada = browser(server)
    page = ada.open("/sessions")
    assert "What is due" in page.text
    form = page.form("/resolve")
    ada.send(form, status=422)
    form.fill(outcome="happened")
    sent = ada.send(form, status=303)
    assert sent.answer.headers["location"] == "/sessions#due"
    assert (server.store.path and Path(server.store.path).with_suffix(".resolutions")).exists()


def test_sessions_are_listed_searched_and_what_waits_stands_on_top(server: Served) -> None:
    waiting = server.begin(server.client(), SEATED)
    other = finished(server, task=f"Ferry {HOSTILE}", name="crossing")
    ada = browser(server)
    page = ada.open("/sessions")
    assert "What waits for you" in page.text
    assert f"/sessions/{waiting}#questions" in page.links
    assert f"/sessions/{other}" in page.links
    assert "img" not in page.tags
    form = page.form("/sessions")
    form.fill(q="ferry crossing")
    found = ada.send(form)
    assert f"/sessions/{other}" in found.links
    assert f"/sessions/{waiting}" not in found.links
    assert "What waits for you" not in found.text


def test_pages_of_the_list_have_fifty_sessions(server: Served) -> None:
    for _ in range(51):
        asyncio.run(_prepared(server))
    ada = browser(server)
    page = ada.open("/sessions")
    assert "51 sessions, page 1 of 2" in page.text
    older = next(link for link in page.links if link.startswith("/sessions?"))
    assert "page 2 of 2" in ada.open(older).text


async def _prepared(server: Served) -> None:
    from consilience import Deliberation, Vote

    await Deliberation(Vote(votes=1), model="human", store=server.store.of("")).prepare("A?")


def test_two_sessions_are_compared_side_by_side(server: Served) -> None:
    first, second = finished(server), finished(server, task="Cats or birds?", settings={"votes": 3})
    ada = browser(server)
    page = ada.open(f"/sessions/{first}/compare?other={second}")
    for told in ("Answers side by side", "Settings", "votes", "Results", "calls made", first, second):
        assert told in page.text
    diff = asyncio.run(server.sessions.read(LOCAL, lambda records: _diff(records, first, second)))
    for name, pair in diff["setup"].items():
        assert name in page.text
        assert all(str(value) in page.text for value in pair if len(str(value)) < 100)
    ada.open(f"/sessions/{first}/compare/nope", status=404)


def _diff(records: object, first: str, second: str) -> dict[str, dict[str, list[str]]]:
    from consilience.reporting.record import read_record
    from consilience.reporting.session_diff import SessionDiff

    return SessionDiff(read_record(records, first), read_record(records, second)).as_json()  # type: ignore[arg-type, return-value]


GETS = ["fork", "tell", "links", "delete", "compare/{}", "compare?other={}"]
POSTS = ["answer", "cancel", "comment", "resume", "lift", "delete", "links", "links/1/end", "fork", "tell", "resolve"]


def test_another_owner_s_session_is_not_there_and_a_foreign_form_changes_nothing(tmp_path: Path) -> None:
    access, tokens = behind_proxy(tmp_path, "anna", "bob")
    with paged(tmp_path, access) as server:
        anna = server.client(tokens["anna"], peer=PROXY, X_Forwarded_Proto="https", Origin=PUBLIC)
        session = server.begin(anna, {**SEATED, "task": "Only Anna asks this?"})
        ben = Browser(server.client(tokens["bob"], peer=PROXY, X_Forwarded_Proto="https", Origin=PUBLIC))
        pages = [ben.open(f"/sessions/{session}/{path.format(session)}", status=404) for path in GETS]
        form = ben.open("/").form("/")
        form.is_multipart = False
        for path in POSTS:
            form.action = f"/sessions/{session}/{path}"
            form.fields = [field for field in form.fields if field.name == "form_token"]
            pages.append(ben.send(form, status=404 if path != "resolve" else 422))
        pages.append(ben.open("/sessions"))
        assert "Only Anna" not in "".join(page.source for page in pages)
        before = len(server.store.read(session))
        mine = Browser(anna)
        mine.open("/")
        form.fields[0].value = "guessed"
        for path in POSTS:
            form.action = f"/sessions/{session}/{path}"
            mine.send(form, status=403)
        assert len(server.store.read(session)) == before
