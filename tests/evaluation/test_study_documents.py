"""`make study-documents` on small sets: what is planted is there, and dealing brings together what sharing alone leaves apart."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from simulation.document_sets import DocumentSet, make_document_set

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study_documents

    return study_documents


def small(seed: int) -> DocumentSet:
    return make_document_set(seed, tokens=9_000, documents=8, across=5, within=3)


@pytest.mark.parametrize("seed", range(5))
def test_set_states_what_is_planted_and_contradicts_itself_nowhere_else(seed: int, study: ModuleType) -> None:
    documents = small(seed)
    assert documents == small(seed) != small(seed + 1)
    assert 8_000 < documents.tokens < 13_000
    lines = [source.text.splitlines() for source in documents.sources]
    for pair in documents.pairs:
        sides = (pair.first, pair.second)
        assert all(side.text in lines[side.document] for side in sides)
        owners = {documents.sources[side.document].name.partition("/")[0] for side in sides}
        assert len(owners) == (2 if pair.reach == "across" else 1)
    planted = {frozenset((pair.first.text, pair.second.text)) for pair in documents.pairs}
    reading = study.Reading(documents)
    everything = reading.facts("\n".join(f"* {line}" for text in lines for line in text))
    assert {*reading.conflicts(everything)} == planted
    assert {*reading.suspicions(everything)} > planted, "decoys look like contradictions"


def test_dealing_finds_more_pairs_across_owners_than_the_same_shares_alone(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "REPORT_TOKENS", 200)
    rows = {row.way: row for row in study.measure([small(1), small(2)], [12_000])}
    assert "one reading" not in rows, "it does not fit"
    dealt, alone = rows["decompose --deal document"], rows["map-reduce, the same shares"]
    assert dealt.across[0] >= 8 > alone.across[0]
    assert dealt.across[1] == 10
    assert dealt.within[0] == dealt.within[1] == 6
    assert alone.readings < dealt.readings
    fitting = {row.way: row for row in study.measure([small(1)], [128_000])}
    assert fitting["one reading"].across == (5, 5)
    assert fitting["one reading"].readings == 1
