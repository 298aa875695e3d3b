"""Between a run and its journal: recorded events are matched, new ones are recorded. In a replay nothing is new."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import cached_property
from itertools import count, takewhile
from typing import TypeVar

from consilience.domain.errors import ProtocolViolation, ReplayMiss, RequestMismatch
from consilience.domain.event_decoding import compact_event
from consilience.domain.events import (
    AnswerReceived,
    AnyEvent,
    BlindnessLifted,
    CallAwaited,
    CallCompleted,
    CallLost,
    CallStarted,
    CancelRequested,
    CommentPosted,
    Ended,
    Event,
    ReplyRejected,
    SearchExpired,
    SessionResumed,
    SessionStarted,
    Settled,
    StepCompleted,
    TextsEmbedded,
    age_of,
)
from consilience.domain.outcome import Check
from consilience.engine.prompt import Rendered
from consilience.engine.prompt_difference import prompt_difference
from consilience.engine.telemetry import log_event, may_be_logged
from consilience.engine.usage import completion_from, completion_json
from consilience.journal.store import Arrival, Journal, Letter, PromptParts
from consilience.models.port import Completion

Observer = Callable[[Event], None]
E = TypeVar("E", bound=Event)

FORK_HINT = "Settings, models or prompts changed; what was recorded before can be kept in a fork:"


class Recorder:
    """Matches and records the events of a run. In a `replay` a missing event raises `ReplayMiss`, another one `RequestMismatch`.

    A run that `recalls` does not execute settled rounds again.
    """

    def __init__(
        self,
        journal: Journal,
        events: list[AnyEvent],
        *,
        replay: bool,
        observer: Observer | None,
        recalls: bool = False,
    ) -> None:
        self.journal = journal
        self.replay = replay
        self.events: list[Event] = list(events)
        self.answers: dict[str, str | None] = {}
        """Answers that were posted to the session and that no call has taken, by key."""
        self.cancel: CancelRequested | None = None
        """The last cancel of the session, if there is one."""
        self._posted: dict[str, asyncio.Future[None]] = {}
        self._observer = observer
        self._observer_error: BaseException | None = None
        self._context = copy_context()  # the observer may use context variables of the caller
        journal.on_commit = self._notify
        self._keys: set[str] = set()
        self.ends_so_far: dict[tuple[str, int], Ended] = {}
        self._calls: dict[tuple[str, int], Ended] = {}
        self._inherited: dict[tuple[str, int], Ended] = {}
        self._ages: dict[str, int] = {}
        self._derived: dict[tuple[str, str], Event] = {}
        self._matched: set[tuple[str, str]] = set()
        self._asked: dict[tuple[str, int], float] = {}
        self._steps: dict[tuple[str, int], StepCompleted] = {}
        self.arrivals: dict[str, Arrival] = {}
        """Replies that had arrived when an earlier process ended, and that no event records, by call."""
        self.expired: set[str] = set()
        """Searches that were not done in time."""
        self._ahead = 0
        self._resent = True
        self.idle_seconds: Callable[[], float] = lambda: 0.0
        self.on_recorded: Callable[[Ended | Settled], None] = lambda _: None
        """Called with the end of every attempt that this run makes, and of every round, once it is committed."""
        self.on_live: Callable[[], None] = lambda: None
        """Called before every attempt that is not recorded."""
        self._active = 0.0 if replay else journal.seconds()
        self._opened = time.monotonic()
        self._texts: dict[str, str] = {}
        for event in events:
            self._index(event)
        self._recalls = recalls and not self.inherits
        rounds = (_step(event) for event in events if self._recalls and isinstance(event, Settled))
        last = max(rounds, default=0)  # texts of earlier rounds are seldom asked for before the end
        self.load_texts(event for event in events if _step(event) >= last)

    @property
    def live(self) -> bool:
        """Whether the run has matched all that was recorded when it began; in a fork, whether it has made a call of its own."""
        return self._resent and not self._ahead

    def now(self) -> float:
        """Total seconds for which processes have held this session, without those in which only people were awaited."""
        return self._active + (0.0 if self.replay else time.monotonic() - self._opened - self.idle_seconds())

    def note_time(self) -> None:
        """Store `now` without waiting. Events carry it too, but none is recorded while a call is in flight."""
        if not self.replay:
            self.journal.note_seconds(self.now())

    def text(self, id: str) -> str:
        """The text of a recorded reply, step or answer."""
        if id not in self._texts:
            self.load_texts(self._calls.values())
        return self._texts[id]

    def load_texts(self, events: Iterable[Event]) -> None:
        """Read the texts of replies, steps and answers that will be asked for, all at once."""
        with_text = (CallCompleted, ReplyRejected, StepCompleted, AnswerReceived)
        ids = {event.text for event in events if isinstance(event, with_text)}
        self._texts.update(self.journal.store.texts(ids - self._texts.keys()))

    def forget(self) -> None:
        """Drop all events and texts."""
        for collection in (self.events, self.ends_so_far, self._calls, self._inherited, self._derived, self._texts):
            collection.clear()
        self.__dict__.pop("_by_step", None)

    def unreplayed(self) -> list[str]:
        """Keys or places of recorded events that this run did not reach."""
        keys = {key for key, _ in self._calls} - self._keys
        ends = {"SessionFinished", "SessionParked"}
        places = {f"{name} at {place}" for place, name in self._derived.keys() - self._matched if name not in ends}
        return sorted(keys | places)

    def unclaimed(self) -> list[str]:
        """Keys of inherited calls that this run did not use."""
        return sorted({key for key, _ in self._inherited} - self._keys)

    def claim(self, key: str) -> None:
        """Reserve a key. Raises `ProtocolViolation` the second time."""
        if key in self._keys:
            raise ProtocolViolation(f"the key {key!r} is used twice")
        self._keys.add(key)

    def recorded(self, key: str, attempt: int, place: str, digest: str, request: Rendered) -> Ended | None:
        """Return the recorded end of this attempt, None if there is none. Raises if its request or place differs."""
        end = self._calls.get((key, attempt))
        if end is None:
            if self.replay:
                raise ReplayMiss(
                    f"the call {key!r} (attempt {attempt}) is not in the journal; {self._nearest(key, request)}"
                )
            return None
        if end.digest != digest:
            difference = self._difference(end, request)
            raise RequestMismatch(
                f"the call {key!r} is recorded with another request: {difference}. {self._fork_hint(end)}"
            )
        if end.place != place:
            raise RequestMismatch(
                f"the call {key!r} is recorded at place {end.place}, and now comes at {place}. {self._fork_hint(end)}"
            )
        self.ends_so_far[key, attempt] = end
        self._ahead -= 1
        return end

    async def keep(self, key: str, attempt: int, digest: str, completion: Completion) -> None:
        """Store a reply that has arrived; durable on return."""
        await self.journal.keep(Arrival(key, attempt, digest, completion_json(completion)))
        self._check_observer()

    async def take(self, letter: Letter) -> None:
        """Record a letter from the session's mailbox; durable before it has any effect. A call that waits for it goes on."""
        event = letter.event()
        self._stamp(event)
        await self.journal.take(letter, event)
        self.events.append(event)
        if isinstance(event, CancelRequested):
            self.cancel = event
        elif isinstance(event, AnswerReceived):
            self.answers[letter.key] = None if event.passed else letter.text
            if (posted := self._posted.pop(letter.key, None)) is not None and not posted.done():
                posted.set_result(None)
        self._check_observer()

    def until_posted(self, key: str) -> asyncio.Future[None]:
        """Return a future that is done once an answer to this call was posted to the session."""
        posted = self._posted[key] = asyncio.get_running_loop().create_future()
        if key in self.answers:
            posted.set_result(None)
        return posted

    def take_arrival(self, key: str, attempt: int, digest: str) -> Completion | None:
        """Return the reply to this attempt that an earlier process received and did not come to record. Raises `RequestMismatch` if
        its request differs."""
        arrival = self.arrivals.get(key)
        if arrival is None or arrival.attempt != attempt:
            return None
        if arrival.digest != digest:
            raise RequestMismatch(
                f"a reply to the call {key!r} arrived before the session was interrupted, to another request. "
                f"{FORK_HINT} consilience fork {self.journal.session} --at end"
            )
        del self.arrivals[key]
        return completion_from(arrival.completion)

    def has_reply(self, key: str) -> bool:
        """Return whether the first attempt of this call is recorded as its last."""
        event = self._calls.get((key, 1))
        return isinstance(event, CallCompleted) and not event.cut

    def inherited(self, key: str, attempt: int) -> Ended | None:
        """Return the end of this attempt in the parent of a fork."""
        return self._inherited.get((key, attempt))

    @property
    def inherits(self) -> bool:
        """Whether this session is a fork with inherited calls or answers."""
        return bool(self._inherited or self._ages)

    def drop_answer(self, key: str, youngest: float) -> bool:
        """Forget an inherited answer from outside if its call is shown something younger now. Return whether there was one."""
        if self._ages.get(key, 0) <= youngest:
            return False
        del self._ages[key]
        self.answers.pop(key, None)
        return True

    def inherit(self, event: Ended, place: str) -> None:
        """Use an inherited end for the call at this place."""
        self.ends_so_far[event.key, event.attempt] = event.model_copy(update={"place": place})

    async def start(self, event: CallStarted) -> None:
        """Note that a call is about to be sent. Durable on return, so that a call lost in a crash is always reported."""
        self._resent = True
        self._stamp(event)
        await self.journal.commit(event)
        self._check_observer()

    def step(self, key: str, attempt: int, digest: str) -> StepCompleted | None:
        """Return a recorded step of an agent with tools. Raises `RequestMismatch` if its request differs."""
        step = self._steps.get((key, attempt))
        if step is not None and step.digest != digest:
            raise RequestMismatch(
                f"the step {key!r} is recorded with another request: the agent's model, tools, instructions or the "
                f"result of a tool changed. {self._fork_hint(step)}"
            )
        return step

    def steps_of(self, call: str, attempt: int) -> list[StepCompleted]:
        """Requests that an agent with tools made for this attempt."""
        return [s for s in self._steps.values() if (s.call, s.attempt, s.kind) == (call, attempt, "model")]

    async def ask_outside(self, event: CallAwaited, texts: Iterable[str], prompt: PromptParts) -> float:
        """Record a question to somebody outside, once, so that they can read it when this process has ended. Return when it was
        first asked, in seconds since the epoch."""
        if not self.was_asked(event.key, event.attempt):
            self._asked[event.key, event.attempt] = event.asked_at
            await self.commit(event, texts, prompt)
        return self._asked[event.key, event.attempt]

    def was_asked(self, key: str, attempt: int) -> bool:
        """Return whether this process or an earlier one has put the question to somebody outside."""
        return (key, attempt) in self._asked

    async def commit(self, event: Event, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        """Record a live event; durable on return."""
        self._stamp(event)
        await self.journal.commit(event, texts=texts, prompt=prompt)
        self.events.append(event)
        self._check_observer()

    def append(self, event: Ended, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        """Record the end of an attempt with the next commit: that of whatever leaves the process next, or after 2 ms."""
        self._stamp(event)
        self.journal.append(event, texts=texts, prompt=prompt)
        event = compact_event(event)
        self.events.append(event)
        self.ends_so_far[event.key, event.attempt] = event

    async def flush(self) -> None:
        """Return when all recorded events are durable."""
        if not self.replay:
            await self.journal.commit_all([])
            self._check_observer()

    async def begin(self, started: SessionStarted, texts: Iterable[str]) -> None:
        """Record the start with all inherited events in one commit; durable on return."""
        self._stamp(started)
        await self.journal.commit_all([started, *self.events], texts=texts)
        self.events.insert(0, started)
        self._check_observer()

    def recorded_at(self, place: str, cls: type[E], *, required: bool) -> E | None:
        """The event of this type recorded at this place. Raises `ReplayMiss` in a replay if it is `required` and is not there."""
        event = self._derived.get((place, cls.__name__))
        self._matched.add((place, cls.__name__))
        if isinstance(event, cls):
            self._ahead -= 1
            return event
        if self.replay and required:
            raise ReplayMiss(f"no {cls.__name__} is recorded at {place}")
        return None

    def reply_to(self, key: str) -> CallCompleted:
        """Return the last reply to a call that the run has reached. Raises `KeyError`."""
        attempts = takewhile(lambda end: end is not None, (self.ends_so_far.get((key, n)) for n in count(1)))
        replies = [end for end in attempts if isinstance(end, CallCompleted)]
        if not replies:
            raise KeyError(key)
        return replies[-1]

    def settled_at(self, place: str, name: str, index: int) -> Settled | None:
        """Return the record of this round if the run `recalls` rounds and is no fork, in which replies have ages."""
        event = self._derived.get((place, "Settled")) if self._recalls else None
        return event if isinstance(event, Settled) and (event.name, event.index) == (name, index) else None

    def body(self, settled: Settled) -> str:
        """What is recorded of a round. Those of all rounds are read at once."""
        if settled.body not in self._texts:
            bodies = {event.body for event in self._derived.values() if isinstance(event, Settled)}
            self._texts.update(self.journal.store.texts(bodies))
        return self._texts[settled.body]

    def recall(self, first: int, until: int) -> list[Event]:
        """Return the recorded events of these operations, which count as matched: they are not executed again."""
        events = [event for step in range(first, until) for event in self._by_step.get(step, ())]
        ends = [event for event in events if isinstance(event, Ended)]
        self.ends_so_far.update({(end.key, end.attempt): end for end in ends})
        self._keys.update(end.key for end in ends)
        self._ahead -= len(events)
        return events

    @cached_property
    def _by_step(self) -> Mapping[int, Sequence[Event]]:
        """Recorded events that the run has to match, by the operation of the main branch in which they lie."""
        steps: dict[int, list[Event]] = {}
        for event in (*self._calls.values(), *self._derived.values()):
            if event.place:
                steps.setdefault(_step(event), []).append(event)
        return steps

    def settle(self, event: Settled, body: str) -> None:
        """As `derive`. A journal may lack the event: earlier versions settled no rounds."""
        if not self.replay or (event.place, "Settled") in self._derived:
            self.derive(event, [body])

    def derive(self, event: Event, texts: Iterable[str] = ()) -> None:
        """Record an event that follows from the program and its inputs. A recorded one must be equal."""
        slot = (event.place, type(event).__name__)
        recorded = self._derived.get(slot)
        self._matched.add(slot)
        if recorded is not None:
            if not _is_same(recorded, event):
                raise RequestMismatch(
                    f"the journal has another {type(event).__name__} at {event.place}. The code of the protocol has changed: raise "
                    "the `version` of its class. What was recorded before can be kept in a fork: "
                    f"consilience fork {self.journal.session} --at {recorded.seq - 1}"
                )
            self._ahead -= 1
            return
        if self.replay:
            raise ReplayMiss(f"no {type(event).__name__} is recorded at {event.place}")
        self._stamp(event)
        self.journal.append(event, texts=texts)
        self.events.append(event)

    def _stamp(self, event: Event) -> None:
        event.volatile["t"] = round(self.now(), 3)

    def _notify(self, event: Event) -> None:
        """Log a committed event and pass it to the observer. The next commit raises what the observer raises."""
        if getattr(event, "inherited", False) or self._observer_error is not None:
            return
        try:
            if self._observer is not None or may_be_logged(event):
                self._context.run(self._show, event)
            if isinstance(event, Ended | Settled):
                self.on_recorded(event)
        except BaseException as error:
            self._observer_error = error

    def _show(self, event: Event) -> None:
        log_event(self.journal.session, event)
        if self._observer is not None:
            self._observer(event)

    def _check_observer(self) -> None:
        if self._observer_error is not None:
            raise self._observer_error

    def _index(self, event: Event) -> None:
        t = event.volatile.get("t")
        if isinstance(t, int | float):
            self._active = max(self._active, float(t))
        if isinstance(event, Ended):
            (self._inherited if event.inherited else self._calls)[event.key, event.attempt] = event
            self._resent = self._resent and not event.inherited
            self._ahead += not event.inherited
            self.answers.pop(event.key, None)
        elif isinstance(event, StepCompleted):
            self._steps[event.key, event.attempt] = event
        elif isinstance(event, CallAwaited):
            self._asked[event.key, event.attempt] = event.asked_at
        elif isinstance(event, SearchExpired):
            self.expired.add(event.search)
        elif isinstance(event, AnswerReceived):
            self.answers[event.key] = None if event.passed else self.journal.store.text(event.text)
            self._ages[event.key] = age_of(event)
        elif isinstance(event, CancelRequested):
            self.cancel = event
        elif not isinstance(
            event, SessionStarted | SessionResumed | CallLost | CommentPosted | BlindnessLifted
        ) and not (isinstance(event, TextsEmbedded) and event.inherited):
            self._derived[event.place, type(event).__name__] = event
            self._ahead += event.place != ""

    def _nearest(self, key: str, request: Rendered) -> str:
        """Describe the recorded call whose key is most similar to a missing one, and how its request differs."""
        candidates = {**self._inherited, **self._calls}
        sent = {k: event for (k, _), event in candidates.items() if event.prompt}
        if not sent:
            return "no call is recorded"
        (close,) = difflib.get_close_matches(key, sorted(sent), 1, 0.0)
        return f"the nearest recorded is {close!r}, where {self._difference(sent[close], request)}"

    def _difference(self, event: Ended, request: Rendered) -> str:
        if not event.prompt:
            return "a limit refused it then, and nothing was sent"
        return prompt_difference(self.journal.store.prompt(event.prompt), request, self.journal.store.text)

    def _fork_hint(self, event: Event) -> str:
        return f"{FORK_HINT} consilience fork {self.journal.session} --at {event.seq - 1}"


def _step(event: Event) -> int:
    """The operation of the main branch in which an event lies; 0 without a place."""
    return int(event.place.partition(".")[0] or 0)


def _is_same(event: Event, other: Event) -> bool:
    """Return whether two events are equal, apart from the wording of a check, which a later version may have changed."""
    fields, other_fields = vars(event), vars(other)
    return all(
        fields[name] == other_fields[name] or _differ_in_wording(fields[name], other_fields[name])
        for name in fields
        if name != "seq" and name not in event.incidental
    )


def _differ_in_wording(value: object, other: object) -> bool:
    if not (isinstance(value, Check) and isinstance(other, Check)):
        return False
    return value.model_copy(update={"detail": ""}) == other.model_copy(update={"detail": ""})
