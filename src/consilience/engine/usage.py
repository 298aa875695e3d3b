"""Tokens of models that tell none."""

from __future__ import annotations

from dataclasses import replace

from consilience.engine.ports import AgentPort, ModelPort
from consilience.engine.prompt import Rendered, tokens_in
from consilience.models.port import Completion


def counted(completion: Completion, rendered: Rendered, port: AgentPort) -> tuple[Completion, bool]:
    """The completion, and whether its tokens are estimated from the texts: a model that was asked has read some, so one that
    says it read and wrote none has not counted. Without that a limit on tokens or money would bind nobody."""
    told = completion.tokens_in or completion.tokens_out
    if told or not completion.requests or not isinstance(port, ModelPort):
        return completion, False
    read, written = rendered.tokens, tokens_in(completion.text)
    cost = completion.cost or port.price(read, written)
    return replace(completion, tokens_in=read, tokens_out=written, cost=cost), True
