"""Every protocol behind a server that cuts prompts in silence, and behind one whose counts only look like it."""

from __future__ import annotations

import pytest

import consilience
from consilience import SqliteStore
from consilience.domain.events import CallFailed
from consilience.domain.outcome import FailureKind, StopReason
from consilience.engine.protocol import Protocol
from consilience.models.registry import resolve
from consilience.protocols.baselines import Solo, Vote
from consilience.protocols.decompose import Decompose
from consilience.reporting.markdown import markdown
from consilience.testing import MisbehavingServer
from kit import runner
from kit.counting import CHINESE, ENGLISH, RUSSIAN, Asked, Counter, counting_server

from .test_known_answers import PROTOCOLS

ALL: dict[str, Protocol] = {**PROTOCOLS, "solo": Solo(), "vote": Vote(votes=2), "decompose": Decompose(children=2)}
TASK = "Keep it?"


def document(sentence: str) -> consilience.Source:
    return consilience.Source(text="\n".join(f"{n}. {sentence}" for n in range(400)), name="notes.md")


def served(counter: Counter) -> tuple[MisbehavingServer, list[Asked]]:
    models: list[Asked] = []
    return counting_server(counter, lambda sent: models[0].text(sent)), models


@pytest.mark.parametrize("protocol", ALL)
async def test_protocol_has_no_answer_from_cut_prompts_and_says_why(protocol: str) -> None:
    counter, store = Counter(4_096), SqliteStore(":memory:")
    server, models = served(counter)
    async with server:
        models.append(Asked(resolve(f"{server.url}/v1#stub")))
        report = await consilience.deliberate(
            TASK, ALL[protocol], model=models[0], store=store, sources=[document(ENGLISH)]
        )
        await models[0].close()
    failed = [event for event in store.read(report.session) if isinstance(event, CallFailed)]
    assert {event.failure for event in failed} == {FailureKind.PROMPT_CUT}
    assert all("the server read 4,096 of about " in event.detail for event in failed)
    assert report.stop_reason is StopReason.FAILED
    printed = markdown(report)
    assert "its context window is smaller than the prompt" in printed
    assert "reply_tokens" not in printed
    assert report.ledger.actual.requests == len(counter.seen) <= len(failed) + 1
    again = await runner.replay(report.session, store=store)
    assert (again.stop_reason, again.failed_calls) == (report.stop_reason, report.failed_calls)


@pytest.mark.matrix(keep=20)
@pytest.mark.parametrize("counts", ["all", "uncached", "nothing"])
@pytest.mark.parametrize("sentence", [ENGLISH, RUSSIAN, CHINESE], ids=["english", "russian", "chinese"])
@pytest.mark.parametrize("protocol", ALL)
async def test_protocol_loses_no_reply_to_a_low_count(protocol: str, sentence: str, counts: str) -> None:
    counter, store = Counter(counts=counts), SqliteStore(":memory:")
    server, models = served(counter)
    async with server:
        models.append(Asked(resolve(f"{server.url}/v1#stub")))
        report = await consilience.deliberate(
            TASK, ALL[protocol], model=models[0], store=store, sources=[document(sentence)]
        )
        await models[0].close()
    assert {call.kind for call in report.failed_calls} <= {FailureKind.MALFORMED}  # its replies are drawn
    assert not [warning for warning in report.incidents if "not counted by the server" in warning]
    assert len(counter.seen) <= report.ledger.actual.calls + 2


async def test_fork_makes_a_call_again_once_the_window_is_larger() -> None:
    counter, store = Counter(4_096), SqliteStore(":memory:")
    server, models = served(counter)
    async with server:
        models.append(Asked(resolve(f"{server.url}/v1#stub")))
        report = await consilience.deliberate(TASK, Solo(), model=models[0], store=store, sources=[document(ENGLISH)])
        counter.window = None
        again = await runner.fork(report.session, store=store, models=models[0])
        await models[0].close()
    assert (report.answer, again.stop_reason, again.failed_calls) == (None, StopReason.SETTLED, ())
