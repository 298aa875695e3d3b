"""Vetting findings: from what reviewers hand in to what a report lists. Pure functions; nothing handed in is lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from consilience.domain.findings import (
    CATEGORIES,
    OTHER,
    SEVERITIES,
    Cause,
    DroppedFinding,
    DroppedReason,
    Finding,
    FindingStatus,
    Identity,
    JudgedBy,
    RuleCited,
    Verification,
)
from consilience.domain.messages import is_empty_remark, is_no_finding
from consilience.engine.sources import Document, same_form
from consilience.protocols.review.baseline import Baseline, fingerprint, identity
from consilience.protocols.review.findings import FindingReply, ReviewReply
from consilience.targets.fixes import make_fix, parse_patch
from consilience.targets.locating import Location, Locator, locator_of

_IGNORE = re.compile(r"(?:#|//|/\*|\*|--|<!--|;|%|\{#)\s*consilience:\s*ignore\b[:\s]*(.*)", re.IGNORECASE)
_COMMENT_ENDS = re.compile(r"\s*(?:\*/|-->|#\}|\*\)|#>|%>|\*@|-\}|\]\]|--%?>|--\}\})\s*$")
_PLACE = re.compile(r"(?<![\w./-])([\w./-]*\w):(\d{1,9})(?:-(\d{1,9}))?(?!\w)")
"""A place in a file, as findings name it: `src/x.py:41-43`."""
_STATUS_RANK: Mapping[FindingStatus, int] = {"confirmed": 0, "unjudged": 1, "disputed": 2}


@dataclass(frozen=True)
class Submitted:
    """What one call handed in."""

    agent: str
    part: int
    iteration: int
    key: str
    """Of the call."""
    reply: ReviewReply
    shown: tuple[Document, ...]
    """The documents, or parts of them, that the call was shown to review."""
    related: tuple[Document, ...] = ()
    """What it was shown beside them, which its findings may cite, too."""

    @property
    def citable(self) -> tuple[Document, ...]:
        return (*self.shown, *self.related)


@dataclass(frozen=True)
class Vetted:
    """The findings that stand, and those that were dropped. Every finding handed in is one of `findings` or `dropped`, or one of
    the `duplicates` of a finding."""

    findings: tuple[Finding, ...]
    dropped: tuple[DroppedFinding, ...]
    warnings: tuple[str, ...]


def vet(
    submitted: Sequence[Submitted], documents: Sequence[Document], *, baseline: Baseline, changed_lines_only: bool
) -> Vetted:
    """Locate, filter and merge the findings; ids are F1, F2, … in the order of place.

    Dropped are, in this order: false quotations, findings that an inline comment ignores, known ones, and, where the target is a
    diff and `changed_lines_only`, those on unchanged lines that no changed line causes. `submitted` may be in any order.
    """
    vetting = _Vetting(locator_of(tuple(documents)), baseline, changed_lines_only)
    for handed_in in sorted(submitted, key=lambda reply: (reply.agent, reply.part, reply.iteration, reply.key)):
        for reply in handed_in.reply.findings:
            vetting.add(reply, handed_in)
    order = {name: n for n, name in enumerate(vetting.locator.files)}
    placed = sorted(_merge_duplicates(vetting.kept), key=lambda f: (order.get(f.file, len(order)), *_place(f)))
    return Vetted(_numbered(placed), tuple(vetting.dropped), tuple(dict.fromkeys(vetting.warnings)))


def misses(submitted: Submitted, documents: Sequence[Document]) -> tuple[FindingReply, ...]:
    """Return the findings whose quotation is not in the documents that the call was shown."""
    locator = locator_of(tuple(documents))
    return tuple(f for f in submitted.reply.findings if isinstance(locator.locate(f, submitted.citable), str))


def unfounded_causes(submitted: Submitted, documents: Sequence[Document]) -> tuple[FindingReply, ...]:
    """Return the findings on unchanged lines that name as cause what is in no changed line that the call was shown."""
    locator = locator_of(tuple(documents))
    return tuple(
        finding
        for finding in submitted.reply.findings
        if finding.cause.strip()
        and not isinstance(location := locator.locate(finding, submitted.citable), str)
        and not location.changed
        and locator.cause(finding, submitted.shown) is None
    )


def judged(findings: Sequence[Finding], judgements: Mapping[str, Sequence[JudgedBy]]) -> tuple[Finding, ...]:
    """Return the findings with the judgements on them, by id. Authors do not judge their own. Of several judgements by one agent
    the most negative counts."""
    negative = ("refute", "unsure", "amend", "confirm")
    result = []
    for finding in findings:
        by_agent = {judgement.agent: judgement for judgement in finding.judgements}
        for judgement in judgements.get(finding.id, ()):
            before = by_agent.get(judgement.agent, judgement)
            if judgement.agent not in finding.by:
                by_agent[judgement.agent] = min(before, judgement, key=lambda verdict: negative.index(verdict.verdict))
        if by_agent:
            finding = _with_judgements(finding, tuple(by_agent.values()), found_apart=finding.found_apart)
        result.append(finding)
    return tuple(result)


def merged(findings: Sequence[Finding], groups: Sequence[Sequence[str]]) -> tuple[Finding, ...]:
    """Return the findings with each group of ids merged into one, which keeps the id, place and words of the first id named.

    Unknown ids are skipped. Merged are only findings of one file. Findings by different agents are then found by two agents apart.
    """
    by_id = {finding.id: finding for finding in findings}
    sets = {finding.id: [finding.id] for finding in findings}
    """The findings that are one defect, by the id of each."""
    for ids in groups:
        first, *others = [id for id in dict.fromkeys(ids) if id in by_id] or [""]
        for other in others:
            if by_id[other].file == by_id[first].file and sets[other] is not sets[first]:
                sets[first] += sets[other]
                sets |= dict.fromkeys(sets[other], sets[first])
    named = [id for ids in groups for id in ids]
    ordered = [sorted(ids, key=named.index) if len(ids) > 1 else ids for ids in sets.values()]
    kept = {ids[0]: _combined([by_id[id] for id in ids], same_defect=True) for ids in ordered}
    return tuple(kept[finding.id] for finding in findings if finding.id in kept)


def listed(findings: Sequence[Finding], limit: int) -> tuple[tuple[Finding, ...], tuple[DroppedFinding, ...]]:
    """Return the first `limit` findings in the order of `ranked`, renumbered F1, F2, …, and the others as dropped.

    `ranked` leaves their ids as they were.
    """
    order = ranked(findings)
    return _numbered(order[:limit]), tuple(_dropped_finding(f, "over the limit") for f in order[limit:])


def ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings in the order of a report: disputed ones last, then worst first, confirmed before unjudged, by place."""
    order = {name: n for n, name in enumerate(dict.fromkeys(finding.file for finding in findings))}
    return tuple(
        sorted(
            findings,
            key=lambda f: (
                f.status == "disputed",
                _severity(f),
                _STATUS_RANK[f.status],
                order[f.file],
                f.first_line,
                f.last_line,
            ),
        )
    )


