"""Splitting any model text into sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.engine.analysis import MIN_RESTATED_OVERLAP, bare_tokens, novelty, sentences
from consilience.engine.similarity import set_jaccard

ODD = st.text(
    alphabet=st.one_of(st.characters(), st.sampled_from("AD. \u00a0\u2028\u2029\u0085\u3000!?\n字é")), max_size=40
)


@given(ODD)
def test_sentences_of_a_text_keep_all_words_in_order(text: str) -> None:
    place = 0
    for sentence in sentences(text):
        assert sentence.strip() == sentence != ""
        place = text.index(sentence, place) + len(sentence)
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("space", ["\u00a0", "\u2028", "\u2029", "\u0085", "\u3000"])
def test_sentences_of_any_text_do_not_fail(space: str) -> None:
    """The library panics on them, which is no exception that anybody catches."""
    assert "".join(sentences(f"It needs vitamin D{space}. Next.")).startswith(f"It needs vitamin D{space}.")


def test_sentences_keep_numbers_and_abbreviations_together() -> None:
    text = "Pi is 3.14, e.g. in Dr. Lee's book. The U.S. edition differs! Is it so?"
    assert sentences(text) == ["Pi is 3.14, e.g. in Dr. Lee's book.", "The U.S. edition differs!", "Is it so?"]


WORDS = st.lists(
    st.sampled_from(["The", "sheep,", "were", "counted", "twice.", "Nobody", "knows!", "who", "did", "it?", "Σας"]),
    max_size=14,
).map(" ".join)


@given(WORDS, st.lists(WORDS, max_size=6))
def test_novelty_counts_sentences_without_a_similar_sentence(answer: str, inputs: list[str]) -> None:
    earlier = [bare_tokens(sentence) for text in inputs for sentence in sentences(text)]
    own = [bare_tokens(sentence) for sentence in sentences(answer)]
    new = [
        not any(set_jaccard(tokens, other) >= MIN_RESTATED_OVERLAP if tokens else not other for other in earlier)
        for tokens in own
    ]
    assert novelty(answer, inputs) == (sum(new) / len(new) if new else None)
