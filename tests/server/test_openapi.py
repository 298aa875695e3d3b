"""The whole OpenAPI document, called with what fits it and with what does not: nothing makes the server fail."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from cli.loopback import MODEL
from consilience import Deliberation, Vote
from consilience.engine import seats
from consilience.models.port import ModelRequest
from consilience.server.access import Door
from consilience.server.callers import LOCAL
from consilience.server.settings import ServerSettings
from consilience.testing.any_model import AnyModel
from server.inprocess import Served, listening, served, url_of

EXAMPLES = 8
"""Of each operation, fitting and unfitting each."""
SESSION = "finished"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    model = AnyModel(name=MODEL)
    monkeypatch.setattr(Door, "caller", lambda door, scope, headers: LOCAL)
    monkeypatch.setattr(Door, "check_address", lambda door, scope, headers: None)
    with served(tmp_path, ServerSettings(models=(MODEL,), max_body=100_000), models=model) as server:
        prepared = Deliberation(Vote(votes=2), model=model, store=server.store).prepare(
            "Cats or dogs?", session=SESSION
        )
        server.executor.submit(asyncio.run(prepared))
        server.settle()
        yield server.app


def test_no_request_of_the_openapi_document_makes_the_server_fail(app: Any) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    called: dict[str, set[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        call_all(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), called)
        with suppress(Unsatisfiable):  # nothing could be invalid in a request without parameters
            call_all(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), called)
    assert len(called) == len([route for route in app.openapi()["paths"].values() for _ in route])
    assert {200, 404, 422} <= set().union(*called.values())


def call_all(cases: Any, called: dict[str, set[int]]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def call(case: Any) -> None:
        statuses = called.setdefault(case.operation.label, set())
        for session in (None, SESSION) if "session" in (case.path_parameters or {}) else (None,):
            if session is not None:
                case.path_parameters["session"] = session
            if session is not None and case.method == "DELETE":
                continue  # the other operations need it
            answer = case.call()
            statuses.add(answer.status_code)
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)

    call()


SECRET = "what no request may read"


def test_address_in_any_string_of_any_request_is_never_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, resolve = AnyModel(name=MODEL), seats.resolve
    monkeypatch.setattr(seats, "resolve", lambda name, **more: stub if name == MODEL else resolve(name, **more))
    with served(tmp_path) as server, listening() as trap, server.client() as client:
        answers = list(sent_everywhere(server, client, f"{url_of(trap)}/v1#m"))
        trap.setblocking(False)
        with pytest.raises(BlockingIOError):
            trap.accept()
    assert {200, 201, 404, 422} <= {answer.status_code for answer in answers} <= {200, 201, 202, 400, 404, 422}


@pytest.mark.parametrize("form", ["{}", "../../../../../../../../../..{}", "file://{}"])
def test_path_in_any_string_of_any_request_is_neither_read_nor_written(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, resolve = AnyModel(name=MODEL), seats.resolve
    monkeypatch.setattr(seats, "resolve", lambda name, **more: stub if name == MODEL else resolve(name, **more))
    home, outside = tmp_path / "journals", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    with served(home) as server, server.client() as client:
        for name in ("secret.txt", "new.txt"):
            for answer in sent_everywhere(server, client, form.format(outside / name)):
                assert SECRET not in answer.text, answer.request.url
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert all(SECRET.encode() not in path.read_bytes() for path in home.iterdir() if path.is_file())


def sent_everywhere(server: Served, client: httpx.Client, text: str) -> Iterator[httpx.Response]:
    """Put a text into each place of each request that the server's document describes; yield the answers."""
    document = server.app.openapi()
    sent = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for request in planted(document, operation, text):
                place = re.sub(r"\{\w+(:path)?\}", request.pop("in_path", "finished"), path)
                answer = client.request(method, place, **request)
                assert answer.status_code < 500, (place, request, answer.text)
                sent.add(path)
                yield answer
    server.settle()
    assert sent == set(document["paths"])


def planted(document: dict[str, Any], operation: dict[str, Any], address: str) -> Iterator[dict[str, Any]]:
    """Requests with an address in each parameter, in each field of the body alone, and in all strings of a field."""
    hosts = {"x-forwarded-host": address, "x-forwarded-for": address, "referer": address}
    yield {"in_path": quote(address, safe=""), "headers": {**hosts, "forwarded": f"host={address}"}}
    yield {"params": {p["name"]: address for p in operation.get("parameters", []) if p["in"] == "query"}}
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "query":
            yield {"params": {parameter["name"]: address}}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is None:
        return
    schema = {**document["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], body)}
    schema["$defs"] = document["components"]["schemas"]
    required = {"task": "Why?", "protocol": "vote", "settings": {"votes": 1}, "models": [MODEL], "sources": []}
    known = {name: value for name, value in required.items() if name in schema.get("properties", {})}
    known |= {"model": "consilience/vote"} if "model" in schema.get("properties", {}) else {}
    for name, field in schema.get("properties", {}).items():
        whole = json.loads(AnyModel().reply(model_request({**schema, "properties": {name: field}})))
        with_address = everywhere(whole[name], address)
        for value in (
            address,
            [address],
            {address: address},
            [{"name": "a", "text": "b", "url": address}],
            with_address,
        ):
            yield {"json": {**known, name: value}}
        form = {**known, name: with_address}
        yield {
            "data": {k: v if isinstance(v, str) else json.dumps(v) for k, v in form.items()},
            "files": [("files", (address, address.encode()))],
        }


def model_request(schema: dict[str, Any]) -> ModelRequest:
    return ModelRequest(agent="A", key="k", system="", user="", schema=schema)


def everywhere(value: Any, address: str) -> Any:
    """Return a value with the address in place of each of its strings."""
    if isinstance(value, dict):
        return {name: everywhere(inner, address) for name, inner in value.items()}
    if isinstance(value, list):
        return [everywhere(inner, address) for inner in value]
    return address if isinstance(value, str) else value


def test_openapi_describes_every_route_and_field(app: Any) -> None:
    document = app.openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (path, method)
            assert operation["responses"].keys() & {"400", "422"}, (path, method)
            for parameter in operation.get("parameters", []):
                described = parameter.get("description") or parameter["name"] in ("name", "last-event-id")
                assert described, (path, parameter["name"])
    for name in ("NewSession", "ForkBody", "TellBody", "ChoicesBody"):
        for field, schema in document["components"]["schemas"][name]["properties"].items():
            assert schema.get("description") or "$ref" in schema, (name, field)
    uploads = ("/api/sessions", "/api/sessions/{session}/fork", "/api/sessions/{session}/tell", "/api/choices")
    for path in uploads:
        assert set(document["paths"][path]["post"]["requestBody"]["content"]) == {
            "application/json",
            "multipart/form-data",
        }
