"""The vocabulary of a debate in plain words, as reports and views show it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from consilience.domain.agents import Agent, point_of_view
from consilience.domain.positions import LEVELS
from consilience.protocols.debate.moves import Move, Side, Stage, Status
from consilience.protocols.debate.records import DebateBallot
from consilience.protocols.debate.settings import POINTS_OF_VIEW

SIDES: Mapping[str, str] = {"YES": "yes", "NO": "no", "UNCERTAIN": "undecided", "UNDECIDED": "undecided"}
STAGES: Mapping[Stage, str] = {"DISCOVERY": "discovery", "CRUX_LOCK": "crux lock", "EVIDENCE": "evidence"}
STATUSES: Mapping[Status, str] = {
    "DISCOVERY": "looking for its question",
    "LOCKING": "committing to positions",
    "LOCKED": "debating the evidence",
    "CONVERGED": "converged",
    "FAILED_LOCK": "failed to lock",
    "STALE": "went stale",
    "MERGED": "merged",
}
MOVES: Mapping[Move, str] = {
    "CLAIM": "claims",
    "CHALLENGE": "challenges",
    "CLARIFY": "clarifies",
    "REFRAME": "reframes",
    "PROPOSE_CRUX": "proposes a question",
    "STEELMAN": "puts the other side's case",
    "GRADE_STEELMAN": "grades a steelman",
    "COMMIT_POSITION": "commits",
    "DECLARE_FALSIFIER": "names a falsifier",
    "PROVIDE_EVIDENCE": "gives evidence",
    "CHALLENGE_EVIDENCE": "challenges evidence",
    "UPDATE_POSITION": "changes position",
    "CONCEDE": "concedes",
}
BLOCKED: Mapping[str, str] = {
    "stage_restriction": "a move that the stage does not allow",
    "steelman_required": "a challenge before an accepted steelman",
    "agent_cooldown": "spoken too soon after the agent's last message",
    "reply_limit": "a third reply to one message",
    "thread_rate_limit": "too many messages in the thread within 30 s",
    "stage_budget": "the messages of the stage were used up",
    "thread_cap": "the messages of the thread were used up",
    "thread_closed": "the thread had ended",
}
CRITERIA: Mapping[str, str] = {
    "commitments": "fewer than two commitments",
    "sides": "nobody on one of the sides",
    "steelmen": "a steelman not accepted",
    "falsifiers": "no falsifier named",
}
REGIMES: Mapping[str, str] = {
    "consensus": "Agreement: on every question, all agents with a firm position are on one side.",
    "partial": "Partial: at least one question is split, and not all of the split is explained by a validated crux.",
    "polarized": "Polarized: every question is split, and a validated crux names what divides them.",
    "inconclusive": "Inconclusive: on no question do two agents hold a firm position.",
}
ENDINGS: Mapping[str, str] = {
    "settled": "every thread has ended",
    "stable": "no new crux and the same coalitions for 30 messages",
    "stalled": "the debate made no progress any more",
    "max_messages": "reached the limit on messages",
    "max_duration": "reached the limit on virtual time",
}
_VIEWS = dict(
    zip(
        POINTS_OF_VIEW,
        (
            "advocate of change",
            "critic of change",
            "what is known",
            "those affected",
            "the question itself",
            "the long run",
        ),
        strict=True,
    )
)
_CERTAINTY = {value: level for level, value in LEVELS.items()}


def agent_names(agents: Sequence[Agent], letters: Mapping[str, str]) -> dict[str, str]:
    """Return names by id: what an agent stands for, then its letter: `Town treasurer (A)`. Models are added where they differ."""
    models = {agent.model for agent in agents if agent.id in letters}
    names = {}
    for agent in agents:
        if letter := letters.get(agent.id):
            model = f", {agent.model}" if len(models) > 1 and agent.model else ""
            view = agent.persona or _VIEWS.get(agent.perspective) or point_of_view(agent)
            names[agent.id] = f"{view} ({letter}{model})"
        else:
            names[agent.id] = agent.id.replace("_", " ")
    return names


def certainty(confidence: float) -> str:
    """Return a level of confidence by its name, `fairly sure`; another number as it is."""
    return _CERTAINTY.get(confidence, f"{confidence:.2f}")


def side_word(side: str | None) -> str:
    return "–" if side is None else SIDES[side]


def tally(sides: Sequence[Side]) -> str:
    """Return `1 yes · 2 no · 1 undecided`, without what nobody holds."""
    counts = Counter(sides)
    return " · ".join(f"{counts[side]} {SIDES[side]}" for side in ("YES", "NO", "UNCERTAIN") if counts[side])


def ballot_words(ballot: DebateBallot, several: bool) -> str:
    """`no`, or `1: no, 2: yes` for several propositions."""
    words = [SIDES[side] for side in ballot.positions]
    return ", ".join(f"{n}: {word}" for n, word in enumerate(words, 1)) if several else "".join(words[:1])


def virtual_time(ms: int) -> str:
    """Return a time of the debate as `2:41`."""
    return f"{ms // 60_000}:{ms // 1000 % 60:02}"


def ordinal_try(number: int) -> str:
    """Return `the first try`."""
    return f"the {('first', 'second', 'third')[number - 1]} try" if number <= 3 else f"try {number}"


def validation_failure(failure: str) -> str:
    """Return why a question is no validated crux as a clause."""
    if failure == "not locked":
        return "its lock never held"
    if failure == "no firm agent on each side":
        return "at the end of its thread no agent held one of the two sides firmly"
    if failure == "a question of measurement":
        return "it asks for a measurement"
    if match := re.fullmatch(r"resolution criteria: (\d+).*", failure):
        return f"two findings that would settle it are needed, {match[1]} {'was' if match[1] == '1' else 'were'} named"
    if match := re.fullmatch(r"top claims that hang on it: (\d+) when tested.*", failure):
        return f"{match[1]} of its agents {'changes' if match[1] == '1' else 'change'} position over it when tested, two are needed"
    if match := re.fullmatch(r"top claims that hang on it: (\d+).*", failure):
        return f"by their own word the top claims of {match[1]} of its agents hang on it, two are needed"
    if match := re.fullmatch(r"vague criterion: (.*)", failure, re.DOTALL):
        return f"a finding that would settle it is vague: {match[1]}"
    if match := re.fullmatch(r"vague falsifier: (.*)", failure, re.DOTALL):
        return f"what would change a mind is vague: {match[1]}"
    if match := re.fullmatch(r"needs clarification: (.*)", failure, re.DOTALL):
        return f"the dispute needs clarification: {match[1]}"
    if match := re.fullmatch(r"challenged: (.*)", failure, re.DOTALL):
        return f"a participant objects that it misrepresents the dispute: {match[1]}"
    return failure


def excerpt(text: str, chars: int = 300) -> str:
    """Return the beginning of a text on one line, cut at a word."""
    line = " ".join(text.split())
    if len(line) <= chars:
        return line
    return f"{line[:chars].rpartition(' ')[0] or line[:chars]} …"


def joined(words: Sequence[str]) -> str:
    """Return `A`, `A and B`, `A, B and C`."""
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def crux_numbers(numbers: Sequence[int]) -> str:
    """Return `crux 1`, `cruxes 1 and 3`."""
    return f"{'crux' if len(numbers) == 1 else 'cruxes'} {joined([str(number) for number in numbers])}"
