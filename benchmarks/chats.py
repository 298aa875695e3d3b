"""An AutoGen group chat: agents who speak in turn, each shown everything said before; the state its team saves."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from talk import SYSTEM
from workload import TASK, Ran, reply

CHAT = "AutoGen, a round-robin group chat: keeps nothing"
SAVED = "AutoGen, the state its team saves, once, at the end"
MISSING = "AutoGen is not installed (pip install --group bench); its group chat is left out."


@dataclass(frozen=True)
class Chat:
    """`characters` of each message's prompt, in order; `saved` are the bytes of the state as JSON, 0 where not asked for."""

    ran: Ran
    characters: tuple[int, ...]
    saved: int = 0


def installed() -> bool:
    return all(find_spec(name) is not None for name in ("autogen_agentchat", "autogen_ext", "autogen_core"))


async def run(agents: int, messages: int, *, save: bool = False) -> Chat:
    """So many messages of so many agents. Making the team and saving its state are not counted."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.teams import RoundRobinGroupChat

    client = _client()(agents)
    members = [AssistantAgent(f"A{n}", client, system_message=f"{SYSTEM} You are A{n}.") for n in range(1, agents + 1)]
    team = RoundRobinGroupChat(list(members), max_turns=messages)
    wall, cpu = time.perf_counter(), time.process_time()
    await team.run(task=TASK)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    saved = len(json.dumps(await team.save_state()).encode()) if save else 0
    return Chat(Ran(cpu, wall, 0.0, tuple(client.model.requests), "bench"), tuple(client.characters), saved)


@cache
def _client() -> Any:
    """A client that answers as the scripted model does.

    The replaying client of AutoGen splits every prompt into words to count them; that would be charged to the chat.
    """
    from autogen_core.models import CreateResult, LLMMessage, RequestUsage
    from autogen_ext.models.replay import ReplayChatCompletionClient

    class Client(ReplayChatCompletionClient):
        def __init__(self, agents: int) -> None:
            super().__init__([])
            self.agents = agents
            self.model = ScriptedModel(reply)
            self.characters: list[int] = []

        async def create(self, messages: Sequence[LLMMessage], **settings: Any) -> CreateResult:
            self.characters.append(sum(len(str(message.content)) for message in messages))
            n = len(self.characters)
            asked = ModelRequest(agent=f"A{(n - 1) % self.agents + 1}", key=f"turn/{n}", system="", user="")
            text = (await self.model.complete(asked)).text
            usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
            return CreateResult(finish_reason="stop", content=text, usage=usage, cached=False)

    return Client
