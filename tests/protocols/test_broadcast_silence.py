"""`broadcast` with agents that stop replying, and the flags in its report."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from consilience.domain.errors import Rejected
from consilience.domain.outcome import Limits, SpendingLimits, StopReason
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.broadcast import Broadcast
from consilience.reporting.markdown import markdown
from protocols.test_broadcast import agents, flagging, recorded, shown
from protocols.test_broadcast_calls import go, rating


async def test_flag_stands_if_the_next_judgement_of_its_author_is_unreadable() -> None:
    """L3N2 flags first; in its family's second iteration it writes a text, and its judgement of it cannot be read."""

    def reply(request: ModelRequest) -> str:
        if request.key == "iteration-1/2/self_reflect/L3N2":
            return "{}"
        body: dict[str, object] = {"text": f"{request.key} says {request.agent}", "rating": 8}
        if request.key == "iteration-1/1/self_reflect/L3N2":
            body["flags"] = [{"tag": "goal_mismatch", "text": "the goal is another"}]
        return json.dumps(body) if request.returns is not None else str(body["text"])

    protocol = Broadcast(children=2, depth=3, coordination_rounds=0, max_iterations=2)
    report, _ = await go(protocol, ScriptedModel(reply))
    assert report.total_iterations == 2, "it goes up, and the root broadcasts again"
    assert any(i.node == "L2N1" and i.path == (1, 2) and i.flags for i in report.iterations)
    assert any(signal == "goal_mismatch (L3N2)" for signal in report.signal_chain)


async def test_flags_below_a_parent_without_a_synthesis_still_stand() -> None:
    def reply(request: ModelRequest) -> str:
        if request.key == "iteration-2/synthesize/L2N1":
            return "{}" if request.returns is None else ""
        body: dict[str, object] = {"text": f"{request.key} says {request.agent}", "rating": 8}
        if request.key.startswith("iteration-2/") and request.key.endswith("self_reflect/L3N1"):
            body["flags"] = [{"tag": "goal_mismatch", "text": f"wrong in {request.key}"}]
        if request.key.startswith("iteration-1/") and request.key.endswith("self_reflect/L3N1"):
            body["flags"] = [{"tag": "needs_reframing", "text": "say it otherwise"}]
        return json.dumps(body) if request.returns is not None else str(body["text"])

    protocol = Broadcast(children=2, depth=3, coordination_rounds=0, max_iterations=2)
    report, _ = await go(protocol, ScriptedModel(reply))
    standing = {flag.tag for flag in report.flags if flag.stands}
    assert "goal_mismatch" in standing
    assert any("wrong in" in dissent.text for dissent in report.dissent)
    assert any("L2N1 did not combine the texts below" in warning for warning in report.warnings)


async def test_limit_on_evaluation_keeps_the_check_of_the_ratings() -> None:
    limits = Limits(phases={"evaluate": SpendingLimits(calls=0)})
    report, _ = await go(Broadcast(children=2, max_iterations=1), agents(points=8), limits=limits)
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert report.check is not None
    assert report.check.score == pytest.approx(0.8)


async def test_two_similar_flags_of_one_reply_are_both_kept() -> None:
    def flags(request: ModelRequest) -> dict[str, object]:
        if "/self_reflect/L2N1" not in request.key:
            return {}
        texts = [f"I lack the price of one ton of steel in {year}" for year in (2019, 2024)]
        return {"flags": [{"tag": "resource_request", "text": text} for text in texts]}

    report, _ = await go(Broadcast(children=2, max_iterations=1, coordination_rounds=0), agents(flags, 8))
    assert len(report.flags) == 2


def deep(flag: str, heard: Callable[[str], bool]) -> Callable[[ModelRequest], object]:
    """L3N2 raises a flag in its first reflection and is out of reach where `heard` says no to a key."""

    def reply(request: ModelRequest) -> object:
        if request.agent == "L3N2" and not heard(request.key):
            return Rejected("gone")
        body: dict[str, object] = {"text": f"{request.key} says {request.agent}", "rating": 8}
        if request.key == "iteration-1/1/self_reflect/L3N2":
            body["flags"] = [{"tag": flag, "text": "the goal is another"}]
        return json.dumps(body) if request.returns is not None else str(body["text"])

    return reply


