"""Which files become documents: text within bounds, without lock files, generated and minified files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from consilience.documents import (
    MAX_OFFICE_BYTES,
    MAX_SOURCE_BYTES,
    UTF16_MARKS,
    DocumentText,
    decode_text,
    is_binary,
    is_office,
    read_data,
    without_pictures,
)
from consilience.domain.errors import EncodingError, SourceError
from consilience.domain.messages import Source
from consilience.targets.ignore import Patterns, parse_patterns

MAX_FILES = 1_000
"""Max files of one target."""

MAX_TOTAL_BYTES = 10_000_000
"""Max size of all files of one target."""

MAX_FILE_BYTES = 1_000_000
"""Max size of one file that is not asked for by name."""

MAX_LINE_CHARS = 10_000
"""Max length of a line; a text with a longer line is minified or data."""

LOCK_FILES = (
    *("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "deno.lock"),
    *("uv.lock", "poetry.lock", "pdm.lock", "pixi.lock", "Pipfile.lock", "Cargo.lock", "Gemfile.lock"),
    *("composer.lock", "go.sum", "flake.lock", "mix.lock", "Podfile.lock", "Package.resolved", "gradle.lockfile"),
)
GENERATED_FILES = ("*.js.map", "*.css.map", "*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*.pb.go", "*.g.dart")
MINIFIED_FILES = ("*.min.js", "*.min.mjs", "*.min.css")
PATCH_FILES = ("*.diff", "*.patch")
"""Names, in `.gitignore` syntax, of files that are left out unless they are asked for."""

LEFT_OUT_NAMES = {
    "lock file": LOCK_FILES,
    "generated": GENERATED_FILES,
    "minified": MINIFIED_FILES,
    "patch": PATCH_FILES,
}

_NAMES_LISTED = 8
_MARKED_GENERATED = re.compile(r"(?<![\w-])@generated\b|Code generated .* DO NOT EDIT", re.IGNORECASE)
_MARKER_LINES = 5
_ESCAPE = re.compile(r"\x1b\[[0-9;:]*[mK]")
_EXTRA_LINE_ENDS = re.compile("[\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")


def printable_name(path: str) -> str:
    """Return a path for people and models, with each character that cannot be printed as `\\ufffd`."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in path)


def with_plain_lines(text: str) -> str:
    """Return text whose lines are those that editors and Git count: characters that only Python takes for a line end (form feed,
    U+2028 and others) become spaces, so that line numbers of a document and of its diff agree."""
    return _EXTRA_LINE_ENDS.sub(" ", text.replace("\r\n", "\n"))


def without_escapes(diff: str) -> str:
    """Return a diff without the escape sequences with which Git colours it for a terminal."""
    return _ESCAPE.sub("", diff)


class Exclusion(NamedTuple):
    """Why files are left out."""

    reason: str
    unread: bool = False
    """Whether they should have been read. Others are left out on purpose."""


