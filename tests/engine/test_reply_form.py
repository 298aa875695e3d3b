"""Replies of a broken form: marks of chat templates, sequences for terminals, JSON that only its writer takes for JSON."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from pydantic import BaseModel

from consilience.domain.messages import FreeText
from consilience.models.parsing import Malformed, parse_reply
from consilience.models.visible import visible_text


class View(BaseModel):
    points: list[str] = []
    text: FreeText


# --- marks of chat templates, sequences of terminals


@pytest.mark.parametrize(
    "mark", ["<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|endoftext|>", "<｜end▁of▁sentence｜>"]
)
@pytest.mark.parametrize("reply", ["The final answer.", '{"text": "The final answer."}'])
def test_end_mark_is_removed(mark: str, reply: str) -> None:
    for written in (f"{reply}{mark}", f"{reply} {mark}\n{mark}", f"{reply}{mark}<|im_start|>user\nAnother question?"):
        assert parse_reply(written, View).text == "The final answer."
        assert visible_text(written) == reply


def test_mark_of_the_own_turn_is_removed() -> None:
    assert visible_text("<|im_start|>assistant\nYes.<|im_end|>") == "Yes."


@pytest.mark.parametrize(
    "written",
    [
        "\x1b[32mKEEP\x1b[0m",
        "\x1b]0;agent\x07KEEP",
        "\x1b]8;;https://example.org\x1b\\KEEP\x1b]8;;\x1b\\",
        "\x1b[2K\x1b[1GKEEP\x1b[?25h",
        "\x9b1mKEEP\x9b0m",
        '\x1b[1m{"text": "KEEP"}\x1b[0m',
        '{"text": "\x1b[32mKEEP\x1b[0m"}',
        '{"text": "\\u001b[32mKEEP\\u001B[0m"}',
    ],
)
def test_sequences_for_a_terminal_are_removed(written: str) -> None:
    assert parse_reply(written, View).text == "KEEP"


@pytest.mark.parametrize("mark", ["\x00", "\x08", "\x0c", "\x7f", "\x90", "\u202e", "\u2066", "\u2069"])
def test_control_characters_are_removed_from_text_and_from_escapes_in_json(mark: str) -> None:
    escaped = json.dumps({"text": f"1.\tKE{mark}EP\n2."})
    for written in (f"1.\tKE{mark}EP\n2.", escaped, json.dumps({"text": f"1.\tKE{mark}EP\n2."}, ensure_ascii=False)):
        assert parse_reply(written, View).text == "1.\tKEEP\n2."
    assert visible_text(f"KE{mark}EP") == "KEEP"


def test_every_line_of_a_reply_ends_in_a_line_feed() -> None:
    assert visible_text("a\r\nb\rc") == "a\nb\nc"


# --- JSON of a broken form


@pytest.mark.parametrize(
    "reply",
    [
        '{"text": "yes", "points": ["a",],}',
        '{"text": "yes", // as asked\n "points": ["a"] /* one */}',
        '{ # the reply\n"text": "yes", "points": ["a"]}',
        "{'text': 'yes', 'points': ['a']}",
        '{text: "yes", points: ["a"]}',
        "{“text”: “yes”, “points”: [“a”]}",
        '{"text"：\u3000"yes"，"points": ["a"]}',
        '{"text": "yes", "points": ["a"], "mood": None, "sure": True}',
        '"{\\"text\\": \\"yes\\", \\"points\\": [\\"a\\"]}"',
        '```json\n{"text": "yes", "points": ["a"],}\n```',
        'Here it is: {"text": "yes", "points": ["a",]} Bye.',
        '<tool_call>\n{"name": "reply", "arguments": {"text": "yes", "points": ["a"]}}\n</tool_call>',
        '[TOOL_CALLS][{"name": "reply", "arguments": "{\\"text\\": \\"yes\\", \\"points\\": [\\"a\\"]}"}]',
        '<|python_tag|>{"name": "reply", "parameters": {"text": "yes", "points": ["a"]}}',
    ],
)
def test_json_of_a_form_with_one_reading_is_mended(reply: str) -> None:
    assert parse_reply(reply, View) == View(points=["a"], text="yes")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r'{"text": "It\'s \(x\)."}', r"It's \(x\)."),
        (r'{"text": "a snake\_case name"}', "a snake_case name"),
        (r'{"text": "\d+ and \u00e4"}', r"\d+ and ä"),
        (r'{"text": "say \"no\" \[1\]"}', r'say "no" \[1\]'),
        ("{'text': 'It's so, \"no\" less'}", 'It\'s so, "no" less'),
        ('{"text": "https://a.b/#c", }', "https://a.b/#c"),
    ],
)
def test_strings_of_mended_json_keep_what_they_say(written: str, text: str) -> None:
    assert parse_reply(written, View).text == text


@pytest.mark.parametrize(
    "reply",
    [
        '{"text": "yes" "points": ["a"]}',
        "{'text': 'the dogs', he said'}",
        '{"text": "yes", "text": "no",}',
        '{"text": "yes", "points": ["a",}',
        '{"text": "yes", "points": [1,],}',
        '{"text": "",}',
        '{"type": "object", "properties": {"text": {"type": "string"},},}',
        '{"name": "reply", "arguments": {"points": ["a"]}}',
    ],
)
def test_json_of_several_readings_or_wrong_content_is_malformed(reply: str) -> None:
    with pytest.raises(Malformed):
        parse_reply(reply, View)


def test_prose_with_braces_stays_prose() -> None:
    assert parse_reply("Use {x: 1} in the call.", View).text == "Use {x: 1} in the call."


def test_wellformed_object_counts_before_a_mended_one() -> None:
    assert parse_reply("{'text': 'mended'} {\"text\": \"strict\"} {'text': 'mended',}", View).text == "strict"


@pytest.mark.parametrize(
    "piece",
    ["{'a': [", "{a: {", "{ // x\n", "<|channel|>", "[THINK]", "[/THINK] ", "<|im_end|>", "</s> ", "\x1b]0;", "{'a' "],
)
def test_hostile_marks_are_read_in_linear_time(piece: str) -> None:
    begin = time.process_time()
    with contextlib.suppress(Malformed):
        parse_reply(piece * 30_000, View)
    assert time.process_time() - begin < 5
