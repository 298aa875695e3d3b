"""How much agents are asked to write: the full set of prompts for capable models, or the brief one for small local models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Detail = Literal["full", "brief"]
"""`full` lets the task decide form and length; `brief` asks for a few short sentences, which a small model can keep to."""

DetailChoice = Literal["auto", "full", "brief"]
"""`auto` is `brief` if a seat with a voice has a model of the embedded catalogue, else `full`."""

REPLY_TOKENS: Mapping[Detail, int] = {"full": 4096, "brief": 1024}
"""Max tokens per reply if the protocol's settings name no number."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Max items of the lists in one reply. Code cuts what exceeds them, after void items are dropped.

    A field of a reply type is capped by `Field(json_schema_extra=capped("claims"))`; its JSON Schema then has that `maxItems`.
    """

    claims: int
    objections: int
    points: int
    issues: int


CAPS: Mapping[Detail, Caps] = {
    "full": Caps(claims=5, objections=3, points=6, issues=6),
    "brief": Caps(claims=2, objections=1, points=3, issues=3),
}

CAP = "x-cap"


def capped(name: Literal["claims", "objections", "points", "issues"]) -> dict[str, str]:
    """Return the JSON Schema keyword of a list that `Caps` bounds."""
    return {CAP: name}
