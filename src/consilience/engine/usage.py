"""What is recorded of a completion."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from consilience.domain.errors import replace_surrogates
from consilience.domain.events import CUT, Ended, Volatile, text_id
from consilience.domain.outcome import Limits
from consilience.domain.tokens import estimate_tokens
from consilience.domain.usage import UsageTotals
from consilience.engine.ports import AgentPort
from consilience.engine.prompt import Rendered
from consilience.engine.sizes import Usage
from consilience.models.port import Completion


def with_estimated_tokens(completion: Completion, rendered: Rendered, port: AgentPort) -> tuple[Completion, bool]:
    """Return the completion with missing token counts estimated from its texts, and whether any were.

    Uncounted tokens would escape every limit.
    """
    tokens_in = completion.tokens_in or rendered.tokens
    tokens_out = completion.tokens_out or (estimate_tokens(completion.text) if completion.text.strip() else 0)
    is_counted = (tokens_in, tokens_out) == (completion.tokens_in, completion.tokens_out)
    if is_counted or not completion.requests or not port.counts_tokens:
        return completion, False
    price = port.price(tokens_in, tokens_out)
    cost = completion.cost if price is None else completion.cost or price
    return replace(completion, tokens_in=tokens_in, tokens_out=tokens_out, cost=cost), True


def usage_of(event: Ended) -> Usage:
    """What an attempt spent."""
    return Usage(event.requests, event.tokens_in + event.tokens_out, event.cost or 0)


def thinking_of(completion: Completion, reply: str) -> int:
    """Tokens used for thinking: as counted by the model, else in proportion to the text that is not part of the `reply`."""
    if completion.tokens_thought or len(reply) >= len(completion.text):
        return completion.tokens_thought
    return completion.tokens_out * (len(completion.text) - len(reply)) // len(completion.text)


def completion_figures(completion: Completion, text: str, full_text: str, name: str) -> dict[str, object]:
    """Return the fields of the event of a reply. `text` is what is stored of its `full_text`; `name` is the model asked."""
    volatile: Volatile = {}
    if completion.requests != 1:
        volatile["requests"] = completion.requests
    waited, requeued = round(completion.waited, 3), completion.requeued
    figures = {"cached": completion.tokens_cached, "waited": waited, "requeued": requeued}
    for field, figure in (figures | {"uncounted": completion.uncounted}).items():
        if figure:
            volatile[field] = figure
    if completion.fallback:
        volatile["fallback"] = 1
    if completion.notes:
        volatile["adapted"] = "; ".join(completion.notes)
    if completion.model != name:
        volatile["model"] = replace_surrogates(completion.model)
    return {
        "text": text_id(text),
        "tokens_in": completion.tokens_in,
        "tokens_out": completion.tokens_out,
        "tokens_thought": thinking_of(completion, full_text),
        "cost": completion.cost,
        "finish": CUT if len(text) < len(full_text) else replace_surrogates(completion.finish_reason),
        "volatile": volatile,
    }


def completion_json(completion: Completion) -> str:
    """Return a completion as JSON, for `completion_from`."""
    return json.dumps(asdict(completion))


def completion_from(body: str) -> Completion:
    """Return a completion from its JSON."""
    fields = json.loads(body)
    return Completion(**{**fields, "notes": tuple(fields["notes"])})


def remaining_limits(limits: Limits, used: UsageTotals) -> Limits:
    """Return the limits less what a session used."""
    tokens = used.tokens_in + used.tokens_out
    return limits.model_copy(
        update={
            "calls": None if limits.calls is None else max(limits.calls - used.requests, 0),
            "tokens": None if limits.tokens is None else max(limits.tokens - tokens, 0),
            "cost": None if limits.cost is None else max(limits.cost - (used.cost or 0.0), 0.0),
            "seconds": None if limits.seconds is None else max(limits.seconds - used.seconds, 0.0),
        }
    )
