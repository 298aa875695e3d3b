"""A debate as data: what its notes came to, which views read of an unfinished session too, its report, and how both are worded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from consilience.domain.agents import Agent, point_of_view, voices
from consilience.domain.positions import LEVELS
from consilience.domain.report import Frozen, Report
from consilience.domain.sections import Refs
from consilience.domain.wording import join_names
from consilience.protocols.debate.moves import FIRM, SIDES, ClosingSide, Side
from consilience.protocols.debate.records import (
    Coalition,
    CommonGround,
    Contradiction,
    Crux,
    DebateBallot,
    DebateMessage,
    Dependency,
    Framing,
    Recheck,
    SingleCall,
    SteelmanAttempt,
    ThreadRecord,
    UnopenedQuestion,
)
from consilience.protocols.debate.scoring import Regime
from consilience.protocols.debate.settings import POINTS_OF_VIEW
from consilience.protocols.debate.stipulated import CruxTest, FlipRecord, PlaceboTest, ToldFact

LETTERS = "ABCDEFGHIJKLNOPQRSTUVWXYZ"
"""Names of agents in prompts; M is the moderator."""
_NAMING_LETTER = re.compile(r"(?:(?<=\()|(?<=[a-z,;/] )|^(?=.[):]))[A-Z](?![\w'’])", re.MULTILINE)
_VIEW_NAMES = {view: name for name, view in POINTS_OF_VIEW.items()}
_CERTAINTY = {value: level for level, value in LEVELS.items()}


MAX_OPTION_CHARS = 40
"""Of an option as it is called in sentences and cells."""


class SystemMetrics(Frozen):
    """The seed's figures of how the mechanics worked."""

    messages_blocked: int = 0
    reasons_blocked: dict[str, int] = {}
    crux_lock_attempts: int = 0
    crux_lock_successes: int = 0
    crux_lock_failures: int = 0
    failure_reasons: dict[str, int] = {}
    steelman_attempts: int = 0
    steelman_retries: int = 0
    steelman_accuracy_rate: float | None = None
    """Share of graded steelmen that were ACCURATE; None without a grade."""
    dcg_promotions: int = 0
    horizon_mismatches: int = 0
    horizon_alignments: int = 0
    attempts: int = 0
    """Replies that were asked for in threads, blocked and failed ones included."""
    failed_turns: int = 0
    attended: int = 0
    """Messages that answer a message which their author chose."""
    attended_highly: int = 0
    """Those of them whose message had an attention score of 0.7 or more."""


