"""File operations beneath a workspace: confined to it, atomic, and safe against other processes.

Every path is walked from the workspace by directory descriptors and follows no symbolic link. Nothing is written in place: a
draft is written, then linked or renamed to its name. A link is the test-and-set: it fails if the name is taken.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from consilience.domain.errors import WorkspaceError

MAX_RECORD_BYTES = 8_000_000
"""Max size of a JSON file of a workspace."""
MAX_ARTIFACT_BYTES = 100_000_000
MAX_ID_CHARS = 100
DRAFT_PREFIX = ".draft-"

_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ID_CHARS - 1}}}")
_DRAFT = re.compile(re.escape(DRAFT_PREFIX) + "[0-9a-f]{32}")
_OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_OPEN_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a FIFO never blocks
_OPEN_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


def is_id(name: str) -> bool:
    return isinstance(name, str) and bool(_ID.fullmatch(name))


def check_id(name: str, label: str = "id") -> str:
    """Return `name` if it is a valid id, which is also safe as a file name. Raises `WorkspaceError`."""
    if not is_id(name):
        raise WorkspaceError(
            f"invalid {label}: {name!r:.60}",
            do=f"Use 1 to {MAX_ID_CHARS} letters, digits, '.', '_' and '-', beginning with a letter or digit.",
        )
    return name


class DamagedFile(WorkspaceError):
    """A file that is not a regular one, or larger than it may be."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that has no final name yet, open for writing."""

    descriptor: int
    name: str

    def write(self, data: bytes) -> None:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(self.descriptor, remaining) :]

    def sync(self) -> None:
        os.fsync(self.descriptor)


