"""Dealt documents: whatever agents write, no prompt exceeds the window, and a run whose prompts cannot fit is not begun."""

from __future__ import annotations

import json
import re
from contextlib import closing
from functools import cache
from typing import Any

import pytest

from consilience.deliberation import Deliberation
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Limits
from consilience.domain.tokens import BYTES_PER_TOKEN, estimate_tokens
from consilience.engine.dealing import deal_rows, deal_to_agents
from consilience.engine.execution import Options
from consilience.engine.fork import ForkChanges, plan_fork
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.runner import replay
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import number_documents
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.debate import Debate
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from kit.counting import Strict
from simulation.document_sets import DocumentSet, make_document_set
from study_documents import Reading

TASK = "Where do these documents contradict each other?"


@cache
def material(tokens: int) -> DocumentSet:
    return make_document_set(5, tokens=tokens, documents=12)


class Talkative(Strict):
    """Fills every reply: inventories in words of its own, pairs that it all calls contradictions, parts, texts."""

    def __init__(self, window: int, documents: DocumentSet, *, thinks: bool = False) -> None:
        super().__init__(window, thinks=thinks)
        self.reading = Reading(documents)
        self.sizes: dict[str, int] = {}
        """Largest prompt with its schema, reply and thinking, by agent."""

    async def complete(self, request: ModelRequest) -> Any:
        schema = estimate_tokens(json.dumps(request.schema)) if request.schema else 0
        size = estimate_tokens(request.text) + schema + request.max_tokens + request.thinking_tokens
        self.sizes[request.agent] = max(size, self.sizes.get(request.agent, 0))
        return await super().complete(request)

    def reply(self, request: ModelRequest) -> str:
        if request.key.startswith("inventory/"):
            rows = json.loads(self.reading.inventory(request.text, request.max_tokens - 200, own_words=True))
            wanted = [{"document": f"S{n}", "lines": "1-900", "why": "It may say more."} for n in range(1, 5)]
            return json.dumps({**rows, "requests": wanted})
        if request.key.startswith("matching/"):
            names = re.findall(r"^P\d+$", request.text, re.MULTILINE)
            why = "x" * int(request.max_tokens * BYTES_PER_TOKEN / max(len(names), 1) - 150)
            return json.dumps({"pairs": [{"pair": name, "says": "contradiction", "why": why} for name in names]})
        written = super().reply(request)
        if request.key.startswith("split"):
            parts = json.loads(written)["parts"]
            more = "x" * int(request.max_tokens * BYTES_PER_TOKEN / max(len(parts), 1) - 200)
            return json.dumps({"parts": [{**part, "instructions": more} for part in parts]})
        return written


PROTOCOLS: tuple[Protocol, ...] = (
    Emergence(max_rounds=2),
    Broadcast(max_iterations=2),
    Decompose(),
    Debate(max_messages=12),
    Refinement(max_passes=2),
)
SETS = {8_000: 9_000, 16_000: 9_000, 32_000: 30_000, 128_000: 70_000}
"""Tokens of documents by window."""


REFUSED = {
    ("emergence", 8_000, False),
    ("emergence", 8_000, True),
    ("broadcast", 8_000, False),
    ("broadcast", 8_000, True),
    ("broadcast", 16_000, False),
    ("broadcast", 16_000, True),
    ("decompose", 8_000, False),
    ("decompose", 8_000, True),
    ("debate", 8_000, False),
    ("debate", 8_000, True),
    ("refinement", 8_000, False),
    ("refinement", 8_000, True),
    ("refinement", 16_000, False),
    ("refinement", 16_000, True),
}
"""What agents of these protocols write to each other leaves no room for the documents, without and with thinking."""


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("window", SETS)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_no_prompt_of_a_dealt_session_exceeds_the_window(protocol: Protocol, window: int, thinks: bool) -> None:
    documents = material(SETS[window])
    model = Talkative(window, documents, thinks=thinks)
    with closing(SqliteStore(":memory:")) as store:
        deliberation = Deliberation(
            protocol, model=model, sources=documents.sources, store=store, options=Options(deal="document")
        )
        if (protocol.name, window, thinks) in REFUSED:
            with pytest.raises(SettingsError, match=r"shares? .*in a context window of") as raised:
                await deliberation.run(TASK)
            assert re.search(r"with a larger window, of [\d,]+ tokens or more", raised.value.do)
            assert model.requests == []
            return
        report = await deliberation.run(TASK)
    assert not [call.detail for call in report.failed_calls if "in a window of" in call.detail]
    assert max(model.sizes.values()) <= window
    assert any(request.key.startswith("matching/") for request in model.requests)


