"""The part of a journal that two runs of one program share, whatever arrived first and however often they were killed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from consilience.domain.events import Event, place_key


def canonical(events: Iterable[Event]) -> list[dict[str, object]]:
    """Events of canonical types by (place, type, attempt), without `seq`, incidental fields, and fields that hold their default.

    So a field that a later version adds changes no digest of a journal that was written before.
    """
    kept = [event for event in events if event.canonical]
    kept.sort(key=lambda event: (place_key(event.place), event.type, getattr(event, "attempt", 0)))
    return [_row(event) for event in kept]


def _row(event: Event) -> dict[str, object]:
    row = event.model_dump(mode="json", exclude=set(event.incidental), exclude_defaults=True)
    return {"type": event.type, **row}


def canonical_digest(events: Iterable[Event]) -> str:
    """SHA-256 (hex) of the canonical journal."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) for row in canonical(events))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
