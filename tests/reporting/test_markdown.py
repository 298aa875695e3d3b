"""A report in words: worst news first, nothing a model wrote passes for the report's own words."""

from __future__ import annotations

from typing import Any

import pytest
from markdown_it import MarkdownIt

from consilience.domain.agents import Agent
from consilience.domain.messages import Quotation
from consilience.domain.objections import OUTCOMES
from consilience.domain.outcome import Check, Estimate, FailureKind, Limits, StopReason
from consilience.domain.positions import PositionChange
from consilience.domain.presenting import present
from consilience.domain.report import (
    Against,
    Claim,
    ConfidenceScore,
    Dissent,
    FailedCall,
    Independence,
    MissingAgent,
    Objection,
    Report,
    SharedModel,
)
from consilience.domain.sections import AgentText, Bullets, Diff, Item, Paragraph, Presentation, Section, Table, View
from consilience.domain.topology import tree
from consilience.domain.usage import LedgerReport, UsageTotals
from consilience.protocols.emergence import EmergenceReport
from consilience.reporting.formatting import demote_markdown, escape_markdown
from consilience.reporting.markdown import blocks_markdown, markdown
from consilience.reporting.page_parts import PageParts
from consilience.reporting.record import AnyReport
from consilience.reporting.report_sections import folded_sections, headline

AGENTS = (
    Agent(id="L1N1", role="integrator", model="m"),
    Agent(id="L2N1", role="specialist", perspective="critical", model="m"),
    Agent(
        id="L2N2", role="specialist", perspective="You ask who pays, always and of everybody.", persona="CFO", model="n"
    ),
)


def report(kind: type[Report] = AnyReport, **fields: Any) -> Report:
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
            estimated=Estimate(min=7, max=15), actual=UsageTotals(calls=9, tokens_in=1000, tokens_out=200, cost=0.0)
        ),
    }
    return kind(**{**common, **fields})


def figures(report: Report) -> str:
    """The figures that a report folds away, as Markdown."""
    (section,) = [section for section in folded_sections(report, present(report)) if section.name == "figures"]
    return blocks_markdown(section.blocks)


@pytest.mark.parametrize("reason", StopReason)
def test_headline_has_words_for_every_stop_reason_and_the_figures_its_name(reason: StopReason) -> None:
    line = headline(report(stop_reason=reason), Presentation())
    assert "_" not in line
    assert line.startswith("Finished") == (reason in (StopReason.SETTLED, StopReason.CONVERGED))
    assert ("answer stopped changing" in line) == (reason is StopReason.CONVERGED)
    assert reason.value in figures(report(stop_reason=reason)).replace("\\", "")
    assert ("consilience replay" in markdown(report(stop_reason=reason))) == (reason is not StopReason.FAILED)


def test_headline_of_a_finished_run_has_the_reservations_and_no_word_of_the_ending_decides() -> None:
    shown = Presentation(reservations=("without a majority", "1 of 4 answers took no position"))
    settled = report(stop_reason=StopReason.SETTLED)
    but = ", but without a majority; 1 of 4 answers took no position"
    assert headline(settled, shown) == f"Finished{but}"
    assert f" · finished{but} · " in markdown(settled, shown)
    assert headline(settled, Presentation(ending="finished early")) == "Finished: finished early"
    cut = report(stop_reason=StopReason.EXHAUSTED_STEPS)
    assert headline(cut, Presentation(ending="finished two of three")) == "Stopped: finished two of three"


def test_last_line_names_folded_sections_and_views() -> None:
    blocks = (Paragraph(text="Much."),)
    folded = Section(name="drafts", part="basis", heading="Drafts", blocks=blocks, folded=True)
    views = (View(name="who-pays", heading="Who pays"),)
    text = markdown(report(), Presentation(sections=(folded,), views=views))
    assert text.splitlines()[-1].endswith(
        "`consilience show r1 --view figures` · other views: drafts, who-pays, glossary"
    )
    assert "other views" not in markdown(report(), Presentation(views=views), stored=False)
    assert "other views: glossary\n" in markdown(report(), Presentation())


