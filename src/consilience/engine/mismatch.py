"""Saying in words how a request differs from a recorded one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from consilience.domain.errors import StoreUnusable
from consilience.engine.prompt import Rendered

AROUND = 40
"""Characters shown on either side of where two texts part."""

NAMES = {"i": "instructions", "k": "task", "s": "document", "q": "quotation", "t": "words"}


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The recorded key most like this one."""
    close = difflib.get_close_matches(key, sorted(set(known)), 1, 0.0)
    return close[0] if close else None


def difference(recorded: Sequence[str], now: Rendered, text: Callable[[str], str]) -> str:
    """Where two prompts part first, as one clause. `recorded` are stored parts, `text` finds a stored text by its id."""
    parts = now.parts.parts
    at = next((n for n, (a, b) in enumerate(zip(recorded, parts, strict=False)) if a != b), None)
    if at is None and len(recorded) == len(parts):
        return "the prompt is the same; the model, the schema, a sampling parameter or a quoted text is another"
    if at is None:
        more, whose = (recorded, "recorded") if len(recorded) > len(parts) else (parts, "now")
        rest = more[min(len(recorded), len(parts)) :]
        return f"{whose}, the prompt goes on with {_named(rest[0])}"
    was, is_ = recorded[at], parts[at]
    if was[0] == is_[0] and was[0] in "ikt":
        words = now.system if was[0] == "i" else _words(now, at)
        try:
            return f"its {NAMES[was[0]]} {_parting(text(was[2:]), words)}"
        except StoreUnusable:  # journals of the first days do not hold the instructions as rendered
            return f"its {NAMES[was[0]]} are others"
    return f"part {at + 1} was {_named(was)}, now {_named(is_)}"


def _words(now: Rendered, at: int) -> str:
    """The text of a part of the prompt now: blocks stand in the order of parts, without the instructions."""
    block = now.blocks[at - 1]
    return block.removeprefix("# Task\n") if isinstance(block, str) else block[0]


def _named(part: str) -> str:
    kind, _, rest = part.partition(":")
    if kind == "q":
        label, _, id = rest.partition(":")
        return f"the quotation of {id} as {label}"
    return f"document {rest}" if kind == "s" else f"its {NAMES[kind]}"


def _parting(before: str, now: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
    start = max(0, at - AROUND)
    return f"part at character {at + 1}: recorded {before[start : at + AROUND]!r}, now {now[start : at + AROUND]!r}"
