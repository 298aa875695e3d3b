"""The report of `propose`."""

from __future__ import annotations

from consilience.domain.panels import Panel
from consilience.domain.report import Report


class ProposeReport(Report):
    """`panel` is None where no two usable personas came; `answer` is the same in words."""

    protocol: str = "propose"
    panel: Panel | None = None
