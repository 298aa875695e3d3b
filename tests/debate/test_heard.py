"""Whether every question in dispute is heard, over many seeds, sizes and limits."""

from __future__ import annotations

import re

import pytest

import consilience
from conftest import Sample
from consilience import Debate, DebateReport, Limits
from consilience.models.port import ModelRequest
from consilience.protocols.debate.moves import ACTIVE
from consilience.testing import AnyModel, ScriptedModel
from kit.debating import SIDES, Debaters, number_of, properties

pytestmark = pytest.mark.usefixtures("home")

SEEDS = 200
GRID = [(seats, disputes) for seats in range(2, 7) for disputes in (1, 2, 3)]
CASES = [(seed, *GRID[seed % len(GRID)]) for seed in range(SEEDS)]


class Split(Debaters):
    """Debaters who disagree on each of several propositions, not all in the same way."""

    def __init__(self, disputes: int) -> None:
        super().__init__()
        self.disputes = disputes

    def answer(self, kind: str, request: ModelRequest) -> dict[str, object]:
        answer = super().answer(kind, request)
        if kind == "framing":
            answer["propositions"] = [f"Is part {n} of the plan right?" for n in range(1, self.disputes + 1)]
        if kind in ("opening", "final"):
            sides = {
                name: SIDES[(number_of(request.agent) + int(name[1])) % 2]
                for name in properties(request)
                if name[0] == "p"
            }
            answer |= sides
        return answer


def debate(
    seats: int,
    disputes: int,
    seed: int,
    model: ScriptedModel | None = None,
    limits: Limits | None = None,
    **settings: object,
) -> tuple[DebateReport, ScriptedModel]:
    model = model or ScriptedModel(Split(disputes))
    protocol = Debate(debaters=seats, **settings)  # type: ignore[arg-type]
    report = consilience.run_sync("Is the plan right?", protocol, model=model, seed=seed, limits=limits)
    assert isinstance(report, DebateReport)
    return report, model


def is_locked(report: DebateReport, topic: str) -> bool:
    threads = [thread for thread in report.threads if thread.topic == topic]
    return any(attempt.success for thread in threads for attempt in thread.lock_attempts)


def is_accounted_for(report: DebateReport, topic: str) -> bool:
    """Whether a question is locked, failed with its reason, merged into another, or named as incomplete."""
    threads = [thread for thread in report.threads if thread.topic == topic]
    assert threads, f"{topic} has no thread"
    head = report.markdown().partition("## ")[0] + report.markdown()
    for thread in threads:
        name = thread.id.replace("-", " ")
        incomplete = re.search(rf"\*\*Incomplete:\*\*.*{name}", head, re.IGNORECASE)
        if not (
            is_locked(report, topic)
            or (thread.status == "FAILED_LOCK" and thread.closed_by)
            or thread.status == "MERGED"
            or ((thread.status == "STALE" or thread.status in ACTIVE) and incomplete)
        ):
            return False
    return True


def test_every_question_in_dispute_is_heard_to_its_lock(sample: Sample) -> None:
    """At least 95 % of all runs; the sample of `make test` has 40."""
    cases = sample(CASES, 40)
    unheard = []
    for seed, seats, disputes in cases:
        report, _ = debate(seats, disputes, seed)
        topics = [thread.topic for thread in report.threads if thread.topic in report.framing.propositions]
        assert len(topics) == disputes
        assert all(is_accounted_for(report, topic) for topic in topics)
        if not all(is_locked(report, topic) for topic in topics):
            unheard.append((seed, seats, disputes))
    assert len(unheard) <= len(cases) // 20, unheard


def test_every_question_is_accounted_for_whatever_agents_reply(sample: Sample) -> None:
    options = ("the first way", "the second way", "the third way")
    for seed, seats, disputes in sample(CASES, 10):
        settings = {"as_is": True} if disputes == 1 else {"option": options[:disputes]}
        report, _ = debate(seats, disputes, seed, AnyModel(malformed=0.1), **settings)
        topics = [thread.topic for thread in report.threads if thread.topic in report.framing.propositions]
        assert topics or not any(ballot.step == 0 for ballot in report.ballots)
        assert all(is_accounted_for(report, topic) for topic in topics), (seed, seats, disputes)


@pytest.mark.parametrize("seats", [2, 3, 5])
@pytest.mark.parametrize("disputes", [1, 2])
@pytest.mark.parametrize("more", [0, 1, 5, 13])
def test_limit_on_calls_leaves_all_final_ballots(seats: int, disputes: int, more: int) -> None:
    calls = Debate(debaters=seats).min_calls_of_a_debate + more
    report, model = debate(seats, disputes, 1, limits=Limits(calls=calls))
    assert sum(ballot.step == 1 for ballot in report.ballots) == seats
    assert report.answer
    assert len(model.requests) <= calls


@pytest.mark.parametrize("seats", [2, 3, 5])
@pytest.mark.parametrize("share", [0.4, 0.7, 0.9, 1.0, 1.2, 1.5])
def test_limit_on_tokens_leaves_all_final_ballots_and_the_rest_to_the_exchange(seats: int, share: float) -> None:
    whole, _ = debate(seats, 2, 1)
    used = whole.ledger.actual.tokens_in + whole.ledger.actual.tokens_out
    report, _ = debate(seats, 2, 1, limits=Limits(tokens=int(used * share)))
    assert sum(ballot.step == 1 for ballot in report.ballots) == seats
    assert report.answer
    assert report.steps > 0 or share < 1
    assert report.steps >= whole.steps / 2 or share < 1.5


def test_question_that_went_quiet_is_named_as_incomplete() -> None:
    def silent(request: ModelRequest) -> dict[str, object]:
        return {"move": "?"} if "part 2" in request.text.split("the thread on:")[-1] else {}

    script = Split(2)
    script.changes["turn"] = silent
    report, _ = debate(3, 2, 1, ScriptedModel(script))
    assert [thread.status for thread in report.threads] == ["CONVERGED", "STALE"]
    assert (
        "Thread 2 on proposition 2 ended before its question was locked: nobody spoke in it for 30 s."
        in report.markdown()
    )


@pytest.mark.parametrize(("seats", "failing"), [(2, ["D1"]), (2, ["D1", "D2"]), (3, ["D2"])])
def test_commitment_that_cannot_be_had_fails_the_lock_and_names_it(seats: int, failing: list[str]) -> None:
    script = Split(1)
    script.changes["commit"] = lambda request: {"side": "?"} if request.agent in failing else {}
    report, model = debate(seats, 1, 1, ScriptedModel(script))
    (thread,) = report.threads
    assert thread.status == "FAILED_LOCK"
    assert "nobody commits to" in thread.closed_by
    assert thread.crux is not None
    assert {agent: position.side for agent, position in thread.crux.positions.items()}.keys() >= {
        commitment.agent for commitment in thread.commitments
    }
    tried = [request.key for request in model.requests if request.key.startswith("commit/")]
    assert len({key for key in tried if key.split("/")[1] in failing}) == 2 * len(failing)
