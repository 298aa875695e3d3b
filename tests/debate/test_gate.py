"""The gate at publication: each invariant blocks exactly at its limit, and nothing before it."""

from __future__ import annotations

import pytest

from consilience.protocols.debate.lock import blocked, may_challenge
from consilience.protocols.debate.moves import MOVES, BlockReason, Move, Side, Stage, ThreadStatus
from consilience.protocols.debate.records import Commitment, DebateMessage, SteelmanAttempt
from consilience.protocols.debate.threads import Budgets, Thread

AGENTS = ("D1", "D2", "D3", "D4")


def thread_in(stage: Stage = "DISCOVERY", budget: int = 100) -> Thread:
    thread = Thread("thread-1", "Orders", 0, Budgets(100, 100), list(AGENTS))
    if stage != "DISCOVERY":
        thread.enter(stage, 0, budget)
    thread.budget = budget
    return thread


def add(
    thread: Thread,
    agent: str,
    at: int = 0,
    move: Move = "CLAIM",
    reply_to: DebateMessage | None = None,
    label: str = "A",
) -> DebateMessage:
    number = len(thread.messages) + 1
    message = DebateMessage(
        id=f"m{number}",
        number=number,
        label=f"{label}{number}",
        agent=agent,
        thread=thread.id,
        move=move,
        at=at,
        text="",
        reply_to=reply_to.id if reply_to else None,
    )
    thread.add(message)
    return message


def gate(
    thread: Thread, move: Move = "CLAIM", *, at: int = 100_000, target: DebateMessage | None = None, ready_at: int = 0
) -> BlockReason | None:
    return blocked(thread, "D1", move, at, target=target, ready_at=ready_at)


@pytest.mark.parametrize("stage", ["DISCOVERY", "CRUX_LOCK", "EVIDENCE"])
@pytest.mark.parametrize("move", MOVES)
def test_move_outside_its_stages_is_blocked(stage: Stage, move: Move) -> None:
    expected = None if stage in MOVES[move].stages else "stage_restriction"
    if move == "CHALLENGE_EVIDENCE" and stage == "EVIDENCE":
        expected = "steelman_required"  # it names nobody whose case was put
    assert gate(thread_in(stage), move) == expected


@pytest.mark.parametrize("status", ["CONVERGED", "FAILED_LOCK", "STALE", "MERGED"])
def test_message_to_a_closed_thread_is_blocked(status: ThreadStatus) -> None:
    thread = thread_in()
    thread.close(status, 5, "over")
    assert gate(thread) == "thread_closed"


def test_third_reply_to_a_message_is_blocked() -> None:
    thread = thread_in()
    target = add(thread, "D2")
    add(thread, "D3", reply_to=target)
    assert gate(thread, target=target) is None
    add(thread, "D4", reply_to=target)
    assert gate(thread, target=target) == "reply_limit"


def test_message_of_the_moderator_allows_one_reply_of_each_agent_it_names() -> None:
    thread = thread_in()
    target = add(thread, "moderator", label="M")
    for agent in AGENTS:
        add(thread, agent, reply_to=target)
    assert gate(thread, target=target) is None


@pytest.mark.parametrize(("move", "reason"), [("CLARIFY", "reply_limit"), ("STEELMAN", None), ("GRADE_STEELMAN", None)])
def test_requested_moves_are_exempt_from_the_reply_limit(move: Move, reason: BlockReason | None) -> None:
    thread = thread_in("CRUX_LOCK")
    target = add(thread, "D2", move="COMMIT_POSITION")
    for agent in ("D3", "D4"):
        add(thread, agent, move="CLARIFY", reply_to=target)
    assert gate(thread, move, target=target) == reason


@pytest.mark.parametrize(("at", "move", "reason"), [(999, "CLARIFY", "agent_cooldown"), (1_000, "CLARIFY", None)])
def test_message_is_blocked_until_its_cooldown_ends(at: int, move: Move, reason: BlockReason | None) -> None:
    assert gate(thread_in(), move, at=at, ready_at=1_000) == reason


def test_grade_is_exempt_from_the_cooldown() -> None:
    assert gate(thread_in("CRUX_LOCK"), "GRADE_STEELMAN", at=0, ready_at=1_000) is None


