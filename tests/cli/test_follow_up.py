"""Deadlines that fall due, outcomes, and scores."""

from __future__ import annotations

import json

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded
from consilience.domain.events import SessionFinished, canonical_digest
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.reporting.follow_up import brier
from kit.debating import Debaters

DEADLINES = {"D1": "end of Q3 2027", "D2": "when the works begin"}


def dated(request: ModelRequest) -> dict[str, object]:
    return {"deadline": DEADLINES[request.agent], "threshold": f"more than {request.agent} said"}


@pytest.fixture
def session(cli: Cli, town: Town) -> str:
    """D1 holds yes, D2 no, both fairly sure (0.7)."""
    town.reply = Debaters({"opening": dated, "commit": dated})
    assert cli("debate", TASK, "--as-is", "--debaters", "2", "--max-messages", "20", "--model", MODEL).exit_code == 0
    return recorded()[-1]


def due(cli: Cli, *arguments: str) -> dict[str, list[dict[str, str]]]:
    output = json.loads(cli("due", "--json", *arguments).stdout)
    assert isinstance(output, dict)
    return output


@pytest.mark.parametrize(
    ("on", "group"), [("2027-10-01", "past"), ("2027-09-30", "near"), ("2027-07-02", "near"), ("2027-07-01", "")]
)
def test_due_groups_a_deadline_as_past_after_its_last_day_and_near_before(
    cli: Cli, session: str, on: str, group: str
) -> None:
    deadlines = due(cli, "--on", on)
    for name in ("past", "near"):
        rows = [(row["session"], row["forecast"], row["agent"], row["day"]) for row in deadlines[name]]
        wanted = [(session, id, "D1", "2027-09-30") for id in ("p1", "crux-1")]
        assert rows == (wanted if name == group else [])


def test_due_lists_a_deadline_without_a_date_as_unreadable(cli: Cli, session: str) -> None:
    assert [(row["agent"], row["deadline"], row["day"]) for row in due(cli)["unreadable"]] == [
        ("D2", "when the works begin", None)
    ] * 2
    text = cli("due", "--on", "2027-10-01").stdout
    assert text.index("Past:") < text.index("Deadlines that name no date:")
    assert "more than D2 said" in text


def test_due_prints_a_page_of_each_kind_and_its_json_all(cli: Cli, session: str) -> None:
    text = cli("due", "--on", "2027-10-01", "--limit", "1").stdout
    assert text.count("1 more: --limit 2 shows all.") == 2
    assert text.count(session) == 2
    assert "more: --limit" not in cli("due", "--on", "2027-10-01", "--limit", "2").stdout
    assert len(due(cli, "--on", "2027-10-01", "--limit", "1")["past"]) == 2


