"""Points: the facts and arguments that an agent lists beside its text, and how others read them."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.domain.messages import is_empty_remark

MAX_ITEM_CHARS = 300
"""Characters of a point as others read it: two long sentences."""

POINTS = "points:"


def points_in(points: Sequence[str], cap: int) -> tuple[str, ...]:
    """Return the points that hold something, at most `cap`."""
    return tuple([point.strip() for point in points if not is_empty_remark(point)][:cap])


def with_list(text: str, heading: str, items: Sequence[str]) -> str:
    """Return `text` as others read it, with a list below it; unchanged without items."""
    return "\n".join([text, "", heading, *map(_item, items)]) if items else text


def _item(text: str) -> str:
    line = " ".join(text.split())
    return f"- {line if len(line) <= MAX_ITEM_CHARS else line[: MAX_ITEM_CHARS - 1] + '…'}"
