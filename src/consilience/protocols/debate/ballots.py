"""Sealed ballots: what they hold, how prompts quote them, and answers of final ones that are asked again before they count.

Asked again are, first, answers that differ from what their agent had answered before: slips, moves that nobody heard of. Then, near
a consensus, those of agents who alone hold out: each is asked to put its answer on record. An agent is shown its own answers and
nobody else's, and that it holds out is not said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from consilience.domain.positions import LEVELS
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.debate.floor import Floor, quotes_of
from consilience.protocols.debate.moves import FIRM, MAX_RECHECKS, Side
from consilience.protocols.debate.notes import BallotsRechecked
from consilience.protocols.debate.records import CommonGround, DebateBallot, Recheck
from consilience.protocols.debate.replies import (
    FinalReply,
    OpeningReply,
    RecheckReply,
    SidesReply,
    StipulatedReply,
    recheck_type,
)
from consilience.protocols.debate.threads import Thread

HOLDOUT_SHARE = 3
"""Near a consensus, fewer than one in so many agents hold out on a question."""
OWN_BALLOT = "your last ballot"

DebateBallots = Mapping[str, DebateBallot]
"""The last ballot of each agent that cast one."""
Answers = Mapping[str, Mapping[str, Side]]
"""Answers by question (`p1` …, `q1` …) and agent."""


@dataclass
class _Answer:
    """What one agent answered to one question, in order; keys are the ids of the calls or messages."""

    agent: str
    name: str
    """`p1` …, `q1` …: the field of the ballot."""
    question: str
    before: dict[str, Side]
    ballot: Side
    explained: bool
    """Whether the ballot names the message that moved it."""
    rechecks: list[Recheck] = field(default_factory=list)

    @property
    def counts(self) -> Side:
        return self.rechecks[-1].counts if self.rechecks else self.ballot

    @property
    def differs(self) -> bool:
        return bool(self.before) and [*self.before.values()][-1] != self.ballot and not self.explained


def sides_of(ballot: SidesReply, kind: Literal["p", "q", "c"]) -> tuple[Any, ...]:
    """Return the sides of a ballot on propositions (`p`), questions of threads (`q`) or candidates for common ground (`c`)."""
    return tuple(getattr(ballot, name) for name in type(ballot).model_fields if re.fullmatch(rf"{kind}\d+", name))


def ballot_of(agent: str, value: Any, asked: Sequence[Thread] = (), **fields: Any) -> DebateBallot:
    """Return the ballot of an agent as the report holds it. `asked` are the threads whose questions it answers; `fields` are those
    that not every ballot has."""
    return DebateBallot(
        agent=agent,
        positions=sides_of(value, "p"),
        questions={thread.id: side for thread, side in zip(asked, sides_of(value, "q"), strict=True)},
        common=sides_of(value, "c"),
        confidence=LEVELS[value.confidence],
        claim=value.claim.strip(),
        reason=value.reason.strip(),
        **fields,
    )


def ballot_words(value: OpeningReply | FinalReply | StipulatedReply) -> str:
    """A ballot as later prompts quote it."""
    return f"{_stated_sides(value)} {getattr(value, 'claim', '').strip()} {value.reason.strip()}"


def _stated_sides(value: OpeningReply | FinalReply | StipulatedReply) -> str:
    sides = [f"{kind}{n} {side}" for kind in ("p", "q") for n, side in enumerate(sides_of(value, kind), 1)]
    return f"{', '.join(sides)} ({value.confidence} of p1)."


def cast(
    floor: Floor, replies: Iterable[Reply[Any] | Failure], asked: Sequence[Thread], **fields: Any
) -> DebateBallots:
    """Return the final ballots in `replies`, with the message that moved each, and keep who failed to cast one."""
    ballots: dict[str, DebateBallot] = {}
    for reply in replies:
        if isinstance(reply, Failure):
            floor.missing[reply.agent] = reply
            continue
        named = getattr(reply.value, "cause", None)
        cause = next(iter(floor.session.named(reply, [named])), None) if named else None
        ballots[reply.agent] = ballot_of(reply.agent, reply.value, asked, step=1, cause=cause, **fields)
    return ballots


async def recheck(floor: Floor, final: DebateBallots, threads: Sequence[Thread]) -> DebateBallots:
    """Ask again what needs it, and return the ballots with the answers that count. Without a reply the ballot stands; after a limit
    has refused a call nobody is asked."""
    answers = {(a.agent, a.name): a for ballot in final.values() for a in _answers(floor, ballot, threads)}
    for number in range(1, MAX_RECHECKS + 1):
        if floor.session.limit_hit:
            break
        if number == 1:
            unequal_answers = [answer for answer in answers.values() if answer.differs]
        else:
            unequal_answers = [answers[agent, name] for agent, name in holdouts(_by_question(answers.values())).items()]
        if unequal_answers:
            await _ask_again(floor, unequal_answers, threads, number)
    rechecks = [check for answer in answers.values() for check in answer.rechecks]
    named = tuple(check.model_copy(update={"question": _subject(check.question, threads)}) for check in rechecks)
    if named:
        floor.note(BallotsRechecked(at=floor.now, rechecks=named))
    return {agent: _corrected(ballot, named) for agent, ballot in final.items()}


def holdouts(answers: Answers) -> dict[str, str]:
    """Return the agents who alone keep a debate from a consensus, each with its question.

    That is so if on every split question the smaller side has fewer than one in `HOLDOUT_SHARE` agents, and no agent is on it
    twice: who holds out on several questions does not slip. Empty otherwise.
    """
    question_of: dict[str, str] = {}
    for name, sides in answers.items():
        firm = sorted(([a for a, held in sides.items() if held == side] for side in FIRM), key=len)
        minority, majority = firm
        if not minority:
            continue
        if (
            len(minority) == len(majority)
            or len(minority) * HOLDOUT_SHARE >= len(sides)
            or not question_of.keys().isdisjoint(minority)
        ):
            return {}
        question_of |= dict.fromkeys(minority, name)
    return question_of


def again_words(floor: Floor, agent: str, asked: Sequence[Thread]) -> tuple[str, ...]:
    """What an agent's ballot counts as where that is not what it says: `q1 YES (ballot: NO)`."""
    numbers = {thread.id: f"q{n}" for n, thread in enumerate(asked, 1)}
    last = {check.question: check for check in floor.fold.rechecks if check.agent == agent}
    return tuple(
        f"{numbers.get(question, question)} {check.counts} (ballot: {check.ballot})"
        for question, check in last.items()
        if check.counts != check.ballot
    )


