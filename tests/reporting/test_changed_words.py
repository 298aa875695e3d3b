"""Words that changed in a diff."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.sections import Diff
from consilience.reporting.changed_words import worded
from consilience.reporting.page_parts import PageParts

LINES = st.lists(st.text("ab .-+\\<é", max_size=12), max_size=8)


def test_words_that_changed_between_two_versions_are_marked_and_others_are_not() -> None:
    diff = Diff(
        text="@@ -1 +1 @@\n-It costs 12 million <b>and</b> is old.\n+It costs 14 million <b>and</b> is very old."
    )
    html = PageParts({}, {}).blocks([diff])
    assert "-It costs <del>12</del> million &lt;b&gt;and&lt;/b&gt; is old." in html
    assert "+It costs <ins>14</ins> million &lt;b&gt;and&lt;/b&gt; is <ins>very </ins>old." in html


def test_lines_with_nothing_in_common_are_marked_whole() -> None:
    assert list(worded("-Gone with it.\n+Zürich 2026?")) == [
        [("", "-"), ("del", "Gone with it.")],
        [("", "+"), ("ins", "Zürich 2026?")],
    ]


@given(LINES)
def test_nothing_of_a_diff_is_lost_or_added(lines: list[str]) -> None:
    diff = "\n".join(lines)
    shown = ["".join(words for _, words in row) for row in worded(diff)]
    assert sorted(shown) == sorted(diff.split("\n"))
