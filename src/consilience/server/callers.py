"""Who asks a server for something, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.domain.errors import ConsilienceError


class Forbidden(ConsilienceError):
    """The caller may not do this: HTTP status 403. The text says what, and who may allow it."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Somebody who was identified by a token, a proxy or, on loopback, by nothing. None is no bound of their own."""

    owner: str = ""
    """Whom the sessions belong to that they begin. "" is the user of this machine."""
    team: str = ""
    """Their team, whose sessions they see and act on as on their own; "" without one."""
    protocols: frozenset[str] | None = None
    """Names of the protocols that they may run."""
    models: frozenset[str] | None = None
    """Names of the server's models that they may use."""
    max_cost_per_day: float | None = None
    """US dollars; a day is one of UTC."""
    running: int | None = None
    """Sessions that run at the same time."""
    metrics: bool = False
    """Whether they may read `/metrics`, which counts the sessions of all owners."""

    @property
    def owners(self) -> tuple[str, ...]:
        """Whose sessions they see: their own, first, and their team's."""
        return (self.owner, team_owner(self.team)) if self.team else (self.owner,)

    def beginner(self, team: bool) -> str:
        """Return whom a session of theirs belongs to. Raises `Forbidden` for that of a team which they are not in."""
        if team and not self.team:
            raise Forbidden(
                f"{self.owner or 'the user of this machine'} is in no team. The operator's token file names them."
            )
        return team_owner(self.team) if team else self.owner

    def check_protocol(self, name: str) -> None:
        """Raise `Forbidden` for a protocol that they may not run."""
        if self.protocols is not None and name not in self.protocols:
            raise Forbidden(f"{self.owner} may not run {name}. Allowed: {', '.join(sorted(self.protocols)) or 'none'}.")


LOCAL = Caller(metrics=True)
"""The user of this machine, who may do everything that the server allows."""


def team_owner(team: str) -> str:
    """Return the owner of a team's sessions, which is the name of no person."""
    return f"team:{team}"
