"""Reading a unified diff: the changed lines of each file, and which line of which file a line of the diff shows."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from consilience.domain.findings import DiffHunk
from consilience.engine.sources import Document
from consilience.targets.moves import MovableLine, find_moves

DiffSide = Literal["new", "old"]
DiffPlace = tuple[DiffSide, int]
"""A line of the new or of the old file, from 1."""

_HUNK = re.compile(r"(@@+) ((?:-\d{1,9}(?:,\d{1,9})? )+)\+(\d{1,9})(?:,(\d{1,9}))? \1")
_RANGE = re.compile(r"-(\d+)(?:,(\d+))?")
_START = re.compile(r"diff (--git|--cc|--combined|-\S+) (.*)")
_OPENING = re.compile(r"diff -|--- .|Index: .|commit [0-9a-f]{7}|From [0-9a-f]{7}|From: ")
"""The first line of a diff, of the output of `git show`, or of a patch by mail."""


@dataclass(frozen=True)
class FileChange:
    """A file that a diff changes."""

    path: str
    """The new path; of a deleted file, the old one."""
    old_path: str
    """"" if the diff adds the file."""
    document: str | None
    """Id of the document with its new text."""
    added: tuple[tuple[int, int], ...]
    """Ranges of changed lines in the new file. If lines were only removed, the lines next to them count as changed."""
    diff_lines: tuple[int, int]
    """First and last line of the diff, from 1, that are about this file."""
    hunks: tuple[DiffHunk, ...] = ()
    places: Mapping[int, DiffPlace] = field(default_factory=dict)
    """The place of each line in a hunk, by its line in the document with the diff. Unchanged lines are on the side `new`."""
    new_lines: Mapping[int, str] = field(default_factory=dict)
    """The lines of the new file that the diff shows, by number, without line ends."""
    ends_without_newline: bool = False
    """Whether the diff shows that the last line of the new file has no line end."""
    moved: tuple[tuple[int, int], ...] = ()
    """Ranges of the added lines that the diff removes elsewhere: they are old, and only their place is new."""
    moved_away: tuple[tuple[int, int], ...] = ()
    """Ranges of the old file, of its removed lines that the diff adds elsewhere."""

    @property
    def is_new(self) -> bool:
        """Whether the diff adds the file, so that the new text says all that the diff does."""
        return not self.old_path

    def is_changed(self, first: int, last: int) -> bool:
        """Return whether a range of lines of the new file holds a changed line. Moved lines are not changed."""
        if not self.moved:
            return any(start <= last and first <= end for start, end in self.added)
        return any(_holds(self.added, n) and not _holds(self.moved, n) for n in range(first, last + 1))

    def is_moved(self, side: DiffSide, first: int, last: int) -> bool:
        """Return whether all lines of a range were moved, on either side."""
        return all(_holds(self.moved if side == "new" else self.moved_away, n) for n in range(first, last + 1))

    def may_cause(self, side: DiffSide, number: int) -> bool:
        """Return whether a changed line may be named as a cause: of moved lines, the first and the last, for the move itself."""
        moved = self.moved if side == "new" else self.moved_away
        return not _holds(moved, number) or any(number in ends for ends in moved)


def _holds(ranges: Sequence[tuple[int, int]], number: int) -> bool:
    return any(first <= number <= last for first, last in ranges)


@dataclass(frozen=True)
class Changes:
    """A unified diff, parsed from the text of a document."""

    document: str
    """Id of that document."""
    files: tuple[FileChange, ...]
    texts: Mapping[DiffSide, str] = field(default_factory=dict)
    """The diff as either file has it: without marks, each line that only the other file has is empty. Lines keep their numbers."""

    def file_at(self, diff_line: int) -> FileChange | None:
        """Return the file that a line of the diff is about."""
        index = bisect_right(self.files, diff_line, key=lambda file: file.diff_lines[0]) - 1
        return self.files[index] if index >= 0 and diff_line <= self.files[index].diff_lines[1] else None

    @property
    def hunks(self) -> tuple[DiffHunk, ...]:
        return tuple(hunk for file in self.files for hunk in file.hunks)


def parse_changes(documents: Sequence[Document]) -> Changes | None:
    """Return the diff that the first document is, with the other documents as the new texts of its files; None if it is none.

    A document is a diff if it has a file header and if its name (`diff main..HEAD`, `x.diff`) or its first line says so. If none
    of the other documents is one of its files, it is a file among others. Any text is accepted: what is no diff is skipped.
    Linear in the text.
    """
    return _parse(tuple(documents))


@lru_cache(maxsize=4)
def _parse(documents: tuple[Document, ...]) -> Changes | None:
    if not documents:
        return None
    diff = documents[0]
    ids = {document.name: document.id for document in documents[1:] if not document.purpose}
    is_named = diff.name.startswith("diff ") or diff.name.endswith((".diff", ".patch"))
    if not is_named and not _OPENING.match(diff.text.lstrip()):
        return None
    parser = _Parser(diff.text, frozenset(ids))
    files = tuple(file.result(ids) for file in parser.parse())
    if not files or (ids and not diff.name.startswith("diff ") and ids.keys().isdisjoint(f.path for f in files)):
        return None
    files = tuple(_with_moves(files, diff.text.splitlines()))
    texts: dict[DiffSide, str] = {"new": parser.text_of("new"), "old": parser.text_of("old")}
    return Changes(diff.id, files, texts)


def _with_moves(files: Sequence[FileChange], diff: Sequence[str]) -> Iterator[FileChange]:
    """Yield the files with what was moved within and between them."""
    removed: list[MovableLine] = []
    added: list[MovableLine] = []
    for n, file in enumerate(files):
        for line, (side, number) in file.places.items():
            text = diff[line - 1]
            if text[:1] in ("+", "-") and (text[0] == "-") == (side == "old"):
                (added if side == "new" else removed).append(MovableLine(n, number, text[1:]))
    moved: dict[int, list[tuple[int, int]]] = defaultdict(list)
    away: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for move in find_moves(removed, added):
        for ranges, lines in ((moved, move.new), (away, move.old)):
            ranges[lines[0].file].append((lines[0].number, lines[-1].number))
    for n, file in enumerate(files):
        yield replace(file, moved=tuple(moved[n]), moved_away=tuple(away[n])) if n in moved or n in away else file


@dataclass
class _File:
    """A file while it is parsed."""

    first: int
    """Of its lines in the diff."""
    last: int
    from_header: tuple[str, str] | None = None
    """Old and new path of the line `diff --git`."""
    old: str | None = None
    """As in the line `---` or `rename from`, without prefix; "" for `/dev/null`."""
    new: str | None = None
    hunks: list[DiffHunk] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    places: dict[int, DiffPlace] = field(default_factory=dict)
    new_lines: dict[int, str] = field(default_factory=dict)
    is_added: bool = False
    is_deleted: bool = False
    is_renamed: bool = False
    ends_without_newline: bool = False

    @property
    def path(self) -> str:
        header = self.from_header or ("", "")
        if self.is_deleted or self.new == "":
            return self.old or header[0] or header[1]
        return self.new or header[1] or self.old or header[0]

    def result(self, documents: Mapping[str, str]) -> FileChange:
        old = self.old if self.old is not None else (self.from_header or ("",))[0]
        path = self.path
        return FileChange(
            path=path,
            old_path="" if self.is_added else old,
            document=None if self.is_deleted or self.new == "" else documents.get(path),
            added=tuple(_ranges(self.changed)),
            diff_lines=(self.first, self.last),
            hunks=tuple(hunk.model_copy(update={"file": path}) for hunk in self.hunks),
            places=self.places,
            new_lines=self.new_lines,
            ends_without_newline=self.ends_without_newline,
        )


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that sorted or nearly sorted line numbers form."""
    first = last = 0
    for number in sorted(set(numbers)):
        if first and number == last + 1:
            last = number
            continue
        if first:
            yield first, last
        first = last = number
    if first:
        yield first, last


