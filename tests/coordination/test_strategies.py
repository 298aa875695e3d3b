"""Strategies: the seed's example of two iterations, and defects of the implementation that the seed describes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consilience.coordination import Workspace, fail, post, sweep, withdraw
from consilience.coordination.convergence import (
    CoordinationFailure,
    evaluate_partial,
    evaluate_partial_convergence,
    quality_of,
    quote_block,
    threshold_at,
)
from consilience.coordination.records import Ticket
from consilience.coordination.strategies import (
    AdversarialReview,
    Hierarchical,
    ParallelDecomposition,
    select_convergence_strategy,
)
from consilience.coordination.strategy import ConvergenceStrategy, Strategy, TicketStrategy
from consilience.domain.errors import SettingsError, UnknownName, WorkspaceError
from kit.outside import FakeTime, take, work

COMPLETE = """# Review
## Risks
The lock is never released.
## Causes
An exception skips the release. Example: a full disk.
## Recommendations
Release it in a finally block; callers should not retry.
## Tests
Fill the disk.
"""
NO_EXAMPLE = COMPLETE.replace(" Example: a full disk.", "")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "session", agents=("red", "blue"), now=1_000_000.0)


def adversarial(workspace: Workspace, **config: object) -> TicketStrategy:
    strategy = select_convergence_strategy("adversarial_review", config, clock=lambda: 1_000_000.0)
    assert isinstance(strategy.strategy, AdversarialReview)
    strategy.initialize(workspace.path)
    return strategy


def test_adversarial_review_of_the_seed_converges_in_two_iterations(workspace: Workspace) -> None:
    strategy = adversarial(workspace, instructions="Review the lock.")
    red, blue = strategy.post_tickets(workspace.path, 1)
    assert (red.type, red.ttl_seconds, red.prior_context) == ("initial_analysis", 300, "")
    assert "what breaks" in red.specific_focus
    assert "what to build" in blue.specific_focus

    work(workspace, "red", NO_EXAMPLE)
    work(workspace, "blue", COMPLETE)
    assert strategy.check_convergence(workspace.path, iteration=1) is False
    judged = workspace.convergence()
    assert round(judged.current_quality, 2) == 0.67
    assert {gate.id: gate.met for gate in judged.convergence_gates} == {
        "comprehensive_coverage": True,
        "specific_examples": False,
        "actionable_recommendations": True,
    }
    assert (judged.converged, judged.quality_threshold, judged.current_iteration) == (False, 0.8, 1)
    assert judged.convergence_reason == "2 of 3 gates met, quality 0.67, threshold 0.80"

    red, blue = strategy.post_tickets(workspace.path, 2)
    assert (red.id, red.type, red.ttl_seconds, red.iteration) == ("red_2", "iteration", 180, 2)
    assert "missed:\n- specific_examples: it needs at least one concrete example" in red.specific_focus
    assert "Add a concrete example for each finding" in red.specific_focus
    assert "comprehensive_coverage" not in red.specific_focus
    assert "met every gate. Expand on implementation details" in blue.specific_focus
    assert "specific_examples" not in blue.specific_focus
    assert red.prior_context.startswith("Your artifact of iteration 1, artifacts/")
    assert quote_block(NO_EXAMPLE) in red.prior_context
    assert "blue's artifact of iteration 1" in red.prior_context
    assert blue.prior_context.startswith("Your artifact of iteration 1")
    assert blue.prior_context.index(quote_block(COMPLETE)) < blue.prior_context.index("red's artifact")
    assert workspace.convergence().current_iteration == 2

    work(workspace, "red", COMPLETE, 2)
    work(workspace, "blue", COMPLETE.replace("finally", "finally or with"), 2)
    assert strategy.check_convergence(workspace.path, iteration=2) is True
    judged = workspace.convergence()
    assert (judged.current_quality, judged.converged, judged.current_iteration) == (1.0, True, 2)
    assert all(gate.met for gate in judged.convergence_gates)

    text = strategy.synthesize(workspace.path)
    assert "Outcome: converged, 3 of 3 gates met, quality 1.00, threshold 0.80." in text
    assert "## red, iteration 2" in text
    assert "finally or with" in text
    assert quote_block(NO_EXAMPLE) not in text
    assert "Missing" not in text


def test_check_convergence_of_iteration_2_ignores_files_of_iteration_1(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", COMPLETE)
    work(workspace, "blue", NO_EXAMPLE)
    strategy.check_convergence(workspace.path, 1)
    strategy.post_tickets(workspace.path, 2)
    assert strategy.evaluate(workspace.path, 2).outcome == "waiting"
    work(workspace, "blue", COMPLETE, 2)
    assert strategy.check_convergence(workspace.path, 2) is False  # red's complete artifact is of iteration 1
    work(workspace, "red", "Short.", 2)
    evaluation = strategy.evaluate(workspace.path, 2)
    assert not evaluation.converged
    assert [len(verdict.missed_by) for verdict in evaluation.verdicts] == [1, 1, 1]


def test_check_convergence_waits_for_agents_without_a_result(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    assert strategy.evaluate(workspace.path, 1).outcome == "waiting"
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", COMPLETE)
    before = workspace.convergence()
    assert strategy.check_convergence(workspace.path, 1) is False
    assert workspace.convergence() == before
    with pytest.raises(WorkspaceError, match="iteration 1 is not finished"):
        strategy.post_tickets(workspace.path, 2)


def test_permanently_missing_agent_does_not_prevent_the_end(workspace: Workspace) -> None:
    strategy = adversarial(workspace, max_iterations=2)
    for iteration in (1, 2):
        strategy.post_tickets(workspace.path, iteration)
        work(workspace, "red", COMPLETE, iteration)
        withdraw(workspace, f"blue_{iteration}", "no result within 120 s")
        evaluation = strategy.evaluate(workspace.path, iteration)
        assert evaluation.missing == {"blue": "withdrawn: no result within 120 s"}
        assert evaluation.outcome == ("continue", "exhausted")[iteration - 1]
    assert evaluation.quality == 0.0  # red met every gate, but a gate is met by all agents or not at all
    assert not workspace.convergence().converged
    assert workspace.convergence().convergence_reason.endswith("no result from blue")
    with pytest.raises(SettingsError, match="there is no iteration 3"):
        strategy.post_tickets(workspace.path, 3)


def test_synthesize_names_a_missing_reviewer_without_a_text(workspace: Workspace) -> None:
    strategy = adversarial(workspace, max_iterations=1)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", "## Only\nWhat red wrote.")
    withdraw(workspace, "blue_1", "late")
    strategy.check_convergence(workspace.path, 1)
    text = strategy.synthesize(workspace.path)
    assert "- blue, iteration 1: withdrawn: late" in text
    assert "Outcome: exhausted" in text
    assert text.count("blue") == 5  # in the outcome, in the table of three gates, and among the missing agents
    head, _, body = text.partition("## red, iteration 1\n\n")
    assert body == "> ## Only\n> What red wrote.\n"
    assert "What red" not in head


def test_synthesize_shows_the_earlier_artifact_of_an_agent_missing_later(workspace: Workspace) -> None:
    strategy = adversarial(workspace, max_iterations=2)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", NO_EXAMPLE)
    work(workspace, "blue", "Blue's first.")
    strategy.check_convergence(workspace.path, 1)
    strategy.post_tickets(workspace.path, 2)
    work(workspace, "red", COMPLETE, 2)
    withdraw(workspace, "blue_2", "late")
    strategy.check_convergence(workspace.path, 2)
    text = strategy.synthesize(workspace.path)
    assert "## blue, iteration 1\n\n> Blue's first." in text
    assert "- blue, iteration 2: withdrawn: late" in text


def test_synthesize_quotes_headings_in_an_artifact(workspace: Workspace) -> None:
    strategy = adversarial(workspace, max_iterations=1)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", "```\n## blue, iteration 1\n\n> Blue agrees.\n<!--\r## blue, iteration 2")
    withdraw(workspace, "blue_1", "late\n\n## blue, iteration 3")
    headings = [line for line in strategy.synthesize(workspace.path).splitlines() if line.startswith("#")]
    assert headings == ["# Adversarial review", "## Missing agents", "## red, iteration 1"]


def test_ticket_after_a_missing_agent_forbids_others_to_write_for_it(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", COMPLETE)
    withdraw(workspace, "blue_1", "late")
    red, blue = strategy.post_tickets(workspace.path, 2)
    assert "blue handed in nothing; do not write for it." in red.prior_context
    assert "Iteration 1 has no artifact of yours (withdrawn: late)" in blue.specific_focus
    assert blue.ttl_seconds == 180


def test_review_without_any_result_is_a_coordination_failure(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    strategy.post_tickets(workspace.path, 1)
    withdraw(workspace, "red_1", "late")
    assert strategy.check_convergence(workspace.path, 1) is False  # blue may still answer
    withdraw(workspace, "blue_1", "gone")
    with pytest.raises(CoordinationFailure, match="red: withdrawn: late; blue: withdrawn: gone"):
        strategy.check_convergence(workspace.path, 1)
    assert workspace.convergence().current_quality == 0.0
    with pytest.raises(CoordinationFailure):
        strategy.synthesize(workspace.path)


def test_review_without_results_in_a_later_iteration_keeps_earlier_results(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", NO_EXAMPLE)
    work(workspace, "blue", COMPLETE)
    strategy.check_convergence(workspace.path, 1)
    strategy.post_tickets(workspace.path, 2)
    for agent in ("red", "blue"):
        withdraw(workspace, f"{agent}_2", "gone")
    with pytest.raises(CoordinationFailure):
        strategy.check_convergence(workspace.path, 2)
    text = strategy.synthesize(workspace.path)
    assert "0 of 3 gates met, quality 0.00, threshold 0.80; no result from red, blue" in text
    assert "## red, iteration 1" in text


def test_partial_fail_posts_the_missing_agents_ticket_again_with_a_longer_ttl(workspace: Workspace) -> None:
    strategy = adversarial(workspace, partial="fail")
    for iteration, ttl in ((1, 300), (2, 450), (3, 675)):
        tickets = {ticket.assigned_to: ticket for ticket in strategy.post_tickets(workspace.path, iteration)}
        assert tickets["blue"].ttl_seconds == ttl
        work(workspace, "red", COMPLETE, iteration)
        withdraw(workspace, f"blue_{iteration}", "late")
        evaluation = strategy.evaluate(workspace.path, iteration)
        assert evaluation.quality == 0.0  # a failed iteration has none
    assert evaluation.outcome == "exhausted"


def test_partial_use_ends_with_the_results_at_hand(workspace: Workspace) -> None:
    strategy = adversarial(workspace, partial="use")
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", COMPLETE)
    withdraw(workspace, "blue_1", "late")
    evaluation = strategy.evaluate(workspace.path, 1)
    assert (evaluation.outcome, evaluation.converged, tuple(evaluation.missing)) == ("partial", False, ("blue",))


def test_quorum_percentage_lets_a_review_converge_without_an_agent(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "s", protocol={"extensions": {"quorum_percentage": 50}})
    strategy = adversarial(workspace)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", COMPLETE)
    assert not strategy.check_convergence(workspace.path, 1)  # blue is still at work
    withdraw(workspace, "blue_1", "late")
    evaluation = strategy.evaluate(workspace.path, 1)
    assert evaluation.converged
    assert evaluation.reason.endswith("no result from blue")


def test_requeued_ticket_is_claimed_by_another_process_and_the_review_completes(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", COMPLETE)
    take(workspace, "blue", now=1_000_000.0)  # and ends
    swept = sweep(workspace, now=1_000_301.0)
    assert (swept.expired, swept.requeued) == (("blue_1",), ("blue_1",))
    assert strategy.evaluate(workspace.path, 1).outcome == "waiting"
    work(workspace, "blue", COMPLETE, now=1_000_302.0)
    assert strategy.check_convergence(workspace.path, 1)
    assert len(workspace.ticket("blue_1").failure_history) == 1


def test_changed_artifact_counts_as_a_missing_result(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "blue", COMPLETE)
    submitted = work(workspace, "red", COMPLETE)
    assert submitted.result is not None
    path = workspace.path / submitted.result.artifact_path
    path.chmod(0o644)
    path.write_text(COMPLETE + "Approved by blue.")
    evaluation = strategy.evaluate(workspace.path, 1)
    assert evaluation.missing["red"].startswith("its artifact is unusable")


def test_results_of_tickets_with_custom_ids_are_found(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    post(workspace, Ticket(id="first", assigned_to="red"), now=1.0)
    post(workspace, Ticket(id="second"), now=2.0)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", COMPLETE)
    assert workspace.ticket("first").state == "completed"
    with pytest.raises(WorkspaceError, match="no ticket red_1"):
        workspace.ticket("red_1")


def test_post_tickets_twice_returns_the_same_tickets(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    first = strategy.post_tickets(workspace.path, 1)
    again = select_convergence_strategy("code", clock=lambda: 2_000_000.0)
    again.initialize(workspace.path)
    assert again.post_tickets(workspace.path, 1) == first
    for agent in ("red", "blue"):
        work(workspace, agent, NO_EXAMPLE)
    second = strategy.post_tickets(workspace.path, 2)
    again.initialize(workspace.path)
    assert workspace.convergence().current_iteration == 2  # a lead that was restarted goes on
    assert again.post_tickets(workspace.path, 2) == second


def test_long_prior_artifact_is_named_but_not_quoted(workspace: Workspace) -> None:
    strategy = adversarial(workspace)
    strategy.post_tickets(workspace.path, 1)
    long = work(workspace, "red", "x" * 20_001)
    work(workspace, "blue", COMPLETE)
    _, blue = strategy.post_tickets(workspace.path, 2)
    assert long.result is not None
    assert f"{long.result.artifact_path}: 20,001 characters, in the file" in blue.prior_context
    assert "xxx" not in blue.prior_context


# --- thresholds


@pytest.mark.parametrize(
    ("schedule", "iteration", "threshold"),
    [
        (0.8, 1, 0.8),
        (0.8, 9, 0.8),
        ((0.6, 0.8, 1.0), 1, 0.6),
        ((0.6, 0.8, 1.0), 3, 1.0),
        ((0.6, 0.8), 3, 0.8),
        (1, 1, 1),
    ],
)
def test_threshold_at_follows_the_schedule(schedule: Any, iteration: int, threshold: float) -> None:
    assert threshold_at(schedule, iteration) == threshold


@pytest.mark.parametrize(("met", "of", "quality"), [(0, 0, 1.0), (0, 3, 0.0), (2, 3, 2 / 3), (4, 5, 0.8), (3, 3, 1.0)])
def test_quality_is_the_share_of_gates_met(met: int, of: int, quality: float) -> None:
    verdicts: Any = [SimpleNamespace(met=number < met) for number in range(of)]
    assert quality_of(verdicts) == quality


@pytest.mark.parametrize(
    ("threshold", "converged"), [(0.5, True), (0.6, True), (0.67, False), (0.8, False), ([0.6, 1], True)]
)
def test_quality_threshold_decides_convergence(workspace: Workspace, threshold: object, converged: bool) -> None:
    strategy = adversarial(workspace, quality_threshold=threshold)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "red", NO_EXAMPLE)
    work(workspace, "blue", COMPLETE)
    assert strategy.check_convergence(workspace.path, 1) is converged


def test_workspace_records_the_threshold_of_each_iteration_of_a_schedule(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "s", config={"quality_threshold": [0.6, 1.0]})
    strategy = adversarial(workspace, quality_threshold=[0.6, 1.0])
    for iteration, threshold in ((1, 0.6), (2, 1.0)):
        strategy.post_tickets(workspace.path, iteration)
        work(workspace, "red", "", iteration)
        work(workspace, "blue", "", iteration)
        strategy.check_convergence(workspace.path, iteration)
        assert workspace.convergence().quality_threshold == threshold


# --- selection and settings


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("adversarial_review", AdversarialReview),
        ("skill", AdversarialReview),
        ("skill_review", AdversarialReview),
        ("code", AdversarialReview),
        ("parallel_decomposition", ParallelDecomposition),
        ("documentation", ParallelDecomposition),
        ("parallel_analysis", ParallelDecomposition),
        ("hierarchical", Hierarchical),
        ("architecture", Hierarchical),
    ],
)
def test_select_convergence_strategy_by_name_or_kind_of_review(name: str, strategy: type) -> None:
    config = {"ParallelDecomposition": {"num_agents": 2}, "Hierarchical": {"teams": {"lead": ["a"]}}}
    selected = select_convergence_strategy(name, config.get(strategy.__name__))
    assert type(selected.strategy) is strategy
    assert isinstance(selected, ConvergenceStrategy)


@pytest.mark.parametrize("name", ["", "adversarial", "Code", "security"])
def test_select_convergence_strategy_with_an_unknown_name_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="there is no strategy and no kind of review"):
        select_convergence_strategy(name)


@pytest.mark.parametrize(
    ("name", "config", "what"),
    [
        ("code", {"max_iterations": 0}, "max_iterations must be at least 1"),
        ("code", {"quality_threshold": 1.5}, "quality_threshold"),
        ("code", {"quality_threshold": []}, "quality_threshold"),
        ("code", {"qualty_threshold": 0.5}, "did you mean 'quality_threshold'"),
        ("code", {"agents": ["red", "red"]}, "different names"),
        ("code", {"agents": ["../red"]}, "must be an id"),
        ("code", {"quorum": 3}, "the quorum of 3 is more than the 2 agents"),
        ("code", {"timeout": 0}, "timeout must be greater than 0"),
        ("code", {"partial": "maybe"}, "partial must be"),
        ("documentation", {}, "at least 1"),
        ("documentation", {"num_agents": 12, "quorum": 13}, "the quorum of 13"),
        ("documentation", {"num_agents": 3, "agents": ["a"]}, "num_agents"),
        ("architecture", {}, "teams"),
        ("architecture", {"teams": {"lead": []}}, "at least one worker"),
        ("architecture", {"teams": {"lead": ["lead"]}}, "different names"),
    ],
)
def test_invalid_settings_are_refused(name: str, config: dict[str, object], what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        select_convergence_strategy(name, config)


def test_initialize_refuses_an_unknown_gate(workspace: Workspace) -> None:
    strategy = select_convergence_strategy("code", {"gates": ["specific_examples", "brilliance"]})
    before = workspace.convergence()
    with pytest.raises(UnknownName, match="there is no gate 'brilliance'"):
        strategy.initialize(workspace.path)
    assert workspace.convergence() == before


def test_initialize_config_overrides_that_of_the_selection(workspace: Workspace) -> None:
    strategy = select_convergence_strategy("code", {"max_iterations": 5, "gates": []})
    strategy.initialize(workspace.path, {"max_iterations": 2})
    assert (workspace.convergence().max_iterations, workspace.convergence().convergence_gates) == (2, ())


# --- partial convergence


def test_evaluate_partial_convergence_of_both_results_proceeds() -> None:
    both = evaluate_partial_convergence("r", "b")
    assert (both.results, both.missing, both.proceed, both.requeue, both.note) == (
        {"red": "r", "blue": "b"},
        (),
        True,
        False,
        "",
    )


@pytest.mark.parametrize(
    ("partial", "proceed", "requeue", "factor"),
    [("fail", False, True, 1.5), ("accept", True, True, 1.0), ("use", True, False, 1.0)],
)
@pytest.mark.parametrize("absent", [None, ""])
def test_evaluate_partial_convergence_of_one_result_follows_the_policy(
    partial: Any, proceed: bool, requeue: bool, factor: float, absent: object
) -> None:
    outcome = evaluate_partial_convergence("r", absent, partial=partial)
    assert (outcome.proceed, outcome.requeue, outcome.ttl_factor) == (proceed, requeue, factor)
    assert (outcome.results, outcome.missing) == ({"red": "r"}, ("blue",))
    assert outcome.note == "No result from blue; this covers red only, and nothing stands in for blue."


def test_evaluate_partial_convergence_of_one_result_proceeds_by_default() -> None:
    assert evaluate_partial_convergence(None, "b").proceed


def test_evaluate_partial_convergence_without_results_is_a_coordination_failure() -> None:
    with pytest.raises(CoordinationFailure, match="red, blue"):
        evaluate_partial_convergence(None, None)


def test_evaluate_partial_with_an_unknown_policy_is_refused() -> None:
    policy: Any = "hope"
    with pytest.raises(SettingsError, match="'hope'"):
        evaluate_partial({"a": 1}, policy)


# --- parallel decomposition


def parallel(workspace: Workspace, time: FakeTime, **config: object) -> TicketStrategy:
    strategy = select_convergence_strategy("parallel_decomposition", config, clock=time.wall)
    assert isinstance(strategy.strategy, ParallelDecomposition)
    strategy.initialize(workspace.path)
    strategy.post_tickets(workspace.path, 1)
    return strategy


@pytest.mark.parametrize(
    ("quorum", "handed_in", "seconds", "outcome"),
    [
        (None, 11, 0, "waiting"),
        (None, 12, 0, "converged"),
        (None, 10, 299, "waiting"),
        (None, 10, 300, "converged"),  # 80 % of 12, rounded up
        (None, 9, 300, "partial"),
        (10, 9, 0, "waiting"),
        (10, 10, 0, "converged"),
        (10, 8, 299, "waiting"),
        (10, 8, 300, "converged"),
        (10, 7, 300, "partial"),
    ],
)
def test_parallel_decomposition_converges_at_its_quorum(
    workspace: Workspace, quorum: int | None, handed_in: int, seconds: float, outcome: str
) -> None:
    time = FakeTime()
    strategy = parallel(workspace, time, num_agents=12, quorum=quorum)
    for number in range(1, handed_in + 1):
        work(workspace, f"reader_{number}", f"Part {number}.")
    time.now = seconds
    evaluation = strategy.evaluate(workspace.path, 1)
    assert evaluation.outcome == outcome
    assert len(evaluation.missing) == 12 - handed_in
    assert strategy.check_convergence(workspace.path, 1) is (outcome == "converged")


def test_parallel_decomposition_does_not_wait_for_failed_readers(workspace: Workspace) -> None:
    strategy = parallel(workspace, FakeTime(), num_agents=5)
    for number in range(1, 5):
        work(workspace, f"reader_{number}", f"Part {number}.")
    fail(workspace, take(workspace, "reader_5"), "no such file")
    assert strategy.evaluate(workspace.path, 1).outcome == "waiting"
    fail(workspace, take(workspace, "reader_5"), "no such file")
    evaluation = strategy.evaluate(workspace.path, 1)
    assert (evaluation.outcome, evaluation.missing) == ("converged", {"reader_5": "no such file"})
    assert "- reader_5, iteration 1: no such file" in strategy.synthesize(workspace.path)


def test_parallel_decomposition_without_results_in_time_is_a_coordination_failure(workspace: Workspace) -> None:
    time = FakeTime()
    strategy = parallel(workspace, time, num_agents=2)
    time.now = 300
    with pytest.raises(CoordinationFailure, match="reader_1: no result yet"):
        strategy.check_convergence(workspace.path, 1)


def test_parallel_decomposition_waits_for_priority_agents_until_the_timeout(tmp_path: Path) -> None:
    extensions = {"priority_agents": ["reader_3"], "quorum_percentage": 60, "timeout_multiplier": 2}
    workspace = Workspace.create(tmp_path / "s", protocol={"extensions": extensions})
    time = FakeTime()
    strategy = parallel(workspace, time, num_agents=3)
    assert strategy.post_tickets(workspace.path, 1)[0].assigned_to == "reader_3"
    work(workspace, "reader_1", "One.")
    work(workspace, "reader_2", "Two.")
    time.now = 300
    assert strategy.evaluate(workspace.path, 1).outcome == "waiting"
    time.now = 600
    assert strategy.evaluate(workspace.path, 1).outcome == "converged"


# --- hierarchical

TEAMS = {"lead_1": ["a", "b"], "lead_2": ["c"]}


def hierarchical(workspace: Workspace) -> TicketStrategy:
    strategy = select_convergence_strategy("architecture", {"teams": TEAMS}, clock=lambda: 1_000_000.0)
    assert isinstance(strategy.strategy, Hierarchical)
    strategy.initialize(workspace.path)
    return strategy


def test_hierarchical_sub_leads_get_tickets_after_their_workers_ended(workspace: Workspace) -> None:
    strategy = hierarchical(workspace)
    assert [ticket.id for ticket in strategy.post_tickets(workspace.path, 1)] == ["a_1", "b_1", "c_1"]
    work(workspace, "a", "Part a.")
    work(workspace, "c", "Part c.")
    assert [ticket.id for ticket in strategy.post_tickets(workspace.path, 1)] == ["a_1", "b_1", "c_1", "lead_2_1"]
    work(workspace, "b", "Part b.")
    lead = next(ticket for ticket in strategy.post_tickets(workspace.path, 1) if ticket.id == "lead_1_1")
    assert (lead.type, lead.ttl_seconds) == ("synthesis", 600)
    assert "Part a." in lead.prior_context
    assert "Part b." in lead.prior_context
    assert "Part c." not in lead.prior_context
    work(workspace, "lead_1", "Of a and b.")
    assert strategy.check_convergence(workspace.path, 1) is False
    work(workspace, "lead_2", "Of c.")
    assert strategy.check_convergence(workspace.path, 1) is True
    text = strategy.synthesize(workspace.path)
    assert "## lead_1, iteration 1\n\n> Of a and b." in text
    assert "Part a." not in text


def test_hierarchical_missing_worker_is_named_to_its_sub_lead_and_in_the_result(workspace: Workspace) -> None:
    strategy = hierarchical(workspace)
    strategy.post_tickets(workspace.path, 1)
    work(workspace, "a", "Part a.")
    withdraw(workspace, "b_1", "late")
    withdraw(workspace, "c_1", "gone")
    posted = {ticket.id: ticket for ticket in strategy.post_tickets(workspace.path, 1)}
    assert "lead_2_1" not in posted  # nothing to combine
    assert "b handed in nothing (withdrawn: late); do not write for it." in posted["lead_1_1"].prior_context
    work(workspace, "lead_1", "Of a.")
    evaluation = strategy.evaluate(workspace.path, 1)
    assert evaluation.outcome == "partial"
    assert evaluation.missing == {
        "b": "withdrawn: late",
        "c": "withdrawn: gone",
        "lead_2": "none of its workers handed in anything",
    }
    assert "0 of 2 teams complete" in evaluation.reason


# --- strategies of other packages


class TeamsThatRefine(Strategy):
    """Two workers and a sub-lead, in two iterations, judged by a gate."""

    agents: tuple[str, ...] = ("a", "b", "lead")
    gates: tuple[str, ...] = ("specific_examples",)

    @property
    def iterations(self) -> int:
        return 2

    @property
    def gate_ids(self) -> tuple[str, ...]:
        return self.gates

    @property
    def by_lead(self) -> dict[str, tuple[str, ...]]:
        return {"lead": ("a", "b")}


def test_strategy_of_ones_own_may_combine_teams_gates_and_iterations(workspace: Workspace) -> None:
    strategy = TicketStrategy(TeamsThatRefine, {"topic": "Lock"}, clock=lambda: 1_000_000.0)
    strategy.initialize(workspace.path)
    assert workspace.convergence().max_iterations == 2
    for iteration, text, converged in ((1, NO_EXAMPLE, False), (2, COMPLETE, True)):
        posted = strategy.post_tickets(workspace.path, iteration)
        assert [ticket.id for ticket in posted] == [f"a_{iteration}", f"b_{iteration}"]
        assert ("missed:\n- specific_examples" in posted[0].specific_focus) is (iteration == 2)
        work(workspace, "a", text, iteration)
        work(workspace, "b", COMPLETE, iteration)
        lead = strategy.post_tickets(workspace.path, iteration)[-1]
        assert (lead.id, lead.type, lead.iteration) == (f"lead_{iteration}", "synthesis", iteration)
        assert quote_block(text) in lead.prior_context
        work(workspace, "lead", COMPLETE, iteration)
        assert strategy.check_convergence(workspace.path, iteration) is converged
    text = strategy.synthesize(workspace.path)
    assert "Outcome: converged, 1 of 1 gates met" in text
    assert "## lead, iteration 2" in text
    assert "## a," not in text
