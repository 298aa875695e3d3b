"""Requests of chat programs, and what they ask for: a task with its sources, a follow-up, or help for the program itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, ThinkingLevel
from consilience.domain.panels import Panel
from consilience.server.joins import digest_of
from consilience.server.openai_errors import RefusedRequest

PREFIX = "consilience/"
"""Before the name of a protocol or preset, in the names of models."""
ASK = "ask"
"""The model that chooses how a task is worked on."""
MAX_HELPER_TOKENS = 64
"""A request for so few tokens asks for a title or a sign of life, not for a deliberation."""
HELPER_TOKENS = range(16, 1_001)
"""What a helper request may set as the max tokens of its answer. The default is the last."""
SO_FAR = "the conversation so far"
INSTRUCTIONS = "standing instructions for the answer"
"""Name of the source with the system texts of a conversation."""
MAX_INSTRUCTIONS_CHARS = 4_000
"""Longer system texts of a request with tools are those of a program that acts: they say how to use its tools."""
NEW = "/new"


class SessionOptions(BaseModel):
    """What a request may set of the session beside its task. Chat programs leave all of it out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, Any] = {}
    """Settings of the protocol, by name."""
    panel: Panel | str | None = None
    models: tuple[str, ...] = ()
    """Names of the server's models, to assign to the agents in turn."""
    limits: Limits = Limits()


class ChatMessage(BaseModel):
    """A message of the conversation."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    include_usage: bool = False


class ChatRequest(BaseModel):
    """A request for a chat completion. What is not listed, such as the temperature, has no effect."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    modalities: tuple[str, ...] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    consilience: SessionOptions = SessionOptions()

    def check(self) -> None:
        """Raise `RefusedRequest` for what this server does not do."""
        unsupported = {
            "n": self.n not in (None, 1),
            "logprobs": bool(self.logprobs),
            "top_logprobs": bool(self.top_logprobs),
            "logit_bias": bool(self.logit_bias),
            "response_format": (self.response_format or {}).get("type", "text") != "text",
            "tool_choice": self.tool_choice not in ANY_TOOL_CHOICE,
            "modalities": bool(self.modalities) and set(self.modalities or ()) != {"text"},
        }
        for name, is_asked in unsupported.items():
            if is_asked:
                raise unsupported_parameter(name)

    @property
    def entries(self) -> tuple[ChatEntry, ...]:
        """The conversation. Raises `RefusedRequest` for a part that is no text."""
        return tuple(
            ChatEntry(message.role, parts_of(message.content, f"messages[{n}]"))
            for n, message in enumerate(self.messages)
        )


ANY_TOOL_CHOICE = (None, "auto", "none")
"""Values of `tool_choice` that an answer without a call satisfies."""


def unsupported_parameter(name: str) -> RefusedRequest:
    what = f"{name} is not supported: a deliberation gives one text, in Markdown."
    return RefusedRequest(what, param=name, code="unsupported_parameter")


@dataclass(frozen=True)
class ChatEntry:
    """One message of a conversation: who, and its texts."""

    role: str
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n\n".join(self.parts)

    @property
    def instructs(self) -> bool:
        """Whether it is no part of what was said, but how to answer it."""
        return self.role in ("system", "developer")


TEXT_PARTS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
"""Types of parts that are text, with the field that holds it."""


def parts_of(content: str | Sequence[Mapping[str, Any]] | None, where: str) -> tuple[str, ...]:
    """Return the texts of a message. Raises `RefusedRequest`, which names it, for a part that is no text."""
    if content is None or isinstance(content, str):
        return (content,) if content else ()
    texts = []
    for n, part in enumerate(content):
        kind = str(part.get("type", "text"))
        text = part.get(TEXT_PARTS.get(kind, ""))
        if not isinstance(text, str):
            file = part.get(kind)
            name = part.get("filename") or (file.get("filename", "") if isinstance(file, Mapping) else "")
            raise RefusedRequest(
                f"{where}, part {n + 1}{f' ({name})' if name else ''} is of type {kind!r}, which no agent can read. "
                "Send its text as a part of type 'text'.",
                param=f"{where}.content[{n}]",
                code="unsupported_content_part",
            )
        texts.append(text)
    return tuple(text for text in texts if text.strip())


