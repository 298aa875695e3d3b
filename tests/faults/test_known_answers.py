"""The five protocols against every answer that servers are known to give: no defect, the server's words, nothing paid twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

import consilience
from consilience import Broadcast, Debate, Emergence, Refinement, Review, SqliteStore
from consilience.domain.events import CallCompleted, CallFailed, ReplyRejected
from consilience.domain.outcome import FailureKind
from consilience.engine.protocol import Protocol
from consilience.models.limiter import Limiter, limiter_for
from consilience.models.registry import resolve
from consilience.reporting.markdown import markdown
from consilience.testing import KNOWN_ANSWERS, KnownAnswer, MisbehavingServer
from kit.counting import Asked
from kit.reviewing import CODE

PROTOCOLS: dict[str, Protocol] = {
    "emergence": Emergence(children=2, max_rounds=1),
    "broadcast": Broadcast(children=2, max_iterations=1),
    "refinement": Refinement(max_passes=1),
    "debate": Debate(debaters=2, max_messages=6),
    "review": Review(reviewers=2, max_iterations=1),
}
NEVER_SHOWN = ("Traceback", "pydantic", "validation error for", "validation errors for", "defect in consilience")


def skip_waits(limiter: Limiter) -> None:
    """Let the limiter's clock jump where it would wait."""
    skipped = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal skipped
        skipped += seconds
        await asyncio.sleep(0)

    limiter.clock = lambda: time.monotonic() + skipped
    limiter.sleep = sleep


@pytest.mark.matrix(keep=40)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("known", KNOWN_ANSWERS, ids=lambda known: known.name)
async def test_protocol_gets_of_a_known_answer_what_is_in_it(
    known: KnownAnswer, protocol: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    server = MisbehavingServer(known.answers, text=lambda sent: known.write(model.text(sent)))
    async with server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "k-1")
        name = "openai-chat:stub" if known.api == "chat" else "openai-responses:stub"
        model = Asked(resolve(name))
        skip_waits(limiter_for(model.account))
        store = SqliteStore(":memory:")
        sources = [consilience.Source(text=CODE, name="app/store.py")] if protocol == "review" else []
        report = await consilience.deliberate(
            "Keep it?", PROTOCOLS[protocol], model=model, store=store, sources=sources
        )
        await model.close()
    printed = markdown(report)
    assert [words for words in NEVER_SHOWN if words in printed + report.model_dump_json()] == []
    events = list(store.read(report.session))
    asked = {
        f"{event.key} {event.attempt}": event for event in events if isinstance(event, CallCompleted | ReplyRejected)
    }
    failed = [event for event in events if isinstance(event, CallFailed)]
    outcomes = {known.outcome_of(typed=True), known.outcome_of(typed=False)}
    if outcomes == {"text"}:
        assert failed == []
        assert [event.error for event in asked.values() if isinstance(event, ReplyRejected)] == []
        assert sum(answer.holds_text for answer in server.sent) == len(asked)
        assert report.missing == ()
    elif outcomes <= {FailureKind.SERVER, FailureKind.RATE_LIMITED, FailureKind.REJECTED, FailureKind.REFUSED}:
        assert {event.failure for event in failed} == outcomes
        said = [event.detail for event in failed]
        assert known.says in said[0]
        assert all(known.says in detail or "The provider asks to wait" in detail for detail in said), said
        assert Counter(type(event) for event in asked.values()) == {}
    else:
        assert sum(answer.holds_text for answer in server.sent) <= len(asked)
