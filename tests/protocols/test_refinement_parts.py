"""Parts of `refinement`: the filter by distance, protected blocks, aggregation, the scorers, the diff."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from consilience.engine.analysis import sentences
from consilience.protocols._common import protected
from consilience.protocols._common.protected import ProtectedDraft, extract_protected
from consilience.protocols.refinement.outcome import aggregate, change, differences, unified
from consilience.protocols.refinement.passes import filter_context, strength
from consilience.protocols.refinement.protocol import NAMED_POINTS, critique_of

# --- the filter


def numbered(n: int) -> str:
    return " ".join(f"This is sentence number {i}." for i in range(1, n + 1))


def test_filter_at_distance_0_7_twice_keeps_26_of_100_sentences() -> None:
    """Distance 0.7 twice leaves 51 and then 26 of 100 sentences (protocols §5)."""
    once = filter_context(numbered(100), 0.7)
    assert (once.kept, once.of) == (51, 100)
    twice = filter_context(once.text, 0.7)
    assert (twice.kept, twice.of) == (26, 51)
    assert once.text.endswith("number 51.")


@given(st.integers(0, 60), st.floats(0, 1))
def test_filter_keeps_the_share_of_its_formula_and_at_least_one_sentence(n: int, distance: float) -> None:
    text = numbered(n)
    context = filter_context(text, distance)
    assert text.startswith(context.text)
    assert context.of == n
    if n <= 3 or distance == 0:
        assert context.text == text
    else:
        assert context.kept == max(1, int(n * strength(distance) + 1e-9))
        assert len(sentences(context.text)) == context.kept


def test_filter_at_distance_zero_keeps_all_and_at_one_a_sentence() -> None:
    assert filter_context(numbered(50), 0.0).text == numbered(50)
    assert filter_context(numbered(4), 1.0).kept == 1
    assert strength(1.0) == pytest.approx(0.3)


def test_filter_does_not_end_sentences_at_decimals_or_abbreviations() -> None:
    text = "Pi is about 3.14 here. It helps, e.g. with circles. Dr. Lee agrees. So do others. This is cut."
    assert filter_context(text, 0.3).text == text.removesuffix(" So do others. This is cut.")
    assert filter_context("Use 3.14, e.g. here. B. C. D.", 1.0).text.startswith("Use 3.14, e.g. here.")


def test_filter_returns_an_unchanged_beginning_of_the_text() -> None:
    text = "# A title\n\nOne  sentence.\nAnother one.\n\n- An item.\n\nThe same. The same. The end."
    context = filter_context(text, 0.5)
    assert text.startswith(context.text)
    assert context.text.endswith("- An item.")
    assert filter_context("Same. Same. Same. Same. Other.", 0.3).text == "Same. Same. Same."


# --- aggregation


def test_aggregate_of_0_9_and_0_2_is_0_773() -> None:
    weights, mean = aggregate({"a": 0.9, "b": 0.2})
    assert round(mean, 3) == 0.773
    assert weights == {"a": pytest.approx(0.9 / 1.1), "b": pytest.approx(0.2 / 1.1)}


def test_aggregate_of_zero_confidences_has_equal_weights_and_mean_one_half() -> None:
    assert aggregate({"a": 0.0, "b": 0.0}) == ({"a": 0.5, "b": 0.5}, 0.5)
    assert aggregate({}) == ({}, 0.5)


@given(st.dictionaries(st.text(min_size=1), st.floats(0.01, 1), min_size=1, max_size=8))
def test_aggregate_lies_between_the_mean_and_the_max(declared: dict[str, float]) -> None:
    weights, mean = aggregate(declared)
    assert sum(weights.values()) == pytest.approx(1.0)
    values = list(declared.values())
    assert sum(values) / len(values) - 1e-9 <= mean <= max(values) + 1e-9


# --- marks


def test_critique_schema_requires_every_part_and_accepts_words_or_numbers() -> None:
    reply = critique_of(("intro", "body", "copy"))
    schema = reply.model_json_schema()
    assert schema["required"] == ["intro", "body", "copy"]
    marks = {"coherence": "weak", "accuracy": "Good", "depth": 7.5, "overall": 10}
    parsed = reply.model_validate({"intro": marks, "body": marks, "copy": {**marks, "issues": ["x"]}})
    assert parsed.judgements()["copy"].issues == ["x"]
    assert parsed.judgements()["intro"].coherence == NAMED_POINTS["weak"]
    assert parsed.judgements()["intro"].depth == 7.5


@pytest.mark.parametrize("wrong", ["splendid", 11, -1, None, "", float("nan"), True and "8/10"])
def test_invalid_mark_is_rejected(wrong: object) -> None:
    marks = {"coherence": 5, "accuracy": 5, "depth": 5, "overall": wrong}
    with pytest.raises(ValueError, match="overall"):
        critique_of(("intro",)).model_validate({"intro": marks})


# --- protected parts

DRAFT = """---
title: Loops
---
# Loops