@pytest.mark.parametrize("iterations", [1, 2, 3])
async def test_flag_of_a_silent_agent_stands_in_later_executions_of_its_family(iterations: int) -> None:
    """Its parent's next execution knows what it wrote and flagged in the one before."""
    protocol = Broadcast(children=2, depth=3, coordination_rounds=0, max_iterations=iterations)
    model = ScriptedModel(deep("goal_mismatch", lambda key: key.startswith("iteration-1/1/")))
    report, record = await recorded(protocol, model)
    (flag,) = report.flags
    assert (flag.stands, flag.path, report.metrics["flags"]) == (True, (1, 1), 1)
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert [dissent.agent for dissent in report.dissent] == ["L3N2"]
    for n in range(1, iterations + 1):
        assert "iteration-1/1/self_reflect/L3N2" in shown(record, f"iteration-{n}/synthesize/L2N1")


async def test_silent_family_is_not_synthesized_again() -> None:
    """What it went up with in the root's first iteration goes up once more."""

    def reply(request: ModelRequest) -> object:
        if request.agent in ("L3N1", "L3N2") and request.key.startswith("iteration-2/"):
            return Rejected("gone")
        points = 3 if request.key.startswith("iteration-1/") else 8
        return rating(points)(request)

    protocol = Broadcast(children=2, depth=3, coordination_rounds=0, max_iterations=2)
    report, record = await recorded(protocol, ScriptedModel(reply))
    assert "iteration-2/synthesize/L2N1" not in record.readings
    assert {m.rpartition("/")[2] for m in shown(record, "synthesize/L1N1")} >= {"L2N1", "L2N2"}
    assert any("iteration-1/" in m and m.endswith("L2N1") for m in shown(record, "synthesize/L1N1"))
    assert not any("did not combine" in warning for warning in report.warnings)


@pytest.mark.parametrize("spelt", ["GOAL_MISMATCH", "goal mismatch", " Goal-Mismatch "])
async def test_flag_tag_in_any_spelling_is_recognised(spelt: str) -> None:
    report, _ = await go(Broadcast(children=2, depth=3), ScriptedModel(deep(spelt, lambda key: True)))
    assert report.signal_chain == ("goal_mismatch (L3N2)",)


async def test_sentence_of_an_agent_below_is_not_novel_in_the_answer() -> None:
    def reply(request: ModelRequest) -> str:
        text = "The bridge holds four tons at most." if request.agent[:2] in ("L1", "L2") else f"{request.key} it is."
        return json.dumps({"text": text, "rating": 10, "satisfied": True})

    report, _ = await go(Broadcast(children=2, depth=3), ScriptedModel(reply))
    assert report.answer == "The bridge holds four tons at most."
    assert report.metrics["novelty"] == 0.0


async def test_report_lists_every_flag_with_its_outcome() -> None:
    raised = flagging("resource_request", "iteration-1/self_reflect/L2N1", "iteration-2/self_reflect/L2N2")
    report, _ = await go(Broadcast(children=2, max_iterations=2, coordination_rounds=0), agents(raised))
    section = markdown(report).partition("## Flags\n")[2].partition("##")[0]
    assert "resource_request (warning) from use (L2N1): “because of iteration-1/self_reflect/L2N1” — not" in section
    assert (
        "resource_request (warning) from risks (L2N2): “because of iteration-2/self_reflect/L2N2” — stands" in section
    )
    grave, _ = await go(
        Broadcast(children=2, max_iterations=1), agents(flagging("goal_mismatch", "iteration-1/self_reflect/L2N1"))
    )
    assert "## Flags" not in markdown(grave), "it stands among the objections"
    assert "because of iteration-1/self_reflect/L2N1" in markdown(grave)
