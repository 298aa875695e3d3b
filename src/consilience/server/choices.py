"""How `ask` would work on a task, for a caller of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from consilience.choosing import CHANGES, Given, ProtocolChoice, choose
from consilience.domain.errors import SettingsError, UnknownName
from consilience.engine.seats import choose_detail
from consilience.journal.store import Records
from consilience.models.endpoints import Endpoints
from consilience.models.registry import window_by_name
from consilience.protocols.choose import Choose, ChooseReport
from consilience.server.bodies import ChoicesBody


@dataclass(frozen=True)
class Chosen:
    """The choice for a task, and the session in which a model read it; "" if none had to."""

    choice: ProtocolChoice | None
    """None until the reading is finished."""
    session: str


def given_of(body: ChoicesBody, models: Sequence[str], known: Endpoints) -> Given:
    """Return what is known of a task before anybody has read it."""
    windows = [window for name in models if (window := window_by_name(name, known)) is not None]
    agents = Choose().agents(None)
    return Given(
        documents=body.sources,
        models=models,
        window=min(windows, default=None),
        is_change=bool(body.sources) and all(PurePath(source.name).suffix in CHANGES for source in body.sources),
        is_target=bool(body.sources),
        personas=body.personas,
        embedded=any(choose_detail("auto", agents, {agents[0].id: name}) == "brief" for name in models),
    )


def choice_read(records: Records, session: str, given: Given) -> ProtocolChoice | None:
    """Return the choice that follows from a reading; None until that is finished.

    Raises `SettingsError` for a session that is no reading, `UnknownName` for one without a usable reply.
    """
    started = records.beginning(session)
    if started is None or started.protocol != Choose.name:
        raise SettingsError(
            f"session {session} is not the reading of a task",
            where="reading",
            do="Leave it out: a model reads the task.",
        )
    finished = records.ending(session)
    if finished is None or finished.type != "session_finished":
        return None
    report = ChooseReport.model_validate_json(records.text(finished.report))
    if report.reading is None:
        raise UnknownName(
            f"{started.agents[0].model} gave no usable reading of the task",
            where="models",
            do="Name a protocol: `solo` is one call.",
        )
    return choose(given, report.reading)
