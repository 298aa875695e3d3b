"""The steps that every run shares on the command line: approval, execution with progress, and delivery of the report."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import typer

from consilience.cli.config import Config
from consilience.cli.display import Display, RunProgress, ticking
from consilience.cli.errors import (
    EXIT_FAILED,
    EXIT_NO_ANSWER,
    EXIT_OK,
    EXIT_REQUIREMENT_NOT_MET,
    EXIT_WAITING,
    exit_code_of,
    notify,
    print_json,
    run_until_done,
)
from consilience.cli.options import ResumeRequest, SessionRequest, SpendingRequest
from consilience.cli.plan import RunPlan, confirm_spending
from consilience.cli.prompter import TerminalPrompter, prompter_for
from consilience.cli.sessions import PAGE, open_in_browser, read_back, write_page
from consilience.cli.setup import ensure_weights, loaded
from consilience.domain.errors import SessionWaiting, SettingsError
from consilience.domain.events import AnyEvent, Event, SessionStarted
from consilience.domain.outcome import StopReason
from consilience.domain.report import Report
from consilience.engine.ports import AgentPort
from consilience.engine.runner import Options
from consilience.journal.store import Store
from consilience.reporting.files import claim_directory, write_files
from consilience.reporting.markdown import markdown, print_markdown

R = TypeVar("R", bound=Report)
T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""How long a run without a terminal waits for an answer from outside before it parks."""


def approve(
    plan: RunPlan,
    request: SpendingRequest,
    config: Config,
    *,
    summary: Sequence[str],
    notes: Sequence[str] = (),
    preview: tuple[str, Mapping[str, object]] | None = None,
) -> bool:
    """Announce a run and get consent to its cost; return whether to run it.

    With a `preview` (as Markdown and as JSON), that of a dry run, print it and return False.
    """
    for line in () if request.quiet else notes:
        notify(line)
    if preview is not None:
        text, value = preview
        if request.json:
            print_json(value)
        else:
            print_markdown(text)
        return False
    if request.out is not None:
        claim_directory(request.out)
    for line in () if request.quiet else summary:
        notify(line)
    confirm_spending(plan, yes=request.yes, confirm_above=config.confirm_above)
    return True


def run_on(
    screen: Display,
    work: Callable[[], Awaitable[T]],
    *,
    models: Sequence[str],
    leave: Callable[[], bool] = lambda: False,
) -> T:
    """Return the result of `work` with its progress on the screen and the local ones of `models` in memory."""

    async def main() -> T:
        async with ticking(screen), loaded(models, screen.loading):
            return await work()

    return run_until_done(main(), tell=screen.tell, leave=leave)


def publish(
    value: Callable[[], object],
    text: Callable[[list[Path]], str],
    *,
    as_json: bool,
    write: Callable[[], list[Path]] = list,
) -> tuple[list[Path], int]:
    """Write files, then print the result as JSON or Markdown; return the files and the exit code.

    A file that cannot be written is reported after the result, which is printed in any case.
    """
    written: list[Path] = []
    failure: SettingsError | None = None
    try:
        written = write()
    except SettingsError as error:
        failure = error
    if as_json:
        print_json(value())
    else:
        print_markdown(text(written))
    sys.stdout.flush()
    return written, EXIT_OK if failure is None else exit_code_of(failure)


