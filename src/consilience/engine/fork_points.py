"""The point of a session at which a fork leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from consilience.domain.errors import Command, SettingsError, UnknownName
from consilience.domain.events import AnyEvent, Ended
from consilience.domain.validation import did_you_mean
from consilience.engine.activity import Phase, phase_name

END = "end"


def fork_position(parent: str, events: Sequence[AnyEvent], at: int | str) -> int:
    """Return the number of the last event to inherit. `at`: that number, the key of a call, PHASE/INDEX (its last call) or `end`.

    Raises `SettingsError` for an invalid number, `UnknownName` for a key that is not recorded.
    """
    last = events[-1].seq
    if at == END:
        return last
    if isinstance(at, int) or at.isdecimal():
        if not 0 <= int(at) <= last:
            raise SettingsError(
                f"session {parent} has the events 1 to {last}",
                field="at",
                where=str(at),
                do="Give one of them, or 0 for none.",
            )
        return int(at)
    ended_calls = [event for event in events if isinstance(event, Ended)]
    phases = dict.fromkeys(event.phase for event in ended_calls if event.phase is not None)
    phase = next((phase for phase in phases if phase_name(phase) == at), None)
    positions = [event.seq for event in ended_calls if event.key == at or (phase is not None and event.phase == phase)]
    if not positions:
        points = {*map(phase_name, phases), *(event.key for event in ended_calls)}
        meant = did_you_mean(at, sorted(points))
        listed = f"Phases: {list_phases(phases)}. " if phases else ""
        raise UnknownName(
            f"session {parent} has no phase or call {at!r}",
            field="at",
            do=f"{meant}{listed}See its calls" if points else "It made no call.",
            command=Command("events", parent) if points else None,
        )
    return max(positions)


def list_phases(phases: Iterable[Phase]) -> str:
    """Return phases in order, `opening/1, thread/1–3`: those of a name together."""
    indices: dict[str, list[int]] = {}
    for name, index in phases:
        indices.setdefault(name, []).append(index)
    ranges = []
    for name, numbers in indices.items():
        first, last = min(numbers), max(numbers)
        whole = len(numbers) > 1 and len(numbers) == last - first + 1
        ranges += [f"{name}/{first}–{last}"] if whole else [f"{name}/{number}" for number in sorted(numbers)]
    return ", ".join(ranges)
