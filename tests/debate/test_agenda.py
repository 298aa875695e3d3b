"""The agenda, the moderator's remark on a thread that goes round in circles, and the split of a thread by horizon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import consilience
from consilience import Debate, DebateReport
from consilience.domain.events import Noted
from consilience.domain.notes import load_note
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate.floor import Floor
from consilience.protocols.debate.notes import AgendaNote, CruxPromoted
from consilience.protocols.debate.records import DebateMessage
from consilience.protocols.debate.threads import Budgets, Thread, is_orbiting
from consilience.testing import ScriptedModel
from kit.debating import Debaters, moves_of, number_of

Answer = dict[str, object]
Changes = dict[str, Callable[[ModelRequest], Answer]]
RISK, ADOPTION = "Is Bitcoin a risk asset rather than a hedge?", "Will institutions adopt Bitcoin within five years?"

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "journal.db")
    yield store
    store.close()


# the seed's third scenario


def bitcoin() -> Changes:
    """Four agents, two threads. On the first question three top claims hang, on the second two."""

    def opening(request: ModelRequest) -> Answer:
        return {"p2": "YES" if number_of(request.agent) < 3 else "NO", "interests": ["bitcoin"]}

    def about(request: ModelRequest) -> str:
        return ADOPTION if "on: Is this the best of the options: adoption" in request.text else RISK

    def turn(request: ModelRequest) -> Answer:
        words = "The hedge holds while the correlation is low." if about(request) == RISK else "Funds allocate slowly."
        if about(request) == ADOPTION and request.agent == "D4":
            words = "No fund takes a hedge for the long run."
        body: Answer = {"text": words, "topics": ["bitcoin"]}
        open_moves = moves_of(request)
        if "PROVIDE_EVIDENCE" in open_moves:
            return {**body, "move": "PROVIDE_EVIDENCE"}
        return {**body, "question": about(request)} if "PROPOSE_CRUX" in open_moves else body

    def commit(request: ModelRequest) -> Answer:
        side = ("YES", "NO", "YES", "NO")[number_of(request.agent) - 1]
        hangs = 4 if f"Its question: {RISK}" in request.text else 3
        gives_up = "either" if number_of(request.agent) < hangs else "neither"
        return {"side": side, "gives_up_if": gives_up, "flip_confidence": "fairly sure"}

    return {"opening": opening, "turn": turn, "commit": commit}


async def four_agents(store: SqliteStore, *, agenda: bool, seed: int = 1) -> tuple[DebateReport, list[Noted]]:
    protocol = Debate(debaters=4, option=("a hedge", "adoption"), agenda=agenda, attention_threshold=0.3, test_cruxes=0)
    report = await consilience.deliberate(
        "What is Bitcoin?", protocol, model=ScriptedModel(Debaters(bitcoin())), store=store, session="r1", seed=seed
    )
    assert isinstance(report, DebateReport)
    return report, [event for event in store.read("r1") if isinstance(event, Noted)]


async def test_agenda_promotes_the_dispute_with_the_higher_score_and_boosts_its_messages(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While both disputes are active, messages about the first gain 0.2, by thread or by word, those about the second alone 0.1."""
    seen: list[tuple[DebateMessage, float]] = []
    boost = Floor.boost

    def noted(floor: Floor, message: DebateMessage) -> float:
        amount = boost(floor, message)
        if tuple(floor.disputes) == ("thread-1", "thread-2") and not message.by_moderator:
            seen.append((message, amount))
        return amount

    monkeypatch.setattr(Floor, "boost", noted)
    report, notes = await four_agents(store, agenda=True)

    assert [thread.question for thread in report.threads] == [RISK, ADOPTION]
    agendas = [load_note(AgendaNote, note, store.text) for note in notes if note.name == "agenda"]
    both = next(note for note in agendas if len(note.active) == 2)
    assert both.active == ("thread-1", "thread-2")
    assert both.scores[0] > both.scores[1]
    promoted = [load_note(CruxPromoted, note, store.text).thread for note in notes if note.name == "crux_promoted"]
    assert promoted == ["thread-1", "thread-2"]
    assert report.system_metrics.dcg_promotions == 2
    by_thread = {amount for message, amount in seen if message.thread == "thread-1"}
    by_word = {amount for message, amount in seen if message.thread == "thread-2" and "hedge" in message.text}
    second = {amount for message, amount in seen if message.thread == "thread-2" and "hedge" not in message.text}
    assert (by_thread, by_word, second) == ({0.2}, {0.2}, {0.1})


