"""What two sessions were set differently; and a session's ancestors and forks, drawn as a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consilience.domain.events import SessionStarted
from consilience.reporting.formatting import escape_markdown, one_line

Text = Callable[[str], str]
"""A stored text by its id."""

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
    return f"- {name} from event {started.forked_at}{escape_markdown(said if before else '')}"


def setup(a: SessionStarted | None, b: SessionStarted | None, text: Text) -> dict[str, tuple[str, str]]:
    """What two sessions were set differently, by name, in words."""
    first, second = _set(a, text) if a else {}, _set(b, text) if b else {}
    names = dict.fromkeys((*first, *second))
    pairs = {name: (first.get(name, "–"), second.get(name, "–")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _set(started: SessionStarted, text: Text) -> dict[str, str]:
    found = {
        "task": text(started.task),
        "protocol": f"{started.protocol}, version {started.protocol_version}",
        **{name: str(value) for name, value in started.settings.items()},
        "seed": str(started.seed),
        "quorum": f"{started.quorum:g}",
        "encoder": str(started.encoder or "–"),
    }
    for agent in started.agents:
        found[f"model of {agent.id}"] = agent.model
        if agent.perspective:
            found[f"perspective of {agent.id}"] = agent.persona or agent.perspective
    found |= {f"limit on {name}": str(value) for name, value in started.limits if value not in (None, {})}
    found |= {f"document {source.id}": f"{source.name} ({source.text[:8]})" for source in started.sources}
    found |= {f"prompt {name}": id[:8] for name, id in started.templates.items()}
    return found
