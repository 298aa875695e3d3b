"""The agents of a session and their names for readers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from consilience.domain.errors import UnknownName
from consilience.domain.model_names import is_embedded, kind_of, person_named
from consilience.domain.validation import Frozen

MAX_POINT_OF_VIEW_CHARS = 40
MAX_LISTED_IDS = 12

_NUMBERED = re.compile(r"([A-Z]\d+)+")
"""An id that only numbers a seat: `L2N1`, `S1`."""


class Agent(Frozen):
    """One seat of a session."""

    id: str
    role: str
    perspective: str = ""
    """The point of view it speaks from."""
    persona: str = ""
    """The name of that point of view, if a panel defines it."""
    model: str = ""
    """The name of its model; before models are assigned that of its persona, or ""."""
    own_model: bool = False
    """Whether the model is that of its persona."""
    voice: bool = True
    """False for a service seat (moderator, crystallizer): it counts in no share, quorum, independence or dissent."""
    interests: tuple[str, ...] = ()
    horizon: str = ""
    evidence: str = ""
    claim: str = ""

    def introduction(self, perspective: str | None = None) -> str:
        """Return the introduction of the agent in its prompts. `perspective` replaces its own."""
        return " ".join(self._introduction(self.perspective if perspective is None else perspective))

    @property
    def is_person(self) -> bool:
        """Whether a person is in the seat, here (`human`, `human:NAME`) or in a workspace (`workspace:DIR#human:NAME`)."""
        return person_named(self.model) is not None

    @property
    def person(self) -> str:
        """The name of the person in the seat, if it has one."""
        return person_named(self.model) or ""

    @property
    def is_person_here(self) -> bool:
        """Whether a person is in the seat whom this process asks."""
        return kind_of(self.model) == "person"

    @property
    def is_program(self) -> bool:
        """Whether a program is in the seat."""
        return kind_of(self.model) == "program"

    @property
    def is_outside(self) -> bool:
        """Whether a person, a program or an agent of another process is in the seat."""
        return kind_of(self.model) in ("person", "program", "workspace")

    @property
    def is_embedded(self) -> bool:
        """Whether an embedded model may speak for it, alone or as a fallback. A GGUF file of the user's own is not embedded."""
        return is_embedded(self.model)

    def is_introduced_in(self, text: str) -> bool:
        """Return whether a text contains a part of the introduction."""
        return any(part in text for part in self._introduction(self.perspective))

    def _introduction(self, perspective: str) -> list[str]:
        parts = (
            _sentence("Your role", self.persona),
            perspective,
            _sentence("Your interests", ", ".join(self.interests)),
            _sentence("Your time horizon", self.horizon),
            _sentence("The evidence you accept", self.evidence),
            _sentence("Your claim at the start", self.claim),
        )
        return list(filter(None, parts))


def voices(agents: Iterable[Agent]) -> tuple[Agent, ...]:
    """Return the agents without the service seats."""
    return tuple(agent for agent in agents if agent.voice)


def in_dealing_order(agents: Iterable[Agent]) -> tuple[Agent, ...]:
    """Return the agents in the order in which models are assigned: service seats last."""
    return tuple(sorted(agents, key=lambda agent: not agent.voice))


def _sentence(label: str, text: str) -> str:
    return f"{label}: {text.rstrip(' .')}." if text else ""


def point_of_view(agent: Agent) -> str:
    """Return the point of view of an agent on one line: `service seat`, its persona, a short perspective, or its role."""
    if not agent.voice:
        return "service seat"
    words = " ".join((agent.persona or agent.perspective).split())
    if len(words) > MAX_POINT_OF_VIEW_CHARS:
        words = f"{words[: MAX_POINT_OF_VIEW_CHARS - 1].rstrip()}…"
    return words or agent.role


def list_ids(agents: Iterable[Agent]) -> str:
    """Return the ids for an error message, an id that only numbers a seat with its persona: `L2N4 (Head of hospital IT)`."""
    names = [
        f"{agent.id} ({agent.persona})" if agent.persona and _NUMBERED.fullmatch(agent.id) else agent.id
        for agent in agents
    ]
    return ", ".join(names[:MAX_LISTED_IDS]) + (", …" if len(names) > MAX_LISTED_IDS else "")


def unknown_agent(id: str, agents: Iterable[Agent], where: str = "", *, field: str = "") -> UnknownName:
    """Return the error of a caller who names an agent that does not exist."""
    return UnknownName(f"there is no agent {id!r}", field=field, where=where, do=f"Agents: {list_ids(agents)}.")


def seat_names(agents: Iterable[Agent]) -> dict[str, str]:
    """Return names for readers by id: the point of view or the person, and the id: `analytical (L2N1)`, `Anna (L2N2)`.

    An id in words precedes a role, `intro (author)`, and stands alone if both are equal.
    """
    return {agent.id: _seat_name(agent) for agent in agents}


def author_of(id: str, names: Mapping[str, str]) -> str:
    """Return the name of the agent whose id a message id holds; the message id if there is none."""
    return next((names[part] for part in reversed(id.split("/")) if part in names), id)


def _seat_name(agent: Agent) -> str:
    view = point_of_view(agent)
    if agent.is_person:
        view = " ".join(agent.person.split()) or "a person"
    if view == agent.id:
        return agent.id
    has_own_view = agent.is_person or (agent.voice and bool(agent.persona or agent.perspective))
    return f"{view} ({agent.id})" if has_own_view or _NUMBERED.fullmatch(agent.id) else f"{agent.id} ({view})"