def test_task_that_is_too_long_for_the_title_stands_below_it() -> None:
    task = f"{'The job takes 5 hours. ' * 12}What should we do?"
    lines = markdown(report(task=task)).splitlines()
    assert not lines[0].endswith("do?")
    assert lines[2] == f"> {task}"
    assert task not in markdown(report(task=task), heading=False)
    assert markdown(report(task="Why?")).splitlines()[2].startswith("**Finished")


def test_missing_agents_are_in_the_headline() -> None:
    failed = report(asked=2, replied=1, quorum_met=False, answer=None, stop_reason=StopReason.FAILED)
    assert headline(failed, Presentation()) == (
        "Stopped: too few agents replied · 1 of 2 agents replied in the first phase"
    )


@pytest.mark.parametrize(
    ("seconds", "used"), [(12.0, ", with 12 s used and the rest reserved for the closing answer"), (15.0, "")]
)
def test_headline_of_a_run_out_of_time_says_what_the_rest_was_reserved_for(seconds: float, used: str) -> None:
    call = FailedCall(key="k", agent="L2N1", kind=FailureKind.TIME, exhausted="seconds")
    ledger = LedgerReport(estimated=Estimate(min=1, max=7), actual=UsageTotals(seconds=seconds))
    late = report(stop_reason=StopReason.EXHAUSTED_TIME, failed_calls=(call,), limits=Limits(seconds=15), ledger=ledger)
    refused = "1 call refused or ended by a limit (time)"
    assert headline(late, Presentation()) == f"Stopped: reached the limit of 15 s{used} · {refused}"


def test_answer_of_a_single_reply_is_marked() -> None:
    """Whoever was never asked declared no dissent, and nothing existed that it could be written from."""
    text = markdown(report(replied=0, closing="reserve", stop_reason=StopReason.EXHAUSTED_BUDGET))
    assert "*No other agent replied: the answer is one agent's alone.*" in text
    assert "what existed by then" not in text
    assert "none was declared" not in text


@pytest.mark.parametrize(("n", "expected"), [(1, "1 reply"), (3, "3 replies")])
def test_estimated_token_counts_are_reported(n: int, expected: str) -> None:
    spent = UsageTotals(calls=9, tokens_in=1000, tokens_out=200, cost=0.0, estimated=n)
    shown = report(ledger=LedgerReport(estimated=Estimate(min=7, max=15), actual=spent))
    assert f"| Tokens | 1,000 read, 200 written; estimated for {expected} without figures from the model |" in figures(
        shown
    )


def test_full_report_has_all_sections_in_order() -> None:
    shown = report(
        EmergenceReport,
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
        missing=(MissingAgent(agent="L2N2", since="round-2/lateral/L2N2", reason="deadline: 300 s"),),
        quotations=(Quotation(words="a b", source="S1", line=1, verified=False),),
        warnings=("something is odd",),
        independence=Independence(shared=(SharedModel(model="m", agents=("L1N1", "L2N1")),)),
        check=Check(met=False, kind="jaccard", score=0.4, threshold=0.85),
        confidence=ConfidenceScore(level=0.62, kind="share of pooled ballots"),
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
            {"agent": "L2N1", "step": 0, "position": "yes", "confidence": "certain"},
            {"agent": "L2N1", "step": 1, "position": "no", "confidence": "certain"},
            {"agent": "L2N2", "step": 1, "position": "yes", "confidence": "certain"},
        ],
        pool={"no": 0.6, "yes": 0.4},
        convergence={"converged": True, "rounds_used": 2, "score_trajectory": [0.3, 0.4]},
    )
    text = markdown(shown)
    order = [
        "# Move the market?",
        "**Finished: the answer stopped changing",
        "## Answer",
        "**Position: no** (by the pooled ballots",
        "**Final ballots, cast in private:** 1 no · 1 yes. All ballots of all rounds pooled: no 60 %, yes 40 %",
        "## Basis",
        "- Six stalls. — *critical (L2N1)*",
        "- Loud. — *names no text* † from memory, no document quoted",
        "## Where they differed",
        "### Dissent and open objections",
        "- “Rents.” — *critical (L2N1), for no*",
        "- “Who pays?” — objection of CFO (L2N2) to critical (L2N1), never answered; no agent read it",
        "### Changes of position",
        "critical (L2N1): yes → no in round 2, because of what CFO (L2N2) wrote",
        "named no argument for it (conformity)",
        "## How far to trust it",
        "2 of the 3 agents run on m, so they are not two independent voices.",
        "0 verified, 1 not found",
        "1 of 2.",
        "- Something is odd.",
        "### Missing agents",
        "9 calls · 1,000 tokens read, 200 written · $0 · 0.0 s · the answer stopped changing · `consilience replay r1`",
    ]
    check_order(text, order)
    assert text.count("Who pays?") == 1, "an objection that is dissent too stands once"
    order = [
        "| Calls | 9 of 7–15 estimated |",
        "| Rounds | 2 of at most 5 |",
        "| Confidence | 62 % (share of pooled ballots) |",
        "| Stability from round to round (jaccard) | 0.30 → 0.40, needed 0.85 |",
        "| own | 2 |",
        "| Similarity among siblings, leaf_respond, by round (1 = identical) | 0.20 |",
    ]
    check_order(figures(shown), order)


