"""Reading a target: what is named becomes source documents, and what is not read is reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from consilience.documents import (
    MAX_SOURCE_BYTES,
    decode_text,
    is_office,
    read_document,
    read_text_file,
    without_pictures,
)
from consilience.domain.document_shares import Purpose
from consilience.domain.errors import SourceError
from consilience.domain.messages import Source
from consilience.domain.paths import expanded, too_long
from consilience.targets.changes import Compared, add_changes, compare
from consilience.targets.collection import (
    PATCH_FILES,
    Collection,
    name_of,
    with_plain_lines,
    without_escapes,
)
from consilience.targets.evidence import read_evidence
from consilience.targets.files import add_directory, check_links, repository_of
from consilience.targets.git import Git
from consilience.targets.ignore import parse_patterns
from consilience.targets.material import commit_messages, read_given, rules_of_commit, rules_of_directory
from consilience.targets.repository import Surroundings, read_surroundings, tree_of
from consilience.targets.since import compared_at, new_texts, renamed_since, unreviewed

STANDARD_INPUT = "-"
STANDARD_INPUT_NAME = "standard input"

_PATCHES = parse_patterns(PATCH_FILES)

_NAMES_IN_TITLE = 3


@dataclass(frozen=True)
class Target:
    """What is reviewed."""

    sources: tuple[Source, ...]
    """The documents, with paths from the top of the repository as names. Of changes: the unified diff, then the new text of each
    changed file. Empty if nothing changed. Then what stands beside them, with its purpose: rules, intent, context, and files of
    the repository that speak of the change."""
    left_out: tuple[str, ...]
    """What was not read, a line for each reason: `lock file: uv.lock, package-lock.json`."""
    title: str
    """What is reviewed, as a noun phrase: `the changes main..HEAD`, `src/ and README.md`."""
    commit: str = ""
    """The commit whose files are reviewed; "" if these are in no commit."""
    base: str = ""
    """What that commit is compared with."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Of the files asked for with `also`: their text, if they have any, by the name that they have now."""
    renamed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Of those that were called otherwise at the commit given with them: the name that they have now."""
    not_searched: tuple[str, ...] = ()
    """What of the repository around a change was not looked at."""
    unread: tuple[str, ...] = ()
    """Of what was not read, the files that should have been: not UTF-8, missing, not readable, in a conflict, over a limit."""

    @property
    def under_review(self) -> tuple[Source, ...]:
        return tuple(source for source in self.sources if not source.purpose)


def read_target(
    paths: Sequence[str | Path] = (),
    *,
    diff: str | None = None,
    staged: bool = False,
    include: Sequence[str] = (),
    directory: Path | None = None,
    standard_input: Callable[[], str] | None = None,
    since: str | None = None,
    since_base: str = "",
    also: Sequence[tuple[str, str]] = (),
    context: Sequence[str | Path] = (),
    rules: str | Path | None = None,
    intent: Sequence[str | Path] = (),
    evidence: Sequence[str | Path] = (),
) -> Target:
    """Read files, directories and `-` (standard input), or changes that Git records.

    Changes are read with `diff`, with `staged`, and if nothing is named. `diff` is a range (`main..HEAD`; `main...HEAD` from the
    common ancestor), a commit (the files against it) or `COMMIT^!` (the changes of one commit); without it the files are compared
    with the last commit, or with `staged` the index. `paths` then select changed files.

    A file that is named is read whatever its name. Below a directory and in changes, lock files, generated and minified files,
    patches and files of more than 1 MB are left out unless `include`, in `.gitignore` syntax, names them; at most 1,000 files and
    10 MB are read there. `directory`, default: the current one, is where relative paths and Git begin. `standard_input` returns
    the text for `-`. With `since`, a commit that was compared with `since_base`, only what is new in the change is read. `also` has
    files whose text after the change is wanted, each with a commit at which it was called so, or "". Raises `SourceError`.
    Beside it are read: `rules`, by default the `REVIEW.md`, else `AGENTS.md` or `CLAUDE.md` of the base of a change, so that it
    cannot bring its own; `intent`, what the author says of the change, after the messages of its commits; `context`, what may be
    quoted and is not under review; `evidence`, SARIF of tools; of changes, files that name what they define, remove or call.
    """
    names = _checked(paths)
    are_changes = diff is not None or staged or not names
    collection = Collection(parse_patterns(include), is_of_changes=are_changes)
    place = directory or Path()
    own_rules = () if rules is None else (rules,)
    material: dict[Purpose, Sequence[str | Path]] = {"rules": own_rules, "intent": intent, "context": context}
    given = [s for purpose, files in material.items() for s in read_given([str(f) for f in files], place, purpose)]
    if are_changes:
        if STANDARD_INPUT in names:
            raise SourceError("standard input has no changes", where=STANDARD_INPUT, do="Name paths, or none.")
        with Git(place) as git:
            read = _read_changes(git, compare(git, diff, staged=staged), names, collection, (since, since_base), also)
    else:
        if since is not None:
            raise SourceError("only changes have a history", where="--since", do="Give a range: --diff main...HEAD.")
        _add_named(names, place, collection, standard_input or _read_standard_input)
        read = _Read(_listed(names), list(_rules_beside(place)), texts={s.name: s.text for s in collection.sources})
    found = [source for source in read.beside if rules is None or source.purpose != "rules"]
    given += read_evidence(evidence, place, [source.name for source in collection.sources])
    return Target(
        _together(collection.sources, [*found, *given], read.around.sources),
        *(collection.left_out, read.title),
        commit=read.commit,
        base=read.base,
        texts=read.texts,
        renamed=read.renamed,
        not_searched=read.around.left_out,
        unread=collection.unread,
    )


def _checked(paths: Sequence[str | Path]) -> list[str]:
    names = [os.fspath(path) for path in paths]
    for name in names:
        if not name or (name.startswith("-") and name != STANDARD_INPUT):
            raise SourceError(f"{name!r} is not a path", do="Write ./NAME for a file whose name begins with -.")
    return names


@dataclass(frozen=True)
class _Read:
    """What is known of a target beside its documents; the fields are those of `Target`."""

    title: str
    beside: Sequence[Source]
    around: Surroundings = field(default_factory=Surroundings)
    commit: str = ""
    base: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[tuple[str, str], str] = field(default_factory=dict)


def _read_changes(
    git: Git,
    compared: Compared,
    names: Sequence[str],
    collection: Collection,
    since: tuple[str | None, str],
    also: Sequence[tuple[str, str]],
) -> _Read:
    add_changes(git, compared, names, collection)
    title = f"{compared.title} in {_listed(names)}" if names else compared.title
    commit, base = since
    if commit is not None:
        before = Collection(collection.include, is_of_changes=True)
        add_changes(git, compared_at(git, compared, commit, base), (), before)
        collection.sources[:] = unreviewed(collection.sources, before.sources)
        title = f"{title} that are new since {commit[:12]}"
    beside, missed = _beside_changes(git, compared) if collection.sources else ([], [])
    around = read_surroundings(tree_of(git, compared), collection.sources)
    around = replace(around, left_out=(*missed, *around.left_out))
    names_now = {
        (old, commit): new
        for commit in dict.fromkeys(commit for _, commit in also)
        for old, new in renamed_since(git, compared, commit).items()
    }
    texts = new_texts(git, compared, (names_now.get(place, place[0]) for place in also))
    base = compared.arguments[0] if compared.commit else ""
    return _Read(title, beside, around, compared.commit, base, texts, names_now)


def _beside_changes(git: Git, compared: Compared) -> tuple[list[Source], list[str]]:
    """Return the rules of the project and the messages of the commits, and which of them cannot be read, and why."""
    sources: list[Source] = []
    missed: list[str] = []
    for what, read in (("the rules of the project", rules_of_commit), ("the messages of the commits", commit_messages)):
        try:
            sources += read(git, compared)
        except SourceError as error:
            missed.append(f"{what}: {error}")
    return sources, missed


def _together(target: Sequence[Source], beside: Sequence[Source], around: Sequence[Source]) -> tuple[Source, ...]:
    """Return all documents, the target first, none twice; nothing without a target."""
    own = {source.name for source in target}
    kept = sorted((s for s in beside if s.purpose != "context" or s.name not in own), key=_by_purpose)
    named = {source.name for source in kept}
    return (*target, *kept, *(source for source in around if source.name not in named)) if target else ()


def _by_purpose(source: Source) -> int:
    return ("rules", "intent", "context").index(source.purpose)


def _rules_beside(directory: Path) -> Iterator[Source]:
    """Yield the rules of the project of files: as last committed; without a repository, from the directory."""
    if repository_of(os.path.abspath(directory)) is None:
        yield from rules_of_directory(directory)
        return
    try:
        with Git(directory) as git:
            yield from rules_of_commit(git, None)
    except SourceError:
        return  # files are read without Git, too


def _add_named(names: Sequence[str], directory: Path, found: Collection, standard_input: Callable[[], str]) -> None:
    named: set[str] = set()
    top = repository_of(os.path.abspath(directory))
    for name in names:
        path = directory / expanded(name)
        if name != STANDARD_INPUT:
            check_links(path)
        real = name if name == STANDARD_INPUT else os.path.realpath(path)
        if real in named:
            continue
        named.add(real)
        if name == STANDARD_INPUT:
            _add_text(standard_input(), STANDARD_INPUT_NAME, found)
        elif path.is_dir():
            count_before = len(found.sources)
            add_directory(path, _shown(name, path, top), found)
            if len(found.sources) == count_before and not found.is_full:
                reasons = "; ".join(found.left_out) or "it has no files"
                raise SourceError(f"the directory contains no text to read ({reasons})", where=name, do="Name files.")
        elif is_office(path.name):
            found.sources.append(read_document(path, "the file").source(name_of(_shown(name, path, top))))
        else:
            _add_text(read_text_file(path, "the file"), name_of(_shown(name, path, top)), found)
    _keep_first_of_each_name(found)


def _add_text(text: str, name: str, collection: Collection) -> None:
    if not text.strip():
        raise SourceError("the text is empty", where=name, do="Leave it out or fill it.")
    if name == STANDARD_INPUT_NAME or _PATCHES.covers(name):
        text = without_escapes(text)
    text, pictures = without_pictures(with_plain_lines(text), name)
    if pictures:
        collection.leave_out(name, "pictures inside of")
    collection.sources.append(Source(text=text, name=name))


def _keep_first_of_each_name(collection: Collection) -> None:
    """Drop documents read twice: a file that is named and also below a directory that is named."""
    by_name: dict[str, Source] = {}
    for source in collection.sources:
        by_name.setdefault(source.name, source)
    collection.sources[:] = by_name.values()


def _shown(name: str, path: Path, top: str | None) -> str:
    """Return what a file is called, and what the names of files below a directory begin with; "" for nothing.

    As in a diff it is the path from the top of the repository; outside of it, or without one, the path as named.
    """
    whole = os.path.abspath(path)
    if top is not None and os.path.commonpath([top, whole]) == top:
        name = os.path.relpath(whole, top)
    normal = os.path.normpath(name)
    return "" if normal == os.curdir else normal.rstrip("/")


def _listed(names: Sequence[str]) -> str:
    texts = ["the text on standard input" if name == STANDARD_INPUT else name_of(name) for name in names]
    if len(texts) > _NAMES_IN_TITLE:
        texts = [*texts[:_NAMES_IN_TITLE], f"{len(texts) - _NAMES_IN_TITLE} more"]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _read_standard_input() -> str:
    data = sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1)
    if len(data) > MAX_SOURCE_BYTES:
        raise SourceError(
            f"the text cannot be read: {too_long(MAX_SOURCE_BYTES)}", where="standard input", do="Shorten it."
        )
    return decode_text(data, "the text", "standard input")
