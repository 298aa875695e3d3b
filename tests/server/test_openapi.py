"""The whole OpenAPI document, called with what fits it and with what does not: nothing makes the server fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from cli.loopback import MODEL
from consilience import Deliberation, Vote
from consilience.server.access import Door
from consilience.server.callers import LOCAL
from consilience.server.settings import ServerSettings
from consilience.testing.any_model import AnyModel
from server.inprocess import served

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
