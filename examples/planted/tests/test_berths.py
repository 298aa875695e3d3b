"""The rules of the README that concern prices and stays."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from berths.payments import PaymentError, read_event
from berths.pricing import in_high_season, night_cents, quote, rates, refund_cents, started_metres
from berths.store import Store

LENGTHS = [(800, 8), (801, 9), (850, 9), (900, 9)]


@pytest.mark.parametrize(("boat_cm", "metres"), LENGTHS)
def test_a_started_metre_is_paid(boat_cm: int, metres: int) -> None:
    assert started_metres(boat_cm) == metres


def test_season_has_its_own_price() -> None:
    assert in_high_season(date(2026, 6, 15))
    assert not in_high_season(date(2026, 6, 14))
    assert not in_high_season(date(2026, 9, 16))
    assert night_cents(date(2026, 7, 1), 900) == 9 * rates().high


def test_a_week_is_cheaper() -> None:
    first = date(2026, 4, 1)
    week = quote(first, first + timedelta(days=7), 900)
    for name, cents in week.lines:
        if name == "discount":
            assert cents == -1134


def test_refund_is_never_negative() -> None:
    price = quote(date(2026, 5, 1), date(2026, 5, 2), 1200)
    assert refund_cents(price, 100, late=True) == 0
    assert refund_cents(price, 100, late=False) == 100


def test_a_forged_event_is_refused() -> None:
    with pytest.raises(PaymentError, match="wrong signature"):
        read_event(b'{"id": "e1"}', "0" * 64)


def test_an_empty_berth_is_free() -> None:
    store = Store()
    try:
        berth = store.add_berth("A1", 900, "A")
        assert store.is_free(berth, date(2026, 5, 1), date(2026, 5, 3))
    finally:
        store.close()
