"""What owners may do, and what they see: their own, their team's, within their bounds. Audit, notices, retention."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from cli.loopback import MODEL
from consilience.domain.errors import UnknownName
from consilience.domain.events import CallAwaited, SessionStarted
from consilience.journal.accounts import Allowance
from consilience.models.endpoints import Endpoints
from consilience.server.access_settings import AccessSettings
from consilience.server.callers import Caller, Forbidden
from consilience.server.checks import check_priced
from consilience.server.notices import Notices
from consilience.server.owners import Owners
from consilience.server.retention import Retention
from server.inprocess import PEOPLE, PROXY, PUBLIC, Served, behind_proxy, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TEAM = '[[team]]\nname = "board"\nrunning = 1\n[[group]]\nname = "staff"\nteam = "board"\nrunning = 2\nmax_cost_per_day = 3.5\n'


@pytest.fixture
def public(tmp_path: Path) -> Iterator[tuple[Served, dict[str, str]]]:
    access, tokens = behind_proxy(tmp_path, "anna", "bob", extra=TEAM)
    with served(tmp_path, access=access.model_copy(update={"trusted_user_header": "X-Forwarded-User"})) as server:
        yield server, tokens


Public = tuple[Served, dict[str, str]]


# --- another owner's session


def test_another_owner_s_session_is_not_there_on_any_route(public: Public) -> None:
    server, tokens = public
    anna, bob = server.client(tokens["anna"]), server.client(tokens["bob"])
    session = server.begin(anna)
    assert anna.get(f"/api/sessions/{session}").status_code == 200
    key = anna.get(f"/api/sessions/{session}/questions").json()[0]["key"]
    asked: list[tuple[str, str, Any]] = [
        ("GET", "", None), ("GET", "/events", None), ("GET", "/questions", None), ("GET", "/export?format=json", None),
        ("GET", "/views/tree", None), ("GET", "/links", None), ("POST", "/answer", {"key": key, "text": "x"}),
        ("POST", "/pass", {"key": key}), ("POST", "/cancel", {}), ("POST", "/comment", {"text": "x"}), ("POST", "/resume", None),
        ("POST", "/lift", None), ("POST", "/share", {}), ("POST", "/seats/V1/link", {}), ("POST", "/fork", {}),
        ("POST", "/tell", {"fact": "x"}), ("POST", "/resolve", {"question": "Q", "outcome": True}),
        ("DELETE", "/links/1", None), ("DELETE", "", None),
    ]  # fmt: skip
    for method, path, body in asked:
        for id in (session, "nothere"):
            answer = bob.request(method, f"/api/sessions/{id}{path}", json=body)
            assert answer.status_code == 404, (method, path, answer.text)
            assert session not in answer.text.replace(f"/{session}", "").replace(f"'{id}'", "") or id == session
    assert session not in bob.get("/api/sessions").text
    assert session in anna.get("/api/sessions").text
    assert anna.get(f"/api/sessions/{session}").json()["state"] == "waiting"


def test_text_of_another_owner_is_read_by_no_id(public: Public) -> None:
    server, tokens = public
    session = server.begin(server.client(tokens["anna"]))
    started = next(e for e in server.store.read(session) if isinstance(e, SessionStarted))
    asked = next(e for e in server.store.read(session) if isinstance(e, CallAwaited))
    mine = server.begin(server.client(tokens["bob"]), {**PEOPLE, "task": "Another question?"})

    def steal(records: Any) -> str:
        records.read(mine)
        return str(records.text(started.task))

    bob = Caller(owner="bob")
    with pytest.raises(UnknownName):
        asyncio.run(server.sessions.read(bob, steal))
    with pytest.raises(UnknownName):
        asyncio.run(server.sessions.read(bob, lambda records: records.prompt(asked.prompt)))
    anna = Caller(owner="anna")
    assert asyncio.run(server.sessions.read(anna, lambda r: (r.read(session), r.text(started.task))[1])) == "Is it so?"


# --- what a request may name


PATHS = ["../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "file:///etc/passwd", "C:\\x", "~/x", "a/../b"]
ADDRESSES = [
    "http://169.254.169.254/latest",
    "https://127.0.0.1:1/v1",
    "exec:touch {}",
    "workspace:/tmp#human:a",
    "local:/etc/passwd.gguf",
]


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """An address on this machine, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(int(self.path.rpartition("/")[2] or 200))
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *arguments: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def hostile_bodies(value: str) -> list[dict[str, Any]]:
    persona = {"name": "a", "description": "b", "model": value}
    fields: list[dict[str, Any]] = [
        {"protocol": value},
        {"panel": value},
        {"panel": {"name": "p", "persona": [persona]}},
        {"models": [value]},
        {"models": {"V1": value}},
        {"models": [f"human|{value}"]},
        {"settings": {"prompts": value}},
        {"settings": {value: 1}},
        {"sources": [value]},
        {"sources": [{"path": value}]},
        {"sources": [{"name": "a", "url": value}]},
        *({name: value} for name in ("templates", "webhook", "key", "encoder", "store")),
    ]
    return [{**PEOPLE, **field} for field in fields]


