"""A directory of report files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from consilience.domain.errors import SettingsError


def claim_directory(directory: Path) -> None:
    """Make the directory and try to write in it, so that a place that cannot be used is known before anything is spent."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SettingsError(
            f"the report cannot be written there: {error.strerror or error}",
            where=str(directory),
            do="Name a directory you may write in (--out DIR), or make room there.",
        ) from None


def write_files(directory: Path, files: Mapping[str, str]) -> list[Path]:
    """Write each file whole or not at all; returns their paths. Raises `SettingsError` where that fails."""
    written = []
    for name, body in files.items():
        path = directory / name
        draft = path.with_name(f".{name}.{os.getpid()}")
        try:
            draft.write_text(body, encoding="utf-8")
            os.replace(draft, path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise SettingsError(
                f"the report cannot be written: {error.strerror or error}",
                where=str(path),
                do="The session is recorded all the same: see it with `consilience show last`.",
            ) from None
        written.append(path)
    return written
