"""`ProviderModel` against a real server on loopback: what is sent, what is read, what each failure becomes."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles.openai import OpenAIModelProfile, openai_model_profile
from pydantic_ai.providers.openai import OpenAIProvider

from consilience.domain.errors import (
    ProviderError,
    RateLimited,
    Refused,
    Rejected,
    ServerError,
    Timeout,
    Unreachable,
)
from consilience.models.facts import ModelFacts
from consilience.models.failures import retry_after
from consilience.models.limiter import Limited, Limiter, Pace, may_retry, requests_of
from consilience.models.port import Completion, Model, ModelRequest
from consilience.models.provider import ProviderModel
from consilience.models.redaction import scrub

from .misbehaving import KEY, Answer, Server, completion, error, misbehaving


class Verdict(BaseModel):
    """A verdict on a claim."""

    stance: str
    text: str


def request(**more: object) -> ModelRequest:
    fields: dict[str, object] = {"agent": "a", "key": "k", "system": "Be brief.", "user": "2+2?"}
    return ModelRequest(**{**fields, **more})  # type: ignore[arg-type]


def structured() -> ModelRequest:
    return request(returns=Verdict, schema=Verdict.model_json_schema())


def priced(prices: tuple[float, float]) -> ModelFacts:
    facts = ModelFacts("openai-chat:stub")
    vars(facts)["prices"] = prices
    return facts


@asynccontextmanager
async def model_on(
    answer: Answer | Callable[[int], Answer], profile: OpenAIModelProfile | None = None, **more: object
) -> AsyncIterator[tuple[ProviderModel, Server]]:
    async with misbehaving(answer) as server:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=KEY)
        library = OpenAIChatModel("stub", provider=provider, profile=profile)
        model = ProviderModel("openai-chat:stub", "openai", library, **more)  # type: ignore[arg-type]
        try:
            yield model, server
        finally:
            await model.close()


async def failure_of(answer: Answer | Callable[[int], Answer]) -> ProviderError:
    """The error an answer becomes, after the checks that hold for all: one request, and no key in sight."""
    async with model_on(answer) as (model, server):
        with pytest.raises(ProviderError) as caught:
            await model.complete(request())
        assert len(server.seen) == 1
    check_clean(caught.value)
    assert requests_of(caught.value) == 1
    return caught.value


def check_clean(failed: BaseException) -> None:
    chain: BaseException | None = failed
    while chain is not None:
        assert KEY not in f"{chain} {chain!r} {vars(chain)}"
        chain = chain.__cause__ or chain.__context__


class TestAnswers:
    async def test_request_and_completion_have_the_expected_fields(self) -> None:
        usage = {
            "prompt_tokens": 120,
            "completion_tokens": 3,
            "total_tokens": 123,
            "prompt_tokens_details": {"cached_tokens": 100},
        }
        async with model_on(completion("Four.", usage=usage), facts=priced((1.0, 10.0))) as (model, server):
            assert isinstance(model, Model)
            answer = await model.complete(request(temperature=0.5, seed=7, max_tokens=50))
        assert answer == Completion(
            text="Four.",
            model="openai-chat:stub-2026-01-01",
            tokens_in=120,
            tokens_out=3,
            tokens_cached=100,
            cost=0.00015,
        )
        (seen,) = server.seen
        assert seen.path == "/v1/chat/completions"
        assert seen.headers["authorization"] == f"Bearer {KEY}"
        assert [(message["role"], message["content"]) for message in seen.body["messages"]] == [
            ("system", "Be brief."),
            ("user", "2+2?"),
        ]
        assert (seen.body["temperature"], seen.body["seed"], seen.body["max_completion_tokens"]) == (0.5, 7, 50)
        assert "response_format" not in seen.body

    async def test_temperature_is_omitted_if_unsupported(self) -> None:
        async with model_on(completion(), openai_model_profile("o3")) as (model, server):  # type: ignore[arg-type]
            await model.complete(request(temperature=0.5))
        assert "temperature" not in server.seen[0].body

    async def test_empty_instructions_send_no_system_message(self) -> None:
        async with model_on(completion()) as (model, server):
            await model.complete(request(system=""))
        assert [message["role"] for message in server.seen[0].body["messages"]] == ["user"]

    async def test_extra_body_is_merged(self) -> None:
        async with model_on(completion(), extra_body={"cache_prompt": True, "id_slot": 2}) as (model, server):
            await model.complete(request())
        assert (server.seen[0].body["cache_prompt"], server.seen[0].body["id_slot"]) == (True, 2)

    async def test_key_echoed_in_a_reply_is_removed(self) -> None:
        async with model_on(completion(f"Your headers: Bearer {KEY}; sk-this-stays-as-it-came.")) as (model, _):
            answer = await model.complete(request())
        assert answer.text == "Your headers: Bearer ***; sk-this-stays-as-it-came."

    async def test_key_echoed_in_other_fields_is_removed(self) -> None:
        answer = completion(finish=f"f-Bearer {KEY}").body
        assert isinstance(answer, dict)
        async with model_on(Answer(body={**answer, "model": f"m-Bearer {KEY}"})) as (model, _):
            read = await model.complete(request())
        assert (read.text, read.model, read.finish_reason) == ("Four.", "openai-chat:m-***", "f-***")

    async def test_reply_cut_at_the_limit_is_marked(self) -> None:
        async with model_on(completion("Fou", finish="length")) as (model, _):
            assert (await model.complete(request())).finish_reason == "length"

    @pytest.mark.parametrize("content", ["", None])
    async def test_empty_content_is_returned_as_an_empty_answer(self, content: str | None) -> None:
        async with model_on(completion(content)) as (model, _):
            answer = await model.complete(request())
        assert (answer.text, answer.tokens_out) == ("", 3)

    async def test_reply_of_200_000_tokens_is_read_completely(self) -> None:
        usage = {"prompt_tokens": 12, "completion_tokens": 200_000, "total_tokens": 200_012}
        async with model_on(completion("word " * 200_000, usage=usage)) as (model, _):
            answer = await model.complete(request())
        assert (len(answer.text), answer.tokens_out) == (1_000_000, 200_000)

    async def test_reply_without_usage_has_no_cost(self) -> None:
        async with model_on(completion(usage=None)) as (model, _):
            answer = await model.complete(request())
        assert (answer.tokens_in, answer.cost) == (0, None)

    @pytest.mark.parametrize("figure", ["prompt_tokens", "completion_tokens"])
    async def test_absurd_usage_counts_as_missing(self, figure: str) -> None:
        usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, figure: 10**30}
        async with model_on(completion(usage=usage), facts=priced((1.0, 2.0))) as (model, _):
            answer = await model.complete(request())
        assert (answer.text, answer.tokens_in, answer.tokens_out, answer.cost) == ("Four.", 0, 0, 0.0)

    async def test_one_model_works_on_several_event_loops(self) -> None:
        """The connections belong to the loop that opened them, so each gets its own."""
        async with model_on(completion()) as (model, server):

            async def use(close: bool) -> list[str]:
                answers = await asyncio.gather(*(model.complete(request()) for _ in range(3)))
                if close:
                    await model.close()
                return [answer.text for answer in answers]

            for close in (True, True):
                assert await asyncio.to_thread(asyncio.run, use(close)) == ["Four."] * 3
            assert len(server.seen) == 6

    @pytest.mark.filterwarnings("ignore::ResourceWarning")
    async def test_model_survives_a_loop_that_did_not_close_it(self) -> None:
        async with model_on(completion()) as (model, server):
            for _ in range(2):
                await asyncio.to_thread(asyncio.run, model.complete(request()))
            await model.close()
            await model.complete(request())
            assert len(server.seen) == 3
            gc.collect()  # the sockets of loops that ended warn here, where it is expected


@asynccontextmanager
async def claude_on(stop: str, *content: dict[str, object]) -> AsyncIterator[tuple[ProviderModel, Server]]:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    body = {
        "id": "m-1",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5-20251001",
        "content": list(content),
        "stop_reason": stop,
        "usage": {"input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 5},
    }
    async with misbehaving(Answer(body=body)) as server:
        library = AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(base_url=server.url, api_key=KEY))
        model = ProviderModel("anthropic:claude-haiku-4-5", "anthropic", library)
        try:
            yield model, server
        finally:
            await model.close()


class TestAnotherProvider:
    """What is said of OpenAI's adapter holds for one built otherwise."""

    async def test_anthropic_answer_is_read(self) -> None:
        async with claude_on("end_turn", {"type": "text", "text": "Four."}) as (model, server):
            answer = await model.complete(request(seed=7))
        assert (answer.text, answer.model) == ("Four.", "anthropic:claude-haiku-4-5-20251001")
        assert (answer.tokens_in, answer.tokens_cached, answer.tokens_out) == (120, 100, 5)
        assert answer.finish_reason == "stop"
        assert answer.cost == pytest.approx((20 * 1.0 + 100 * 0.1 + 5 * 5.0) / 1e6)
        assert "Be brief." in str(server.seen[0].body["system"])

    async def test_anthropic_cut_and_refused_replies_are_marked(self) -> None:
        async with claude_on("max_tokens", {"type": "text", "text": "Fo"}) as (model, _):
            assert (await model.complete(request())).finish_reason == "length"
        async with claude_on("refusal") as (model, _):
            with pytest.raises(Refused) as caught:
                await model.complete(request())
            assert vars(caught.value)["completion"].tokens_out == 5

    async def test_anthropic_typed_reply_uses_a_schema(self) -> None:
        async with claude_on("end_turn", {"type": "text", "text": '{"stance": "for"}'}) as (model, server):
            assert (await model.complete(structured())).text == '{"stance": "for"}'
        assert "json_schema" in json.dumps(server.seen[0].body)


