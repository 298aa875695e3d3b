"""Two processes of `consilience serve` on one journal: each shows all sessions and acts on those that the other runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.loopback import MODEL, PATIENCE, Provider, provider
from server.served import Served, serving, typed

pytestmark = pytest.mark.processes


@pytest.fixture
def model() -> Iterator[Provider]:
    with provider(typed) as found:
        yield found


@pytest.fixture
def held(tmp_path: Path, model: Provider) -> Iterator[tuple[Served, Served]]:
    """Servers of which the first runs what it begins, until the model is opened."""
    model.open.clear()
    try:
        with serving(tmp_path, model) as first, serving(tmp_path, model) as second:
            yield first, second
    finally:
        model.open.set()


def seen(server: Served, session: str) -> list[tuple[int | None, str]]:
    return [(event.id, event.event) for event in server.events(session) if event.id is not None]


def test_session_that_one_process_runs_is_not_taken_up_by_another_which_shows_it_whole(
    tmp_path: Path, model: Provider
) -> None:
    model.open.clear()
    with serving(tmp_path, model) as first:
        session = first.begin(settings={"votes": 3})
        assert model.arrived.wait(PATIENCE)
        with serving(tmp_path, model) as second:
            assert "consilience_takeovers_total 0" in second.get("/metrics")
            second.post(f"/api/sessions/{session}/resume", {})
            model.open.set()
            assert seen(second, session) == seen(first, session)
            report = second.wait(session)
            assert report == first.wait(session)
            assert report["ledger"]["actual"]["lost"] == 0
            assert len(model.asked) == report["ledger"]["actual"]["calls"] == 3
            other = second.begin(task="And now?")
            assert {row["session"] for row in first.get("/api/sessions")["sessions"]} == {session, other}
            first.wait(other)


def test_session_is_cancelled_through_the_process_that_does_not_run_it(
    held: tuple[Served, Served], model: Provider
) -> None:
    first, second = held
    session = first.begin()
    assert model.arrived.wait(PATIENCE)
    second.post(f"/api/sessions/{session}/cancel", {})
    assert first.wait(session)["stop_reason"] == second.wait(session)["stop_reason"] == "cancelled"
    status, refused = second.request("POST", f"/api/sessions/{session}/cancel", {})
    assert status == 409, refused


@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "while it waits"])
def test_person_is_answered_through_the_process_that_does_not_run_the_session(
    held: tuple[Served, Served], model: Provider, runs: bool
) -> None:
    first, second = held
    session = first.begin(settings={"votes": 2}, models={"V1": "human", "V2": MODEL})
    assert model.arrived.wait(PATIENCE)
    if not runs:
        model.open.set()
        while first.get(f"/api/sessions/{session}")["state"] != "waiting":
            time.sleep(0.02)
    (question,) = second.get(f"/api/sessions/{session}/questions")
    second.post(f"/api/sessions/{session}/answer", {"key": question["key"], "text": "Dogs, since they walk."})
    model.open.set()
    assert first.wait(session) == second.wait(session)
    assert "Dogs, since they walk." in first.get(f"/api/sessions/{session}/export?format=markdown")
    assert len(model.asked) == 1
