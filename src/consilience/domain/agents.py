"""Who takes part."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Agent(BaseModel):
    """One seat.

    `perspective` is the point of view it speaks from; `persona` names it where a panel gave it; `model` is a model's name.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    role: str
    perspective: str = ""
    persona: str = ""
    model: str = ""
