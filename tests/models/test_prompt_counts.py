"""Prompts that a server cut are found by its counts, and no good reply is lost: against a real server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from consilience.domain.errors import ServerError, Truncated
from consilience.models.endpoints import Endpoints
from consilience.models.limiter import may_retry
from consilience.models.port import Completion, Model, ModelRequest
from consilience.models.prompt_counts import CountHistory, PromptCount, judge, judge_probe
from consilience.models.registry import resolve
from consilience.testing import MisbehavingServer, ServerAnswer
from kit.counting import CHINESE, ENGLISH, RUSSIAN, Counter, count_tokens, counting_server


def request(text: str, **more: object) -> ModelRequest:
    fields: dict[str, object] = {"agent": "a", "key": "k", "system": "Be brief.", "user": text}
    return ModelRequest(**{**fields, **more})  # type: ignore[arg-type]


def long(sentence: str, tokens: int) -> str:
    """A text of about so many tokens, each sentence of which is numbered."""
    number = int(tokens / count_tokens(f"1234 {sentence}"))
    return "".join(f"{n} {sentence}" for n in range(1000, 1000 + number))


@asynccontextmanager
async def served(counter: Counter, window: int | None = None) -> AsyncIterator[Model]:
    async with counting_server(counter) as server:
        known = Endpoints()
        if window:
            known = known.declare(f"{server.url}/v1", context_window=window)
        model = resolve(f"{server.url}/v1#stub", known=known, retries=0)
        yield model
        await model.close()


@pytest.mark.parametrize("counts", ["all", "half"])
@pytest.mark.parametrize("sentence", [ENGLISH, RUSSIAN, CHINESE])
@pytest.mark.parametrize("window", [4_096, 32_768])
async def test_prompt_that_the_server_cut_fails_with_its_count_and_what_to_change(
    counts: str, sentence: str, window: int
) -> None:
    counter = Counter(window, counts)
    async with served(counter) as model:
        with pytest.raises(Truncated) as failed:
            await model.complete(request(long(sentence, 4 * window)))
    read = window if counts == "all" else window // 2 + 2
    assert f"the server read {read:,} of about " in str(failed.value)
    assert "OLLAMA_CONTEXT_LENGTH" in str(failed.value)
    assert isinstance(failed.value.completion, Completion)
    assert (failed.value.requests, failed.value.completion.tokens_in) == (2, 2 * read)
    first, probe = counter.seen
    assert probe.endswith(first)
    assert probe != first


async def test_probe_tells_once_for_all_that_the_server_cuts() -> None:
    counter = Counter(4_096)
    async with served(counter) as model:
        for tokens in (20_000, 30_000, 40_000):
            with pytest.raises(Truncated):
                await model.complete(request(long(ENGLISH, tokens)))
    assert len(counter.seen) == 4


async def test_known_window_tells_without_a_probe() -> None:
    counter = Counter(4_096)
    async with served(counter, window=4_096) as model:
        with pytest.raises(Truncated, match="read 4,096 of about"):
            await model.complete(request(long(ENGLISH, 20_000)))
        with pytest.raises(Truncated):  # cut by less than the estimate is wrong
            await model.complete(request(long(ENGLISH, 4_500)))
    assert len(counter.seen) == 2


async def test_calls_sent_together_need_one_probe() -> None:
    counter = Counter(4_096)
    async with served(counter) as model:
        sent = [model.complete(request(long(ENGLISH, 20_000 + n))) for n in range(4)]
        answers = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Truncated] * 4
    assert len(counter.seen) == 5


@pytest.mark.parametrize("window", [None, 32_768])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("counts", ["all", "uncached", "nothing"])
@pytest.mark.parametrize("sentence", [ENGLISH, RUSSIAN, CHINESE])
async def test_no_good_reply_is_lost_and_at_most_two_probes_are_sent(
    sentence: str, counts: str, apart: bool, window: int | None
) -> None:
    """Prompts that begin alike, so that a cache has most of each; the longest needs nine tenths of the window."""
    counter = Counter(window, counts, apart)
    document = long(sentence, 26_000)
    async with served(counter, window) as model:
        for n in range(6):
            answer = await model.complete(request(document + long(ENGLISH, 700 * n)))
            assert (answer.text, answer.uncounted) == ("Four.", 0)
    assert len(counter.seen) <= 8


async def test_english_after_russian_is_still_found_cut() -> None:
    counter = Counter()
    async with served(counter) as model:
        await model.complete(request(long(RUSSIAN, 20_000)))
        counter.window = 8_192
        with pytest.raises(Truncated):
            await model.complete(request(long(ENGLISH, 20_000)))


async def test_low_count_that_no_probe_explains_keeps_the_reply_and_says_so() -> None:
    counter = Counter(4_096)
    async with served(counter) as model:
        token = may_retry.set(lambda: False)  # a limit allows no further request
        answer = await model.complete(request(long(ENGLISH, 20_000)))
        may_retry.reset(token)
    assert answer.text == "Four."
    assert answer.uncounted > 15_000


async def test_two_prompts_of_different_size_with_the_same_count_are_cut() -> None:
    counter = Counter(4_096)
    async with served(counter) as model:
        token = may_retry.set(lambda: False)
        await model.complete(request(long(ENGLISH, 20_000)))
        with pytest.raises(Truncated):
            await model.complete(request(long(ENGLISH, 30_000)))
        may_retry.reset(token)
    assert len(counter.seen) == 2


async def test_reply_is_kept_if_the_probe_fails() -> None:
    def answer(number: int) -> ServerAnswer:
        if number > 1:
            return ServerAnswer(500, {"error": {"message": "down"}})
        usage = {"prompt_tokens": 4_000, "completion_tokens": 5, "total_tokens": 4_005}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Four."}}
        common = {"id": "c", "object": "chat.completion", "created": 1, "model": "stub"}
        return ServerAnswer(body={**common, "choices": [choice], "usage": usage})

    async with MisbehavingServer(answer) as server:
        model = resolve(f"{server.url}/v1#stub", retries=3)
        answered = await model.complete(request(long(ENGLISH, 20_000)))
        with pytest.raises(ServerError):
            await model.complete(request("2+2?"))
        await model.close()
    assert (answered.text, answered.requests, answered.uncounted > 0) == ("Four.", 2, True)


@pytest.mark.parametrize("share", [n / 20 for n in range(8, 21)])
@pytest.mark.parametrize("window", [None, 2_048, 4_096, 32_768, 131_072])
@pytest.mark.parametrize("omits", [False, True])
def test_prompt_that_was_read_whole_is_never_called_cut(share: float, window: int | None, omits: bool) -> None:
    """For any tokenizer and window, with prompts of growing size of which a server may count a last part only."""
    history = CountHistory()
    for estimate in range(1_000, 200_000, 1_700):
        tokens = int(share * estimate)
        if window is not None and tokens >= window:
            break
        count = PromptCount(estimate, 700 + estimate % 90 if omits and tokens > 1_000 else tokens)
        verdict, history = judge(count, history, window)
        if verdict == "unsure":
            verdict, history = judge_probe(count, PromptCount(estimate + 130, tokens + 90), history)
        assert verdict == "whole", (estimate, tokens)


@pytest.mark.parametrize("share", [0.75, 0.85, 1.0])
@pytest.mark.parametrize("window", [2_048, 4_096, 32_768])
@pytest.mark.parametrize("known", [False, True])
def test_prompt_cut_below_the_share_is_called_cut(share: float, window: int, known: bool) -> None:
    history = CountHistory()
    for estimate in range(1_000, 400_000, 1_700):
        tokens = min(int(share * estimate), window)
        count = PromptCount(estimate, tokens)
        verdict, history = judge(count, history, window if known else None)
        if verdict == "unsure":
            verdict, history = judge_probe(count, PromptCount(estimate + 130, min(tokens + 90, window)), history)
        if tokens < 0.4 * share * estimate:
            assert verdict == "cut", estimate
