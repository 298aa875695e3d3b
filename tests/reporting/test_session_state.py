"""The fold of events, which a run that is watched and a session that is read back share."""

from __future__ import annotations

from typing import Literal

from consilience.domain.events import (
    AnswerReceived,
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    Event,
    ReplyRejected,
    SessionParked,
    SessionResumed,
    StepCompleted,
)
from consilience.domain.outcome import FailureKind
from consilience.reporting.formatting import reply_text
from consilience.reporting.partial_report import partial_markdown
from consilience.reporting.record import SessionRecord
from consilience.reporting.session_state import call_seconds, fold_events, status_of


def events() -> list[Event]:
    return [
        CallStarted(key="a", agent="A1", volatile={"t": 1.0}),
        CallStarted(key="b", agent="A2"),
        CallStarted(key="c", agent="A3"),
        ReplyRejected(key="a", agent="A1", text="t", error="no JSON", tokens_in=10, tokens_out=1, cost=0.5),
        CallStarted(key="a", agent="A1", attempt=2),
        CallCompleted(
            key="a",
            agent="A1",
            attempt=2,
            text="t",
            tokens_in=20,
            tokens_out=2,
            cost=0.25,
            volatile={"t": 7.5, "s": 2.5},
        ),
        CallFailed(key="b", agent="A2", failure=FailureKind.SERVER),
        CallFailed(key="d", agent="A2", failure=FailureKind.BUDGET),
        CallLost(key="c", agent="A3"),
    ]


def test_state_totals_are_sums_of_calls() -> None:
    course = fold_events(events())
    assert (course.made, len(course.calls), len(course.lost)) == (2, 4, 1)
    assert (course.tokens_in, course.tokens_out, course.cost, course.seconds) == (30, 3, 0.75, 7.5)
    assert course.flying == {}
    assert call_seconds(course.calls[1]) == 2.5
    assert call_seconds(course.calls[2]) is None


def test_one_unknown_price_makes_the_total_unknown() -> None:
    course = fold_events([*events(), CallCompleted(key="e", agent="A1", text="t", cost=None)])
    assert course.cost is None


def test_steps_of_a_running_call_are_counted_once() -> None:
    def step(n: int, kind: Literal["model", "tool"], cost: float | None = 0.25) -> StepCompleted:
        tokens = (10, 1) if kind == "model" else (0, 0)
        return StepCompleted(
            key=f"a/step-{n}",
            call="a",
            agent="A1",
            kind=kind,
            digest="",
            text="t",
            tokens_in=tokens[0],
            tokens_out=tokens[1],
            cost=cost if kind == "model" else 0.0,
        )

    taken = [step(1, "model"), step(1, "tool"), step(2, "model")]
    course = fold_events(taken)
    assert (course.made, course.tokens_in, course.tokens_out, course.cost) == (2, 20, 2, 0.5)
    ended = CallCompleted(key="a", agent="A1", text="t", steps=3, tokens_in=30, tokens_out=3, cost=0.75)
    course = fold_events([*taken, step(3, "model"), ended])
    assert (course.made, course.tokens_in, course.tokens_out, course.cost) == (3, 30, 3, 0.75)
    assert fold_events([*taken, step(3, "model", None)]).cost is None


def test_session_states_are_recognised() -> None:
    parked = SessionParked(awaited=("a",))
    assert status_of(fold_events([]), None) == "unfinished"
    assert status_of(fold_events([parked]), None) == "waiting"
    assert status_of(fold_events([parked]), "process 1") == "running"
    assert status_of(fold_events([parked, SessionResumed()]), None) == "unfinished"
    assert status_of(fold_events([parked, AnswerReceived(key="a", text="t")]), None) == "unfinished"


def test_answered_call_is_not_awaited() -> None:
    parked, answer = SessionParked(awaited=("a", "b")), AnswerReceived(key="a", text="t")
    course = fold_events([parked, answer, answer])
    assert (course.awaited, course.answered) == (("b",), ("a",))
    heard = CallCompleted(key="a", agent="A1", text="t")
    course = fold_events([parked, answer, SessionResumed()])
    assert (course.awaited, course.answered) == ((), ("a",)), "killed before it was heard"
    assert fold_events([parked, answer, SessionResumed(), heard]).answered == ()
    inherited = AnswerReceived(key="a", text="t", inherited=True)
    assert fold_events([inherited]).answered == ()


def test_typed_reply_is_shown_by_its_text_field() -> None:
    assert reply_text('{"points": [], "text": "Yes."}') == "Yes."
    assert reply_text('{"position": "no", "reasons": ["rents", "noise"], "sure": true}') == (
        "position: no · reasons: rents; noise · sure: yes"
    )
    assert reply_text('```json\n{"text": "Yes."}\n```') == "Yes."
    assert reply_text('{"points": [], "text": "Rents \\"rise\\" and') == 'Rents "rise" and [cut off]'
    assert reply_text('{"points": ["a", {') == "(a reply of 18 characters in a form that could not be read)"
    assert reply_text("{x} is a set") == "{x} is a set"
    assert reply_text("[1]") == "[1]"
    assert reply_text("Plainly yes.") == "Plainly yes."


def test_session_without_start_event_has_a_state() -> None:
    record = SessionRecord("r1", [], text=lambda id: "", prompt=lambda id: ())
    assert "killed before it began" in partial_markdown(record)
