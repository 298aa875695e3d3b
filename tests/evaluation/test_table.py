"""The printed comparison: documented columns, and losses reported like wins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consilience.evaluation import Budget, Difference, Task, compare, load_tasks, markdown
from consilience.evaluation.table import describe_difference, points
from consilience.journal.sqlite import SqliteStore
from consilience.testing import Scripted, ScriptedModel
from kit.juries import adding_up

GUIDE = Path(__file__).parents[2] / "docs" / "compare.md"
ROWS = ("circle", "solo", "vote")


def difference(**more: object) -> Difference:
    fields: dict[str, object] = {
        "row": "debate",
        "reference": "vote",
        "tasks": 40,
        "difference": 0.125,
        "low": 0.025,
        "high": 0.25,
        "better": 7,
        "worse": 2,
        "test": "mcnemar",
        "p": 0.1797,
        "detectable": 0.2149,
        "verdict": "cannot tell",
    }
    return Difference.model_validate({**fields, **more})


def test_verdicts_are_printed_in_words() -> None:
    won = difference(verdict="won", p=0.0004)
    assert describe_difference(won) == (
        "debate won over vote: +12.5 points, 95 % interval +2.5 to +25; McNemar p < 0.001."
    )
    lost = difference(verdict="lost", difference=-0.2, low=-0.3, high=-0.1, p=0.02)
    assert describe_difference(lost) == "debate lost to vote: −20 points, 95 % interval −30 to −10; McNemar p = 0.02."
    assert describe_difference(difference()) == (
        "Whether debate and vote differ cannot be told: debate was ahead of vote (+12.5 points, 95 % interval +2.5 to +25; "
        "McNemar p = 0.18); 40 tasks would have shown 21.5 points in four cases of five."
    )
    level = difference(difference=0, low=0, high=0, better=0, worse=0, p=1, tasks=2, detectable=None)
    assert describe_difference(level) == (
        "Whether debate and vote differ cannot be told: debate stood level with vote (0 points, 95 % interval 0 to 0; "
        "McNemar p = 1); 2 tasks are too few to show any difference."
    )
    repeated = difference(test="sign-flip", verdict="won", p=0.0004)
    assert describe_difference(repeated).endswith("; sign-flip p < 0.001.")
    assert "debate was behind vote" in describe_difference(difference(difference=-0.1, low=-0.3, high=0.1))


@pytest.mark.parametrize(
    ("part", "expected"), [(0.0, "0"), (-0.0, "0"), (-0.00001, "0"), (0.1234, "+12.3"), (-1.0, "−100")]
)
def test_points_have_a_sign_except_zero(part: float, expected: str) -> None:
    assert points(part) == expected
    assert points(abs(part), sign=False) == expected.lstrip("+−")


async def test_printed_and_documented_columns_are_the_same(store: SqliteStore) -> None:
    starter = load_tasks("starter")
    model = ScriptedModel(lambda request: Scripted("Answer: 3", tokens_in=9, tokens_out=9))
    everything = await compare(starter, ROWS, models=model, store=store, repeat=2)
    comparison = await compare(starter[0], ROWS, models=model, store=store, budget=Budget(calls=5))
    bound = await compare(starter[0], ROWS, models=model, store=store, budget=Budget(tokens=10_000))
    headers = set()
    for text in (markdown(everything), markdown(comparison), markdown(bound)):
        headers |= {cell for head in re.findall(r"^(\|.*\|)\n\|---", text, re.MULTILINE) for cell in head.split("|")}
    shown = {header.strip() for header in headers if header.strip()}
    meant = GUIDE.read_text().partition("## What the columns mean")[2].partition("\n## ")[0]
    documented = {name for cell in re.findall(r"^\| (.+?) \|", meant, re.MULTILINE) for name in cell.split(", ")}
    plain = {"protocol", "rows", "answer", "session", "right"}
    assert shown - plain == documented - {"column"}


@pytest.mark.parametrize(
    ("budget", "column", "shares"),
    [
        (Budget(), "of the most expensive", {"circle": "100 %", "solo": "25 %"}),
        (Budget(calls=8), "of the calls allowed", {"circle": "50 %", "solo": "12 %"}),
        (Budget(tokens=20_000), "of the tokens allowed", {"circle": "5 %", "solo": "1 %"}),
    ],
)
async def test_share_column_matches_its_name(
    store: SqliteStore, budget: Budget, column: str, shares: dict[str, str]
) -> None:
    """Each call takes 250 tokens."""
    model = ScriptedModel(adding_up)
    text = markdown(await compare("Is it so?", ["circle", "solo"], models=model, store=store, budget=budget))
    table = [
        [cell.strip() for cell in line.split("|")]
        for line in text.partition("## Cost\n")[2].partition("\n## ")[0].splitlines()
        if line
    ]
    assert {row[1]: row[table[0].index(column)] for row in table[2:]} == shares


async def test_model_text_does_not_break_a_table(store: SqliteStore) -> None:
    model = ScriptedModel(lambda request: "a | b\n\n| c |\x1b[2J")
    text = markdown(await compare("What?", ["circle", "solo"], models=model, store=store))
    row = next(line for line in text.splitlines() if line.startswith("| solo |"))
    assert "a \\| b \\| c \\|" in row
    assert "\x1b" not in row
    assert len(re.findall(r"(?<!\\)\|", row)) == 6


async def test_model_text_stays_as_written_in_a_table(store: SqliteStore) -> None:
    model = ScriptedModel(lambda request: "*so* [it](http://x) <b>is</b>")
    text = markdown(await compare("What?", ["circle", "solo"], models=model, store=store))
    row = next(line for line in text.splitlines() if line.startswith("| solo |"))
    assert r"\*so\* \[it\](http://x) \<b\>is\</b\>" in row


async def test_notes_state_what_a_comparison_does_not_show(store: SqliteStore) -> None:
    model = ScriptedModel(adding_up)
    alone = markdown(await compare("Is it so?", ["circle"], models=model, store=store))
    assert "A single row is not compared with anything." in alone
    open_question = markdown(await compare("Is it so?", ["circle", "solo"], models=model, store=store))
    assert "Nothing was scored" in open_question
    assert "## Accuracy" not in open_question
    text = markdown(await compare(Task(id="a", task="?", answer="x"), ["circle", "solo"], models=model, store=store))
    assert "One task does not show which protocol is better" in text
    assert "Tokens spent were not equal; share of what circle spent: solo 25 %." in text
