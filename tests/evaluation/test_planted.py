"""The planted projects, their keys, and the scorer of `make study-review`."""

from __future__ import annotations

import json
import sys
from datetime import date, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

import pytest

from kit import forks

ROOT = Path(__file__).parents[2]
KEYS = ["planted_key.toml", "planted_paper_key.toml"]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study_planted

    return study_planted


@pytest.fixture
def berths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples/planted"))


def finding(key: Any, planted: Any, place: int = 0, *, claim: str | None = None, **fields: object) -> dict[str, object]:
    """A finding at a place of the key, which says what the key asks for."""
    at = planted.places[place]
    first, last = key.lines(at)
    text = claim if claim is not None else " ".join([planted.what, *planted.says[:1]])
    values = {"file": at.file, "first_line": first, "last_line": last, "quotation": at.words, "claim": text}
    return {**values, "severity": planted.severity, **fields}


# --- the projects


@pytest.mark.parametrize("name", KEYS)
def test_key_words_occur_once_in_the_project(planted: ModuleType, name: str) -> None:
    key = planted.load_key(ROOT / "benchmarks" / name)
    for defect in (*key.defects, *key.decoys):
        for place in defect.places:
            assert place.file in key.files
            assert key.lines(place)[0] >= 1
        assert all(stem == stem.lower() for stem in defect.says)
        assert set(defect.together) <= set(key.files)
    ids = [defect.id for defect in (*key.defects, *key.decoys)]
    assert len(ids) == len(set(ids))


def test_key_words_not_in_the_project_are_refused(planted: ModuleType) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[0])
    with pytest.raises(ValueError, match=r"README\.md: 0 times"):
        key.lines(planted.Place(file="README.md", words="no such words"))


def test_service_has_the_defects_and_decoys_that_the_study_reports(planted: ModuleType) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[0])
    assert len(key.defects) >= 22
    assert len(key.decoys) >= 10
    assert 3 * sum(bool(defect.together) for defect in key.defects) >= len(key.defects)
    assert len({defect.kind for defect in key.defects}) >= 15
    assert all(text.isascii() for text in map(key.text, key.files))


def test_paper_has_the_defects_and_decoys_that_the_study_reports(planted: ModuleType) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[1])
    assert len(key.defects) >= 10
    assert len(key.decoys) >= 4


def test_sources_contain_no_words_that_reveal_the_study(planted: ModuleType) -> None:
    for name in KEYS:
        for source in planted.load_key(ROOT / "benchmarks" / name).sources():
            text = f"{source.name} {source.text}".lower()
            assert not [word for word in ("planted", "defect", "decoy", "consilience") if word in text]


@pytest.mark.usefixtures("berths")
def test_service_example_quotes_and_books(tmp_path: Path) -> None:
    from berths.payments import PaymentError, TidePay
    from berths.pricing import quote, started_metres
    from berths.service import Refused, Service, User
    from berths.store import Store

    asked: list[str] = []

    def send(method: str, path: str, body: dict[str, object] | None) -> dict[str, object]:
        asked.append(f"{method} {path}")
        return {"id": "ch_1", "state": "succeeded"}

    assert started_metres(850) == 9
    price = quote(date(2027, 4, 1), date(2027, 4, 3), 1000)
    assert (price.nights, price.total_cents, price.deposit_cents) == (2, 4428, 1476)
    store = Store()
    try:
        service = Service(store, TidePay(send=send, pause=0), tmp_path)
        guest = User(store.add_user("guest@example.org"))
        berth = store.add_berth("A1", 1000, "A")
        arrival = date.today() + timedelta(days=300)
        number = service.reserve(guest, berth, "Gull", 1000, arrival, arrival + timedelta(days=2))
        with pytest.raises(Refused, match="taken"):
            service.reserve(guest, berth, "Tern", 900, arrival, arrival + timedelta(days=1))
        with pytest.raises(Refused, match="fit"):
            service.reserve(guest, berth, "Whale", 1001, arrival, arrival + timedelta(days=1))
        assert service.pay(guest, number, "tok_1") == "ch_1"
        booking = store.booking(number)
        assert booking is not None
        assert store.apply_event("e1", booking.id, "ch_1", booking.deposit_cents)
        assert service.cancel(guest, number) == booking.deposit_cents
        cancelled = store.booking(number)
        assert cancelled is not None
        assert cancelled.state == "cancelled"
        assert asked == ["POST /charges", "POST /refunds"]
        with pytest.raises(PaymentError):
            service.on_event(b"{}", "0" * 64)
    finally:
        store.close()


# --- the score


