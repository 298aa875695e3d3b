"""Between a run and its journal: what is recorded is matched, what is new is recorded, in a replay nothing is new."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from consilience.domain.errors import ProtocolViolation, ReplayMiss, RequestMismatch
from consilience.domain.events import (
    AnswerReceived,
    AnyEvent,
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    Event,
    ReplyRejected,
    SessionResumed,
    SessionStarted,
    TextsEmbedded,
)
from consilience.journal.store import Journal, PromptParts

Ended = CallCompleted | CallFailed | ReplyRejected
Observer = Callable[[Event], None]


class Recorder:
    """`replay` shuts the journal: an event that is not there is a `ReplayMiss`, one that differs a `RequestMismatch`."""

    def __init__(self, journal: Journal, events: list[AnyEvent], *, replay: bool, observer: Observer | None) -> None:
        self.journal = journal
        self.replay = replay
        self.events: list[Event] = list(events)
        self.answers: dict[str, str] = {}
        self._observer = observer
        self._keys: set[str] = set()
        self._calls: dict[tuple[str, int], Ended] = {}
        self._derived: dict[tuple[str, str], Event] = {}
        self._matched: set[tuple[str, str]] = set()
        self.idle: Callable[[], float] = lambda: 0.0
        self._active = 0.0
        self._opened = time.monotonic()
        self._texts = journal.texts({e.text for e in events if isinstance(e, CallCompleted | ReplyRejected)})
        for event in events:
            self._index(event)

    def now(self) -> float:
        """Seconds in which a process held this session, all together, without those in which only people were awaited."""
        return self._active + (0.0 if self.replay else time.monotonic() - self._opened - self.idle())

    def text(self, id: str) -> str:
        """A recorded reply's text."""
        return self._texts[id]

    def unasked(self) -> list[str]:
        """What is recorded and this run did not come to, by key or place."""
        keys = {key for key, _ in self._calls} - self._keys
        ends = {"SessionFinished", "SessionParked"}
        places = {f"{name} at {place}" for place, name in self._derived.keys() - self._matched if name not in ends}
        return sorted(keys | places)

    def claim(self, key: str) -> None:
        """A key names one place in a session. Raises `ProtocolViolation` the second time."""
        if key in self._keys:
            raise ProtocolViolation(f"the key {key!r} is used twice")
        self._keys.add(key)

    def recorded(self, key: str, attempt: int, place: str, digest: str) -> Ended | None:
        """What this attempt came to before, if it is the same request at the same place."""
        found = self._calls.get((key, attempt))
        if found is None:
            if self.replay:
                raise ReplayMiss(f"the call {key!r} (attempt {attempt}) is not in the journal; {self._nearest(key)}")
            return None
        if found.digest != digest or found.place != place:
            raise RequestMismatch(
                f"the call {key!r} is recorded with another {'request' if found.digest != digest else 'place'}: "
                f"recorded {found.digest} at {found.place}, now {digest} at {place}. "
                "Settings, models or prompts changed; that needs a fork."
            )
        return found

    async def start(self, event: CallStarted) -> None:
        """Note that a call is about to be sent; durable on return, so that one lost in a crash is always reported."""
        self._stamp(event)
        await self.journal.commit(event)
        self._show(event)

    async def commit(self, event: Event, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        """Record a live event; durable on return."""
        self._stamp(event)
        await self.journal.commit(event, texts=texts, prompt=prompt)
        self.events.append(event)
        self._show(event)

    def embedded(self, place: str, texts: tuple[str, ...]) -> list[bytes] | str | None:
        """Vectors recorded at this place for these texts, or why there are none."""
        found = self._derived.get((place, TextsEmbedded.__name__))
        self._matched.add((place, TextsEmbedded.__name__))
        if isinstance(found, TextsEmbedded):
            if found.texts != texts:
                raise RequestMismatch(f"the journal has vectors of other texts at {place}")
            return (
                found.error
                if found.error
                else [bytes.fromhex(line) for line in self.journal.text(found.vectors).split("\n")]
            )
        if self.replay:
            raise ReplayMiss(f"no vectors are recorded at {place}")
        return None

    def derive(self, event: Event, texts: Iterable[str] = ()) -> None:
        """Record what follows from the program and its inputs; if it is there already it must be the same."""
        found = self._derived.get((event.place, type(event).__name__))
        self._matched.add((event.place, type(event).__name__))
        if found is not None:
            if not _same(found, event):
                raise RequestMismatch(f"the journal has another {type(event).__name__} at {event.place}")
            return
        if self.replay:
            raise ReplayMiss(f"no {type(event).__name__} is recorded at {event.place}")
        self._stamp(event)
        self.journal.append(event, texts=texts)
        self.events.append(event)
        self._show(event)

    def _stamp(self, event: Event) -> None:
        event.volatile = {**event.volatile, "t": round(self.now(), 3)}

    def _show(self, event: Event) -> None:
        if self._observer is not None:
            self._observer(event)

    def _index(self, event: Event) -> None:
        t = event.volatile.get("t")
        if isinstance(t, int | float):
            self._active = max(self._active, float(t))
        if isinstance(event, Ended):
            self._calls[event.key, event.attempt] = event
            self.answers.pop(event.key, None)
        elif isinstance(event, AnswerReceived):
            self.answers[event.key] = self.journal.text(event.text)
        elif not isinstance(event, SessionStarted | SessionResumed | CallLost):
            self._derived[event.place, type(event).__name__] = event

    def _nearest(self, key: str) -> str:
        import difflib

        close = difflib.get_close_matches(key, {k for k, _ in self._calls}, 1, 0.0)
        return f"the nearest recorded is {close[0]!r}" if close else "no call is recorded"


def _same(a: Event, b: Event) -> bool:
    mine, other = vars(a), vars(b)
    return all(mine[name] == other[name] for name in mine if name != "seq" and name not in a.incidental)
