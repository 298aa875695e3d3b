"""A session as it stood after one of its events: who was composing then, since when, who had replied or failed."""

from __future__ import annotations

from consilience.domain.events import CallAwaited, CallFailed, Event, SessionParked, SessionResumed
from consilience.domain.outcome import FailureKind
from consilience.domain.topology import complete
from consilience.reporting.record import SessionRecord
from consilience.reporting.replayed import record_at
from consilience.reporting.seats import seat_states, ticket_states
from reporting.sessions import by_hand, call


def timed(event: Event, at: float, seconds: float | None = None) -> Event:
    """The event as recorded `at` a second of the session; its call had taken so many."""
    return event.model_copy(update={"volatile": {"t": at} | ({} if seconds is None else {"s": seconds})})


def states(record: SessionRecord, n: int) -> list[str]:
    return [state.words for state in seat_states(record_at(record, n)[0]).values()]


FAILED = CallFailed(key="talk-1/A2", agent="A2", phase=("talk", 1), place="1", failure=FailureKind.DEADLINE)
SESSION = by_hand(
    complete(3),
    (
        timed(call("talk-1/A1", "first", "0"), 4.0, 4.0),
        timed(FAILED, 9.0, 9.0),
        timed(call("talk-2/A3", "third", "2"), 12.0, 2.5),
    ),
)
FIRST = len(SESSION.events) - 3
"""The events before the first call ends."""


def test_seats_stand_as_they_did_between_two_events() -> None:
    assert states(SESSION, FIRST) == ["composing, 0 replies", "composing, 0 replies", "not asked yet, 0 replies"]
    assert states(SESSION, FIRST + 1) == ["1 reply", "composing, 0 replies", "not asked yet, 0 replies"]
    after_failure = states(SESSION, FIRST + 2)
    assert after_failure[0] == "1 reply"
    assert after_failure[1].startswith("failed: deadline")
    assert after_failure[2] == "composing, 0 replies"


def test_calls_in_flight_have_their_seconds_and_a_holder() -> None:
    shown, seconds = record_at(SESSION, FIRST + 1)
    assert (dict(shown.flights), seconds) == ({"talk-1/A2": "A2"}, {"talk-1/A2": 4.0})
    assert shown.holder
    assert record_at(SESSION, FIRST + 2)[1] == {"talk-2/A3": 0.0}, "it began after the event and before the next"


def test_last_event_is_the_session_itself() -> None:
    assert record_at(SESSION, len(SESSION.events)) == (SESSION, {})


def test_person_is_asked_from_the_question_on_and_nobody_composes_while_the_session_is_parked() -> None:
    question = CallAwaited(key="talk-1/A1", agent="A1", prompt="", asked_at=1_000.0)
    record = by_hand(
        complete(2),
        (
            timed(question, 1.0),
            timed(call("talk-1/A2", "second", "1"), 3.0, 2.9),
            timed(SessionParked(awaited=("talk-1/A1",)), 3.0),
            timed(SessionResumed(), 3.0),
            timed(call("talk-1/A1", "first", "0"), 3.1, 0.1),
        ),
    )
    first = len(record.events) - 5
    assert record_at(record, first + 2)[1] == {"talk-1/A1": 2.0}
    assert states(record, first + 3) == ["awaited, 0 replies", "1 reply"]
    assert record_at(record, first + 3)[0].holder is None


def test_tickets_are_listed_with_their_state_at_the_event() -> None:
    questions = [
        CallAwaited(key=f"talk-1/A{n}", agent=f"A{n}", prompt="", asked_at=0.0, ticket=f"t{n}") for n in (1, 2)
    ]
    late = CallFailed(key="talk-1/A2", agent="A2", phase=("talk", 1), place="1", failure=FailureKind.DEADLINE)
    record = by_hand(complete(2), (*questions, call("talk-1/A1", "first", "0"), late))
    words = [
        [(row.ticket, row.words) for row in ticket_states(record_at(record, n)[0])]
        for n in range(len(record.events) - 2, len(record.events) + 1)
    ]
    assert words == [
        [("t1", "open"), ("t2", "open")],
        [("t1", "answered"), ("t2", "open")],
        [("t1", "answered"), ("t2", "ended without an answer: deadline")],
    ]
