"""What of a change is new since it was reviewed: the hunks that it did not have at that commit."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from consilience.documents import without_pictures
from consilience.domain.errors import SourceError
from consilience.domain.messages import Source
from consilience.engine.sources import Document
from consilience.targets.changes import Compared, changed_files, read_inside
from consilience.targets.collection import decode_path, with_plain_lines
from consilience.targets.diffs import parse_changes
from consilience.targets.git import DIFF_OPTIONS, Git

_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)
_HUNK = re.compile(r"^(?=@@ )", re.MULTILINE)
_START = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? ")
_RUN = re.compile(r"(?:^[-+\\].*\n?)+", re.MULTILINE)
"""Lines of a hunk that are removed and added in one place."""
_BLOBS = re.compile(r"^index .*\n", re.MULTILINE)


def compared_at(git: Git, compared: Compared, since: str, base: str = "") -> Compared:
    """Return the change as it was at a commit: against `base`, if that is known; else from where the commit branched off, if the
    range has three dots, or against the same commit. Raises `SourceError` if there is no such commit, or for staged changes."""
    commit = None if since.startswith("-") else git.commit(since)
    if commit is None or (base and git.line("cat-file", "-t", base) not in ("commit", "tree")):
        raise SourceError(
            f"there is neither a session nor a commit {since if commit is None else base!r}",
            where="--since",
            do="Check the name. After a force-push the commit may be gone: leave --since out to review the whole change.",
        )
    old = compared.branched_off or compared.arguments[0]
    if old == "--cached":
        raise SourceError("staged changes have no history", where="--since", do="Give a range: --diff main...HEAD.")
    if not base:
        base = (git.line("merge-base", old, commit) if compared.branched_off else None) or old
    return replace(compared, arguments=(base, commit), has_files=False)


def renamed_since(git: Git, compared: Compared, commit: str) -> Mapping[str, str]:
    """Return the names after a change of files that were called otherwise at a commit, as Git finds them; none if it is gone."""
    if not commit or git.commit(commit) is None:
        return {}
    is_index = compared.arguments[0] == "--cached"
    ends = ("--cached", commit) if is_index else (commit,) if compared.has_files else (commit, compared.arguments[-1])
    raw = git.run("diff", "--raw", "-z", "--no-abbrev", "--diff-filter=R", *DIFF_OPTIONS, *ends, "--")
    return {decode_path(file.paths[0]): file.name for file in changed_files(raw)}


@dataclass(frozen=True)
class _Run:
    """Lines that a change removes and adds in one place of a file."""

    file: str
    """The first line that the diff has on it."""
    text: str
    place: int
    """The first line of the new file that is added, or that follows those removed."""

    @property
    def added(self) -> int:
        return sum(line.startswith("+") for line in self.text.split("\n"))


def unreviewed(sources: Sequence[Source], reviewed: Sequence[Source]) -> list[Source]:
    """Return the diff without the hunks that `reviewed`, the change as it was, has too, and the new texts of the files that it
    still changes; nothing if all was reviewed.

    A hunk is the same if it removes and adds the same, in the place where its lines were: their numbers do not matter, and of the
    lines around them one side may differ, so that a rebase makes nothing new. Moved into other lines, or repeated, it is new.
    """
    if not sources:
        return []
    texts = [{source.name: source.text for source in of[1:]} for of in (reviewed, sources)]
    known = {
        replace(run, place=place)
        for path, section in _sections(reviewed)
        for lines in [_aligned(*(of.get(path, "") for of in texts))]
        for run in _runs(section)
        for place in _places_now(run, lines)
    }
    kept = [kept for _, section in _sections(sources) if (kept := _without(section, known))]
    if not kept:
        return []
    diff = sources[0].model_copy(update={"text": "".join(kept)})
    paths = {path for path, _ in _sections([diff, *sources[1:]])}
    return [diff, *(source for source in sources[1:] if source.name in paths)]


def _sections(sources: Sequence[Source]) -> Iterator[tuple[str, str]]:
    """Yield what the diff, the first source, has on each file, with the path of the file."""
    documents = [Document(f"S{n}", source.name, source.text) for n, source in enumerate(sources, 1)]
    changes = parse_changes(documents)
    line = 1
    for section in _SECTION.split(sources[0].text) if sources else ():
        file = changes.file_at(line) if changes else None
        if section:
            yield file.path if file else "", section
        line += section.count("\n")


def _runs(section: str) -> Iterator[_Run]:
    """Yield each run of a file; of a file without hunks (renamed, another mode) what the diff has on it."""
    head, *hunks = _HUNK.split(section)
    file = head.partition("\n")[0]
    if not hunks:
        yield _Run(file, _BLOBS.sub("", head), 0)
    for hunk in hunks:
        opening, _, body = hunk.partition("\n")
        start = _START.match(opening)
        first = int(start[1]) + (start[2] == "0") if start else 0
        for run in _RUN.finditer(body):
            before = sum(line[:1] not in ("-", "\\") for line in body[: run.start()].splitlines())
            yield _Run(file, run[0].rstrip("\n"), first + before)


def _aligned(old: str, new: str) -> Mapping[int, int]:
    """Return where the lines of a text are in another one, by number from 1, with those before the first and after the last."""
    lines = old.split("\n"), new.split("\n")
    blocks = SequenceMatcher(None, *lines).get_matching_blocks()
    ends = {0: 0, len(lines[0]) + 1: len(lines[1]) + 1}
    return ends | {i + n + 1: j + n + 1 for i, j, size in blocks for n in range(size)}


def _places_now(run: _Run, lines: Mapping[int, int]) -> set[int]:
    """Return where a run is by `lines`, that of each of its lines now: behind the line before it, or before the one behind it."""
    if not run.place:
        return {0}
    behind = run.place + run.added
    ends = {lines[run.place - 1] + 1} if run.place - 1 in lines else set()
    ends |= {lines[behind] - run.added} if behind in lines else set()
    return {place for place in ends if all(lines.get(run.place + n) == place + n for n in range(run.added))}


def _without(section: str, known: Collection[_Run]) -> str:
    """Return what the diff has on a file without the hunks all of whose runs are known; "" if that is all."""
    head, *hunks = _HUNK.split(section)
    kept = [hunk for hunk in hunks or [""] if not all(run in known for run in _runs(head + hunk))]
    return head + "".join(kept) if kept else ""


def new_texts(git: Git, compared: Compared, files: Iterable[str]) -> Mapping[str, str]:
    """Return the texts of files as they are after a change, changed or not; a file that it does not have is left out."""
    top = git.top() or git.directory
    texts: dict[str, str] = {}
    for file in dict.fromkeys(files):
        if compared.has_files:
            data = read_inside(top / file, top) if _is_inside(file) else None
        else:
            revision = "" if compared.arguments[0] == "--cached" else compared.arguments[-1]
            data = git.blob(f"{revision}:{file}")
        if data is not None:
            texts[file], _ = without_pictures(with_plain_lines(data.decode("utf-8", "replace")), file)
    return texts


def _is_inside(file: str) -> bool:
    return not os.path.isabs(file) and os.pardir not in Path(file).parts
