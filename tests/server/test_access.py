"""Who is let in: every route is closed, addresses and origins are checked, tokens expire and are withdrawn."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import stat
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Mount, Route

from cli.loopback import PATIENCE
from consilience.domain.errors import SettingsError
from consilience.server import access
from consilience.server.access import LINKED, OPEN, AccessGate, Door, check_start
from consilience.server.access_settings import AccessSettings
from consilience.server.owners import Owners, add_owner
from server.inprocess import PEOPLE, PROXY, PUBLIC, Served, behind_proxy, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as server:
        yield server


@pytest.fixture
def public(tmp_path: Path) -> Iterator[tuple[Served, dict[str, str]]]:
    access, tokens = behind_proxy(tmp_path, "anna", "bob")
    with served(tmp_path, access=access) as server:
        yield server, tokens


Public = tuple[Served, dict[str, str]]


# --- every route is closed


def every_route(routes: list[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every method and path, of mounted applications too, with words in place of parameters."""
    for route in routes:
        if contexts := getattr(route, "effective_route_contexts", None):  # of a router that FastAPI includes
            yield from every_route(list(contexts()), prefix)
            continue
        if inner := getattr(route, "routes", None):
            yield from every_route(list(inner), prefix + getattr(route, "path", ""))
        path = re.sub(r"\{[^}]*\}", "x1", prefix + getattr(route, "path", ""))
        methods = getattr(route, "methods", None) or {"GET", "POST"}
        if isinstance(route, Mount):
            yield from product(("GET", "POST"), (path, f"{path}/", f"{path}/x1"))
        elif path:
            yield from product(methods, (path,))


def open_routes(server: Served) -> set[tuple[str, str]]:
    client = server.client()
    answers = {
        (method, path): client.request(method, path, json={})
        for method, path in every_route(list(server.app.router.routes))
    }
    assert len(answers) > 12
    closed = {
        asked
        for asked, answer in answers.items()
        if answer.status_code == 401 or (asked[1].startswith(LINKED) and answer.status_code == 404)
    }
    return set(answers) - closed


def test_no_route_answers_without_a_token_but_login_its_style_sheet_and_healthz(public: Public) -> None:
    server, _ = public
    assert (
        open_routes(server)
        <= OPEN
        == {
            ("GET", "/login"),
            ("POST", "/login"),
            ("GET", "/page.css"),
            ("GET", "/summary.css"),
            ("GET", "/healthz"),
        }
    )


def test_a_route_that_somebody_adds_is_closed_too(public: Public) -> None:
    server, _ = public
    server.app.router.routes.append(Route("/added", lambda request: None))
    server.app.router.routes.append(Mount("/tools", routes=[Route("/inner", lambda request: None)]))
    assert ("GET", "/added") in set(every_route(list(server.app.router.routes)))
    assert ("GET", "/tools/inner") in set(every_route(list(server.app.router.routes)))
    assert open_routes(server) <= OPEN


def test_walk_over_the_routes_finds_one_that_is_open(public: Public, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = public
    monkeypatch.setattr("consilience.server.access.OPEN", OPEN | {("GET", "/docs")})
    assert open_routes(server) - OPEN == {("GET", "/docs")}


def test_paths_that_resemble_an_open_one_are_closed(public: Public) -> None:
    server, _ = public
    for path in (
        "/login/",
        "/login/../api/sessions/a",
        "//login",
        "/LOGIN",
        "/healthz/x",
        "/page.css/..",
        "/login%2f",
    ):
        assert server.client().get(path).status_code in (401, 421), path
    for path in ("/seat/%2e%2e/api/sessions/a", "/seat/", "/share/..%2fapi%2fsessions"):
        assert server.client().get(path).status_code == 404, path


# --- names and origins


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1:9999", "localhost", "127.0.0.1.evil.example:8765", "", "a@localhost:8765"]
)
def test_dns_rebinding_is_refused_on_loopback(local: Served, host: str) -> None:
    for path in ("/api/sessions/a", "/login", "/mcp", "/api/sessions/a/events"):
        answer = local.client(Host=host).get(path)
        assert (answer.status_code, answer.json()["error"]["what"]) == (421, "this server has another name")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_loopback_names_with_the_port_are_answered_without_a_token(local: Served, name: str) -> None:
    assert local.client(Host=f"{name}:8765").get("/api/sessions/a").status_code == 404


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost", "http://127.0.0.1:80", "https://127.0.0.1:8765"]
)
def test_cross_site_post_is_refused_on_loopback(local: Served, origin: str) -> None:
    answer = local.client(Origin=origin).post("/api/sessions", json=PEOPLE)
    assert answer.status_code == 403
    assert local.store.sessions() == []
    assert local.client(Origin="http://127.0.0.1:8765").post("/api/sessions", json=PEOPLE).status_code == 201
    local.settle()


