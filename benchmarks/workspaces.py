"""What coordination costs: claims, artifacts and the evaluation of gates in a workspace of 20 agents.

Run as a script this is one agent: for each line that it reads it claims the ticket of that id, or the next one if the line is
empty, and prints how many milliseconds that took.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from consilience.coordination import Ticket, Workspace, claim, claim_next, post, result, submit, write_artifact
from consilience.coordination.strategies import select_convergence_strategy
from rows import OURS, Results, Row, Series

GROUP = "workspace"
AGENTS = [f"agent{number}" for number in range(20)]
CLAIM_MS, ARTIFACT_MS, EVALUATION_MS = 10.0, 50.0, 100.0
TEXT_BYTES = 4_000
HELD_BYTES = 100_000_000
PARTS = 25
REPORT = "\n".join(
    f"## Part {number}\n\nThe parser should reject empty input. Example:\n\n```python\nparse('')\n```\n\n"
    + "It is read by two callers, and neither checks what it gets. " * 12
    for number in range(4)
)


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    tickets = 300 if quick else 1_000
    workspace = Workspace.create(directory / "workspace", agents=AGENTS)
    for number in range(tickets):
        post(workspace, Ticket(id=f"t{number}", instructions="x" * TEXT_BYTES))
    alone = _alone(workspace, repeats)
    own, slowest = _at_once(workspace, repeats, own=True)
    following, _ = _at_once(workspace, repeats, own=False)
    submitted, written = _artifacts(workspace, repeats)
    full, whole = _full(workspace, repeats, directory, HELD_BYTES // 10 if quick else HELD_BYTES)
    evaluated = [_evaluation(directory / f"review{repeat}") for repeat in range(repeats)]
    held = f"{HELD_BYTES // (10_000_000 if quick else 1_000_000)} MB"
    results.add(
        [
            _row(f"a claim, alone, {tickets:,} tickets", alone, CLAIM_MS),
            _row("a claim, 20 processes at once, each its own ticket: median of them", own, CLAIM_MS),
            _row("the same: slowest of them", slowest, None),
            _row("a claim, 20 processes at once, any ticket: median of them", following, None),
            _row("an artifact of 4 kB, with its checksum, durable", written, ARTIFACT_MS),
            _row("handing in 4 kB: artifact, checksum and record, durable", submitted, ARTIFACT_MS),
            _row(f"an artifact of 4 kB where {held} lie, durable", full, ARTIFACT_MS),
            _row(f"{held} in {PARTS} artifacts, written and read back verified", whole, None),
            _row("3 gates of 20 artifacts of 4 kB: read, verified, judged, recorded", evaluated, EVALUATION_MS),
        ]
    )


def _row(name: str, values: list[float], target: float | None) -> Row:
    return Row(GROUP, name, "ms", Series(OURS, tuple(values)), target)


def _alone(workspace: Workspace, repeats: int) -> list[float]:
    ids = iter(workspace.tickets("pending"))
    return [_timed(lambda: claim(workspace, next(ids).id, AGENTS[0])) for _ in range(repeats)]


def _at_once(workspace: Workspace, repeats: int, *, own: bool) -> tuple[list[float], list[float]]:
    """Milliseconds that the median and the slowest agent waited for its claim, in processes told to start at the same moment."""
    command = [sys.executable, __file__, str(workspace.path)]
    agents = [
        subprocess.Popen([*command, agent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for agent in AGENTS
    ]
    pending = iter(workspace.tickets("pending")[::-1])
    medians, slowest = [], []
    try:
        for repeat in range(repeats + 1):
            for agent in agents:
                assert agent.stdin is not None
                agent.stdin.write(f"{next(pending).id if own else ''}\n")
                agent.stdin.flush()
            waits = sorted(float(agent.stdout.readline()) for agent in agents if agent.stdout is not None)
            if repeat:  # the first one warms up
                medians.append(waits[len(waits) // 2])
                slowest.append(waits[-1])
    finally:
        for agent in agents:
            agent.communicate()
    return medians, slowest


def _artifacts(workspace: Workspace, repeats: int) -> tuple[list[float], list[float]]:
    claimed = [ticket for ticket in workspace.tickets("active") if ticket.claimed_by == AGENTS[0]][:repeats]
    text = "x" * TEXT_BYTES
    submitted = [_timed(lambda ticket=ticket: submit(workspace, ticket, text)) for ticket in claimed]  # type: ignore[misc]
    written = [_timed(lambda n=n: write_artifact(workspace, f"small{n}", text)) for n in range(repeats)]  # type: ignore[misc]
    return submitted, written


def _full(workspace: Workspace, repeats: int, directory: Path, size: int) -> tuple[list[float], list[float]]:
    """An artifact where many lie, and the time in which these were written and read back through tickets."""
    part = directory / "part"
    part.write_bytes(bytes(range(256)) * (size // PARTS // 256))
    tickets = [post(workspace, Ticket(id=f"part{number}")) for number in range(PARTS)]

    def hand_in() -> None:
        for ticket in tickets:
            claimed = claim(workspace, ticket.id, AGENTS[1])
            assert claimed is not None
            submit(workspace, claimed, part)
            assert result(workspace, ticket.id) is not None

    whole = [_timed(hand_in)]
    text = "y" * TEXT_BYTES
    return [_timed(lambda n=n: write_artifact(workspace, f"full{n}", text)) for n in range(repeats)], whole  # type: ignore[misc]


def _evaluation(path: Path) -> float:
    workspace = Workspace.create(path, agents=AGENTS)
    strategy = select_convergence_strategy("adversarial_review", {"agents": AGENTS})
    strategy.initialize(path, {"agents": AGENTS})
    for ticket in strategy.post_tickets(path, 1):
        claimed = claim(workspace, ticket.id, ticket.assigned_to)
        assert claimed is not None
        submit(workspace, claimed, f"{REPORT}\n{ticket.assigned_to}\n")
    took = _timed(lambda: strategy.check_convergence(path, 1))
    assert workspace.convergence().converged
    return took


def _timed(use: Callable[[], object]) -> float:
    began = time.perf_counter()
    use()
    return (time.perf_counter() - began) * 1000


def agent(path: str, name: str) -> None:
    workspace = Workspace.open(path)
    for line in sys.stdin:
        began = time.perf_counter()
        claimed = claim(workspace, line.strip(), name) if line.strip() else claim_next(workspace, name)
        print((time.perf_counter() - began) * 1000, flush=True)
        assert claimed is not None


if __name__ == "__main__":
    agent(sys.argv[1], sys.argv[2])
