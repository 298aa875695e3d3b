"""The first page: what was typed becomes a plan, the plan that was seen becomes a session, and nothing typed is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.models.scripted import ScriptedModel
from server.browsing import Browser, Page, WebForm
from server.inprocess import MODEL, Served
from server.paged import HOSTILE, finished, paged

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with paged(tmp_path) as server:
        yield server


def browser(server: Served) -> Browser:
    return Browser(server.client(Origin="http://127.0.0.1:8765"))


def filled(page: Page, **values: str) -> WebForm:
    form = page.form("/")
    form.fill(**values)
    return form


def begun(page: Page) -> str:
    """The session to which the browser is sent."""
    assert page.status == 303, page.alerts
    found = re.fullmatch(r"/sessions/(\w+)", page.answer.headers["location"])
    assert found
    return found[1]


def test_plan_is_shown_before_the_session_and_begun_as_it_was_shown(server: Served) -> None:
    ada = browser(server)
    form = filled(ada.open("/"), task="Ferry or bridge?", protocol="vote", vote__votes="2", limits__calls="7")
    planned = ada.send(form, "plan", files={"costs.txt": b"A ferry costs 40 a day."})
    assert "2 calls" in planned.text
    for told in ("Cost", "nothing", "Time not known", "costs.txt", "all seats", MODEL):
        assert told in planned.text
    assert server.store.sessions() == []  # nothing is recorded before
    session = begun(ada.send(planned.form("/"), "begin", status=303))
    server.settle()
    started = server.store.beginning(session)
    assert started is not None
    assert (started.protocol, started.settings["votes"], started.limits.calls) == ("vote", 2, 7)
    assert [server.store.text(source.text) for source in started.sources] == ["A ferry costs 40 a day."]
    assert server.store.text(started.task) == "Ferry or bridge?"


def test_plan_that_was_not_seen_is_not_begun(server: Served) -> None:
    ada = browser(server)
    planned = ada.send(filled(ada.open("/"), task="A?", protocol="vote", vote__votes="2"), "plan")
    changed = ada.send(filled(planned, vote__votes="3"), "begin")
    assert "3 calls" in changed.text
    assert server.store.sessions() == []
    session = begun(ada.send(changed.form("/"), "begin", status=303))
    started = server.store.beginning(session)
    assert started is not None
    assert started.settings["votes"] == 3


def test_every_mistake_stands_beside_its_field_and_nothing_is_lost(server: Served) -> None:
    ada = browser(server)
    wrong = {
        "vote.votes": {"vote__votes": "0"},
        "limits.calls": {"limits__calls": "-1"},
        "people": {"people": "Ada, Ben, Cem", "vote__votes": "2"},
        "task": {"task": "  "},
    }
    for name, values in wrong.items():
        given = {"task": "Ferry or bridge?", "protocol": "vote", "name": "crossing", **values}
        page = ada.send(filled(ada.open("/"), **given), "plan", status=422, files={"costs.txt": b"It costs 40."})
        assert list(page.problems) == [name], (name, page.problems, page.alerts)
        form = page.form("/")
        shown = {
            field.name: field.value for field in form.fields if field.kind not in ("checkbox", "radio") or field.is_on
        }
        assert shown["name"] == "crossing"
        assert shown["protocol"] == "vote"
        assert "It costs 40." in shown["document"]
        for typed, value in values.items():
            assert shown[typed.replace("__", ".")] == value
        assert page.alerts.strip()
    assert server.store.sessions() == []


def test_file_that_cannot_be_read_is_named_and_left_out_only_with_consent(server: Served) -> None:
    ada = browser(server)
    form = filled(ada.open("/"), task="A?", protocol="vote")
    page = ada.send(form, "plan", files={"a.txt": b"Read.", "b.docx": b"PK\3\4broken"})
    assert "b.docx is left out" in page.problems["sources"]
    assert ("do", "begin") not in page.form("/").buttons
    again = ada.send(page.form("/"), "plan")
    session = begun(ada.send(again.form("/"), "begin", status=303))
    started = server.store.beginning(session)
    assert started is not None
    assert [source.name for source in started.sources] == ["a.txt"]


def test_document_is_dropped_by_its_box(server: Served) -> None:
    ada = browser(server)
    form = filled(ada.open("/"), task="A?", protocol="vote")
    form = ada.send(form, "plan", files={"a.txt": b"One.", "b.txt": b"Two."}).form("/")
    form.named("document")[0].is_on = False
    page = ada.send(form, "plan")
    assert [field.value for field in page.form("/").named("document") if "Two." in field.value]
    assert len(page.form("/").named("document")) == 1


def test_ask_proposes_by_rule_and_says_why(server: Served) -> None:
    ada = browser(server)
    diff = b"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    page = ada.send(filled(ada.open("/"), task="Is it right?"), "plan", files={"x.diff": diff})
    assert "review:" in page.text
    assert "a change is to be checked" in page.text
    assert server.store.sessions() == []
    session = begun(ada.send(page.form("/"), "begin", status=303))
    started = server.store.beginning(session)
    assert started is not None
    assert started.protocol == "review"


def test_ask_reads_a_task_once_and_begins_what_it_proposed(tmp_path: Path) -> None:
    reading = {"kind": "answer", "shape": "one", "divides": False, "record": False, "why": "It is a plain question."}

    class Reader(ScriptedModel):
        def __init__(self) -> None:
            super().__init__(self.say, name=MODEL)

        def say(self, request: object) -> str:
            import json

            fields = (request.schema or {}).get("properties", {})  # type: ignore[attr-defined]
            if "kind" not in fields:
                return "Forty."
            usual = {
                n: (f["enum"][0] if "enum" in f else False if f.get("type") == "boolean" else "x")
                for n, f in fields.items()
            }
            return json.dumps(usual | {name: value for name, value in reading.items() if name in fields})

    with paged(tmp_path, model=Reader()) as server:
        ada = browser(server)
        page = ada.send(filled(ada.open("/"), task="What does a ferry cost?"), "plan")
        assert "It is a plain question" in page.text
        (read,) = server.store.sessions()
        assert f"/sessions/{read}" in page.links
        session = begun(ada.send(page.form("/"), "begin", status=303))
        assert server.store.sessions() == [read, session]  # the task was not read twice
        started = server.store.beginning(session)
        assert started is not None
        assert started.protocol == "solo"


def test_people_take_the_first_seats_and_the_plan_says_who_sits_where(server: Served) -> None:
    ada = browser(server)
    page = ada.send(filled(ada.open("/"), task="A?", protocol="vote", vote__votes="3", people="Ada, human"), "plan")
    assert "human:Ada" in page.text
    session = begun(ada.send(page.form("/"), "begin", status=303))
    started = server.store.beginning(session)
    assert started is not None
    assert [agent.model for agent in started.agents] == ["human:Ada", "human", MODEL]


def test_follow_up_is_one_call_on_what_the_session_left(server: Served) -> None:
    parent = finished(server)
    ada = browser(server)
    page = ada.open(f"/?after={parent}&task=And+birds%3F")
    assert parent in page.text
    planned = ada.send(page.form("/"), "plan")
    assert f"the answer of session {parent}" in planned.text
    session = begun(ada.send(planned.form("/"), "begin", status=303))
    started = server.store.beginning(session)
    assert started is not None
    assert (started.protocol, started.sources[0].name) == ("solo", f"the answer of session {parent}")
    assert ada.open("/?after=nope", status=404).alerts


def test_hostile_texts_are_shown_as_texts(server: Served) -> None:
    ada = browser(server)
    form = filled(ada.open("/"), task=HOSTILE, protocol="vote", name=HOSTILE[:200], people=HOSTILE)
    for people in (HOSTILE, ""):
        form.fill(people=people)
        page = ada.send(form, "plan", files={"<img src=x>.txt": HOSTILE.encode()})
        assert page.tags.count("script") == 1  # the page's own
        assert "img" not in page.tags
        assert page.form("/").named("task")[0].value == HOSTILE
        assert "49" not in page.form("/").named("task")[0].value
        assert page.answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_nothing_that_a_caller_gives_is_a_path_an_address_a_key_or_a_program(server: Served) -> None:
    ada = browser(server)
    for name, value in {
        "models": "exec:rm -rf /",
        "protocol": "/etc/passwd",
        "panel": "/etc/panel.toml",
        "refinement.hierarchy": "/etc/passwd",
        "review.gates": "os:system",
    }.items():
        protocol = name.partition(".")[0] if "." in name else "vote"
        form = filled(ada.open("/"), task="A?", protocol=protocol)
        for field in form.named(name):
            field.value, field.is_on, field.kind = value, True, "text"
        page = ada.send(form, "plan", status=422)
        assert page.problems or page.alerts
    assert server.store.sessions() == []


def test_form_of_another_site_is_refused(server: Served) -> None:
    ada = browser(server)
    form = filled(ada.open("/"), task="A?", protocol="vote")
    ada.send(form, "plan", status=403, drop=["form_token"])
    ada.send(form, "plan", status=403, headers={"Origin": "https://evil.example"})
    form.named("form_token")[0].value = "guessed"
    ada.send(form, "plan", status=403)


def test_every_field_has_a_label_and_no_id_stands_twice(server: Served) -> None:
    page = browser(server).open("/")
    assert page.unlabelled == []
    assert len(page.ids) == len(set(page.ids))