def test_only_this_machine_is_answered_without_a_token_file(local: Served) -> None:
    assert local.client(peer="192.168.1.7").get("/api/sessions/a").status_code == 403


def test_only_the_public_url_is_answered_off_loopback(public: Public) -> None:
    server, tokens = public
    for host in ("evil.example", "127.0.0.1:8765", "localhost", "talks.example:8443", "talks.example.evil"):
        assert server.client(tokens["anna"], Host=host).get("/api/sessions/a").status_code == 421, host
    for host in ("talks.example", "Talks.Example", "talks.example:443"):
        assert server.client(tokens["anna"], Host=host).get("/api/sessions/a").status_code == 404, host
    assert server.client(tokens["anna"], Origin="https://evil.example").post("/api/sessions").status_code == 403
    assert server.client(tokens["anna"], Origin="http://talks.example").post("/api/sessions").status_code == 403


def test_a_server_that_others_reach_needs_a_token_file_and_its_name(tmp_path: Path) -> None:
    check_start(AccessSettings(), "127.0.0.1")
    check_start(AccessSettings(), "::1")
    for host in ("0.0.0.0", "192.168.1.7", "::", "server.example"):
        with pytest.raises(SettingsError, match="token file"):
            check_start(AccessSettings(), host)
        with pytest.raises(SettingsError, match="public URL"):
            check_start(AccessSettings(token_file=tmp_path / "t"), host)
        check_start(AccessSettings(token_file=tmp_path / "t", public_urls=(PUBLIC,)), host)
    with pytest.raises(ValueError, match="token_file"):
        AccessSettings(public_urls=(PUBLIC,))


# --- tokens


def test_token_is_compared_by_digest_with_every_owner_for_unknown_tokens_too(
    public: Public, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, tokens = public
    compared: list[tuple[str, str]] = []

    def compare(a: str, b: str) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token, status in ((tokens["anna"], 404), ("cons_unknown", 401), (tokens["bob"], 404)):
        compared.clear()
        assert server.client(token).get("/api/sessions/a").status_code == status
        assert len(compared) == 2
        assert all(len(a) == len(b) == 64 and token not in (a, b) for a, b in compared)


def test_token_that_has_expired_or_was_withdrawn_is_refused_without_a_restart(public: Public) -> None:
    server, tokens = public
    file = server.access.token_file
    assert file is not None
    anna, bob = (server.client(tokens[name]) for name in ("anna", "bob"))
    assert {client.get("/api/sessions/a").status_code for client in (anna, bob)} == {404}
    before = file.read_text()
    file.write_text(before.replace('name = "anna"', 'name = "anna"\nexpires = 2020-01-01'))
    assert (anna.get("/api/sessions/a").status_code, bob.get("/api/sessions/a").status_code) == (401, 404)
    file.write_text(before[: before.index('[[owner]]\nname = "bob"')])
    assert (anna.get("/api/sessions/a").status_code, bob.get("/api/sessions/a").status_code) == (404, 401)
    carl = add_owner(file, "carl")
    assert server.client(carl).get("/api/sessions/a").status_code == 404


async def test_stream_ends_when_its_token_is_withdrawn(public: Public) -> None:
    server, tokens = public
    file = server.access.token_file
    assert file is not None
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for n in range(4):
            if n == 2:
                file.write_text("")
            await send({"type": "http.response.body", "body": b"row", "more_body": True})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"talks.example"), (b"authorization", f"Bearer {tokens['anna']}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/api/sessions/a/events", "headers": headers, "scheme": "https",
             "client": ("10.0.0.1", 1), "server": ("10.0.0.2", 443), "query_string": b""}  # fmt: skip
    await AccessGate(app, door=Door(server.access, Owners(file)))(scope, send, send)
    assert [message.get("body") for message in sent[1:]] == [b"row", b"row", b""]
    assert sent[-1]["more_body"] is False


