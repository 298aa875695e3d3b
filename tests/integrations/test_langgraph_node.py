"""Any protocol as a node of a LangGraph graph: what it reads and writes, and that a visit is paid for once."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send
from pydantic import BaseModel

import consilience
from consilience.domain.errors import RateLimited, SettingsError
from consilience.domain.messages import Source
from consilience.integrations.langgraph import protocol_node
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Solo, Vote
from consilience.testing import ScriptedModel

THREAD: Any = {"configurable": {"thread_id": "one"}}
VOTE = Vote(votes=3, answer_pattern="yes|no")


class State(TypedDict, total=False):
    task: str
    documents: list[Any]
    answer: str | None
    report: dict[str, Any]
    turns: int


def voting(request: ModelRequest) -> str:
    return "no" if request.agent == "V2" else "yes"


def graph_of(node: Any, *, state: Any = State, retry: RetryPolicy | None = None, **options: Any) -> Any:
    built: Any = StateGraph(state)
    built.add_node("deliberate", node, retry_policy=retry)
    built.add_edge(START, "deliberate")
    built.add_edge("deliberate", END)
    return built.compile(**options)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "invoke inside a loop"])
async def test_node_writes_answer_and_report_to_the_state(way: str, store: SqliteStore) -> None:
    graph = graph_of(protocol_node(VOTE, model=ScriptedModel(voting), store=store))
    fields = {"task": "Is it so?"}
    if way == "ainvoke":
        state = await graph.ainvoke(fields)
    elif way == "invoke":
        import asyncio

        state = await asyncio.to_thread(graph.invoke, fields)
    else:
        state = graph.invoke(fields)
    assert state["answer"] == "yes"
    report = consilience.VoteReport.model_validate(state["report"])
    assert report.task == "Is it so?"
    assert report.dissent[0].agent == "V2"
    assert (await consilience.replay(report.session, store=store)).digest() == report.digest()


def test_node_uses_other_keys_and_object_states(store: SqliteStore) -> None:
    class Asked(BaseModel):
        question: str
        notes: tuple[str, ...] = ()
        verdict: str | None = None

    model = ScriptedModel(["It is."])
    node = protocol_node(
        Solo(),
        model=model,
        task=lambda state: f"{state.question} In one sentence.",
        sources=lambda state: [Source(note) for note in state.notes],
        answer="verdict",
        report=None,
        store=store,
    )
    state = graph_of(node, state=Asked).invoke({"question": "Is it so?", "notes": ["It was so in May."]})
    assert state["verdict"] == "It is."
    assert "Is it so? In one sentence." in model.requests[0].text
    assert "It was so in May." in model.requests[0].text


def test_document_path_in_the_state_is_read_and_plain_text_refused(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("It was so in May.")
    model = ScriptedModel(lambda request: "It is.")
    graph = graph_of(protocol_node(Solo(), model=model, sources="documents", store=store))
    for refused in ([str(tmp_path / "notes.txt")], str(tmp_path / "notes.txt")):
        with pytest.raises(SettingsError, match="neither a Source nor a path"):
            graph.invoke({"task": "Is it so?", "documents": refused})
    assert model.requests == []
    assert graph.invoke({"task": "Is it so?", "documents": [tmp_path / "notes.txt"]})["answer"] == "It is."
    assert "1| It was so in May." in model.requests[0].text


def test_node_works_outside_a_graph(store: SqliteStore) -> None:
    node = protocol_node(Solo(), model=ScriptedModel(["It is.", "It is not."]), store=store)
    assert node.invoke({"task": "Is it so?"})["answer"] == "It is."
    assert node.invoke({"task": "Is it so?"})["answer"] == "It is not.", "outside a graph each call is a session"


def crashing_once(at: str) -> tuple[ScriptedModel, list[str]]:
    """A model whose process falls over at one call, once."""
    fallen: list[str] = []

    def reply(request: ModelRequest) -> str:
        if request.key == at and not fallen:
            fallen.append(request.key)
            raise RuntimeError("the process falls over")
        return voting(request)

    return ScriptedModel(reply), fallen


async def test_retry_of_a_node_repeats_no_completed_call(store: SqliteStore) -> None:
    """The votes are there when the call after them breaks off; the retry asks that one only."""
    protocol = consilience.Emergence(children=2, max_rounds=1)
    model, fallen = crashing_once("round-1/observe/L1N1")
    retry = RetryPolicy(initial_interval=0.0, max_attempts=2, jitter=False, retry_on=RuntimeError)
    graph = graph_of(protocol_node(protocol, model=model, store=store), retry=retry)
    state = await graph.ainvoke({"task": "Is it so?"})
    assert fallen
    assert state["answer"] == "yes"
    assert [r.key for r in model.requests].count("round-1/observe/L1N1") == 2
    assert len(model.requests) == 6
    assert len(store.sessions()) == 1
    assert any("lost" in warning for warning in state["report"]["incidents"]), "what was in flight is reported"


async def test_graph_resumed_from_a_checkpoint_resumes_the_session(store: SqliteStore) -> None:
    protocol = consilience.Emergence(children=2, max_rounds=1)
    model, _ = crashing_once("round-1/observe/L1N1")
    graph = graph_of(protocol_node(protocol, model=model, store=store), checkpointer=InMemorySaver())
    with pytest.raises(RuntimeError, match="falls over"):
        await graph.ainvoke({"task": "Is it so?"}, THREAD)
    assert len(model.requests) == 5
    state = await graph.ainvoke(None, THREAD)
    assert state["answer"] == "yes"
    assert len(model.requests) == 6
    assert len(store.sessions()) == 1


def test_every_visit_of_a_node_is_a_new_session(store: SqliteStore) -> None:
    """A loop, a thread used again, and nodes fanned out: the same task, deliberated anew each time."""
    model = ScriptedModel(lambda request: f"{len(model.requests)}")

    class Looped(State, total=False):
        answers: Annotated[list[str], operator.add]

    built: Any = StateGraph(Looped)
    built.add_node("deliberate", protocol_node(Solo(), model=model, store=store, report=None))
    built.add_node("keep", lambda state: {"answers": [state["answer"]], "turns": state.get("turns", 0) + 1})
    built.add_edge(START, "deliberate")
    built.add_edge("deliberate", "keep")
    built.add_conditional_edges("keep", lambda state: "deliberate" if state["turns"] % 2 else END)
    graph = built.compile(checkpointer=InMemorySaver())
    assert graph.invoke({"task": "Is it so?"}, THREAD)["answers"] == ["1", "2"]
    assert graph.invoke({"task": "Is it so?"}, THREAD)["answers"] == ["1", "2", "3", "4"]
    fanned: Any = StateGraph(Looped)
    node = protocol_node(Solo(), model=model, store=store, answer="answers", report=None)
    fanned.add_node("deliberate", node | (lambda update: {"answers": [update["answers"]]}))
    fanned.add_conditional_edges(START, lambda state: [Send("deliberate", state) for _ in range(3)], ["deliberate"])
    assert sorted(fanned.compile().invoke({"task": "Is it so?"})["answers"]) == ["5", "6", "7"]


async def test_named_session_refuses_another_task(store: SqliteStore) -> None:
    model = ScriptedModel(["It is."])
    node = protocol_node(Solo(), model=model, store=store, session=lambda state, config: "mine")
    graph = graph_of(node)
    assert (await graph.ainvoke({"task": "Is it so?"}))["answer"] == "It is."
    assert (await graph.ainvoke({"task": "Is it so?"}))["answer"] == "It is."
    with pytest.raises(SettingsError, match="session mine is recorded with another task"):
        await graph.ainvoke({"task": "Is it not so?"})
    other = protocol_node(Solo(structured=True), model=model, store=store, session=lambda state, config: "mine")
    with pytest.raises(SettingsError, match="session mine is recorded with other settings"):
        await graph_of(other).ainvoke({"task": "Is it so?"})


@pytest.mark.parametrize("state", [{}, {"task": "  "}, {"task": ["Is it so?"]}])
def test_node_without_task_names_the_key(state: dict[str, Any], store: SqliteStore) -> None:
    graph = graph_of(protocol_node(Solo(), model=ScriptedModel([]), store=store))
    with pytest.raises(SettingsError, match=r"no task to deliberate.*the key 'task' of the graph's state"):
        graph.invoke({"turns": 1, **state})


async def test_run_without_an_answer_raises_no_exception(store: SqliteStore) -> None:
    model = ScriptedModel(lambda request: RateLimited("busy"))
    graph = graph_of(protocol_node(Solo(), model=model, store=store))
    state = await graph.ainvoke({"task": "Is it so?"})
    assert state["answer"] is None
    assert state["report"]["stop_reason"] == "failed"


async def test_events_are_streamed_during_the_run(store: SqliteStore) -> None:
    graph = graph_of(protocol_node(VOTE, model=ScriptedModel(voting), store=store))
    seen = [part["consilience"]["type"] async for part in graph.astream({"task": "Is it so?"}, stream_mode="custom")]
    assert seen[0] == "session_started"
    assert seen.count("call_completed") == 3
    assert seen[-1] == "session_finished"
    heard = [part["consilience"]["type"] for part in graph.stream({"task": "Is it so?"}, stream_mode="custom")]
    assert sorted(heard) == sorted(seen)


async def test_person_interrupts_the_graph(store: SqliteStore) -> None:
    model: Any = {"V1": ScriptedModel(voting), "V2": "human", "V3": "human:Ada"}
    graph = graph_of(protocol_node(VOTE, model=model, store=store), checkpointer=InMemorySaver())
    state = await graph.ainvoke({"task": "Is it so?"}, THREAD)
    (interrupt,) = state["__interrupt__"]
    keys = sorted(interrupt.value["questions"])
    assert [interrupt.value["questions"][key]["agent"] for key in keys] == ["V2", "V3"]
    state = await graph.ainvoke(Command(resume={keys[0]: "no"}), THREAD)
    assert sorted(state["__interrupt__"][0].value["questions"]) == keys[1:]
    state = await graph.ainvoke(Command(resume={keys[1]: "no"}), THREAD)
    assert state["answer"] == "no"


async def test_answer_under_an_unknown_key_is_an_error(store: SqliteStore) -> None:
    model: Any = {"V1": ScriptedModel(voting), "V2": "human", "V3": "human:Ada"}
    graph = graph_of(protocol_node(VOTE, model=model, store=store), checkpointer=InMemorySaver())
    state = await graph.ainvoke({"task": "Is it so?"}, THREAD)
    first, second = sorted(state["__interrupt__"][0].value["questions"])

    async def resumed(answers: dict[str, str]) -> dict[str, Any]:
        state: dict[str, Any] = await graph.ainvoke(Command(resume=answers), THREAD)
        return state

    state = await resumed({"V2": "no"})
    assert state["__interrupt__"][0].value["error"] == (
        f"no question waits under 'V2'; answers are awaited under {first!r}, {second!r}"
    )
    state = await resumed({first: "no", "V3": "no"})
    value = state["__interrupt__"][0].value
    assert list(value["questions"]) == [second], "what fits is taken"
    assert value["error"] == f"no question waits under 'V3'; answers are awaited under {second!r}"
    state = await resumed({second: "no"})
    assert state["answer"] == "no"
