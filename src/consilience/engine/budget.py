"""How large a call may be, and what is held back for the closing one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consilience.domain.agents import Agent
from consilience.domain.outcome import Limits
from consilience.engine.branch import UNLIMITED, Account, Amount
from consilience.engine.prompt import Opening, tokens_in
from consilience.engine.protocol import Protocol


def call_size(
    opening: Opening,
    protocol: Protocol,
    prices: Mapping[str, tuple[float, float]],
    agents: Sequence[Agent] | None = None,
) -> Amount:
    """The greatest size of one call: the opening with the documents of whoever is shown most, the widest prompt's quotations at
    full length, the request with the texts that the settings hold and the longest description of a seat, the reply.
    Without `agents` the seats are the protocol's own."""
    seats = protocol.agents(None) if agents is None else agents
    shown = ("".join(d.numbered for d in opening.documents_for(seat.id)) for seat in seats)
    text = opening.instructions + opening.task + (max(shown, key=len, default="") if opening.documents else "")
    text += "".join(value for value in vars(protocol).values() if isinstance(value, str))
    text += max((seat.persona + seat.perspective for seat in seats), key=len, default="")
    prompt = tokens_in(text) + protocol.widest * (protocol.reply_tokens + 32) + 512
    reply = protocol.longest_reply
    dearest = max((prompt * read + reply * written for read, written in prices.values()), default=0.0)
    return Amount(1, prompt + reply, dearest)


def hold_back(limits: Limits, size: Amount) -> tuple[Account, Account]:
    """The budget without the reserve, and the reserve: one call of the greatest size, or all there is if that is less."""
    given = [limits.calls, limits.tokens, limits.money]
    if given == [None, None, None]:
        return Account(UNLIMITED), Account(UNLIMITED)
    whole = Amount(*(float("inf") if limit is None else limit for limit in given))
    held = Amount(*(a if a == float("inf") else min(a, b) for a, b in _pairs(whole, size)))
    left = Amount(*(a if a == float("inf") else a - b for a, b in _pairs(whole, held)))
    return Account(left), Account(held)


def _pairs(a: Amount, b: Amount) -> list[tuple[float, float]]:
    return [(a.calls, b.calls), (a.tokens, b.tokens), (a.money, b.money)]
