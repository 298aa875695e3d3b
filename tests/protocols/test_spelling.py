"""Positions are printed as agents wrote them; letter case makes no difference between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from consilience.domain.errors import RequestMismatch
from consilience.domain.outcome import StopReason
from consilience.domain.report import Report
from consilience.engine import runner as engine_runner
from consilience.engine.execution import Setup, execute
from consilience.engine.protocol import Protocol
from consilience.engine.state import State
from consilience.evaluation.scoring import score
from consilience.evaluation.task_file import Task
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Solo, Vote
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.reporting.record import read_record
from consilience.reporting.views import view_text, views_of
from consilience.testing import ScriptedModel
from kit import runner

PATTERN = "Answer: (Sharing|The clinic)|^(?:Sharing|The clinic)$"
PROTOCOLS: tuple[Protocol, ...] = (
    Solo(answer_pattern=PATTERN),
    Vote(votes=3, answer_pattern=PATTERN),
    Emergence(children=3, max_rounds=2, answer_pattern="Sharing|The clinic"),
    Broadcast(children=3, max_iterations=1, answer_pattern="Sharing|The clinic"),
    Decompose(answer_pattern=PATTERN),
)


def deciding(ballots: Mapping[str, str], answer: str) -> ScriptedModel:
    def reply(request: ModelRequest) -> str:
        if request.returns is None or request.returns is str:
            return f"Answer: {ballots.get(request.agent, answer)}"
        fields = request.returns.model_fields
        values = {"position": ballots.get(request.agent, answer), "confidence": "certain", "rating": 1.0}
        values |= {"text": f"Answer: {answer}", "satisfied": True, "answer": f"Answer: {answer}"}
        values |= {"simple": True}
        return json.dumps({name: value for name, value in values.items() if name in fields})

    return ScriptedModel(reply)


async def run(protocol: Protocol, ballots: Mapping[str, str], answer: str, store: SqliteStore) -> Any:
    return await runner.start("Share the rota?", protocol, models=deciding(ballots, answer), store=store)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name)
async def test_position_is_printed_as_the_agents_wrote_it(protocol: Protocol) -> None:
    store = SqliteStore(":memory:")
    report = await run(protocol, {}, "Sharing", store)
    assert report.position == "Sharing"
    assert "**Position: Sharing**" in report.markdown()
    shown = json.loads(report.model_dump_json())
    assert "sharing" not in json.dumps([shown.get(name) for name in ("position", "tally", "pool", "ballots", "votes")])
    record = read_record(store, report.session)
    assert not any("sharing" in view_text(name, record) for name in views_of(record))


@pytest.mark.parametrize(
    ("field", "value"),
    [("answer", "ANSWER: SHARING"), ("task", "SHARE THE ROTA?"), ("tally", {"Sharing": 2, "sharing": 3})],
)
async def test_replay_refuses_another_letter_case_elsewhere_and_other_counts(
    field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def execute_otherwise(setup: Setup, state: State) -> Report:
        return (await execute(setup, state)).model_copy(update={field: value})

    store = SqliteStore(":memory:")
    recorded = await run(Vote(votes=3, answer_pattern=PATTERN), {}, "Sharing", store)
    assert (recorded.answer, recorded.tally) == ("Answer: Sharing", {"Sharing": 3})
    monkeypatch.setattr(engine_runner, "execute", execute_otherwise)
    with pytest.raises(RequestMismatch, match=f"ended in another report: {field}"):
        await runner.replay(recorded.session, store=store)


async def test_first_spelling_in_program_order_names_equal_votes() -> None:
    votes = {"V1": "The Clinic", "V2": "the clinic", "V3": "sharing"}
    report = await run(Vote(votes=3, answer_pattern=PATTERN), votes, "", SqliteStore(":memory:"))
    assert (report.tally, report.position) == ({"The Clinic": 2, "sharing": 1}, "The Clinic")
    assert [vote.position for vote in report.votes] == ["The Clinic", "The Clinic", "sharing"]
    task = Task(id="t", task="?", kind="choice", answer="the clinic", answer_pattern=PATTERN)
    assert score(task, report).correct


@pytest.mark.parametrize("protocol", PROTOCOLS[2:4], ids=lambda p: p.name)
async def test_ballots_that_differ_in_letter_case_agree(protocol: Protocol) -> None:
    ballots = {"L2N1": "the Clinic", "L2N2": "The clinic", "L2N3": "THE CLINIC"}
    report = await run(protocol, ballots, "The clinic", SqliteStore(":memory:"))
    assert (report.position, report.pool) == ("the Clinic", {"the Clinic": 1.0})
    assert (report.dissent, report.position_changes) == ((), ())
    assert report.stop_reason is not StopReason.STALLED
    assert not [reason for reason in report.unmet if "the answer says" in reason]


async def test_tied_pool_is_ordered_without_letter_case() -> None:
    protocol = Emergence(children=2, max_rounds=2, answer_pattern="Sharing|The clinic", fallback="vote")
    ballots = {"L2N1": "The clinic", "L2N2": "sharing"}
    report = await run(protocol, ballots, "The clinic", SqliteStore(":memory:"))
    assert (list(report.pool), report.position) == (["sharing", "The clinic"], "sharing")