class Folder:
    """An open directory of a workspace. Names are single path components."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self._path = path

    @property
    def path(self) -> Path:
        return Path(self._path)

    @contextmanager
    def folder(self, place: str, *, make: bool = False) -> Iterator[Folder]:
        """Open a directory beneath this one. `place`: names joined by '/', none of them followed if it is a link.

        `make`: create missing ones. Raises `WorkspaceError` if one is missing or not a directory.
        """
        path, descriptor = self._path, os.dup(self.descriptor)
        try:
            for name in place.split("/"):
                path = f"{path}/{name}"
                inner = _open_inner(descriptor, name, make=make)
                os.close(descriptor)
                descriptor = inner
        except OSError as error:
            os.close(descriptor)
            raise _folder_error(path, error) from error
        try:
            yield Folder(descriptor, path)
        finally:
            os.close(descriptor)

    def read(self, name: str, limit: int = MAX_RECORD_BYTES) -> bytes | None:
        """Return the content of a file; None if there is none. Raises `WorkspaceError` unless it is a regular file of at most
        `limit` bytes that can be read.
        """
        try:
            if not stat.S_ISREG(os.lstat(name, dir_fd=self.descriptor).st_mode):  # opening a device may act on it
                raise self._damaged(name)
            with os.fdopen(os.open(name, _OPEN_FILE, dir_fd=self.descriptor), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise self._damaged(name)
                data = file.read(limit + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(name, error.strerror or str(error)) from error
        if len(data) > limit:
            raise self._damaged(name, f"larger than {limit:,} bytes")
        return data

    def digest(self, name: str, size: int) -> str:
        """Return the SHA-256 of a regular file of that size, read in chunks; "" if it is missing or has another size."""
        status = self.status(name)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return ""
        try:
            with os.fdopen(os.open(name, _OPEN_FILE, dir_fd=self.descriptor), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._error(name, error.strerror or str(error)) from error

    def create(self, name: str, data: bytes, *, mode: int = 0o444, durable: bool = True) -> bool:
        """Write a new file whole; return False, and change nothing, if the name is taken.

        `durable`: return after file and name are on the disk.
        """
        with self.draft(mode) as draft:
            draft.write(data)
            return self.link_draft(draft, name, durable=durable)

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file whole in place of any other of that name, or a new one. Raises `WorkspaceError` if the name is taken by
        something other than a regular file.
        """
        status = self.status(name)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise self._damaged(name)
        with self.draft(0o644) as draft:
            draft.write(data)
            if durable:
                draft.sync()
            try:
                os.rename(draft.name, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            except OSError as error:
                raise self._error(name, error.strerror or str(error)) from error
        if durable:
            self.sync()

    @contextmanager
    def draft(self, mode: int = 0o444) -> Iterator[Draft]:
        """Yield a new file, open for writing; its name is removed at the end unless it was renamed."""
        name = DRAFT_PREFIX + secrets.token_hex(16)
        try:
            with os.fdopen(os.open(name, _OPEN_DRAFT, mode, dir_fd=self.descriptor), "wb", buffering=0) as file:
                yield Draft(file.fileno(), name)
        except OSError as error:
            raise self._error(name, error.strerror or str(error)) from error
        finally:
            self.remove(name)

    def link_draft(self, draft: Draft, name: str, *, durable: bool = True) -> bool:
        """Link a draft to a name; return False, and change nothing, if the name is taken.

        `durable`: return after the content and the name are on the disk. A network file system may report an error for a link
        that it made, if the first reply was lost, so the file that has the name decides.
        """
        if durable:
            draft.sync()
        try:
            os.link(draft.name, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor, follow_symlinks=False)
        except OSError as error:
            status = self.status(name)
            if status is None or not os.path.samestat(status, os.fstat(draft.descriptor)):
                if status is not None or error.errno == errno.EEXIST:  # SFTP reports any failure as EPERM
                    return False
                do = "Keep the workspace on a file system with hard links." if error.errno in _NO_LINKS else ""
                raise self._error(name, error.strerror or str(error), do=do) from error
        if durable:
            self.sync()
        return True

    def link(self, name: str, other: Folder, other_name: str) -> bool:
        """Give a file a second name in another folder; return False if that is impossible."""
        try:
            os.link(name, other_name, src_dir_fd=self.descriptor, dst_dir_fd=other.descriptor, follow_symlinks=False)
        except OSError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file or link if it is there. Never raises: what cannot be removed stays."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a name, links not followed; None if there is none."""
        try:
            return os.lstat(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(name, error.strerror or str(error)) from error

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)

    def sync(self) -> None:
        """Wait until the names of this folder are on the disk."""
        with suppress(OSError):  # some network file systems cannot, and commit names at once
            os.fsync(self.descriptor)

    def remove_drafts(self, before: float) -> None:
        """Remove drafts last written before that time, which a process left that ended."""
        for name in self.names():
            if _DRAFT.fullmatch(name):
                status = self.status(name)
                if status is not None and stat.S_ISREG(status.st_mode) and status.st_mtime < before:
                    self.remove(name)

    def _damaged(self, name: str, damage: str = "not a regular file") -> DamagedFile:
        return DamagedFile(f"unusable file in the workspace: {damage}", where=f"{self._path}/{name}")

    def _error(self, name: str, problem: str, *, do: str = "") -> WorkspaceError:
        return WorkspaceError(f"unusable file in the workspace: {problem}", where=f"{self._path}/{name}", do=do)


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def open_folder(root: Path) -> Iterator[Folder]:
    """Open a directory. Links in its path are followed. Raises `WorkspaceError`."""
    try:
        descriptor = os.open(root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError as error:
        raise _folder_error(str(root), error) from error
    try:
        yield Folder(descriptor, str(root))
    finally:
        os.close(descriptor)


def _open_inner(descriptor: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=descriptor)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=descriptor)
    return os.open(name, _OPEN_FOLDER, dir_fd=descriptor)


def _folder_error(path: str, error: OSError) -> WorkspaceError:
    is_other = error.errno in (errno.ELOOP, errno.ENOTDIR)
    problem = "not a directory" if is_other else error.strerror or str(error)
    return WorkspaceError(f"unusable directory of a workspace: {problem}", where=path)
