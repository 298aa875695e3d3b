"""Numbers with their nouns, and lists, in sentences."""

from __future__ import annotations

from collections.abc import Iterable


def plural(noun: str) -> str:
    """Return the plural of a noun, or of a phrase that ends in one: `rounds`, `passes`, `cruxes`, `inherited replies`."""
    if noun.endswith(("s", "x")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def count(n: int, noun: str) -> str:
    """Return `1 reply`, `1,200 replies`."""
    return f"{n:,} {noun if n == 1 else plural(noun)}"


def percent(part: float) -> str:
    """Return `45 %`."""
    return f"{part:.0%}".replace("%", " %")


def join_names(names: Iterable[str]) -> str:
    """Return `red and blue`, or `R1, R2 and R3`. There is at least one name."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
