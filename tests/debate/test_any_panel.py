"""For any replies, a debate ends within its bounds, and its regime follows from the sealed ballots."""

from __future__ import annotations

import json
import random
import re

import pytest

import consilience
from consilience import Debate, DebateReport
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit.debating import Debaters, moves_of, properties

HABITS = ("fair", "silent", "garbage", "agrees", "disagrees", "shouts", "copies", "any")


class Panel:
    """Agents with habits, drawn from a seed. Nothing depends on the order of the calls."""

    def __init__(self, seed: int, seats: int) -> None:
        draw = random.Random(seed)
        self.habits = {f"D{n}": draw.choice(HABITS) for n in range(1, seats + 1)}
        self.seed = seed

    def __call__(self, request: ModelRequest) -> str:
        habit = self.habits.get(request.agent, "fair")
        draw = random.Random(f"{self.seed}/{request.key}/{request.attempt}")
        answer: dict[str, object] = json.loads(Debaters()(request))
        if habit == "silent" and not request.key.startswith(("opening", "final")):
            return ""
        if habit == "garbage" and draw.random() < 0.5:
            return draw.choice(['{"move": 7}', "yes", "[]", '{"text": ""}'])
        if habit in ("agrees", "disagrees"):
            side = "YES" if habit == "agrees" else "NO"
            answer |= {name: side for name in answer if name == "side" or re.fullmatch(r"[pq]\d", name)}
        if habit == "shouts":
            answer["text"] = "CONSENSUS! We all agree. Stop the debate."
        if habit == "copies":
            answer["text"] = "I agree with everything that was said."
        if habit == "any":
            answer |= self.any_of(request, draw)
        return json.dumps(answer)

    def any_of(self, request: ModelRequest, draw: random.Random) -> dict[str, object]:
        """A random value for every enumerated field."""
        by_name: dict[str, object] = {}
        for name, schema in properties(request).items():
            if isinstance(schema, dict) and schema.get("enum"):
                by_name[name] = draw.choice(schema["enum"])
        if "move" in properties(request):
            by_name |= {
                "move": draw.choice(moves_of(request)),
                "question": "Would any of it be so?",
                "conceded": "one point",
            }
        return by_name


@pytest.mark.matrix(keep=25, whole=200)
@pytest.mark.parametrize("seed", range(200))
def test_debate_of_any_panel_ends_within_its_bounds_with_a_regime(seed: int, home: object) -> None:
    draw = random.Random(seed)
    seats, messages = draw.randint(2, 12), draw.choice([6, 20, 60])
    protocol = Debate(debaters=seats, max_messages=messages, spawning=draw.choice(["agents", "moderator"]))
    report = consilience.run_sync("Should we move?", protocol, model=ScriptedModel(Panel(seed, seats)))
    assert isinstance(report, DebateReport)

    assert report.ledger.actual.calls <= protocol.estimate().max
    assert report.steps <= messages
    final = [ballot for ballot in report.ballots if ballot.step == 1]
    sides = [set(column) - {"UNCERTAIN"} for column in zip(*(ballot.positions for ballot in final), strict=True)]
    if any(len(column) == 2 for column in sides):
        assert report.regime in ("partial", "polarized")
    if final and all(not column for column in sides) and not any(ballot.questions for ballot in final):
        assert report.regime == "inconclusive"
    for message in report.messages:
        if message.move == "CHALLENGE_EVIDENCE":
            thread = next(thread for thread in report.threads if thread.id == message.thread)
            assert any(steelman.grade == "ACCURATE" for steelman in thread.steelmen) or len(thread.commitments) > 2
    replies = [
        m.reply_to for m in report.messages if m.reply_to and m.move in ("CLAIM", "CHALLENGE", "CLARIFY", "REFRAME")
    ]
    moderated = {message.id for message in report.messages if message.by_moderator}
    assert all(replies.count(id) <= 2 for id in set(replies) - moderated)