def test_thirteenth_message_within_thirty_seconds_is_blocked() -> None:
    thread = thread_in()
    for n in range(12):
        assert gate(thread, at=29_999) is None
        add(thread, AGENTS[n % 4], at=n)
    assert gate(thread, at=29_999) == "thread_rate_limit"
    assert gate(thread, at=30_000) is None  # the first of them is 30 s old


def test_commitments_steelmen_and_grades_do_not_count_toward_the_rate_limit() -> None:
    thread = thread_in("CRUX_LOCK")
    for n in range(20):
        add(thread, AGENTS[n % 4], at=n, move="COMMIT_POSITION")
    assert gate(thread, "CLARIFY", at=100) is None
    assert gate(thread, "STEELMAN", at=100) is None


def test_stage_budget_blocks_only_free_moves() -> None:
    thread = thread_in("CRUX_LOCK", budget=2)
    add(thread, "D2", move="CLARIFY")
    assert gate(thread, "CLARIFY") is None
    add(thread, "D3", move="CLARIFY")
    assert gate(thread, "CLARIFY") == "stage_budget"
    assert gate(thread, "STEELMAN") is None


def test_messages_of_the_moderator_do_not_count_toward_the_stage_budget() -> None:
    thread = thread_in(budget=1)
    for _ in range(5):
        add(thread, "moderator", label="M")
    assert gate(thread) is None


def test_message_after_forty_in_a_thread_is_blocked() -> None:
    thread = Thread("thread-1", "Orders", 0, Budgets(8, 14), list(AGENTS))
    thread.budget = 100
    for n in range(39):
        add(thread, AGENTS[n % 4], at=0)
    assert gate(thread) is None
    add(thread, "D2")
    assert gate(thread) == "thread_cap"


def lock_state(
    sides: dict[str, Side], passed: list[tuple[str, str]], required: tuple[tuple[str, str], ...] = ()
) -> Thread:
    thread = thread_in("EVIDENCE")
    for agent, side in sides.items():
        thread.commitments[agent] = Commitment(agent=agent, side=side, statement="", confidence=0.7, horizon="5y")
    for agent, of in passed:
        thread.steelmen.append(
            SteelmanAttempt(
                agent=agent,
                of=of,
                claim="",
                reason="",
                falsifier="",
                message="m",
                grade="ACCURATE",
                required=(agent, of) in required,
            )
        )
    return thread


@pytest.mark.parametrize(
    ("passed", "required", "challenger", "of", "may"),
    [
        ([], (), "D1", "D2", False),
        ([("D1", "D2")], (), "D1", "D2", True),
        ([("D2", "D1")], (), "D1", "D2", False),
        ([("D3", "D2")], (("D3", "D2"),), "D1", "D2", True),  # the champion of its side has put the case of the other
        ([("D3", "D2")], (), "D1", "D2", False),  # a steelman that nobody required opens it to its author alone
        ([("D4", "D2")], (), "D4", "D1", True),  # the uncertain after one of either side
        ([], (), "D4", "D1", False),
        ([], (), "D1", "D3", True),  # the same side
    ],
)
def test_challenge_without_an_accurate_steelman_is_blocked(
    passed: list[tuple[str, str]], required: tuple[tuple[str, str], ...], challenger: str, of: str, may: bool
) -> None:
    thread = lock_state({"D1": "YES", "D2": "NO", "D3": "YES", "D4": "UNCERTAIN"}, passed, required)
    assert may_challenge(thread, challenger, of) is may
    target = add(thread, of, move="PROVIDE_EVIDENCE")
    reason = blocked(thread, challenger, "CHALLENGE_EVIDENCE", 100_000, target=target, ready_at=0)
    assert reason == (None if may else "steelman_required")


@pytest.mark.parametrize("grade", ["PENDING", "INCOMPLETE", "WRONG"])
def test_challenge_after_an_inaccurate_steelman_is_blocked(grade: str) -> None:
    thread = lock_state({"D1": "YES", "D2": "NO"}, [("D1", "D2")])
    thread.steelmen[0] = thread.steelmen[0].model_copy(update={"grade": grade})
    target = add(thread, "D2", move="PROVIDE_EVIDENCE")
    assert gate(thread, "CHALLENGE_EVIDENCE", target=target) == "steelman_required"
