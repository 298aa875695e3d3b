"""What of a change is new since it was reviewed: the hunks that it did not have at that commit."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from consilience.documents import without_pictures
from consilience.domain.errors import SourceError
from consilience.domain.messages import Source
from consilience.engine.sources import Document
from consilience.targets.changes import Compared, read_inside
from consilience.targets.collection import with_plain_lines
from consilience.targets.diffs import parse_changes
from consilience.targets.git import Git

_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)
_HUNK = re.compile(r"^(?=@@ )", re.MULTILINE)
_RUN = re.compile(r"(?:^[-+\\].*\n?)+", re.MULTILINE)
"""Lines of a hunk that are removed and added in one place."""
_BLOBS = re.compile(r"^index .*\n", re.MULTILINE)


def compared_at(git: Git, compared: Compared, since: str) -> Compared:
    """Return the change as it was at a commit: from where that branched off, if the range has three dots, else from the same
    commit. Raises `SourceError` if there is no such commit, or for staged changes."""
    commit = None if since.startswith("-") else git.commit(since)
    if commit is None:
        raise SourceError(
            f"there is neither a session nor a commit {since!r}",
            where="--since",
            do="Check the name. After a force-push the commit may be gone: leave --since out to review the whole change.",
        )
    old = compared.branched_off or compared.arguments[0]
    if old == "--cached":
        raise SourceError("staged changes have no history", where="--since", do="Give a range: --diff main...HEAD.")
    base = git.line("merge-base", old, commit) if compared.branched_off else old
    return replace(compared, arguments=(base or old, commit), has_files=False)


def unreviewed(sources: Sequence[Source], reviewed: Sequence[Source]) -> list[Source]:
    """Return the diff without the hunks that `reviewed`, the change as it was, has too, and the new texts of the files that it
    still changes; nothing if all was reviewed.

    Hunks are compared by what they remove and add in which file. Neither their lines nor those around them matter, so that a rebase
    makes nothing new.
    """
    if not sources:
        return []
    known = Counter(run for section in _sections(reviewed[:1]) for run in _runs(section))
    kept = [kept for section in _sections(sources[:1]) if (kept := _without(section, known))]
    if not kept:
        return []
    diff = sources[0].model_copy(update={"text": "".join(kept)})
    documents = [Document(f"S{n}", source.name, source.text) for n, source in enumerate([diff, *sources[1:]], 1)]
    changes = parse_changes(documents)
    paths = {change.path for change in changes.files} if changes else set()
    return [diff, *(source for source in sources[1:] if source.name in paths)]


def _sections(diff: Iterable[Source]) -> Iterator[str]:
    """Yield what the diff has on each file."""
    for source in diff:
        yield from filter(None, _SECTION.split(source.text))


def _runs(section: str) -> Iterator[tuple[str, str]]:
    """Yield each run of a file with its file; of a file without hunks (renamed, another mode) what the diff has on it."""
    head, *hunks = _HUNK.split(section)
    file = head.partition("\n")[0]
    if not hunks:
        yield file, _BLOBS.sub("", head)
    for hunk in hunks:
        for run in _RUN.findall(hunk.partition("\n")[2]):
            yield file, run.rstrip("\n")


def _without(section: str, known: Counter[tuple[str, str]]) -> str:
    """Return what the diff has on a file without the hunks all of whose runs are known, which are taken from `known`; "" if that
    is all."""
    head, *hunks = _HUNK.split(section)
    kept = []
    for hunk in hunks or [""]:
        runs = Counter(_runs(head + hunk))
        if runs <= known:
            known -= runs
        else:
            kept.append(hunk)
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
