"""Where files outside a change name what it changes: whole call sites first, names that few files have first."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import log2
from typing import Literal

from consilience.domain.document_shares import Lines
from consilience.engine.sources import Document
from consilience.targets.names import (
    MOVED_FILE,
    PROSE,
    ChangedName,
    directory_of,
    imported_words,
    is_history,
    is_plain,
    is_prose,
    is_test,
    module_of,
    names_of,
)
from consilience.targets.outline import Definition, FileOutline, is_code, outlines_of

SiteKind = Literal["call", "reference", "text", "import"]
KIND_WEIGHTS: Mapping[SiteKind, float] = {"call": 1.0, "reference": 0.8, "text": 0.6, "import": 0.3}
QUALIFIED, OF_SUCH_A_FILE, UNQUALIFIED = 1.0, 0.5, 0.2
"""Whether a site means the changed symbol and not another thing of that name: what stands before it, or the head of the definition
around it, names its class or module; the file does; neither."""
IN_A_CHANGED_FILE = 0.3
"""Its author has looked at it."""
MAX_FILES_OF_AN_UNQUALIFIED_NAME = 6
"""A name that more files have counts only where it is qualified."""
MAX_SITES_OF_A_NAME, MAX_PLACES_OF_A_NAME_IN_A_FILE = 24, 100
MAX_WHOLE_LINES, MAX_SIGNED_LINES, MAX_TEST_LINES = 12, 25, 40
"""A definition of so many lines is shown whole: any; one whose head names what changed, since its body uses that; in a test."""
MAX_STATEMENT_LINES = 12
PROSE_LINES, DATA_LINES = (3, 10), (2, 2)
"""Before and after a mention: in prose, what it says of it follows."""

_RECEIVER = re.compile(r"(\w+)(?:\([^()]*\))?\s*(?:\??\.|->|::)$")
_DEFINES = re.compile(r"\b(?:def|class|function|func|fn|fun|sub|struct|interface|enum|trait|type)\s+$")
_MARKED = re.compile(r"""[`'"(.=:\[\]<>{}/\\@$_-]""")
"""What stands beside a word of a program in prose, and beside none of English."""
_WORD = re.compile(r"\w")
_OWN = frozenset({"self", "this", "cls", "super"})


@dataclass(frozen=True)
class Site:
    """A place that names what a change changes."""

    document: str
    number: int
    name: str
    kind: SiteKind
    is_qualified: bool
    score: float
    of: frozenset[str]
    """The changed files that it speaks of."""
    in_test: bool


@lru_cache(maxsize=4)
def sites_of(documents: tuple[Document, ...]) -> tuple[Site, ...]:
    """Return the sites in documents beside the changed file that each is about, the weightiest first. A second site of one name, or
    in one document, weighs less than the first, so that each leaves room for the others."""
    wanted, outlines = names_of(documents).wanted, outlines_of(documents)
    best: dict[tuple[str, int], Site] = {}
    files: Counter[str] = Counter()
    for document in documents[1:]:
        if document.purpose not in ("", "repository") or is_history(document.name):
            continue
        found = list(_File(document, outlines.get(document.id, FileOutline())).sites(wanted))
        files.update({site.name for site in found})
        for site in found:
            place = site.document, site.number
            if place not in best or best[place].score < site.score:
                best[place] = site
    return tuple(
        _spread(
            replace(site, score=site.score / log2(1 + files[site.name]))
            for site in best.values()
            if site.is_qualified or files[site.name] <= MAX_FILES_OF_AN_UNQUALIFIED_NAME
        )
    )


def _spread(sites: Iterable[Site]) -> Iterator[Site]:
    """Yield sites so that a second one of a name in a document, of a name, or in a document weighs less than the first."""
    both: Counter[tuple[str, str]] = Counter()
    names: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    once: list[Site] = []
    for site in sorted(sites, key=lambda site: -site.score):
        both[site.name, site.document] += 1
        once.append(replace(site, score=site.score / both[site.name, site.document]))
    weighed: list[tuple[float, Site]] = []
    for site in sorted(once, key=lambda site: -site.score):
        if names[site.name] < MAX_SITES_OF_A_NAME:
            weighed.append((site.score / (1 + (names[site.name] + documents[site.document]) / 4), site))
            names[site.name] += 1
            documents[site.document] += 1
    yield from (site for _, site in sorted(weighed, key=lambda pair: -pair[0]))


class _File:
    """A file in which names are looked for."""

    def __init__(self, document: Document, outline: FileOutline) -> None:
        self._document, self._outline = document, outline
        self._lines = document.text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._texts = {n for first, last in outline.texts for n in range(first, last + 1)}
        self._words = frozenset(re.findall(r"\w+", document.text))
        self._imports = {n for first, last in outline.imports for n in range(first, last + 1)}
        self._imported = imported_words(self._lines, outline)
        self._is_code, self._is_test = is_code(document.name), is_test(document.name)

    def sites(self, wanted: Mapping[str, ChangedName]) -> Iterator[Site]:
        for name, changed in wanted.items():
            of = frozenset(changed.of) - {self._document.name}
            if not of or (name.isidentifier() and name not in self._words):
                continue
            found = []
            for start in islice(self._places(name), MAX_PLACES_OF_A_NAME_IN_A_FILE):
                number = bisect_right(self._starts, start)
                kind, trust = self._judged(name, changed, number, start - self._starts[number - 1])
                if trust:
                    score = changed.weight * KIND_WEIGHTS[kind] * trust
                    score *= 1 if self._document.purpose else IN_A_CHANGED_FILE
                    is_qualified = trust > UNQUALIFIED
                    found.append(Site(self._document.id, number, name, kind, is_qualified, score, of, self._is_test))
            uses = [site for site in found if site.kind != "import"]
            yield from uses or found

    def _places(self, name: str) -> Iterator[int]:
        """Yield where a name stands as a whole word."""
        text, end = self._document.text, 0
        while (start := text.find(name, end)) >= 0:
            end = start + len(name)
            if not _WORD.match(text[start - 1 : start]) and not _WORD.match(text[end : end + 1]):
                yield start

    def _judged(self, name: str, changed: ChangedName, number: int, column: int) -> tuple[SiteKind, float]:
        """Return of what kind a site is, and how sure it is that it means the changed name: 0 if it does not."""
        line = self._lines[number - 1]
        before, after = line[:column], line[column + len(name) :]
        modules = {module_of(path) for path in changed.of}
        is_literal = number in self._texts or any(m.start() < column < m.end() for m in PROSE.finditer(line))
        if not self._is_code or (is_literal and not changed.is_key):
            return "text", self._trust_text(name, changed.owners | modules, before, after)
        if not name.isidentifier() and not changed.is_key:  # a file
            if number in self._imports:
                return "import", QUALIFIED if changed.weight >= MOVED_FILE else 0
            return "text", 0 if " " in name else OF_SUCH_A_FILE
        if number in self._imports:
            return "import", 0 if changed.owners else QUALIFIED if modules & self._imported else UNQUALIFIED
        if changed.is_key:
            is_quoted = is_literal and before[-1:] in "`'\"" and after[:1] in "`'\""
            return "reference", QUALIFIED if is_quoted else UNQUALIFIED if before[-1:] == "." else 0
        kind: SiteKind = "call" if after.startswith("(") else "reference"
        receiver = _RECEIVER.search(before)
        if changed.owners:
            if receiver is not None and receiver[1] in self._imported - modules - changed.owners:
                return kind, 0  # of another module
            trust = self._trust_member(changed.owners, receiver, before, after, number)
            return kind, min(trust, UNQUALIFIED) if is_plain(name) and trust == OF_SUCH_A_FILE else trust
        if _DEFINES.search(before):
            return kind, 0
        if receiver is not None:
            return kind, QUALIFIED if receiver[1] in modules else UNQUALIFIED
        is_imported = name in self._imported or not modules.isdisjoint(self._imported)
        is_beside = any(directory_of(path) == directory_of(self._document.name) for path in changed.of)
        return kind, QUALIFIED if is_imported else UNQUALIFIED if is_plain(name) and not is_beside else OF_SUCH_A_FILE

    def _trust_text(self, name: str, qualifiers: Collection[str], before: str, after: str) -> float:
        """Return how sure it is that words of prose, data, a comment or a string are the name: a word of English needs a mark,
        and a command stands at the beginning of a line or of a span of code."""
        if " " in name:
            is_command = is_prose(self._document.name) and before.strip()[-1:] in ("", "$", "`", ">")
            return OF_SUCH_A_FILE if is_command else 0
        if not is_plain(name):
            return OF_SUCH_A_FILE
        beside = before[-1:], after[:1]
        if self._is_code and ("'" in beside or '"' in beside) and beside[0] != beside[1]:  # the ends of a string
            return 0
        if not any(map(_MARKED.match, beside)):
            return 0
        return UNQUALIFIED if self._words.isdisjoint(qualifiers) else OF_SUCH_A_FILE

    def _trust_member(
        self, owners: frozenset[str], receiver: re.Match[str] | None, before: str, after: str, number: int
    ) -> float:
        around = self._outline.around(number, number)
        heads = " ".join(self._head(definition) for definition in around)
        is_in_head = any(re.search(rf"\b{re.escape(owner)}\b", heads) for owner in owners)
        is_in_file = not self._words.isdisjoint(owners)
        if receiver is None:
            is_keyword = re.match(r"\s?=(?!=)", after) is not None
            is_override = _DEFINES.search(before) is not None
            return QUALIFIED if is_override and is_in_head else OF_SUCH_A_FILE if is_keyword and is_in_file else 0
        if is_in_head or any(_resemble(receiver[1], owner) for owner in owners):
            return QUALIFIED
        if receiver[1] in _OWN:
            return UNQUALIFIED if is_in_file else 0
        return OF_SUCH_A_FILE if is_in_file and not receiver[1][0].isupper() else UNQUALIFIED

    def _head(self, definition: Definition) -> str:
        last = definition.head if definition.is_function else definition.first + 3
        return "".join(self._lines[definition.first - 1 : min(last, definition.first + MAX_STATEMENT_LINES)])


def _resemble(receiver: str, owner: str) -> bool:
    """Return whether a variable is called as a class: `config` or `tox_env` as `Configuration` or `ToxEnv`."""
    short, long = (word.replace("_", "").lower() for word in (receiver, owner))
    return len(short) >= 3 and (long.startswith(short) or long.endswith(short) or short.endswith(long))


# --- what is shown of a site


def lines_around(site: Site, document: Document, outline: FileOutline) -> Iterator[Lines]:
    """Yield what is to be shown of a site: a short definition whole; else the statement, and the lines that name what is around."""
    number, lines = site.number, document.text.splitlines()
    if not is_code(document.name):
        reach = PROSE_LINES if is_prose(document.name) else DATA_LINES
        yield _trimmed(lines, max(number - reach[0], 1), number, min(number + reach[1], len(lines)))
        return
    if site.kind == "import":
        yield number, number
        return
    around = outline.around(number, number)
    innermost = around[-1] if around else None
    heads = [_named_line(lines, definition) for definition in around]
    if innermost is not None:
        most = MAX_TEST_LINES if site.in_test else MAX_SIGNED_LINES if number <= innermost.head else MAX_WHOLE_LINES
        if innermost.last - innermost.first < (most if innermost.is_function else MAX_WHOLE_LINES):
            yield from ((head, head) for head in heads[:-1])
            yield innermost.first, innermost.last
            return
    first, last = _statement(lines, number)
    low, high = (innermost.first, innermost.last) if innermost else (1, len(lines))
    yield from ((head, head) for head in heads if head < first)
    yield _trimmed(lines, max(first - 2, low), number, min(last + 2, high))


def _trimmed(lines: Sequence[str], first: int, number: int, last: int) -> Lines:
    while first < number and not lines[first - 1].strip():
        first += 1
    while last > number and not lines[last - 1].strip():
        last -= 1
    return first, last


def _named_line(lines: Sequence[str], definition: Definition) -> int:
    """Return the line that names a definition, after its decorators."""
    for number in range(definition.first, definition.head + 1):
        if definition.name in lines[number - 1] and not lines[number - 1].lstrip().startswith("@"):
            return number
    return definition.first


def _statement(lines: Sequence[str], number: int) -> Lines:
    """Return the lines around one that its brackets bind together."""
    first = last = number
    depth = 0
    for n in range(number - 1, max(number - MAX_STATEMENT_LINES, 0), -1):
        depth += _opened(lines[n - 1])
        if depth > 0:
            first, depth = n, 0
    depth = sum(_opened(line) for line in lines[first - 1 : last])
    while depth > 0 and last < min(number + MAX_STATEMENT_LINES, len(lines)):
        last += 1
        depth += _opened(lines[last - 1])
    return first, last


def _opened(line: str) -> int:
    code = PROSE.sub("", line)
    return sum(map(code.count, "([")) - sum(map(code.count, ")]"))
