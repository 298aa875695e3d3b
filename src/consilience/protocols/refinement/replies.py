"""What agents are asked to return."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from consilience.domain.detail import capped
from consilience.domain.messages import Claims, FreeText
from consilience.domain.positions import ConfidenceLevel

MAX_POINTS = 10.0

WHOLE = "whole"
"""Where a critique speaks of the whole text; the other names in it are those of parts."""

MARKS: Mapping[str, float] = {"useless": 0.0, "weak": 3.0, "passable": 5.0, "good": 8.0, "excellent": 10.0}
"""Named marks on the scale from 0 to 10, since small models write numbers without looking (docs/design/refinement.md); the
numbers are this project's own choice."""


def _points(given: object) -> object:
    """A mark's points; numbers as they are."""
    return MARKS.get(given.strip().casefold(), given) if isinstance(given, str) else given


_TAKEN = (BeforeValidator(_points), Field(ge=0, le=MAX_POINTS, allow_inf_nan=False))
_NUMBER = WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_POINTS})

Points = Annotated[float, *_TAKEN, _NUMBER]
"""0 to 10. Numbers are asked for, marks taken."""
Mark = Annotated[float, *_TAKEN, WithJsonSchema({"type": "string", "enum": list(MARKS)})]
"""0 to 10. Marks are asked for, numbers taken."""


Issues = Annotated[list[str], Field(json_schema_extra=capped("issues"))]


class DraftReply(BaseModel):
    """A piece of text, and how sure its author is of it."""

    confidence: ConfidenceLevel = "unsure"
    text: FreeText


class IntegratedReply(BaseModel):
    """The whole text, and its main claims, which name the parts they rest on. Claims come last: they may be cut off at a token
    limit, the text may not."""

    text: FreeText
    claims: Claims = Field(default_factory=list)

    @property
    def document(self) -> str:
        """As it is read."""
        return self.text


class TitledReply(IntegratedReply):
    """With a title apart, since small models write it and stop."""

    title: str = ""

    @property
    def document(self) -> str:
        """The title above the text, unless that has one."""
        title = " ".join(self.title.split()).lstrip("# ")
        return f"# {title}\n\n{self.text}" if title and not self.text.startswith("# ") else self.text


class Judgement(BaseModel):
    """What the critic says of one part or of the whole. The issues come first: a mark that follows from them is a better one."""

    issues: Issues = Field(default_factory=list)
    coherence: Points
    accuracy: Points
    depth: Points
    overall: Points


class Earlier(BaseModel):
    """Which of the issues that the critic named with the version before still hold, by number."""

    standing: list[int] = Field(default_factory=list)


class LaterJudgement(Judgement, Earlier):
    """What the critic says of what it has judged before; the earlier issues first."""


class BriefJudgement(BaseModel):
    """The same of a small model, which finds the same issues in every part unless it has marked it first."""

    coherence: Mark
    accuracy: Mark
    depth: Mark
    overall: Mark
    issues: Issues = Field(default_factory=list)


class Critique(BaseModel):
    """A judgement of every part and of the whole, each under its own name."""

    def judgements(self) -> Mapping[str, Judgement | BriefJudgement]:
        """By part, and of the whole."""
        fields = type(self).model_fields
        return {str(field.alias): getattr(self, name) for name, field in fields.items()}


@lru_cache(maxsize=256)
def critique_of(
    names: tuple[str, ...], earlier: frozenset[str] = frozenset(), *, brief: bool = False
) -> type[Critique]:
    """The reply that judges just these, so that none can be left out. `earlier` are those that had issues before."""
    kinds = {name: BriefJudgement if brief else LaterJudgement if name in earlier else Judgement for name in names}
    fields = {f"part_{n}": (kinds[name], Field(alias=name)) for n, name in enumerate(names, 1)}
    return create_model("Critique", __base__=Critique, **fields)  # type: ignore[call-overload,no-any-return]
