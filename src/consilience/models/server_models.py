"""Asks servers which models they list. Blocks, in threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from consilience.models.providers import Server

T = TypeVar("T")

PROBE_SECONDS = 0.3
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


def _get(url: str, path: str, seconds: float, key: str | None = None) -> tuple[int, Any]:
    """GET `path` at the host of `url`. Returns status and JSON body (None unless the status is 200)."""
    import http.client
    import json

    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "127.0.0.1", parts.port, timeout=seconds)
    try:
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", path, headers={"Accept": "application/json", **bearer})
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


def _chats_here(name: str) -> bool:
    """Whether a model is neither an embedding model nor one that the server passes on to its maker's cloud."""
    plain = name.lower()
    return "embed" not in plain and not plain.startswith(("bge-", "all-minilm")) and not is_cloud(name)


def is_cloud(name: str) -> bool:
    """Return whether the model of a server on this machine is computed in its maker's cloud, where it costs money."""
    return name.lower().endswith(("-cloud", ":cloud"))
