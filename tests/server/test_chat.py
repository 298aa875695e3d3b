"""Chat completions with the official client: what they answer, what is paid, what they refuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from cli.loopback import MODEL, Provider, environment, prose, provider
from consilience.reporting.record import read_record
from consilience.server import joins
from consilience.server.chat_bodies import HELPER_TOKENS
from consilience.server.settings import Preset, ServerSettings
from consilience.testing import ScriptedModel
from kit.forks import PYTHONPATH
from server.inprocess import SETTINGS, Chat, behind_proxy, chatting, client_of, listening, served, url_of
from server.served import typed

VOTE = "consilience/vote"
VOTES = 5
Messages = list[dict[str, Any]]


def asking(*texts: str) -> Messages:
    """A conversation; the user begins."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


QUESTION = asking("Is a bridge better than a ferry?")


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


def complete(server: Chat, messages: Messages = QUESTION, model: str = VOTE, **more: Any) -> str:
    answer = server.client.chat.completions.create(model=model, messages=messages, **more)
    return str(answer.choices[0].message.content)


def session_of(answer: str) -> str:
    """The session that the last line of an answer names."""
    return answer.rsplit("\n", 1)[-1].partition("[")[2].partition("]")[0]


# --- models and the forms of an answer


def test_models_lists_ask_protocols_and_presets_but_no_part_of_another_request(there: Provider) -> None:
    settings = ServerSettings(models=(MODEL,), presets={"board-paper": Preset(protocol="vote", settings={"votes": 2})})
    with chatting(settings) as server:
        names = [model.id for model in server.client.models.list()]
        assert {"consilience/ask", "consilience/debate", "consilience/board-paper"} <= set(names)
        assert not {"consilience/choose", "consilience/propose", "consilience/review"} & set(names)
        assert server.client.models.retrieve("consilience/board-paper").owned_by == "consilience"
        complete(server, model="consilience/board-paper")
        assert len(there.asked) == 2


def test_completion_has_the_answer_its_transcript_its_usage_and_names_its_session(server: Chat) -> None:
    raw = server.client.chat.completions.with_raw_response.create(model=VOTE, messages=QUESTION)  # type: ignore[arg-type]
    answer = raw.parse()
    text = str(answer.choices[0].message.content)
    assert "the answer is yes" in text
    assert raw.headers["X-Consilience-Session"] == session_of(text)
    assert text.rsplit("\n", 1)[-1].startswith(f"*Session [{session_of(text)}](http://127.0.0.1:")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12 * VOTES, 3 * VOTES)
    reasoning = getattr(answer.choices[0].message, "reasoning_content", "")
    assert reasoning.count(f"**Answer · respondent (V2) · {MODEL}**") == 1


def test_stream_has_the_transcript_as_reasoning_and_usage_only_if_asked_for(server: Chat) -> None:
    def read(**more: Any) -> tuple[str, str, list[Any]]:
        reasoning, content, usages = "", "", []
        for chunk in server.client.chat.completions.create(model=VOTE, messages=QUESTION, stream=True, **more):  # type: ignore[call-overload]
            usages += [chunk.usage] if chunk.usage else []
            for choice in chunk.choices:
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                content += choice.delta.content or ""
        return reasoning, content, usages

    reasoning, content, usages = read()
    assert reasoning.count("**Answer · ") == VOTES
    assert content == complete(server)
    assert usages == []
    again, _, (usage,) = read(stream_options={"include_usage": True})
    assert again == reasoning
    assert usage.total_tokens == 15 * VOTES