class TestStructure:
    async def test_schema_is_sent_natively(self) -> None:
        async with model_on(completion('{"stance": "for", "text": "It is."}')) as (model, server):
            answer = await model.complete(structured())
        form = server.seen[0].body["response_format"]
        assert isinstance(form, dict)
        assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == (
            "json_schema",
            "Verdict",
            True,
        )
        assert list(form["json_schema"]["schema"]["properties"]) == ["stance", "text"]
        assert json.loads(answer.text) == {"stance": "for", "text": "It is."}

    async def test_schema_is_sent_as_a_tool_without_native_support(self) -> None:
        call = {"id": "t1", "type": "function", "function": {"name": "reply", "arguments": '{"stance": "for"}'}}
        answer = completion(None, finish="tool_calls", tool_calls=[call])
        async with model_on(answer, OpenAIModelProfile(supports_json_schema_output=False)) as (model, server):
            got = await model.complete(structured())
        assert (json.loads(got.text), got.finish_reason) == ({"stance": "for"}, "stop")
        assert server.seen[0].body["tool_choice"] == "required"
        assert "response_format" not in server.seen[0].body

    async def test_schema_is_prompted_without_tools(self) -> None:
        profile = OpenAIModelProfile(
            supports_json_schema_output=False, supports_tools=False, supports_json_object_output=False
        )
        async with model_on(completion("{}"), profile) as (model, server):
            await model.complete(structured())
        assert "stance" in json.dumps(server.seen[0].body["messages"])
        assert not {"tools", "response_format"} & set(server.seen[0].body)

    @staticmethod
    def no_schemas(number: int) -> Answer:
        return error(400, "response_format json_schema is not supported") if number == 1 else completion("{}")

    async def test_server_without_schema_support_gets_a_weaker_form_from_then_on(self) -> None:
        async with model_on(self.no_schemas) as (model, server):
            first = await model.complete(structured())
            second = await model.complete(structured())
        assert (first.requests, second.requests) == (2, 1)
        assert ["tools" in seen.body for seen in server.seen] == [False, True, True]

    async def test_weaker_reply_form_needs_permission_and_is_remembered(self) -> None:
        async with model_on(self.no_schemas) as (model, server):
            allowed = may_retry.set(lambda: False)
            with pytest.raises(Rejected) as refused:
                await model.complete(structured())
            assert (len(server.seen), requests_of(refused.value)) == (1, 1)
            assert (await model.complete(structured())).requests == 1
            may_retry.reset(allowed)
        assert ["tools" in seen.body for seen in server.seen] == [False, True]


