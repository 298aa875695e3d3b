"""Replies and messages of rounds that a resume does not execute again. What nobody asks for is never read."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from sys import intern
from typing import Any

from consilience.domain.events import CallCompleted, MessagePublished, place_key
from consilience.domain.messages import Message
from consilience.domain.prompt_parts import QuotedMessage, read_part
from consilience.engine.recorder import Recorder
from consilience.engine.work import Reply
from consilience.models.parsing import parse_reply

QuotedForm = tuple[int, str]
"""How the text that prompts quote follows from what the model wrote: `AS_WRITTEN` or `ITS_TEXT`, with what is added at the end, or
`ANOTHER`, with the whole text."""

AS_WRITTEN, ITS_TEXT, ANOTHER = range(3)

Quotes = tuple[tuple[str, ...], tuple[str, ...]]
"""Labels and ids of the messages that a call was shown."""

PROMPTS_AT_ONCE = 2_000
"""Prompts that are read together; the parts of 50,000 would take 100 MB."""


def quoted_form(written: str, prose: str, quoted: str) -> QuotedForm:
    """Return how `quoted` follows from the reply as the model wrote it, whose prose is `prose`."""
    if quoted.startswith(prose):
        if written == prose:
            return AS_WRITTEN, quoted[len(prose) :]
        if _text_in(written) == prose:
            return ITS_TEXT, quoted[len(prose) :]
    return ANOTHER, quoted


def _text_in(written: str) -> object:
    try:
        value = json.loads(written)
    except ValueError:
        return None
    return value.get("text") if isinstance(value, dict) else None


class RoundReplies:
    """The replies of a round that runs."""

    def __init__(self) -> None:
        self._forms: list[tuple[tuple[int, ...], QuotedForm, str]] = []
        self.documents: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {}
        """Agent, documents and related lines of the calls that named documents, by key."""

    def add(self, place: str, written: str, prose: str, quoted: str, is_prose: bool | None) -> None:
        """Note a reply; `is_prose` is None for one without a form."""
        mark = "-" if is_prose is None else "p" if is_prose else "t"
        self._forms.append((place_key(place), quoted_form(written, prose, quoted), mark))

    def dump(self) -> dict[str, object]:
        """Return them in program order, as values of JSON."""
        forms = sorted(self._forms)
        return {
            "forms": "".join(str(form) for _, (form, _), _ in forms),
            "typed": "".join(mark for _, _, mark in forms),
            "added": {n: text for n, (_, (_, text), _) in enumerate(forms) if text},
            "documents": dict(sorted(self.documents.items())),
        }


class Recalled:
    """The replies and messages of rounds that are not executed again, by key and id."""

    def __init__(self, recorder: Recorder, find_sender: Callable[[str], str | None]) -> None:
        self._recorder, self._find_sender = recorder, find_sender
        self._forms: dict[str, tuple[CallCompleted, QuotedForm]] = {}
        self._published: dict[str, MessagePublished] = {}
        self._quotes: dict[str, Quotes] = {}
        self._labels: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._unshown: list[CallCompleted] = []
        """Replies that `shown` has not returned."""
        self._replies: dict[str, Reply[Any]] = {}

    def add(self, replies: Iterable[tuple[CallCompleted, QuotedForm]], published: Iterable[MessagePublished]) -> None:
        for event, form in replies:
            self._forms[event.key] = event, form
            self._unshown.append(event)
        for message in published:
            self._published[message.id] = message

    def __contains__(self, id: object) -> bool:
        return id in self._forms or id in self._published

    def message(self, id: str) -> Message:
        """Return a message. Raises `KeyError`."""
        if id not in self._forms:
            published = self._published[id]
            text = self._recorder.journal.store.text(published.text)
            fields = (published.sender, published.kind, text, published.audience, published.reply_to, published.phase)
            return Message(id, *fields)
        event, (form, rest) = self._forms[id]
        text = rest if form == ANOTHER else f"{self.prose(id)}{rest}"
        return Message(id, event.agent, event.kind, text, event.audience, None, event.phase)

    def prose(self, key: str) -> str | None:
        """Return the prose of a reply if it follows without its type."""
        if key not in self._forms or self._forms[key][1][0] == ANOTHER:
            return None
        event, (form, _) = self._forms[key]
        written = self._recorder.text(event.text)
        return written if form == AS_WRITTEN else str(_text_in(written))

    def of_kinds(self, kinds: Container[str]) -> Iterator[str]:
        """Yield the ids of messages of these kinds."""
        yield from (key for key, (event, _) in self._forms.items() if event.kind in kinds)
        yield from (id for id, message in self._published.items() if message.kind in kinds)

    def sender(self, id: str) -> str:
        """Return who sent a message, without reading it. Raises `KeyError`."""
        return self._forms[id][0].agent if id in self._forms else self._published[id].sender

    def shown(self) -> dict[str, tuple[str, ...]]:
        """Return the ids of the messages that each call was shown, by key, those of each call once."""
        unshown, self._unshown = self._unshown, []
        for begin in range(0, len(unshown), PROMPTS_AT_ONCE):
            events = unshown[begin : begin + PROMPTS_AT_ONCE]
            prompts = self._recorder.journal.store.prompts({event.prompt for event in events})
            self._quotes.update({event.key: self._quotes_in(prompts[event.prompt]) for event in events})
        return {event.key: self._quotes[event.key][1] for event in unshown}

    def quotes(self, event: CallCompleted) -> Quotes:
        """Return what a call was shown."""
        quotes = self._quotes.get(event.key)
        return self._quotes_in(self._recorder.journal.store.prompt(event.prompt)) if quotes is None else quotes

    def _quotes_in(self, parts: Iterable[str]) -> Quotes:
        quotes = [q for q in (read_part(part) for part in parts if part[:2] == "q:") if isinstance(q, QuotedMessage)]
        labels = tuple(quote.label for quote in quotes)  # the same in many prompts
        return self._labels.setdefault(labels, labels), tuple(intern(quote.message) for quote in quotes)

    def reply(self, key: str, returns: type[Any]) -> Reply[Any]:
        """Return a reply as its call returned it. Raises `KeyError`."""
        if key not in self._replies:
            self._replies[key] = RecalledReply(self, self._recorder.reply_to(key), returns)
        return self._replies[key]

    def value(self, event: CallCompleted, returns: type[Any]) -> Any:
        return parse_reply(self._recorder.text(event.text), returns)

    def text(self, event: CallCompleted, value: Any) -> str:
        """Return the prose of a reply with this value."""
        return value if isinstance(value, str) else str(getattr(value, "text", self._recorder.text(event.text)))

    def labels(self, event: CallCompleted) -> Mapping[str, str]:
        senders = ((label, id, self._find_sender(id)) for label, id in zip(*self.quotes(event), strict=True))
        return {label: id for label, id, sender in senders if sender not in (None, event.agent)}


class RecalledReply(Reply[Any]):
    """A reply that is parsed when its value is asked for."""

    __slots__ = ("_event", "_known", "_recalled", "_returns")

    def __init__(self, recalled: Recalled, event: CallCompleted, returns: type[Any]) -> None:
        self.key, self.agent, self.reserve, self.cut = event.key, event.agent, event.reserve, event.cut
        self._recalled, self._event, self._returns = recalled, event, returns
        self._known: Any = None

    @property
    def value(self) -> Any:
        if self._known is None:
            self._known = self._recalled.value(self._event, self._returns)
        return self._known

    @property
    def text(self) -> str:  # type: ignore[override]
        prose = self._recalled.prose(self.key)
        return self._recalled.text(self._event, self.value) if prose is None else prose

    @property
    def shown(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._recalled.quotes(self._event)[1]

    @property
    def labels(self) -> Mapping[str, str]:  # type: ignore[override]
        return self._recalled.labels(self._event)
