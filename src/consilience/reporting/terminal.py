"""Markdown on a terminal. What is no terminal gets the Markdown as it is, which pipes and files can use."""

from __future__ import annotations

import sys
from typing import ClassVar, TextIO

_WIDEST = 110
_STYLES = {
    "markdown.h1": "bold",
    "markdown.h2": "bold cyan",
    "markdown.h3": "bold",
    "markdown.code": "bold",
    "markdown.item.bullet": "cyan",
    "markdown.table.header": "bold",
    "markdown.table.border": "dim",
}
"""Plain enough for light and dark backgrounds alike."""


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
    from rich.theme import Theme

    class LeftHeading(Heading):
        """Headings where reading starts; the library centres them."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            yield self.text

    class ReportMarkdown(Markdown):
        elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": LeftHeading}

    console = Console(file=stream, highlight=False, theme=Theme(_STYLES))
    console.print(ReportMarkdown(text, hyperlinks=False), width=min(console.width, _WIDEST))
