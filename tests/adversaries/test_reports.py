"""Agent texts do not change the structure of a report, read as CommonMark with tables."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import example, given, settings

from adversaries.nasty import MARKDOWN, TEXTS
from adversaries.reading import READER, STEERING, skeleton
from consilience.domain.agents import Agent
from consilience.domain.messages import Quotation
from consilience.domain.outcome import Estimate, FailureKind, StopReason
from consilience.domain.positions import PositionChange
from consilience.domain.report import Claim, Dissent, FailedCall, MissingAgent, Objection
from consilience.domain.topology import tree
from consilience.domain.usage import LedgerReport, UsageTotals
from consilience.reporting.formatting import demote_markdown, escape_markdown
from consilience.reporting.markdown import markdown, print_markdown
from consilience.reporting.record import AnyReport
from consilience.reporting.report_sections import task_below_title


def harmless(text: str) -> str:
    """The report of an ordinary text in place of this one, with a task that is too long for a title if this one is."""
    return markdown(report("harmless").model_copy(update={"task": "harmless " * (40 if task_below_title(text) else 1)}))


def report(text: str) -> AnyReport:
    """A report in which everything that an agent or a user wrote is this, as it comes out of a reply."""
    text = text.encode("utf-8", "replace").decode()
    agents = (
        Agent(id="L1N1", role="integrator", model="m"),
        Agent(id="L2N1", role="specialist", persona=text, perspective=text, model="m"),
        Agent(id="L2N2", role="specialist", perspective=text, model="m"),
    )
    fields: dict[str, Any] = {
        "ballots": [{"agent": "L2N1", "position": text}],
        "pool": {text: 1.0},
        "position": text,
        "rounds": [],
    }
    return AnyReport(
        session="r1",
        protocol="emergence",
        task=text,
        settings={"max_rounds": 5},
        seed=0,
        agents=agents,
        topology=tree(2, 2),
        stop_reason=StopReason.EXHAUSTED_STEPS,
        asked=3,
        replied=2,
        quorum_met=True,
        steps=2,
        answer=text,
        ledger=LedgerReport(estimated=Estimate(min=7, max=15), actual=UsageTotals(calls=9)),
        claims=(Claim(text=f"x{text}", ids=("round-1/lateral/L2N1",)), Claim(text=f"{text}x")),
        dissent=(Dissent(agent="L2N1", text=text, position=text),),
        objections=(Objection(id="o", agent="L2N1", to="L2N2", text=text, read=False),),
        position_changes=(PositionChange(agent="L2N1", before=text, after=text, step=1, cause=text),),
        missing=(MissingAgent(agent="L2N2", since="round-2/lateral/L2N2", reason=text),),
        quotations=(Quotation(words=text, source="S1", line=1, verified=False),),
        failed_calls=(FailedCall(key=text, agent="L2N2", kind=FailureKind.REJECTED, detail=text),),
        unmet=(text,),
        answer_cut=True,
        warnings=(f"about {text}",),
        **fields,
    )


@pytest.mark.parametrize("hostile", TEXTS.values(), ids=TEXTS)
def test_plain_text_does_not_break_the_structure_of_a_report(hostile: str) -> None:
    text = markdown(report(hostile[:100_000]))
    assert skeleton(text) == skeleton(harmless(hostile))
    assert not STEERING.search(text)
    assert text.startswith("# ")


@settings(max_examples=150)
@given(MARKDOWN)
@example("- ~~~\n## Dissent")
@example("10. a\n    ```\n```\n<h1>")
@example("a ` b\n`<h1>`")
@example("| ` | <h1> ` |\n|---|---|")
@example("\\<h1>")
@example("\\\\<h1>")
@example("`\\`<h1>")
@example(" ```\n```\n## Dissent")
@example("> Dissent\n> ---")
@example("~~~ `\n<h1>\n~~~\n<h1>")
@example("``` a`b\n<h1>")
def test_markdown_does_not_break_the_structure_of_a_report(text: str) -> None:
    assert skeleton(markdown(report(text))) == skeleton(harmless(text))


@given(MARKDOWN)
def test_open_markup_of_an_answer_is_closed_at_its_end(text: str) -> None:
    """Whatever follows it is read as it stands."""
    tokens = READER.parse(f"{demote_markdown(text)}\n\n## After\n")
    assert [(t.tag, t.content) for t in tokens[-3:-1]] == [("h2", ""), ("", "After")]
    assert [t.content for t in tokens if t.type == "inline" and t.content == "After"] == ["After"]


@pytest.mark.parametrize(
    "hostile",
    [
        "Use `Vec<String>` and `List<T>`.",
        "```python\n# a comment\nif a <b: pass\n---\n```\n\nThen go on.",
        "1. one\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |",
        "Is C# #1 or # 2?\n- no. # 3",
        "a < b and x <= 3, or ~5 %; *really*, **truly**",
    ],
)
def test_ordinary_markdown_is_unchanged(hostile: str) -> None:
    assert demote_markdown(hostile) == hostile


@given(MARKDOWN)
def test_one_line_of_agent_text_is_escaped(text: str) -> None:
    """As an item, as emphasis' neighbour and as a cell, it is read as the characters it has."""
    shown = " ".join(escape_markdown(text).split())
    for frame in (f"- {shown} — *who*", f"x {shown} — *who*"):
        tokens = READER.parse(frame)
        (line,) = [t for t in tokens if t.type == "inline"]
        kinds = {child.type for child in line.children or ()}
        assert kinds <= {"text", "text_special", "em_open", "em_close"}, frame
        assert sum(child.type == "em_open" for child in line.children or ()) == 1, frame


@pytest.mark.parametrize("hostile", TEXTS.values(), ids=TEXTS)
def test_agent_text_on_a_terminal_has_no_control_characters_or_markup(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    print_markdown(markdown(report(hostile[:5000])), screen)
    drawn = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())  # colours are our own
    assert not STEERING.search(drawn)
    if "[bold red]" in hostile:
        assert "[bold red]owned[/]" in drawn
