"""What becomes of a report on the command line: formats, files and exit codes, common ones and those that its type declares."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from consilience.cli.errors import EXIT_FAILED, EXIT_NO_ANSWER, EXIT_OK, EXIT_REQUIREMENT_NOT_MET, notify
from consilience.cli.options import OUTPUT, DeliveryRequest
from consilience.domain.delivery import Delivery
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import StopReason
from consilience.domain.report import Report
from consilience.engine.protocol import protocol_names, report_type
from consilience.reporting.files import claim_directory, write_file

D = TypeVar("D", bound=DeliveryRequest)

TEXT_FORMATS = ("text", "markdown")
PRINTED_FORMATS = (*TEXT_FORMATS, "json")
"""Of every report."""
FORMAT_HELP = "How to print the report. Default: text; in the resume of an unfinished session, as it was begun."


class Declared:
    """The options by which a report of one of these types is delivered, as the types declare them."""

    def __init__(self, *reports: type[Report]) -> None:
        self._deliveries = {d.name: d for report in reports for d in report.deliveries}
        formats = tuple(dict.fromkeys([*PRINTED_FORMATS, *(format for report in reports for format in report.formats)]))
        own = [(name, d.option, d.help, d.values) for name, d in self._deliveries.items()]
        self.common = {"format"} if len(formats) > len(PRINTED_FORMATS) else set()
        """Those that `--help` shows."""
        self.common |= {name for name, delivery in self._deliveries.items() if delivery.values}
        self.parameters = [_parameter(*option) for option in (("format", "--format", FORMAT_HELP, formats), *own)]

    def read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a command with those of these options as fields of a request. A file keeps its place."""
        asked = {
            name: str(values[name]) if delivery.values else str(Path(values[name]).absolute())
            for name, delivery in self._deliveries.items()
            if values[name] is not None
        }
        return {name: value for name, value in values.items() if name not in self._deliveries} | {"asked": asked}


def _parameter(name: str, option: str, help: str, values: tuple[str, ...]) -> inspect.Parameter:
    metavar = "|".join(values) or "FILE"
    info = typer.Option(option, help=help, metavar=metavar, rich_help_panel=OUTPUT, show_default=False)
    kind: Any = Literal.__getitem__(values) if values else str
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind | None, info], default=None
    )


def declared_by_all() -> Declared:
    """Return what the reports of all protocols declare, for commands that deliver the report of any."""
    return Declared(*filter(None, map(report_type, protocol_names())))


def as_begun(request: D, report: type[Report], recorded: Mapping[str, str], *, finished: bool) -> D:
    """Return the request with what the command that began the session asked for, unless it is asked for otherwise now.

    A session that is `finished` keeps its conditions; its report is printed as asked now, and no file is written again.
    """
    kept = {d.name: recorded[d.name] for d in report.deliveries if d.name in recorded and (d.values or not finished)}
    if finished:
        return replace(request, asked={**kept, **request.asked})
    format = request.format or (None if request.json else recorded.get("format"))
    out = request.out or (Path(recorded["out"]) if "out" in recorded else None)
    return replace(request, asked={**kept, **request.asked}, format=format, out=out)


def check_output(report: type[Report], request: DeliveryRequest) -> None:
    """Raise `SettingsError` for what the report does not have, or a place that is not writable."""
    if request.json and request.format not in (None, "text", "json"):
        raise SettingsError("two formats are given", where=f"--json and --format {request.format}", do="Give one.")
    formats = (*PRINTED_FORMATS, *report.formats)
    if request.output_format not in formats:
        problem, advice = f"the report has no format {request.format!r}", f"Use one of {', '.join(formats)}."
        raise SettingsError(problem, where="--format", do=advice)
    if foreign := request.asked.keys() - {delivery.name for delivery in report.deliveries}:
        option = f"--{min(foreign).replace('_', '-')}"
        raise SettingsError("the report has nothing of that kind", where=option, do="Leave it out.")
    for delivery, value in _asked(report, request):
        if not delivery.values:
            claim_directory(Path(value).parent)


def _asked(report: type[Report], request: DeliveryRequest) -> list[tuple[Delivery, str]]:
    return [(d, request.asked[d.name]) for d in report.deliveries if d.name in request.asked]


def write_deliveries(report: Report, request: DeliveryRequest, session: str = "") -> list[Path]:
    """Write the files asked for that the report declares; return their paths. `session` as for `write_file`."""
    paths = []
    for delivery, value in _asked(type(report), request):
        if not delivery.values:
            content = getattr(report, delivery.method)()
            text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            write_file(Path(value), text, session=session)
            paths.append(Path(value))
    return paths


def apply_conditions(report: Report, request: DeliveryRequest, code: int) -> int:
    """Return the exit code; a success becomes another if the report lacks what --require names, or for a declared reason."""
    if request.require and report.stop_reason not in request.require:
        required_reasons = " or ".join(reason.value for reason in request.require)
        notify(f"It stopped {report.stop_reason.value}; {required_reasons} was required.")
        code = code or EXIT_REQUIREMENT_NOT_MET
    for delivery, value in _asked(type(report), request):
        if delivery.values and (reason := getattr(report, delivery.method)(value)):
            notify(f"{delivery.option} {value}: {reason}")
            code = code or delivery.exit_code
    return code


def exit_code(report: Report) -> int:
    """Return the exit code of a report: an answer with a quorum is a success, whatever the stop reason.

    A cancelled run has one only if its closing call was made.
    """
    cancelled = report.stop_reason is StopReason.CANCELLED and report.closing is None
    if report.answer is not None and report.quorum_met and not cancelled:
        return EXIT_OK
    return EXIT_FAILED if report.stop_reason is StopReason.FAILED else EXIT_NO_ANSWER