@dataclass
class Collection:
    """Documents taken so far, and what was left out, by reason."""

    include: Patterns
    """Files that are taken although their name or content says that they are locked, generated, minified or large."""
    is_of_changes: bool = False
    """Whether a diff is shown beside the texts."""
    as_documents: bool = False
    """Whether HTML, e-mails and notebooks are read as text, and not only what is no text without being converted."""
    sources: list[Source] = field(default_factory=list)
    count: int = 0
    """Files taken."""
    size: int = 0
    """Bytes taken."""
    is_full: bool = False
    """Whether files were left out because enough had been taken."""
    left: dict[Exclusion, dict[str, None]] = field(default_factory=dict)
    """Names by reason, each once, in order."""

    def leave_out(self, name: str, reason: str, *, unread: bool = False) -> None:
        """`unread`: the file should have been read; others are left out on purpose."""
        self.left.setdefault(Exclusion(reason, unread), {})[name] = None

    def leave_out_rest(self, name: str, taken: str) -> None:
        """Leave out a file because enough, `taken`, had been taken before it."""
        self.is_full = True
        self.leave_out(name, f"after the first {taken}", unread=True)

    def is_asked_for(self, name: str) -> bool:
        return self.include.covers(name)

    def is_converted(self, name: str) -> bool:
        """Return whether a file is read by converting it to text. Beside the diff of a file its own lines are needed."""
        return is_office(name) and not self.is_of_changes

    def accepts(self, name: str, size: int) -> bool:
        """Return whether a file of `size` bytes may be read; what is not is left out with its reason."""
        asked = self.is_asked_for(name)
        limit = MAX_OFFICE_BYTES if self.is_converted(name) else MAX_SOURCE_BYTES if asked else MAX_FILE_BYTES
        reason = "" if asked else next((why for why, patterns in _LEFT_OUT.items() if patterns.covers(name)), "")
        if reason:
            self.leave_out(name, reason)
        elif size > limit:
            self.leave_out(name, f"larger than {limit / 1e6:g} MB", unread=True)
        elif self.count >= MAX_FILES:
            self.leave_out_rest(name, f"{MAX_FILES:,} files")
        elif self.size + (0 if self.is_converted(name) else size) > MAX_TOTAL_BYTES:
            self.leave_out_rest(name, f"{MAX_TOTAL_BYTES / 1e6:g} MB")
        else:
            return True
        return False

    def take(self, name: str, size: int, read: Callable[[], bytes | None]) -> Source | None:
        """Return a file as a document; None, with the reason noted, for one that is left out. `read` returns None for no file."""
        if not self.accepts(name, size):
            return None
        data = read()
        checked = Exclusion("not readable", unread=True) if data is None else self._checked(name, data)
        if isinstance(checked, Exclusion):
            self.leave_out(name, checked.reason, unread=checked.unread)
            return None
        self.count += 1
        self.size += len(checked.text) if self.is_converted(name) else size
        return checked.source(name)

    def _checked(self, name: str, data: bytes) -> Exclusion | DocumentText:
        """Return the text of a file, or why it is left out."""
        try:
            if self.as_documents or self.is_converted(name):
                document = read_data(data, "the file", name)
                return document if document.text.strip() else Exclusion("empty")
            text = with_plain_lines(decode_text(data, "the file", name))
        except SourceError as error:
            is_unread = not (isinstance(error, EncodingError) and is_binary(data))
            return Exclusion(error.reason if is_unread else "binary", is_unread)
        if self.is_of_changes and data.startswith(UTF16_MARKS):  # the diff of such a text is not text
            return Exclusion(EncodingError.reason, unread=True)
        text, pictures = without_pictures(text, name)
        if pictures:
            self.leave_out(name, "pictures inside of")
        lines = text.split("\n")
        if self.is_asked_for(name):
            return DocumentText(text)
        if any(_MARKED_GENERATED.search(line) for line in lines[:_MARKER_LINES]):
            return Exclusion("generated")
        return Exclusion("minified") if max(map(len, lines)) > MAX_LINE_CHARS else DocumentText(text)

    @property
    def left_out(self) -> tuple[str, ...]:
        """A line for each reason: `lock file: uv.lock`."""
        return tuple(f"{left.reason}: {_listed(list(names))}" for left, names in self.left.items())

    @property
    def unread(self) -> tuple[str, ...]:
        """The names of the files that should have been read and were not."""
        return tuple(name for left, names in self.left.items() if left.unread for name in names)


def _listed(names: Sequence[str]) -> str:
    listed_names = ", ".join(names[:_NAMES_LISTED])
    return listed_names if len(names) <= _NAMES_LISTED else f"{listed_names} and {len(names) - _NAMES_LISTED:,} more"


def decode_path(path: bytes) -> str:
    """Return a path as the name of a document: what is not UTF-8 or not printable becomes `\ufffd`."""
    return printable_name(path.decode("utf-8", "replace"))


def name_of(path: str) -> str:
    """Return the same for a path from the operating system."""
    return decode_path(os.fsencode(path))


_LEFT_OUT = {why: parse_patterns(names) for why, names in LEFT_OUT_NAMES.items()}
