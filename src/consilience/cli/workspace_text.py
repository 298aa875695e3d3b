"""What `workspace` commands read, wait for and print."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from consilience.cli.errors import EXIT_NO_ANSWER, Problem, notify, print_json
from consilience.domain.errors import SettingsError, SourceError
from consilience.reporting.formatting import one_line

if TYPE_CHECKING:
    from consilience.coordination import Ticket, Workspace
    from consilience.coordination.records import AgentState

T = TypeVar("T")

EXIT_NOTHING_THERE = EXIT_NO_ANSWER
"""Nothing to claim, or a result is missing."""
MAX_INPUT_BYTES = 100_000_000
POLL_SECONDS = 0.2


def open_workspace(directory: str) -> Workspace:
    """Return the workspace at a path, or the one that a text names as [SESSION_DIR:/path]. Raises `UserError`."""
    from consilience.coordination import Workspace, parse_session_from_prompt
    from consilience.coordination.workspace import MARKER
    from consilience.domain.paths import expanded

    if MARKER not in directory:
        return Workspace.open(expanded(directory))
    try:
        return Workspace.open(parse_session_from_prompt(directory))
    except ValueError as error:
        raise SettingsError(str(error)) from None


def make_ticket(id: str, **fields: object) -> Ticket:
    """Return a ticket, with a new id if it is "". Raises `SettingsError` for an invalid field."""
    import secrets

    from pydantic import ValidationError

    from consilience.coordination import Ticket
    from consilience.domain.validation import describe_invalid

    try:
        return Ticket.model_validate({"id": id or f"t-{secrets.token_hex(4)}", **fields})
    except ValidationError as error:
        raise SettingsError(describe_invalid(error, model=Ticket)) from None


def claim_string(claimed: Ticket) -> str:
    return f"{claimed.id}:{claimed.claimed_by}:{claimed.claim_token}"


def claimed_ticket(workspace: Workspace, claim: str) -> Ticket:
    """Return the ticket as its claimer holds it. Raises `UserError` for an invalid claim or an unknown ticket."""
    parts = claim.strip().removeprefix("claim: ").split(":")
    if len(parts) != 3 or not all(parts):
        raise SettingsError(
            f"invalid claim: {claim!r:.80}",
            where="--claim",
            do="Give the first line that `consilience workspace claim` printed.",
        )
    ticket_id, agent, token = parts
    return workspace.ticket(ticket_id).model_copy(update={"claimed_by": agent, "claim_token": token})


def check_gates(ids: Iterable[str]) -> None:
    """Raise `UnknownName` for a gate that does not exist."""
    for gate_id in ids:
        from consilience.coordination.gates import load_gate

        load_gate(gate_id)


def read_text(argument: str, label: str) -> str:
    """Return the argument, or the text of standard input for `-` and of a file for `@FILE`. Raises `SourceError`."""
    if argument != "-" and not argument.startswith("@"):
        return argument
    file = argument.removeprefix("@")
    try:
        return read_input(file).decode("utf-8")
    except UnicodeDecodeError:
        raise SourceError(f"not UTF-8 text: {label}", where=file, do="Save it as UTF-8.") from None


def read_input(file: str) -> bytes:
    """Return the bytes of a file, or of standard input for `-`. Raises `SourceError`, also if they are empty."""
    from consilience.domain.paths import expanded, read_bounded, too_long

    source = "standard input" if file == "-" else file
    try:
        if file != "-":
            data = read_bounded(expanded(file), MAX_INPUT_BYTES)
        elif sys.stdin is None:
            raise SourceError("standard input is closed", where=source, do="Name a file.")
        else:
            if sys.stdin.isatty():
                notify("Reading from the terminal; end with Ctrl-D.")
            data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SourceError(f"it cannot be read: {reason}", where=source, do="Name a readable file.") from None
    if len(data) > MAX_INPUT_BYTES:
        raise SourceError(too_long(MAX_INPUT_BYTES), where=source, do="Shorten it.")
    if not data.strip():
        raise SourceError("it is empty", where=source, do="Write the text into it first.")
    return data


def artifact_of(workspace: Workspace, ticket: Ticket) -> Path | None:
    """Return the path of a ticket's verified result; None if there is none. A damaged one is reported."""
    from consilience.coordination import result
    from consilience.domain.errors import WorkspaceError

    try:
        submitted = result(workspace, ticket.id)
    except WorkspaceError as error:
        notify(f"The result of {ticket.id} is unusable: {error}")
        return None
    return workspace.path / submitted.ticket.result.artifact_path if submitted and submitted.ticket.result else None


def exit_empty_handed(problem: str, *, place: str, do: str, as_json: bool) -> NoReturn:
    notify(f"{problem[0].upper()}{problem[1:]}. {do}")
    if as_json:
        print_json(asdict(Problem(EXIT_NOTHING_THERE, problem, place, do)))
    raise typer.Exit(EXIT_NOTHING_THERE)


