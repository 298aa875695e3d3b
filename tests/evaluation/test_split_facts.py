"""Facts that are split between agents: whose answer holds all of them. Every agent knows its own source and what it has read."""

from __future__ import annotations

import json

import pytest

from consilience.engine.protocol import Protocol
from consilience.evaluation import compare
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.testing import ScriptedModel
from evaluation.test_compare import SPLIT
from kit.juries import Alone, Poll, adding_up


def reply(request: ModelRequest) -> str:
    """Whatever is asked, all that was read, added up; content with itself once it has read anybody."""
    text = str(adding_up(request).value)
    body = {
        "text": text,
        "position": text,
        "confidence": "certain",
        "rating": "good",
        "satisfied": True,
        "parts": [{"title": f"count {n}"} for n in range(3)],
    }
    return json.dumps(body)


@pytest.mark.parametrize(
    ("protocol", "accuracy"),
    [
        (Broadcast(max_iterations=1), 1.0),
        (Broadcast(max_iterations=1, coordination_rounds=0), 1.0),
        (Decompose(), 1.0),
        (Emergence(max_rounds=1), 1.0),
        (Alone(), 0.0),
        (Poll(size=3), 0.0),
    ],
    ids=["broadcast", "broadcast without coordination", "decompose", "emergence", "solo", "vote"],
)
async def test_split_facts_are_solved_only_by_protocols_that_combine_them(
    protocol: Protocol, accuracy: float, store: SqliteStore
) -> None:
    comparison = await compare(SPLIT, [protocol], models=ScriptedModel(reply), store=store)
    assert comparison.rows[0].accuracy == accuracy


async def test_broadcast_leaves_change_position_only_with_coordination_rounds(store: SqliteStore) -> None:
    moved = {}
    for rounds in (0, 1):
        protocol = Broadcast(max_iterations=1, coordination_rounds=rounds)
        comparison = await compare(SPLIT, [protocol], models=ScriptedModel(reply), store=store, name=f"k{rounds}")
        moved[rounds] = [run.changes for run in comparison.of("broadcast")]
    assert moved == {0: [0, 0, 0], 1: [3, 3, 3]}
