"""Model names: resolution, errors, and the default model."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Mapping
from typing import cast

import pytest

from consilience.domain.errors import Rejected, UnavailableModel, UnknownName, UserError
from consilience.domain.model_names import links
from consilience.models import endpoints, hosted, registry
from consilience.models.limiter import Limited
from consilience.models.port import Model, ModelRequest
from consilience.models.providers import PROVIDERS, Declaration, Provider, is_loopback, key_variables, known_providers
from consilience.models.registry import Choice, canonical_name, choose, paid, resolve

from .misbehaving import KEY, Answer, completion, misbehaving

REQUEST = ModelRequest(agent="a", key="k", system="", user="?")
CLOSED = "http://127.0.0.1:9"
CLOSED_SERVERS = {server.variable: CLOSED for server in endpoints.SERVERS.values()}
"""An environment in which no server of this machine is found, whatever runs on it."""


def refusal(name: str) -> UserError:
    with pytest.raises(UserError) as caught:
        resolve(name)
    assert KEY not in str(caught.value)
    return caught.value


def limited(name: str) -> Limited:
    model = resolve(name)
    assert isinstance(model, Model)
    assert isinstance(model, Limited)
    assert model.name == name
    return model


class TestResolve:
    @pytest.mark.parametrize(
        ("name", "variable", "account"),
        [
            ("openai:gpt-4o", "OPENAI_API_KEY", "openai"),
            ("openai-chat:gpt-4o", "OPENAI_API_KEY", "openai"),
            ("anthropic:claude-haiku-4-5", "ANTHROPIC_API_KEY", "anthropic"),
            ("google:gemini-2.5-flash", "GEMINI_API_KEY", "google"),
            ("openrouter:mistralai/mistral-small", "OPENROUTER_API_KEY", "openrouter"),
            ("deepseek:deepseek-chat", "DEEPSEEK_API_KEY", "deepseek"),
        ],
    )
    def test_provider_with_a_key_is_usable(
        self, name: str, variable: str, account: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        missing = refusal(name)
        assert isinstance(missing, UnavailableModel)
        assert variable in str(missing)
        assert "local needs none" in str(missing)
        monkeypatch.setenv(variable, KEY)
        assert limited(name).account == account

    async def test_openai_base_url_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with misbehaving(completion("Hello.")) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            model = limited("openai-chat:gpt-4o")
            answer = await model.complete(REQUEST)
            assert (answer.text, answer.cost, model.price(1000, 1000)) == ("Hello.", None, None), (
                "nobody knows its price"
            )
            monkeypatch.setenv("CONSILIENCE_FREE_ENDPOINTS", f"{server.url}/v1")
            assert limited("openai-chat:gpt-4o").price(1000, 1000) == 0.0
            assert model.account == f"openai@{server.url.removeprefix('http://')}"
            assert server.seen[0].path == "/v1/chat/completions"
            await model.close()

    @pytest.mark.parametrize("provider", list(endpoints.SERVERS))
    async def test_local_servers_are_found(self, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
        async with misbehaving(completion("Hello.")) as server:
            monkeypatch.setenv(endpoints.SERVERS[provider].variable, f"{server.url}/v1")
            model = limited(f"{provider}:llama3.2:3b")
            answer = await model.complete(REQUEST)
            assert (answer.model, answer.cost) == (f"{provider}:stub-2026-01-01", 0.0)
            assert server.seen[0].body["model"] == "llama3.2:3b"
            assert model.deadline == hosted.SERVER_DEADLINE_SECONDS
            await model.close()

    async def test_rejected_key_error_names_its_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with misbehaving(Answer(401, {"error": {"message": f"no: {KEY}"}})) as server:
            monkeypatch.setenv("VLLM_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("VLLM_API_KEY", KEY)
            model = limited("vllm:x")
            with pytest.raises(Rejected, match="VLLM_API_KEY") as caught:
                await model.complete(REQUEST)
            assert KEY not in str(caught.value)
            await model.close()

    def test_deadline_and_retries_can_be_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        model = resolve("openai:gpt-4o", deadline=7.0, retries=1)
        assert isinstance(model, Limited)
        assert (model.deadline, model.retries) == (7.0, 1)
        assert limited("openai:gpt-4o").deadline == hosted.DEADLINE_SECONDS

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("", "PROVIDER:MODEL"),
            ("openai", "openai:MODEL"),
            ("openai:", "openai:MODEL"),
            ("qwen2.5-coder-1.5b", "local:qwen2.5-coder-1.5b"),
            ("smollm2", "local:smollm2-135m"),
            ("gpt-4o", "openai:gpt-4o"),
            ("claude-sonet-4-5", "anthropic:claude-sonnet"),
            ("opnai:gpt-4o", "openai"),
            ("antropic:claude", "anthropic"),
            ("google-gla:gemini", "google"),
            ("zzz:model", "openai-chat:MODEL"),
            ("openai:gpt-4o,anthropic:claude-haiku-4-5", "--models A,B"),
            ("gpt-4o,mistral", "--models A,B"),
        ],
    )
    def test_unknown_name_error_suggests_the_nearest(self, name: str, says: str) -> None:
        unknown = refusal(name)
        assert isinstance(unknown, UnknownName)
        assert says in str(unknown)

    def test_a_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pydantic_ai.providers.openai", None)
        assert "pip install 'consilience[openai]'" in str(refusal("openai:gpt-4o"))
        monkeypatch.setitem(sys.modules, "pydantic_ai.providers.anthropic", None)
        assert "pip install 'consilience[anthropic]'" in str(refusal("anthropic:claude-haiku-4-5"))
        monkeypatch.setitem(sys.modules, "pydantic_ai.providers.mistral", None)
        assert "pip install 'pydantic-ai-slim[mistral]'" in str(refusal("mistral:mistral-small"))

    def test_setup_error_does_not_contain_the_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
        assert "azure:gpt-4o cannot be set up" in str(refusal("azure:gpt-4o"))


SPELLINGS = {
    "local:qwen2.5-coder-1.5b": ("local", "local:", "local:local", " local "),
    "local:smollm2-135m|local:qwen2.5-coder-1.5b": ("local:smollm2-135m | local",),
    "local:/tmp/my.gguf": ("local:my.gguf", "local:./my.gguf", "local:~/my.gguf", "local:../tmp/my.gguf"),
    "http://127.0.0.1:9/v1#m": ("HTTP://127.0.0.1:9/v1/#m", " http://127.0.0.1:9/v1#m "),
}


@pytest.mark.parametrize(
    ("name", "canonical"), [(n, full) for full, names in SPELLINGS.items() for n in (full, *names)]
)
def test_all_spellings_of_a_model_resolve_to_one_name(
    name: str, canonical: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/tmp")
    monkeypatch.setenv("HOME", "/tmp")
    assert resolve(name).name == canonical == canonical_name(name)


@pytest.mark.parametrize(
    "name", ["", "nonsense", "exec:a | b", "https://me:secret@host/v1#m", "workspace:", "human:Ann"]
)
def test_name_that_is_invalid_or_has_one_spelling_is_canonical(name: str) -> None:
    assert canonical_name(name) == name


class TestTables:
    def test_every_listed_provider_is_known_to_the_library(self) -> None:
        from pydantic_ai.providers import infer_provider_class

        for provider, row in PROVIDERS.items():
            if row.server or row.base_url:
                continue
            try:
                infer_provider_class(provider)
            except ImportError:  # its client is not installed here
                continue
            except ValueError:
                pytest.fail(f"pydantic-ai does not know {provider}: set the `base_url` of its row")

    def test_every_provider_of_the_library_is_listed(self) -> None:
        from pydantic_ai.models import known_model_names

        prefixes = {name.partition(":")[0] for name in known_model_names() if ":" in name}
        plain = {prefix for prefix in prefixes if not prefix.startswith("gateway/")}
        for_other_ends = {"google-decisions", "openai-decisions", "typesafe", "bedrock-mantle"}
        assert plain - for_other_ends <= set(known_providers())

    async def test_row_with_a_base_url_is_a_provider(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with misbehaving(completion("Hello.")) as server:
            large = Declaration((2.0, 8.0), context_window=32_000, thinks="optionally")
            row = Provider(("CORP_API_KEY",), base_url=f"{server.url}/v1", models={"corp-large": large})
            monkeypatch.setitem(cast("dict[str, Provider]", PROVIDERS), "corp", row)
            missing = refusal("corp:corp-large")
            assert "Set CORP_API_KEY" in str(missing)
            (facts,) = registry.facts_of("corp:corp-large")
            assert (facts.price(1_000_000, 0), facts.context_window, facts.thinks) == (2.0, 32_000, "optionally")
            assert registry.facts_of("corp:corp-small")[0].price(1, 1) is None
            monkeypatch.setenv("CORP_API_KEY", KEY)
            model = limited("corp:corp-large")
            assert (model.account, model.context_window, model.thinks) == ("corp", 32_000, "optionally")
            answer = await model.complete(REQUEST)
            assert answer.cost == pytest.approx((12 * 2.0 + 3 * 8.0) / 1e6)
            assert answer.model == "corp:stub-2026-01-01"
            await model.close()

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("openai:gpt-4o", "never"),
            ("https://api.openai.com/v1#gpt-4o", "never"),
            ("https://api.deepseek.com#deepseek-reasoner", "always"),
            ("https://generativelanguage.googleapis.com/v1beta/openai#gemini-2.5-pro", "always"),
            ("http://127.0.0.1:8000/v1#gpt-4o", "always"),
        ],
    )
    def test_model_at_an_address_thinks_unless_it_is_known_not_to(
        self, name: str, expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for variable in ("OPENAI_API_KEY", "DEEPSEEK_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.setenv(variable, KEY)
        assert registry.facts_of(name)[0].thinks == limited(name).thinks == expected

    def test_providers_have_their_key_variables(self) -> None:
        assert key_variables("openai@gateway.example:443") == ("OPENAI_API_KEY",)
        assert key_variables("gateway/openai") == ("PYDANTIC_AI_GATEWAY_API_KEY", "PAIG_API_KEY")
        assert key_variables("nobody") == ()

    @pytest.mark.parametrize(
        ("name", "environ", "costs"),
        [
            ("local", {}, False),
            ("local:/tmp/x.gguf", {}, False),
            ("ollama:llama3.2", {}, False),
            ("ollama:gpt-oss:120b-cloud", {}, True),
            ("ollama:gpt-oss", {"OLLAMA_BASE_URL": "https://ollama.com/v1"}, True),
            ("vllm:x", {"VLLM_BASE_URL": "http://10.0.0.7:8000/v1"}, False),
            ("openai:gpt-4o", {}, True),
            ("openai-chat:gpt-4o", {}, True),
            ("openai-chat:x", {"OPENAI_BASE_URL": "http://localhost:8080/v1"}, True),
            ("openai-chat:x", {"OPENAI_BASE_URL": f"{CLOSED}/v1", "CONSILIENCE_FREE_ENDPOINTS": f"{CLOSED}/v1"}, False),
            (f"{CLOSED}/v1#x", {}, True),
            (f"{CLOSED}/v1#x", {"CONSILIENCE_FREE_ENDPOINTS": f"http://a.example, {CLOSED}/v1/"}, False),
            (f"{CLOSED}/v1#x", {"CONSILIENCE_FREE_ENDPOINTS": f"{CLOSED}/v1#y"}, True),
            ("openai-chat:x", {"OPENAI_BASE_URL": "https://gateway.example/v1"}, True),
            ("anthropic:claude-haiku-4-5", {}, True),
        ],
    )
    def test_paid_models_are_recognised(self, name: str, environ: Mapping[str, str], costs: bool) -> None:
        assert paid(name, environ=environ) is costs

    @pytest.mark.parametrize(
        ("name", "environ", "missing"),
        [
            ("ollama:gpt-oss:120b-cloud", {}, ""),  # the server on this machine has signed in
            ("ollama:gpt-oss:120b", {"OLLAMA_BASE_URL": "https://ollama.com/v1"}, "OLLAMA_API_KEY"),
            ("openai:gpt-4o", {}, "OPENAI_API_KEY"),
            ("openai:gpt-4o", {"OPENAI_API_KEY": KEY}, ""),
        ],
    )
    def test_missing_key_is_asked_only_for_hosts_that_take_it(
        self, name: str, environ: Mapping[str, str], missing: str
    ) -> None:
        assert registry.facts_of(name, environ=environ)[0].missing_key == missing

    @pytest.mark.parametrize(
        ("host", "url"),
        [
            ("", "http://127.0.0.1:11434/v1"),
            ("0.0.0.0", "http://127.0.0.1:11434/v1"),
            (":11500", "http://127.0.0.1:11500/v1"),
            ("localhost", "http://localhost:11434/v1"),
            ("192.168.1.9:11434", "http://192.168.1.9:11434/v1"),
            ("https://box.example", "https://box.example:443/v1"),
            ("[::]:11434", "http://127.0.0.1:11434/v1"),
            ("[::1]", "http://[::1]:11434/v1"),
        ],
    )
    def test_ollama_host_variable_is_used(self, host: str, url: str) -> None:
        assert endpoints.base_url("ollama", {"OLLAMA_HOST": host}) == url

    @pytest.mark.parametrize(
        ("url", "here"),
        [
            ("http://127.0.0.1:1/v1", True),
            ("http://127.9.9.9", True),
            ("http://[::1]:8000", True),
            ("http://localhost", True),
            ("http://localhost.example", False),
            ("http://127.0.0.1.example", False),
            ("http://10.0.0.1", False),
            ("http://[bad", False),
            ("", False),
        ],
    )
    def test_loopback_addresses_are_recognised(self, url: str, here: bool) -> None:
        assert is_loopback(url) is here


def listing(*ids: str, owner: str = "llamacpp") -> Answer:
    return Answer(body={"object": "list", "data": [{"id": name, "owned_by": owner} for name in ids]})


def tags(*items: str) -> Answer:
    return Answer(body={"models": [{"name": name} for name in items]})


class TestChoose:
    def test_default_model_follows_environment_configuration_local(self) -> None:
        both = choose({**CLOSED_SERVERS, "CONSILIENCE_MODEL": " openai:gpt-4o "}, {"model": "anthropic:x"})
        assert (both.name, both.why) == ("openai:gpt-4o", "CONSILIENCE_MODEL is set")
        assert choose({**CLOSED_SERVERS, "CONSILIENCE_MODEL": ""}, {"model": "anthropic:x"}).name == "anthropic:x"
        neither = choose(CLOSED_SERVERS, {})
        assert neither == Choice("local", "no other model is set and no server answers on this machine")

    async def test_answering_local_server_is_chosen(self) -> None:
        async with misbehaving(tags("nomic-embed-text", "gpt-oss:120b-cloud", "llama3.2:3b", "qwen3")) as server:
            environ = {**CLOSED_SERVERS, "OLLAMA_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": KEY}
            choice = await asyncio.to_thread(choose, environ, {})
            assert choice.name == "ollama:llama3.2:3b"
            assert choice.why == f"Ollama answers at {server.url.removeprefix('http://')}"
            assert choice.unspent_keys == {"OPENAI_API_KEY": "openai:MODEL"}
            assert [seen.path for seen in server.seen] == ["/api/tags"]
            assert KEY not in str(server.seen)

    async def test_password_of_a_server_address_is_not_printed(self) -> None:
        async with misbehaving(tags("qwen3")) as server:
            address = server.url.removeprefix("http://")
            environ = {**CLOSED_SERVERS, "OLLAMA_BASE_URL": f"http://ada:{KEY}@{address}/v1"}
            choice = await asyncio.to_thread(choose, environ, {})
        assert choice.why == f"Ollama answers at {address}"

    async def test_local_servers_are_tried_in_order(self) -> None:
        async with misbehaving(listing("a.gguf")) as llama, misbehaving(listing("b", owner="lms")) as studio:
            environ = {**CLOSED_SERVERS, "LLAMACPP_BASE_URL": llama.url, "LMSTUDIO_BASE_URL": studio.url}
            assert (await asyncio.to_thread(choose, environ, {})).name == "lmstudio:b"
            environ["LMSTUDIO_BASE_URL"] = CLOSED
            assert (await asyncio.to_thread(choose, environ, {})).name == "llamacpp:a.gguf"

    @pytest.mark.parametrize(
        "answer",
        [
            listing("debate", owner="consilience"),
            listing("gpt-4o", owner="openai"),
            listing(),
            Answer(404, {"data": []}),
            Answer(body=b"<html>"),
            Answer(body=["data"]),
            Answer(body={"data": 5}),
            Answer(hang=True),
        ],
    )
    async def test_other_servers_are_skipped(self, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
        patience = 0.5 if answer.hang else 10.0
        monkeypatch.setattr(endpoints, "probe", functools.partial(endpoints.probe, seconds=patience))
        async with misbehaving(answer) as server:
            choice = await asyncio.to_thread(choose, {**CLOSED_SERVERS, "VLLM_BASE_URL": server.url}, {})
            assert choice.name == "local"
            assert len(server.seen) == 1

    async def test_only_loopback_servers_are_probed(self) -> None:
        async with misbehaving(tags("x")) as server:
            port = server.url.rpartition(":")[2]
            environ = {**CLOSED_SERVERS, "OLLAMA_BASE_URL": f"http://10.255.255.1:{port}"}
            assert (await asyncio.to_thread(choose, environ, {})).name == "local"

    def test_unused_keys_are_reported(self) -> None:
        environ = {
            **CLOSED_SERVERS,
            "OPENAI_API_KEY": KEY,
            "GEMINI_API_KEY": KEY,
            "GROQ_API_KEY": KEY,
            "OPENROUTER_API_KEY": KEY,
            "MISTRAL_API_KEY": "",
        }
        choice = choose(environ, {})
        assert choice.name == "local"
        assert dict(choice.unspent_keys) == {
            "OPENAI_API_KEY": "openai:MODEL",
            "GEMINI_API_KEY": "google:MODEL",
            "GROQ_API_KEY": "groq:MODEL",
            "OPENROUTER_API_KEY": "openrouter:MODEL",
        }
        assert KEY not in repr(choice)
        chosen = choose({**environ, "CONSILIENCE_MODEL": "openai-chat:gpt-4o"}, {})
        assert "OPENAI_API_KEY" not in chosen.unspent_keys


def test_name_with_bars_is_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-of-two-names")
    model = resolve("openai:gpt-5 | ollama:llama")
    assert model.name == "openai:gpt-5|ollama:llama", "the whole name is recorded, so that a resumed run has both"
    assert links("openai:gpt-5 | ollama:llama") == ["openai:gpt-5", "ollama:llama"]
    assert links("exec:cat | sort") == ["exec:cat | sort"]
    assert paid("ollama:llama|openai:gpt-5")
    assert not paid("ollama:llama|local")
    with pytest.raises(UnknownName):
        resolve("openai:gpt-5|")
