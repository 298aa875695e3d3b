"""What real OpenAI-compatible servers answer, and what comes of it. The wordings are in `wordings.py`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import consilience
from consilience.domain.errors import ProviderError, RateLimited, Rejected, ServerError, Unreachable
from consilience.models.endpoints import Endpoints
from consilience.models.facts import ModelFacts
from consilience.models.limiter import Limited, Limiter, Pace, may_retry, requests_of
from consilience.models.parsing import parse_reply
from consilience.models.port import ModelRequest
from consilience.models.provider import ProviderModel
from consilience.models.providers import proxy_of
from consilience.models.registry import paid, resolve
from consilience.testing import MisbehavingServer
from consilience.testing import ServerRequest as Seen

from .misbehaving import KEY, Answer, Server, completion, misbehaving
from .wordings import (
    ERRORS_IN_A_200,
    LOADING,
    ODD_ANSWERS,
    OUTPUT_CAPS,
    REFUSED_SCHEMAS,
    REFUSED_SYSTEM,
    STREAMS,
    STREAMS_ONLY,
    WAITS,
)


class Verdict(BaseModel):
    text: str


GOOD = completion('{"text": "Keep it."}')


def request(**more: object) -> ModelRequest:
    fields: dict[str, object] = {"agent": "a", "key": "k", "system": "Be brief.", "user": "2+2?"}
    return ModelRequest(**{**fields, **more})  # type: ignore[arg-type]


def typed(**more: object) -> ModelRequest:
    return request(returns=Verdict, schema=Verdict.model_json_schema(), **more)


@asynccontextmanager
async def model_on(
    answer: Answer | Callable[[int], Answer], interface: str = "chat"
) -> AsyncIterator[tuple[ProviderModel, Server]]:
    async with misbehaving(answer) as server:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=KEY)
        library = (OpenAIChatModel if interface == "chat" else OpenAIResponsesModel)("stub", provider=provider)
        model = ProviderModel("openai-chat:stub", "openai", library)
        try:
            yield model, server
        finally:
            await model.close()


def refusing(
    server: list[Server], is_refused: Callable[[Seen], bool], status: int, body: object
) -> Callable[[int], Answer]:
    """Answers with the error as long as a request has the refused part. `server` holds the server, once it is there."""

    def answer(_: int) -> Answer:
        return Answer(status, body) if is_refused(server[0].seen[-1]) else GOOD

    return answer


def has_schema(seen: Seen) -> bool:
    return bool({"response_format", "tools"} & set(seen.body)) or "text" in seen.body


def asks_for_more_than(tokens: int) -> Callable[[Seen], bool]:
    return lambda seen: seen.body["max_completion_tokens"] > tokens


def roles(seen: Seen) -> list[str]:
    return [message["role"] for message in seen.body["messages"]]


def ids(table: tuple[tuple[object, ...], ...]) -> list[str]:
    return [str(row[0]) for row in table]


class TestRefusals:
    """A refused request is sent again without the refused part, and so are later ones. Nothing else is asked twice."""

    @pytest.mark.parametrize(("_maker", "status", "body"), REFUSED_SCHEMAS, ids=ids(REFUSED_SCHEMAS))
    async def test_refused_schema_is_asked_for_in_another_form(self, _maker: str, status: int, body: object) -> None:
        servers: list[Server] = []
        async with model_on(refusing(servers, has_schema, status, body)) as (model, server):
            servers.append(server)
            first, second = [await model.complete(typed()) for _ in range(2)]
        assert (first.text, second.text) == ('{"text": "Keep it."}',) * 2
        assert second.requests == 1
        assert first.requests <= 3
        assert "Verdict" in json.dumps(server.seen[-1].body["messages"])
        assert "form of replies" in " ".join(first.notes)
        assert second.notes == ()

    async def test_failed_grammar_is_not_tried_as_a_tool(self) -> None:
        """A server that cannot compile the schema cannot compile it for a tool either."""
        servers: list[Server] = []
        body = {"error": {"message": "Failed to parse grammar"}}
        async with model_on(refusing(servers, has_schema, 400, body)) as (model, server):
            servers.append(server)
            assert (await model.complete(typed())).requests == 2

    async def test_generation_that_fails_now_and_then_costs_no_reply(self) -> None:
        refusal = next(body for maker, _, body in REFUSED_SCHEMAS if maker == "groq")
        async with model_on(lambda n: Answer(400, refusal) if n % 2 else GOOD) as (model, _):
            patient = Limited(model, Limiter("openai", Pace(backoff_seconds=0.001)), deadline=20, retries=4)
            for _ in range(4):
                assert (await patient.complete(typed())).text == '{"text": "Keep it."}'

    @pytest.mark.parametrize(("_maker", "status", "body"), REFUSED_SYSTEM, ids=ids(REFUSED_SYSTEM))
    async def test_refused_system_role_is_put_before_the_prompt(self, _maker: str, status: int, body: object) -> None:
        servers: list[Server] = []
        answer = refusing(servers, lambda seen: roles(seen) != ["user"], status, body)
        async with model_on(answer) as (model, server):
            servers.append(server)
            first, second = [await model.complete(typed()) for _ in range(2)]
        assert (first.requests, second.requests) == (2, 1)
        (message,) = server.seen[-1].body["messages"]
        assert message["content"] == "Be brief.\n\n2+2?"
        assert "response_format" in server.seen[-1].body
        assert first.notes == ("instructions stand before the prompt, since the server takes no system role",)

    async def test_prompted_form_and_folded_instructions_go_together(self) -> None:
        servers: list[Server] = []

        def answer(_: int) -> Answer:
            seen = servers[0].seen[-1]
            if has_schema(seen):
                return Answer(400, {"error": "Failed to parse grammar"})
            return GOOD if roles(seen) == ["user"] else Answer(400, {"error": "System role not supported"})

        async with model_on(answer) as (model, server):
            servers.append(server)
            answered = await model.complete(typed())
        assert (answered.requests, len(answered.notes)) == (3, 2)
        assert roles(server.seen[-1]) == ["user"]
        assert "Verdict" in server.seen[-1].body["messages"][0]["content"]

    @pytest.mark.parametrize(("_maker", "status", "body", "limit"), OUTPUT_CAPS, ids=ids(OUTPUT_CAPS))
    async def test_limit_named_by_the_server_is_sent(self, _maker: str, status: int, body: object, limit: int) -> None:
        servers: list[Server] = []
        answer = refusing(servers, asks_for_more_than(limit), status, body)
        async with model_on(answer) as (model, server):
            servers.append(server)
            first = await model.complete(request(max_tokens=8192))
            await model.complete(request(max_tokens=100))
        assert (first.text, first.requests) == ('{"text": "Keep it."}', 2)
        assert [seen.body["max_completion_tokens"] for seen in server.seen] == [8192, limit, 100]

    async def test_output_limit_is_remembered_and_the_room_beside_a_prompt_is_not(self) -> None:
        bodies = {maker: (status, body, limit) for maker, status, body, limit in OUTPUT_CAPS}
        for maker, requests in (("openai", 1), ("openai context", 2)):
            status, body, limit = bodies[maker]
            servers: list[Server] = []
            answer = refusing(servers, asks_for_more_than(limit), status, body)
            async with model_on(answer) as (model, server):
                servers.append(server)
                first, second = [await model.complete(request(max_tokens=8192)) for _ in range(2)]
            assert second.requests == requests
            assert (first.notes == (f"replies have at most {limit} tokens, as the server demands",)) == (requests == 1)

    @pytest.mark.parametrize(
        "words",
        [
            "The prompt is too long: 9000 tokens, maximum context length is 8192 tokens",
            "max_tokens is too large: 8192",
            "max_tokens must be at most 10 tokens",
        ],
    )
    async def test_error_without_a_usable_limit_is_not_repeated(self, words: str) -> None:
        async with model_on(Answer(400, {"error": {"message": words, "code": 400}})) as (model, server):
            with pytest.raises(Rejected):
                await model.complete(request(max_tokens=8192))
        assert len(server.seen) == 1

    @pytest.mark.parametrize(("_maker", "status", "body"), STREAMS_ONLY, ids=ids(STREAMS_ONLY))
    async def test_server_that_only_streams_is_asked_for_a_stream(self, _maker: str, status: int, body: object) -> None:
        servers: list[Server] = []

        def answer(_: int) -> Answer:
            asked = servers[0].seen[-1].body.get("stream")
            return Answer(body=STREAMS["events"], headers=EVENTS) if asked is True else Answer(status, body)

        async with model_on(answer) as (model, server):
            servers.append(server)
            first, second = [await model.complete(request()) for _ in range(2)]
        assert (first.text, first.tokens_in, first.tokens_out) == ("Four.", 12, 3)
        assert (first.requests, second.requests) == (2, 1)
        assert first.notes == ("replies are read as a stream",)

    async def test_refusals_are_not_repeated_without_permission(self) -> None:
        async with model_on(Answer(400, {"error": "System role not supported"})) as (model, server):
            allowed = may_retry.set(lambda: False)
            with pytest.raises(Rejected, match="System role not supported"):
                await model.complete(request())
            may_retry.reset(allowed)
            assert len(server.seen) == 1

    @pytest.mark.parametrize("status", [401, 403, 429])
    async def test_errors_of_key_and_rate_change_no_request(self, status: int) -> None:
        body = {"error": {"message": "no access to json_schema, tools or the system role"}}
        async with model_on(Answer(status, body)) as (model, server):
            with pytest.raises(ProviderError):
                await model.complete(typed())
        assert len(server.seen) == 1

    async def test_what_was_learned_is_not_known_to_another_model(self) -> None:
        async with model_on(lambda n: Answer(400, {"error": "Failed to parse grammar"}) if n == 1 else GOOD) as (
            model,
            server,
        ):
            await model.complete(typed())
            provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=KEY)
            other = ProviderModel("openai-chat:stub", "openai", OpenAIChatModel("stub", provider=provider))
            await other.complete(typed())
            await other.close()
        assert ["response_format" in seen.body for seen in server.seen] == [True, False, True]

    async def test_adapted_requests_are_reported_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        servers: list[Server] = []
        answer = refusing(servers, lambda seen: roles(seen) != ["user"], 400, {"error": "System role not supported"})
        async with misbehaving(answer) as server:
            servers.append(server)
            name = f"{server.url}/v1#m"
            report = await consilience.deliberate("Is it so?", consilience.Vote(votes=2), model=name, store=None)
        (warning,) = [text for text in report.incidents if "adapted" in text]
        assert warning == (
            f"requests were adapted to the server of {name}: "
            "instructions stand before the prompt, since the server takes no system role"
        )
        assert len(report.missing) == 0


EVENTS = {"Content-Type": "text/event-stream"}


class TestAnswers:
    @pytest.mark.parametrize("body", ODD_ANSWERS.values(), ids=ODD_ANSWERS)
    async def test_text_of_an_odd_answer_is_read_at_once(self, body: object) -> None:
        async with model_on(Answer(body=body)) as (model, server):
            answer = await model.complete(request())
        assert (answer.text, answer.finish_reason, len(server.seen)) == ("Four.", "stop", 1)

    @pytest.mark.parametrize("interface", ["chat", "responses"])
    @pytest.mark.parametrize("body", STREAMS.values(), ids=STREAMS)
    async def test_streamed_answer_is_read_though_none_was_asked_for(self, body: bytes, interface: str) -> None:
        async with model_on(Answer(body=body, headers=EVENTS), interface) as (model, server):
            answer = await model.complete(request())
        assert (answer.text, answer.tokens_in, answer.tokens_out) == ("Four.", 12, 3)
        assert (answer.finish_reason, len(server.seen)) == ("stop", 1)

    @pytest.mark.parametrize(
        ("interface", "body"),
        [
            ("chat", b'data: {"choices":[{"delta":{"content":"Fou"}}]}\n\n'),
            ("responses", b'data: {"type":"response.output_text.delta","delta":"Fou"}\n\n'),
        ],
    )
    async def test_stream_without_an_end_is_a_cut_reply(self, interface: str, body: bytes) -> None:
        async with model_on(Answer(body=body, headers=EVENTS), interface) as (model, _):
            answer = await model.complete(request())
        assert (answer.text, answer.finish_reason) == ("Fou", "length")

    async def test_streamed_call_of_the_reply_tool_is_joined(self) -> None:
        first = {"index": 0, "id": "t", "function": {"name": "reply", "arguments": '{"text": '}}
        second = {"index": 0, "function": {"arguments": '"Keep it."}'}}
        chunks = [{"choices": [{"delta": {"tool_calls": [delta]}}]} for delta in (first, second)]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        async with model_on(Answer(body=body.encode(), headers=EVENTS)) as (model, _):
            assert json.loads((await model.complete(typed())).text) == {"text": "Keep it."}

    @pytest.mark.parametrize(
        "body",
        [
            {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Four."}]}]},
            {"output": [{"content": "Four."}], "id": None, "usage": {}, "created_at": 1.5},
            {"output_text": "Four.", "error": None, "usage": {"prompt_tokens": 1}},
            {"choices": [{"message": {"content": "Four."}}]},
            {
                "output": [
                    {"type": "reasoning", "id": "r", "summary": []},
                    {"content": [{"type": "text", "text": "Four."}]},
                ]
            },
            b'data: {"type":"response.output_text.delta","delta":"Fo"}\n\n'
            b'data: {"type":"response.output_text.delta","delta":"ur."}\n\n'
            b'data: {"type":"response.completed","response":{"id":"r","output":[]}}\n\n',
            b'data: {"type":"response.completed","response":{"output":[{"content":[{"type":"output_text","text":"Four."}]}]}}\n\n',
        ],
    )
    async def test_text_of_an_odd_response_is_read_at_once(self, body: object) -> None:
        async with model_on(Answer(body=body), "responses") as (model, server):
            answer = await model.complete(request())
        assert (answer.text, len(server.seen)) == ("Four.", 1)

    async def test_latin_1_text_is_read_as_it_was_meant(self) -> None:
        for headers in ({}, {"Content-Type": "application/json; charset=iso-8859-1"}):
            body = '{"choices":[{"message":{"content":"Größe: über 5 m²"}}]}'.encode("latin-1")
            async with model_on(Answer(body=body, headers=headers)) as (model, server):
                assert (await model.complete(request())).text == "Größe: über 5 m²"
            assert len(server.seen) == 1


class TestHostileAnswers:
    async def test_lone_surrogate_is_no_crash(self) -> None:
        body = b'{"model": "m", "choices": [{"message": {"content": "Yes \\ud800."}}]}'
        async with model_on(Answer(body=body)) as (model, _):
            assert (await model.complete(request())).text == "Yes \ufffd."

    async def test_halves_of_a_character_in_two_events_are_joined(self) -> None:
        half = '{{"choices": [{{"delta": {{"content": "{}"}}}}]}}'
        events = [half.format("Yes \\ud83d"), half.format("\\ude00"), "[DONE]"]
        async with model_on(Answer(events=[event.encode() for event in events])) as (model, _):
            assert (await model.complete(request())).text == "Yes \U0001f600"

    async def test_words_that_are_recorded_have_no_control_characters(self) -> None:
        answer = Answer(body={**GOOD.body, "model": "m\x1b[2J\x00\u202eb" + "x" * 500})  # type: ignore[dict-item]
        async with model_on(answer) as (model, _):
            answered = await model.complete(request())
        assert answered.model.startswith("openai-chat:m[2Jbxxx")
        assert len(answered.model) < 250

    async def test_many_small_events_are_read_fast(self) -> None:
        """The time must grow with the length of the reply, not with its square."""
        event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
        async with model_on(Answer(body=event * 100_000, headers=EVENTS)) as (model, _):
            answered = await model.complete(request())
        assert (answered.text, answered.finish_reason) == ("a" * 100_000, "length")

    @pytest.mark.parametrize("body", [b"[]" * 1_000_000, b"1 " * 1_000_000], ids=["arrays", "numbers"])
    async def test_many_values_are_refused_fast(self, body: bytes) -> None:
        async with model_on(Answer(body=body)) as (model, _):
            with pytest.raises(ServerError, match="it is no JSON"):
                await model.complete(request())

    async def test_reply_whole_before_the_connection_broke_is_paid_once(self) -> None:
        answer = Answer(body=GOOD.body, headers={"Content-Length": "5000"}, cut=5_000)
        async with model_on(answer) as (model, server):
            patient = Limited(model, Limiter("openai", Pace(backoff_seconds=0.001)), deadline=20, retries=4)
            assert (await patient.complete(typed())).text == '{"text": "Keep it."}'
        assert len(server.seen) == 1

    async def test_stream_that_broke_is_asked_again(self) -> None:
        body = b'data: {"choices":[{"delta":{"content":"Keep"}}]}\n\n'
        answer = Answer(body=body, headers={**EVENTS, "Content-Length": "5000"}, cut=5_000)
        async with model_on(answer) as (model, _):
            with pytest.raises(Unreachable, match="peer closed connection"):
                await model.complete(request())

    async def test_only_settings_that_were_sent_are_left_out(self) -> None:
        refusal = {"error": {"message": "seed, temperature and thinking are not supported"}}
        async with model_on(Answer(400, refusal)) as (model, server):
            with pytest.raises(Rejected):
                await model.complete(request())
        assert len(server.seen) == 1

    async def test_broken_form_in_a_call_is_mended(self) -> None:
        """What the server made of the reply is not another object."""
        call = {"id": "c", "type": "function", "function": {"name": "reply", "arguments": "{'text': 'Keep it.',}"}}
        async with model_on(completion(None, finish="tool_calls", tool_calls=[call])) as (model, _):
            answered = await model.complete(typed())
        assert parse_reply(answered.text, Verdict) == Verdict(text="Keep it.")


class TestErrors:
    @pytest.mark.parametrize("interface", ["chat", "responses"])
    @pytest.mark.parametrize(("_maker", "body", "kind", "words"), ERRORS_IN_A_200, ids=ids(ERRORS_IN_A_200))
    async def test_error_in_a_200_keeps_the_providers_words(
        self, _maker: str, body: object, kind: str, words: str, interface: str
    ) -> None:
        async with model_on(Answer(body=body), interface) as (model, _):
            with pytest.raises(ProviderError) as caught:
                await model.complete(request())
        assert type(caught.value).__name__ == kind
        assert words in caught.value.detail
        assert "validation error" not in caught.value.detail

    async def test_reason_of_a_provider_behind_the_server_is_shown(self) -> None:
        body = {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": '{"error":{"message":"too spicy"}}'},
            }
        }
        async with model_on(Answer(400, body)) as (model, _):
            with pytest.raises(Rejected, match="Provider returned error: too spicy"):
                await model.complete(request())

    @pytest.mark.parametrize(("_maker", "body", "seconds"), WAITS, ids=ids(WAITS))
    async def test_wait_named_in_a_body_is_the_wait(self, _maker: str, body: object, seconds: float) -> None:
        async with model_on(Answer(429, body)) as (model, _):
            with pytest.raises(RateLimited) as caught:
                await model.complete(request())
        assert caught.value.retry_after == pytest.approx(seconds)

    async def test_header_precedes_the_wait_in_a_body(self) -> None:
        answer = Answer(429, {"error": "try again in 14s"}, {"Retry-After": "7"})
        async with model_on(answer) as (model, _):
            with pytest.raises(RateLimited) as caught:
                await model.complete(request())
        assert caught.value.retry_after == 7.0

    @pytest.mark.parametrize(("_maker", "status", "body"), LOADING, ids=ids(LOADING))
    async def test_server_that_loads_its_model_has_taken_no_request(
        self, _maker: str, status: int, body: object
    ) -> None:
        async with model_on(Answer(status, body)) as (model, _):
            with pytest.raises(ServerError) as caught:
                await model.complete(request())
        assert (caught.value.loading, requests_of(caught.value)) == (True, 0)
        assert "is loading its model" in caught.value.detail
        assert caught.value.retry_after

    async def test_model_that_cannot_be_loaded_is_not_waited_for(self) -> None:
        async with model_on(Answer(500, {"error": "error loading model: out of memory"})) as (model, _):
            with pytest.raises(ServerError) as caught:
                await model.complete(request())
        assert not caught.value.loading


class TestProxies:
    async def test_loopback_is_reached_without_the_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
            monkeypatch.setenv(variable, "http://127.0.0.1:9")
        async with misbehaving(GOOD) as server:
            model = resolve(f"{server.url}/v1#m", retries=0)
            assert (await model.complete(request())).text == '{"text": "Keep it."}'
            await model.close()

    @pytest.mark.parametrize(
        ("variable", "scheme"), [("HTTP_PROXY", "http"), ("https_proxy", "https"), ("ALL_PROXY", "http")]
    )
    async def test_failed_proxy_is_named_without_its_password(
        self, variable: str, scheme: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, "http://ann:hidden-word@127.0.0.1:9")
        model = resolve(f"{scheme}://corp.example/v1#m", retries=0)
        with pytest.raises(Unreachable) as caught:
            await model.complete(request())
        await model.close()
        assert f"through the proxy in {variable} (127.0.0.1:9) failed: Connection refused" in caught.value.detail
        assert "hidden-word" not in caught.value.detail

    @pytest.mark.parametrize("direct", ["corp.example", ".example", "*", "a.example, example"])
    def test_host_without_a_proxy_is_not_said_to_have_one(self, direct: str) -> None:
        environ = {"HTTP_PROXY": "http://proxy:8080", "NO_PROXY": direct}
        assert proxy_of("http://corp.example/v1", environ) == ""
        assert proxy_of("http://other.org/v1", environ) == ("" if direct == "*" else "HTTP_PROXY (proxy:8080)")


class TestOwnServers:
    """Servers on this machine that say what they are cost nothing. No option is needed."""

    @staticmethod
    def listing(*owners: str) -> Answer:
        return Answer(
            body={"object": "list", "data": [{"id": f"m{n}", "owned_by": owner} for n, owner in enumerate(owners)]}
        )

    @pytest.mark.parametrize(
        ("owners", "model", "is_paid"),
        [
            (["library"], "m0", False),
            (["organization_owner", "organization_owner"], "m1", False),
            (["llamacpp"], "any-name", False),
            (["vllm"], "m0", False),
            (["library"], "m0-cloud", True),
            (["library"], "kimi-k2:cloud", True),
            (["openai"], "m0", True),
            (["vllm", "openai"], "m1", True),
            (["vllm", "openai"], "other", True),
            ([], "m0", True),
        ],
    )
    def test_server_on_loopback_is_free_if_it_says_what_it_is(
        self, owners: list[str], model: str, is_paid: bool
    ) -> None:
        with MisbehavingServer(self.listing(*owners)) as server:
            facts = ModelFacts(f"{server.url}/v1#{model}")
            assert (facts.paid, facts.price(1_000, 10)) == (is_paid, None if is_paid else 0.0)
            assert paid(f"{server.url}/v1#{model}") is is_paid
        assert len(server.seen) <= 1

    def test_declared_price_of_an_own_server_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with MisbehavingServer(self.listing("vllm")) as server:
            known = Endpoints().declare(f"{server.url}/v1", input_price=1.0, output_price=1.0)
            assert ModelFacts(f"{server.url}/v1#m0", known).paid
        assert server.seen == []

    def test_server_behind_another_path_is_not_asked(self) -> None:
        with MisbehavingServer(self.listing("vllm")) as server:
            assert ModelFacts(f"{server.url}/gateway/v1#m0").paid
        assert server.seen == []

    def test_server_that_does_not_answer_is_not_free(self) -> None:
        assert ModelFacts("http://127.0.0.1:9/v1#m").paid