def _answers(floor: Floor, ballot: DebateBallot, asked: Sequence[Thread]) -> list[_Answer]:
    agent, opening = ballot.agent, floor.openings[ballot.agent]
    rows = zip(floor.framing.propositions, opening.positions, ballot.positions, strict=True)
    answers = [
        _Answer(agent, f"p{n}", question, {opening.key: before}, side, ballot.cause is not None)
        for n, (question, before, side) in enumerate(rows, 1)
    ]
    return answers + [
        _Answer(agent, f"q{n}", thread.question or "", _declared(thread, agent), ballot.questions[thread.id], False)
        for n, thread in enumerate(asked, 1)
    ]


def _declared(thread: Thread, agent: str) -> dict[str, Side]:
    """What an agent answered to the present question of a thread: in public, then in private after the evidence."""
    sides: dict[str, Side] = {}
    commitment, flip = thread.commitments.get(agent), thread.flips.get(agent)
    if commitment is not None and thread.locked_question in (None, thread.question):
        sides[commitment.message] = commitment.side
    if flip is not None:
        sides[flip.message] = flip.side
    return sides


def _by_question(answers: Iterable[_Answer]) -> Answers:
    by_question: dict[str, dict[str, Side]] = {}
    for answer in answers:
        by_question.setdefault(answer.name, {})[answer.agent] = answer.counts
    return by_question


async def _ask_again(floor: Floor, differing: Sequence[_Answer], asked: Sequence[Thread], number: int) -> None:
    by_agent = {
        agent: [a for a in differing if a.agent == agent] for agent in dict.fromkeys(a.agent for a in differing)
    }
    async with floor.session.phase("rechecks", number):
        replies = await floor.session.gather(
            [_ask(floor, agent, answers, asked, number) for agent, answers in by_agent.items()]
        )
    failures = [reply for reply in replies if isinstance(reply, Failure)]
    if failures:
        text = f"ballots asked again without a reply: {len(failures)} of {len(replies)}; their answers count as cast"
        floor.session.warn(text)
    for reply, answers in zip(replies, by_agent.values(), strict=True):
        for answer in answers:
            answer.rechecks.append(_recheck(answer, reply, number))


