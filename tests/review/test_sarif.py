"""SARIF of reviews: what results say, and what Microsoft's validator says of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.domain.findings import CATEGORIES, Cause, as_known
from consilience.domain.outcome import StopReason
from consilience.protocols.review.findings import ReviewData
from consilience.reporting.formats.sarif import sarif
from review.reports import dropped, finding, review, rich_review
from review.test_baseline import known


def run_of(report: ReviewData) -> dict[str, Any]:
    (run,) = json.loads(json.dumps(sarif(report)))["runs"]
    return run  # type: ignore[no-any-return]


@pytest.mark.parametrize(("severity", "level"), [("critical", "error"), ("major", "warning"), ("minor", "note")])
def test_severity_of_a_finding_is_the_level_of_its_result(severity: str, level: str) -> None:
    (result,) = run_of(review(finding(severity=severity)))["results"]
    assert (result["kind"], result["level"]) == ("fail", level)


def test_disputed_finding_is_left_to_people_and_names_the_dispute() -> None:
    result = run_of(rich_review())["results"][1]
    assert (result["kind"], result["level"]) == ("review", "none")
    assert (result["properties"]["severity"], result["properties"]["status"]) == ("critical", "disputed")
    assert "Disputed by blue: The caller checks it." in result["message"]["text"]


def test_message_has_claim_consequence_and_check() -> None:
    (result,) = run_of(review(finding()))["results"]
    assert result["message"]["text"].split("\n\n") == [
        "Every page after the first repeats an item.",
        "Consequence: Readers see an item twice.",
        "Recommendation: Do not add 1.",
        "How to check (run): pytest tests/test_pager.py -k second",
    ]


def test_agent_text_in_a_message_has_no_link() -> None:
    result = run_of(rich_review())["results"][1]
    assert "](" not in result["message"]["text"]


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("src/a.py", {"uri": "src/a.py", "uriBaseId": "SRCROOT"}),
        ("b ä#?%:.py", {"uri": "b%20%C3%A4%23%3F%25%3A.py", "uriBaseId": "SRCROOT"}),
        ("/tmp/a b.py", {"uri": "file:///tmp/a%20b.py"}),
    ],
)
def test_path_of_a_file_is_a_percent_encoded_uri(path: str, location: dict[str, str]) -> None:
    (result,) = run_of(review(finding(file=path)))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == location


def test_rules_are_the_fixed_categories_in_every_log() -> None:
    run = run_of(review(finding(category="logic"), finding(id="F2", category="Off by one!")))
    rules = run["tool"]["driver"]["rules"]
    assert rules == run_of(review())["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [*CATEGORIES, "other"]
    assert [result["ruleId"] for result in run["results"]] == ["logic", "other"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_every_rule_has_a_help_of_its_own() -> None:
    helps = [rule["help"]["text"] for rule in run_of(review())["tool"]["driver"]["rules"]]
    assert len(set(helps)) == len(CATEGORIES) + 1


def test_cause_of_a_finding_is_a_related_location() -> None:
    cause = Cause(file="src/app.py", first_line=3, last_line=3, quotation="def page(items, n):")
    (result,) = run_of(review(finding(cause=cause)))["results"]
    (related,) = result["relatedLocations"]
    assert related["physicalLocation"]["artifactLocation"]["uri"] == "src/app.py"
    assert related["physicalLocation"]["region"] == {"startLine": 3, "endLine": 3}
    assert "src/app.py:3" in result["message"]["text"]


def test_fix_replaces_whole_lines() -> None:
    (result,) = run_of(review(finding()))["results"]
    ((change,),) = (fix["artifactChanges"] for fix in result["fixes"])
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 11, "startColumn": 1, "endLine": 12, "endColumn": 1},
            "insertedContent": {"text": "    last = n * size\n"},
        }
    ]


def test_removed_lines_are_placed_at_their_hunk() -> None:
    result = run_of(rich_review())["results"][2]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 8, "endLine": 8}
    assert "lines 9 to 10 of the old file" in result["message"]["text"]


def test_known_and_ignored_findings_are_suppressed_and_other_drops_counted() -> None:
    run = run_of(rich_review())
    suppressed = [result["suppressions"] for result in run["results"] if "suppressions" in result]
    assert suppressed == [
        [{"kind": "external", "status": "accepted", "justification": "It is in the baseline."}],
        [{"kind": "inSource", "status": "accepted", "justification": "generated code"}],
    ]
    assert run["properties"]["dropped"] == {"baseline": 1, "ignored": 1, "false quotation": 1, "over the limit": 1}


def test_known_finding_of_several_agents_is_one_suppressed_result() -> None:
    known = dropped(by="red"), dropped(by="blue"), dropped(by="red", line=9, fingerprint="88bb")
    results = run_of(review(dropped=known))["results"]
    assert [result["properties"]["by"] for result in results] == [["red", "blue"], ["red"]]


def test_finding_of_an_earlier_review_stays_an_alert_until_it_is_gone_or_dismissed() -> None:
    """Under the same fingerprint, on the lines where it is now."""
    first = known(3, 3, title="off by one")
    stands = as_known(first)
    entries = {
        "stands": stands,
        "dismissed": stands.model_copy(update={"status": "dismissed", "by": "alice", "reason": "It is checked."}),
        "gone": stands.model_copy(update={"status": "gone"}),
        "accepted": stands.model_copy(update={"status": "accepted"}),
        "disputed": as_known(known(3, 3, status="disputed")),
    }
    (before,) = run_of(review(first))["results"]
    found = {name: run_of(review(known_findings=(entry,)))["results"] for name, entry in entries.items()}
    assert found["gone"] == found["accepted"] == []
    (result,) = found["stands"]
    for name in ("partialFingerprints", "locations", "ruleId", "level"):
        assert result[name] == before[name]
    assert "suppressions" not in result
    (dismissed,) = found["dismissed"]
    assert dismissed["suppressions"][0]["justification"] == "alice: It is checked."
    assert [(disputed["kind"], disputed["level"]) for disputed in found["disputed"]] == [("review", "none")]
    entries_now = (entries["stands"], entries["dismissed"])
    assert (
        "off by one"
        in run_of(review(known_findings=[e.model_copy(update={"claim": ""}) for e in entries_now]))["results"][0][
            "message"
        ]["text"]
    )


def test_partial_run_names_what_is_missing() -> None:
    (invocation,) = run_of(rich_review())["invocations"]
    assert not invocation["executionSuccessful"]
    notes = {note["descriptor"]["id"]: note["message"]["text"] for note in invocation["toolExecutionNotifications"]}
    assert notes == {
        "missing-agent": "blue gave no reply since review-1/part-2/blue: timed out",
        "part-not-read": "No reviewer read src/long.py:1-200.",
        "left-out": "logo.png: not a text",
        "warning": "blue's ticket was offered again",
        "stopped": "The review ended early (exhausted_time).",
    }


@pytest.mark.parametrize("reason", StopReason)
def test_only_a_complete_run_is_successful(reason: StopReason) -> None:
    (invocation,) = run_of(review(stop_reason=reason))["invocations"]
    assert invocation["executionSuccessful"] == (reason not in (StopReason.FAILED, StopReason.CANCELLED))


def test_review_without_findings_has_an_empty_list_of_results() -> None:
    run = run_of(review())
    assert run["results"] == []
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]


# --- the validator

Validate = Callable[[dict[str, dict[str, object]]], dict[str, list[str]]]


@pytest.fixture(scope="session")
def validate(tmp_path_factory: pytest.TempPathFactory) -> Validate:
    """Microsoft's validator: the official schema, rules of the standard that no schema expresses, and those of GitHub's code
    scanning. From logs by name to the ids of what it finds in each, without remarks on style."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, which installs the SARIF validator")
    directory = tmp_path_factory.mktemp("multitool")
    package = "@microsoft/sarif-multitool-linux@5.7.0"  # the package for all systems brings the programs of all of them
    command = (npm, "install", "--silent", "--ignore-scripts", "--no-save", "--prefix", str(directory), package)
    installed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        pytest.skip(f"the SARIF validator cannot be installed: {installed.stderr.strip()[-200:]}")
    home = directory / "node_modules" / "@microsoft" / "sarif-multitool-linux"
    program = home / "Sarif.Multitool"
    program.chmod(0o755)

    def check(logs: dict[str, dict[str, object]]) -> dict[str, list[str]]:
        out, paths = directory / "result.sarif", {name: directory / f"{name}.sarif" for name in logs}
        for name, path in paths.items():
            path.write_text(json.dumps(logs[name]))
        options = ("--rule-kind", "Sarif;Ghas", "--level", "Error;Warning", "--log", "ForceOverwrite", "-o", str(out))
        schema = ("-j", str(home / "sarif-2.1.0.json"))
        done = subprocess.run(
            [program, "validate", *paths.values(), *schema, *options], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (run,) = json.loads(out.read_text(encoding="utf-8-sig"))["runs"]
        found: dict[str, list[str]] = {name: [] for name in logs}
        for result in run["results"]:
            (location,) = result["locations"]
            name = Path(location["physicalLocation"]["artifactLocation"]["uri"]).stem
            found[name].append(f"{result['ruleId']} {json.dumps(result['message'])}")
        return found

    return check


CAUSE = Cause(file="src/pager.py", first_line=3, last_line=4, side="old", quotation="size = 10")
EXPECTED = {"SARIF2005"}
"""It misses an address of the tool's home page, and there is none."""


REPORTS = {
    "clean": review(),
    "one": review(finding(cause=CAUSE)),
    "rich": rich_review(),
    "absolute": review(finding(file="/tmp/a.py"), dropped=(dropped(),), hunks=()),
}


@pytest.mark.packaging
def test_logs_pass_the_validator_for_the_standard_and_for_github(validate: Validate) -> None:
    """The last log is wrong, and the validator says so."""
    wrong: dict[str, Any] = sarif(review(finding()))
    result = wrong["runs"][0]["results"][0]
    result["bogus"] = 1
    result["locations"][0]["physicalLocation"]["region"]["startLine"] = 99
    remarks = validate({**{name: sarif(report) for name, report in REPORTS.items()}, "wrong": wrong})
    assert {"JSON1005", "SARIF1007"} <= {remark.split()[0] for remark in remarks.pop("wrong")}
    found = {name: {remark for remark in said if remark.split()[0] not in EXPECTED} for name, said in remarks.items()}
    assert found == {name: set() for name in REPORTS}
