"""Source documents, and verifying quotations of them."""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, zip_longest
from typing import NamedTuple
from unicodedata import normalize

from consilience.domain.document_shares import DocumentShare, Purpose
from consilience.domain.errors import ProtocolViolation
from consilience.domain.events import SourceRef, text_id
from consilience.domain.messages import PLACE_LINE, PLAIN_MARKS, Quotation, Source, numbered_lines
from consilience.domain.prompt_parts import ShownDocument

_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that are shown as nothing (Unicode's Default_Ignorable_Code_Point): soft hyphen, zero-width space and others."""

_DIVIDED = re.compile(r"(?<=[^\W\d_])- (?=[^\W\d_])")

_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")

_REFERENCE = re.compile(r"(S\d+)(?::([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?)?")

_LINES = r"(?:(?!S\d)[A-Za-z]{1,8}\.? ?\d{1,9}:)?\d+(?:[-–]\d+)?"

_QUOTATION = re.compile(
    r"(?:[\"“„«»](?P<words>[^\"“”„«»]{2,}?)[\"”“«»]|`(?P<code>[^`\n]{2,})`"
    r"|(?<!\w)['‘](?P<marked>(?:[^'‘’]|(?<=\w)['’](?=\w)){2,}?)['’])[*_]{0,3}[.,;:]?\s*"
    rf"\[(?P<places>S\d+:{_LINES}(?:\s*[,;]\s*(?:S\d+:)?{_LINES})*)\]"
)
"""Words in quotation marks or marked as code, and where they are claimed to be: `[S3:12]`, `[S3:12-14]`, `[S3:12, 15; S4:2]`."""

_PLACE = re.compile(r"(?:(S\d+):)?(?:[A-Za-z]{1,8}\.? ?(\d{1,9}):)?(\d+)(?:[-–](\d+))?")
"""Document, the number of the page or sheet if it is named (`S3:p4:12`), and first and last line."""


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
    remarks: tuple[str, ...] = ()
    """What of its file or directory the text does not show."""
    shares: tuple[DocumentShare, ...] = ()
    """Who is shown which lines, if it is dealt; empty: all agents that may read it are shown all of it."""
    purpose: Purpose = ""
    """What it is for, if it is not the subject itself."""
    is_related: bool = False
    """Whether these lines are shown beside an agent's own because they are related to them."""

    @property
    def text_id(self) -> str:
        return text_id(self.text)

    @property
    def reference(self) -> str:
        """Its name in prompts: `S4`, or `S4:120-380` for a part."""
        return ShownDocument(self.id, self.lines).reference

    @property
    def is_common(self) -> bool:
        """Whether every agent is shown it alike."""
        return self.agents is None and not self.shares

    def parts_for(self, agent: str) -> tuple[Document, ...]:
        """Return what a dealt document shows to an agent: its own lines, then the related ones."""
        whole = (1, max(self.line_count, 1))
        return tuple(
            replace(self, lines=None if lines == whole else lines, is_related=is_related)
            for share in self.shares
            if share.agent == agent
            for is_related, ranges in ((False, share.lines), (True, share.related))
            for lines in ranges
        )

    @property
    def line_count(self) -> int:
        """Lines of the whole document."""
        return len(self._lines)

    def place(self, line: int) -> str:
        """Return the page, sheet, slide, chapter or cell in which a line is, as in `page 4`; empty before the first."""
        index = bisect_right(self._places, (line, "\uffff"))
        return self._places[index - 1][1] if index else ""

    def refer_to(self, line: int) -> str:
        """Return a line for readers, as in `S2:41 (page 4)`."""
        return f"{self.id}:{line} ({place})" if (place := self.place(line)) else f"{self.id}:{line}"

    @cached_property
    def numbered(self) -> str:
        """The text as shown, with line numbers, since a quotation names the line where it begins."""
        return numbered_lines(self._lines, self.name, self.lines)

    @cached_property
    def referenced(self) -> str:
        """The lines shown, each with its full reference, for lines of several documents together."""
        first, last = self.lines or (1, None)
        return "\n".join(f"{self.id}:{n}| {line}" for n, line in enumerate(self._lines[first - 1 : last], first))

    @cached_property
    def part_id(self) -> str:
        """Id of the text that is shown."""
        return text_id("\n".join(self._lines[self.lines[0] - 1 : self.lines[1]])) if self.lines else self.text_id

    def contains(self, words: str, line: int) -> bool:
        """Return whether the words begin in that line (from 1) and lie within the lines shown. Case, whitespace, quotation marks,
        dashes, invisible characters, a hyphen at the end of a line and final punctuation do not count."""
        return self.begin_of(words, line, line) is not None

    def begin_of(self, words: str, first: int, last: int) -> int | None:
        """Return the first line of a range (from 1, both ends included) in which the words begin, as `contains` judges it."""
        shown_first, shown_last = self.lines or (1, len(self._lines))
        first, last = max(first, shown_first) - shown_first, min(last, shown_last) - shown_first
        wanted = quoted_form(words)
        if not wanted or first > last:
            return None
        lines = [line for form in self._forms if (line := form.begin_of(wanted, first, last)) is not None]
        return min(lines) + shown_first if lines else None

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
    def _places(self) -> list[tuple[int, str]]:
        """Where each place begins: its line, and what it is."""
        matches = ((n, PLACE_LINE.fullmatch(line)) for n, line in enumerate(self._lines, 1) if line.startswith("["))
        return [(n, match[1]) for n, match in matches if match]

    @cached_property
    def _forms(self) -> tuple[_NormalForm, ...]:
        """The lines shown in normal form; a second time without hyphens within words, if a word may be divided at a line end."""
        first, last = self.lines or (1, None)
        lines = [_one_mark(same_form(line)) for line in self._lines[first - 1 : last]]
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

    def begin_of(self, wanted: str, first: int, last: int) -> int | None:
        """Return the first of the lines with these indexes in which `wanted` begins; None if it begins in none."""
        wanted = _joined(wanted) if self._joined else wanted
        position = self.text.find(wanted, self.spans[first][0], self.spans[last][1] - 1 + len(wanted))
        return _line_at(self.spans, position) if position >= 0 else None

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


def number_documents(sources: Iterable[Source]) -> tuple[Document, ...]:
    """Return documents numbered S1, S2, … in the order of their sources."""
    return tuple(
        Document(f"S{n}", s.name, s.text, s.agents, remarks=s.remarks, shares=s.shares, purpose=s.purpose)
        for n, s in enumerate(sources, 1)
    )


def document_from_ref(ref: SourceRef, text: str, *, forks: int = 0) -> Document:
    """Return a recorded document, as of `forks` forks later."""
    generations = None if ref.generations is None else ref.generations + forks
    return Document(
        ref.id,
        ref.name,
        text,
        ref.agents,
        generations=generations,
        remarks=ref.remarks,
        shares=ref.shares,
        purpose=ref.purpose,
    )


def document_refs(documents: Sequence[Document]) -> tuple[SourceRef, ...]:
    return tuple(
        SourceRef(
            id=d.id,
            name=d.name,
            text=d.text_id,
            agents=d.agents,
            generations=d.generations,
            remarks=d.remarks,
            shares=d.shares,
            purpose=d.purpose,
        )
        for d in documents
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
    """Return every `"words" [S2:41]`, `[S2:p3:41]` or `[S2:41-43, S4:2]` in the text. It is verified if the agent was shown these
    lines, on the page named if one is, if it is a part of a true quotation in the text or in one that the agent read, or if the
    words stand there and in a text that the agent read.

    `documents` are all of the session, `shown` those, or parts of them, that the agent was shown (default: those open to it), and
    `read` are texts by others; these are looked at only where something else is quoted.
    """
    if shown is None:
        shown = [document for document in documents if document.agents is None or agent in document.agents]
    quoted = _quoted(text, documents)
    own = {q for q in quoted if any(q.stands_in(d) for d in shown)}
    others = tuple(map(_strings_of, read)) if any(q not in own for q in quoted) else ()
    told = _ToldWords(own, others, documents)
    return [_judged(q, documents, shown, agent, is_own=q in own, is_told=told.have(q)) for q in quoted]


def _judged(
    quoted: _Quoted,
    documents: Sequence[Document],
    shown: Sequence[Document],
    agent: str,
    *,
    is_own: bool,
    is_told: bool,
) -> Quotation:
    words, source, line, page = quoted
    place = next((d.place(line) for d in documents if d.id == source), "")
    relayed, stands = False, ""
    if is_told and not is_own:
        relayed = not any(d.id == source and d.find(words, line) for d in shown)
    elif not is_own:
        by_claim = sorted(documents, key=lambda d: d.id != source)
        stands = next((d.refer_to(lines[0]) for d in by_claim if (lines := d.find(words, line))), "")
    return Quotation(
        words=words,
        source=source,
        line=line,
        verified=is_own or is_told,
        agent=agent,
        relayed=relayed,
        stands=stands,
        place=f"{place.split()[0]} {int(page)}" if page and place else place,
    )


class _ToldWords:
    """True quotations, whose words are where claimed, and what else stands in the texts that an agent read."""

    def __init__(self, own: Iterable[_Quoted], others: Sequence[str], documents: Sequence[Document]) -> None:
        self._documents = {document.id: document for document in documents}
        self._others = tuple(_one_mark(same_form(text)) for text in others)
        forms: dict[tuple[str, int], list[str]] = {}
        for quotation in (*own, *(q for text in others for q in _quoted(text, documents))):
            words, source, line, _ = quotation
            if self._is_true(quotation):
                for place in ((source, line), (source, 0)):
                    forms.setdefault(place, []).append(_one_mark(same_form(words)))
        self._texts = {place: "\n".join(place_forms) for place, place_forms in forms.items()}
        """By document and line, and by document with 0 as line: one text, since `in` is linear in it for any words."""

    def have(self, quoted: _Quoted) -> bool:
        """Return whether the words are part of a true quotation, with its line or with that in which the part begins, or stand in a
        text that was read and where claimed."""
        wanted = quoted_form(quoted.words)
        document = self._documents.get(quoted.source)
        if not wanted or document is None or not quoted.is_on_page(document):
            return False
        if wanted in self._texts.get((quoted.source, quoted.line), ""):
            return True
        is_read = wanted in self._texts.get((quoted.source, 0), "") or any(wanted in text for text in self._others)
        return is_read and document.contains(quoted.words, quoted.line)

    def _is_true(self, quotation: _Quoted) -> bool:
        document = self._documents.get(quotation.source)
        return document is not None and quotation.stands_in(document)


@lru_cache(maxsize=4)
def _split_lines(text: str) -> tuple[str, ...]:
    """Many calls are shown parts of one document, each a `Document`."""
    return tuple(text.splitlines())


def _line_at(spans: Sequence[tuple[int, int]], position: int) -> int:
    """Return the index of the line that holds a position of the text in normal form."""
    return bisect_right(spans, (position, sys.maxsize)) - 1


class _Quoted(NamedTuple):
    """Words with the place where they are claimed to be."""

    words: str
    source: str
    line: int
    page: str
    """The number of the page, sheet or slide; empty if none is named."""

    def is_on_page(self, document: Document) -> bool:
        """Whether the line is on the page that is named, if one is and the document has pages."""
        place = document.place(self.line) if self.page else ""
        return not place or place.split()[1] == str(int(self.page))

    def stands_in(self, document: Document) -> bool:
        return document.id == self.source and document.contains(self.words, self.line) and self.is_on_page(document)


def _quoted(text: str, documents: Sequence[Document]) -> list[_Quoted]:
    """Return the quotations of a text. One that names several lines or places is at the first of them where its words begin, or
    else at the first."""
    quoted = []
    for match in _QUOTATION.finditer(_strings_of(text)):
        words = match["words"] or match["code"] or match["marked"]
        places = list(_places(words, match["places"], documents))
        quoted.append(next((q for q in places if any(q.stands_in(d) for d in documents)), places[0]))
    return quoted


def _places(words: str, references: str, documents: Sequence[Document]) -> Iterator[_Quoted]:
    source = ""
    for named, page, first, last in _PLACE.findall(references):
        source = named or source
        line = _line(first)
        document = next((d for d in documents if d.id == source), None) if last else None
        begin = document.begin_of(words, line, _line(last)) if document else None
        yield _Quoted(words, source, begin or line, page)


def _strings_of(text: str) -> str:
    """Return the text, or the strings of a reply that is a JSON object, as they are without JSON's escapes."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return "\n".join(_strings_in(json.loads(text)))
    except (ValueError, RecursionError):
        return text


def _strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings_in(part)


def _line(digits: str) -> int:
    """Return a line number; 0, which no document has, if it has ten digits or more."""
    return int(digits) if len(digits) < 10 else 0


def _one_mark(text: str) -> str:
    """Return text with one kind of quotation mark: who quotes a quotation writes the inner marks as single ones."""
    return text.replace('"', "'")


def quoted_form(words: str) -> str:
    """Return the normal form of quoted words, in which final punctuation does not count."""
    return _one_mark(same_form(words)).rstrip(".,;: ")


def same_form(text: str) -> str:
    """Return `text` without invisible characters, and without differences of case, whitespace (also after a hyphen that divides a
    word), typographic quotation marks and dashes. All comparisons of quoted words use it."""
    words = " ".join(_IGNORABLE.sub("", normalize("NFKC", text)).translate(PLAIN_MARKS).casefold().split())
    return _DIVIDED.sub("-", words)
