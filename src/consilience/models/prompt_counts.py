"""Whether a server read a whole prompt. Some cut a prompt that is longer than their context window, and say nothing.

What they say is how many tokens they read. A low count has three causes: the prompt was cut; its text needs fewer tokens than
estimated, as Russian does; or the server counts only tokens that it had not cached. A good reply must not be lost to the last two,
so a low count is not believed alone: the window must be known, or another prompt of another size must have the same count.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from consilience.domain.errors import ProviderError, Truncated
from consilience.domain.tokens import MIN_RATIO, estimate_tokens
from consilience.models.limiter import Limited, Pace, requests_of, retry_allowed
from consilience.models.port import Completion, ModelRequest, add_usage
from consilience.models.provider import ProviderModel

LOW_SHARE = 0.6
"""A count below this share of what is expected is low."""
MIN_TOKENS = 512
"""No window is smaller. A smaller count counts something else, and a prompt of less than twice the size is always read."""
_WORDS = ("year", "people", "way", "day", "life", "world", "school", "state", "family", "group", "country", "problem")
"""Words of which any tokenizer makes one or two tokens. A probe begins with random ones."""
MAX_PROBES = 2
"""In one script: the first may show that it needs few tokens, the second that the server does not count cached ones."""
_PROBE_WORDS = 80

CountVerdict: TypeAlias = Literal["whole", "cut", "low", "unsure"]
"""`low`: the count is low, and nobody knows why. `unsure`: a probe would tell."""


@dataclass(frozen=True, slots=True)
class PromptCount:
    """What a server counted of a prompt."""

    estimate: int
    """Tokens by the bytes of the prompt."""
    tokens: int
    """Tokens that it counted; 0 if it counts none."""
    cached: int = 0
    """Those that it read from a cache. Most servers count them among `tokens`, too."""
    script: int = 1
    """Bytes of a character, on average: texts of one script need about the same tokens for each byte."""


@dataclass(frozen=True)
class CountHistory:
    """What the counts of a model have shown so far."""

    ratios: Mapping[int, float] = field(default_factory=dict)
    """Tokens counted for each estimated one in prompts that were read whole, at most 1, by script."""
    low: PromptCount | None = None
    """The last low count that nothing explains."""
    limit: int | None = None
    """The count of prompts that the server cut."""
    omits_cached: bool = False
    """Whether it counts only tokens that it had not cached."""
    probed: tuple[int, ...] = ()
    """The script of each probe that was sent."""

    def expected(self, count: PromptCount) -> int:
        """Tokens that the prompt should have."""
        return int(count.estimate * self.ratios.get(count.script, 1.0))

    def with_ratio(self, count: PromptCount) -> CountHistory:
        ratio = max(min(max(count.tokens, count.cached) / count.estimate, 1.0), self.ratios.get(count.script, 0.0))
        return replace(self, ratios={**self.ratios, count.script: ratio})


def judge(count: PromptCount, history: CountHistory, window: int | None) -> tuple[CountVerdict, CountHistory]:
    """Return whether the prompt of that count was read whole, and the history with it. `window` is the context window, if known."""
    read = count.tokens + count.cached
    if not count.tokens or count.estimate < 2 * MIN_TOKENS or read < MIN_TOKENS:
        return "whole", history
    if count.tokens in (window, history.limit):  # no room was left for a reply
        return "cut", history
    if read >= LOW_SHARE * history.expected(count):
        return "whole", history if history.omits_cached else history.with_ratio(count)
    limit = min((tokens for tokens in (window, history.limit) if tokens), default=None)
    if limit is not None and read <= limit < count.estimate * max(
        MIN_RATIO, LOW_SHARE * history.ratios.get(count.script, 0)
    ):
        return "cut", history
    if history.omits_cached:
        return "whole", history
    earlier = history.low
    if earlier is not None and earlier.tokens == count.tokens and earlier.estimate != count.estimate:
        return "cut", replace(history, limit=count.tokens)
    return "low" if history.probed.count(count.script) >= MAX_PROBES else "unsure", replace(history, low=count)


def judge_probe(count: PromptCount, probe: PromptCount, history: CountHistory) -> tuple[CountVerdict, CountHistory]:
    """Return the same of a low count by that of a `probe`: the same prompt below a random line, which makes it longer and unknown
    to any cache. A server that read all of it counts the line."""
    history = replace(history, probed=(*history.probed, count.script))
    grown, longer = probe.tokens - count.tokens, probe.estimate - count.estimate
    if not probe.tokens or (probe.tokens < MIN_RATIO * probe.estimate and grown > longer // 4):
        return "low", history
    if grown <= longer // 4:
        return "cut", replace(history, limit=probe.tokens)
    return "whole", replace(history, low=None, omits_cached=grown > 2 * longer).with_ratio(probe)


def count_of(request: ModelRequest, completion: Completion) -> PromptCount:
    estimate = estimate_tokens(request.text)
    script = round(len(request.text.encode("utf-8", "surrogatepass")) / max(len(request.text), 1))
    return PromptCount(estimate, completion.tokens_in, completion.tokens_cached, script)


class WholePrompts(Limited):
    """A model behind its account's limiter, no reply of which is taken if its server cut the prompt."""

    def __init__(self, inner: ProviderModel, *, deadline: float, retries: int, pace: Pace | None) -> None:
        super().__init__(inner, deadline=deadline, retries=retries, pace=pace)
        self._ask_window = inner.ask_window
        self._history = CountHistory()
        self._probing: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def complete(self, request: ModelRequest) -> Completion:
        """Answer as `Limited` does. Raises `Truncated` for a cut prompt, with the reply as `completion`, since it was paid for."""
        completion = await super().complete(request)
        count = count_of(request, completion)
        verdict = self._judge(count)
        if verdict == "unsure":
            async with self._lock():  # calls that were sent together need one probe
                verdict = self._judge(count)
                if verdict == "unsure" and await self._ask_window():
                    verdict = self._judge(count)
                if verdict == "unsure" and retry_allowed():
                    completion, verdict = await self._probe(request, completion, count)
        if verdict == "cut":
            read = f"the server read {count.tokens:,} of about {self._history.expected(count):,} tokens"
            failure = Truncated(
                f"{self.name}: {read}: its context window is smaller than the prompt. "
                "Enlarge it (OLLAMA_CONTEXT_LENGTH of Ollama, -c of llama.cpp, --max-model-len of vLLM), "
                "or use shorter sources, smaller --reply-tokens, fewer rounds or another model."
            )
            vars(failure).update(requests=completion.requests, waited=completion.waited, completion=completion)
            raise failure
        uncounted = 0 if verdict == "whole" else max(self._history.expected(count) - count.tokens - count.cached, 0)
        return replace(completion, uncounted=uncounted) if uncounted else completion

    def _judge(self, count: PromptCount) -> CountVerdict:
        verdict, self._history = judge(count, self._history, self.context_window)
        return verdict

    async def _probe(
        self, request: ModelRequest, completion: Completion, count: PromptCount
    ) -> tuple[Completion, CountVerdict]:
        """Send the prompt again below a random line. Return the completion with the usage of both requests, and what it shows."""
        line = f"{' '.join(map(secrets.choice, (_WORDS,) * _PROBE_WORDS))}\n\n"
        part = "system" if request.system else "user"
        probe = replace(
            request,
            **{part: line + getattr(request, part)},
            returns=None,
            schema=None,
            max_tokens=16,
            thinking_tokens=0,
            shared=(),
        )
        try:
            answer = await self.send(probe, retries=0)
        except ProviderError as error:
            self._history = replace(self._history, probed=(*self._history.probed, count.script))
            return replace(completion, requests=completion.requests + requests_of(error)), "low"
        verdict, self._history = judge_probe(count, count_of(probe, answer), self._history)
        both = add_usage([answer, completion])
        return replace(both, requests=answer.requests + completion.requests), verdict

    def _lock(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._probing is None or self._probing[0] is not loop:
            self._probing = (loop, asyncio.Lock())
        return self._probing[1]
