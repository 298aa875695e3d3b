"""A server that keeps the notes of one merge request and refuses what GitLab would refuse."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

PAGE = 2
"""Notes on a page, however many are asked for."""
NOTES = "/api/v4/projects/42/merge_requests/7/notes"


class NoteBody(BaseModel):
    """As of https://docs.gitlab.com/api/notes/."""

    model_config = ConfigDict(extra="forbid")

    body: Annotated[str, Field(min_length=1, max_length=1_000_000)]


@dataclass
class GitLab:
    """The merge request 7 of the project 42. Its only token is that of the user 900."""

    url: str = ""
    token: str = "glpat-of-a-bot"
    notes: list[dict[str, Any]] = field(default_factory=list)
    """The oldest first."""
    writes: list[str] = field(default_factory=list)
    """The requests that changed something, or were refused."""
    is_read_only: bool = False

    def add(self, body: str, author: int) -> None:
        self.notes.append({"id": 1_000 + len(self.notes), "body": body, "author": {"id": author}, "system": False})

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: str) -> tuple[int, Any, str]:
        """Return status, content, and the value of `x-next-page`."""
        if (method, path) == ("GET", "/api/v4/user"):
            return 200, {"id": 900, "username": "project_42_bot"}, ""
        if (method, path) == ("GET", NOTES):
            first = (int(query.get("page", ["1"])[0]) - 1) * PAGE
            ordered = self.notes if query.get("sort") == ["asc"] else self.notes[::-1]
            more = str(first // PAGE + 2) if first + PAGE < len(ordered) else ""
            return 200, ordered[first : first + PAGE], more
        self.writes.append(f"{method} {path}")
        if self.is_read_only:
            return 403, {"message": "403 Forbidden"}, ""
        text = NoteBody.model_validate_json(body).body
        if (method, path) == ("POST", NOTES):
            self.add(text, 900)
            return 201, self.notes[-1], ""
        found = re.fullmatch(rf"{NOTES}/(\d+)", path) if method == "PUT" else None
        note = next((note for note in self.notes if found and note["id"] == int(found[1])), None)
        if note is None:
            return 404, {"message": "404 Not found"}, ""
        if note["author"]["id"] != 900:
            return 403, {"message": "403 Forbidden"}, ""
        note["body"] = text
        return 200, note, ""


@contextmanager
def serve() -> Iterator[GitLab]:
    """A GitLab that listens on loopback."""
    gitlab = GitLab()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            if self.headers.get("PRIVATE-TOKEN") != gitlab.token:
                status, content, more = 401, {"message": "401 Unauthorized"}, ""
            else:
                try:
                    status, content, more = gitlab.answer(self.command, place.path, parse_qs(place.query), body)
                except ValidationError as error:
                    status, content, more = 400, {"message": str(error)}, ""
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.send_header("x-next-page", more)
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    gitlab.url = f"http://127.0.0.1:{server.server_port}/api/v4"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield gitlab
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
