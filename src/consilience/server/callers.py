"""Who asks a server for something, and what they may do."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from consilience.domain.errors import ConsilienceError
from consilience.journal.accounts import MOST, Allowance

OwnerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$")]


class Forbidden(ConsilienceError):
    """The caller may not do this: HTTP status 403. The text says what, and who may allow it."""


class OwnerBounds(BaseModel):
    """What an owner may use. A field that is not given is no bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_cost_per_day: float | None = Field(default=None, ge=0, le=MOST)
    """US dollars; a day is one of UTC."""
    running: int | None = Field(default=None, ge=0, le=MOST)
    """Sessions that run at the same time."""
    keep_days: float | None = Field(default=None, gt=0)
    """As `AccessSettings.keep_days`, in its place."""
    quota: int | None = Field(default=None, gt=0)
    """As `AccessSettings.quota`, in its place."""

    @property
    def allowance(self) -> Allowance:
        return Allowance(cost=self.max_cost_per_day, running=self.running)


class Rights(OwnerBounds):
    """What somebody may do."""

    team: OwnerName | None = None
    """Their team, whose sessions they see and act on as on their own."""
    protocols: frozenset[str] | None = None
    """Names of the protocols that they may run."""
    models: frozenset[str] | None = None
    """Names of the server's models that they may use."""
    metrics: bool = False
    """Whether they may read `/metrics`, which counts the sessions of all owners."""


class Caller(Rights):
    """Somebody who was identified by a token, a proxy or, on loopback, by nothing, with what they may do."""

    owner: str = ""
    """Whom the sessions belong to that they begin. "" is the user of this machine."""

    @classmethod
    def of(cls, owner: str, rights: Rights) -> Caller:
        return cls(owner=owner, **{name: getattr(rights, name) for name in Rights.model_fields})

    @property
    def owners(self) -> tuple[str, ...]:
        """Whose sessions they see: their own, first, and their team's."""
        return (self.owner, team_owner(self.team)) if self.team else (self.owner,)

    def beginner(self, team: bool) -> str:
        """Return whom a session of theirs belongs to. Raises `Forbidden` for that of a team which they are not in."""
        if not team:
            return self.owner
        if not self.team:
            raise Forbidden(
                f"{self.owner or 'the user of this machine'} is in no team. The operator's token file names them."
            )
        return team_owner(self.team)

    def check_protocol(self, name: str) -> None:
        """Raise `Forbidden` for a protocol that they may not run."""
        if self.protocols is not None and name not in self.protocols:
            raise Forbidden(f"{self.owner} may not run {name}. Allowed: {', '.join(sorted(self.protocols)) or 'none'}.")


LOCAL = Caller(metrics=True)
"""The user of this machine, who may do everything that the server allows."""


def team_owner(team: str) -> str:
    """Return the owner of a team's sessions, which is the name of no person."""
    return f"team:{team}"
