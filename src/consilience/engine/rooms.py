"""Whether prompts fit into the context windows of the models, as far as it is known before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from consilience.domain.errors import SettingsError
from consilience.domain.tokens import fewest_tokens
from consilience.engine.protocol import Protocol
from consilience.engine.sizes import CallSizes

MIN_REPLY_TOKENS = 256
"""The smallest reply that is proposed."""


@dataclass(frozen=True, slots=True)
class SeatRoom:
    """What the calls of a seat need of the context window of its model, in tokens."""

    agent: str
    window: int
    first: int
    """A prompt that quotes nothing, with the longest reply and its thinking."""
    most: int
    """The largest prompt with the longest reply and its thinking."""

    @property
    def fits(self) -> bool:
        """Whether the window refuses no call, however long replies are."""
        return self.most <= self.window


def seat_rooms(sizes: CallSizes, windows: Mapping[str, int]) -> list[SeatRoom]:
    """Return the room of each seat whose window is known."""
    return [
        SeatRoom(agent.id, windows[agent.id], sizes.first_of(agent.id), sizes.largest_of(agent.id))
        for agent in sizes.agents
        if agent.id in windows
    ]


def fitting_reply(sizes: CallSizes, protocol: Protocol, windows: Mapping[str, int]) -> int | None:
    """Return the most tokens of a reply with which every call fits every window, in steps of 50; None if documents are too long."""

    def fits(reply: int) -> bool:
        smaller = protocol.model_copy(update={"reply_tokens": reply})
        return all(room.fits for room in seat_rooms(replace(sizes, protocol=smaller), windows))

    low, high = MIN_REPLY_TOKENS // 50, protocol.max_reply_tokens // 50
    if low >= high or not fits(low * 50):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * 50) else (low, middle)
    return low * 50


def closing_error(sizes: CallSizes, protocol: Protocol, windows: Mapping[str, int]) -> SettingsError | None:
    """Return the error of a run whose closing call cannot fit, even if nothing is quoted and its text needs the fewest tokens that
    any tokenizer makes of it; None if it may fit."""
    roots = protocol.topology().roots
    seats = [agent.id for agent in sizes.agents if agent.id in roots or len(roots) != 1]
    kind = next((kind for kind in protocol.call_kinds if kind.closing), None)
    opening = sizes.opening
    least = {
        seat: fewest_tokens(
            "".join(
                (
                    opening.instructions,
                    opening.task,
                    *(document.numbered for document in opening.shown(seat, None if kind is None else kind.documents)),
                )
            )
        )
        for seat in seats
    }
    if not protocol.closing or any(least[seat] <= windows.get(seat, least[seat]) for seat in seats):
        return None
    seat = max(seats, key=lambda seat: windows[seat] - least[seat])
    return SettingsError(
        f"the closing call cannot fit: its prompt has at least {least[seat]:,} tokens, and the context window of {seat} has "
        f"{windows[seat]:,}",
        field="sources",
        where="and task",
        do="Give fewer or shorter documents, or a model with a larger window. A larger window than is known can be declared: "
        "context_window in consilience.toml.",
    )
