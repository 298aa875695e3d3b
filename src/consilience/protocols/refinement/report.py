"""The report of `refinement`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from consilience.domain.report import UnfinishedSession
from consilience.domain.sections import (
    Presentation,
    extend_presentation,
)
from consilience.protocols.refinement.progress import extend_progress
from consilience.protocols.refinement.report_data import (
    ENDINGS,
    RefinementData,
    figures,
    sections,
)
from consilience.protocols.refinement.views import views


class RefinementReport(RefinementData):
    """The report of `refinement`, which shows itself."""

    labels: ClassVar[Mapping[str, str]] = {
        "intent": "plan",
        "draft": "draft",
        "specialist": "work of the specialists",
        "revise": "revision",
        "integrate": "integration",
    }
    glossary: ClassVar[Mapping[str, str]] = {
        "pass": "one complete round: drafts, revisions, integration, critique",
        "section": "a part of the text with an author of its own",
        "critic": "the agent that judges each pass and names what is still wrong",
    }
    for_people: ClassVar[Mapping[str, str]] = {
        "": 'Several people write one text together. "intent" is what its coordinator asks for.',
    }

    def presentation(self) -> Presentation:
        return extend_presentation(
            super().presentation(),
            ending=ENDINGS.get(self.stop_reason, ""),
            sections=sections(self),
            figures=tuple(figures(self)),
            views=views(self),
        )

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        return extend_progress(super().progress(progress), progress)
