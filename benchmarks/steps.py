"""The same calls as steps of a DBOS workflow on SQLite: durable execution that keeps every reply in a commit of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from consilience.models.scripted import ScriptedModel
from talk import Call, Job, gather_steps, in_phases, request, tree_steps, validated
from workload import Ran, reply, timed

STEPS = "DBOS, a durable step per call, SQLite"
MISSING = "DBOS is not installed (pip install --group bench); its steps are left out."

model_now: list[ScriptedModel] = []
"""What steps ask: a step is registered once for the process, and its arguments should be what identifies a call."""


def installed() -> bool:
    return find_spec("dbos") is not None


async def run_tree(children: int, depth: int, rounds: int, path: Path) -> Ran:
    return await launched(path, lambda: _flows().tree(children, depth, rounds))


async def run_gather(size: int, path: Path) -> Ran:
    return await launched(path, lambda: _flows().gather(size))


async def launched(path: Path, begin: Callable[[], Awaitable[Any]]) -> Ran:
    """Run a workflow in a loop of its own: DBOS makes its thread pool the loop's default and leaves it there when it is shut down.

    Launching, making the tables and shutting down are not counted.
    """
    return await asyncio.to_thread(lambda: asyncio.run(_launched(path, begin)))


async def _launched(path: Path, begin: Callable[[], Awaitable[Any]]) -> Ran:
    from dbos import DBOS, SetWorkflowID

    model_now[:] = [ScriptedModel(reply)]
    url = f"sqlite:///{path}"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "console_log_level": "ERROR"})
    DBOS.launch()
    try:
        with SetWorkflowID("bench"):
            return await timed(model_now[0], begin)
    finally:
        DBOS.destroy()


@dataclass(frozen=True)
class Flows:
    """Workflows that make the calls of a tree, and of a fan-out."""

    tree: Callable[[int, int, int], Awaitable[None]]
    gather: Callable[[int], Awaitable[None]]


def register(name: str, call: Call) -> Flows:
    """Register workflows whose calls are made so."""
    from dbos import DBOS

    @DBOS.workflow(name=f"{name}_tree")
    async def tree(children: int, depth: int, rounds: int) -> None:
        await in_phases(tree_steps(children, depth), rounds, call)

    @DBOS.workflow(name=f"{name}_gather")
    async def gather(size: int) -> None:
        await in_phases(gather_steps(size), 1, call)

    return Flows(tree, gather)


@cache
def _flows() -> Flows:
    from dbos import DBOS

    @DBOS.step()
    async def call(job: Job) -> str:
        completion = await model_now[0].complete(request(job))
        return validated(job, completion.text)

    return register("steps", call)
