"""The same calls as runs of a pydantic-ai `Agent`, one a call, in plain gathers: without a record, or in a DBOS workflow."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import steps
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from talk import SYSTEM, Call, Job, Steps, gather_steps, in_phases, prompt, request, returns, tree_steps
from workload import Ran, reply, timed

RUNS = "pydantic-ai, an Agent run per call: keeps nothing"
DURABLE = "pydantic-ai + DBOS, a durable Agent run per call, SQLite"
MISSING = "pydantic-ai is not installed; its runs are left out."

_asked: ContextVar[ModelRequest] = ContextVar("_asked")


def installed() -> bool:
    return find_spec("pydantic_ai") is not None


async def run_tree(children: int, depth: int, rounds: int) -> Ran:
    return await _run(tree_steps(children, depth), rounds)


async def run_gather(size: int) -> Ran:
    return await _run(gather_steps(size), 1)


async def run_durable_tree(children: int, depth: int, rounds: int, path: Path) -> Ran:
    return await steps.launched(path, lambda: _flows().tree(children, depth, rounds))


async def run_durable_gather(size: int, path: Path) -> Ran:
    return await steps.launched(path, lambda: _flows().gather(size))


async def _run(phases: Steps, rounds: int) -> Ran:
    model = ScriptedModel(reply)
    steps.model_now[:] = [model]
    call = _call(durable=False)
    return await timed(model, lambda: in_phases(phases, rounds, call))


@cache
def _flows() -> steps.Flows:
    return steps.register("agents", _call(durable=True))


@cache
def _call(*, durable: bool) -> Call:
    """Make one agent for every type of reply, as its users do, before the clock starts."""
    from pydantic_ai import Agent, PromptedOutput
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart((await steps.model_now[0].complete(_asked.get())).text)])

    def agent(kind: type | None) -> Agent[None, Any]:
        output: Any = PromptedOutput(kind) if kind else str
        name = kind.__name__ if kind else "text"
        return Agent(
            FunctionModel(answer), instructions=SYSTEM, output_type=output, name=name, capabilities=_durability(durable)
        )

    agents = {kind: agent(kind) for kind in map(returns, ("/leaf_respond/", "/lateral/", "/observe/L1N1", ""))}

    async def call(job: Job) -> str:
        _asked.set(request(job))
        made = await agents[returns(job["key"])].run(prompt(job))
        return made.output if isinstance(made.output, str) else str(made.output.text)

    return call


def _durability(durable: bool) -> list[Any]:
    if not durable:
        return []
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    return [DBOSDurability()]