# --- from a reply to a finding


@dataclass
class _Vetting:
    """The findings of all replies so far."""

    locator: Locator
    baseline: Baseline
    changed_lines_only: bool
    kept: list[Finding] = field(default_factory=list)
    dropped: list[DroppedFinding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, reply: FindingReply, source: Submitted) -> None:
        if is_no_finding(reply.claim):
            return
        location = self.locator.locate(reply, source.citable)
        if isinstance(location, str):
            named = next((d.name for d in source.citable if d.name and reply.document in (d.id, d.reference)), "")
            self.dropped.append(
                DroppedFinding(
                    reason="false quotation",
                    by=source.agent,
                    severity=reply.severity,
                    file=named or reply.document,
                    line=reply.line,
                    quotation=reply.quotation,
                    claim=reply.claim,
                    **_classified(reply),
                    detail=location,
                )
            )
            return
        finding = self._finding(reply, location, source)
        why = self._why_dropped(finding, location, reply)
        if why is None:
            self.kept.append(finding)
            self.warnings += self._places_beyond_the_end(finding)
        else:
            self.dropped.append(_dropped_finding(finding, *why))

    def _finding(self, reply: FindingReply, location: Location, source: Submitted) -> Finding:
        fix = ""
        if location.side == "new":
            known = self.locator.known_lines(location)
            fix = make_fix(known, location.first, location.last, location.words, reply.replacement)
        cause = self.locator.cause(reply, source.shown)
        classified = _classified(reply)
        own = self._identity(location, classified["category"])
        return Finding(
            id="",
            by=(source.agent,),
            severity=reply.severity,
            **classified,
            file=location.file,
            first_line=location.first,
            last_line=location.last,
            side=location.side,
            source=location.document.id,
            source_line=location.line,
            quotation=location.words,
            claim=reply.claim,
            consequence="" if is_empty_remark(reply.consequence) else reply.consequence,
            check=Verification(**reply.check.model_dump()),
            recommendation="" if is_empty_remark(reply.recommendation) else reply.recommendation,
            fix=fix,
            changed=location.changed,
            cause=self._cause(cause) if cause is not None and _is_elsewhere(cause, location) else None,
            rule=self._rule(reply, source),
            fingerprint=fingerprint(location.file, self.locator.line_text(location)),
            identities=(own,) if own else (),
            refs=(source.key,),
        )

    def _cause(self, location: Location) -> Cause:
        return Cause(
            file=location.file,
            first_line=location.first,
            last_line=location.last,
            side=location.side,
            quotation=location.words,
            identity=self._identity(location, ""),
        )

    def _identity(self, location: Location, category: str) -> Identity | None:
        lines, new_lines = self.locator.lines_of_side(location), self.locator.known_lines(location).lines
        return identity(location.file, category, location.side, location.first, location.last, lines, new_lines)

    def _rule(self, reply: FindingReply, source: Submitted) -> RuleCited | None:
        """Return the rule that a finding cites, where it stands; None, with a warning, if it is in no rules that were shown."""
        if not reply.rule.strip():
            return None
        for document in source.related:
            if document.purpose == "rules" and (place := self.locator.place_of(reply.rule, document)):
                return RuleCited(file=document.name or document.id, line=place[0], quotation=place[1])
        self.warnings.append(f"{source.agent} cites a rule that the project does not have: {reply.rule.strip()!r:.120}")
        return None

    def _places_beyond_the_end(self, finding: Finding) -> Iterator[str]:
        """Yield the places in how to check a finding that its files do not have."""
        for place in _PLACE.finditer(f"{finding.check.text}\n{finding.check.expect}"):
            length = self.locator.length_of(place[1])
            if length is not None and max(int(place[2]), int(place[3] or 0)) > length:
                yield (
                    f"{finding.file}:{finding.first_line}: how to check it names {place[0]}, but {place[1]} has {length} lines"
                )

    def _why_dropped(
        self, finding: Finding, location: Location, reply: FindingReply
    ) -> tuple[DroppedReason, str] | None:
        ignored = self._ignored(finding, location) if finding.side == "new" else None
        if ignored:
            return "ignored", ignored
        old_path = location.change.old_path if location.change else ""
        if known := self.baseline.match(finding, self.locator.lines_of_side(location), old_path):
            reason: DroppedReason = "baseline" if known.status == "accepted" else "known"
            return reason, f"{known.by}: {known.reason}" if known.reason else ""
        if location.document.purpose and finding.cause is None:
            return "not under review", f"no line under review has {reply.cause!r:.200}" if reply.cause.strip() else ""
        if self.changed_lines_only and not finding.changed and finding.cause is None:
            return "unchanged lines", f"no changed line has {reply.cause!r:.200}" if reply.cause.strip() else ""
        return None

    def _ignored(self, finding: Finding, location: Location) -> str | None:
        """Return the reason of an inline comment on the lines or the line above; None without one."""
        lines = self.locator.known_lines(location).lines
        for number in range(finding.first_line - 1, finding.last_line + 1):
            if comment := _IGNORE.search(lines.get(number, "")):
                reason = _COMMENT_ENDS.sub("", comment[1]).strip()
                if any(map(str.isalnum, reason)):  # what is left without one is the end of a comment in some language
                    return reason
                self.warnings.append(
                    f"{finding.file}:{number}: `consilience: ignore` has no reason, so it ignores no finding"
                )
        return None


