"""Objections of any course of a run: their fates, and who still has to meet them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.domain.report import ObjectionFate
from consilience.protocols._common.remarks import ObjectionBook, ObjectionMet, ObjectionRaised

Answer = Literal["yielded", "refuted", "passed over"] | None
Course = list[tuple[tuple[str, str], list[Answer]]]
"""Who objects to whom, and how the target met the objection each time it was raised; None: it was not shown it."""

PAIRS = [("A", "B"), ("B", "A"), ("C", "A"), ("A", "C")]
ANSWERS = st.sampled_from(["yielded", "refuted", "passed over", None])
COURSES = st.lists(st.tuples(st.sampled_from(PAIRS), st.lists(ANSWERS, min_size=1, max_size=5)), max_size=6)


def fate_of(answers: list[Answer]) -> ObjectionFate:
    """The rule in other words: what the target met last decides, but an objection that it did not accept before stands."""
    *earlier, last = answers
    met = [answer for answer in earlier if answer is not None]
    resisted = bool(met) and met[-1] != "yielded"
    if last == "yielded":
        return "yielded"
    if last == "refuted" and not resisted:
        return "refuted"
    return "stands" if resisted or last == "passed over" else "unanswered"


def notes_of(course: Course) -> tuple[list[ObjectionRaised], list[ObjectionMet]]:
    raised, met = [], []
    for number, ((agent, target), answers) in enumerate(course):
        for time, answer in enumerate(answers):
            id, repeats = f"{number}.{time}", f"{number}.{time - 1}" if time else None
            raised.append(
                ObjectionRaised(id=id, label=id, agent=agent, to=target, against="m", text=id, repeats=repeats)
            )
            if answer is not None:
                fate = None if answer == "passed over" else answer
                met.append(ObjectionMet(objection=id, agent=target, fate=fate, how=f"how {id}"))
    return raised, met


@settings(max_examples=300)
@given(COURSES, st.randoms(use_true_random=False))
def test_fate_of_any_course_follows_the_rule_and_no_order_of_the_answers(course: Course, order: random.Random) -> None:
    raised, met = notes_of(course)
    order.shuffle(met)
    book = ObjectionBook()
    book.raised(raised)
    book.met(met)
    last = {f"{number}.{len(answers) - 1}": fate_of(answers) for number, (_, answers) in enumerate(course)}
    assert {objection.id: objection.fate for objection in book.objections()} == last
    assert {fate: book.count(fate) for fate in set(last.values())} == Counter(last.values())
    assert book.refuted == {agent for (agent, _), answers in course if "refuted" in answers}
    waiting = {
        f"{number}.{len(answers) - 1}": target
        for number, ((_, target), answers) in enumerate(course)
        if answers[-1] is None
    }
    assert {objection.id: objection.to for agent in "ABC" for objection in book.pending(agent)} == waiting


@settings(max_examples=100)
@given(COURSES, st.lists(st.sampled_from(["yielded", "refuted"]), max_size=3))
def test_ruling_by_another_agent_changes_no_fate_and_the_last_one_counts(course: Course, rulings: list[str]) -> None:
    raised, met = notes_of(course)
    book, ruled = ObjectionBook(), ObjectionBook()
    for one in (book, ruled):
        one.raised(raised)
        one.met(met)
    for n, fate in enumerate(rulings):
        ruled.met([ObjectionMet(objection=o.id, agent="P", fate=fate, how=f"ruling {n}") for o in raised])  # type: ignore[arg-type]
    plain = book.objections()
    words = {"yielded": "upheld", "refuted": "rejected"}
    expected = (words[rulings[-1]], f"ruling {len(rulings) - 1}") if rulings else (None, "")
    assert [(o.id, o.fate, o.how) for o in ruled.objections()] == [(o.id, o.fate, o.how) for o in plain]
    assert {(o.ruled, o.ruling) for o in ruled.objections()} <= {expected}
