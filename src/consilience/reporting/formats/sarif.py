"""The findings of a review as SARIF 2.1.0, the format in which analysis tools exchange results.

Severities map to levels one to one: critical is `error`, major `warning`, minor `note`. A disputed finding has the kind `review`,
by which SARIF asks for a person's decision, and therefore the level `none`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from consilience.domain.findings import (
    CATEGORIES,
    OBJECTIONS,
    OTHER,
    Cause,
    DiffHunk,
    DroppedFinding,
    DroppedReason,
    Finding,
    FindingsReport,
    KnownFinding,
    KnownStatus,
    PartRead,
    place_of,
    topic_of,
)
from consilience.domain.messages import JsonObject
from consilience.domain.outcome import Severity, StopReason
from consilience.reporting.formats.github import visible
from consilience.targets.fixes import Edit, parse_patch

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Mapping[Severity, str] = {"critical": "error", "major": "warning", "minor": "note"}
FINGERPRINT = "consilienceFinding/v1"
ROOT = "SRCROOT"
"""The base of relative paths."""
RULES: Mapping[str, str] = {**CATEGORIES, OTHER: "anything else"}
"""All rules, in every log, so that alerts keep their rule from run to run."""
HELPS: Mapping[str, str] = {
    "logic": "Follow the value from where it comes from through the quoted line, and compare the result with what is promised.",
    "bounds": "Try the empty input, one element, the last one and one more.",
    "data": "Compare type, unit and format on both sides of the quoted line, and what is read back with what was written.",
    "errors": "Let the call fail, and look at what the caller learns and what is left behind.",
    "concurrency": "Put a second caller between the two steps, and repeat the step.",
    "resources": "Count what is opened, kept or paid for in the worst case, and where it is released.",
    "security": "Take the input from an attacker, and name the check that refuses it.",
    "interface": "Search for the callers, and compare what they pass and expect.",
    "tests": "Undo the code under test, and see whether the test fails.",
    "statement": "Compare the statement with the code or the source that it is about.",
    "instruction": "Carry the step out to the letter.",
    "design": "Name what would have to change together, and who notices when it does not.",
    OTHER: "Read the quoted lines with what calls them.",
}
"""How to check a finding of each rule."""
UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")
EARLY = (StopReason.FAILED, StopReason.CANCELLED, StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME)
"""Reasons for which a review ended before its end; running out of iterations is not one of them."""
EARLIER: tuple[KnownStatus, ...] = ("stands", "dismissed", "older")
"""Findings of earlier reviews that are results; a baseline may have more than the change under review."""
OLDER = "It is on lines that the change left as they were, and no changed line is named as its cause."
JUSTIFICATIONS: Mapping[DroppedReason, str] = {
    "ignored": "An inline comment.",
    "baseline": "It is in the baseline.",
    "unchanged lines": OLDER,
}
"""Of dropped findings that are suppressed results, where nothing more is known."""


def sarif(report: FindingsReport) -> JsonObject:
    """Return the report as a SARIF log with one run.

    Findings of earlier reviews that still stand are results, as those of this one: an alert that a log lacks is closed. Findings
    that a baseline or an inline comment dropped, those that a person dismissed, and those on unchanged lines are suppressed
    results; other dropped findings are only counted. GitHub's code scanning does not read suppressions, so remove suppressed
    results before an upload to it.
    """
    suppressed = list(_suppressed_once(report.dropped))
    results = [
        *(_result(finding, report.hunks) for finding in report.findings),
        *(_earlier(known, report.hunks) for known in report.known_findings if known.status in EARLIER),
        *(_suppressed(finding) for finding in suppressed),
    ]
    driver: JsonObject = {
        "name": "consilience review",
        "version": version("consilience"),
        "rules": [_rule(category, about) for category, about in RULES.items()],
    }
    run: JsonObject = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"consilience-review/{_encoded(report.session)}"},
        "invocations": [_invocation(report)],
        "originalUriBaseIds": {ROOT: {"description": {"text": "The root of the reviewed repository or directory."}}},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "properties": {
            "session": report.session,
            "stopReason": report.stop_reason.value,
            "verdict": report.verdict.vote if report.verdict else None,
            "votes": dict(Counter(ballot.vote for ballot in report.ballots)),
            "dropped": dict(Counter(finding.reason for finding in report.dropped)),
        },
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def rule_id(category: str) -> str:
    """Return the rule of a category: itself, `other` for one that is not fixed."""
    return category if category in RULES else OTHER


def uri(path: str) -> str:
    """Return a path as a percent-encoded URI: relative to the root, or with the scheme `file` if it is absolute."""
    return f"file://{_encoded(path)}" if path.startswith("/") else _encoded(path)


def _encoded(text: str) -> str:
    return "".join(chr(b) if b in UNRESERVED else f"%{b:02X}" for b in text.encode("utf-8", "replace"))


def _rule(category: str, about: str) -> JsonObject:
    return {
        "id": category,
        "shortDescription": {"text": f"Review finding: {category}."},
        "fullDescription": {"text": f"Reviewers found a defect of the category {category}: {about}."},
        "help": {
            "text": "The quoted words were found in the reviewed text by a program; the claim about them is a model's."
            f" Check it as the message describes before you act on it. {HELPS[category]}"
        },
        "defaultConfiguration": {"level": "warning"},
    }


def _result(finding: Finding, hunks: Sequence[DiffHunk]) -> JsonObject:
    properties: JsonObject = {
        "id": finding.id,
        "title": visible(finding.title),
        "severity": finding.severity,
        "status": finding.status,
        "side": finding.side,
        "quotation": visible(finding.quotation),
        "by": list(finding.by),
        "judgements": [judgement.model_dump() for judgement in finding.judgements],
        "check": finding.check.model_dump(),
    }
    result = _located(finding, _message(finding), _lines(finding, hunks), properties)
    if finding.status == "disputed":
        result |= {"kind": "review", "level": "none"}
    if cause := finding.cause:
        lines = _lines(cause, hunks)
        result["relatedLocations"] = [
            {"id": 1, **_location(cause.file, *lines), "message": {"text": "The changed line that causes it."}}
        ]
    if fix := _fix(finding):
        result["fixes"] = [fix]
    return result


def _earlier(known: KnownFinding, hunks: Sequence[DiffHunk]) -> JsonObject:
    """Return the result for a finding of an earlier review, suppressed if a person dismissed it or if it is older."""
    properties: JsonObject = {"severity": known.severity, "status": known.status, "side": known.side}
    message = f"{_plain(known.claim or topic_of(known)) or 'No claim.'}\n\nAn earlier review of the change reported it."
    result = _located(known, message, _lines(known, hunks), properties)
    if known.disputed:
        result |= {"kind": "review", "level": "none"}
    why = {"dismissed": f"{known.by}: {known.reason}", "older": OLDER}.get(known.status)
    return result | (_suppressions("external", why) if why else {})


def _suppressions(kind: str, justification: str) -> JsonObject:
    return {"suppressions": [{"kind": kind, "status": "accepted", "justification": _plain(justification)}]}


def _suppressed(finding: DroppedFinding) -> JsonObject:
    in_source = finding.reason == "ignored"
    justification = finding.detail or JUSTIFICATIONS[finding.reason]
    properties: JsonObject = {
        "severity": finding.severity,
        "quotation": visible(finding.quotation),
        "by": finding.by.split(", "),
    }
    message = _plain(finding.claim) or "No claim."
    result = _located(finding, message, (finding.line, finding.line), properties)
    return result | _suppressions("inSource" if in_source else "external", justification)


def _located(
    finding: Finding | DroppedFinding | KnownFinding,
    message: str,
    lines: tuple[int, int],
    properties: JsonObject,
) -> JsonObject:
    rule = rule_id(finding.category)
    result: JsonObject = {
        "ruleId": rule,
        "ruleIndex": list(RULES).index(rule),
        "kind": "fail",
        "level": LEVELS[finding.severity],
        "message": {"text": message},
        "locations": [_location(finding.file, *lines)],
        "properties": properties,
    }
    if finding.fingerprint:
        result["partialFingerprints"] = {FINGERPRINT: finding.fingerprint}
    return result


def _suppressed_once(dropped: Iterable[DroppedFinding]) -> Iterator[DroppedFinding]:
    """Yield the findings that are suppressed; one for what several agents say of the same words of a file, with all of them."""
    alike: dict[tuple[object, ...], list[DroppedFinding]] = {}
    for n, finding in enumerate(dropped):
        if finding.reason in JUSTIFICATIONS:
            alike.setdefault((finding.reason, finding.file, finding.line, finding.fingerprint or n), []).append(finding)
    for group in alike.values():
        yield group[0].model_copy(update={"by": ", ".join(dict.fromkeys(finding.by for finding in group))})


def _message(finding: Finding) -> str:
    parts = [finding.claim]
    if finding.cause:
        parts.append(f"It is caused by the changed line {place_of(finding.cause)}.")
    if finding.side == "old":
        parts.append(f"It is about removed lines, {_range(finding.first_line, finding.last_line)} of the old file.")
    if finding.consequence:
        parts.append(f"Consequence: {finding.consequence}")
    if finding.recommendation:
        parts.append(f"Recommendation: {finding.recommendation}")
    if finding.check.text:
        parts.append(f"How to check ({finding.check.kind}): {finding.check.text}")
    if finding.check.expect:
        parts.append(f"Expected: {finding.check.expect}")
    for judgement in finding.judgements:
        if judgement.verdict in OBJECTIONS:
            parts.append(f"{OBJECTIONS[judgement.verdict]} {judgement.agent}: {judgement.reason}")
    return "\n\n".join(filter(None, map(_plain, parts))) or "No claim."


def _range(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _plain(text: str) -> str:
    """Return text of an agent in which no viewer finds a link: SARIF reads `[words](target)` in messages as one."""
    return re.sub(r"\](?=\()", "] ", visible(text)).strip()


def _lines(finding: Finding | Cause | KnownFinding, hunks: Sequence[DiffHunk]) -> tuple[int, int]:
    """Return the lines of the new file to show. Removed lines are not in it: their place is the first line of their hunk."""
    if finding.side == "new":
        return finding.first_line, finding.last_line
    for hunk in hunks:
        if hunk.file == finding.file and hunk.old[0] <= finding.first_line <= hunk.old[1]:
            return max(hunk.new[0], 1), max(hunk.new[0], 1)
    return 1, 1


def _artifact(path: str) -> JsonObject:
    return {"uri": uri(path)} if path.startswith("/") else {"uri": uri(path), "uriBaseId": ROOT}


def _location(path: str, first: int, last: int) -> JsonObject:
    start = max(first, 1)
    region = {"startLine": start, "endLine": max(last, start)}
    return {"physicalLocation": {"artifactLocation": _artifact(path), "region": region}}


def _fix(finding: Finding) -> JsonObject | None:
    edits = parse_patch(finding.fix).edits if finding.side == "new" else ()
    if not edits:
        return None
    change = {"artifactLocation": _artifact(finding.file), "replacements": [_replacement(edit) for edit in edits]}
    return {
        "description": {"text": _plain(finding.recommendation) or "The fix that a reviewer proposed."},
        "artifactChanges": [change],
    }


def _replacement(edit: Edit) -> JsonObject:
    """Whole lines with their ends, so that a change of the number of lines is exact."""
    end = edit.first + edit.removed
    region = {"startLine": edit.first, "startColumn": 1, "endLine": end, "endColumn": 1}
    replacement: JsonObject = {"deletedRegion": region}
    if edit.added:
        replacement["insertedContent"] = {"text": "".join(f"{line}\n" for line in edit.added)}
    return replacement


def _invocation(report: FindingsReport) -> JsonObject:
    notes: list[JsonObject] = [
        *(_note("missing-agent", f"{m.agent} gave no reply since {m.since}: {m.reason}") for m in report.missing),
        *(_note("part-not-read", f"No reviewer read {_names(part)}.", "error") for part in report.unread),
        *(
            _note("part-not-read", f"{', '.join(part.unread_by)} did not read {_names(part)}.")
            for part in report.parts
            if part.readers and part.unread_by
        ),
        *(_note("left-out", text, "note") for text in report.left_out),
        *(_note("warning", text) for text in report.all_warnings),
    ]
    if report.stop_reason in EARLY:
        notes.append(_note("stopped", f"The review ended early ({report.stop_reason.value}).", "error"))
    return {"executionSuccessful": report.complete, "toolExecutionNotifications": _unique(notes)}


def _names(part: PartRead) -> str:
    return ", ".join(part.names or part.documents)


def _note(descriptor: str, text: str, level: str = "warning") -> JsonObject:
    return {"descriptor": {"id": descriptor}, "level": level, "message": {"text": _plain(text)}}


def _unique(notes: Iterable[JsonObject]) -> list[JsonObject]:
    """SARIF requires distinct notifications."""
    unique: list[JsonObject] = []
    for note in notes:
        if note not in unique:
            unique.append(note)
    return unique
