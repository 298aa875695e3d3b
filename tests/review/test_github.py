"""A review for GitHub: which findings are comments, and that text of models is shown and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from consilience.domain.findings import DiffHunk, Verification
from consilience.domain.outcome import StopReason
from consilience.protocols.review import ReviewReport
from consilience.protocols.review.findings import ReviewData
from consilience.protocols.review.presenting import above_answer
from consilience.reporting.formats.github import MAX_BODY_CHARS, code_block, code_span, github_comments, prose, visible
from review.reports import finding, review, rich_review

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def comments_of(report: ReviewData) -> list[dict[str, Any]]:
    return json.loads(json.dumps(github_comments(report, above_answer(report))))["comments"]  # type: ignore[no-any-return]


def body_of(report: ReviewData) -> str:
    return str(github_comments(report, above_answer(report))["body"])


# --- places


def test_finding_in_a_hunk_is_a_comment_on_its_line() -> None:
    (comment,) = comments_of(review(finding()))
    assert (comment["path"], comment["line"], comment["side"]) == ("src/pager.py", 11, "RIGHT")
    assert "start_line" not in comment


def test_finding_on_several_lines_is_a_comment_with_start_line() -> None:
    (comment,) = comments_of(review(finding(first_line=9, last_line=12)))
    assert (comment["start_line"], comment["start_side"], comment["line"]) == (9, "RIGHT", 12)


def test_finding_on_removed_lines_is_a_comment_on_the_left_side() -> None:
    (comment,) = comments_of(review(finding(side="old", first_line=12, last_line=13)))
    assert (comment["side"], comment["start_side"], comment["line"]) == ("LEFT", "LEFT", 13)
    assert "```suggestion" not in comment["body"]


@pytest.mark.parametrize(
    "inputs",
    [
        {"first_line": 7, "last_line": 7},
        {"first_line": 15, "last_line": 20},
        {"file": "src/other.py"},
        {"side": "old", "first_line": 14, "last_line": 14},
    ],
)
def test_finding_outside_the_diff_is_in_the_body(inputs: dict[str, Any]) -> None:
    report = review(finding(**inputs))
    assert comments_of(report) == []
    assert "Every page after the first repeats an item." in body_of(report)


def test_finding_in_a_file_with_an_unprintable_name_is_in_the_body() -> None:
    """GitHub refuses the whole review if a comment names a file that the diff does not have."""
    name = "a\ufffdb.py"
    report = review(finding(file=name), hunks=(DiffHunk(file=name, old=(8, 13), new=(8, 14)),))
    assert comments_of(report) == []
    assert f"`{name}:11`" in body_of(report)


def test_comment_on_lines_beyond_the_hunk_is_cut_to_it_without_a_suggestion() -> None:
    (comment,) = comments_of(review(finding(first_line=11, last_line=30)))
    assert (comment["start_line"], comment["line"]) == (11, 14)
    assert "`src/pager.py:11-30`" in comment["body"]
    assert "```suggestion" not in comment["body"]


def test_without_a_diff_every_finding_is_in_the_body() -> None:
    report = review(finding(), hunks=())
    assert comments_of(report) == []
    assert "`src/pager.py:11`" in body_of(report)


# --- suggestions


def suggestion(comment: dict[str, Any]) -> str | None:
    blocks = [
        token for token in MARKDOWN.parse(comment["body"]) if token.type == "fence" and token.info == "suggestion"
    ]
    return blocks[0].content if blocks else None


def test_fix_of_the_commented_lines_is_a_suggestion() -> None:
    (comment,) = comments_of(review(finding()))
    assert suggestion(comment) == "    last = n * size\n"


def test_suggestion_replaces_all_commented_lines() -> None:
    """The diff of the fix has only one of the three lines as changed."""
    (comment,) = comments_of(review(finding(first_line=10, last_line=12)))
    assert suggestion(comment) == "    size = 10\n    last = n * size\n    return items[last - size:last]\n"


REMOVAL = "@@ -10,3 +10,2 @@\n     size = 10\n-    last = n * size + 1\n     return items[last - size:last]\n"
GROWTH = "@@ -11 +11,3 @@\n-    last = n * size + 1\n+    last = n * size\n+    ```\n+    assert last\n"


@pytest.mark.parametrize(
    ("fix", "content"),
    [(REMOVAL, ""), (GROWTH, "    last = n * size\n    ```\n    assert last\n"), ("", None), ("no diff", None)],
    ids=["removal", "fence inside", "none", "unreadable"],
)
def test_suggestion_is_the_fixed_lines(fix: str, content: str | None) -> None:
    (comment,) = comments_of(review(finding(fix=fix)))
    assert suggestion(comment) == content


@pytest.mark.parametrize(
    "fix",
    [
        "@@ -12 +12 @@\n-    return items[last - size:last]\n+    return []\n",
        "@@ -11,2 +11,2 @@\n-    last = n * size + 1\n-    return items[last - size:last]\n+    return []\n",
        "@@ -11 +11 @@\n-    last = n * size + 1\n+    last = n * size  # \u202ereversed\n",
    ],
    ids=["another line", "more lines", "characters that nobody sees"],
)
def test_fix_unsuitable_for_a_suggestion_is_shown_as_a_diff(fix: str) -> None:
    (comment,) = comments_of(review(finding(fix=fix)))
    assert suggestion(comment) is None
    assert "```diff\n" in comment["body"]


# --- what the body says


def test_body_names_what_limits_the_review() -> None:
    body = body_of(rich_review())
    for words in (
        "**Verdict:** CHANGES: red changes (part 1), blue approve (part 1).",
        "**4 findings:** 1 critical, 1 major, 2 minor",
        "Missing: blue (timed out)",
        "**Incomplete:** no agent reviewed part 2.",
        "Not reviewed: logo.png: not a text",
        "**Not listed:** 1 false quotation rejected, 1 ignored by a comment in the text, 1 known from the baseline",
        "**Disputed by blue:** The caller checks it.",
    ):
        assert words in body


def test_failed_review_does_not_read_as_a_clean_one() -> None:
    body = body_of(review(answer=None, stop_reason=StopReason.FAILED, parts=()))
    assert "the review is incomplete" in body


def test_review_never_approves_or_blocks() -> None:
    assert {
        github_comments(report, above_answer(report))["event"]
        for report in (review(), review(finding()), rich_review())
    } == {"COMMENT"}


def test_long_review_stays_within_the_size_limits_of_github() -> None:
    long = "why " * 5_000
    findings = [finding(id=f"F{n}", file="x.py", claim=long, consequence=long, recommendation=long) for n in range(40)]
    body = body_of(review(*findings))
    assert len(body) <= MAX_BODY_CHARS
    assert "more in the report" in body
    (comment,) = comments_of(
        review(finding(claim=long, check=Verification(kind="run", text=long), fix=f"@@ -11 +11 @@\n-a\n+{long}\n"))
    )
    assert len(comment["body"]) <= MAX_BODY_CHARS


# --- text of models

HOSTILE = (
    "@octocat and @org/team, a@b.example",
    "fixes #12, org/repo#3, GH-4, KEY-5",
    "https://example.com www.example.com <https://example.com>",
    "![x](https://example.com/x.png) [y](https://example.com) <img src=x> <!-- hidden",
    "deadbeef12 0123456789abcdef0123456789abcdef01234567",
    "# head\n- [x] task\n\n/approve\n> [!NOTE]\n```\nfence",
    "a ` b `` c ``` d `@e`",
    "\\`@x` \\\\[a](b)",
    "tail \\",
    "&commat;x &#64;x",
)


def plain_text(tokens: list[Token]) -> str:
    """Text outside code, in which GitHub looks for references."""
    return "".join(token.content if token.type == "text" else "¦" for token in tokens)


@given(st.one_of(st.sampled_from(HOSTILE), st.text(alphabet="`@#/\\[]()!<>&*_~|:.-$ \nabwf1GH")))
@example("`` ` @x `")
def test_prose_of_any_text_is_one_paragraph_without_references(text: str) -> None:
    opened, inline, closed = MARKDOWN.parse(f"claim — {prose(text)} end")
    assert (opened.type, inline.type, closed.type) == ("paragraph_open", "inline", "paragraph_close")
    assert inline.children is not None
    assert {token.type for token in inline.children} <= {"text", "code_inline"}
    shown = plain_text(inline.children)
    assert not re.search(r"@\w|#\w|://|www\.|[A-Za-z]-\d|\b(?=[a-f]*\d)[0-9a-f]{7}", shown), shown


@given(st.text(alphabet="`~\n ab@#suggestion\t\r\u202e"))
def test_code_block_of_any_text_is_one_fence(text: str) -> None:
    (token,) = MARKDOWN.parse(code_block(text, "suggestion"))
    assert (token.type, token.info) == ("fence", "suggestion")
    assert token.content == visible(text) + "\n"


@given(st.text(alphabet="`@# ab\\<>\n", min_size=1))
def test_code_span_of_any_path_is_one_span(text: str) -> None:
    _, inline, _ = MARKDOWN.parse(f"x {code_span(text)} y")
    assert inline.children is not None
    assert [token.type for token in inline.children] == ["text", "code_inline", "text"]


def test_every_field_of_a_finding_is_escaped() -> None:
    hostile = "@octocat fixes #12 ![x](https://example.com/x.png)"
    fields = dict.fromkeys(("category", "claim", "consequence", "recommendation"), hostile)
    finding_given = finding(
        **fields, by=(hostile,), check=Verification(kind="read", text=hostile), file=f"{hostile}.py"
    )
    review_ = review(finding_given, finding(**fields), answer=hostile, left_out=(hostile,), warnings=(hostile,))
    result = github_comments(review_, above_answer(review_))
    bodies = [str(result["body"]), *(comment["body"] for comment in comments_of(review_))]
    assert len(bodies) == 2
    for body in bodies:
        for block in MARKDOWN.parse(body):
            for token in block.children or []:
                assert token.type not in ("image", "link_open"), body
                assert token.type == "code_inline" or "@octocat" not in token.content


# --- GitHub's own description of its interface


@pytest.fixture(scope="session")
def request_schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The schema of the request body, from the OpenAPI description that GitHub publishes."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, which fetches GitHub's OpenAPI description")
    directory = tmp_path_factory.mktemp("openapi")
    command = (npm, "pack", "--silent", "@octokit/openapi@23.0.2", "--pack-destination", str(directory))
    fetched = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    if fetched.returncode:
        pytest.skip(f"GitHub's OpenAPI description cannot be fetched: {fetched.stderr.strip()[-200:]}")
    (archive,) = Path(directory).glob("*.tgz")
    with tarfile.open(archive) as files:
        member = files.extractfile("package/generated/api.github.com.deref.json")
        assert member is not None
        description = json.load(member)
    operation = description["paths"]["/repos/{owner}/{repo}/pulls/{pull_number}/reviews"]["post"]
    schema: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
    schema["additionalProperties"] = schema["properties"]["comments"]["items"]["additionalProperties"] = False
    return schema


@pytest.mark.packaging
@pytest.mark.parametrize("report", [review(), review(finding()), rich_review(), review(finding(), hunks=())])
def test_review_matches_the_request_schema_of_github(report: ReviewData, request_schema: dict[str, Any]) -> None:
    sent = json.loads(json.dumps(github_comments(report, above_answer(report))))
    jsonschema.validate(sent, request_schema)
    jsonschema.validate(sent | {"commit_id": "0" * 40}, request_schema)  # as the action sends it
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(sent | {"event": "MERGE"}, request_schema)


def test_finding_without_a_hunk_of_its_file_is_not_a_comment() -> None:
    report = review(finding(), hunks=(DiffHunk(file="b.py", old=(1, 99), new=(1, 99)),))
    assert comments_of(report) == []


@pytest.mark.parametrize(("settings", "comments"), [({}, 30), ({"max_inline": 3}, 3), ({"max_inline": 0}, 0)])
def test_findings_after_the_first_comments_are_in_the_text(settings: dict[str, int], comments: int) -> None:
    findings = [finding(id=f"F{n}", claim=f"Claim {n}.", first_line=8 + n % 6, last_line=8 + n % 6) for n in range(32)]
    request = ReviewReport.model_validate(review(*findings, settings=settings).model_dump()).github_comments()
    assert len(request["comments"]) == comments  # type: ignore[arg-type]
    assert all((f"— Claim {n}." in str(request["body"])) == (n >= comments) for n in range(32))
