"""Notices to the operator's webhook and mail server: "it is your turn" and "finished". Never to an address that a caller gives.

What was told to which of the two is in a file beside the journal, written after it was sent: each is sent a notice at least once,
also across a restart, and again if the process ends between the two. A thread of its own looks for them and sends them
(`periodic`): no run waits for it. A receiver that fails is not tried again before a while, and keeps nothing from the other.
"""

from __future__ import annotations

import json
import logging
import os
import smtplib
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.message import EmailMessage
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import BaseModel, ConfigDict

from consilience.domain.events import CallAwaited, SessionFinished
from consilience.domain.paths import replace_file
from consilience.journal.store import Records
from consilience.reporting.session_state import fold_events
from consilience.server.access_settings import AccessSettings, Smtp

logger = logging.getLogger("consilience")
LOOK_SECONDS = 5.0
SEND_SECONDS = 10.0
"""How long the receiver of a notice may take for each of its answers."""
MAX_PAUSE_SECONDS = 320.0
"""A receiver that fails is left alone for `LOOK_SECONDS`, then for twice as long each time, up to this."""


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


class Receiver:
    """The webhook or the mail server, and how it does."""

    def __init__(self, name: str, send: Callable[[OperatorNotice], None]) -> None:
        self.name = name
        self._send = send
        self.until = 0.0
        """When it may be tried again, if it failed."""
        self._pause = 0.0

    def send(self, notice: OperatorNotice, now: float) -> bool:
        """Return whether the notice was taken. The log says when the receiver begins to fail, and when it takes notices again."""
        try:
            self._send(notice)
        except (OSError, HTTPException, smtplib.SMTPException, ValueError) as error:
            if not self._pause:
                logger.warning("notices do not reach the %s, and will be tried again: %s", self.name, _reason(error))
            self._pause = min(2 * self._pause or LOOK_SECONDS, MAX_PAUSE_SECONDS)
            self.until = now + self._pause
            return False
        if self._pause:
            logger.warning("notices reach the %s again", self.name)
        self._pause = 0.0
        return True


class Notices:
    """Tells of questions to people and of ends, at least once each, but not of sessions that had ended before its first look."""

    def __init__(
        self, records: Records, access: AccessSettings, told: Path, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`told` is the file of what was sent, `now` in seconds. `access` names at least one receiver."""
        self._records = records
        self._access = access
        self._told = told
        self._now = now
        self._receivers = list(_receivers(access))
        told_before = _read_told(told)
        self._sent = {r.name: told_before[r.name] for r in self._receivers if r.name in told_before}

    def look(self) -> int:
        """Send what was not told so far, and return how many notices were taken. The others are sent later."""
        pending, taken = list(self._pending()), 0
        for receiver in self._receivers:
            if receiver.name not in self._sent:
                self._remember(receiver, {notice.id for notice in pending if notice.what == "finished"})
            new = [notice for notice in pending if notice.id not in self._sent[receiver.name]]
            sent = set()
            for notice in new if receiver.until <= self._now() else ():
                if not receiver.send(notice, self._now()):
                    break
                sent.add(notice.id)
            if sent:
                self._remember(receiver, self._sent[receiver.name] | sent)
            taken += len(sent)
        return taken

    def _pending(self) -> Iterator[OperatorNotice]:
        told = set.intersection(*(self._sent.get(receiver.name, set()) for receiver in self._receivers))
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

    def _remember(self, receiver: Receiver, ids: set[str]) -> None:
        there = {entry.session for entry in self._records.entries()}
        self._sent[receiver.name] = {id for id in ids if id.partition(" ")[0] in there}
        replace_file(self._told, json.dumps({name: sorted(ids) for name, ids in self._sent.items()}).encode())


def _receivers(access: AccessSettings) -> Iterator[Receiver]:
    if access.webhook:
        yield Receiver("webhook", partial(_post, access.webhook))
    if access.smtp:
        yield Receiver("mail server", partial(_mail, access.smtp))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}".replace("\n", " ")


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
            server.starttls(context=ssl.create_default_context())
        if smtp.user:
            server.login(smtp.user, os.environ.get("CONSILIENCE_SMTP_PASSWORD", ""))
        server.send_message(message)


def _read_told(path: Path) -> dict[str, set[str]]:
    """Return the ids of what was told, by receiver; a receiver is not there before the first look."""
    with suppress(OSError, ValueError, AttributeError):
        told: Mapping[str, list[str]] = json.loads(path.read_text("utf-8"))
        return {name: set(ids) for name, ids in told.items()}
    return {}