class _Parser:
    """Reads a diff line by line. `_File` objects come out in the order of the diff."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        self._lines = text.removesuffix("\n").split("\n")
        self._names = names
        self._files: list[_File] = []
        self._shown: dict[DiffSide, list[str]] = {"new": [], "old": []}
        self._next_line = 1  # of the document: a line that `str.splitlines` cuts is several there
        self._open = False  # whether the last file still takes header lines

    def parse(self) -> list[_File]:
        at = 0
        while at < len(self._lines):
            header = _HUNK.match(self._lines[at]) if self._files else None
            if header:
                at = self._hunk(at, header)
            else:
                self._header_line(at)
                at += 1
        return [file for file in self._files if file.path]

    def text_of(self, side: DiffSide) -> str:
        return "\n".join(self._shown[side]) + "\n"

    def _take(self, at: int, mark: int = 0, sides: Sequence[DiffSide] = ("new", "old")) -> range:
        """Count a line, show it on these sides without its first `mark` characters, and return its lines in the document."""
        line = self._lines[at]
        pieces = (line[mark:] + "\n").splitlines()
        for side, shown in self._shown.items():
            shown += pieces if side in sides else [""] * len(pieces)
        taken = range(self._next_line, self._next_line + len(pieces))
        self._next_line += len(pieces)
        return taken

    # lines outside of hunks

    def _header_line(self, at: int) -> None:
        line = self._lines[at].removesuffix("\r")
        number = self._next_line
        self._take(at)
        if start := _START.fullmatch(line):
            paths = header_paths(start[2], self._names) if start[1] == "--git" else None
            if start[1] in ("--cc", "--combined"):
                paths = (path_of(start[2]),) * 2
            self._files.append(_File(number, number, from_header=paths))
            self._open = True
        elif self._is_named(at):
            if not self._open:
                self._files.append(_File(number, number))
                self._open = True
            self._names_line(at)
        elif self._open and self._extended_header(line):
            self._files[-1].last = number

    def _is_named(self, at: int) -> bool:
        """Whether the names of a file begin in line `at`, with a hunk behind them."""
        triple = self._lines[at : at + 3]
        return len(triple) == 3 and all(map(str.startswith, triple, ("--- ", "+++ ", "@@")))

    def _names_line(self, at: int) -> None:
        """Read the names in `--- old` and the line after it."""
        file = self._files[-1]
        old, new = (self._lines[n].rstrip("\r")[4:] for n in (at, at + 1))
        file.last = self._next_line
        file.is_added = file.is_added or path_of(old) == ""
        file.is_deleted = file.is_deleted or path_of(new) == ""
        if not file.is_renamed:
            file.old, file.new = end_paths(old, new, self._names)

    def _extended_header(self, line: str) -> bool:
        """Read a line such as `rename to x.py`; return whether it is one."""
        file = self._files[-1]
        keyword, _, value = line.partition(" ")
        if keyword in ("rename", "copy"):
            end, _, path = value.partition(" ")
            if end == "from":
                file.old, file.is_renamed = path_of(path, dated=False), True
            elif end == "to":
                file.new, file.is_renamed = path_of(path, dated=False), True
            return True
        file.is_added = file.is_added or line.startswith("new file mode")
        file.is_deleted = file.is_deleted or line.startswith("deleted file mode")
        headers = ("new file", "deleted file", "old mode", "new mode", "mode ", "similarity", "dissimilarity", "index ")
        return line.startswith((*headers, "Binary files", "GIT binary patch", "literal ", "delta ", "+++ "))

    # hunks

    def _hunk(self, at: int, header: re.Match[str]) -> int:
        """Read a hunk whose header is line `at`; return the line after it. It ends where its header says, or before the first line
        that cannot be in it."""
        ranges = [(int(first), int(count or 1)) for first, count in _RANGE.findall(header[2])]
        marks = len(header[1]) - 1
        if len(ranges) != marks:
            self._take(at)
            return at + 1
        file = self._files[-1]
        self._open = False
        self._take(at)
        hunk = _Hunk(file, ranges, (int(header[3]), int(header[4] or 1)))
        at += 1
        while at < len(self._lines) and (hunk.ends_after_two or not self._is_named(at)):
            line = self._lines[at].removesuffix("\r")
            if line.startswith("\\"):
                hunk.note_no_newline()
                file.last = self._take(at, sides=())[-1]
                at += 1
                continue
            mark = line[:marks].ljust(marks)
            place = hunk.place(mark)
            if place is None:
                break
            taken = self._take(at, marks, hunk.sides(mark))
            file.places.update(dict.fromkeys(taken, place))
            if place[0] == "new":
                file.new_lines[place[1]] = line[marks:]
            file.last = taken[-1]
            at += 1
        hunk.close()
        return at


class _Hunk:
    """Line numbers while a hunk is read, of one old file or, in the diff of a merge, of several."""

    def __init__(self, file: _File, old: Sequence[tuple[int, int]], new: tuple[int, int]) -> None:
        self._file = file
        # an empty range names the line before it
        self._old = [first + (count == 0) for first, count in old]
        self._old_left = [count for _, count in old]
        self._new = new[0] + (new[1] == 0)
        self._new_left = new[1]
        self._first = self._old[0], self._new
        self._has_removed = self._has_added = False  # since the last unchanged line
        self._last: DiffSide | None = None

    @property
    def ends_after_two(self) -> bool:
        """Whether one removed and one added line are left, so that `--- x` and `+++ y` may be these."""
        return self._old_left == [1] and self._new_left == 1

    def place(self, mark: str) -> DiffPlace | None:
        """Count a line with these marks, one for each old file, and return its place; None if the hunk does not hold it."""
        if set(mark) - set(" +-") or {"+", "-"} <= set(mark):
            return None
        is_removed = "-" in mark
        within = [n for n, char in enumerate(mark) if char == ("-" if is_removed else " ")]
        if any(self._old_left[n] < 1 for n in within) or (not is_removed and self._new_left < 1):
            return None
        place: DiffPlace = ("old", self._old[within[0]]) if is_removed else ("new", self._new)
        for n in within:
            self._old[n] += 1
            self._old_left[n] -= 1
        if is_removed:
            self._has_removed = True
        else:
            self._new += 1
            self._new_left -= 1
            self._note_changed("+" in mark, place[1])
        self._last = place[0]
        return place

    def _note_changed(self, is_added: bool, number: int) -> None:
        if is_added:
            self._file.changed.append(number)
            self._has_added = True
            return
        if self._has_removed and not self._has_added:
            self._file.changed += [number - 1, number] if number > 1 else [number]
        self._has_removed = self._has_added = False

    @staticmethod
    def sides(mark: str) -> tuple[DiffSide, ...]:
        if "-" in mark:
            return ("old",)
        return ("new",) if "+" in mark else ("new", "old")

    def note_no_newline(self) -> None:
        """Note that the line before has no line end."""
        if self._last == "new":
            self._file.ends_without_newline = True

    def close(self) -> None:
        """Add what the hunk shows to the file."""
        file = self._file
        if self._has_removed and not self._has_added and not (file.is_deleted and self._new == 1):
            file.changed.append(max(self._new - 1, 1))
        (old, new) = self._first
        file.hunks.append(DiffHunk(file="", old=(old, self._old[0] - 1), new=(new, self._new - 1)))


_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb'\\([0-7]{1,3}|[abtnvfr"\\])')
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_PREFIX = re.compile(r"([abciow12])/(?=.)")
"""The ends of a diff as Git names them, `diff.mnemonicPrefix` included."""
_DATE = re.compile(r"(\t.*| {2,}\d{4}-\d\d-\d\d .*)$")


def path_of(text: str, *, dated: bool = True) -> str:
    """Return the path in a header line, unquoted and without the date after it; "" for `/dev/null`."""
    quoted = _QUOTED.match(text)
    plain = _DATE.sub("", text) if dated else text
    path = _unquote(quoted[1]) if quoted else plain
    return "" if path == "/dev/null" else _printable(path)


def header_paths(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """Return old and new path of `diff --git` followed by `text`.

    None if they differ and hold spaces, so that the end of the first is unknown. Other lines of such a file have its names.
    """
    if quoted := _QUOTED.match(text):
        return end_paths(text[: quoted.end()], text[quoted.end() + 1 :], names)
    end = text.find(' "') if text.endswith('"') else text.find(" ") if text.count(" ") == 1 else -1
    if end > 0:
        return end_paths(text[:end], text[end + 1 :], names)
    middle = len(text) // 2
    paths = end_paths(text[:middle], text[middle + 1 :], names)
    return paths if text[middle : middle + 1] == " " and paths[0] == paths[1] else None


def end_paths(old_text: str, new_text: str, names: Collection[str]) -> tuple[str, str]:
    """Return old and new path from the two ends of a header, without prefixes such as `a/` and `b/`; "" for `/dev/null`.

    `names` are the names of the documents, which decide whether the first directory is a prefix.
    """
    old, new = path_of(old_text), path_of(new_text)
    prefixes = [match and match[1] for match in map(_PREFIX.match, (old, new))]
    is_prefixed = prefixes[0] != prefixes[1] and all(
        prefix or not end for prefix, end in zip(prefixes, (old, new), strict=True)
    )
    path, rest = new or old, (new or old).partition("/")[2]
    if is_prefixed if (path in names) == (rest in names) else rest in names:
        return old.partition("/")[2], new.partition("/")[2]
    return old, new


def _unquote(text: str) -> str:
    """Decode the quotation of C, whose escapes are bytes of UTF-8."""

    def byte(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if escape[:1].isdigit():
            return bytes([int(escape, 8) & 255])
        return _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(byte, text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _printable(path: str) -> str:
    """Return a path as documents are named: what cannot be printed as `\\ufffd`."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in path)
