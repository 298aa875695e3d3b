"""The steps that every run shares on the command line: approval, execution with progress, and delivery of the report."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import typer

from consilience.cli.config import Config
from consilience.cli.display import Display, RunProgress, ticking
from consilience.cli.errors import (
    EXIT_FAILED,
    EXIT_FINDINGS,
    EXIT_NO_ANSWER,
    EXIT_OK,
    EXIT_REQUIREMENT_NOT_MET,
    EXIT_WAITING,
    exit_code_of,
    notify,
    print_json,
    run_until_done,
)
from consilience.cli.inputs import target_lines, task_of, unused_options
from consilience.cli.plan import RunPlan, confirm_spending, dry_run, dry_run_json, first_line
from consilience.cli.prompter import TerminalPrompter, prompter_for
from consilience.cli.requests import (
    DeliveryRequest,
    FindingsRequest,
    PlannedRequest,
    SessionRequest,
    SpendingRequest,
    TargetRequest,
)
from consilience.cli.sessions import PAGE, open_in_browser, read_back, write_page
from consilience.cli.setup import ensure_weights, loaded
from consilience.domain.errors import SessionWaiting, SettingsError
from consilience.domain.events import AnyEvent, Event, SessionStarted
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.report import LedgerReport, Report, UsageTotals
from consilience.engine.ports import AgentPort
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.journal.store import Store
from consilience.reporting.export import report_files, save_report
from consilience.reporting.files import claim_directory, write_file, write_files
from consilience.reporting.markdown import markdown, print_markdown
from consilience.targets import Target

R = TypeVar("R", bound=Report)
T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""How long a run without a terminal waits for an answer from outside before it parks."""


def approve(
    plan: RunPlan,
    request: SpendingRequest,
    config: Config,
    *,
    summary: str = "",
    preview: tuple[str, Mapping[str, object]] | None = None,
) -> bool:
    """Announce a run and get consent to its cost, or print its plan for --dry-run; return whether to run it.

    `summary` and `preview` (as Markdown and as JSON) replace what the plan says of itself.
    """

    def tell(lines: Iterable[str]) -> None:
        for line in () if request.quiet else lines:
            notify(line)

    if isinstance(request, SessionRequest):
        tell(unused_options(request, plan.agents))
    if isinstance(request, PlannedRequest) and request.dry_run:
        text, value = preview or (dry_run(plan), dry_run_json(plan))
        if request.json:
            print_json(value)
        else:
            print_markdown(text)
        return False
    if request.out is not None:
        claim_directory(request.out)
    tell([summary or first_line(plan), *plan.details])
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
    rendered: bool = True,
) -> tuple[list[Path], int]:
    """Write files, then print the result as JSON or Markdown; return the files and the exit code.

    A file that cannot be written is reported after the result, which is printed in any case. Markdown is not `rendered` on a
    terminal if it was asked for.
    """
    written: list[Path] = []
    failure: SettingsError | None = None
    try:
        written = write()
    except SettingsError as error:
        failure = error
    if as_json:
        print_json(value())
    elif rendered:
        print_markdown(text(written))
    else:
        sys.stdout.write(text(written))
    sys.stdout.flush()
    return written, EXIT_OK if failure is None else exit_code_of(failure)


