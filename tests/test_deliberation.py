"""One configured object: it runs, streams, prepares, resumes, replays, forks and takes up sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import consilience
from consilience.deliberation import Deliberation
from consilience.domain.errors import SettingsError, UnknownName, UserError
from consilience.domain.events import CallCompleted, CallStarted, SessionFinished, canonical_digest
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.report import Report
from consilience.engine.execution import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.protocols.baselines import Solo
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.emergence import Emergence, EmergenceReport
from consilience.testing import ScriptedModel

TASK = "Is it so?"
NOTE = Source(text="It was so in May.", name="note.txt")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


TREE = Emergence(children=2, max_rounds=1)
PROPOSAL = {
    "personas": [
        {"name": "Driver", "description": "You drive the train and ask what breaks first."},
        {"name": "Mayor", "description": "You answer to those who pay and ask who gains."},
    ]
}


def speaking() -> ScriptedModel:
    return ScriptedModel(lambda request: f"{request.agent} has a view of {request.key}.")


def deliberation(store: SqliteStore, model: ScriptedModel | None = None) -> Deliberation[EmergenceReport]:
    return Deliberation(TREE, model=model or speaking(), panel="markets", sources=[NOTE], store=store)


async def test_one_deliberation_runs_several_sessions(store: SqliteStore) -> None:
    model = speaking()
    panel = deliberation(store, model)
    first = await panel.run(TASK, session="first")
    second = panel.run_sync("Is it otherwise?", session="second")
    assert isinstance(first, EmergenceReport)
    assert store.sessions() == ["first", "second"]
    assert first.answer
    assert second.answer
    assert {request.key for request in model.requests} == {call.key for call in completed(store, "first")}
    assert all("It was so in May." in request.text for request in model.requests)


async def test_stream_yields_every_event_then_returns_the_report(store: SqliteStore) -> None:
    live = deliberation(store).stream(TASK, session="s")
    events = [event async for event in live]
    recorded = [event for event in events if not isinstance(event, CallStarted)]
    assert [event.seq for event in recorded] == [event.seq for event in store.read("s")]
    assert (await live.report()).digest() == (await deliberation(store).replay("s")).digest()


async def test_stream_raises_the_error_that_ended_the_run(store: SqliteStore) -> None:
    with pytest.raises(SettingsError, match="the task is empty"):
        await anext(aiter(deliberation(store).stream(" ")))


async def test_stream_left_early_stops_the_run_which_resumes(store: SqliteStore) -> None:
    model = speaking()
    live = deliberation(store, model).stream(TASK, session="s")
    events = aiter(live)
    async for event in events:
        if isinstance(event, CallCompleted):
            break
    await events.aclose()  # type: ignore[attr-defined]
    asked = len(model.requests)
    assert asked > 0
    assert not any(isinstance(event, SessionFinished) for event in store.read("s"))
    with pytest.raises(UserError, match="was stopped before its end"):
        await live.report()
    assert (await deliberation(store).resume("s")).answer


async def test_prepared_session_makes_no_call_until_it_is_resumed_in_another_store(tmp_path: Path) -> None:
    model = speaking()
    first, second = SqliteStore(tmp_path / "j.db"), SqliteStore(tmp_path / "j.db")
    try:
        session = await deliberation(first, model).prepare(TASK, session="later")
        assert (session, model.requests) == ("later", [])
        assert first.holder("later") is None, "it is free to be taken by any process"
        report = await deliberation(second, model).resume(session)
        assert report.answer
        whole = await deliberation(second).run(TASK, session="at once")
        assert canonical_digest(second.read("later")) == canonical_digest(second.read("at once"))
        assert report.answer == whole.answer
    finally:
        first.close()
        second.close()


async def test_run_or_resume_starts_resumes_or_returns_the_session(store: SqliteStore) -> None:
    class Broken(ScriptedModel):
        """Its program ends at the third request."""

        async def complete(self, request: ModelRequest) -> Completion:
            if len(self.requests) == 2:
                raise KeyError(request.key)
            return await super().complete(request)

    broken = Broken(lambda request: f"{request.agent} has a view of {request.key}.")
    with pytest.raises(KeyError):
        await deliberation(store, broken).run_or_resume("s", TASK)
    paid = {event.key for event in completed(store, "s")}
    assert paid
    model = speaking()
    report = await deliberation(store, model).run_or_resume("s", TASK)
    assert not paid & {request.key for request in model.requests}
    silent = ScriptedModel([])
    assert (await deliberation(store, silent).run_or_resume("s", TASK)) == report
    prepared = await deliberation(store).prepare(TASK, session="p")
    assert (await deliberation(store).run_or_resume(prepared, TASK)).answer == report.answer


async def test_session_of_another_protocol_is_refused_unless_no_protocol_is_given(store: SqliteStore) -> None:
    report = await deliberation(store).run(TASK, session="s")
    other = Deliberation(Solo(), model=speaking(), store=store)
    for begun in (other.resume("s"), other.replay("s"), other.fork("s", at=0)):
        with pytest.raises(SettingsError, match="session s is of the protocol emergence, not solo"):
            await begun
    assert (await Deliberation[Report](store=store).replay("s")).digest() == report.digest()
    with pytest.raises(SettingsError, match="is not a protocol"):
        await Deliberation[Report](store=store).run(TASK)


async def test_fork_with_other_documents_and_task_shows_them_to_later_calls_only(
    store: SqliteStore,
) -> None:
    before = await deliberation(store).run(TASK, session="p")
    model = speaking()
    added, corrected = Source("It rained.", "weather.txt"), NOTE.model_copy(update={"text": "It was so in June."})
    report = await deliberation(store, model).fork(
        "p", at="leaf_respond/1", sources=[added, corrected], task="Will it be so?", name="f"
    )
    kept = {event.key for event in completed(store, "f") if event.inherited}
    assert kept == {event.key for event in completed(store, "p") if event.phase == ("leaf_respond", 1)}
    assert not kept & {request.key for request in model.requests}
    assert model.requests
    for request in model.requests:
        assert "Will it be so?" in request.text
        assert "document S1>\nnote.txt\n1| It was so in June." in request.text
        assert "document S2>\nweather.txt\n1| It rained." in request.text
        assert "May" not in request.text
    assert report.parent == before.session
    started = store.beginning("f")
    assert started is not None
    assert [(ref.id, ref.name, ref.generations) for ref in started.sources] == [
        ("S1", "note.txt", 0),
        ("S2", "weather.txt", 0),
    ]
    again = await deliberation(store).fork("f", at=0, name="g")
    assert again.answer
    started = store.beginning("g")
    assert started is not None
    assert [ref.generations for ref in started.sources] == [1, 1]
    assert (await deliberation(store).replay("f")).digest() == report.digest()


async def test_panel_auto_proposes_a_panel_within_the_limits(store: SqliteStore) -> None:
    def reply(request: ModelRequest) -> str:
        return json.dumps(PROPOSAL) if request.returns is not None and "personas" in str(request.schema) else "A view."

    model = ScriptedModel(reply)
    auto = Deliberation(TREE, model=model, panel="auto", limits=Limits(calls=40), store=store)
    report = await auto.run(TASK)
    assert [agent.persona for agent in report.agents if agent.persona] == ["Driver", "Mayor"]
    assert len(store.sessions()) == 2
    started = store.beginning(report.session)
    assert started is not None
    assert started.limits.calls == 39
    with pytest.raises(SettingsError, match="a panel is proposed only when a session is run"):
        await auto.prepare(TASK)


def completed(store: SqliteStore, session: str) -> list[CallCompleted]:
    return [event for event in store.read(session) if isinstance(event, CallCompleted)]


@pytest.mark.parametrize(
    ("what", "changed", "sources"),
    [
        ("other documents", {}, [Source(text="It was not so in May.", name="note.txt")]),
        ("other documents", {}, []),
        ("other documents", {}, [NOTE.model_copy(update={"agents": ("L2N1",)})]),
        ("other limits", {"limits": Limits(calls=20)}, [NOTE]),
        ("another quorum", {"quorum": 0.75}, [NOTE]),
        ("another panel", {"panel": "writing"}, [NOTE]),
        ("another panel", {"panel": None}, [NOTE]),
        ("another seed", {"seed": 1}, [NOTE]),
        ("another protocol", {"protocol": Solo()}, [NOTE]),
        ("other settings", {"protocol": Broadcast(children=2, max_iterations=3)}, [NOTE]),
    ],
)
async def test_run_or_resume_of_another_deliberations_session_is_refused(
    what: str, changed: dict[str, object], sources: list[Source], store: SqliteStore
) -> None:
    model = ScriptedModel(lambda request: '{"rating": "good", "text": "It is."}')
    limits = Limits(calls=40)
    how = Deliberation(Broadcast(children=2), model=model, panel="markets", sources=[NOTE], limits=limits, store=store)
    report = await how.run_or_resume("mine", TASK)
    asked = len(model.requests)
    assert (await how.run_or_resume("mine", TASK)).digest() == report.digest()
    with pytest.raises(SettingsError, match=f"session mine is recorded with {what}"):
        await replace(how, sources=sources, **changed).run_or_resume("mine", TASK)  # type: ignore[arg-type]
    assert len(model.requests) == asked


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": None}, {"at": 1.5}, {"settings": 3}, {"settings": {1: 2}}, {"replace": ["local"]}, {"task": 3}, {"name": 3},
        {"perspectives": {"A1": 3}}, {"session": None}, {"session": ["s"]}, {"session": "\ud800"},
    ],
)  # fmt: skip
async def test_invalid_argument_of_fork_is_a_user_error(store: SqliteStore, wrong: dict[str, Any]) -> None:
    panel = Deliberation(Solo(), model=ScriptedModel(["yes"]), store=store)
    await panel.run("Is it so?", session="s")
    with pytest.raises(SettingsError):
        await panel.fork(**{"session": "s", **wrong})
    assert store.sessions() == ["s"]


@pytest.mark.parametrize("id", [None, 3, ["s"], "\ud800"])
async def test_invalid_session_id_is_a_user_error(store: SqliteStore, id: Any) -> None:
    panel = Deliberation(store=store)
    for method in (panel.resume, panel.replay):
        with pytest.raises(SettingsError):
            await method(id)


@pytest.mark.parametrize("wrong", [{"repairs": "x"}, {"repairs": 1.5}, {"thinking": []}])
def test_option_of_a_wrong_type_is_a_user_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Options(**wrong)


def test_sessions_are_resumed_replayed_and_forked_without_await(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sync.db")
    model = ScriptedModel(lambda request: "Yes, it should.")
    how = consilience.Deliberation(consilience.Solo(), model=model, store=store)
    report = how.run_sync("Should it?")
    assert how.resume_sync(report.session) == consilience.resume_sync(report.session, store=store) == report
    assert how.replay_sync(report.session).digest() == report.digest()
    assert consilience.replay_sync(report.session, store=store).digest() == report.digest()
    for forked in (
        how.fork_sync(report.session, at=0),
        consilience.fork_sync(report.session, store=store, model=model),
    ):
        assert forked.answer == "Yes, it should."
        assert forked.session != report.session


async def test_blocking_methods_inside_a_running_loop_work(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sync.db")
    how = consilience.Deliberation(consilience.Solo(), model=ScriptedModel(lambda request: "Yes."), store=store)
    report = await how.run("Should it?")
    assert how.replay_sync(report.session).digest() == report.digest()
    assert consilience.resume_sync(report.session, store=store) == report


def test_invalid_arguments_are_refused_before_any_call(tmp_path: Path) -> None:
    model, store = ScriptedModel([]), SqliteStore(tmp_path / "none.db")
    how = consilience.Deliberation(consilience.Solo(), model=model, store=store)
    with pytest.raises(SettingsError, match="the id is empty"):
        how.run_sync("Should it?", session="")
    private = replace(how, sources=(Source(text="A secret.", agents=("ZZ",)),))
    with pytest.raises(UnknownName, match=r"there is no agent 'ZZ'.*Agents: S1"):
        private.run_sync("Should it?")
    with pytest.raises(SettingsError, match="observer must be callable, not 3"):
        Options(observer=3)  # type: ignore[arg-type]
    assert model.requests == []
    assert store.sessions() == []
