"""Notices by mail, to a mail server on this machine that speaks the protocol; and mail servers that do not."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword

from cli.loopback import PATIENCE
from consilience.domain.events import SessionFinished
from consilience.server import notices
from consilience.server.access_settings import AccessSettings, Smtp
from consilience.server.notices import Notices
from consilience.server.periodic import periodically
from server.inprocess import PEOPLE, Served, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PASSWORD = "a secret of the operator"
TASK = "Shall we sell the house?"


class Mailbox:
    """The mails that a server has taken."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []

    async def handle_DATA(self, server: object, session: object, envelope: Envelope) -> str:
        self.envelopes.append(envelope)
        self.mails.append(cast(EmailMessage, message_from_bytes(cast(bytes, envelope.content), policy=policy.default)))
        return "250 OK"


def check(server: object, session: object, envelope: object, mechanism: str, data: LoginPassword) -> AuthResult:
    is_right = (data.login, data.password) == (b"talks", PASSWORD.encode())
    return AuthResult(success=is_right, handled=False)


@contextmanager
def mail_server(**options: Any) -> Iterator[tuple[int, Mailbox]]:
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=free_port(), authenticator=check, **options)
    controller.start()
    try:
        yield controller.port, mailbox
    finally:
        controller.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Of a server whose certificate is valid for `localhost`."""
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("CONSILIENCE_SMTP_PASSWORD", PASSWORD)
    with served(tmp_path) as found:
        yield found


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def telling(server: Served, tmp_path: Path, port: int, clock: Clock | None = None, **smtp: Any) -> Notices:
    """Notices by mail to that port, after a first look at what was there before."""
    sent = {"host": "localhost", "port": port, "sender": "talks@talks.example", "to": ("board@talks.example",), **smtp}
    access = AccessSettings(smtp=Smtp(**sent))
    return Notices(server.store, access, tmp_path / "notices.json", now=clock or Clock())


def ask(server: Served, **more: Any) -> str:
    """Begin a session that asks Anna."""
    body = {**PEOPLE, "task": TASK, "settings": {"votes": 1}, "models": ["human:Anna"], **more}
    return server.begin(server.client(), body)


def end(server: Served, session: str) -> None:
    assert server.client().post(f"/api/sessions/{session}/cancel", json={}).status_code == 200
    server.settle()


def test_mail_is_encrypted_after_a_login_and_says_what_happened_without_a_text(
    server: Served, tmp_path: Path, tls: ssl.SSLContext
) -> None:
    with mail_server(tls_context=tls, require_starttls=True, auth_required=True) as (port, mailbox):
        told = telling(server, tmp_path, port, user="talks", to=("board@talks.example", "anna@talks.example"))
        assert told.look() == 0
        session = ask(server)
        assert (told.look(), told.look()) == (1, 0)
        end(server, session)
        assert (told.look(), told.look()) == (1, 0)
    asked, ended = mailbox.mails
    assert asked["Subject"] == f"Consilience: a question to Anna: {session}"
    assert ended["Subject"] == f"Consilience: finished: {session}"
    assert (asked["From"], asked["To"]) == ("talks@talks.example", "board@talks.example, anna@talks.example")
    assert mailbox.envelopes[0].rcpt_tos == ["board@talks.example", "anna@talks.example"]
    assert asked["Date"].datetime is not None
    assert "cancelled" in ended.get_content()
    assert TASK not in "".join(mail.as_string() for mail in mailbox.mails)


def test_mail_without_login_and_encryption_is_sent_where_the_operator_says_so(server: Served, tmp_path: Path) -> None:
    with mail_server() as (port, mailbox):
        told = telling(server, tmp_path, port, starttls=False)
        told.look()
        ask(server)
        assert told.look() == 1
    assert len(mailbox.mails) == 1


def test_nothing_is_sent_to_a_server_that_does_not_encrypt(
    server: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mail_server(auth_require_tls=False) as (port, mailbox):
        told = telling(server, tmp_path, port, user="talks")
        told.look()
        ask(server)
        assert told.look() == 0
    assert mailbox.mails == []
    assert "STARTTLS extension not supported" in caplog.text


def test_nothing_is_sent_to_a_server_whose_certificate_is_another_ones(
    server: Served, tmp_path: Path, authority: trustme.CA, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.example").configure_cert(other)
    with mail_server(tls_context=other, require_starttls=True) as (port, mailbox):
        told = telling(server, tmp_path, port, user="talks")
        told.look()
        ask(server)
        assert told.look() == 0
    assert mailbox.mails == []
    assert "certificate verify failed" in caplog.text


def test_wrong_password_is_in_the_log_without_it_and_the_mail_is_sent_once_it_is_right(
    server: Served, tmp_path: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    clock = Clock()
    with mail_server(tls_context=tls, require_starttls=True, auth_required=True) as (port, mailbox):
        told = telling(server, tmp_path, port, clock, user="talks")
        told.look()
        ask(server)
        monkeypatch.setenv("CONSILIENCE_SMTP_PASSWORD", "an old one")
        assert told.look() == 0
        monkeypatch.setenv("CONSILIENCE_SMTP_PASSWORD", PASSWORD)
        clock.seconds = 10
        assert told.look() == 1
    assert len(mailbox.mails) == 1
    assert "SMTPAuthenticationError" in caplog.text
    assert "an old one" not in caplog.text
    assert "reach the mail server again" in caplog.text


# --- mail servers that fail

Serve = Callable[[socket.socket], None]


def hang(connection: socket.socket) -> None:
    """Accept, and say nothing until the client leaves."""
    while connection.recv(1):
        pass


def refuse(connection: socket.socket) -> None:
    connection.sendall(b"554 no service\r\n")


def die(connection: socket.socket) -> None:
    """End in the middle of a mail."""
    connection.sendall(b"220 here\r\n")
    while line := connection.recv(1_000):
        if line.startswith(b"DATA"):
            return
        connection.sendall(b"250 OK\r\n")


def babble(connection: socket.socket) -> None:
    connection.sendall(b"\xff\x00 what?\r\n" * 3)


@contextmanager
def broken_server(serve: Serve) -> Iterator[tuple[int, list[int]]]:
    """A port, and as many entries as there were connections to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[int] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # the test is over
                    return
                accepted.append(1)
                with connection:
                    try:
                        serve(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=accept)
        thread.start()
        port = int(listener.getsockname()[1])
        try:
            yield port, accepted
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


