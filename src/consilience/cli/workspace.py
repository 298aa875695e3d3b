"""`workspace`: coordination by tickets in a directory, for scripts and other people's agents.

Each command imports what it needs, so that a claim from a shell loads neither the engine nor a protocol.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.errors import EXIT_REQUIREMENT_NOT_MET, notify, print_json, print_result
from consilience.cli.options import JsonOption, argument, names_option, new_app
from consilience.cli.workspace_text import (
    EXIT_NOTHING_THERE,
    advice_for,
    agent_row,
    artifact_of,
    check_gates,
    claim_string,
    claim_text,
    claimed_ticket,
    describe_state,
    every,
    exit_empty_handed,
    failure_rows,
    iso_time,
    make_ticket,
    open_workspace,
    poll,
    read_input,
    read_text,
    shell_command,
    submit_command,
    task_text,
    ticket_json,
    ticket_row,
)
from consilience.coordination.records import TicketType, WorkspaceReviewType
from consilience.domain.errors import SettingsError, WorkspaceError
from consilience.domain.paths import expanded
from consilience.reporting.formatting import one_line, printable

if TYPE_CHECKING:
    from consilience.coordination import Ticket


EXIT_GATE_NOT_MET = EXIT_REQUIREMENT_NOT_MET

SWEEP_SECONDS = 2.0
"""Time between two sweeps while `claim` waits."""

workspace = new_app(
    no_args_is_help=True,
    epilog="Exit codes: 0 done, 2 usage error, 3 nothing to claim or no result, 4 a gate is not met.",
)


Directory = Annotated[
    str, argument("Directory of the workspace, or a text that names it as [SESSION_DIR:/its/path].", "DIR")
]
Gates = Annotated[list[str] | None, names_option("--gates", help="Gates by which results are judged.", metavar="GATE")]
ClaimOption = Annotated[
    str, typer.Option("--claim", help="The claim, as `claim` prints it.", metavar="CLAIM", show_default=False)
]
AgentName = Annotated[str, typer.Option("--agent", help="Name of the agent.", metavar="NAME", show_default=False)]


def _seconds(help: str, *names: str, show_default: bool = True) -> Any:
    """Return an option for a number of seconds; `inf` is one, `nan` is not."""

    def check(value: float) -> float:
        if not value >= 0:
            raise typer.BadParameter(f"{value} is not a number of seconds")
        return value

    return typer.Option(*names, callback=check, help=help, metavar="SECONDS", show_default=show_default)


def _text(help: str, *names: str, metavar: str = "TEXT") -> Any:
    return typer.Option(*names, help=help, metavar=metavar)


def _example(arguments: str) -> dict[str, Any]:
    return {"epilog": f"Example: consilience workspace {arguments}"}


@workspace.callback()
def _workspace() -> None:
    """Coordinate agents in other processes. A workspace is a directory of tickets: one process posts a ticket, another claims it
    and submits an answer. Any program that can run a command can take part.
    """


@workspace.command("new", **_example("new review --agents red,blue"))
def new(
    directory: Annotated[str, argument("A path that does not exist, or an empty directory.", "DIR")],
    agents: Annotated[list[str] | None, names_option("--agents", help="Names of the agents.", metavar="NAME")] = None,
    kind: Annotated[WorkspaceReviewType, typer.Option("--type", help="What is reviewed.")] = "code",
    gates: Gates = None,
    as_json: JsonOption = False,
) -> None:
    """Make a workspace and print its path."""
    from consilience.coordination import Workspace

    check_gates(gates or ())
    config: dict[str, Any] = {"gates": [*gates]} if gates else {}
    created = Workspace.create(expanded(directory), review_type=kind, agents=agents or (), config=config)
    value = {"path": str(created.path), "session_id": created.session_id, "marker": created.marker}
    print_result(value, str(created.path), as_json=as_json)


@workspace.command("ticket", **_example('ticket review --for red "Review src/ and say what breaks."'))
def ticket(
    directory: Directory,
    instructions: Annotated[
        str, argument("The task; @FILE reads it from a file, - from standard input.", "INSTRUCTIONS")
    ],
    assigned_to: Annotated[
        str, _text("Agent, `human` or `human:NAME`. Default: any agent.", "--for", metavar="NAME")
    ] = "",
    ticket_id: Annotated[
        str, _text("Id; posting it twice changes nothing. Default: a new id.", "--id", metavar="ID")
    ] = "",
    assigned_by: Annotated[str, _text("Name of the asker.", "--by", metavar="NAME")] = "",
    kind: Annotated[TicketType, typer.Option("--type", help="Kind of work.")] = "initial_analysis",
    iteration: Annotated[int, typer.Option(min=1, help="Iteration it belongs to.", metavar="N")] = 1,
    topic: Annotated[str, _text("Topic.")] = "",
    focus: Annotated[str, _text("Specific focus.")] = "",
    context: Annotated[str, _text("Prior context, such as earlier results; @FILE reads it from a file.")] = "",
    gates: Gates = None,
    ttl: Annotated[
        float,
        _seconds(
            "Max time from a claim to its result. Default: 300; iteration 180; synthesis 600.",
            "--ttl",
            show_default=False,
        ),
    ] = 0,
    max_requeues: Annotated[
        int, typer.Option(min=0, help="How often the ticket is offered again after a failed claim.", metavar="N")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Post a ticket and print its id."""
    from consilience.coordination import post
    from consilience.coordination.ending import shutdown_signal

    target = open_workspace(directory)
    if shutdown_signal(target) is not None:
        raise WorkspaceError("the workspace is shut down", where=str(target.path), do="Make another one.")
    if not instructions.strip():
        raise SettingsError("the instructions are empty", where="INSTRUCTIONS", do="Write what is to be done.")
    check_gates(gates or ())
    ticket_asked = make_ticket(
        id=ticket_id,
        type=kind,
        iteration=iteration,
        assigned_to=assigned_to,
        assigned_by=assigned_by,
        topic=topic,
        specific_focus=focus,
        prior_context=read_text(context, "the context"),
        instructions=read_text(instructions, "the instructions"),
        convergence_gates=gates or (),
        ttl_seconds=ttl,
        max_requeues=max_requeues,
    )
    posted = post(target, ticket_asked)
    print_result(ticket_json(posted), posted.id, as_json=as_json)


