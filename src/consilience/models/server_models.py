"""Asks servers which models they list, and what context windows these have. Blocks, in threads."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from consilience.models.providers import Server

T = TypeVar("T")

PROBE_SECONDS = 0.3
"""How long a server that may not be there is waited for."""
NAMED_SECONDS = 3.0
"""How long a server is waited for that is named. One that computes a reply may be slow to say what it has."""
KEPT_SECONDS = 30.0
_kept: dict[Hashable, tuple[float, Any]] = {}
"""When each question was asked, and the answer."""
_MAX_LISTING_BYTES = 1_000_000


def answers_within(seconds: float, questions: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Ask side by side, in threads, since looking up a name has no timeout of its own. A question that raises has no answer."""
    import threading
    import time

    answers: dict[str, T] = {}

    def ask(name: str, question: Callable[[], T]) -> None:
        with contextlib.suppress(Exception):  # another program listens there
            answers[name] = question()

    threads = [threading.Thread(target=ask, args=item, daemon=True) for item in questions.items()]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(answers)


def kept_answer(question: Hashable, ask: Callable[[], T], *, anew: bool = False) -> T | None:
    """Return the answer to a question, which `ask` gets: again if the last one is 30 s old or is asked for `anew`, but never on an
    event loop, where the last answer holds. None before the first."""
    import time

    asked_at: float
    answer: T | None
    asked_at, answer = _kept.get(question, (-KEPT_SECONDS, None))
    if (anew or time.monotonic() - asked_at >= KEPT_SECONDS) and not _on_event_loop():
        answer = ask()
        _kept[question] = (time.monotonic(), answer)
    return answer


def _on_event_loop() -> bool:
    """Whether this thread must not block."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def chat_models(server: Server, url: str, seconds: float) -> tuple[str, ...]:
    """Return the chat models that the server at `url` lists. Raises any exception."""
    status, listing = _get(url, server.path, seconds)
    if status != 200:
        return ()
    entries = listing.get("models" if server.path == "/api/tags" else "data", [])
    names = [
        str(entry.get("name") or entry.get("id") or "")
        for entry in entries
        if not server.owner or entry.get("owned_by") == server.owner
    ]
    return tuple(name for name in names if name and _chats_here(name))


def _get(url: str, path: str, seconds: float, key: str | None = None, body: object = None) -> tuple[int, Any]:
    """GET `path` at the host of `url`, or POST a `body` to it. Returns status and JSON body (None unless the status is 200)."""
    import http.client
    import json

    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "127.0.0.1", parts.port, timeout=seconds)
    try:
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        sent = None if body is None else json.dumps(body)
        headers = {"Accept": "application/json", "Content-Type": "application/json", **bearer}
        connection.request("GET" if sent is None else "POST", path, sent, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read(_MAX_LISTING_BYTES)) if response.status == 200 else None
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Listing:
    """The models that an endpoint lists."""

    models: tuple[str, ...] = ()
    problem: str = ""
    """Why there are none, in a few words."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """What the server says of each model's owner (`owned_by`)."""


def list_models(url: str, seconds: float, key: str | None = None) -> Listing:
    """List the models of any OpenAI-compatible endpoint. Blocks for at most `seconds`; never raises."""
    answers = answers_within(seconds, {url: partial(_listing, url, seconds, key)})
    return answers.get(url, Listing(problem=f"does not answer within {seconds:g} s"))


def _listing(url: str, seconds: float, key: str | None) -> Listing:
    try:
        status, body = _get(url, f"{urlsplit(url).path.rstrip('/')}/models", seconds, key)
        if status != 200:
            refusal = "does not accept the key" if key else "wants a key"
            problem = refusal if status in (401, 403) else "lists no models"
            return Listing(problem=f"answers, but {problem} (HTTP {status})")
        owners = {str(entry["id"]): str(entry.get("owned_by")) for entry in body["data"]}
    except TimeoutError:
        return Listing(problem=f"does not answer within {seconds:g} s")
    except OSError as error:
        return Listing(problem=f"does not answer ({error.strerror or type(error).__name__})")
    except Exception:  # not HTTP, not JSON, or another structure
        return Listing(problem="answers, but lists no models")
    return Listing(tuple(owners), "" if owners else "answers, but lists no models", owners)


def served_window(kind: str, url: str, model: str, seconds: float, key: str | None = None) -> int | None:
    """Return the context window that a server of that kind gives to `model`; None if it does not say, as Ollama and LM Studio
    before they have loaded it. Blocks for at most `seconds`; never raises."""
    answers = answers_within(seconds, {url: partial(_WINDOWS[kind], partial(_answer, url, seconds, key), model)})
    window = answers.get(url)
    return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None


_Ask: TypeAlias = Callable[..., Any]
"""Asks a server for the JSON at a path, for a POST with a body; None for a failure."""


def _answer(url: str, seconds: float, key: str | None, path: str, body: object = None) -> Any:
    try:
        return _get(url, path, seconds, key, body)[1]
    except Exception:  # another question may be answered
        return None


def _ollama_window(ask: _Ask, model: str) -> object:
    """As it has loaded the model, or as its Modelfile says. What it chooses otherwise it tells nobody before."""
    for entry in (ask("/api/ps") or {}).get("models", []):
        if entry.get("model") in (model, f"{model}:latest"):
            return entry.get("context_length")
    parameters = str((ask("/api/show", {"model": model}) or {}).get("parameters", ""))
    found = re.search(r"^num_ctx\s+(\d+)", parameters, re.MULTILINE)
    return int(found[1]) if found else None


def _vllm_window(ask: _Ask, model: str) -> object:
    return next((entry.get("max_model_len") for entry in ask("/v1/models")["data"] if entry["id"] == model), None)


def _llamacpp_window(ask: _Ask, model: str) -> object:
    """Of one slot."""
    return ask("/props")["default_generation_settings"]["n_ctx"]


def _lmstudio_window(ask: _Ask, model: str) -> object:
    """As it has loaded the model, the smallest of several copies. Version 0.4 has another list than those before."""
    for entry in (ask("/api/v1/models") or {}).get("models", []):
        if entry.get("key") == model and (loaded := entry.get("loaded_instances")):
            return min(instance["config"]["context_length"] for instance in loaded)
    data = (ask("/api/v0/models") or {}).get("data", [])
    return next((entry.get("loaded_context_length") for entry in data if entry.get("id") == model), None)


_WINDOWS: Mapping[str, Callable[[_Ask, str], object]] = {
    "ollama": _ollama_window,
    "vllm": _vllm_window,
    "llamacpp": _llamacpp_window,
    "lmstudio": _lmstudio_window,
}


def _chats_here(name: str) -> bool:
    """Whether a model is neither an embedding model nor one that the server passes on to its maker's cloud."""
    plain = name.lower()
    return "embed" not in plain and not plain.startswith(("bge-", "all-minilm")) and not is_cloud(name)


def is_cloud(name: str) -> bool:
    """Return whether the model of a server on this machine is computed in its maker's cloud, where it costs money."""
    return name.lower().endswith(("-cloud", ":cloud"))
