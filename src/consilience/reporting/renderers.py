"""Registers what `Report.markdown` and the like call, also in notebooks. The renderers themselves are imported on first use."""

from __future__ import annotations

from pathlib import Path

from consilience.domain.report import Report, ReportRenderers, register_renderers


def _markdown(report: Report) -> str:
    from consilience.reporting.markdown import markdown

    return markdown(report)


def _html(report: Report) -> str:
    from consilience.reporting.html import report_page

    return report_page(report)


def _fragment(report: Report) -> str:
    from consilience.reporting.html import fragment

    return fragment(report)


def _save(report: Report, directory: Path) -> list[Path]:
    from consilience.reporting.export import save_report

    return save_report(report, directory)


register_renderers(ReportRenderers(markdown=_markdown, html=_html, fragment=_fragment, save=_save))
