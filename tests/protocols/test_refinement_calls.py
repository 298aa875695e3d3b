"""How many calls `refinement` makes: the formula of protocols §5 when every part has issues, never more under any replies."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience import Refinement, RefinementReport, StopReason, run_sync
from consilience.domain.errors import Refused, ServerError
from consilience.domain.hierarchies import Hierarchy, load_hierarchy, shipped_hierarchies
from consilience.engine.runner import Options
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit.cases import HOUSE, blog


def formula(hierarchy: Hierarchy, passes: int, critic: str, draft: str = "") -> int:
    """2·inner agents + edges to leaves + 2 (or + 1 with the heuristic critic) a pass, one intent, and one for a draft."""
    inner = [role.name for role in hierarchy.roles if role.children and hierarchy.parents(role.name)]
    leaves = {role.name for role in hierarchy.roles if not role.children}
    edges = sum(child in leaves for role in hierarchy.roles for child in role.children)
    return 1 + passes * (2 * len(inner) + edges + (2 if critic == "model" else 1)) + bool(draft and critic == "model")


def demanding(request: ModelRequest) -> str:
    """Every part has an issue in every pass, and so has the whole."""
    if "/critique/" in request.key:
        marks = dict.fromkeys(("coherence", "accuracy", "depth", "overall"), "passable")
        return json.dumps({part: {**marks, "issues": ["more"]} for part in request.schema["required"]})  # type: ignore
    return json.dumps({"text": f"{request.agent} wrote {request.key}."}) if request.returns else "For readers."


def go(protocol: Refinement, model: ScriptedModel) -> RefinementReport:
    report = run_sync("Write.", protocol, model=model, options=Options(patience=0))
    assert isinstance(report, RefinementReport)
    return report


@pytest.mark.parametrize("critic", ["model", "heuristic"])
@pytest.mark.parametrize("draft", ["", "An old text."])
@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("hierarchy", [*shipped_hierarchies(), "house"])
def test_calls_with_issues_in_every_part_equal_the_formula(
    hierarchy: str, passes: int, critic: str, draft: str
) -> None:
    shape = Hierarchy.model_validate(HOUSE) if hierarchy == "house" else load_hierarchy(hierarchy)
    protocol = Refinement(hierarchy=shape, max_passes=passes, critic=critic, confidence="self", draft=draft)
    model = ScriptedModel(demanding)
    report = go(protocol, model)
    expected = formula(shape, passes, critic, draft)
    assert len({r.key for r in model.requests}) == len(model.requests) == expected
    assert report.ledger.actual.calls == expected
    assert report.ledger.estimated.max == expected
    assert report.ledger.estimated.min == formula(shape, 1, critic, draft)
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS


def test_calls_of_the_blog_hierarchy_are_14_and_13_per_further_pass() -> None:
    assert [blog(max_passes=n).estimate().max for n in (1, 2, 3)] == [14, 27, 40]
    assert [blog(max_passes=n, draft="Old.").estimate().max for n in (1, 2, 3)] == [15, 28, 41]


MARKS = ["useless", "weak", "passable", "good", "excellent"]
NONSENSE = ["", "prose only", "{}", "null", '{"text": ""}', "refuse", "down"]


def whims(seed: int, nonsense: float) -> Any:
    """Replies that depend on the seed and the key alone, whoever is asked first; a share of them is of no use."""

    def reply(request: ModelRequest) -> Any:
        draw = random.Random(f"{seed}/{request.key}/{request.attempt}")
        if draw.random() < nonsense:
            odd = draw.choice(NONSENSE)
            if odd in ("refuse", "down"):
                raise Refused("no") if odd == "refuse" else ServerError("down")
            return odd
        if "/critique/" in request.key:
            names = ("coherence", "accuracy", "depth", "overall")
            return json.dumps(
                {
                    part: {
                        **{name: draw.choice(MARKS) for name in names},
                        "issues": draw.choices(["more", "None", "less"], k=draw.randrange(5)),
                    }
                    for part in request.schema["required"]  # type: ignore[index, attr-defined]
                }
            )
        if request.returns is None:
            return "For readers."
        if draw.random() < 0.2:
            return json.dumps({"text": "Unchanged."})
        sure = draw.choice(["unsure", "fairly sure", "certain"])
        return json.dumps({"confidence": sure, "text": draw.choice(["One. Two. Three. Four.", "Short."])})

    return reply


@settings(max_examples=75, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nonsense=st.sampled_from([0.0, 0.1, 0.4, 0.9]),
    passes=st.integers(1, 3),
    critic=st.sampled_from(["model", "heuristic"]),
    draft=st.sampled_from(["", "An old text."]),
)
def test_run_with_any_replies_ends_within_max_calls_with_a_stop_reason(
    seed: int, nonsense: float, passes: int, critic: str, draft: str
) -> None:
    protocol = Refinement(hierarchy=HOUSE, max_passes=passes, critic=critic, confidence="self", draft=draft)
    report = go(protocol, ScriptedModel(whims(seed, nonsense)))
    assert report.ledger.actual.calls <= protocol.estimate().max
    converged = report.stop_reason is StopReason.CONVERGED
    assert converged == (report.quality_threshold_met and not report.unmet)
    by_index = {record.index: record for record in report.passes}
    judged = [record.quality for record in report.passes if record.quality is not None]
    if report.best_pass and judged and not converged:
        assert by_index[report.best_pass].quality == max(judged)
    if report.best_pass == 0:
        assert report.answer == draft
    if report.quality_threshold_met and report.best_pass:
        best = by_index[report.best_pass]
        assert best.quality is not None
        assert best.quality >= protocol.threshold - 1e-9
        assert len(best.sections) == 2
    assert (report.answer is None) == (report.stop_reason is StopReason.FAILED)
