"""Endpoints named by address: how the name is read, what is sent to it, what it costs, what it may leave out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from consilience.domain.errors import Rejected, UnavailableModel, UnknownName, UserError
from consilience.domain.model_names import links
from consilience.models.embeddings import ProviderEncoder
from consilience.models.endpoints import Endpoints, parse_endpoint
from consilience.models.facts import ModelFacts
from consilience.models.limiter import Limited, may_retry, requests_of
from consilience.models.port import ModelRequest, context_window
from consilience.models.provider import ProviderModel
from consilience.models.providers import key_variables
from consilience.models.registry import choose, resolve

from .misbehaving import KEY, Answer, Server, completion, misbehaving


class Verdict(BaseModel):
    stance: str


def request(**more: object) -> ModelRequest:
    fields: dict[str, object] = {"agent": "a", "key": "k", "system": "Be brief.", "user": "?", "seed": 7}
    return ModelRequest(**{**fields, "temperature": 0.2, "max_tokens": 50, **more})  # type: ignore[arg-type]


STRUCTURED = request(returns=Verdict, schema=Verdict.model_json_schema())


@asynccontextmanager
async def endpoint(answer: Any, name: str = "m") -> AsyncIterator[tuple[Limited, Server]]:
    async with misbehaving(answer) as server:
        full_name = f"{server.url}/v1#{name}"
        model = resolve(full_name, known=Endpoints().name([full_name]))
        assert isinstance(model, Limited)
        try:
            yield model, server
        finally:
            await model.close()


class TestNames:
    @pytest.mark.parametrize(
        ("name", "address", "model"),
        [
            ("http://127.0.0.1:11434/v1#qwen3:8b", "http://127.0.0.1:11434/v1", "qwen3:8b"),
            (
                "https://openrouter.ai/api/v1#deepseek/deepseek-r1",
                "https://openrouter.ai/api/v1",
                "deepseek/deepseek-r1",
            ),
            (" HTTP://Box.example:80/v1/#a#b ", "http://box.example/v1", "a#b"),
            ("http://[::1]:8000#m", "http://[::1]:8000", "m"),
        ],
    )
    def test_name_is_split_into_address_and_model(self, name: str, address: str, model: str) -> None:
        read = parse_endpoint(name)
        assert (read.address, read.model) == (address, model)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            (f"http://ann:{KEY}@127.0.0.1:9/v1#m", "CONSILIENCE_ENDPOINT_KEY"),
            (f"https://{KEY}@gateway.example/v1#m", "CONSILIENCE_ENDPOINT_KEY"),
            (f"https://gateway.example/v1?key={KEY}#m", "has a query"),
            (f"http://ann:{KEY[:4]}#{KEY[4:]}@box/v1#m", "not valid"),
            ("http://#m", "not valid"),
            ("http://[bad/v1#m", "not valid"),
            ("http://box:70000/v1#m", "not valid"),
            ("https://gateway.example/v1", "Write https://gateway.example/v1#MODEL"),
            ("https://gateway.example/v1#", "Write https://gateway.example/v1#MODEL"),
            ("http://127.0.0.1:9/v1", "Write http://127.0.0.1:9/v1#MODEL"),
            ("http://box/v1/chat/completions#m", "Write http://box/v1#MODEL"),
            ("localhost:8000/v1#m", "http://HOST:PORT/v1#MODEL"),
        ],
    )
    def test_invalid_address_error_names_the_fault_and_no_secret(self, name: str, expected: str) -> None:
        with pytest.raises(UserError) as refused:
            resolve(name)
        assert isinstance(refused.value, UnknownName)
        assert expected in str(refused.value)
        assert KEY not in str(refused.value)

    async def test_address_without_model_lists_the_models_of_the_server(self) -> None:
        listed = {"data": [{"id": "qwen3:8b", "owned_by": "library"}, {"id": "smollm2"}]}
        async with misbehaving(Answer(body=listed)) as server:
            with pytest.raises(UnknownName, match=r"#qwen3:8b\. Models it lists: qwen3:8b, smollm2"):
                await asyncio.to_thread(resolve, f"{server.url}/v1")
            assert [seen.path for seen in server.seen] == ["/v1/models"]

    async def test_chain_of_endpoints_is_resolved(self) -> None:
        async with misbehaving(Answer(500)) as broken, misbehaving(completion("B.")) as whole:
            name = f"{broken.url}/v1#a|{whole.url}/v1#b/c:d"
            assert len(links(name)) == 2
            model = resolve(name, retries=0)
            answer = await model.complete(request())
            assert (model.name, answer.text, answer.model) == (name, "B.", f"{whole.url}/v1#stub-2026-01-01")
            await model.close()

    def test_key_used_by_an_endpoint_is_not_reported_as_unused(self) -> None:
        environ = {"OPENROUTER_API_KEY": KEY, "OPENAI_API_KEY": KEY}
        choice = choose({**environ, "CONSILIENCE_MODEL": "https://openrouter.ai/api/v1#a/b"}, {})
        assert list(choice.unspent_keys) == ["OPENAI_API_KEY"]
        known = Endpoints().declare("https://api.corp.example/v1", key_variable="OPENAI_API_KEY")
        corp = choose({**environ, "CONSILIENCE_MODEL": "https://api.corp.example/v1#a"}, {}, known)
        assert list(corp.unspent_keys) == ["OPENROUTER_API_KEY"], "the key is sent to the endpoint that declares it"


class TestWhatIsSent:
    async def test_no_openai_key_or_header_is_sent_to_an_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in (
            "OPENAI_API_KEY",
            "OPENAI_ADMIN_KEY",
            "OPENAI_ORG_ID",
            "OPENAI_PROJECT_ID",
            "OPENROUTER_API_KEY",
        ):
            monkeypatch.setenv(variable, KEY)
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"Authorization: Bearer {KEY}\nX-Team: {KEY}")
        async with endpoint(completion("Yes.")) as (model, server):
            answer = await model.complete(request())
            assert (answer.text, answer.model) == ("Yes.", f"{server.url}/v1#stub-2026-01-01")
            assert KEY not in str(server.seen[0].headers)
            body = server.seen[0].body
            assert server.seen[0].path == "/v1/chat/completions"
            assert (body["model"], body["max_tokens"], body["seed"]) == ("m", 50, 7)
            assert model.account == server.url

    async def test_endpoint_key_is_sent_to_an_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CONSILIENCE_ENDPOINT_KEY", KEY)
        async with endpoint(completion("Yes.")) as (model, server):
            await model.complete(request())
            assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"

    async def test_rejected_key_error_names_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CONSILIENCE_ENDPOINT_KEY", KEY)
        async with endpoint(Answer(401, {"error": {"message": f"no {KEY}"}})) as (model, _):
            with pytest.raises(Rejected, match="CONSILIENCE_ENDPOINT_KEY") as refused:
                await model.complete(request())
            assert KEY not in str(refused.value)

    def test_provider_host_gets_its_own_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CONSILIENCE_ENDPOINT_KEY", KEY)
        name = "https://openrouter.ai/api/v1#deepseek/deepseek-r1"
        with pytest.raises(UnavailableModel, match="OPENROUTER_API_KEY"):
            resolve(name)
        monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
        model = resolve(name)
        assert isinstance(model, Limited)
        assert model.account == "openrouter"
        assert key_variables(model.account) == ("OPENROUTER_API_KEY",)
        plain = resolve("http://openrouter.ai/api/v1#deepseek/deepseek-r1")
        assert isinstance(plain, Limited)
        assert key_variables(plain.account) == ("CONSILIENCE_ENDPOINT_KEY",), "no provider's key goes unencrypted"

    async def test_endpoint_encodes_texts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        vectors = {
            "object": "list",
            "model": "e",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}],
        }
        async with misbehaving(Answer(body={**vectors, "usage": {"prompt_tokens": 1, "total_tokens": 1}})) as server:
            assert await ProviderEncoder(f"{server.url}/v1#bge-m3").encode(["one"]) == [[0.5, 1.0]]
            assert (server.seen[0].path, server.seen[0].body["model"]) == ("/v1/embeddings", "bge-m3")
            assert KEY not in str(server.seen[0].headers)


class TestPrices:
    async def test_endpoint_price_is_unknown_unless_configured(self) -> None:
        async with endpoint(completion("Yes."), "gpt-4o") as (model, server):
            assert (await model.complete(request())).cost is None
            assert model.price(1000, 1000) is None
            known = Endpoints().declare(f"{server.url}/v1/", free=True)
            known = known.declare(f"{server.url}/v1#gpt-4o", input_price=2, output_price=10, context_window=32_000)
            priced, free = resolve(model.name, known=known), resolve(f"{server.url}/v1#other", known=known)
            assert (await priced.complete(request())).cost == pytest.approx((12 * 2.0 + 3 * 10.0) / 1e6)
            assert (context_window(priced), context_window(free)) == (32_000, None)
            assert (free.price(1000, 1000), (await free.complete(request())).cost) == (0.0, 0.0)
            await priced.close()
            await free.close()

    def test_a_provider_has_its_listed_prices(self) -> None:
        assert ModelFacts("https://openrouter.ai/api/v1#deepseek/deepseek-r1", environ={}).prices == "listed"
        assert ModelFacts("https://gateway.example/v1#deepseek-r1", environ={}).prices == "unknown"
        assert ModelFacts("openai:gpt-4o", environ={}).prices == "listed"
        assert ModelFacts("openai:gpt-4o", environ={"OPENAI_BASE_URL": "http://127.0.0.1:4000/v1"}).prices == "unknown"

    @pytest.mark.parametrize(
        ("name", "variable", "own"),
        [
            ("openai:gpt-4o", "OPENAI_BASE_URL", "https://api.openai.com/v1"),
            ("openai-chat:gpt-4o", "OPENAI_BASE_URL", "https://eu.api.openai.com/v1"),
            ("anthropic:claude-sonnet-4-5", "ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
            ("google:gemini-2.5-flash", "GOOGLE_GEMINI_BASE_URL", "https://generativelanguage.googleapis.com"),
            ("google-cloud:g", "GOOGLE_VERTEX_BASE_URL", "https://europe-west1-aiplatform.googleapis.com"),
            ("groq:llama", "GROQ_BASE_URL", "https://api.groq.com"),
            ("cohere:command", "CO_BASE_URL", "https://api.cohere.com"),
            ("azure:gpt-4o", "AZURE_OPENAI_ENDPOINT", "https://town.openai.azure.com/"),
            ("bedrock:claude", "AWS_BEDROCK_BASE_URL", "https://bedrock-runtime.eu-west-1.amazonaws.com"),
            ("moonshotai:kimi", "MOONSHOTAI_BASE_URL", "https://api.moonshot.ai/v1"),
            ("gateway/openai:gpt-4o", "PYDANTIC_AI_GATEWAY_BASE_URL", "https://gateway-us.pydantic.dev/proxy"),
        ],
    )
    def test_price_at_another_host_is_unknown(self, name: str, variable: str, own: str) -> None:
        assert ModelFacts(name, environ={variable: own}).prices == "listed"
        for other in (
            own.replace("https", "http"),
            own.replace("://", "://x@relay.example/"),
            "https://relay.example/v1",
        ):
            assert ModelFacts(name, environ={variable: other}).prices == "unknown"
            assert ModelFacts(name, environ={variable: other, "CONSILIENCE_FREE_ENDPOINTS": other}).prices == (0.0, 0.0)


class TestDeclarations:
    async def test_declared_key_and_thinking_are_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CONSILIENCE_ENDPOINT_KEY", "of-other-endpoints-0123")
        async with misbehaving(Answer(401, {"error": {"message": "no"}})) as server:
            name = f"{server.url}/v1#m"
            known = Endpoints().declare(f"{server.url}/v1", key_variable="CORP_API_KEY")
            known = known.declare(name, thinks="optionally")
            with pytest.raises(UnavailableModel, match="Set CORP_API_KEY"):
                resolve(name, known=known)
            monkeypatch.setenv("CORP_API_KEY", KEY)
            model = resolve(name, known=known)
            with pytest.raises(Rejected, match="Set CORP_API_KEY to a valid key"):
                await model.complete(request(thinking="high"))
            await model.close()
            (seen,) = server.seen
            assert (seen.headers["authorization"], seen.body["reasoning_effort"]) == (f"Bearer {KEY}", "high")

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"contextwindow": 1}, "unexpected keyword"),
            ({"context_window": 0}, "context_window = 32000"),
            ({"thinks": True}, '"never", "optionally" or "always"'),
            ({"key_variable": "sk-0123456789"}, "not the key"),
            ({"input_price": 1}, "output_price = 10"),
            ({"free": True, "input_price": 1, "output_price": 1}, "free = true, or"),
            ({}, "free = true"),
        ],
    )
    def test_invalid_declaration_is_refused_without_its_value(self, given: dict[str, Any], says: str) -> None:
        with pytest.raises((UserError, TypeError), match=says) as caught:
            Endpoints().declare("http://127.0.0.1:9/v1#m", **given)
        assert "sk-" not in str(caught.value)


def rejecting(server_says: dict[str, Answer]) -> Any:
    """Answers with an error for the first of those parameters that a request has."""

    class Picky:
        server: Server | None = None

        def __call__(self, number: int) -> Answer:
            assert self.server is not None
            body = self.server.seen[-1].body
            return next((no for name, no in server_says.items() if name in body), completion('{"stance": "for"}'))

    return Picky()


@asynccontextmanager
async def rejecting_endpoint(
    server_says: dict[str, Answer], name: str = "seed-oss"
) -> AsyncIterator[tuple[Limited, Server]]:
    answer = rejecting(server_says)
    async with endpoint(answer, name) as (model, server):
        answer.server = server
        yield model, server


def error_answer(message: str, status: int = 400, **more: object) -> Answer:
    return Answer(status, {"error": {"message": message, "type": "invalid_request_error", **more}})


REJECTIONS = [
    (
        "seed",
        error_answer("Unsupported parameter: 'seed' is not supported with this model.", code="unsupported_parameter"),
    ),
    ("seed", error_answer("Unrecognized request argument supplied: seed")),
    ("seed", error_answer("property 'seed' is unsupported", 422)),
    ("seed", error_answer("openai does not support parameters: ['seed'], for model=x. Set drop_params.")),
    ("seed", Answer(422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}]})),
    ("seed", error_answer("This field is not supported.", param="seed")),
    ("seed", error_answer("unknown field `seed`, expected one of `messages`, `model`, `temperature`")),
    (
        "temperature",
        error_answer("Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1)."),
    ),
    ("temperature", error_answer("`temperature` is deprecated for this model.")),
    ("temperature", error_answer("not supported: temperature", 500)),
    ("max_tokens", error_answer("'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.")),
]


class TestParametersThatAServerDoesNotKnow:
    @pytest.mark.parametrize(("name", "answer"), REJECTIONS)
    async def test_rejected_parameter_is_left_out_and_remembered(self, name: str, answer: Answer) -> None:
        async with rejecting_endpoint({name: answer}) as (model, server):
            first, second = await model.complete(request()), await model.complete(request())
        assert (first.requests, second.requests) == (2, 1)
        assert [name in seen.body for seen in server.seen] == [True, False, False]
        others = {"seed", "temperature", "max_tokens"} - {name}
        assert others <= set(server.seen[1].body), "nothing else is left out"

    async def test_rejected_token_limit_is_sent_under_its_other_name(self) -> None:
        async with rejecting_endpoint({"max_tokens": REJECTIONS[-1][1]}) as (model, server):
            await model.complete(request())
        assert server.seen[1].body["max_completion_tokens"] == 50

    async def test_server_that_rejects_both_token_limits_is_refused(self) -> None:
        unknown = {name: error_answer(f"Unknown parameter: {name}") for name in ("max_tokens", "max_completion_tokens")}
        async with rejecting_endpoint(unknown) as (model, server):
            with pytest.raises(Rejected, match="max_completion_tokens"):
                await model.complete(request())
        assert len(server.seen) == 2

    @pytest.mark.parametrize(
        "message",
        [
            "unknown field `reasoning_effort`",
            '"m" does not support thinking',
            "Unsupported parameter: 'reasoning.effort'",
        ],
    )
    async def test_rejected_thinking_is_left_out(self, message: str) -> None:
        async with rejecting_endpoint({"reasoning_effort": error_answer(message)}, "o3") as (model, server):
            assert isinstance(model.inner, ProviderModel)
            model.inner._settings["thinking"] = "low"
            answers = [await model.complete(request(temperature=None)) for _ in range(2)]
        assert [answer.requests for answer in answers] == [2, 1]
        assert ["reasoning_effort" in seen.body for seen in server.seen] == [True, False, False]

    async def test_each_parameter_is_left_out_at_most_once(self) -> None:
        everything = error_answer(
            "seed, temperature, max_tokens, thinking, response_format and tools are not supported"
        )
        async with endpoint(everything) as (model, server):
            with pytest.raises(Rejected) as refused:
                await model.complete(STRUCTURED)
        assert len(server.seen) == requests_of(refused.value) == 6, "the request asked for no thinking"

    async def test_several_parameters_and_the_reply_form_are_adapted(self) -> None:
        names = ("seed", "response_format", "temperature", "tools", "max_tokens")
        async with rejecting_endpoint({name: error_answer(f"Unknown parameter: {name}") for name in names}) as (
            model,
            server,
        ):
            answer = await model.complete(STRUCTURED)
            again = await model.complete(STRUCTURED)
        assert (answer.requests, again.requests) == (6, 1)
        assert not set(names) & set(server.seen[-1].body)
        assert "stance" in str(server.seen[-1].body["messages"])
        assert len(server.seen[-1].body["messages"]) == 2, "one system message"

    async def test_concurrent_requests_share_what_was_rejected(self) -> None:
        async with rejecting_endpoint({"seed": REJECTIONS[0][1]}) as (model, server):
            answers = await asyncio.gather(*(model.complete(request()) for _ in range(4)))
        assert all(answer.requests <= 2 for answer in answers)
        assert sum("seed" not in seen.body for seen in server.seen) == 4

    async def test_endpoint_retry_without_a_parameter_needs_permission(self) -> None:
        unknown = {name: error_answer(f"Unknown parameter: {name}") for name in ("seed", "temperature")}
        asked: list[bool] = [True, False]
        async with rejecting_endpoint(unknown) as (model, server):
            allowed = may_retry.set(lambda: asked.pop(0))
            with pytest.raises(Rejected) as refused:
                await model.complete(request())
            assert (len(server.seen), requests_of(refused.value), asked) == (2, 2, [])
            assert (await model.complete(request())).requests == 1, "what was learned is remembered"
            may_retry.reset(allowed)

    @pytest.mark.parametrize(
        "answer",
        [
            error_answer("max_tokens is too large: 50. This model supports at most 20 completion tokens."),
            error_answer("The model seed-oss is not supported."),
            error_answer("temperature sensor: overheated", 500),
            error_answer("seed is not supported", 401),
        ],
    )
    async def test_other_error_drops_no_parameter(self, answer: Answer) -> None:
        async with endpoint(answer, "seed-oss") as (model, server):
            model.retries = 0
            with pytest.raises(Exception, match="HTTP"):
                await model.complete(request())
        assert len(server.seen) == 1