class TestFailures:
    async def test_rate_limit_with_seconds_has_that_wait(self) -> None:
        failed = await failure_of(error(429, "slow down", Retry_After="7"))
        assert type(failed) is RateLimited
        assert failed.retry_after == 7.0
        assert "slow down" in failed.detail

    async def test_rate_limit_with_fractions_or_milliseconds_has_that_wait(self) -> None:
        assert (await failure_of(error(429, Retry_After="0.5"))).retry_after == 0.5
        assert (await failure_of(error(429, retry_after_ms="250"))).retry_after == 0.25

    async def test_rate_limit_with_a_date_has_that_wait(self) -> None:
        now = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
        when = {"Date": format_datetime(now, usegmt=True)}
        failed = await failure_of(
            error(429, Retry_After=format_datetime(now + timedelta(seconds=90), usegmt=True), **when)
        )
        assert failed.retry_after == 90.0

    async def test_rate_limit_without_a_wait_has_none(self) -> None:
        failed = await failure_of(error(429))
        assert type(failed) is RateLimited
        assert failed.retry_after is None

    async def test_exhausted_quota_is_rejected_not_rate_limited(self) -> None:
        failed = await failure_of(error(429, code="insufficient_quota"))
        assert type(failed) is Rejected
        assert "billing" in failed.detail

    @pytest.mark.parametrize("status", [500, 502, 503, 529])
    async def test_server_errors_are_retryable(self, status: int) -> None:
        failed = await failure_of(error(status))
        assert type(failed) is ServerError
        assert failed.transient
        assert failed.retry_after is None
        assert (await failure_of(error(status, Retry_After="3"))).retry_after == 3.0

    async def test_rejected_key_names_its_variable(self) -> None:
        failed = await failure_of(error(401, f"Incorrect API key provided: {KEY[:4]}****{KEY[-4:]}."))
        assert type(failed) is Rejected
        assert "OPENAI_API_KEY" in failed.detail
        assert KEY[-4:] not in failed.detail

    @pytest.mark.parametrize(
        ("answer", "says"),
        [
            (error(403), "key"),
            (error(404), "name"),
            (error(400), "rejected"),
            (error(422), "rejected"),
            (error(413), "longer than"),
            (error(400, code="context_length_exceeded"), "longer than"),
            (error(400, "the request exceeds the available context size"), "longer than"),
        ],
    )
    async def test_permanent_errors_are_not_retried(self, answer: Answer, says: str) -> None:
        failed = await failure_of(answer)
        assert type(failed) is Rejected
        assert not failed.transient
        assert says in failed.detail

    async def test_refusal_carries_its_usage(self) -> None:
        failed = await failure_of(completion(None, refusal="I will not do that."))
        assert type(failed) is Refused
        assert "I will not do that" in failed.detail
        spent = vars(failed)["completion"]
        assert (spent.text, spent.tokens_in, spent.tokens_out) == ("", 12, 3)

    async def test_content_filter_is_a_refusal(self) -> None:
        assert type(await failure_of(completion("Hal", finish="content_filter"))) is Refused
        assert type(await failure_of(error(400, "blocked by content_filter", code="content_filter"))) is Refused

    async def test_truncated_body_is_unreachable(self) -> None:
        whole = completion("Four.")
        assert type(await failure_of(Answer(body=whole.body, cut=60))) is Unreachable

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(body=b'{"id": "c-1", "choices": [{"ind'),
            Answer(body=b"<html>sign in</html>", headers={"Content-Type": "text/html"}),
            Answer(body={"id": "c-1", "choices": []}),
            Answer(body=[1, 2]),
        ],
    )
    async def test_body_without_a_completion_is_a_server_error(self, answer: Answer) -> None:
        assert type(await failure_of(answer)) is ServerError

    async def test_answer_of_another_interface_is_rejected_with_advice_on_the_address(self) -> None:
        refused = await failure_of(Answer(body={}))
        assert type(refused) is Rejected
        assert refused.detail.endswith("it holds no message: {}. Check the address of the server.")

    @pytest.mark.parametrize(
        ("answer", "sendings"),
        [
            (Answer(307, headers={"Location": "http://127.0.0.1:1/v1"}), 1),
            (Answer(body={**completion().body, "choices": []}), 2),  # type: ignore[dict-item]
            (Answer(body={**completion().body, "choices": None}), 2),  # type: ignore[dict-item]
            (error(500), 5),
        ],
        ids=["elsewhere", "no choice", "no choices", "failed"],
    )
    async def test_unusable_answer_is_retried_a_limited_number_of_times(self, answer: Answer, sendings: int) -> None:
        async with model_on(answer) as (model, server):
            patient = Limited(model, Limiter("openai", Pace(backoff_seconds=0.001)), deadline=20, retries=4)
            with pytest.raises(ProviderError) as caught:
                await patient.complete(request())
        assert (len(server.seen), requests_of(caught.value)) == (sendings, sendings)

    async def test_lone_surrogate_in_errors_and_names_is_replaced(self) -> None:
        """JSON can bring one anywhere in a body; no UTF-8 can hold it."""
        for answer in (error(400, "no \ud83d"), completion(None, refusal="no \ud83d")):
            assert "no \ufffd" in (await failure_of(answer)).detail
        named = Answer(body={**completion().body, "model": "m\ud83d"})  # type: ignore[dict-item]
        async with model_on(named) as (model, _):
            assert (await model.complete(request())).model == "openai-chat:m\ufffd"

    async def test_refused_connection_is_unreachable(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        provider = OpenAIProvider(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY)
        model = ProviderModel("openai-chat:stub", "openai", OpenAIChatModel("stub", provider=provider))
        with pytest.raises(Unreachable) as caught:
            await model.complete(request())
        assert caught.value.transient
        assert "the connection failed: Connection refused." in str(caught.value)
        await model.close()

    async def test_tls_to_a_plain_server_is_named(self) -> None:
        async with misbehaving(completion()) as server:
            url = server.url.replace("http://", "https://")
            provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
            model = ProviderModel("openai-chat:stub", "openai", OpenAIChatModel("stub", provider=provider))
            with pytest.raises(Unreachable, match=r"TLS failed \(.*\)\. Does the server expect https"):
                await model.complete(request())
            await model.close()

    async def test_hanging_server_ends_at_the_deadline(self) -> None:
        async with model_on(Answer(hang=True)) as (model, server):
            with pytest.raises(Timeout) as caught:
                await Limited(model, deadline=1, retries=3).complete(request())
            assert len(server.seen) == 1
            await server.hung_up.wait()
        check_clean(caught.value)

    async def test_cancelled_request_closes_its_connection(self) -> None:
        async with model_on(Answer(hang=True)) as (model, server):
            task = asyncio.create_task(model.complete(request()))
            await server.arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.hung_up.wait()

    async def test_request_refused_by_the_library_is_rejected(self) -> None:
        schema = {"type": "object", "properties": {"list": {"type": "array"}}}
        async with model_on(completion()) as (model, server):
            with pytest.raises(Rejected):
                await model.complete(request(returns=Verdict, schema=schema))
            assert server.seen == []

    async def test_responses_api_has_no_library_retries(self) -> None:
        async with misbehaving(error(500)) as server:
            provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=KEY)
            model = ProviderModel("openai:stub", "openai", OpenAIResponsesModel("stub", provider=provider))
            with pytest.raises(ServerError) as caught:
                await model.complete(structured())
            assert [seen.path for seen in server.seen] == ["/v1/responses"]
            check_clean(caught.value)
            await model.close()

    async def test_anthropic_has_no_library_retries(self) -> None:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        async with misbehaving(error(529, Retry_After="2")) as server:
            provider = AnthropicProvider(base_url=server.url, api_key=KEY)
            library = AnthropicModel("claude-haiku-4-5", provider=provider)
            model = ProviderModel("anthropic:claude-haiku-4-5", "anthropic", library)
            with pytest.raises(ServerError) as caught:
                await model.complete(structured())
            assert len(server.seen) == 1
            assert caught.value.retry_after == 2.0
            check_clean(caught.value)
            await model.close()

    async def test_google_has_no_library_retries(self) -> None:
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        async with misbehaving(error(503)) as server:
            library = GoogleModel("gemini-2.5-flash", provider=GoogleProvider(api_key=KEY, base_url=server.url))
            model = ProviderModel("google:gemini-2.5-flash", "google", library)
            with pytest.raises(ServerError) as caught:
                await model.complete(structured())
            assert len(server.seen) == 1
            check_clean(caught.value)
            await model.close()


