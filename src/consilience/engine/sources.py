"""Source documents: reading them, and verifying quotations of them."""

from __future__ import annotations

import codecs
import errno
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, zip_longest
from pathlib import Path
from unicodedata import normalize

from consilience.domain.errors import ProtocolViolation, SourceError
from consilience.domain.events import SourceRef, text_id
from consilience.domain.messages import Quotation, Source, numbered_lines
from consilience.domain.paths import read_bounded

MAX_SOURCE_BYTES = 10_000_000
"""Max size of a file with a document, a task or an answer."""

PLAIN_MARKS = str.maketrans(dict.fromkeys("“”„‟«»″", '"') | dict.fromkeys("‘’‚‛′", "'") | dict.fromkeys("‐‑‒–—―−", "-"))
"""Maps typographic quotation marks, dashes and minus signs to plain ones."""

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What a text in UTF-16 or UTF-32 begins with."""

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    **dict.fromkeys(UTF16_MARKS, "utf-16"),
    codecs.BOM_UTF8: "utf-8-sig",
}
_FORMATS = {
    b"%PDF": "a PDF",
    b"PK\x03\x04": "an archive, such as Word, Excel, EPUB or ZIP",
    b"\xd0\xcf\x11\xe0": "an old Word, Excel or PowerPoint file",
    b"\x1f\x8b": "compressed",
    b"{\\rtf": "RTF",
}

_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that are shown as nothing (Unicode's Default_Ignorable_Code_Point): soft hyphen, zero-width space and others."""

_DIVIDED = re.compile(r"(?<=[^\W\d_])- (?=[^\W\d_])")

_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")

_REFERENCE = re.compile(r"(S\d+)(?::([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?)?")

_QUOTATION = re.compile(r"[\"“„«»]([^\"“”„«»]{2,}?)[\"”“«»]\s*\[(S\d+):(\d+)\]")


@dataclass(frozen=True)
class Document:
    """A source document of a session, or the part of it that a call is shown."""

    id: str
    name: str
    text: str
    agents: tuple[str, ...] | None = None
    """The agents that may read it; None for all."""
    lines: tuple[int, int] | None = None
    """First and last line that a call is shown, from 1; None for all."""
    generations: int | None = None
    """Forks since a fork added it; None if it is as old as the first session."""

    @property
    def text_id(self) -> str:
        return text_id(self.text)

    @property
    def reference(self) -> str:
        """Its name in prompts: `S4`, or `S4:120-380` for a part."""
        return f"{self.id}:{self.lines[0]}-{self.lines[1]}" if self.lines else self.id

    @property
    def line_count(self) -> int:
        """Lines of the whole document."""
        return len(self._lines)

    @cached_property
    def numbered(self) -> str:
        """The text as shown, with line numbers, since a quotation names the line where it begins."""
        return numbered_lines(self._lines, self.name, self.lines)

    @cached_property
    def part_id(self) -> str:
        """Id of the text that is shown."""
        return text_id("\n".join(self._lines[self.lines[0] - 1 : self.lines[1]])) if self.lines else self.text_id

    def contains(self, words: str, line: int) -> bool:
        """Return whether the words begin in that line (from 1) and lie within the lines shown. Case, whitespace, quotation marks,
        dashes, invisible characters, a hyphen at the end of a line and final punctuation do not count."""
        first, last = self.lines or (1, len(self._lines))
        wanted = quoted_form(words)
        return bool(wanted) and first <= line <= last and any(form.begins(wanted, line - first) for form in self._forms)

    def find(self, words: str, line: int) -> tuple[int, int] | None:
        """Return the first and last line, from 1, of the occurrence of the words that begins nearest to `line`; None without any.

        Only the lines shown are searched. Of two occurrences as near, the earlier counts. Forms are equal as in `contains`.
        Linear in the text.
        """
        wanted = quoted_form(words)
        first = (self.lines or (1, 0))[0]
        candidates = [lines for form in self._forms for lines in form.nearest(wanted, line - first)] if wanted else []
        if not candidates:
            return None
        first_line, last_line = min(candidates, key=lambda lines: abs(lines[0] + first - line))
        return first_line + first, last_line + first

    @cached_property
    def _lines(self) -> tuple[str, ...]:
        return _split_lines(self.text)

    @cached_property
    def _forms(self) -> tuple[_NormalForm, ...]:
        """The lines shown in normal form; a second time without hyphens within words, if a word may be divided at a line end."""
        first, last = self.lines or (1, None)
        lines = [same_form(line) for line in self._lines[first - 1 : last]]
        divided = any(_is_divided(line, following) for line, following in pairwise(lines))
        return (_NormalForm(lines), _NormalForm(lines, joined=True)) if divided else (_NormalForm(lines),)


