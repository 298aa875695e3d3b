"""Deliberating agents in TextArena: whole games on the real environments, the action they take, the observation they read."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import textarena
from hypothesis import given
from hypothesis import strategies as st

import consilience
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Limits
from consilience.engine import seats
from consilience.engine.protocol import protocol_names
from consilience.integrations.textarena import DeliberatingAgent, StrangeMCAAgent, open_moves, shorten_observation
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Solo, Vote
from consilience.testing import ScriptedModel

EXAMPLE = Path(__file__).parents[2] / "examples" / "textarena_game.py"
NIM = r"\[[0-2] [1-5]\]"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("textarena_game", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def across(request: ModelRequest) -> str:
    """Everybody wants the diagonal, square by square."""
    wanted = next(move for move in ("[4]", "[2]", "[6]") if move in open_moves(request.text))
    return f"{wanted}, says {request.agent}, rather than [0]."


def test_example_plays_a_complete_game(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    model = ScriptedModel(across)
    monkeypatch.setattr(seats, "resolve", lambda name, **_: model)
    assert example.main(["--model", "local"]) == {0: 1, 1: -1}
    output = capsys.readouterr().out
    assert re.findall(r"Player (\d): (\S+)", output) == [
        ("0", "[4]"),
        ("1", "[0]"),
        ("0", "[2]"),
        ("1", "[1]"),
        ("0", "[6]"),
    ]
    assert "Player 0 has won! Rewards: {0: 1, 1: -1}. Moves that named none of the open ones: 0." in output
    assert len(model.requests) == 3 * 5, "a panel of two and its root, a round each"
    store = SqliteStore(home / "journal.db")
    assert store.sessions()[-1] in output
    store.close()


def test_two_panels_play_nim_without_a_list_of_open_moves(example: ModuleType, store: SqliteStore) -> None:
    """One empties the first pile there is, the other takes single objects from it."""

    def emptying(request: ModelRequest) -> str:
        piles = re.findall(r"pile (\d): (\d+)", request.text)[-3:]
        pile, size = next((pile, size) for pile, size in piles if size != "0")
        return f"It is there. I take [{pile} {size}]"

    def taking_one(request: ModelRequest) -> str:
        piles = re.findall(r"pile (\d): (\d+)", request.text)[-3:]
        pile = next(pile for pile, size in piles if size != "0")
        return f"[{pile} 1]"

    first = DeliberatingAgent(Vote(votes=3, answer_pattern=NIM), model=ScriptedModel(emptying), store=store)
    second = DeliberatingAgent(Solo(), model=ScriptedModel(taking_one), store=store)
    rewards, reason = example.play("Nim-v0", first, second)
    assert rewards == {0: 1, 1: -1}
    assert reason == "Player 0 took the last object(s)!"
    assert len(store.sessions()) == len(first.sessions) + len(second.sessions) == 5
    assert first.report is not None
    assert first.report.protocol == "vote"


def test_adapter_is_registered_as_a_textarena_agent() -> None:
    agent = DeliberatingAgent(Solo(), model=ScriptedModel([]))
    assert isinstance(agent, textarena.Agent)
    assert textarena.AgentWrapper(agent).agent is agent


OPEN = "\n[GAME] Rules: write '[9]'.\nAvailable Moves: '[1]', '[2]'\n[Player 1] [1]\n[GAME] Board\n\nAvailable Moves: '[2]', '[3]'"
NO_OPEN_MOVES = "\n[GAME] Rules: write [pile quantity]."


@pytest.mark.parametrize(
    ("answer", "observation", "action"),
    [
        ("Not [1]: I take [3], since [2] would lose.", OPEN, "[3]"),
        ("I take [1].", OPEN, "[2]"),
        ("The third square.", OPEN, "[2]"),
        ("[1 4], which leaves less than [0 1].", NO_OPEN_MOVES, "[1 4]"),
        ("  A free text, as in a debate. ", NO_OPEN_MOVES, "A free text, as in a debate."),
    ],
)
def test_action_is_the_first_open_move_named_in_the_answer(
    answer: str, observation: str, action: str, store: SqliteStore
) -> None:
    agent = DeliberatingAgent(Solo(), model=ScriptedModel([answer]), store=store)
    assert agent(observation) == action
    assert agent.stray == (action == "[2]")


@pytest.mark.parametrize(
    ("answer", "stray"),
    [("[Raise 40] because my hand is strong", False), ("[call], says everybody.", False), ("hello", True)],
)
def test_poker_game_with_moves_listed_as_forms_is_played_to_the_end(
    answer: str, stray: bool, store: SqliteStore
) -> None:
    """What the answer names is played, whatever its stake; where it names nothing, no refused move is tried again."""
    agents = [DeliberatingAgent(Solo(), model=ScriptedModel(lambda request: answer), store=store) for _ in range(2)]
    env = textarena.make(env_id="Poker-v0")
    env.reset(num_players=2, seed=0)
    done = False
    played: list[str] = []
    while not done and len(played) < 200:
        number, observation = env.get_observation()
        played.append(agents[number](observation))
        done, _ = env.step(action=played[-1])
    assert done, played[-5:]
    assert any(agent.stray for agent in agents) == stray
    if not stray:
        assert set(played) == {"[Raise 40]" if "40" in answer else "[Call]"}
    else:
        assert {"[Check]", "[Call]"} == set(played)


FORMS = (
    "\n[GAME] Rules\nAvailable actions:\n'[Fold]'\n'[Bet N]'\n'[Offer: <PRICE>]'\n'[Say: Some message]'\n'[Go to col]'"
)
REFUSED_MOVE = "\n[GAME] Player 0 attempted an invalid move. Reason: no. Please resubmit a valid move."


@pytest.mark.parametrize(
    ("answer", "observation", "action", "stray"),
    [
        ("[Bet 12] it is", FORMS, "[Bet 12]", 0),
        ("[Offer: $3.50]!", FORMS, "[Offer: $3.50]", 0),
        ("[Say: let us talk]", FORMS, "[Say: let us talk]", 0),
        ("[Go to 7]", FORMS, "[Go to 7]", 0),
        ("[Jump 7]", FORMS, "[Fold]", 1),
        ("[Bet 5] or [Fold]", f"{FORMS}\n[Player 0] [Bet 5]{REFUSED_MOVE}", "[Fold]", 0),
        ("[X 0]", "\n[GAME] Available Moves: '[O 0]', '[X 0]'", "[X 0]", 0),
        ("[Y 0]", "\n[GAME] Available Moves: '[X 1]', '[O 0]'", "[X 1]", 1),
        ("[3]", f"{OPEN}\n[Player 0] [3]{REFUSED_MOVE}", "[2]", 1),
        ("prose", f"{OPEN}\n[Player 0] [2]{REFUSED_MOVE}\n[GAME] The same board.", "[3]", 1),
        ("prose", f"{OPEN}\n[Player 0] [2]{REFUSED_MOVE}\n[Player 0] [3]\n[Player 1] [0]", "[2]", 1),
        ("prose", f"{OPEN}\n[Player 0] [2]{REFUSED_MOVE}\n[Player 0] [3]{REFUSED_MOVE}", "prose", 0),
    ],
)
def test_move_form_accepts_any_value_and_a_refused_move_is_not_repeated(
    answer: str, observation: str, action: str, stray: int, store: SqliteStore
) -> None:
    agent = DeliberatingAgent(Solo(), model=ScriptedModel([answer]), store=store)
    assert agent(observation) == action
    assert agent.stray == stray


def test_agent_without_an_answer_plays_an_open_move(store: SqliteStore) -> None:
    agent = DeliberatingAgent(Solo(), model=ScriptedModel([]), limits=Limits(calls=0), store=store)
    assert agent(OPEN) == "[2]"
    assert agent(NO_OPEN_MOVES) == "I have no move: the deliberation ended as exhausted_budget."


def test_template_is_filled_without_interpreting_other_braces(store: SqliteStore) -> None:
    model = ScriptedModel(["[2]"])
    DeliberatingAgent(Solo(), model=model, template="{x} plays:\n{observation}", store=store)("a {board}")
    assert "{x} plays:\na {board}" in model.requests[0].text
    with pytest.raises(SettingsError, match="no place for the observation"):
        DeliberatingAgent(Solo(), model=model, template="Play!")


def test_prompts_of_a_long_game_do_not_grow(store: SqliteStore) -> None:
    model = ScriptedModel(lambda request: "[0]")
    agent = DeliberatingAgent(Solo(), model=model, most_characters=1_000, store=store)
    observation = "\n[GAME] These are the rules."
    for turn in range(100):
        observation += f"\n[Player {turn % 2}] [{turn}]\n[GAME] Board of turn {turn}: " + 20 * "x"
        if turn % 10 == 9:
            agent(observation)
    sizes = [len(request.text) for request in model.requests]
    assert max(sizes[2:]) - min(sizes[2:]) < 100
    last = model.requests[-1].text
    assert "These are the rules." in last
    assert "Board of turn 99" in last
    assert re.search(r"\(\d+ earlier messages are left out\)", last)
    assert "Board of turn 40" not in last


@given(st.lists(st.text("ab\n[] ", max_size=40), max_size=30), st.integers(50, 400))
def test_shortened_observation_is_within_the_limit(messages: list[str], most: int) -> None:
    observation = "".join(f"\n[GAME] {message}" for message in messages)
    shortened = shorten_observation(observation, most)
    assert len(shortened) <= most + 50
    if len(observation) <= most:
        assert shortened == observation


def test_strange_mca_agent_takes_its_parameters(store: SqliteStore) -> None:
    model = ScriptedModel(lambda request: "I take [3].")
    with pytest.warns(UserWarning, match="emergence are ignored: print_details$") as heard:
        agent = StrangeMCAAgent(
            child_per_parent=2,
            depth=2,
            model=model,
            max_rounds=1,
            strange_loop_count=1,
            print_details=True,
            store=store,
        )
    assert Path(heard[0].filename) == Path(__file__)
    assert agent(OPEN) == "[3]"
    assert len(model.requests) == 6
    assert agent.report is not None
    text = f"{OPEN}\n\nThe moves open to you now are [2], [3]. Take one of them."
    assert agent.report.task == text, "without a template the observation is the task"
    templated = StrangeMCAAgent(
        model=model, max_rounds=1, task_template="Chess, and nothing else: {observation}", store=store
    )
    templated(NO_OPEN_MOVES)
    assert templated.report is not None
    assert templated.report.task == f"Chess, and nothing else: {NO_OPEN_MOVES}"


@pytest.mark.skipif("broadcast" not in protocol_names(), reason="the protocol broadcast is not installed")
def test_strange_mca_agent_in_mca_mode_runs_broadcast(store: SqliteStore) -> None:
    text = '{"rating": "good", "satisfied": true, "flags": [], "text": "I take [3]."}'
    agent = StrangeMCAAgent(model=ScriptedModel(lambda request: text), mca_mode=True, max_iterations=1, store=store)
    assert agent(OPEN) == "[3]"
    assert agent.report is not None
    assert agent.report.protocol == "broadcast"
    assert agent.stray == 0


async def test_agent_plays_inside_a_running_loop(store: SqliteStore) -> None:
    agent: Any = DeliberatingAgent(Solo(), model=ScriptedModel(["[3]"]), store=store)
    assert agent(OPEN) == "[3]"
    assert (await consilience.replay(agent.sessions[0], store=store)).answer == "[3]"
