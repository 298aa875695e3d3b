"""`emergence` as a LangGraph graph: the same result as the protocol, and no repeated calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import consilience
from consilience.domain.errors import Rejected, SettingsError
from consilience.domain.events import canonical_digest
from consilience.domain.outcome import Limits
from consilience.integrations.langgraph import emergence_graph
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.emergence import Emergence, EmergenceReport
from consilience.testing import ScriptedModel
from kit import runner
from kit.cases import emergent, well_formed

TASK: Any = {"original_task": "Is it so?"}
SHALLOW = ("leaf_respond", "lateral_leaves", "observe_root", "signal_down", "check_convergence")
DEEP = (
    *("leaf_respond", "lateral_leaves", "observe_L3", "lateral_L3", "observe_L2", "lateral_L2"),
    *("observe_root", "signal_down", "check_convergence"),
)
agreeable = well_formed(emergent)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


def constant(request: ModelRequest) -> str:
    """The root says the same in every round."""
    return "It is so." if request.agent == "L1N1" else agreeable(request)


def only_root_replies(request: ModelRequest) -> str | Exception:
    """Nobody but the root has a model that works."""
    return agreeable(request) if request.agent == "L1N1" else Rejected("no key")


SHAPES = {
    "three leaves": (Emergence(children=3, max_rounds=2), emergent, Limits()),
    "three levels, reviewed": (
        Emergence(children=2, depth=3, max_rounds=3, strange_loops=1, domain_instructions="Be brief."),
        emergent,
        Limits(),
    ),
    "a chain": (Emergence(children=1, depth=4, max_rounds=2), emergent, Limits()),
    "ballots": (Emergence(children=3, max_rounds=4, answer_pattern="yes|no", fallback="vote"), emergent, Limits()),
    "no nudges, texts kept": (
        Emergence(children=2, depth=3, max_rounds=3, signals=False, leaf_reask=False),
        emergent,
        Limits(),
    ),
    "converges": (Emergence(children=2, max_rounds=5), constant, Limits()),
    "converges, judged and reviewed": (
        Emergence(children=2, max_rounds=5, similarity="judge | jaccard", strange_loops=1),
        constant,
        Limits(),
    ),
    "a budget that ends in the second round": (Emergence(children=3, max_rounds=3), emergent, Limits(calls=13)),
    "no budget": (Emergence(children=3), emergent, Limits(calls=0)),
    "no step": (Emergence(children=3), emergent, Limits(steps=0)),
    "no quorum": (Emergence(children=3, depth=3), only_root_replies, Limits()),
}


def test_file_among_the_sources_is_read_once(store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("It was so in May.")
    model = ScriptedModel(agreeable)
    graph = emergence_graph(children=2, max_rounds=1, sources=[file], model=model, store=store)
    file.write_text("It was never so.")
    assert graph.invoke(TASK)["final_response"]
    assert {"1| It was so in May." in request.text for request in model.requests} == {True}
    with pytest.raises(SettingsError, match="neither a Source nor a path"):
        emergence_graph(children=2, sources=[str(file)], model=model)  # type: ignore[list-item]


@pytest.mark.parametrize("shape", SHAPES)
async def test_graph_gives_the_same_journal_and_report_as_one_run(shape: str, store: SqliteStore) -> None:
    protocol, script, limits = SHAPES[shape]
    alone, stepped = ScriptedModel(script), ScriptedModel(script)
    report = await runner.start("Is it so?", protocol, models=alone, store=store, limits=limits)
    assert isinstance(report, EmergenceReport)
    graph = emergence_graph(protocol, model=stepped, store=store, limits=limits)
    state = await graph.ainvoke(TASK)
    assert sorted((r.key, r.attempt) for r in stepped.requests) == sorted((r.key, r.attempt) for r in alone.requests)
    assert {key: state[key] for key in report.final_state()} == report.final_state()
    assert EmergenceReport.model_validate(state["report"]).digest() == report.digest()
    assert canonical_digest(store.read(state["session"])) == canonical_digest(store.read(report.session))
    assert (await consilience.replay(state["session"], store=store)).digest() == report.digest()


@pytest.mark.parametrize(("depth", "order"), [(2, SHALLOW), (4, DEEP)])
def test_graph_nodes_have_the_order_of_the_seed_and_make_their_own_calls(
    depth: int, order: tuple[str, ...], store: SqliteStore
) -> None:
    model = ScriptedModel(agreeable)
    graph = emergence_graph(children=2, depth=depth, max_rounds=2, strange_loops=1, model=model, store=store)
    asked: list[tuple[str, set[str]]] = []
    for update in graph.stream(TASK, stream_mode="updates"):
        (node,) = update
        before = sum(len(keys) for _, keys in asked)
        asked.append((node, {request.key for request in model.requests[before:]}))
    assert [node for node, _ in asked] == ["init", *order, *order, "finalize"]
    for round_number, start in ((1, 1), (2, 1 + len(order))):
        for node, keys in asked[start : start + len(order)]:
            step = {"observe": "observe", "lateral": "lateral", "signal": "signal"}.get(node.partition("_")[0], node)
            assert all(key.startswith(f"round-{round_number}/{step}/") for key in keys), node
            silent = node == "check_convergence" or (node == "signal_down" and round_number == 2)
            assert bool(keys) is not silent, node
    assert asked[0][1] == set()
    assert asked[-1][1] == {"finalize/1"}


def test_state_at_a_node_contains_the_texts_up_to_it(store: SqliteStore) -> None:
    model = ScriptedModel(agreeable)
    graph = emergence_graph(children=2, max_rounds=2, model=model, store=store)
    states = list(graph.stream(TASK, stream_mode="values"))
    first = [state["agent_states"]["L2N1"]["responses"] for state in states if state.get("agent_states")]
    assert first[0] == []
    assert "round-1/leaf_respond/L2N1" in first[1][0]
    assert "round-1/lateral/L2N1" in first[2][0], "a round has one text, the latest"
    assert len(first[-1]) == 2
    signalled = next(state for state in states if state.get("parent_signals"))
    assert signalled["parent_signals"] == {"L1N1": "Look again, says L1N1 (round-1/signal/L1N1)."}
    assert signalled["agent_states"]["L2N1"]["signals_received"] == []
    assert states[-1]["agent_states"]["L2N1"]["signals_received"] == list(signalled["parent_signals"].values())
    assert [len(state["round_history"]) for state in states if "round_history" in state][-1] == 2


async def test_recursion_limit_equals_the_formula_and_suffices(store: SqliteStore) -> None:
    rounds = 30
    model = ScriptedModel(agreeable)
    graph = emergence_graph(
        children=1, max_rounds=rounds, signals=False, similarity="jaccard", threshold=1.0, model=model, store=store
    )
    nodes = set(graph.get_graph().nodes) - {"__start__", "__end__"}
    assert nodes == {"init", *SHALLOW, "finalize"}
    assert graph.config is not None
    assert graph.config["recursion_limit"] == rounds * (len(nodes) + 5)
    state = await graph.ainvoke(TASK)
    assert state["current_round"] == rounds


class Stumbling:
    """A script that breaks off at one call, once: a defect, not a failure of the model."""

    def __init__(self, script: Callable[[ModelRequest], Any], at: str) -> None:
        self.script, self.at = script, at

    def __call__(self, request: ModelRequest) -> Any:
        if request.key == self.at:
            self.at = ""
            raise RuntimeError("the process falls over")
        return self.script(request)


async def test_interrupted_graph_resumes_without_repeating_calls(
    store: SqliteStore,
) -> None:
    at = "round-2/lateral/L2N2"
    model = ScriptedModel(Stumbling(agreeable, at))
    graph = emergence_graph(children=3, max_rounds=2, model=model, store=store, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "one"}}
    with pytest.raises(RuntimeError, match="falls over"):
        await graph.ainvoke(TASK, thread)
    assert (await graph.aget_state(thread)).next == ("lateral_leaves",)
    state = await graph.ainvoke(None, thread)
    once = [request.key for request in model.requests if request.key != at]
    beside = {"round-2/lateral/L2N1", "round-2/lateral/L2N3"}  # in flight when it fell
    assert len(set(once)) == 14
    assert {key for key in once if once.count(key) > 1} <= beside
    assert state["report"]["stop_reason"] == "exhausted_steps"
    assert state["report"]["ledger"]["actual"]["calls"] == 15


async def test_earlier_checkpoint_shows_its_state_without_calls(store: SqliteStore) -> None:
    model = ScriptedModel(agreeable)
    graph = emergence_graph(
        children=2, max_rounds=2, strange_loops=1, model=model, store=store, checkpointer=InMemorySaver()
    )
    thread: Any = {"configurable": {"thread_id": "one"}}
    final = await graph.ainvoke(TASK, thread)
    asked = len(model.requests)
    async for past in graph.aget_state_history(thread):
        if past.next == ("observe_root",) and past.values["current_round"] == 1:
            break
    updates = [update async for update in graph.astream(None, past.config, stream_mode="updates")]
    assert [node for update in updates for node in update] == [*SHALLOW[2:], *SHALLOW, "finalize"]
    assert (
        updates[0]["observe_root"]["agent_states"]["L1N1"]["responses"]
        == final["agent_states"]["L1N1"]["responses"][:1]
    )
    again = (await graph.aget_state(thread)).values
    assert again == final
    assert len(model.requests) == asked


async def test_reused_thread_starts_a_new_session(store: SqliteStore) -> None:
    graph = emergence_graph(
        children=2, max_rounds=1, model=ScriptedModel(agreeable), store=store, checkpointer=InMemorySaver()
    )
    thread: Any = {"configurable": {"thread_id": "one"}}
    first = await graph.ainvoke(TASK, thread)
    other: Any = {"original_task": "Is it not so?"}
    second = await graph.ainvoke(other, thread)
    assert second["session"] != first["session"]
    assert second["report"]["task"] == "Is it not so?"
    assert len(second["round_history"]) == 1
    third = await graph.ainvoke(TASK, thread)
    assert third["session"] not in (first["session"], second["session"]), "asked again, it is deliberated again"


async def test_abandoned_stream_leaves_a_resumable_session(store: SqliteStore) -> None:
    model = ScriptedModel(agreeable)
    graph = emergence_graph(children=2, max_rounds=1, model=model, store=store)
    updates: Any = graph.stream(TASK, stream_mode="updates")
    session = next(updates)["init"]["session"]
    next(updates)
    updates.close()
    assert store.holder(session) is None
    assert len(model.requests) == 2
    report = await consilience.resume(session, model=model, store=store)
    assert report.answer is not None
    assert len(model.requests) == 5


async def test_person_in_the_tree_interrupts_the_graph_and_answers(store: SqliteStore) -> None:
    protocol = Emergence(children=2, max_rounds=1)
    model = ScriptedModel(agreeable)
    models: Any = {"L1N1": model, "L2N1": model, "L2N2": "human"}
    graph = emergence_graph(protocol, model=models, store=store, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "one"}}

    async def told(value: Any) -> dict[str, Any]:
        state = await graph.ainvoke(value, thread)
        interrupt: dict[str, Any] = state["__interrupt__"][0].value
        return interrupt

    first = await told(TASK)
    (key,) = first["questions"]
    assert key == "round-1/leaf_respond/L2N2"
    assert "Is it so?" in first["questions"][key]["text"]
    assert "text" in first["questions"][key]["schema"]["properties"]
    wrong = await told(Command(resume="yes"))
    assert "answers are given by key" in wrong["error"]
    empty = await told(Command(resume={key: '{"points": 3}'}))
    assert "invalid answer to round-1/leaf_respond/L2N2" in empty["error"]
    second = await told(Command(resume={key: "I was there, it is."}))
    assert list(second["questions"]) == ["round-1/lateral/L2N2"]
    assert "error" not in second
    state = await graph.ainvoke(Command(resume={"round-1/lateral/L2N2": "I stand by it."}), thread)
    assert state["agent_states"]["L2N2"]["responses"] == ["I stand by it."]
    assert len(model.requests) == 3


async def test_invalid_graph_arguments_are_refused_before_any_call(store: SqliteStore) -> None:
    model = ScriptedModel([])
    graph = emergence_graph(children=2, model=model, store=store)
    taskless: Any = {"max_rounds": 3}
    with pytest.raises(SettingsError, match=r'no task. Invoke it with \{"original_task"'):
        await graph.ainvoke(taskless)
    with pytest.raises(SettingsError, match="depth must be at most 8"):
        emergence_graph(depth=9, model=model)
    with pytest.raises(SettingsError, match="both as a protocol and by name"):
        emergence_graph(Emergence(), depth=3, model=model)
    assert store.sessions() == []
