"""The protected parts of a draft, which must not change: agents see a marker in place of each, and code puts the parts back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from consilience.engine.similarity import set_jaccard, token_set

_FRONT = re.compile(
    r"\A(?:---[ \t]*\n(?P<yaml>(?:.*\n)*?)(?:---|\.\.\.)|\+\+\+[ \t]*\n(?:.*\n)*?\+\+\+)[ \t]*(?:\n|\Z)"
)
_KEY = re.compile(r"""(?:(?:"[^"]*"|'[^']*')[ \t]*|[^\s\-?:,\[\]{}#&*!|>'"%@`].*?):(?:[ \t]|\Z)""")
"""The beginning of a field in YAML front matter."""
_CONTINUATION = re.compile(r"-(?:[ \t]|\Z)|[\]}]")
"""The beginning of an unindented line that continues a field: a list item, or the end of a list or mapping."""
_PARAGRAPHS = re.compile(r"\n[ \t]*\n")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_PREFIX = r"^(?:[ \t]*(?:>|[-*+][ \t]|\d{1,9}[.)][ \t]))*[ \t]*"
"""The beginning of a quotation or a list item."""
MAX_COMPARED_LINES = 100
"""Lines compared of the paragraph before a block. Adjacent blocks form one paragraph, which may be long."""
_MARKER = r"\[\[code-x*[0-9]+\]\]"
_MARKERS = re.compile(_MARKER)
_PREFIXED = re.compile(rf"{_PREFIX}(?=[`*_]*({_MARKER}))", re.M)
_SET_OFF = re.compile(rf"(`+|\*+|_+)[ \t]*({_MARKER})[ \t]*\1")


@dataclass(frozen=True)
class ProtectedDraft:
    """A draft as agents see it, and its protected parts. Every method reads a text once, regardless of the number of blocks."""

    text: str = ""
    """With a marker in place of each block."""
    front_matter: str = ""
    blocks: Mapping[str, str] = field(default_factory=dict)
    """Blocks of code, by the marker that stands for each on a line of its own."""

    def restored(self, written: str) -> tuple[str, list[str]]:
        """Return a text with the front matter and with every block exactly once, and the markers that were missing from it.

        A missing block follows the paragraph most similar to the one that it followed in the draft; without one, it comes last.
        """
        placed, lost = self._placed(written)
        pieces: list[str] = []
        for marker, before in self._pieces(placed):
            if pieces:
                before = _after_block(before) if before or marker is None else "\n\n"
            pieces.append(before if marker is None else f"{_before_block(before)}{self.blocks[marker]}")
        return f"{self.front_matter}{''.join(pieces)}", lost

    def comparable(self, written: str) -> str:
        """Return a text with every marker exactly once, in a paragraph of its own: a block counts as one sentence."""
        placed, _ = self._placed(written)
        if not self.blocks:
            return placed
        pieces: list[str] = []
        for marker, before in self._pieces(placed):
            before = before if marker is None else before.rstrip()
            pieces += [before.lstrip() if pieces else before, marker or ""]
        return "\n\n".join(filter(None, pieces))

    def expand_markers(self, line: str) -> str:
        """Return a line with every marker replaced by its block, on one line."""
        return _MARKERS.sub(lambda match: " ".join(self.blocks.get(match[0], match[0]).split()), line)

    def _pieces(self, placed: str) -> Iterator[tuple[str | None, str]]:
        """Yield every marker with the text before it, then None with the rest."""
        at = 0
        for match in _MARKERS.finditer(placed):
            if match[0] in self.blocks:
                yield match[0], placed[at : match.start()]
                at = match.end()
        yield None, placed[at:]

    def _placed(self, written: str) -> tuple[str, list[str]]:
        """Return a text with every marker exactly once, at its first place, and the markers that were missing from it."""
        present = set(_MARKERS.findall(written))
        lost = [marker for marker in self.blocks if marker not in present]
        if lost:
            written = _with_inserted(written, lost, self.text)
        placed_so_far: set[str] = set()

        def first_only(match: re.Match[str]) -> str:
            repeated = match[0] in placed_so_far
            placed_so_far.update(self.blocks.keys() & {match[0]})
            return "" if repeated else match[0]

        return _MARKERS.sub(first_only, _with_bare_markers(written, self.blocks)), lost


def extract_protected(draft: str, protect: Collection[str]) -> ProtectedDraft:
    """Return a draft without its protected parts. All line ends become `\n`."""
    draft = _with_plain_ends(draft)
    front = ""
    if "front_matter" in protect and (match := _FRONT.match(draft)) and _is_front_matter(match["yaml"] or ""):
        front, draft = f"{match[0].rstrip()}\n", draft[match.end() :]
    if "code" not in protect:
        return ProtectedDraft(_without_blank_ends(draft), front)
    lines = draft.split("\n")
    blocks: dict[str, str] = {}
    text_parts: list[str] = []
    at, used_markers = 0, set(_MARKERS.findall(draft))
    for first, end, _ in _fences(draft):
        marker = _new_marker(len(blocks) + 1, used_markers)
        blocks[marker] = "\n".join(lines[first:end])
        text_parts += [*lines[at:first], marker]
        at = end
    return ProtectedDraft(_without_blank_ends("\n".join([*text_parts, *lines[at:]])), front, blocks)


