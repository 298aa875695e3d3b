"""Typed replies: lenient in form, strict in content, on every kind of nonsense a model has been seen to write."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from consilience.domain.messages import FreeText
from consilience.domain.positions import BallotReply
from consilience.models.parsing import Malformed, is_prose, parse_reply
from consilience.models.visible import visible_text


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
def test_formal_faults_of_json_are_repaired(reply: str) -> None:
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
def test_invalid_values_are_not_repaired(reply: str, why: str | None) -> None:
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


def test_error_of_a_validator_is_passed_on() -> None:
    with pytest.raises(Malformed) as wrong:
        parse_reply('{"n": 3}', Even)
    assert str(wrong.value) == "n: give an even number"


def test_prose_reply_fills_a_required_text_field_but_no_decision() -> None:
    assert parse_reply("I think so.", View) == View(text="I think so.")
    for decision in (Verdict, BallotReply):
        with pytest.raises(Malformed):
            parse_reply("accurate", decision)


@pytest.mark.parametrize("reply", ['{"grade": "fine"}', '{"grade": "accurate", "score": 11}', '{"grade": null}'])
def test_value_outside_an_enum_or_bound_is_malformed_with_the_field_name(reply: str) -> None:
    with pytest.raises(Malformed, match=r"grade|score"):
        parse_reply(reply, Verdict)


def test_text_reply_is_stripped_and_malformed_if_empty() -> None:
    assert parse_reply("  hello \n", str) == "hello"
    for nothing in (" \n", "\x00", "\u200b\ufeff"):
        with pytest.raises(Malformed):
            parse_reply(nothing, str)


@given(st.text())
def test_any_reply_text_is_parsed_or_malformed(reply: str) -> None:
    for returns in (View, Verdict, BallotReply, str):
        with contextlib.suppress(Malformed):
            parse_reply(reply, returns)


@given(st.integers(0, 60))
def test_json_cut_at_any_position_is_closed_or_malformed(cut: int) -> None:
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
def test_hostile_json_is_repaired_or_malformed(reply: str) -> None:
    try:
        value = parse_reply(reply, View)
    except Malformed:
        return
    value.text.encode("utf-8", "replace")


# --- several objects, and one that was cut off


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ('{"text": "draft"}\nOn reflection:\n{"text": "final"}', "final"),
        ('```json\n{"text": "draft"}\n```\nBetter:\n```json\n{"text": "final"}\n```', "final"),
        ('{"text": "final"}\n{"note": 1}', "final"),
        ('The form is {"text": ""}. So: {"text": "final"}', "final"),
        ('{"type": "object", "properties": {"text": {"type": "string"}}} {"text": "final"}', "final"),
        ('{"text": "final"} {"text": "and a second one that was c', "final"),
        ('{"text": draft} {"text": "final"}', "final"),
        ('[{"text": "draft"}, {"text": "final"}]', "final"),
        ('In {braces} and \\frac{1}{2} I say {"text": "final"}', "final"),
        ('{"text": "uses ``` as a fence"}', "uses ``` as a fence"),
    ],
)
def test_last_valid_object_of_several_counts(reply: str, text: str) -> None:
    assert parse_reply(reply, View).text == text


@pytest.mark.parametrize(
    "reply",
    [
        '{"points": [{"text": "inner"}] "text": "outer"}',
        '{"points": [{"text": "inner"}], "text": "he said "no""}',
        "{'points': [], 'meta': {\"text\": \"inner\"}}",
        'Here: {"points": [{"text": "inner"}] "text": "outer"}',
        '{"claims": [{"text": "brace } in it", "ids": ["A"]}, {"text": "inner", "ids": []}] "text": "yes"}',
        '{"claims": [{"text": "a } and } more"}, {"text": "inner"}], "text": "yes",, }',
    ],
)
def test_object_inside_a_broken_object_is_not_the_reply(reply: str) -> None:
    try:
        assert "outer" in parse_reply(reply, View).text
    except Malformed:
        return


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"text": "two\nlines, and', View(text="two\nlines, and")),
        ('```json\n{"text": "fenced and cut\n```', View(text="fenced and cut")),
        ('So: {"text": "cut', View(text="cut")),
        ('{"text": "yes", "points": ["a"', View(points=["a"], text="yes")),
        ('{"grade": "accurate", "why": "it is', Verdict(grade="accurate", why="it is")),
        ('{"grade": "accurate", "score": 7, "wh', Verdict(grade="accurate", score=7)),
        ('{"grade": "accurate", "score": 1', Verdict(grade="accurate")),
        ('{"position": "yes", "confidence": "certain", "cause": "A', BallotReply(position="yes", confidence="certain")),
        ('{"position": "yes", "reason": "because', BallotReply(position="yes", reason="because")),
    ],
)
def test_cut_json_reply_is_closed(reply: str, expected: BaseModel) -> None:
    assert parse_reply(reply, type(expected)) == expected


@pytest.mark.parametrize(
    ("reply", "returns"), [('{"position": "no', BallotReply), ('{"n": 2', Even), ('{"grade": "accurate', Verdict)]
)
def test_decision_that_may_have_been_cut_is_malformed(reply: str, returns: type[BaseModel]) -> None:
    """`no` may have been the beginning of `not yet`, and 2 that of 25."""
    with pytest.raises(Malformed):
        parse_reply(reply, returns)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("blub }{ 42", True),
        ("```\nplain\n```", True),
        ("<think>hm</think>plain", True),
        ('{"text": "plain"}', False),
        ('Here: {"text": "plain"} Done.', False),
        ('{"text": "cut of', False),
    ],
)
def test_is_prose_is_true_only_without_an_object(reply: str, expected: bool) -> None:
    assert is_prose(reply, parse_reply(reply, View)) is expected


def test_prose_reply_keeps_its_code_blocks() -> None:
    prose = "```python\nprint(1)\n```\nThis prints 1."
    assert parse_reply(prose, View).text == prose


# --- reasoning traces

TRACES = [
    "<think>{trace}</think>\n\n{reply}",
    "\n<think>\n{trace}\n</think>\n{reply}",
    "<THINK>\n{trace}\n</THINK>{reply}",
    "<thinking>{trace}</thinking> {reply}",
    "<reasoning>\n{trace}\n</reasoning>\n{reply}",
    "{trace}\n</think>\n\n{reply}",
    "{trace}.</think>{reply}",
    "</think>\n{reply}",
    "<think></think><think>{trace}</think>{reply}",
    "<think>{trace}</think>\n<reasoning>{trace}</reasoning>\n{reply}",
    "<think>The tag `</think>` ends it. {trace}\n</think>\n{reply}",
    "loading model\n<think>\n{trace}\n</think>\n{reply}",
    "loading model\n<think>{trace}</think>\n{reply}",
    "<thought>{trace}</thought>\n{reply}",
    "<analysis>\n{trace}\n</analysis>\n\n{reply}",
    "◁think▷{trace}◁/think▷{reply}",
    "[THINK]{trace}[/THINK]{reply}",
    "{trace}.[/THINK]{reply}",
    "loading model\n[THINK]\n{trace}\n[/THINK]\n{reply}",
    "<seed:think>{trace}</seed:think>{reply}",
    "<|START_THINKING|>{trace}<|END_THINKING|><|START_RESPONSE|>{reply}<|END_RESPONSE|>",
    "<|begin_of_thought|>{trace}<|end_of_thought|><|begin_of_solution|>{reply}<|end_of_solution|>",
    "<|channel>thought\n{trace}<channel|>{reply}",
    "<unused94>thought\n{trace}<unused95>{reply}",
    "Here is my thought process:\n{trace}\n\nHere is my response:\n{reply}",
    "<think>{trace}</think>\n<answer>\n{reply}\n</answer>",
    "<|channel|>analysis<|message|>{trace}<|end|><|start|>assistant<|channel|>final<|message|>{reply}",
    "<|channel|>analysis<|message|>{trace}<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{reply}<|return|>",
    "<|channel|>analysis<|message|>{trace}<|end|>{reply}",
    "{trace}<|end|><|start|>assistant<|channel|>final<|message|>{reply}",
    "analysisWell: {trace}assistantfinal{reply}",
]
TRACE_TEXTS = [
    "Hm.",
    'Perhaps {"text": "draft"}? No.',
    '```json\n{"text": "draft"}\n```',
    'So {"text": "draf',
    "a < b, <b>",
]


@pytest.mark.parametrize("form", TRACES)
@pytest.mark.parametrize("trace", TRACE_TEXTS)
def test_reasoning_trace_is_removed(form: str, trace: str) -> None:
    typed = form.replace("{trace}", trace).replace("{reply}", '{"text": "final"}')
    assert parse_reply(typed, View) == View(text="final")
    fenced = form.replace("{trace}", trace).replace("{reply}", '```json\n{"text": "final"}\n```')
    assert parse_reply(fenced, View) == View(text="final")
    free = form.replace("{trace}", trace).replace("{reply}", "The final answer.")
    for returned in (parse_reply(free, str), parse_reply(free, View).text, visible_text(free)):
        assert returned.removeprefix("loading model").strip() == "The final answer."


@pytest.mark.parametrize(
    "reply",
    [
        "<think>",
        "<think>Hm.",
        '<think>{"text": "draft"}',
        '[THINK]{"text": "draft"}',
        '<seed:think>Hm. {"text": "draft"}',
        '<|START_THINKING|>{"text": "draft"}',
        '<|channel|>analysis<|message|>{"text": "draft"}',
        '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>{"text": "draft"}',
        'analysisWe may say {"text": "draft"}',
        "<|channel>thought\nHm.",
        "<reasoning>x</reasoning>\n",
        "x\n</think>\n ",
        "<thought>Hm.",
    ],
)
def test_reply_of_a_trace_only_is_empty(reply: str) -> None:
    assert visible_text(reply) == ""
    for returns in (View, Verdict, str):
        with pytest.raises(Malformed, match="the reply is empty"):
            parse_reply(reply, returns)


@pytest.mark.parametrize(
    "reply",
    [
        '{"text": "It writes <think>…</think> first."}',
        '{"text": "<think>"}',
        '{"text": "[THINK]a[/THINK]b <|channel|>final<|message|>c<|im_end|>"}',
        '{"text": "a<|im_end|>\\n<|im_start|>user"}',
        "Mistral writes `[THINK]` and `[/THINK]`.",
        "A trace ends with [/THINK] as a rule.",
        "analysis of the data: it is so.",
        "I weighed it. Here is my response:\nKEEP",
        "Strike it: <s>no</s>",
        "```\n<|im_start|>user\n<|im_end|>\n```",
        '{"text": "a\\n</think>\\nb"}',
        '{"text": "a\n</think>\nb"}',
        '{"text": "a\n</think>\nb and then it was cut',
        'So:\n```json\n{"text": "</think>"}\n```',
        "Its template:\n```\n<think>\nreasoning\n</think>\nanswer\n```\nThat is all.",
        "~~~\n</think>\n~~~",
        "It writes `<think>` and `</think>`.",
        "`<think>` begins it.",
        "A trace ends with </think> as a rule.",
        'Models write "<think>…</think>" first.',
        "Models write <think>…</think> first.",
        "They open with the tag\n<think> and close with </think> later.",
        "1 < 2 </b>",
        "First line.\nThe template opens with\n<think>\nand the answer follows.",
        "It is so.\n\nIn the middle:\n<think>\nThe rest of it is kept.",
    ],
)
def test_trace_tags_in_code_or_sentences_are_kept(reply: str) -> None:
    assert visible_text(reply) == reply


def test_trace_without_an_end_tag_after_a_short_line_is_removed() -> None:
    assert visible_text("loading model\n\n<think>\nHm.") == "loading model"


def test_trace_without_a_start_tag_that_ends_on_the_answer_line_is_removed() -> None:
    assert visible_text("I should weigh both. </think> The answer is yes.") == "The answer is yes."
    assert visible_text("reasoning </think> The answer") == "The answer"


TEXTS = st.text(
    st.characters(
        exclude_categories=["Cc", "Cs"], exclude_characters="\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )
)
TEXTS_WITH_TAGS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<thinking>", "</reasoning>", "\n", " ", "```", "`", '"', "{", "}", "a", "ä."]
    )
).map("".join)


@given(TEXTS_WITH_TAGS | TEXTS)
def test_json_string_with_any_text_is_unchanged_by_trace_removal(text: str) -> None:
    reply = json.dumps({"points": [text], "text": "x" + text})
    assert visible_text(reply) == reply
    assert parse_reply(reply, View) == View(points=[text], text="x" + text)
    fenced = f"```json\n{reply}\n```"
    assert visible_text(fenced) == fenced
    assert parse_reply(fenced, View) == View(points=[text], text="x" + text)


@given(st.text(st.characters(exclude_characters="<")), TEXTS_WITH_TAGS | TEXTS)
def test_reply_after_any_trace_is_read(trace: str, text: str) -> None:
    reply = json.dumps({"text": "x" + text})
    assert visible_text(f"<think>{trace}</think>\n{reply}") == reply
    assert parse_reply(f"<think>{trace}</think>\n{reply}", View) == View(text="x" + text)


@given(TEXTS_WITH_TAGS)
def test_trace_removal_is_idempotent(text: str) -> None:
    once = visible_text(text)
    assert visible_text(once) == once


@pytest.mark.parametrize(
    "piece", ["<think></think>", "a</think> ", "</think>\n", "<think>\n", '{"', '{"a": ', '{"a"}', "```\n", "`", "{"]
)
def test_long_reply_is_parsed_in_time(piece: str) -> None:
    began = time.process_time()
    with contextlib.suppress(Malformed):
        parse_reply(piece * (400_000 // len(piece)), View)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("brace", ["{ ", '{"a', "{\n"])
def test_long_reply_of_braces_is_malformed_within_seconds(brace: str) -> None:
    """Reading the rest of the text again at each brace takes minutes, then hours."""
    before = time.process_time()
    with pytest.raises(Malformed):
        parse_reply("Well: " + brace * 300_000, Verdict)
    assert time.process_time() - before < 20
