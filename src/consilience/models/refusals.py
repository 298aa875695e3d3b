"""What servers refuse of a request, and the form in which it is sent next.

`REFUSALS` is the one table: the part of the request that a server does not take, the words by which it says so, and the sentence
that tells the user what was changed. `next_form` reads an error by it. A model keeps the form that it has learned as long as it
lives, which is one deliberation. Whatever is refused was not answered, so nothing is paid for twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

OutputMode = Literal["native", "tool", "prompted"]

MIN_ROOM = 128
"""Min tokens of a reply that are worth a request."""
_MAX_WORDS = 8_000
"""Characters of an error that are read."""


@dataclass(frozen=True, slots=True)
class RequestForm:
    """How requests to one model are sent."""

    output: OutputMode
    """How the form of a typed reply is asked for."""
    left_out: frozenset[str] = frozenset()
    """Settings that are not sent: seed, temperature, max_tokens, thinking."""
    max_tokens: int | None = None
    """The most that the model writes, as its server has named it."""
    folds_system: bool = False
    """Whether the instructions stand before the prompt instead of in a message of their own."""
    streams: bool = False
    """Whether replies are asked for as a stream."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What an error is about: the parts of the request that was sent."""

    form: RequestForm
    typed: bool
    """Whether the form of a reply was asked for."""
    system: bool
    """Whether a message with instructions was sent."""
    max_tokens: int
    optional: frozenset[str]
    """Settings that were sent and may be left out."""
    tools: bool = True
    """Whether the model can be asked for a call of a tool."""


@dataclass(frozen=True, slots=True)
class Change:
    """The next form, and what is said of it once."""

    form: RequestForm
    note: str
    room: int | None = None
    """Max tokens of this request only: what the context window leaves beside its prompt."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of refusal. `part` is the part that is refused: `RequestForm` says what takes its place."""

    part: str
    words: str
    """Pattern in the error, in lower case."""
    note: str
    unknown: bool = False
    """Whether the error must also say that the part is unknown or unsupported."""
    failed: bool = False
    """Whether a server that failed (HTTP 5xx) may mean it by these words alone."""


