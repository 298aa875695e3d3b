"""What a command prints and writes of a report in the format asked for, and the exit code of --fail-on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from consilience.cli.errors import EXIT_FINDINGS, EXIT_OK, notify, print_json
from consilience.cli.target import TargetRequest, target_lines, task_of
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.report import LedgerReport, Report, UsageTotals
from consilience.engine.protocol import Protocol
from consilience.reporting.export import save_report
from consilience.reporting.files import claim_directory, write_file
from consilience.targets import Target

if TYPE_CHECKING:
    from consilience.cli.options import SpendingRequest

BASELINE = "baseline"
TEXT_FORMATS = ("text", "markdown")


def check_output(report: type[Report], request: TargetRequest) -> None:
    """Raise `SettingsError` for a format that the report does not have, or a place that is not writable."""
    if request.json and request.format not in ("text", "json"):
        raise SettingsError("two formats are given", where=f"--json and --format {request.format}", do="Give one.")
    exported = [name for name, file in report.formats.items() if file in report.exports]
    known = (*TEXT_FORMATS, "json", *exported)
    if request.format not in known:
        raise SettingsError(
            f"the report has no format {request.format!r}", where="--format", do=f"Use one of {', '.join(known)}."
        )
    if request.write_baseline is not None:
        if BASELINE not in exported:
            raise SettingsError("the report has no findings to write", where="--write-baseline", do="Leave it out.")
        claim_directory(request.write_baseline.parent)


def report_data(report: Report, format: str) -> object:
    """Return the report as data for JSON, in its own form or in another."""
    if format == "json":
        return report.model_dump(mode="json")
    return getattr(report, report.exports[report.formats[format]])()


def write_baseline(report: Report, request: SpendingRequest) -> list[Path]:
    """Write the findings, if a file is named; return its path. Raises `SettingsError`."""
    if not isinstance(request, TargetRequest) or request.write_baseline is None:
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


def apply_fail_on(report: Report, request: SpendingRequest, code: int) -> int:
    """Return the exit code, which changes if the report has what --fail-on names."""
    if not isinstance(request, TargetRequest) or request.fail_on is None:
        return code
    reason = report.failing(request.fail_on)
    if not reason:
        return code
    notify(f"--fail-on {request.fail_on}: {reason}")
    return EXIT_FINDINGS if code == EXIT_OK else code
