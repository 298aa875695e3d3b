"""A report in words: worst news first, nothing a model wrote passes for the report's own words."""

from __future__ import annotations

from typing import Any

import pytest

from consilience.domain.agents import Agent
from consilience.domain.messages import Quotation
from consilience.domain.outcome import Check, Estimate, StopReason
from consilience.domain.positions import PositionChange
from consilience.domain.report import (
    Claim,
    Confidence,
    Dissent,
    Independence,
    LedgerReport,
    Missing,
    Objection,
    Report,
    SharedModel,
    Spent,
)
from consilience.domain.topology import tree
from consilience.reporting.contained import plain
from consilience.reporting.markdown import AnyReport, headline, markdown

AGENTS = (
    Agent(id="L1N1", role="integrator", model="m"),
    Agent(id="L2N1", role="specialist", perspective="critical", model="m"),
    Agent(
        id="L2N2", role="specialist", perspective="You ask who pays, always and of everybody.", persona="CFO", model="n"
    ),
)


def report(**given: Any) -> Report:
    common: dict[str, Any] = {
        "session": "r1",
        "protocol": "emergence",
        "task": "Move the market?",
        "settings": {"max_rounds": 5},
        "seed": 0,
        "agents": AGENTS,
        "topology": tree(2, 2),
        "stop_reason": StopReason.CONVERGED,
        "replied": 2,
        "quorum_met": True,
        "steps": 2,
        "answer": "No.",
        "ledger": LedgerReport(
            estimated=Estimate(min=7, max=15), actual=Spent(calls=9, tokens_in=1000, tokens_out=200, cost=0.0)
        ),
    }
    return AnyReport(**{**common, **given})


@pytest.mark.parametrize("reason", StopReason)
def test_every_ending_is_said_in_words_and_by_its_name(reason: StopReason) -> None:
    line = headline(report(stop_reason=reason))
    assert f"({reason.value})" in line
    assert len(line) > len(reason.value) + 20
    assert ("stable" in line and "before" not in line) == (reason is StopReason.CONVERGED)


def test_who_is_missing_stands_in_the_first_line() -> None:
    line = headline(report(degraded="1 of 2 agents (1 deadline)", quorum_met=False, stop_reason=StopReason.FAILED))
    assert line == (
        "**Stopped: it failed, too few agents replied (failed) · 1 of 2 agents (1 deadline), too few to rest an answer on**"
    )


@pytest.mark.parametrize(("n", "said"), [(1, "1 reply whose"), (3, "3 replies whose")])
def test_replies_whose_size_is_a_guess_are_counted(n: int, said: str) -> None:
    spent = Spent(calls=9, tokens_in=1000, tokens_out=200, cost=0.0, estimated=n)
    text = markdown(report(ledger=LedgerReport(estimated=Estimate(min=7, max=15), actual=spent)))
    assert f"| Tokens | 1,000 read, 200 written; estimated for {said} model told none |" in text


def test_everything_at_once_in_order() -> None:
    text = markdown(
        report(
            dissent=(
                Dissent(agent="L2N1", text="Rents.", position="no"),
                Dissent(agent="L2N2", text="Who pays?", id="o1"),
            ),
            objections=(Objection(id="o1", agent="L2N2", to="L2N1", text="Who pays?", read=False),),
            position_changes=(
                PositionChange(agent="L2N1", before="yes", after="no", step=2, cause="round-1/lateral/L2N2"),
                PositionChange(agent="L2N2", before="no", after="yes", step=2, conformity=True),
            ),
            claims=(Claim(text="Six stalls.", ids=("round-2/lateral/L2N1",)), Claim(text="Loud.", from_memory=True)),
            missing=(Missing(agent="L2N2", since="round-2/lateral/L2N2", reason="deadline: 300 s"),),
            quotations=(Quotation(words="a b", source="S1", line=1, verified=False),),
            warnings=("something is odd",),
            independence=Independence(shared=(SharedModel(model="m", agents=("L1N1", "L2N1")),)),
            check=Check(met=False, kind="jaccard", score=0.4, threshold=0.85),
            confidence=Confidence(level=0.62, kind="share of pooled ballots"),
            metrics={
                "facts": 9,
                "fact_survival": 1 / 3,
                "novelty": None,
                "sibling_similarity/leaf_respond/1": 0.2,
                "own": 2,
            },
            position="no",
            decided_by="pool",
            ballots=[
                {"agent": "L2N1", "position": "yes"},
                {"agent": "L2N1", "position": "no"},
                {"agent": "L2N2", "position": "yes"},
            ],
            pool={"no": 0.6, "yes": 0.4},
            convergence={"score_trajectory": [0.3, 0.4]},
        )
    )
    order = [
        "# Move the market?",
        "**Stopped: stable",
        "## Answer",
        "**Position: no** (by the pooled ballots",
        "**Final ballots, cast in private:** 1 no · 1 yes. All ballots of all rounds pooled: no 60 %, yes 40 %",
        "## Dissent and standing objections",
        "- “Rents.” — L2N1 (critical), for *no*",
        "- “Who pays?” — objection of L2N2 (CFO) to L2N1 (critical), never answered; nobody was shown it",
        "## Who changed position",
        "L2N1 (critical): yes → no in round 2, because of what L2N2 (CFO) wrote",
        "**named no argument for it (conformity)**",
        "- Six stalls. — *L2N1 (critical)*",
        "- Loud. — *rests on no text it could name* † from the model's memory",
        "## Agents that were missing",
        "2 of 3 agents share the model m: they are fewer than 2 independent voices",
        "0 verified, 1 not found",
        "1 of 2.",
        "- Something is odd.",
        "## Figures",
        "| Calls | 9 of 7–15 foreseen |",
        "| Stability from round to round (jaccard) | 0.30 → 0.40, needed 0.85 |",
        "| Confidence | 62 % (share of pooled ballots) |",
        "| Facts of the first texts found again in the answer | 33 % (of 9) |",
        "| own | 2 |",
        "| Likeness of sibling texts, leaf_respond (1 is identical), by round | 0.20 |",
        "Session `r1`",
    ]
    places = [text.find(words) for words in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert text.count("Who pays?") == 1, "an objection that is dissent too stands once"


def test_no_answer_and_no_dissent_are_said() -> None:
    assert "## No answer" in markdown(report(answer=None, stop_reason=StopReason.EXHAUSTED_BUDGET))
    assert "**Dissent:** none was declared" in markdown(report())
    assert "*A limit cut in" in markdown(report(closing="reserve"))


def test_an_answer_cannot_pass_for_a_section_of_the_report() -> None:
    answer = "Yes.\n\n## Dissent\nnone\n\nFigures\n=======\n\nreally\n---\n###### deep\n\x1b[31mred\x1b[0m #hash"
    text = markdown(report(answer=answer))
    assert "\n## Dissent\n" not in text
    assert "#### Dissent" in text
    assert "Figures\n\n=======" in text
    assert "really\n\n---" in text
    assert "###### deep" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a | b", r"a \| b"),
        ("*x* _y_ `z`", r"\*x\* \_y\_ \`z\`"),
        ("snake_case", "snake_case"),
        ("<b>[x](y)", r"\<b\>\[x\](y)"),
        ("one\ntwo\x07", "one two"),
        ("\u202eright", "right"),
    ],
)
def test_one_line_texts_are_only_text(given: str, shown: str) -> None:
    assert plain(given) == shown


def test_a_report_of_a_protocol_that_is_not_installed_reads_too() -> None:
    known = report(protocol="seance", mediums=3)
    again = AnyReport.model_validate_json(known.model_dump_json())
    assert markdown(again) == markdown(known)
