"""Directories as documents: ignored and hidden files are skipped, links are not followed."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from consilience.documents import MAX_OFFICE_BYTES, MAX_SOURCE_BYTES
from consilience.domain.errors import SourceError
from consilience.domain.paths import is_of_journal
from consilience.targets.collection import Collection, name_of
from consilience.targets.ignore import Patterns, parse_patterns

MAX_ENTRIES = 50_000
"""Max entries of directories that are looked at."""

_MAX_IGNORE_BYTES = 1_000_000


@dataclass(frozen=True)
class IgnoreFile:
    """The patterns of one `.gitignore`, which count below its directory."""

    directory: str
    patterns: Patterns

    def verdict(self, path: str, is_directory: bool) -> bool | None:
        """Return whether the file at a real path is ignored; None if no pattern matches or it is not below the directory. The last
        match decides."""
        relative = os.path.relpath(path, self.directory)
        if relative == os.curdir or relative.split(os.sep, 1)[0] == os.pardir:
            return None
        return self.patterns.verdict(relative, is_directory=is_directory)


def read_regular(path: Path, limit: int = MAX_SOURCE_BYTES) -> bytes | None:
    """Return the bytes of a regular file; None for a link, a pipe, a device, a larger file, one of the journal, or one that cannot
    be read. Never waits for a writer."""
    if is_of_journal(path):
        return None
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return None
        with os.fdopen(number, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError:
        return None
    finally:
        os.close(number)
    return data if len(data) <= limit else None


def add_directory(directory: Path, shown_name: str, collection: Collection) -> None:
    """Add the text files of a directory and its subdirectories, sorted by name; `shown_name` is the path that the names begin with.

    Skipped, and noted with the reason: what a `.gitignore` on the way or `.git/info/exclude` names, hidden files, links, what is
    not a regular file. Raises `SourceError` if the directory cannot be read.
    """
    real = os.path.realpath(directory)
    count = 0
    waiting = [(real, shown_name, _ignore_files_above(real))]
    while waiting:
        current, prefix, inherited = waiting.pop()
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            if current == real:
                raise SourceError(
                    f"the directory cannot be read: {error.strerror}", where=str(directory), do="Check your rights."
                ) from None
            collection.leave_out(name_of(f"{prefix}/"), "not readable", unread=True)
            continue
        rules = [*inherited, *_ignore_file(current)]
        subdirectories = []
        for entry in entries:
            if entry.name == ".git":
                continue
            count += 1
            if count > MAX_ENTRIES:
                collection.leave_out_rest(name_of(f"{prefix or '.'}/{entry.name}"), f"{MAX_ENTRIES:,} entries")
                return
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if not _is_skipped(entry, name_of(path), rules, collection):
                if entry.is_dir(follow_symlinks=False):
                    subdirectories.append((entry.path, path, rules))
                else:
                    _add_file(entry, name_of(path), collection)
        waiting += reversed(subdirectories)


def _add_file(entry: os.DirEntry[str], name: str, collection: Collection) -> None:
    try:
        size = entry.stat(follow_symlinks=False).st_size
    except OSError:  # it vanished, or its directory may be listed and not entered
        collection.leave_out(name, "not readable", unread=True)
        return
    limit = MAX_OFFICE_BYTES if collection.is_converted(name) else MAX_SOURCE_BYTES
    source = collection.take(name, size, lambda: read_regular(Path(entry.path), limit))
    if source is not None and source.text.strip():
        collection.sources.append(source)


def _is_skipped(entry: os.DirEntry[str], name: str, rules: list[IgnoreFile], collection: Collection) -> bool:
    is_directory = entry.is_dir(follow_symlinks=False)
    shown_name = f"{name}/" if is_directory else name
    if entry.is_symlink():
        reason = "link"
    elif _is_ignored(entry.path, is_directory, rules):
        reason = "ignored by Git"
    elif entry.name.startswith("."):
        reason = "hidden"
    elif is_directory and os.path.lexists(os.path.join(entry.path, ".git")):
        reason = "another repository"
    elif is_directory or entry.is_file(follow_symlinks=False):
        return False
    else:
        reason = "not a regular file"
    collection.leave_out(shown_name, reason)
    return True


def _is_ignored(path: str, is_directory: bool, rules: list[IgnoreFile]) -> bool:
    """Return whether the innermost file with a matching pattern ignores the path. A directory above it is not ignored."""
    verdicts = (rule.verdict(path, is_directory) for rule in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _ignore_files_above(directory: str) -> list[IgnoreFile]:
    """Return the rules that count in a directory, from the root of its repository down; none outside a repository, and none if the
    directory itself is ignored, since its user named it."""
    top = repository_of(directory)
    if top is None:
        return []
    parents = [directory, *map(str, Path(directory).parents)]
    on_the_way = parents[: parents.index(top)]
    exclude = _read_patterns(_git_directory(top) / "info" / "exclude", top)
    directories_above = reversed(parents[1 : len(on_the_way) + 1])
    rules = [*exclude, *(rule for parent in directories_above for rule in _ignore_file(parent))]
    return [] if any(_is_ignored(path, True, rules) for path in on_the_way) else rules


def repository_of(directory: str) -> str | None:
    """Return the top of the repository that an absolute path is in; None if it is in none."""
    parents = (directory, *map(str, Path(directory).parents))
    return next((parent for parent in parents if os.path.lexists(os.path.join(parent, ".git"))), None)


def check_links(path: Path) -> None:
    """Raise `SourceError` for a link in a repository that leads out of it, or to a hidden file, anywhere on the way of a path.

    A repository may come from another person, whose link could have any file of the user's sent to a model.
    """
    current = os.sep
    for part in os.path.join(os.getcwd(), path).split(os.sep):
        entry = os.path.join(current, part)
        if part == os.pardir:  # of what a link leads to
            entry = os.path.dirname(os.path.realpath(current))
        elif os.path.islink(entry) and (top := repository_of(os.path.realpath(current))) is not None:
            target = os.path.realpath(entry)
            inside = os.path.relpath(target, top).split(os.sep)
            reason = "out of its repository" if inside[0] == os.pardir else "to a hidden file"
            if any(name.startswith(".") and name != os.curdir for name in inside):
                raise SourceError(
                    f"the link leads {reason}: {target}",
                    where=entry,
                    do="If you mean that file, name it itself, not the link.",
                )
        current = entry


def _git_directory(root: str) -> Path:
    """Return the directory that all work trees of a repository share. In a linked work tree `.git` is a file that leads to it."""
    path = Path(root, ".git")
    for name, prefix in ((None, b"gitdir: "), ("commondir", b"")):
        data = read_regular(path / name if name else path, _MAX_IGNORE_BYTES)
        if data is not None and data.startswith(prefix):
            path = Path(path if name else root, os.fsdecode(data.removeprefix(prefix).rstrip(b"\n")))
    return path


def _read_patterns(path: Path, directory: str) -> Iterator[IgnoreFile]:
    data = read_regular(path, _MAX_IGNORE_BYTES)
    if data:
        lines = data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape").split("\n")
        yield IgnoreFile(directory, parse_patterns(lines))


def _ignore_file(directory: str) -> Iterator[IgnoreFile]:
    return _read_patterns(Path(directory, ".gitignore"), directory)