def _recheck(answer: _Answer, reply: Reply[Any] | Failure, number: int) -> Recheck:
    """What an answer counts as once it was asked again: what its agent now repeats, without a repetition undecided. An agent that
    holds out has to repeat what counted until now."""
    again: Side | None = getattr(reply.value, answer.name) if isinstance(reply, Reply) else None
    counts = answer.counts
    if again is not None:
        repeated = [counts] if number > 1 else [*answer.before.values(), counts]
        counts = again if again in repeated else "UNCERTAIN"
    return Recheck(
        agent=answer.agent,
        question=answer.name,
        why="differs" if number == 1 else "holds out",
        before=answer.before | {check.key: check.again for check in answer.rechecks if check.again},
        ballot=answer.ballot,
        again=again,
        counts=counts,
        reason=reply.value.reason.strip() if isinstance(reply, Reply) else "",
    )


def _ask(
    floor: Floor, agent: str, answers: Sequence[_Answer], asked: Sequence[Thread], number: int
) -> Ask[RecheckReply]:
    """Ask an agent that is shown what its final ballot was cast on, its own messages on the questions, and that ballot."""
    session, overview = floor.session, floor.overview()
    shown = {quote.id for quote in overview}
    earlier = dict.fromkeys(
        key for answer in answers for key in answer.before if key in floor.by_id and key not in shown
    )
    own = quotes_of(floor.by_id[key] for key in earlier)
    words = session.render_template(
        "recheck",
        letter=floor.letters[agent],
        seat=session.agent(agent).introduction(),
        record=number > 1,
        questions=tuple((a.name, a.question, _history(floor, a)) for a in answers),
    )
    return session.ask(
        agent,
        Prompt(words, (*overview, *own, Quote(f"final/{agent}", OWN_BALLOT))),
        key=f"recheck/{number}/{agent}",
        returns=recheck_type(tuple(answer.name for answer in answers)),
        kind="ballot",
    )


def _history(floor: Floor, answer: _Answer) -> tuple[tuple[Side, str], ...]:
    """An agent's earlier answers in order, each with where it gave it; the ballot is the last before it was asked again."""
    history: list[tuple[Side, str]] = []
    for key, side in answer.before.items():
        message = floor.by_id.get(key)
        private = "in your first ballot" if key.startswith("opening/") else "in private after the evidence"
        history.append((side, f"in {message.label}" if message else private))
    history.append((answer.ballot, "in your final ballot"))
    return (*history, *((check.again, "when asked again") for check in answer.rechecks if check.again))


def _corrected(ballot: DebateBallot, rechecks: Iterable[Recheck]) -> DebateBallot:
    """A final ballot with the answers that count. Where one to a proposition changes, the reason is that of the last reply."""
    own = {check.question: check for check in rechecks if check.agent == ballot.agent}
    names = [f"p{n}" for n in range(1, len(ballot.positions) + 1)]
    positions = [own[name].counts if name in own else side for name, side in zip(names, ballot.positions, strict=True)]
    questions = {id: own[id].counts if id in own else side for id, side in ballot.questions.items()}
    reasons = [check.reason for name, check in own.items() if name in names and check.counts != check.ballot]
    counts = {"positions": tuple(positions), "questions": questions, "reason": [ballot.reason, *reasons][-1]}
    return ballot.model_copy(update=counts)


def _subject(name: str, asked: Sequence[Thread]) -> str:
    """A question as the report names it: `p1` …, or its thread."""
    return asked[int(name[1:]) - 1].id if name[0] == "q" else name


def votes_on_candidates(
    floor: Floor, final: DebateBallots
) -> tuple[list[CommonGround], list[tuple[CommonGround, tuple[str, ...]]]]:
    """Return the candidates for common ground that every debater confirmed by a typed YES, and the others with the debaters who did
    not. If a final ballot is missing, nothing is known of either."""
    if set(final) != set(floor.debaters):
        return [], []
    against = [
        (candidate, tuple(agent for agent in floor.debaters if final[agent].common[n] != "YES"))
        for n, candidate in enumerate(floor.fold.candidates)
    ]
    return [candidate for candidate, agents in against if not agents], [entry for entry in against if entry[1]]
