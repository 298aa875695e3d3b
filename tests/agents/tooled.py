"""An agent with a tool that leaves a line in a file each time it works, and a run of it as a process of its own.

`python tooled.py JOURNAL DIRECTORY start|resume`: every request to a model, and every use of the tool, is a line in a file there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import consilience
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit.throwaways import OutsideAgent

TASK = "How many?"


def returned(messages: list[ModelMessage]) -> list[str]:
    """What the tool gave so far."""
    return [str(part.content) for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def counting(directory: Path, uses: int = 3) -> Agent[None, str]:
    """Asks for the tool twice at once, then once at a time up to `uses`, then says what it was given.

    Model and tool work on the event loop, so that whoever looks there at what is done sees nothing half begun on a thread.
    """

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        with (directory / "requests").open("a") as log:
            log.write(f"{len(messages)}\n")
        results = returned(messages)
        if len(results) < uses and info.function_tools:
            asked = range(len(results), max(2, len(results) + 1))
            return ModelResponse(parts=[ToolCallPart("look", {"at": f"shelf {n}"}) for n in asked])
        return ModelResponse(parts=[TextPart(f"It holds {', '.join(results) or 'nothing known'}.")])

    agent: Agent[None, str] = Agent(FunctionModel(model), name="counter")

    @agent.tool_plain
    async def look(at: str) -> str:
        with (directory / "uses").open("a") as log:
            log.write(f"{at}\n")
        return f"{len(at)} things at {at}"

    return agent


def others(log: Callable[[ModelRequest], None] = lambda request: None) -> ScriptedModel:
    def reply(request: ModelRequest) -> str:
        log(request)
        return f"{request.agent} read {len(request.text)} characters for {request.key}"

    return ScriptedModel(reply)


def seats(directory: Path) -> dict[str, object]:
    return {"A1": others(), "A2": counting(directory), "A3": others()}


async def main(journal: str, directory: str, how: str) -> None:
    store = SqliteStore(journal)
    models = seats(Path(directory))
    if how == "start":
        begun = consilience.deliberate(TASK, OutsideAgent(), model=models, store=store, session="s")  # type: ignore[arg-type]
    else:
        begun = consilience.resume("s", model=models, store=store)  # type: ignore[arg-type]
    print((await begun).digest())
    store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
