"""Report files, and a directory of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from consilience.domain.errors import SettingsError
from consilience.domain.paths import is_of_journal, make_private, replace_file

PAGE = "report.html"
"""The page of a session, beside its other files."""
_MAX_LINKS = 40
"""Max links followed from one path, as in Linux."""
_FILE_SUFFIXES = frozenset({".json", ".md", ".markdown", ".html", ".htm", ".txt", ".pdf"})
"""A directory to be made that ends in one of these is meant as a file."""


def claim_directory(directory: Path) -> None:
    """Make a directory and test that it is writable, before any money is spent. Raises `SettingsError`, also for a file's name."""
    _spare_journal(directory)
    if directory.suffix.lower() in _FILE_SUFFIXES and not directory.is_dir():
        raise SettingsError(
            f"{directory.name} is the name of a file, and the reports are written into a directory",
            where=str(directory),
            do=f"Name a directory, such as {directory.with_suffix('')}. One file, afterwards: consilience export last --out FILE.",
        )
    try:
        make_private(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SettingsError(
            f"nothing can be written there: {error.strerror or error}",
            where=str(directory),
            do="Name a writable directory (--out DIR), or free space on its disk.",
        ) from None


def write_files(directory: Path, files: Mapping[str, str | bytes], *, session: str = "") -> list[Path]:
    """Write each file as `write_file` does; return their paths. Raises `SettingsError`."""
    paths = []
    for name, body in files.items():
        path = directory / name
        write_file(path, body, session=session)
        paths.append(path)
    return paths


def write_file(path: Path, body: str | bytes, *, session: str = "") -> None:
    """Write or replace a file atomically, readable by its owner only. Links are followed.

    A device, a pipe or an open file of this process (/dev/stdout, /dev/fd/63) is written to, not replaced. Files of the journal
    are refused. Raises `SettingsError`; if the text is that of a recorded `session`, it says how to read it instead.
    """
    _spare_journal(path)
    data = body if isinstance(body, bytes) else body.encode("utf-8", "backslashreplace")  # lone surrogates are kept
    try:
        descriptor = _descriptor(path)
        if descriptor is not None:
            _copy_content(os.dup(descriptor), data)
        elif path.exists() and not path.is_file():
            _copy_content(os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)), data)
        else:
            replace_file(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise SettingsError(
            f"the file cannot be written: {error.strerror or error}",
            where=str(path),
            do=f"The session is recorded: read it with `consilience show {session}`."
            if session
            else "Name another file with --out, or free space on its disk.",
        ) from None


def _spare_journal(path: Path) -> None:
    if is_of_journal(path):
        raise SettingsError(
            "the file cannot be written: that is a file of the journal",
            where=str(path),
            do="Name another place with --out.",
        )


def _descriptor(path: Path) -> int | None:
    """Return the descriptor if a path names an open file of this process.

    It is written to directly: opening the path again would truncate `>> file` and fail for sockets and other users' pipes.
    """
    descriptor_directories = (f"/proc/{os.getpid()}/fd", "/dev/fd")
    for _ in range(_MAX_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) in descriptor_directories:
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _copy_content(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[file.write(remaining) or 0 :]
