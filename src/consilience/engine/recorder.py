"""Between a run and its journal: what is recorded is matched, what is new is recorded, in a replay nothing is new."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from consilience.domain.errors import ProtocolViolation, ReplayMiss, RequestMismatch
from consilience.domain.events import (
    AnswerReceived,
    AnyEvent,
    CallAwaited,
    CallCompleted,
    CallLost,
    CallStarted,
    Ended,
    Event,
    ReplyRejected,
    SessionResumed,
    SessionStarted,
    StepCompleted,
    TextsEmbedded,
    age_of,
)
from consilience.engine.mismatch import difference, nearest
from consilience.engine.prompt import Rendered
from consilience.engine.telemetry import log
from consilience.journal.store import Journal, PromptParts

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
        self.reached: dict[tuple[str, int], Ended] = {}
        self._calls: dict[tuple[str, int], Ended] = {}
        self._inherited: dict[tuple[str, int], Ended] = {}
        self._ages: dict[str, int] = {}
        self._vectors: dict[tuple[str, ...], TextsEmbedded] = {}
        self._derived: dict[tuple[str, str], Event] = {}
        self._matched: set[tuple[str, str]] = set()
        self._asked: set[tuple[str, int]] = set()
        self._steps: dict[tuple[str, int], StepCompleted] = {}
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

    def unclaimed(self) -> list[str]:
        """Inherited calls that this run had no use for, by key."""
        return sorted({key for key, _ in self._inherited} - self._keys)

    def claim(self, key: str) -> None:
        """A key names one place in a session. Raises `ProtocolViolation` the second time."""
        if key in self._keys:
            raise ProtocolViolation(f"the key {key!r} is used twice")
        self._keys.add(key)

    def recorded(self, key: str, attempt: int, place: str, digest: str, request: Rendered) -> Ended | None:
        """What this attempt came to before, if it is the same request at the same place."""
        found = self._calls.get((key, attempt))
        if found is None:
            if self.replay:
                raise ReplayMiss(
                    f"the call {key!r} (attempt {attempt}) is not in the journal; {self._nearest(key, request)}"
                )
            return None
        if found.digest != digest:
            how = self._difference(found, request)
            raise RequestMismatch(f"the call {key!r} is recorded with another request: {how}. {self._fork_hint(found)}")
        if found.place != place:
            raise RequestMismatch(
                f"the call {key!r} is recorded at place {found.place}, and now comes at {place}. {self._fork_hint(found)}"
            )
        self.reached[key, attempt] = found
        return found

    def inherited(self, key: str, attempt: int) -> Ended | None:
        """What this attempt came to in the session this one is forked from."""
        return self._inherited.get((key, attempt))

    @property
    def inherits(self) -> bool:
        """Whether there is anything from the session this one is forked from."""
        return bool(self._inherited or self._ages)

    def drop_answer(self, key: str, youngest: float) -> bool:
        """Forget an inherited answer from outside to a call that is shown something younger now; whether there was one."""
        if self._ages.get(key, 0) <= youngest:
            return False
        del self._ages[key]
        self.answers.pop(key, None)
        return True

    def inherit(self, event: Ended, place: str) -> None:
        """Take what was inherited as what came of the call at this place."""
        self.reached[event.key, event.attempt] = event.model_copy(update={"place": place})

    async def start(self, event: CallStarted) -> None:
        """Note that a call is about to be sent; durable on return, so that one lost in a crash is always reported."""
        self._stamp(event)
        await self.journal.commit(event)
        self._show(event)

    def step(self, key: str, attempt: int, digest: str) -> StepCompleted | None:
        """What this step of an agent with tools came to before, if it is the same. Raises `RequestMismatch` if it is not."""
        found = self._steps.get((key, attempt))
        if found is not None and found.digest != digest:
            raise RequestMismatch(
                f"the step {key!r} is recorded with another request: the agent's model, its tools, its instructions or what a "
                f"tool gave is another now. {self._fork_hint(found)}"
            )
        return found

    def steps_of(self, call: str, attempt: int) -> list[StepCompleted]:
        """The requests that an agent with tools made for this attempt."""
        return [s for s in self._steps.values() if (s.call, s.attempt, s.kind) == (call, attempt, "model")]

    async def ask_outside(self, event: CallAwaited, texts: Iterable[str], prompt: PromptParts) -> None:
        """Record what somebody outside is asked, once, so that they can read it when this process is gone."""
        if (event.key, event.attempt) not in self._asked:
            self._asked.add((event.key, event.attempt))
            await self.commit(event, texts, prompt)

    async def commit(self, event: Event, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        """Record a live event; durable on return."""
        self._stamp(event)
        await self.journal.commit(event, texts=texts, prompt=prompt)
        self.events.append(event)
        if isinstance(event, Ended):
            self.reached[event.key, event.attempt] = event
        self._show(event)

    async def begin(self, started: SessionStarted, texts: Iterable[str]) -> None:
        """Record the start, and what is inherited with it; durable on return, as a whole."""
        self._stamp(started)
        await self.journal.commit_all([started, *self.events], texts=texts)
        self.events.insert(0, started)
        self._show(started)

    def embedded(self, place: str, texts: tuple[str, ...]) -> list[bytes] | str | None:
        """Vectors recorded at this place for these texts, or why there are none."""
        found = self._derived.get((place, TextsEmbedded.__name__)) or self._vectors.get(texts)
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
        log(self.journal.session, event)
        if self._observer is not None:
            self._observer(event)

    def _index(self, event: Event) -> None:
        t = event.volatile.get("t")
        if isinstance(t, int | float):
            self._active = max(self._active, float(t))
        if isinstance(event, Ended):
            (self._inherited if event.inherited else self._calls)[event.key, event.attempt] = event
            self.answers.pop(event.key, None)
        elif isinstance(event, StepCompleted):
            self._steps[event.key, event.attempt] = event
        elif isinstance(event, CallAwaited):
            self._asked.add((event.key, event.attempt))
        elif isinstance(event, AnswerReceived):
            self.answers[event.key] = self.journal.text(event.text)
            self._ages[event.key] = age_of(event)
        elif isinstance(event, TextsEmbedded) and event.inherited:
            self._vectors[event.texts] = event
        elif not isinstance(event, SessionStarted | SessionResumed | CallLost):
            self._derived[event.place, type(event).__name__] = event

    def _nearest(self, key: str, request: Rendered) -> str:
        """The recorded call that is most like the one that is missing, and how its request differs."""
        known = {**self._inherited, **self._calls}
        sent = {k: event for (k, _), event in known.items() if event.prompt}
        close = nearest(key, sent)
        if close is None:
            return "no call is recorded"
        return f"the nearest recorded is {close!r}, where {self._difference(sent[close], request)}"

    def _difference(self, found: Ended, request: Rendered) -> str:
        if not found.prompt:
            return "a limit refused it then, and nothing was sent"
        return difference(self.journal.prompt(found.prompt), request, self.journal.text)

    def _fork_hint(self, found: Event) -> str:
        return (
            "Settings, models or prompts changed; what was recorded before can be kept in a fork: "
            f"consilience fork {self.journal.session} --at {found.seq - 1}"
        )


def _same(a: Event, b: Event) -> bool:
    mine, other = vars(a), vars(b)
    return all(mine[name] == other[name] for name in mine if name != "seq" and name not in a.incidental)