@pytest.mark.parametrize("serve", [hang, refuse, die, babble, None])
def test_mail_server_that_fails_costs_no_session_anything_and_is_tried_again_later(
    serve: Serve | None, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(notices, "SEND_SECONDS", 0.2)
    clock = Clock()
    with broken_server(serve or refuse) as (port, accepted):
        told = telling(server, tmp_path, port if serve else free_port(), clock, host="127.0.0.1", starttls=False)
        told.look()
        with periodically(told.look, 0.01, "notices"):
            sessions = [ask(server) for _ in range(3)]
            for session in sessions:
                end(server, session)
        assert told.look() == 0
        assert all(isinstance(server.store.ending(session), SessionFinished) for session in sessions)
        assert len(accepted) == (1 if serve else 0)  # not for each notice, and not at each look
        warned = [record for record in caplog.records if "do not reach the mail server" in record.message]
        assert [record.levelno for record in warned] == [logging.WARNING]
        for _ in range(3):  # each pause is twice as long as the one before
            clock.seconds = told._receivers[0].until
            assert told.look() == 0
        assert len([record for record in caplog.records if "do not reach" in record.message]) == 1
        assert told._receivers[0].until == 5 + 10 + 20 + 40
    with mail_server() as (port, mailbox):
        clock.seconds += 1_000
        again = telling(server, tmp_path, port, clock, host="127.0.0.1", starttls=False)
        assert again.look() == 3  # the ends; nobody is asked any more
    assert sorted(mail["Subject"].rpartition(" ")[2] for mail in mailbox.mails) == sorted(sessions)


def test_mail_server_that_fails_keeps_nothing_from_the_webhook_and_repeats_nothing_to_it(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[str] = []
    monkeypatch.setattr(notices, "_post", lambda address, notice: posted.append(notice.id))
    clock = Clock()
    with broken_server(refuse) as (port, _):
        smtp = {"host": "127.0.0.1", "port": port, "sender": "a@b.example", "to": ("c@d.example",), "starttls": False}
        access = AccessSettings(smtp=Smtp(**smtp), webhook="http://127.0.0.1:1/hook")  # type: ignore[arg-type]
        told = Notices(server.store, access, tmp_path / "notices.json", now=clock)
        told.look()
        session = ask(server)
        for clock.seconds in (100, 200, 300):
            told.look()
    assert [id.partition(" ")[0] for id in posted] == [session]


def test_receiver_that_is_added_later_is_not_told_what_had_ended_before(server: Served, tmp_path: Path) -> None:
    with mail_server() as (port, mailbox):
        first = telling(server, tmp_path, port, starttls=False)
        first.look()
        end(server, ask(server))
        first.look()
        access = AccessSettings(smtp=first._access.smtp, webhook="http://127.0.0.1:1/hook")
        both = Notices(server.store, access, tmp_path / "notices.json")
        assert (both.look(), both.look()) == (0, 0)
    assert len(mailbox.mails) == 1
