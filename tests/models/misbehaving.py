"""Answers of a `MisbehavingServer` that hold a key, and its former short names."""

from __future__ import annotations

from consilience.testing import MisbehavingServer, ServerAnswer
from consilience.testing.misbehaving_server import chat_completion

KEY = "zq7-wintermute-plum-4410"
"""An api key of no known shape, which must never be seen in an error."""

Answer = ServerAnswer
Server = MisbehavingServer
misbehaving = MisbehavingServer


def completion(content: str | None = "Four.", *, finish: str = "stop", **more: object) -> Answer:
    """A well-formed chat completion. `more` goes into its message; a `usage` among it replaces the usual one."""
    return Answer(body=chat_completion(content, finish=finish, **more))


def error(status: int, message: str = "no", *, code: str | None = None, **headers: str) -> Answer:
    """An error as OpenAI sends it; header names are written with underscores."""
    body = {"error": {"message": f"{message} (key {KEY})", "type": "error", "code": code}}
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})
