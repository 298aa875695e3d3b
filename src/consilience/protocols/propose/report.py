"""The report of `propose`."""

from __future__ import annotations

from consilience.domain.panels import Panel
from consilience.domain.report import Report


class ProposeReport(Report):
    """The report of `propose`. Its `answer` is the panel as text."""

    protocol: str = "propose"
    panel: Panel | None = None
    """None without two usable personas."""
