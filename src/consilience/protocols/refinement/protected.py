"""Parts of a draft that nobody may change: agents see a marker in their place, and the engine puts them back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from consilience.engine.similarity import set_jaccard, token_set

_FRONT = re.compile(
    r"\A(?:---[ \t]*\n(?P<yaml>(?:.*\n)*?)(?:---|\.\.\.)|\+\+\+[ \t]*\n(?:.*\n)*?\+\+\+)[ \t]*(?:\n|\Z)"
)
_KEY = re.compile(r"""(?:(?:"[^"]*"|'[^']*')[ \t]*|[^\s\-?:,\[\]{}#&*!|>'"%@`].*?):(?:[ \t]|\Z)""")
"""What begins a line of front matter in YAML; the value may go on in lines that are indented, empty or items of a list."""
_GOES_ON = re.compile(r"-(?:[ \t]|\Z)|[\]}]")
"""What else begins a line that is not indented: an item, which may be empty or go on below, or the end of a list or mapping."""
_PARAGRAPHS = re.compile(r"\n[ \t]*\n")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_PREFIX = r"^(?:[ \t]*(?:>|[-*+][ \t]|\d{1,9}[.)][ \t]))*[ \t]*"
"""What makes a line a quotation or an item of a list."""
_REACH = 100
"""So many lines of the paragraph before a block are compared at most; blocks side by side are one paragraph."""
_MARKER = r"\[\[code-x*[0-9]+\]\]"
_MARKERS = re.compile(_MARKER)
_PREFIXED = re.compile(rf"{_PREFIX}(?=[`*_]*({_MARKER}))", re.M)
_SET_OFF = re.compile(rf"(`+|\*+|_+)[ \t]*({_MARKER})[ \t]*\1")


@dataclass(frozen=True)
class Block:
    """A protected block, and the marker that stands for it, on a line of its own."""

    marker: str
    text: str


@dataclass(frozen=True)
class Draft:
    """A draft as agents see it, and what is kept from them. Of all texts each is gone through once, however many the blocks."""

    text: str = ""
    front_matter: str = ""
    blocks: tuple[Block, ...] = ()

    def restored(self, written: str) -> tuple[str, list[str]]:
        """A text with every block in it exactly once and the front matter on top; and the markers that had been lost from it.

        A lost block goes behind the paragraph most like the one it followed in the draft, or to the end where none is like it.
        """
        placed, lost = self._placed(written)
        found: list[str] = []
        for marker, before in self._pieces(placed):
            if found:
                before = _below(before) if before or marker is None else "\n\n"
            found.append(before if marker is None else f"{_on_its_own(before)}{self._texts[marker]}")
        return f"{self.front_matter}{''.join(found)}", lost

    def comparable(self, written: str) -> str:
        """A text with every marker in it exactly once, as a paragraph of its own, so that a block counts as one sentence."""
        placed, _ = self._placed(written)
        if not self.blocks:
            return placed
        found: list[str] = []
        for marker, before in self._pieces(placed):
            before = before if marker is None else before.rstrip()
            found += [before.lstrip() if found else before, marker or ""]
        return "\n\n".join(filter(None, found))

    def expand_markers(self, line: str) -> str:
        """Words with every block where its marker stood, on one line."""
        return _MARKERS.sub(lambda found: " ".join(self._texts.get(found[0], found[0]).split()), line)

    @cached_property
    def _texts(self) -> dict[str, str]:
        return {block.marker: block.text for block in self.blocks}

    def _pieces(self, placed: str) -> Iterator[tuple[str | None, str]]:
        """Every marker with what stands before it, from the top; and last None with what stands behind them all."""
        at = 0
        for found in _MARKERS.finditer(placed):
            if found[0] in self._texts:
                yield found[0], placed[at : found.start()]
                at = found.end()
        yield None, placed[at:]

    def _placed(self, written: str) -> tuple[str, list[str]]:
        """A text with every marker in it exactly once, where it comes first; and those that had been lost from it."""
        there = set(_MARKERS.findall(written))
        lost = [marker for marker in self._texts if marker not in there]
        if lost:
            written = _inserted(written, lost, self.text)
        seen: set[str] = set()

        def once(found: re.Match[str]) -> str:
            again = found[0] in seen
            seen.update(self._texts.keys() & {found[0]})
            return "" if again else found[0]

        return _MARKERS.sub(once, _bare(written, self._texts)), lost


def extract_protected(draft: str, protect: Collection[str]) -> Draft:
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
    at, taken = 0, set(_MARKERS.findall(draft))
    for first, end, _ in _fences(draft):
        blocks.append(Block(_marker(len(blocks) + 1, taken), "\n".join(lines[first:end])))
        kept += [*lines[at:first], blocks[-1].marker]
        at = end
    return Draft(_without_blank_ends("\n".join([*kept, *lines[at:]])), front, tuple(blocks))


def _is_front(yaml: str) -> bool:
    """Whether two lines of hyphens hold fields between them. Behind a horizontal rule there is an empty line."""
    lines = yaml.split("\n")
    fields = [line for line in lines if line.strip() and not line[0].isspace() and line[0] != "#"]
    if not yaml or not lines[0].strip() or not fields:
        return not yaml
    first, *others = fields
    return _KEY.match(first) is not None and all(_KEY.match(one) or _GOES_ON.match(one) for one in others)