_UNKNOWN = re.compile(
    r"unsupported|not (?:be |yet |currently )?support|n't support|un(?:known|recogni[sz]ed|expected|available)|deprecated"
    r"|cannot find field|not (?:be )?(?:permitted|allowed|accepted|available|implemented|enabled|recogni[sz]ed|known)"
    r"|extra_forbidden|only the default|must be 1\b|only be set to 1\b"
    r"|no such (?:parameter|field|argument)|invalid (?:parameter|field|argument)\b"
)
_NOT = r"(?:not|n't|un)[ -]?(?:be |yet |currently )?(?:support|allow|enabl|permit|accept|recogni|valid|one of)"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "stream",
        r"\bstream\w*\W{1,3}(?:parameter )?(?:must|has to|needs? to|should) be (?:set to |equal to )?\W?(?:true|1\b|enabled)"
        r"|\bonly (?:support|allow|accept|work|serve)\w*(?: in| with| the)? ?\W?stream|enable the stream\b"
        r"|non[- ]?stream\w*(?: \w+){0,3} (?:is |are )?(?:not|un|disabled)"
        r"|(?:must|set|please|only)\b.{0,30}\bstream\W{0,3}(?:to|=|:)?\W{0,3}true"
        r"|\bstream(?:ing)?(?: mode)? is (?:required|mandatory)|requires? (?:a )?stream|for non-streaming calls|非流式"
        r"|not\b.{0,20}\bstream\W{1,4}false"
        r"|without stream\w* (?:is|are) not",
        "replies are read as a stream",
        failed=True,
    ),
    Refusal(
        "system",
        rf"\bsystem[ _]?(?:role|message|prompt|instruction)s?\b.{{0,60}}?{_NOT}"
        rf"|{_NOT}\w*.{{0,40}}\bsystem[ _]?(?:role|message|prompt)"
        rf"|developer (?:instruction|role|message)s?\b.{{0,40}}?{_NOT}|roles? must alternate|must alternate between"
        rf"|role\W{{1,4}}(?:system|developer)\b.{{0,60}}?{_NOT}|\W(?:system|developer)\W{{1,3}}is {_NOT}"
        r"|unknown (?:variant|role)\W{1,4}(?:system|developer)|invalid role\W{1,4}(?:system|developer)"
        r"|does not support\W{1,3}(?:system|developer)\b|only (?:\w+ )?.?user.? (?:and|or|,).{0,15}assistant"
        r"|role must be (?:one of )?.{0,5}user.{1,8}assistant|first message must be.{0,20}user",
        "instructions stand before the prompt, since the server takes no system role",
        failed=True,
    ),
    Refusal(
        "schema",
        r"x?grammar|gbnf|outlines|llguidance|lm-format-enforcer|guided[ _](?:json|decoding|generation)|\bregex\b"
        r"|json schema|response_?(?:json_?)?schema|\bschemas?\b(?!_)|too many states|json_validate_failed|failed_generation"
        r"|failed to (?:generate|parse) (?:a )?(?:valid )?json|constrained? decod|compile[rd]? (?:the )?(?:json|structural)",
        "the form of replies is asked for in words, since the server refuses the schema",
        failed=True,
    ),
    Refusal(
        "format",
        r"response_?format|json_schema|json[_ ]mode|structured[ _-]outputs?|structured (?:decoding|generation)|text\.format"
        r"|output_(?:config|format)|response_?mime_?type|response mime type|\b(?:output|response|json) format",
        "the form of replies is asked for in another way, since the server takes no response format",
        failed=True,
    ),
    Refusal(
        "tool",
        r"\btools?\b|tool[_ ](?:choice|use|call)|function",
        "the form of replies is asked for in words, since the server takes no tools",
    ),
    Refusal("seed", r"\bseed\b", "no seed is sent, since the server takes none", unknown=True),
    Refusal("temperature", r"\btemperature\b", "no temperature is sent, since the server takes none", unknown=True),
    Refusal(
        "temperature",
        r"\btemperature\b.{0,80}?(?:range|between|must be|has to be|should be|only \d|at most|[<>])"
        r"|(?:invalid|illegal|out of range).{0,40}\btemperature\b",
        "no temperature is sent, since the server does not take this one",
    ),
    Refusal(
        "max_tokens",
        r"\bmax_(?:completion_)?tokens\b",
        "the limit of a reply is sent under another name, or not at all",
        unknown=True,
    ),
    Refusal(
        "thinking",
        r"\breasoning(?:[_.]effort)?\b|\b(?:enable_)?thinking\b|\bthink\b",
        "no level of thinking is sent, since the server takes none",
        unknown=True,
    ),
)
"""Of several parts that an error names, the one named first is changed; of one place, the first row here."""

_OUTPUTS: Mapping[str, tuple[OutputMode, ...]] = {
    "schema": ("native", "tool"),
    "format": ("native", "tool"),
    "tool": ("native", "tool"),
}
"""The forms of output that a refusal can be about. Some servers make a tool of a schema."""


def next_form(sent: Sent, status: int, words: str, message: str) -> Change | None:
    """Return how to send a request again that was refused with these words; None if nothing else is worth trying.

    `message` is the part of the `words` written for people. An error that names no part that was sent, and one about the key, the
    rate or the size of the prompt, changes nothing.
    """
    if status in (401, 402, 403, 408, 429) or status < 400:
        return None
    words = words.lower()[:_MAX_WORDS]
    if (limit := named_limit(words, message.lower()[:_MAX_WORDS], sent.max_tokens)) is not None:
        tokens, lasting = limit
        note = f"replies have at most {tokens} tokens, as the server demands"
        return Change(replace(sent.form, max_tokens=tokens), note) if lasting else Change(sent.form, "", room=tokens)
    unknown = _UNKNOWN.search(words) is not None
    mentions = [
        (match.start(), number, refusal)
        for number, refusal in enumerate(REFUSALS)
        if _is_sent(refusal.part, sent)
        and (unknown or not refusal.unknown)
        and (status < 500 or refusal.failed or unknown)
        and (match := re.search(refusal.words, words))
    ]
    if not mentions:
        return None
    refusal = min(mentions, key=lambda mention: mention[:2])[2]
    return Change(_without(refusal.part, sent), refusal.note)


def _is_sent(part: str, sent: Sent) -> bool:
    if part in _OUTPUTS:
        return sent.typed and sent.form.output in _OUTPUTS[part]
    return {"stream": not sent.form.streams, "system": sent.system and not sent.form.folds_system}.get(
        part, part in sent.optional - sent.form.left_out
    )


