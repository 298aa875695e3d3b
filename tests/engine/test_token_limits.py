"""Limits on tokens: never exceeded, and shared so that wide and deep runs use them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience import Broadcast, Decompose, Emergence, Limits, Refinement, Vote, run_sync
from consilience.domain.report import Report
from consilience.engine.ledger import BranchBudget
from consilience.engine.protocol import Protocol
from consilience.engine.sizes import Usage
from consilience.models.port import ModelRequest
from consilience.models.scripted import Scripted, ScriptedModel


def replies(share: float) -> Callable[[ModelRequest], Scripted]:
    """Replies that use `share` of their max size, in whatever form is asked for."""

    def reply(request: ModelRequest) -> Scripted:
        size = max(math.floor(request.max_tokens * share), 8)
        text = "word " * (size * 3 // 5)
        if request.schema is None:
            return Scripted(text, tokens_out=size)
        return Scripted(json.dumps(filled(request.schema, text)), tokens_out=size)

    return reply


def filled(schema: dict[str, object], text: str) -> dict[str, object]:
    body: dict[str, object] = {}
    for name, form in schema["properties"].items():  # type: ignore[attr-defined]
        if name == "text":
            body[name] = text
        elif form.get("type") == "array":
            body[name] = []
        else:
            body[name] = form["enum"][0] if "enum" in form else "x"
    return body


def run(protocol: Protocol, tokens: int, share: float) -> tuple[Report, ScriptedModel]:
    model = ScriptedModel(replies(share))
    return run_sync("Should we?", protocol, model=model, limits=Limits(tokens=tokens)), model


def spent(report: Report) -> int:
    return report.ledger.actual.tokens_in + report.ledger.actual.tokens_out


@pytest.mark.parametrize(
    ("protocol", "tokens", "at_least"),
    [
        (Emergence(children=50, max_rounds=1, reply_tokens=1024), 60_000, 51),
        (Vote(votes=50), 30_000, 50),
        (Decompose(children=50, reply_tokens=1024), 60_000, 30),
        (Broadcast(children=50, max_iterations=1, reply_tokens=1024), 60_000, 30),
        (Emergence(children=3, depth=3, max_rounds=2), 30_000, 15),
    ],
    ids=["wide emergence", "wide vote", "wide decompose", "wide broadcast", "deep emergence"],
)
def test_wide_or_deep_run_short_of_tokens_uses_them_and_ends_in_an_answer(
    protocol: Protocol, tokens: int, at_least: int
) -> None:
    report, _ = run(protocol, tokens, share=0.2)
    assert report.ledger.actual.calls >= at_least
    assert report.answer is not None
    assert spent(report) <= tokens


def test_run_with_tokens_for_one_phase_and_the_answer_asks_every_specialist() -> None:
    report, model = run(Emergence(children=50, max_rounds=1, reply_tokens=1024), 60_000, share=1.0)
    first = {request.agent for request in model.requests if "/leaf_respond/" in request.key}
    assert len(first) == 50
    assert report.answer is not None
    assert spent(report) <= 60_000
    assert any(warning.startswith("replies were limited to") for warning in report.warnings)


def test_token_limit_above_the_need_shortens_no_reply() -> None:
    report, model = run(Emergence(children=3, max_rounds=1), 10_000_000, share=1.0)
    assert {request.max_tokens for request in model.requests} == {4_096}
    assert not any(warning.startswith("replies were limited to") for warning in report.warnings)


@given(
    protocol=st.sampled_from(
        [
            Emergence(children=3, max_rounds=2),
            Emergence(children=2, depth=3, max_rounds=1),
            Broadcast(children=2, depth=3, max_iterations=1),
            Decompose(children=3),
            Refinement(max_passes=1),
            Vote(votes=4),
        ]
    ),
    tokens=st.integers(0, 60_000),
    share=st.sampled_from([0.05, 0.3, 1.0]),
)
def test_run_of_any_protocol_stays_within_its_token_limit(protocol: Protocol, tokens: int, share: float) -> None:
    report, _ = run(protocol, tokens, share)
    assert spent(report) <= tokens


def test_money_limit_admits_as_many_reservations_as_it_pays_for() -> None:
    """0.3 - 0.1 - 0.1 is less than 0.1 in floats."""
    budget = BranchBudget(Usage(math.inf, math.inf, 0.3))
    assert [budget.reserve(Usage(1, 0, 0.1)) for _ in range(4)] == [True, True, True, False]