class DebateState(Frozen):
    """What was said, by thread, and where agents stand. A report is one; an unfinished debate has only this."""

    agents: tuple[Agent, ...]
    framing: Framing | None = None
    """None where the framing failed."""
    letters: dict[str, str] = {}
    """The letter of each debater, by which prompts name it."""
    messages: tuple[DebateMessage, ...] = ()
    threads: tuple[ThreadRecord, ...] = ()
    ballots: tuple[DebateBallot, ...] = ()
    """Opening ballots (step 0), then final ones (step 1), with the answers that count; none before the end."""
    duration: int = 0
    """Virtual milliseconds."""
    ended_by: str = ""
    """`settled`, `stable`, `stalled`, `max_messages`, `max_duration`, or `limit` for a limit of the session."""
    rechecks: tuple[Recheck, ...] = ()
    """Answers of final ballots that were asked again; the final ballots hold what they count as."""
    dependencies: tuple[Dependency, ...] = ()
    """Confirmed dependencies between cruxes, by thread."""
    duplicates: tuple[tuple[str, str], ...] = ()
    """Threads whose cruxes ask the same, the earlier first; the later one is left out of roots and irreducible cruxes."""
    next_questions: tuple[str, ...] = ()
    """What to debate or find out next, if the debate were to go on."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy that works out anew what follows from its fields."""
        copy = super().model_copy(update=update, deep=deep)
        for derived in ("names", "by_id"):
            copy.__dict__.pop(derived, None)
        return copy

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of agents by id."""
        return agent_names(self.agents, self.letters)

    @cached_property
    def by_id(self) -> dict[str, DebateMessage]:
        return {message.id: message for message in self.messages}

    @property
    def debaters(self) -> list[str]:
        return [agent.id for agent in voices(self.agents)]

    @property
    def opening(self) -> dict[str, DebateBallot]:
        """Opening ballots by agent."""
        return {ballot.agent: ballot for ballot in self.ballots if ballot.step == 0}

    @property
    def final(self) -> dict[str, DebateBallot]:
        """Final ballots by agent."""
        return {ballot.agent: ballot for ballot in self.ballots if ballot.step == 1}

    @property
    def propositions(self) -> tuple[str, ...]:
        return self.framing.propositions if self.framing else ()

    @property
    def options(self) -> tuple[str, ...]:
        """What to call the propositions, where each says of an option that it is the best; none where they have numbers."""
        return ()

    def proposition_name(self, n: int) -> str:
        """Return what to call one of several propositions, from 0."""
        return self.options[n] if self.options else f"proposition {n + 1}"

    def position_words(self, ballot: DebateBallot) -> str:
        """Return `no`, or for several propositions `1: no, 2: yes`; options stand in place of the numbers."""
        words = [SIDES[side] for side in ballot.positions]
        names = self.options or range(1, len(words) + 1)
        return (
            ", ".join(f"{name}: {word}" for name, word in zip(names, words, strict=True))
            if len(words) > 1
            else "".join(words)
        )

    def ballot_cell(self, ballot: DebateBallot | None) -> str:
        """Return `no, fairly sure`."""
        return f"{self.position_words(ballot)}, {certainty(ballot.confidence)}" if ballot else "no ballot"

    @property
    def cruxes(self) -> list[Crux]:
        """Validated ones first, then by the score that decides, ties in the order of their threads."""
        cruxes = [thread.crux for thread in self.threads if thread.crux]
        return sorted(cruxes, key=lambda crux: (not crux.validated, -crux.deciding_score.score))

    @property
    def final_refs(self) -> Refs:
        """The calls that cast the final ballots."""
        return tuple(ballot.key for ballot in self.final.values())

    @property
    def ballot_refs(self) -> Refs:
        return tuple(ballot.key for ballot in self.ballots)

    @property
    def last_refs(self) -> Refs:
        """The last message; without one the ballots."""
        return (self.messages[-1].id,) if self.messages else self.ballot_refs

    def positions_on(self, n: int) -> list[Side]:
        """Final positions on a proposition, from 0."""
        return [ballot.positions[n] for ballot in self.final.values()]

    def number_of(self, thread: str) -> int:
        """The number of a thread's crux in the report."""
        return next(n for n, crux in enumerate(self.cruxes, 1) if crux.thread == thread)

    def crux_refs(self, crux: Crux) -> Refs:
        """What was declared on a crux: commitments and flips, then the final ballots that answer it."""
        commitments = [c.message for c in self.thread(crux.thread).commitments]
        ballots = [ballot.key for ballot in self.final.values() if crux.thread in ballot.questions]
        refs = _refs(*commitments, *(flip.message for flip in crux.flips.values()), *ballots)
        return refs or tuple(message.id for message in self.said_in(crux.thread)[-1:]) or self.last_refs

    def agent_refs(self, agent: str, crux: Crux) -> Refs:
        """What one agent declared on a crux, and its final ballot."""
        committed = [c.message for c in self.thread(crux.thread).commitments if c.agent == agent]
        flips = [crux.flips[agent].message] if agent in crux.flips else []
        own = _refs(*committed, *flips, *([self.final[agent].key] if agent in self.final else []))
        return own or self.crux_refs(crux)

    def flip_refs(self, crux: Crux, agents: Iterable[str]) -> Refs:
        return _refs(*(crux.flips[agent].message for agent in agents)) or self.crux_refs(crux)

    def thread(self, id: str) -> ThreadRecord:
        return next(thread for thread in self.threads if thread.id == id)

    def said_in(self, thread: str) -> list[DebateMessage]:
        return [message for message in self.messages if message.thread == thread]

    def final_side(self, agent: str, crux: Crux) -> Side | None:
        """The side of an agent's final ballot on the question of a crux; without a ballot, its last one in public."""
        ballot = self.final.get(agent)
        if ballot and crux.thread in ballot.questions:
            return ballot.questions[crux.thread]
        return crux.positions[agent].side if agent in crux.positions else None

    def sides_on(self, crux: Crux) -> list[Side]:
        """The final sides of all agents on the question of a crux, of those too that did not speak in its thread."""
        agents = dict.fromkeys((*crux.positions, *self.final))
        return [side for agent in agents if (side := self.final_side(agent, crux))]

    def public_positions(self, thread: str) -> dict[str, DebateMessage]:
        """The message in which each agent last declared its position on the question of a thread."""
        return {m.agent: m for m in self.said_in(thread) if m.new_side is not None}

    def committed_side(self, agent: str, thread: str) -> tuple[Side | None, DebateMessage | None]:
        """The side of an agent's last commitment in a thread, before later updates, with its message."""
        for message in reversed(self.said_in(thread)):
            if message.agent == agent and message.move == "COMMIT_POSITION":
                return message.new_side, message
        return None, None

    def mark(self, id: str | None) -> str:
        """` [C28]`, the label of a message, by which it is found in the transcript; empty for what is no message."""
        message = self.by_id.get(id or "")
        return f" [{message.label}]" if message else ""

    def marks(self, messages: Sequence[DebateMessage]) -> str:
        """`A2, B3`."""
        return ", ".join(message.label for message in messages)


