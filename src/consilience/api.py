"""The Python face: functions that deliberate, each a face of `consilience.deliberation.Deliberation`.

Importing it lets reports show themselves in notebooks; what renders them is imported when one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from consilience.blocking import as_blocking
from consilience.deliberation import Deliberation, Live, deliberation_from
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.domain.report import Report, ReportRenderers, register_renderers
from consilience.engine.fork import END
from consilience.engine.protocol import ReportingProtocol
from consilience.engine.runner import Models, Options
from consilience.engine.seats import AnyModel
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
    """Put a task before the agents of a protocol and return its report, of the protocol's own type.

    `model` is one for all, several dealt in the order of `report.agents`, or one per agent id; names or models. None
    chooses as the command line does. `sources` are documents: a `pathlib.Path` is a file to read, a `Source` holds its
    text; a text alone is refused. `encoder` is for similarity by embedding. `panel` replaces the protocol's perspectives.
    The session is recorded in `store`, by default the user's journal. Raises `UserError`s before anything is spent; a
    limit, or a model that fails, is no exception but a report that says so.
    """
    return await deliberation_from(protocol, locals()).run(task, session=session)


def run_sync(
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
    """`deliberate` for code that is not asynchronous, and for notebooks, where a loop runs already.

    Ctrl-C stops the run; what is recorded is kept and `consilience.resume` goes on.
    """
    return deliberation_from(protocol, locals()).run_sync(task, session=session)


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
    """`deliberate`, watched: `async with live(…) as session: async for event in session.events(): …`.

    Takes what `deliberate` takes. `session.report()` gives the report; leaving the block before stops the run.
    """
    return deliberation_from(protocol, locals()).stream(task, session=session)


async def resume(
    session: str, *, model: Models | None = None, store: Store | None = None, options: Options | None = None
) -> Report:
    """Go on where a session was left; a completed call is never paid for twice. A finished one gives its report."""
    return await Deliberation[Report](model=model, store=store, options=options).resume(session)


async def replay(session: str, *, store: Store | None = None, options: Options | None = None) -> Report:
    """Run a recorded session again without any call, comparing event by event."""
    return await Deliberation[Report](store=store, options=options).replay(session)


async def fork(
    session: str,
    *,
    at: int | str = END,
    settings: Mapping[str, object] | None = None,
    model: Models | None = None,
    replace: Mapping[str, AnyModel] | None = None,
    perspectives: Mapping[str, str] | None = None,
    sources: Sequence[Source | Path] = (),
    task: str | None = None,
    prompts: Path | None = None,
    limits: Limits | None = None,
    store: Store | None = None,
    name: str | None = None,
    options: Options | None = None,
) -> Report:
    """A new session that inherits what a recorded one was told up to `at`, and goes on with what is changed.

    `at` is the number of an event, the key of a call, PHASE/INDEX, or "end". See `Deliberation.fork`.
    """
    how: Deliberation[Report] = deliberation_from(None, locals(), sources=())
    return await how.fork(
        session,
        at=at,
        settings=settings,
        replace=replace,
        perspectives=perspectives,
        sources=sources,
        task=task,
        name=name,
    )


resume_sync = as_blocking(resume)
replay_sync = as_blocking(replay)
fork_sync = as_blocking(fork)


def _markdown(report: Report) -> str:
    from consilience.reporting.markdown import markdown

    return markdown(report)


def _html(report: Report) -> str:
    from consilience.reporting.html import report_page

    return report_page(report)


def _fragment(report: Report) -> str:
    from consilience.reporting.html import fragment

    return fragment(report)


def _save(report: Report, directory: Path) -> list[Path]:
    from consilience.reporting.export import save_report

    return save_report(report, directory)


register_renderers(ReportRenderers(markdown=_markdown, html=_html, fragment=_fragment, save=_save))
