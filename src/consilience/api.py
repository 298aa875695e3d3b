"""The functions of the Python API, which call `consilience.deliberation.Deliberation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from consilience.blocking import as_blocking
from consilience.deliberation import Deliberation, Live, deliberation_from
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.engine.fork import END
from consilience.engine.protocol import ReportingProtocol
from consilience.engine.runner import Models, Options
from consilience.engine.seats import SeatModel
from consilience.engine.similarity import Encoder
from consilience.journal.store import Store

R = TypeVar("R", bound=Report)


async def deliberate(
    task: str,
    protocol: ReportingProtocol[R],
    *,
    model: Models | None = None,
    panel: Panel | str | Path | None = None,
    sources: Sequence[Source | Path] = (),
    seed: int = 0,
    limits: Limits | None = None,
    quorum: float = 0.5,
    encoder: str | Encoder | None = None,
    store: Store | None = None,
    prompts: Path | None = None,
    session: str | None = None,
    options: Options | None = None,
) -> R:
    """Run a protocol on a task and return its report.

    The parameters are the fields of `Deliberation`; `session` is the id of the session, by default a random one. Raises
    `UserError`s before anything is spent. A limit, or a model that fails, does not raise: the report has that outcome.
    """
    return await deliberation_from(protocol, locals()).run(task, session=session)


def live(
    task: str,
    protocol: ReportingProtocol[R],
    *,
    model: Models | None = None,
    panel: Panel | str | Path | None = None,
    sources: Sequence[Source | Path] = (),
    seed: int = 0,
    limits: Limits | None = None,
    quorum: float = 0.5,
    encoder: str | Encoder | None = None,
    store: Store | None = None,
    prompts: Path | None = None,
    session: str | None = None,
    options: Options | None = None,
) -> Live[R]:
    """Run a protocol and yield its events: `async with live(…) as session: async for event in session.events(): …`.

    The parameters are those of `deliberate`. `await session.report()` returns the report. Leaving the block earlier stops the run.
    """
    return deliberation_from(protocol, locals()).stream(task, session=session)


async def resume(
    session: str, *, model: Models | None = None, store: Store | None = None, options: Options | None = None
) -> Report:
    """Resume a session; no completed call is paid for twice. A finished session returns its report."""
    return await Deliberation[Report](model=model, store=store, options=options).resume(session)


async def replay(session: str, *, store: Store | None = None, options: Options | None = None) -> Report:
    """Run a recorded session again without any call, and compare event by event."""
    return await Deliberation[Report](store=store, options=options).replay(session)


async def fork(
    session: str,
    *,
    at: int | str = END,
    settings: Mapping[str, object] | None = None,
    model: Models | None = None,
    replace: Mapping[str, SeatModel] | None = None,
    perspectives: Mapping[str, str] | None = None,
    sources: Sequence[Source | Path] = (),
    task: str | None = None,
    prompts: Path | None = None,
    limits: Limits | None = None,
    store: Store | None = None,
    name: str | None = None,
    options: Options | None = None,
) -> Report:
    """Run a new session that inherits the replies of a recorded one up to `at`, with changes. See `Deliberation.fork`."""
    deliberation: Deliberation[Report] = deliberation_from(None, locals(), sources=())
    return await deliberation.fork(
        session,
        at=at,
        settings=settings,
        replace=replace,
        perspectives=perspectives,
        sources=sources,
        task=task,
        name=name,
    )


run_sync = as_blocking(deliberate, "run_sync")
resume_sync = as_blocking(resume)
replay_sync = as_blocking(replay)
fork_sync = as_blocking(fork)