class DebateData(DebateState, Report):
    """The header, and what a debate adds to it."""

    protocol: str = "debate"
    attention_mode: str = ""
    """`keyword` or `embedding`."""
    decided: tuple[ClosingSide, ...] = ()
    """The answer's own side on each proposition; empty without an answer."""
    first_step: str = ""
    """What to find out before anything that cannot be undone, by the closing call."""
    regime: Regime = "inconclusive"
    regime_description: str = ""
    irreducible_cruxes: tuple[str, ...] = ()
    """Threads of validated cruxes on which final ballots are split, the highest score first."""
    primary_crux: str | None = None
    """The thread of the validated crux with the highest score: when told so where it was tested, else as declared."""
    primary_crux_reason: str = ""
    coalitions: tuple[Coalition, ...] = ()
    """By final ballots; preliminary where the exchange ended before they were stable."""
    coalition_finding: str = ""
    """Why there is no coalition, or why those found are preliminary; empty for stable ones."""
    common_ground: tuple[CommonGround, ...] = ()
    """Statements that every agent confirmed in its final ballot; none if a ballot is missing."""
    contradictions: tuple[Contradiction, ...] = ()
    roots: dict[str, tuple[str, ...]] = {}
    """Cruxes that follow from no other, each with what follows downstream of it, by thread."""
    unopened: tuple[UnopenedQuestion, ...] = ()
    """Questions that an agent proposed, another supported, and no thread asked."""
    tests: tuple[CruxTest, ...] = ()
    """Each tested crux with YES stipulated, then with NO."""
    placebo: PlaceboTest | None = None
    """None if no crux was tested."""
    flip_records: dict[str, tuple[FlipRecord, ...]] = {}
    """What every voter declared, and did when told so and for the placebo, by the thread of each tested crux."""
    told: tuple[ToldFact, ...] = ()
    """Facts told after the end, in order; the final ballots are those cast on the last one."""
    system_metrics: SystemMetrics = SystemMetrics()
    single_call: SingleCall | None = None
    """One structured call on the documents open to all; None where it was not asked for or failed."""
    added: str = ""
    """What the debate added to the single call, in a sentence that follows from the figures."""

    @property
    def options(self) -> tuple[str, ...]:
        given = self.settings.get("option")
        names = tuple(excerpt(str(option), MAX_OPTION_CHARS) for option in given) if isinstance(given, Sequence) else ()
        return names if len(names) == len(self.propositions) else ()


