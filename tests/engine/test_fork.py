"""Forks: inherited and repeated replies, allowed changes, and independence of the parent."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from consilience.domain.errors import (
    Refused,
    ReplayMiss,
    RequestMismatch,
    ServerError,
    SessionWaiting,
    SettingsError,
    UnknownName,
    Unreachable,
    VersionMismatch,
)
from consilience.domain.events import CallCompleted, CallFailed, ReplyRejected, SessionStarted, canonical_digest
from consilience.domain.outcome import Limits, SpendingLimits, StopReason
from consilience.domain.report import Report
from consilience.engine.faults import POINTS, Crash, Fault
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import Scripted, ScriptedModel
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.reporting.record import read_record
from kit import runner
from kit.cases import CALLING, HOUSE, Case, broadcasting, emergent, refining
from kit.runner import fork
from kit.runs import TASK, run, seated, to_the_end
from kit.throwaways import Outside

every_case = pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)

TREE = Emergence(children=2, max_rounds=2)


def without_session_and_usage(report: Report) -> dict[str, object]:
    """What a report says, without whose it is and what it cost."""
    return report.model_dump(mode="json", exclude={"session", "parent", "ledger"})


async def parent(protocol: Emergence = TREE, **options: object) -> tuple[SqliteStore, Report]:
    store = SqliteStore(":memory:")
    report = await runner.start(TASK, protocol, models=ScriptedModel(emergent), store=store, session="p", **options)  # type: ignore[arg-type]
    return store, report


def replies(store: SqliteStore, session: str, *, inherited: bool | None = None) -> dict[str, CallCompleted]:
    completed = {e.key: e for e in store.read(session) if isinstance(e, CallCompleted)}
    return {key: e for key, e in completed.items() if inherited is None or e.inherited is inherited}


@every_case
async def test_fork_without_changes_at_any_event_gives_the_same_report_and_repeats_only_later_calls(
    case: Case, tmp_path: Path, sample
) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "journal.db"
    outcome = await run(case, path=path)
    store = SqliteStore(path)
    events = store.read(outcome.report.session)
    for at in sample(range(len(events) + 1), 6, whole=40):
        model = ScriptedModel(case.script)
        seats = seated(case, model)
        begun = fork(outcome.report.session, store=store, at=at, models=seats, options=Options(patience=0))
        report = await to_the_end(store, seats, begun)
        assert without_session_and_usage(report) == without_session_and_usage(outcome.report), f"at {at}"
        assert report.parent == outcome.report.session
        ended = {(e.key, e.attempt) for e in events if e.seq <= at and isinstance(e, CallCompleted | ReplyRejected)}
        asked = [(request.key, request.attempt) for request in model.requests if request.agent != case.tools]
        before = [(key, n) for key, n in outcome.asked if not key.startswith(f"{case.tools}:")]
        assert not ended & set(asked), "an inherited reply was asked for again"
        assert sorted(asked) == sorted(set(before) - ended)
        assert report.ledger.actual.inherited == len({key for key, _ in ended})
        assert report.ledger.actual.requests + len(ended) >= len(before)
    store.close()


@every_case
async def test_killed_fork_resumes_and_replays_without_its_parent(case: Case, tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "journal.db"
    begun = await run(case, path=path)
    name = begun.report.session
    store = SqliteStore(path)
    at = len(store.read(name)) // 2
    whole = ScriptedModel(case.script)
    seats = seated(case, whole)
    reference = await to_the_end(
        store, seats, fork(name, store=store, at=at, models=seats, session="whole", options=Options(patience=0))
    )
    expected = canonical_digest(store.read("whole"))
    for n, (point, nth) in enumerate(sample(itertools.product(POINTS, (1, 2, 4)), 5)):
        session = f"f{n}"
        model = ScriptedModel(case.script)
        seats = seated(case, model)
        options = Options(patience=0, faults=Fault(point, nth=nth).hit)
        try:
            report = await to_the_end(
                store, seats, fork(name, store=store, at=at, models=seats, session=session, options=options)
            )
        except Crash:
            store = SqliteStore(path)
            seats = seated(case, model)
            report = await to_the_end(
                store, seats, runner.resume(session, store=store, models=seats, options=Options(patience=0))
            )
        assert report.digest() == reference.digest(), f"{point} #{nth}"
        assert canonical_digest(store.read(session)) == expected
        assert (await runner.replay(session, store=store)).digest() == reference.digest()
    store.close()


async def test_fork_with_changed_settings_changes_only_calls_after_the_fork_point() -> None:
    store, before = await parent()
    cut = "round-1/observe/L1N1"
    assert cut in replies(store, "p")
    model = ScriptedModel(lambda r: emergent(r).replace(" on ", " now on "))
    report = await fork(
        "p", store=store, at=cut, models=model, settings={"max_rounds": 3}, perspectives={"L2N2": "an economist"}
    )
    assert report.settings["max_rounds"] == 3
    assert before.settings["max_rounds"] == 2
    asked = {request.key for request in model.requests}
    kept = replies(store, report.session, inherited=True)
    assert cut in kept
    assert not asked & set(kept)
    assert all(key.startswith("round-1/") for key in kept)
    assert any(key.startswith("round-3/") for key in asked)
    second = next(r for r in model.requests if r.key == "round-2/leaf_respond/L2N2")
    assert "an economist" in second.text
    assert next(a for a in report.agents if a.id == "L2N2").perspective == "an economist"
    own = store.text(kept["round-1/lateral/L2N2"].text)
    assert json.loads(own)["text"] in second.text, "it reads its own inherited words"
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()


async def test_fork_that_replaces_one_agent_keeps_the_models_of_the_others() -> None:
    store, _ = await parent()
    calm, loud = ScriptedModel(emergent, name="scripted"), ScriptedModel(emergent, name="loud")
    report = await fork("p", store=store, at=0, models=calm, replace={"L2N1": loud})
    assert {r.agent for r in loud.requests} == {"L2N1"}
    assert {a.id: a.model for a in report.agents}["L2N1"] == "loud"
    with pytest.raises(UnknownName, match="no agent 'L9N9'"):
        await fork("p", store=store, at=0, models=calm, replace={"L9N9": loud})
    with pytest.raises(UnknownName, match="no agent 'X'"):
        await fork("p", store=store, at=0, models=calm, perspectives={"X": "a view"})


async def test_fork_with_more_children_keeps_existing_seats_and_their_replies() -> None:
    store, before = await parent()
    model = ScriptedModel(emergent)
    report = await fork("p", store=store, at="leaf_respond/1", settings={"children": 3}, models=model)
    assert [a.id for a in report.agents][:3] == [a.id for a in before.agents]
    assert {r.key for r in model.requests} >= {"round-1/leaf_respond/L2N3"}
    assert "round-1/leaf_respond/L2N1" not in {r.key for r in model.requests}


async def test_fork_of_an_exhausted_session_has_its_own_budget_and_inherits_no_refusals() -> None:
    store, before = await parent(limits=Limits(calls=4))
    assert before.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert any(isinstance(e, CallFailed) and e.failure.is_limit for e in store.read("p"))
    model = ScriptedModel(emergent)
    report = await fork("p", store=store, at="leaf_respond/1", limits=Limits(), models=model)
    assert report.stop_reason is not StopReason.EXHAUSTED_BUDGET
    assert report.ledger.actual.inherited == 2
    assert report.ledger.actual.calls == len({r.key for r in model.requests})
    free = await runner.start(TASK, TREE, models=ScriptedModel(emergent), store=store)
    assert without_session_and_usage(report) == without_session_and_usage(free)
    again = await fork("p", store=store, at="leaf_respond/1", models=ScriptedModel(emergent))
    assert again.ledger.actual.requests <= 4, "without limits given, the parent's apply to what the fork spends"


async def test_fork_repeats_inherited_replies_that_are_invalid_under_new_settings() -> None:
    def ballots(request: ModelRequest) -> str:
        if "ballot" in request.key:
            side = "yes" if "yes" in str(request.schema) or "yes" in request.text else "no"
            return json.dumps({"position": side, "confidence": "certain", "reason": "so"})
        return emergent(request)

    store = SqliteStore(":memory:")
    protocol = Emergence(children=2, max_rounds=1, answer_pattern="yes|no")
    await runner.start(TASK, protocol, models=ScriptedModel(ballots), store=store, session="p")
    cast = [key for key in replies(store, "p") if "ballot" in key]
    assert cast

    def letters(request: ModelRequest) -> str:
        if "ballot" in request.key:
            return json.dumps({"position": "B", "confidence": "certain", "reason": "so"})
        return emergent(request)

    model = ScriptedModel(letters)
    report = await fork("p", store=store, at="end", settings={"answer_pattern": "A|B"}, models=model)
    assert {r.key for r in model.requests} == set(cast)
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()
    assert set(replies(store, report.session, inherited=False)) == set(cast)


async def test_fork_warns_of_inherited_replies_that_it_does_not_use() -> None:
    store, _ = await parent()
    report = await fork("p", store=store, at="end", settings={"max_rounds": 1}, models=ScriptedModel(emergent))
    (warning,) = [w for w in report.warnings if "not used by this run" in w]
    assert "round-2/" in warning
    asked = {k for k in replies(store, "p") if k.startswith("round-1/") and "/signal/" not in k}
    assert report.ledger.actual.inherited == len(asked)
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()


def shown(store: SqliteStore, call: CallCompleted) -> set[str]:
    """The messages a call was shown."""
    return {part.split(":", 2)[2] for part in store.prompt(call.prompt) if part.startswith("q:")}


LARGER = {
    **HOUSE,
    "roles": [
        {**HOUSE["roles"][0], "children": ["one", "two", "three", "adviser"]},
        *HOUSE["roles"][1:],
        {"name": "three", "description": "You write three.", "children": ["checker"], "vector": [0, 2]},
    ],
}

CHANGES_BEFORE_THE_CLOSING_CALL = [
    (Emergence(children=2, max_rounds=1, strange_loops=1, threshold=1.0), emergent, {"max_rounds": 2}, "finalize/1"),
    (
        Broadcast(children=2, max_iterations=1, satisfaction_threshold=1.0),
        broadcasting,
        {"max_iterations": 2},
        "synthesize/L1N1",
    ),
    (Refinement(hierarchy=HOUSE, max_passes=1), refining, {"hierarchy": LARGER}, "pass-1/integrate/lead"),
]


@pytest.mark.parametrize(
    ("protocol", "script", "change", "closing"),
    CHANGES_BEFORE_THE_CLOSING_CALL,
    ids=lambda case: getattr(case, "name", ""),
)
async def test_fork_repeats_replies_to_texts_that_changed(protocol, script, change, closing) -> None:  # type: ignore[no-untyped-def]
    store = SqliteStore(":memory:")
    await runner.start(TASK, protocol, models=ScriptedModel(script), store=store, session="p")
    model = ScriptedModel(script)
    report = await fork("p", store=store, at="end", settings=change, models=model, session="c")
    assert closing in replies(store, "p")
    assert closing in {request.key for request in model.requests}
    live = replies(store, "c", inherited=False)
    assert shown(store, live[closing]) & live.keys()
    taken = {key: call for key, call in replies(store, "c", inherited=True).items() if key not in live}
    assert taken
    assert not any(shown(store, call) & live.keys() for call in taken.values())
    (warning,) = [w for w in report.warnings if "about other texts; asked for again" in w]
    assert closing in warning
    again = await runner.replay("c", store=store)
    assert (again.digest(), again.warnings) == (report.digest(), report.warnings)
    read = read_record(store, "c").calls
    assert len({(call.key, call.attempt) for call in read}) == len(read)
    assert not next(call for call in read if call.key == closing).inherited


async def test_fork_repeats_revisions_if_their_critique_changed() -> None:
    """A part more makes the critic judge again, and what it says now is what the authors are shown."""

    def critic(message: str) -> Callable[[ModelRequest], str]:
        def reply(request: ModelRequest) -> str:
            body = json.loads(text) if (text := refining(request)).startswith("{") else None
            if "/critique/" not in request.key or body is None:
                return text
            return json.dumps({part: {**judged, "issues": [f"{part} is {message}"]} for part, judged in body.items()})

        return reply

    store = SqliteStore(":memory:")
    protocol = Refinement(hierarchy=HOUSE, max_passes=2)
    await runner.start(TASK, protocol, models=ScriptedModel(critic("too short")), store=store, session="p")
    model = ScriptedModel(critic("plainly wrong"))
    report = await fork("p", store=store, at="end", settings={"hierarchy": LARGER}, models=model, session="c")
    revised = {request.key: request.text for request in model.requests if request.key.startswith("pass-2/revise/")}
    assert {"pass-2/revise/one", "pass-2/revise/two", "pass-2/revise/three"} <= revised.keys()
    assert all("is plainly wrong" in text and "is too short" not in text for text in revised.values())
    assert (await runner.replay("c", store=store)).digest() == report.digest()


async def test_fork_with_more_budget_asks_refused_agents_and_shows_their_replies() -> None:
    """The root had answered from what there was; in the fork there is more."""
    store, before = await parent(limits=Limits(calls=2))
    assert before.answer is not None
    model = ScriptedModel(emergent)
    await fork("p", store=store, limits=Limits(), models=model, session="c")
    free = {request.key for request in model.requests} | replies(store, "c", inherited=True).keys()
    root = replies(store, "c", inherited=False)["round-1/observe/L1N1"]
    assert shown(store, root) >= {"round-1/lateral/L2N1", "round-1/lateral/L2N2"}
    assert "round-1/leaf_respond/L2N2" in free


def divide_and_count_quotes(request: ModelRequest) -> str:
    """Parts for all, and a synthesis that tells how much it had read."""
    if "split" in request.key:
        return json.dumps({"parts": [{"title": t, "instructions": f"Do {t}."} for t in ("one", "two", "three")]})
    return json.dumps({"text": f"{request.agent} read {request.text.count('<quote ')} in {request.key}"})


async def test_fork_of_a_fork_keeps_the_repeated_replies_of_its_parent() -> None:
    """The first run could pay for one part; its fork for all; wherever that is forked again, the answer is about all."""
    store = SqliteStore(":memory:")
    first = await runner.start(
        TASK,
        Decompose(children=3),
        models=ScriptedModel(divide_and_count_quotes),
        store=store,
        session="g",
        limits=Limits(calls=3),
    )
    model = ScriptedModel(divide_and_count_quotes)
    second = await fork("g", store=store, models=model, limits=Limits(), session="p")
    assert first.answer != second.answer
    for event in [e for e in store.read("p") if isinstance(e, CallCompleted) and not e.inherited]:
        third = await fork("p", store=store, models=ScriptedModel(divide_and_count_quotes), at=event.seq)
        assert third.answer == second.answer, event.key
        kept = [e.key for e in store.read(third.session) if isinstance(e, CallCompleted)]
        assert (kept.count("synthesize/L1N1"), third.answer) == (1 + (event.key != "synthesize/L1N1"), second.answer)
        again = await fork(third.session, store=store, models=ScriptedModel([]))
        assert again.answer == second.answer
        assert (await runner.replay(again.session, store=store)).digest() == again.digest()


async def test_fork_with_more_parts_repeats_an_outside_answer_about_fewer() -> None:
    """A person was asked about two parts and answered; in the fork there are three, and they are asked anew."""
    store, model = SqliteStore(":memory:"), ScriptedModel(divide_and_count_quotes)
    seats = {"L1N1": Outside(), **dict.fromkeys(("L2N1", "L2N2", "L2N3"), model)}
    limits, options = Limits(agents={"L2N3": SpendingLimits(calls=0)}), Options(patience=0)
    with pytest.raises(SessionWaiting):
        await runner.start(
            TASK, Decompose(children=3), models=seats, store=store, session="g", limits=limits, options=options
        )
    parts = [{"title": t, "instructions": f"Do {t}."} for t in ("one", "two", "three")]
    store.post("g", "answer", "split/L1N1", json.dumps({"parts": parts}))
    with pytest.raises(SessionWaiting):
        await runner.resume("g", store=store, models=seats, options=options)
    store.post("g", "answer", "synthesize/L1N1", "Two parts, says the person.")
    with pytest.raises(SessionWaiting) as waiting:
        await fork("g", store=store, models=seats, limits=Limits(), session="f", options=options)
    assert waiting.value.awaited == ("synthesize/L1N1",)
    store.post("f", "answer", "synthesize/L1N1", "Three parts, says the person.")
    report = await runner.resume("f", store=store, models=seats, options=options)
    assert report.answer == "Three parts, says the person."
    same = await fork("g", store=store, models=seats, limits=limits, session="s", options=options)
    assert same.answer == "Two parts, says the person.", "about the same texts it is taken"


async def test_fork_of_a_fork_shares_texts_and_records_its_parent(tmp_path: Path) -> None:
    store, before = await parent()
    child = await fork("p", store=store, at="end", session="c", models=ScriptedModel([]))
    grandchild = await fork("c", store=store, at="end", session="g", models=ScriptedModel([]))
    assert (
        without_session_and_usage(child) == without_session_and_usage(before) == without_session_and_usage(grandchild)
    )
    assert store.parents() == {"c": "p", "g": "c"}
    assert {e.text for e in replies(store, "p").values()} == {e.text for e in replies(store, "g").values()}
    started = store.read("g")[0]
    assert isinstance(started, SessionStarted)
    assert started.parent == "c"
    assert started.forked_at == len(store.read("c"))


async def test_fork_counts_no_cost_for_inherited_replies() -> None:
    store = SqliteStore(":memory:")
    dear = ScriptedModel(lambda r: Scripted(emergent(r), tokens_in=100, tokens_out=10, cost=0.5))
    before = await runner.start(TASK, TREE, models=dear, store=store, session="p")
    assert before.ledger.actual.cost
    report = await fork(
        "p", store=store, at="end", models=ScriptedModel([]), limits=Limits(calls=0, cost=0.0, tokens=0)
    )
    spent = report.ledger.actual
    assert (spent.calls, spent.requests, spent.tokens_in, spent.cost) == (0, 0, 0, 0.0)
    assert spent.inherited == before.ledger.actual.calls
    assert report.answer == before.answer


@pytest.mark.parametrize(
    ("inputs", "error", "says"),
    [
        ({"at": 10_000}, SettingsError, "has the events 1 to"),
        ({"at": -1}, SettingsError, "has the events 1 to"),
        ({"at": "round-1/leaf_respond/L2N7"}, UnknownName, "Did you mean 'round-1/leaf_respond/L2N"),
        ({"at": "nowhere"}, UnknownName, "no phase or call 'nowhere'. Where: at. Phases: leaf"),
        ({"settings": {"max_round": 3}}, SettingsError, "Did you mean 'max_rounds'"),
        ({"settings": {"max_rounds": "many"}}, SettingsError, "max_rounds"),
        ({"settings": {"similarity": "embedding"}}, SettingsError, "needs an encoder"),
        ({"models": []}, SettingsError, "no model is given"),
    ],
    ids=str,
)
async def test_fork_with_invalid_arguments_is_refused_before_a_session_is_created(inputs, error, says) -> None:  # type: ignore[no-untyped-def]
    store, _ = await parent()
    with pytest.raises(error, match=says):
        await fork("p", store=store, **{"models": ScriptedModel([]), **inputs})
    assert store.sessions() == ["p"]


class FakeEncoder:
    """An encoder to which all texts are alike, or the first is unlike the others."""

    def __init__(self, name: str, *, unlike: bool = False) -> None:
        self.name = name
        self.unlike = unlike
        self.asked = 0

    async def encode(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked += 1
        return [[0.0, 1.0] if self.unlike and n else [1.0, 0.0] for n in range(len(texts))]


async def test_fork_with_another_encoder_inherits_no_vectors() -> None:
    compared = Emergence(children=2, max_rounds=2, similarity="embedding")
    store, before = await parent(compared, encoder=FakeEncoder("alike"))
    assert before.stop_reason is StopReason.CONVERGED
    for encoder, stop, asked in (
        (FakeEncoder("alike"), StopReason.CONVERGED, 0),
        (FakeEncoder("apart", unlike=True), StopReason.EXHAUSTED_STEPS, 1),
    ):
        report = await fork("p", store=store, models=ScriptedModel(emergent), encoder=encoder, session=encoder.name)
        assert (report.stop_reason, encoder.asked) == (stop, asked)
        await runner.replay(encoder.name, store=store)


@pytest.mark.parametrize(
    ("inputs", "settled"),
    [
        (Options(), (2, True, 0.4)),
        (Options(repairs=0, cache=False, temperature=0.0), (0, False, 0.0)),
    ],
    ids=["as the parent", "given"],
)
async def test_fork_without_options_takes_them_from_its_parent(
    inputs: Options, settled: tuple[int, bool, float]
) -> None:
    store, _ = await parent(options=Options(repairs=2, cache=True, temperature=0.4))
    model = ScriptedModel(emergent)
    report = await fork("p", store=store, at=0, models=model, session="f", options=inputs)
    started = store.beginning("f")
    assert started is not None
    assert (started.repairs, started.cache, started.temperature) == settled
    assert {request.temperature for request in model.requests} <= {settled[2]}
    assert bool(report.ledger.actual.cached) is settled[1]


async def test_fork_settings_given_as_strings_are_parsed() -> None:
    store, _ = await parent()
    report = await fork("p", store=store, at=0, settings={"max_rounds": "1"}, models=ScriptedModel(emergent))
    assert report.settings["max_rounds"] == 1


async def test_replay_with_another_protocol_version_is_refused_with_a_fork_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, before = await parent()
    monkeypatch.setattr(Emergence, "version", Emergence.version + 1)
    with pytest.raises(VersionMismatch, match="consilience fork p --at end"):
        await runner.replay("p", store=store)
    report = await fork("p", store=store, at="end", models=ScriptedModel([]))
    assert report.answer == before.answer
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()


async def test_replay_with_a_changed_prompt_is_refused_with_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = SqliteStore(path)
    await runner.start(TASK, TREE, models=ScriptedModel(emergent), store=store, session="p")
    started = store.read("p")[0]
    assert isinstance(started, SessionStarted)
    words = store.text(started.templates["leaf_respond"])
    store.close()
    _tamper(path, started, "leaf_respond", words.replace("Give", "Do give", 1) if "Give" in words else "Do. " + words)
    store = SqliteStore(path)
    with pytest.raises(RequestMismatch) as raised:
        await runner.replay("p", store=store)
    message = str(raised.value)
    assert "round-1/leaf_respond/L2N1" in message
    assert "its words part at character" in message
    assert "recorded '" in message
    assert "now '" in message
    assert "consilience fork p --at" in message
    store.close()


async def test_replay_of_an_unrecorded_call_names_the_nearest_recorded_call(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = SqliteStore(path)
    await runner.start(TASK, TREE, models=ScriptedModel(emergent), store=store, session="p")
    gone = next(e for e in store.read("p") if isinstance(e, CallCompleted) and "lateral/L2N2" in e.key)
    store.close()
    _delete(path, gone.seq)
    store = SqliteStore(path)
    with pytest.raises(
        ReplayMiss, match=r"round-1/lateral/L2N2.*nearest recorded is 'round-\d/lateral/L2N\d', where"
    ) as raised:
        await runner.replay("p", store=store)
    assert "the same" not in str(raised.value)
    store.close()


def _tamper(path: Path, started: SessionStarted, name: str, words: str) -> None:
    import sqlite3

    from consilience.domain.events import text_id
    from consilience.journal.sqlite_open import raw_id

    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO texts VALUES(?, ?)", (raw_id(text_id(words)), words))
        db.execute("UPDATE events SET body=replace(body, ?, ?)", (started.templates[name], text_id(words)))
    db.close()


def _delete(path: Path, seq: int) -> None:
    """As if it had never been recorded: a gap in the numbers would be damage."""
    import sqlite3

    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM events WHERE seq=?", (seq,))
        db.execute("UPDATE events SET seq=seq-1 WHERE seq>?", (seq,))
    db.close()


def failing_once(error: Exception | str) -> Callable[[ModelRequest], object]:
    """`emergent`, where the first leaf gets this error or this text instead of its reply in round 1."""
    return lambda request: error if request.key == "round-1/leaf_respond/L2N1" else emergent(request)


async def test_fork_of_a_run_whose_model_failed_asks_the_failed_calls_again() -> None:
    store = SqliteStore(":memory:")
    broken = ScriptedModel(lambda request: Unreachable("no connection"))
    before = await runner.start(TASK, TREE, models=broken, store=store, session="p")
    assert before.stop_reason is StopReason.FAILED
    after = await fork("p", store=store, at="end", models=ScriptedModel(emergent), session="q")
    assert (after.failed_calls, after.ledger.actual.inherited) == ((), 0)
    assert after.answer is not None
    assert (await runner.replay("q", store=store)).digest() == after.digest()


async def test_fork_repeats_a_failed_call_and_those_that_read_its_reply() -> None:
    store = SqliteStore(":memory:")
    await runner.start(TASK, TREE, models=ScriptedModel(failing_once(ServerError("down"))), store=store, session="p")
    model = ScriptedModel(emergent)
    report = await fork("p", store=store, at="end", models=model, session="q")
    asked = {request.key for request in model.requests}
    assert "round-1/leaf_respond/L2N1" in asked
    assert "round-1/leaf_respond/L2N2" in replies(store, "q", inherited=True)
    assert {"round-1/lateral/L2N2", "round-1/observe/L1N1"} <= asked, "they had not read the new reply"
    assert report.failed_calls == ()


@pytest.mark.parametrize("unusable", ["", Refused("declined")], ids=["malformed", "refused"])
async def test_fork_asks_again_for_an_unusable_reply_only_another_model(unusable: Exception | str) -> None:
    store = SqliteStore(":memory:")
    await runner.start(TASK, TREE, models=ScriptedModel(failing_once(unusable)), store=store, session="p")
    same, other = ScriptedModel(emergent), ScriptedModel(emergent, name="other")
    report = await fork("p", store=store, at="end", models=same, session="q")
    assert [call.key for call in report.failed_calls] == ["round-1/leaf_respond/L2N1"]
    assert same.requests == []
    report = await fork("p", store=store, at="end", replace={"L2N1": other}, models=same, session="r")
    assert report.failed_calls == ()
    assert next((r.key, r.attempt) for r in other.requests) == ("round-1/leaf_respond/L2N1", 1)
