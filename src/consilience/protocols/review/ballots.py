"""Sealed ballots of a review, counted: the strictest vote is the verdict, milder ones on the same part are dissent."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.domain.findings import BallotCast, ReviewVerdict, ReviewVote
from consilience.domain.positions import PositionChange
from consilience.domain.report import Dissent

VOTES: tuple[ReviewVote, ...] = ("reject", "changes", "approve")
"""Worst first."""
MAX_BALLOTS = 6
"""Ballots that a prompt quotes or an answer names, the strictest first."""
MAX_REASON_CHARS = 300


def votes_by_agent(ballots: Sequence[BallotCast]) -> dict[str, ReviewVote]:
    """Return the worst vote of each agent."""
    votes: dict[str, ReviewVote] = {}
    for ballot in ballots:
        votes[ballot.agent] = min(votes.get(ballot.agent, ballot.vote), ballot.vote, key=VOTES.index)
    return votes


def split_parts(ballots: Sequence[BallotCast]) -> list[int]:
    """Return the parts on which agents voted differently."""
    votes: dict[int, set[ReviewVote]] = {}
    for ballot in ballots:
        votes.setdefault(ballot.part, set()).add(ballot.vote)
    return sorted(part for part, cast in votes.items() if len(cast) > 1)


def verdict_of(ballots: Sequence[BallotCast]) -> ReviewVerdict | None:
    """Return the strictest vote, who cast it and where the votes differ; None without a ballot."""
    if not ballots:
        return None
    votes = votes_by_agent(ballots)
    worst = min(votes.values(), key=VOTES.index)
    by = tuple(agent for agent, vote in votes.items() if vote == worst)
    return ReviewVerdict(vote=worst, by=by, split=tuple(split_parts(ballots)))


def milder_votes(ballots: Sequence[BallotCast]) -> tuple[Dissent, ...]:
    """Return the votes on split parts that are milder than the strictest one there."""
    parts = {ballot.part for ballot in ballots}
    dissent: list[Dissent] = []
    for part in split_parts(ballots):
        of_part = [ballot for ballot in ballots if ballot.part == part]
        worst = min((ballot.vote for ballot in of_part), key=VOTES.index)
        where = f" on part {part}" if len(parts) > 1 else ""
        dissent += [
            Dissent(
                agent=ballot.agent,
                position=ballot.vote,
                text=f"votes {ballot.vote}{where}, not {worst}"
                + (f": {ballot.reason}" if ballot.reason.strip() else ""),
            )
            for ballot in of_part
            if ballot.vote != worst
        ]
    return tuple(dissent)


def vote_changes(first: Sequence[BallotCast], last: Sequence[BallotCast]) -> tuple[PositionChange, ...]:
    """Return the votes that changed between the first and the final ballot of an agent on a part."""
    final = {(ballot.agent, ballot.part): ballot for ballot in last}
    parts = {ballot.part for ballot in last}
    pairs = ((before, final[before.agent, before.part]) for before in first)
    return tuple(
        PositionChange(
            agent=after.agent,
            before=before.vote,
            after=after.vote + (f" on part {after.part}" if len(parts) > 1 else ""),
            step=after.iteration,
            cause=after.cause,
            conformity=after.cause is None,
        )
        for before, after in pairs
        if before.vote != after.vote
    )


def by_strictness(ballots: Sequence[BallotCast]) -> list[BallotCast]:
    """Return the ballots, the strictest first; those without a reason after others with the same vote."""
    return sorted(ballots, key=lambda ballot: (VOTES.index(ballot.vote), not ballot.reason.strip(), ballot.part))


def reasons(ballots: Sequence[BallotCast]) -> str:
    """Return `red votes reject: REASON; …`, at most `MAX_BALLOTS` of them."""
    ordered = by_strictness(ballots)
    parts = {ballot.part for ballot in ballots}
    lines = [
        f"{ballot.agent} votes {ballot.vote}"
        + (f" on part {ballot.part}" if len(parts) > 1 else "")
        + (f": {' '.join(ballot.reason.split())[:MAX_REASON_CHARS].rstrip('.')}" if ballot.reason.strip() else "")
        for ballot in ordered[:MAX_BALLOTS]
    ]
    more = [f"and {len(ordered) - MAX_BALLOTS} more"] if len(ordered) > MAX_BALLOTS else []
    return "; ".join([*lines, *more])
