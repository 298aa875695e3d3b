"""Paths of journal, weights and configuration. `CONSILIENCE_HOME` is one directory for all of them, the home."""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from consilience.domain.errors import SettingsError

_JOURNAL = "journal.db"
_COMPANIONS = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps for a journal."""
_LEASES = ".leases"
_OWN_NAMES = frozenset(
    {_JOURNAL, *(_JOURNAL + suffix for suffix in (*_COMPANIONS, _LEASES)), "weights", "consilience.toml"}
)
"""Names of this program's files in its home."""
_opened: set[str] = set()
"""Real paths of the journals that this process opened."""


def data_dir() -> Path:
    """Return the directory of journals and weights; it may not exist."""
    import platformdirs

    return home_dir() or _of_user(platformdirs.user_data_dir)


def user_config_dir() -> Path:
    """Return the directory of the user's configuration; it may not exist."""
    import platformdirs

    return home_dir() or _of_user(platformdirs.user_config_dir)


def home_dir() -> Path | None:
    """Return `CONSILIENCE_HOME`; None if unset. Raises `SettingsError` if it begins with the home of an unknown user."""
    home = os.environ.get("CONSILIENCE_HOME")
    return expanded(home, where="CONSILIENCE_HOME in the environment") if home else None


def expanded(path: str | Path, *, where: str | None = None) -> Path:
    """Return a path with `~` replaced by the home directory. Raises `SettingsError` if there is none; `where` names the path."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SettingsError(
            f"there is no home directory for {Path(path).parts[0]}",
            where=where or str(path),
            do="Write the whole path.",
        ) from None


def _of_user(directory: Callable[..., str]) -> Path:
    """Return this program's directory below the user's home. Raises `SettingsError` if the user has no home."""
    try:
        path = Path(directory("consilience", appauthor=False))
    except RuntimeError:
        path = Path()
    if path.is_absolute():
        return path
    raise SettingsError(
        "this user has no home directory", where="HOME in the environment", do="Set CONSILIENCE_HOME to a directory."
    )


def make_private(directory: Path) -> None:
    """Make a directory and its missing parents, for their owner only whatever the umask. Raises `OSError`."""
    for missing in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(exist_ok=True)  # raises if it is a file


def journal_path() -> Path:
    """Return the user's journal: `CONSILIENCE_JOURNAL`, else a file in `data_dir`. Raises `SettingsError` if it is not a file."""
    named = os.environ.get("CONSILIENCE_JOURNAL")
    if not named:
        return data_dir() / _JOURNAL
    check_store_place(named, where="CONSILIENCE_JOURNAL in the environment")
    return Path(os.path.expanduser(named))


def is_own_journal(place: str) -> bool:
    """Return whether a journal is in the user's own directory, or in memory. Any other may come from another person."""
    return place == ":memory:" or os.path.dirname(os.path.realpath(place)) == os.path.realpath(data_dir())


def check_store_place(place: str, where: str = "") -> None:
    """Raise `SettingsError` for a kind of store that is not installed, such as postgresql://…"""
    kind, separator, _ = place.partition("://")
    if separator and kind.isalpha():
        raise SettingsError(
            f"this installation has no store for {kind}:// places",
            where=where,
            do="Name the path of a file, or :memory: to keep nothing.",
        )


def weights_dir() -> Path:
    return data_dir() / "weights"


def check_home() -> None:
    """Raise `SettingsError` if the home exists and belongs to another user except root, or is not accessible."""
    home = data_dir()
    problem = ""
    try:
        owner = os.stat(home).st_uid
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        problem = f"the home directory cannot be entered: {error.strerror}"
    else:
        if hasattr(os, "geteuid") and owner not in (os.geteuid(), 0):
            problem = f"the home directory belongs to another user ({_user_name(owner)})"
        elif os.path.isdir(home) and not os.access(home, os.X_OK):
            problem = "the home directory cannot be entered: Permission denied"
    if problem:
        raise SettingsError(problem, where=str(home), do="Name a directory of your own with CONSILIENCE_HOME.")


