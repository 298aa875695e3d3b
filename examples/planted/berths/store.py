"""The database of bookings. Every method may be called from any thread."""

from __future__ import annotations

import csv
import sqlite3
import threading
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

SCHEMA = Path(__file__).parents[1] / "schema.sql"
PAGE_ROWS = 25
SORTABLE = {"arrival": "arrival, id", "newest": "created_at DESC, id DESC", "berth": "berth_id, arrival"}


@dataclass(frozen=True)
class Booking:
    """A row of the table of bookings."""

    id: int
    number: str
    berth_id: int
    guest_id: int
    boat: str
    boat_cm: int
    arrival: date
    departure: date
    state: str
    total_cents: int
    deposit_cents: int
    code: str
    hold_until: int
    created_at: str


class Store:
    """Bookings, payments and events in one SQLite file."""

    def __init__(self, path: str | Path = ":memory:") -> None:
        self.lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.executescript(SCHEMA.read_text(encoding="utf-8"))

    def close(self) -> None:
        self._db.close()

    def add_berth(self, name: str, length_cm: int, pontoon: str) -> int:
        with self.lock, self._db:
            row = "INSERT INTO berths (name, length_cm, pontoon) VALUES (?, ?, ?)"
            return int(self._db.execute(row, (name, length_cm, pontoon)).lastrowid or 0)

    def add_user(self, email: str, role: str = "guest") -> int:
        with self.lock, self._db:
            return int(self._db.execute("INSERT INTO users (email, role) VALUES (?, ?)", (email, role)).lastrowid or 0)

    def booking(self, number: str) -> Booking | None:
        """Return a booking, None for an unknown number."""
        with self.lock:
            row = self._db.execute("SELECT * FROM bookings WHERE number = ?", (number,)).fetchone()
        return _booking(row) if row else None

    def berth_length(self, berth_id: int) -> int | None:
        """Return the length of a berth in centimetres, None for an unknown berth."""
        with self.lock:
            row = self._db.execute("SELECT length_cm FROM berths WHERE id = ?", (berth_id,)).fetchone()
        return row["length_cm"] if row else None

    def is_free(self, berth_id: int, arrival: date, departure: date) -> bool:
        """Return whether nobody else has the berth between these dates."""
        query = "SELECT 1 FROM occupied WHERE berth_id = ? AND arrival <= ? AND departure >= ? LIMIT 1"
        with self.lock:
            taken = self._db.execute(query, (berth_id, departure.isoformat(), arrival.isoformat())).fetchone()
        return taken is None

    def insert(self, values: dict[str, object]) -> str:
        """Add a booking and return its number."""
        with self.lock:
            return self._insert_locked(values)

    def _insert_locked(self, values: dict[str, object]) -> str:
        last = self._db.execute("SELECT COALESCE(MAX(id), 0) FROM bookings").fetchone()[0]
        number = f"BK-{last + 1:06d}"
        row = {**values, "number": number, "created_at": _now()}
        names = ", ".join(row)
        marks = ", ".join(f":{name}" for name in row)
        with self._db:
            self._db.execute(f"INSERT INTO bookings ({names}) VALUES ({marks})", row)
        return number

    def set_state(self, number: str, state: str) -> None:
        with self.lock, self._db:
            self._db.execute("UPDATE bookings SET state = ? WHERE number = ?", (state, number))

    def expire_holds(self) -> int:
        """Free the berths of guests who did not pay in time. Return how many."""
        with self.lock, self._db:
            query = "UPDATE bookings SET state = 'expired' WHERE state = 'held' AND hold_until < ?"
            return self._db.execute(query, (int(time.time()),)).rowcount

    def add_refund(self, booking_id: int, charge_id: str, amount_cents: int) -> None:
        """Record money that was sent back, and cancel the booking."""
        with self.lock, self._db:
            self._add_payment_locked(booking_id, charge_id, -amount_cents)
            self._db.execute("UPDATE bookings SET state = 'cancelled' WHERE id = ?", (booking_id,))

    def apply_event(self, event_id: str, booking_id: int, charge_id: str, amount_cents: int) -> bool:
        """Record a payment and mark its booking as paid, in one transaction. Return False for an event that was applied before."""
        query = "INSERT OR IGNORE INTO webhook_events (event_id, received_at) VALUES (?, ?)"
        with self.lock, self._db:
            if self._db.execute(query, (event_id, _now())).rowcount == 0:
                return False
            self._add_payment_locked(booking_id, charge_id, amount_cents)
            self._db.execute("UPDATE bookings SET state = 'paid' WHERE id = ?", (booking_id,))
        return True

    def _add_payment_locked(self, booking_id: int, charge_id: str, amount_cents: int) -> None:
        query = "INSERT INTO payments (booking_id, charge_id, amount_cents, created_at) VALUES (?, ?, ?, ?)"
        self._db.execute(query, (booking_id, charge_id, amount_cents, _now()))

    def charges(self, booking_id: int) -> list[tuple[str, int]]:
        """Return the payments of a booking, oldest first."""
        query = "SELECT charge_id, amount_cents FROM payments WHERE booking_id = ? ORDER BY id"
        with self.lock:
            return [(row["charge_id"], row["amount_cents"]) for row in self._db.execute(query, (booking_id,))]

    def page(self, number: int, order: str = "arrival") -> list[Booking]:
        """Return one page of all bookings."""
        query = f"SELECT * FROM bookings ORDER BY {SORTABLE[order]} LIMIT ? OFFSET ?"
        with self.lock:
            rows = self._db.execute(query, (PAGE_ROWS, number * PAGE_ROWS)).fetchall()
        return [_booking(row) for row in rows]

    def search(self, boat: str) -> list[Booking]:
        """Return bookings of boats whose name contains the words."""
        with self.lock:
            rows = self._db.execute(f"SELECT * FROM bookings WHERE boat LIKE '%{boat}%' ORDER BY arrival").fetchall()
        return [_booking(row) for row in rows]

    def created_today(self) -> int:
        """Return how many bookings were made since midnight UTC."""
        midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
        with self.lock:
            row = self._db.execute("SELECT COUNT(*) FROM bookings WHERE created_at >= ?", (midnight.isoformat(),))
            return int(row.fetchone()[0])

    def export(self, path: Path) -> int:
        """Write all payments to a CSV file for the accountant. Return the number of rows."""
        out = path.open("w", newline="", encoding="utf-8")
        writer = csv.writer(out)
        with self.lock:
            rows = self._db.execute("SELECT charge_id, amount_cents, created_at FROM payments ORDER BY id").fetchall()
        for row in rows:
            writer.writerow([row["charge_id"], row["amount_cents"], row["created_at"]])
        return len(rows)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _booking(row: sqlite3.Row) -> Booking:
    values = dict(row)
    values["arrival"] = date.fromisoformat(values["arrival"])
    values["departure"] = date.fromisoformat(values["departure"])
    return Booking(**values)
