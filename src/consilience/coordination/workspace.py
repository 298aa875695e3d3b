"""A workspace: one directory in which processes coordinate by tickets, and hand in artifacts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from pydantic import JsonValue, ValidationError

from consilience.coordination.files import MAX_ARTIFACT_BYTES, Draft, Folder, check_id, is_id, open_folder
from consilience.coordination.history import HISTORY, all_records, last_record
from consilience.coordination.records import (
    STATES,
    AgentState,
    ConvergenceRecord,
    ProtocolFile,
    Record,
    SessionMetadata,
    Ticket,
    TicketState,
    WorkspaceReviewType,
    wall_time,
)
from consilience.domain.errors import WorkspaceError
from consilience.domain.validation import describe_invalid

R = TypeVar("R", bound=Record)

SESSION_ID = "session_id.txt"
METADATA = "session_metadata.json"
CONVERGENCE = "convergence.json"
PROTOCOL = "protocol.json"
PLACES = (*(f"tickets/{state}" for state in STATES), HISTORY, "agents", "locks", "artifacts")
MARKER = "[SESSION_DIR:"
ARTIFACTS = "artifacts"
CHECKSUM_SUFFIX = ".sha256"
_CHUNK_BYTES = 1 << 20
_NAME_DIGITS = 12
"""Hexadecimal digits of the checksum in the name of an artifact."""


def parse_session_from_prompt(prompt: str) -> Path:
    """Return the workspace that a prompt names as `[SESSION_DIR:/absolute/path]`.

    Raises `ValueError` if it names none, several, or a relative path. The path may hold spaces and paired brackets.
    """
    paths = {_marked_path(prompt, match.end()) for match in re.finditer(re.escape(MARKER), prompt)}
    if not paths:
        raise ValueError(f"the prompt names no workspace; add {MARKER}/absolute/path]")
    if len(paths) > 1:
        raise ValueError(f"the prompt names several workspaces: {', '.join(sorted(paths))}")
    path = paths.pop()
    if not os.path.isabs(path) or "\0" in path:
        raise ValueError(f"the prompt names a workspace by an invalid path: {path!r:.200}; write the absolute path")
    return Path(path)


def _marked_path(prompt: str, begin: int) -> str:
    line = prompt[begin:].partition("\n")[0]
    depth = 1
    for place, character in enumerate(line):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if not depth:
            return line[:place].strip()
    return ""


class Workspace:
    """An existing workspace. It holds nothing open, and any number of processes may use it at once."""

    def __init__(self, path: Path, session_id: str) -> None:
        self.path = path
        self.session_id = session_id

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        review_type: WorkspaceReviewType = "code",
        agents: Iterable[str] = (),
        config: Mapping[str, JsonValue] | None = None,
        convergence: ConvergenceRecord | None = None,
        protocol: Mapping[str, JsonValue] | None = None,
        session_id: str = "",
        now: float | None = None,
    ) -> Self:
        """Make a workspace at a path that does not exist or is an empty directory. It appears complete or not at all.

        `protocol`: content of `protocol.json`. `session_id`: generated if "". Raises `WorkspaceError`.
        """
        _check_platform()
        target = Path(os.path.realpath(path))
        session = check_id(session_id, "session id") if session_id else f"ws-{secrets.token_hex(8)}"
        names = tuple(check_id(agent, "name of an agent") for agent in agents)
        created_at = wall_time(now)
        settings = dict(config or {})
        judged = convergence or _convergence(settings)
        files = {
            METADATA: SessionMetadata(
                session_id=session, review_type=review_type, created_at=created_at, agents=names, config=settings
            ).model_dump_json(indent=1),
            CONVERGENCE: judged.model_copy(update={"session_id": session, "review_type": review_type}).model_dump_json(
                indent=1
            ),
            PROTOCOL: json.dumps({"version": 1, **(protocol or {})}, indent=1),
            SESSION_ID: session + "\n",
        }
        draft = target.with_name(f".{target.name}.draft-{secrets.token_hex(16)}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.mkdir(mode=0o700)
            for place in PLACES:
                (draft / place).mkdir(parents=True)
            with open_folder(draft) as folder:
                for name, text in files.items():
                    folder.replace(name, text.encode())
            workspace = cls(draft, session)
            for agent in names:
                workspace.add_agent(agent, now=created_at)
            os.rename(draft, target)  # fails unless the target is absent or an empty directory
            with open_folder(target.parent) as parent:
                parent.sync()
        except OSError as error:
            raise WorkspaceError(
                f"the workspace cannot be made: {error.strerror or error}",
                where=str(target),
                do="Name a path that does not exist yet, or an empty directory.",
            ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return cls(target, session)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open an existing workspace. Raises `WorkspaceError` if there is none."""
        _check_platform()
        root = Path(os.path.realpath(path))
        with open_folder(root) as folder:
            session = _session_id(folder)
        if not session:
            raise WorkspaceError(
                f"not a workspace: it has no {SESSION_ID}",
                where=str(root),
                do="Make one with `consilience workspace new`.",
            )
        return cls(root, check_id(session, f"session id in {SESSION_ID}"))

    @property
    def marker(self) -> str:
        """What to put into a prompt so that its reader finds this workspace. Raises `WorkspaceError` if the path prevents it."""
        marker = f"{MARKER}{self.path}]"
        with suppress(ValueError):
            if parse_session_from_prompt(marker) == self.path:
                return marker
        raise WorkspaceError(
            "a prompt cannot name this path",
            where=str(self.path),
            do="Use a path without line breaks, outer spaces and unpaired brackets.",
        )

    @contextmanager
    def root(self) -> Iterator[Folder]:
        """Open the directory. Raises `WorkspaceError` if this workspace is no longer there, or another one is in its place."""
        with open_folder(self.path) as folder:
            there = _session_id(folder)
            if there != self.session_id:
                what = f"another workspace, {there}, is in its place" if there else f"it has no {SESSION_ID}"
                raise WorkspaceError(f"workspace {self.session_id} is gone: {what}", where=str(self.path))
            yield folder

    @contextmanager
    def folder(self, place: str = "", *, make: bool = False) -> Iterator[Folder]:
        """Open a directory of this workspace. `place`: names joined by '/'; `make`: create missing ones. Raises as `root`."""
        with self.root() as root:
            if not place:
                yield root
                return
            with root.folder(place, make=make) as folder:
                yield folder

    # --- tickets

    def ticket(self, ticket_id: str) -> Ticket:
        """Return a ticket as it is now. Raises `WorkspaceError` if there is none or no record of it is readable."""
        with self.folder(HISTORY) as history:
            return self.ticket_in(history, ticket_id)

    def ticket_in(self, history: Folder, ticket_id: str) -> Ticket:
        """Return a ticket as `ticket` does, from the open directory of the histories."""
        check_id(ticket_id, "ticket id")
        last, ticket = last_record(history, ticket_id, self.session_id)
        if ticket is None:
            what = f"no record of ticket {ticket_id} is readable" if last else f"no ticket {ticket_id}"
            raise WorkspaceError(what, where=str(self.path), do="`consilience workspace show` lists the tickets.")
        return ticket

    def tickets(self, state: TicketState | None = None, *, skip: Collection[str] = ()) -> list[Ticket]:
        """Return all tickets, or those in one state, oldest first. Unreadable ones are left out; a sweep reports them.

        `skip`: ids of tickets that are not read.
        """
        with self.folder(HISTORY) as history:
            tickets, _ = all_records(history, self.session_id, skip)
        return [ticket for ticket in tickets if state in (None, ticket.state)]

    def unreadable_tickets(self) -> list[str]:
        """Return the ids of tickets of which no record is readable, sorted."""
        with self.folder(HISTORY) as history:
            return all_records(history, self.session_id)[1]

    # --- agents

    def agents(self) -> list[str]:
        """Return the names of the agents that have a directory, sorted."""
        with self.folder("agents") as folder:
            return sorted(name for name in folder.names() if is_id(name) and _is_directory(folder, name))

    def add_agent(self, agent: str, *, now: float | None = None) -> None:
        """Make the directory of an agent unless it has one."""
        check_id(agent, "name of an agent")
        with self.folder(f"agents/{agent}", make=True) as folder:
            for box in ("inbox", "outbox"):
                with folder.folder(box, make=True):
                    pass
            if folder.status("state.json") is None:
                state = AgentState(agent=agent, last_heartbeat=wall_time(now))
                folder.create("state.json", state.model_dump_json(indent=1).encode(), mode=0o644, durable=False)

    def state_of(self, agent: str) -> AgentState:
        """Return the state of an agent. Raises `WorkspaceError` if it has none or it is unreadable."""
        return self.read(f"agents/{check_id(agent, 'name of an agent')}", "state.json", AgentState)

    def save_state(self, state: AgentState) -> None:
        """Replace the state of an agent."""
        with self.root() as root:
            save_state(root, state)

    # --- the session

    def metadata(self) -> SessionMetadata:
        return self.read("", METADATA, SessionMetadata)

    def convergence(self) -> ConvergenceRecord:
        return self.read("", CONVERGENCE, ConvergenceRecord)

    def save_convergence(self, convergence: ConvergenceRecord) -> None:
        self.write("", CONVERGENCE, convergence)

    def read(self, place: str, name: str, model: type[R]) -> R:
        """Return the content of a JSON file. Raises `WorkspaceError` if it is missing or invalid."""
        with self.folder(place) as folder:
            data = folder.read(name)
            where = str(folder.path / name)
        if data is None:
            raise WorkspaceError("a file of the workspace is missing", where=where)
        try:
            return model.model_validate_json(data)
        except ValidationError as error:
            raise WorkspaceError(f"invalid file: {describe_invalid(error, model=model)}", where=where) from None

    def write(self, place: str, name: str, record: Record, *, durable: bool = True) -> None:
        """Replace a JSON file. Raises `WorkspaceError`."""
        with self.folder(place) as folder:
            folder.replace(name, record.model_dump_json(indent=1).encode(), durable=durable)


