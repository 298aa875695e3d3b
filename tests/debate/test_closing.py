"""What the closing call of a debate is told: the questions to answer, and what is missing."""

from __future__ import annotations

import pytest

from consilience import Debate, DebateReport, Deliberation, Limits
from consilience.domain.detail import Detail
from consilience.testing import ScriptedModel
from kit.debating import Debaters

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
