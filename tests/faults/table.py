"""What can go wrong with a model, as a scripted model does it, and what a call so answered comes to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from consilience.domain.outcome import FailureKind
from consilience.models.parsing import prose_field
from consilience.models.port import ModelRequest
from consilience.testing import RateLimited, Refused, Rejected, Scripted, ServerError, Timeout, Unreachable

Answer = str | Scripted | Exception
HUGE = "word " * 200_000


@dataclass(frozen=True)
class Fault:
    """`typed` is what an ask for a typed reply comes to, `prose` one for text; None: it is an answer all the same, though
    prose is never a ballot. A reply that cannot be read is asked for twice."""

    name: str
    answer: Callable[[ModelRequest], Answer]
    typed: FailureKind | None
    prose: FailureKind | None

    def kind(self, request: ModelRequest) -> FailureKind | None:
        if request.schema is None:
            return self.prose
        return self.typed or (
            FailureKind.MALFORMED if request.returns is not None and not prose_field(request.returns) else None
        )


def _both(name: str, answer: Callable[[ModelRequest], Answer], kind: FailureKind) -> Fault:
    return Fault(name, answer, kind, kind)


def _unreadable(name: str, answer: Callable[[ModelRequest], Answer]) -> Fault:
    """Text is text, whatever it holds; a typed reply it is not."""
    return Fault(name, answer, FailureKind.MALFORMED, None)


FAULTS = (
    _both("429", lambda _: RateLimited("too many requests"), FailureKind.RATE_LIMITED),
    _both("429 come back later", lambda _: RateLimited("wait", retry_after=3600), FailureKind.RATE_LIMITED),
    _both("500", lambda _: ServerError("the server failed (HTTP 500)"), FailureKind.SERVER),
    _both("529", lambda _: ServerError("overloaded (HTTP 529)"), FailureKind.SERVER),
    _both("hang", lambda _: Timeout("no answer within the deadline"), FailureKind.DEADLINE),
    _both("half a reply", lambda _: Unreachable("the connection failed"), FailureKind.UNREACHABLE),
    _both("refusal", lambda _: Refused("I will not"), FailureKind.REFUSED),
    _both("no such model", lambda _: Rejected("no such model"), FailureKind.REJECTED),
    _both("empty", lambda _: "", FailureKind.MALFORMED),
    _both("nothing to be seen", lambda _: "\x00 \u200b\u202e", FailureKind.MALFORMED),
    _unreadable("half an object", lambda _: '{"points": ["a'),
    _unreadable("schema echo", lambda request: json.dumps(request.schema or {"type": "object", "properties": {}})),
    _unreadable("empty object", lambda _: "{}"),
    _unreadable("object of blanks", lambda _: '{"text": " ", "position": ""}'),
    _unreadable("null", lambda _: "null"),
    Fault("200 000 tokens", lambda _: Scripted(HUGE, tokens_out=200_000), None, None),
)
