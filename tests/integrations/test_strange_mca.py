"""`run_strange_mca`: which protocol its parameters mean, what they are here, and the final state it gives."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from consilience.domain.errors import SettingsError
from consilience.engine.protocol import protocol_names
from consilience.integrations.strange_mca import DesignParameters, choose_protocol, full_names, run_strange_mca
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.registry import full_name
from consilience.protocols.emergence import Emergence
from consilience.testing import ScriptedModel
from kit.cases import emergent, well_formed

TASK = "Is it so?"
COMMON_PARAMETERS = {"child_per_parent": 2, "depth": 2}


STATE = {
    "task", "original_task", "response", "final_response", "strange_loops", "child_responses", "nodes", "current_node",
}  # fmt: skip
"""Fields of seed 001's state in both of its modes."""
MCA_STATE = {
    "mca_mode", "goal", "parent_context", "child_agent_responses", "satisfaction", "signals", "iteration", "max_iterations",
}  # fmt: skip


def installed(name: str) -> Any:
    return pytest.mark.skipif(name not in protocol_names(), reason=f"the protocol {name} is not installed")


def agreeable(request: ModelRequest) -> str:
    return well_formed(emergent)(request)


def test_run_strange_mca_takes_all_parameters_of_both_designs() -> None:
    taken = set(inspect.signature(run_strange_mca).parameters) | set(DesignParameters.__annotations__)
    first = {"task", "child_per_parent", "depth", "model", "strange_loop_count", "domain_specific_instructions"}
    bottom_up = {"max_rounds", "convergence_threshold", "enable_downward_signals", "perspectives"}
    goals = {"mca_mode", "max_coordination_rounds", "max_iterations", "satisfaction_threshold"}
    assert first | bottom_up | goals <= taken


@pytest.mark.parametrize(
    ("inputs", "value"),
    [
        ("max_rounds", 2),
        ("convergence_threshold", 0.5),
        ("enable_downward_signals", False),
        ("enable_downward_signals", True),
        ("perspectives", ["legal", "financial"]),
    ],
)
def test_any_parameter_of_the_bottom_up_design_selects_emergence(inputs: str, value: object) -> None:
    chosen = choose_protocol(False, {inputs: value})
    assert isinstance(chosen.protocol, Emergence)
    assert chosen.ignored == ()
    setting = {"convergence_threshold": "threshold", "enable_downward_signals": "signals"}.get(inputs, inputs)
    assert getattr(chosen.protocol, setting) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("mca_mode", [False, True])
def test_empty_perspectives_are_a_user_error(mca_mode: bool) -> None:
    with pytest.raises(SettingsError, match=r"perspectives is empty\. Name at least one, or leave it out"):
        run_strange_mca(TASK, mca_mode=mca_mode, perspectives=[])


def test_final_state_has_the_fields_of_the_seed(tmp_path: Path) -> None:
    model = ScriptedModel(agreeable)
    store = SqliteStore(":memory:")
    state = run_strange_mca(
        TASK,
        child_per_parent=2,
        depth=3,
        model=model,
        max_rounds=2,
        perspectives=["legal", "financial"],
        strange_loop_count=1,
        domain_specific_instructions="Answer in one sentence.",
        output_dir=tmp_path / "out",
        store=store,
    )
    assert state["original_task"] == TASK
    assert state["final_response"] == state["strange_loops"][-1]["after"]
    assert len(state["strange_loops"]) == 2
    assert state["current_round"] == len(state["round_history"]) == 2
    assert set(state["agent_states"]) == {"L1N1", "L2N1", "L2N2", *(f"L3N{n}" for n in range(1, 5))}
    assert state["round_history"][0]["agents"]["L3N2"]["perspective"] == "financial"
    assert "mca_metadata" not in state
    assert json.loads((tmp_path / "out" / "final_state.json").read_text()) == state
    report = json.loads((tmp_path / "out" / "mca_report.json").read_text())
    assert report["config"]["child_per_parent"] == 2
    assert (
        report["summary_metrics"]["total_llm_calls"]
        == len(model.requests)
        == Emergence(children=2, depth=3, max_rounds=2, strange_loops=1, domain_instructions="x").calls(2)
    )


async def test_run_strange_mca_inside_a_running_loop_records_in_the_default_journal(home: Path) -> None:
    state = run_strange_mca(TASK, **COMMON_PARAMETERS, max_rounds=1, model=ScriptedModel(agreeable))
    assert state["final_response"]
    store = SqliteStore(home / "journal.db")
    assert len(store.sessions()) == 1
    store.close()


def test_ignored_parameters_are_listed_in_one_warning() -> None:
    with pytest.warns(UserWarning, match="emergence are ignored: max_iterations, print_tree, langfuse, viz$") as heard:
        run_strange_mca(
            TASK,
            **COMMON_PARAMETERS,
            max_rounds=1,
            max_iterations=3,
            print_tree=True,
            print_details=False,
            langfuse=object(),
            viz=True,
            model=ScriptedModel(agreeable),
            store=SqliteStore(":memory:"),
        )
    assert len(heard) == 1
    assert Path(heard[0].filename) == Path(__file__)


def test_unknown_parameter_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"no parameter max_round\. It has: task, model, .*max_rounds, "):
        run_strange_mca(TASK, **COMMON_PARAMETERS, max_round=3, model=ScriptedModel([]))
    with pytest.raises(SettingsError, match="depth must be at least 2"):
        run_strange_mca(TASK, depth=1, max_rounds=1, model=ScriptedModel([]))