def _classified(reply: FindingReply) -> dict[str, str]:
    """Return category and title. A category that is none of `CATEGORIES` is a title, if there is no other."""
    words = " ".join(reply.category.split())
    is_known = words.casefold() in CATEGORIES
    title = " ".join(reply.title.split()) or ("" if is_known or words.casefold() == OTHER else words)
    return {"category": words.casefold() if is_known else OTHER, "title": title}


def _is_elsewhere(cause: Location, location: Location) -> bool:
    """Return whether a cause is another line than the quotation. A moved line is the same on either side of the diff."""
    is_moved = cause.change is not None and cause.change.is_moved(cause.side, cause.first, cause.last)
    if is_moved and same_form(cause.words) == same_form(location.words):
        return False
    return (cause.file, cause.side) != (location.file, location.side) or not (
        location.first <= cause.first <= location.last
    )


def _dropped_finding(finding: Finding, reason: DroppedReason, detail: str = "") -> DroppedFinding:
    return DroppedFinding(
        reason=reason,
        by=", ".join(finding.by),
        severity=finding.severity,
        file=finding.file,
        line=finding.first_line,
        quotation=finding.quotation,
        claim=finding.claim,
        category=finding.category,
        title=finding.title,
        detail=detail,
        fingerprint=finding.fingerprint,
        identities=finding.identities,
        also_quoted=finding.also_quoted,
        disputed=finding.status == "disputed",
    )


# --- duplicates


def _merge_duplicates(findings: Sequence[Finding]) -> list[Finding]:
    """Merge findings with the same words and claim or the same fix, and what different calls found with one category in quotations
    that begin on one line of a file.

    Two findings of one call with one category are two defects, so the findings on their line stay as they are. Everything less
    certain is left to the lead: to merge two defects loses one, and nobody would miss it.
    """
    merged_findings = _joined(findings, _words, same_defect=True)
    merged_findings = _joined(merged_findings, _fixed, same_defect=True)
    return _joined(merged_findings, _subject, same_defect=False)