@dataclass(frozen=True)
class RunExecution:
    """How sessions run for one command: its options, the journal, local models to load and the terminal for people."""

    request: DeliveryRequest
    store: Store
    load: Sequence[str]
    """Models; the local ones are in memory while a session runs."""
    prompter: TerminalPrompter | None
    stored: bool = True
    """Whether the journal outlives the command."""

    @classmethod
    def open(
        cls,
        request: DeliveryRequest,
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
                as_json = self.request.json and not waiting
                code = exit_code_of(error, session=resumable, options=self.request.repeated, as_json=as_json)
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
            written = write_baseline(report, request)
            if request.out is None:
                return [*written, *([write_page(read_back(self.store, report.session))] if request.open else [])]
            files = report_files(report, record=read_back(self.store, report.session), stored=self.stored)
            return [*written, *write_files(request.out, files)]

        format = request.output_format
        written, code = publish(
            lambda: report_data(report, format),
            lambda files: markdown(report, heading=False, files=files, stored=self.stored),
            as_json=format not in TEXT_FORMATS,
            write=write,
            rendered=format == "text",
        )
        if code == EXIT_OK:
            if request.open:
                notify(open_in_browser(next(path for path in written if path.name == PAGE)))
            code = exit_code(report)
        return apply_conditions(report, request, code)


def apply_conditions(report: Report, request: DeliveryRequest, code: int) -> int:
    """Return the exit code; a success becomes another if the report lacks what --require names or has what --fail-on names."""
    if request.require and report.stop_reason not in request.require:
        wanted = " or ".join(reason.value for reason in request.require)
        notify(f"It stopped {report.stop_reason.value}; {wanted} was required.")
        code = code or EXIT_REQUIREMENT_NOT_MET
    if isinstance(request, FindingsRequest) and request.fail_on and (reason := report.failing(request.fail_on)):
        notify(f"--fail-on {request.fail_on}: {reason}")
        code = code or EXIT_FINDINGS
    return code


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


# --- output

BASELINE = "baseline"
TEXT_FORMATS = ("text", "markdown")


def check_output(report: type[Report], request: FindingsRequest) -> None:
    """Raise `SettingsError` for a format or findings that the report does not have, or a place that is not writable."""
    if request.json and request.format not in ("text", "json"):
        raise SettingsError("two formats are given", where=f"--json and --format {request.format}", do="Give one.")
    exported = [name for name, file in report.formats.items() if file in report.exports]
    known = (*TEXT_FORMATS, "json", *exported)
    if request.format not in known:
        raise SettingsError(
            f"the report has no format {request.format!r}", where="--format", do=f"Use one of {', '.join(known)}."
        )
    if request.fail_on is not None and report.failing is Report.failing:
        raise SettingsError("the report has no findings", where="--fail-on", do="Leave it out.")
    if request.write_baseline is not None:
        if BASELINE not in exported:
            raise SettingsError("the report has no findings to write", where="--write-baseline", do="Leave it out.")
        claim_directory(request.write_baseline.parent)


def report_data(report: Report, format: str) -> object:
    """Return the report as data for JSON, in its own form or in another."""
    if format == "json":
        return report.model_dump(mode="json")
    return getattr(report, report.exports[report.formats[format]])()


def write_baseline(report: Report, request: DeliveryRequest) -> list[Path]:
    """Write the findings, if a file is named; return its path. Raises `SettingsError`."""
    if not isinstance(request, FindingsRequest) or request.write_baseline is None:
        return []
    findings = report_data(report, BASELINE)
    text = findings if isinstance(findings, str) else json.dumps(findings, indent=2, ensure_ascii=False) + "\n"
    write_file(request.write_baseline, text)
    return [request.write_baseline]


def report_nothing(protocol: Protocol, request: TargetRequest, target: Target) -> int:
    """Report that there is nothing to review, in the format asked for and without a session; return the exit code, a success."""
    lines = [f"Nothing to review: {target.title}.", *target_lines(target)[1:]]
    report = protocol.report.model_validate(
        {
            "protocol": protocol.name,
            "task": task_of(target, None),
            "settings": protocol.model_dump(mode="json"),
            "seed": request.seed,
            "agents": (),
            "topology": protocol.topology(),
            "stop_reason": StopReason.SETTLED,
            "replied": 0,
            "quorum_met": True,
            "answer": lines[0],
            "ledger": LedgerReport(estimated=Estimate(min=0, max=0), actual=UsageTotals()),
            **({"left_out": target.left_out} if "left_out" in protocol.report.model_fields else {}),
        }
    )
    if not request.dry_run:
        write_baseline(report, request)
        if request.out is not None:
            save_report(report, request.out)
    if request.output_format in TEXT_FORMATS:
        typer.echo("\n".join(lines))
    else:
        print_json(report_data(report, request.output_format))
    return EXIT_OK
