"""Which files the rules of a project name: such files are read twice even by a quick review."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from consilience.engine.sources import Document
from consilience.targets.diffs import Changes

_SPAN = re.compile(r"`([^`\n]+)`")
_WORD = re.compile(r"(?<![\w/.:*-])[\w.*-]+/[\w./*-]*")
"""A path outside of code spans needs a slash: `Node.js` is none. Addresses have a colon before it."""


def ruled_files(documents: Sequence[Document], changes: Changes | None) -> frozenset[str]:
    """Return the files under review, and of a change the deleted ones, that a rule names: itself, a directory above, or a pattern
    (`*.sql`)."""
    paths = {path for document in documents if document.purpose == "rules" for path in _paths(document.text)}
    names = {document.name for document in documents if not document.purpose and document.name}
    names |= {file.path for file in changes.files} if changes else set()
    return frozenset(name for name in names if _is_named(name, paths))


def _paths(text: str) -> Iterator[str]:
    spans = [span.strip() for span in _SPAN.findall(text)]
    for path in (*(span for span in spans if "/" in span or "." in span), *_WORD.findall(_SPAN.sub(" ", text))):
        if " " not in path and (path := path.removeprefix("./").rstrip(".").rstrip("*").rstrip("/") or ""):
            yield path


def _is_named(name: str, paths: Iterable[str]) -> bool:
    base = name.rpartition("/")[2]
    return any(
        name == path or name.startswith(f"{path}/") or fnmatchcase(base if "/" not in path else name, path)
        for path in paths
    )
