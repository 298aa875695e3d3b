"""Tokens of models that tell none."""

from __future__ import annotations

from dataclasses import replace

from consilience.engine.ports import AgentPort, ModelPort
from consilience.engine.prompt import Rendered, tokens_in
from consilience.models.port import Completion


def counted(completion: Completion, rendered: Rendered, port: AgentPort) -> tuple[Completion, bool]:
    """The completion, and whether tokens of it are estimated from the texts: a model that was asked has read some, and one that
    answered has written some, so one that says otherwise has not counted. Else a limit on tokens or money would bind nobody."""
    read = completion.tokens_in or rendered.tokens
    written = completion.tokens_out or (tokens_in(completion.text) if completion.text.strip() else 0)
    told = (read, written) == (completion.tokens_in, completion.tokens_out)
    if told or not completion.requests or not isinstance(port, ModelPort):
        return completion, False
    cost = completion.cost or port.price(read, written)
    return replace(completion, tokens_in=read, tokens_out=written, cost=cost), True
