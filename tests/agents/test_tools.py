"""A pydantic-ai agent with tools in a seat: each step is recorded and none is repeated."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

import agents.tooled
import consilience
from agents.tooled import TASK, counting, others, seats
from consilience import Limits, ToolAgent
from consilience.domain.errors import RequestMismatch, SettingsError, UnavailableModel
from consilience.domain.events import CallCompleted, CallFailed, StepCompleted, canonical_digest
from consilience.domain.outcome import FailureKind
from consilience.engine.faults import Crash, Fault
from consilience.engine.recorder import Recorder
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.registry import resolve
from consilience.reporting.session_state import fold_events
from consilience.testing import ScriptedModel
from kit import forks
from kit.throwaways import OutsideAgent
from models.misbehaving import Answer, completion, misbehaving

TESTS = Path(agents.tooled.__file__).parent.parent
KEY = "say/A2"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def steps(store: SqliteStore) -> list[StepCompleted]:
    return [event for event in store.read("s") if isinstance(event, StepCompleted)]


async def deliberate(agent: object, store: SqliteStore, **given: object) -> consilience.Report:
    models = {"A1": others(), "A2": agent, "A3": others()}
    return await consilience.deliberate(TASK, OutsideAgent(), model=models, store=store, session="s", **given)  # type: ignore[arg-type]


async def test_each_step_is_recorded_under_its_own_key(store: SqliteStore, tmp_path: Path) -> None:
    report = await deliberate(counting(tmp_path), store)
    recorded = {event.key: event for event in steps(store)}
    assert sorted(recorded) == [
        f"{KEY}/step-1",
        f"{KEY}/step-1/tool-1",
        f"{KEY}/step-1/tool-2",
        f"{KEY}/step-2",
        f"{KEY}/step-2/tool-1",
        f"{KEY}/step-3",
    ]
    assert store.text(recorded[f"{KEY}/step-1/tool-2"].text) == "7 things at shelf 1"
    (call,) = [e for e in store.read("s") if isinstance(e, CallCompleted) and e.key == KEY]
    assert store.text(call.text) == "It holds 7 things at shelf 0, 7 things at shelf 1, 7 things at shelf 2."
    assert (call.steps, call.requests) == (3, 3)
    assert call.tokens_in == sum(event.tokens_in for event in recorded.values()) > 0
    assert {agent.id: agent.model for agent in report.agents}["A2"] == "agent:counter"
    spent = report.ledger.actual
    assert (spent.calls, spent.requests, spent.retries) == (6, 6, 0)
    assert fold_events(store.read("s")).made == 6
    assert report.ledger.estimated.max == 4 * 8, "its most steps enter the estimate"
    before = lines(tmp_path / "requests")
    assert (await consilience.replay("s", store=store)).digest() == report.digest()
    assert lines(tmp_path / "requests") == before, "a replay makes none"


async def test_two_runs_have_the_same_canonical_journal(tmp_path: Path) -> None:
    """Ids of tool calls are made anew in every run, and leave no trace."""
    digests = set()
    for name in "ab":
        store = SqliteStore(tmp_path / f"{name}.db")
        await deliberate(counting(tmp_path), store)
        digests.add(canonical_digest(store.read("s")))
        store.close()
    assert len(digests) == 1


@pytest.mark.parametrize("nth", range(1, 7))
async def test_kill_between_steps_repeats_no_completed_step(nth: int, tmp_path: Path) -> None:
    """Killed right after the nth step was recorded (or another's call; the tool's own result, too), as soon as all that was done
    is on record: what is in flight may well be done again."""
    path, directory = tmp_path / "j.db", tmp_path
    seen = 0

    def nothing_in_flight() -> bool:
        kinds = Counter(event.kind for event in store.read("s") if isinstance(event, StepCompleted))
        return (kinds["model"], kinds["tool"]) == (len(lines(directory / "requests")), len(lines(directory / "uses")))

    def count(point: str, phase: object) -> None:
        nonlocal seen
        if point == "after_commit" and len(lines(directory / "requests")):
            seen += 1
            if seen >= nth and nothing_in_flight():
                raise Crash

    store = SqliteStore(path)
    with pytest.raises(Crash):
        await deliberate(counting(directory), store, options=Options(faults=count))
    store = SqliteStore(path)
    report = await consilience.resume("s", model=seats(directory), store=store)  # type: ignore[arg-type]
    assert Counter(lines(directory / "uses")) == {"shelf 0": 1, "shelf 1": 1, "shelf 2": 1}
    assert len(lines(directory / "requests")) == 3
    assert report.ledger.actual.requests == 6
    assert (await consilience.replay("s", store=store)).digest() == report.digest()
    store.close()


async def test_steps_of_a_failed_call_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after two requests of the agent with tools, and taken up when the time is over."""
    path = tmp_path / "j.db"

    def kill(point: str, phase: object) -> None:
        if point == "after_commit" and len(lines(tmp_path / "uses")) == 3:
            raise Crash

    store = SqliteStore(path)
    with pytest.raises(Crash):
        await deliberate(counting(tmp_path), store, limits=Limits(seconds=3600), options=Options(faults=kill))
    store = SqliteStore(path)
    monkeypatch.setattr(Recorder, "now", lambda recorder: 4000.0)
    report = await consilience.resume("s", model=seats(tmp_path), store=store)  # type: ignore[arg-type]
    steps = [event for event in store.read("s") if isinstance(event, StepCompleted) and event.kind == "model"]
    others = [event for event in store.read("s") if isinstance(event, CallCompleted)]
    (refused,) = [event for event in store.read("s") if isinstance(event, CallFailed) and event.agent == "A2"]
    assert (refused.failure, refused.requests, len(steps)) == (FailureKind.TIME, 2, 2)
    spent = report.ledger.actual
    assert spent.requests == 2 + len(others)
    assert spent.tokens_in == sum(event.tokens_in for event in (*steps, *others))
    assert (await consilience.replay("s", store=store)).digest() == report.digest()
    store.close()