def _is_front_matter(yaml: str) -> bool:
    """Whether the text between two lines of hyphens is fields, or nothing. After a horizontal rule there is an empty line."""
    lines = yaml.split("\n")
    fields = [line for line in lines if line.strip() and not line[0].isspace() and line[0] != "#"]
    if not yaml or not lines[0].strip() or not fields:
        return not yaml
    first, *rest = fields
    return _KEY.match(first) is not None and all(_KEY.match(line) or _CONTINUATION.match(line) for line in rest)


def _without_blank_ends(text: str) -> str:
    """Strip blank lines and trailing spaces. The first line keeps its indentation, which may make it code."""
    return _BLANK_LINES.sub("", text).rstrip()


def _with_plain_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _fences(text: str) -> list[tuple[int, int, str]]:
    """Return first line, end line (exclusive) and content of every outermost fenced block."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(text)
    return [(token.map[0], token.map[1], token.content) for token in tokens if token.type == "fence" and token.map]


def _with_bare_markers(written: str, markers: Collection[str]) -> str:
    """Return a text with the markup around markers removed: models set them as code, in bold, as quotations or as items.

    Markers in a fence are moved before it. A fence that contains nothing else is removed.
    """
    if not markers:
        return written

    def without(match: re.Match[str]) -> str:
        return "" if match[0] in markers else match[0]

    written = _with_plain_ends(written)
    lines = written.split("\n")
    kept: list[str] = []
    at = 0
    for first, end, content in _fences(written):
        rest = "\n".join(lines[first:end])
        line_markers = [marker for marker in dict.fromkeys(_MARKERS.findall(rest)) if marker in markers]
        if line_markers:
            left = [_MARKERS.sub(without, rest)] if _MARKERS.sub(without, content).strip() else []
            kept += [*lines[at:first], *line_markers, *left]
            at = end
    written = "\n".join([*kept, *lines[at:]])
    written = _PREFIXED.sub(lambda match: "" if match[1] in markers else match[0], written)
    while (plainer := _SET_OFF.sub(lambda match: match[2] if match[2] in markers else match[0], written)) != written:
        written = plainer
    return written


def _new_marker(n: int, used_markers: Collection[str]) -> str:
    """Return a marker that the draft does not contain."""
    marker = f"[[code-{n}]]"
    while marker in used_markers:
        marker = marker.replace("code-", "code-x")
    return marker


class _Paragraphs:
    """The paragraphs of a text, indexed by word, and the markers inserted after them."""

    def __init__(self, text: str) -> None:
        self._texts = _PARAGRAPHS.split(text.strip())
        self._following: list[list[int]] = [[] for _ in self._texts]
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
        """Insert a marker after the paragraph most similar to `after`, the first of equals; without one, at the end."""
        best = self._most_similar(after)
        root = len(self._following) - 1 if best is None else self._root[best]
        following, new = self._following[root], len(self._texts)
        place = len(following) if best is None else 0 if best == root else following.index(best) + 1
        following.insert(place, new)
        self._texts.append(marker)
        self._root.append(root)
        self._learn(new, marker)

    def _most_similar(self, after: str) -> int | None:
        """Return the paragraph with the highest Jaccard similarity of words. Headings match headings only.

        The rarest words are looked up first: a paragraph without any of them has too few words in common to be the best.
        """
        words = token_set(after)
        heading, best = after.startswith("#"), 0.0
        similarity: dict[int, float] = {}
        for passed, word in enumerate(sorted(words, key=lambda word: len(self._holders.get(word, ())))):
            if best > (len(words) - passed) / len(words):
                break
            for at in self._holders.get(word, ()):
                if at not in similarity:
                    same = self._texts[at].lstrip("\n").startswith("#") == heading
                    similarity[at] = set_jaccard(words, self._words[at]) if same else 0.0
                    best = max(best, similarity[at])
        equals = {at for at, value in similarity.items() if value == best > 0}
        if not equals:
            return None
        root = min(self._root[at] for at in equals)
        return next(at for at in (root, *self._following[root]) if at in equals)

    def __str__(self) -> str:
        order = (at for root, following in enumerate(self._following) for at in (root, *following))
        return "\n\n".join(self._texts[at] for at in order).strip()


def _with_inserted(written: str, lost: Collection[str], draft: str) -> str:
    """Return a text with the markers that were missing from it."""
    paragraphs, lines = _Paragraphs(written), draft.split("\n")
    missing = set(lost)
    for at, line in enumerate(lines):
        if line in missing:
            paragraphs.insert(line, _paragraph_before(lines, at))
    return str(paragraphs)


def _paragraph_before(lines: list[str], at: int) -> str:
    end = at
    while end and not lines[end - 1].strip():
        end -= 1
    first = end
    while first > max(0, end - MAX_COMPARED_LINES) and lines[first - 1].strip(" \t"):
        first -= 1
    return "\n".join(lines[first:end]).rstrip()


def _before_block(head: str) -> str:
    """Return the text before a block, which must begin a line."""
    return head if not head or head.endswith("\n") else f"{head.rstrip(' ')}\n\n"


def _after_block(tail: str) -> str:
    return tail if not tail or tail.startswith("\n") else f"\n\n{tail.lstrip(' ')}"
