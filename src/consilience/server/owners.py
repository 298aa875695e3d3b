"""The token file: the owners of sessions, the digests of their tokens and what they may do.

It is read again when it changes, so that a token is added, replaced or withdrawn without a restart. No token is ever in it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from consilience.domain.errors import SettingsError
from consilience.domain.paths import replace_file
from consilience.journal.accounts import Allowance
from consilience.server.callers import Caller, OwnerBounds, OwnerName, Rights, team_owner

logger = logging.getLogger("consilience")

T = TypeVar("T", int, float)
TOKEN_BYTES = 32
TOKEN_PREFIX = "cons_"
"""What a token begins with, so that scanners of repositories recognize one."""


class OwnerEntry(Rights):
    """An owner: by a token, by the name that a trusted proxy gives, or by either."""

    name: OwnerName
    token_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the token, in hexadecimal."""
    expires: datetime | date | None = None
    """When the entry ends, also for a user whom a proxy names; a day ends at midnight UTC after it."""

    def has_expired(self, now: float) -> bool:
        """`now` is in seconds since the epoch."""
        if self.expires is None:
            return False
        if isinstance(self.expires, datetime):
            end = self.expires if self.expires.tzinfo else self.expires.replace(tzinfo=UTC)
            return end.timestamp() <= now
        return datetime.fromtimestamp(now, UTC).date() > self.expires


class GroupEntry(Rights):
    """What the members of a group may do whom the file does not name. The first group of a user that is here counts."""

    name: str = Field(min_length=1)


class TeamEntry(OwnerBounds):
    """A team that owns sessions, with what all of them together may use."""

    name: OwnerName


class TokenFile(BaseModel):
    """A token file as it is written: tables `[[owner]]`, `[[group]]` and `[[team]]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    owner: tuple[OwnerEntry, ...] = ()
    group: tuple[GroupEntry, ...] = ()
    team: tuple[TeamEntry, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> TokenFile:
        for names in ([o.name for o in self.owner], [g.name for g in self.group], [t.name for t in self.team]):
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ValueError(f"{twice!r} is there twice")
        digests = [entry.token_sha256 for entry in self.owner if entry.token_sha256]
        if len(set(digests)) < len(digests):
            raise ValueError("two owners have the same token")
        teams = {team.name for team in self.team}
        for team in (entry.team for entry in (*self.owner, *self.group)):
            if team is not None and team not in teams:
                raise ValueError(f"there is no [[team]] {team!r}, which an owner or a group is in")
        return self


class Owners:
    """The owners of a server's token file, as it is now. Safe to use from several threads."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        """Raises `SettingsError` for a file that cannot be read. `now` is in seconds since the epoch."""
        self.path = path
        self._now = now
        self._seen = _stamp(path)
        self._file = read_token_file(path)

    @property
    def file(self) -> TokenFile:
        """The file as it is now. One that has become invalid counts as it was before, which the log says once per change."""
        stamp = _stamp(self.path)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._file = read_token_file(self.path)
                logger.info("the token file was read again: %s", self.path)
            except SettingsError as error:
                logger.error("the token file has changed and is not used as it is now: %s", error)
        return self._file

    def by_token(self, token: str) -> Caller | None:
        """Return whose token this is; None for an unknown or expired one. Takes the same time wherever the token is in the file."""
        digest = token_digest(token)
        found: OwnerEntry | None = None
        for entry in self.file.owner:
            if hmac.compare_digest(entry.token_sha256 or "0" * 64, digest):
                found = entry
        return self._caller(found) if found is not None and found.token_sha256 is not None else None

    def by_user(self, name: str, groups: Sequence[str]) -> Caller | None:
        """Return the caller whom a trusted proxy names: the owner of that name, else what a group of theirs may do; else None."""
        file = self.file
        entry = next((owner for owner in file.owner if owner.name == name), None)
        if entry is not None:
            return self._caller(entry)
        group = next((group for group in file.group if group.name in groups), None)
        try:
            named = OwnerEntry(name=name)
        except ValidationError:  # a name that could be read as that of a team
            return None
        return None if group is None else Caller.of(named.name, group)

    def rights(self, owner: str) -> Rights | TeamEntry:
        """Return what bounds the sessions of an owner or a team, by the name that their sessions have."""
        file = self.file
        named: dict[str, Rights | TeamEntry] = {team_owner(team.name): team for team in file.team}
        named |= {entry.name: entry for entry in file.owner}
        return named.get(owner) or _least(file.group)

    def allowance(self, owner: str) -> Allowance:
        """Return what the sessions of an owner may use; those of this machine's user are not bounded."""
        return self.rights(owner).allowance if owner else Allowance()

    def _caller(self, entry: OwnerEntry) -> Caller | None:
        return None if entry.has_expired(self._now()) else Caller.of(entry.name, entry)


def _least(groups: Sequence[GroupEntry]) -> Rights:
    """Return what somebody may use whom the file does not name: as little as a member of any group, nothing without groups."""
    if not groups:
        return Rights(max_cost_per_day=0, running=0)

    def least(values: Iterable[T | None]) -> T | None:
        return min((value for value in values if value is not None), default=None)

    return Rights(
        max_cost_per_day=least(group.max_cost_per_day for group in groups),
        running=least(group.running for group in groups),
        keep_days=least(group.keep_days for group in groups),
        quota=least(group.quota for group in groups),
    )


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def read_token_file(path: Path) -> TokenFile:
    """Raises `SettingsError`, which quotes no value of the file: somebody may have written a token where its digest belongs."""
    try:
        return TokenFile.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise SettingsError(
            f"the token file cannot be read: {error.strerror}",
            where=str(path),
            do="Make it with --new-owner NAME, and let the user of the server read it.",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise SettingsError("the token file is not TOML in UTF-8", where=str(path), do="Correct it.") from None
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors(include_url=False))
        raise SettingsError(
            f"the token file is invalid: {'; '.join(problems)}", where=str(path), do="Correct it."
        ) from None


def add_owner(path: Path, name: str) -> str:
    """Append an owner to a token file, which is made if it is missing, and return the token, which is stored nowhere.

    The file is replaced as a whole, and keeps its user and mode; a new one has mode 0600. Raises `SettingsError` for a name that is
    there or is no name, and for a file that cannot be read or written.
    """
    before = ""
    if path.exists():
        taken = {owner.name for owner in read_token_file(path).owner}
        if name in taken:
            raise SettingsError(
                f"the token file has an owner {name!r} already",
                where=str(path),
                do="Choose another name, or remove the entry first, which withdraws its token.",
            )
        before = path.read_text("utf-8").rstrip("\n") + "\n\n"
    token = new_token()
    try:
        OwnerEntry(name=name)
    except ValidationError:
        raise SettingsError(
            f"{name!r} is no name of an owner",
            do="Give 1 to 64 letters, digits and . _ @ + - , a letter or digit first.",
        ) from None
    entry = f'[[owner]]\nname = "{name}"\ntoken_sha256 = "{token_digest(token)}"\n'
    try:
        whole = path.resolve()  # a link stays one
        whole.parent.mkdir(parents=True, exist_ok=True)
        replace_file(whole, (before + entry).encode(), like=whole.stat() if whole.exists() else None)
    except OSError as error:
        raise SettingsError(f"the token file cannot be written: {error.strerror}", where=str(path)) from None
    return token


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