class _NormalForm:
    """Lines in normal form as one text, and the span of each of them in it; (n, n) for an empty line."""

    def __init__(self, lines: Sequence[str], *, joined: bool = False) -> None:
        """`joined` drops the hyphens within words, as the words that are looked for do then."""
        self._joined = joined
        parts: list[str] = []
        self.spans: list[tuple[int, int]] = []
        position = 0
        for line, following in zip_longest(lines, lines[1:], fillvalue=""):
            divided = _is_divided(line, following)
            part = _joined(line[:-1] if divided else line) if joined else line
            self.spans.append((position, position + len(part)))
            separator = "" if divided or not part else " "
            parts += [part, separator]
            position += len(part) + len(separator)
        self.text = "".join(parts)

    @cached_property
    def _reversed(self) -> str:
        return self.text[::-1]

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(self.text.split())

    def begins(self, wanted: str, line: int) -> bool:
        """Return whether `wanted` begins in the line with that index."""
        wanted = _joined(wanted) if self._joined else wanted
        start, end = self.spans[line]
        return self.text.find(wanted, start, end - 1 + len(wanted)) >= 0

    def nearest(self, wanted: str, line: int) -> list[tuple[int, int]]:
        """Return first and last line, by index, of the occurrences next to a line: the last before it, the first from it on."""
        if not self.spans:
            return []
        wanted = _joined(wanted) if self._joined else wanted
        if not self._words.issuperset(wanted.split()[1:-1]):  # the first and the last may be parts of words
            return []
        start = self.spans[min(max(line, 0), len(self.spans) - 1)][0]
        # backwards in the reversed text, since only `str.find` is linear in all cases
        backward = self._reversed.find(wanted[::-1], max(len(self.text) - start + 1 - len(wanted), 0))
        found = (
            len(self.text) - backward - len(wanted) if backward >= 0 else -1,
            self.text.find(wanted, start),
        )
        return [
            (_line_at(self.spans, position), _line_at(self.spans, position + len(wanted) - 1))
            for position in found
            if position >= 0
        ]


def _joined(words: str) -> str:
    return _HYPHEN.sub("", words)


def _is_divided(line: str, following: str) -> bool:
    """Return whether a hyphen at the end of a line may divide a word that goes on in the next one."""
    return line[-1:] == "-" and line[-2:-1].isalpha() and following[:1].isalpha()