@pytest.mark.parametrize("window", [16_000, 32_000, 128_000])
async def test_planned_tokens_of_shares_are_those_that_prompts_have(window: int) -> None:
    documents = material(SETS[window])
    model = Talkative(window, documents)
    protocol, dealt = deal_to_agents(Decompose(), documents.sources, "document", window)
    with closing(SqliteStore(":memory:")) as store:
        await Deliberation(protocol, model=model, sources=dealt, store=store).run(TASK)
    prompts = {request.agent: request.text for request in model.requests if request.key.startswith("inventory/")}
    rows = deal_rows(dealt)
    assert {row.agent for row in rows} == prompts.keys()
    for row in rows:
        shown = re.finditer(
            r"<quote (\w+) from (?:document|related)[^>]*>\n.*?\n</quote \1>", prompts[row.agent], re.DOTALL
        )
        size = sum(estimate_tokens(block[0]) for block in shown)
        assert 0.9 * size <= row.tokens + row.related_tokens <= 1.1 * size


@pytest.mark.parametrize(
    ("protocol", "key"),
    [
        (Decompose(), "synthesize/L1N1"),
        (Decompose(strange_loops=1), "strange_loop-1/L1N1"),
        (Emergence(max_rounds=1), "round-1/observe/L1N1"),
        (Debate(max_messages=12), "closing"),
    ],
    ids=["decompose", "decompose-reviewed", "emergence", "debate"],
)
async def test_answer_that_nothing_quotes_has_the_room_that_its_prompt_leaves(protocol: Protocol, key: str) -> None:
    documents, window = material(9_000), 16_000
    model = Talkative(window, documents)
    with closing(SqliteStore(":memory:")) as store:
        options = Options(deal="document")
        deliberation = Deliberation(protocol, model=model, sources=documents.sources, store=store, options=options)
        report = await deliberation.run(TASK)
        assert (await replay(report.session, store=store)).digest() == report.digest()
        kept, set_by_hand = (
            plan_fork(report.session, store=store, at="end", changes=ForkChanges(settings=settings)).protocol
            for settings in ({}, {"reply_tokens": 700})
        )
    assert (kept.closing_reply_tokens, set_by_hand.closing_reply_tokens) == (4_096, None)
    replies = {r.key: r.max_tokens for r in model.requests if not r.key.startswith(("inventory/", "matching/"))}
    answer = replies.pop(key)
    assert max(replies.values()) < answer <= 4_096
    assert max(model.sizes.values()) <= window


async def test_answer_keeps_the_length_of_replies_that_is_set() -> None:
    documents = material(9_000)
    model = Talkative(16_000, documents)
    with closing(SqliteStore(":memory:")) as store:
        options = Options(deal="document")
        await Deliberation(
            Decompose(reply_tokens=700), model=model, sources=documents.sources, store=store, options=options
        ).run(TASK)
    sizes = {r.max_tokens for r in model.requests if not r.key.startswith(("inventory/", "matching/"))}
    assert sizes == {700}


def test_sizes_count_the_closing_reply_at_its_own_length() -> None:
    dealt, sources = deal_to_agents(Decompose(), material(9_000).sources, "document", 16_000)
    shorter = dealt.model_copy(update={"closing_reply_tokens": None})
    opening = Opening("", TASK, number_documents(sources), window=16_000)
    longer, same = (CallSizes(opening, protocol, dealt.agents(None)) for protocol in (dealt, shorter))
    more = 4_096 - dealt.max_reply_tokens
    assert longer.closing_call.tokens == same.closing_call.tokens + more
    assert longer.max_call == same.max_call
    used, before = (sum(n * (r + w) for n, r, w in sizes.largest_calls(12)) for sizes in (longer, same))
    assert used == before + more
    assert longer.describe_reply(Limits()) == f"{same.describe_reply(Limits())}, the closing one up to 4,096"
