"""Events as a process holds them that reads a journal: small, since sessions may have 50,000."""

from __future__ import annotations

from functools import cache, lru_cache

from consilience.domain.events import EVENT, AnyEvent, Event


@cache
def _all_fields(cls: type[Event]) -> set[str]:
    return set(cls.model_fields)


def shrink_event(event: AnyEvent) -> AnyEvent:
    """Share the event's set of assigned fields with all of its type: 1.6 kB an event instead of 2.4. Sessions may have 50,000."""
    object.__setattr__(event, "__pydantic_fields_set__", _all_fields(type(event)))
    return event


def decode_event(body: str, seq: int) -> AnyEvent:
    """Return a recorded event. Raises `ValidationError` for an invalid body."""
    event = EVENT.validate_json(body)
    fields = event.__dict__
    fields["seq"] = seq
    for name in ("phase", "audience"):
        if name in fields:
            fields[name] = _one_of_equals(fields[name])
    return shrink_event(event)


@lru_cache(maxsize=1024)
def _one_of_equals(value: object) -> object:
    """Return the same object for equal values, which many events have."""
    return value
