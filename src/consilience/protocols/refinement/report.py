"""The report of `refinement`."""

from __future__ import annotations

from typing import Literal

from consilience.domain.report import Frozen, Report


class Scores(Frozen):
    """What the critic gave a part, each in [0, 1]."""

    coherence: float
    accuracy: float
    depth: float
    overall: float


class Section(Frozen):
    """One part at the end of a pass. `confidence` is of the kind that the settings name, None where there is none;
    `declared` is its author's own, in words; `scores` and `issues` are the critic's. `written` in this pass, or kept from
    an earlier one; `change` is the share of its sentences that differ from those of the pass before."""

    text: str
    confidence: float | None = None
    declared: str | None = None
    scores: Scores | None = None
    issues: tuple[str, ...] = ()
    written: bool = True
    change: float | None = None


class Pass(Frozen):
    """One pass. `quality` is the mean confidence of the parts, None where one is missing; `met` whether it reached the threshold.

    `document` is None where the pass was cut off before the parts were put together; protected parts of the draft stand in it.
    `diff` compares it, sentence by sentence and a protected block as one, with the document of the pass before (in the first
    pass with the draft), as a unified diff.
    """

    index: int
    sections: dict[str, Section] = {}
    document: str | None = None
    quality: float | None = None
    met: bool = False
    change: float | None = None
    diff: str = ""


class Handed(Frozen):
    """A text handed down from parent to child: the draft of an author or its version `before`, the coordinator's intent or the
    whole `text` of the last pass. `distance` is None where nothing is filtered; `kept` of its sentences were shown."""

    step: int
    parent: str
    child: str
    what: Literal["intent", "text", "draft", "before"]
    distance: float | None = None
    strength: float
    sentences: int
    kept: int

    @property
    def share(self) -> float:
        """Of the sentences, those shown."""
        return self.kept / self.sentences if self.sentences else 1.0


class Aggregate(Frozen):
    """What came up to a parent from its children: each one's weight c/Σc by its declared confidence c, the weighted mean
    Σc²/Σc, and the greatest c."""

    weights: dict[str, float]
    weighted_confidence: float
    best_individual: float
    combined_content: str
    sources: tuple[str, ...]


class Revision(Frozen):
    """What the critic said of a part after pass `step`, and what its text lost and won in the pass after it. `before` and
    `after` are its confidence, of the kind that the settings name; the critic's scores stand in the sections."""

    step: int
    role: str
    issues: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    before: float | None = None
    after: float | None = None


class RefinementReport(Report):
    """`best_pass` is the one whose document is the answer. `quality_threshold_met`: it reached the threshold;
    `revision_requested`: a critique was handed back. `coordinator_critique` is what was said last of each part."""

    protocol: Literal["refinement"] = "refinement"
    passes: tuple[Pass, ...] = ()
    best_pass: int | None = None
    coordinator_intent: str | None = None
    coordinator_critique: dict[str, str] = {}
    revision_requested: bool = False
    quality_threshold_met: bool = False
    aggregated_children: dict[str, Aggregate] = {}
    distances: dict[str, dict[str, float]] = {}
    handed_down: tuple[Handed, ...] = ()
    revisions: tuple[Revision, ...] = ()

    def document(self) -> str:
        """The text itself, as a file of its own; empty where there is none."""
        return f"{self.answer.rstrip()}\n" if self.answer else ""
