"""What a person or an outside process is asked, as they read it: now, or from the journal when the process is gone."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from consilience.domain.events import (
    AnswerReceived,
    CallAwaited,
    CallCompleted,
    CallFailed,
    Event,
    MessagePublished,
    ReplyRejected,
    SessionStarted,
)
from consilience.reporting.forms import Form
from consilience.reporting.unfinished import prose
from consilience.reporting.words import printable

_QUOTED = re.compile(r"<quote ([0-9a-f]+) from ([^\n>]*)>\n(.*?)\n</quote \1>", re.DOTALL)


@dataclass(frozen=True)
class Question:
    """`answered`: an answer is there, and is heard when the session goes on."""

    key: str
    agent: str
    attempt: int
    text: str
    form: Form | None
    answered: bool


def questions(
    events: Iterable[Event], text: Callable[[str], str], prompt: Callable[[str], tuple[str, ...]]
) -> list[Question]:
    """What is awaited from outside, in the order in which it was asked."""
    asked: dict[str, CallAwaited] = {}
    answered: set[str] = set()
    said: dict[str, str] = {}
    started: SessionStarted | None = None
    for event in events:
        match event:
            case SessionStarted():
                started = event
            case CallAwaited():
                asked[event.key] = event
            case AnswerReceived():
                answered.add(event.key)
            case CallCompleted() | CallFailed() | ReplyRejected():
                asked.pop(event.key, None)
                answered.discard(event.key)
                if isinstance(event, CallCompleted):
                    said[event.key] = event.text
            case MessagePublished():
                said[event.id] = event.text
    found = []
    for event in asked.values():
        parts = prompt(event.prompt)
        words = "\n\n".join(_part(part, started, said, text) for part in parts)
        form = Form(json.loads(text(event.form)), event.prose) if event.form else None
        found.append(Question(event.key, event.agent, event.attempt, words, form, event.key in answered))
    return found


def readable(sent: str) -> str:
    """A prompt with its quotations as a person reads them."""
    return printable(_QUOTED.sub(lambda match: quotation(match[2], match[3]), sent))


def quotation(label: str, text: str) -> str:
    return f"{label}:\n{textwrap.indent(text, '  | ', lambda line: True)}"


def _part(part: str, started: SessionStarted | None, said: Mapping[str, str], text: Callable[[str], str]) -> str:
    kind, _, rest = part.partition(":")
    if kind == "q":
        label, _, id = rest.partition(":")
        return printable(quotation(label, prose(text(said[id]))))
    if kind == "s" and started is not None:
        source = next(source for source in started.sources if source.id == rest)
        lines = [" ".join(source.name.split())] if source.name else []
        lines += [f"{n}| {line}" for n, line in enumerate(text(source.text).splitlines() or [""], 1)]
        return printable(quotation(f"document {rest}", "\n".join(lines)))
    words = text(rest)
    return readable(f"# Task\n{words}" if kind == "k" else words)
