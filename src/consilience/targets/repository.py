"""Files of the repository outside a change that speak of it: callers, tests, documents, packaging, and what its lines call."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

from consilience.domain.errors import SourceError
from consilience.domain.messages import Source
from consilience.engine.sources import number_documents
from consilience.targets.changes import Compared, read_inside
from consilience.targets.collection import Collection, decode_path
from consilience.targets.diffs import parse_changes
from consilience.targets.git import Git
from consilience.targets.ignore import parse_patterns
from consilience.targets.names import ChangedNames, is_history, is_test, names_of
from consilience.targets.outline import definition_pattern

MAX_FILES = 60
"""Files of the repository that become documents, at most."""
MAX_BYTES = 3_000_000
"""Of all of them."""
MAX_FILE_BYTES = 400_000
MAX_FILES_OF_A_NAME = 40
"""A name in more files says little about each of them."""
NEAREST_FILES = 8
"""Files that are read of a name that more than `MAX_FILES_OF_A_NAME` have."""
SEARCH_SECONDS = 20.0
"""Max duration of one search."""
MAX_SEARCH_BYTES = 16_000_000
"""Max output of one search."""

_SEARCH = ("-a", "-o", "-z", "--no-color", "--full-name", "--no-textconv", "--no-recurse-submodules")
_FILE_MODES = ("100644", "100755")


@dataclass(frozen=True)
class Surroundings:
    """What was read of a repository beside a change."""

    sources: tuple[Source, ...] = ()
    left_out: tuple[str, ...] = ()
    """What was not searched or read, a line for each reason."""


@dataclass(frozen=True)
class Tree:
    """The files of a repository in the state that is under review: of a commit, of the index, or as they are."""

    git: Git
    commit: str | None
    staged: bool

    def find(self, *patterns: str) -> tuple[list[tuple[str, str]], bool]:
        """Return pairs of path and matched words, and whether these are all."""
        placed = (*patterns, self.commit) if self.commit else ("--cached", *patterns) if self.staged else patterns
        output, is_whole = self.git.search(
            *_SEARCH, *placed, "--", directory=self.git.top(), seconds=SEARCH_SECONDS, max_bytes=MAX_SEARCH_BYTES
        )
        prefix = f"{self.commit}:" if self.commit else ""
        found = []
        for record in output.decode("utf-8", "surrogateescape").split("\n"):
            path, separator, words = record.partition("\0")
            if separator and path.startswith(prefix):
                found.append((path.removeprefix(prefix), words))
        return found, is_whole

    def names(self) -> list[str]:
        """Return the paths of all files."""
        listed = (
            self.git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", self.commit)
            if self.commit
            else self.git.run("ls-files", "-z", "--full-name", directory=self.git.top())
        )
        return [os.fsdecode(path) for path in listed.split(b"\0") if path]

    def blobs(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the blob of each path that is a file, in a commit or in the index."""
        if self.commit:
            listed = self.git.run("ls-tree", "-r", "-z", "--full-tree", self.commit, "--", *paths)
        else:
            listed = self.git.run("ls-files", "-s", "-z", "--full-name", "--", *paths, directory=self.git.top())
        blobs = {}
        for entry in filter(None, listed.split(b"\0")):
            fields, _, path = entry.partition(b"\t")
            mode, *rest = fields.decode("ascii").split(" ")
            if mode in _FILE_MODES:
                blobs[os.fsdecode(path)] = rest[1] if self.commit else rest[0]
        return blobs


def tree_of(git: Git, compared: Compared) -> Tree:
    """Return the files in the new state of a comparison."""
    commit = None if compared.has_files or "--cached" in compared.arguments else compared.arguments[1]
    return Tree(git, commit, "--cached" in compared.arguments)


def read_surroundings(tree: Tree, sources: Sequence[Source]) -> Surroundings:
    """Return files outside a change that name what it defines, removes or calls, the most specific ones, within bounds. `sources`
    are its diff and the new texts of its files. A search that fails or takes too long is said, not raised."""
    documents = number_documents(sources)
    changes = parse_changes(documents)
    if changes is None:
        return Surroundings()
    names = names_of(documents)
    changed = {path for file in changes.files for path in (file.path, file.old_path)}
    try:
        return _read(tree, names, changed)
    except (SourceError, OSError) as error:
        return Surroundings(left_out=(f"the repository around the change: {error}",))


