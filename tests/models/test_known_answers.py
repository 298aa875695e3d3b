"""Every answer of the catalogue, at the adapter: what a call gets of it, and how often it is paid for."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from consilience.domain.errors import ProviderError, ServerError
from consilience.domain.messages import FreeText
from consilience.domain.outcome import FailureKind
from consilience.models.parsing import Malformed, parse_reply
from consilience.models.port import Completion, ModelRequest
from consilience.models.provider import ProviderModel
from consilience.testing import KNOWN_ANSWERS, KnownAnswer, MisbehavingServer


class Pick(BaseModel):
    """A pick, with the reason."""

    choice: str
    text: FreeText


TYPED = '{"choice": "keep", "text": "It\'s cheaper. It lasts."}'
UNTYPED = "It is cheaper. It lasts."


def test_catalogue_names_every_answer_once_with_a_source() -> None:
    assert len(KNOWN_ANSWERS) >= 100
    assert max(Counter(known.name for known in KNOWN_ANSWERS).values()) == 1
    assert all(known.source.startswith("https://") for known in KNOWN_ANSWERS)
    servers = [
        "OpenAI",
        "OpenRouter",
        "Groq",
        "DeepSeek",
        "Gemini",
        "Ollama",
        "vLLM",
        "llama.cpp",
        "SGLang",
        "TGI",
        "LiteLLM",
    ]
    assert {*servers, "LM Studio"} <= {known.server for known in KNOWN_ANSWERS}
    assert {known.api for known in KNOWN_ANSWERS} == {"chat", "responses"}


async def complete(known: KnownAnswer, server: MisbehavingServer, *, typed: bool) -> Completion:
    """Ask through the client library. A server that says it is not ready is asked once more, as the limiter does."""
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="k-1")
    library = (OpenAIChatModel if known.api == "chat" else OpenAIResponsesModel)("stub", provider=provider)
    model = ProviderModel("openai-chat:stub", "openai", library)
    request = ModelRequest(
        agent="a",
        key="k",
        system="Be brief.",
        user="Keep it?",
        max_tokens=8192,
        returns=Pick if typed else None,
        schema=Pick.model_json_schema() if typed else None,
    )
    try:
        try:
            return await model.complete(request)
        except ServerError:
            if known.outcome != "text" or not any(answer.times for answer in known.answers):
                raise
            return await model.complete(request)
    finally:
        await model.close()


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize("known", KNOWN_ANSWERS, ids=lambda known: known.name)
async def test_known_answer_has_its_outcome(known: KnownAnswer, typed: bool) -> None:
    async with MisbehavingServer(known.answers, text=known.write(TYPED if typed else UNTYPED)) as server:
        got: Completion | ProviderError
        try:
            got = await complete(known, server, typed=typed)
        except ProviderError as error:
            got = error
    outcome = known.outcome_of(typed=typed)
    if isinstance(got, ProviderError):
        assert got.kind == outcome, got
        assert known.says in str(got)
        assert not re.search(r"pydantic|validation errors? for|Traceback", str(got))
    else:
        assert sum(answer.holds_text for answer in server.sent) <= 1
        check_read(got, outcome, typed=typed)


def check_read(completion: Completion, outcome: object, *, typed: bool) -> None:
    returns: type = Pick if typed else str
    if outcome == FailureKind.TRUNCATED:
        assert completion.finish_reason == "length"
    elif outcome == FailureKind.MALFORMED:
        with pytest.raises(Malformed):
            parse_reply(completion.text, returns)
    else:
        assert outcome == "text", completion
        assert completion.finish_reason != "length"
        assert parse_reply(completion.text, returns) == (Pick.model_validate_json(TYPED) if typed else UNTYPED)