class TestPrices:
    def test_listed_price_is_used(self) -> None:
        model = ProviderModel(
            "openai:gpt-4o", "openai", OpenAIChatModel("gpt-4o", provider=OpenAIProvider(api_key=KEY))
        )
        price = model.price(1_000_000, 100_000)
        assert price == pytest.approx(3.5)
        assert model.price(10_000, 1_000) == pytest.approx(0.035)
        assert model.price(0, 0) == 0.0

    def test_configured_price_is_used_and_unknown_price_is_none(self) -> None:
        unknown = TestModel()
        assert ProviderModel("x:y", "x", unknown).price(1000, 10) is None
        assert ProviderModel("x:y", "x", unknown, facts=priced((0.0, 0.0))).price(1000, 10) == 0.0
        assert ProviderModel("x:y", "x", unknown, facts=priced((2.0, 4.0))).price(1_000_000, 500_000) == 4.0


class TestSecrets:
    @pytest.mark.parametrize(
        "text",
        [
            "Incorrect API key provided: abc-secret-value.",
            "Authorization: Bearer abc-secret-value",
            "https://host/v1?key=AIzaSyA-abcdefghijklmnopqrstuvwxyz123&x=1",
            "api_key=abc-secret-value&x=1",
            '{"x-api-key": "abc-secret-value"}',
            "sk-proj-abc-secret-value and gsk_abcdefghijklmnop",
            "you sent Authorization: Basic YWJjOnNlY3JldA== and Basic YWJjOnNlY3JldA==",
            "{'authorization': 'Basic YWJjOnNlY3JldA==', 'x-api-key': 'abc'}",
            r"{\"Authorization\": \"Digest abc\"}",
            "proxy-authorization: abc",
            "Set-Cookie: session=abc; other=abc",
            '{"cookie": "abc=abc; abc=abc"}',
            "X-Goog-Api-Key: abc",
            "curl --pass abc --password=abc --api-key 'abc abc' -u x",
            "password: abc",
            '{"client_secret": "abc abc", "password": "abc"}',
            "AWS_SECRET_ACCESS_KEY=abc/abc+abc of AKIAABCABCABCABCABCA",
            "eyJabcdefgh.eyJabcdefgh.abc-abc is no token of ours",
            "https://ada:abc@host/ and https://abcabcabcabcabcabcabc@host/",
            "https://host/?sig=abc&x=1",
            "MY_KEY=abc",
            "curl -u ada:abc, -uada:abc",
            "login -u ada -p abc12345",
            "-----BEGIN PRIVATE KEY-----\nabc\nabc\n-----END PRIVATE KEY-----",
        ],
    )
    def test_texts_that_look_like_keys_are_removed(self, text: str) -> None:
        clean = scrub(text, [])
        assert "abc" not in clean.lower()
        assert "YWJj" not in clean
        assert "***" in clean

    def test_keys_of_the_environment_are_removed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_SERVICE_TOKEN", "plain-words-but-secret")
        assert scrub("it said plain-words-but-secret", []) == "it said ***"

    def test_passwords_of_addresses_in_the_environment_are_removed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_URL", "https://ada:pass%20word@host/v1?region=northern-lights&token=secret-word")
        carried = base64.b64encode(b"ada:pass word").decode()
        for secret in ("pass%20word", "pass word", carried, "secret-word"):
            assert scrub(f"it said {secret}", []) == "it said ***"
        assert scrub("northern-lights for ada", []) == "northern-lights for ada"

    def test_invalid_address_in_the_environment_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_URL", "http://[half/v1")
        assert scrub("as it was", []) == "as it was"

    def test_passwords_of_addresses_in_a_text_are_removed(self) -> None:
        text = "no route to http://ada:hidden@host:80/v1 at 10:30, write to ada@host or see http://host:80/@ada"
        assert scrub(text, []) == text.replace("ada:hidden", "***")

    @pytest.mark.parametrize(
        "text",
        [
            "keyboard-shortcuts-are-keywords; the risk-assessment asked for tokens",
            "a basic understanding of cookies, tokens: 12, max_tokens: 100, use --token-limit 5 or --pass-through",
            "usage: docker run -u 1000:1000 -p 8080:80 -p PORT",
            "the model has 5 keys: a, b; write to ada@host or https://ada@host/x?keys=1, monkey: 3",
        ],
    )
    def test_prose_is_unchanged(self, text: str) -> None:
        assert scrub(text, []) == text

    @pytest.mark.parametrize("place", ["{}", "x-{}", "Bearer-of.{}", "a.b_c.{} and more", "see {}"])
    def test_json_web_token_is_removed_wherever_it_stands(self, place: str) -> None:
        token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.s3cr3tS1gnatur3"
        assert scrub(place.format(token), []) == place.format("***")

    @pytest.mark.parametrize(
        "piece",
        [
            *("a-", "token ", "x-", "--a-", "eyJa.", "https://a", "cookie: ", "basic QQ", "'\\"),
            *(
                "eyJabcdefgh-",
                "eyJabcdefgh.",
                "a.",
                "token=${A:?",
                "token='",
                'password: "',
                "://a:",
                "sk-",
                "bearer ",
                "-u a ",
            ),
        ],
    )
    def test_long_text_is_cleaned_in_linear_time(self, piece: str) -> None:
        before = time.process_time()
        scrub(piece * 100_000, [])
        assert time.process_time() - before < 10


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, 0.0),
    ],
)
def test_retry_after_header_is_parsed(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(("name", "window"), [("openai:gpt-4o", 128_000), ("openai:nobody-lists-this", None)])
def test_context_window_is_read_from_the_price_list(
    monkeypatch: pytest.MonkeyPatch, name: str, window: int | None
) -> None:
    from consilience.models.port import context_window
    from consilience.models.registry import resolve

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert context_window(resolve(name)) == window