def process(journal: Path, directory: Path, how: str, fault: str = "") -> CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), **({"CONSILIENCE_FAULT": fault} if fault else {})}
    command = [sys.executable, agents.tooled.__file__, str(journal), str(directory), how]
    return forks.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize("fault", ["after_commit#4", "after_commit#6", "after_reply#5", "after_reply#7"])
def test_killed_process_repeats_no_completed_step(fault: str, tmp_path: Path) -> None:
    journal = tmp_path / "j.db"
    killed = process(journal, tmp_path, "start", fault)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    store = SqliteStore(journal)
    done = Counter(event.kind for event in steps(store))
    before = {name: len(lines(tmp_path / name)) for name in ("requests", "uses")}
    store.close()
    again = process(journal, tmp_path, "resume")
    assert again.returncode == 0, again.stderr
    repeated = before["requests"] - done["model"], before["uses"] - done["tool"]
    assert len(lines(tmp_path / "requests")) == 3 + repeated[0]
    assert len(lines(tmp_path / "uses")) == 3 + repeated[1]
    assert repeated[0] + bool(repeated[1]) <= 1, "only what was in flight: one request, or tools side by side"
    assert repeated[1] <= 2
    store = SqliteStore(journal)
    assert len(steps(store)) == 6
    assert any(event.type == "call_lost" and event.key == KEY for event in store.read("s"))
    store.close()


async def test_last_step_offers_no_tools(store: SqliteStore, tmp_path: Path) -> None:
    report = await deliberate(ToolAgent(counting(tmp_path, uses=99), max_steps=4), store)
    (call,) = [e for e in store.read("s") if isinstance(e, CallCompleted) and e.key == KEY]
    assert call.steps == 4
    assert store.text(call.text).startswith("It holds 7 things at shelf 0, ")
    assert report.ledger.estimated.max == 4 * 4