@dataclass(frozen=True)
class RunExecution:
    """How sessions run for one command: its options, the journal, local models to load and the terminal for people."""

    request: SessionRequest | ResumeRequest
    store: Store
    load: Sequence[str]
    """Models; the local ones are in memory while a session runs."""
    prompter: TerminalPrompter | None
    stored: bool = True
    """Whether the journal outlives the command."""

    @classmethod
    def open(
        cls,
        request: SessionRequest | ResumeRequest,
        store: Store,
        models: Mapping[str, str],
        *,
        load: Sequence[str],
        stored: bool = True,
    ) -> RunExecution:
        """Fetch missing weights. `models` are those of the agents by id. Raises `UnavailableModel`, `UnknownName`."""
        ensure_weights(load, quiet=request.quiet)
        return cls(request, store, load, prompter_for(models.values()), stored)

    def seat(self, models: Mapping[str, str]) -> Mapping[str, str | AgentPort]:
        """Return the models by agent; people are asked on the terminal, if there is one."""
        return self.prompter.seat(models) if self.prompter else models

    def start(self, protocol: str, work: Callable[[Options, str], Awaitable[R]]) -> R:
        """Return the report of a new session, whose id `work` gets. Raises `typer.Exit` if there is none."""
        session = new_id(self.store)
        return self.watch(lambda options: work(options, session), session=session, title=f"{protocol} {session}")

    def watch(
        self,
        work: Callable[[Options], Awaitable[R]],
        *,
        session: str,
        title: str,
        before: Sequence[AnyEvent] = (),
    ) -> R:
        """Return the report of `work`, with its progress shown.

        An error is reported with the command that resumes the session, as JSON too if asked; then `typer.Exit` is raised.
        """
        started = bool(before)
        screen = Display(RunProgress(before, title=title, text=self.store.text), quiet=self.request.quiet)
        if self.prompter is not None:
            self.prompter.screen = screen

        def observe(event: Event) -> None:
            nonlocal started
            started = started or isinstance(event, SessionStarted)
            screen.observe(event)

        patience = None if self.prompter else PATIENCE_SECONDS
        options = replace(self.request.options, observer=observe, patience=patience)
        leave = self.prompter.leave if self.prompter else lambda: False
        try:
            return run_on(screen, lambda: work(options), models=self.load, leave=leave)
        except (Exception, KeyboardInterrupt) as error:
            screen.close()
            waiting = isinstance(error, SessionWaiting)
            if isinstance(error, SessionWaiting) and not self.stored:
                notify(f"Waiting for {', '.join(error.awaited)}, and nothing is kept (--no-store): the run ends here.")
                code = EXIT_WAITING
            else:
                resumable = session if started and self.stored else None
                code = exit_code_of(error, session=resumable, as_json=self.request.json and not waiting)
            if waiting and self.request.json:
                self._print_progress(session)
            raise typer.Exit(code) from error

    def _print_progress(self, session: str) -> None:
        """Print a parked session as JSON, as `show` does."""
        from consilience.reporting.partial_report import partial_json
        from consilience.reporting.record import read_record

        record = read_record(self.store, session)
        progress = partial_json(replace(record, holder=None))
        if not self.stored:
            del progress["resume"]
        print_json(progress)

    def deliver(self, report: Report) -> int:
        """Write the files asked for, print the report, open its page if asked, and return the exit code."""
        request = self.request

        def write() -> list[Path]:
            if request.out is None:
                return [write_page(read_back(self.store, report.session))] if request.open else []
            from consilience.reporting.export import report_files

            files = report_files(report, record=read_back(self.store, report.session), stored=self.stored)
            return write_files(request.out, files)

        written, code = publish(
            lambda: report.model_dump(mode="json"),
            lambda files: markdown(report, heading=False, files=files, stored=self.stored),
            as_json=request.json,
            write=write,
        )
        if code == EXIT_OK:
            if request.open:
                notify(open_in_browser(next(path for path in written if path.name == PAGE)))
            code = exit_code(report)
        return apply_require(report, request.require or (), code) if isinstance(request, SessionRequest) else code


def apply_require(report: Report, required: Sequence[StopReason], code: int) -> int:
    """Return the exit code, which changes if the run did not stop for one of the `required` reasons."""
    if not required or report.stop_reason in required:
        return code
    wanted = " or ".join(reason.value for reason in required)
    notify(f"It stopped {report.stop_reason.value}; {wanted} was required.")
    return EXIT_REQUIREMENT_NOT_MET if code == EXIT_OK else code


def exit_code(report: Report) -> int:
    """Return the exit code of a report: an answer with a quorum is a success, whatever the stop reason."""
    if report.answer is not None and report.quorum_met:
        return EXIT_OK
    return EXIT_FAILED if report.stop_reason is StopReason.FAILED else EXIT_NO_ANSWER


def new_id(store: Store) -> str:
    """Return an unused session id."""
    taken = set(store.sessions())
    for _ in range(100):
        id = f"r{secrets.token_hex(3)}"
        if id not in taken:
            return id
    raise SettingsError("no free session id was found", do="Remove old sessions.")