# --- helper requests

_HELPER_TEXTS = re.compile(
    # Open WebUI: title, tags, follow-ups, queries and completion of what is typed (`config.py`, DEFAULT_*_PROMPT_TEMPLATE)
    r"\A\s*### Task:\s(?=.*(?:<chat_history>|### Chat History|autocompletion system))"
    # LibreChat: `titleConvo`
    r"|5-word-or-less title for the conversation|Analyze this conversation and provide:\s+1\. The detected language"
    # LobeChat: `chainSummaryTitle`, `chainSummaryHistory`
    r"|You are a professional conversation summarizer\. Generate a concise title|将用户的会话总结为 10 个字以内的标题"
    r"|an assistant who's good at extracting key takeaways from conversations"
    # Continue: `ChatDescriber`
    r"|please reply with a title for the chat that is 3-4 words"
    # Zed: `summarize_thread_prompt.txt`
    r"|Generate a concise 3-7 word title for this conversation"
    # opencode: the agent `title`, with a `max_tokens` of 32,000
    r"|\AYou are a title generator\. You output ONLY a thread title\.",
    re.DOTALL,
)
"""How requests begin that chat programs make for themselves, read in their sources in November 2026."""


def _is_helper(entries: Sequence[ChatEntry], max_tokens: int | None) -> bool:
    last = next((entry for entry in reversed(entries) if entry.role == "user"), None)
    texts = [entry.text for entry in entries if entry.instructs]
    return (max_tokens is not None and max_tokens <= MAX_HELPER_TOKENS) or any(
        _HELPER_TEXTS.search(text) for text in (*texts, *((last.text,) if last else ()))
    )


def _helper_text(entries: Sequence[ChatEntry]) -> str:
    """Return the instructions and the text of a helper request."""
    others = [entry for entry in entries if not entry.instructs]
    user = others[0].text if len(others) == 1 else _spoken(others)
    return "\n\n".join(filter(None, (_instructions(entries), user)))


# --- turns


@dataclass(frozen=True)
class Signature:
    """The last line of an answer of ours: it names the session, and with it what a next message follows up."""

    session: str
    url: str
    model: str
    root: str = ""
    """The session that was followed up; "" for a deliberation."""

    def markdown(self, figures: str) -> str:
        link = f"[{self.session}]({self.url})"
        what = f"Follow-up {link} to session {self.root}" if self.root else f"Session {link}"
        return f"*{what} · {self.model} · {figures}*"


_SIGNATURE = re.compile(
    r"^\*(?:Session|Follow-up) \[(?P<session>[^\]\s]+)\]\((?P<url>[^)\s]*)\)(?: to session (?P<root>\S+))? · "
    rf"(?P<model>{PREFIX}\S+) · .*\*$"
)


def signature_of(text: str) -> Signature | None:
    """Return the signature of an answer of ours; None for any other text."""
    lines = text.rstrip().rsplit("\n", 1)
    match = _SIGNATURE.match(lines[-1].strip())
    return Signature(match["session"], match["url"], match["model"], match["root"] or "") if match else None


@dataclass(frozen=True, kw_only=True)
class ChatTurn:
    """What the last message of a conversation asks for."""

    model: str
    """With its prefix."""
    task: str
    sources: tuple[Source, ...] = ()
    parent: str = ""
    """The session of which this is a follow-up."""
    options: SessionOptions = field(default_factory=SessionOptions)
    seed: int = 0
    thinking: ThinkingLevel | None = None
    ignored: tuple[str, ...] = ()
    """What the request names that has no effect and that its sender should know of."""
    helper_tokens: int | None = None
    """Max tokens of the answer, if a chat program asks for something of its own, such as a title; None where a person asks."""

    @property
    def name(self) -> str:
        """The protocol, preset or `ask`."""
        return self.model.removeprefix(PREFIX)

    def digest(self, owner: str) -> str:
        """Return the SHA-256 (hex) of all on which the session of this turn depends."""
        content = {
            "owner": owner,
            "model": self.model,
            "task": self.task,
            "sources": [source.model_dump(mode="json") for source in self.sources],
            "parent": self.parent,
            "options": self.options.model_dump(mode="json"),
            "seed": self.seed,
            "thinking": self.thinking,
            "helper_tokens": self.helper_tokens,
        }
        return digest_of(content)


