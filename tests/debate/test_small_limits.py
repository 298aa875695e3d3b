"""What a debate needs at least, of messages and calls, to debate the evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import consilience
from consilience import Debate, DebateReport, Limits
from consilience.testing import ScriptedModel
from kit.debating import Debaters

TASK = "Should we move the orders to queues?"
PAGE = Path(__file__).parents[2] / "docs" / "protocols" / "debate.md"


def evidence_messages(debaters: int, limits: Limits | None = None, **settings: int) -> tuple[int, int]:
    """Return the messages of the evidence stage and the final ballots of a debate."""
    protocol = Debate(debaters=debaters, **settings)
    report = consilience.run_sync(TASK, protocol, model=ScriptedModel(Debaters()), limits=limits)
    assert isinstance(report, DebateReport)
    stages = [stage for thread in report.threads for stage in thread.stages if stage.stage == "EVIDENCE"]
    return sum(stage.messages for stage in stages), sum(ballot.step == 1 for ballot in report.ballots)


@pytest.mark.parametrize("debaters", [2, 3, 4, 6, 12])
def test_debate_with_the_messages_before_the_evidence_has_none_in_it(debaters: int) -> None:
    before = Debate(debaters=debaters).messages_before_evidence
    assert evidence_messages(debaters, max_messages=before)[0] == 0


def test_shortest_debate_of_two_has_the_messages_that_the_warning_counts() -> None:
    before = Debate(debaters=2).messages_before_evidence
    assert evidence_messages(2, max_messages=before + 2)[0] == 2


@pytest.mark.parametrize("debaters", [2, 3, 4])
def test_debate_with_the_calls_that_the_warning_counts_has_evidence_and_ballots(debaters: int) -> None:
    calls = Debate(debaters=debaters).min_calls_of_a_debate
    evidence, ballots = evidence_messages(debaters, limits=Limits(calls=calls))
    assert evidence >= debaters
    assert ballots == debaters


def test_debate_page_has_the_least_messages_and_calls() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows
    for debaters, *documented in ([int(cell) for cell in row] for row in rows):
        protocol = Debate(debaters=debaters)
        before = protocol.messages_before_evidence
        assert documented == [before, before + debaters, protocol.min_calls_of_a_debate]
