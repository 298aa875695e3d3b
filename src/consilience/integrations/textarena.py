"""TextArena: an agent that deliberates on every move. Needs the extra `textarena`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Unpack

from consilience.deliberation import Deliberation
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Limits
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Models, Options
from consilience.integrations import DeliberationSettings, need
from consilience.integrations.strange_mca import DesignParameters, choose_protocol, full_names
from consilience.journal.store import Store

TEMPLATE = (
    "You are a player in a game. What you have seen of it so far:\n\n{observation}\n\n"
    "Which move do you make now? Begin your answer with the move itself, in the very form that the rules ask for, "
    "and then give your reason in one sentence."
)
OPEN_MOVES_TEMPLATE = "\n\nThe moves open to you now are {moves}. Take one of them."
ACTION = re.compile(r"\[[^\[\]\n]{1,100}\]")
"""A move in nearly all of TextArena's games: in square brackets."""

MAX_OBSERVATION_CHARS = 8_000

_OPEN_MOVES = re.compile(
    r"^.*\b(?:available|legal|possible|valid) (?:moves|actions)\b[^:\n]*:(.*(?:\n.+)*)", re.I | re.M
)
_MESSAGE = re.compile(r"\n(?=\[[^\]\n]+\] )")
_GAME_PREFIX = "[GAME] "
_REFUSAL = re.compile(r"\[GAME\] (?:You|Player \d+) attempted an invalid move\b")
"""TextArena's message that the preceding move was not accepted."""
_PLACEHOLDER = re.compile(
    r"(?<=:) [^\[\]]+"
    r"|<[^<>]*>|\{[^{}]*\}"
    r"|(?<= )[nxy](?=[\s,;)\]]|$)"
    r"|\b(?:col|column|row|amount|number|price|index|position|message|text)\b",
    re.I,
)
"""A placeholder for a value in a listed move: `[Bet N]`, `[Offer: <PRICE>]`. `[X 0]` has none."""

Moves = Callable[[str], Sequence[str]]


def open_moves(observation: str) -> tuple[str, ...]:
    """Return the open moves that the game listed last (`Available Moves: '[0]', '[3]'`), some with placeholders (`[Bet N]`)."""
    lists = _OPEN_MOVES.findall(observation)
    if not lists:
        return ()
    latest = _MESSAGE.split(lists[-1])[0]  # without the next message
    return tuple(dict.fromkeys(ACTION.findall(latest)))


def refused_moves(observation: str) -> frozenset[str]:
    """Return the moves of this turn that the game did not accept: only its own messages followed them."""
    messages = _MESSAGE.split(observation.strip("\n"))
    moves: set[str] = set()
    while True:
        while messages and messages[-1].startswith(_GAME_PREFIX) and not _REFUSAL.match(messages[-1]):
            messages.pop()
        if not messages or not _REFUSAL.match(messages[-1]):
            return frozenset(moves)
        while messages and _REFUSAL.match(messages[-1]):
            messages.pop()
        move = messages[-1] if messages else ""
        moves.add(move.partition("] ")[2].strip())
        while messages and messages[-1] == move:  # some games repeat a player's message
            messages.pop()


