"""What a closing call returns in addition to its text, and what runs on a tree conclude: the answer with its self-reviews,
positions by sealed ballots, common report fields and warnings."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, create_model

from consilience.domain.messages import ClaimReplies, ClaimReply, FreeText, Label, Message, is_no_finding
from consilience.domain.positions import Ballot, BallotReply, Spellings, changes, last_of, pool, shortfall
from consilience.domain.report import Against, Claim, ConfidenceScore, Dissent, Objection, StrangeLoop
from consilience.engine.prompt import Quote
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.answers import choices_of, declared_answer, stated_answer
from consilience.protocols._common.revisions import loses_draft

MAX_AGAINST, MAX_CONDITIONS = 3, 5
"""Entries of one reply that a report keeps: positions decided against; conditions and unknowns each."""
_BARE_LABEL = re.compile(r"[A-Z](\d+[a-z]?)*(\.\w+)?|[0-9a-f]{8}|unknown")


class AgainstReply(BaseModel):
    """The strongest position decided against and why, with the labels of the texts that hold it."""

    text: str
    ids: Annotated[list[Label], Field(json_schema_extra={"maxItems": 3})] = Field(default_factory=list)


Conditions = Annotated[list[str], Field(json_schema_extra={"maxItems": MAX_CONDITIONS})]


class Conclusion(BaseModel):
    """A text that may be the answer, with what it rests on, what it decided against and what would overturn it.

    A reply with further fields names this base first, which keeps `text` last: `class RootReply(Conclusion, AnswersObjections)`.
    """

    claims: ClaimReplies = Field(default_factory=list)
    against: Annotated[list[AgainstReply], Field(json_schema_extra={"maxItems": MAX_AGAINST})] = Field(
        default_factory=list
    )
    would_change: Conditions = Field(default_factory=list)
    unknown: Conditions = Field(default_factory=list)
    text: FreeText


R = TypeVar("R", bound=BaseModel)

DeclaredPosition = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))]
"""A declared position. A number is one in digits, and null is none."""


@lru_cache(maxsize=256)
def with_position(returns: type[R], pattern: str) -> type[R]:
    """Return a reply with a field `position`, the first unless it has one: the answer that its text takes. For a pattern that is a
    choice it is one of the choices. Without a pattern the reply is as it is.

    A position that does not match makes no reply malformed, because its text is paid for.
    """
    if not pattern:
        return returns
    choices = choices_of(pattern)
    field = Field(default="", json_schema_extra={"enum": list(choices)} if choices else None)
    made: type[R] = create_model(returns.__name__, __base__=returns, position=(DeclaredPosition, field))
    if "position" not in returns.model_fields:
        fields = made.__pydantic_fields__
        made.__pydantic_fields__ = {name: fields[name] for name in ("position", *returns.model_fields)}
        made.model_rebuild(force=True)
    return made


async def declared_position(session: Session, pattern: str, answer: TextReply | None) -> str | None:
    """Return the position of an answer: what it declares or, where that is none, what its text explicitly says."""
    if not pattern or answer is None:
        return None
    declared = getattr(answer.value, "position", "")
    position = await declared_answer(session, pattern, declared, answer.agent) if declared else None
    return position or await stated_answer(session, pattern, answer.text, answer.agent)


class ConclusionFields(TypedDict):
    """Header fields of a report."""

    claims: tuple[Claim, ...]
    against: tuple[Against, ...]
    would_change: tuple[str, ...]
    unknown: tuple[str, ...]


def conclusion_fields(session: Session, answer: Reply[Conclusion] | None) -> ConclusionFields:
    """Return what a closing reply declares, for `session.report(..., **conclusion_fields(session, answer))`.

    Labels become message ids; a label that the call was not shown is dropped and counted. Entries without content are dropped.
    """
    if answer is None:
        return ConclusionFields(claims=(), against=(), would_change=(), unknown=())
    reply = answer.value
    against = [entry for entry in reply.against if not is_no_finding(entry.text)][:MAX_AGAINST]
    return ConclusionFields(
        claims=claims_of(session, answer),
        against=tuple(Against(text=entry.text.strip(), ids=session.named(answer, entry.ids)) for entry in against),
        would_change=_conditions(reply.would_change),
        unknown=_conditions(reply.unknown),
    )


def _conditions(entries: Iterable[str]) -> tuple[str, ...]:
    """Drop bare labels and ids: small models copy into these lists what they were shown."""
    conditions = [entry.strip() for entry in entries if not is_no_finding(entry)]
    return tuple([entry for entry in conditions if not _BARE_LABEL.fullmatch(entry)][:MAX_CONDITIONS])


def claims_of(session: Session, answer: Reply[Any] | None) -> tuple[Claim, ...]:
    """Return the claims of an answer that hold text, with their labels resolved to message ids.

    If documents were given, a claim is marked `from_memory` when neither it nor a text it cites holds a verified quotation.
    """
    if answer is None:
        return ()
    claims: Sequence[ClaimReply] = [claim for claim in answer.value.claims if claim.text.strip()]
    return tuple(_claim(session, answer, claim) for claim in claims[: session.caps.claims])


def _claim(session: Session, answer: Reply[Any], claim: ClaimReply) -> Claim:
    ids = session.named(answer, claim.ids)
    from_memory = bool(session.sources) and not _quotes_a_document(session, answer, claim.text, ids)
    return Claim(text=claim.text, ids=ids, from_memory=from_memory)


def _quotes_a_document(session: Session, answer: Reply[Any], text: str, ids: Sequence[str]) -> bool:
    cited = [session.message(id) for id in ids]
    quotations = [session.quotations(text, answer), *(session.quotations(message.text, message) for message in cited)]
    return any(quotation.verified for group in quotations for quotation in group)


T = TypeVar("T")

TextReply = Reply[Any]
"""A reply whose value has a `text`, which others may read."""

NO_POSITION = "the answer takes no position; dissent is measured against the leading position of the pooled ballots"


def quoted(session: Session, text: Reply[Any] | Message | None, label: str) -> tuple[Quote, ...]:
    """Quote a text, if there is one."""
    return (session.quote(text, label),) if text is not None else ()


def publish_from(
    session: Session, reply: Reply[Any], kind: str, n: int, text: str, audience: Iterable[str], to: str = ""
) -> Message:
    """Publish the n-th part of that kind of a reply as a message, in answer to the message `to`, by default to the reply."""
    message = Message(
        id=f"{reply.key}/{kind}-{n}",
        sender=reply.agent,
        kind=kind,
        text=text,
        audience=tuple(audience),
        reply_to=to or reply.key,
        phase=session.message(reply.key).phase,
    )
    session.publish(message)
    return message


def step_limit(session: Session, max_steps: int) -> int:
    """Return `max_steps`, or the session's limit on steps if that is lower."""
    return max_steps if session.limits.steps is None else min(max_steps, session.limits.steps)


