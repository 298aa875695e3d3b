"""The number of calls: equal to the formula of the design over a grid, and the longest chain as stated."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from consilience.domain.outcome import Limits, StopReason
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence import Emergence, EmergenceReport
from kit import runner


def unlike(request: ModelRequest) -> str:
    """Valid for every reply type, and never like what was said before, nor settled."""
    text = f"{request.key} {request.agent} {len(request.text)}"
    if "/signal/" in request.key:
        return text
    if "/ballot/" in request.key:
        step = int(request.key.removeprefix("round-").partition("/")[0])
        return json.dumps({"position": "yes" if step % 2 else "no", "confidence": "certain", "reason": text})
    if "/judge" in request.key:
        return '{"sameness": "different"}'
    return json.dumps({"text": text})


async def go(
    protocol: Emergence, model: ScriptedModel | None = None, **options: Any
) -> tuple[EmergenceReport, ScriptedModel]:
    model = model or ScriptedModel(unlike)
    store = SqliteStore(":memory:")
    try:
        report = await runner.start("Is it so?", protocol, models=model, store=store, **options)
        assert isinstance(report, EmergenceReport)
        return report, model
    finally:
        store.close()


def formula(
    c: int, d: int, rounds: int, *, signals: bool, loops: int, domain: bool, ballots: bool, judge: bool, reask: bool
) -> int:
    """protocols §1, written out on its own."""
    leaves, internal = c ** (d - 1), sum(c ** (level - 1) for level in range(2, d))
    lateral = leaves + internal if c > 1 else 0
    sent = internal + 1 if signals else 0
    calls = rounds * (leaves + lateral + internal + 1) + (rounds - 1) * sent + loops + domain
    calls += (rounds - 1) if judge else 0
    calls += leaves * (1 + rounds) if ballots else 0
    calls -= 0 if reask or signals else (rounds - 1) * leaves
    return calls


GRID = list(
    itertools.product((1, 2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 4), (True, False), (0, 1, 2), (True, False), (True, False))
)


@pytest.mark.matrix(keep=30, whole=200)
@pytest.mark.parametrize(("c", "d", "rounds", "signals", "loops", "domain", "ballots"), GRID)
async def test_calls_made_equal_the_formula(
    c: int, d: int, rounds: int, signals: bool, loops: int, domain: bool, ballots: bool
) -> None:
    protocol = Emergence(
        children=c,
        depth=d,
        max_rounds=rounds,
        signals=signals,
        strange_loops=loops,
        domain_instructions="Mind the budget." if domain else "",
        answer_pattern="yes|no" if ballots else "",
    )
    expected = formula(
        c, d, rounds, signals=signals, loops=loops, domain=domain, ballots=ballots, judge=False, reask=True
    )
    report, model = await go(protocol)
    assert len(model.requests) == report.ledger.actual.calls == protocol.estimate().max == expected
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.steps == rounds


@pytest.mark.parametrize(("signals", "reask", "judge"), list(itertools.product((True, False), repeat=3)))
async def test_calls_with_a_judge_or_without_leaf_reask_equal_the_formula(
    signals: bool, reask: bool, judge: bool
) -> None:
    protocol = Emergence(
        children=2, depth=3, max_rounds=3, signals=signals, leaf_reask=reask, similarity="judge" if judge else "jaccard"
    )
    made = formula(2, 3, 3, signals=signals, loops=0, domain=False, ballots=False, judge=judge, reask=reask)
    most = formula(2, 3, 3, signals=signals, loops=0, domain=False, ballots=False, judge=judge, reask=True)
    least = formula(2, 3, 2, signals=signals, loops=0, domain=False, ballots=False, judge=judge, reask=reask)
    _, model = await go(protocol)
    assert (len(model.requests), protocol.estimate().min, protocol.estimate().max) == (made, least, most)


async def test_objections_make_leaves_reply_instead_of_reusing_texts() -> None:
    """All three are objected to in every round, so that the run takes the most calls its estimate allows."""

    def objecting(request: ModelRequest) -> str:
        if "/lateral/" not in request.key:
            return unlike(request)
        to = {"L2N1": "B", "L2N2": "C", "L2N3": "A"}[request.agent]
        return json.dumps({"objections": [{"to": to, "text": f"wrong, {request.key}"}], "text": request.key})

    protocol = Emergence(children=3, max_rounds=3, signals=False, leaf_reask=False)
    _, model = await go(protocol, ScriptedModel(objecting))
    assert len(model.requests) == protocol.estimate().max == 21
    _, model = await go(protocol)
    assert len(model.requests) == 21 - 2 * 3


async def test_calls_of_the_documented_examples_match() -> None:
    """Three children, depth two: seven calls a round and one between."""
    assert [Emergence(max_rounds=r).calls(r) for r in (1, 2, 3)] == [7, 15, 23]


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize(("children", "depth"), [(3, 2), (2, 3), (2, 4)])
async def test_longest_chain_of_calls_equals_the_formula(children: int, depth: int, rounds: int) -> None:
    """With every reply taking one tick of a virtual clock the run takes R·(3 + 2k) + (R−1) + N + D ticks."""
    ticks = Ticks()
    protocol = Emergence(
        children=children, depth=depth, max_rounds=rounds, strange_loops=1, domain_instructions="Be kind."
    )
    await go(protocol, ticks)
    assert ticks.longest == rounds * (3 + 2 * (depth - 2)) + (rounds - 1) + 1 + 1


class Ticks(ScriptedModel):
    """Measures the longest chain: a call begins at the latest end of the calls whose texts it is shown, or of an earlier check."""

    def __init__(self, script: Callable[[ModelRequest], str] = unlike) -> None:
        super().__init__(script)
        self._waiting: list[asyncio.Future[None]] = []
        self.longest = 0
        self._ticking: asyncio.Task[None] | None = None

    async def complete(self, request: ModelRequest):  # type: ignore[no-untyped-def]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        await future
        return await super().complete(request)

    async def _tick(self) -> None:
        """Once nothing new is asked for a while of real time, everything asked so far is answered at once: one tick."""
        seen = -1
        while seen != len(self._waiting):
            seen = len(self._waiting)
            await asyncio.sleep(0.03)
        self.longest += 1
        ready, self._waiting = self._waiting, []
        self._ticking = None
        for future in ready:
            future.set_result(None)


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_limit_on_steps_bounds_the_rounds(steps: int) -> None:
    report, _ = await go(Emergence(children=2, max_rounds=5), limits=Limits(steps=steps))
    assert report.steps == steps
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert (report.answer is None) == (steps == 0)
