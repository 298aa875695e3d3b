"""Artifacts: files that agents hand in, each written once, with its SHA-256 in a file beside it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from consilience.coordination.files import Draft, Folder, check_id
from consilience.coordination.workspace import Workspace
from consilience.domain.errors import WorkspaceError

ARTIFACTS = "artifacts"
CHECKSUM_SUFFIX = ".sha256"
MAX_ARTIFACT_BYTES = 100_000_000
_CHUNK_BYTES = 1 << 20
_NAME_DIGITS = 12
"""Hexadecimal digits of the checksum in the name of an artifact."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A written artifact."""

    path: str
    """Relative to the workspace."""
    sha256: str
    bytes: int


def write_artifact(
    workspace: Workspace, stem: str, content: str | bytes | os.PathLike[str], *, suffix: str = ".md"
) -> Artifact:
    """Write an artifact, from a text or from a file, durably. Equal content under the same stem is written once.

    The name is the stem, the first digits of the checksum and the suffix. Raises `WorkspaceError`.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,199}", stem):
        raise WorkspaceError(
            f"invalid name of an artifact: {stem!r:.80}", do="Use letters, digits, '.', '_', '~' and '-'."
        )
    if not re.fullmatch(r"(\.[A-Za-z0-9]{1,16})?", suffix):
        raise WorkspaceError(f"invalid suffix of an artifact: {suffix!r:.40}", do="Use one such as .md or .json.")
    with workspace.folder(ARTIFACTS, make=True) as folder, folder.draft() as draft:
        digest, size = _pour(content, draft)
        name = f"{stem}~{digest[:_NAME_DIGITS]}{suffix}"
        draft.sync()
        if not folder.link_draft(draft, name, durable=False) and folder.digest(name, size) != digest:
            raise WorkspaceError("another file has the name of the artifact", where=str(folder.path / name))
        folder.create(name + CHECKSUM_SUFFIX, f"{digest}  {name}\n".encode())
    return Artifact(f"{ARTIFACTS}/{name}", digest, size)


def read_artifact(workspace: Workspace, path: str, sha256: str = "") -> bytes:
    """Return the content of an artifact, verified against `sha256`, or else against the checksum beside it.

    Raises `WorkspaceError` if it is missing, changed, or has no checksum.
    """
    with workspace.folder(ARTIFACTS) as folder:
        name = artifact_name(path)
        data = folder.read(name, MAX_ARTIFACT_BYTES)
        where = str(folder.path / name)
        if data is None:
            raise WorkspaceError("an artifact is missing", where=where)
        expected = sha256 or recorded_checksum(folder, name)
        if hashlib.sha256(data).hexdigest() != expected:
            what = "an artifact was changed after it was handed in" if expected else "an artifact has no checksum"
            raise WorkspaceError(what, where=where, do="Ask its author for another one; do not use this one.")
    return data


def recorded_checksum(folder: Folder, name: str) -> str:
    """Return the checksum in the file beside an artifact; "" if there is none."""
    line = folder.read(name + CHECKSUM_SUFFIX, 1000) or b""
    match = re.match(r"([0-9a-f]{64})\b", line.decode("ascii", "replace"))
    return match[1] if match else ""


def artifact_name(path: str) -> str:
    """Return the file name in a path `artifacts/NAME`. Raises `WorkspaceError` for any other path."""
    folder, _, name = path.rpartition("/")
    if folder != ARTIFACTS or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,250}", name):
        raise WorkspaceError(f"invalid path of an artifact: {path!r:.200}", do=f"Use {ARTIFACTS}/NAME.")
    return name


def stem_of(agent: str, iteration: int, ticket_id: str, attempt: int) -> str:
    """Return the first part of an artifact's name, which no other attempt at any ticket uses."""
    return f"artifact_{check_id(agent, 'name of an agent')[:60]}_{iteration}_{check_id(ticket_id)}~{attempt}"


def _pour(content: str | bytes | os.PathLike[str], draft: Draft) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for chunk in _chunks(content):
        size += len(chunk)
        if size > MAX_ARTIFACT_BYTES:
            raise WorkspaceError(f"the artifact is larger than {MAX_ARTIFACT_BYTES:,} bytes", do="Hand in less.")
        digest.update(chunk)
        draft.write(chunk)
    return digest.hexdigest(), size


def _chunks(content: str | bytes | os.PathLike[str]) -> Iterator[bytes]:
    if isinstance(content, str | bytes):
        yield content.encode("utf-8", "replace") if isinstance(content, str) else content
        return
    try:
        with os.fdopen(os.open(content, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise WorkspaceError("not a regular file", where=str(Path(content)), do="Name a regular file.")
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise WorkspaceError(
            error.strerror or str(error), where=str(Path(content)), do="Name a readable file."
        ) from None
