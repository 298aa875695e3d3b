"""TextArena: an agent that deliberates on every move. Needs the extra `textarena`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from consilience.deliberation import Deliberation, deliberation_from
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models, Options
from consilience.engine.similarity import Encoder
from consilience.integrations import need
from consilience.integrations.strange_mca import choose_from, named, warn
from consilience.journal.store import Store

TEMPLATE = (
    "You are a player in a game. What you have seen of it so far:\n\n{observation}\n\n"
    "Which move do you make now? Begin your answer with the move itself, in the very form that the rules ask for, "
    "and then give your reason in one sentence."
)
OPEN = "\n\nThe moves open to you now are {moves}. Take one of them."
ACTION = re.compile(r"\[[^\[\]\n]{1,100}\]")
"""How nearly all of TextArena's games want a move: in square brackets."""

MOST_CHARACTERS = 8_000

_OPEN = re.compile(r"^.*\b(?:available|legal|possible|valid) (?:moves|actions)\b[^:\n]*:(.*(?:\n.+)*)", re.I | re.M)
_MESSAGE = re.compile(r"\n(?=\[[^\]\n]+\] )")
_BY_THE_GAME = "[GAME] "
_REFUSAL = re.compile(r"\[GAME\] (?:You|Player \d+) attempted an invalid move\b")
"""How a state of TextArena's says that the move before it was not taken."""
_VALUE = re.compile(
    r"(?<=:) [^\[\]]+"
    r"|<[^<>]*>|\{[^{}]*\}"
    r"|(?<= )[nxy](?=[\s,;)\]]|$)"
    r"|\b(?:col|column|row|amount|number|price|index|position|message|text)\b",
    re.I,
)
"""What stands for a value in a move that is listed as a form: `[Bet N]`, `[Offer: <PRICE>]`. An `[X 0]` is a move as it is."""

Moves = Callable[[str], Sequence[str]]


def open_moves(observation: str) -> tuple[str, ...]:
    """The moves that the game said last are open (`Available Moves: '[0]', '[3]'`), if it says so; some list forms (`[Bet N]`)."""
    said = _OPEN.findall(observation)
    if not said:
        return ()
    list_of_them = _MESSAGE.split(said[-1])[0]  # what another message says is none of it
    return tuple(dict.fromkeys(ACTION.findall(list_of_them)))


def refused(observation: str) -> frozenset[str]:
    """The moves of this turn that the game did not take: nothing happened since but its own messages."""
    messages = _MESSAGE.split(observation.strip("\n"))
    found: set[str] = set()
    while True:
        while messages and messages[-1].startswith(_BY_THE_GAME) and not _REFUSAL.match(messages[-1]):
            messages.pop()
        if not messages or not _REFUSAL.match(messages[-1]):
            return frozenset(found)
        while messages and _REFUSAL.match(messages[-1]):
            messages.pop()
        said = messages[-1] if messages else ""
        found.add(said.partition("] ")[2].strip())
        while messages and messages[-1] == said:  # some games repeat what a player said
            messages.pop()


