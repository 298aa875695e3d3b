"""`POST /api/debate-multi`: the seed's body and its fifteen events, from committed rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.loopback import MODEL
from consilience.domain.panels import load_panel
from consilience.server.debate_multi import EVENTS, SEED_PERSONAS
from consilience.testing import ScriptedModel
from kit.debating import Debaters
from server.inprocess import Chat, chatting
from simulation import SimulatedModel, plant
from simulation.worlds import PROPOSITION
from study_debaters import simulate

BODY: dict[str, Any] = {
    "topic": "Bitcoin is a good store of value",
    "personaIds": ["michael-saylor", "arthur-hayes", "nassim-taleb", "jack-mallers", "peter-schiff"],
    "config": {"maxDuration": 300000, "maxMessages": 200, "attentionThreshold": 0.6, "convergenceThreshold": 0.75},
}
"""As it stands in the seed."""
SAYS_NO = ("gold-investor", "tail-risk-thinker")


class Divided(Debaters):
    """Debaters of the panel, of whom two say no."""

    def answer(self, kind: str, request: Any) -> dict[str, object]:
        answer = super().answer(kind, request)
        side = "NO" if request.agent in SAYS_NO else "YES"
        return {name: side if name == "side" or name in ("p1", "q1") else value for name, value in answer.items()}


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    with chatting(models=ScriptedModel(Divided(), name=MODEL)) as found:
        yield found


def debate(server: Chat, body: dict[str, Any] = BODY, after: str = "") -> list[tuple[str, str, dict[str, Any]]]:
    """Ids, names and data of the events, to the end of the stream."""
    answer = httpx.post(
        f"{server.url}/api/debate-multi", json=body, headers={"Last-Event-ID": after} if after else {}, timeout=120
    )
    assert answer.status_code == 200, answer.text
    events = []
    for block in answer.text.split("\r\n\r\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            events.append((lines["id"], lines["event"], json.loads(lines["data"])))
    return events


def test_a_debate_streams_the_seeds_events_with_the_callers_ids_of_personas(server: Chat) -> None:
    events = debate(server)
    names = {name for _, name, _ in events}
    assert names <= set(EVENTS)
    # what these debaters do: each case is put fairly, the crux is locked, and the thread ends
    assert set(EVENTS) - names <= {"crux_lock_failed", "coalition_detected"}
    assert len({id for id, _, _ in events}) == len(events)
    messages = [data for _, name, data in events if name == "message_published"]
    assert {data["agentId"] for data in messages} == {*BODY["personaIds"], "moderator"}
    for data in messages:
        if data["agentId"] in SEED_PERSONAS:  # the role that answers to this id, and no other
            assert f"/{SEED_PERSONAS[data['agentId']]}/" in data["id"]
    last_id, last, complete = events[-1]
    assert last == "debate_complete"
    assert complete["topic"] == BODY["topic"]
    assert set(complete["topClaims"]) == set(BODY["personaIds"])
    assert complete["totalMessages"] == sum(data["agentId"] != "moderator" for data in messages)
    assert {"duration", "wallClockMs", "sessionId"} <= set(complete)
    interventions = [data for _, name, data in events if name == "moderator_intervention"]
    assert len(interventions) == sum(data["agentId"] == "moderator" for data in messages)
    assert debate(server, after=last_id) == []


def test_a_coalition_and_a_lock_that_fails_are_in_the_stream_and_so_all_fifteen_types(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    agents = [SEED_PERSONAS[id] for id in BODY["personaIds"]]
    planted = plant(109, agents=len(agents))
    minds = {agent: replace(mind, agent=agent) for agent, mind in zip(agents, planted.minds.values(), strict=True)}
    camps = SimulatedModel(replace(planted, minds=minds), simulate)
    unfair = Divided({"grade": lambda request: {"grade": "WRONG", "corrections": "That is not my case."}})
    body = {**BODY, "topic": PROPOSITION, "config": {**BODY["config"], "maxDuration": 900_000}}
    names: set[str] = set()
    for reply in (camps.reply, unfair):
        with chatting(models=ScriptedModel(reply, name=MODEL)) as server:
            events = debate(server, body)
        names |= {name for _, name, _ in events}
        for coalition in [
            found for _, name, data in events if name == "coalition_detected" for found in data["coalitions"]
        ]:
            assert set(coalition["members"]) < set(BODY["personaIds"])
            assert {"label", "positions", "sharedBeliefs"} <= set(coalition)
        body = {**body, "topic": "Bitcoin is money"}
    assert names == set(EVENTS)
    assert len(EVENTS) == 15


def test_the_same_body_joins_the_debate_after_the_event_that_was_last(server: Chat) -> None:
    events = debate(server)
    for place in (0, 1, 2, len(events) // 2):
        assert debate(server, after=events[place][0]) == events[place + 1 :]


def test_config_bounds_the_debate(server: Chat) -> None:
    body = {**BODY, "personaIds": BODY["personaIds"][:2], "config": {**BODY["config"], "maxMessages": 6}}
    assert debate(server, body)[-1][2]["totalMessages"] <= 6


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"personaIds": ["michael-saylor", "nobody"]}, "personaIds"),
        ({"personaIds": ["michael-saylor", "bitcoin-treasurer"]}, "personaIds"),
        ({"config": {"maxDuration": 1}}, ""),
        ({"surplus": 1}, ""),
    ],
)
def test_a_body_that_is_not_the_seeds_is_refused(change: dict[str, Any], where: str, server: Chat) -> None:
    answer = httpx.post(f"{server.url}/api/debate-multi", json={**BODY, **change})
    assert answer.status_code == 422
    assert where in answer.text


def test_the_seeds_personas_are_those_of_a_shipped_panel() -> None:
    assert {persona.slug for persona in load_panel("bitcoin").personas} == set(SEED_PERSONAS.values())
