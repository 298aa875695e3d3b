"""Notices to the operator's webhook and mail server: "it is your turn" and "finished". Never to an address that a caller gives.

What was told is in a file beside the journal, written after it was sent: a notice is sent at least once, also across a restart, and
again if the process ends between the two. A thread of its own looks for them and sends them (`periodic`): no run waits for it.
"""

from __future__ import annotations

import json
import logging
import os
import smtplib
import time
from collections.abc import Iterator
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Literal
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import BaseModel, ConfigDict, ValidationError

from consilience.domain.events import CallAwaited, SessionFinished
from consilience.journal.store import Records
from consilience.reporting.session_state import fold_events
from consilience.server.access_settings import AccessSettings, Smtp

logger = logging.getLogger("consilience")
LOOK_SECONDS = 5.0
SEND_SECONDS = 10.0
"""How long the receiver of a notice may take."""


class OperatorNotice(BaseModel):
    """What is told: no text of a session, only that there is something to see."""

    model_config = ConfigDict(frozen=True)

    what: Literal["your turn", "finished"]
    session: str
    owner: str
    key: str = ""
    """Of a question, the key of its call."""
    agent: str = ""
    person: str = ""
    """The name of the person who is asked, if it is known."""
    stop_reason: str = ""
    link: str = ""
    """Where the session is, if the server has a public URL."""

    @property
    def id(self) -> str:
        return f"{self.session} {self.key}" if self.key else self.session


class Notices:
    """Tells of questions to people and of ends, at least once each, but not of sessions that had ended before its first look."""

    def __init__(self, records: Records, access: AccessSettings, told: Path) -> None:
        """`told` is the file of what was sent."""
        self._records = records
        self._access = access
        self._told = told
        self._sent: set[str] | None = _read_told(told)

    def look(self) -> int:
        """Send what was not told so far, and return how many notices were sent. Those that fail are sent at the next look."""
        pending = list(self._pending())
        if self._sent is None:
            self._remember({notice.id for notice in pending if notice.what == "finished"})
            pending = [notice for notice in pending if notice.what != "finished"]
        assert self._sent is not None
        sent = {notice.id for notice in pending if notice.id not in self._sent and self._send(notice)}
        if sent:
            self._remember(self._sent | sent)
        return len(sent)

    def _pending(self) -> Iterator[OperatorNotice]:
        told = self._sent or set()
        for entry in self._records.entries():
            if entry.finished and entry.session in told:
                continue
            owner = self._records.owner(entry.session)
            common = {"session": entry.session, "owner": owner, "link": self._link(entry.session)}
            if entry.finished:
                end = self._records.ending(entry.session)
                reason = end.stop_reason.value if isinstance(end, SessionFinished) else ""
                yield OperatorNotice(what="finished", stop_reason=reason, **common)
                continue
            state = fold_events(self._records.read(entry.session))
            people = {agent.id: agent.person for agent in state.agents}
            for key, asked in state.asked.items():
                if isinstance(asked, CallAwaited) and key not in state.answered:
                    yield OperatorNotice(
                        what="your turn", key=key, agent=asked.agent, person=people.get(asked.agent, ""), **common
                    )

    def _link(self, session: str) -> str:
        return f"{self._access.public_urls[0]}/sessions/{session}" if self._access.public_urls else ""

    def _send(self, notice: OperatorNotice) -> bool:
        try:
            if self._access.webhook:
                _post(self._access.webhook, notice)
            if self._access.smtp:
                _mail(self._access.smtp, notice)
        except (OSError, URLError, smtplib.SMTPException, ValueError) as error:
            logger.warning("a notice was not sent, and will be tried again: %s: %s", type(error).__name__, notice.id)
            return False
        return True

    def _remember(self, ids: set[str]) -> None:
        there = {entry.session for entry in self._records.entries()}
        self._sent = {id for id in ids if id.partition(" ")[0] in there}
        temporary = self._told.with_suffix(".new")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(sorted(self._sent), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._told)


class _NoRedirect(HTTPRedirectHandler):
    """The operator has named one address; its answer leads to no other."""

    def redirect_request(self, *arguments: object, **more: object) -> None:
        return None


def _post(address: str, notice: OperatorNotice) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "consilience"}
    request = Request(address, notice.model_dump_json().encode(), headers)
    with build_opener(_NoRedirect).open(request, timeout=SEND_SECONDS):
        pass


def _mail(smtp: Smtp, notice: OperatorNotice) -> None:
    message = EmailMessage()
    who = " ".join((notice.person or notice.agent).split())
    message["Subject"] = f"Consilience: {f'a question to {who}' if notice.key else 'finished'}: {notice.session}"
    message["From"], message["To"] = smtp.sender, ", ".join(smtp.to)
    message["Date"] = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime())
    lines = [
        f"Session {notice.session} of {notice.owner or 'this machine'}",
        notice.key,
        notice.stop_reason,
        notice.link,
    ]
    message.set_content("\n".join(filter(None, lines)) + "\n")
    with smtplib.SMTP(smtp.host, smtp.port, timeout=SEND_SECONDS) as server:
        if smtp.starttls:
            server.starttls()
        if smtp.user:
            server.login(smtp.user, os.environ.get("CONSILIENCE_SMTP_PASSWORD", ""))
        server.send_message(message)


def _read_told(path: Path) -> set[str] | None:
    """Return the ids of what was told; None before the first look."""
    with suppress(OSError, ValueError, ValidationError):
        return set(json.loads(path.read_text("utf-8")))
    return None
