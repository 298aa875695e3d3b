"""What people who were not there see of a finished session, and the one opinion that a link takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience import Deliberation
from consilience.domain.events import SessionFinished
from consilience.domain.report import Report
from consilience.models.scripted import ScriptedModel
from consilience.testing.any_model import AnyModel
from kit.debating import Debaters
from reporting.test_summary import HOUSE_WORDS
from server.browsing import Browser, Page
from server.inprocess import MODEL, Served
from server.paged import HOSTILE, finished, paged

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with paged(tmp_path) as server:
        yield server


def browser(server: Served) -> Browser:
    return Browser(server.client(Origin="http://127.0.0.1:8765"))


def shared(server: Served, session: str, *, asks: bool = False) -> str:
    """The path of a link, made by the form of the owner's page."""
    ada = browser(server)
    form = ada.open(f"/sessions/{session}/links").form("/links")
    if asks:
        form.fill(asks="yes")
    found = re.search(r"http://\S+(/share/[\w-]+)", ada.send(form).text)
    assert found
    return found[1]


def given(page: Page, vote: str, objection: str = "") -> object:
    form = next(form for form in page.forms if "/share/" in form.action)
    form.fill(vote=vote, objection=objection)
    return form


def test_summary_comes_first_and_the_whole_report_is_below_it(server: Served) -> None:
    session = finished(server, task=f"Cats or dogs? {HOSTILE}")
    path = shared(server, session)
    reader = browser(server)
    page = reader.open(path)
    assert "Cats or dogs?" in page.text
    assert f"{path}/report" in page.links
    assert page.forms == []  # it was not made to ask
    assert not {"script", "img"} & set(page.tags)
    assert "report.html" not in page.text
    assert "<!doctype html>" in reader.open(f"{path}/report").source
    reader.open(f"{path}x", status=404)


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("debate", {"max_messages": 40}),
        ("debate", {"max_messages": 40, "test_cruxes": 4}),
        ("emergence", {"children": 2, "max_rounds": 2}),
        ("broadcast", {"children": 2}),
        ("refinement", {"max_passes": 2}),
        ("review", {"max_iterations": 2}),
        ("decompose", {"children": 2}),
        ("vote", {"votes": 2}),
        ("solo", {}),
    ],
)
def test_summary_has_none_of_the_house_s_words(tmp_path: Path, protocol: str, settings: dict[str, int]) -> None:
    model = ScriptedModel(Debaters(), name=MODEL) if protocol == "debate" else AnyModel(name=MODEL)
    sources = [{"name": "plan.md", "text": "It is so.\n"}]
    with paged(tmp_path, model=model) as server:
        session = finished(server, protocol=protocol, settings=settings, task="Should we move?", sources=sources)
        page = browser(server).open(shared(server, session, asks=True))
        assert [word for word in HOUSE_WORDS if word in page.text.casefold()] == []


def test_link_takes_one_vote_and_one_objection_and_shows_those_of_others_afterwards(server: Served) -> None:
    session = finished(server)
    before = server.store.ending(session)
    paths = [shared(server, session, asks=True) for _ in range(2)]
    first, second = browser(server), browser(server)
    first.send(given(first.open(paths[0]), "disagree", f"Birds were forgotten. {HOSTILE}"), status=303)  # type: ignore[arg-type]
    unread = second.open(paths[1])
    assert "Birds" not in unread.text
    assert "do not agree," not in unread.text
    second.send(given(unread, "agree"), status=303)  # type: ignore[arg-type]
    for reader, path in ((first, paths[0]), (second, paths[1])):
        page = reader.open(path)
        assert "1 agree, 1 do not agree, 0 are not sure" in page.text
        assert "Birds were forgotten." in page.text
        assert not {"script", "img"} & set(page.tags)
        assert page.forms == []
    again = second.send(given(unread, "disagree", "Twice."), status=422)  # type: ignore[arg-type]
    assert "before" in again.alerts
    owner = browser(server).open(f"/sessions/{session}/links")
    assert "Birds were forgotten." in owner.text
    assert "Twice." not in owner.text
    listed = server.client().get(f"/api/sessions/{session}/opinions").json()
    assert [(one["vote"], one["objection"][:5]) for one in listed] == [("disagree", "Birds"), ("agree", "")]
    after = server.store.ending(session)  # the record does not know it
    assert after == before
    assert isinstance(after, SessionFinished)
    assert Deliberation[Report](store=server.store).replay_sync(session).digest() == after.report_digest
    server.client().delete(f"/api/sessions/{session}")
    assert server.store._rows("SELECT * FROM opinions") == []


def test_mistakes_of_an_opinion_stand_beside_its_fields(server: Served) -> None:
    session = finished(server)
    reader = browser(server)
    path = shared(server, session, asks=True)
    form = given(reader.open(path), "", "o" * 2_001)
    wrong = reader.send(form, status=422)  # type: ignore[arg-type]
    assert set(wrong.problems) == {"vote", "objection"}
    assert wrong.forms[0].named("objection")[0].value == "o" * 2_001
    assert wrong.unlabelled == []
    form.fields[0].value = "guessed"  # type: ignore[attr-defined]
    reader.send(form, status=403)  # type: ignore[arg-type]


def test_link_that_does_not_ask_takes_nothing(server: Served) -> None:
    session = finished(server)
    asking, silent = shared(server, session, asks=True), shared(server, session)
    reader = browser(server)
    form = given(reader.open(asking), "agree")
    form.action = silent  # type: ignore[attr-defined]
    reader.send(form, status=404)  # type: ignore[arg-type]
    assert server.client().get(f"/api/sessions/{session}/opinions").json() == []
