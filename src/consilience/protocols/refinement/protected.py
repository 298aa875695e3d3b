"""Parts of a draft that nobody may change: agents see a marker in their place, and the engine puts them back."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from consilience.engine.similarity import jaccard

_FRONT = re.compile(
    r"\A(?:---[ \t]*\n(?P<yaml>(?:.*\n)*?)(?:---|\.\.\.)|\+\+\+[ \t]*\n(?:.*\n)*?\+\+\+)[ \t]*(?:\n|\Z)"
)
_KEY = re.compile(r"""(?:(?:"[^"]*"|'[^']*')[ \t]*|[^\s\-?:,\[\]{}#&*!|>'"%@`].*?):(?:[ \t]|\Z)""")
"""What begins a line of front matter in YAML; the value may go on in lines that are indented, empty or items of a list."""
_PARAGRAPHS = re.compile(r"\n[ \t]*\n")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_PREFIX = r"^(?:[ \t]*(?:>|[-*+][ \t]|\d{1,9}[.)][ \t]))*[ \t]*"
"""What makes a line a quotation or an item of a list."""


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
        placed, lost = self._placed(written)
        for block in self.blocks:
            head, _, tail = placed.partition(block.marker)
            placed = f"{_on_its_own(head)}{block.text}{_below(tail)}"
        return f"{self.front_matter}{placed}", lost

    def comparable(self, written: str) -> str:
        """A text with every marker in it exactly once, as a paragraph of its own, so that a block counts as one sentence."""
        placed, _ = self._placed(written)
        for block in self.blocks:
            head, _, tail = placed.partition(block.marker)
            placed = "\n\n".join(filter(None, (head.rstrip(), block.marker, tail.lstrip())))
        return placed

    def told(self, line: str) -> str:
        """Words with every block where its marker stood, on one line."""
        for block in self.blocks:
            line = line.replace(block.marker, " ".join(block.text.split()))
        return line

    def _placed(self, written: str) -> tuple[str, list[str]]:
        lost = [block.marker for block in self.blocks if block.marker not in written]
        for block in self.blocks:
            if block.marker in lost:
                written = _inserted(written, block)
        written = _bare(written, [block.marker for block in self.blocks])
        for block in self.blocks:
            head, marker, tail = written.partition(block.marker)
            written = f"{head}{marker}{tail.replace(block.marker, '')}"
        return written, lost


def taken_apart(draft: str, protect: Collection[str]) -> Draft:
    """A draft with what is to be protected taken out of it. Lines end in `\n` from then on, whatever they ended in."""
    draft = _with_plain_ends(draft)
    front = ""
    if "front_matter" in protect and (found := _FRONT.match(draft)) and _is_front(found["yaml"] or ""):
        front, draft = f"{found[0].rstrip()}\n", draft[found.end() :]
    if "code" not in protect:
        return Draft(_without_blank_ends(draft), front)
    lines = draft.split("\n")
    blocks: list[Block] = []
    kept: list[str] = []
    at = 0
    for first, end, _ in _fences(draft):
        kept += lines[at:first]
        marker = _marker(len(blocks) + 1, draft)
        paragraphs = _PARAGRAPHS.split("\n".join(kept).rstrip())
        blocks.append(Block(marker, "\n".join(lines[first:end]), paragraphs[-1]))
        kept.append(marker)
        at = end
    return Draft(_without_blank_ends("\n".join([*kept, *lines[at:]])), front, tuple(blocks))


def _is_front(yaml: str) -> bool:
    """Whether two lines of hyphens hold fields between them. Behind a horizontal rule there is an empty line."""
    lines = yaml.split("\n")
    fields = [line for line in lines if line.strip() and not line[0].isspace() and line[0] != "#"]
    if not yaml or not lines[0].strip() or not fields:
        return not yaml
    first, *others = fields
    return _KEY.match(first) is not None and all(_KEY.match(one) or one.startswith(("- ", "]", "}")) for one in others)


def _without_blank_ends(text: str) -> str:
    """The first line keeps its indentation, which may make it code."""
    return _BLANK_LINES.sub("", text).rstrip()


def _with_plain_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _fences(text: str) -> list[tuple[int, int, str]]:
    """First line, the one behind the last, and what stands between, of every fenced block that stands in no other."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(text)
    return [(token.map[0], token.map[1], token.content) for token in tokens if token.type == "fence" and token.map]


def _bare(written: str, markers: Sequence[str]) -> str:
    """A text whose markers stand for themselves, since models set them as code, in bold, as quotations or as items.

    Out of a fence they come before it; a fence with nothing else in it goes.
    """
    if not markers:
        return written
    lines = _with_plain_ends(written).split("\n")
    for first, end, content in reversed(_fences("\n".join(lines))):
        rest = "\n".join(lines[first:end])
        held = sorted((marker for marker in markers if marker in rest), key=rest.index)
        if not held:
            continue
        for marker in held:
            content, rest = content.replace(marker, ""), rest.replace(marker, "")
        lines[first:end] = [*held, rest] if content.strip() else held
    written = "\n".join(lines)
    for marker in map(re.escape, markers):
        written = re.sub(rf"{_PREFIX}(?=[`*_]*{marker})", "", written, flags=re.MULTILINE)
        set_off, times = re.compile(rf"(`+|\*+|_+)[ \t]*({marker})[ \t]*\1"), 1
        while times:
            written, times = set_off.subn(r"\2", written)
    return written


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
