"""A task whose protocol the caller does not name: it is chosen by rules or, where they do not suffice, after one call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from consilience.choosing import REASONS, Given, ProtocolChoice, choose
from consilience.domain.errors import SettingsError
from consilience.domain.events import SessionFinished
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.tokens import estimate_tokens
from consilience.models.registry import window_by_name
from consilience.protocols.choose import Choose, ChooseReport, TaskReading
from consilience.server.bodies import NewSession
from consilience.server.callers import Caller
from consilience.server.service import Sessions

CHANGES = (".diff", ".patch")


async def ask(
    sessions: Sessions, caller: Caller, task: str, sources: Sequence[Source], limits: Limits
) -> tuple[str, str]:
    """Begin the session that suits a task; return its id, and what was chosen and why in a line.

    The limits are those of the whole, the reading included. Raises `UserError`, `Forbidden`.
    """
    models = sessions.models_of(caller)
    windows = [window for name in models if (window := window_by_name(name, sessions.endpoints)) is not None]
    given = Given(
        documents=sources,
        models=models,
        window=min(windows, default=None),
        is_change=bool(sources) and all(source.name.endswith(CHANGES) for source in sources),
        is_target=bool(sources),
        embedded=any(name.startswith("local") for name in models),
    )
    choice = choose(given)
    if choice is None:
        reading, used = await read_task(sessions, caller, task, sources, limits)
        choice = choose(given, reading)
        limits = limits if limits.calls is None else limits.model_copy(update={"calls": max(limits.calls - used, 0)})
    assert choice is not None
    body = NewSession(
        task=task,
        protocol=choice.protocol.name,
        settings=choice.protocol.model_dump(mode="json", exclude_unset=True),
        models=models,
        sources=tuple(choice.documents),
        limits=limits,
    )
    return (await sessions.begin(caller, body)).session, choice_line(choice)


async def read_task(
    sessions: Sessions, caller: Caller, task: str, sources: Sequence[Source], limits: Limits
) -> tuple[TaskReading, int]:
    """Return what a model reads in a task, and the requests that took. It is one call, in a session of its own."""
    index = tuple(f"{source.name}, about {estimate_tokens(source.text):,} tokens" for source in sources)
    body = NewSession(task=task, protocol=Choose.name, limits=limits, models=sessions.models_of(caller)[:1])
    session = (await sessions.begin(caller, body, derived={"material_index": index})).session
    async with aclosing(sessions.tail(caller, session)) as events:
        async for event in events:
            if isinstance(event, SessionFinished):
                (text,) = (await sessions.texts(caller, [event.report])).values()
                report = ChooseReport.model_validate_json(text)
                if report.reading is not None:
                    return report.reading, report.ledger.actual.requests
    raise SettingsError(
        "the model gave no usable reading of the task", where=f"session {session}", do="Name a protocol."
    )


def choice_line(choice: ProtocolChoice) -> str:
    """Return what was chosen and why."""
    why = choice.reading.why if choice.reading else ""
    return f"Chosen: {choice.protocol.name}, since {REASONS[choice.rule]}{f' ({why.rstrip(chr(46))})' if why else ''}."
