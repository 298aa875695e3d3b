"""Known findings, which a review does not report again: those of a baseline and those of earlier reviews of the same change."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, ValidationError

from consilience.domain.errors import SettingsError
from consilience.domain.events import text_id
from consilience.domain.findings import DroppedFinding, Finding, Identity, KnownFinding, KnownStatus, as_known
from consilience.engine.sources import same_form

BASELINE_VERSION = 2
NOT_RENAMED: Mapping[str, str] = {}
DIGEST_CHARS = 16


class _BaselineFile(BaseModel):
    model_config = ConfigDict(extra="ignore")

    findings: tuple[KnownFinding, ...]


@dataclass(frozen=True)
class Baseline:
    """Known findings."""

    known: tuple[KnownFinding, ...] = ()

    def match(self, finding: Finding, lines: Mapping[int, str], old_path: str = "") -> KnownFinding | None:
        """Return the entry for a finding: of the same lines and the same cause; or of the same category, and of lines that share
        one with those of the finding. None if the quoted lines were changed; an older defect is no entry for one of the change.

        `lines` are the known lines of that side of the file, `old_path` is what it was called before the change.
        """
        files = (finding.file, old_path)
        is_caused = finding.changed or finding.cause is not None
        for entry in self.known:
            if entry.status == "gone" or (entry.status == "older" and is_caused):
                continue
            if any(_is_known(entry, own, finding, lines, files) for own in entry.identities):
                return entry
        return None


def _is_known(
    entry: KnownFinding, identity: Identity, finding: Finding, lines: Mapping[int, str], files: Collection[str]
) -> bool:
    if identity.file not in files or identity.side != finding.side:
        return False
    place = find_again(identity, lines)
    if identity.category == finding.category:
        return place is not None and place[0] <= finding.last_line and finding.first_line <= place[1]
    cause = finding.cause.identity if finding.cause else None
    return place == (finding.first_line, finding.last_line) and _digest_of(cause) == _digest_of(entry.cause)


def _digest_of(identity: Identity | None) -> str:
    return identity.digest if identity else ""


def parse_baseline(text: str) -> Baseline:
    """Return the baseline in `text`; the empty one for "". Raises `SettingsError` if it is not in the form of `baseline_of`."""
    if not text.strip():
        return Baseline()
    advice = "Give a file that a review wrote: baseline.json, or the file of --write-baseline."
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the baseline is not JSON: {error}", where="baseline", do=advice) from None
    version = data.get("version") if isinstance(data, dict) else None
    if version != BASELINE_VERSION:
        raise SettingsError(
            f"the baseline has version {version!r:.40}, expected {BASELINE_VERSION}", where="baseline", do=advice
        )
    try:
        return Baseline(_BaselineFile.model_validate(data).findings)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise SettingsError(f"the baseline cannot be read: {reason}", where="baseline", do=advice) from None


def baseline_of(findings: Iterable[Finding | DroppedFinding | KnownFinding]) -> str:
    """Return a baseline with these findings as JSON, sorted by file and quotation. Those without an identity are left out."""
    entries = {finding.identities: _accepted(finding) for finding in findings if finding.identities}
    ordered = sorted(
        entries.values(), key=lambda entry: (entry.file, entry.quotation, entry.claim, entry.identities[0].line)
    )
    data = {"version": BASELINE_VERSION, "findings": [entry.model_dump(exclude_defaults=True) for entry in ordered]}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _accepted(finding: Finding | DroppedFinding | KnownFinding) -> KnownFinding:
    known = finding if isinstance(finding, KnownFinding) else as_known(finding)
    return known.model_copy(update={"status": "accepted", "thread": "", "url": "", "fingerprint": "", "commit": ""})


def with_status(
    known: KnownFinding, text_of: Callable[[str], str | None], renamed: Mapping[str, str] = NOT_RENAMED
) -> KnownFinding:
    """Return a known finding as it stands in the files of which `text_of` returns the text, None for none; `renamed` has their
    names by those at its commit.

    It is gone, whatever it was, if its quoted lines, or those that cause it, are no longer as they were; for
    removed lines, if they are back.
    """
    if known.status in ("accepted", "gone"):
        return known
    own, *others = (_in_file(identity, renamed) for identity in known.identities)
    cause = _in_file(known.cause, renamed) if known.cause else None
    status: KnownStatus = known.status
    for identity in filter(None, (own, cause)):
        lines = dict(enumerate((text_of(identity.file) or "").split("\n"), 1))
        places = len(_places(identity.digest, identity.lines, lines))
        if places > identity.kept if identity.side == "old" else not places:
            status = "gone"
        elif identity is own and own.side == "new" and (place := find_again(own, lines)):
            own = own.model_copy(update={"line": place[0]})
    return known.model_copy(update={"status": status, "identities": (own, *others), "cause": cause})


def _in_file(identity: Identity, renamed: Mapping[str, str]) -> Identity:
    return identity.model_copy(update={"file": renamed.get(identity.file, identity.file)})


# --- the identity of lines


def identity(
    file: str, category: str, side: str, first: int, last: int, lines: Mapping[int, str], new_lines: Mapping[int, str]
) -> Identity | None:
    """Return the identity of the lines `first` to `last` of a file, of which `lines` are known; None if one of them is not.

    `new_lines` are those of the new file: the same, unless the lines are removed ones.
    """
    if any(number not in lines for number in range(first, last + 1)):
        return None
    count, digest = last - first + 1, _digest(lines[number] for number in range(first, last + 1))
    return Identity(
        file=file,
        category=category,
        side="old" if side == "old" else "new",
        line=first,
        lines=count,
        digest=digest,
        before=_around(lines, first - 1),
        after=_around(lines, last + 1),
        kept=len(_places(digest, count, new_lines)) if side == "old" else 0,
    )


def find_again(identity: Identity, lines: Mapping[int, str]) -> tuple[int, int] | None:
    """Return where the lines of an identity are among the known lines of a file; None if they are not there as they were.

    Of several places the one with the same lines around it counts, then the nearest to where it was.
    """

    def likeness(first: int) -> tuple[int, int]:
        same = (_around(lines, first - 1) == identity.before) + (
            _around(lines, first + identity.lines) == identity.after
        )
        return same, -abs(first - identity.line)

    best = max(_places(identity.digest, identity.lines, lines), key=likeness, default=None)
    return None if best is None else (best, best + identity.lines - 1)


def _places(digest: str, count: int, lines: Mapping[int, str]) -> list[int]:
    """Return the first line of each place with these lines."""
    return [
        first
        for first in lines
        if first + count - 1 in lines and _digest(lines.get(first + n, "") for n in range(count)) == digest
    ]


def _around(lines: Mapping[int, str], number: int) -> str:
    return _digest([lines[number]]) if number in lines else ""


def _digest(lines: Iterable[str]) -> str:
    return _line_digest("\n".join(lines))


@lru_cache(maxsize=50_000)
def _line_digest(text: str) -> str:
    return text_id("\n".join(map(same_form, text.split("\n"))))[:DIGEST_CHARS]


def fingerprint(file: str, line: str) -> str:
    """Return an id of a finding for alerts, which stays when lines move, and when another run quotes more or less of the line: of
    the file and the text of the first quoted line in normal form."""
    return text_id(f"{file}\n{same_form(line)}")
