"""The readers of dealt documents: which agents take an inventory, how large it is, and in how many calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from consilience.domain.agents import Agent
from consilience.domain.outcome import Estimate
from consilience.engine.document_index import reader_numbers
from consilience.engine.sources import Document

INVENTORY_TOKENS = 2_000
"""Max tokens of an inventory, unless the options say another size. The length of first reports decides what is found."""


def inventory_size(documents: Sequence[Document], tokens: int | None) -> int:
    """Return the max tokens of an inventory in a session with these documents: 0, for none, if no document is dealt."""
    if not any(share.lines for document in documents for share in document.shares):
        return 0
    return INVENTORY_TOKENS if tokens is None else tokens


def judging_tokens(inventory_tokens: int, window: int | None) -> int:
    """Return the max tokens of the pairs of rows that a reader is shown, and of what it says of them: as many as its inventory may
    have, and not more than a quarter of the smallest context window."""
    return inventory_tokens if window is None else min(inventory_tokens, window // 4)


def readers_of(documents: Sequence[Document], agents: Iterable[Agent]) -> list[Agent]:
    """Return the agents that take an inventory, in the order of the index: those with a share, without people."""
    known = {agent.id: agent for agent in agents}
    return [known[id] for id in reader_numbers(documents) if id in known and not known[id].is_person]


def with_inventories(
    estimate: Estimate, documents: Sequence[Document], agents: Iterable[Agent], tokens: int
) -> Estimate:
    """Return an estimate with the calls for inventories of so many tokens: one or two of each reader."""
    readers = len(readers_of(documents, agents)) if tokens else 0
    return Estimate(min=estimate.min + readers, max=estimate.max + 2 * readers)
