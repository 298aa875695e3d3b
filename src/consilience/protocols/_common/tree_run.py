"""What runs on a tree conclude: the answer with its self-reviews, positions by sealed ballots, common fields and warnings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from consilience.domain.messages import Message
from consilience.domain.positions import Ballot, BallotReply, changes, last_of, pool, shortfall
from consilience.domain.report import Confidence, Dissent, StrangeLoop
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols._common.answers import extract, extract_declared
from consilience.protocols._common.conclusion import conclusion_fields

TextReply = Reply[Any]
"""A reply whose value has a `text`, which others may read."""

NO_POSITION = (
    "the answer holds nothing that the answer_pattern looks for; dissent is told from what the pooled ballots put first"
)


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


@dataclass
class TreeRun:
    """The answer of a run so far, and how it was reviewed."""

    closing: TextReply | None = None
    """The latest text that answers the task."""
    loops: list[StrangeLoop] = field(default_factory=list)
    reviews: list[TextReply] = field(default_factory=list)
    """Replies to the root's self-reviews."""
    failures: list[Failure] = field(default_factory=list)

    def add_review(self, reply: TextReply | Failure, *, domain: bool) -> None:
        """Record a self-review of the answer. After a failed review the answer stands."""
        assert self.closing is not None
        after = None if isinstance(reply, Failure) else reply.text
        self.loops.append(StrangeLoop(index=len(self.loops) + 1, before=self.closing.text, after=after, domain=domain))
        if isinstance(reply, Failure):
            self.failures.append(reply)
        else:
            self.closing = reply
            self.reviews.append(reply)


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
    def confidence(self) -> Confidence:
        """Share of the pooled ballots that are for the position."""
        if self.position is None or not self.pool:
            return Confidence()
        return Confidence(level=self.pool.get(self.position, 0.0), kind="share of pooled ballots")

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


def count_ballots(
    ballots: Sequence[Ballot], pattern: str, closing: TextReply | None, *, pool_decides: bool = False
) -> BallotResult:
    """Return the position that stands: the answer's own or, if `pool_decides` and there is one, the first of the pool."""
    pooled = pool(ballots)
    if not pattern:
        return BallotResult()
    if pool_decides and pooled:
        return BallotResult(tuple(ballots), pooled, next(iter(pooled)), "pool")
    position = extract(pattern, closing.text) if closing else None
    unmet = shortfall(position, last_of(ballots)) if closing else None
    decided_by: Literal["answer"] | None = "answer" if position else None
    return BallotResult(tuple(ballots), pooled, position, decided_by, (unmet,) if unmet else ())


def read_ballot(session: Session, pattern: str, step: int, reply: Reply[Any], vote: BallotReply | Any) -> Ballot | None:
    """Return the ballot in `vote`, the value of `reply`; None if its position does not match the pattern."""
    position = extract_declared(pattern, vote.position)
    if position is None:
        return None
    cause = getattr(vote, "cause", None)
    return Ballot(
        agent=reply.agent,
        step=step,
        position=position,
        confidence=vote.confidence,
        reason=vote.reason,
        cause=next(iter(session.named(reply, [cause])), None) if cause else None,
    )


def answer_fields(
    session: Session, run: TreeRun, failures: Iterable[Failure], conclusion: TextReply | None
) -> dict[str, Any]:
    """Return the report fields that follow from the answer. `failures` are all of the run, `conclusion` declares its claims."""
    closing = run.closing
    return {
        "answer": closing.text if closing else None,
        "answer_cut": closing is not None and closing.cut,
        "closing": drawn_on(closing, failures),
        "strange_loops": tuple(run.loops),
        **conclusion_fields(session, conclusion),
    }


def ballot_fields(result: BallotResult) -> dict[str, Any]:
    """Return the fields of a report that follow from the ballots alone."""
    return {
        "position_changes": tuple(changes(result.ballots)),
        "ballots": result.ballots,
        "pool": dict(result.pool),
        "position": result.position,
    }


def warn_dropped_labels(session: Session) -> None:
    if session.dropped:
        session.warn(f"references to texts that were not shown were dropped: {session.dropped}")


def warn_failed_review(session: Session, run: TreeRun) -> None:
    if run.loops and run.loops[-1].after is None:
        session.warn("the last review of the answer failed; the answer is the one before it")


def sibling_similarity(texts: Iterable[tuple[Hashable, str]]) -> float | None:
    """Return the mean over families of the mean pairwise `jaccard` of their texts, given as (family, text).

    None if no family has two texts.
    """
    families: dict[Hashable, list[str]] = {}
    for family, text in texts:
        families.setdefault(family, []).append(text)
    scores = [score for family in families.values() if (score := mean_pairwise(family)) is not None]
    return sum(scores) / len(scores) if scores else None