def open_dissent(objections: Iterable[Objection]) -> tuple[Dissent, ...]:
    """Return the open objections as dissent."""
    return tuple(Dissent(agent=o.agent, text=o.text, id=o.id) for o in objections if o.is_open)


@dataclass
class TreeRun:
    """The answer of a run so far, and how it was reviewed."""

    closing: TextReply | None = None
    """The latest text that answers the task."""
    loops: list[StrangeLoop] = field(default_factory=list)
    reviews: list[TextReply] = field(default_factory=list)
    """Replies to the root's self-reviews."""

    def add_review(self, reply: TextReply | Failure, *, task: str, domain: bool) -> bool:
        """Record a self-review of the answer, and return whether it took the answer's place. After a failed review, or one that
        loses the text, the answer stands. Instructions of the `domain` may ask for a short text."""
        assert self.closing is not None
        before, text = self.closing.text, None if isinstance(reply, Failure) else reply.text
        since = max((n for n, loop in enumerate(self.loops, 1) if loop.domain), default=0)
        versions_before = [*(loop.before for loop in self.loops[since:]), before]
        lost = text is not None and not domain and loses_draft(task, versions_before, text)
        versions = {"before": before, "after": None if lost else text, "discarded": text if lost else None}
        self.loops.append(StrangeLoop(index=len(self.loops) + 1, domain=domain, **versions))
        if isinstance(reply, Reply) and not lost:
            self.closing = reply
            self.reviews.append(reply)
        return text is not None and not lost

    @property
    def failed_reviews(self) -> tuple[str, ...]:
        """The self-reviews without a reply, in words."""
        failed = (loop.index for loop in self.loops if loop.after is None and not loop.discarded)
        return tuple(f"no reply in self-review {index}" for index in failed)


