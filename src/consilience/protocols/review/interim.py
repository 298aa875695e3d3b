"""Simple forms of what vetting a review's findings needs, until `vetting` has its own modules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.engine.sources import Document, same_form
from consilience.protocols.review.findings import (
    Check,
    DroppedFinding,
    Finding,
    FindingReply,
    Judgement,
    ReviewReply,
    Status,
)
from consilience.protocols.review.report_data import ReviewData

Side = Literal["new", "old"]


@dataclass(frozen=True)
class FileChange:
    path: str
    old_path: str
    document: str | None
    added: tuple[tuple[int, int], ...]
    diff_lines: tuple[int, int]
    places: tuple[tuple[int, Side, int], ...] = ()

    def place(self, diff_line: int) -> tuple[Side, int] | None:
        return next(((side, n) for line, side, n in self.places if line == diff_line), None)


@dataclass(frozen=True)
class Changes:
    document: str
    files: tuple[FileChange, ...]


def parse_changes(documents: Sequence[Document]) -> Changes | None:
    for document in documents:
        lines = document.text.splitlines()
        if any(line.startswith("--- ") for line in lines) and any(line.startswith("@@ ") for line in lines):
            return Changes(document.id, tuple(_files(lines, documents)))
    return None


def _files(lines: Sequence[str], documents: Sequence[Document]) -> Iterator[FileChange]:
    starts = [n for n, line in enumerate(lines) if line.startswith("diff --git")] or [
        n for n, line in enumerate(lines) if line.startswith("--- ")
    ]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        block = lines[start:end]
        old = next((x[4:].removeprefix("a/") for x in block if x.startswith("--- ")), "")
        new = next((x[4:].removeprefix("b/") for x in block if x.startswith("+++ ")), "")
        a = b = 0
        places: list[tuple[int, Side, int]] = []
        added: list[tuple[int, int]] = []
        for n, line in enumerate(block, start + 1):
            if m := re.match(r"@@ -(\d+)(?:,\d+)? \+(\d+)", line):
                a, b = int(m[1]), int(m[2])
            elif not b:
                continue
            elif line.startswith("+"):
                places.append((n, "new", b))
                added.append((b, b))
                b += 1
            elif line.startswith("-"):
                places.append((n, "old", a))
                added.append((b, b))
                a += 1
            else:
                places.append((n, "new", b))
                a, b = a + 1, b + 1
        document = next((d.id for d in documents if d.name == new), None)
        yield FileChange(
            new, "" if old == "/dev/null" else old, document, tuple(added), (start + 1, end), tuple(places)
        )


@dataclass(frozen=True)
class Baseline:
    text: str = ""


def parse_baseline(text: str) -> Baseline:
    return Baseline(text)


@dataclass(frozen=True)
class Submitted:
    agent: str
    part: int
    iteration: int
    key: str
    reply: ReviewReply
    shown: tuple[Document, ...]


@dataclass(frozen=True)
class Vetted:
    findings: tuple[Finding, ...]
    dropped: tuple[DroppedFinding, ...]
    warnings: tuple[str, ...]


def _found(finding: FindingReply, shown: Sequence[Document]) -> Document | None:
    return next((d for d in shown if d.id == finding.document and d.contains(finding.quotation, finding.line)), None)


def misses(submitted: Submitted, documents: Sequence[Document]) -> tuple[FindingReply, ...]:
    return tuple(f for f in submitted.reply.findings if _found(f, submitted.shown) is None)


def vet(
    submitted: Sequence[Submitted], documents: Sequence[Document], *, baseline: Baseline, changed_lines_only: bool
) -> Vetted:
    found: dict[tuple[str, int, str], Finding] = {}
    dropped = []
    for one in submitted:
        for f in one.reply.findings:
            document = _found(f, one.shown)
            if document is None:
                dropped.append(
                    DroppedFinding(
                        reason="false quotation",
                        by=one.agent,
                        severity=f.severity,
                        file=f.document,
                        line=f.line,
                        quotation=f.quotation,
                        claim=f.claim,
                    )
                )
                continue
            place = (f.document, f.line, same_form(f.quotation))
            old = found.get(place)
            if old is not None:
                found[place] = old.model_copy(
                    update={"by": (*old.by, one.agent), "refs": (*old.refs, one.key), "status": "confirmed"}
                )
                continue
            found[place] = Finding(
                id="",
                by=(one.agent,),
                severity=f.severity,
                category=f.category,
                file=document.name,
                first_line=f.line,
                last_line=f.line + f.quotation.count("\n"),
                source=f.document,
                source_line=f.line,
                quotation=f.quotation,
                claim=f.claim,
                consequence=f.consequence,
                check=Check(kind=f.check.kind, text=f.check.text),
                recommendation=f.recommendation,
                refs=(one.key,),
            )
    findings = [f.model_copy(update={"id": f"F{n}"}) for n, f in enumerate(found.values(), 1)]
    return Vetted(tuple(findings), tuple(dropped), ())


def judged(findings: Sequence[Finding], judgements: Mapping[str, Sequence[Judgement]]) -> tuple[Finding, ...]:
    result = []
    for f in findings:
        said = tuple(judgements.get(f.id, ()))
        status: Status = f.status
        if any(j.verdict == "refute" for j in said):
            status = "disputed"
        elif said and all(j.verdict == "confirm" for j in said):
            status = "confirmed"
        result.append(f.model_copy(update={"judgements": said, "status": status}))
    return tuple(result)


def merged(findings: Sequence[Finding], groups: Sequence[Sequence[str]]) -> tuple[Finding, ...]:
    gone = {id for group in groups for id in group[1:]}
    return tuple(f for f in findings if f.id not in gone)


def listed(findings: Sequence[Finding], limit: int) -> tuple[tuple[Finding, ...], tuple[DroppedFinding, ...]]:
    ranked = sorted(findings, key=lambda f: (f.status == "disputed", ["critical", "major", "minor"].index(f.severity)))
    kept = [f.model_copy(update={"id": f"F{n}"}) for n, f in enumerate(ranked[:limit], 1)]
    over = [
        DroppedFinding(
            reason="over the limit",
            by=f.by[0],
            severity=f.severity,
            file=f.file,
            line=f.first_line,
            quotation=f.quotation,
            claim=f.claim,
        )
        for f in ranked[limit:]
    ]
    return tuple(kept), tuple(over)


class ReviewReport(ReviewData):
    """The report of a review."""