@workspace.command("claim", **_example("claim review --agent red --wait 60"))
def claim(
    directory: Directory,
    agent: AgentName,
    ticket_id: Annotated[
        str | None, argument("Id of the ticket. Default: the oldest for this agent or for any.", "TICKET")
    ] = None,
    wait: Annotated[float, _seconds("Wait this long for a ticket.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Claim a ticket and print it. The output has the claim, the command that submits the answer, and the instructions.

    Exits with 3 if there is no ticket to claim, or the workspace is shut down.
    """
    from consilience.coordination import claim, claim_next, fail, sweep
    from consilience.coordination.ending import shutdown_signal
    from consilience.coordination.files import check_id

    target = open_workspace(directory)
    check_id(agent, "name of an agent")
    sweeper = every(SWEEP_SECONDS, lambda: sweep(target))

    def attempt() -> Ticket | None:
        sweeper()
        if is_over():
            return None
        return claim(target, ticket_id, agent) if ticket_id else claim_next(target, agent)

    def is_over() -> bool:
        return shutdown_signal(target) is not None

    claimed = poll(attempt, wait, until=is_over)
    if claimed is None:
        problem = f"ticket {ticket_id} is not pending" if ticket_id else f"no ticket is pending for {agent}"
        advice = advice_for(target, agent, has_waited=wait > 0)
        if is_over():
            problem = "the workspace is shut down"
            advice = f"Acknowledge it: {shell_command('ack', str(target.path), '--agent', agent)}"
        exit_empty_handed(problem, place=str(target.path), do=advice, as_json=as_json)
    try:
        value = {
            "claim": claim_string(claimed),
            "submit": submit_command(target, claimed),
            "expires_at": iso_time(claimed.expires_at),
            "ticket": ticket_json(claimed),
        }
        print_result(value, claim_text(target, claimed), as_json=as_json)
        sys.stdout.flush()
    except BaseException:  # Ctrl-C as well
        fail(target, claimed, "the claim could not be printed")  # no process holds it
        raise


@workspace.command("submit", **_example("submit review answer.md --claim TICKET:AGENT:TOKEN"))
def submit(
    directory: Directory,
    claim: ClaimOption,
    file: Annotated[str | None, argument("The answer; - is standard input.", "FILE")] = None,
    summary: Annotated[str, _text("Summary in a sentence.")] = "",
    give_back: Annotated[
        str | None,
        typer.Option("--fail", help="Give the ticket back without an answer, for this reason.", metavar="REASON"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Submit the answer to a claimed ticket, or give the ticket back.

    Exits with 2 if the claim is over: its time ran out, or the ticket was withdrawn.
    """
    from consilience.coordination import fail, submit

    if (file is None) == (give_back is None):
        raise SettingsError(
            "give either an answer or a reason",
            where="submit",
            do="Write FILE (- is standard input), or --fail REASON.",
        )
    target = open_workspace(directory)
    claimed = claimed_ticket(target, claim)
    if give_back is not None:
        ended = fail(target, claimed, give_back)
    else:
        ended = submit(target, claimed, read_input(file or "-"), summary=summary)
    place = f"{ended.id}: {describe_state(ended)}" if ended.result is None else target.path / ended.result.artifact_path
    print_result(ticket_json(ended), str(place), as_json=as_json)


@workspace.command("renew", **_example("renew review --claim TICKET:AGENT:TOKEN"))
def renew(directory: Directory, claim: ClaimOption, as_json: JsonOption = False) -> None:
    """Restart the time of a claim. The claim stays the same.

    Exits with 2 if the claim is over: its time ran out, or the ticket was withdrawn.
    """
    from consilience.coordination import renew

    target = open_workspace(directory)
    renewed = renew(target, claimed_ticket(target, claim))
    expires = iso_time(renewed.expires_at)
    text = f"{renewed.id}: {f'expires {expires}' if expires else 'does not expire'}"
    print_result(ticket_json(renewed), text, as_json=as_json)


@workspace.command("withdraw", **_example("withdraw review t-1 --reason 'the question has changed'"))
def withdraw(
    directory: Directory,
    ticket_id: Annotated[str, argument("Id of the ticket.", "TICKET")],
    reason: Annotated[str, _text("Reason.", "--reason")] = "not needed any more",
    as_json: JsonOption = False,
) -> None:
    """End a ticket that is not needed any more, claimed or not. A completed or failed one stays as it is."""
    from consilience.coordination import withdraw

    ended_ticket = withdraw(open_workspace(directory), ticket_id, reason)
    print_result(ticket_json(ended_ticket), f"{ended_ticket.id}: {describe_state(ended_ticket)}", as_json=as_json)


@workspace.command("wait", **_example("wait review t-1 t-2 --timeout 120"))
def wait(
    directory: Directory,
    tickets: Annotated[
        list[str] | None,
        argument("Ids of tickets. Default: all.", "TICKET"),
    ] = None,
    timeout: Annotated[float, _seconds("Max time to wait.")] = 120,
    quorum: Annotated[
        int | None,
        typer.Option(min=1, help="Number of results that suffice. Default: all.", metavar="N", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Wait for results and print a line for each. A line has the ticket, the agent and the path of the result, separated by tabs.
    Expired claims are swept meanwhile.

    Exits with 3 if results are missing when the time is over, or as soon as they can no longer come.
    """
    from consilience.coordination import look

    target = open_workspace(directory)
    ids = list(dict.fromkeys(tickets or [ticket.id for ticket in target.tickets()]))
    if not tickets and (unreadable := target.unreadable_tickets()):
        problem = f"no record of {', '.join(unreadable)} is readable"
        do = "Name the tickets to wait for, or post these again."
        exit_empty_handed(problem, place=str(target.path), do=do, as_json=as_json)
    if not ids:
        exit_empty_handed("no ticket is posted", place=str(target.path), do="Post one first.", as_json=as_json)
    required = quorum or len(ids)
    if required > len(ids):
        raise SettingsError(
            f"a quorum of {required} exceeds the number of tickets, {len(ids)}", where="--quorum", do="Lower it."
        )

    def ended() -> list[Ticket] | None:
        current = [look(target, id) for id in ids]
        completed = sum(ticket.state == "completed" for ticket in current)
        possible = sum(ticket.state != "permanently_failed" for ticket in current)
        return current if completed >= required or possible < required else None

    found = poll(ended, timeout) or [target.ticket(id) for id in ids]
    paths = [(ticket, artifact_of(target, ticket)) for ticket in found]
    results = [(ticket, str(path)) for ticket, path in paths if path is not None]
    missing = [ticket for ticket, path in paths if path is None]
    if as_json:
        print_json(
            {
                "complete": len(results) >= required,
                "results": [ticket_json(ticket) | {"path": path} for ticket, path in results],
                "missing": [ticket_json(ticket) for ticket in missing],
            }
        )
    else:
        for ticket, path in results:
            print(f"{ticket.id}\t{printable(ticket.claimed_by)}\t{path}")
    for ticket in missing:
        notify(f"No result of {ticket.id} ({ticket.assigned_to or 'any agent'}): {describe_state(ticket)}.")
    if len(results) < required:
        raise typer.Exit(EXIT_NOTHING_THERE)


@workspace.command("ack", **_example("ack review --agent red"))
def ack(
    directory: Directory,
    agent: AgentName,
    note: Annotated[str, _text("What the lead should know.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Acknowledge a shutdown: the agent has ended its work. A first acknowledgement is never overwritten."""
    from consilience.coordination.ending import acknowledge

    record = acknowledge(open_workspace(directory), agent, note)
    text = f"{record.agent}: acknowledged {iso_time(record.acknowledged_at)}"
    print_result(record.model_dump(mode="json"), text, as_json=as_json)


@workspace.command("sweep", **_example("sweep review"))
def sweep(directory: Directory, as_json: JsonOption = False) -> None:
    """End expired claims, offer their tickets again, and free locks. `claim` does this too, and `wait` does it for its tickets."""
    from consilience.coordination import sweep

    swept = sweep(open_workspace(directory))
    if as_json:
        print_json(swept.model_dump(mode="json"))
        return
    for label, ids in swept.model_dump().items():
        if ids:
            print(printable(f"{label.replace('_', ' ')}: {', '.join(ids)}"))


@workspace.command("gate", **_example("gate review.md --gates specific_examples"))
def gate(
    files: Annotated[list[str], argument("A text; - is standard input.", "FILE")],
    gates: Annotated[
        list[str] | None,
        names_option(
            "--gates",
            help="Built-in or installed gates, or module:attribute. Default: all built-in ones.",
            metavar="GATE",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Try gates, the checks of results, on sample texts. A gate is met if every text meets it.

    Exits with 4 if a gate is not met.
    """
    from consilience.coordination.gates import BUILT_IN_GATES, gate_misses, load_gate

    texts = {file: read_input(file).decode("utf-8", "replace") for file in files}
    ids = gates or [*BUILT_IN_GATES]
    gates_by_id = {gate_id: load_gate(gate_id) for gate_id in ids}
    missed = {gate_id: gate_misses(gate_id, gates_by_id[gate_id], texts) for gate_id in ids}
    rows = [
        {"id": id, "description": gate.description, "met": not missed[id], "missed_by": missed[id], "add": gate.add}
        for id, gate in gates_by_id.items()
    ]
    lines: list[str] = []
    for id, gate in gates_by_id.items():
        lines.append(f"{'missed' if missed[id] else 'met':6}  {id}: {gate.description}")
        if missed[id]:
            by = f"{', '.join(missed[id])}: " if len(texts) > 1 else ""
            lines.append(f"        {by}{gate.add}")
    print_result({"met": not any(missed.values()), "gates": rows}, "\n".join(lines), as_json=as_json)
    if any(missed.values()):
        raise typer.Exit(EXIT_GATE_NOT_MET)


@workspace.command("show", **_example("show review"))
def show(
    directory: Directory,
    ticket_id: Annotated[str | None, argument("Id of a ticket, to show it whole.", "TICKET")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a workspace, or one of its tickets. A workspace has agents, tickets and convergence; a ticket has a history."""
    target = open_workspace(directory)
    if ticket_id is not None:
        ticket = target.ticket(ticket_id)
        text = "\n".join([ticket_row(ticket), *failure_rows(ticket), "", task_text(ticket)])
        print_result(ticket_json(ticket), text, as_json=as_json)
        return
    convergence, tickets = target.convergence(), target.tickets()
    agents = [target.state_of(agent) for agent in target.agents()]
    value = {
        "path": str(target.path),
        "session_id": target.session_id,
        "agents": [agent.model_dump(mode="json") for agent in agents],
        "convergence": convergence.model_dump(mode="json"),
        "tickets": [ticket_json(ticket) for ticket in tickets],
        "unreadable": target.unreadable_tickets(),
    }
    lines = [f"{target.path}  {target.session_id}"]
    by_id = {ticket.id: ticket for ticket in tickets}
    lines += [agent_row(agent, by_id.get(agent.current_ticket)) for agent in agents]
    lines += [line for ticket in tickets for line in (ticket_row(ticket), *failure_rows(ticket))]
    lines += [f"{ticket_id}: no record is readable" for ticket_id in target.unreadable_tickets()]
    print_result(value, "\n".join(lines), as_json=as_json)


@workspace.command("shutdown", **_example("shutdown review --wait 30"))
def shutdown(
    directory: Directory,
    reason: Annotated[str, _text("Reason.")] = "",
    wait: Annotated[float, _seconds("Max time to wait for the acknowledgements of the agents.")] = 30,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the workspace where it is.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End a workspace and archive it. The agents are told, and have time to acknowledge; open tickets are withdrawn.

    Prints the path of the archive. Agents that did not acknowledge are named and do not change the exit code.
    """
    from consilience.coordination.ending import shutdown

    target = open_workspace(directory)
    outcome = shutdown(target, reason, timeout=wait, keep=keep)
    print_result(outcome.model_dump(mode="json"), str(outcome.archive or target.path), as_json=as_json)
    if outcome.missing:
        notify(f"Not acknowledged by {', '.join(outcome.missing)}.")
    if outcome.withdrawn:
        notify(f"Withdrawn: {', '.join(outcome.withdrawn)}.")


@workspace.command("gc", **_example("gc ~/workspaces"))
def gc(
    root: Annotated[str, argument("Directory that holds workspaces.", "ROOT")],
    idle: Annotated[float, _seconds("Set aside workspaces in which nothing changed for this long.")] = 1800,
    kept: Annotated[float, _seconds("Delete workspaces that were set aside this long ago.")] = 86_400,
    as_json: JsonOption = False,
) -> None:
    """Set aside broken and idle workspaces, and delete them later. Setting aside is renaming to abandoned_NAME.

    Archives, other directories, and workspaces with a live claim or a ticket of a person or a deliberation are left alone.
    """
    from consilience.coordination.ending import collect_garbage

    collected = collect_garbage(expanded(root), idle=idle, kept=kept)
    lines = [f"renamed: {old} to {new}" for old, new in collected.abandoned.items()]
    lines += [f"deleted: {name}" for name in collected.deleted]
    lines += [f"kept: {name} ({reason})" for name, reason in collected.kept.items()]
    text = "\n".join(one_line(line) for line in lines) or "nothing to do"
    print_result(collected.model_dump(mode="json"), text, as_json=as_json)
