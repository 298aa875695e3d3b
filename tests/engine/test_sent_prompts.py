"""The prompt of a recorded call, shown as the model was sent it."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.deliberation import Deliberation
from consilience.domain.errors import PromptFailed, SettingsError, UnknownName, VersionMismatch
from consilience.domain.outcome import Limits
from consilience.domain.report import Report
from consilience.engine.faults import Crash, Fault
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.engine.sent_prompts import SentPrompt
from consilience.engine.session import Session
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Solo
from consilience.protocols.baselines.report import SoloReport
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.debate import Debate
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.testing import AnyModel, ScriptedModel, ServerError
from kit import runner


async def sent(store: SqliteStore, key: str, session: str = "s") -> list[SentPrompt]:
    before = len(store.read(session))
    prompts = await Deliberation[Report](store=store).sent_prompts(session, key)
    assert len(store.read(session)) == before, "it records nothing"
    return prompts


@pytest.mark.parametrize(
    "protocol",
    [Emergence(max_rounds=2), Debate(), Broadcast(), Refinement(), Solo(reviews=1)],
    ids=lambda p: str(p.name),
)
async def test_sent_prompts_equal_the_requests_of_the_run(protocol: Protocol) -> None:
    model, store = AnyModel(malformed=0.3), SqliteStore(":memory:")
    await runner.start("Should it rain?", protocol, models=model, store=store, session="s")
    for key in {request.key for request in model.requests[:: max(len(model.requests) // 4, 1)]}:
        requests = [request for request in model.requests if request.key == key]
        prompts = await sent(store, key)
        assert [(p.agent, p.attempt, p.system, p.user, p.schema, p.sent) for p in prompts] == [
            (r.agent, r.attempt, r.system, r.user, r.schema, True) for r in requests
        ]
    store.close()


async def test_sent_prompts_of_an_unfinished_session_are_found_without_the_failing_call(tmp_path: Path) -> None:
    (tmp_path / "lateral.j2").write_text("{{ seat.nothing }}")
    model, store = AnyModel(), SqliteStore(":memory:")
    with pytest.raises(PromptFailed):
        await runner.start("Why?", Emergence(), models=model, store=store, session="s", prompts=tmp_path)
    (prompt,) = await sent(store, model.requests[0].key)
    assert prompt.user == model.requests[0].user
    store.close()


async def test_sent_prompts_tell_a_call_that_a_limit_refused_from_one_that_was_sent() -> None:
    model, store = AnyModel(), SqliteStore(":memory:")
    await runner.start("Why?", Emergence(), models=model, store=store, session="s", limits=Limits(calls=5))
    refused = next(event for event in store.read("s") if event.type == "call_failed")
    assert [prompt.sent for prompt in await sent(store, refused.key)] == [False]
    assert [prompt.sent for prompt in await sent(store, model.requests[0].key)] == [True]
    store.close()


async def test_sent_prompt_of_an_inherited_call_is_that_of_the_parent() -> None:
    model, store = AnyModel(), SqliteStore(":memory:")
    await runner.start("Why?", Emergence(max_rounds=1), models=model, store=store, session="s")
    await runner.fork("s", store=store, models=model, session="f", settings={"max_rounds": 2})
    (prompt,) = await sent(store, model.requests[0].key, "f")
    assert (prompt.session, prompt.user) == ("s", model.requests[0].user)
    own = next(request for request in model.requests if request.session == "f")
    assert (await sent(store, own.key, "f"))[0].user == own.user
    store.close()


async def test_sent_prompts_of_a_call_that_a_fork_made_again_are_those_of_the_fork() -> None:
    def failing(request: ModelRequest) -> object:
        return ServerError("down") if request.key == "round-1/leaf_respond/L2N1" else None

    made, store = AnyModel(), SqliteStore(":memory:")
    broken = ScriptedModel(lambda request: failing(request) or "I say so.")
    await runner.start("Why?", Emergence(max_rounds=1), models=broken, store=store, session="s")
    await runner.fork("s", store=store, models=made, session="f", at="end")
    again = next(request for request in made.requests if "/observe/" in request.key)
    (prompt, *_) = await sent(store, again.key, "f")
    assert (prompt.session, prompt.user) == ("f", again.user)
    store.close()


async def test_sent_prompts_before_an_exception_of_the_protocol_are_found() -> None:
    class Breaking(Solo):
        async def run(self, session: Session) -> SoloReport:
            await super().run(session)
            raise ValueError("a defect of the protocol")

    model, store = AnyModel(), SqliteStore(":memory:")
    with pytest.raises(ValueError, match="a defect"):
        await runner.start("Why?", Breaking(), models=model, store=store, session="s")
    (prompt, *_) = await sent(store, model.requests[0].key)
    assert prompt.user == model.requests[0].user
    store.close()


async def test_sent_prompts_of_an_unknown_key_name_similar_ones() -> None:
    model, store = AnyModel(), SqliteStore(":memory:")
    await runner.start("Why?", Emergence(max_rounds=1), models=model, store=store, session="s")
    with pytest.raises(UnknownName, match=r"no call 'leaf_respond/L2N1'\. Similar keys: round-1/leaf_respond/L2N1, "):
        await sent(store, "leaf_respond/L2N1")
    store.close()


@pytest.mark.parametrize(("tokens", "nth"), [(25_000, 4), (40_000, 9), (80_000, 6)])
async def test_sent_prompts_of_calls_that_waited_for_budget_beside_an_interrupted_call_are_found(
    tokens: int, nth: int, tmp_path: Path
) -> None:
    model, path = AnyModel(malformed=0.4), tmp_path / "j.db"
    options, limits = Options(faults=Fault("after_commit", nth=nth).hit), Limits(tokens=tokens)
    with pytest.raises(Crash):
        await runner.start(
            "Why?", Broadcast(), models=model, store=SqliteStore(path), session="s", limits=limits, options=options
        )
    store = SqliteStore(path)
    for request in model.requests:
        prompts = {prompt.attempt: prompt for prompt in await sent(store, request.key)}
        assert (prompts[request.attempt].user, prompts[request.attempt].sent) == (request.user, True)
    store.close()


async def test_sent_prompts_of_a_session_of_another_version_name_what_can_be_read() -> None:
    model, store = AnyModel(), SqliteStore(":memory:")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Solo, "version", 0)
        await runner.start("Why?", Solo(), models=model, store=store, session="s")
    with pytest.raises(VersionMismatch) as caught:
        await sent(store, model.requests[0].key)
    assert "written by version 0 of solo; this is" in str(caught.value)
    assert "Install that version" in str(caught.value)
    assert "consilience export s --out s.html" in str(caught.value)
    assert "fork" not in str(caught.value), "a fork has prompts of its own"
    store.close()


async def test_sent_prompts_of_a_session_without_a_start_say_that_nothing_was_recorded() -> None:
    store = SqliteStore(":memory:")
    await store.create("s").close()
    with pytest.raises(SettingsError, match=r"s was interrupted before its start was recorded.*Run its task again"):
        await sent(store, "answer/S1")
    store.close()
