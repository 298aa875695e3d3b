"""`Document.find`: where the exact words are that an agent quotes, nearest to the line that it names."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.engine.sources import Document

WORDS = ("alpha", "beta", "gamma", "delta", "it's", '"quoted"', "x-y", "n + 1", "é")
LINES = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
TEXTS = st.lists(LINES, min_size=1, max_size=12)


def document(*lines: str, shown: tuple[int, int] | None = None) -> Document:
    return Document("S1", "x", "\n".join(lines) + "\n", lines=shown)


def occurrences(lines: list[str], words: str) -> list[tuple[int, int]]:
    """Every occurrence of the words, by comparing all runs of words; the slow way."""
    flat = [(word, n) for n, line in enumerate(lines, 1) for word in line.split()]
    wanted = words.split()
    runs = [flat[n : n + len(wanted)] for n in range(len(flat) - len(wanted) + 1)]
    return [(run[0][1], run[-1][1]) for run in runs if [word for word, _ in run] == wanted]


def restyled(words: str, style: int) -> str:
    """The same words with other whitespace, case or typographic marks."""
    changes = (
        words,
        words.upper().replace("É", "é"),
        words.replace(" ", "\n   "),
        words.replace('"quoted"', "„quoted“").replace("it's", "it’s").replace("x-y", "x–y"),
        f"  {words}.",
    )
    return changes[style % len(changes)]


@given(TEXTS, st.data())
def test_find_returns_the_occurrence_nearest_to_the_line(lines: list[str], data: st.DataObject) -> None:
    flat = " ".join(lines).split()
    if not flat:
        return
    start = data.draw(st.integers(0, len(flat) - 1))
    words = " ".join(flat[start : start + data.draw(st.integers(1, 5))])
    line = data.draw(st.integers(-2, len(lines) + 3))
    places = occurrences(lines, words)
    place = document(*lines).find(restyled(words, data.draw(st.integers(0, 4))), line)
    assert place is not None
    assert place in places
    assert abs(place[0] - line) == min(abs(first - line) for first, _ in places)


@given(TEXTS, st.data())
def test_find_of_words_with_a_changed_word_returns_none(lines: list[str], data: st.DataObject) -> None:
    flat = " ".join(lines).split()
    if not flat:
        return
    at = data.draw(st.integers(0, len(flat) - 1))
    changed = [*flat[:at], "omega", *flat[at + 1 :]]
    start = data.draw(st.integers(0, at))
    assert document(*lines).find(" ".join(changed[start : at + 2]), data.draw(st.integers(1, 12))) is None


@given(TEXTS, st.data())
def test_find_searches_only_the_lines_shown(lines: list[str], data: st.DataObject) -> None:
    first = data.draw(st.integers(1, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    word = data.draw(st.sampled_from(WORDS))
    place = document(*lines, shown=(first, last)).find(word, data.draw(st.integers(1, 12)))
    expected = [n for n in range(first, last + 1) if word in lines[n - 1]]
    assert (place is None) == (not expected)
    assert place is None or place[0] in expected


@given(TEXTS, st.data())
def test_contains_agrees_with_find(lines: list[str], data: st.DataObject) -> None:
    text = document(*lines)
    words = data.draw(st.one_of(LINES, st.text(max_size=6)))
    line = data.draw(st.integers(1, len(lines)))
    assert text.contains(words, line) == ((place := text.find(words, line)) is not None and place[0] == line)


def test_find_with_two_equally_near_occurrences_returns_the_earlier() -> None:
    assert document("word", "", "word").find("word", 2) == (1, 1)


@pytest.mark.parametrize("words", ["", "  ", ".", " ;:"])
def test_find_without_words_returns_none(words: str) -> None:
    assert document("a. b; c:").find(words, 1) is None


def test_find_in_an_empty_document_returns_none() -> None:
    assert Document("S1", "x", "").find("a", 1) is None
    assert document("", "").find("a", 1) is None


def test_find_counts_all_kinds_of_line_ends_like_the_prompt() -> None:
    text = Document("S1", "x", "one\r\ntwo\x0cthree\u2028four")
    assert [text.find(word, 1) for word in ("one", "two", "three", "four")] == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("words", ["a" * 5_000 + "b", "b" + "a" * 5_000, "a b" * 2_000])
def test_find_in_repetitive_text_takes_linear_time(words: str) -> None:
    """Naive search compares a long quotation at each position: 10 s here for a text of 400 kB."""
    text = replace(document(*["a" * 80] * 5_000), name="repetitive")
    assert text.find("zz", 1) is None  # bring to normal form
    start = time.process_time()
    assert text.find(words, 2_500) is None
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
    "words",
    ["a railway is well-known", "a rail-way is well-known", "a rail- way is well- known", "a railway is wellknown"],
)
def test_words_that_a_line_end_divides_are_found_in_each_spelling(words: str) -> None:
    divided = document("On a rail-", "way is well-", "known, 5-", "6 days: x-", "", "y")
    assert divided.find(words, 1) == (1, 3)
    assert divided.contains(words, 1)
    assert divided.contains("5- 6 days", 3)
    assert not divided.contains("56 days", 3)
    assert not divided.contains("xy", 4)


@pytest.mark.parametrize(
    "character", ["\u00ad", "\u200b", "\u200d", "\u2060", "\ufeff", "\ufe0f", "\u200e", "\U000e0020"]
)
def test_characters_that_nobody_sees_do_not_count(character: str) -> None:
    plain, marked = "the railway station", f"the rail{character}way{character} sta{character}tion"
    assert document(marked).contains(plain, 1)
    assert document(plain).contains(marked, 1)
    assert not document(marked).contains("the rail way", 1)