def check_order(text: str, order: list[str]) -> None:
    places = [text.find(words) for words in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)


def test_missing_answer_and_missing_dissent_are_printed() -> None:
    assert "## No answer" in markdown(report(answer=None, stop_reason=StopReason.EXHAUSTED_BUDGET))
    assert "*A limit cut in" in markdown(report(stop_reason=StopReason.EXHAUSTED_BUDGET))


def test_only_a_protocol_that_asks_for_dissent_says_that_none_was_declared() -> None:
    asking = Presentation(asks_for_dissent=True)
    assert "**Dissent:** none was declared, and no objection is open." in markdown(report(), asking)
    assert "Dissent" not in markdown(report(), Presentation())
    assert EmergenceReport.asks_for_dissent


def test_objections_are_listed_once_open_ones_first() -> None:
    text = markdown(
        report(
            EmergenceReport,
            convergence={"converged": False, "rounds_used": 2},
            objections=(
                objection("A.1", fate="yielded", how="The test is CPU only."),
                objection("A.2", fate="refuted", how="It was measured."),
                objection("A.3", fate="stands", ruled="rejected", ruling="Two engineers, a third if need be."),
                objection("A.4", fate="unanswered"),
            ),
            dissent=(
                Dissent(agent="L2N2", text="objection A.3", id="A.3"),
                Dissent(agent="L2N2", text="objection A.4", id="A.4"),
            ),
        )
    )
    assert text.count("## ") == 3
    lines = text.partition("## Where they differed\n\n")[2].partition("\n\n")[0].splitlines()
    who = "*CFO (L2N2) → critical (L2N1)*"
    assert lines == [
        f"- **Rejected in the answer:** objection A.3 — {who}",
        "  - Ruling: Two engineers, a third if need be.",
        f"- **Open:** objection A.4 — {who} Not answered before the run ended.",
        f"- **Refuted:** objection A.2 — {who} It was measured.",
        f"- **Conceded:** objection A.1 — {who} The test is CPU only.",
    ]
    assert "none was declared" not in text, "two objections are open"


def test_word_for_an_outcome_is_changed_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OUTCOMES, "upheld", "Sustained")
    objections = (
        objection("A.1", fate="stands", ruled="upheld", ruling="It pays."),
        objection("A.2", fate="refuted", ruled="upheld", ruling="It does not."),
    )
    text = markdown(report(EmergenceReport, convergence={"converged": False, "rounds_used": 2}, objections=objections))
    assert "- **Sustained in the answer:** objection A.1" in text
    assert "- Ruling: sustained: It does not." in text