async def test_open_requests_of_one_owner_are_bounded_and_those_of_others_are_not(
    public: Public, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MAX_OPEN", 2)
    server, tokens = public
    held = server.begin(server.client(tokens["anna"]))
    transport = httpx.ASGITransport(server.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=PUBLIC, timeout=PATIENCE) as client:

        async def get(owner: str, path: str = "") -> httpx.Response:
            return await client.get(f"/api/sessions{path}", headers={"authorization": f"Bearer {tokens[owner]}"})

        streams = [asyncio.create_task(get("anna", f"/{held}/events")) for _ in range(2)]
        for _ in range(6_000):
            if server.sessions.feeds.readers == 2:
                break
            await asyncio.sleep(0.01)
        refused = await get("anna")
        assert refused.status_code == 429
        assert "retry-after" in refused.headers
        assert (await get("bob")).status_code == 200
        server.sessions.feeds.close()
        assert [(await stream).status_code for stream in streams] == [200, 200]
        assert (await get("anna")).status_code == 200


def test_broken_token_file_keeps_the_version_before_and_the_log_says_so(
    public: Public, caplog: pytest.LogCaptureFixture
) -> None:
    server, tokens = public
    file = server.access.token_file
    assert file is not None
    file.write_text("[[owner]\n")
    with caplog.at_level(logging.ERROR, "consilience"):
        for _ in range(3):
            assert server.client(tokens["anna"]).get("/api/sessions/a").status_code == 404
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the token file has changed and is not used as it is now"
    ]
    file.unlink()
    assert server.client(tokens["anna"]).get("/api/sessions/a").status_code == 404


def test_new_owner_is_appended_for_the_operator_only_and_its_token_is_stored_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "made" / "tokens.toml"
    first = add_owner(file, "anna")
    file.write_text(f"# kept by hand\n{file.read_text()}")
    second = add_owner(file, "bob")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith("# kept by hand\n")
    assert not [token for token in (first, second) if token in file.read_text()]
    owners = Owners(file)
    assert [caller and caller.owner for caller in map(owners.by_token, (first, second, "", first + " "))] == [
        "anna", "bob", None, None,
    ]  # fmt: skip
    for name in ("anna", "team:board", "", "a b", "../x", 'x"\n[[owner]]'):
        with pytest.raises(SettingsError):
            add_owner(file, name)
    assert [path.name for path in file.parent.iterdir()] == ["tokens.toml"]


