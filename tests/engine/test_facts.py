"""Which figures, names and quotations of first drafts an answer keeps."""

from __future__ import annotations

from consilience.domain.messages import LeafReply
from consilience.domain.report import FactsKept
from consilience.engine.analysis import facts_kept
from consilience.engine.work import Reply


def draft(text: str, *points: str) -> Reply[object]:
    return Reply(f"first/{text[:8]}", "A", LeafReply(points=list(points), text=text), text)


def kept(text: str, answer: str, *claims: str) -> FactsKept:
    found = facts_kept([draft(text)], answer, claims)
    assert found is not None
    return found


def test_facts_in_other_words_and_other_forms_count_as_kept() -> None:
    text = "The data grew 1.6-fold to 10,171 rows and p99 rose; “keep it simple”, says Anna of pg_stat_statements."
    answer = 'Anna: "Keep it  simple". Rows: 10171, growth 1,6-fold, P99 up; see PG_STAT_STATEMENTS.'
    assert kept(text, answer) == FactsKept(kept=6, total=6)


def test_what_is_lost_is_listed_once_as_it_was_written() -> None:
    found = kept("Rents rise 8 % a month. In May it was 8 %, says Anna.", "Rents rise.")
    assert found == FactsKept(kept=0, total=3, lost=("8", "May", "Anna"))


def test_a_fact_in_a_claim_is_kept() -> None:
    assert kept("Rents rise 8 % a month.", "Rents rise.", "It is 8 % a month.") == FactsKept(kept=1, total=1)


def test_points_stand_for_the_text_of_their_reply() -> None:
    found = facts_kept([draft("On 7 days of 9.", "It opens on 5 days.")], "It opens on 5 days.", ())
    assert found == FactsKept(kept=1, total=1)


def test_a_number_is_not_found_inside_another() -> None:
    assert kept("It has 15 stalls.", "It has 150 stalls or 1.15.").lost == ("15",)


def test_capitals_mark_no_names_where_nouns_have_them() -> None:
    text = "Die Latenz der Datenbank steigt, weil der Kunde mit den Rechten im Monat 8 % der Last schreibt."
    assert kept(text, "8 %") == FactsKept(kept=1, total=1)


def test_without_an_answer_or_facts_or_beside_itself_there_is_no_figure() -> None:
    assert facts_kept([draft("8 %")], None, ()) is None
    assert facts_kept([draft("it rains")], "It rains.", ()) is None
    assert facts_kept([draft("8 %")], "8 %", ()) is None
