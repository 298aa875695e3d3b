"""Routes in this process: what they answer, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.domain.errors import Command, ConsilienceError, SettingsError, UnknownSession
from consilience.domain.events import SessionStarted
from consilience.engine.protocol import installed_protocols
from consilience.journal.store import Records
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocol import Paragraph, View, extend_presentation
from consilience.protocols.baselines.report import VoteReport
from consilience.server.blindness import SeenReader, SeenRecords
from consilience.server.callers import Caller
from consilience.server.errors import error_json
from kit.debating import Debaters
from server.inprocess import MODEL, Face, facing

SECRET = "a-question-that-only-ada-asked"


@pytest.fixture
async def face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Face]:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    async with facing(tmp_path) as found:
        yield found


async def test_dry_run_returns_the_plan_and_records_nothing(face: Face) -> None:
    body = {"protocol": "emergence", "task": "Why?", "dry_run": True}
    plan = (await face.post("/api/sessions", body))["plan"]
    assert plan["estimate"]["max"] > 1
    assert face.store.sessions() == []


async def test_list_searches_and_pages(face: Face) -> None:
    for n in range(3):
        await face.run(task=f"Ferry {n}?", name="crossing" if n else "")
    found = await face.get("/api/sessions?q=ferry crossing")
    assert [row["task"] for row in found["sessions"]] == ["Ferry 2?", "Ferry 1?"]
    assert found["total"] == 2
    row = found["sessions"][0]
    assert (row["state"], row["protocol"], row["has_answer"]) == ("finished", "vote", True)
    assert row["cost"] is None or row["cost"] >= 0
    assert (await face.get("/api/sessions?protocol=debate"))["total"] == 0


async def test_finished_session_has_its_formats_and_views(face: Face) -> None:
    session = await face.run()
    for format, start in [("json", "{"), ("markdown", "# Cats"), ("html", "<!doctype"), ("events", '{"seq": 1')]:
        answer = await face.client.get(f"/api/sessions/{session}/export?format={format}")
        assert answer.text.startswith(start)
        assert answer.headers["content-security-policy"].startswith("sandbox")
    refused = await face.get(f"/api/sessions/{session}/export?format=sarif", 422)
    assert "markdown" in refused["error"]["do"]
    assert (await face.get(f"/api/sessions/{session}/views/figures"))["name"] == "figures"
    assert (await face.get(f"/api/sessions/{session}/views/none", 422))["error"]["where"] == "view"


async def test_review_exports_sarif_and_github_comments(face: Face) -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    session = await face.run(protocol="review", task="Review it.", sources=[{"text": diff, "name": "x.diff"}])
    sarif = await face.client.get(f"/api/sessions/{session}/export?format=sarif")
    assert sarif.headers["content-type"].startswith("application/sarif+json")
    assert sarif.json()["version"] == "2.1.0"
    assert isinstance(await face.get(f"/api/sessions/{session}/export?format=github"), dict | list)


async def test_files_of_a_form_become_sources_with_their_remarks(face: Face) -> None:
    page = b"<html><body><h1>Ferries</h1><img src='data:image/png;base64,AAAA'><p>They float.</p></body></html>"
    form = {"request": json.dumps({"protocol": "solo", "task": "Say it.", "sources": [{"text": "One.", "name": "a"}]})}
    files = [("sources", ("../../etc/page.html", page)), ("sources", ("plan.txt", "Ça va.".encode()))]
    begun = await face.call("POST", "/api/sessions", status=201, data=form, files=files)
    started = face.store.beginning(begun["session"])
    assert started is not None
    assert [source.name for source in started.sources] == ["a", "page.html", "plan.txt"]
    texts = [face.store.text(source.text) for source in started.sources]
    assert "They float." in texts[1]
    assert texts[2] == "Ça va."


@pytest.mark.parametrize(
    ("form", "files", "told"),
    [
        ({"request": "{}"}, [("sources", ("x.bin", b"\0\1\2" * 99))], "not UTF-8"),
        ({"request": "{}"}, [("sources", ("x.docx", b"PK\3\4broken"))], "cannot be read"),
        ({}, [("sources", ("x.txt", b"x"))], "request"),
        ({"request": "{"}, [("sources", ("x.txt", b"x"))], "JSON"),
        ({"request": "{}", "path": "/etc/passwd"}, [("sources", ("x.txt", b"x"))], "unknown field 'path'"),
    ],
)
async def test_form_that_cannot_be_read_is_refused(
    face: Face, form: dict[str, str], files: list[tuple[str, tuple[str, bytes]]], told: str
) -> None:
    refused = await face.call("POST", "/api/sessions", status=422, data=form, files=files)
    assert told in refused["error"]["what"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"models": ["exec:rm -rf /"]}, "models"),
        ({"models": ["human|exec:rm -rf /"]}, "models"),
        ({"models": ["human:Ada|exec:rm -rf /"]}, "models"),
        ({"models": [MODEL, "workspace:/tmp"]}, "models"),
        ({"models": {"V1": "http://169.254.169.254/v1#x"}}, "models"),
        ({"models": {"V1": "local:/etc/passwd.gguf"}}, "models"),
        ({"protocol": "review", "settings": {"gates": ["os:system"]}}, "settings"),
        ({"protocol": "review", "settings": {"left_out": ["x"]}}, "settings"),
        ({"protocol": "refinement", "settings": {"hierarchy": "/etc/passwd"}}, "settings.hierarchy"),
        ({"protocol": "refinement", "settings": {"hierarchy": "~/own.toml"}}, "settings.hierarchy"),
        ({"panel": "/etc/panel.toml"}, "panel"),
        ({"protocol": "choose"}, "protocol"),
        ({"protocol": "/etc/passwd"}, "protocol"),
        ({"prompts": "/etc"}, "prompts"),
        ({"encoder": "minilm"}, "encoder"),
        ({"task": " "}, "task"),
        ({"seed": 2**63}, "seed"),
        ({"limits": {"cost": -1}}, "limits"),
    ],
)
async def test_request_that_reaches_beyond_the_server_is_refused(
    face: Face, body: dict[str, object], where: str
) -> None:
    refused = await face.post("/api/sessions", {"protocol": "vote", "task": "Why?", **body}, 422)
    assert refused["error"]["where"].startswith(where)
    assert face.store.sessions() == []


async def test_persona_cannot_name_a_model_that_is_not_offered(face: Face) -> None:
    persona = {"name": "Ada", "description": "You count.", "model": "openai:gpt-5"}
    panel = {"name": "p", "description": "d", "personas": [persona, {**persona, "name": "Bob"}]}
    body = {"protocol": "emergence", "task": "Why?", "settings": {"children": 2}, "panel": panel}
    refused = await face.post("/api/sessions", body, 422)
    assert "is not allowed" in refused["error"]["what"]


async def test_fork_is_prepared_and_run_by_the_executor(face: Face) -> None:
    parent = await face.run(settings={"votes": 3})
    changes = {"settings": {"votes": 4}, "at": "end"}
    planned = (await face.post(f"/api/sessions/{parent}/fork", {**changes, "dry_run": True}))["fork"]
    assert planned["inherited"] == 3
    begun = await face.post(f"/api/sessions/{parent}/fork", changes, 201)
    async for _ in face.sessions.tail(face.caller[0], begun["session"]):
        pass
    started, view = face.store.beginning(begun["session"]), await face.get(f"/api/sessions/{begun['session']}")
    assert started is not None
    assert started.parent == parent
    assert view["state"] == "finished"
    assert view["report"]["ledger"]["actual"]["calls"] == 1


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"replace": {"V1": "exec:cat"}}, "replace"),
        ({"replace": {"V1": "human:A|exec:cat"}}, "replace"),
        ({"replace": {"V9": MODEL}}, "replace"),
        ({"perspectives": {"V9": "x"}}, "perspectives"),
        ({"at": 9_999}, "at"),
        ({"at": "no/such"}, "at"),
        ({"at": "end"}, "at"),
        ({"settings": {"nonsense": 1}}, "settings"),
        ({"prompts": "/etc"}, "prompts"),
    ],
)
async def test_fork_that_cannot_be_is_refused_in_terms_of_the_request(
    face: Face, body: dict[str, object], where: str
) -> None:
    parent = await face.run()
    error = (await face.post(f"/api/sessions/{parent}/fork", body, 422))["error"]
    assert error["where"].startswith(where)
    assert "--" not in json.dumps(error)
    assert error["do"]
    assert face.store.sessions() == [parent]


async def test_fork_at_the_end_is_made_without_a_call_if_the_installed_code_shows_it_differently(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, shown = await face.run(), VoteReport.presentation
    again = f"/api/sessions/{parent}/fork"
    assert (await face.post(again, {"dry_run": True}, 422))["error"]["where"].startswith("at ")
    added = View(name="news", heading="News", blocks=(Paragraph(text="New."),))
    monkeypatch.setattr(VoteReport, "presentation", lambda report: extend_presentation(shown(report), views=(added,)))
    begun = (await face.post(again, {}, 201))["session"]
    async for _ in face.sessions.tail(face.caller[0], begun):
        pass
    assert (await face.get(f"/api/sessions/{begun}"))["report"]["ledger"]["actual"]["calls"] == 0
    assert (await face.get(f"/api/sessions/{begun}/views/news"))["heading"] == "News"


async def test_fork_with_a_model_of_unknown_price_is_refused_before_it_is_recorded(tmp_path: Path) -> None:
    name = "http://127.0.0.1:9/v1#m"
    async with facing(tmp_path, models=(name,)) as face:
        parent = await face.run()
        face.caller[0] = Caller(max_cost_per_day=1.0)
        for body in ({"at": "0"}, {"at": "0", "dry_run": True}):
            refused = await face.post(f"/api/sessions/{parent}/fork", body, 403)
            assert f"the price of {name} is not known" in refused["error"]["what"]
        assert face.store.sessions() == [parent]


async def test_due_and_scores_read_a_few_sessions_at_a_time(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        await face.run(task=f"Question {n}?")
    monkeypatch.setattr("consilience.server.forecasts.STEP", 2)
    beginning, run = SeenRecords.beginning, SeenReader.run
    read: list[set[str]] = []

    async def counted_run(self: SeenReader, work: Callable[[Records], object], **more: Any) -> object:
        read.append(set())
        return await run(self, work, **more)

    def counted_beginning(self: SeenRecords, session: str) -> SessionStarted | None:
        read[-1].add(session)
        return beginning(self, session)

    monkeypatch.setattr(SeenReader, "run", counted_run)
    monkeypatch.setattr(SeenRecords, "beginning", counted_beginning)
    for path in ("/api/due", "/api/scores"):
        read.clear()
        await face.get(path)
        assert set.union(*read) == set(face.store.sessions())
        assert max(map(len, read)) == 2


async def test_told_fact_begins_a_session_with_the_positions_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    async with facing(tmp_path, model=ScriptedModel(Debaters(), name=MODEL)) as face:
        parent = await face.run(protocol="debate", settings={"debaters": 2, "max_messages": 20})
        begun = await face.post(f"/api/sessions/{parent}/tell", {"fact": "The bridge is closed."}, 201)
        async for _ in face.sessions.tail(face.caller[0], begun["session"]):
            pass
        view = await face.get(f"/api/sessions/{begun['session']}")
        assert (view["state"], view["report"]["parent"]) == ("finished", parent)


async def test_fact_for_a_protocol_without_positions_is_refused(face: Face) -> None:
    refused = await face.post(f"/api/sessions/{await face.run()}/tell", {"fact": "It rains."}, 422)
    assert "takes no new fact" in refused["error"]["what"]


async def test_person_is_asked_and_answers_over_http(face: Face) -> None:
    body = {"protocol": "vote", "task": "Which?", "settings": {"votes": 2}, "models": {"V1": "human:Ada"}}
    session = (await face.post("/api/sessions", body, 201))["session"]
    async for event in face.sessions.tail(face.caller[0], session):
        if event.type == "call_awaited":
            break
    (question,) = await face.get(f"/api/sessions/{session}/questions")
    assert (question["person"], question["answered"]) == ("Ada", False)
    assert "Which?" in question["text"]
    assert (await face.post(f"/api/sessions/{session}/answer", {"key": "none", "text": "x"}, 404))["error"]["do"]
    answered = await face.post(f"/api/sessions/{session}/answer", {"key": "Ada", "text": "Cats."})
    assert answered["key"] == question["key"]
    async for _ in face.sessions.tail(face.caller[0], session):
        pass
    view = await face.get(f"/api/sessions/{session}")
    assert view["state"] == "finished"
    await face.post(f"/api/sessions/{session}/cancel", {}, 409)
    await face.post(f"/api/sessions/{session}/comment", {"text": "Late."}, 409)


async def test_waiting_session_is_commented_cancelled_and_removed(face: Face) -> None:
    session = (await face.post("/api/sessions", {"protocol": "solo", "task": "?", "models": ["human"]}, 201))["session"]
    async for event in face.sessions.tail(face.caller[0], session):
        if event.type == "call_awaited":
            break
    await face.post(f"/api/sessions/{session}/comment", {"text": "Hm."})
    await face.post(f"/api/sessions/{session}/cancel", {})
    async for _ in face.sessions.tail(face.caller[0], session):
        pass
    assert (await face.get(f"/api/sessions/{session}"))["report"]["stop_reason"] == "cancelled"
    await face.call("DELETE", f"/api/sessions/{session}")
    await face.get(f"/api/sessions/{session}", 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/questions"),
        ("GET", "/export"),
        ("GET", "/views/tree"),
        ("POST", "/answer"),
        ("POST", "/cancel"),
        ("POST", "/comment"),
        ("POST", "/resume"),
        ("POST", "/fork"),
        ("POST", "/tell"),
        ("POST", "/resolve"),
        ("DELETE", ""),
    ],
)
async def test_session_of_another_owner_is_404_and_named_nowhere(face: Face, method: str, path: str) -> None:
    face.caller[0] = Caller(owner="ada")
    hers = await face.run(task=f"{SECRET}?")
    face.caller[0] = Caller(owner="bob")
    bodies = {"/answer": {"key": "k", "text": "t"}, "/comment": {"text": "t"}, "/tell": {"fact": "f"}}
    body = bodies.get(path, {"question": "p1", "outcome": True} if path == "/resolve" else {})
    for session in (hers, "nope"):
        refused = await face.call(
            method, f"/api/sessions/{session}{path}", status=404, **({"json": body} if method == "POST" else {})
        )
        assert refused == {
            "error": {"what": "there is no such session", "where": "", "do": "List yours: GET /api/sessions."}
        }
    assert SECRET not in json.dumps(await face.get("/api/sessions"))
    await face.get("/metrics", 403)


async def test_caller_is_bound_to_their_protocols_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    async with facing(tmp_path, models=(MODEL, "openai-chat:other")) as face:
        face.caller[0] = Caller(owner="ada", protocols=frozenset({"vote"}), models=frozenset({"openai-chat:other"}))
        assert [view["name"] for view in await face.get("/api/protocols")] == ["vote"]
        assert [view["name"] for view in await face.get("/api/models")] == ["openai-chat:other", "human"]
        await face.post("/api/sessions", {"protocol": "debate", "task": "Why?"}, 403)
        await face.post("/api/sessions", {"protocol": "vote", "task": "Why?", "models": [MODEL]}, 422)
        plan = (await face.post("/api/sessions", {"protocol": "vote", "task": "Why?", "dry_run": True}))["plan"]
        assert plan["models"] == ["openai-chat:other"]


async def test_cached_replies_come_from_the_owners_sessions_only(tmp_path: Path) -> None:
    from consilience import Deliberation, Options, Vote
    from consilience.executor import LocalExecutor
    from consilience.journal.sqlite import SqliteStore

    model = ScriptedModel(lambda request: "Cats.", name=MODEL)
    store = SqliteStore(tmp_path / "j.db")
    for session, owner in (("a", "ada"), ("b", "bob"), ("c", "ada")):
        own = Deliberation(Vote(votes=1), model=model, store=store.of(owner), options=Options(cache=True))
        await own.prepare("Cats or dogs?", session=session)
    with LocalExecutor(store, running=1, model=model) as executor:
        assert executor.join(60)
    assert len(model.requests) == 2
    store.close()


async def test_choice_without_a_reading_is_given_at_once(face: Face) -> None:
    found = await face.post("/api/choices", {"task": "Check it.", "sources": [{"text": "x", "name": "a.diff"}]})
    assert (found["choice"]["protocol"], found["choice"]["rule"], found["session"]) == ("review", "change", "")


async def test_choice_by_a_reading_names_its_session_and_is_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")

    def read(request: ModelRequest) -> str:
        return json.dumps({"kind": "decision", "divides": True, "why": "People differ."})

    model = ScriptedModel(read, name=MODEL)
    async with facing(tmp_path, model=model) as face:
        found = await face.post("/api/choices", {"task": "Should we build it?"})
        assert found["choice"]["protocol"] == "debate"
        assert found["choice"]["settings"] == {"max_messages": 24}
        again = await face.post("/api/choices", {"task": "Should we build it?", "reading": found["session"]})
        assert again == found
        assert len(model.requests) == 1
        other = await face.run()
        refused = await face.post("/api/choices", {"task": "Should we build it?", "reading": other}, 422)
        assert refused["error"]["where"] == "reading"


async def test_protocols_have_schemas_with_descriptions_and_presets_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    presets = {"board-paper": {"protocol": "debate", "settings": {"debaters": 2}, "summary": "A paper."}}
    async with facing(tmp_path, presets=presets) as face:
        views = {view["name"]: view for view in await face.get("/api/protocols")}
        assert {"emergence", "debate", "review", "board-paper"} <= set(views)
        assert not {"choose", "propose"} & set(views)
        shipped = {*installed_protocols(), "board-paper"}  # other tests of this process define protocols too
        for view in (view for name, view in views.items() if name in shipped):
            for name, schema in view["settings"]["properties"].items():
                assert schema.get("description"), (view["name"], name)
                assert "default" in schema or "$ref" in schema, (view["name"], name)
        assert views["board-paper"]["defaults"] == {"debaters": 2}
        body = {"protocol": "board-paper", "task": "Buy it?", "dry_run": True}
        assert (await face.post("/api/sessions", body))["plan"]["settings"]["debaters"] == 2


async def test_due_scores_and_outcomes_are_followed_up(face: Face) -> None:
    session = await face.run(protocol="emergence", settings={"children": 2, "max_rounds": 1})
    assert set(await face.get("/api/due?within=30&on=2027-01-01")) == {"past", "near", "unreadable"}
    assert (await face.get("/api/scores"))["ranked_from"] == 30
    refused = await face.post(f"/api/sessions/{session}/resolve", {"question": "no", "outcome": True}, 404)
    assert "no question 'no'" in refused["error"]["what"]
    await face.get("/api/due?within=99999&on=9999-12-31")


async def test_full_queue_is_429_with_when_to_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    gate = threading.Event()

    class Held(ScriptedModel):
        async def complete(self, request: ModelRequest) -> object:  # type: ignore[override]
            await asyncio.to_thread(gate.wait)
            return await super().complete(request)

    model = Held(lambda request: "Cats.", name=MODEL)
    async with facing(tmp_path, model=model, running=1, waiting=1) as face:
        body = {"protocol": "vote", "task": "Cats or dogs?"}
        statuses = []
        while 429 not in statuses and len(statuses) < 9:
            response = await face.client.post("/api/sessions", json=body)
            statuses.append(response.status_code)
        assert statuses[-1] == 429
        assert int(response.headers["retry-after"]) > 0
        assert "wait for their turn" in response.json()["error"]["what"]
        gate.set()


async def test_disk_nearly_full_is_507_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    async with facing(tmp_path, min_free=2**62) as face:
        body = {"protocol": "vote", "task": "Cats or dogs?"}
        refused = await face.client.post("/api/sessions", json=body)
        assert refused.status_code == 507
        assert str(tmp_path) not in refused.text
        await face.get("/healthz", 507)
        await face.get("/api/sessions")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            UnknownSession("there is no session 'x'", where="/home/a/j.db", do="Known sessions: y."),
            "there is no such session",
        ),
        (SettingsError("wrong", where="/home/a/j.db", do="Free space."), "wrong"),
        (
            SettingsError("wrong", field="at", where="7", do="Resume it first", command=Command("resume", "rabc")),
            "POST /api/sessions/rabc/resume",
        ),
        (ConsilienceError("half \ud800"), "half ?"),
    ],
)
def test_error_over_http_names_no_path_no_option_and_no_other_session(error: ConsilienceError, expected: str) -> None:
    text = json.dumps(error_json(error), ensure_ascii=False)
    assert expected in text
    assert not any(word in text for word in ("/home", "--", "consilience ", "Known sessions", "\ud800"))


async def test_documents_are_dealt_as_the_plan_says(face: Face) -> None:
    sources = [{"name": f"{n}.md", "text": f"The fee of part {n} is {n} euros.\n" * 9} for n in range(4)]
    body = {"protocol": "decompose", "task": "Why?", "sources": sources, "deal": "document"}
    plan = (await face.post("/api/sessions", {**body, "dry_run": True}))["plan"]
    dealt = {row["agent"]: row["documents"] for row in plan["shares"]}
    assert sorted(id for ids in dealt.values() for id in ids) == ["S1", "S2", "S3", "S4"]
    session = await face.run(**body)
    started = face.store.beginning(session)
    assert started is not None
    recorded: dict[str, list[str]] = {}
    for source in started.sources:
        for share in source.shares:
            recorded.setdefault(share.agent, []).extend([source.id] * bool(share.lines))
    assert recorded == dealt
    assert await face.post("/api/sessions", {**body, "deal": "fairly"}, status=422)