def _refs(*ids: str) -> Refs:
    return tuple(dict.fromkeys(filter(None, ids)))


def tested_refs(thread: str, agents: Iterable[str]) -> Refs:
    """The calls that cast ballots with the question of a thread stipulated."""
    return tuple(f"test/{thread}/{side}/{agent}" for agent in agents for side in FIRM)


def numbered_tries(steelmen: Sequence[SteelmanAttempt]) -> Iterator[tuple[int, SteelmanAttempt]]:
    """Yield attempts with their number for this pair of agents."""
    tries: dict[tuple[str, str], int] = {}
    for steelman in steelmen:
        pair = (steelman.agent, steelman.of)
        tries[pair] = tries.get(pair, 0) + 1
        yield tries[pair], steelman


def thread_name(id: str) -> str:
    """Return `thread 1`."""
    return id.replace("-", " ")


# --- words


def letters_for(agents: Sequence[str], texts: Iterable[str]) -> dict[str, str]:
    """Return a letter for each agent, none that names something in the texts, as in "site A", while there are enough others.

    The texts are the task, the propositions and the documents of the first session: a document that a fork adds renames nobody.
    """
    letters_in_texts = {letter for text in texts for letter in _NAMING_LETTER.findall(text)}
    free = [letter for letter in LETTERS if letter not in letters_in_texts]
    return dict(zip(agents, free if len(free) >= len(agents) else LETTERS, strict=False))


def agent_names(agents: Sequence[Agent], letters: Mapping[str, str]) -> dict[str, str]:
    """Return names by id: what an agent stands for, then its letter: `Town treasurer (A)`. Models are added where they differ."""
    models = {agent.model for agent in agents if agent.id in letters}
    names = {}
    for agent in agents:
        if letter := letters.get(agent.id):
            model = f", {agent.model}" if len(models) > 1 and agent.model else ""
            view = agent.persona or _VIEW_NAMES.get(agent.perspective) or point_of_view(agent)
            names[agent.id] = f"{view} ({letter}{model})"
        else:
            names[agent.id] = agent.id.replace("_", " ")
    return names


def certainty(confidence: float) -> str:
    """Return a level of confidence by its name, `fairly sure`; another number as it is."""
    return _CERTAINTY.get(confidence, f"{confidence:.2f}")


def side_word(side: str | None) -> str:
    return "–" if side is None else SIDES[side]


WHEN_CAST = " when cast"
"""Marks an answer that its agent did not repeat when it was asked again."""


def when_cast(rechecks: Iterable[Recheck], question: str) -> str:
    """Return the answers to a question that counted otherwise when their ballots were cast: ` (1 no when cast)`; "" without any."""
    last = {check.agent: check for check in rechecks if check.question == question}
    changed = [check.ballot for check in last.values() if check.ballot != check.counts]
    return f" ({tally(changed)}{WHEN_CAST})" if changed else ""


def tally(sides: Sequence[Side]) -> str:
    """Return `1 yes · 2 no · 1 undecided`, without what nobody holds."""
    counts = Counter(sides)
    return " · ".join(f"{counts[side]} {SIDES[side]}" for side in ("YES", "NO", "UNCERTAIN") if counts[side])


def virtual_time(ms: int) -> str:
    """Return a time of the debate as `2:41`."""
    return f"{ms // 60_000}:{ms // 1000 % 60:02}"


def ordinal_try(number: int) -> str:
    """Return `the first try`."""
    return f"the {('first', 'second', 'third')[number - 1]} try" if number <= 3 else f"try {number}"


def excerpt(text: str, chars: int = 300) -> str:
    """Return the beginning of a text on one line, cut at a word."""
    line = " ".join(text.split())
    if len(line) <= chars:
        return line
    return f"{line[:chars].rpartition(' ')[0] or line[:chars]} …"


def crux_numbers(numbers: Sequence[int]) -> str:
    """Return `crux 1`, `cruxes 1 and 3`."""
    return f"{'crux' if len(numbers) == 1 else 'cruxes'} {join_names(map(str, numbers))}"