@pytest.mark.parametrize("calls", range(17))
async def test_steps_never_exceed_the_budget_and_replay(calls: int, store: SqliteStore, tmp_path: Path) -> None:
    report = await deliberate(ToolAgent(counting(tmp_path), max_steps=4), store, limits=Limits(calls=calls))
    spent = report.ledger.actual
    assert spent.requests <= calls
    assert spent.calls <= report.ledger.estimated.max
    assert (report.answer is not None) == (calls > 0)
    assert (await consilience.replay("s", store=store)).digest() == report.digest()


class Verdict(BaseModel):
    side: Literal["yes", "no"]
    text: str


class Typed(OutsideAgent):
    name = "typed-outside"

    async def run(self, session):  # type: ignore[no-untyped-def]
        from consilience.engine.prompt import Prompt
        from kit.throwaways import close

        reply = await session.ask("A2", Prompt("judge"), key="judge", returns=Verdict)
        return await close(session, [reply], (), reply)


async def test_tool_agent_gets_the_schema_of_a_typed_reply(store: SqliteStore, tmp_path: Path) -> None:
    from consilience.engine.protocol import register

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        (tool,) = info.output_tools
        assert tool.parameters_json_schema["properties"]["side"]["enum"] == ["yes", "no"]
        return ModelResponse(parts=[ToolCallPart(tool.name, {"side": "yes", "text": "Because."})])

    models = {"A1": others(), "A2": Agent(FunctionModel(model)), "A3": others()}
    report = await consilience.deliberate(TASK, register(Typed)(), model=models, store=store)
    assert report.answer == "Because."


def saying(text: str, profile: ModelProfile | None = None) -> Agent[None, str]:
    """Says it whatever it is asked for."""
    return Agent(FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(text)]), profile=profile), name="a")


@pytest.mark.parametrize("profile", [None, ModelProfile(default_structured_output_mode="prompted")])
@pytest.mark.parametrize(
    "said",
    ["Because it is cheap.", 'Here it is:\n```json\n{"points": ["It costs 3."], "text": "Because it is cheap."}\n```'],
)
async def test_prose_fills_the_only_required_text(said: str, profile: ModelProfile | None, store: SqliteStore) -> None:
    scripted = ScriptedModel(lambda request: '{"text": "Yes."}')
    models = {"L1N1": scripted, "L2N1": scripted, "L2N2": saying(said, profile)}
    report = await consilience.deliberate(
        TASK, consilience.Emergence(children=2, max_rounds=1), model=models, store=store, session="s"
    )
    assert report.degraded is None
    assert report.ledger.actual.retries == 0
    asked = [event for event in steps(store) if event.kind == "model"]
    answers = [e for e in store.read("s") if isinstance(e, CallCompleted) and e.agent == "L2N2"]
    assert len(asked) == len(answers) > 0, "one request each"
    first = json.loads(store.text(answers[0].text))
    assert first["text"] == "Because it is cheap."
    assert first.get("points", []) == (["It costs 3."] if "points" in said else [])
    assert (await consilience.replay("s", store=store)).digest() == report.digest()


async def test_prose_never_fills_a_decision(store: SqliteStore) -> None:
    from consilience.engine.protocol import register

    models = {"A1": others(), "A2": saying("Yes, because."), "A3": others()}
    report = await consilience.deliberate(TASK, register(Typed)(), model=models, store=store)
    assert report.answer is None


def failing(what: Exception) -> Agent[None, str]:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("look", {})])
        return ModelResponse(parts=[TextPart("done: " + str(messages[-1].parts[0].content))])  # type: ignore[union-attr]

    agent: Agent[None, str] = Agent(FunctionModel(model), name="failing")

    @agent.tool_plain
    def look() -> str:
        raise what

    return agent


