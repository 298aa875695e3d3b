"""The report of `refinement`."""

from __future__ import annotations

from typing import ClassVar, Literal

from consilience.domain.events import LongText
from consilience.domain.report import Frozen, Report, UnfinishedSession
from consilience.domain.sections import Presentation

What = Literal["intent", "text", "draft", "before", "part"]
"""What is handed down."""


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
    """One pass, or the draft as pass 0.

    `quality` is the mean confidence of the parts, None if one is missing; `whole` and `whole_issues` are the critic's of the whole
    text; `met`: both marks reached the threshold. It started from the pass `base`, 0 for none. `unchanged`: it changed no text, so
    it was neither integrated nor judged.

    `document` is None where the pass was cut off before the parts were put together; protected parts of the draft stand in it.
    `diff` compares it, sentence by sentence and a protected block as one, with the document of the pass that it started from (in
    the first pass with the draft), as a unified diff.
    """

    index: int
    sections: dict[str, Section] = {}
    document: str | None = None
    quality: float | None = None
    whole: Scores | None = None
    whole_issues: tuple[str, ...] = ()
    met: bool = False
    base: int = 0
    unchanged: bool = False
    change: float | None = None
    diff: str = ""


class JudgedPass(Frozen):
    """A note: what the critic said of a pass (0 for the draft), each mark from 0 to 1. `scores` and `issues` are by part; those of
    the whole text are under `whole`."""

    index: int
    quality: float | None = None
    met: bool = False
    scores: dict[str, float | None] = {}
    issues: dict[str, tuple[LongText, ...]] = {}


class HandedDownText(Frozen):
    """A text handed down from parent to child: the draft of an author or its version `before`, the coordinator's intent, the
    whole `text` of the last pass, or another `part`, whose author is `parent`. `distance` is None where it was not to be cut;
    `kept` of its sentences were shown."""

    step: int
    parent: str
    child: str
    what: What
    distance: float | None = None
    strength: float
    sentences: int
    kept: int

    @property
    def share(self) -> float:
        """Of the sentences, those shown."""
        return self.kept / self.sentences if self.sentences else 1.0


class Contribution(Frozen):
    """What a parent had of a child at the end of pass `step`: `declared` is its author's confidence, `weight` its share of all that
    came to that parent (c/Σc), `new` whether it is of this pass."""

    step: int
    parent: str
    child: str
    declared: str | None = None
    weight: float | None = None
    new: bool = True


class Aggregate(Frozen):
    """What came up to a parent from its children: each one's weight c/Σc by its declared confidence c, the weighted mean
    Σc²/Σc, and the greatest c."""

    weights: dict[str, float]
    weighted_confidence: float
    best_individual: float
    combined_content: str
    sources: tuple[str, ...]


class Revision(Frozen):
    """What the critic said of a part (or of the `whole`) after pass `step`, and the result in the pass `into`, which started from
    it: the sentences that its text lost and won. `before` and `after` are its confidence, of the kind that the settings name; the
    critic's scores stand in the sections. `written`: it is another text than before. `discarded`: the answer does not rest on
    that pass."""

    step: int
    role: str
    issues: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    before: float | None = None
    after: float | None = None
    into: int = 0
    written: bool = True
    discarded: bool = False


class RefinementReport(Report):
    """`best_pass` is the one whose document is the answer, 0 if that is the draft. `quality_threshold_met`: the best pass reached
    the threshold; `revision_requested`: a critique was handed back. `coordinator_critique` is what was said last of each part.
    """

    step: ClassVar[str] = "pass"
    asides: ClassVar[frozenset[str]] = frozenset({"judgement"})
    undigested: ClassVar[frozenset[str]] = frozenset({"contributions"})

    protocol: str = "refinement"
    passes: tuple[Pass, ...] = ()
    best_pass: int | None = None
    coordinator_intent: str | None = None
    coordinator_critique: dict[str, str] = {}
    revision_requested: bool = False
    quality_threshold_met: bool = False
    aggregated_children: dict[str, Aggregate] = {}
    distances: dict[str, dict[str, float]] = {}
    handed_down: tuple[HandedDownText, ...] = ()
    revisions: tuple[Revision, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    """Empty in reports of earlier versions."""

    def presentation(self) -> Presentation:
        from consilience.protocols.refinement import presenting, views

        most = self.settings.get("max_passes")
        return (
            super()
            .presentation()
            .model_copy(
                update={
                    "max_steps": most if isinstance(most, int) else None,
                    "ending": presenting.ENDINGS.get(self.stop_reason, ""),
                    "sections": presenting.sections(self),
                    "figures": tuple(presenting.figures(self)),
                    "views": views.views(self),
                }
            )
        )

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        from consilience.protocols.refinement import views

        return super().progress(progress).model_copy(update={"views": views.views_so_far(progress)})

    def document(self) -> str:
        """The text itself, as a file of its own; empty where there is none."""
        return f"{self.answer.rstrip()}\n" if self.answer else ""
