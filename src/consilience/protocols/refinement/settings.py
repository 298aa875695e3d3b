"""What agents are asked to return; the settings of `refinement`, and what follows from them: seats, readers, number of calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model, model_validator

from consilience.domain.agents import Agent
from consilience.domain.detail import capped
from consilience.domain.hierarchies import CRITIC, HierarchySetting
from consilience.domain.messages import FILE, ClaimReplies, FreeText
from consilience.domain.outcome import Estimate
from consilience.domain.positions import ConfidenceLevel
from consilience.domain.topology import Topology
from consilience.engine.prompt import estimate_tokens
from consilience.engine.protocol import Protocol
from consilience.protocols.refinement.texts import extract_protected

# Replies. The names of their classes are part of the schema in every recorded request.


class DraftReply(BaseModel):
    """A piece of text, and its author's confidence in it."""

    confidence: ConfidenceLevel = "unsure"
    text: FreeText


class IntegratedReply(BaseModel):
    """The whole text, and its main claims with the parts they rest on.

    The claims come last: a token limit may cut them off, but not the text.
    """

    text: FreeText
    claims: ClaimReplies = Field(default_factory=list)

    @property
    def document(self) -> str:
        """The text as the reader gets it."""
        return self.text


class TitledReply(IntegratedReply):
    """A whole text with a separate title: small models write a title in the text and stop."""

    title: str = ""

    @property
    def document(self) -> str:
        """The title above the text, unless the text has one."""
        title = " ".join(self.title.split()).lstrip("# ")
        return f"# {title}\n\n{self.text}" if title and not self.text.startswith("# ") else self.text


MAX_POINTS = 10.0

NAMED_POINTS: Mapping[str, float] = {"useless": 0.0, "weak": 3.0, "passable": 5.0, "good": 8.0, "excellent": 10.0}
"""Words for points: small models do not choose numbers with care (docs/design/refinement.md). The values are this project's."""


def _points_from_name(value: object) -> object:
    return NAMED_POINTS.get(value.strip().casefold(), value) if isinstance(value, str) else value


_ACCEPTED = (BeforeValidator(_points_from_name), Field(ge=0, le=MAX_POINTS, allow_inf_nan=False))
_NUMBER = WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_POINTS})

Points = Annotated[float, *_ACCEPTED, _NUMBER]
"""0 to 10. Asks for a number; a name is accepted."""
NamedPoints = Annotated[float, *_ACCEPTED, WithJsonSchema({"type": "string", "enum": list(NAMED_POINTS)})]
"""0 to 10. Asks for a name; a number is accepted."""
CriticIssues = Annotated[list[str], Field(json_schema_extra=capped("issues"))]


class Judgement(BaseModel):
    """What the critic says of one part or of the whole. Issues come first: marks that follow from them are better."""

    issues: CriticIssues = Field(default_factory=list)
    coherence: Points
    accuracy: Points
    depth: Points
    overall: Points


class StandingIssues(BaseModel):
    """The issues with the version before that still hold."""

    standing: list[int] = Field(default_factory=list)
    """Their numbers."""


class LaterJudgement(Judgement, StandingIssues):
    """A judgement of what the critic has judged before."""


class BriefJudgement(BaseModel):
    """A judgement by a small model, which finds the same issues in every part unless it gives marks first."""

    coherence: NamedPoints
    accuracy: NamedPoints
    depth: NamedPoints
    overall: NamedPoints
    issues: CriticIssues = Field(default_factory=list)


class Critique(BaseModel):
    """A judgement of every part and of the whole, each under its own name."""

    def judgements(self) -> Mapping[str, Judgement | BriefJudgement]:
        """Return them by part, and for the whole."""
        fields = type(self).model_fields
        return {str(field.alias): getattr(self, name) for name, field in fields.items()}


@lru_cache(maxsize=256)
def critique_of(
    names: tuple[str, ...], earlier: frozenset[str] = frozenset(), *, brief: bool = False
) -> type[Critique]:
    """Return the type of a critique of these parts, all required. `earlier`: the parts that had issues before."""
    kinds = {name: BriefJudgement if brief else LaterJudgement if name in earlier else Judgement for name in names}
    fields = {f"part_{n}": (kinds[name], Field(alias=name)) for n, name in enumerate(names, 1)}
    return create_model("Critique", __base__=Critique, **fields)  # type: ignore[call-overload,no-any-return]


# Settings

Protectable = Literal["code", "front_matter"]