def _without(part: str, sent: Sent) -> RequestForm:
    """Return the form that takes the place of the refused part."""
    match part:
        case "stream":
            return replace(sent.form, streams=True)
        case "system":
            return replace(sent.form, folds_system=True)
        case "format" if sent.tools and sent.form.output == "native":
            return replace(sent.form, output="tool")
        case "format" | "schema" | "tool":
            return replace(sent.form, output="prompted")
    return replace(sent.form, left_out=sent.form.left_out | {part})


def combined(learned: RequestForm, sent: RequestForm, change: RequestForm) -> RequestForm:
    """Return the form that a model has `learned`, with what `change` changes of the `sent` one: other requests learn meanwhile."""
    limits = [form.max_tokens for form in (learned, change) if form.max_tokens is not None]
    return RequestForm(
        output=change.output if learned.output == sent.output else learned.output,
        left_out=learned.left_out | change.left_out,
        max_tokens=min(limits, default=None),
        folds_system=learned.folds_system or change.folds_system,
        streams=learned.streams or change.streams,
    )


# limits on the length of a reply

_REPLY_TOKENS = re.compile(
    r"max[_ ]?(?:completion|output|new|generated|gen)?[_ ]?tokens"
    r"|max_?output_?tokens|max_?tokens|maximum tokens|maximum number of tokens"
    r"|(?:completion|output|new|generated|response) tokens|num_predict|generation length|max length"
)
_LIMITED = re.compile(
    r"at most|maxim|less than|lower than|smaller|must be|should be|range|up to|limit|exceed|too (?:large|big|high|many)"
    r"|<=?|>|≤|between|cannot|can't|no more than|larger than|greater than|higher than|above|out of|supports?"
)
_NUMBER = re.compile(r"(?<![\w.-])(?:\d{1,3}(?:,\d{3})+|\d+)(?!\w|\.\d|,\d)")
_EXCLUSIVE = re.compile(r"\W{0,3}\(?exclusive")
_BELOW = re.compile(r"(?:less|lower|smaller) than(?! or)\W*$|(?<![<>=])<(?!=)\s*$")
_WINDOW = re.compile(
    r"(?:context (?:length|window|size)|max_model_len|max_seq_len|model'?s? (?:context|limit)|must be <=)\D{0,40}?(\d[\d,]*)"
)
_TOTAL = re.compile(r"requested (?:a total of |about )?(\d[\d,]*) (?:total )?tokens|total of (?:at least )?(\d[\d,]*)")
_PROMPT = re.compile(
    r"(\d[\d,]*) (?:`?inputs?`?|prompt) tokens|(\d[\d,]*) (?:tokens )?(?:in|from|of) (?:the |your )?(?:messages|input|prompt|text)"
    r"|prompt (?:has|contains|is|of)(?: at least)? (\d[\d,]*)"
)


def named_limit(words: str, message: str, sent: int) -> tuple[int, bool] | None:
    """Return the most tokens that an error allows for a reply for which `sent` were asked, and whether that holds for every prompt;
    None if its `message` names no such number. Both texts are in lower case.

    What the context window leaves beside a prompt holds for that prompt only.
    """
    if _REPLY_TOKENS.search(words) is None and _TOTAL.search(words) is None:
        return None
    if (window := _number(_WINDOW.search(message))) is not None:
        prompt, total = _number(_PROMPT.search(message)), _number(_TOTAL.search(message))
        if prompt is None and total is not None:
            prompt = total - sent
        if prompt is not None and prompt >= 0:
            room = window - prompt
            return (room, False) if MIN_ROOM <= room < sent else None
    if _LIMITED.search(message) is None:
        return None
    found = []
    for match in _NUMBER.finditer(message):
        number = _number(match) or 0
        exclusive = _EXCLUSIVE.match(message, match.end()) or _BELOW.search(message[: match.start()])
        found.append(number - 1 if exclusive else number)
    allowed = [number for number in found if MIN_ROOM <= number < sent]
    return (max(allowed), True) if allowed else None


def _number(match: re.Match[str] | None) -> int | None:
    """Return the number that a pattern found."""
    if match is None:
        return None
    digits = next((group for group in match.groups() if group), match[0])
    return int(digits.replace(",", ""))