def _read(tree: Tree, names: ChangedNames, changed: set[str]) -> Surroundings:
    found: dict[str, set[str]] = defaultdict(set)
    """The files, by name."""
    left_out: list[str] = []
    searches = []
    if names.wanted:
        searches.append(("-w", "-F", *(argument for name in names.wanted for argument in ("-e", name))))
    if words := [word for word in names.used if re.fullmatch(r"\w+", word)]:
        searches.append(("-E", "-e", definition_pattern(words)))
    for patterns in searches:
        hits, is_whole = tree.find(*patterns)
        if not is_whole:
            left_out.append(
                f"the repository around the change: a search was cut after {SEARCH_SECONDS:g} seconds or 16 MB"
            )
        for path, text in hits:
            named = (
                [text] if text in names.wanted else [word for word in re.findall(r"\w+", text) if word in names.used]
            )
            for name in named if path not in changed and not is_history(path) else ():
                found[name].add(path)
    if usual := [name for name, paths in found.items() if len(paths) > MAX_FILES_OF_A_NAME]:
        nearest = f"of which the {NEAREST_FILES} nearest are looked at"
        left_out.append(f"named in more than {MAX_FILES_OF_A_NAME} files, {nearest}: {_listed(usual)}")
    worth: dict[str, float] = defaultdict(float)
    for name, paths in found.items():
        of = (*names.wanted.get(name, ()), *names.used.get(name, ()))
        for path in paths if name not in usual else _nearest(paths, of):
            weight = 1.0 if name in names.symbols else 0.7 if name in names.used else 0.4
            worth[path] += weight / len(paths)
    for path in _tests_beside(tree.names(), changed):
        worth[path] += 0.5
    ordered = sorted(worth, key=lambda path: (-worth[path], path))
    if len(ordered) > MAX_FILES:
        left_out.append(f"{len(ordered) - MAX_FILES:,} more files name what the change is about")
    return Surroundings(tuple(_sources(tree, ordered[:MAX_FILES])), tuple(dict.fromkeys(left_out)))


def _nearest(paths: Iterable[str], changed: Sequence[str]) -> list[str]:
    """Return the files that share most directories with one of the changed ones."""

    def distance(path: str) -> int:
        return min(len(os.path.relpath(path, other).split("/")) for other in changed)

    return sorted(paths, key=lambda path: (distance(path), path))[:NEAREST_FILES]


def _tests_beside(paths: Iterable[str], changed: set[str]) -> Iterator[str]:
    """Yield the tests of changed files, by name."""
    stems = {PurePosixPath(path).stem for path in changed if path and not is_test(path)}
    for path in paths:
        stem = PurePosixPath(path).name.partition(".")[0]
        plain = re.sub(r"^test_|_test$|_spec$|Tests?$", "", stem)
        if plain in stems and path not in changed and is_test(path):
            yield path


def _listed(names: Sequence[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _sources(tree: Tree, paths: Sequence[str]) -> Iterator[Source]:
    """Yield the texts of files within the bounds, without lock files, generated and minified files, and what is no text."""
    taken = Collection(parse_patterns(()), is_of_changes=True)
    for path, data in _texts(tree, paths):
        if len(data) > MAX_FILE_BYTES or taken.size + len(data) > MAX_BYTES:
            continue
        source = taken.take(decode_path(os.fsencode(path)), len(data), partial(bytes, data))
        if source is not None and source.text.strip():
            yield source.model_copy(update={"purpose": "repository"})


def _texts(tree: Tree, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    top = tree.git.top()
    if not paths:
        return
    if tree.commit is None and not tree.staged and top is not None:
        for path in paths:
            data = read_inside(top / path, top)
            if data is not None:
                yield path, data
        return
    blobs = tree.blobs(paths)
    with tree.git.blobs() as read_blob:
        for path in paths:
            if path in blobs:
                yield path, read_blob(blobs[path])
