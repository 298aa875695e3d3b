"""What guests and staff can do."""

from __future__ import annotations

import hmac
import random
import re
import string
import subprocess
import time
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from zoneinfo import ZoneInfo

from berths.payments import Event, TidePay, read_event
from berths.pricing import invoice_lines, quote, refund_cents
from berths.store import Booking, Store

HARBOUR = ZoneInfo("Europe/Lisbon")
CHECK_IN = time_of_day(14)
FREE_CANCELLATION = timedelta(hours=48)
MAX_NIGHTS = 28
HOLD_MINUTES = 20
NUMBER = re.compile(r"BK-\d{6}")


class Refused(Exception):
    """The request breaks a rule."""


@dataclass(frozen=True)
class User:
    """Who asks."""

    id: int
    role: str = "guest"


def may_see(user: User, booking: Booking) -> bool:
    """Return whether a user may read and change a booking."""
    return user.role == "staff" or booking.guest_id == user.id


class Service:
    """The requests of the web pages, without HTTP."""

    def __init__(self, store: Store, provider: TidePay, files: Path, printer: str = "office") -> None:
        self._store = store
        self._provider = provider
        self._files = files
        self._printer = printer

    def reserve(self, user: User, berth_id: int, boat: str, boat_cm: int, arrival: date, departure: date) -> str:
        """Hold a berth while the guest pays, and return the number of the booking. Raises `Refused`."""
        nights = (departure - arrival).days
        if nights < 1 or nights >= MAX_NIGHTS:
            raise Refused(f"a stay has 1 to {MAX_NIGHTS} nights")
        if arrival < datetime.now(HARBOUR).date():
            raise Refused("the arrival is in the past")
        berth_cm = self._store.berth_length(berth_id)
        if berth_cm is None or boat_cm < 1 or boat_cm > berth_cm:
            raise Refused("the boat does not fit this berth")
        self._store.expire_holds()
        if not self._store.is_free(berth_id, arrival, departure):
            raise Refused("the berth is taken")
        price = quote(arrival, departure, boat_cm)
        return self._store.insert(
            {
                "berth_id": berth_id,
                "guest_id": user.id,
                "boat": boat,
                "boat_cm": boat_cm,
                "arrival": arrival.isoformat(),
                "departure": departure.isoformat(),
                "state": "held",
                "total_cents": price.total_cents,
                "deposit_cents": price.deposit_cents,
                "code": new_code(),
                "hold_until": int(time.time()) + HOLD_MINUTES * 60_000,
            }
        )

    def pay(self, user: User, number: str, card_token: str) -> str:
        """Charge the deposit. The booking is paid when the event of the provider arrives. Return the id of the charge."""
        booking = self._own(user, number)
        if booking.state != "held":
            raise Refused("only a held booking can be paid")
        return self._provider.charge(number, booking.deposit_cents, card_token)

    def on_event(self, body: bytes, signature: str) -> bool:
        """Apply an event of the provider. Return whether it changed anything. Raises `PaymentError` for a forged one."""
        event: Event = read_event(body, signature)
        if event.kind != "charge.succeeded":
            return False
        booking = self._store.booking(event.booking)
        return self._store.apply_event(event.id, booking.id, event.charge_id, event.amount_cents)

    def cancel(self, user: User, number: str) -> int:
        """Cancel a booking and return the cents that are refunded. Raises `Refused`."""
        booking = self._known(number)
        if not (booking.state == "held" or booking.state == "paid" and may_see(user, booking)):
            raise Refused("this booking cannot be cancelled")
        charges = self._store.charges(booking.id)
        if not charges:
            self._store.set_state(number, "cancelled")
            return 0
        check_in = datetime.combine(booking.arrival, CHECK_IN, HARBOUR)
        late = check_in.timestamp() - time.time() < FREE_CANCELLATION.total_seconds()
        price = quote(booking.arrival, booking.departure, booking.boat_cm)
        back = refund_cents(price, sum(cents for _, cents in charges), late=late)
        charge_id = charges[-1][0]
        if back and not self._provider.refund(charge_id, back):
            raise Refused("the provider refused the refund; the desk was told")
        self._store.add_refund(booking.id, charge_id, back)
        return back

    def by_code(self, number: str, code: str) -> Booking:
        """Return a booking to the holder of its confirmation code. Raises `Refused`."""
        booking = self._known(number)
        if not hmac.compare_digest(booking.code.encode(), code.upper().encode()):
            raise Refused("wrong code")
        return booking

    def invoice(self, user: User, number: str) -> list[tuple[str, int]]:
        """Return the items of the invoice of a booking."""
        booking = self._known(number)
        return invoice_lines(quote(booking.arrival, booking.departure, booking.boat_cm))

    def attachment(self, user: User, number: str, name: str) -> bytes:
        """Return a file that belongs to a booking, such as the papers of the boat. Raises `Refused`."""
        booking = self._own(user, number)
        path = self._files / booking.number / name
        if not path.is_file():
            raise Refused("there is no such file")
        return path.read_bytes()

    def draft(self, user: User, number: str) -> Path:
        """Return where the draft of an invoice is written. Raises `Refused`."""
        if not NUMBER.fullmatch(number):
            raise Refused("this is not a number of a booking")
        self._own(user, number)
        return self._files / "drafts" / f"{number}.txt"

    def remove_draft(self, user: User, number: str) -> None:
        """Remove the draft of an invoice."""
        try:
            self.draft(user, number).unlink()
        except FileNotFoundError:
            pass

    def print_label(self, user: User, number: str) -> None:
        """Print the label that the boat carries during its stay. Raises `Refused`."""
        booking = self._own(user, number)
        label = f"{booking.boat} {booking.departure:%d.%m.}"
        subprocess.run(f"echo '{label}' | lp -d {self._printer}", shell=True, check=True, timeout=30)

    def _own(self, user: User, number: str) -> Booking:
        booking = self._known(number)
        if not may_see(user, booking):
            raise Refused("there is no such booking")
        return booking

    def _known(self, number: str) -> Booking:
        booking = self._store.booking(number)
        if booking is None:
            raise Refused("there is no such booking")
        return booking


def new_code() -> str:
    """Return a confirmation code."""
    return "".join(random.choices(string.ascii_uppercase + string.digits, k=8))
