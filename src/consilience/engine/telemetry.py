"""Logging and OpenTelemetry spans.

The logger is `consilience`. It has no handler and never receives a text, a prompt or a key. It logs the start and end of a session
at INFO, failed calls at WARNING and every call at DEBUG. There is a span for the session, for each block of a phase and for
each live call, below which the model layer adds its own (`pydantic_ai.Agent.instrument_all()`). Without an SDK they cost little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

from consilience.domain.events import (
    CallCompleted,
    CallFailed,
    CallLost,
    Ended,
    Event,
    Noted,
    ReplyRejected,
    SessionFinished,
    SessionParked,
    SessionResumed,
    SessionStarted,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

LOGGER = logging.getLogger("consilience")
LOGGER.addHandler(logging.NullHandler())


@cache
def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer("consilience")


@cache
def _tracing_defaults() -> tuple[Callable[[], object], type, AbstractContextManager[Span]]:
    """Return the function that returns the provider of spans, the type it has without an SDK, and the span that records nothing."""
    from opentelemetry import trace

    return trace.get_tracer_provider, trace.ProxyTracerProvider, nullcontext(trace.INVALID_SPAN)


def is_traced() -> bool:
    """Return whether an SDK receives spans."""
    provider, default_type, _ = _tracing_defaults()
    return not isinstance(provider(), default_type)


def span(name: str, **attributes: str | int | float) -> AbstractContextManager[Span]:
    """Open a span for the block; without an SDK it records nothing. An exception that passes through marks it as failed."""
    if not is_traced():
        return _tracing_defaults()[2]
    prefixed = {f"consilience.{key}": value for key, value in attributes.items()}
    return _tracer().start_as_current_span(name, attributes=prefixed)


def set_outcome(current: Span, event: Ended) -> None:
    """Set the outcome of a call on its span."""
    if not current.is_recording():
        return
    from opentelemetry.trace import Status, StatusCode

    current.set_attribute("consilience.outcome", event.type)
    current.set_attribute("consilience.requests", event.requests)
    current.set_attribute("consilience.tokens_in", event.tokens_in)
    current.set_attribute("consilience.tokens_out", event.tokens_out)
    if event.cost is not None:
        current.set_attribute("consilience.cost", event.cost)
    if isinstance(event, CallFailed):
        current.set_status(Status(StatusCode.ERROR, event.failure.value))


_WARNED = (CallFailed, CallLost)


def may_be_logged(event: Event) -> bool:
    """Return whether `log_event` may log the event."""
    return LOGGER.isEnabledFor(logging.INFO) or isinstance(event, _WARNED)


def log_event(session: str, event: Event) -> None:
    """Log an event, if it is of a kind that is logged."""
    match event:
        case SessionStarted():
            forked = f", forked from {event.parent} at event {event.forked_at}" if event.parent else ""
            LOGGER.info("session %s begins: %s with %d agents%s", session, event.protocol, len(event.agents), forked)
        case SessionResumed():
            LOGGER.info("session %s goes on; %d calls were lost", session, event.lost)
        case SessionFinished():
            LOGGER.info("session %s ends: %s", session, event.stop_reason.value)
        case SessionParked():
            LOGGER.info("session %s waits for %s", session, ", ".join(event.awaited))
        case Noted():
            LOGGER.debug("session %s: %s %s", session, event.name, event.data)
        case CallFailed():
            LOGGER.warning("session %s: %s failed: %s", session, event.key, event.failure.value)
        case CallLost():
            LOGGER.warning("session %s: %s was in flight when its process ended", session, event.key)
        case ReplyRejected():
            LOGGER.debug("session %s: %s, attempt %d: the reply could not be used", session, event.key, event.attempt)
        case CallCompleted():
            LOGGER.debug("session %s: %s completed, %d tokens written", session, event.key, event.tokens_out)
