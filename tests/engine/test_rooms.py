"""A plan that says "fits" is never refused by a window, and a run that cannot fit is refused before anything is spent."""

from __future__ import annotations

import pytest

from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import THINKING_TOKENS
from consilience.domain.tokens import estimate_tokens
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.rooms import closing_error, fitting_reply, seat_rooms
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import number_documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.protocols.baselines import Solo, Vote
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.debate import Debate
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.protocols.review import Review
from kit import runner
from kit.counting import ENGLISH, RUSSIAN, Strict

TASK = "Keep it?"
WINDOWS = (2_048, 4_096, 8_192, 16_384, 32_768, 131_072)
PROTOCOLS: tuple[Protocol, ...] = (
    Solo(),
    Vote(votes=3),
    Emergence(children=2, max_rounds=1),
    Emergence(children=3, max_rounds=2, strange_loops=1),
    Broadcast(children=2, max_iterations=1),
    Decompose(children=2),
    Refinement(max_passes=2),
    Debate(debaters=2, max_messages=8),
    Review(reviewers=2, max_iterations=1),
)


def documents(sentence: str, number: int) -> list[Source]:
    return [Source(text="\n".join(f"{n}. {sentence}" for n in range(number)), name="notes.md")] if number else []


def sized(protocol: Protocol, sources: list[Source], window: int, thinking: int) -> tuple[CallSizes, Protocol]:
    numbered = number_documents(sources)
    protocol = protocol.with_detail("full").with_documents(numbered, window)
    opening = Opening(protocol.load_templates().render(INSTRUCTIONS, documents=True), TASK, numbered)
    agents = protocol.agents(None)
    return CallSizes(opening, protocol, agents, {}, {agent.id: thinking for agent in agents}), protocol


@pytest.mark.matrix(keep=60)
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("reply_tokens", [None, 500])
@pytest.mark.parametrize(("sentence", "number"), [("", 0), (ENGLISH, 80), (RUSSIAN, 400), (ENGLISH, 2_500)])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_run_that_fits_is_refused_by_no_window_and_one_that_cannot_is_refused_before_a_call(
    protocol: Protocol, window: int, sentence: str, number: int, reply_tokens: int | None, thinks: bool
) -> None:
    protocol = protocol.model_copy(update={"reply_tokens": reply_tokens})
    sources = documents(sentence or ENGLISH, number or (20 if protocol.name == "review" else 0))
    sizes, settled = sized(protocol, sources, window, THINKING_TOKENS["low"] if thinks else 0)
    windows = dict.fromkeys((agent.id for agent in sizes.agents), window)
    model = Strict(window, thinks=thinks)

    async def run() -> list[str]:
        store = SqliteStore(":memory:")
        report = await runner.start(TASK, protocol, models=model, store=store, sources=sources)
        return [call.detail for call in report.failed_calls if "in a window of" in call.detail]

    if closing_error(sizes, settled, windows) is not None:
        with pytest.raises(SettingsError, match="the closing call cannot fit"):
            await run()
        assert model.requests == []
    elif all(room.fits for room in seat_rooms(sizes, windows)):
        assert await run() == []
    elif (reply := fitting_reply(sizes, settled, windows)) is not None:
        protocol = protocol.model_copy(update={"reply_tokens": reply})
        assert await run() == []


def test_each_seat_is_counted_with_its_documents_and_its_own_model() -> None:
    protocol = Emergence(children=2)
    private = Source(text=ENGLISH * 400, agents=("L2N1",))
    sizes, _ = sized(protocol, [private], 32_768, 0)
    rooms = {room.agent: room for room in seat_rooms(sizes, {"L2N1": 16_384, "L2N2": 131_072})}
    assert rooms.keys() == {"L2N1", "L2N2"}
    assert rooms["L2N1"].most - rooms["L2N2"].most > 9_000
    assert (rooms["L2N1"].fits, rooms["L2N2"].fits) == (False, True)


def test_closing_call_of_the_root_alone_decides() -> None:
    sizes, protocol = sized(Emergence(children=2), documents(ENGLISH, 2_500), 131_072, 0)
    assert closing_error(sizes, protocol, {"L1N1": 8_192, "L2N1": 131_072, "L2N2": 131_072}) is not None
    assert closing_error(sizes, protocol, {"L1N1": 131_072, "L2N1": 8_192, "L2N2": 8_192}) is None
    assert closing_error(sizes, protocol, {"L2N1": 8_192, "L2N2": 8_192}) is None


def test_russian_text_that_may_need_few_tokens_is_not_refused() -> None:
    """Some 36,000 tokens by its bytes, 17,000 for a tokenizer that knows the language."""
    text = documents(RUSSIAN, 800)
    sizes, protocol = sized(Solo(), text, 20_000, 0)
    assert estimate_tokens(text[0].text) > 30_000
    assert closing_error(sizes, protocol, {"S1": 20_000}) is None


async def test_fork_of_a_session_is_not_refused() -> None:
    """Its closing call may be inherited."""
    store, sources = SqliteStore(":memory:"), documents(ENGLISH, 2_500)
    model = ScriptedModel(lambda request: "Yes.")
    report = await runner.start(TASK, Solo(), models=model, store=store, sources=sources)
    small = ScriptedModel(lambda request: "No.", name="small", context_window=4_096)
    again = await runner.fork(report.session, store=store, models=small)
    assert again.answer == "Yes."
