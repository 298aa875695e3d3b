"""The number of calls of `broadcast`: that of the design over a grid, never above the estimate, and side by side."""

from __future__ import annotations

import itertools
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.domain.errors import RateLimited, Rejected
from consilience.domain.outcome import Limits, StopReason
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.broadcast import Broadcast, BroadcastReport
from kit import runner
from protocols.test_emergence_calls import Ticks


def rating(points: object = 6, **more: object) -> Any:
    """Agents who rate themselves so; every text begins with its own key."""

    def reply(request: ModelRequest) -> str:
        body = {"rating": points, "satisfied": True, "missing": "much"} | more
        return json.dumps({**body, "text": f"{request.key} says {request.agent}"})

    return reply


async def go(
    protocol: Broadcast, model: ScriptedModel | None = None, **options: Any
) -> tuple[BroadcastReport, ScriptedModel]:
    model = model or ScriptedModel(rating())
    store = SqliteStore(":memory:")
    try:
        report = await runner.start("Is it so?", protocol, models=model, store=store, **options)
        assert isinstance(report, BroadcastReport)
        assert (await runner.replay(report.session, store=store)).digest() == report.digest()
        return report, model
    finally:
        store.close()


def formula(c: int, d: int, rounds: int, iterations: int) -> int:
    """protocols §2, written out on its own, from the leaves up."""
    calls = 2
    for _ in range(d - 1):
        calls = iterations * (1 + c * calls + (rounds * c if c > 1 else 0) + 1) + 2
    return calls


GRID = list(itertools.product((1, 2, 3, 4), (2, 3, 4), (0, 1, 2), (1, 2, 3)))


@pytest.mark.matrix(keep=15)
@pytest.mark.parametrize(("c", "d", "rounds", "iterations"), GRID)
async def test_calls_made_equal_the_formula(c: int, d: int, rounds: int, iterations: int) -> None:
    """No family skips coordination, and no agent is satisfied before the last iteration."""
    protocol = Broadcast(children=c, depth=d, coordination_rounds=rounds, max_iterations=iterations)
    report, model = await go(protocol)
    expected = formula(c, d, rounds, iterations)
    assert len(model.requests) == report.ledger.actual.calls == protocol.estimate().max == expected
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.total_iterations == report.steps == iterations


async def test_calls_of_the_documented_examples_and_strange_loops_match() -> None:
    assert formula(2, 2, 1, 1) == 10
    assert formula(2, 2, 0, 1) == 8
    report, model = await go(Broadcast(children=2, max_iterations=1, strange_loops=3))
    assert len(model.requests) == 13
    assert [loop.after is not None for loop in report.strange_loops] == [True] * 3


async def test_keys_of_all_calls_are_unique_and_end_with_the_agent() -> None:
    _, model = await go(Broadcast(children=2, depth=4, max_iterations=2))
    keys = [request.key for request in model.requests]
    assert len(set(keys)) == len(keys)
    assert all(key.endswith(f"/{request.agent}") for key, request in zip(keys, model.requests, strict=True))


async def test_satisfied_siblings_skip_coordination_unless_disabled() -> None:
    report, model = await go(Broadcast(children=3, depth=3), ScriptedModel(rating(10)))
    assert not [r for r in model.requests if "/coordinate-" in r.key]
    assert len(model.requests) == Broadcast(children=3, depth=3).estimate().min == formula(3, 3, 0, 1)
    assert report.total_coordination_rounds == 0
    _, model = await go(Broadcast(children=3, depth=3, skip_when_satisfied=False), ScriptedModel(rating(10)))
    assert len(model.requests) == formula(3, 3, 1, 1)


@pytest.mark.parametrize(
    "expected",
    [
        {"rating": 9},
        {"rating": 10, "flags": [{"tag": "unexpected_finding", "text": "a well"}]},
        {"rating": "fine"},
    ],
    ids=["rates itself 0.9", "flags something harmless", "gives no readable rating"],
)
async def test_one_unsatisfied_sibling_makes_the_family_coordinate(expected: dict[str, object]) -> None:
    def reply(request: ModelRequest) -> str:
        mine = expected if request.key == "iteration-1/self_reflect/L2N2" else {}
        return rating(10, **mine)(request)

    _, model = await go(Broadcast(children=3, max_iterations=1), ScriptedModel(reply))
    assert sum("/coordinate-1/" in request.key for request in model.requests) == 3