async def test_agenda_asks_agents_without_a_position_on_an_active_dispute_to_commit(store: SqliteStore) -> None:
    report, _ = await four_agents(store, agenda=True, seed=0)
    thread = report.threads[0]
    locked = next(attempt.at for attempt in thread.lock_attempts if attempt.success)
    commitments = [m for m in report.messages if m.thread == thread.id and m.move == "COMMIT_POSITION"]
    late = [message.agent for message in commitments if message.at > locked]
    assert late
    assert sorted(late) == sorted({"D1", "D2", "D3", "D4"} - {m.agent for m in commitments if m.at <= locked})
    assert {commitment.agent for commitment in thread.commitments} == {"D1", "D2", "D3", "D4"}


async def test_agenda_drops_a_converged_dispute(store: SqliteStore) -> None:
    _, notes = await four_agents(store, agenda=True)
    agendas = [load_note(AgendaNote, note, store.text) for note in notes if note.name == "agenda"]
    assert agendas[-1].active == ()
    assert all(len(note.active) <= 2 for note in agendas)


async def test_agenda_disabled_records_no_active_dispute(store: SqliteStore) -> None:
    _, notes = await four_agents(store, agenda=False)
    assert not [note for note in notes if note.name == "agenda"]
    assert [note for note in notes if note.name == "crux_promoted"]


# going round in circles


def thread_of(texts: list[str], moves: list[str]) -> Thread:
    thread = Thread("thread-1", "Orders", 0, Budgets(40, 40), ["D1", "D2"])
    for n, (text, move) in enumerate(zip(texts, moves, strict=True), 1):
        thread.add(
            DebateMessage(
                id=f"m{n}",
                number=n,
                label=f"A{n}",
                agent="D1",
                thread="thread-1",
                move=move,  # type: ignore[arg-type]
                at=n,
                text=text,
            )
        )
    return thread


@pytest.mark.parametrize(
    ("texts", "moves", "orbiting"),
    [
        (["orders queues"] * 8, ["CLAIM"] * 8, True),
        (["orders queues"] * 7, ["CLAIM"] * 7, False),
        (["orders queues"] * 8, ["CLAIM"] * 7 + ["CONCEDE"], False),
        (["orders queues"] * 8, ["PROPOSE_CRUX"] + ["CLAIM"] * 7, False),
        (["orders queues"] * 9, ["CONCEDE"] + ["CLAIM"] * 8, True),
        ([f"orders{n // 2} queues{n // 2}" for n in range(8)], ["CLAIM"] * 8, False),
        ([f"orders{n // 3} queues{n // 3}" for n in range(8)], ["CLAIM"] * 8, True),
    ],
)
def test_is_orbiting_is_true_without_concessions_and_with_repeated_words(
    texts: list[str], moves: list[str], orbiting: bool
) -> None:
    assert is_orbiting(thread_of(texts, moves)) == orbiting


def test_moderator_intervenes_at_most_every_eight_messages_in_an_orbiting_thread() -> None:
    def turn(request: ModelRequest) -> Answer:
        return {"move": "PROVIDE_EVIDENCE", "text": "orders queues"} if "PROVIDE_EVIDENCE" in moves_of(request) else {}

    model = ScriptedModel(Debaters({"turn": turn}))
    report = consilience.run_sync("Should we?", Debate(debaters=2, as_is=True, test_cruxes=0), model=model)
    assert isinstance(report, DebateReport)
    remarks = [message.number for message in report.messages if message.text.startswith("The same subjects come back")]
    assert remarks
    spoken = [message.number for message in report.messages if not message.by_moderator]
    since = [sum(a < number < b for number in spoken) for a, b in pairwise([0, *remarks])]
    assert min(since) >= 8


# horizons


@pytest.mark.parametrize(("debaters", "threads"), [(8, 2), (7, 1)])
def test_thread_with_more_than_three_agents_per_horizon_is_split_by_horizon(debaters: int, threads: int) -> None:
    def opening(request: ModelRequest) -> Answer:
        return {"horizon": "12-18mo" if number_of(request.agent) % 4 in (1, 2) else "10y+"}

    model = ScriptedModel(Debaters({"opening": opening}))
    protocol = Debate(debaters=debaters, as_is=True, discovery_messages=20, test_cruxes=0)
    report = consilience.run_sync("Should we?", protocol, model=model)
    assert isinstance(report, DebateReport)
    halves = [thread for thread in report.threads if thread.question and "judged over" in thread.question]
    if threads == 1:
        assert halves == []
        return
    months, years = halves
    assert (months.question or "").endswith("(judged over 12-18mo)")
    assert (years.question or "").endswith("(judged over 10y+)")
    assert years.parent == months.id
    assert {c.agent for c in months.commitments} <= {"D1", "D2", "D5", "D6"}
