"""Places: where in the program an event is."""

from __future__ import annotations

Place = str
"""Ordinals joined by dots: `"4.1.0"` is operation 0 of branch 1 of the gather or start at operation 4."""


def place_key(place: Place) -> tuple[int, ...]:
    """Return a key that sorts places in program order."""
    return tuple(map(int, place.split("."))) if place else ()