@pytest.mark.parametrize("value", [*PATHS, *ADDRESSES])
def test_no_field_of_a_request_names_a_path_or_an_address(public: Public, value: str, tmp_path: Path) -> None:
    server, tokens = public
    client = server.client(tokens["anna"])
    with listening() as (address, asked):
        value = value.replace("https://127.0.0.1:1", address).replace("{}", str(tmp_path / "made"))
        for body in hostile_bodies(value):
            answer = client.post("/api/sessions", json=body)
            assert 400 <= answer.status_code < 500, (body, answer.text)
            assert "root:" not in answer.text
        assert asked == []
    assert server.store.sessions() == []
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("value", [*PATHS, "\0", "a" * 500, "%00"])
def test_no_id_in_a_path_leads_out_of_the_journal(public: Public, value: str) -> None:
    server, tokens = public
    client = server.client(tokens["anna"])
    session, sent = server.begin(client), quote(value, safe="%")
    for path in (sent, f"{session}/views/{sent}", f"{session}/export?format={sent}"):
        answer = client.get(f"/api/sessions/{path}")
        assert answer.status_code in (401, 404, 405, 422), (path, answer.text)
        assert "root:" not in answer.text


# --- headers of a proxy


def test_user_header_counts_from_the_trusted_proxy_only(public: Public) -> None:
    server, _ = public
    for peer, user, status in (
        (PROXY, "anna", 200),
        ("10.0.0.8", "anna", 403),
        ("127.0.0.1", "anna", 403),
        (PROXY, "carl", 401),
    ):
        client = server.client(peer=peer, X_Forwarded_User=user)
        assert client.get("/api/sessions").status_code == status, (peer, user)


def test_forged_user_header_does_not_help_beside_a_token(public: Public) -> None:
    server, tokens = public
    assert (
        server.client(tokens["bob"], peer="10.0.0.8", X_Forwarded_User="anna").get("/api/sessions").status_code == 403
    )


def test_group_gives_an_unnamed_user_its_defaults(public: Public) -> None:
    server, _ = public
    file = server.access.token_file
    assert file is not None
    owners = Owners(file)
    carl = owners.by_user("carl", ["nobody", "staff"])
    assert carl == Caller(owner="carl", team="board", running=2, max_cost_per_day=3.5)
    assert owners.by_user("team:board", ["staff"]) is None
    assert owners.by_user("carl", []) is None
    assert owners.allowance("carl") == Allowance(cost=3.5, running=2)
    assert owners.allowance("team:board") == Allowance(running=1)
    assert owners.allowance("anna") == owners.allowance("") == Allowance()
    client = server.client(peer=PROXY, X_Forwarded_User="carl", X_Forwarded_Groups="x, staff")
    assert client.get("/api/sessions").status_code == 200


def in_team(server: Served, user: str) -> TestClient:
    return server.client(peer=PROXY, X_Forwarded_User=user, X_Forwarded_Groups="staff")


def test_team_owns_sessions_that_all_of_it_see_and_others_do_not(public: Public) -> None:
    server, tokens = public
    carl, dora, anna = in_team(server, "carl"), in_team(server, "dora"), server.client(tokens["anna"])
    shared = server.begin(carl, {**PEOPLE, "team": True})
    private = server.begin(carl)
    assert server.store.owner(shared) == "team:board"
    assert [client.get(f"/api/sessions/{shared}").status_code for client in (carl, dora, anna)] == [200, 200, 404]
    assert [client.get(f"/api/sessions/{private}").status_code for client in (carl, dora, anna)] == [200, 404, 404]
    assert anna.post("/api/sessions", json={**PEOPLE, "team": True}).status_code == 403


# --- bounds


def test_owner_has_the_protocols_models_and_money_of_their_entry(tmp_path: Path) -> None:
    access, tokens = behind_proxy(tmp_path, "anna")
    file = access.token_file
    assert file is not None
    file.write_text(f'{file.read_text()}protocols = ["vote"]\nmodels = []\nmax_cost_per_day = 1.0\nrunning = 0\n')
    with served(tmp_path, access=access) as server:
        client = server.client(tokens["anna"])
        assert client.post("/api/sessions", json={**PEOPLE, "protocol": "solo", "settings": {}}).status_code == 403
        assert client.post("/api/sessions", json={**PEOPLE, "models": [MODEL]}).status_code == 422
        assert client.get("/metrics").status_code == 403
        answer = client.post("/api/sessions", json=PEOPLE)
        assert answer.status_code == 201
        assert not server.executor.join(0.3)  # it waits, since the owner may run none
        events = server.store.read(answer.json()["session"])
        assert not [event for event in events if isinstance(event, CallAwaited)]


