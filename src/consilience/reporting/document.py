"""The document model: a title, a status line and chapters of blocks.

A report, a session without one and the comparison of two sessions are built as a `ReportDocument`. Renderers know nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from consilience.domain.sections import Block, Section


@dataclass(frozen=True)
class MarkdownBlock:
    """A block in Markdown written by this package, with commands and keys as code. Texts of agents in it are escaped."""

    markdown: str


@dataclass(frozen=True)
class Chapter:
    """Blocks under a heading."""

    heading: str
    """Plain text; "" if the blocks follow what is above them."""
    blocks: tuple[Block | MarkdownBlock, ...]


@dataclass(frozen=True)
class ReportDocument:
    """A document in the order of its fields."""

    title: str | None
    """Markdown on one line."""
    status: str
    """Markdown on one line, set in bold."""
    chapters: tuple[Chapter, ...] = ()
    footer: str = ""
    """Markdown below a rule: figures, and commands that lead on."""
    folded: tuple[Section, ...] = ()
    """Sections that open on demand in HTML and are views elsewhere."""
