"""Context windows that the user's own servers say, each in the form of its API."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from consilience.domain.errors import Truncated
from consilience.models import facts as facts_module
from consilience.models.endpoints import Endpoints
from consilience.models.facts import ModelFacts
from consilience.models.port import ModelRequest
from consilience.models.registry import resolve, window_by_name
from consilience.testing import TEXT, MisbehavingServer, ServerAnswer
from consilience.testing.misbehaving_server import chat_completion
from kit.counting import ENGLISH, Counter


@contextmanager
def serving(bodies: Mapping[str, object], counter: Counter | None = None) -> Iterator[MisbehavingServer]:
    """A server with these JSON bodies by path; any other path is not found."""

    def answer(_number: int) -> ServerAnswer:
        request = server.seen[-1]
        if counter is not None and request.path.endswith("/chat/completions"):
            prompt = "\n".join(message["content"] for message in request.body["messages"])
            return ServerAnswer(body=chat_completion(TEXT, usage=counter.usage(prompt)))
        return ServerAnswer(body=bodies[request.path]) if request.path in bodies else ServerAnswer(404, {})

    with MisbehavingServer(answer) as server:
        yield server


def listing(owner: str, model: str = "m", **more: object) -> dict[str, object]:
    return {"object": "list", "data": [{"id": model, "object": "model", "owned_by": owner, **more}]}


LOADED = {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 4_096}]}
SHOWN = {
    "parameters": 'stop    "<|eot|>"\nnum_ctx                        8192',
    "model_info": {"llama.context_length": 131_072},
}
V1 = {
    "models": [
        {
            "key": "m",
            "max_context_length": 99_999,
            "loaded_instances": [{"config": {"context_length": n}} for n in (8_000, 6_000)],
        }
    ]
}
V0 = {"data": [{"id": "m", "state": "loaded", "loaded_context_length": 5_000, "max_context_length": 99_999}]}

SERVERS = [
    ("ollama", "library", {"/api/ps": LOADED, "/api/show": SHOWN}, 4_096),
    ("ollama", "library", {"/api/ps": {"models": []}, "/api/show": SHOWN}, 8_192),
    (
        "ollama",
        "library",
        {"/api/ps": {"models": []}, "/api/show": {"model_info": {"llama.context_length": 131_072}}},
        None,
    ),
    ("ollama", "library", {}, None),
    ("vllm", "vllm", {}, 32_768),
    ("llamacpp", "llamacpp", {"/props": {"default_generation_settings": {"n_ctx": 16_384}, "total_slots": 4}}, 16_384),
    ("llamacpp", "llamacpp", {"/props": {"default_generation_settings": {"n_ctx": "many"}}}, None),
    ("lmstudio", "organization_owner", {"/api/v1/models": V1, "/api/v0/models": V0}, 6_000),
    ("lmstudio", "organization_owner", {"/api/v0/models": V0}, 5_000),
    ("lmstudio", "organization_owner", {"/api/v0/models": {"data": [{"id": "m", "max_context_length": 99_999}]}}, None),
]


@pytest.mark.parametrize("by_address", [False, True])
@pytest.mark.parametrize(("kind", "owner", "bodies", "window"), SERVERS)
def test_window_is_read_as_each_server_says_it(
    kind: str,
    owner: str,
    bodies: dict[str, object],
    window: int | None,
    by_address: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = {"/v1/models": listing(owner, max_model_len=32_768) if kind == "vllm" else listing(owner), **bodies}
    with serving(bodies) as server:
        monkeypatch.setenv(f"{kind.upper()}_BASE_URL", f"{server.url}/v1")
        name = f"{server.url}/v1#m" if by_address else f"{kind}:m"
        assert window_by_name(name, Endpoints()) == window
        assert "authorization" not in json.dumps([request.headers for request in server.seen])


def test_declared_window_is_not_asked_for() -> None:
    with serving({"/v1/models": listing("library"), "/api/ps": LOADED}) as server:
        known = Endpoints().declare(f"{server.url}/v1", context_window=32_000, free=True)
        assert window_by_name(f"{server.url}/v1#m", known) == 32_000
        assert server.seen == []


@pytest.mark.parametrize("owner", ["openai", "litellm"])
def test_server_of_another_kind_is_asked_for_its_models_only(owner: str) -> None:
    with serving({"/v1/models": listing(owner, max_model_len=32_768), "/api/ps": LOADED, "/props": {}}) as server:
        assert window_by_name(f"{server.url}/v1#m", Endpoints()) is None
        assert {request.path for request in server.seen} == {"/v1/models"}


def test_key_is_sent_for_a_window_only_where_requests_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSILIENCE_ENDPOINT_KEY", "zq7-wintermute-plum-4410")
    bodies = {"/v1/models": listing("llamacpp"), "/props": {"default_generation_settings": {"n_ctx": 16_384}}}
    with serving(bodies) as server:
        name = f"{server.url}/v1#m"
        assert window_by_name(name, Endpoints()) == 16_384
        assert "plum" not in str([request.headers for request in server.seen])
    with serving(bodies) as server:
        name = f"{server.url}/v1#m"
        assert window_by_name(name, Endpoints().name([name])) == 16_384
        assert all("plum" in str(request.headers) for request in server.seen)


@pytest.mark.parametrize(
    "name", ["https://api.openai.com/v1#gpt-4o", "http://example.org/v1#m", "openai:gpt-4o", "ollama:m-cloud"]
)
def test_hosted_provider_is_never_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(facts_module, "served_window", lambda *arguments: asked.append(arguments))
    monkeypatch.setenv("OLLAMA_BASE_URL", "https://ollama.com/v1")
    assert ModelFacts(name).own_server is None
    _ = ModelFacts(name).context_window
    assert asked == []


def test_server_that_never_answers_has_an_unknown_window(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OLLAMA_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        assert window_by_name("ollama:m", Endpoints()) is None


async def test_server_is_asked_again_for_its_window_before_a_probe_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ollama knows it once it has loaded the model."""
    counter = Counter(4_096)
    bodies: dict[str, object] = {"/api/ps": {"models": []}}
    with serving(bodies, counter) as server:
        monkeypatch.setenv("OLLAMA_BASE_URL", f"{server.url}/v1")
        model = resolve("ollama:m")
        bodies["/api/ps"] = LOADED
        with pytest.raises(Truncated):
            await model.complete(ModelRequest(agent="a", key="k", system="", user=ENGLISH * 1_000))
        await model.close()
    assert len(counter.seen) == 1
