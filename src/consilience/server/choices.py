"""How `ask` would work on a task, for a caller of the server: by rules, or by a model's reading of the task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from consilience.choosing import Given, ProtocolChoice, choose, given_for, reading_of
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import SessionFinished, SessionStarted
from consilience.domain.model_names import PERSON
from consilience.domain.outcome import Limits, StopReason
from consilience.engine.usage import remaining_limits
from consilience.journal.store import Records
from consilience.models.endpoints import Endpoints
from consilience.protocols.choose import Choose, ChooseReport, TaskReading
from consilience.server.bodies import ChoicesBody, NewSession
from consilience.server.callers import Caller
from consilience.server.checks import allowed_models, check_allowed
from consilience.server.service import Sessions


@dataclass(frozen=True)
class Chosen:
    """The choice for a task, and the session in which a model read it; "" if none had to."""

    choice: ProtocolChoice | None
    """None until the reading is finished."""
    session: str
    limits: Limits
    """What the reading left of the limits."""

    def apply(self, body: NewSession) -> NewSession:
        """Return a request with the chosen protocol, for its task and documents. Settings of its own replace those chosen."""
        assert self.choice is not None
        protocol = self.choice.protocol
        settings = {**protocol.model_dump(mode="json", exclude_unset=True), **body.settings}
        changes = {"protocol": protocol.name, "settings": settings, "sources": tuple(self.choice.documents)}
        return body.model_copy(update={**changes, "limits": self.limits})


async def choose_for(
    sessions: Sessions,
    caller: Caller,
    body: ChoicesBody,
    *,
    session: str | None = None,
    noted: asyncio.Event | None = None,
    otherwise: TaskReading | None = None,
    seconds: float | None = None,
) -> Chosen:
    """Return how `ask` would work on a task. Where that depends on what the task asks for, a model reads it, in a session of its
    own, which is waited for, at most so many `seconds`; after them the choice is None, and a later request names that session.

    `session` is the one for which is chosen: its reading, if there is one, is joined (`Joins.reading`). By default the reading has
    a random id. `noted` is set once it is recorded. `otherwise` is what counts as read if the model gives no usable reading. Raises
    `UserError`, `Forbidden`, and `RunFailed` if the session ends without a report.
    """
    models = body.models or tuple(allowed_models(caller, sessions.settings)[:1])
    check_allowed(caller, sessions.settings, models)
    given = await asyncio.to_thread(given_of, body, models, sessions.endpoints)
    if (choice := choose(given)) is not None:
        return Chosen(choice, "", body.limits)
    reader = next(iter(models), PERSON)
    if reading := body.reading:
        await sessions.read(caller, partial(_check_reading, session=reading))
    else:
        reading = await _begin_reading(sessions, caller, body, reader, session)
    if noted is not None:
        noted.set()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await sessions.wait(caller, reading)
    return await sessions.read(caller, partial(_chosen, session=reading, given=given, body=body, otherwise=otherwise))


async def _begin_reading(sessions: Sessions, caller: Caller, body: ChoicesBody, model: str, session: str | None) -> str:
    reading, exists = await sessions.joins.reading(caller, session) if session is not None else (None, False)
    if reading is not None and exists:
        if reading in sessions.failures:
            await sessions.resume(caller, reading)
        return reading
    protocol = reading_of(body.sources)
    request = NewSession(task=body.task, protocol=protocol.name, limits=body.limits)
    return await sessions.begin_service(caller, protocol, model, request, reading)


def given_of(body: ChoicesBody, models: Sequence[str], known: Endpoints) -> Given:
    """Return what is known of a task before anybody has read it."""
    files = [source.name for source in body.sources]
    return given_for(
        body.sources,
        models,
        known,
        files=files,
        personas=body.personas,
    )


def _check_reading(records: Records, session: str) -> SessionStarted:
    """Return how a reading began. Raises `SettingsError` for a session that is none: it might never end."""
    started = records.beginning(session)
    if started is None or started.protocol != Choose.name:
        raise SettingsError(
            f"session {session} is not the reading of a task",
            where="reading",
            do="Leave it out: a model reads the task.",
        )
    return started


def _chosen(records: Records, session: str, given: Given, body: ChoicesBody, otherwise: TaskReading | None) -> Chosen:
    """Return the choice that follows from a reading, without one until that is finished.

    Raises `SettingsError` for a session that is no reading, `UnknownName` for one without a usable reply or that was cancelled.
    """
    started = _check_reading(records, session)
    finished = records.ending(session)
    if not isinstance(finished, SessionFinished):
        return Chosen(None, session, body.limits)
    report = ChooseReport.model_validate_json(records.text(finished.report))
    if report.stop_reason is StopReason.CANCELLED:
        raise UnknownName("the reading of the task was cancelled", do="Ask again, and the task is read again.")
    reading = report.reading or otherwise
    if reading is None:
        raise UnknownName(
            f"{started.agents[0].model} gave no usable reading of the task",
            where="models",
            do="Name a protocol: `solo` is one call.",
        )
    return Chosen(choose(given, reading), session, remaining_limits(body.limits, report.ledger.actual))
