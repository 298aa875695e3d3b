"""An application of the server over a journal of its own, and clients of it, without a socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from consilience import Options
from consilience.executor import LocalExecutor
from consilience.journal.accounts import Accounts
from consilience.journal.sqlite import SqliteStore
from consilience.journal.sqlite_accounts import SqliteAccounts
from consilience.server.access_settings import AccessSettings
from consilience.server.app import build_app
from consilience.server.owners import Owners, add_owner
from consilience.server.service import Sessions
from consilience.server.settings import ServerSettings

MODEL = "openai-chat:stub"
PUBLIC = "https://talks.example"
PROXY = "10.0.0.9"
PEOPLE = {"protocol": "vote", "settings": {"votes": 2}, "models": ["human"], "task": "Is it so?"}
"""A request for a session that waits for two people, and so needs no model."""


@dataclass
class Served:
    """A server of a test."""

    app: FastAPI
    sessions: Sessions
    store: SqliteStore
    executor: LocalExecutor
    access: AccessSettings

    def client(self, token: str = "", *, url: str = "", peer: str = "127.0.0.1", **headers: str) -> TestClient:
        """Return a client without redirects, by default at the address by which this server is reached."""
        base = url or (self.access.public_urls[0] if self.access.public_urls else "http://127.0.0.1:8765")
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["authorization"] = f"Bearer {token}"
        return TestClient(self.app, base_url=base, client=(peer, 50000), headers=sent, follow_redirects=False)

    def begin(self, client: TestClient, body: Mapping[str, Any] = PEOPLE) -> str:
        """Begin a session, and wait until nothing more happens in it by itself."""
        answer = client.post("/api/sessions", json=body)
        assert answer.status_code == 201, answer.text
        self.settle()
        return str(answer.json()["session"])

    def settle(self) -> None:
        assert self.executor.join(60)


@contextmanager
def served(directory: Path, access: AccessSettings | None = None, *, models: Any = None) -> Iterator[Served]:
    """`models` are the ports of the executor, by default those that the names in a session mean."""
    access = access or AccessSettings(audit_log=directory / "audit.log")
    file = access.token_file
    accounts: Accounts | None = SqliteAccounts(Owners(file).allowance) if file is not None else None
    options = Options(accounts=accounts)
    store = SqliteStore(directory / "j.db")
    try:
        with LocalExecutor(store, options=options, model=models) as executor:
            settings = ServerSettings(models=(MODEL,), access=access)
            sessions = Sessions(store, executor, settings, options=options)
            yield Served(build_app(sessions), sessions, store, executor, access)
    finally:
        store.close()


def behind_proxy(directory: Path, *names: str, extra: str = "") -> tuple[AccessSettings, dict[str, str]]:
    """Return settings of a server behind a proxy with TLS, and tokens of these owners; `extra` ends the token file."""
    file = directory / "tokens.toml"
    tokens = {name: add_owner(file, name) for name in names}
    if extra:
        file.write_text(f"{file.read_text()}\n{extra}")
    access = AccessSettings(
        token_file=file,
        public_urls=(PUBLIC,),
        trusted_proxies=(PROXY,),  # type: ignore[arg-type]
        audit_log=directory / "audit.log",
    )
    return access, tokens
