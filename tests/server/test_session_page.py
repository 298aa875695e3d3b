"""The page of one session: its parts as they change, what it costs, what it must not show."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest

from consilience.domain.agents import Agent
from consilience.domain.events import CallCompleted, SessionStarted, text_id
from consilience.domain.outcome import Estimate
from consilience.domain.sections import View
from consilience.domain.topology import complete
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.reporting import views
from consilience.reporting.record import SessionRecord
from consilience.server import live_session
from consilience.server.bodies import NewSession
from consilience.server.callers import LOCAL
from consilience.server.live_session import LiveSession
from consilience.testing import AnyModel
from kit.debating import Debaters
from reporting.sessions import HOSTILE, saying
from server.inprocess import MODEL, Face, facing

EMERGENCE = {"protocol": "emergence", "settings": {"children": 2, "max_rounds": 2}}


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path) as face:
        yield face


def parsed(text: str) -> Element:
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)


def words(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def entries(text: str) -> list[str]:
    return [element.attrib["id"] for element in parsed(text).iter("article")]


def assert_inert(text: str) -> None:
    """Nothing runs but the script of this server, nothing is loaded from elsewhere, and no style stands in an attribute."""
    for element in parsed(text).iter():
        assert isinstance(element.tag, str)
        tag = element.tag.rpartition("}")[2]
        assert tag not in ("iframe", "img", "image", "object", "embed", "base", "style", "foreignObject")
        assert tag != "script" or element.attrib == {"src": "/page.js", "defer": ""}
        assert tag != "link" or element.attrib["href"] == "/page.css"
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            assert name != "style"
            assert name.rpartition("}")[2] not in ("href", "src", "action") or re.match(r"[/#](?!/)", value), value


async def many_calls(store: SqliteStore, session: str, calls: int, words_each: int = 60) -> None:
    """Record a session of a protocol that is not installed, that is not finished, with so many calls."""
    agents = tuple(Agent(id=f"A{n}", role="seat", model=MODEL) for n in range(1, 5))
    task = "What is known?"
    journal = store.of(*LOCAL.owners).create(session)
    started = SessionStarted(
        schema_version=6, prompt_format=2, protocol="seance", protocol_version=1, settings={}, task=text_id(task), seed=0,
        agents=agents, topology=complete(4), quorum=0.5, estimate=Estimate(min=1, max=2 * calls), templates={},
    )  # fmt: skip
    journal.append(started, texts=[task])
    for n in range(calls):
        text = " ".join(f"word{(n * 7919 + w * 104729) % 50021}" for w in range(words_each))
        event = CallCompleted(
            key=f"talk-{n}/A{n % 4 + 1}",
            agent=f"A{n % 4 + 1}",
            phase=("talk", n),
            text=text_id(text),
            place=str(n),
            tokens_in=9,
        )
        journal.append(event, texts=[text])
    await journal.close()


async def test_finished_session_is_shown_with_report_views_and_messages(face: Face) -> None:
    session = await face.run(**EMERGENCE)
    answer = await face.client.get(f"/sessions/{session}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe-inline" not in answer.headers["content-security-policy"]
    assert_inert(answer.text)
    report = (await face.get(f"/api/sessions/{session}"))["report"]
    body = words(parsed(answer.text))
    assert body.index("Finished") < body.index(" ".join(report["answer"].split())) < body.index("Messages In the order")
    root = parsed(answer.text)
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    assert {"report", "tree", "evolution", "messages", "settings", "log", "slider"} <= ids
    (log,) = [element for element in root.iter() if element.attrib.get("role") == "log"]
    assert len(list(log.iter("article"))) == len(entries(answer.text)) > 5
    assert len([e for e in root.iter() if e.attrib.get("role") == "log"]) == 1


async def test_views_with_a_place_for_each_call_are_linked_and_not_drawn_once_there_are_many_calls(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[str]()

    def noting(name: str, view: Callable[[SessionRecord], View]) -> Callable[[SessionRecord], View]:
        return lambda record: drawn.append(name) or view(record)  # type: ignore[func-returns-value]

    monkeypatch.setattr(views, "COMMON", {name: noting(name, view) for name, view in views.COMMON.items()})
    session = await face.run(**EMERGENCE)
    for most in (1_000, 3):
        monkeypatch.setattr(live_session, "MAX_VIEWED_CALLS", most)
        drawn.clear()
        page = parsed((await face.client.get(f"/sessions/{session}/at/999")).text)
        links = [element.attrib.get("href", "") for element in page.iter("a")]
        for name in ("evolution", "reads"):
            assert (name in drawn) == (most == 1_000)
            assert (f"/sessions/{session}/views/{name}" in links) == (most == 3)
            assert f"#{name}" in links, "it is among the contents"
            assert any(element.attrib.get("id") == name for element in page.iter("section"))
    assert_inert((await face.client.get(f"/sessions/{session}/views/reads")).text)
    assert "reads" in drawn


async def test_long_transcript_of_a_report_is_on_a_page_of_its_own_and_leaves_room_for_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with facing(tmp_path, model=ScriptedModel(Debaters(), name=MODEL)) as face:
        session = await face.run(protocol="debate", settings={"debaters": 2, "max_messages": 24})
        at_the_end = f"/sessions/{session}/at/{face.store.last(session)}"
        whole = (await face.client.get(at_the_end)).text
        monkeypatch.setattr(live_session, "MAX_FOLDED_CHARS", 1_000)
        page = (await face.client.get(at_the_end)).text
        address = f"/sessions/{session}/views/transcript"
        assert f'href="{address}"' in page
        transcript = (await face.client.get(address)).text
    assert "Messages in order" in words(parsed(transcript))
    assert entries(page) == entries(whole)
    assert len(page) < len(whole)


async def test_unknown_session_is_a_page_that_says_so(face: Face) -> None:
    for path in ("", "/at/3", "/calls", "/calls/x/y", "/documents/1", "/views/tree", "?before=3"):
        answer = await face.client.get(f"/sessions/none{path}")
        assert answer.status_code == 404, path
        assert "no such session" in answer.text
        assert_inert(answer.text)
    assert (await face.client.get("/sessions/none/fragments")).status_code == 404


async def test_page_of_a_removed_session_is_not_shown_for_the_next_one_of_its_id(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_session, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(live_session, "MAX_SHARE", 1_000.0)  # so that no page is shown as it was a moment ago
    caller, page = face.caller[0], ""
    for task in ("Cats or dogs?", "Tea or coffee?"):
        await face.sessions.begin(caller, NewSession(protocol="vote", task=task), session="r1234567")
        await face.sessions.wait(caller, "r1234567")
        page = (await face.client.get("/sessions/r1234567")).text
        assert task in page
        await face.sessions.remove(caller, "r1234567")
    assert "Cats" not in page


async def test_messages_come_once_and_in_order_as_fragments(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_session, "MIN_SECONDS", 0.0)
    begun = await face.post("/api/sessions", {**EMERGENCE, "task": "Cats or dogs?"}, 201)
    path, version, after, seen = f"/sessions/{begun['session']}/fragments", "", 0, []
    while True:
        news = await face.get(f"{path}?version={version}&after={after}")
        seen += [id for entry in news["log"] for id in re.findall('<article id="([^"]+)"', entry)]
        version, after = news["version"], news["after"]
        if news["layout"] == "finished" and not news["more"]:
            break
    assert seen == entries((await face.client.get(f"/sessions/{begun['session']}")).text)
    nothing = await face.get(f"{path}?version={version}&after={after}")
    assert nothing["parts"] == {}
    assert nothing["log"] == []
    whole = await face.get(f"{path}?version=another-7&after={after}")
    assert set(whole["parts"]) > {"state", "report", "views"}, "of a process that was started again"


async def test_event_committed_while_a_page_is_read_is_shown_once(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the page has asked which event is the last one, and before the page reads them."""
    monkeypatch.setattr(live_session, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(live_session, "MAX_SHARE", 1_000.0)
    await many_calls(face.store, "s", 3)
    journal, reads = face.store.of(*LOCAL.owners).open("s"), face.sessions.read
    late = [CallCompleted(key=f"late-{n}/A1", agent="A1", text=text_id("late"), place=f"9.{n}") for n in range(3)]

    async def read(*asked: Any, **options: Any) -> Any:
        found = await reads(*asked, **options)
        if late:
            await journal.commit(late.pop(), texts=["late"])
        return found

    monkeypatch.setattr(face.sessions, "read", read)
    seen, after = list[str](), 0
    for _ in range(4):
        news = await face.get(f"/sessions/s/fragments?after={after}")
        seen += [id for entry in news["log"] for id in re.findall('<article id="([^"]+)"', entry)]
        after = news["after"]
    await journal.close()
    assert seen == [f"call-{n}" for n in range(2, 8)]


async def test_many_readers_share_a_fold(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    folds = []
    fold = LiveSession._fold
    monkeypatch.setattr(LiveSession, "_fold", lambda self, *more: folds.append(1) or fold(self, *more))
    session = await face.run(**EMERGENCE)
    paths = [f"/sessions/{session}", f"/sessions/{session}/fragments", f"/sessions/{session}/calls"]
    answers = await asyncio.gather(*(face.client.get(paths[n % 3]) for n in range(60)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(folds) <= 2


async def test_events_that_come_fast_are_folded_together(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reader who asks after each event: the folds are fewer than the events, and the last one has all of them."""
    monkeypatch.setattr(live_session, "MIN_SECONDS", 3600.0)
    folds = []
    fold = LiveSession._fold
    monkeypatch.setattr(LiveSession, "_fold", lambda self, *more: folds.append(1) or fold(self, *more))
    await many_calls(face.store, "s", 3)
    first = await face.get("/sessions/s/fragments")
    assert len(first["log"]) == 3
    asking = [asyncio.create_task(face.get(f"/sessions/s/fragments?after={first['after']}")) for _ in range(20)]
    await asyncio.sleep(0.05)
    assert len(folds) == 1, "they wait for the next fold together"
    assert (await face.client.get("/sessions/s")).status_code == 200, (
        "and a page that is opened meanwhile does not wait"
    )
    for task in asking:
        task.cancel()


async def test_page_of_a_long_session_has_the_last_messages_and_leads_to_the_others(face: Face) -> None:
    await many_calls(face.store, "long", 2_000)
    answer = await face.client.get("/sessions/long")
    shown = entries(answer.text)
    assert shown[-1] == "call-2001"
    assert 20 <= len(shown) <= 200
    assert await first_view(face, answer.content) <= 60_000
    assert len(answer.content) <= 300_000
    older = re.search(r'href="(/sessions/long\?before=\d+)#messages"', answer.text)
    assert older
    before = entries((await face.client.get(older[1])).text)
    assert int(before[-1][5:]) == int(shown[0][5:]) - 1
    news = await face.get("/sessions/long/fragments?after=1990")
    assert len(news["log"]) == 11


class Talkers(AnyModel):
    """Talk at length, in letters of two bytes, and have evidence at hand."""

    def reply(self, request: ModelRequest) -> str:
        value = json.loads(super().reply(request))
        if "PROVIDE_EVIDENCE" in str(request.schema):
            value["move"] = "PROVIDE_EVIDENCE"
        if "text" in value:
            draw = random.Random(f"{request.key} {request.agent}")
            value["text"] = " ".join(f"größer{draw.randrange(50_000)}" for _ in range(40))
        return json.dumps(value)


@pytest.mark.parametrize("options", [("now", "later"), ("now", "later", "never")])
async def test_page_of_a_large_debate_has_its_report_and_messages_within_its_bytes(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    settings = {"debaters": 12, "max_messages": 400, "max_duration": 7_200, "stagnation": 1_000}
    settings |= {"option": options, "discovery_messages": 40, "evidence_messages": 60}
    async with facing(tmp_path, model=Talkers(name=MODEL)) as face:
        session = await face.run(protocol="debate", settings=settings)
        report = (await face.get(f"/api/sessions/{session}"))["report"]
        assert report["steps"] >= 150
        answer = await face.client.get(f"/sessions/{session}")
        assert len(answer.content) <= 300_000
        assert await first_view(face, answer.content) <= 60_000
        assert len(entries(answer.text)) >= 20
        page = parsed(answer.text)
        questions = [thread["crux"]["question"] for thread in report["threads"] if thread["crux"]]
        assert len(questions) >= 2
        headings = " ".join(words(heading) for heading in page.iter("h3"))
        assert all(question in headings for question in questions)
        links = {element.attrib.get("href", "") for element in page.iter("a")}
        ids = {element.attrib.get("id", "") for element in page.iter()}
        contents = {link[1:] for link in links if link.startswith("#")}
        assert {"cruxes", "stance", "timeline", "messages"} <= contents <= ids
        for view in (link for link in links if "/views/" in link):
            assert (await face.client.get(view)).status_code == 200


async def first_view(face: Face, page: bytes) -> int:
    """Return the bytes that are sent before a page is seen, compressed: the page, its style and its script."""
    files = [page, *[(await face.client.get(path)).content for path in ("/page.css", "/page.js")]]
    return sum(len(gzip.compress(file, 6)) for file in files)


async def test_pages_are_compressed_and_streams_are_not(face: Face) -> None:
    session = await face.run()
    answer = await face.client.get(f"/sessions/{session}", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    plain = await face.client.get(f"/sessions/{session}", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    events = await face.client.get(f"/api/sessions/{session}/events", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in events.headers


async def test_session_as_it_was_after_an_event_has_nothing_later(face: Face) -> None:
    session = await face.run(**EMERGENCE)
    last = face.store.last(session)
    whole = entries((await face.client.get(f"/sessions/{session}")).text)
    seen: list[str] = []
    for n in (1, 2, last // 2, last - 1, last):
        text = (await face.client.get(f"/sessions/{session}/at/{n}")).text
        assert_inert(text)
        assert f"event {n} of {last}" in text
        shown = entries(text)
        assert shown[: len(seen)] == seen
        assert ('id="part-answer"' in text) == (n == last)
        seen = shown
    assert seen == whole
    moved = await face.client.get(f"/sessions/{session}/at?n=4")
    assert (moved.status_code, moved.headers["location"]) == (303, f"/sessions/{session}/at/4")
    parts = await face.get(f"/sessions/{session}/fragments?at=4")
    assert f"event 4 of {last}" in parts["parts"]["state"]


async def test_every_call_has_a_page_with_its_prompt_as_sent_and_its_reply(face: Face) -> None:
    session = await face.run(**EMERGENCE)
    listing = (await face.client.get(f"/sessions/{session}/calls")).text
    links = re.findall(rf'href="(/sessions/{session}/calls/[^"?]+)"', listing)
    calls = [event for event in face.store.read(session) if isinstance(event, CallCompleted)]
    assert len(links) == len(calls)
    for link, call in zip(links, calls, strict=True):
        page = words(parsed((await face.client.get(link)).text))
        assert "Cats or dogs?" in page
        assert "Instructions" in page
        assert " ".join(face.store.text(call.text).split()) in page
    unknown = await face.client.get(f"/sessions/{session}/calls/none")
    assert unknown.status_code == 404


async def test_reference_leads_to_the_line_of_a_document(tmp_path: Path) -> None:
    def citing(request: Any) -> Any:
        return saying(request, 'It says "never mind" [S1:700] and [S1:3].')

    async with facing(tmp_path, model=ScriptedModel(citing, name=MODEL)) as face:
        text = "\n".join(f"line {n}" for n in range(1, 901))
        session = await face.run(**EMERGENCE, sources=[{"text": text, "name": "minutes.md"}])
        page = (await face.client.get(f"/sessions/{session}")).text
        link = f"/sessions/{session}/documents/1?line=700#document-1-700"
        assert f'href="{link}"' in page
        assert '<strong class="fault">not found</strong>' in page.partition('id="report"')[2].partition("</section>")[0]
        shown = parsed((await face.client.get(link)).text)
        (line,) = [element for element in shown.iter("li") if element.attrib.get("id") == "document-1-700"]
        assert words(line) == "line 700"
        exported = await face.get(f"/api/sessions/{session}/export?format=html")
        assert 'href="#document-1-700"' in exported
        assert 'id="document-1-700"' in exported
        assert (await face.client.get(f"/sessions/{session}/documents/2")).status_code == 404


async def test_hostile_texts_are_only_text_on_every_page(tmp_path: Path) -> None:
    sent = HOSTILE.replace("\0", "")  # which no request may have
    async with facing(tmp_path, model=ScriptedModel(lambda request: saying(request, HOSTILE), name=MODEL)) as face:
        session = await face.run(
            **{**EMERGENCE, "task": sent},
            sources=[{"text": f"{sent}{'x' * 1_000_000}\n{sent}", "name": sent[:150]}],
        )
        calls = re.findall(
            rf'href="(/sessions/{session}/calls/[^"?]+)"', (await face.client.get(f"/sessions/{session}/calls")).text
        )
        own = [
            f"/sessions/{session}{p}" for p in ("", "/at/5", "/calls", "/documents/1", "/views/evolution", "?before=9")
        ]
        for path in (*own, calls[0]):
            answer = await face.client.get(path)
            assert answer.status_code == 200, path
            assert_inert(answer.text)
            assert "alert(1)" in answer.text or path.endswith("/calls")
            assert "\u202e" not in answer.text
            assert "Not a heading of ours" not in [words(h) for h in parsed(answer.text).iter("h1")]
        assert len((await face.client.get(f"/sessions/{session}")).content) <= 300_000
        news = await face.get(f"/sessions/{session}/fragments")
        for part in (*news["parts"].values(), *news["log"]):
            assert_inert(f"<!doctype html><title>t</title>{part}")


async def test_chat_and_tools_name_the_page(face: Face) -> None:
    body = {"model": "consilience/vote", "messages": [{"role": "user", "content": "Cats or dogs?"}]}
    answer = await face.post("/v1/chat/completions", body)
    link = re.search(r"\(http://127\.0\.0\.1(/sessions/[^)]+)\)", json.dumps(answer))
    assert link
    assert (await face.client.get(link[1])).status_code == 200