def ticket_json(ticket: Ticket) -> dict[str, Any]:
    return ticket.model_dump(mode="json", exclude={"claim_token"})


def iso_time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):  # beyond the year 9999
        return f"{seconds:.0f}"


def shell_command(*arguments: str) -> str:
    return shlex.join(["consilience", "workspace", *arguments])


def submit_command(workspace: Workspace, claimed: Ticket) -> str:
    return f"{shell_command('submit', str(workspace.path), '--claim', claim_string(claimed))} FILE"


def claim_text(workspace: Workspace, claimed: Ticket) -> str:
    """Return what an agent needs to answer: lines `name: value`, an empty line, and the task."""
    opening = [f"claim: {claim_string(claimed)}", f"submit: {submit_command(workspace, claimed)}"]
    if expires := iso_time(claimed.expires_at):
        opening.append(f"expires: {expires} ({claimed.ttl_seconds:g} s after the claim)")
    attempt = f"attempt {claimed.requeue_count + 1} of {claimed.max_requeues + 1}"
    opening.append(f"ticket: {claimed.id}, {claimed.type}, iteration {claimed.iteration}, {attempt}")
    return "\n".join([*opening, "", task_text(claimed)])


def task_text(ticket: Ticket) -> str:
    parts = {
        "Topic": ticket.topic,
        "": ticket.instructions,
        "Focus": ticket.specific_focus,
        "Context": ticket.prior_context,
        "Gates": "; ".join(map(_describe_gate, ticket.convergence_gates)),
    }
    return "\n\n".join(f"{name}: {text}".removeprefix(": ") for name, text in parts.items() if text)


def _describe_gate(gate_id: str) -> str:
    """Describe a built-in gate. Others would have to be imported, by a name that the asker chose."""
    from consilience.coordination.gates import BUILT_IN_GATES

    return f"{gate_id} ({BUILT_IN_GATES[gate_id].description})" if gate_id in BUILT_IN_GATES else gate_id


def ticket_row(ticket: Ticket) -> str:
    agent_name = ticket.claimed_by or ticket.assigned_to or "any agent"
    topic = one_line(ticket.topic or ticket.instructions, 60)
    return f"{ticket.id}  {agent_name}  iteration {ticket.iteration}  {describe_state(ticket)}  {topic}"


def agent_row(agent: AgentState, ticket: Ticket | None) -> str:
    """Return what an agent does, since when and until when, and when it was last heard of: it may have died."""
    seen = f"last seen {iso_time(agent.last_heartbeat)}" if agent.last_heartbeat else "never seen"
    doing = f"{agent.status} {agent.current_ticket}".rstrip()
    return ", ".join([f"{agent.agent}: {doing}", *(_claim_times(ticket) if ticket else []), seen])


def _claim_times(ticket: Ticket) -> list[str]:
    """Return `since …` and `until …` of a claim; nothing for a ticket that nobody holds."""
    if ticket.state != "active":
        return []
    times = [f"since {iso_time(ticket.claimed_at)}"] if ticket.claimed_at is not None else []
    if (expires := ticket.expires_at) is None:
        return times
    return [*times, f"{'expired' if expires <= time.time() else 'until'} {iso_time(expires)}"]


def describe_state(ticket: Ticket) -> str:
    state = " ".join([ticket.state.replace("_", " "), *_claim_times(ticket)])
    if ticket.failure_history and ticket.state != "completed":
        state += f" ({one_line(ticket.failure_history[-1].failure_reason)})"
    return state


def failure_rows(ticket: Ticket) -> list[str]:
    return [
        f"  {iso_time(attempt.failed_at)}  {attempt.agent or 'no agent'}: {one_line(attempt.failure_reason)}"
        + ("; offered again" if attempt.requeued else "")
        for attempt in ticket.failure_history
    ]


def advice_for(target: Workspace, agent: str, *, has_waited: bool) -> str:
    """Return what an agent without a ticket can do."""
    agent_ids = target.agents()
    if agent not in agent_ids:
        return f"No agent of the workspace has this name; it has {', '.join(agent_ids) or 'none'}."
    return "Try again later." if has_waited else "Wait for one with --wait SECONDS."


# --- waiting


def every(seconds: float, work: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls `work` unless it did so in the last `seconds`."""
    last = -seconds

    def call() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            work()
            last = time.monotonic()

    return call


def poll(attempt: Callable[[], T | None], seconds: float, *, until: Callable[[], bool] = lambda: False) -> T | None:
    """Return the first result of `attempt`; None after the time is over or when `until` is true. Tries at least once."""
    deadline = time.monotonic() + seconds
    while True:
        started = time.monotonic()
        if (value := attempt()) is not None:
            return value
        now = time.monotonic()
        if now >= deadline or until():
            return None
        time.sleep(min(max(POLL_SECONDS, 2 * (now - started)), deadline - now))
