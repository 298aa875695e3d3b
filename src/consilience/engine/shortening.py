"""Prompts that outgrow the context window all the same: the oldest quotations are shortened to their points."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from textwrap import shorten

from consilience.domain.messages import Message
from consilience.domain.tokens import likely_tokens

MAX_POINT_CHARS = 160
MAX_POINTS = 8
NOTE = "(shortened to its points, because the prompt outgrew the context window)"

_POINT = re.compile(r"(?:[-*•] +|\d{1,3}[.)] +|#{1,6} +)\S")
_SENTENCE = re.compile(r".+?[.!?。！？](?=\s|$)")


def shorten_oldest(messages: Iterable[Message], excess: int) -> dict[str, Message]:
    """Return by id, as their points, as many of these messages as free `excess` tokens: those of the earliest rounds first, and of
    one round in the given order."""
    shortened: dict[str, Message] = {}
    for message in sorted(messages, key=lambda message: message.phase[1] if message.phase else 0):
        if excess <= 0:
            break
        points = points_of(message.text)
        saved = likely_tokens(message.text) - likely_tokens(points)
        if saved > 0 and message.id not in shortened:
            excess -= saved
            shortened[message.id] = replace(message, text=points)
    return shortened


def points_of(text: str) -> str:
    """Return the entries of the lists and the headings of a text, or else the first sentence of each paragraph: the last
    `MAX_POINTS`, since answers come last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    points = [line for line in lines if _POINT.match(line)]
    if len(points) < 2:
        points = [match[0] if (match := _SENTENCE.match(line)) else line for line in lines]
    kept = [shorten(point, MAX_POINT_CHARS, placeholder=" …") for point in points[-MAX_POINTS:]]
    return "\n".join([*kept, NOTE])
