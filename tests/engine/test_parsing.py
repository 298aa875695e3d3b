"""Typed replies: lenient in form, strict in content, on every kind of nonsense a model has been seen to write."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from consilience.domain.messages import FreeText
from consilience.domain.positions import BallotReply
from consilience.models.parsing import Malformed, parse_reply


class View(BaseModel):
    points: list[str] = []
    text: FreeText


class Verdict(BaseModel):
    grade: Literal["accurate", "inaccurate"]
    score: Annotated[int, Field(ge=0, le=10)] = 5
    why: FreeText = ""


@pytest.mark.parametrize(
    "reply",
    [
        '{"points": ["a"], "text": "yes"}',
        '  \n{"points": ["a"], "text": "yes"}\n\nI hope this helps!',
        '```json\n{"points": ["a"], "text": "yes"}\n```',
        '```\n{"points": ["a"], "text": "yes"}\n``` thanks',
        'Here is my answer: {"points": ["a"], "text": "yes"} Bye.',
        '{"points": ["a"], "text": "yes", "mood": "good"}',
        '{"points": ["a"], "text": "yes"',
        '{"points": ["a"], "text": "yes',
    ],
)
def test_the_form_is_forgiven(reply: str) -> None:
    assert parse_reply(reply, View) == View(points=["a"], text="yes")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("\x00\u200b\u202e", "empty"),
        ("null", "empty"),
        ("[]", "empty"),
        ('""', "empty"),
        ("{}", "JSON object"),
        ("[1]", None),
        ('{"points": ["a"]}', "text"),
        ('{"text": ""}', "empty"),
        ('{"text": "  "}', "empty"),
        ('{"text": "\\u0000\\u200b"}', "empty"),
        ('{"points": "a", "text": "yes"}', "points"),
        ('{"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}', "schema"),
        ('{"$schema": "x", "text": "yes"}', "schema"),
    ],
)
def test_the_content_is_not(reply: str, why: str | None) -> None:
    if why is None:
        assert parse_reply(reply, View).text == reply  # prose, though odd
        return
    with pytest.raises(Malformed, match=why):
        parse_reply(reply, View)


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("give an even number")
        return n


def test_what_a_type_demands_is_said_in_its_own_words() -> None:
    with pytest.raises(Malformed) as wrong:
        parse_reply('{"n": 3}', Even)
    assert str(wrong.value) == "n: give an even number"


def test_prose_fills_the_only_required_free_text_and_no_decision() -> None:
    assert parse_reply("I think so.", View) == View(text="I think so.")
    for decision in (Verdict, BallotReply):
        with pytest.raises(Malformed):
            parse_reply("accurate", decision)


@pytest.mark.parametrize("reply", ['{"grade": "fine"}', '{"grade": "accurate", "score": 11}', '{"grade": null}'])
def test_enums_and_bounds_hold_and_the_error_names_the_field(reply: str) -> None:
    with pytest.raises(Malformed, match=r"grade|score"):
        parse_reply(reply, Verdict)


def test_text_is_stripped_and_never_empty() -> None:
    assert parse_reply("  hello \n", str) == "hello"
    for nothing in (" \n", "\x00", "\u200b\ufeff"):
        with pytest.raises(Malformed):
            parse_reply(nothing, str)


@given(st.text())
def test_any_text_is_a_value_or_malformed(reply: str) -> None:
    for returns in (View, Verdict, BallotReply, str):
        with contextlib.suppress(Malformed):
            parse_reply(reply, returns)


@given(st.integers(0, 60))
def test_a_cut_at_any_place_is_closed_or_refused_but_never_invents(cut: int) -> None:
    whole = '{"points": ["one", "two"], "text": "the long answer is yes"}'
    try:
        value = parse_reply(whole[:cut], View)
    except Malformed:
        return
    assert "the long answer is yes".startswith(value.text)


@pytest.mark.parametrize(
    "reply",
    [
        '{"text": ' + "1" * 5000 + "}",
        '{"a":' * 1500,
        '{"text":' + "[" * 8000,
        '{"text": "\\ud83d"}',
        "half \ud83d a pair",
    ],
    ids=["digits without end", "objects without end", "brackets without end", "half a pair, escaped", "half a pair"],
)
def test_a_reply_that_breaks_parsers_is_malformed_or_mended(reply: str) -> None:
    try:
        value = parse_reply(reply, View)
    except Malformed:
        return
    value.text.encode("utf-8", "replace")
