"""What agents are asked to return: decisions first, one free text last. And how a rating is read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from consilience.domain.messages import FreeText, Label
from consilience.domain.positions import Confidence
from consilience.domain.replies import Claims, says_nothing

MOST_FLAGS = 2
"""Of one reply. A grammar keeps to it; of a model that has none, what goes beyond is left out and counted."""

Level = Literal["useless", "weak", "fair", "good", "excellent"]

LEVELS: Mapping[Level, float] = {"useless": 0.0, "weak": 0.3, "fair": 0.5, "good": 0.8, "excellent": 0.95}
"""Asked for by name, since small models write every number as 5 or 10; the numbers are this project's own choice."""

OUT_OF = 10

Tag = Literal["unexpected_finding", "contradiction_detected", "resource_request", "goal_mismatch", "needs_reframing"]
Severity = Literal["info", "warning", "critical"]

SEVERITY: Mapping[Tag, Severity] = {
    "unexpected_finding": "info",
    "contradiction_detected": "warning",
    "resource_request": "warning",
    "goal_mismatch": "critical",
    "needs_reframing": "critical",
}
"""The seed's five; which of them send a parent back is a setting."""

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|/\s*100|/\s*10|of\s+10|/\s*1)?\s*", re.IGNORECASE)


def read_rating(given: object) -> float | None:
    """In [0, 1], or None for what cannot be read. Numbers are taken too: points of ten, or a fraction of one.

    A whole 1 is one point of ten, and 1.0 all of one: where a number may mean two things the lesser counts, so that no misreading
    satisfies.
    """
    if isinstance(given, str) and (level := given.strip(" .").lower()) in LEVELS:
        return LEVELS[cast(Level, level)]
    if isinstance(given, str) and (match := _NUMBER.fullmatch(given)):
        number, unit = float(match[1]), (match[2] or "").replace(" ", "").lower()
        scale = {"%": 100.0, "/100": 100.0, "/10": 10.0, "of10": 10.0, "/1": 1.0}.get(unit)
        if scale is not None:
            return number / scale if number <= scale else None
        given = number if "." in match[1] else int(number)
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        return None
    if 0 < given < 1 or (isinstance(given, float) and given == 1):
        return float(given)
    return given / OUT_OF if 0 <= given <= OUT_OF else None


Rating = Annotated[
    float | None,
    BeforeValidator(read_rating),
    WithJsonSchema({"type": "string", "enum": list(LEVELS)}),
]


def _spelt(tag: object) -> object:
    """`Goal mismatch` as the tag it is."""
    return re.sub(r"[\s-]+", "_", tag.strip().lower()) if isinstance(tag, str) else tag


class FlagReply(BaseModel):
    """Something the parents must know, and why."""

    tag: Annotated[Tag, BeforeValidator(_spelt)]
    text: str = ""


Flags = Annotated[list[FlagReply], Field(json_schema_extra={"maxItems": MOST_FLAGS})]


class Goal(BaseModel):
    """A broadcast."""

    text: FreeText


class Assessed(BaseModel):
    """How well a text serves its goal, as its author sees it. Without a rating the reply is malformed; one that cannot be
    read is None."""

    rating: Rating
    flags: Flags = Field(default_factory=list)


class Voted(Assessed):
    """The same with a sealed ballot."""

    position: str = ""
    confidence: Confidence = "unsure"
    reason: str = ""


class Reflecting(BaseModel):
    """`missing` gives criticism a place of its own: without it small models write it into the better version."""

    missing: str = ""

    @property
    def wanting(self) -> bool:
        """It says that something is missing; small models write "nothing" where nothing is."""
        return not says_nothing(self.missing)


class Reflection(Assessed, Reflecting):
    """`text` is a better version, where something is missing."""

    text: str = ""


class SealedReflection(Voted, Reflecting):
    text: str = ""


class RootReflection(Assessed, Reflecting):
    """`text` is a better answer, where something is missing."""

    claims: Claims = Field(default_factory=list)
    text: str = ""


class Coordination(Assessed):
    """A revision after reading siblings. Prose alone is a text without a readable rating."""

    rating: Rating = None
    text: FreeText


class SealedCoordination(Voted):
    rating: Rating = None
    cause: Label | None = None
    text: FreeText


class Evaluation(BaseModel):
    """What a parent says of all its children's texts together. `satisfied` is reported and decides nothing."""

    satisfied: bool | None = None
    text: FreeText
