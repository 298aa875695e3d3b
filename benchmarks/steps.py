"""The same calls as steps of a DBOS workflow on SQLite: durable execution that keeps every reply in a commit of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from consilience.models.scripted import ScriptedModel
from talk import Job, gather_steps, in_phases, request, tree_steps, validated
from workload import Ran, reply

STEPS = "DBOS, a durable step per call, SQLite"
MISSING = "DBOS is not installed (pip install --group bench); its steps are left out."

_model: list[ScriptedModel] = []
"""What steps ask: a step is registered once for the process, and its arguments should be what identifies a call."""


def installed() -> bool:
    return find_spec("dbos") is not None


async def run_tree(children: int, depth: int, rounds: int, path: Path) -> Ran:
    return await _apart(path, lambda flows: flows[0](children, depth, rounds))


async def run_gather(size: int, path: Path) -> Ran:
    return await _apart(path, lambda flows: flows[1](size))


async def _apart(path: Path, begin: Callable[[Any], Awaitable[Any]]) -> Ran:
    """In a loop of its own: DBOS makes its thread pool the loop's default and leaves it there when it is shut down."""
    return await asyncio.to_thread(lambda: asyncio.run(_launched(path, begin)))


@cache
def _workflows() -> tuple[Callable[..., Awaitable[Any]], Callable[..., Awaitable[Any]]]:
    from dbos import DBOS

    @DBOS.step()
    async def call(job: Job) -> str:
        completion = await _model[0].complete(request(job))
        return validated(job, completion.text)

    @DBOS.workflow()
    async def tree(children: int, depth: int, rounds: int) -> None:
        await in_phases(tree_steps(children, depth), rounds, call)

    @DBOS.workflow()
    async def gather(size: int) -> None:
        await in_phases(gather_steps(size), 1, call)

    return tree, gather


async def _launched(path: Path, begin: Callable[[Any], Awaitable[Any]]) -> Ran:
    """Launching, making the tables and shutting down are not counted."""
    from dbos import DBOS, SetWorkflowID

    flows = _workflows()
    model = ScriptedModel(reply)
    _model[:] = [model]
    url = f"sqlite:///{path}"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "console_log_level": "ERROR"})
    DBOS.launch()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        with SetWorkflowID("bench"):
            await begin(flows)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    finally:
        DBOS.destroy()
    return Ran(cpu, wall, 0.0, tuple(model.requests), "bench")