def bounded(observation: str, most: int) -> str:
    """At most `most` characters of an observation, or little more: its first message, which has the rules, and as many of the last
    ones as fit, with a line for what is left out between them."""
    if len(observation) <= most:
        return observation
    first, *others = _MESSAGE.split(observation.strip("\n"))
    first = first[: most // 2]
    kept: list[str] = []
    left = most - len(first)
    for message in reversed(others):
        if len(message) > left:
            break
        kept.insert(0, message)
        left -= len(message) + 1
    if others and not kept:
        kept = [others[-1][-left:]]
    dropped = len(others) - len(kept)
    gap = [f"({dropped} earlier messages are left out)"] if dropped else []
    return "\n".join([first, *gap, *kept])


class DeliberatingAgent:
    """A `textarena.Agent`: `agent(observation)` puts a move before the agents of a protocol and gives it in the game's form.

    `template` holds `{observation}`, which is bounded to `most_characters`, since the observation of a long game grows with every
    move. Where the game says which moves are open (`moves(observation)`), the task ends with them. The action is the first move
    that the answer names: one of those that are open, else whatever matches `action`, else the answer as it is. Of a move that is
    listed as a form (`[Bet N]`) any value is open; one that the game refused in this turn is not. If moves are open and the answer
    names none of them, the first that is no form is taken, since a turn should not be lost to prose; `stray` counts how often.

    Every move is a session of its own; `sessions` has their ids, `report` is the last one's.
    """

    def __init__(
        self,
        protocol: Protocol,
        *,
        model: Models | None = None,
        template: str = TEMPLATE,
        moves: Moves = open_moves,
        action: str | re.Pattern[str] = ACTION,
        most_characters: int = MOST_CHARACTERS,
        panel: Panel | str | Path | None = None,
        seed: int = 0,
        limits: Limits | None = None,
        quorum: float = 0.5,
        encoder: str | Encoder | None = None,
        store: Store | None = None,
        prompts: Path | None = None,
        options: Options | None = None,
    ) -> None:
        need("textarena", "textarena").Agent.register(type(self))
        if "{observation}" not in template:
            raise SettingsError("the template has no place for the observation", do="Write {observation} into it.")
        self._how: Deliberation[Report] = deliberation_from(protocol, locals())
        self._template = template
        self._moves = moves
        self._action = re.compile(action)
        self._most = most_characters
        self.sessions: list[str] = []
        self.report: Report | None = None
        self.stray = 0

    def __call__(self, observation: str) -> str:
        vain = refused(observation)
        moves = tuple(move for move in self._moves(observation) if move not in vain)
        task = self._template.replace("{observation}", bounded(observation, self._most))
        if moves:
            task += OPEN.format(moves=", ".join(moves))
        report = self.report = self._how.run_sync(task)
        self.sessions.append(report.session)
        return self._act(report, moves, vain)

    def _act(self, report: Report, moves: Sequence[str], vain: Collection[str]) -> str:
        answer = (report.answer or "").strip()
        named = [found for match in self._action.finditer(answer) if (found := match.group()) not in vain]
        for move in named:
            if (open_ := _open(move, moves)) is not None:
                return open_
        if moves:
            self.stray += 1
        ready = [move for move in moves if not _VALUE.search(move)]
        return (
            next(iter(ready or named), answer)
            or f"I have no move: the deliberation ended as {report.stop_reason.value}."
        )


def _open(move: str, moves: Sequence[str]) -> str | None:
    """A move in the game's spelling, if it is one of those listed or has the form of one; any is open where none is listed."""
    if not moves or move in moves:
        return move
    for listed in moves:
        form = "[^\\[\\]]+".join(map(re.escape, _VALUE.split(listed)))
        if re.fullmatch(form, move, re.I):
            return move if _VALUE.search(listed) else listed
    return None


class StrangeMCAAgent(DeliberatingAgent):
    """The agent of strange-mca: the parameters of `run_strange_mca`, and of its template, on any game.

    Without a `task_template` the observation is the task. Parameters that mean nothing here are named in one warning.
    """

    def __init__(
        self,
        child_per_parent: int = 2,
        depth: int = 2,
        model: Models | None = None,
        *,
        mca_mode: bool = False,
        task_template: str | None = None,
        max_rounds: int | None = None,
        convergence_threshold: float | None = None,
        enable_downward_signals: bool | None = None,
        perspectives: Sequence[str] | None = None,
        max_coordination_rounds: int | None = None,
        max_iterations: int | None = None,
        satisfaction_threshold: float | None = None,
        strange_loop_count: int = 0,
        domain_specific_instructions: str | None = None,
        seed: int = 0,
        limits: Limits | None = None,
        store: Store | None = None,
        options: Options | None = None,
        **others: object,
    ) -> None:
        chosen = choose_from(locals())
        warn(chosen)
        super().__init__(
            chosen.protocol,
            model=named(model),
            template=task_template or "{observation}",
            seed=seed,
            limits=limits,
            store=store,
            options=options,
        )
