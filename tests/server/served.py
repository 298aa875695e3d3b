"""A server process on loopback, with a model on loopback; and a client of the standard library."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cli.loopback import MODEL, PATIENCE, Provider, begin, environment, prose
from consilience.models.port import ModelRequest
from consilience.testing.any_model import AnyModel
from kit import forks
from kit.forks import PYTHONPATH


def typed(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
    """A reply of the schema that is asked for, or prose, that depends on the request and on nothing else."""
    form = body.get("response_format") or {}
    schema = form.get("json_schema", {}).get("schema")
    status, answer = prose(body, headers)
    if schema is not None:
        text = "\n".join(str(message["content"]) for message in body["messages"])
        value = json.loads(AnyModel().reply(ModelRequest(agent="A", key="k", system="", user=text, schema=schema)))
        if "propositions" in value:  # of the framing of a debate
            value |= {"form": schema["properties"]["form"]["enum"][0], "propositions": ["Should it be done?"]}
        if "question" in value:
            value |= {"question": "Would it pay within a year?"}
        answer["choices"][0]["message"]["content"] = json.dumps(value)  # type: ignore[index]
    return status, answer


@dataclass(frozen=True)
class SentEvent:
    """A server-sent event; `id` is None for a hint."""

    id: int | None
    event: str
    data: dict[str, Any]


@dataclass
class Served:
    """A server process."""

    process: forks.Fork
    url: str

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and body: of JSON the value, else the text."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, _value(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, _value(refused)

    def get(self, path: str) -> Any:
        status, value = self.request("GET", path)
        assert status == 200, value
        return value

    def post(self, path: str, body: object, status: int = 200) -> Any:
        found, value = self.request("POST", path, body)
        assert found == status, value
        return value

    def begin(self, **body: object) -> str:
        return str(self.post("/api/sessions", {"protocol": "vote", "task": "Cats or dogs?", **body}, 201)["session"])

    def events(self, session: str, after: int = 0, *, header: bool = False) -> Iterator[SentEvent]:
        """Yield the events of one connection, until the server ends it or the reader leaves."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        try:
            cursor = "" if header else f"?after={after}"
            headers = {"Last-Event-ID": str(after)} if header else {}
            connection.request("GET", f"/api/sessions/{session}/events{cursor}", headers=headers)
            answer = connection.getresponse()
            if answer.status == 204:
                return
            assert answer.status == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            fields: dict[str, str] = {}
            for line in answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name in ("id", "event", "data"):
                    fields[name] = value
                elif not name and fields:
                    id = int(fields["id"]) if "id" in fields else None
                    yield SentEvent(id, fields["event"], json.loads(fields["data"]))
                    fields = {}
        finally:
            connection.close()

    def wait(self, session: str) -> dict[str, Any]:
        """Follow a session to its end; return its report."""
        for _ in self.events(session):
            pass
        view = self.get(f"/api/sessions/{session}")
        assert view["state"] == "finished"
        return dict(view["report"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """End the process by SIGTERM; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(PATIENCE))


def _value(answer: Any) -> Any:
    text = answer.read().decode()
    return json.loads(text) if answer.headers.get_content_type() == "application/json" else text


def environment_of(home: Path, provider: Provider, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "PYTHONUNBUFFERED": "1",
        "CONSILIENCE_HOME": str(home),
        "HOME": str(home),
        "OPENAI_API_KEY": "none-needed",
        **environment(provider.url),
        **more,
    }


@contextmanager
def serving(
    home: Path, provider: Provider, *options: str, most: int | None = None, before: str = "", **variables: str
) -> Iterator[Served]:
    """Run `consilience serve` while the block runs; `most` and `before` as in `cli.loopback.begin`."""
    env = environment_of(home, provider, **variables)
    process = begin("serve", "--port", "0", "--model", MODEL, *options, env=env, cwd=home, most=most, before=before)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.communicate(timeout=PATIENCE)[1]
        yield Served(process, found[0])
    finally:
        process.kill()
        process.communicate()
