"""Rows of different readers are joined if they speak of one thing and state different values, and not otherwise."""

from __future__ import annotations

import random

import pytest

from consilience.documents.joining import MAX_TOGETHER, StatedRow, join_rows
from simulation.document_sets import make_document_set


def row(entity: str, attribute: str, value: str, place: str = "S1:1", reader: str = "A") -> StatedRow:
    document, _, line = place.partition(":")
    return StatedRow(reader, document, int(line), f"{entity} {attribute} {value}", entity, attribute, value)


def ranks(*rows: StatedRow) -> list[int]:
    return [pair.rank for pair in join_rows(rows)]


@pytest.mark.parametrize(
    ("one", "other", "rank"),
    [
        (("Zephyr", "end of lease", "30 June"), ("Zephyr", "lease end date", "31 March"), 3),
        (("the Zephyr warehouse", "end of the lease", "30 June"), ("Zephyr", "end of lease", "31 March"), 3),
        (("Zephyr", "monthly rent", "900 euros"), ("Zephyr", "rent", "950 euros"), 2),
        (("Zephyr lease", "end", "30 June"), ("Zephyr warehouse", "end of lease", "31 March"), 1),
        (("Zephyr", "tenancy expiry", "30 June"), ("Zephyr", "last day", "31 March"), 0),
        (("Zephyr", "manager", "Ms Aldous"), ("Zephyr", "manager", "Mr Brandt"), 3),
    ],
)
def test_rows_on_one_thing_meet(one: tuple[str, str, str], other: tuple[str, str, str], rank: int) -> None:
    rows = [row(*one), row(*other, place="S2:4", reader="B")]
    assert ranks(*rows) == ranks(*rows[::-1]) == [rank]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("Zephyr", "rent", "900 euros"), ("Zephyr", "monthly rent", "€ 900.00")),
        (("Zephyr", "rent", "900 euros"), ("Harbour", "rent", "950 euros")),
        (("Zephyr", "staff", "900"), ("Harbour", "capacity", "900")),
        (("Zephyr", "staff", "12"), ("Zephyr", "capacity", "40")),
        (("Zephyr", "notice", "2 months"), ("Zephyr", "notice", "60 days")),
        (("Zephyr", "rent", "not stated"), ("Zephyr", "rent", "950 euros")),
        (("", "rent", "900 euros"), ("", "rent", "950 euros")),
    ],
)
def test_equal_values_and_other_things_do_not_meet(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert ranks(row(*one), row(*other, place="S2:4")) == []


def test_short_name_is_clear_as_long_as_one_thing_has_it() -> None:
    short = row("Ashton", "rent", "900 euros")
    depot = row("Ashton depot", "rent", "950 euros", "S2:4")
    clinic = row("Ashton clinic", "rent", "990 euros", "S3:7")
    assert ranks(short, depot) == [3]
    met = {pair.places for pair in join_rows([short, depot, clinic]) if pair.rank > 1}
    assert met == set(), "which of both is meant cannot be told"
    assert ranks(depot, clinic) == [], "a depot is not a clinic"
    assert ranks(row("depot", "rent", "1 euro"), depot, row("Birk depot", "rent", "950 euros", "S3:7")) == [1, 1]


def test_two_passages_make_one_pair_of_the_surest_rows_and_one_passage_none() -> None:
    rows = [
        row("Zephyr", "tenancy expiry", "30 June", "S1:1", "A"),
        row("Zephyr", "end of lease", "30 June", "S1:1", "B"),
        row("Zephyr", "end of lease", "31 March", "S2:4", "B"),
        row("Zephyr", "end of lease", "March", "S2:4", "A"),
    ]
    (pair,) = join_rows(rows)
    assert (pair.rank, pair.places) == (3, {("S1", 1), ("S2", 4)})


def test_other_name_of_an_attribute_counts_as_long_as_no_reader_uses_both() -> None:
    rows = [row("Zephyr", "tenancy", "30 June", "S1:1", "A"), row("Zephyr", "last day", "31 March", "S2:4", "B")]
    assert ranks(*rows) == [0]
    more = [row("Harbour", "tenancy", "30 June", "S1:5", "A"), row("Quarry", "last day", "1 May", "S1:7", "A")]
    assert ranks(*rows, *more) == []


def test_order_of_rows_does_not_matter_and_surest_pairs_come_first() -> None:
    documents = make_document_set(3_100, tokens=9_000, documents=8)
    rows = [row(s.site, s.attribute, s.value, f"S{s.document + 1}:{n}") for n, s in enumerate(documents.statements, 1)]
    joined = join_rows(rows)
    shuffled = rows.copy()
    random.Random(1).shuffle(shuffled)
    assert join_rows(shuffled) == joined
    assert [pair.rank for pair in joined] == sorted((pair.rank for pair in joined), reverse=True)


@pytest.mark.parametrize("seed", range(3_100, 3_104))
def test_planted_pairs_and_nothing_else_are_sure_where_readers_name_attributes_alike(seed: int) -> None:
    """Decoys have the same figure under another attribute, or another figure at another site."""
    documents = make_document_set(seed, tokens=20_000, documents=8)
    place_of = {statement.text: f"S{statement.document + 1}:{n}" for n, statement in enumerate(documents.statements)}
    rows = [row(s.site, s.attribute, s.value, place_of[s.text]) for s in documents.statements]
    planted = {
        frozenset((place.partition(":")[0], int(place.partition(":")[2])) for place in places)
        for pair in documents.pairs
        for places in [(place_of[pair.first.text], place_of[pair.second.text])]
    }
    assert {pair.places for pair in join_rows(rows) if pair.rank} == planted


def test_a_name_that_is_everywhere_brings_nothing_together_by_itself() -> None:
    rows = [row("Northwind", f"item{n}", f"{n} euros", f"S1:{n}", f"R{n}") for n in range(1, MAX_TOGETHER + 2)]
    assert join_rows(rows) == []
    assert ranks(*rows[:2]) == [0]


def test_rows_in_a_script_without_spaces_meet() -> None:
    ends = row("东港仓库", "租约到期日", "2027年3月4日"), row("东港仓库", "租约的到期日", "2027年5月9日", "S2:1", "B")
    (pair,) = join_rows(ends)
    assert pair.places == {("S1", 1), ("S2", 1)}
    assert join_rows([ends[0], row("西河码头", "租约到期日", "2027年5月9日", "S2:1", "B")]) == []


def test_very_many_rows_on_one_thing_are_joined_in_time_and_not_lost() -> None:
    rows = [row("crane", "load", f"{n} tonnes", f"S{n % 5 + 1}:{n + 1}", f"R{n % 5}") for n in range(900)]
    pairs = join_rows(rows)
    assert len(rows) < len(pairs) < MAX_TOGETHER * len(rows)
    assert {pair.rank for pair in pairs} == {3}
    assert join_rows(rows[::-1]) == pairs
