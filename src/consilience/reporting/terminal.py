"""Markdown on a terminal. What is no terminal gets the Markdown as it is, which pipes and files can use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

_WIDEST = 110


def show(markdown: str, stream: TextIO | None = None) -> None:
    """Print to standard output or `stream`, rendered where that is a terminal."""
    stream = stream or sys.stdout
    if stream.isatty():
        _render(markdown, stream)
    else:
        stream.write(markdown)
        stream.flush()


def _render(text: str, stream: TextIO) -> None:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Heading, Markdown, MarkdownElement

    class LeftHeading(Heading):
        """Headings where reading starts; the library centres them."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            yield self.text

    class ReportMarkdown(Markdown):
        elements: Mapping[str, type[MarkdownElement]] = {**Markdown.elements, "heading_open": LeftHeading}  # type: ignore[assignment]

    console = Console(file=stream, highlight=False)
    console.print(ReportMarkdown(text, hyperlinks=False), width=min(console.width, _WIDEST))
