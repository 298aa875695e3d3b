"""A review's report as its reader sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from markdown_it import MarkdownIt

from adversaries.nasty import TEXTS
from adversaries.reading import READER, STEERING, skeleton
from consilience.coordination.convergence import ConvergenceCheck, GateVerdict
from consilience.domain.findings import (
    BallotCast,
    Cause,
    DroppedFinding,
    FileRead,
    Finding,
    JudgedBy,
    PartRead,
    Verification,
    as_known,
    decided_by,
    place_of,
)
from consilience.domain.outcome import StopReason
from consilience.protocols.review import ReviewReport
from consilience.protocols.review.ballots import milder_votes, verdict_of
from consilience.protocols.review.baseline import Baseline
from consilience.protocols.review.presenting import dropped_line, overall_vote
from consilience.protocols.review.vetting import judged, listed, vet
from consilience.reporting.export import report_files
from consilience.reporting.html import report_page
from consilience.reporting.markdown import markdown
from kit.golden import Golden, lines_with
from review import reports
from review.test_baseline import known
from review.test_vetting import CHANGED, PLAIN, handed_in, reply

BOTH = ("red", "blue")


def report_of(*findings: Finding, **fields: Any) -> ReviewReport:
    """A review of one part by red and blue."""
    common: dict[str, Any] = {
        "parts": (PartRead(index=1, documents=("S1", "S2"), tokens=900, readers=BOTH, assigned=BOTH),),
        "files": (FileRead(file="src/pager.py", remarks=(("red", "bounds of each page"), ("blue", "all"))),),
        "ballots": (cast("red", "approve"), cast("blue", "approve")),
        "answer": "One page repeats an item." if findings else "No findings in 1 file.",
    }
    return ReviewReport(**reports.review(*findings, **{**common, **fields}).model_dump())


def cast(agent: str, vote: str, part: int = 1, reason: str = "") -> BallotCast:
    return BallotCast.model_validate(
        {"agent": agent, "part": part, "iteration": 1, "vote": vote, "confidence": 0.75, "reason": reason}
    )


def evaluation(iteration: int, missed_by: tuple[str, ...] = (), **fields: Any) -> ConvergenceCheck:
    gates = (GateVerdict(id="files_covered"), GateVerdict(id="findings_quoted", missed_by=missed_by))
    common: dict[str, Any] = {"quality": 0.5 if missed_by else 1.0, "threshold": 0.8, "reason": "so"}
    outcome = "continue" if missed_by else "converged"
    return ConvergenceCheck(iteration=iteration, verdicts=gates, **{"outcome": outcome, **common, **fields})


def everything() -> ReviewReport:
    """Findings of every status, drops of every reason, two iterations, a split, and a part that blue did not read."""
    red = handed_in(
        reply(
            "10| +    last = n * size + 1",
            10,
            claim="The last index is one too far.",
            consequence="Every page after the first repeats an item.",
            recommendation="Do not add 1.",
            replacement="last = n * size",
        ),
        reply(
            "-    check(n)", 8, severity="critical", category="validation", claim="Pages below 1 are no longer refused."
        ),
        reply("def page(items, n):", 6, severity="minor", category="naming", claim="`n` says nothing."),
        reply("return range(len(items) // 20)", 15, claim="Pages have 20 items."),
        shown=CHANGED,
    )
    blue = handed_in(
        reply("last = n * size + 1", 3, "S2", severity="minor", claim="Off by one."),
        reply("+    return range(len(items) // 10)", 15, claim="The last page is lost unless it is full."),
        agent="blue",
        shown=CHANGED,
    )
    vetted = vet((red, blue), CHANGED, baseline=Baseline(), changed_lines_only=True)
    judgements = {
        "Pages below 1 are no longer refused.": ("refute", "The caller checks it, see line 40 of app.py."),
        "The last page is lost unless it is full.": ("confirm", "11 items give 1 page."),
    }
    values = {
        finding.id: (
            JudgedBy.model_validate(
                {
                    "agent": "red" if finding.by == ("blue",) else "blue",
                    "verdict": judgements[finding.claim][0],
                    "reason": judgements[finding.claim][1],
                }
            ),
        )
        for finding in vetted.findings
        if finding.claim in judgements
    }
    findings, over = listed(judged(vetted.findings, values), 10)
    others = (
        reports.dropped(),
        reports.dropped(reason="ignored", detail="generated code"),
        reports.dropped(reason="over the limit"),
    )
    return report_of(
        *findings,
        dropped=(*vetted.dropped, *over, *others),
        ballots=(
            cast("red", "changes", reason="One page repeats an item."),
            cast("blue", "approve", reason="Minor."),
            cast("red", "approve", 2),
        ),
        evaluations=(
            evaluation(1, ("red",)),
            evaluation(2, outcome="exhausted", missing={"blue": "part 2: timed out"}),
        ),
        parts=(
            PartRead(index=1, documents=("S1", "S2"), tokens=900, readers=BOTH, assigned=BOTH),
            PartRead(
                index=2,
                documents=("S3:1-200",),
                tokens=1200,
                readers=("red",),
                assigned=BOTH,
                names=("src/app.py:1-200",),
            ),
        ),
        files=(FileRead(file="src/pager.py", remarks=(("red", "bounds of each page"),)), FileRead(file="src/app.py")),
        left_out=("logo.png: not a text",),
        missing=reports.rich_review().missing,
        unmet=("no review by blue (part 2: timed out)",),
        stop_reason=StopReason.EXHAUSTED_STEPS,
        steps=2,
        settings={"max_iterations": 2},
    )


@pytest.mark.parametrize("name", ["everything", "clean"])
def test_whole_report_of(name: str, golden: Golden) -> None:
    report = everything() if name == "everything" else report_of(evaluations=(evaluation(1),))
    golden.page(f"reports/{name}.md", markdown(report))


# --- nothing reads as agreement that is not, and nothing as success


@pytest.mark.parametrize(
    "ballots",
    [
        [("red", "approve", 1), ("blue", "approve", 1)],
        [("red", "changes", 1), ("blue", "approve", 1)],
        [("red", "reject", 1), ("blue", "changes", 1)],
        [("red", "approve", 1)],
        [],
    ],
    ids=lambda ballots: ", ".join(f"{agent} {vote}" for agent, vote, _ in ballots) or "no ballot",
)
def test_verdict_of_one_part(ballots: list[tuple[str, str, int]], golden: Golden) -> None:
    golden(overall_vote(report_of(reports.finding(), ballots=tuple(cast(*ballot) for ballot in ballots))))


@pytest.mark.parametrize(
    "ballots",
    [
        [("red", "changes", 1), ("blue", "approve", 1), ("red", "approve", 2), ("blue", "changes", 2)],
        [("red", "changes", 1), ("blue", "approve", 2)],
        [("red", "approve", 1), ("blue", "approve", 1), ("red", "approve", 2), ("blue", "approve", 2)],
    ],
    ids=["split on both", "each on its own", "both on both"],
)
def test_verdict_of_two_parts(ballots: list[tuple[str, str, int]], golden: Golden) -> None:
    parts = tuple(PartRead(index=n, documents=(f"S{n}",), tokens=9, readers=BOTH, assigned=BOTH) for n in (1, 2))
    golden(overall_vote(report_of(reports.finding(), parts=parts, ballots=tuple(cast(*b) for b in ballots))))


def test_rejection_fails_whatever_severity_is_asked_for_and_disputed_findings_fail_nothing() -> None:
    """Those of earlier reviews as those of this one."""
    ballots = (cast("red", "reject"), cast("blue", "approve"))
    rejected = report_of(ballots=ballots, verdict=verdict_of(ballots))
    assert [rejected.failing(what) for what in ("critical", "reject")] == ["the verdict is reject, by red."] * 2
    assert [dissent.text for dissent in milder_votes(rejected.ballots)] == ["votes approve, not reject"]
    stands = as_known(known(3, 3))
    report = report_of(known_findings=(stands,), ballots=(cast("red", "changes"),))
    assert report.failing("major") == "at least major: 1 of earlier reviews that still stand."
    assert report.failing("reject") == ""
    disputed = report.model_copy(update={"known_findings": (as_known(known(3, 3, status="disputed")),)})
    assert disputed.failing("major") == ""


def test_report_lists_what_became_of_findings_of_earlier_reviews() -> None:
    entry = as_known(known(3, 3, title="off by one"))
    entries = (
        entry.model_copy(update={"status": "gone", "claim": ""}),
        entry.model_copy(update={"status": "dismissed", "by": "alice", "reason": "It is checked."}),
        entry.model_copy(update={"disputed": True}),
    )
    text = markdown(report_of(known_findings=entries)).partition("## Findings of earlier reviews")[2]
    lines = [line for line in text.splitlines() if line.startswith("- ")][:3]
    place = "major · bounds: off by one · src/pager.py:3"
    assert [line.partition("**")[2].partition("**")[0] for line in lines] == [
        f"stands · disputed · {place}",
        f"dismissed · {place}",
        f"gone · {place}",
    ]
    assert "alice: It is checked." in lines[1]


def test_vote_for_changes_without_a_finding_is_named(golden: Golden) -> None:
    golden(overall_vote(report_of(ballots=(cast("red", "approve"), cast("blue", "changes")))))


@pytest.mark.parametrize(
    ("inputs", "gap"),
    [
        ({"parts": ()}, "no part of the target was reviewed"),
        ({"parts": (PartRead(index=1, documents=("S1",), tokens=9),)}, "no part of the target was reviewed"),
        (
            {"parts": (PartRead(index=1, documents=("S1",), tokens=9, readers=("red",), assigned=BOTH),)},
            "blue did not review anything",
        ),
        ({"stop_reason": StopReason.CANCELLED}, ""),
        ({"stop_reason": StopReason.FAILED}, ""),
    ],
)
def test_review_without_findings_is_complete_only_if_all_parts_were_read(inputs: dict[str, Any], gap: str) -> None:
    clean = "**Read in full:** 1 file in 1 part, by red and blue."
    assert clean in markdown(report_of())
    text = markdown(report_of(**inputs))
    assert clean not in text
    assert "the review is incomplete, so this is no sign of quality." in text
    assert f"**Incomplete:** {gap}." in text if gap else "**Incomplete:**" not in text


def status(**fields: Any) -> str:
    return decided_by(reports.finding(**{"status": "unjudged", **fields}))


def test_status_of_a_finding_names_who_found_and_judged_it(golden: Golden) -> None:
    confirm, refute, unsure = (JudgedBy(agent="blue", verdict=v, reason="") for v in ("confirm", "refute", "unsure"))
    amend = JudgedBy(agent="blue", verdict="amend", reason="Only the log is affected.")
    golden(
        {
            "not judged": status(),
            "judge unsure": status(judgements=(unsure,)),
            "judge confirms": status(judgements=(confirm,), status="confirmed"),
            "judge amends": status(judgements=(amend,), status="confirmed"),
            "judge refutes": status(judgements=(refute,), status="disputed"),
            "found by two, apart": status(by=("blue", "red"), found_apart=True, status="confirmed"),
            "same words by two": status(by=("blue", "red")),
        }
    )


def test_count_of_findings_that_nobody_judged_says_so(golden: Golden) -> None:
    unsure = JudgedBy(agent="blue", verdict="unsure", reason="")
    unjudged = reports.finding(status="unjudged", judgements=())
    text = markdown(report_of(unjudged, reports.finding(id="F2", status="unjudged", judgements=(unsure,))))
    golden(lines_with("not judged", text))


def test_code_spans_of_reviewers_stay_code_in_markdown() -> None:
    text = markdown(report_of(reports.finding(claim="`order.refunded` and `a | b` are *gone*, `twice")))
    assert "`order.refunded` and \\`a \\| b\\` are \\*gone\\*, \\`twice" in text


def test_place_of_removed_lines_names_the_old_file() -> None:
    assert place_of(reports.finding(side="old", first_line=3, last_line=5)) == "src/pager.py:3-5 of the old file"


def test_dropped_findings_are_counted_and_listed_in_a_view() -> None:
    report = everything()
    section = next(section for section in report.presentation().sections if section.name == "dropped")
    assert section.folded
    assert section.blocks[0].kind == "table"
    assert len(section.blocks[0].rows) == len(report.dropped) == 5


def test_known_finding_dropped_for_two_agents_is_counted_once() -> None:
    same = [reports.dropped(by=agent, reason=reason) for reason in ("baseline", "ignored") for agent in ("red", "blue")]
    other = reports.dropped(line=30)
    report = report_of(dropped=(*same, other))
    assert dropped_line(report) == "1 ignored by a comment in the text, 2 known from the baseline"


def test_reviewer_text_does_not_break_the_report_or_terminal() -> None:
    """Neither change the structure of a report nor repaint a terminal."""

    def with_text(text: str) -> ReviewReport:
        replaced = {
            "claim": text,
            "category": text,
            "consequence": text,
            "quotation": text or "x",
            "recommendation": text,
        }
        listed_findings = (
            reports.finding(**replaced, duplicates=(text,), fix=""),
            reports.finding(**replaced, id="F2", status="disputed", fix="", file="x.md"),
        )
        dropped = DroppedFinding(
            reason="false quotation",
            by="red",
            severity="minor",
            file=text,
            line=1,
            quotation=text,
            claim=text,
            detail=text,
        )
        judged_findings = [
            finding.model_copy(update={"judgements": (JudgedBy(agent="blue", verdict="refute", reason=text),)})
            for finding in listed_findings
        ]
        ballots = (cast("red", "changes", reason=text), cast("blue", "approve", reason=text))
        files = (FileRead(file=text, remarks=(("red", text),)),)
        return report_of(*judged_findings, dropped=(dropped,), ballots=ballots, files=files, left_out=(text,))

    def blocks(text: str) -> list[tuple[str, int]]:
        """All but the paragraphs and line breaks of a text that has several."""
        skeleton(text)  # refuses HTML
        return [(token.type, token.level) for token in READER.parse(text) if token.type != "inline"]

    expected = blocks(markdown(with_text("plain words")))
    for text in filter(str.strip, TEXTS):
        shown = markdown(with_text(text))
        assert blocks(shown) == expected, text
        assert not STEERING.search(shown)
        assert "<script" not in report_page(with_text(text)).partition("<main")[2]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pytest -k 'a and __x__'", "**To check (run):** `pytest -k 'a and __x__'`"),
        ("`pytest -k 'a and __x__'`", "**To check (run):** `pytest -k 'a and __x__'`"),
        ("```sh\ncd a\npytest\n```", "**To check (run):**\n\n```\ncd a\npytest\n```"),
        ("echo `date`", "**To check (run):** echo `date`"),
    ],
)
def test_command_of_a_check_is_code_as_written_with_its_result_apart(text: str, shown: str) -> None:
    check = Verification(kind="run", text=text, expect="`__x__` fails in a/__init__.py.")
    finding = reports.finding(check=check)
    assert f"{shown}\n\n**Expected:** `__x__` fails in a/\\_\\_init\\_\\_.py." in markdown(report_of(finding))
    comment = json.dumps(report_of(finding).github_comments())
    assert "**Expected:** `__x__` fails" in comment


def test_comment_on_an_unchanged_line_stands_at_its_cause() -> None:
    cause = Cause(file="src/pager.py", first_line=9, last_line=9, quotation="def page(items, n):")
    finding = reports.finding(file="src/app.py", first_line=70, last_line=70, cause=cause, changed=False)
    (comment,) = report_of(finding).github_comments()["comments"]
    assert (comment["path"], comment["line"]) == ("src/pager.py", 9)
    assert "`src/app.py:70`" in comment["body"]
    assert "```suggestion" not in comment["body"]


def test_quotation_with_a_fence_stays_in_its_code_block() -> None:
    finding = reports.finding(quotation="```python\nrun()\n```", fix="")
    fences = [token for token in MarkdownIt().parse(markdown(report_of(finding))) if token.type == "fence"]
    assert [token.content for token in fences] == ["```python\nrun()\n```\n"]


def test_report_files_contain_sarif_comments_and_baseline() -> None:
    files = report_files(everything())
    assert {"review.sarif", "comments.json", "baseline.json"} <= files.keys()
    assert "over the limit" not in files["baseline.json"]
    assert files["baseline.json"].count('"identities"') == len(everything().findings) + 1


def test_views_of_a_review_without_gates_and_findings_are_drawn() -> None:
    texts = {view.name: view.blocks[0] for view in report_of().presentation().views}
    assert texts.keys() == {"findings", "gates"}
    assert texts["findings"].model_dump()["text"] == "No finding is listed."
    pictures = {view.name: view.picture for view in everything().presentation().views}
    assert pictures["findings"] is not None
    assert pictures["gates"] is not None


def test_quotation_from_prose_is_a_block_quote() -> None:
    finding = reports.finding(file="README.md", quotation="It never fails.", fix="")
    assert "\n> It never fails.\n" in markdown(report_of(finding))
    assert PLAIN[0].name == "src/pager.py"
