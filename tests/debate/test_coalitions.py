"""Coalitions: who stands with whom, by declared positions on the cruxes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import pytest

import consilience
from consilience import Debate, DebateReport
from consilience.domain.events import Noted
from consilience.domain.notes import load_note
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.debate.moves import Side
from consilience.protocols.debate.notes import CoalitionDetected
from consilience.protocols.debate.records import (
    Coalition,
    Crux,
    CruxPosition,
    CruxScore,
    DebateBallot,
    DebateMessage,
)
from consilience.protocols.debate.scoring import (
    Coalitions,
    cluster,
    crux_confidence,
    detect_coalitions,
    similarity,
)
from consilience.testing import ScriptedModel
from kit.debating import Debaters
from simulation import SimulatedModel, plant
from simulation.worlds import PROPOSITION
from study_debaters import simulate

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


SIDES: dict[str, Side] = {"Y": "YES", "N": "NO", "?": "UNCERTAIN"}
SCORE = CruxScore(coverage=0, polarity=0, impact=0, score=0)


def cruxes(table: Mapping[str, str], confidence: float = 0.7) -> list[Crux]:
    """A crux for each column of a table that has a row per agent: Y, N, ? or a space for no position."""
    return [
        Crux(
            thread=f"thread-{n + 1}",
            question=f"Is it {n + 1}?",
            positions={
                agent: CruxPosition(side=SIDES[row[n]], statement=f"{agent} on {n + 1}", confidence=confidence)
                for agent, row in table.items()
                if row[n] != " "
            },
            score=SCORE,
            locked=True,
            validated=True,
        )
        for n in range(len(next(iter(table.values()))))
    ]


def ballot(agent: str, row: str) -> DebateBallot:
    questions = {f"thread-{n}": SIDES[side] for n, side in enumerate(row, 1)}
    return DebateBallot(agent=agent, step=1, positions=("YES",), questions=questions, confidence=0.7)


def members(coalitions: Coalitions) -> list[str]:
    return ["".join(coalition.members) for coalition in coalitions.found]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"A": "YYY", "B": "YYY", "C": "NNN", "D": "NNN"}, ["AB", "CD"]),
        ({"A": "YYY", "B": "NNN", "C": "YYY"}, ["AC"]),  # no singleton
        ({"A": "YYYY", "B": "YYYN", "C": "NNNN"}, ["AB"]),  # 3 of 4 agree
        ({"A": "YYY", "B": "YYN"}, []),  # 2 of 3 agree
        ({"A": "YYYYYYYYYY", "B": "YYYYYYYNNN"}, ["AB"]),  # exactly 0.7 is enough
        ({"A": "YYY", "B": "YY?", "C": "NN?"}, ["AB"]),  # uncertain is half an agreement
        ({"A": "Y??", "B": "Y??"}, []),
        ({"A": "YYY", "B": "YYY", "C": "YY "}, ["AB"]),  # two positions are too few
        ({"A": "YYY", "B": "YYY", "C": "YYY"}, ["ABC"]),
    ],
)
def test_detect_coalitions_groups_agents_with_similar_answers(table: dict[str, str], expected: list[str]) -> None:
    assert members(detect_coalitions(cruxes(table))) == expected


def test_cluster_by_average_linkage_excludes_an_agent_similar_to_one_member_only() -> None:
    positions = {
        agent: {str(n): SIDES[side] for n, side in enumerate(row)}
        for agent, row in {"A": "YYYYYYYYYY", "B": "YYYYYYYYNN", "C": "YYYYYNNNNN"}.items()
    }
    weights = {str(n): 1.0 for n in range(10)}
    assert similarity(positions["B"], positions["C"], weights) == pytest.approx(0.7)
    assert cluster(positions, weights) == [("A", "B"), ("C",)]


def test_similarity_is_weighted_by_the_confidence_of_a_crux() -> None:
    fields: dict[str, Side] = {"a": "YES", "b": "YES", "c": "YES"}
    other: dict[str, Side] = {"a": "YES", "b": "YES", "c": "NO"}
    assert similarity(fields, other, {"a": 0.95, "b": 0.95, "c": 0.4}) == pytest.approx(1.9 / 2.3)
    assert similarity(fields, other, {"a": 0.4, "b": 0.4, "c": 0.95}) == pytest.approx(0.8 / 1.75)
    assert similarity(fields, {}, {"a": 1.0}) == 0.0
    (crux,) = cruxes({"A": "Y"}, confidence=0.4)
    assert crux_confidence(crux) == pytest.approx(0.4)


def test_coalitions_follow_final_ballots_not_public_commitments() -> None:
    public = cruxes({"A": "YYY", "B": "YYY", "C": "YYY", "D": "YYY"})
    final = [ballot("A", "YYY"), ballot("B", "YYY"), ballot("C", "NNN"), ballot("D", "NNN")]
    coalitions = detect_coalitions(public, final)
    assert members(coalitions) == ["AB", "CD"]
    first, second = coalitions.found
    assert first.positions == {"p1": "YES", "thread-1": "YES", "thread-2": "YES", "thread-3": "YES"}
    assert first.shared_beliefs == tuple(f"{agent} on {n}" for n in (1, 2, 3) for agent in "AB")
    assert second.positions == {"p1": "YES", "thread-1": "NO", "thread-2": "NO", "thread-3": "NO"}
    assert second.shared_beliefs == ()  # they declared the other side in public


def test_coalition_positions_are_those_shared_by_all_members() -> None:
    (only,) = detect_coalitions(cruxes({"A": "YYYN", "B": "YYYY"})).found
    assert only.positions == {"thread-1": "YES", "thread-2": "YES", "thread-3": "YES"}
    assert only.cohesion == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("table", "finding"),
    [
        ({"A": "YY", "B": "YY"}, "too few cruxes for coalitions: 2, at least 3 are needed"),
        ({"A": "YYY", "B": "YY "}, "no coalition: fewer than two agents answered 3 cruxes"),
        ({"A": "YYY", "B": "NNN"}, "no stable coalition: no two agents agree on 70 % of what they answered"),
    ],
)
def test_detect_coalitions_without_any_returns_a_finding(table: dict[str, str], finding: str) -> None:
    assert detect_coalitions(cruxes(table)) == Coalitions(finding=finding)


def said(agent: str, *topics: str) -> DebateMessage:
    return DebateMessage(
        id=f"{agent}/{topics}",
        number=1,
        label=f"{agent}1",
        agent=agent,
        thread="thread-1",
        move="CLAIM",
        at=0,
        text="",
        topics=topics,
    )


def test_coalition_label_is_a_topic_used_only_by_its_members() -> None:
    table = cruxes({"A": "YYY", "B": "YYY", "C": "NNN", "D": "NNN"})
    messages = [
        said("A", "Night ferry", "harbour tax"),
        said("B", "night  ferry", "cost"),
        said("C", "harbour tax"),
        said("D", "harbour tax", "noise at night", "cost"),
        said("A", "cost"),
    ]
    coalitions = detect_coalitions(table, messages=messages)
    assert [coalition.label for coalition in coalitions.found] == ["Night ferry", "Coalition B"]


ONE = Coalition(label="Coalition A", members=("A", "B"), positions={}, cohesion=1)


@pytest.mark.parametrize(
    ("settled", "unchanged", "finding"),
    [
        (True, 30, ""),
        (True, None, ""),
        (True, 29, "preliminary: they last changed 29 messages before the end, fewer than 30"),
        (False, 60, "preliminary: the exchange was ended before its threads were closed"),
    ],
)
def test_coalitions_at_the_end_are_preliminary_unless_stable(
    settled: bool, unchanged: int | None, finding: str
) -> None:
    assert Coalitions((ONE,)).at_the_end(settled=settled, unchanged_for=unchanged).finding == finding


WORLD = plant(109, agents=6)


async def debate(
    store: SqliteStore, coalitions: Literal["live", "final"]
) -> tuple[DebateReport, list[CoalitionDetected]]:
    protocol = Debate(debaters=6, as_is=True, max_duration=900, coalitions=coalitions, test_cruxes=0)
    model = SimulatedModel(WORLD, simulate)
    report = await consilience.deliberate(PROPOSITION, protocol, model=model, store=store, session="r1")
    assert isinstance(report, DebateReport)
    noted = [event for event in store.read("r1") if isinstance(event, Noted) and event.name == "coalition_detected"]
    return report, [load_note(CoalitionDetected, event, store.text) for event in noted]


def camps() -> list[tuple[str, ...]]:
    groups = {camp: tuple(m.agent for m in WORLD.minds.values() if m.camp == camp) for camp in WORLD.camps}
    return sorted(groups.values())


async def test_debate_on_a_planted_world_reports_the_planted_camps(store: SqliteStore) -> None:
    report, noted = await debate(store, "live")
    assert sorted(coalition.members for coalition in report.coalitions) == camps()
    assert noted
    assert {agent for coalition in noted[-1].coalitions for agent in coalition.members} <= set(WORLD.minds)


async def test_coalitions_set_to_final_are_detected_only_at_the_end(store: SqliteStore) -> None:
    report, noted = await debate(store, "final")
    assert sorted(coalition.members for coalition in report.coalitions) == camps()
    assert noted == []


async def test_debate_with_one_crux_reports_too_few_cruxes_for_coalitions(store: SqliteStore) -> None:
    report = await consilience.deliberate(
        "Should we?", Debate(debaters=2, as_is=True), model=ScriptedModel(Debaters()), store=store
    )
    assert isinstance(report, DebateReport)
    assert report.coalitions == ()
    assert report.coalition_finding == "too few cruxes for coalitions: 1, at least 3 are needed"
