"""A model that answers from a planted world."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.simulation.worlds import World

Simulate = Callable[[ModelRequest, World], Mapping[str, object]]
"""A protocol's answer to one of its own requests: it may read the request, and of the world the mind of `request.agent`."""


class SimulatedModel(ScriptedModel):
    """Answers every request of a protocol from a planted world. `simulate` is the protocol's, such as that of `debate`."""

    def __init__(self, world: World, simulate: Simulate) -> None:
        super().__init__(self.reply, name="simulated")
        self.world, self._simulate = world, simulate

    def reply(self, request: ModelRequest) -> str:
        """Return the reply to a request, without fields that its schema does not have."""
        answer = self._simulate(request, self.world)
        known = (request.schema or {}).get("properties")
        names = known if isinstance(known, Mapping) else answer
        return json.dumps({name: value for name, value in answer.items() if name in names})