def objection(id: str, **fields: Any) -> Objection:
    return Objection(id=id, agent="L2N2", to="L2N1", text=f"objection {id}", read=True, **fields)


def test_overturn_section_follows_differences() -> None:
    text = markdown(
        report(
            would_change=("The top ten statements use under a third of CPU time.",),
            unknown=("Whether CPU follows data.",),
            against=(
                Against(text="Two engineers may be too few.", ids=("round-1/lateral/L2N2",)),
                Against(text="The gate may be read as a failure."),
            ),
        )
    )
    assert text.partition("## What would overturn it\n\n")[2].partition("\n\n")[0].splitlines() == [
        "- The top ten statements use under a third of CPU time.",
        "- **Unknown:** Whether CPU follows data.",
        "- **Strongest argument against:** Two engineers may be too few. — *CFO (L2N2)*",
        "- **Also against:** The gate may be read as a failure.",
    ]


def test_cut_answer_and_quotes_are_marked() -> None:
    text = markdown(
        report(
            answer="No, since",
            answer_cut=True,
            cut_replies=("round-1/lateral/L2N2",),
            claims=(Claim(text="Loud.", ids=("round-1/lateral/L2N2", "round-1/lateral/L2N1")),),
            objections=(
                Objection(id="round-1/lateral/L2N2/objection-1", agent="L2N2", to="L2N1", text="Why", read=True),
            ),
        )
    ).replace("\\", "")
    assert "Incomplete: this text was cut off at the token limit.*\n\nNo, since\n\n*[cut off here]*" in text
    assert "- Loud. — *CFO (L2N2) [its text was cut off], critical (L2N1)*" in text
    assert "never answered [its text was cut off]" in text


def test_unverified_quotation_is_named_with_its_line() -> None:
    words = [Quotation(words=f"words {n}", source="S2", line=n, verified=n == 0, agent="L2N1") for n in range(8)]
    text = markdown(report(quotations=words))
    assert "- Quotations from the documents: 1 verified, 7 not found." in text
    assert "- Not found: “words 1” — *critical (L2N1)* claimed at S2:1" in text
    assert text.count("Not found: “") == 5
    assert "- 2 more, in the report's JSON." in text


def test_a_run_of_one_agent_has_no_empty_sections() -> None:
    text = markdown(report(agents=AGENTS[:1], protocol="solo", steps=1))
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Move the market?",
        "## Answer",
        "## How far to trust it",
    ]


def test_answer_headings_are_demoted() -> None:
    answer = "Yes.\n\n## Dissent\nnone\n\nFigures\n=======\n\nreally\n---\n###### deep\n\x1b[31mred\x1b[0m #hash"
    text = markdown(report(answer=answer))
    assert "\n## Dissent\n" not in text
    assert "#### Dissent" in text
    assert "Figures\n\n=======" in text
    assert "really\n\n---" in text
    assert "###### deep" in text
    assert "\x1b" not in text


def test_number_is_escaped_only_at_the_start_of_a_list() -> None:
    first = Item(text="1. No buffer.")
    (line, named, row) = (
        blocks_markdown([Bullets(items=(first,))]),
        blocks_markdown([Bullets(items=(first.model_copy(update={"lead": "context:"}),))]),
        blocks_markdown([Table(heads=("what",), rows=(("1. No buffer.",),))]).splitlines()[-1],
    )
    assert line == r"- 1\. No buffer."
    assert named == "- **context:** 1. No buffer."
    assert row == "| 1. No buffer. |"


def test_code_in_an_answer_is_unchanged() -> None:
    """Placeholders in code, in a table and beside a code block, are not escaped; outside code they are."""
    answer = "| Deploy | `kubectl -n <NS> undo` <ask> |\n|---|---|\n\n```sh\nps\n```"
    text = blocks_markdown([AgentText(text=answer)])
    assert r"`kubectl -n <NS> undo` \<ask>" in text
    assert "<code>kubectl -n &lt;NS&gt; undo</code> &lt;ask&gt;" in PageParts({}, {}).agent_text(answer)
    apart = blocks_markdown([AgentText(text="Post `SEV | next`.\n\nRun `undo <deploy>` here.")])
    assert "`undo <deploy>`" in apart, "a pipe in the code of another paragraph changes nothing"
    split = blocks_markdown([AgentText(text="| a `<b> | <c>` |\n|---|---|")])
    assert r"`\<b> | \<c>`" in split, "the pipe ends the cell, and the code with it"


