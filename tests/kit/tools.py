"""An agent with tools for the kit: it asks for two things at once, then for one, then answers; its tools take their time."""

from __future__ import annotations

import asyncio
import random

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from consilience.domain.events import text_id
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.models.tool_agent import ToolAgent

MAX_STEPS = 3


def tooled(id: str, model: ScriptedModel, order: int | None = None) -> ToolAgent:
    """Every request to its model goes through `model`, which so counts it, under a key made of what was said."""
    dice = random.Random(order) if order is not None else None

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        contents = [str(getattr(part, "content", part)) for message in messages for part in message.parts]
        returned = [str(p.content) for message in messages for p in message.parts if isinstance(p, ToolReturnPart)]
        text = "\n".join(contents[:1] + returned)
        made = await model.complete(ModelRequest(id, f"{id}:{text_id(text)}", "", text))
        if len(returned) < 3 and info.function_tools:
            asked = ("left", "right") if not returned else ("middle",)
            return ModelResponse(parts=[ToolCallPart("measure", {"side": side}) for side in asked])
        return ModelResponse(parts=[TextPart(made.text)])

    agent: Agent[None, str] = Agent(FunctionModel(respond), name=id)

    @agent.tool_plain
    async def measure(side: str) -> str:
        for _ in range(dice.randrange(6) if dice else 0):
            await asyncio.sleep(0)
        return f"{side} is {len(side)} long"

    return ToolAgent(agent, max_steps=MAX_STEPS)
