"""What grows with a debate, and what does not: prompts stay flat, work is linear, time is that of the longest chain."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

import consilience
from consilience import Debate
from consilience.domain.events import CallCompleted, Event, MessagePublished, Noted, place_key
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate.floor import OWN_MESSAGES, WINDOW_MAX
from consilience.testing import ScriptedModel
from kit import runner
from kit.debating import Debaters, moves_of
from kit.jumping import now
from kit.jumping import run as run_jumping

TEXT = "A message of the usual length, which says one thing about the orders at the peak and gives a figure. " * 4


def talkative(request: ModelRequest) -> dict[str, object]:
    """Claims without end, so that the thread stays in its discovery."""
    return {"move": "CLAIM", "text": TEXT} if "CLAIM" in moves_of(request) else {"text": TEXT}


def prompts(messages: int) -> list[int]:
    """Characters of the prompts of free turns, in order."""
    model = ScriptedModel(Debaters({"turn": talkative, "reframe": lambda request: {"question": "?"}}))
    protocol = Debate(debaters=12, max_messages=messages, discovery_messages=40, max_duration=7_200, stagnation=1_000)
    consilience.run_sync("Should we move?", protocol, model=model)
    return [len(request.text) for request in model.requests if request.key.startswith("turn/")]


def test_prompt_size_stays_constant_once_the_message_window_is_full(home: object) -> None:
    lengths = prompts(60)
    assert len(lengths) > 40
    quoted = (WINDOW_MAX + OWN_MESSAGES) * (len(TEXT) + 40)
    assert max(lengths) <= lengths[0] + quoted


def work(messages: int) -> Counter[str]:
    """Function calls of the protocol, and comparisons of whole records, in a debate of so many messages."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "protocols/debate/" in frame.f_code.co_filename:
            counts["calls"] += 1
        elif event == "call" and frame.f_code.co_name == "__eq__" and "pydantic" in frame.f_code.co_filename:
            counts["comparisons"] += 1

    parts: dict[str, object] = {"propositions": [f"Is part {n} of the plan right?" for n in (1, 2, 3)]}
    script = Debaters(
        {"turn": talkative, "reframe": lambda request: {"question": "?"}, "framing": lambda request: parts}
    )
    protocol = Debate(debaters=6, max_messages=messages, discovery_messages=40, max_duration=7_200, stagnation=1_000)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        report = consilience.run_sync("Should we move?", protocol, model=ScriptedModel(script))
    finally:
        sys.setprofile(before)
    assert report.steps == messages
    return counts


def test_work_of_a_debate_grows_with_its_messages_and_no_faster(home: object) -> None:
    """A look costs what is new, not what was said: the step from 50 messages to 100 is about twice that from 25 to 50."""
    few, more, many = (work(messages) for messages in (25, 50, 100))
    assert many["calls"] - more["calls"] <= 2.5 * (more["calls"] - few["calls"])
    assert many["comparisons"] <= 5, "messages are told apart by their id"


class Timed(ScriptedModel):
    """Takes a random time for each call, the same for every run with this seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(Debaters())
        self._seed = seed

    def seconds(self, key: str) -> float:
        return random.Random(f"{self._seed} {key}").lognormvariate(0, 0.7) * 0.2 if self._seed else 0.2

    async def complete(self, request: ModelRequest):  # type: ignore[no-untyped-def]
        await asyncio.sleep(self.seconds(request.key))
        return await super().complete(request)


AWAITED: dict[str, str | tuple[str, ...]] = {
    "turn": "opening",
    "single": "opening",
    "flip": "crystallize",
    "final": ("single", "synthesize"),
    "closing": "final",
    "named": "closing",
    "test": ("closing", "named"),
}
"""The calls that a call of each kind waits for."""


def longest_chain(events: list[Event], model: Timed) -> float:
    """Seconds of the longest chain: a call depends on every message published, and every private reply awaited, before it began.

    Opening ballots depend on nothing, final ones on everything before them, the closing call on all final ones, tests on that,
    reviews of a crux on the call that wrote it. The single call follows the opening ballots and is awaited before the final ones.
    """
    ends: dict[str, float] = {}
    known = 0.0
    for event in sorted((event for event in events if event.place), key=lambda event: place_key(event.place)):
        if isinstance(event, CallCompleted):
            kind = event.key.partition("/")[0]
            if before := AWAITED.get(kind):
                known = max([known, *(end for key, end in ends.items() if key.startswith(before))])
            ends[event.key] = known + model.seconds(event.key)
        elif isinstance(event, MessagePublished) and event.id.endswith("/said"):
            known = max(known, ends[event.id.removesuffix("/said")])
        elif isinstance(event, Noted) and event.name == "thread_converged":
            known = max([known, *(end for key, end in ends.items() if key.startswith("flip"))])
    return max(ends.values())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_debate_duration_equals_its_longest_chain_of_calls(seed: int, tmp_path: Path) -> None:
    model = Timed(seed)

    async def main() -> tuple[float, float]:
        store = SqliteStore(tmp_path / "journal.db")
        report = await runner.start("Should we move?", Debate(debaters=6, as_is=True), models=model, store=store)
        events = list(store.read(report.session))
        store.close()
        return now(), longest_chain(events, model)

    wall, chain = run_jumping(main())
    assert wall == pytest.approx(chain, rel=1e-6)
    assert wall < sum(model.seconds(request.key) for request in model.requests) * 0.6
