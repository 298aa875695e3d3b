"""A session's ancestors and forks, drawn as a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consilience.domain.events import SessionStarted
from consilience.reporting.changes import Text, setup
from consilience.reporting.contained import plain
from consilience.reporting.words import one_line

_MOST_CHANGES = 4


def family(
    session: str, parents: Mapping[str, str], beginning: Callable[[str], SessionStarted | None], text: Text
) -> str:
    """The whole family as a nested list, what each fork changed beside it; empty for a session without relatives.

    An ancestor that was removed is named as gone. Costs one read per relative.
    """
    top = session
    while top in parents:
        top = parents[top]
    lines = [_line(top, None, session, beginning, text)]
    _add_forks(top, 1, session, parents, beginning, text, lines)
    return "## Family\n\n" + "\n".join(lines) if len(lines) > 1 else ""


def _add_forks(
    parent: str,
    depth: int,
    session: str,
    parents: Mapping[str, str],
    beginning: Callable[[str], SessionStarted | None],
    text: Text,
    lines: list[str],
) -> None:
    for child, its_parent in parents.items():
        if its_parent == parent:
            lines.append("  " * depth + _line(child, parent, session, beginning, text))
            _add_forks(child, depth + 1, session, parents, beginning, text, lines)


def _line(
    id: str, parent: str | None, session: str, beginning: Callable[[str], SessionStarted | None], text: Text
) -> str:
    name = f"**`{id}`** (this one)" if id == session else f"`{id}`"
    started = beginning(id)
    if started is None:
        return f"- {name}, gone"
    if parent is None:
        return f"- {name}"
    before = beginning(parent)
    changed = setup(before, started, text) if before else {}
    words = [f"{what} {one_line(a, 30)} → {one_line(b, 30)}" for what, (a, b) in changed.items()]
    more = f", and {len(words) - _MOST_CHANGES} more" if len(words) > _MOST_CHANGES else ""
    said = f": {'; '.join(words[:_MOST_CHANGES])}{more}" if words else ": nothing changed"
    return f"- {name} from event {started.forked_at}{plain(said if before else '')}"
