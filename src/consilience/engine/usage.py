"""The tokens of a completion."""

from __future__ import annotations

from dataclasses import replace

from consilience.engine.ports import AgentPort, ModelPort
from consilience.engine.prompt import Rendered, estimate_tokens
from consilience.models.port import Completion


def with_estimated_tokens(completion: Completion, rendered: Rendered, port: AgentPort) -> tuple[Completion, bool]:
    """Return the completion with missing token counts estimated from its texts, and whether any were.

    Uncounted tokens would escape every limit.
    """
    tokens_in = completion.tokens_in or rendered.tokens
    tokens_out = completion.tokens_out or (estimate_tokens(completion.text) if completion.text.strip() else 0)
    is_counted = (tokens_in, tokens_out) == (completion.tokens_in, completion.tokens_out)
    if is_counted or not completion.requests or not isinstance(port, ModelPort):
        return completion, False
    price = port.price(tokens_in, tokens_out)
    cost = completion.cost if price is None else completion.cost or price
    return replace(completion, tokens_in=tokens_in, tokens_out=tokens_out, cost=cost), True


def thinking_of(completion: Completion, reply: str) -> int:
    """Tokens used for thinking: as counted by the model, else in proportion to the text that is not part of the `reply`."""
    if completion.tokens_thought or len(reply) >= len(completion.text):
        return completion.tokens_thought
    return completion.tokens_out * (len(completion.text) - len(reply)) // len(completion.text)
