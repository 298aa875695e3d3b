"""The prompts of a recorded session as they were sent.

The journal holds a prompt as references to texts. Its protocol runs again up to the last recorded call, which renders every
prompt and compares it with the digest of the recorded request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from difflib import get_close_matches

from consilience.domain.errors import Command, UnknownName, UserError
from consilience.domain.events import (
    AnyEvent,
    CallAwaited,
    CallCompleted,
    CallEvent,
    Ended,
    Event,
    ReplyRejected,
    SessionFinished,
    SessionStarted,
    text_id,
)
from consilience.engine.execution import Options, execute
from consilience.engine.fork import Fork
from consilience.engine.prompt import Rendered
from consilience.engine.protocol import recorded_protocol
from consilience.engine.recorder import Recorder
from consilience.engine.runner import check_version, recorded_setup, resumed_state, start_event
from consilience.engine.seats import replay_seats
from consilience.engine.state import State
from consilience.engine.template_use import TemplateUse, describe_inherited, pronoun
from consilience.engine.templates import INSTRUCTIONS
from consilience.journal.store import Arrival, Letter, OnCommit, OnMail, PromptParts, Store


@dataclass(frozen=True)
class SentPrompt:
    """What one attempt of a call sends to a model."""

    session: str
    """The session that made the call: for an inherited call a parent."""
    key: str
    attempt: int
    agent: str
    model: str
    sent: bool
    """Whether it was sent; False for the next call of an unfinished session and for a call that a limit refused."""
    system: str
    """The instructions."""
    user: str
    """Task, documents, quoted messages and the rendered template."""
    schema: Mapping[str, object] | None
    """JSON Schema of the reply; None for free text."""
    reply: str | None = None
    """The text of the reply, also of one that could not be used; None without one."""


async def sent_prompts(session: str, key: str, *, store: Store) -> list[SentPrompt]:
    """Return the prompts of a call, one per attempt. Makes no request, records nothing and needs no lease.

    Raises `UnknownName` for a key or a session that is not recorded, `VersionMismatch` for a session of other code.
    """
    events = store.read(session)
    started = start_event(session, events)
    ends = [e for e in events if isinstance(e, Ended) and e.key == key]
    if started.parent and ends and all(end.inherited for end in ends):
        return await sent_prompts(started.parent, key, store=store)
    rendered, ending = await _rendered(session, started, events, store)
    if key in rendered:
        return rendered[key]
    keys = {event.key for event in events if isinstance(event, CallEvent)}
    if ending is not None and key in keys:
        raise ending
    keys |= set(rendered)
    close = ", ".join(get_close_matches(key, sorted(keys), 3, 0.4))
    raise UnknownName(
        f"session {session} has no call {key!r}",
        do=(f"Similar keys: {close}. " if close else "") + "See its calls",
        command=Command("events", session),
    )


async def _rendered(
    session: str, started: SessionStarted, events: list[AnyEvent], store: Store
) -> tuple[Mapping[str, list[SentPrompt]], Exception | None]:
    """Return the prompts by key, and what ended the run before its report, such as the first call that is not recorded."""
    ended = (e for e in events if isinstance(e, Ended) and e.prompt and not (isinstance(e, CallCompleted) and e.cached))
    asked = {(e.key, e.attempt) for e in (*ended, *(e for e in events if isinstance(e, CallAwaited)))}
    in_flight = {flight.key for flight in store.flights(session)}
    models = {agent.id: agent.model for agent in started.agents}
    replies = {(e.key, e.attempt): e.text for e in events if isinstance(e, CallCompleted | ReplyRejected)}
    prompts: dict[str, list[SentPrompt]] = defaultdict(list)

    def keep(key: str, attempt: int, agent: str, prompt: Rendered, schema: Mapping[str, object] | None) -> None:
        sent = (key, attempt) in asked or key in in_flight
        reply = store.text(replies[key, attempt]) if (key, attempt) in replies else None
        shown = SentPrompt(session, key, attempt, agent, models[agent], sent, prompt.system, prompt.user, schema, reply)
        prompts[key].append(shown)

    def watch(state: State) -> None:
        state.on_rendered = keep

    return prompts, await _run_again(session, started, events, store, watch)


async def _run_again(
    session: str, started: SessionStarted, events: list[AnyEvent], store: Store, watch: Callable[[State], None]
) -> Exception | None:
    """Run the protocol up to the last recorded call, and return what ended it before its report. `watch` is given the state."""
    advice = (
        "Install that version: only the code that wrote a session can render its prompts. "
        "Its replies can be read without it"
    )
    command = Command("export", session, {"out": f"{session}.html"})
    check_version(session, started, recorded_protocol(started.protocol), advice, command)
    journal = _Unwritten(session, store)
    options = Options(hold=lambda phase: True, patience=0.0)
    async with aclosing(replay_seats(started.agents)) as seats:
        setup = recorded_setup(started, journal, seats, options)
        state = resumed_state(setup, started, Recorder(journal, events, replay=False, observer=None))
        watch(state)
        try:
            await execute(setup, state)
        except Exception as error:  # of the protocol, too: its author needs the prompts before it
            return error
    return None


async def replaced_without_effect(planned: Fork, *, store: Store) -> list[str]:
    """Return a sentence about the templates that the fork replaces and with which its parent's calls are all inherited, and one
    about those that no call of its finished parent uses. Makes no request; returns nothing if the installed code cannot run the
    parent.
    """
    old, sources = planned.started, planned.templates.sources
    changed = [name for name in planned.templates.replaced if text_id(sources[name]) != old.templates.get(name)]
    if not changed:
        return []
    events = store.read(planned.parent)
    use = TemplateUse(changed, "")

    def watch(state: State) -> None:
        use.instructions = state.opening.instructions
        use.note_text(INSTRUCTIONS, use.instructions)
        state.template_use = use

    try:
        await _run_again(planned.parent, old, events, store, watch)
    except UserError:
        return []
    ended = [event for event in events if isinstance(event, Ended)]
    keys = {event.key for event in planned.events if isinstance(event, Ended)}
    inherited = {name: calls for name, calls in use.calls.items() if calls and keys.issuperset(calls)}
    unused = use.unused if isinstance(events[-1], SessionFinished) else []
    sentences = []
    if inherited:
        described = describe_inherited(inherited, planned.parent, ended, planned.templates.directory)
        sentences.append(f"Prompt template{'s' * (len(inherited) > 1)} {', '.join(inherited)}: {described}")
    if unused:
        no_call = f"no call of {planned.parent} uses {pronoun(unused)}."
        sentences.append(f"Prompt template{'s' * (len(unused) > 1)} {', '.join(unused)}: {no_call}")
    return sentences


class _Unwritten:
    """A journal that records nothing."""

    on_commit: OnCommit | None = None

    def __init__(self, session: str, store: Store) -> None:
        self.session = session
        self.store = store

    def append(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        pass

    async def commit(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        pass

    async def commit_all(self, events: Sequence[Event], *, texts: Iterable[str] = ()) -> None:
        pass

    async def keep(self, arrival: Arrival) -> None:
        raise AssertionError

    def receive(self, on_mail: OnMail | None) -> None:
        pass

    async def take(self, letter: Letter, event: Event) -> None:
        raise AssertionError

    def note_seconds(self, seconds: float) -> None:
        pass

    def seconds(self) -> float:
        return 0.0

    async def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass
