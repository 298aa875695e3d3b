"""Where things are kept. `CONSILIENCE_HOME` moves all of it to one directory."""

from __future__ import annotations

import os
from pathlib import Path


def data_dir() -> Path:
    """The directory of journals and weights; not created here."""
    home = os.environ.get("CONSILIENCE_HOME")
    if home:
        return Path(home).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("consilience", appauthor=False))


def make_private(directory: Path) -> None:
    """Make the directory and those above it that are missing, for their owner only whatever the umask. Raises `OSError`."""
    for missing in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(exist_ok=True)  # what is there and is no directory is said to be


def journal_path() -> Path:
    return data_dir() / "journal.db"


def weights_dir() -> Path:
    return data_dir() / "weights"