This is how a loop looks in Python.

```python
for x in range(3):
    print(x)
```

And this is another, in C.

~~~c
/* ``` */ for (;;) {}
~~~

That is all.
"""


def test_protected_blocks_are_hidden_and_restored_exactly() -> None:
    draft = extract_protected(DRAFT, ("code", "front_matter"))
    assert "print(x)" not in draft.text
    assert "title: Loops" not in draft.text
    assert list(draft.blocks) == ["[[code-1]]", "[[code-2]]"]
    whole, lost = draft.restored(draft.text)
    assert whole.strip() == DRAFT.strip()
    assert lost == []


def test_lost_block_is_restored_after_the_paragraph_most_similar_to_its_predecessor() -> None:
    draft = extract_protected(DRAFT, ("code", "front_matter"))
    written = "# Loops\n\nIn Python a loop looks like this.\n\nIn C this is another loop.\n\nThe end."
    whole, lost = draft.restored(written)
    assert lost == ["[[code-1]]", "[[code-2]]"]
    assert whole.startswith("---\ntitle: Loops\n---\n# Loops")
    places = [whole.index(text) for text in ("In Python", "print(x)", "In C this", "for (;;)", "The end.")]
    assert places == sorted(places)


def test_lost_block_is_not_restored_after_a_title_with_similar_words() -> None:
    draft = extract_protected("Cron runs jobs at fixed times.\n\n```\n0 5 * * *\n```\n", ("code",))
    written = "# Why we watch cron jobs\n\nIn most houses cron runs a good many jobs, and nobody sees them at all.\n\nThe end."
    whole, _ = draft.restored(written)
    assert whole.index("nobody sees") < whole.index("0 5 * * *") < whole.index("The end.")


def test_repeated_marker_is_replaced_by_one_block() -> None:
    draft = extract_protected("Look:\n\n```\ncode\n```\n", ("code",))
    whole, lost = draft.restored("See [[code-1]] and again [[code-1]] here.")
    assert whole.count("```\ncode\n```") == 1
    assert "[[code-1]]" not in whole
    assert "See\n\n```\ncode\n```\n\nand again" in whole
    assert lost == []


@pytest.mark.parametrize(
    "written",
    [
        "A.\n\n```\n[[code-1]]\n```\n\nB.",
        "A.\n\n~~~~python\n\n  [[code-1]]\n\n~~~~\n\nB.",
        "A.\r\n\r\n```\r\n[[code-1]]\r\n```\r\n\r\nB.",
        "A.\n\n``` [[code-1]]\n```\n\nB.",
        "A.\n\n`[[code-1]]`\n\nB.",
        "A.\n\n`` [[code-1]] ``\n\nB.",
        "A.\n\n**[[code-1]]**\n\nB.",
        "A.\n\n- **`[[code-1]]`**\n\nB.",
        "A.\n\n> [[code-1]]\n\nB.",
        "A.\n\n> ```\n> [[code-1]]\n> ```\n\nB.",
        "A.\n\n1. ```\n   [[code-1]]\n   ```\n\nB.",
        "A. `[[code-1]]` B.",
        "A.\n\n[[code-1]]\n\nB. `[[code-1]]`",
    ],
)
def test_marker_with_added_formatting_is_replaced_with_its_formatting(written: str) -> None:
    draft = extract_protected("A.\n\n```py\nx = 1\n```\n\nB.", ("code",))
    whole, lost = draft.restored(written)
    assert whole.rstrip() == "A.\n\n```py\nx = 1\n```\n\nB."
    assert lost == []


def test_markers_inside_a_code_block_are_restored_before_it() -> None:
    draft = extract_protected("```py\nx = 1\n```\n\n~~~\ny\n~~~", ("code",))
    whole, lost = draft.restored("Look:\n\n```\n# as here\n[[code-2]]\n[[code-1]]\n```")
    assert whole == "Look:\n\n~~~\ny\n~~~\n```py\nx = 1\n```\n```\n# as here\n\n\n```"
    assert lost == []
    fences = [token.content for token in MarkdownIt("commonmark").parse(whole) if token.type == "fence"]
    assert [fence.strip() for fence in fences] == ["y", "x = 1", "# as here"]


def test_lost_block_is_restored_outside_a_code_block_of_the_model() -> None:
    draft = extract_protected("It is set in one place.\n\n```py\nx = 1\n```", ("code",))
    whole, lost = draft.restored("```\nIt is set in one place.\n\nfoo\n```\n\nEnd.")
    fences = [token.content.strip() for token in MarkdownIt("commonmark").parse(whole) if token.type == "fence"]
    assert fences == ["x = 1", "It is set in one place.\n\n\n\nfoo"]
    assert lost == ["[[code-1]]"]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_extract_protected_with_other_line_ends_gives_the_same_draft(end: str) -> None:
    draft = extract_protected(DRAFT.replace("\n", end), ("code", "front_matter"))
    assert draft == extract_protected(DRAFT, ("code", "front_matter"))


@pytest.mark.parametrize(
    "front",
    [
        "---\ntitle: x\n---",
        "---\ntitle: x\ndate: 2020\n...",
        "---\n---",
        "---\n# by hand\n\ntags:\n- a\n- b\n\ndate created: 2020\n'a key': |\n  Words: as\n  they come.\nlist: [\n  a,\n]\n---",
        "---\ntitle: x\ntags:\n-\n- a\n-\n  name: b\n-\tc\n---",
        "+++\ntitle = 'x'\n+++",
        "+++\n\n[params]\n+++",
    ],
)
def test_front_matter_is_removed_and_restored(front: str) -> None:
    draft = extract_protected(f"{front}\nThey go round.\n\n---\n\nThe end.", ("front_matter",))
    assert draft.text == "They go round.\n\n---\n\nThe end."
    assert draft.restored("New.") == (f"{front}\nNew.", [])


@pytest.mark.parametrize(
    "begun",
    [
        "---\n\nA paragraph.\n\n---",
        "---\n\nNote: it is one.\n\n---",
        "---\nA heading\n---",
        "---\n- an item\n---",
        "---\ntitle: x\n-no item\n---",
        "---\ntitle: x\nA paragraph.\n---",
        "---\n\n---",
        "----\ntitle: x\n----",
        "Text.\n---\ntitle: x\n---",
    ],
)
def test_text_between_horizontal_rules_is_not_front_matter(begun: str) -> None:
    draft = extract_protected(f"{begun}\n\nThe end.", ("code", "front_matter"))
    assert draft.text == f"{begun}\n\nThe end."
    assert draft.front_matter == ""


def test_front_matter_without_a_body_is_restored_with_a_line_end() -> None:
    assert extract_protected("---\ntitle: x\n---", ("front_matter",)).restored("# T")[0] == "---\ntitle: x\n---\n# T"


def test_marker_text_of_the_draft_itself_is_kept() -> None:
    draft = extract_protected("Write [[code-1]] so:\n\n```\nx\n```", ("code",))
    whole, _ = draft.restored(draft.text)
    assert whole == "Write [[code-1]] so:\n\n```\nx\n```"


def test_unprotected_kinds_stay_in_the_draft() -> None:
    assert extract_protected(DRAFT, ("front_matter",)).text.count("print(x)") == 1
    assert extract_protected(DRAFT, ("code",)).text.startswith("---\ntitle: Loops")
    assert extract_protected("", ("code",)).restored("New text.") == ("New text.", [])


@given(
    st.lists(
        st.sampled_from(
            [
                "Text.",
                "```\na\n```",
                "~~~\nb\n~~~",
                "",
                "- item",
                "> quote",
                "[[code-1]]",
                "    ```",
                "> ```",
                "- ```",
                "<div>",
            ]
        ),
        max_size=8,
    ),
    st.sampled_from(["\n", "\n\n"]),
)
def test_restoring_an_unchanged_draft_gives_the_draft(paragraphs: list[str], between: str) -> None:
    text = between.join(paragraphs)
    draft = extract_protected(text, ("code", "front_matter"))
    whole, lost = draft.restored(draft.text)
    assert whole.strip("\n") == text.strip("\n")
    assert not lost


def test_lost_block_below_a_heading_is_restored_below_that_heading() -> None:
    draft = extract_protected("---\ntitle: x\n---\n\n# The setting\n```\nx = 1\n```", ("code", "front_matter"))
    whole, _ = draft.restored("Of the setting we speak.\n\n# The setting\n\nThe end.")
    assert whole.index("# The setting") < whole.index("x = 1") < whole.index("The end.")


_BITS = (
    "[[code-1]]",
    "[[code-2]]",
    "[[code-3]]",
    "[[code-9]]",
    "**",
    "`",
    "_",
    " ",
    "\n",
    "\n\n",
    "> ",
    "- ",
    "```\n",
    "\n```\n",
    "Text one.",
)


@given(st.lists(st.sampled_from(_BITS), max_size=20))
def test_restored_text_has_every_block_exactly_once_for_any_reply(bits: list[str]) -> None:
    blocks = ["```\nalpha\n```", "~~~\nbeta\n~~~", "```py\ngamma\n\ngamma\n```"]
    draft = extract_protected("Text one.\n\n" + "\n\nText.\n\n".join(blocks), ("code",))
    written = "".join(bits)
    whole, lost = draft.restored(written)
    markers = list(draft.blocks)
    assert lost == [marker for marker in markers if marker not in written]
    assert [whole.count(text) for text in blocks] == [1, 1, 1]
    assert not any(marker in whole for marker in markers)
    plain = draft.comparable(written).split("\n\n")
    assert [plain.count(marker) for marker in markers] == [1, 1, 1]


def characters_processed(blocks: int, written: Callable[[ProtectedDraft], str]) -> int:
    """Characters of the strings whose methods were called, and of those given to `re`, for a draft of so many blocks."""
    text = "\n\n".join(f"This is paragraph {i} of many.\n\n```\ncode {i}\n```" for i in range(blocks))
    characters = 0

    def count(frame: FrameType, event: str, what: Any) -> None:
        nonlocal characters
        if event == "c_call" and frame.f_code.co_filename == protected.__file__:
            subject = getattr(what, "__self__", None)
            characters += len(subject) if isinstance(subject, str) else 0
        elif event == "call" and frame.f_code.co_filename == re.__file__:
            characters += len(frame.f_locals.get("string", ""))

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        draft = extract_protected(text, ("code", "front_matter"))
        revised = written(draft)
        draft.restored(revised)
        draft.comparable(revised)
        draft.expand_markers(revised)
    finally:
        sys.setprofile(before)
    return characters


@pytest.mark.parametrize(
    "written",
    [
        lambda draft: draft.text,
        lambda draft: "Nothing of it.",
        lambda draft: "\n\n".join(line for line in draft.text.split("\n\n") if "[[" not in line),
    ],
    ids=["kept", "lost", "all markers lost"],
)
def test_restoring_blocks_takes_linear_time(written: Callable[[ProtectedDraft], str]) -> None:
    assert characters_processed(400, written) < 5 * characters_processed(100, written)


# --- what changed


def test_differences_and_change_compare_sentences() -> None:
    before, after = "One. Two. Three. Four.", "One. Two and a half. Three. Four. Five."
    assert differences(before, after) == (("Two.",), ("Two and a half.", "Five."))
    assert change(before, before) == 0.0
    assert change(before, "Something else.") == 1.0
    assert unified(before, after).splitlines()[1:4] == [" One.", "-Two.", "+Two and a half."]
    assert unified(before, before) == ""
