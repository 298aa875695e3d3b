"""A server that counts the tokens of prompts, cuts those that are longer than its window, and says nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from consilience.domain.errors import Rejected
from consilience.domain.tokens import BYTES_PER_TOKEN, estimate_tokens
from consilience.models.port import Completion, Model, ModelRequest
from consilience.testing import TEXT, AnyModel, MisbehavingServer, ServerAnswer, ServerRequest
from consilience.testing.misbehaving_server import chat_completion

ENGLISH = "The bridge over the river was closed for repairs in the year of the great flood. "
RUSSIAN = "Мост через реку был закрыт на ремонт в год великого наводнения и долго не открывался. "
CHINESE = "那座横跨河流的大桥在大洪水那一年因维修而关闭，很久都没有重新开放。"


def count_tokens(text: str) -> int:
    """As the tokenizers of today do: about 4.2 Latin, 3.9 Cyrillic or 1.7 Chinese characters for each, and 2 of random digits."""
    latin = sum(character < "\u0080" for character in text)
    cyrillic = sum("\u0400" <= character < "\u0500" for character in text)
    digits = sum(character.isdigit() for character in text)
    return int((latin - digits) / 4.2 + digits / 1.2 + cyrillic / 3.9 + (len(text) - latin - cyrillic) / 1.7)


@dataclass
class Counter:
    """What a server says that it read."""

    window: int | None = None
    counts: str = "all"
    """`all`; `uncached`, without what the beginning of an earlier prompt has had; `nothing`; or `half`, of a cut prompt."""
    apart: bool = False
    """Whether what was cached is reported beside it."""

    def __post_init__(self) -> None:
        self.seen: list[str] = []
        """The prompts it got."""

    def usage(self, prompt: str) -> dict[str, object]:
        whole = count_tokens(prompt)
        limit = whole if self.window is None else self.window
        read = whole if whole <= limit else limit // 2 + 2 if self.counts == "half" else limit
        begun = max((_begun(prompt, earlier) for earlier in self.seen), default=0)
        self.seen.append(prompt)
        cached = count_tokens(prompt[:begun]) if self.counts == "uncached" and whole <= limit else 0
        counted = 0 if self.counts == "nothing" else read - cached
        usage: dict[str, object] = {"prompt_tokens": counted, "completion_tokens": 5, "total_tokens": counted + 5}
        return usage | ({"prompt_tokens_details": {"cached_tokens": cached}} if self.apart else {})


def _begun(prompt: str, earlier: str) -> int:
    """Characters that both begin with."""
    low, high = 0, min(len(prompt), len(earlier))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if prompt.startswith(earlier[:middle]) else (low, middle - 1)
    return low


def counting_server(counter: Counter, text: str | Callable[[ServerRequest], str] = "Four.") -> MisbehavingServer:
    """A server that answers every request with the text and with what the counter says of its prompt."""

    def answer(_number: int) -> ServerAnswer:
        prompt = "\n".join(str(message["content"]) for message in server.seen[-1].body["messages"])
        return ServerAnswer(body=chat_completion(TEXT, usage=counter.usage(prompt)))

    server = MisbehavingServer(answer, text=text)
    return server


class Asked(Model):
    """A model behind a server, which is told what each request asks for, so that its text can be a good answer."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner
        self.requests: list[ModelRequest] = []
        self.good = AnyModel()

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def account(self) -> str:
        return self.inner.account

    async def complete(self, request: ModelRequest) -> Completion:
        self.requests.append(request)
        return await self.inner.complete(request)

    async def close(self) -> None:
        await self.inner.close()

    def text(self, sent: ServerRequest) -> str:
        """What a capable model would write to a request that the server got."""
        words = json.dumps(sent.body, ensure_ascii=False)
        asked = (r for r in reversed(self.requests) if json.dumps(r.user, ensure_ascii=False)[1:-1] in words)
        return self.good.reply(next(asked))


class Strict(AnyModel):
    """Writes as much as it may, and refuses a request that is longer than its window, as vLLM does."""

    def __init__(self, window: int, *, thinks: bool) -> None:
        super().__init__()
        self.context_window = window
        self.thinks = "always" if thinks else "never"

    async def complete(self, request: ModelRequest) -> Completion:
        prompt = estimate_tokens(request.text) + (estimate_tokens(json.dumps(request.schema)) if request.schema else 0)
        if (asked := prompt + request.max_tokens + request.thinking_tokens) > self.context_window:
            raise Rejected(f"{request.key}: {asked} tokens in a window of {self.context_window}")
        return await super().complete(request)

    def reply(self, request: ModelRequest) -> str:
        written = super().reply(request)
        room = int(request.max_tokens * BYTES_PER_TOKEN) - len(written.encode())
        more = f" {request.agent} {request.key}" * (max(room - 200, 0) // len(f" {request.agent} {request.key}"))
        if request.schema is None:
            return written + more
        value = json.loads(written)
        longest = request.schema["properties"]["text"].get("maxLength") if "text" in value else 0  # type: ignore[index]
        return json.dumps({**value, "text": (value["text"] + more)[:longest]} if longest != 0 else value)
