"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from consilience.domain.wording import count, join_names


@pytest.mark.parametrize(
    ("n", "noun", "words"),
    [
        (1, "inherited reply", "1 inherited reply"),
        (2, "inherited reply", "2 inherited replies"),
        (0, "pass", "0 passes"),
        (2, "validated crux", "2 validated cruxes"),
        (3, "survey", "3 surveys"),
        (1_200, "message", "1,200 messages"),
    ],
)
def test_count_has_the_plural_of_its_noun(n: int, noun: str, words: str) -> None:
    assert count(n, noun) == words


@pytest.mark.parametrize(("names", "words"), [(["A"], "A"), (["A", "B"], "A and B"), (("A", "B", "C"), "A, B and C")])
def test_names_are_joined_as_in_a_sentence(names: list[str], words: str) -> None:
    assert join_names(names) == words
