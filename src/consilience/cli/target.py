"""A command that reads a target: its options, its documents and task, and what it prints of them before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer

from consilience.cli.inputs import read_sources, read_task, read_text
from consilience.cli.options import OUTPUT, NewSessionRequest, RunRequest, option
from consilience.domain.agents import Agent
from consilience.domain.messages import Source
from consilience.reporting.formatting import count
from consilience.targets import Target, read_target

TARGET = "Target"
Severity = Literal["critical", "major", "minor"]
Format = Literal["text", "markdown", "json", "sarif", "github"]


@dataclass(frozen=True, kw_only=True)
class TargetRequest(NewSessionRequest):
    """Options of the command of a protocol that reads a target, without the protocol's own settings."""

    target: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, directories, a .diff file, or - for standard input; with --diff, paths that select changed files. "
            "Default: the uncommitted changes.",
            metavar="TARGET",
            show_default=False,
        ),
    ] = None
    diff: str | None = option(
        "Changes that Git records: main..HEAD, main...HEAD, COMMIT (the files against it) or COMMIT^! (its own).",
        TARGET,
        "RANGE",
    )
    staged: bool = option("Changes in the index of Git.", TARGET, default=False)
    include: list[str] | None = option(
        "Read what is otherwise left out: lock files, generated, minified and large files. A pattern as in .gitignore. "
        "Repeatable.",
        TARGET,
        "PATTERN",
    )
    focus: str | None = option("What to look for; @FILE reads it from a file, - from standard input.", TARGET, "TEXT")
    source: list[str] | None = field(default=None, init=False)
    fail_on: Severity | None = option(
        "Exit with 6 if a finding in the report is at least this severe, or if a part was not read.",
        OUTPUT,
        "critical|major|minor",
    )
    format: Format = option(
        "How to print the report: text, markdown, json, sarif (2.1.0) or github (a review with comments on lines).",
        OUTPUT,
        "text|markdown|json|sarif|github",
        default="text",
    )
    write_baseline: Path | None = option(
        "Write the findings into this file, for --baseline in later runs.", OUTPUT, "FILE"
    )

    @property
    def output_format(self) -> str:
        return "json" if self.json else self.format


@dataclass(frozen=True)
class Material:
    """What is deliberated on."""

    task: str
    sources: Sequence[Source]
    lines: Sequence[str] = ()
    """What the plan says of it."""
    data: Mapping[str, object] = field(default_factory=dict)
    """The same in a dry run as JSON."""


def read_request(request: TargetRequest) -> Target:
    """Return the target of a command. Raises `SourceError`, and `SettingsError` for standard input that is read twice."""
    return read_target(
        request.target or (),
        diff=request.diff,
        staged=request.staged,
        include=request.include or (),
        standard_input=lambda: read_text("-", "the target"),
    )


def task_of(target: Target, focus: str | None) -> str:
    """Return the task, in a sentence, with what to look for."""
    return f"Review {target.title}." + (f"\n\nFocus: {focus}" if focus else "")


def target_lines(target: Target) -> list[str]:
    """Return what is read and what is left out, in a line each, as the plan has them."""
    lines = sum(_line_count(source) for source in target.sources)
    read = f"Target: {target.title}: {count(len(target.sources), 'document')}, {count(lines, 'line')}"
    return [read, *(f"Left out: {reason}" for reason in target.left_out)]


def target_json(target: Target) -> Mapping[str, object]:
    """Return the same as data."""
    documents = [{"name": source.name, "lines": _line_count(source)} for source in target.sources]
    return {"target": {"title": target.title, "documents": documents, "left_out": list(target.left_out)}}


def _line_count(source: Source) -> int:
    return len(source.text.splitlines())


def read_material(request: NewSessionRequest, target: Target | None, agents: Sequence[Agent]) -> Material:
    """Return task and documents: of a target, or those that the options name. Raises `SettingsError`, `SourceError`."""
    if isinstance(request, TargetRequest) and target is not None:
        focus = None if request.focus is None else read_task(request.focus)
        return Material(task_of(target, focus), target.sources, target_lines(target), target_json(target))
    assert isinstance(request, RunRequest)
    return Material(read_task(request.task), read_sources(request.source or (), agents))
