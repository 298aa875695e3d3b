"""What agents are asked to return."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from consilience.domain.messages import FreeText
from consilience.domain.positions import Confidence
from consilience.domain.replies import Claims

MOST_ISSUES = 3
"""With one part. A grammar keeps to it; of a model that has none, what goes beyond is left out and counted."""

MOST_POINTS = 10.0

MARKS: Mapping[str, float] = {"useless": 0.0, "weak": 3.0, "passable": 5.0, "good": 8.0, "excellent": 10.0}
"""Named marks on the scale from 0 to 10, since small models write numbers without looking (docs/design/refinement.md); the
numbers are this project's own choice."""


def _points(given: object) -> object:
    """A mark's points; numbers as they are."""
    return MARKS.get(given.strip().casefold(), given) if isinstance(given, str) else given


Points = Annotated[
    float,
    BeforeValidator(_points),
    Field(ge=0, le=MOST_POINTS, allow_inf_nan=False),
    WithJsonSchema({"type": "string", "enum": list(MARKS)}),
]
"""0 to 10. Marks are asked for, numbers taken."""


class Written(BaseModel):
    """A piece of text, and how sure its author is of it."""

    confidence: Confidence = "unsure"
    text: FreeText


class Whole(BaseModel):
    """The whole text under a title, and its main claims, which name the parts they rest on. Claims come last: they may be cut
    off at a token limit, the text may not. The title stands apart, since small models write it and think that they are done."""

    title: str = ""
    text: FreeText
    claims: Claims = Field(default_factory=list)

    @property
    def document(self) -> str:
        """As it is read: the title above the text, unless that has one."""
        title = " ".join(self.title.split()).lstrip("# ")
        return f"# {title}\n\n{self.text}" if title and not self.text.startswith("# ") else self.text


class Judgement(BaseModel):
    """What the critic says of one part. With the issues first, small models find the same ones in every part; where the list
    may be empty, they leave it so."""

    coherence: Points
    accuracy: Points
    depth: Points
    overall: Points
    issues: Annotated[list[str], Field(json_schema_extra={"minItems": 1, "maxItems": MOST_ISSUES})] = Field(
        default_factory=list
    )


class Critique(BaseModel):
    """A judgement of every part, each under its own name."""

    def parts(self) -> Mapping[str, Judgement]:
        """By part."""
        fields = type(self).model_fields
        return {str(field.alias): getattr(self, name) for name, field in fields.items()}


@lru_cache(maxsize=256)
def critique_of(parts: tuple[str, ...]) -> type[Critique]:
    """The reply that judges just these parts, so that none can be left out."""
    fields = {f"part_{n}": (Judgement, Field(alias=part)) for n, part in enumerate(parts, 1)}
    return create_model("Critique", __base__=Critique, **fields)  # type: ignore[call-overload,no-any-return]
