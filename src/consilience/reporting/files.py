"""Report files, and a directory of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from consilience.domain.errors import SettingsError
from consilience.domain.places import make_private


def claim_directory(directory: Path) -> None:
    """Make the directory and try to write in it, so that a place that cannot be used is known before anything is spent."""
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


def write_files(directory: Path, files: Mapping[str, str]) -> list[Path]:
    """Write each file whole or not at all, for its owner only; returns their paths. Raises `SettingsError` where that fails."""
    written = []
    for name, body in files.items():
        path = directory / name
        write_file(path, body)
        written.append(path)
    return written


def write_file(path: Path, body: str) -> None:
    """Write a file whole or not at all, for its owner alone to read, in place of one that is there. Raises `SettingsError`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(body.encode("utf-8", "backslashreplace"))  # half a surrogate pair must not cost the report
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):  # there may be no such directory
            draft.unlink(missing_ok=True)
        raise SettingsError(
            f"the report cannot be written: {error.strerror or error}",
            where=str(path),
            do="The session is recorded all the same: see it with `consilience show last`.",
        ) from None
