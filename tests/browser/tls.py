"""A proxy that ends TLS, as the documentation shows one in front of the server."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import trustme

PATIENCE = 180.0


class TLSProxy(ThreadingHTTPServer):
    """Each request on a connection of its own, to the server at `target`. What is open is closed at the end."""

    daemon_threads = False
    target = ""

    def get_request(self) -> tuple[ssl.SSLSocket, tuple[str, int]]:
        raw, address = self.socket.accept()
        raw.settimeout(PATIENCE)
        # The handshake is the handler's: here it would hold up everybody.
        return self.context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser drops connections that it does not need."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), Forward)
        self.context = context
        self.url = f"https://localhost:{self.server_address[1]}"


class Forward(BaseHTTPRequestHandler):
    server: TLSProxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        target = urlsplit(self.server.target)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=PATIENCE)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path, body, {**headers, "X-Forwarded-Proto": "https"})
            answer = connection.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            self.send_header("Connection", "close")  # which also ends the body
            self.end_headers()
            while piece := answer.read1(65_536):
                self.wfile.write(piece)
                self.wfile.flush()
        finally:
            connection.close()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def tls_proxy() -> Iterator[TLSProxy]:
    """Listen on a free port while the block runs. Its browsers must be closed before the block ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    proxy = TLSProxy(context)
    thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()  # and waits for its handlers