_THINKING: Mapping[str, ThinkingLevel] = {
    "none": "off",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
}
"""Levels of thinking by the provider's names."""


def turn_of(
    entries: Sequence[ChatEntry],
    *,
    model: str,
    options: SessionOptions | None = None,
    seed: int | None = None,
    effort: str | None = None,
    tools: bool = False,
    max_tokens: int | None = None,
) -> ChatTurn:
    """Return what a conversation asks for. With `tools` system texts are left out that are long (`MAX_INSTRUCTIONS_CHARS`).

    Raises `RefusedRequest` without a task.
    """
    if _is_helper(entries, max_tokens):
        tokens = max(HELPER_TOKENS[0], min(max_tokens or HELPER_TOKENS[-1], HELPER_TOKENS[-1]))
        return ChatTurn(model=model, task=_helper_text(entries), helper_tokens=tokens)
    spoken = [entry for entry in entries if not entry.instructs]
    place = next((n for n in reversed(range(len(spoken))) if spoken[n].role == "user" and spoken[n].parts), None)
    if place is None:
        raise RefusedRequest("There is no user message with a text.", param="messages", code="no_task")
    *attached, task = spoken[place].parts
    before, parent, is_new = spoken[:place], "", task.lstrip().split(maxsplit=1)[:1] == [NEW]
    if is_new:
        task = task.lstrip().removeprefix(NEW).strip()
        if not task:
            raise RefusedRequest(f"There is no task after {NEW}.", param="messages", code="no_task")
    earlier = None if is_new else _answered(before, model)
    if earlier is not None:
        position, signature = earlier
        parent, before = signature.root or signature.session, before[position + 1 :]
    instructions = _instructions(entries)
    ignored: tuple[str, ...] = ("tools",) if tools else ()
    if tools and len(instructions) > MAX_INSTRUCTIONS_CHARS:
        instructions, ignored = "", ("tools", "instructions")
    texts = {INSTRUCTIONS: instructions, SO_FAR: _spoken(before)}
    sources = [Source(text=text, name=name) for name, text in texts.items() if text]
    sources += [Source(text=text, name=f"part {n} of the message") for n, text in enumerate(attached, 1)]
    return ChatTurn(
        model=model,
        task=task.strip(),
        sources=tuple(sources),
        parent=parent,
        options=options or SessionOptions(),
        seed=seed or 0,
        thinking=_THINKING.get(effort or ""),
        ignored=ignored,
    )


def _answered(entries: Sequence[ChatEntry], model: str) -> tuple[int, Signature] | None:
    """Return the place and signature of the deliberation that a next message follows up, if the latest answer is by this model.

    Of an answer that is a follow-up itself, it is the place of what it follows up, if that is still in the conversation.
    """
    found = [
        (n, signature)
        for n, entry in enumerate(entries)
        if entry.role == "assistant" and (signature := signature_of(entry.text)) is not None
    ]
    if not found or found[-1][1].model != model:
        return None
    latest = found[-1][1]
    root = latest.root or latest.session
    place = next((n for n, signature in reversed(found) if signature.session == root), -1)
    return place, latest


def _instructions(entries: Sequence[ChatEntry]) -> str:
    return "\n\n".join(entry.text.strip() for entry in entries if entry.instructs and entry.text.strip())


def _spoken(entries: Sequence[ChatEntry]) -> str:
    return "\n\n".join(_lines(entries))


def _lines(entries: Sequence[ChatEntry]) -> Iterator[str]:
    for entry in entries:
        text = entry.text.strip()
        if signature_of(text):
            text = text.rpartition("\n")[0].rstrip()
        if text:
            yield f"{entry.role.capitalize()}: {text}"
