"""What is asked of a person for each kind of field, over a pipe in place of a terminal."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from consilience.cli.execution import TerminalPrompter
from consilience.domain.messages import FreeText
from consilience.engine.ports import AnswerDeferred
from consilience.engine.prompt import schema_for
from consilience.models.parsing import prose_field
from consilience.models.port import ModelRequest
from consilience.reporting.questions import Form


class Step(BaseModel):
    name: str
    days: int = Field(ge=1, le=30)


class Plan(BaseModel):
    side: Literal["yes", "no"] = "yes"
    share: float = Field(0.5, ge=0, le=1)
    sure: bool = True
    by: str | None = None
    steps: list[Step] = []
    tags: list[Literal["cheap", "fast"]] = []
    text: FreeText


async def asked(typed: str, returns: type[BaseModel] | None = Plan) -> str:
    read, write = os.pipe()
    os.write(write, typed.encode())
    os.close(write)  # the end of input comes after what was typed
    schema = schema_for(returns, ())[0] if returns else None
    request = ModelRequest("L2N1", "round-1/x", "", "What is to be done?", returns=returns, schema=schema)
    try:
        async with asyncio.timeout(20):
            return await TerminalPrompter(read).put(request)
    finally:
        os.close(read)


async def test_prompter_asks_each_field_until_it_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    typed = (
        "maybe\n2\n" + "2\nhalf\n0.25\n" + "perhaps\nn\n" + "\n" + "y\nclear\n99\n3\n\n" + "slow\n1\n\n" + "Go.\n.\n"
    )
    assert json.loads(await asked(typed)) == {
        "side": "no",
        "share": 0.25,
        "sure": False,
        "steps": [{"name": "clear", "days": 3}],
        "tags": ["cheap"],
        "text": "Go.",
    }
    output = capsys.readouterr().err
    for complaint in (
        "Side must be one of yes, no.",
        "Share must be a number from 0 to 1.",
        "Sure must be true or false.",
        "Steps.days must be a number from 1 to 30.",
        "Tags must be one of cheap, fast.",
        "by (words, or an empty line):",
    ):
        assert complaint in output


async def test_prompter_text_ends_at_a_dot_and_empty_defers() -> None:
    assert await asked("One.\n\nTwo.\n.\nThree.\n", None) == "One.\n\nTwo."
    assert await asked("One.\nTwo.\n", None) == "One.\nTwo."
    for nothing in ("", ".\n", "later\n", "\n \n"):
        with pytest.raises(AnswerDeferred):
            await asked(nothing, None)
    with pytest.raises(AnswerDeferred):
        await asked("yes\n")


def test_typed_answer_is_read_from_json_or_prose() -> None:
    class Vote(BaseModel):
        side: Literal["yes", "no"]

    plan = Form(schema_for(Plan, ())[0] or {}, prose_field(Plan))
    assert plan.reply_from("Just go.") == "Just go."
    assert plan.reply_from('{"side": "yes", "by": null, "text": "Go."}')
    for wrong, complaint in (
        ('{"side": "maybe", "text": "x"}', "side must be one of yes, no"),
        ('{"steps": [{"name": "a", "days": 0}]}', "steps 1.days must be a number from 1 to 30"),
        ('{"steps": [{"day": 1}]}', "steps 1 has no day"),
        ('{"sure": "no"}', "sure must be true or false"),
    ):
        with pytest.raises(ValueError, match=complaint):
            plan.reply_from(wrong)
    vote = Form(schema_for(Vote, ())[0] or {})
    assert json.loads(vote.reply_from(" Yes. ")) == json.loads(vote.reply_from("1")) == {"side": "yes"}
    with pytest.raises(ValueError, match="JSON object with side: one of yes, no"):
        vote.reply_from("perhaps")
