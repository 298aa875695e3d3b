"""The arithmetic of a debate as tables: attention, crux score, validation, regime, required steelmen, signals, windows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from consilience.protocols import debate
from consilience.protocols.debate.attention import Interests, embedding_score, keyword_score, keywords
from consilience.protocols.debate.floor import Floor, window
from consilience.protocols.debate.lock import required_pairs
from consilience.protocols.debate.moves import MOVES, GivesUpIf, Horizon, Move, Side, dominant_horizon
from consilience.protocols.debate.records import Commitment, DebateMessage, Flip
from consilience.protocols.debate.replies import would_flip
from consilience.protocols.debate.scoring import crux_score, regime_of, validation_failures

PACKAGE = Path(debate.__file__).parent


def test_move_without_effect_stands_in_the_two_files_that_the_design_names() -> None:
    files = [path for suffix in ("py", "j2") for path in PACKAGE.rglob(f"*.{suffix}")]
    naming = {str(path.relative_to(PACKAGE)) for path in files if re.search(r"\bCLAIM\b", path.read_text("utf-8"))}
    assert naming == {"moves.py", "prompts/full/moves.j2"}


def test_both_sets_of_prompts_describe_each_move_that_a_turn_may_offer() -> None:
    described = re.findall(r"^- ([A-Z_]+): ", (PACKAGE / "prompts/full/moves.j2").read_text("utf-8"), re.MULTILINE)
    assert set(described) == {move for move, row in MOVES.items() if row.gist}
    assert {move for move, row in MOVES.items() if not row.delivered} <= set(described)


@pytest.mark.parametrize(
    ("semantic", "in_thread", "age_ms", "move", "mentioned", "score"),
    [
        (0.85, False, 0, "CHALLENGE", False, 0.645),  # the seed's worked example
        (0.85, True, 0, "CHALLENGE", False, 0.895),
        (0.85, False, 9_999, "CLAIM", False, 0.625),
        (0.85, False, 10_000, "CLAIM", False, 0.55),
        (0.85, False, 30_000, "CLARIFY", False, 0.455),
        (-0.4, False, 60_000, "CLARIFY", False, 0.03),
        (0.0, False, 60_000, "CLARIFY", True, 1.0),
    ],
)
def test_embedding_score_of_the_table_matches(
    semantic: float, in_thread: bool, age_ms: int, move: Move, mentioned: bool, score: float
) -> None:
    computed = embedding_score(semantic, in_thread=in_thread, age_ms=age_ms, move=move, mentioned=mentioned)
    assert computed == pytest.approx(score)


@pytest.mark.parametrize(
    ("overlap", "in_thread", "age_ms", "move", "score"),
    [
        (0, True, 0, "CHALLENGE", 1.0),
        (0, True, 0, "CLAIM", 0.9),
        (0, True, 20_000, "CLARIFY", 0.7),
        (0, False, 0, "CHALLENGE", 0.5),
        (1, False, 0, "CHALLENGE", 0.6),
        (5, False, 0, "CHALLENGE", 0.7),
        (5, False, 40_000, "CLARIFY", 0.3),
    ],
)
def test_keyword_score_of_the_table_matches(
    overlap: int, in_thread: bool, age_ms: int, move: Move, score: float
) -> None:
    assert keyword_score(overlap, in_thread=in_thread, age_ms=age_ms, move=move) == pytest.approx(score)


def test_agenda_boost_adds_at_most_0_2_and_scores_never_exceed_one() -> None:
    plain = embedding_score(0.4, in_thread=False, age_ms=0, move="CLAIM")
    assert embedding_score(0.4, in_thread=False, age_ms=0, move="CLAIM", boost=0.9) == pytest.approx(plain + 0.2)
    assert keyword_score(2, in_thread=True, age_ms=0, move="CHALLENGE", boost=0.2) == 1.0


def test_interests_gain_weight_by_what_the_agent_says() -> None:
    interests = Interests(["plate waste", "staffing"])
    interests.follow(["Plate waste", "grant"])
    assert interests.weights == pytest.approx({"plate waste": 0.88, "staffing": 0.784, "grant": 0.5})
    for _ in range(40):
        interests.follow(["plate waste"])
    assert interests.weights["plate waste"] == 1.0


def test_interest_overlap_counts_interests_that_share_a_keyword() -> None:
    interests = Interests(["plate waste", "staffing"])
    assert interests.overlap(frozenset(keywords("A third of every plate is thrown away."))) == 1
    assert interests.overlap(frozenset(keywords("The grant lapses in October."))) == 0


def flips(*declared: tuple[bool, float]) -> dict[str, Flip]:
    return {
        f"D{n}": Flip(agent=f"D{n}", side="YES", would_flip=would, confidence=confidence)
        for n, (would, confidence) in enumerate(declared, 1)
    }


def sides(text: str) -> dict[str, Side]:
    names: dict[str, Side] = {"Y": "YES", "N": "NO", "U": "UNCERTAIN"}
    return {f"D{n}": names[letter] for n, letter in enumerate(text, 1)}


@pytest.mark.parametrize(
    ("positions", "declared", "agents", "coverage", "polarity", "impact", "score"),
    [
        ("YYNN", ((True, 0.9), (True, 0.85), (True, 0.8)), 5, 0.6, 1.0, 0.85, 0.51),
        (
            "YNNU",
            ((True, 0.9), (True, 0.85), (False, 0.9), (True, 0.8)),
            5,
            0.6,
            2 / 3,
            0.85,
            0.34,
        ),  # the seed's own run
        ("YYNN", ((True, 0.8), (True, 0.7)), 5, 0.4, 1.0, 0.75, 0.30),
        ("YYY", ((True, 0.9),) * 3, 3, 1.0, 0.0, 0.9, 0.0),
        ("UU", ((True, 0.9),) * 2, 2, 1.0, 0.0, 0.9, 0.0),
        ("YN", ((False, 0.9),) * 2, 2, 0.0, 1.0, 0.0, 0.0),
    ],
)
def test_crux_score_of_the_table_matches(
    positions: str,
    declared: tuple[tuple[bool, float], ...],
    agents: int,
    coverage: float,
    polarity: float,
    impact: float,
    score: float,
) -> None:
    computed = crux_score(sides(positions), flips(*declared), agents)
    assert (computed.coverage, computed.polarity, computed.impact) == pytest.approx((coverage, polarity, impact))
    assert computed.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("side", "gives_up_if", "flip"),
    [
        ("YES", "NO", True),
        ("YES", "YES", False),
        ("NO", "YES", True),
        ("NO", "neither", False),
        ("UNCERTAIN", "YES", True),
        ("UNCERTAIN", "neither", False),
        ("YES", "either", True),
    ],
)
def test_would_flip_follows_gives_up_if(side: Side, gives_up_if: GivesUpIf, flip: bool) -> None:
    assert would_flip(side, gives_up_if) is flip


CRITERIA = ("sovereign wealth fund allocation: above $1B", "30-day volatility: under 20 % for 6 months")


@pytest.mark.parametrize(
    ("positions", "criteria", "declared", "locked", "question", "failures"),
    [
        ("NY", CRITERIA, 2, True, "Will Bitcoin's volatility prevent institutional adoption within 5 years?", []),
        ("YY", CRITERIA, 2, True, "Is it volatile?", ["no firm agent on each side"]),
        ("YU", CRITERIA, 2, True, "Is it volatile?", ["no firm agent on each side"]),
        ("YN", CRITERIA[:1], 2, True, "Is it so?", ["resolution criteria: 1, at least 2 are needed"]),
        ("YN", CRITERIA, 1, True, "Is it so?", ["top claims that hang on it: 1, at least 2 are needed"]),
        ("YN", CRITERIA, 2, False, "Is it so?", ["not locked"]),
        ("YN", CRITERIA, 2, True, "Will price reach 100?", ["a question of measurement"]),
        (
            "YN",
            ("sentiment: it probably turns", "allocation: above $1B"),
            2,
            True,
            "Is it so?",
            ['vague criterion: "sentiment: it probably turns"'],
        ),
        ("YN", ("mightiness: above 3", "allocation: above $1B"), 2, True, "Is it so?", []),
    ],
)
def test_crux_validation_names_each_failure(
    positions: str, criteria: Sequence[str], declared: int, locked: bool, question: str, failures: list[str]
) -> None:
    declarations = flips(*[(n < declared, 0.9) for n in range(2)])
    flaws = validation_failures(question, list(sides(positions).values()), criteria, declarations, locked)
    assert [flaw.name for flaw in flaws] == failures


@pytest.mark.parametrize(
    ("questions", "validated", "regime"),
    [
        ({}, (), "inconclusive"),
        ({"p1": "UUUU"}, (), "inconclusive"),
        ({"p1": "YUUU"}, (), "inconclusive"),
        ({"p1": "YYYY"}, (), "consensus"),
        ({"p1": "YYUU"}, (), "consensus"),
        ({"p1": "YYYY", "thread-1": "NNNU"}, (), "consensus"),
        ({"p1": "YYNN"}, (), "partial"),
        ({"p1": "YYNN", "thread-1": "YYNN"}, ("thread-1",), "polarized"),
        ({"p1": "YYNN", "thread-1": "YYYN"}, (), "partial"),
        ({"p1": "YYYY", "thread-1": "YYNN"}, ("thread-1",), "partial"),
        ({"p1": "YYYN"}, ("p2",), "partial"),
    ],
)
def test_regime_of_final_ballots_matches_the_table(
    questions: dict[str, str], validated: tuple[str, ...], regime: str
) -> None:
    cast = {id: list(sides(text).values()) for id, text in questions.items()}
    assert regime_of(cast, validated) == regime


@pytest.mark.parametrize(
    ("positions", "confidence", "pairs"),
    [
        ("YN", (0.4, 0.4), [("D1", "D2"), ("D2", "D1")]),
        ("YNU", (0.4, 0.4, 0.4), [("D1", "D2"), ("D2", "D1")]),
        ("YNN", (0.4, 0.4, 0.7), [("D1", "D2"), ("D2", "D1"), ("D1", "D3"), ("D3", "D1")]),
        ("YYNN", (0.4, 0.7, 0.7, 0.7), [("D2", "D3"), ("D3", "D2")]),
        ("YYYN", (0.4, 0.4, 0.95, 0.4), [("D3", "D4"), ("D4", "D3")]),
        ("YYY", (0.4, 0.4, 0.4), []),
        ("UU", (0.4, 0.4), []),
    ],
)
def test_required_pairs_of_commitments_match_the_table(
    positions: str, confidence: tuple[float, ...], pairs: list[tuple[str, str]]
) -> None:
    commitments = {
        agent: Commitment(agent=agent, side=side, statement="", confidence=sure, horizon="5y")
        for (agent, side), sure in zip(sides(positions).items(), confidence, strict=True)
    }
    assert list(required_pairs(commitments)) == pairs


@pytest.mark.parametrize(
    ("horizons", "dominant"),
    [([], None), (["5y"], "5y"), (["10y+", "5y"], "5y"), (["10y+", "5y", "10y+"], "10y+")],
)
def test_dominant_horizon_is_the_most_frequent_or_the_shorter_of_a_tie(
    horizons: list[Horizon], dominant: Horizon | None
) -> None:
    assert dominant_horizon(horizons) == dominant


def message(n: int) -> DebateMessage:
    return DebateMessage(id=str(n), number=n, label=f"A{n}", agent="D1", thread="thread-1", move="CLAIM", at=n, text="")


@pytest.mark.parametrize(
    ("messages", "first", "shown"), [(1, 1, 1), (24, 1, 24), (25, 17, 9), (40, 17, 24), (41, 33, 9)]
)
def test_window_start_moves_in_steps(messages: int, first: int, shown: int) -> None:
    in_window = window([message(n) for n in range(1, messages + 1)])
    assert (in_window[0].number, len(in_window)) == (first, shown)


class Bus(Floor):
    """The published list alone."""

    def __init__(self, messages: list[DebateMessage]) -> None:
        self.messages = messages


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({}, [1, 2, 3, 4]),
        ({"since": 2}, [3, 4]),
        ({"thread": "thread-2"}, [2, 4]),
        ({"agent": "D1"}, [1, 4]),
        ({"mentions": "D3"}, [2]),
        ({"topic": "grant"}, [3]),
        ({"agent": "D1", "thread": "thread-2"}, [4]),
        ({"since": 4}, []),
    ],
)
def test_bus_query_returns_the_matching_messages(query: dict[str, Any], numbers: list[int]) -> None:
    messages = [message(n) for n in range(1, 5)]
    messages[1] = messages[1].model_copy(update={"agent": "D2", "thread": "thread-2", "mentions": ("D3",)})
    messages[2] = messages[2].model_copy(update={"agent": "D3", "topics": ("grant",)})
    messages[3] = messages[3].model_copy(update={"thread": "thread-2"})
    assert [m.number for m in Bus(messages).published(**query)] == numbers


def test_bus_keeps_the_last_five_hundred_messages() -> None:
    published = Bus([message(n) for n in range(1, 700)]).published()
    assert (len(published), published[0].number) == (500, 200)
