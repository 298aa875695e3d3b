"""What the closing call of a debate is told: the questions to answer, and what is missing."""

from __future__ import annotations

import pytest

from consilience import Debate, DebateReport, Deliberation, Limits
from consilience.domain.detail import Detail
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit.debating import Answer, Debaters

TASK = "Should we move the orders to queues?"


def closing_of(
    protocol: Debate, model: ScriptedModel | None = None, *, limits: Limits | None = None, detail: Detail = "full"
) -> tuple[DebateReport, str]:
    """Return the report of a debate and the prompt of its closing call."""
    model = model or ScriptedModel(Debaters())
    report = Deliberation(protocol, model=model, limits=limits, detail=detail).run_sync(TASK)
    assert isinstance(report, DebateReport)
    (closing,) = (request for request in model.requests if request.key == "closing")
    return report, closing.text


@pytest.mark.parametrize("detail", ["full", "brief"])
def test_closing_call_on_several_propositions_is_told_once_how_to_answer(detail: Detail) -> None:
    options = ("queues", "batches", "files")
    _, text = closing_of(Debate(debaters=2, option=options), detail=detail)
    for n, option in enumerate(options, 1):
        assert any(line.startswith(f"p{n}: ") and option in line for line in text.splitlines())
    assert text.count("UNDECIDED") == 1


def unreadable(request: ModelRequest) -> Answer:
    return {"p1": "?"} if request.agent == "D2" else {}


@pytest.mark.parametrize("ballot", ["opening", "final"])
@pytest.mark.parametrize("detail", ["full", "brief"])
def test_closing_call_after_a_failed_ballot_is_told_whose_is_missing_and_why(ballot: str, detail: Detail) -> None:
    model = ScriptedModel(Debaters({ballot: unreadable}))
    report, text = closing_of(Debate(debaters=4, as_is=True), model, detail=detail)
    assert f"No final position is known of {report.letters['D2']} (the reply could not be read)." in text


@pytest.mark.parametrize("detail", ["full", "brief"])
def test_closing_call_of_a_debate_cut_by_a_limit_is_told_that_no_ballot_was_cast(detail: Detail) -> None:
    report, text = closing_of(Debate(debaters=3), limits=Limits(calls=5), detail=detail)
    missing = ", ".join(f"{letter} (a limit refused the call)" for letter in report.letters.values())
    assert f"No final position is known of {missing}." in text
    assert "final positions" not in text
    assert "earlier positions" in text
    for ballot in report.opening.values():
        assert ballot.reason in text


@pytest.mark.parametrize("detail", ["full", "brief"])
def test_closing_call_is_shown_what_would_change_minds(detail: Detail) -> None:
    report, text = closing_of(Debate(debaters=3), detail=detail)
    falsifiers = [(agent, ballot.falsifier) for agent, ballot in report.opening.items() if ballot.falsifier]
    assert falsifiers
    for agent, falsifier in falsifiers:
        assert f"{report.letters[agent]}: {falsifier.words()}" in text
    assert "earlier positions" not in text


@pytest.mark.parametrize("detail", ["full", "brief"])
def test_closing_call_with_all_ballots_is_told_of_none_missing(detail: Detail) -> None:
    _, text = closing_of(Debate(debaters=3), detail=detail)
    assert "No final position" not in text
