"""`/v1/responses` with the official client: the response is a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from cli.loopback import MODEL, Provider, environment, provider
from server.inprocess import SETTINGS, Chat, chatting

VOTE, VOTES = "consilience/vote", 5
QUESTION = "Is a bridge better than a ferry?"
PEOPLE = {"consilience": {"models": ["human"], "settings": {"votes": 2}}}


@pytest.fixture
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    with provider() as found:
        for name, value in (environment(found.url) | {"OPENAI_API_KEY": "none-needed"}).items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def server(there: Provider) -> Iterator[Chat]:
    with chatting() as found:
        yield found


def respond(server: Chat, **more: Any) -> Any:
    return server.client.responses.create(**{"model": VOTE, "input": QUESTION, **more})


def read_events(stream: Any) -> list[Any]:
    return list(stream)


def test_response_has_the_answer_and_its_usage_and_a_repetition_is_paid_once(there: Provider, server: Chat) -> None:
    response = respond(server)
    assert response.status == "completed"
    assert "the answer is yes" in response.output_text
    transcript = [part.text for part in response.output[0].summary]
    assert sum(text.startswith("**Answer · ") for text in transcript) == VOTES
    assert response.usage.input_tokens == 12 * VOTES
    assert respond(server).id == response.id
    assert server.client.responses.retrieve(response.id).output_text == response.output_text
    assert len(there.asked) == VOTES


def test_stream_is_numbered_and_can_be_read_on_from_a_number(server: Chat) -> None:
    events = read_events(respond(server, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    response = events[-1].response
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == response.output_text
    reasoning = [event.text for event in events if event.type == "response.reasoning_summary_text.done"]
    assert sum(text.startswith("**Answer · ") for text in reasoning) == VOTES
    assert [part.text for part in response.output[0].summary] == reasoning
    for after in (0, 7, len(events) - 2):
        again = read_events(server.client.responses.retrieve(response.id, stream=True, starting_after=after))
        assert [(event.type, event.sequence_number) for event in again] == [
            (event.type, event.sequence_number) for event in events[after + 1 :]
        ]


def test_background_response_is_in_progress_then_completed_in_another_server_too(there: Provider) -> None:
    with chatting() as server:
        there.open.clear()
        response = respond(server, background=True)
        there.arrived.wait()
        assert server.client.responses.retrieve(response.id).status in ("queued", "in_progress")
        there.open.set()
        events = read_events(server.client.responses.retrieve(response.id, stream=True))
        assert events[-1].response.status == "completed"
    with chatting() as server:
        again = server.client.responses.retrieve(response.id)
        assert again.usage == events[-1].response.usage
        assert "the answer is yes" in again.output_text
    assert len(there.asked) == VOTES


def test_background_response_is_cancelled(there: Provider, server: Chat) -> None:
    there.open.clear()
    response = respond(server, background=True)
    there.arrived.wait()
    cancelled = server.client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert server.client.responses.cancel(response.id).status == "cancelled"


def test_response_that_waits_for_a_person_is_incomplete_with_a_link(server: Chat) -> None:
    response = respond(server, background=True, extra_body=PEOPLE)
    session = response.metadata["session"]
    while (response := server.client.responses.retrieve(response.id)).status in ("queued", "in_progress"):
        pass
    assert response.status == "incomplete"
    assert session in response.incomplete_details.url
    assert server.client.responses.cancel(response.id).status == "cancelled"


def test_previous_response_id_makes_a_follow_up_of_one_call(there: Provider, server: Chat) -> None:
    first = respond(server)
    second = respond(server, input="And why?", previous_response_id=first.id)
    third = respond(server, input="And when?", previous_response_id=second.id)
    assert len(there.asked) == VOTES + 2
    session = first.metadata["session"]
    assert f"to session {session} ·" in third.output_text
    assert f"the answer of session {session}" in there.asked[-1]["messages"][-1]["content"]
    respond(server, input="/new And a tunnel?", previous_response_id=third.id)
    assert len(there.asked) == 2 * VOTES + 2


def test_an_item_is_referred_to_by_its_id(there: Provider, server: Chat) -> None:
    """As Vercel's AI SDK does, which takes the output of a response for stored."""
    first = respond(server, stream=True)
    items = [{"type": "item_reference", "id": item.id} for item in read_events(first)[-1].response.output]
    assert len(items) == 2
    more = [{"role": "user", "content": QUESTION}, *items, {"role": "user", "content": "And why?"}]
    assert "*Follow-up [" in respond(server, input=more).output_text
    assert len(there.asked) == VOTES + 1


CODEX: dict[str, Any] = {
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "You are a coding agent running in the Codex CLI. " * 300}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "# AGENTS.md instructions for /proj\n\nBe brief."},
                {"type": "input_text", "text": "<environment_context>\n  <cwd>/proj</cwd>\n</environment_context>"},
            ],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}},
        {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.", "tools": []},
        {"type": "web_search"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a22407",
    "extra_body": {"client_metadata": {"thread_id": "01a22407", "session_id": "01a22407"}},
}
"""What Codex 0.171 sends, as recorded, with shorter texts and fewer tools. Its system prompt is in a developer message."""


def test_requests_in_the_form_of_codex_deliberate_and_then_follow_up(there: Provider, server: Chat) -> None:
    first = read_events(respond(server, **CODEX))[-1].response
    assert "tools of the request have no effect" in first.output_text
    prompt = there.asked[0]["messages"][-1]["content"]
    assert f"# Task\n{QUESTION}" in prompt
    assert "Be brief." in prompt
    assert "coding agent" not in prompt
    assert "system prompt, which says how to use them, was left out" in first.output_text
    items = [item.model_dump(exclude_none=True) for item in first.output]
    more = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And why?"}]}
    second = read_events(respond(server, **{**CODEX, "input": [*CODEX["input"], *items, more]}))[-1].response
    assert "*Follow-up [" in second.output_text
    assert len(there.asked) == VOTES + 1


def test_what_is_not_supported_or_not_there_is_refused_in_the_providers_form(there: Provider, server: Chat) -> None:
    with pytest.raises(openai.NotFoundError):
        server.client.responses.retrieve("resp_r00_x")
    with pytest.raises(openai.BadRequestError, match="input_image"):
        respond(server, input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}])
    with pytest.raises(openai.BadRequestError, match=r"text\.format"):
        respond(server, text={"format": {"type": "json_object"}})
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        respond(server, tools=CODEX["tools"], tool_choice="required")
    with pytest.raises(openai.BadRequestError, match="conversation is not supported"):
        respond(server, conversation="conv_1")
    with pytest.raises(openai.BadRequestError, match="no helper requests"):
        respond(server, max_output_tokens=16)
    assert there.asked == []


def test_helper_request_is_one_call_of_the_helper_model(there: Provider) -> None:
    with chatting(SETTINGS.model_copy(update={"helper_model": MODEL})) as server:
        assert "the answer is yes" in respond(server, max_output_tokens=16).output_text
        events = read_events(respond(server, max_output_tokens=16, stream=True))
        assert "the answer is yes" in server.client.responses.retrieve(events[-1].response.id).output_text
    assert events[-1].response.output_text == "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert [item.type for item in events[-1].response.output] == ["message"]
    assert len(there.asked) == 1  # a repetition is not paid for again