def test_unpriced_model_is_refused_to_an_owner_whose_money_is_bounded() -> None:
    name = "http://127.0.0.1:9/v1#m"
    with pytest.raises(Forbidden, match=f"the price of {name} is not known"):
        check_priced(Caller(owner="anna", max_cost_per_day=1), ["human", name], Endpoints())
    check_priced(Caller(owner="anna"), [name], Endpoints())
    check_priced(Caller(owner="anna", max_cost_per_day=1), ["human", "local"], Endpoints())
    priced = Endpoints().declare(name, input_price=1, output_price=2)
    check_priced(Caller(owner="anna", max_cost_per_day=1), [name], priced)


# --- audit, logs


def test_audit_has_who_did_what_and_neither_text_nor_token(public: Public, caplog: pytest.LogCaptureFixture) -> None:
    server, tokens = public
    client = server.client(tokens["anna"])
    with caplog.at_level(logging.DEBUG):
        session = server.begin(client, {**PEOPLE, "task": "A secret question?"})
        seat = client.post(f"/api/sessions/{session}/seats/{agents(server, session)[0]}/link", json={}).json()["token"]
        client.get(f"/seat/{seat}")
        client.post(f"/api/sessions/{session}/comment", json={"text": "secret words"})
        client.post(f"/api/sessions/{session}/cancel", json={})
        server.settle()
        share = client.post(f"/api/sessions/{session}/share", json={}).json()["token"]
        client.get(f"/share/{share}")
        client.delete(f"/api/sessions/{session}")
        server.client("cons_wrong").get("/api/sessions")
    audit = server.access.audit_log
    assert audit is not None
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["did"] for line in lines] == ["began", "linked", "commented", "cancelled", "shared", "deleted"]
    assert {(line["by"], line["session"]) for line in lines} == {("anna", session)}
    own = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith(("httpx", "httpcore")))
    for written in (audit.read_text(), own):
        for secret in (*tokens.values(), seat, share, "cons_wrong", "secret"):
            assert secret not in written


def agents(server: Served, session: str) -> list[str]:
    started = server.store.beginning(session)
    assert started is not None
    return [agent.id for agent in started.agents if agent.is_person_here]


# --- notices


def test_notices_are_sent_at_least_once_to_the_operator_s_address_only(tmp_path: Path) -> None:
    with served(tmp_path) as server, listening() as (address, asked):
        ended = server.begin(server.client())
        server.client().post(f"/api/sessions/{ended}/cancel", json={})
        server.settle()
        told = tmp_path / "notices.json"
        failing = Notices(server.store, AccessSettings(webhook=f"{address}/500"), told)
        assert failing.look() == 0  # what had ended before is not told
        session = server.begin(server.client(), {**PEOPLE, "models": ["human:Anna"]})
        assert failing.look() == 0
        assert len(asked) == 1  # tried, and refused: the second notice is not tried before a while
        asked.clear()
        working = Notices(
            server.store, AccessSettings(webhook=f"{address}/200", public_urls=(PUBLIC,), token_file=told), told
        )
        assert (working.look(), working.look()) == (2, 0)
        first = json.loads(asked[0])
        assert (first["what"], first["session"], first["person"]) == ("your turn", session, "Anna")
        assert first["link"] == f"{PUBLIC}/sessions/{session}"
        assert "Is it so?" not in "".join(asked)
        server.client().post(f"/api/sessions/{session}/cancel", json={})
        server.settle()
        again = Notices(server.store, AccessSettings(webhook=f"{address}/200"), told)  # after a restart
        assert (again.look(), again.look()) == (1, 0)
        assert json.loads(asked[-1])["what"] == "finished"
        assert stat.S_IMODE(told.stat().st_mode) == 0o600


# --- retention


def test_retention_removes_what_is_too_old_or_too_large_and_nothing_that_goes_on(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        ids = [server.begin(server.client()) for _ in range(3)]
        for id in ids[:2]:
            server.client().post(f"/api/sessions/{id}/cancel", json={})
        server.settle()
        now = server.store.created(ids[2])
        audit = server.sessions.audit

        def sweep(at: float, **kept: Any) -> list[str]:
            return Retention(server.store, AccessSettings(**kept), None, audit, now=lambda: at).sweep()

        assert sweep(now + 9e6) == []
        assert sweep(now, keep_days=1) == []
        weight = server.store.admin.weight(ids[1:2])
        assert sweep(now, quota=2 * server.store.admin.weight(ids[:2])) == []
        assert sweep(now, quota=weight) == ids[:1]
        assert sweep(now + 86_401, keep_days=1) == ids[1:2]
        assert server.store.sessions() == ids[2:]