def _without_blank_ends(text: str) -> str:
    """The first line keeps its indentation, which may make it code."""
    return _BLANK_LINES.sub("", text).rstrip()


def _with_plain_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _fences(text: str) -> list[tuple[int, int, str]]:
    """First line, the one behind the last, and what stands between, of every fenced block that stands in no other."""
    from markdown_it import MarkdownIt

    token_set = MarkdownIt("commonmark").parse(text)
    return [(token.map[0], token.map[1], token.content) for token in token_set if token.type == "fence" and token.map]


def _bare(written: str, markers: Collection[str]) -> str:
    """A text whose markers stand for themselves, since models set them as code, in bold, as quotations or as items.

    Out of a fence they come before it; a fence with nothing else in it goes.
    """
    if not markers:
        return written

    def without(found: re.Match[str]) -> str:
        return "" if found[0] in markers else found[0]

    written = _with_plain_ends(written)
    lines = written.split("\n")
    kept: list[str] = []
    at = 0
    for first, end, content in _fences(written):
        rest = "\n".join(lines[first:end])
        held = [marker for marker in dict.fromkeys(_MARKERS.findall(rest)) if marker in markers]
        if held:
            left = [_MARKERS.sub(without, rest)] if _MARKERS.sub(without, content).strip() else []
            kept += [*lines[at:first], *held, *left]
            at = end
    written = "\n".join([*kept, *lines[at:]])
    written = _PREFIXED.sub(lambda found: "" if found[1] in markers else found[0], written)
    while (plainer := _SET_OFF.sub(lambda found: found[2] if found[2] in markers else found[0], written)) != written:
        written = plainer
    return written


def _marker(n: int, taken: Collection[str]) -> str:
    marker = f"[[code-{n}]]"
    while marker in taken:
        marker = marker.replace("code-", "code-x")
    return marker


class _Paragraphs:
    """A text by its paragraphs, and markers set in behind them; which paragraph holds a word is looked up."""

    def __init__(self, text: str) -> None:
        self._texts = _PARAGRAPHS.split(text.strip())
        self._behind: list[list[int]] = [[] for _ in self._texts]
        self._root = list(range(len(self._texts)))
        self._words: list[frozenset[str]] = []
        self._holders: defaultdict[str, list[int]] = defaultdict(list)
        for at, paragraph in enumerate(self._texts):
            self._learn(at, paragraph)

    def _learn(self, at: int, paragraph: str) -> None:
        self._words.append(token_set(paragraph))
        for word in self._words[at]:
            self._holders[word].append(at)

    def insert(self, marker: str, after: str) -> None:
        """Behind the paragraph most like `after`, the first of equals; to the end where none is like it."""
        best = self._most_like(after)
        root = len(self._behind) - 1 if best is None else self._root[best]
        behind, new = self._behind[root], len(self._texts)
        place = len(behind) if best is None else 0 if best == root else behind.index(best) + 1
        behind.insert(place, new)
        self._texts.append(marker)
        self._root.append(root)
        self._learn(new, marker)

    def _most_like(self, after: str) -> int | None:
        """By the share of words, as `jaccard` has it. Headings are like headings only.

        Rare words come first: what holds none of them shares so little that most paragraphs need not be looked at.
        """
        words = token_set(after)
        heading, best = after.startswith("#"), 0.0
        likeness: dict[int, float] = {}
        for passed, word in enumerate(sorted(words, key=lambda word: len(self._holders.get(word, ())))):
            if best > (len(words) - passed) / len(words):
                break
            for at in self._holders.get(word, ()):
                if at not in likeness:
                    same = self._texts[at].lstrip("\n").startswith("#") == heading
                    likeness[at] = set_jaccard(words, self._words[at]) if same else 0.0
                    best = max(best, likeness[at])
        equals = {at for at, like in likeness.items() if like == best > 0}
        if not equals:
            return None
        root = min(self._root[at] for at in equals)
        return next(at for at in (root, *self._behind[root]) if at in equals)

    def __str__(self) -> str:
        order = (at for root, behind in enumerate(self._behind) for at in (root, *behind))
        return "\n\n".join(self._texts[at] for at in order).strip()


def _inserted(written: str, lost: Collection[str], draft: str) -> str:
    """A text with the markers that were lost from it."""
    paragraphs, lines = _Paragraphs(written), draft.split("\n")
    missing = set(lost)
    for at, line in enumerate(lines):
        if line in missing:
            paragraphs.insert(line, _followed(lines, at))
    return str(paragraphs)


def _followed(lines: list[str], at: int) -> str:
    """The paragraph before a line, up to it."""
    end = at
    while end and not lines[end - 1].strip():
        end -= 1
    first = end
    while first > max(0, end - _REACH) and lines[first - 1].strip(" \t"):
        first -= 1
    return "\n".join(lines[first:end]).rstrip()


def _on_its_own(head: str) -> str:
    """What stands before a block, which begins a line."""
    return head if not head or head.endswith("\n") else f"{head.rstrip(' ')}\n\n"


def _below(tail: str) -> str:
    return tail if not tail or tail.startswith("\n") else f"\n\n{tail.lstrip(' ')}"
