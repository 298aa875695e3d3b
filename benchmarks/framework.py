"""The same calls as runs of a pydantic-ai `Agent`, one a call, in plain gathers: an agent framework without a record."""

from __future__ import annotations

import time
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from talk import SYSTEM, Job, Steps, gather_steps, in_phases, prompt, request, returns, tree_steps
from workload import Ran, reply

RUNS = "pydantic-ai, an Agent run per call: keeps nothing"
MISSING = "pydantic-ai is not installed; its runs are left out."


def installed() -> bool:
    return find_spec("pydantic_ai") is not None


async def run_tree(children: int, depth: int, rounds: int) -> Ran:
    return await _run(tree_steps(children, depth), rounds)


async def run_gather(size: int) -> Ran:
    return await _run(gather_steps(size), 1)


async def _run(steps: Steps, rounds: int) -> Ran:
    """One agent for every type of reply, as its users make them, before the clock starts."""
    from pydantic_ai import Agent, PromptedOutput
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    scripted = ScriptedModel(reply)
    asked: ContextVar[ModelRequest] = ContextVar("asked")

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart((await scripted.complete(asked.get())).text)])

    model = FunctionModel(answer)
    agents: dict[type | None, Agent[None, Any]] = {}

    def agent(kind: type | None) -> Agent[None, Any]:
        if kind not in agents:
            agents[kind] = Agent(model, instructions=SYSTEM, output_type=PromptedOutput(kind) if kind else str)
        return agents[kind]

    async def call(job: Job) -> str:
        asked.set(request(job))
        made = await agent(returns(job["key"])).run(prompt(job))
        return made.output if isinstance(made.output, str) else made.output.text

    for key in ("/leaf_respond/", "/lateral/", "/observe/L1N1", ""):
        agent(returns(key))
    wall, cpu = time.perf_counter(), time.process_time()
    await in_phases(steps, rounds, call)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Ran(cpu, wall, 0.0, tuple(scripted.requests), "bench")
