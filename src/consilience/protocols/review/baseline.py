"""A baseline: known findings that a review does not report again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from consilience.domain.errors import SettingsError
from consilience.domain.events import text_id
from consilience.domain.findings import DroppedFinding, Finding
from consilience.engine.sources import same_form

BASELINE_VERSION = 1
MIN_SHARED_CHARS = 12
"""Characters in normal form that two quotations share at least, if they overlap and are not equal."""


class KnownFinding(BaseModel):
    """An entry of a baseline. Further fields are for readers."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    file: str
    quotation: str = ""
    fingerprint: str = ""


@dataclass(frozen=True)
class Baseline:
    """Known findings."""

    known: tuple[KnownFinding, ...] = ()

    def match(self, file: str, quotation: str, print_of_finding: str) -> KnownFinding | None:
        """Return the entry for a finding in `file` whose quotation overlaps with its own; of an entry without a quotation the
        fingerprint counts. Another defect in the same line is not known."""
        for entry in self.known:
            if entry.file != file:
                continue
            if overlap(entry.quotation, quotation) if entry.quotation else entry.fingerprint == print_of_finding:
                return entry
        return None


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
        return Baseline(tuple(map(KnownFinding.model_validate, data["findings"])))
    except (KeyError, TypeError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it has no list of findings"
        raise SettingsError(f"the baseline cannot be read: {reason}", where="baseline", do=advice) from None


def baseline_of(findings: Iterable[Finding | DroppedFinding]) -> str:
    """Return a baseline with these findings as JSON, sorted by file and quotation. Those without a fingerprint are left out.

    A finding that several were merged into has an entry for each quotation by which a later run would not know it otherwise.
    """
    entries = {
        (finding.file, same_form(words)): {
            "file": finding.file,
            "quotation": words,
            "claim": finding.claim,
            "severity": finding.severity,
            "category": finding.category,
            "fingerprint": known,
        }
        for finding in findings
        if finding.fingerprint
        for words, known in [
            (finding.quotation, finding.fingerprint),
            *((w, "") for w in finding.also_quoted if not overlap(w, finding.quotation)),
        ]
    }
    ordered = sorted(entries.values(), key=lambda entry: (entry["file"], entry["quotation"], entry["claim"]))
    return json.dumps({"version": BASELINE_VERSION, "findings": ordered}, indent=2, ensure_ascii=False) + "\n"


def fingerprint(file: str, line: str) -> str:
    """Return an id of a finding that stays when lines move, and when another run quotes more or less of the line: of the file and
    the text of the first quoted line in normal form."""
    return text_id(f"{file}\n{same_form(line)}")


def overlap(first: str, second: str) -> bool:
    """Return whether two quotations in normal form are equal, or share `MIN_SHARED_CHARS`: one holds the other, or one begins with
    the end of the other."""
    first_form, other = same_form(first), same_form(second)
    if not first_form or not other:
        return False
    return first_form == other or _continues(first_form, other) or _continues(other, first_form)


def _continues(text: str, other: str) -> bool:
    """Return whether `text` holds `other`, or ends with its beginning, in at least `MIN_SHARED_CHARS` characters."""
    start = other[:MIN_SHARED_CHARS]
    at = text.find(start) if len(start) == MIN_SHARED_CHARS else -1
    while at >= 0:
        if other.startswith(text[at : at + len(other)]):
            return True
        at = text.find(start, at + 1)
    return False
