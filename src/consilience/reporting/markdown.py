"""Documents and reports as Markdown; Markdown on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, TextIO

from consilience.domain.markdown import fenced
from consilience.domain.presenting import present
from consilience.domain.report import Report
from consilience.domain.sections import (
    AgentText,
    Block,
    Bullets,
    Details,
    Diff,
    Item,
    KeyFigures,
    Paragraph,
    Presentation,
    QuoteBlock,
    ReportPart,
    Subheading,
    Table,
)
from consilience.reporting.formatting import demote_markdown, escape_inline, escape_markdown, printable
from consilience.reporting.report_sections import HEADINGS, ReportDocument, report_document
from consilience.reporting.report_sections import headline as headline_text

MAX_TABLE_ROWS = 40
"""A longer table is cut; the report's JSON has all of it."""


def markdown(
    report: Report,
    presentation: Presentation | None = None,
    *,
    heading: bool = True,
    files: Sequence[Path] = (),
    stored: bool = True,
    addition: str = "",
) -> str:
    """Return a report as Markdown, down to its line of figures.

    `presentation` is the one stored with it; default: as its protocol's code makes it. `heading` puts the task on top,
    `addition` is a section below the figures, `files` are listed at the end, `stored` adds the commands that replay the session.
    """
    document = report_document(report, present(report) if presentation is None else presentation, stored=stored)
    files_line = "Written: " + ", ".join(f"`{path}`" for path in files) if files else ""
    return document_markdown(document, heading=heading, additions=(addition, files_line))


def headline(report: Report, presentation: Presentation | None = None) -> str:
    """Return how the run stopped, in bold."""
    return f"**{escape_markdown(headline_text(report, present(report) if presentation is None else presentation))}**"


def document_markdown(document: ReportDocument, *, heading: bool = True, additions: Sequence[str] = ()) -> str:
    """Return a document without its folded sections. `additions` is Markdown below its footer."""
    title = document.title if heading else None
    parts = [
        "" if title is None else f"# {escape_markdown(title)}",
        f"> {escape_markdown(document.task)}" if title is not None and document.task else "",
    ]
    parts.append(f"**{escape_markdown(document.status)}**")
    for chapter in document.chapters:
        parts += [f"## {escape_markdown(chapter.heading)}" if chapter.heading else "", blocks_markdown(chapter.blocks)]
    # figures, and commands: those that fit on a line with the figures follow them
    footer = " · ".join(filter(None, (escape_markdown(document.footer), document.commands)))
    parts += [f"---\n\n{footer}" if footer else "", *additions]
    return "\n\n".join(filter(None, parts)) + "\n"


def chapter_markdown(document: ReportDocument, part: ReportPart) -> str:
    """Return what a document has below the heading of a part; "" if it has no such chapter."""
    blocks = [blocks_markdown(chapter.blocks) for chapter in document.chapters if chapter.heading == HEADINGS[part]]
    return "\n\n".join(blocks)


def blocks_markdown(blocks: Sequence[Block], *, max_rows: int | None = MAX_TABLE_ROWS) -> str:
    return "\n\n".join(filter(None, (_block(block, max_rows) for block in blocks)))


def _block(block: Block, max_rows: int | None) -> str:
    match block:
        case Paragraph():
            text = escape_inline(block.text) if block.lead or block.tone != "plain" else escape_markdown(block.text)
            text = {"plain": text, "strong": f"**{text}**", "remark": f"*{text}*"}[block.tone] if text else ""
            return " ".join(filter(None, (f"**{escape_markdown(block.lead)}**" if block.lead else "", text)))
        case Subheading():
            return f"### {escape_markdown(block.text)}"
        case AgentText():
            return demote_markdown(block.text)
        case QuoteBlock():
            return f"> {escape_markdown(block.text)}" + (f"\n>\n> — {escape_markdown(block.by)}" if block.by else "")
        case Bullets():
            return "\n".join(map(_item, block.items))
        case Table():
            return _table(block.heads, block.rows, max_rows)
        case KeyFigures():
            return _table(block.table.heads, block.table.rows, max_rows)
        case Diff():
            return _diff(block)
        case Details():
            return f"**{escape_markdown(block.summary)}**\n\n{blocks_markdown(block.blocks, max_rows=max_rows)}"


def _item(item: Item) -> str:
    line = (
        f"**{escape_inline(item.lead)}** {escape_inline(item.text)}".rstrip()
        if item.lead
        else escape_markdown(item.text)
    )
    if item.by:
        line += f" — *{escape_inline(item.by)}*" + (f" {escape_inline(item.note)}" if item.note else "")
    elif item.note:
        line += f" — {escape_inline(item.note)}"
    indent = "  " * item.depth
    return f"{indent}- {line}" + (f"\n{indent}  - {escape_inline(item.below)}" if item.below else "")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], max_rows: int | None) -> str:
    lines = [f"| {' | '.join(map(escape_inline, heads))} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(map(escape_inline, row))} |" for row in rows[:max_rows]]
    if max_rows is not None and len(rows) > max_rows:
        lines += ["", f"*And {len(rows) - max_rows:,} more rows in the report's JSON.*"]
    return "\n".join(lines)


def _diff(diff: Diff) -> str:
    heading = f"{escape_markdown(diff.heading)}\n\n" if diff.heading else ""
    return heading + fenced(printable(diff.text), "diff")


# --- on a terminal

MAX_WIDTH = 110
_STYLES = {
    "markdown.h1": "bold",
    "markdown.h2": "bold cyan",
    "markdown.h3": "bold",
    "markdown.code": "bold",
    "markdown.item.bullet": "cyan",
    "markdown.table.header": "bold",
    "markdown.table.border": "dim",
}
"""Legible on light and dark backgrounds."""


def print_markdown(markdown: str, stream: TextIO | None = None) -> None:
    """Print to standard output or `stream`, rendered if that is a terminal."""
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
        """Left-aligned headings; the library centres them."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            yield self.text

    class ReportMarkdown(Markdown):
        elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": LeftHeading}

    rendered = ReportMarkdown(text, hyperlinks=False)
    for inner in (child for token in rendered.parsed for child in token.children or ()):
        if inner.type == "softbreak":  # lines of a checklist or an address must not run together
            inner.type = "hardbreak"
    console = Console(file=stream, highlight=False, theme=Theme(_STYLES))
    console.print(rendered, width=min(console.width, MAX_WIDTH))