def test_agents_without_a_reply_are_counted_above_the_answer(there: Provider, server: Chat) -> None:
    def failing(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        return prose(body, headers) if len(there.asked) > 2 else (400, {"error": {"message": "no"}})

    there.answer = failing
    assert complete(server).startswith("**Finished · 3 of 5 agents replied")


# --- paid once


def test_one_request_posted_three_times_at_once_and_again_is_one_session(there: Provider, server: Chat) -> None:
    there.open.clear()
    with ThreadPoolExecutor(3) as pool:
        posts = [pool.submit(complete, server) for _ in range(3)]
        there.arrived.wait()
        there.open.set()
        answers = {post.result() for post in posts}
    assert answers == {complete(server)}
    assert len(there.asked) == VOTES


def test_a_request_that_differs_in_model_settings_or_seed_is_another_session(server: Chat) -> None:
    settings = {"consilience": {"settings": {"votes": 2}}}
    answers = [
        complete(server),
        complete(server, seed=1),
        complete(server, extra_body=settings),
        complete(server, model="consilience/solo"),
    ]
    assert len({session_of(answer) for answer in answers}) == len(answers)


def test_a_request_repeated_after_the_time_of_joining_is_a_new_session(
    server: Chat, there: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = complete(server)
    monkeypatch.setattr(joins, "JOIN_SECONDS", -1)
    second = complete(server)
    assert session_of(first) != session_of(second)
    assert len(there.asked) == 2 * VOTES


def test_a_client_that_goes_away_does_not_stop_the_session(there: Provider, server: Chat) -> None:
    there.open.clear()
    stream = server.client.chat.completions.create(model=VOTE, messages=QUESTION, stream=True)  # type: ignore[call-overload]
    next(iter(stream))
    there.arrived.wait()
    stream.close()
    there.open.set()
    assert "the answer is yes" in complete(server)
    assert len(there.asked) == VOTES


PROGRAM = """
import socket, sys, uvicorn
from consilience.server.app import build_app
from consilience.server.run import serving
from consilience.server.settings import ServerSettings
with serving(ServerSettings(models=(sys.argv[2],))) as sessions:
    uvicorn.Server(uvicorn.Config(build_app(sessions), log_level="warning")).run(
        sockets=[socket.socket(fileno=int(sys.argv[1]))]
    )
"""


@pytest.mark.processes
def test_a_server_killed_in_mid_run_goes_on_and_the_repeated_request_is_paid_once(there: Provider, home: Path) -> None:
    kept = ("PATH", "HOME", "CONSILIENCE_HOME", "OPENAI_BASE_URL", "OPENAI_API_KEY", "CONSILIENCE_FREE_ENDPOINTS")
    env = {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": PYTHONPATH}
    messages, settings = asking("Is it so?"), {"consilience": {"settings": {"children": 2, "max_rounds": 2}}}
    with listening() as listener, client_of(url_of(listener)) as client:

        def start() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", PROGRAM, str(listener.fileno()), MODEL]
            return subprocess.Popen(command, env=env, pass_fds=[listener.fileno()])

        def post() -> Any:
            return client.chat.completions.create(model="consilience/emergence", messages=messages, extra_body=settings)  # type: ignore[call-overload]

        first = start()
        with ThreadPoolExecutor(1) as pool:

            def hold_the_third(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
                if len(there.asked) == 3:
                    first.send_signal(signal.SIGKILL)
                return prose(body, headers)

            there.answer = hold_the_third
            lost = pool.submit(post)
            with pytest.raises(openai.APIConnectionError):
                lost.result()
        first.wait()
        before = len(there.asked)
        second = start()
        try:
            answer = post()
            report = post()
        finally:
            second.terminate()
            second.wait()
    assert answer.choices[0].message.content == report.choices[0].message.content
    expected = answer.usage.prompt_tokens // 12
    in_flight = 2  # at most both leaves were being asked as the server died
    assert before >= 3
    assert len(there.asked) <= expected + in_flight


# --- conversations


def test_five_follow_ups_are_five_calls_and_read_the_answer(there: Provider, server: Chat) -> None:
    messages = list(QUESTION)
    first = complete(server, messages)
    messages += [{"role": "assistant", "content": first}]
    for n in range(5):
        messages += asking(f"And why, for the time {n}?")
        answer = complete(server, messages)
        assert f"to session {session_of(first)} ·" in answer
        messages += [{"role": "assistant", "content": answer}]
    assert len(there.asked) == VOTES + 5
    prompt = there.asked[-1]["messages"][-1]["content"]
    assert f"the answer of session {session_of(first)}" in prompt
    assert "And why, for the time 3?" in prompt
    assert "consilience/vote ·" not in prompt  # last lines of answers are no part of what was said


def test_what_would_overturn_the_answer_stands_below_it_and_is_read_by_a_follow_up(
    there: Provider, server: Chat
) -> None:
    def overturned(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        status, answer = typed(body, headers)
        message = answer["choices"][0]["message"]  # type: ignore[index]
        value = json.loads(message["content"])
        if "would_change" in value:
            message["content"] = json.dumps(value | {"would_change": ["If it rains, no."]})
        return status, answer

    there.answer = overturned
    settings = {"consilience": {"settings": {"children": 2, "max_rounds": 1}}}
    answer = complete(server, model="consilience/emergence", extra_body=settings)
    assert "**What would overturn it:**" in answer
    there.answer = prose
    messages = [*QUESTION, {"role": "assistant", "content": answer}, *asking("And why?")]
    complete(server, messages, model="consilience/emergence", extra_body=settings)
    prompt = there.asked[-1]["messages"][-1]["content"]
    assert f"what would overturn the answer of session {session_of(answer)}" in prompt


def test_documents_keep_their_numbers_in_a_follow_up_and_answers_name_those_they_quote(
    there: Provider, server: Chat
) -> None:
    def quoting(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        status, answer = prose(body, headers)
        answer["choices"][0]["message"]["content"] = 'It was "decided in May" [S1:1].'  # type: ignore[index]
        return status, answer

    there.answer = quoting
    parts = [{"type": "text", "text": "It was decided in May."}, {"type": "text", "text": "When was it decided?"}]
    messages = [{"role": "user", "content": parts}]
    answer = complete(server, messages, model="consilience/solo")
    assert "*S1: part 1 of the message*" in answer
    messages += [{"role": "assistant", "content": answer}, *asking("And why?")]
    assert "*S1: part 1 of the message*" in complete(server, messages, model="consilience/solo")
    assert "document S1>\npart 1 of the message" in there.asked[-1]["messages"][-1]["content"]


def test_new_or_another_model_deliberates_on_the_conversation(there: Provider, server: Chat) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": complete(server)}]
    complete(server, messages + asking("/new And a tunnel?"))
    assert len(there.asked) == 2 * VOTES
    prompt = there.asked[-1]["messages"][-1]["content"]
    assert "the conversation so far" in prompt
    assert "Is a bridge better" in prompt
    assert "/new" not in prompt
    complete(server, messages + asking("And a tunnel?"), model="consilience/solo")
    assert len(there.asked) == 2 * VOTES + 1


def test_an_answer_of_another_program_begins_a_deliberation(there: Provider, server: Chat) -> None:
    complete(server, asking("Hello", "Good day.", "Is it so?"))
    assert len(there.asked) == VOTES


def test_system_prompt_is_a_source_of_its_own_of_follow_ups_too(there: Provider, server: Chat) -> None:
    messages = [{"role": "system", "content": "Answer in German."}, *QUESTION]
    answer = complete(server, messages)
    complete(server, [*messages, {"role": "assistant", "content": answer}, *asking("And why?")])
    for asked in (there.asked[0], there.asked[-1]):
        prompt = asked["messages"][-1]["content"]
        assert "standing instructions for the answer" in prompt
        assert "1| Answer in German." in prompt
    assert "the conversation so far" not in there.asked[0]["messages"][-1]["content"]


def test_follow_up_to_a_session_that_was_removed_is_refused(there: Provider, server: Chat) -> None:
    answer = complete(server)
    forged = answer.replace(session_of(answer), "r00000000")
    with pytest.raises(openai.NotFoundError) as refused:
        complete(server, [*QUESTION, {"role": "assistant", "content": forged}, *asking("And why?")])
    assert refused.value.code == "session_not_found"
    assert "journal.db" not in str(refused.value)
    assert len(there.asked) == VOTES


def test_ask_reads_the_task_in_one_call_and_chooses_and_is_paid_once(there: Provider, server: Chat) -> None:
    def reading(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        status, answer = prose(body, headers)
        if "shape" in json.dumps(body):
            assert isinstance(answer, dict)
            read = {"kind": "answer", "divides": False, "record": False, "shape": "one", "why": "it is short"}
            answer["choices"][0]["message"]["content"] = json.dumps(read)
        return status, answer

    there.answer = reading
    answer = server.client.chat.completions.create(model="consilience/ask", messages=QUESTION)  # type: ignore[arg-type]
    calls = len(there.asked)
    assert "solo: 1 agent" in getattr(answer.choices[0].message, "reasoning_content", "")
    assert "it is short" in getattr(answer.choices[0].message, "reasoning_content", "")
    assert complete(server, model="consilience/ask") == answer.choices[0].message.content
    assert len(there.asked) == calls


def test_ask_whose_reading_fails_answers_a_plain_question(server: Chat) -> None:
    assert "the answer is yes" in complete(server, model="consilience/ask")


# --- helper requests

TITLE = "### Task:\nGenerate a concise, 3-5 word title.\n### Chat History:\n<chat_history>\nUSER: Hi\n</chat_history>"
HELPERS = (
    {"messages": asking(TITLE)},
    {"messages": asking("Is it so?"), "max_tokens": 16},
    {
        "messages": [
            {"role": "system", "content": "You are a professional conversation summarizer. Generate a concise title."},
            *asking("user: Hi"),
        ]
    },
    {  # opencode 1.18, as recorded
        "messages": [
            {"role": "system", "content": "You are a title generator. You output ONLY a thread title. Nothing else."},
            *asking("Generate a title for this conversation:\n"),
            *asking('"bridge or ferry?"\n'),
        ],
        "max_tokens": 32_000,
    },
)


@pytest.mark.parametrize("request_", HELPERS)
def test_helper_request_is_refused_in_a_sentence_without_a_helper_model(
    request_: dict[str, Any], there: Provider, server: Chat
) -> None:
    with pytest.raises(openai.BadRequestError, match="no helper requests"):
        complete(server, **request_)
    assert there.asked == []


HELPED = SETTINGS.model_copy(update={"helper_model": "openai-chat:cheap"})


@pytest.mark.parametrize("request_", HELPERS)
@pytest.mark.parametrize("model", [VOTE, "gpt-5"])  # some programs name a model of their own choice
def test_helper_request_is_one_recorded_call_of_the_helper_model(
    model: str, request_: dict[str, Any], there: Provider
) -> None:
    with chatting(HELPED) as server:
        answer = complete(server, model=model, **request_)
        streamed = server.client.chat.completions.create(model=model, **request_, stream=True)
        chunks = [choice.delta for chunk in streamed for choice in chunk.choices]
        assert "".join(chunk.content or "" for chunk in chunks) == answer
        assert not any(getattr(chunk, "reasoning_content", "") for chunk in chunks)
        (session,) = server.sessions._store.sessions()
        report = read_record(server.sessions._store, session).report
    assert "the answer is yes" in answer
    assert "*Session" not in answer
    (asked,) = there.asked  # a repetition is not paid for again
    assert asked["model"] == "cheap"
    assert request_["messages"][-1]["content"] in asked["messages"][-1]["content"]
    assert report is not None
    assert (report.ledger.actual.calls, report.protocol) == (1, "solo")
    assert report.settings["reply_tokens"] in HELPER_TOKENS


def test_helper_request_counts_against_what_its_owner_may_spend(
    there: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONSILIENCE_FREE_ENDPOINTS")
    access, tokens = behind_proxy(tmp_path, "anna")
    rights = access.token_file
    assert rights is not None
    rights.write_text(f"{rights.read_text()}max_cost_per_day = 1.0\n")
    with served(tmp_path, HELPED, access=access) as server, server.official_client(tokens["anna"]) as client:
        with pytest.raises(openai.PermissionDeniedError, match="may spend at most"):
            client.chat.completions.create(model=VOTE, messages=HELPERS[0]["messages"])
        assert server.store.sessions() == []
    assert there.asked == []


def test_helper_model_that_fails_is_an_error_with_the_reason(there: Provider) -> None:
    there.answer = lambda body, headers: (400, {"error": {"message": "no such deployment"}})
    with chatting(HELPED) as server, pytest.raises(openai.InternalServerError, match="no such deployment") as failed:
        complete(server, **HELPERS[0])
    assert failed.value.code == "helper_failed"


# --- errors of the server, not of the conversation


def test_refusals_of_the_gate_are_the_official_clients_errors_with_our_words(there: Provider, tmp_path: Path) -> None:
    access, tokens = behind_proxy(tmp_path, "anna")
    settings = ServerSettings(models=(MODEL,), max_body=2_000, running=1, waiting=0)
    with served(tmp_path, settings, access=access) as server:

        def refusal(token: str, kind: type[openai.APIStatusError], **sent: str) -> openai.APIStatusError:
            with server.official_client(token, **sent) as client, pytest.raises(kind) as refused:
                client.chat.completions.create(model=VOTE, messages=QUESTION)
            return refused.value

        unknown = refusal("cons_wrong", openai.AuthenticationError)
        assert (unknown.type, unknown.code) == ("authentication_error", "invalid_api_key")
        assert "no valid token. Send Authorization: Bearer TOKEN" in unknown.message
        foreign = refusal(tokens["anna"], openai.PermissionDeniedError, Origin="https://evil.example")
        assert (foreign.type, foreign.code) == ("permission_error", "not_allowed")
        assert "a page of another site" in foreign.message
        assert "has another name" in refusal(tokens["anna"], openai.APIStatusError, Host="evil.example").message
        with server.official_client(tokens["anna"]) as client:
            with pytest.raises(openai.APIStatusError, match="more than 2,000 bytes") as long:
                client.chat.completions.create(model=VOTE, messages=asking("x" * 3_000))
            assert (long.value.status_code, long.value.code) == (413, "request_too_large")
            with pytest.raises(openai.NotFoundError):
                client.embeddings.create(model="x", input="y")
            with pytest.raises(openai.BadRequestError, match="levels deep"):
                client.post("/chat/completions", cast_to=object, body={"messages": nested(40)})
            there.open.clear()
            try:
                with pytest.raises(openai.RateLimitError, match="wait for their turn") as full:
                    begin_many(client)
            finally:
                there.open.set()
            assert (full.value.type, full.value.code) == ("rate_limit_error", "rate_limit_exceeded")
            assert int(full.value.response.headers["retry-after"]) > 0


def begin_many(client: openai.OpenAI) -> None:
    """Begin sessions until there is no room: one runs, one waits."""
    for n in range(9):
        client.responses.create(model=VOTE, input=f"Is it so {n}?", background=True)


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else []


# --- what is refused


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("logit_bias", {"1": 1}),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["audio"]),
        ("tool_choice", "required"),  # pydantic-ai, for an answer with fields
    ],
)
def test_unsupported_parameter_is_refused_by_name(param: str, value: object, there: Provider, server: Chat) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(server, extra_body={param: value})
    assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")
    assert there.asked == []


def test_invalid_bodies_have_the_providers_form(server: Chat) -> None:
    with pytest.raises(openai.BadRequestError) as invalid:
        complete(server, extra_body={"consilience": {"nonsense": 1}})
    assert invalid.value.param == "consilience.nonsense"
    with pytest.raises(openai.NotFoundError) as unknown:
        complete(server, model="gpt-5")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="votes"):
        complete(server, extra_body={"consilience": {"settings": {"votes": 0}}})


def test_text_parts_are_sources_and_others_are_refused_by_name(there: Provider, server: Chat) -> None:
    parts = [{"type": "text", "text": "The minutes of May."}, {"type": "text", "text": "What was decided?"}]
    complete(server, [{"role": "user", "content": parts}])
    prompt = there.asked[-1]["messages"][-1]["content"]
    assert "# Task\nWhat was decided?" in prompt
    assert "1| The minutes of May." in prompt
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    file = {"type": "file", "file": {"filename": "minutes.pdf", "file_data": "AA=="}}
    for part, name in ((image, "image_url"), (file, "minutes.pdf")):
        with pytest.raises(openai.BadRequestError, match=name):
            complete(server, [{"role": "user", "content": [part, *parts]}])


def test_tools_are_ignored_with_a_sentence(server: Chat) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    assert "tools of the request have no effect" in complete(server, tools=[tool])


def test_only_a_short_system_prompt_counts_beside_tools(there: Provider, server: Chat) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    for system, counts in (("Answer in German.", True), ("To edit a file, call the tool. " * 200, False)):
        answer = complete(server, [{"role": "system", "content": system}, *QUESTION], tools=[tool])
        assert (system.strip() in there.asked[-1]["messages"][-1]["content"]) == counts
        assert ("system prompt, which says how to use them, was left out" in answer) != counts


def test_a_run_that_fails_is_an_error_in_mid_stream_and_goes_on_when_it_can(there: Provider) -> None:
    with chatting(models=ScriptedModel(lambda request: "no", name="another")) as server:
        with pytest.raises(openai.APIError, match="begun with other models") as failed:
            for _ in server.client.chat.completions.create(model=VOTE, messages=QUESTION, stream=True):  # type: ignore[call-overload]
                pass
        assert failed.value.type == "server_error"
        with pytest.raises(openai.InternalServerError, match="begun with other models"):
            complete(server)
    with chatting() as server:
        assert "the answer is yes" in complete(server)
    assert len(there.asked) == VOTES