def test_checklist_keeps_its_line_breaks() -> None:
    assert "one<br />\ntwo" in PageParts({}, {}).blocks([AgentText(text="one\ntwo")])


@pytest.mark.parametrize(
    ("inputs", "shown"),
    [
        ("a | b", r"a \| b"),
        ("*x* _y_ `z`", r"\*x\* \_y\_ `z`"),
        ("snake_case", "snake_case"),
        ("tenacity/__init__.py:435", r"tenacity/\_\_init\_\_.py:435"),
        ("a__b__c __x", r"a__b__c \_\_x"),
        ("http://127.0.0.1/v1#corp-large", "http://127.0.0.1/v1#corp-large"),
        ("# a ##", r"\# a \##"),
        ("<b>[x](y)", r"\<b\>\[x\](y)"),
        ("one\ntwo\x07", "one two"),
        ("\u202eright", "right"),
    ],
)
def test_one_line_text_is_escaped(inputs: str, shown: str) -> None:
    assert escape_markdown(inputs) == shown


def test_report_of_an_uninstalled_protocol_renders() -> None:
    known = report(protocol="seance", mediums=3)
    again = AnyReport.model_validate_json(known.model_dump_json())
    assert markdown(again) == markdown(known)


@pytest.mark.parametrize(
    ("model", "embedded"),
    [
        ("local:qwen2.5-coder-1.5b", True),
        ("openai:m|local:qwen2.5-coder-1.5b", True),
        ("local:/models/own.gguf", False),
        ("exec:ask|local:x", False),
    ],
)
def test_report_of_an_embedded_model_says_what_it_is_for(model: str, embedded: bool) -> None:
    agents = (Agent(id="S1", role="respondent", model=model),)
    name = model.replace("|", "\\|")
    remark = f"- {name}: an embedded model, for trying things out. Do not rely on what it says.\n"
    assert (remark in markdown(report(agents=agents, independence=Independence()))) == embedded


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (("m", "n"), "Each of the 2 agents has a model of its own."),
        (
            ("exec:vote yes", "exec:vote no"),
            "Each of the 2 agents has a model or command of its own; several commands may start one program.",
        ),
    ],
)
def test_several_commands_are_not_called_several_models(models: tuple[str, str], expected: str) -> None:
    agents = tuple(Agent(id=f"V{n}", role="respondent", model=model) for n, model in enumerate(models))
    assert f"- {expected}\n" in markdown(report(agents=agents, independence=Independence()))


@pytest.mark.parametrize(
    "name", ["tenacity/__init__.py:435", "__main__.py", "foo.__x__", "__init__(self)", "src/_x_.py", "pkg.__init__"]
)
def test_name_of_a_file_in_an_agents_text_is_shown_as_written(name: str) -> None:
    html = MarkdownIt().render(demote_markdown(f"See {name}, __not__ `{name}` and _this_."))
    assert html == (f"<p>See {name}, <strong>not</strong> <code>{name}</code> and <em>this</em>.</p>\n")


def test_names_of_only_underscores_are_escaped_in_linear_time() -> None:
    text = "_" * 200_000 + "b " + "_a" + "_" * 200_000 + "b"
    assert len(escape_markdown(text)) > len(text)
    assert demote_markdown(text)


def test_fence_of_a_diff_is_one_longer_than_the_longest_run_of_backticks() -> None:
    indented = Diff(text="@@ -1 +1 @@\n-                        a\n+                        b")
    assert blocks_markdown([indented]).startswith("```diff\n")
    assert blocks_markdown([Diff(text="+ ````")]).startswith("`````diff\n")