@dataclass(frozen=True)
class BallotResult:
    """Where the agents and the answer stand, by sealed ballots; empty without an answer pattern."""

    ballots: tuple[Ballot, ...] = ()
    pool: Mapping[str, float] = field(default_factory=dict)
    """Share of each position over all ballots, largest first."""
    position: str | None = None
    decided_by: Literal["answer", "pool"] | None = None
    unmet: tuple[str, ...] = ()
    """Why the answer does not stand by the last ballots."""

    @property
    def confidence(self) -> ConfidenceScore:
        """Share of the pooled ballots that are for the position."""
        if self.position is None or not self.pool:
            return ConfidenceScore()
        return ConfidenceScore(level=self.pool.get(self.position, 0.0), kind="share of pooled ballots")

    @property
    def dissent(self) -> tuple[Dissent, ...]:
        """Last ballots against the position; if the answer holds none, against the first of the pool."""
        position = self.position or next(iter(self.pool), None)
        against = (ballot for ballot in last_of(self.ballots).values() if ballot.position != position)
        return tuple(Dissent(agent=ballot.agent, text=ballot.reason, position=ballot.position) for ballot in against)

    @property
    def conformity(self) -> int:
        """Changes of position that name no argument."""
        return sum(change.conformity for change in changes(self.ballots))


async def count_ballots(
    session: Session, ballots: Sequence[Ballot], pattern: str, closing: TextReply | None, *, pool_decides: bool = False
) -> BallotResult:
    """Return the position that stands: the answer's own or, if `pool_decides` and there is one, the first of the pool."""
    pooled = pool(ballots)
    if not pattern:
        return BallotResult()
    if pool_decides and pooled:
        return BallotResult(tuple(ballots), pooled, next(iter(pooled)), "pool")
    stated = await declared_position(session, pattern, closing)
    position = Spellings(ballot.position for ballot in ballots).of(stated) if stated else None
    reason = shortfall(position, last_of(ballots)) if closing else None
    decided_by: Literal["answer"] | None = "answer" if position else None
    return BallotResult(tuple(ballots), pooled, position, decided_by, (reason,) if reason else ())


async def stated_position(session: Session, pattern: str, answer: TextReply | None) -> str | None:
    """Return the position that an answer states, with a warning if it states none."""
    if not pattern or answer is None:
        return None
    position = await declared_position(session, pattern, answer)
    if position is None:
        session.warn("the answer takes no position")
    return position


async def read_ballot(
    session: Session, pattern: str, spellings: Spellings, step: int, reply: Reply[Any]
) -> Ballot | None:
    """Return the ballot that a reply casts; None if its position does not match the pattern."""
    vote: BallotReply | Any = reply.value
    position = await declared_answer(session, pattern, vote.position, reply.agent)
    if position is None:
        return None
    cause = getattr(vote, "cause", None)
    return Ballot(
        agent=reply.agent,
        step=step,
        position=spellings.of(position),
        confidence=vote.confidence,
        reason=vote.reason,
        cause=next(iter(session.named(reply, [cause])), None) if cause else None,
    )


def ballot_fields(result: BallotResult) -> dict[str, Any]:
    """Return the fields of a report that follow from the ballots alone."""
    return {
        "position_changes": tuple(changes(result.ballots)),
        "ballots": result.ballots,
        "pool": dict(result.pool),
        "position": result.position,
    }


def warn_failed_review(session: Session, run: TreeRun) -> None:
    if run.loops and run.loops[-1].after is None:
        problem = "kept less than a third of it" if run.loops[-1].discarded else "got no reply"
        session.warn(f"the last review of the answer {problem}; the answer is the one before it")


ALIKE = 0.8
"""Mean similarity of siblings' first texts from which on they are one view."""


def warn_alike(session: Session, similarity: float | None, texts: Mapping[str, Collection[str]]) -> None:
    """Warn of a run in which siblings wrote alike before they read each other, and none revised: `texts` by agent, all it wrote."""
    kept = all(len({" ".join(text.split()) for text in own}) == 1 for own in texts.values())
    if len(texts) > 1 and similarity is not None and similarity >= ALIKE and kept:
        session.warn(
            f"the first texts of the {len(texts)} agents are alike (similarity {similarity:.2f}), and no agent revised its text: "
            "their agreement is one view, not several"
        )


def sibling_similarity(families: Iterable[Hashable], replies: Iterable[TextReply | None]) -> float | None:
    """Return the mean over families of the mean pairwise `jaccard` of their texts. `families` name that of each reply.

    None if no family has two texts.
    """
    texts: dict[Hashable, list[str]] = {}
    for family, reply in zip(families, replies, strict=True):
        if reply is not None:
            texts.setdefault(family, []).append(reply.text)
    scores = [score for family in texts.values() if (score := mean_pairwise(family)) is not None]
    return sum(scores) / len(scores) if scores else None
