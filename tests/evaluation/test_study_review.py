"""`make study-review` with scripted reviewers: a perfect one, noise, silence, and the same twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from consilience.models.port import ModelRequest
from consilience.models.scripted import Answer
from consilience.protocols.review.findings import ReviewReply
from consilience.testing import AnyModel, ScriptedModel

ROOT = Path(__file__).parents[2]
Findings = Callable[[Any, ModelRequest], list[dict[str, object]]]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study_review

    return study_review


def typed(key: Any, planted: Any, claim: str) -> dict[str, object]:
    """A finding as a reviewer types it, at the first place of a defect."""
    place = planted.places[0]
    fields = {"severity": planted.severity, "category": planted.id, "document": f"S{key.files.index(place.file) + 1}"}
    values = {"claim": claim, "recommendation": "Change it.", "check": {"kind": "read", "text": "the lines"}}
    return {**fields, **values, "line": key.lines(place)[0], "quotation": place.words}


def shown(key: Any, request: ModelRequest) -> list[Any]:
    """The defects whose first place the request shows."""
    return [d for d in key.defects if d.places[0].words.splitlines()[0] in request.text]


def perfect(key: Any, request: ModelRequest) -> list[dict[str, object]]:
    return [typed(key, defect, " ".join([defect.what, *defect.says])) for defect in shown(key, request)]


def noise(key: Any, request: ModelRequest) -> list[dict[str, object]]:
    return [{**typed(key, defect, "The name is poor."), "category": "naming"} for defect in shown(key, request)]


def silent(key: Any, request: ModelRequest) -> list[dict[str, object]]:
    return []


def false(key: Any, request: ModelRequest) -> list[dict[str, object]]:
    return [{**finding, "quotation": "words that stand nowhere in it"} for finding in perfect(key, request)]


def reviewer(key: Any, findings: Findings) -> ScriptedModel:
    anything = AnyModel()

    def reply(request: ModelRequest) -> Answer:
        if request.key == "closing":
            return json.dumps({"duplicates": [], "claims": [], "text": "All of it counts."})
        if request.returns is None or not issubclass(request.returns, ReviewReply):
            return anything.reply(request)
        read = [{"document": f"S{n}", "remark": "all of it"} for n in range(1, len(key.files) + 1)]
        return json.dumps({"read": read, "findings": findings(key, request), "vote": "changes", "text": "## A"})

    return ScriptedModel(reply, price=0.0)


async def run(study: ModuleType, findings: Findings, name: str = "planted_key.toml", **settings: object) -> list[Any]:
    key = study.load_key(ROOT / "benchmarks" / name)
    chosen = study.Study(key, reviewer(key, findings), "full", {"max_iterations": 1, **settings})
    return await study.run_all(chosen, 1, None)


@pytest.mark.parametrize("name", ["planted_key.toml", "planted_paper_key.toml"])
async def test_perfect_reviewer_finds_every_defect_in_review_and_single_call(study: ModuleType, name: str) -> None:
    for scored in await run(study, perfect, name):
        key = study.load_key(ROOT / "benchmarks" / name)
        assert set(scored.score.found) == {defect.id for defect in key.defects}, scored.name
        assert [*scored.score.decoys, *scored.score.other, *scored.score.elsewhere] == []
        assert scored.dropped("false quotation") == 0


async def test_unrelated_claims_find_no_defect(study: ModuleType) -> None:
    for scored in await run(study, noise):
        assert scored.score.found == {}
        assert len(scored.score.elsewhere) > 0


async def test_silent_reviewer_makes_calls_and_finds_nothing(study: ModuleType) -> None:
    for scored in await run(study, silent):
        assert scored.score.findings == 0
        assert scored.report.ledger.actual.calls >= 1


async def test_false_quotations_are_dropped_and_counted(study: ModuleType) -> None:
    for scored in await run(study, false):
        assert scored.score.findings == 0
        assert scored.dropped("false quotation") > 0


async def test_single_call_has_at_most_the_output_tokens_of_the_review(study: ModuleType) -> None:
    review, rival = await run(study, perfect)
    assert rival.report.ledger.actual.calls == 1
    assert review.report.ledger.actual.calls > 1
    assert review.report.ledger.actual.tokens_out >= rival.report.ledger.actual.tokens_out


async def test_written_reports_give_the_same_score(study: ModuleType, tmp_path: Path) -> None:
    key = study.load_key(ROOT / "benchmarks/planted_paper_key.toml")
    chosen = study.Study(key, reviewer(key, perfect), "full", {})
    runs = await study.run_all(chosen, 1, tmp_path / "out")
    for run, name in zip(runs, ("review-1.json", "one-call-1.json"), strict=True):
        again = study.scored(run.name, (tmp_path / "out" / name).read_text(), key)
        assert again.score.found == run.score.found
        assert study.rows(key, [again]) == study.rows(key, [run])