def test_model_names_without_a_provider_get_theirs() -> None:
    assert full_name("gpt-4o-mini") == "openai:gpt-4o-mini"
    assert full_name("gpt-3.5-turbo") == "openai:gpt-3.5-turbo"
    assert full_name("claude-of-a-later-day") == "anthropic:claude-of-a-later-day", "of a known family"
    assert [full_name(name) for name in ("local", "local:smollm2-135m", "human", "exec:cat", "nobodys")] == [
        *("local", "local:smollm2-135m", "human", "exec:cat", "nobodys")
    ]
    model = ScriptedModel([])
    assert full_names({"L1N1": "gpt-4o-mini", "L2N1": model}) == {"L1N1": "openai:gpt-4o-mini", "L2N1": model}
    assert full_names(["gpt-4o-mini", model]) == ["openai:gpt-4o-mini", model]
    assert full_names(None) is None


@installed("broadcast")
def test_mca_mode_selects_broadcast() -> None:
    chosen = choose_protocol(
        True, {**COMMON_PARAMETERS, "max_coordination_rounds": 0, "max_iterations": 1, "satisfaction_threshold": 0.5}
    )
    assert chosen.protocol.name == "broadcast"
    settings = chosen.protocol.model_dump()
    assert (settings["children"], settings["coordination_rounds"], settings["max_iterations"]) == (2, 0, 1)
    assert settings["satisfaction_threshold"] == 0.5
    assert choose_protocol(True, {"max_rounds": 3}).ignored == ("max_rounds",)
    model = ScriptedModel(lambda request: '{"rating": "good", "satisfied": true, "flags": [], "text": "It is."}')
    state = run_strange_mca(
        TASK, **COMMON_PARAMETERS, mca_mode=True, max_iterations=1, model=model, store=SqliteStore(":memory:")
    )
    assert len(model.requests) == 10, "the budget of the seed"
    assert state["final_response"] == "It is."
    assert state.keys() == STATE | MCA_STATE | {"mca_metadata"}
    assert (state["mca_mode"], state["goal"], state["parent_context"]) == (True, "It is.", "")
    assert (state["iteration"], state["max_iterations"], state["signals"]) == (1, 1, [])
    assert state["satisfaction"] == state["mca_metadata"]["root_satisfaction"]
    assert state["child_agent_responses"].keys() == {"L2N1", "L2N2"}
    assert state["child_agent_responses"]["L2N1"] == {
        "response": "It is.", "satisfaction": state["satisfaction"], "signals": [], "refined": False, "iterations": 1,
    }  # fmt: skip
    metadata = state["mca_metadata"]
    assert metadata["mode"] == "mca"
    assert {"total_iterations", "total_coordination_rounds", "root_satisfaction", "signal_chain"} <= set(metadata)
    assert set(metadata["satisfaction_map"]) == {"L1N1", "L2N1", "L2N2"}


@installed("decompose")
def test_parameters_of_neither_design_select_decompose() -> None:
    chosen = choose_protocol(False, COMMON_PARAMETERS)
    assert chosen.protocol.name == "decompose"
    assert choose_protocol(False, {"max_iterations": 2}).ignored == ("max_iterations",)

    def reply(request: ModelRequest) -> str:
        parts = [{"title": "the first half"}, {"title": "the second half"}]
        return json.dumps({"parts": parts, "text": f"{request.agent} did it"})

    model = ScriptedModel(reply)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = run_strange_mca(TASK, **COMMON_PARAMETERS, model=model, store=SqliteStore(":memory:"))
    assert len(model.requests) == 4, "the budget of the seed"
    assert state.keys() == STATE | {"decomposition", "child_tasks"}
    assert state["decomposition"] == "1. the first half\n2. the second half"
    assert state["child_tasks"] == {"L2N1": "the first half", "L2N2": "the second half"}
    assert (state["current_node"], state["nodes"].keys()) == ("L1N1", {"L1N1", "L2N1", "L2N2"})
    assert state["nodes"]["L2N2"] == {"response": "L2N2 did it"}
    assert state["final_response"] == "L1N1 did it"
    assert state["child_responses"] == {"L2N1": "L2N1 did it", "L2N2": "L2N2 did it"}


@pytest.mark.parametrize("mca_mode", [False, True])
@pytest.mark.parametrize(("loops", "more"), [(0, 1), (1, 1), (2, 2)])
def test_domain_instructions_are_read_in_the_last_review_also_without_loops(
    mca_mode: bool, loops: int, more: int
) -> None:
    def reply(request: ModelRequest) -> str:
        parts = [{"title": "the first half"}, {"title": "the second half"}]
        rated = {"rating": "good", "satisfied": True, "flags": []} if mca_mode else {}
        return json.dumps({"parts": parts, **rated, "text": "It is."})

    model = ScriptedModel(reply)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = run_strange_mca(
            TASK,
            **COMMON_PARAMETERS,
            mca_mode=mca_mode,
            strange_loop_count=loops,
            domain_specific_instructions="Speak to farmers.",
            model=model,
            store=SqliteStore(":memory:"),
            **({"max_iterations": 1} if mca_mode else {}),
        )
    assert len(model.requests) == (10 if mca_mode else 4) + more
    assert sum("Speak to farmers." in request.text for request in model.requests) == 1
    assert len(state["strange_loops"]) == more
