"""A review as GitHub's REST API takes it: the body of `POST /repos/{owner}/{repo}/pulls/{pull_number}/reviews`.

GitHub refuses a whole review if one comment is on a line that the pull request's diff does not show. So only findings inside a
hunk are comments; the others are in the review's body. The event is always `COMMENT`: models neither approve nor block.

GitHub notifies whom a comment mentions, links issues and commits that it names, closes issues, and loads images. Text that a
model wrote from an untrusted diff must cause none of it. GitHub looks for mentions and references after Markdown is parsed, so
escaping does not stop them; a character of no width inside them does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from consilience.domain.findings import (
    OBJECTIONS,
    SEVERITIES,
    Cause,
    DiffHunk,
    DroppedFinding,
    EarlierReviews,
    Finding,
    FindingsReport,
    KnownFinding,
    KnownStatus,
    Verification,
    as_known,
    command_of,
    decided_by,
    place_of,
    topic_of,
)
from consilience.domain.markdown import code_span, fenced
from consilience.domain.messages import JsonObject
from consilience.domain.outcome import Severity
from consilience.domain.sections import Block, Paragraph
from consilience.reporting.formats.marks import Mark, mark_text, marked
from consilience.targets.fixes import parse_patch

MAX_BODY_CHARS = 60_000
"""GitHub accepts 65,536."""
MAX_COMMENTS = 30
"""On lines."""
MAX_TITLE_CHARS = 80
"""In a mark."""
MAX_FIX_CHARS = 8_000
MAX_CHECK_CHARS = 2_000
UNPRINTABLE = "\ufffd"
"""What names of documents have in place of a character that cannot be printed."""
MAX_NOTES = 20
"""Missing agents and files left out that the body names."""
MAX_OTHERS = 50
"""Findings of earlier reviews, or on unchanged lines, that the body names."""
OTHERS = "**Other findings**"
"""Begins the part of a body that a later run replaces."""
STATUSES: Mapping[KnownStatus, str] = {
    "stands": "stands",
    "gone": "changed: its lines, or those that cause it, are no longer as they were",
    "dismissed": "dismissed",
    "accepted": "accepted",
    "older": "on unchanged lines: not judged, since no changed line is named as its cause",
}


def github_comments(
    report: FindingsReport,
    summary: Sequence[Block],
    *,
    inline: Severity = "minor",
    max_inline: int = MAX_COMMENTS,
    name: str = "",
    read_before: EarlierReviews | None = None,
) -> JsonObject:
    """Return the request body: event, body, and one comment for each finding on lines that the diff shows, or whose cause is.

    The paragraphs of `summary` open the body. Findings less severe than `inline`, and those after the first `max_inline` comments,
    are in the body; without hunks (the target was no diff) all are. `other_findings` ends it. Each comment, and the body for the
    findings in it, has a mark by which a later run of the series `name` knows them. It names the reviewed commit as read if the
    report tells all that was found and the request has it, else that of `read_before`.
    """
    severe = SEVERITIES[: SEVERITIES.index(inline) + 1]
    comments: list[JsonObject] = []
    without_place: list[Finding] = []
    for finding in report.findings:
        at: Finding | Cause | None = finding
        place = _place(finding, report.hunks)
        if place is None and (at := finding.cause):
            place = _place(at, report.hunks)
        if at is None or place is None or finding.severity not in severe or len(comments) >= max_inline:
            without_place.append(finding)
        else:
            comments.append(_comment(finding, at, place, Mark(name=name, finding=_as_marked(finding, report))))
    text, known, is_cut = _body(report, summary, without_place)
    read = (None if is_cut else report.read_to) or read_before or EarlierReviews()
    body = marked(text, Mark(name=name, review=read.model_copy(update={"known": known})))
    request: JsonObject = {"event": "COMMENT", "body": body, "comments": comments}
    return request | ({"commit_id": report.reviewed_commit} if report.reviewed_commit else {})


def _place(finding: Finding | Cause, hunks: Sequence[DiffHunk]) -> tuple[int, int] | None:
    """Return the lines of a finding or its cause that a hunk shows, on its side; None if the diff shows none of them.

    None too if the name of the file has characters that cannot be printed: GitHub knows no file by the name in the report.
    """
    if UNPRINTABLE in finding.file:
        return None
    for hunk in hunks:
        shown = hunk.new if finding.side == "new" else hunk.old
        first, last = max(finding.first_line, shown[0]), min(finding.last_line, shown[1])
        if hunk.file == finding.file and first <= last:
            return first, last
    return None


def _comment(finding: Finding, at: Finding | Cause, lines: tuple[int, int], mark: Mark) -> JsonObject:
    """Return a comment on these lines of the finding or of its cause."""
    first, last = lines
    side = "RIGHT" if at.side == "new" else "LEFT"
    whole = at is finding and lines == (finding.first_line, finding.last_line)
    place = "" if whole else f" · {_code(place_of(finding))}"
    body = "\n\n".join(
        [f"{_label(finding)}{place} — {prose(finding.claim)}", *_details(finding, _suggestion(finding, whole))]
    )
    comment: JsonObject = {"path": at.file, "line": last, "side": side, "body": marked(body, mark)}
    if first < last:
        comment |= {"start_line": first, "start_side": side}
    return comment


def _as_marked(finding: Finding | DroppedFinding, report: FindingsReport) -> KnownFinding | None:
    """Return what a mark says of a finding; None if nothing identifies it."""
    title = finding.title or (finding.claim if isinstance(finding, DroppedFinding) else "")
    short = {"quotation": "", "claim": "", "title": title[:MAX_TITLE_CHARS]}
    return as_known(finding, report.reviewed_commit).model_copy(update=short) if finding.identities else None


def _suggestion(finding: Finding, whole: bool) -> str:
    """Return a block that GitHub can apply: the commented lines as the fix has them; "" if the fix is not exactly these lines."""
    if not whole or finding.side == "old" or len(finding.fix) > MAX_FIX_CHARS:
        return ""
    lines = parse_patch(finding.fix).replaced(finding.first_line, finding.last_line)
    text = "\n".join(lines or ())
    if lines is None or visible(text) != text:  # applying a block without its invisible characters is another fix
        return ""
    return code_block(text, "suggestion") if lines else "```suggestion\n```"


def _label(finding: Finding) -> str:
    disputed = " · disputed" if finding.status == "disputed" else ""
    return f"**{finding.severity} · {prose(topic_of(finding), 120) or 'other'}{disputed}**"


def _details(finding: Finding, suggestion: str) -> list[str]:
    """Return the paragraphs below the claim."""
    parts = [f"**Caused by the changed line** {_code(place_of(finding.cause))}"] if finding.cause else []
    if finding.consequence.strip():
        parts.append(f"**Consequence:** {prose(finding.consequence)}")
    if finding.recommendation.strip():
        parts.append(f"**Recommendation:** {prose(finding.recommendation)}")
    if finding.check.text.strip():
        parts.append(_check(finding.check))
    if suggestion:
        parts.append(suggestion)
    elif finding.fix and len(finding.fix) <= MAX_FIX_CHARS:
        parts.append(code_block(finding.fix.rstrip("\n"), "diff"))
    parts += [
        f"**{OBJECTIONS[judgement.verdict]} {prose(judgement.agent, 60)}:** {prose(judgement.reason, 1_000)}"
        for judgement in finding.judgements
        if judgement.verdict in OBJECTIONS
    ]
    parts.append(f"<sub>{finding.id} · {prose(decided_by(finding), 400)}</sub>")
    return parts


def _check(check: Verification) -> str:
    label, command = f"**To check ({check.kind}):**", command_of(check)
    if command is None:
        text = f"{label} {prose(check.text.strip()[:MAX_CHECK_CHARS])}"
    else:
        command = command[:MAX_CHECK_CHARS]
        text = f"{label}\n\n{code_block(command)}" if "\n" in command else f"{label} {_code(command)}"
    return f"{text}\n\n**Expected:** {prose(check.expect)}" if check.expect.strip() else text


def older_findings(report: FindingsReport) -> tuple[KnownFinding, ...]:
    """Return the new findings on unchanged lines as marks have them, as far as a body names them."""
    marks = (_as_marked(finding, report) for finding in report.older[:MAX_OTHERS])
    return tuple(entry for entry in marks if entry is not None)


def other_findings(report: FindingsReport) -> str:
    """Return what became of earlier findings, and what is on unchanged lines, one on a line; "" if there is neither."""
    known = [*report.known_findings, *older_findings(report)]
    if not known:
        return ""
    counts = Counter(entry.status for entry in known)
    words = ", ".join(
        f"{counts[status]} {text.partition(':')[0]}" for status, text in STATUSES.items() if counts[status]
    )
    lines = [f"- {_other(entry)}" for entry in known[:MAX_OTHERS]]
    if len(known) > MAX_OTHERS:
        lines.append(f"- {len(known) - MAX_OTHERS} more")
    return f"{OTHERS}: {words}.\n\n" + "\n".join(lines)


def _other(entry: KnownFinding) -> str:
    name = prose(f"{entry.severity} · {topic_of(entry)}", 160) + (" · disputed" if entry.disputed else "")
    link = f"[{name}]({entry.url})" if entry.url.partition("://")[0] == "https" and ")" not in entry.url else name
    place = entry.file if entry.status == "gone" else f"{entry.file}:{entry.first_line}"
    who = f" by {_code(entry.by)}: {prose(entry.reason, 200)}" if entry.status == "dismissed" else ""
    return f"{link} in {_code(place)}: {STATUSES[entry.status]}{who}"


def _body(
    report: FindingsReport, summary: Sequence[Block], without_place: Sequence[Finding]
) -> tuple[str, tuple[KnownFinding, ...], bool]:
    """Return the text, the findings in it, and whether some had no room."""
    paragraphs = [block for block in summary if isinstance(block, Paragraph)]
    parts = ["**Review by consilience**", *(f"**{prose(block.lead)}** {prose(block.text)}" for block in paragraphs)]
    if report.answer and (report.findings or report.is_without_target):
        parts += [f"> {prose(paragraph)}" for paragraph in report.answer.split("\n\n") if paragraph.strip()]
    if without_place and report.hunks:
        parts.append("Findings that are no comments on lines of the diff:")
    others = other_findings(report)
    end = [*_ending(report), *([others] if others else [])]
    known = list(older_findings(report))
    marks = len(mark_text(Mark(review=EarlierReviews(known=tuple(known)))))
    room = MAX_BODY_CHARS - marks - sum(len(part) + 2 for part in (*parts, *end))
    is_cut = False
    for number, finding in enumerate(without_place):
        claim = f"{_label(finding)} · {_code(place_of(finding))} — {prose(finding.claim)}"
        text = "\n\n".join([claim, *_details(finding, "")])
        entry = _as_marked(finding, report)
        room -= len(text) + 2 + (len(mark_text(Mark(finding=entry))) if entry else 0)
        if room < 300:
            parts.append(f"{len(without_place) - number} more in the report.")
            is_cut = True
            break
        parts.append(text)
        known += [entry] if entry else []
    return "\n\n".join([*parts, *end]), tuple(known), is_cut


def _ending(report: FindingsReport) -> list[str]:
    notes = [
        *(f"- Missing: {prose(m.agent, 60)} ({prose(m.reason, 300)})" for m in report.missing),
        *(f"- Not reviewed: {prose(text, 300)}" for text in report.left_out),
    ]
    if len(notes) > MAX_NOTES:
        notes = [*notes[:MAX_NOTES], f"- {len(notes) - MAX_NOTES} more in the report"]
    parts = ["\n".join(notes)] if notes else []
    if not report.is_without_target:
        parts.append(
            f"<sub>Written by models; check a finding before you act on it. Session {_code(report.session)}.</sub>"
        )
    return parts


NO_WIDTH = "&#8203;"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, characters of no width or that change the direction of text, and lone surrogates."""
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_MARKUP = re.compile(r"[\\`*_\[\]#|~$!]")
_COMMIT = re.compile(r"\b((?=[a-f]*\d)[0-9a-f]{7,64})\b", re.IGNORECASE)
"""What may be the hash of a commit."""
_REFERENCE = re.compile(r"@|#(?=\w)|(?<=[A-Za-z])-(?=\d)|:(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
"""A mention or address, an issue, `GH-12` or a key of a tracker, a URL: links fall apart behind each match."""


def visible(text: str) -> str:
    """Return `text` with line feeds as its only line ends, without characters that readers cannot see."""
    return _CONTROL.sub("", re.sub(r"\r\n?|[\u2028\u2029\x85\v\f]", "\n", text))


def prose(text: str, max_chars: int = 2_000) -> str:
    """Return `text` on one line, with its code spans and without other markup, mentions and links. Put something before it: at the
    start of a line some characters open lists or command bots."""
    line = " ".join(visible(text).split())
    if len(line) > max_chars:
        line = line[: max_chars - 1].rstrip() + "…"
    pieces = _CODE.split(line)
    return "".join(_code(piece) if i % 2 else _plain(piece) for i, piece in enumerate(pieces))


def _code(text: str) -> str:
    """Return `text` on one line as a code span, in which nothing is a mention or a link."""
    return code_span(visible(text))


def code_block(text: str, language: str = "") -> str:
    """Return `text` as a fenced block that it cannot close."""
    return fenced(visible(text), language)


def _plain(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(
        _code(piece) if i % 2 else _REFERENCE.sub(rf"\g<0>{NO_WIDTH}", _MARKUP.sub(r"\\\g<0>", piece))
        for i, piece in enumerate(_COMMIT.split(text))
    )
