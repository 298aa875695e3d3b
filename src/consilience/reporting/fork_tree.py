"""A session's ancestors and forks as a tree; the settings in which two sessions differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from consilience.domain.events import SessionStarted
from consilience.reporting.formatting import escape_markdown, one_line

Text = Callable[[str], str]
"""Returns a stored text by its id."""

MAX_LISTED_CHANGES = 4
MAX_CHANGE_CHARS = 30


@dataclass(frozen=True)
class ForkTree:
    """The sessions related to one. Costs one read of a session's first event per relative."""

    session: str
    parents: Mapping[str, str]
    """The parent of every forked session."""
    first_event: Callable[[str], SessionStarted | None]
    """None if the session was removed."""
    text: Text

    def markdown(self) -> str:
        """Return a nested list under a heading; "" for a session without relatives."""
        root = self.session
        while root in self.parents:
            root = self.parents[root]
        lines = list(self._lines(root, None, 0))
        return "## Forks\n\n" + "\n".join(lines) if len(lines) > 1 else ""

    def _lines(self, session: str, parent: str | None, depth: int) -> Iterator[str]:
        yield "  " * depth + self._line(session, parent)
        for child, its_parent in self.parents.items():
            if its_parent == session:
                yield from self._lines(child, session, depth + 1)

    def _line(self, session: str, parent: str | None) -> str:
        name = f"**`{session}`** (this one)" if session == self.session else f"`{session}`"
        started = self.first_event(session)
        if started is None:
            return f"- {name}, removed"
        if parent is None:
            return f"- {name}"
        before = self.first_event(parent)
        return f"- {name} from event {started.forked_at}{escape_markdown(self._changes(before, started))}"

    def _changes(self, before: SessionStarted | None, started: SessionStarted) -> str:
        if before is None:
            return ""
        changes = [
            f"{name} {one_line(old, MAX_CHANGE_CHARS)} → {one_line(new, MAX_CHANGE_CHARS)}"
            for name, (old, new) in changed_settings(before, started, self.text).items()
        ]
        unlisted = len(changes) - MAX_LISTED_CHANGES
        more = f", and {unlisted} more" if unlisted > 0 else ""
        return f": {'; '.join(changes[:MAX_LISTED_CHANGES])}{more}" if changes else ": nothing changed"


def changed_settings(a: SessionStarted | None, b: SessionStarted | None, text: Text) -> dict[str, tuple[str, str]]:
    """Return both values of every setting in which two sessions differ, by name; "–" for one that a session does not have."""
    first, second = _settings(a, text) if a else {}, _settings(b, text) if b else {}
    names = dict.fromkeys((*first, *second))
    pairs = {name: (first.get(name, "–"), second.get(name, "–")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _settings(started: SessionStarted, text: Text) -> dict[str, str]:
    settings = {
        "task": text(started.task),
        "protocol": f"{started.protocol}, version {started.protocol_version}",
        **{name: str(value) for name, value in started.settings.items()},
        "seed": str(started.seed),
        "quorum": f"{started.quorum:g}",
        "encoder": str(started.encoder or "–"),
    }
    for agent in started.agents:
        settings[f"model of {agent.id}"] = agent.model
        if agent.perspective:
            settings[f"perspective of {agent.id}"] = agent.persona or agent.perspective
    settings |= {f"limit on {name}": str(value) for name, value in started.limits if value not in (None, {})}
    settings |= {f"document {source.id}": f"{source.name} ({source.text[:8]})" for source in started.sources}
    return settings | {f"prompt {name}": id[:8] for name, id in started.templates.items()}
