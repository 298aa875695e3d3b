"""What agent command lines print around a reply, as their pages describe it; none of them was run."""

from __future__ import annotations

import json

import pytest

from consilience.models.agent_output import AgentFailed, reply_of

RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "KEEP", "session_id": "s", "usage": {}}
EVENTS = [
    {"type": "system", "subtype": "init"},
    {"type": "assistant", "message": {"content": [{"text": "Hm."}]}},
    RESULT,
]
CODEX = [
    {"type": "thread.started", "thread_id": "t"},
    {"type": "item.completed", "item": {"id": "1", "type": "reasoning", "text": "Hm."}},
    {"type": "item.completed", "item": {"id": "2", "type": "agent_message", "text": "KEEP"}},
    {"type": "turn.completed", "usage": {"input_tokens": 1}},
]
OLDER_CODEX = [
    {"id": "0", "msg": {"type": "agent_message", "message": "KEEP"}},
    {"id": "0", "msg": {"type": "task_complete"}},
]
OPENCODE = [{"type": "step_start", "part": {}}, {"type": "text", "part": {"type": "text", "text": "KEEP"}}]


def lines(*events: object) -> str:
    return "\n".join(map(json.dumps, events))


@pytest.mark.parametrize(
    "output",
    [
        "KEEP\n",
        "\x1b[32mKEEP\x1b[0m\n",
        "Loaded cached credentials.\nKEEP\n",
        "Data collection is disabled.\nLoaded cached credentials.\n\nKEEP",
        json.dumps(RESULT),
        json.dumps(RESULT, indent=2),
        json.dumps(EVENTS),
        f"Update available: 2.0\n{json.dumps(RESULT)}\nBye.",
        lines(*EVENTS),
        lines(*CODEX),
        lines(*OLDER_CODEX),
        lines(*OPENCODE),
        json.dumps({"response": "KEEP", "stats": {"models": {}}}, indent=2),
        f"Loaded cached credentials.\n{json.dumps({'session_id': 's', 'response': 'KEEP'}, indent=2)}",
    ],
)
def test_reply_is_found_in_what_agents_print(output: str) -> None:
    assert reply_of(output) == "KEEP"


@pytest.mark.parametrize(
    ("output", "reply"),
    [
        ("KEEP\r\nit.\r\n", "KEEP\nit."),
        ("Thinking…\rDone.\rKEEP\n", "KEEP"),
        ("\x1bP1$r0m\x1b\\KEEP\x1b_x\x1b\\", "KEEP"),
    ],
)
def test_lines_are_read_as_a_terminal_shows_them(output: str, reply: str) -> None:
    assert reply_of(output) == reply


def test_structured_output_is_the_reply() -> None:
    assert json.loads(reply_of(json.dumps({**RESULT, "structured_output": {"text": "KEEP"}}))) == {"text": "KEEP"}


@pytest.mark.parametrize(
    "output",
    [
        '{"text": "KEEP"}',
        '{"response": "KEEP"}',
        '{"type": "result", "points": []}',
        '{"type": "text", "text": "KEEP"}',
        "It said: Loaded cached credentials.\nKEEP",
        "KEEP\nLoaded cached credentials.",
        '{"a": 1}\n{"b": 2}',
        '[{"text": "KEEP"}]',
    ],
)
def test_other_output_is_the_reply_unchanged(output: str) -> None:
    assert reply_of(output) == output


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (json.dumps({**RESULT, "is_error": True, "result": "Credit balance is too low"}), "Credit balance"),
        (json.dumps({"type": "result", "subtype": "error_max_turns", "is_error": False}), "error_max_turns"),
        (lines(CODEX[0], {"type": "turn.failed", "error": {"message": "usage limit reached"}}), "usage limit"),
        (json.dumps({"error": {"type": "ApiError", "message": "quota exceeded"}, "session_id": "s"}), "quota exceeded"),
    ],
)
def test_failure_that_an_agent_reports_keeps_its_words(output: str, words: str) -> None:
    with pytest.raises(AgentFailed, match=words):
        reply_of(output)