def shorten_observation(observation: str, max_chars: int) -> str:
    """Return about `max_chars` characters of an observation: the first message, which has the rules, and as many of the last
    messages as fit, with a line for those left out."""
    if len(observation) <= max_chars:
        return observation
    first, *later_messages = _MESSAGE.split(observation.strip("\n"))
    first = first[: max_chars // 2]
    kept_messages: list[str] = []
    chars_left = max_chars - len(first)
    for message in reversed(later_messages):
        if len(message) > chars_left:
            break
        kept_messages.insert(0, message)
        chars_left -= len(message) + 1
    if later_messages and not kept_messages:
        kept_messages = [later_messages[-1][-chars_left:]]
    dropped = len(later_messages) - len(kept_messages)
    gap = [f"({dropped} earlier messages are left out)"] if dropped else []
    return "\n".join([first, *gap, *kept_messages])


class DeliberatingAgent:
    """A `textarena.Agent`: `agent(observation)` lets the agents of a protocol choose a move and returns it in the game's form.

    `template` contains `{observation}`, which is shortened to `most_characters`. If the game lists open moves
    (`moves(observation)`), the task ends with them. The action is the first open move in the answer, else the first match
    of `action`, else the answer. Of a listed form (`[Bet N]`) any value is open; a move that the game refused in this turn
    is not. If the answer names no open move, the first one without placeholder is taken, and `stray` counts it. `settings`
    are further fields of `Deliberation`.

    Each move is a session; `sessions` has their ids, `report` is the last one's.
    """

    def __init__(
        self,
        protocol: Protocol,
        *,
        model: Models | None = None,
        template: str = TEMPLATE,
        moves: Moves = open_moves,
        action: str | re.Pattern[str] = ACTION,
        most_characters: int = MAX_OBSERVATION_CHARS,
        **settings: Unpack[DeliberationSettings],
    ) -> None:
        need("textarena", "textarena").Agent.register(type(self))
        if "{observation}" not in template:
            raise SettingsError("the template has no place for the observation", do="Write {observation} into it.")
        self._deliberation = Deliberation[Report](protocol, model=model, **settings)
        self._template = template
        self._moves = moves
        self._action = re.compile(action)
        self._max_chars = most_characters
        self.sessions: list[str] = []
        self.report: Report | None = None
        self.stray = 0

    def __call__(self, observation: str) -> str:
        refused = refused_moves(observation)
        moves = tuple(move for move in self._moves(observation) if move not in refused)
        task = self._template.replace("{observation}", shorten_observation(observation, self._max_chars))
        if moves:
            task += OPEN_MOVES_TEMPLATE.format(moves=", ".join(moves))
        report = self.report = self._deliberation.run_sync(task)
        self.sessions.append(report.session)
        return self._act(report, moves, refused)

    def _act(self, report: Report, moves: Sequence[str], refused: Collection[str]) -> str:
        answer = (report.answer or "").strip()
        candidates = [move for match in self._action.finditer(answer) if (move := match.group()) not in refused]
        for move in candidates:
            if (match := _match_move(move, moves)) is not None:
                return match
        if moves:
            self.stray += 1
        ready = [move for move in moves if not _PLACEHOLDER.search(move)]
        return (
            next(iter(ready or candidates), answer)
            or f"I have no move: the deliberation ended as {report.stop_reason.value}."
        )


def _match_move(move: str, moves: Sequence[str]) -> str | None:
    """Return a move in the game's spelling if it is listed or fits a listed form; any move if none is listed."""
    if not moves or move in moves:
        return move
    for listed in moves:
        form = "[^\\[\\]]+".join(map(re.escape, _PLACEHOLDER.split(listed)))
        if re.fullmatch(form, move, re.I):
            return move if _PLACEHOLDER.search(listed) else listed
    return None


class StrangeMCAAgent(DeliberatingAgent):
    """The agent of strange-mca for any game, with the parameters of `run_strange_mca`.

    Without a `task_template` the observation is the task. One warning names the parameters that have no meaning here.
    """

    def __init__(
        self,
        child_per_parent: int = 2,
        depth: int = 2,
        model: Models | None = None,
        *,
        mca_mode: bool = False,
        task_template: str | None = None,
        seed: int = 0,
        limits: Limits | None = None,
        store: Store | None = None,
        options: Options | None = None,
        **parameters: Unpack[DesignParameters],
    ) -> None:
        chosen = choose_protocol(mca_mode, {"child_per_parent": child_per_parent, "depth": depth, **parameters})
        chosen.warn()
        super().__init__(
            chosen.protocol,
            model=full_names(model),
            template=task_template or "{observation}",
            seed=seed,
            limits=limits,
            store=store,
            options=options,
        )
