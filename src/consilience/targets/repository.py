"""Files of the repository outside a change that speak of it: callers, tests, documents, packaging, and what its lines call."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2

from consilience.domain.errors import SourceError
from consilience.domain.messages import Source
from consilience.engine.sources import number_documents
from consilience.targets.changes import Compared, read_inside
from consilience.targets.collection import Collection, decode_path
from consilience.targets.diffs import parse_changes
from consilience.targets.git import Git
from consilience.targets.ignore import parse_patterns
from consilience.targets.names import ChangedNames, is_history, module_of, names_of
from consilience.targets.outline import definition_pattern

MAX_FILES = 40
"""Files of the repository that become documents, at most."""
MAX_BYTES = 2_000_000
"""Of all of them."""
MAX_FILE_BYTES = 400_000
MAX_FILES_OF_A_NAME = 40
"""A name in more files says nothing of one that does not have its class or its module, too."""
USED_WEIGHT = 0.5
"""Of a file with a definition of what changed lines use."""
SEARCH_SECONDS = 20.0
"""Max duration of one search."""
MAX_SEARCH_BYTES = 64_000_000
"""Max output of one search."""

_SEARCH = ("-a", "-o", "-z", "--no-color", "--full-name", "--no-textconv", "--no-recurse-submodules")
_SPECIAL = re.compile(r"[][\\.^$*+?(){}|]")
"""Of extended regular expressions. One with all names is searched at once, several patterns one after another."""
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
    """The words, by file."""
    left_out: list[str] = []
    searches: list[tuple[str, ...]] = []
    if names.wanted:
        words = (_SPECIAL.sub(r"\\\g<0>", word) for word in sorted({*names.wanted, *names.qualifiers}))
        searches.append(("-w", "-E", "-e", f"({'|'.join(words)})"))
    if used := [word for word in names.used if re.fullmatch(r"[A-Za-z0-9_]+", word)]:
        searches.append(("-E", "-e", definition_pattern(used)))
    for patterns in searches:
        hits, is_whole = tree.find(*patterns)
        if not is_whole:
            left_out.append(
                f"the repository around the change: a search was cut after {SEARCH_SECONDS:g} seconds or 64 MB"
            )
        mark = "" if patterns[0] == "-w" else "def "
        for path, text in hits:
            if decode_path(os.fsencode(path)) not in changed and not is_history(path):
                found[path].update([text, *(f"{mark}{word}" for word in re.findall(r"\w+", text))])
    ordered = _by_worth(names, found)
    if len(ordered) > MAX_FILES:
        left_out.append(f"{len(ordered) - MAX_FILES:,} more files name what the change is about")
    sources, skipped = _sources(tree, ordered[:MAX_FILES])
    return Surroundings(tuple(sources), tuple(dict.fromkeys([*left_out, *skipped])))


def _by_worth(names: ChangedNames, found: Mapping[str, set[str]]) -> list[str]:
    """Return files by the names that they have, a rare one weighing more. A name of many files counts where its class or its module
    is named, too."""
    files = Counter(word for words in found.values() for word in words)
    defined = {f"def {name}": name for name in names.used}
    wanted = {
        name: (changed.weight / log2(1 + files[name]), (changed.owners or set(map(module_of, changed.of))) - {name})
        for name, changed in names.wanted.items()
        if name in files
    }
    worth: dict[str, float] = defaultdict(float)
    for path, words in found.items():
        for name in words & wanted.keys():
            weight, qualifiers = wanted[name]
            trust = 1.0 if not words.isdisjoint(qualifiers) else 0.3 if files[name] <= MAX_FILES_OF_A_NAME else 0
            worth[path] += weight * trust
        for word in words & defined.keys():
            if names.used[defined[word]].may_be_defined_in(defined[word], path, files[word]):
                worth[path] += USED_WEIGHT
    return sorted((path for path in worth if worth[path]), key=lambda path: (-worth[path], path))


def _sources(tree: Tree, paths: Sequence[str]) -> tuple[list[Source], Iterator[str]]:
    """Return the texts of files within the bounds, without lock files, generated and minified files, and what is no text; and which
    were left out."""
    taken = Collection(parse_patterns(()), is_of_changes=True)
    sources: list[Source] = []
    for path, data in _texts(tree, paths):
        name = decode_path(os.fsencode(path))
        if len(data) > MAX_FILE_BYTES:
            taken.leave_out(name, f"larger than {MAX_FILE_BYTES // 1000} kB")
        elif taken.size + len(data) > MAX_BYTES:
            taken.leave_out(name, f"beyond {MAX_BYTES // 1_000_000} MB in all")
        else:
            source = taken.take(name, len(data), partial(bytes, data))
            if source is not None and source.text.strip():
                sources.append(source.model_copy(update={"purpose": "repository"}))
    return sources, (f"names what the change is about, {line}" for line in taken.left_out)


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