async def test_failing_tool_fails_that_call_only(store: SqliteStore) -> None:
    report = await deliberate(failing(OSError("no such shelf")), store)
    (failed,) = [event for event in store.read("s") if isinstance(event, CallFailed)]
    assert failed.detail == "the tool look failed: OSError: no such shelf"
    assert report.answer is not None
    assert report.ledger.actual.tokens_in >= sum(event.tokens_in for event in steps(store)) > 0, "paid for all the same"
    assert (await consilience.replay("s", store=store)).digest() == report.digest()


async def test_retry_request_of_a_tool_is_recorded(store: SqliteStore) -> None:
    await deliberate(failing(ModelRetry("say where")), store)
    (tool,) = [event for event in steps(store) if event.kind == "tool"]
    assert (tool.form, store.text(tool.text)) == ("retry", "say where")
    (call,) = [e for e in store.read("s") if isinstance(e, CallCompleted) and e.key == KEY]
    assert "say where" in store.text(call.text)


async def test_failing_model_of_a_tool_agent_is_a_typed_failure(store: SqliteStore) -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(401, "none", {"message": "who are you?"})

    await deliberate(Agent(FunctionModel(model)), store)
    (failed,) = [event for event in store.read("s") if isinstance(event, CallFailed)]
    assert failed.failure == "rejected"
    assert failed.requests == 1


async def test_unsupported_request_of_a_test_model_is_not_retried(store: SqliteStore) -> None:
    """It refuses to give words where a form is asked for."""
    scripted = ScriptedModel(lambda request: '{"text": "Yes."}')
    agent = Agent(TestModel(custom_output_text="The archive says yes."), name="a")
    models = {"L1N1": scripted, "L2N1": scripted, "L2N2": agent}
    report = await consilience.deliberate(
        TASK, consilience.Emergence(children=2, max_rounds=1), model=models, store=store, session="s"
    )
    assert report.degraded == "1 of 2 agents; no reply: leaf_respond 1 L2N2 (rejected)"
    assert report.ledger.actual.retries == 0
    (failed,) = [event for event in store.read("s") if isinstance(event, CallFailed)]
    assert "Plain response not allowed" in failed.detail


async def test_key_in_a_step_is_not_recorded(store: SqliteStore) -> None:
    key = "zq7-wintermute-plum-4410"
    answer = completion(f"You sent {key}.").body
    assert isinstance(answer, dict)
    async with misbehaving(Answer(body={**answer, "model": f"of {key}"})) as server:
        model = OpenAIChatModel("stub", provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key=key))
        await deliberate(Agent(model), store)
        await model.client.close()
    (step,) = steps(store)
    assert "You sent ***." in store.text(step.text)
    assert key not in store.text(step.text)


async def test_resume_with_other_tools_is_a_mismatch(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    fault = Fault("after_commit", nth=3)
    with pytest.raises(Crash):
        await deliberate(counting(tmp_path), store, options=Options(faults=fault.hit))
    store = SqliteStore(tmp_path / "j.db")
    if not steps(store):
        pytest.fail("it was killed before its first step")
    other = counting(tmp_path)
    other.tool_plain(lambda: "x", name="another")  # type: ignore[call-overload]
    models = {**seats(tmp_path), "A2": other}
    with pytest.raises(RequestMismatch, match=r"say/A2/step-1.*tools, instructions"):
        await consilience.resume("s", model=models, store=store)  # type: ignore[arg-type]
    store.close()


async def test_invalid_agent_for_a_seat_is_refused(store: SqliteStore) -> None:
    with pytest.raises(SettingsError, match="object is not a model"):
        await deliberate(object(), store)
    with pytest.raises(SettingsError, match="no model"):
        await deliberate(Agent(), store)
    with pytest.raises(UnavailableModel, match="the agent's model openai:gpt-5-mini cannot be set up"):
        await deliberate(Agent("openai:gpt-5-mini", defer_model_check=True), store)
    with pytest.raises(UnavailableModel, match="agent:counter is an agent with tools"):
        resolve("agent:counter")