def read_text_file(path: Path, label: str) -> str:
    """Return the text of a file; `label` names it in errors. Raises `SourceError` if it is missing, too large or not UTF-8 text."""
    try:
        data = read_bounded(path, MAX_SOURCE_BYTES)
    except FileNotFoundError:
        raise SourceError(f"{label} does not exist", where=str(path), do="Check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        too_large = getattr(error, "errno", None) == errno.EFBIG
        do = "Give the part that matters." if too_large else "Check the path and your rights."
        raise SourceError(f"{label} cannot be read: {reason}", where=str(path), do=do) from None
    return decode_text(data, label, str(path))


def decode_text(data: bytes, label: str, where: str) -> str:
    """Return bytes as text with line ends as `\\n`: UTF-8, or UTF-16 and UTF-32 with a byte order mark.

    Raises `SourceError` for other data, which names what it seems to be and how to convert it.
    """
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SourceError(f"{label} is not UTF-8 text", where=where, do=_conversion(data, where))
    return text.replace("\r\n", "\n")


def is_binary(data: bytes) -> bool:
    """Return whether Git would take the data for binary: a NUL byte near the beginning."""
    return b"\0" in data[:8_000]


def _conversion(data: bytes, where: str) -> str:
    """Return how to make text of data that is not UTF-8."""
    kind = next((name for magic, name in _FORMATS.items() if data.startswith(magic)), "")
    if kind:
        return f"It is {kind}: convert it to text first."
    name = where if re.fullmatch(r"[\w./~-]+", where) else "FILE"
    without_mark = next((code for code, nul in (("UTF-16LE", 1), ("UTF-16BE", 0)) if not any(data[nul:400:2])), "")
    if without_mark or not is_binary(data):
        encoding = without_mark or "WINDOWS-1252"
        return f"It may be {encoding}: iconv -f {encoding} -t UTF-8 {name} > NEW"
    return "It is binary: give text."


def number_documents(sources: Iterable[Source]) -> tuple[Document, ...]:
    """Return documents numbered S1, S2, … in the order of their sources."""
    return tuple(Document(f"S{n}", s.name, s.text, s.agents) for n, s in enumerate(sources, 1))


def document_from_ref(ref: SourceRef, text: str, *, forks: int = 0) -> Document:
    """Return a recorded document, as of `forks` forks later."""
    generations = None if ref.generations is None else ref.generations + forks
    return Document(ref.id, ref.name, text, ref.agents, generations=generations)


def document_refs(documents: Sequence[Document]) -> tuple[SourceRef, ...]:
    return tuple(
        SourceRef(id=d.id, name=d.name, text=d.text_id, agents=d.agents, generations=d.generations) for d in documents
    )


def select_documents(references: Iterable[str], documents: Sequence[Document], agent: str) -> tuple[Document, ...]:
    """Return the documents, or parts of them (`S4`, `S4:120-380`, `S4:7`), that a call names, in that order, once each.

    Raises `ProtocolViolation` for a reference to no document or no lines of it, or to one that the agent may not see.
    """
    parts: dict[str, Document] = {}
    for reference in references:
        document = parse_reference(reference, documents)
        if document.agents is not None and agent not in document.agents:
            raise ProtocolViolation(f"{agent} may not be shown document {document.id}, which is for {document.agents}")
        parts[document.reference] = document
    return tuple(parts.values())


def parse_reference(reference: str, documents: Sequence[Document]) -> Document:
    """Return the document that a reference names, or the part of it. Raises `ProtocolViolation` if it names none."""
    match = _REFERENCE.fullmatch(reference)
    document = next((document for document in documents if match and document.id == match[1]), None)
    if match is None or document is None:
        known_ids = ", ".join(document.id for document in documents) or "there are none"
        raise ProtocolViolation(f"{reference!r} is not a document of this session ({known_ids})")
    if match[2] is None:
        return document
    lines = int(match[2]), int(match[3] or match[2])
    if not lines[0] <= lines[1] <= document.line_count:
        raise ProtocolViolation(f"{reference!r} is not in the document: {document.id} has {document.line_count} lines")
    return replace(document, lines=lines)


def find_quotations(
    text: str,
    documents: Sequence[Document],
    agent: str,
    *,
    shown: Sequence[Document] | None = None,
    read: Iterable[str] = (),
) -> list[Quotation]:
    """Return every `"words" [S2:41]` in the text. It is verified if the agent was shown these lines, or if it is a part of a true
    quotation in the text or in one that the agent read.

    `documents` are all of the session, `shown` those, or parts of them, that the agent was shown (default: those open to it), and
    `read` are texts by others; these are looked at only where something else is quoted.
    """
    if shown is None:
        shown = [document for document in documents if document.agents is None or agent in document.agents]
    quoted = _quoted(text)
    own = {q for q in quoted if any(d.id == q[1] and d.contains(q[0], q[2]) for d in shown)}
    others = (q for other in read for q in _quoted(other)) if any(q not in own for q in quoted) else ()
    told = _TrueQuotations([*own, *others], documents)
    return [_judged(q, documents, shown, agent, is_own=q in own, is_told=told.have_part(*q)) for q in quoted]


def _judged(
    quoted: tuple[str, str, int],
    documents: Sequence[Document],
    shown: Sequence[Document],
    agent: str,
    *,
    is_own: bool,
    is_told: bool,
) -> Quotation:
    words, source, line = quoted
    relayed, stands = False, ""
    if is_told and not is_own:
        relayed = not any(d.id == source and d.find(words, line) for d in shown)
    elif not is_own:
        by_claim = sorted(documents, key=lambda d: d.id != source)
        stands = next((f"{d.id}:{lines[0]}" for d in by_claim if (lines := d.find(words, line))), "")
    return Quotation(
        words=words,
        source=source,
        line=line,
        verified=is_own or is_told,
        agent=agent,
        relayed=relayed,
        stands=stands,
    )


class _TrueQuotations:
    """Quotations whose words are where claimed."""

    def __init__(self, quoted: Iterable[tuple[str, str, int]], documents: Iterable[Document]) -> None:
        self._documents = {document.id: document for document in documents}
        forms: dict[tuple[str, int], list[str]] = {}
        for words, source, line in quoted:
            if source in self._documents and self._documents[source].contains(words, line):
                for place in ((source, line), (source, 0)):
                    forms.setdefault(place, []).append(same_form(words))
        self._texts = {place: "\n".join(place_forms) for place, place_forms in forms.items()}
        """By document and line, and by document with 0 as line: one text, since `in` is linear in it for any words."""

    def have_part(self, words: str, source: str, line: int) -> bool:
        """Return whether the words are part of one of them, with its line or with that in which the part begins."""
        wanted = quoted_form(words)
        if not wanted or wanted not in self._texts.get((source, 0), ""):
            return False
        return wanted in self._texts.get((source, line), "") or self._documents[source].contains(words, line)


@lru_cache(maxsize=4)
def _split_lines(text: str) -> tuple[str, ...]:
    """Many calls are shown parts of one document, each a `Document`."""
    return tuple(text.splitlines())


def _line_at(spans: Sequence[tuple[int, int]], position: int) -> int:
    """Return the index of the line that holds a position of the text in normal form."""
    return bisect_right(spans, (position, sys.maxsize)) - 1


def _quoted(text: str) -> list[tuple[str, str, int]]:
    plain = text.replace('\\"', '"')  # a reply of several fields is JSON
    return [(words, source, _line(line)) for words, source, line in _QUOTATION.findall(plain)]


def _line(digits: str) -> int:
    """Return a line number; 0, which no document has, if it has ten digits or more."""
    return int(digits) if len(digits) < 10 else 0


def quoted_form(words: str) -> str:
    """Return the normal form of quoted words, in which final punctuation does not count."""
    return same_form(words).rstrip(".,;: ")


def same_form(text: str) -> str:
    """Return `text` without invisible characters, and without differences of case, whitespace (also after a hyphen that divides a
    word), typographic quotation marks and dashes. All comparisons of quoted words use it."""
    words = " ".join(_IGNORABLE.sub("", normalize("NFKC", text)).translate(PLAIN_MARKS).casefold().split())
    return _DIVIDED.sub("-", words)
