"""What a command prints about models before a run: thinking, context windows, unknown prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from consilience.domain.errors import SettingsError
from consilience.domain.outcome import DEFAULT_THINKING, ThinkingLevel
from consilience.engine.protocol import Protocol
from consilience.engine.rooms import SeatRoom, closing_error, fitting_reply, seat_rooms
from consilience.engine.sizes import CallSizes
from consilience.models.endpoints import FREE_VARIABLE, Endpoints
from consilience.models.facts import ModelFacts
from consilience.models.registry import window_by_name
from consilience.reporting.formatting import count


class WindowWords(NamedTuple):
    """What a plan says of the context windows that are known."""

    lines: list[str]
    """Whether the calls of the seats fit, in groups of one model and one size, and what would fit if some do not."""
    warnings: list[str]
    """The same as sentences, if not even calls that quote nothing fit; else nothing."""
    refusal: SettingsError | None
    """Why the run is refused: its closing call cannot fit."""
    fits: bool
    """Whether all calls fit."""


def window_words(sizes: CallSizes, protocol: Protocol, models: Mapping[str, str], known: Endpoints) -> WindowWords:
    """Compare the largest calls of each seat with the context window of its own model."""
    windows = {id: window for id, name in models.items() if (window := window_by_name(name, known)) is not None}
    rooms = seat_rooms(sizes, windows)
    groups: dict[tuple[str, SeatRoom], list[str]] = {}
    for room in rooms:
        groups.setdefault((models[room.agent], replace(room, agent="")), []).append(room.agent)
    lines = []
    for (model, room), seats in groups.items():
        who = ", ".join(seats) if len(seats) < 4 else f"{len(seats)} seats"
        begins = room.first <= room.window
        verdict = "fits" if room.fits else "may not fit" if begins else "does not fit"
        size = f"up to {room.most if begins else room.first:,} tokens"
        lines.append(f"{who}: {size} in the context window of {model} ({room.window:,} tokens): {verdict}")
    if all(room.fits for room in rooms):
        return WindowWords(lines, [], None, fits=True)
    reply = fitting_reply(sizes, protocol, windows)
    way = f"replies ≤ {reply:,} would fit (--reply-tokens {reply})" if reply else "this text leaves no room for replies"
    lines.append(f"{count(len(rooms), 'seat')} × {min(room.window for room in rooms):,} tokens: {way}")
    warns = any(room.first > room.window for room in rooms)
    warnings = [f"Warning: {line}." for line in lines if warns]
    return WindowWords(lines, warnings, closing_error(sizes, protocol, windows), fits=False)


def key_notes(names: Iterable[str], known: Endpoints) -> list[str]:
    """Return a line for each endpoint to which a key that is set is not sent."""
    return list(dict.fromkeys(words for name in names if (words := ModelFacts(name, known).withheld_key)))


def thinking_words(asked: ThinkingLevel | None, tokens_by_model: Mapping[str, int], known: Endpoints) -> str:
    """Return the max tokens for thinking, with its level and the models that are not sent it."""
    thinking = [name for name, tokens in tokens_by_model.items() if tokens]
    if not thinking:
        return ""
    unsent = [name for name in thinking if not ModelFacts(name, known).is_sent_level]
    level: str = "off, but some models think anyway" if asked == "off" else asked or DEFAULT_THINKING
    if asked and unsent:
        level += f"; not sent to {', '.join(unsent)}"
    words = "" if not asked and unsent == thinking else f" ({level})"
    return f", plus up to {max(tokens_by_model.values()):,} for thinking{words}"


def recorded_level(level: ThinkingLevel | None) -> ThinkingLevel | None:
    """Return the level that a session asked for; None for the default, which a session records if none was asked for."""
    return None if level == DEFAULT_THINKING else level


def price_hint(name: str, known: Endpoints) -> str:
    """Return how to declare the price of a model if it is unknown; else nothing."""
    facts = ModelFacts(name, known)
    if not facts.unpriced:
        return ""
    return (
        "To set its price, write input_price and output_price, or free = true, into "
        f'[endpoints."{facts.unpriced}"] of your own consilience.toml (consilience doctor shows its path); '
        f"if it is free, {FREE_VARIABLE}={facts.address} is enough."
    )
