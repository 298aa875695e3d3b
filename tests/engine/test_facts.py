"""Which figures, names and quotations of first drafts an answer keeps."""

from __future__ import annotations

from consilience.domain.messages import LeafReply
from consilience.domain.report import FactsKept
from consilience.engine.analysis import facts_kept
from consilience.engine.work import Reply


def draft(text: str, *points: str) -> Reply[object]:
    return Reply(f"first/{text[:8]}", "A", LeafReply(points=list(points), text=text), text)


def kept(text: str, answer: str, *claims: str) -> FactsKept:
    facts = facts_kept([draft(text)], answer, claims)
    assert facts is not None
    return facts


def test_facts_in_a_paraphrase_count_as_kept() -> None:
    text = "The data grew 1.6-fold to 10,171 rows and p99 rose; “keep it simple”, says Anna of pg_stat_statements."
    answer = 'Anna: "Keep it  simple". Rows: 10171, growth 1,6-fold, P99 up; see PG_STAT_STATEMENTS.'
    assert kept(text, answer) == FactsKept(kept=6, total=6)


def test_lost_facts_are_listed_once_as_written() -> None:
    facts = kept("Rents rise 8 % a month. In May it was 8 %, says Anna.", "Rents rise.")
    assert facts == FactsKept(kept=0, total=3, lost=("8", "May", "Anna"))


def test_fact_found_only_in_a_claim_counts_as_kept() -> None:
    assert kept("Rents rise 8 % a month.", "Rents rise.", "It is 8 % a month.") == FactsKept(kept=1, total=1)


def test_facts_in_the_points_of_a_reply_are_counted() -> None:
    facts = facts_kept([draft("On 7 days of 9.", "It opens on 5 days.")], "It opens on 5 days.", ())
    assert facts == FactsKept(kept=1, total=1)


def test_number_inside_another_number_is_not_a_match() -> None:
    assert kept("It has 15 stalls.", "It has 150 stalls or 1.15.").lost == ("15",)


def test_facts_exclude_capitalised_german_nouns() -> None:
    text = "Die Latenz der Datenbank steigt, weil der Kunde mit den Rechten im Monat 8 % der Last schreibt."
    assert kept(text, "8 %") == FactsKept(kept=1, total=1)


def test_facts_kept_is_none_without_an_answer_facts_or_a_change() -> None:
    assert facts_kept([draft("8 %")], None, ()) is None
    assert facts_kept([draft("it rains")], "It rains.", ()) is None
    assert facts_kept([draft("8 %")], "8 %", ()) is None