def test_due_reads_no_report(cli: Cli, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(journal_path())
    finished = store.ending(session)
    store.close()
    assert isinstance(finished, SessionFinished)
    readings: list[str] = []
    text = SqliteStore.text
    monkeypatch.setattr(SqliteStore, "text", lambda self, id: (readings.append(id), text(self, id))[1])
    assert due(cli, "--on", "2027-10-01")["past"]
    assert readings == [finished.forecasts]


def test_due_follows_families_as_it_reads(cli: Cli, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("tell", session, "The works are delayed.").exit_code == 0
    readings: list[int] = []
    parents = SqliteStore.parents
    monkeypatch.setattr(SqliteStore, "parents", lambda self: (readings.append(1), parents(self))[1])
    due(cli)
    assert len(recorded()) == 2
    assert readings == []  # a parent is older, and was read before


def test_due_omits_a_resolved_question(cli: Cli, session: str) -> None:
    assert cli("resolve", session, "crux-1", "yes").exit_code == 0
    assert {row["forecast"] for row in due(cli, "--on", "2027-10-01")["past"]} == {"p1"}


def test_due_lists_no_deadline_again_after_tell(cli: Cli, session: str) -> None:
    before = due(cli, "--on", "2027-10-01")
    assert cli("tell", session, "A new fact.").exit_code == 0
    assert due(cli, "--on", "2027-10-01") == before


def test_resolve_does_not_change_the_session(cli: Cli, session: str) -> None:
    def digest() -> str:
        store = SqliteStore(journal_path())
        try:
            return canonical_digest(store.read(session))
        finally:
            store.close()

    before, shown = digest(), cli("show", session, "--json").stdout
    assert cli("resolve", session, "p1", "no").exit_code == 0
    assert (digest(), cli("show", session, "--json").stdout) == (before, shown)
    assert cli("replay", session).exit_code == 0


def test_resolve_twice_scores_the_final_sides_by_the_last_outcome(cli: Cli, session: str) -> None:
    assert cli("resolve", "last", "p1", "no").exit_code == 0
    result = json.loads(cli("resolve", "last", "p1", "yes", "--json").stdout)
    scores = {row["name"]: row["score"] for row in result["agents"]}
    assert scores == {"D1": pytest.approx(0.15**2), "D2": pytest.approx(0.85**2)}

    output = json.loads(cli("scores", "--json").stdout)
    (month,) = {row["period"] for row in output["agents"]} - {"all"}
    assert result["recorded"].startswith(month)
    assert {(row["name"], row["period"], row["forecasts"]) for row in output["models"]} == {
        (MODEL, "all", 2),
        (MODEL, month, 2),
    }
    assert [row["score"] for row in output["models"]] == [pytest.approx((0.15**2 + 0.85**2) / 2)] * 2
    assert "Brier score" in cli("scores").stdout


@pytest.mark.parametrize(
    ("side", "confidence", "outcome", "score"),
    [(True, 1.0, True, 0.0), (True, 1.0, False, 1.0), (False, 0.0, True, 0.25), (False, 0.5, False, 0.0625)],
)
def test_brier_score_follows_side_confidence_and_outcome(
    side: bool, confidence: float, outcome: bool, score: float
) -> None:
    assert brier(side, confidence, outcome) == pytest.approx(score)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("resolve", "last", "crux-9", "yes"), "Give one of them: p1, crux-1"),
        (("resolve", "last", "p1", "maybe"), "maybe"),
        (("resolve", "nobody", "p1", "yes"), "there is no session 'nobody'"),
        (("due", "--on", "soon"), "'soon' is not a date"),
    ],
)
def test_resolve_with_invalid_arguments_is_reported_and_records_nothing(
    cli: Cli, session: str, arguments: tuple[str, ...], says: str
) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert json.loads(cli("scores", "--json").stdout) == {"agents": [], "models": []}


def test_resolve_of_a_session_without_forecasts_is_refused(cli: Cli, town: Town) -> None:
    town.reply = lambda request: "No."
    assert cli("solo", TASK, "--model", MODEL).exit_code == 0
    assert "Nothing is due." in cli("due").stdout
    assert cli("resolve", "last", "p1", "yes").exit_code == 2


def test_scores_with_a_damaged_outcome_file_names_the_file(cli: Cli, session: str) -> None:
    journal_path().with_suffix(".resolutions").write_text("nonsense\n")
    result = cli("scores")
    assert result.exit_code == 2
    assert "journal.resolutions" in result.stderr


@pytest.mark.parametrize(
    "torn", ['{"session": "', '{"session": "s", "forecast": "p1", "outcome": true, "on": "2027-0', "\x00\x00"]
)
def test_outcome_after_a_torn_line_is_recorded_and_read(cli: Cli, session: str, torn: str) -> None:
    path = journal_path().with_suffix(".resolutions")
    assert cli("resolve", "last", "p1", "yes").exit_code == 0
    whole = path.read_text()
    path.write_text(whole + torn)
    before = cli("scores", "--json").stdout
    assert json.loads(before)["agents"]
    assert cli("resolve", "last", "p1", "yes").exit_code == 0
    assert cli("scores", "--json").stdout == before
    assert path.read_text() == whole * 2
    assert cli("due").exit_code == 0


def test_whole_outcome_without_a_line_end_is_kept(cli: Cli, session: str) -> None:
    path = journal_path().with_suffix(".resolutions")
    assert cli("resolve", "last", "p1", "yes").exit_code == 0
    whole = path.read_text()
    path.write_text(whole.rstrip("\n"))
    assert cli("resolve", "last", "p1", "yes").exit_code == 0
    assert path.read_text() == whole * 2


@pytest.mark.parametrize(
    "damaged", ["nonsense", '{"session": 1, "forecast": "p1", "outcome": true, "on": "2027-01-01"}', "[]", "7"]
)
def test_damaged_line_is_named_and_nothing_is_recorded_after_it(cli: Cli, session: str, damaged: str) -> None:
    path = journal_path().with_suffix(".resolutions")
    path.write_text(f"{damaged}\n")
    for command in (("scores",), ("due",), ("resolve", "last", "p1", "yes")):
        result = cli(*command)
        assert result.exit_code == 2
        assert "line 1 is no outcome" in result.stderr
    assert path.read_text() == f"{damaged}\n"
