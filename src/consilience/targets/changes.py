"""Changes that Git records, as documents: the unified diff, then the new text of each changed file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from consilience.documents import without_pictures
from consilience.domain.errors import SourceError
from consilience.domain.messages import Source
from consilience.targets.collection import Collection, decode_path, with_plain_lines
from consilience.targets.files import read_regular
from consilience.targets.git import DIFF_OPTIONS, PATCH_OPTIONS, Git

UNCOMMITTED = "HEAD"
"""The range if none is named: the files as they are, against the last commit."""

_LINK, _SUBMODULE = "120000", "160000"
_MAX_ARGUMENT_BYTES = 100_000
_NO_COMMIT = "Check the name. A branch of a server is called origin/NAME."
_SHALLOW = "The clone is shallow: git fetch --unshallow (in a workflow: fetch-depth: 0)."


@dataclass(frozen=True)
class Compared:
    """The two states that are compared, as arguments of `git diff`."""

    arguments: tuple[str, ...]
    name: str
    """Name of the diff."""
    title: str
    """What is reviewed, as a noun phrase."""
    has_files: bool = False
    """Whether the new state is that of the files, so that untracked files are no part of it."""
    branched_off: str = ""
    """The commit before the three dots of a range."""

    @property
    def commit(self) -> str:
        """The new state, if it is that of a commit."""
        return "" if self.has_files or self.arguments[0] == "--cached" else self.arguments[-1]


@dataclass(frozen=True)
class ChangedFile:
    """One entry of `git diff --raw`."""

    status: str
    """`A`, `D`, `M`, `R`, `T` or `U`."""
    modes: tuple[str, str]
    blobs: tuple[str, str]
    """Old and new; zeros for none, and for a new text that is only in the file."""
    paths: tuple[bytes, ...]
    """The path; for a renamed file the old one, then the new one."""

    @property
    def name(self) -> str:
        return decode_path(self.paths[-1])

    @property
    def is_link(self) -> bool:
        return _LINK in self.modes

    @property
    def is_in_files(self) -> bool:
        """Whether the new text is only in the file, not in the repository."""
        return self.status != "D" and _is_absent(self.blobs[1])


def compare(git: Git, diff: str | None, *, staged: bool) -> Compared:
    """Return what a range, or the index, compares. Raises `SourceError` for a range that names no commits."""
    if staged and diff is not None:
        raise SourceError(
            "a range and the staged changes exclude each other", where="--diff", do="Give one of the two."
        )
    if staged:
        return Compared(("--cached",), "diff --staged", "the staged changes")
    name = UNCOMMITTED if diff is None else diff.strip()
    _check_range(name)
    if name.endswith("^!"):
        commit = _commit(git, name.removesuffix("^!"))
        base_commit = git.commit(f"{commit}^") or git.empty_tree()
        return Compared((base_commit, commit), f"diff {name}", f"the changes of {name.removesuffix('^!')}")
    dots = "..." if "..." in name else ".."
    old, separator, new = name.partition(dots)
    if separator:
        ends = _commit(git, old or "HEAD"), _commit(git, new or "HEAD")
        base = ends[0] if dots == ".." else _merge_base(git, *ends, name)
        branched_off = "" if dots == ".." else ends[0]
        return Compared((base, ends[1]), f"diff {name}", f"the changes {name}", branched_off=branched_off)
    if git.top() is None:
        raise SourceError(
            "the repository is bare, without files", where=str(git.directory), do="Name two commits: --diff main..HEAD."
        )
    title = "the uncommitted changes" if name == UNCOMMITTED else f"the changes since {name}"
    unborn = name == UNCOMMITTED and git.commit(name) is None
    return Compared((git.empty_tree() if unborn else _commit(git, name),), f"diff {name}", title, has_files=True)


def _check_range(name: str) -> None:
    if not name or name.startswith("-") or not name.isprintable() or ":" in name:
        raise SourceError(
            f"{name!r} is not a range of commits",
            where="--diff",
            do="Write main..HEAD, main...HEAD, COMMIT (the files against it) or COMMIT^! (its own changes).",
        )


def _commit(git: Git, name: str) -> str:
    commit = None if name.startswith("-") else git.commit(name)
    if commit is None:
        raise SourceError(
            f"there is no commit {name!r}", where="--diff", do=_SHALLOW if git.is_shallow() else _NO_COMMIT
        )
    return commit


def _merge_base(git: Git, old: str, new: str, name: str) -> str:
    base = git.line("merge-base", old, new)
    if base is None:
        raise SourceError(
            f"the two sides of {name} have no common ancestor",
            where="--diff",
            do=_SHALLOW if git.is_shallow() else f"Write {name.replace('...', '..')} to compare them as they are.",
        )
    return base


def add_changes(git: Git, compared: Compared, paths: Sequence[str], collection: Collection) -> None:
    """Add the diff, and the new text of each changed file, of all files or of those below `paths`.

    A deleted file and a link are only in the diff. Left out of both, with the reason: what the collection does not take,
    submodules, files in a conflict, and untracked files. Nothing is added if nothing changed. Raises `SourceError`.
    """
    top = git.top() or git.directory
    listing = git.run("diff", "--raw", "-z", "--no-abbrev", *DIFF_OPTIONS, *compared.arguments, "--", *paths)
    files = list(changed_files(listing))
    in_files = {file.paths[-1] for file in files if file.status != "U"}
    files = [file for file in files if file.status != "U" or file.paths[-1] not in in_files]
    missing = [path for path in paths if not files and not os.path.lexists(git.directory / path)]
    if missing:
        raise SourceError("the path does not exist and did not change", where=missing[0], do="Check the path.")
    sizes = _sizes(git, [blob for file in files for blob in file.blobs])
    if compared.has_files:
        files = [_with_text_in_file(file, sizes) for file in files]
    with git.blobs() as read_blob:
        shown_files = [file for file in files if _add_text(file, sizes, read_blob, top, collection)]
    if compared.has_files:
        untracked = git.run(
            *("ls-files", "--others", "--exclude-standard", "--full-name", "-z", "--"),
            *paths,
            directory=None if paths else top,
        )
        for path in filter(None, untracked.split(b"\0")):
            collection.leave_out(decode_path(path), "untracked (git add includes it)")
    patch = b"".join(
        git.run("diff", *PATCH_OPTIONS, *DIFF_OPTIONS, *compared.arguments, "--", *batch, directory=top)
        for batch in _batches(shown_files)
    )
    text = with_plain_lines(patch.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}"))
    text, _ = without_pictures(text)
    if text.strip():
        collection.sources.insert(0, Source(text=text, name=compared.name))


def changed_files(raw: bytes) -> Iterator[ChangedFile]:
    """Parse the output of `git diff --raw -z`."""
    fields = iter(raw.split(b"\0"))
    for field in fields:
        if not field:
            continue
        old_mode, new_mode, old, new, status = field.decode("ascii").removeprefix(":").split(" ")
        count = 2 if status[0] in "RC" else 1
        yield ChangedFile(status[0], (old_mode, new_mode), (old, new), tuple(next(fields) for _ in range(count)))


def _with_text_in_file(file: ChangedFile, sizes: Mapping[str, int]) -> ChangedFile:
    """Return the entry with no id for a new text that no object holds: Git computes the id of a file to detect renames."""
    old, new = file.blobs
    return file if new in sizes else replace(file, blobs=(old, "0" * len(new)))


def _sizes(git: Git, blobs: Sequence[str]) -> dict[str, int]:
    """Return the size in bytes of each blob that this clone has."""
    requests = "\n".join(dict.fromkeys(blob for blob in blobs if blob.strip("0")))
    output = git.run(
        "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", stdin=requests.encode() + b"\n"
    )
    rows = [line.split(" ") for line in output.decode("ascii").splitlines()]
    return {row[0]: int(row[2]) for row in rows if len(row) == 3 and row[1] == "blob"}


def _add_text(
    file: ChangedFile, sizes: Mapping[str, int], read_blob: Callable[[str], bytes], top: Path, collection: Collection
) -> bool:
    """Add the new text of a file, if it has one; return whether the diff shows the file. Its larger text counts for the limits."""
    blobs = [blob for blob in file.blobs if not _is_absent(blob)]
    path = top / os.fsdecode(file.paths[-1])

    def read() -> bytes | None:
        if file.is_link:
            return b""
        blob = file.blobs[0] if file.status == "D" else file.blobs[1]
        return read_inside(path, top) if _is_absent(blob) else read_blob(blob)

    if _SUBMODULE in file.modes:
        collection.leave_out(file.name, "submodule")
    elif file.status == "U":
        collection.leave_out(file.name, "in a conflict", unread=True)
    elif any(blob not in sizes for blob in blobs):
        collection.leave_out(file.name, "missing in this clone", unread=True)
    else:
        size = max([sizes[blob] for blob in blobs] + [_size_of(path) if file.is_in_files else 0])
        source = collection.take(file.name, size, read)
        if source is not None and source.text.strip() and file.status != "D":
            collection.sources.append(source)
        return source is not None
    return False


def _is_absent(blob: str) -> bool:
    """Return whether the id is that of no blob: there is no text, or it is only in the file."""
    return not blob.strip("0")


def _size_of(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def read_inside(path: Path, top: Path) -> bytes | None:
    """Return the bytes of a regular file that no link on the way takes out of the repository; else None."""
    real = os.path.realpath(top)
    inside = os.path.commonpath([real, os.path.realpath(path.parent)]) == real
    return read_regular(path) if inside else None


def _batches(files: Sequence[ChangedFile]) -> Iterator[list[bytes]]:
    """Yield the paths of files, in lists that a command line can hold."""
    batch: list[bytes] = []
    size = 0
    for file in files:
        if batch and size > _MAX_ARGUMENT_BYTES:
            yield batch
            batch, size = [], 0
        batch += file.paths
        size += sum(len(path) + 1 for path in file.paths)
    if batch:
        yield batch
