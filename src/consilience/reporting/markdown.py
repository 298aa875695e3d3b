"""A report as Markdown, from its sections; and Markdown on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self, TextIO

from pydantic import ConfigDict, PrivateAttr

from consilience.domain.report import Report, find_report, present
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
    Quote,
    Subheading,
    Table,
)
from consilience.reporting.formatting import demote_markdown, escape_inline, escape_markdown, one_line, printable
from consilience.reporting.report_sections import ReportPart, figures_line, folded_sections, parts_of
from consilience.reporting.report_sections import headline as headline_words

MAX_HEADING_CHARS = 160
MAX_TABLE_ROWS = 40
"""A longer table is cut; the report's JSON has all of it."""


class AnyReport(Report):
    """A report of any protocol. What it adds to the header is kept as it is."""

    model_config = ConfigDict(frozen=True, extra="allow")

    _stored: Presentation | None = PrivateAttr(default=None)

    @classmethod
    def recorded(cls, report: str, presentation: str) -> Self:
        """Return a recorded report from its JSON and the JSON of the presentation stored with it; "" for none."""
        found = cls.model_validate_json(report)
        found._stored = Presentation.model_validate_json(presentation) if presentation else None
        return found

    def presentation(self) -> Presentation:
        """The stored one if the report has it, else as the protocol's own code makes it, if that is present."""
        if self._stored is not None:
            return self._stored
        cls = find_report(self.protocol)
        return super().presentation() if cls is Report else cls.model_validate(self.model_dump()).presentation()


def markdown(
    report: Report,
    presentation: Presentation | None = None,
    *,
    heading: bool = True,
    files: Sequence[Path] = (),
    stored: bool = True,
    more: str = "",
) -> str:
    """The report down to its line of figures. `presentation` is what was stored with it; default: what its own code makes of it.
    `heading` puts the task on top, `more` is a section behind the figures, `files` are named at the end; `stored` tells how to
    replay it."""
    shown = present(report) if presentation is None else presentation
    parts: list[str] = []
    if heading:
        parts.append(f"# {escape_markdown(one_line(report.task, MAX_HEADING_CHARS))}")
    parts.append(headline(report, shown))
    parts += [part_markdown(part) for part in parts_of(report, shown)]
    parts += [last_line(report, shown, stored), more]
    if files:
        parts.append("Written: " + ", ".join(f"`{path}`" for path in files))
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(report: Report, presentation: Presentation | None = None) -> str:
    """How the run stopped, in bold."""
    return f"**{escape_markdown(headline_words(report, present(report) if presentation is None else presentation))}**"


def part_markdown(part: ReportPart) -> str:
    found = [f"## {escape_markdown(part.heading)}"]
    for section in part.sections:
        if section.heading:
            found.append(f"### {escape_markdown(section.heading)}")
        found.append(blocks_markdown(section.blocks))
    return "\n\n".join(found)


def blocks_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(filter(None, map(_block, blocks)))


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            text = escape_inline(block.text) if block.lead or block.tone != "plain" else escape_markdown(block.text)
            text = {"plain": text, "strong": f"**{text}**", "remark": f"*{text}*"}[block.tone] if text else ""
            return " ".join(filter(None, (f"**{escape_markdown(block.lead)}**" if block.lead else "", text)))
        case Subheading():
            return f"### {escape_markdown(block.text)}"
        case AgentText():
            return demote_markdown(block.text)
        case Quote():
            return f"> {escape_markdown(block.text)}" + (f"\n>\n> — {escape_markdown(block.by)}" if block.by else "")
        case Bullets():
            return "\n".join(map(_item, block.items))
        case Table():
            return _table(block.heads, block.rows)
        case KeyFigures():
            return _table(("what", "how much"), [(one.name, one.value) for one in block.figures])
        case Diff():
            return _diff(block)
        case Details():
            return f"**{escape_markdown(block.summary)}**\n\n{blocks_markdown(block.blocks)}"


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
    return f"- {line}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(map(escape_inline, heads))} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(map(escape_inline, row))} |" for row in rows[:MAX_TABLE_ROWS]]
    if len(rows) > MAX_TABLE_ROWS:
        lines += ["", f"*And {len(rows) - MAX_TABLE_ROWS:,} more rows, which stand in the report's JSON.*"]
    return "\n".join(lines)


def _diff(diff: Diff) -> str:
    lines = printable(diff.text).split("\n")
    fence = "`" * (max((len(line) - len(line.lstrip("+- `")) for line in lines), default=0) + 3)
    head = f"{escape_markdown(diff.heading)}\n\n" if diff.heading else ""
    return f"{head}{fence}diff\n" + "\n".join(lines) + f"\n{fence}"


def last_line(report: Report, presentation: Presentation, stored: bool = True) -> str:
    """Figures, and the commands that replay the session and show what is folded away."""
    line = escape_markdown(figures_line(report, presentation))
    if stored and report.session:
        figures, *others = [section.name for section in reversed(folded_sections(report, presentation))]
        line += f" · `consilience replay {report.session}` · more: `consilience show {report.session} --view {figures}`"
        line += "".join(f", `--view {name}`" for name in others)
    return f"---\n\n{line}"


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
"""Plain enough for light and dark backgrounds alike."""


def print_markdown(markdown: str, stream: TextIO | None = None) -> None:
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

    shown = ReportMarkdown(text, hyperlinks=False)
    for inner in (child for token in shown.parsed for child in token.children or ()):
        if inner.type == "softbreak":  # lines of a checklist or an address must not run together
            inner.type = "hardbreak"
    console = Console(file=stream, highlight=False, theme=Theme(_STYLES))
    console.print(shown, width=min(console.width, MAX_WIDTH))