def read_protocol(workspace: Workspace) -> ProtocolFile:
    """Return the content of `protocol.json`. Raises `WorkspaceError` if it is missing or invalid."""
    return workspace.read("", PROTOCOL, ProtocolFile)


def _convergence(config: Mapping[str, JsonValue]) -> ConvergenceRecord:
    """Return what the settings of the session say about convergence."""
    gates = config.get("gates", config.get("convergence_gates"))
    known = {key: config[key] for key in ("max_iterations", "quality_threshold") if key in config}
    if isinstance(schedule := known.get("quality_threshold"), list | tuple) and schedule:
        known["quality_threshold"] = schedule[0]  # of the first iteration
    try:
        return ConvergenceRecord.model_validate(
            {**known, "convergence_gates": [{"id": gate} if isinstance(gate, str) else gate for gate in gates or ()]}
            if isinstance(gates, list | tuple)
            else known
        )
    except ValidationError as error:
        raise WorkspaceError(f"invalid settings: {describe_invalid(error, model=ConvergenceRecord)}") from None


def save_state(root: Folder, state: AgentState) -> None:
    """Replace the state of an agent in an open workspace. Raises `WorkspaceError`."""
    with root.folder(f"agents/{state.agent}", make=True) as folder:
        folder.replace("state.json", state.model_dump_json(indent=1).encode(), durable=False)


def _is_directory(folder: Folder, name: str) -> bool:
    status = folder.status(name)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _session_id(folder: Folder) -> str:
    return (folder.read(SESSION_ID, limit=1000) or b"").decode("utf-8", "replace").strip()


def _check_platform() -> None:
    if os.link not in os.supports_dir_fd or os.open not in os.supports_dir_fd:
        raise WorkspaceError("workspaces need a system with directory descriptors, such as Linux or macOS")


# --- artifacts: files that agents hand in, each written once, with its SHA-256 in a file beside it


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
        digest, size = _write_chunks(content, draft)
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


def _write_chunks(content: str | bytes | os.PathLike[str], draft: Draft) -> tuple[str, int]:
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