class RefinementSettings(Protocol):
    """The settings of `refinement`."""

    name: ClassVar[str] = "refinement"
    summary: ClassVar[str] = (
        "a hierarchy writes a text: authors draft, specialists help, a critic judges, and further passes revise"
    )
    must_be_read: ClassVar[frozenset[str]] = frozenset({"critique"})
    without_encoder: ClassVar[str] = "give every role of the hierarchy a vector, or use --filter auto or never"

    hierarchy: Annotated[
        HierarchySetting,
        Field(
            validate_default=True,
            description="hierarchy of roles: a shipped name (consilience hierarchies) or a TOML file",
        ),
    ] = "document"  # type: ignore[assignment]
    max_passes: Annotated[int, Field(ge=1, le=100, description="max passes")] = 3
    threshold: Annotated[float, Field(ge=0, le=1, description="stop when the text has this quality")] = 0.8
    confidence: Annotated[
        Literal["critic", "length", "self"],
        Field(description="measure of quality: the critic's scores, the length of a part, or its author's declaration"),
    ] = "critic"
    critic: Annotated[
        Literal["model", "heuristic"],
        Field(description="judge of quality: a model, or two heuristics on length and confidence without a call"),
    ] = "model"
    filter: Annotated[
        Literal["auto", "always", "never"],
        Field(
            description="when to shorten texts by the distance between roles; auto: only for a specialist whose "
            "prompt would exceed half of its model's context window"
        ),
    ] = "auto"
    draft: Annotated[str, Field(max_length=1_000_000, description="text to start from"), FILE] = ""
    protect: Annotated[
        tuple[Protectable, ...],
        Field(description="parts of the draft that must not change: code, front_matter"),
    ] = ("code", "front_matter")
    length: Annotated[
        int,
        Field(
            ge=0, le=100_000, description="target length in words; 0 for the draft's length, or none without a draft"
        ),
    ] = 0
    tone: Annotated[str, Field(max_length=500, description="target tone, in a few words")] = ""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.critic == "heuristic" and self.confidence == "critic":
            raise ValueError("the heuristic critic gives no scores; choose confidence 'length' or 'self' with it")
        return self

    @property
    def drafted_words(self) -> int:
        """Number of words in the draft, without its protected parts."""
        return _count_words(self.draft, self.protect)

    @property
    def target_words(self) -> int:
        """Target number of words: the setting, else the length of the draft; 0 for no target."""
        return self.length or self.drafted_words

    def target(self, other: str = "the task or the intent") -> str:
        """Return the target as prompts name it. The draft's length is a target only if `other` calls for no other length."""
        if self.length or not self.drafted_words:
            return f"about {self.length} words" if self.length else ""
        return f"about as long as the draft ({self.drafted_words} words), unless {other} calls for another length"

    @property
    def judge(self) -> str:
        """The sender of critiques."""
        return CRITIC if self.critic == "model" else self.hierarchy.coordinator

    def critique_id(self, index: int, part: str) -> str:
        """Return the id of the message with a part's critique of a pass. It begins with the key of the critic's reply."""
        return f"pass-{index}/critique/{self.judge}/{part}"

    @property
    def needs_encoder(self) -> bool:
        return self.filter == "always" and not self.hierarchy.has_vectors

    @property
    def first_speakers(self) -> tuple[str, ...]:
        """The authors, who write before they see another text."""
        return self.hierarchy.inner or self.hierarchy.sections

    @property
    def readers(self) -> tuple[str, ...] | None:
        """The roles marked as reading documents, and the critic; None (every role) if no role is marked."""
        marked = tuple(role.name for role in self.hierarchy.roles if role.documents)
        return (*marked, CRITIC) if marked else None

    @property
    def longest_reply(self) -> int:
        """Max tokens of the whole text, which may be as long as all parts together."""
        return self.max_reply_tokens * max(1, len(self.hierarchy.sections))

    @property
    def critique_tokens(self) -> int:
        """Max tokens of the critic's reply, which grows with the number of parts."""
        return self.max_reply_tokens * self._critique_replies

    @property
    def _critique_replies(self) -> int:
        return ceil(len(self.hierarchy.sections) / 3)

    @property
    def max_quoted_replies(self) -> int:
        """All parts twice (the last whole text and the new parts), two critiques, and a text of each parent and child."""
        parts = len(self.hierarchy.sections)
        neighbours = max(len(role.children) + len(self.hierarchy.parents(role.name)) for role in self.hierarchy.roles)
        drafted = estimate_tokens(self.draft) // self.max_reply_tokens + 1 if self.draft else 0
        return 2 * parts + 4 * self._critique_replies + neighbours + 4 + drafted

    def topology(self) -> Topology:
        shape = self.hierarchy.shape
        if self.critic != "model":
            return shape
        parents = {**shape.parents, CRITIC: (self.hierarchy.coordinator,)}
        return shape.model_copy(update={"agents": (*shape.agents, CRITIC), "parents": parents})

    def agents_without_panel(self) -> list[Agent]:
        """Return the roles, parents first, then the critic."""
        authors = dict.fromkeys(self.first_speakers, "author")
        kinds = {self.hierarchy.coordinator: "coordinator", CRITIC: "critic", **authors}
        return [Agent(id=name, role=kinds.get(name, "specialist")) for name in self.topology().agents]

    def calls(self, passes: int) -> int:
        """Return the number of calls if every part has issues in every pass and every call has a reply (protocols §5)."""
        judged = self.critic == "model"
        per_pass = 2 * len(self.hierarchy.inner) + len(self.hierarchy.edges_to_leaves) + 1 + judged
        return 1 + passes * per_pass + (judged and bool(self.draft))

    def estimate(self) -> Estimate:
        return Estimate(min=self.calls(1), max=self.calls(self.max_passes))


@lru_cache(maxsize=16)
def _count_words(draft: str, protect: tuple[Protectable, ...]) -> int:
    return len(extract_protected(draft, protect).text.split())