@pytest.mark.parametrize("name", KEYS)
def test_score_of_a_perfect_reviewer_has_every_defect_and_nothing_else(planted: ModuleType, name: str) -> None:
    key = planted.load_key(ROOT / "benchmarks" / name)
    for place in (0, -1):
        findings = [planted.Found.model_validate(finding(key, defect, place)) for defect in key.defects]
        score = planted.score(key, findings)
        assert set(score.found) == {defect.id for defect in key.defects}
        assert [*score.duplicates, *score.decoys, *score.elsewhere, *score.other] == []


@pytest.mark.parametrize("name", KEYS)
def test_score_of_decoy_findings_has_only_decoys(planted: ModuleType, name: str) -> None:
    key = planted.load_key(ROOT / "benchmarks" / name)
    score = planted.score(key, [planted.Found.model_validate(finding(key, decoy)) for decoy in key.decoys])
    assert [id for id, _ in score.decoys] == [decoy.id for decoy in key.decoys]
    assert [*score.found, *score.other] == []


@pytest.mark.parametrize("name", KEYS)
def test_score_of_unrelated_claims_at_every_defect_finds_none(planted: ModuleType, name: str) -> None:
    key = planted.load_key(ROOT / "benchmarks" / name)
    noise = "This name should be more descriptive."
    findings = [planted.Found.model_validate(finding(key, defect, claim=noise)) for defect in key.defects]
    score = planted.score(key, findings)
    assert not score.found
    assert len(score.elsewhere) == len(key.defects)


def test_score_without_findings_is_empty(planted: ModuleType) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[0])
    score = planted.score(key, [])
    assert (score.findings, len(score.found), score.other) == (0, 0, [])


def test_score_counts_a_second_finding_on_a_defect_as_a_duplicate(planted: ModuleType) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[0])
    defect = next(defect for defect in key.defects if defect.id == "longest-stay")
    findings = [planted.Found.model_validate(finding(key, defect, place)) for place in (0, 2)]
    score = planted.score(key, findings)
    assert score.found == {"longest-stay": findings[0]}
    assert score.duplicates == [("longest-stay", findings[1])]


def test_score_leaves_an_unmatched_finding_to_a_person(planted: ModuleType) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[0])
    finding_found = planted.Found(file="schema.sql", first_line=1, last_line=1, claim="The comment has a wrong unit.")
    assert planted.score(key, [finding_found]).other == [finding_found]


def test_score_matches_no_finding_on_a_whole_file(planted: ModuleType) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[0])
    claims = " ".join(stem for defect in key.defects for stem in defect.says)
    finding_found = planted.Found(file="berths/service.py", first_line=1, last_line=170, claim=claims)
    assert planted.score(key, [finding_found]).other == [finding_found]


def test_score_matches_a_finding_in_prose_only_by_words_of_the_place(planted: ModuleType) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[1])
    defect = next(defect for defect in key.defects if defect.id == "percentage")
    right = finding(key, defect, quotation="reduced the hours above 26 °C per classroom by 41 %")
    wrong = finding(key, defect, quotation="others were run as usual")
    score = planted.score(key, [planted.Found.model_validate(fields) for fields in (right, wrong)])
    assert list(score.found) == ["percentage"]
    assert len(score.other) == 1


# --- the command


def study(*options: str | Path) -> CompletedProcess[str]:
    command = [sys.executable, "benchmarks/study_review.py", *map(str, options)]
    return forks.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_study_command_scores_a_finished_report(planted: ModuleType, tmp_path: Path) -> None:
    key = planted.load_key(ROOT / "benchmarks" / KEYS[1])
    other = {
        "file": "night_cooling.md",
        "first_line": 3,
        "last_line": 3,
        "quotation": "## Abstract",
        "claim": "Too short.",
    }
    findings = [finding(key, key.defects[0]), finding(key, key.decoys[0]), other]
    dropped = [{"reason": "false quotation"}, {"reason": "over the limit"}]
    report = tmp_path / "mine.json"
    report.write_text(json.dumps({"findings": findings, "dropped": dropped, "answer": "Three findings."}))
    ran = study("--key", "benchmarks/planted_paper_key.toml", "--score", report, "--json", tmp_path / "out.json")
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert ["found,", "of", "11", "1"] in lines
    assert ["false:", "about", "one", "of", "6", "decoys", "1"] in lines
    assert ["dropped:", "false", "quotation", "1"] in lines
    assert "night_cooling.md:3 [minor] Too short." in ran.stdout
    (run,) = json.loads((tmp_path / "out.json").read_text())
    assert list(run["found"]) == ["percentage"]


def test_study_command_refuses_a_file_that_is_not_a_review_report(tmp_path: Path) -> None:
    report = tmp_path / "other.json"
    report.write_text('{"answer": "yes"}')
    ran = study("--score", report)
    assert ran.returncode == 2
    assert "findings" in ran.stderr
    assert "Traceback" not in ran.stderr