def _joined(
    findings: Sequence[Finding], key: Callable[[Finding], Hashable | None], *, same_defect: bool
) -> list[Finding]:
    """Merge the findings with the same key; without `same_defect` only those of calls of which no other has the key too."""
    alike: dict[Hashable, list[Finding]] = {}
    for n, finding in enumerate(findings):
        alike.setdefault(n if (shared := key(finding)) is None else shared, []).append(finding)
    joined: list[Finding] = []
    for group in alike.values():
        refs = [ref for finding in group for ref in finding.refs]
        is_one = same_defect or len(set(refs)) == len(refs)
        ordered = sorted(group, key=lambda f: (_severity(f), *_place(f)))
        joined += [_combined(ordered, same_defect=same_defect)] if is_one else group
    return joined


def _words(finding: Finding) -> Hashable:
    return finding.file, finding.side, same_form(finding.quotation), same_form(finding.claim)


def _fixed(finding: Finding) -> Hashable | None:
    """Return what the fix does to which lines; None without one."""
    return (finding.file, parse_patch(finding.fix).edits) if finding.fix else None


def _subject(finding: Finding) -> Hashable:
    """Return where it begins and what it is about; without a category of its own, in its author's words."""
    return (finding.file, finding.side, finding.first_line, *_topic(finding))


def _topic(finding: Finding) -> tuple[str, str]:
    return finding.category, finding.title.casefold() if finding.category == OTHER else ""


def _combined(findings: Sequence[Finding], *, same_defect: bool = False) -> Finding:
    """Return one finding for several: the worst or, with `same_defect`, the first, made as severe as the worst; with the authors,
    claims, judgements and calls of all.

    It counts as found apart if two of them without an author in common have the same category, or with `same_defect`.
    """
    first, *rest = findings if same_defect else sorted(findings, key=lambda f: (_severity(f), *_place(f)))
    if not rest:
        return first
    authors = tuple(sorted({author for finding in findings for author in finding.by}))
    by_agent: dict[str, JudgedBy] = {}
    for finding in (first, *rest):
        for judgement in finding.judgements:
            if judgement.agent in authors and judgement.verdict in ("confirm", "unsure"):
                continue  # it found the other half itself
            if judgement.agent not in by_agent or judgement.verdict == "refute":
                by_agent[judgement.agent] = judgement
    is_found_apart = any(finding.found_apart for finding in findings) or any(
        set(first_finding.by).isdisjoint(other.by) and (same_defect or _topic(first_finding) == _topic(other))
        for n, first_finding in enumerate(findings)
        for other in findings[n + 1 :]
    )
    whole = first.model_copy(
        update={
            "by": authors,
            "severity": min((finding.severity for finding in findings), key=SEVERITIES.index),
            "title": first.title or next((finding.title for finding in rest if finding.title), ""),
            "changed": any(finding.changed for finding in findings),
            "cause": first.cause or next((finding.cause for finding in rest if finding.cause), None),
            "rule": first.rule or next((finding.rule for finding in rest if finding.rule), None),
            "fix": first.fix or next((finding.fix for finding in rest if _lines(finding) == _lines(first)), ""),
            "also_quoted": tuple(
                dict.fromkeys(
                    words for f in findings for words in (f.quotation, *f.also_quoted) if words != first.quotation
                )
            ),
            "identities": tuple(dict.fromkeys(identity for f in findings for identity in f.identities)),
            "duplicates": (*first.duplicates, *(claim for f in rest for claim in (f.claim, *f.duplicates))),
            "refs": tuple(dict.fromkeys([*first.refs, *sorted(ref for finding in rest for ref in finding.refs)])),
        }
    )
    return _with_judgements(whole, tuple(by_agent.values()), found_apart=is_found_apart)


def _with_judgements(finding: Finding, judgements: tuple[JudgedBy, ...], *, found_apart: bool) -> Finding:
    verdicts = {judgement.verdict for judgement in judgements if judgement.agent not in finding.by}
    status: FindingStatus = "unjudged"
    if "refute" in {judgement.verdict for judgement in judgements}:
        status = "disputed"
    elif found_apart or verdicts & {"confirm", "amend"}:
        status = "confirmed"
    return finding.model_copy(update={"judgements": judgements, "status": status, "found_apart": found_apart})


# --- order


def _numbered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding.model_copy(update={"id": f"F{n}"}) for n, finding in enumerate(findings, 1))


def _severity(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def _lines(finding: Finding) -> tuple[int, int]:
    return finding.first_line, finding.last_line


def _place(finding: Finding) -> tuple[object, ...]:
    """Sorts by lines first; findings that are equal in it are equal."""
    return (
        *_lines(finding),
        _severity(finding),
        finding.category,
        finding.claim,
        finding.by,
        finding.quotation,
        finding.refs,
    )