def close_home() -> None:
    """Remove write access of other users from the home if it contains only files of this program.

    A directory with the sticky bit, such as /tmp, is shared deliberately and is not changed.
    """
    home = data_dir()
    with suppress(OSError):  # a file system without permissions
        if is_open_to_others(home) and _OWN_NAMES.issuperset(os.listdir(home)):
            _close(str(home))


def is_open_to_others(directory: Path) -> bool:
    """Return whether other users may replace files of a directory."""
    if not hasattr(os, "geteuid"):
        return False
    mode = os.stat(directory).st_mode
    return bool(mode & 0o022) and not mode & stat.S_ISVTX


def close_journal(journal: str) -> None:
    """Remove access of other users from a journal's files if they belong to this user. By path: see `is_of_journal`."""
    leases = journal + _LEASES
    _close(journal, *(journal + suffix for suffix in _COMPANIONS))
    if _close(leases):
        _close(*_leases_of(journal))


def _close(*paths: str) -> bool:
    """Return whether the permissions of any path were changed."""
    closed = False
    for path in paths:
        with suppress(OSError):  # a read-only file system, or a removed file
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):  # chmod would change its target, which may belong to another user
                continue
            if status.st_mode & 0o077 and hasattr(os, "geteuid") and status.st_uid == os.geteuid():
                os.chmod(path, stat.S_IMODE(status.st_mode) & ~0o077)
                closed = True
    return closed


def note_journal(journal: str) -> None:
    """Record that this process opened the journal at this real path."""
    _opened.add(journal)


def is_of_journal(path: Path) -> bool:
    """Return whether a path leads, through any link, to a file of the user's journal or of one that this process opened.

    Such a file must not be replaced, and only SQLite may open it: closing it drops the locks of this process.
    """
    real = os.path.realpath(path)
    for journal in {os.path.realpath(journal_path()), *_opened}:
        files = [journal, *(journal + suffix for suffix in (*_COMPANIONS, _LEASES))]
        if real in files or real.startswith(journal + _LEASES + os.sep):
            return True
        with suppress(OSError):
            target = os.stat(path)
            if target.st_nlink > 1:
                files += _leases_of(journal)
            if any(_is_file(file, target) for file in files):
                return True
    return False


def _leases_of(journal: str) -> list[str]:
    leases = journal + _LEASES
    return [entry.path for entry in os.scandir(leases)] if os.path.isdir(leases) else []


def _is_file(file: str, target: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(file), target)
    except OSError:
        return False


def _user_name(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"number {number}"


MAX_FILE_BYTES = 1_000_000
"""Max size of a configuration, a panel or a prompt template."""


def read_bounded(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return all bytes of a file, a pipe or a device, at most `limit`.

    Raises `OSError` with a readable `strerror` (`EFBIG` for more bytes, `EPERM` for a file of the journal), and `ValueError` for a
    NUL character in the path.
    """
    if is_of_journal(path):
        raise PermissionError(errno.EPERM, "it is a file of the journal", str(path))
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, too_long(limit), str(path))
    return data


def read_bounded_text(path: Path, limit: int = MAX_FILE_BYTES) -> str:
    """Return the same as text, without a byte order mark and with newlines as line ends. Also raises `UnicodeDecodeError`."""
    return io.StringIO(read_bounded(path, limit).decode("utf-8-sig"), newline=None).read()


def replace_file(path: Path, data: bytes, *, like: os.stat_result | None = None) -> None:
    """Write or replace a file as a whole, durably: for its owner only, or with the owner and mode of `like`. Raises `OSError`."""
    number, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")  # mode 0600
    try:
        if like is not None and hasattr(os, "chown"):
            os.chown(draft, like.st_uid, like.st_gid)
            os.chmod(draft, like.st_mode & 0o777)
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def too_long(limit: int) -> str:
    """Return the error message for a text of more than `limit` bytes."""
    return f"it has more than {limit / 1e6:g} MB, the maximum"
