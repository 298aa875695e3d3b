"""What a stay costs. Amounts are euro cents."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path

RATES_FILE = Path(__file__).with_name("rates.json")
SEASON_BEGINS = (6, 15)
SEASON_ENDS = (9, 15)
WEEKLY_DISCOUNT_PERCENT = 10
WEEKLY_NIGHTS = 7
VAT_RATE = 1.23


@dataclass(frozen=True)
class Rates:
    """Prices before VAT, in cents."""

    low: int
    high: int
    electricity: int


@dataclass(frozen=True)
class Quote:
    """The price of a stay, VAT included."""

    nights: int
    first_night_cents: int
    total_cents: int
    deposit_cents: int
    lines: tuple[tuple[str, int], ...]
    """Items of the invoice with their net amounts."""


@lru_cache(maxsize=1)
def rates() -> Rates:
    """Return the rates of this release."""
    table = json.loads(RATES_FILE.read_text(encoding="utf-8"))
    return Rates(
        low=table["low_per_metre_cents"],
        high=table["high_per_metre_cents"],
        electricity=table["electricity_per_night_cents"],
    )


def price_list_is_current(etag: str) -> bool:
    """Return whether a browser's copy of the price list is the current one."""
    checksum = hashlib.sha256(RATES_FILE.read_bytes()).hexdigest()
    return etag.strip('"') == checksum


def in_high_season(day: date) -> bool:
    """Return whether the night that begins on this day has the price of the high season."""
    return SEASON_BEGINS <= (day.month, day.day) < SEASON_ENDS


def started_metres(boat_cm: int) -> int:
    """Return the metres that a boat pays for."""
    return -(-boat_cm // 100)


def nights_of(arrival: date, departure: date) -> list[date]:
    """Return the dates on which the nights of a stay begin."""
    return [arrival + timedelta(days=n) for n in range((departure - arrival).days)]


def with_vat(net_cents: int) -> int:
    """Return the amount with VAT."""
    return int(net_cents * VAT_RATE)


def night_cents(day: date, boat_cm: int) -> int:
    """Return the net price of the berth for one night."""
    per_metre = rates().high if in_high_season(day) else rates().low
    return per_metre * started_metres(boat_cm)


_QUOTES: dict[tuple[int, int, bool], Quote] = {}


def quote(arrival: date, departure: date, boat_cm: int, *, electricity: bool = False) -> Quote:
    """Return the price of a stay. Quotes are kept, since the calendar of the booking page asks for hundreds of them."""
    days = nights_of(arrival, departure)
    key = (len(days), boat_cm, electricity)
    if key not in _QUOTES:
        _QUOTES[key] = _quote(days, boat_cm, electricity)
    return _QUOTES[key]


def _quote(days: list[date], boat_cm: int, electricity: bool) -> Quote:
    berth = sum(night_cents(day, boat_cm) for day in days)
    lines = [("berth", berth)]
    net = berth
    if electricity:
        power = rates().electricity * len(days)
        lines.append(("electricity", power))
        net += power
    if len(days) >= WEEKLY_NIGHTS:
        discount = net * WEEKLY_DISCOUNT_PERCENT // 100
        lines.append(("weekly discount", -discount))
        net -= discount
    total = with_vat(net)
    return Quote(
        nights=len(days),
        first_night_cents=with_vat(night_cents(days[0], boat_cm)),
        total_cents=total,
        deposit_cents=total // 3,
        lines=tuple(lines),
    )


def refund_cents(price: Quote, paid_cents: int, *, late: bool) -> int:
    """Return what a guest gets back who cancels after having paid `paid_cents`."""
    kept = price.first_night_cents if late else 0
    return max(0, paid_cents - kept)


def invoice_lines(price: Quote, extras: list[tuple[str, int]] = []) -> list[tuple[str, int]]:
    """Return the items of an invoice in the order in which they are printed, VAT last."""
    net = sum(cents for _, cents in price.lines)
    extras.append(("VAT", price.total_cents - net))
    return [*price.lines, *extras]
