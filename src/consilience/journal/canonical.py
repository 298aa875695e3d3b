"""The part of a journal that two runs of one program share, whatever arrived first and however often they were killed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from consilience.domain.events import Event, place_key


def canonical(events: Iterable[Event]) -> list[dict[str, object]]:
    """Events of canonical types by (place, type, attempt), without `seq` and incidental fields."""
    kept = [event for event in events if event.canonical]
    rows = [(event, event.model_dump(mode="json", exclude=set(event.incidental))) for event in kept]
    rows.sort(key=lambda row: (place_key(row[0].place), str(row[1]["type"]), row[1].get("attempt", 0)))
    return [row for _, row in rows]


def canonical_digest(events: Iterable[Event]) -> str:
    """SHA-256 (hex) of the canonical journal."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) for row in canonical(events))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