@pytest.mark.parametrize(
    ("c", "d", "rounds", "iterations"), [(3, 2, 1, 1), (2, 3, 1, 2), (3, 3, 2, 1), (2, 4, 1, 1), (1, 3, 1, 2)]
)
async def test_siblings_work_concurrently(c: int, d: int, rounds: int, iterations: int) -> None:
    """With every reply taking one tick of a virtual clock, a run takes as many ticks as one line from leaf to root has calls."""
    chain = 2
    for _ in range(d - 1):
        chain = iterations * (1 + chain + (rounds if c > 1 else 0) + 1) + 2
    ticks = Ticks(rating())
    await go(Broadcast(children=c, depth=d, coordination_rounds=rounds, max_iterations=iterations), ticks)
    assert ticks.longest == chain


async def test_parent_evaluates_without_waiting_for_another_family() -> None:
    """L2N1's children are through at once; it evaluates them while those of L2N2 are still at work."""
    open_calls: list[str] = []
    met: list[set[str]] = []

    class Slow(Ticks):
        async def complete(self, request: ModelRequest):  # type: ignore[no-untyped-def]
            open_calls.append(request.key)
            met.append(set(open_calls))
            try:
                return await super().complete(request)
            finally:
                open_calls.remove(request.key)

    def reply(request: ModelRequest) -> str:
        return rating(10 if request.agent in ("L3N1", "L3N2") else 6)(request)

    await go(Broadcast(children=2, depth=3, max_iterations=1), Slow(reply))
    assert {"iteration-1/1/evaluate/L2N1", "iteration-1/1/coordinate-1/L3N3"} in [
        keys & {"iteration-1/1/evaluate/L2N1", "iteration-1/1/coordinate-1/L3N3"} for keys in met
    ]


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_limit_on_steps_bounds_the_iterations_of_the_root(steps: int) -> None:
    report, model = await go(Broadcast(children=2, max_iterations=5), limits=Limits(steps=steps))
    assert report.steps == steps
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert (report.answer is None) == (steps == 0) == (not model.requests)


REPLIES = st.one_of(
    st.text(max_size=40),
    st.sampled_from([RateLimited("slow"), Rejected("no"), '{"text": "ok"}', '{"rating": 8}', "{}"]),
    st.builds(
        lambda points, tag, text: json.dumps(
            {"rating": points, "flags": [{"tag": tag, "text": text}] * 2, "text": text, "position": "yes"}
        ),
        st.integers(-1, 11) | st.floats() | st.text(max_size=5) | st.none(),
        st.sampled_from(["goal_mismatch", "unexpected_finding", "nonsense"]),
        st.text(max_size=9),
    ),
)


@settings(max_examples=60)
@given(st.lists(REPLIES, min_size=1, max_size=12), st.data())
async def test_run_with_any_replies_ends_within_max_calls_with_a_consistent_stop_reason(
    replies: list[object], data: st.DataObject
) -> None:
    def reply(request: ModelRequest) -> object:
        return replies[zlib.crc32(f"{request.key} {request.attempt}".encode()) % len(replies)]

    protocol = Broadcast(
        children=data.draw(st.integers(1, 3)),
        depth=data.draw(st.integers(2, 3)),
        coordination_rounds=data.draw(st.integers(0, 2)),
        max_iterations=data.draw(st.integers(1, 2)),
        strange_loops=data.draw(st.integers(0, 1)),
        answer_pattern=data.draw(st.sampled_from(["", "yes|no"])),
    )
    calls = data.draw(st.none() | st.integers(0, 40))
    report, model = await go(protocol, ScriptedModel(reply), limits=Limits(calls=calls))  # type: ignore[arg-type]
    assert report.ledger.actual.calls <= protocol.estimate().max
    assert calls is None or len(model.requests) <= calls
    if report.stop_reason is StopReason.CONVERGED:
        last = report.iterations[-1]
        assert last.node == "L1N1"
        assert last.satisfied
        assert None not in last.ratings.values()
