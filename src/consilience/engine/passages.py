"""Passages that readers of dealt documents ask for: the engine shows them from the documents, as far as a reader may read them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from consilience.documents.numbered import NumberedLines
from consilience.documents.related import find_passage
from consilience.domain.across import AskedPassage
from consilience.engine.sources import Document

MAX_REQUESTS = 4
"""Requests of one reader."""
MAX_WHY_CHARS = 300
MAX_WORDS_CHARS = 80

_ID = re.compile(r"S\d{1,6}")
_LINES = re.compile(r"(?:lines? *)?(\d{1,9})(?:\s*(?:[-–]|to)\s*(\d{1,9}))?", re.IGNORECASE)


def _as_text(value: object) -> str:
    """Return lines as text: `120`, `"120-140"` and `[120, 140]` are all understood."""
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class PassageRequest(BaseModel):
    """What a reader asks for of a document."""

    document: str = ""
    lines: Annotated[str, BeforeValidator(_as_text)] = ""
    """A range of lines, or words that stand there."""
    why: str = ""


def answer_requests(
    agent: str, requests: Iterable[PassageRequest], documents: Sequence[Document], shown: Sequence[Document], room: int
) -> Iterator[AskedPassage]:
    """Yield the requests of an agent with the lines that it is shown from now on: of documents open to it, without those that it is
    `shown` already, in at most `room` tokens together. Words are looked up, and what follows them is shown in an equal part of the
    room that is left. A passage that has no room is cut. Of requests beyond `MAX_REQUESTS` the first is refused, and the others are
    ignored."""
    seen = list(shown)
    first_requests = list(itertools.islice(requests, MAX_REQUESTS + 1))
    for n, request in enumerate(first_requests):
        named = _ID.search(request.document)
        document = next((document for document in documents if named and document.id == named[0]), None)
        is_open = document is not None and (document.agents is None or agent in document.agents)
        match = _LINES.fullmatch(request.lines.strip().rpartition(":")[2])
        lines = (int(match[1]), int(match[2] or match[1])) if match else None
        words = "" if match else " ".join(request.lines.split())[:MAX_WORDS_CHARS]
        if words and document is not None and is_open and n < MAX_REQUESTS:
            left = min(len(first_requests), MAX_REQUESTS) - n
            lines = find_passage(NumberedLines(document.text), words, room // left)
        asked = AskedPassage(
            agent=agent,
            document=named[0] if named else "?",
            lines=lines,
            words=words,
            why=" ".join(request.why.split())[:MAX_WHY_CHARS],
            shown=None,
        )
        if (
            refusal := _refusal(asked, document, seen, is_open=is_open)
            if n < MAX_REQUESTS
            else f"more than {MAX_REQUESTS} requests"
        ):
            yield asked.model_copy(update={"refusal": refusal})
            continue
        assert document is not None
        assert lines is not None
        first, last = lines[0], min(lines[1], document.line_count)
        text = NumberedLines(document.text)
        while last >= first and text.tokens(first, last) > room:
            last -= 1
        if last < first:
            yield asked.model_copy(update={"refusal": "no room"})
            continue
        room -= text.tokens(first, last)
        seen.append(replace(document, lines=(first, last), is_related=True))
        yield asked.model_copy(update={"shown": (first, last)})


def _refusal(asked: AskedPassage, document: Document | None, shown: Sequence[Document], *, is_open: bool) -> str:
    """Return why an agent is not shown the passage of a document; empty if it is."""
    if document is None:
        return "no such document"
    if not is_open:
        return "not open to this agent"
    lines = asked.lines
    if lines is None or not 1 <= lines[0] <= min(lines[1], document.line_count):
        return "no such words" if asked.words else "no such lines"
    parts = [part.lines or (1, part.line_count) for part in shown if part.id == document.id]
    wanted = range(lines[0], min(lines[1], document.line_count) + 1)
    if all(any(first <= line <= last for first, last in parts) for line in wanted):
        return "shown already"
    return ""


def granted_parts(asked: Iterable[AskedPassage], agent: str, documents: Sequence[Document]) -> tuple[Document, ...]:
    """Return the passages that an agent is shown because it asked for them."""
    by_id = {document.id: document for document in documents}
    return tuple(
        replace(by_id[passage.document], lines=passage.shown, is_related=True)
        for passage in asked
        if passage.agent == agent and passage.shown is not None
    )
