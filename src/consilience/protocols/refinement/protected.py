"""Parts of a draft that nobody may change: agents see a marker in their place, and the engine puts them back."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from consilience.engine.similarity import jaccard

_FRONT = re.compile(r"\A(---|\+\+\+)[ \t]*\n.*?\n\1[ \t]*(?:\n|\Z)", re.DOTALL)
_PARAGRAPHS = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True)
class Block:
    """A protected block, the marker that stands for it, and the paragraph it followed in the draft."""

    marker: str
    text: str
    after: str


@dataclass(frozen=True)
class Draft:
    """A draft as agents see it, and what is kept from them."""

    text: str = ""
    front_matter: str = ""
    blocks: tuple[Block, ...] = ()

    def restored(self, written: str) -> tuple[str, list[str]]:
        """A text with every block in it exactly once and the front matter on top; and the markers that had been lost from it.

        A lost block goes behind the paragraph most like the one it followed in the draft, or to the end where none is like it.
        """
        lost = [block.marker for block in self.blocks if block.marker not in written]
        for block in self.blocks:
            if block.marker in lost:
                written = _inserted(written, block)
        for block in self.blocks:
            head, _, tail = written.partition(block.marker)
            tail = tail.replace(block.marker, "")
            written = f"{_on_its_own(head)}{block.text}{_below(tail)}"
        return f"{self.front_matter}{written}", lost


def taken_apart(draft: str, protect: Collection[str]) -> Draft:
    """A draft with what is to be protected taken out of it. Lines end in `\n` from then on, whatever they ended in."""
    draft = draft.replace("\r\n", "\n").replace("\r", "\n")
    front = ""
    if "front_matter" in protect and (found := _FRONT.match(draft)):
        front, draft = f"{found[0].rstrip()}\n", draft[found.end() :]
    if "code" not in protect:
        return Draft(draft.strip(), front)
    lines = draft.split("\n")
    blocks: list[Block] = []
    kept: list[str] = []
    at = 0
    for first, end in _fences(draft):
        kept += lines[at:first]
        marker = _marker(len(blocks) + 1, draft)
        paragraphs = _PARAGRAPHS.split("\n".join(kept).rstrip())
        blocks.append(Block(marker, "\n".join(lines[first:end]), paragraphs[-1]))
        kept.append(marker)
        at = end
    return Draft("\n".join([*kept, *lines[at:]]).strip(), front, tuple(blocks))


def _fences(draft: str) -> list[tuple[int, int]]:
    """First line and the one behind the last, of every fenced block that stands in no other."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(draft)
    return [(token.map[0], token.map[1]) for token in tokens if token.type == "fence" and token.map]


def _marker(n: int, draft: str) -> str:
    marker = f"[[code-{n}]]"
    while marker in draft:
        marker = marker.replace("code-", "code-x")
    return marker


def _inserted(written: str, block: Block) -> str:
    paragraphs = _PARAGRAPHS.split(written.strip())
    under_heading = block.after.startswith("#")
    likeness = [
        jaccard(paragraph, block.after) if paragraph.startswith("#") == under_heading else 0.0
        for paragraph in paragraphs
    ]
    best = max(likeness, default=0.0)
    place = likeness.index(best) + 1 if best > 0 and block.after else len(paragraphs)
    return "\n\n".join([*paragraphs[:place], block.marker, *paragraphs[place:]]).strip()


def _on_its_own(head: str) -> str:
    """What stands before a block, which begins a line."""
    return head if not head or head.endswith("\n") else f"{head.rstrip(' ')}\n\n"


def _below(tail: str) -> str:
    return tail if not tail or tail.startswith("\n") else f"\n\n{tail.lstrip(' ')}"
