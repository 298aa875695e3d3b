"""A resume takes settled rounds from the journal. What it ends in equals what it would have ended in without."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from consilience.domain.errors import ProtocolViolation, RequestMismatch
from consilience.domain.events import Settled, canonical_digest
from consilience.domain.outcome import Limits, SpendingLimits
from consilience.domain.panels import Panel, Persona
from consilience.engine.faults import Crash, Fault
from consilience.engine.prompt import Prompt
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.cases import CASES, Case
from kit.histories import History
from kit.processes import Processes, Run
from kit.rounds import Opinion, SettledRounds, opining
from kit.runs import TASK, seated
from kit.throwaways import Made

ROUNDS = next(case for case in CASES if case.name == "settled-rounds")
SETTLING = [
    case
    for case in CASES
    if case.name.startswith(("settled", "emergence", "refinement", "review")) or case.name == "broadcast"
]


@pytest.fixture(autouse=True)
def _counted_anew() -> None:
    SettledRounds.executed.clear()


async def killed(case: Case, path: Path, fault: Fault, **fields: Any) -> None:
    with pytest.raises(Crash):
        await runner.start(
            TASK,
            case.protocol,
            sources=case.sources,
            models=ScriptedModel(case.script),
            store=SqliteStore(path),
            session="s",
            options=Options(faults=fault.hit),
            **fields,
        )


async def undisturbed(case: Case, **fields: Any) -> tuple[str, str]:
    store = SqliteStore(":memory:")
    report = await runner.start(
        TASK, case.protocol, sources=case.sources, models=ScriptedModel(case.script), store=store, session="s", **fields
    )
    digests = canonical_digest(store.read("s")), report.digest()
    store.close()
    return digests


async def test_resume_executes_only_rounds_that_are_not_settled(tmp_path: Path) -> None:
    await killed(ROUNDS, tmp_path / "j.db", Fault("before_call", "opinions", 3))
    SettledRounds.executed.clear()
    store, model = SqliteStore(tmp_path / "j.db"), ScriptedModel(opining)
    report = await runner.resume("s", store=store, models=model)
    assert SettledRounds.executed == {3: 1}
    assert not [request.key for request in model.requests if request.key.startswith(("round-1/", "round-2/"))]
    assert (canonical_digest(store.read("s")), report.digest()) == await undisturbed(ROUNDS)
    store.close()


async def test_replay_and_fork_execute_every_round(tmp_path: Path) -> None:
    await killed(ROUNDS, tmp_path / "j.db", Fault("before_finish"))
    store, model = SqliteStore(tmp_path / "j.db"), ScriptedModel(opining)
    report = await runner.resume("s", store=store, models=model)
    SettledRounds.executed.clear()
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    assert SettledRounds.executed == {1: 1, 2: 1, 3: 1}
    await runner.fork("s", store=store, models=model, session="f", at="end")
    assert SettledRounds.executed == {1: 2, 2: 2, 3: 2}
    assert model.requests == []
    store.close()


LIMITS = [
    *(Limits(calls=n) for n in range(1, 25, 2)),
    *(Limits(tokens=n) for n in (2_000, 20_000, 60_000, 90_000, 150_000)),
    Limits(calls=40, agents={"A1": SpendingLimits(calls=4)}, phases={"opinions": SpendingLimits(calls=7)}),
]


@pytest.mark.matrix(keep=8)
@pytest.mark.parametrize(
    ("limits", "nth"), list(itertools.product(LIMITS, range(1, 4))), ids=lambda value: str(value)[:40]
)
async def test_resume_after_settled_rounds_finds_the_same_budgets(limits: Limits, nth: int, tmp_path: Path) -> None:
    expected = await undisturbed(ROUNDS, limits=limits)
    try:
        await killed(ROUNDS, tmp_path / "j.db", Fault("at_settled", nth=nth), limits=limits)
    except pytest.fail.Exception:
        return  # the limits allow no such round
    store = SqliteStore(tmp_path / "j.db")
    report = await runner.resume("s", store=store, models=ScriptedModel(opining))
    assert (canonical_digest(store.read("s")), report.digest()) == expected
    store.close()


async def test_personas_that_settled_rounds_introduced_are_not_reported_as_missing(tmp_path: Path) -> None:
    panel = Panel(
        name="p",
        description="Two people.",
        personas=[Persona(name=n, description=f"You are {n}.") for n in ("Al", "Bo")],
    )
    case = next(case for case in CASES if case.name == "emergence-ballots")
    expected = await undisturbed(case, panel=panel)
    await killed(case, tmp_path / "j.db", Fault("before_call", "lateral_leaves", 2), panel=panel)
    store = SqliteStore(tmp_path / "j.db")
    report = await runner.resume("s", store=store, models=ScriptedModel(case.script))
    assert report.defects == ()
    assert (canonical_digest(store.read("s")), report.digest()) == expected
    store.close()


# --- real processes

KILLS = list(itertools.product(SETTLING, ("before_settled", "at_settled", "after_settled")))


@pytest.mark.processes
@pytest.mark.matrix(keep=8)
@pytest.mark.parametrize(("case", "point"), KILLS, ids=lambda value: getattr(value, "name", str(value)))
def test_process_killed_at_every_settled_round_loses_nothing(case: Case, point: str, tmp_path: Path) -> None:
    """Killed there at each round, and again when its record is committed, until there is none left."""
    history, processes = History(case, tmp_path / "j.db"), Processes()
    history.add(processes.one(case.name, history.journal, Run("start", point)))
    while history.ended[-1].killed:
        fault = "after_settled" if len(history.ended) % 2 else point
        history.add(processes.one(case.name, history.journal, Run("resume", fault)))
        assert len(history.ended) < 12, "no progress from one death to the next"
    events = history.check_the_end()
    settled = [(event.name, event.index, event.place) for event in events if isinstance(event, Settled)]
    assert len(settled) == len(set(settled)) >= 1


# --- what an author may do wrong


async def made(body: Callable[[Session], Coroutine[Any, Any, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "body", staticmethod(body), raising=False)
    await runner.start(TASK, Made(), models=ScriptedModel(opining), store=SqliteStore(":memory:"))


async def _none() -> None:
    return None


async def test_round_must_await_what_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgetful(session: Session) -> None:
        async def work() -> None:
            session.start(session.ask("A1", Prompt("say"), key="say"))

        await session.settled("round", 1, type(None), work())

    with pytest.raises(ProtocolViolation, match="what was started at 0 is not awaited"):
        await made(forgetful, monkeypatch)


async def test_round_is_settled_in_the_main_branch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nested(session: Session) -> None:
        await session.settled("outer", 1, type(None), session.settled("inner", 1, type(None), _none()))

    async def apart(session: Session) -> None:
        await session.gather([session.subtask(session.settled("round", 1, type(None), _none()), calls=0)] * 1)

    for body in (nested, apart):
        with pytest.raises(ProtocolViolation, match="inside another round or branch"):
            await made(body, monkeypatch)


async def test_result_must_name_the_types_of_its_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def untyped(session: Session) -> None:
        async def work() -> list[Reply[Any] | Failure]:
            return [await session.ask("A1", Prompt("say"), key="say", returns=Opinion)]

        await session.settled("round", 1, list[Reply[Any] | Failure], work())

    with pytest.raises(ProtocolViolation, match=r"Annotate it as Reply\[Opinion\]"):
        await made(untyped, monkeypatch)


@dataclass(frozen=True)
class Another:
    """A result of another version of the protocol."""

    sentences: int


async def test_result_of_another_version_of_the_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await killed(ROUNDS, tmp_path / "j.db", Fault("before_finish"))
    monkeypatch.setattr("kit.rounds.RoundGiven", Another)
    store = SqliteStore(tmp_path / "j.db")
    with pytest.raises(RequestMismatch, match="recorded result of round 1 cannot be read"):
        await runner.resume("s", store=store, models=seated(ROUNDS, ScriptedModel(opining)))
    store.close()


@pytest.mark.parametrize("function", ["state.render", "recalled.Recalled.message"])
async def test_work_before_the_first_live_call_does_not_grow_with_the_settled_rounds(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts made and messages read, counted. They vary by a few, with what was recorded of the last round."""
    before_live = []
    for rounds in (3, 6, 12):
        case = Case("settled-rounds", SettledRounds(rounds=rounds), opining, ROUNDS.sources)
        await killed(case, tmp_path / f"{rounds}.db", Fault("before_call", "opinions", rounds))
        done: list[int] = []
        asked: list[int] = []

        def answer(request: ModelRequest, done: list[int] = done, asked: list[int] = asked) -> str:
            asked.append(len(done))
            return opining(request)

        with monkeypatch.context() as patch:
            count_calls(f"consilience.engine.{function}", done, patch)
            store = SqliteStore(tmp_path / f"{rounds}.db")
            await runner.resume("s", store=store, models=ScriptedModel(answer))
            store.close()
        before_live.append(asked[0])
    # How many calls of the last round were committed before the kill depends on how fast the disk is; a round has five.
    assert max(before_live) <= min(before_live) + 5


def count_calls(function: str, calls: list[int], patch: pytest.MonkeyPatch) -> None:
    original = resolve_name(function)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return original(*arguments, **named)

    patch.setattr(function, counted)
