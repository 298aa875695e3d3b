"""Vetting findings: true quotations are placed, false ones rejected, duplicates merged, and nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.findings import Finding, JudgedBy
from consilience.engine.sources import Document
from consilience.protocols.review.baseline import Baseline, baseline_of, parse_baseline
from consilience.protocols.review.findings import CheckReply, FindingReply, ReviewReply
from consilience.protocols.review.vetting import Submitted, Vetted, judged, listed, merged, misses, ranked, vet

CODE = """\
def page(items, n):
    size = 10
    last = n * size + 1
    return items[last - size:last]


def pages(items):
    return range(len(items) // 10)
"""
DIFF = """\
diff --git a/src/pager.py b/src/pager.py
index 1111111..2222222 100644
--- a/src/pager.py
+++ b/src/pager.py
@@ -1,8 +1,8 @@
 def page(items, n):
     size = 10
-    check(n)
-    last = n * size
+    last = n * size + 1
     return items[last - size:last]
 
 
+def pages(items):
+    return range(len(items) // 10)
"""
PLAIN = (Document("S1", "src/pager.py", CODE),)
CHANGED = (Document("S1", "diff main..HEAD", DIFF), Document("S2", "src/pager.py", CODE))


def reply(quotation: str, line: int = 1, document: str = "S1", **fields: Any) -> FindingReply:
    common: dict[str, Any] = {
        "severity": "major",
        "category": "bounds",
        "claim": f"It is wrong: {quotation}",
        "check": CheckReply(kind="run", text="pytest"),
    }
    return FindingReply(document=document, line=line, quotation=quotation, **{**common, **fields})


def handed_in(
    *findings: FindingReply, agent: str = "red", shown: Sequence[Document] = PLAIN, part: int = 1
) -> Submitted:
    key = f"review-1/part-{part}/{agent}"
    return Submitted(agent, part, 1, key, ReviewReply(findings=list(findings), vote="changes"), tuple(shown))


def vetted(
    *submitted: Submitted,
    documents: Sequence[Document] = PLAIN,
    baseline: Baseline | None = None,
    changed_lines_only: bool = True,
) -> Vetted:
    known = baseline or Baseline()
    return vet(submitted, documents, baseline=known, changed_lines_only=changed_lines_only)


def only(result: Vetted) -> Finding:
    assert not result.dropped
    (finding,) = result.findings
    return finding


def place(finding: Finding) -> tuple[str, int, int, str]:
    return finding.file, finding.first_line, finding.last_line, finding.side


# --- locating


@pytest.mark.parametrize(
    ("quotation", "line", "expected"),
    [
        ("last = n * size + 1", 3, (3, 3)),
        ("last = n * size + 1", 8, (3, 3)),
        ("LAST = N  *  SIZE + 1", 3, (3, 3)),
        ("size = 10 last = n * size + 1", 2, (2, 3)),
        ("2|     size = 10\n3|     last = n * size + 1", 2, (2, 3)),
        ("3| last = n * size + 1", 3, (3, 3)),
        ("+    last = n * size + 1", 3, (3, 3)),
        ("3| +    last = n * size + 1\n4|      return items[last - size:last]", 3, (3, 4)),
        ("return items[last \u2013 size:last]", 4, (4, 4)),
        ("last", 99, (4, 4)),
    ],
)
def test_quotation_in_the_document_is_located(quotation: str, line: int, expected: tuple[int, int]) -> None:
    finding = only(vetted(handed_in(reply(quotation, line))))
    assert place(finding) == ("src/pager.py", *expected, "new")
    assert finding.source_line == expected[0]


@pytest.mark.parametrize(
    "quotation",
    [
        "last = n * size + 2",
        "last = size * n + 1",
        "",
        " ",
        ".",
        "}",
        "+",
        "+ -",
        "n",
        "12| ",
        "`n`",
        "```\n```",
        "... 1",
        "def page ... size = 10",
    ],
)
def test_quotation_that_is_false_or_not_evidence_is_dropped(quotation: str) -> None:
    submitted = handed_in(reply(quotation, 3))
    result = vetted(submitted)
    assert not result.findings
    (dropped,) = result.dropped
    assert (dropped.reason, dropped.file, dropped.quotation, dropped.line) == (
        "false quotation",
        "src/pager.py",
        quotation,
        3,
    )
    assert dropped.detail
    assert misses(submitted, PLAIN) == tuple(submitted.reply.findings)


def test_check_that_names_a_place_beyond_the_end_of_a_file_is_named() -> None:
    check = CheckReply(kind="read", text="Compare src/pager.py:9000 with src/pager.py:1 and src/none.py:99.")
    result = vetted(handed_in(reply("def page(items, n):", check=check)))
    (warning,) = result.warnings
    assert "how to check it names src/pager.py:9000, but src/pager.py has " in warning


def test_misses_returns_only_findings_with_false_quotations() -> None:
    good, bad = reply("size = 10", 2), reply("size = 11", 2)
    assert misses(handed_in(good, bad), PLAIN) == (bad,)


def test_quotation_of_lines_not_shown_to_the_call_is_dropped() -> None:
    shown = (Document("S1", "src/pager.py", CODE, lines=(1, 4)),)
    result = vetted(handed_in(reply("size = 10", 2), reply("def pages(items):", 7), shown=shown))
    assert [finding.first_line for finding in result.findings] == [2]
    assert [dropped.reason for dropped in result.dropped] == ["false quotation"]


@pytest.mark.parametrize("name", ["S2", "src/pager.py", "[S2]", "S2:1-9", "S9", ""])
def test_document_named_by_id_name_or_wrongly_is_found(name: str) -> None:
    """Words that are in another document that was shown are evidence."""
    documents = (Document("S1", "README.md", "Ten a page.\n"), Document("S2", "src/pager.py", CODE))
    result = vetted(handed_in(reply("size = 10", 2, name), shown=documents), documents=documents)
    assert (only(result).source, only(result).file) == ("S2", "src/pager.py")


TWO = (Document("S1", "src/a.py", "alpha = 1\n"), Document("S2", "lib/b.py", "beta = 2\ntotal = beta\n"))


@pytest.mark.parametrize("named", ["S1", "src/a.py", "[S1]", "S1:1", "a.py", "./src/a.py", "S1 src/a.py", "lib/a.py"])
def test_words_that_stand_only_in_another_file_are_no_evidence(named: str) -> None:
    """A claim about one file is not printed at another."""
    result = vetted(handed_in(reply("total = beta", 2, named), shown=TWO), documents=TWO)
    assert not result.findings
    (dropped,) = result.dropped
    assert dropped.reason == "false quotation"
    assert "they stand in lib/b.py:2 (S2:2)" in dropped.detail


def test_words_of_a_document_that_does_not_exist_are_no_evidence_if_they_stand_in_several() -> None:
    documents = (*TWO, Document("S3", "c.py", "total = beta\n"))
    result = vetted(handed_in(reply("total = beta", 1, "S9"), shown=documents), documents=documents)
    assert "lib/b.py:2 (S2:2) and c.py:1 (S3:1)" in result.dropped[0].detail


def test_words_of_a_document_that_was_not_shown_are_no_evidence() -> None:
    result = vetted(handed_in(reply("total = beta", 2, "S1"), shown=TWO[1:]), documents=TWO)
    assert "there is no document 'S1' among those shown" in result.dropped[0].detail


DIFF_OF_TWO = """\
--- a/src/a.py
+++ b/src/a.py
@@ -1 +1 @@
-alpha = 0
+alpha = 1
--- a/lib/b.py
+++ b/lib/b.py
@@ -1,2 +1,2 @@
-beta = 1
+beta = 2
 total = beta
"""


@pytest.mark.parametrize("named", ["src/a.py", "a.py", "b/src/a.py", "S2"])
def test_words_in_the_diff_of_another_file_are_no_evidence(named: str) -> None:
    documents = (Document("S1", "diff main..HEAD", DIFF_OF_TWO), replace(TWO[0], id="S2"))
    result = vetted(handed_in(reply("beta = 1", 1, named), shown=documents), documents=documents)
    assert "they stand in lib/b.py:1 (S1:9)" in result.dropped[0].detail


@pytest.mark.parametrize("named", ["lib/b.py", "b.py", "S3", "S1"])
def test_removed_words_of_a_file_are_found_in_its_part_of_the_diff(named: str) -> None:
    documents = (Document("S1", "diff main..HEAD", DIFF_OF_TWO), replace(TWO[0], id="S2"), replace(TWO[1], id="S3"))
    result = vetted(handed_in(reply("beta = 1", 1, named), shown=documents), documents=documents)
    assert place(only(result)) == ("lib/b.py", 1, 1, "old")


@given(st.data())
def test_quotation_of_any_lines_is_located(data: st.DataObject) -> None:
    """As a prompt shows it, with numbers, or with the marks of the diff, in any document that holds it."""
    document = data.draw(st.sampled_from(CHANGED))
    lines = document.text.splitlines()
    first = data.draw(st.integers(1, len(lines)))
    last = data.draw(st.integers(first, min(first + 4, len(lines))))
    quoted = lines[first - 1 : last]
    if data.draw(st.booleans()):
        quoted = [f"{first + n}| {line}" for n, line in enumerate(quoted)]
    quotation = "\n".join(quoted)
    result = vetted(
        handed_in(reply(quotation, first, document.id), shown=CHANGED), documents=CHANGED, changed_lines_only=False
    )
    if sum(char.isalnum() for char in " ".join(lines[first - 1 : last])) < 2:
        assert not result.findings
        return
    finding = only(result)
    assert finding.file == "src/pager.py"
    content = [n for n in range(first, last + 1) if lines[n - 1].strip()]
    assert finding.source_line == content[0]


# --- in a diff


def test_quotation_from_a_diff_is_placed_in_the_file() -> None:
    def of(quotation: str, line: int, document: str = "S1") -> tuple[str, int, int, str]:
        submitted = handed_in(reply(quotation, line, document), shown=CHANGED)
        return place(only(vetted(submitted, documents=CHANGED)))

    assert of("last = n * size + 1", 9) == ("src/pager.py", 3, 3, "new")
    assert of("+    last = n * size + 1", 9) == ("src/pager.py", 3, 3, "new")
    assert of("last = n * size + 1", 3, "S2") == ("src/pager.py", 3, 3, "new")
    assert of("-    check(n)", 7) == ("src/pager.py", 3, 3, "old")
    assert of("check(n)\nlast = n * size", 7) == ("src/pager.py", 3, 4, "old")
    assert of("size = 10\nlast = n * size + 1", 9) == ("src/pager.py", 2, 3, "new"), "across removed lines"
    assert of("-    last = n * size\n+    last = n * size + 1", 8) == ("src/pager.py", 3, 3, "new")


def test_quotation_in_removed_and_added_lines_is_placed_by_its_line_number() -> None:
    """`last = n * size` is in the removed and in the added line."""
    sides = [
        place(only(vetted(handed_in(reply("last = n * size", line), shown=CHANGED), documents=CHANGED)))[3]
        for line in (9, 10, 4)
    ]
    assert sides == ["old", "new", "new"]


def test_findings_on_unchanged_lines_are_dropped_unless_asked_for() -> None:
    submitted = handed_in(
        reply("def page(items, n):", 6), reply("return items[last - size:last]", 4, "S2"), shown=CHANGED
    )
    result = vetted(submitted, documents=CHANGED)
    assert [dropped.reason for dropped in result.dropped] == ["unchanged lines", "unchanged lines"]
    result = vetted(submitted, documents=CHANGED, changed_lines_only=False)
    assert [finding.changed for finding in result.findings] == [False, False]


def test_lines_next_to_a_removed_line_count_as_changed() -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,2 @@\n def f(n):\n-    check(n)\n     return table[n]\n"
    documents = (Document("S1", "diff a", diff),)
    result = vetted(handed_in(reply("return table[n]", 6), shown=documents), documents=documents)
    assert place(only(result)) == ("x.py", 2, 2, "new")


def test_finding_on_a_diff_header_is_placed_at_line_one() -> None:
    diff = "diff --git a/run.sh b/run.sh\nold mode 100755\nnew mode 100644\n"
    documents = (Document("S1", "diff a", diff),)
    assert place(only(vetted(handed_in(reply("new mode 100644", 3), shown=documents), documents=documents))) == (
        "run.sh",
        1,
        1,
        "new",
    )


def test_line_numbers_of_findings_ignore_form_feeds() -> None:
    """A form feed ends a line in prompts and not in editors."""
    documents = (Document("S1", "x.py", "one = 1\n\x0c\ntwo = 2\nthree = 3\x0cfour = 4\nfive = 5\n"),)
    result = vetted(handed_in(reply("two = 2", 4), reply("five = 5", 7), shown=documents), documents=documents)
    assert [(f.first_line, f.source_line) for f in result.findings] == [(3, 4), (5, 7)]


# --- causes

CALLER = """\
def total(items, percent):
    return sum(items) * (1 + percent / 100)


def invoice(items):
    return total(items, 0.19)
"""
TO_PERCENT = """\
diff --git a/shop.py b/shop.py
--- a/shop.py
+++ b/shop.py
@@ -1,3 +1,3 @@
-def total(items, tax):
-    return sum(items) * (1 + tax)
+def total(items, percent):
+    return sum(items) * (1 + percent / 100)
 
"""
SHOP = (Document("S1", "diff HEAD", TO_PERCENT), Document("S2", "shop.py", CALLER))


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("def total(items, percent):", ("shop.py", 1, "new")),
        ("+    return sum(items) * (1 + percent / 100)", ("shop.py", 2, "new")),
        ("7| +    return sum(items) * (1 + percent / 100)", ("shop.py", 2, "new")),
        ("return sum(items) * (1 + tax)", ("shop.py", 2, "old")),
        ("-def total(items, tax):\n-    return sum(items) * (1 + tax)", ("shop.py", 1, "old")),
        ("    return sum(items) * (1 + percent / 100)\n\n\ndef invoice(items):", ("shop.py", 2, "new")),
    ],
)
@pytest.mark.parametrize("shown", [SHOP, SHOP[1:]], ids=["diff and text", "text"])
def test_finding_on_an_unchanged_line_stays_if_a_changed_line_causes_it(
    cause: str, expected: tuple[str, int, str], shown: Sequence[Document]
) -> None:
    submitted = handed_in(reply("return total(items, 0.19)", 6, "S2", cause=cause), shown=shown)
    result = vetted(submitted, documents=SHOP)
    if expected[2] == "old" and shown != SHOP:  # a removed line is in the diff only
        assert [entry.reason for entry in result.dropped] == ["unchanged lines"]
        return
    finding = only(result)
    assert place(finding) == ("shop.py", 6, 6, "new")
    assert finding.cause is not None
    assert (finding.cause.file, finding.cause.first_line, finding.cause.side) == expected


@pytest.mark.parametrize("cause", ["", "  ", "def invoice(items):", "return total(items, 0.19)", "nowhere = 1", ")"])
def test_finding_on_an_unchanged_line_is_left_out_without_a_changed_line_as_cause(cause: str) -> None:
    submitted = handed_in(reply("return total(items, 0.19)", 6, "S2", cause=cause), shown=SHOP)
    (entry,) = vetted(submitted, documents=SHOP).dropped
    assert entry.reason == "unchanged lines"
    assert (cause in entry.detail) if cause.strip() else (entry.detail == "")
    (kept,) = vetted(submitted, documents=SHOP, changed_lines_only=False).findings
    assert kept.cause is None


# --- ignored, known


@pytest.mark.parametrize(
    ("comment", "reason"),
    [
        ("# consilience: ignore pages count from 1", "pages count from 1"),
        ("// Consilience: Ignore: not ours */", "not ours"),
        ("<!-- consilience: ignore an example -->", "an example"),
        ("/* consilience:ignore generated */", "generated"),
        ("(* consilience: ignore checked by the caller *)", "checked by the caller"),
        ("<# consilience: ignore known #>", "known"),
        ("{{-- consilience: ignore known --}}", "known"),
    ],
)
def test_ignore_comment_with_a_reason_drops_a_finding(comment: str, reason: str) -> None:
    for above in (True, False):
        code = f"a = 1\n{comment}\nb = 2 + a\n" if above else f"a = 1\nb = 2 + a  {comment}\n"
        documents = (Document("S1", "x.py", code),)
        result = vetted(handed_in(reply("b = 2 + a", 2), shown=documents), documents=documents)
        assert [(dropped.reason, dropped.detail) for dropped in result.dropped] == [("ignored", reason)]
        assert not result.warnings
        assert vetted(handed_in(reply("a = 1", 1), shown=documents), documents=documents).findings


@pytest.mark.parametrize(
    "comment",
    [
        "# consilience: ignore",
        "<!-- consilience: ignore -->",
        "# consilience: ignore :",
        "(* consilience: ignore *)",
        "<# consilience: ignore #>",
        "{{-- consilience: ignore --}}",
        "// consilience: ignore ...",
    ],
)
def test_ignore_comment_without_a_reason_drops_nothing_with_a_warning(comment: str) -> None:
    documents = (Document("S1", "x.py", f"{comment}\nb = 2 + a\n"),)
    result = vetted(handed_in(reply("b = 2 + a", 2), shown=documents), documents=documents)
    assert len(result.findings) == 1
    assert result.warnings == ("x.py:1: `consilience: ignore` has no reason, so it ignores no finding",)


def test_ignore_comment_mentioned_in_prose_drops_nothing() -> None:
    documents = (Document("S1", "x.md", "Write consilience: ignore REASON.\nIt drops findings.\n"),)
    assert vetted(handed_in(reply("It drops findings", 2), shown=documents), documents=documents).findings


def test_ignore_comment_in_a_diff_without_files_is_read() -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,3 @@\n a\n+# consilience: ignore checked above\n+run(user_input)\n b\n"
    documents = (Document("S1", "diff a", diff),)
    result = vetted(handed_in(reply("run(user_input)", 6), shown=documents), documents=documents)
    assert [dropped.detail for dropped in result.dropped] == ["checked above"]


def test_baseline_drops_known_findings() -> None:
    first = vetted(handed_in(reply("last = n * size + 1", 3), reply("return range(len(items) // 10)", 8)))
    known = parse_baseline(baseline_of(first.findings[:1]))
    moved = (Document("S1", "src/pager.py", f"import os\n\n\n{CODE}"),)
    again = handed_in(
        reply("n * size + 1\nreturn items", 6), reply("return range(len(items) // 10)", 11), agent="blue", shown=moved
    )
    result = vetted(again, documents=moved, baseline=known)
    assert [finding.first_line for finding in result.findings] == [11]
    assert [(dropped.reason, dropped.line) for dropped in result.dropped] == [("baseline", 6)]


# --- duplicates and status


def test_same_category_on_one_line_is_one_finding_found_independently() -> None:
    calls = (
        handed_in(reply("last = n * size + 1", 3, title="one too far", claim="The last index is one too far.")),
        handed_in(reply("n * size + 1", 3, title="repeats", claim="A page repeats an item."), agent="blue"),
    )
    finding = only(vetted(*calls))
    assert (finding.by, finding.status, finding.category) == (("blue", "red"), "confirmed", "bounds")
    assert {finding.claim, *finding.duplicates} == {"The last index is one too far.", "A page repeats an item."}


@pytest.mark.parametrize("agent", ["red", "blue"])
def test_same_replacement_of_the_same_lines_is_one_finding(agent: str) -> None:
    """Of several suggestions with one fix only the first could be applied."""
    fix = "    last = n * size"
    one = reply("last = n * size + 1", 3, replacement=fix)
    other = reply("size + 1", 3, replacement=fix, category="logic", claim="Off by one.")
    calls = [handed_in(one, other)] if agent == "red" else [handed_in(one), handed_in(other, agent=agent)]
    finding = only(vetted(*calls))
    assert finding.found_apart == (agent == "blue")
    assert finding.duplicates == ("It is wrong: last = n * size + 1",) or finding.duplicates == ("Off by one.",)


def test_same_words_and_claim_are_one_finding() -> None:
    calls = (
        handed_in(reply("size = 10", 2, claim="A magic number.")),
        handed_in(reply("size  =  10", 2, claim="A  magic number.", category="design"), agent="blue"),
    )
    assert only(vetted(*calls)).by == ("blue", "red")


def test_category_in_words_of_its_author_is_the_title() -> None:
    finding = only(vetted(handed_in(reply("size = 10", 2, category="  Magic   number "))))
    assert (finding.category, finding.title) == ("other", "Magic number")
    finding = only(vetted(handed_in(reply("size = 10", 2, category="Bounds", title="ten at most"))))
    assert (finding.category, finding.title) == ("bounds", "ten at most")


def test_fingerprint_holds_if_another_run_quotes_more_or_less_of_the_line() -> None:
    moved = (Document("S1", "src/pager.py", f"import os\n\n{CODE}"),)
    runs = [
        only(vetted(handed_in(reply("last = n * size + 1", 3)))),
        only(vetted(handed_in(reply("n * size + 1\nreturn items", 3, category="logic", claim="Off by one.")))),
        only(vetted(handed_in(reply("size + 1", 5), shown=moved), documents=moved)),
        only(vetted(handed_in(reply("+    last = n * size + 1", 10), shown=CHANGED), documents=CHANGED)),
    ]
    assert len({finding.fingerprint for finding in runs}) == 1
    assert only(vetted(handed_in(reply("size = 10", 2)))).fingerprint != runs[0].fingerprint


def test_known_line_is_known_under_another_category_unless_more_lines_are_quoted() -> None:
    """Models waver between two categories for one defect."""
    known = parse_baseline(baseline_of(vetted(handed_in(reply("items[last", 4))).findings))
    more = reply("last = n * size + 1\n    return items[last", 3, category="logic")
    replies = (reply("items[last", 4, category="logic"), reply("size:last]", 4), more)
    again = vetted(handed_in(*replies), baseline=known)
    assert [(finding.first_line, finding.category) for finding in again.findings] == [(3, "logic")]
    assert [dropped.reason for dropped in again.dropped] == ["baseline", "baseline"]


def test_known_finding_on_removed_lines_is_known() -> None:
    given = handed_in(reply("check(n)", 8), shown=CHANGED)
    first = vetted(given, documents=CHANGED)
    known = parse_baseline(baseline_of(first.findings))
    again = vetted(given, documents=CHANGED, baseline=known)
    assert ([f.side for f in first.findings], [d.reason for d in again.dropped]) == (["old"], ["baseline"])


def test_baseline_drops_the_parts_of_merged_findings() -> None:
    calls = (handed_in(reply("last = n", 3)), handed_in(reply("* size + 1\n", 3), agent="blue"))
    first = vetted(*calls)
    by_lead = merged(vetted(handed_in(reply("last = n", 3), reply("return range", 8))).findings, [["F1", "F2"]])
    for findings, again in (
        (first.findings, calls),
        (by_lead, [handed_in(reply("last = n", 3), reply("return range", 8))]),
    ):
        assert len(findings) == 1
        for known in (findings, listed(findings, 0)[1]):
            result = vetted(*again, baseline=parse_baseline(baseline_of(known)))
            assert result.findings == ()


def test_finding_of_two_agents_independently_is_confirmed() -> None:
    red = handed_in(reply("last = n * size + 1", 3, claim="One too far.", severity="minor"))
    blue = handed_in(reply("last = n * size + 1\nreturn", 3, claim="Repeats an item.", category="Bounds"), agent="blue")
    finding = only(vetted(red, blue))
    assert (finding.by, finding.status, finding.severity) == (("blue", "red"), "confirmed", "major")
    assert (finding.claim, finding.duplicates) == ("Repeats an item.", ("One too far.",))
    assert set(finding.refs) == {red.key, blue.key}
    assert finding.refs[0] == blue.key, "of the claim that is shown"


def test_finding_of_one_agent_twice_is_unjudged() -> None:
    finding = only(vetted(handed_in(reply("size = 10", 2)), handed_in(reply("size = 10", 2), part=2)))
    assert (finding.by, finding.status, len(finding.duplicates)) == (("red",), "unjudged", 1)


def test_findings_on_the_same_words_in_other_categories_are_not_merged() -> None:
    red = handed_in(reply("last = n * size + 1", 3, claim="One too far.", category="bounds"))
    blue = handed_in(reply("last = n * size + 1", 3, claim="The name misleads.", category="naming"), agent="blue")
    assert [finding.status for finding in vetted(red, blue).findings] == ["unjudged"] * 2


def test_long_quotation_across_two_findings_does_not_merge_them() -> None:
    red = handed_in(reply("size = 10", 2), reply("last = n * size + 1", 3))
    blue = handed_in(reply("size = 10\nlast = n * size + 1", 2, claim="Both."), agent="blue")
    findings = vetted(red, blue).findings
    assert [(finding.first_line, finding.by) for finding in findings] == [(2, ("blue", "red")), (3, ("red",))]


def test_two_findings_of_one_call_on_a_line_are_both_kept() -> None:
    red = handed_in(reply("last = n * size + 1", 3, claim="One too far."), reply("last", 3, claim="Never used."))
    blue = handed_in(reply("last = n * size + 1", 3, claim="Off by one."), agent="blue")
    result = vetted(red, blue)
    assert {finding.claim for finding in result.findings} == {"One too far.", "Never used.", "Off by one."}


def test_findings_on_other_lines_or_in_other_categories_are_not_merged() -> None:
    red = handed_in(reply("size = 10", 2), reply("def page(items, n):", 1))
    blue = handed_in(reply("def page(items", 1, category="naming"), reply("size", 3, category="style"), agent="blue")
    assert [finding.status for finding in vetted(red, blue).findings] == ["unjudged"] * 4


QUOTATIONS = st.sampled_from(
    [
        "size = 10",
        "10\n    last",
        "last = n * size + 1",
        "return items[last - size:last]",
        "no such words",
        "n",
        "pages(items)",
    ]
)
REPLY = st.builds(
    reply,
    QUOTATIONS,
    st.integers(1, 8),
    category=st.sampled_from(["bounds", "naming"]),
    severity=st.sampled_from(["critical", "major", "minor"]),
    claim=st.sampled_from(["A.", "B.", "C."]),
    replacement=st.sampled_from([None, "pass", "    x = 1\n"]),
)
HANDED_IN = st.lists(
    st.builds(
        lambda replies, agent, part: handed_in(*replies, agent=agent, part=part),
        st.lists(REPLY, max_size=4),
        st.sampled_from(["red", "blue", "R3"]),
        st.integers(1, 2),
    ),
    max_size=5,
    unique_by=lambda submitted: submitted.key,
)


@given(HANDED_IN, st.randoms(use_true_random=False), st.booleans())
def test_vetting_in_any_order_loses_no_finding(submitted: list[Submitted], rng: random.Random, known: bool) -> None:
    baseline = parse_baseline(baseline_of(vetted(handed_in(reply("size = 10", 2))).findings)) if known else None
    result = vetted(*submitted, baseline=baseline)
    claims = Counter(finding.claim for reply in submitted for finding in reply.reply.findings)
    kept = Counter(claim for finding in result.findings for claim in (finding.claim, *finding.duplicates))
    assert kept + Counter(dropped.claim for dropped in result.dropped) == claims
    shuffled = list(submitted)
    rng.shuffle(shuffled)
    assert vetted(*shuffled, baseline=baseline) == result
    assert [finding.id for finding in result.findings] == [f"F{n}" for n in range(1, len(result.findings) + 1)]
    assert [f.first_line for f in result.findings] == sorted(f.first_line for f in result.findings)
    everyone = {author for finding in result.findings for author in finding.by}
    assert all(set(finding.by) <= everyone and finding.quotation != "no such words" for finding in result.findings)
    assert all(finding.status == ("confirmed" if finding.found_apart else "unjudged") for finding in result.findings)
    assert all(len(finding.by) > 1 for finding in result.findings if finding.found_apart)


@given(HANDED_IN, st.data())
def test_merge_by_the_lead_is_idempotent_and_loses_no_finding(submitted: list[Submitted], data: st.DataObject) -> None:
    findings = vetted(*submitted).findings
    ids = st.sampled_from([f"F{n}" for n in range(1, 9)])
    groups = data.draw(st.lists(st.lists(ids, max_size=4), max_size=3))
    once = merged(findings, groups)
    assert merged(once, groups) == once
    assert len(merged(findings, [group[::-1] for group in reversed(groups)])) == len(once)
    assert sum(1 + len(finding.duplicates) for finding in once) == sum(1 + len(f.duplicates) for f in findings)
    assert {finding.id for finding in once} <= {finding.id for finding in findings}
    assert {author for finding in once for author in finding.by} == {author for f in findings for author in f.by}


def test_merge_by_the_lead_ignores_findings_in_different_files() -> None:
    documents = (*PLAIN, Document("S2", "b.py", "size = 10\n"))
    red = handed_in(reply("size = 10", 2), shown=documents)
    blue = handed_in(reply("size = 10", 1, "S2"), agent="blue", shown=documents)
    findings = vetted(red, blue, documents=documents).findings
    assert merged(findings, [["F1", "F2"], ["F1", "F9"]]) == findings


def says(agent: str, verdict: str, reason: str = "why") -> JudgedBy:
    return JudgedBy.model_validate({"agent": agent, "verdict": verdict, "reason": reason})


@pytest.mark.parametrize(
    ("judgements", "status"),
    [
        ((), "unjudged"),
        ((says("blue", "confirm"),), "confirmed"),
        ((says("blue", "amend"),), "confirmed"),
        ((says("blue", "amend"), says("R3", "refute")), "disputed"),
        ((says("blue", "unsure"),), "unjudged"),
        ((says("blue", "refute"),), "disputed"),
        ((says("blue", "confirm"), says("R3", "unsure")), "confirmed"),
        ((says("blue", "confirm"), says("R3", "refute")), "disputed"),
        ((says("blue", "confirm"), says("blue", "refute")), "disputed"),
        ((says("red", "confirm"),), "unjudged"),
    ],
)
def test_status_of_a_finding_follows_the_judgements(judgements: tuple[JudgedBy, ...], status: str) -> None:
    findings = vetted(handed_in(reply("size = 10", 2))).findings
    (finding,) = judged(findings, {"F1": judgements, "F7": (says("blue", "refute"),)})
    assert finding.status == status
    assert len({judgement.agent for judgement in finding.judgements}) == len(finding.judgements)


def test_refuted_finding_of_two_agents_is_disputed() -> None:
    both = vetted(handed_in(reply("size = 10", 2)), handed_in(reply("size = 10", 2), agent="blue")).findings
    assert [finding.status for finding in both] == ["confirmed"]
    (finding,) = judged(both, {"F1": (says("R3", "refute"),)})
    assert finding.status == "disputed"


def test_refutation_of_a_merged_finding_is_kept() -> None:
    findings = vetted(
        handed_in(reply("size = 10", 2)), handed_in(reply("pages(items)", 7, severity="critical"), agent="blue")
    ).findings
    findings = judged(findings, {"F1": (says("blue", "refute"),), "F2": (says("red", "confirm"),)})
    (finding,) = merged(findings, [["F1", "F2"]])
    assert (finding.id, finding.status, finding.by) == ("F1", "disputed", ("blue", "red"))


def test_merge_by_the_lead_keeps_the_finding_that_it_names_first() -> None:
    findings = vetted(
        handed_in(reply("size = 10", 2, claim="Vague.", severity="critical")),
        handed_in(reply("pages(items)", 7, claim="Precise.", severity="minor"), agent="blue"),
    ).findings
    (finding,) = merged(findings, [["F2", "F1"]])
    assert (finding.claim, finding.first_line, finding.severity, finding.duplicates) == (
        "Precise.",
        7,
        "critical",
        ("Vague.",),
    )


def test_listed_findings_are_ranked_and_limited() -> None:
    findings = vetted(
        handed_in(
            reply("def page(items, n):", 1, severity="critical", title="a"),
            reply("size = 10", 2, severity="minor", title="b"),
            reply("last = n * size + 1", 3, severity="critical", title="c"),
            reply("def pages(items):", 7, severity="major", title="d"),
        )
    ).findings
    findings = judged(findings, {"F2": (says("blue", "confirm"),), "F1": (says("blue", "refute"),)})
    assert [finding.id for finding in ranked(findings)] == ["F3", "F4", "F2", "F1"]
    kept, over = listed(findings, 3)
    assert [(finding.id, finding.title) for finding in kept] == [("F1", "c"), ("F2", "d"), ("F3", "b")]
    assert [(dropped.reason, dropped.claim) for dropped in over] == [("over the limit", findings[0].claim)]
    assert listed(kept, 3) == (kept, ())
