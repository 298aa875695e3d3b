"""What a report says of passes over one text, read by name from its JSON, so that no code of the protocol is needed.

What is missing or is not what its name promises is left out, as it may be in a report of another version.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Data = Mapping[str, object]

SCORES = ("overall", "coherence", "accuracy", "depth")

MEASURED: Mapping[str, str] = {"length": "length", "self": "declared"}
"""What quality is the mean of where that is not the critic's overall scores, in a word, by kind. The critic's own are shown
beside it and never in its place."""


@dataclass(frozen=True)
class Part:
    """One part at the end of a pass: `written` in it or kept, `change` the share of its sentences that are others than before,
    `scores` by name and `issues` the critic's, `confidence` of the kind that quality is, `declared` its author's in words."""

    name: str
    confidence: float | None = None
    declared: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    issues: tuple[str, ...] = ()
    written: bool = True
    change: float | None = None

    @property
    def overall(self) -> float | None:
        """The critic's."""
        return self.scores.get("overall")


@dataclass(frozen=True)
class Pass:
    """`diff` is a unified diff, a sentence a line, of the whole text to that of the pass before."""

    index: int
    parts: tuple[Part, ...] = ()
    quality: float | None = None
    met: bool = False
    change: float | None = None
    diff: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Handed:
    """Of a text that went from parent to child, `kept` of its `sentences` were shown."""

    step: int
    parent: str
    child: str
    what: str
    sentences: int
    kept: int
    distance: float | None = None
    strength: float | None = None


@dataclass(frozen=True)
class Revision:
    """What the critic said of a part after pass `step`, and the sentences that went from it and came to it in the next."""

    step: int
    role: str
    issues: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class Passes:
    """`best` is the pass whose text is the answer; `needed` the quality asked for, `kind` what quality is."""

    all: tuple[Pass, ...]
    best: int | None
    needed: float | None
    kind: str

    def part(self, index: int, name: str) -> Part | None:
        """As it was at the end of a pass."""
        return next((part for one in self.all if one.index == index for part in one.parts if part.name == name), None)


def passes_of(data: Data) -> Passes:
    """`data` is the JSON of a whole report."""
    settings = data.get("settings")
    set_to = settings if isinstance(settings, Mapping) else {}
    found = {one.index: one for one in (_pass(item) for item in _tables(data.get("passes"))) if one is not None}
    best = number(data.get("best_pass"))
    return Passes(
        all=tuple(found[index] for index in sorted(found)),
        best=int(best) if best is not None and int(best) in found else None,
        needed=number(set_to.get("threshold")),
        kind=_words(set_to.get("confidence")),
    )


def judged(one: Pass) -> bool:
    """Whether anybody said how good it is."""
    return one.quality is not None or any(part.scores or part.issues for part in one.parts)


def handed_of(data: Data) -> tuple[Handed, ...]:
    return tuple(filter(None, map(_handed, _tables(data.get("handed_down")))))


def weights_of(data: Data) -> dict[str, dict[str, float]]:
    """Of each child's text, by parent, in the pass whose text is the answer."""
    found = data.get("aggregated_children")
    tables = found.items() if isinstance(found, Mapping) else ()
    return {str(parent): numbers(one.get("weights")) for parent, one in tables if isinstance(one, Mapping)}


def distances_of(data: Data) -> dict[str, dict[str, float]]:
    """By role and role; empty where nothing was measured."""
    found = data.get("distances")
    rows = {str(role): numbers(row) for role, row in found.items()} if isinstance(found, Mapping) else {}
    return {role: row for role, row in rows.items() if row}


def revisions_of(data: Data) -> tuple[Revision, ...]:
    return tuple(filter(None, map(_revision, _tables(data.get("revisions")))))


def number(value: object) -> float | None:
    """A figure that can be shown, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def numbers(value: object) -> dict[str, float]:
    """Figures by name."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {str(name): one for name, given in items if (one := number(given)) is not None}


def _pass(given: Data) -> Pass | None:
    index = number(given.get("index"))
    if index is None:
        return None
    sections = given.get("sections")
    parts = sections.items() if isinstance(sections, Mapping) else ()
    return Pass(
        index=int(index),
        parts=tuple(_part(str(name), one) for name, one in parts if isinstance(one, Mapping)),
        quality=number(given.get("quality")),
        met=given.get("met") is True,
        change=number(given.get("change")),
        diff=_words(given.get("diff")),
        whole=isinstance(given.get("document"), str),
    )


def _part(name: str, given: Data) -> Part:
    return Part(
        name=name,
        confidence=number(given.get("confidence")),
        declared=_words(given.get("declared")),
        scores={name: score for name, score in numbers(given.get("scores")).items() if name in SCORES},
        issues=_texts(given.get("issues")),
        written=given.get("written") is not False,
        change=number(given.get("change")),
    )


def _handed(given: Data) -> Handed | None:
    figures = [number(given.get(name)) for name in ("step", "sentences", "kept")]
    step, sentences, kept = figures
    parent, child = given.get("parent"), given.get("child")
    if step is None or sentences is None or kept is None or not isinstance(parent, str) or not isinstance(child, str):
        return None
    return Handed(
        step=int(step),
        parent=parent,
        child=child,
        what=_words(given.get("what")) or "text",
        sentences=int(sentences),
        kept=int(kept),
        distance=number(given.get("distance")),
        strength=number(given.get("strength")),
    )


def _revision(given: Data) -> Revision | None:
    step, role = number(given.get("step")), given.get("role")
    if step is None or not isinstance(role, str):
        return None
    return Revision(
        step=int(step),
        role=role,
        issues=_texts(given.get("issues")),
        removed=_texts(given.get("removed")),
        added=_texts(given.get("added")),
        before=number(given.get("before")),
        after=number(given.get("after")),
    )


def _tables(value: object) -> Iterator[Data]:
    if isinstance(value, list | tuple):
        yield from (one for one in value if isinstance(one, Mapping))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else ()


def _words(value: object) -> str:
    return value if isinstance(value, str) else ""
