"""The port of accounts: what the owners of sessions may spend a day, and how many sessions of theirs may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

from pydantic import Field

from consilience.domain.validation import check_fields
from consilience.journal.store import Journal

MOST = 1_000_000_000
"""US dollars a day, or sessions; more is no bound that could be counted."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What an owner may use. None is no bound."""

    cost: Annotated[float, Field(ge=0, le=MOST)] | None = None
    """US dollars a day; a day is one of UTC."""
    running: Annotated[int, Field(ge=0, le=MOST)] | None = None
    """Sessions that run at the same time."""

    def __post_init__(self) -> None:
        check_fields(self)


class Account(Protocol):
    """The account of a running session's owner."""

    @property
    def owner(self) -> str: ...

    @property
    def allowance(self) -> Allowance: ...

    async def reserve(self, call: str, cost: float) -> bool:
        """Set aside the greatest cost of a call, in US dollars, durably; False if what is left of the day does not suffice."""
        ...

    def settle(self, call: str, cost: float | None) -> None:
        """Book what a call cost in place of what was reserved for it. None, for an unknown cost, books what was reserved."""
        ...

    def release(self) -> None:
        """The session runs no longer. Open reservations stay, since their calls may be charged."""
        ...


@runtime_checkable
class Accounts(Protocol):
    async def open(self, journal: Journal, costs: Mapping[str, float | None]) -> Account | None:
        """Take one of the running sessions that the owner of a session may have; None if the owner has no bound.

        What an earlier process of this session reserved and did not settle is booked: by `costs` for the calls that are recorded,
        else as reserved. Raises `OverAllowance` if as many sessions run as may.
        """
        ...
