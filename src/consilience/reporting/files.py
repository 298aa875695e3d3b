"""Report files, and a directory of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from consilience.domain.errors import SettingsError
from consilience.domain.paths import is_of_journal, make_private

_MAX_LINKS = 40
"""Links that are followed from one path, as by the system."""


def claim_directory(directory: Path) -> None:
    """Make the directory and try to write in it, so that a place that cannot be used is known before anything is spent."""
    _spare_journal(directory)
    try:
        make_private(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SettingsError(
            f"the report cannot be written there: {error.strerror or error}",
            where=str(directory),
            do="Name a directory you may write in (--out DIR), or make room there.",
        ) from None


def write_files(directory: Path, files: Mapping[str, str | bytes]) -> list[Path]:
    """Write each file as `write_file` does; returns their paths. Raises `SettingsError` where that fails."""
    written = []
    for name, body in files.items():
        path = directory / name
        write_file(path, body)
        written.append(path)
    return written


def write_file(path: Path, body: str | bytes) -> None:
    """Write a file whole or not at all, for its owner alone to read, in place of one that is there.

    A link is followed. An existing device, a pipe, or an open file of this process (/dev/stdout, /dev/fd/63) is written to and
    never replaced. A file of the journal is refused. Raises `SettingsError`.
    """
    _spare_journal(path)
    data = (
        body if isinstance(body, bytes) else body.encode("utf-8", "backslashreplace")
    )  # half a surrogate pair is kept
    try:
        descriptor = _descriptor(path)
        if descriptor is not None:
            _pour(os.dup(descriptor), data)
        elif path.exists() and not path.is_file():
            _pour(os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)), data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise SettingsError(
            f"the report cannot be written: {error.strerror or error}",
            where=str(path),
            do="The session is recorded all the same: see it with `consilience show last`.",
        ) from None


def _spare_journal(path: Path) -> None:
    if is_of_journal(path):
        raise SettingsError(
            "the report cannot be written: that is a file of the journal",
            where=str(path),
            do="Name another place with --out.",
        )


def _descriptor(path: Path) -> int | None:
    """The number of this process's open file that a path stands for, if it does.

    It is written at its own place and not opened again: `>> file` would be cut, a socket or another user's pipe refused.
    """
    own = (f"/proc/{os.getpid()}/fd", "/dev/fd")
    for _ in range(_MAX_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) in own:
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _pour(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) or 0 :]


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):  # there may be no such directory
            draft.unlink(missing_ok=True)
        raise
