"""The Python face: a function that deliberates.

Importing it lets reports show themselves in notebooks; what renders them is imported when one does.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from consilience.domain.events import Event
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel, load_panel
from consilience.domain.report import Display, Report, display_with
from consilience.engine import given, runner
from consilience.engine.fork import END
from consilience.engine.fork import fork as _fork
from consilience.engine.live import Live
from consilience.engine.protocol import Reporting
from consilience.engine.runner import Models, Options
from consilience.engine.seats import One
from consilience.engine.similarity import Encoder
from consilience.journal.sqlite import opened
from consilience.journal.store import Store

T = TypeVar("T")
R = TypeVar("R", bound=Report)

TICK = 0.1
"""Seconds between two looks at whether a task that waits for a run was cancelled."""


async def deliberate(
    task: str,
    protocol: Reporting[R],
    *,
    model: Models | None = None,
    panel: Panel | str | Path | None = None,
    sources: Sequence[Source | str] = (),
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
    chooses as the command line does. `encoder` is for similarity by embedding. `panel` replaces the protocol's
    perspectives. The session is recorded in `store`, by default the user's journal. Raises `UserError`s before anything
    is spent; a limit, or a model that fails, is no exception but a report that says so.
    """
    plain = {
        "task": task,
        "panel": panel,
        "seed": seed,
        "quorum": quorum,
        "prompts": prompts,
        "session": session,
        "options": options,
    }
    checked = given.check(protocol, encoder, plain)
    documents, limits = given.sources_of(sources), given.limits_of(limits)
    with opened(given.store_of(store)) as journal:
        report = await runner.start(
            task,
            checked,
            models=_choose() if model is None else model,
            store=journal,
            panel=load_panel(panel) if isinstance(panel, str | Path) else panel,
            sources=documents,
            seed=seed,
            limits=limits,
            quorum=quorum,
            encoder=encoder,
            prompts=prompts,
            session=session,
            options=options,
        )
    return cast(R, report)


def live(
    task: str,
    protocol: Reporting[R],
    *,
    model: Models | None = None,
    panel: Panel | str | Path | None = None,
    sources: Sequence[Source | str] = (),
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
    id = session or f"r{secrets.token_hex(4)}"
    asked = options or Options()
    running: Live[R]

    def observe(event: Event) -> None:
        running.observe(event)
        if asked.observer is not None:
            asked.observer(event)

    running = Live(
        id,
        lambda: deliberate(
            task,
            protocol,
            model=model,
            panel=panel,
            sources=sources,
            seed=seed,
            limits=limits,
            quorum=quorum,
            encoder=encoder,
            store=store,
            prompts=prompts,
            session=id,
            options=replace(asked, observer=observe),
        ),
    )
    return running


async def resume(
    session: str, *, model: Models | None = None, store: Store | None = None, options: Options | None = None
) -> Report:
    """Go on where a session was left; a completed call is never paid for twice. A finished one gives its report."""
    with opened(given.store_of(store)) as journal:
        return await runner.resume(session, store=journal, models=model, options=options)


async def fork(
    session: str,
    *,
    at: int | str = END,
    settings: Mapping[str, object] | None = None,
    model: Models | None = None,
    replace: Mapping[str, One] | None = None,
    perspectives: Mapping[str, str] | None = None,
    prompts: Path | None = None,
    limits: Limits | None = None,
    store: Store | None = None,
    name: str | None = None,
    options: Options | None = None,
) -> Report:
    """A new session that inherits what a recorded one was told up to `at`, and goes on with what is changed.

    `at` is the number of an event, the key of a call, PHASE/INDEX, or "end". See `consilience.engine.fork.fork`.
    """
    with opened(given.store_of(store)) as journal:
        return await _fork(
            session,
            store=journal,
            at=at,
            settings=settings,
            models=model,
            replace=replace,
            perspectives=perspectives,
            prompts=prompts,
            limits=limits,
            session=name,
            options=options,
        )


async def replay(session: str, *, store: Store | None = None, options: Options | None = None) -> Report:
    """Run a recorded session again without any call, comparing event by event."""
    with opened(given.store_of(store)) as journal:
        return await runner.replay(session, store=journal, options=options)


def run_sync(
    task: str,
    protocol: Reporting[R],
    *,
    model: Models | None = None,
    panel: Panel | str | Path | None = None,
    sources: Sequence[Source | str] = (),
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
    return blocking(
        deliberate(
            task,
            protocol,
            model=model,
            panel=panel,
            sources=sources,
            seed=seed,
            limits=limits,
            quorum=quorum,
            encoder=encoder,
            store=store,
            prompts=prompts,
            session=session,
            options=options,
        )
    )


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; in a thread of its own where this thread has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        beside = False
    else:
        beside = True
    return (
        _in_a_thread(work) if beside else asyncio.run(work)
    )  # out of the handler, which would show in every traceback


def _in_a_thread(work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. An interrupt, or the end of the task that waits here, cancels it and waits until it has ended."""
    ended: Future[T] = Future()
    stop: Future[None] = Future()

    async def main() -> T:
        loop, running = asyncio.get_running_loop(), asyncio.current_task()
        assert running is not None

        def cancel(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: it has ended meanwhile
                loop.call_soon_threadsafe(running.cancel)

        stop.add_done_callback(cancel)
        return await work

    def target() -> None:
        try:
            ended.set_result(asyncio.run(main()))
        except BaseException as raised:  # handed to the caller's thread
            ended.set_exception(raised)

    threading.Thread(target=target, name="consilience", daemon=True).start()
    waiting = asyncio.current_task()
    before = waiting.cancelling() if waiting else 0
    try:
        while not wait((ended,), timeout=TICK).done:
            # `asyncio.run` turns the first Ctrl-C into a cancellation, which a task that does not await never sees.
            if waiting is not None and waiting.cancelling() > before:
                raise asyncio.CancelledError
    except BaseException:
        stop.set_result(None)
        wait((ended,))
        raise
    return ended.result()


def _markdown(report: Report) -> str:
    from consilience.reporting.markdown import markdown

    return markdown(report)


def _html(report: Report) -> str:
    from consilience.reporting.html import fragment

    return fragment(report)


display_with(Display(markdown=_markdown, html=_html))


def _choose() -> str:
    import os

    from consilience.models.names import choose

    return choose(os.environ, {}).name