def test_new_owner_leaves_the_token_file_readable_for_the_server(tmp_path: Path) -> None:
    file, link = tmp_path / "tokens.toml", tmp_path / "link.toml"
    add_owner(file, "anna")
    file.chmod(0o640)
    link.symlink_to(file)
    add_owner(link, "bob")
    assert (stat.S_IMODE(file.stat().st_mode), link.is_symlink()) == (0o640, True)
    assert [owner.name for owner in Owners(file).file.owner] == ["anna", "bob"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_new_owner_added_by_root_leaves_the_token_file_to_the_user_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    add_owner(file, "anna")
    os.chown(file, 65534, 65534)
    add_owner(file, "bob")
    assert (file.stat().st_uid, file.stat().st_gid) == (65534, 65534)


def test_error_of_a_token_file_quotes_no_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    for text in ('[[owner]]\nname = "a"\ntoken_sha256 = "cons_SECRET"\n', "[[owner]]\nname = cons_SECRET\n"):
        file.write_text(text)
        with pytest.raises(SettingsError) as refused:
            Owners(file)
        assert "SECRET" not in str(refused.value)


# --- the login and its cookie


def login(server: Served, token: str, *, peer: str = PROXY, proto: str = "https", **headers: str) -> object:
    client = server.client(peer=peer, X_Forwarded_Proto=proto, **headers)
    form = client.get("/login").text
    found = re.search(r'name="form_token" value="([^"]+)"', form)
    assert found
    return client.post("/login", data={"token": token, "form_token": found[1], "next": "/api/sessions/a"})


def test_login_keeps_the_token_in_a_cookie_that_no_script_and_no_other_site_gets(public: Public) -> None:
    server, tokens = public
    answer = login(server, tokens["anna"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/api/sessions/a")  # type: ignore[attr-defined]
    cookie = next(c for c in answer.headers.get_list("set-cookie") if c.startswith("consilience="))  # type: ignore[attr-defined]
    assert {"HttpOnly", "SameSite=strict", "Secure", "Path=/"} <= set(cookie.split("; "))
    client = server.client(peer=PROXY, X_Forwarded_Proto="https", Cookie=f"consilience={tokens['anna']}")
    assert client.get("/api/sessions/a").status_code == 404
    assert client.post("/api/sessions", json=PEOPLE).status_code == 403  # from no page
    assert client.post("/api/sessions", json=PEOPLE, headers={"Origin": PUBLIC}).status_code == 201
    server.settle()


@pytest.mark.parametrize("other", ['{"a": 1}=b', "a[b]=c", 'theme="dark', "=x", "ключ=1"])
def test_cookies_of_other_programs_of_the_host_do_not_log_anybody_out(public: Public, other: str) -> None:
    server, tokens = public
    client = server.client(peer=PROXY, X_Forwarded_Proto="https")
    for cookie in (f"{other}; consilience={tokens['anna']}", f"consilience={tokens['anna']}; {other}"):
        assert client.get("/api/sessions/a", headers={"Cookie": cookie.encode()}).status_code == 404


def test_form_that_anybody_may_send_is_small(public: Public) -> None:
    server, _ = public
    answer = server.client(peer=PROXY, X_Forwarded_Proto="https").post("/login", data={"token": "x" * 10_001})
    assert answer.status_code == 413


def test_login_with_an_unknown_token_sets_no_cookie(public: Public) -> None:
    server, _ = public
    answer = login(server, "cons_wrong")
    assert answer.status_code == 403  # type: ignore[attr-defined]
    assert "consilience=" not in answer.headers.get("set-cookie", "")  # type: ignore[attr-defined]
    assert "cons_wrong" not in answer.text  # type: ignore[attr-defined]


@pytest.mark.parametrize(("peer", "proto"), [(PROXY, "http"), ("10.0.0.8", "https"), (PROXY, "https,http")])
def test_login_and_cookie_are_refused_over_plain_http_off_loopback(public: Public, peer: str, proto: str) -> None:
    server, tokens = public
    plain = server.client(url="http://talks.example", peer=peer, X_Forwarded_Proto=proto)
    answer = plain.post("/login", data={"token": tokens["anna"]})
    assert answer.status_code == 403
    assert "https" in answer.text
    assert plain.get("/api/sessions/a", headers={"Cookie": f"consilience={tokens['anna']}"}).status_code in (401, 421)


def test_forged_forwarded_proto_counts_for_nothing(public: Public) -> None:
    server, tokens = public
    for peer, status in ((PROXY, 404), ("10.0.0.8", 401), ("127.0.0.1", 401)):
        scope = server.client(peer=peer, url="http://talks.example:443", X_Forwarded_Proto="https")
        answer = scope.get(
            "/api/sessions/a", headers={"Cookie": f"consilience={tokens['anna']}", "Host": "talks.example"}
        )
        assert answer.status_code == status, peer


def test_proxies_may_be_a_network(tmp_path: Path) -> None:
    access, tokens = behind_proxy(tmp_path, "anna")
    access = AccessSettings.model_validate({**access.model_dump(), "trusted_proxies": ("172.17.0.0/16", "fd00::/64")})
    with served(tmp_path, access=access) as server:
        for peer, status in (("172.17.3.4", 404), ("fd00::7", 404), ("172.18.0.1", 401), ("fd00:1::7", 401)):
            client = server.client(peer=peer, X_Forwarded_Proto="https", Cookie=f"consilience={tokens['anna']}")
            plain = client.get("http://talks.example:443/api/sessions/a", headers={"Host": "talks.example"})
            assert plain.status_code == status, peer


def test_login_form_of_another_site_is_refused(public: Public) -> None:
    server, tokens = public
    client = server.client(peer=PROXY, X_Forwarded_Proto="https")
    fields = {"token": tokens["anna"], "form_token": "guessed", "next": "/"}
    assert client.post("/login", data=fields).status_code == 403
    client.get("/login")
    assert client.post("/login", data=fields).status_code == 403
    assert client.post("/login", data=fields, headers={"Origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "next", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:x", "/a\nb", ""]
)
def test_login_leads_to_no_other_site(public: Public, next: str) -> None:
    server, _ = public
    page = server.client(peer=PROXY, X_Forwarded_Proto="https").get("/login", params={"next": next})
    assert 'name="next" value="/"' in page.text


def test_browser_without_a_token_is_led_to_the_login(public: Public) -> None:
    server, _ = public
    answer = server.client(Accept="text/html").get("/sessions/<a>")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/sessions/%3Ca%3E")


def test_path_with_a_slash_too_many_leads_nowhere(public: Public) -> None:
    server, tokens = public
    for method in ("GET", "POST"):
        assert server.client(tokens["anna"]).request(method, "/api/sessions/").status_code in (404, 405)


def test_list_of_routes_gives_its_foreign_script_nothing_of_this_server(public: Public) -> None:
    server, tokens = public
    page = server.client(tokens["anna"]).get("/docs")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none';")
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy
    assert "/api/sessions/{session}/events" in page.text
    assert server.client(tokens["anna"]).get("/redoc").status_code == 404


def test_pages_load_nothing_from_elsewhere_and_are_not_stored(public: Public) -> None:
    server, _ = public
    answer = server.client(peer=PROXY, X_Forwarded_Proto="https").get("/login")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "<script" not in answer.text
