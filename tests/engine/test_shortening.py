"""A prompt that outgrows the window: the oldest texts of others are shortened to their points, and the report says so."""

from __future__ import annotations

import json
import re
from contextlib import closing

import pytest

from consilience.domain.messages import Message
from consilience.domain.tokens import estimate_tokens
from consilience.engine.shortening import NOTE, points_of, shorten_oldest
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence import Emergence
from kit import runner

WINDOW = 6_000
PROSE = "It took long. " * 300


def long_reply(request: ModelRequest) -> str:
    text = f"{request.agent} says {request.key}.\n{PROSE}\n- The lease ends in May.\n- The rent is 12,000."
    return json.dumps({"points": [], "stance": "changed", "claims": [], "text": text})


@pytest.mark.parametrize(("window", "outgrows"), [(WINDOW, True), (60_000, False)])
async def test_prompt_that_outgrows_the_window_quotes_points_and_the_report_says_so(
    window: int, outgrows: bool
) -> None:
    model = ScriptedModel(long_reply, context_window=window)
    protocol = Emergence(children=4, max_rounds=2, reply_tokens=1_200, strange_loops=1)
    with closing(SqliteStore(":memory:")) as store:
        report = await runner.start("Which terms differ?", protocol, models=model, store=store, session="s")
        assert (await runner.replay("s", store=store)).digest() == report.digest()
    closing_prompt = model.requests[-1].text
    assert (NOTE in closing_prompt) is outgrows
    assert any("shortened to points, because" in warning for warning in report.warnings) is outgrows
    if outgrows:
        assert estimate_tokens(closing_prompt) + 1_200 <= WINDOW
        assert closing_prompt.count("The rent is 12,000.") == 5, "points stay"
        own = re.search(r"from you>\n(.*?)\n</quote", closing_prompt, re.DOTALL)
        assert own
        assert PROSE.strip() in own[1], "its own text is whole"


def test_oldest_texts_are_shortened_first_and_no_more_than_needed() -> None:
    texts = [Message(id=f"{n}", kind="", sender="a", text=PROSE, phase=("round", n)) for n in (3, 1, 2)]
    size = estimate_tokens(PROSE)
    assert list(shorten_oldest(texts, size // 2)) == ["1"]
    assert list(shorten_oldest(texts, size + 1)) == ["1", "2"]
    assert list(shorten_oldest(texts, 0)) == []


def test_points_are_entries_of_lists_or_first_sentences() -> None:
    assert points_of("Long prose.\n\n1. One.\n2. Two.\nMore.") == f"1. One.\n2. Two.\n{NOTE}"
    assert points_of("First. Then more.\n\nSecond! And so on.") == f"First.\nSecond!\n{NOTE}"
    assert len(points_of("word " * 9_000)) < 400
