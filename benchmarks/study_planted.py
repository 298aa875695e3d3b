"""Planted defects: the key of a project, and how findings are matched to it.

A finding is matched by place and by words. It lies in the file and in the lines of a place of the key; for prose
(`by = "words"`), whose lines hold several sentences, it also shares words with it. And it contains one of the
stems of the key. A finding at such a place that says something else is counted apart. One that matches nothing is
`other`: it may be true, so a person judges it. Only a finding about a decoy is counted as false.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from consilience.domain.messages import Source
from consilience.domain.outcome import Severity
from consilience.engine.sources import same_form

ROOT = Path(__file__).parents[1]
MAX_LINES = 15
"""A finding of more lines points at nothing, and matches nothing."""
MIN_SHARED_WORDS = 4
"""Words in a row that a quotation from prose shares with a place, or all words of the shorter one."""


class Place(BaseModel):
    """Words of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    words: str
    """Exact, and once in the file."""


class Planted(BaseModel):
    """A defect of the key, or a decoy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    what: str
    kind: str = "decoy"
    severity: Severity = "minor"
    places: tuple[Place, ...] = Field(min_length=1)
    """The first is the fault; a finding at another one counts as the same."""
    says: tuple[str, ...] = ()
    """Lower-case stems, one of which a finding must contain. Empty: any finding at the place counts."""
    together: tuple[str, ...] = ()
    """Files that show the defect only together."""


class Key(BaseModel):
    """What is wrong in a project."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str
    files: tuple[str, ...]
    task: str
    """What reviewers are asked."""
    review_type: str
    by: Literal["lines", "words"]
    defects: tuple[Planted, ...]
    decoys: tuple[Planted, ...]

    def text(self, file: str) -> str:
        return (ROOT / self.project / file).read_text(encoding="utf-8")

    def sources(self) -> tuple[Source, ...]:
        """Return the files of the project, named as in the key, so that no name betrays what they are for."""
        return tuple(Source(name=file, text=self.text(file)) for file in self.files)

    def lines(self, place: Place) -> tuple[int, int]:
        """Return the first and last line of a place. Raises `ValueError` unless its words occur exactly once."""
        text = self.text(place.file)
        if text.count(place.words) != 1:
            raise ValueError(f"{place.file}: {text.count(place.words)} times, expected once: {place.words!r}")
        first = text[: text.index(place.words)].count("\n") + 1
        return first, first + place.words.count("\n")


def load_key(path: Path) -> Key:
    return Key.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


class Found(BaseModel):
    """A finding of a report, as far as it is scored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = ""
    severity: Severity = "minor"
    category: str = ""
    file: str
    first_line: int
    last_line: int
    quotation: str = ""
    claim: str = ""
    consequence: str = ""
    recommendation: str = ""

    def says(self, stem: str) -> bool:
        """Return whether a word of the finding begins with the stem, perhaps after a prefix such as `un`."""
        text = " ".join((self.category, self.claim, self.consequence, self.recommendation)).lower()
        begins = r"(?<!\w)(?:un|non-?|re)?" if stem[0].isalnum() else ""
        return re.search(begins + re.escape(stem), text) is not None


@dataclass(frozen=True)
class Score:
    """What a list of findings recovered of a key."""

    findings: int
    found: dict[str, Found]
    """By id of the defect, the first finding that matched it."""
    duplicates: list[tuple[str, Found]] = field(default_factory=list)
    """Further findings on a defect that was found already."""
    decoys: list[tuple[str, Found]] = field(default_factory=list)
    """Findings about a decoy: these are false."""
    elsewhere: list[tuple[str, Found]] = field(default_factory=list)
    """Findings at the place of a defect or decoy that say something else. A person judges them."""
    other: list[Found] = field(default_factory=list)
    """Findings that match nothing. A person judges them."""

    def of(self, planted: Iterable[Planted]) -> int:
        """Return how many of these were found."""
        return sum(defect.id in self.found for defect in planted)


def score(key: Key, findings: Sequence[Found]) -> Score:
    """Match findings with a key, in their order."""
    result = Score(len(findings), {})
    for finding in findings:
        match = _best(key, finding)
        if match is None:
            result.other.append(finding)
            continue
        planted, says = match
        if not says:
            result.elsewhere.append((planted.id, finding))
        elif planted in key.decoys:
            result.decoys.append((planted.id, finding))
        elif planted.id in result.found:
            result.duplicates.append((planted.id, finding))
        else:
            result.found[planted.id] = finding
    return result


def _best(key: Key, finding: Found) -> tuple[Planted, bool] | None:
    """Return what a finding is about and whether it says so: the closest place whose stems it contains, else the closest place."""
    best: tuple[tuple[bool, float], Planted] | None = None
    for planted in (*key.defects, *key.decoys):
        overlap = max(_overlap(key, place, finding) for place in planted.places)
        if overlap > 0:
            says = not planted.says or any(map(finding.says, planted.says))
            if best is None or (says, overlap) > best[0]:
                best = (says, overlap), planted
    return (best[1], best[0][0]) if best else None


def _overlap(key: Key, place: Place, finding: Found) -> float:
    """Return how well a finding meets a place, 0 to 2: shared lines, then shared words."""
    if finding.file.removeprefix("./").removeprefix(key.project + "/") != place.file:
        return 0.0
    first, last = key.lines(place)
    shared = min(last, finding.last_line) - max(first, finding.first_line) + 1
    if shared < 1 or finding.last_line - finding.first_line >= MAX_LINES:
        return 0.0
    lines = shared / (max(last, finding.last_line) - min(first, finding.first_line) + 1)
    words = _shared_words(place.words, finding.quotation)
    return 0.0 if key.by == "words" and not words else lines + words


def _shared_words(place: str, quotation: str) -> float:
    """Return the longest run of words in common as a share of the shorter text; 0 if it is shorter than `MIN_SHARED_WORDS`."""
    first, other = (same_form(text).split() for text in (place, quotation))
    if not first or not other:
        return 0.0
    rows, longest = [0] * (len(other) + 1), 0
    for word in first:
        rows = [0, *(before + 1 if word == theirs else 0 for before, theirs in zip(rows, other, strict=False))]
        longest = max(longest, *rows)
    shorter = min(len(first), len(other))
    return longest / shorter if longest >= min(MIN_SHARED_WORDS, shorter) else 0.0
