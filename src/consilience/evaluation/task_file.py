"""Tasks with a reference answer, one JSON object per line. Shipped sets are known by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.messages import Source
from consilience.domain.paths import expanded, read_bounded_text
from consilience.domain.validation import describe_invalid
from consilience.engine.protocol import Protocol
from consilience.evaluation.matching import check_reference
from consilience.protocols._common.answers import AnswerPattern

AnswerKind = Literal["exact", "number", "magnitude", "choice"]

MAX_TASK_FILE_BYTES = 50_000_000


class TaskSource(BaseModel):
    """A source document of a task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=1)]
    name: str = ""
    seat: Annotated[int | None, Field(ge=1)] = None
    """n: only the n-th agent of the first phase is shown it. None: every agent is."""


class Task(BaseModel):
    """A task and its reference answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(min_length=1, max_length=200)]
    task: Annotated[str, Field(min_length=1)]
    answer: str | None = None
    """None: the task is not scored."""
    answer_pattern: AnswerPattern = ""
    """Extracts the answer; also passed to protocols that take one."""
    kind: AnswerKind = "exact"
    """How answers are scored: `exact` and `choice` by their words, `number` and `magnitude` within `tolerance`."""
    tolerance: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    """Absolute for a `number` (default 0); in orders of magnitude for a `magnitude` (default 0.5)."""
    sources: tuple[TaskSource, ...] = ()
    split: str = ""
    """The part of the set that the task belongs to."""
    formula: str = ""
    """How `answer` was computed, as a Python expression."""

    @field_validator("id")
    @classmethod
    def _can_be_shown(cls, value: str) -> str:
        if value.isspace() or not value.isprintable():
            raise ValueError("is blank or contains a line break or control character: use printable text")
        return value

    @model_validator(mode="before")
    @classmethod
    def _number_as_text(cls, data: object) -> object:
        """Accept a number in place of its text."""
        if isinstance(data, dict) and type(data.get("answer")) in (int, float):
            return {**data, "answer": repr(data["answer"])}
        return data

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        numeric = self.kind in ("number", "magnitude")
        if self.tolerance is not None and not (numeric and self.answer is not None):
            raise ValueError("a tolerance needs a task of kind 'number' or 'magnitude' with an answer: remove it")
        if self.answer is not None:
            check_reference(self.answer, self.kind, self.answer_pattern, self.tolerance)
        return self

    @property
    def private(self) -> bool:
        """Whether a source is shown to one seat only."""
        return any(source.seat is not None for source in self.sources)

    def sources_for(self, protocol: Protocol, *, everything: bool = False) -> tuple[Source, ...]:
        """Return the sources, each for the agents who may read it; with `everything`, all for every agent."""
        sources = []
        for source in self.sources:
            holder = None if source.seat is None or everything else protocol.seat(source.seat)
            if source.seat is None or everything:
                sources.append(Source(text=source.text, name=source.name))
            elif holder is not None:
                sources.append(Source(text=source.text, name=source.name, agents=(holder,)))
        return tuple(sources)


def shipped_sets() -> list[str]:
    """Return the names of the shipped sets."""
    folder = files("consilience.evaluation") / "tasks"
    return sorted(entry.name.removesuffix(".jsonl") for entry in folder.iterdir() if entry.name.endswith(".jsonl"))


def load_tasks(source: str | Path) -> list[Task]:
    """Read a shipped set or a JSONL file. Raises `SettingsError` with file and line, `UnknownName`."""
    if isinstance(source, str) and source in shipped_sets():
        return read_tasks((files("consilience.evaluation") / "tasks" / f"{source}.jsonl").read_text("utf-8"), source)
    path = expanded(source)
    try:
        text = read_bounded_text(path, MAX_TASK_FILE_BYTES)
    except FileNotFoundError:
        raise UnknownName(
            f"no task file and no shipped set {str(source)!r}", do=f"Shipped: {', '.join(shipped_sets())}."
        ) from None
    except UnicodeDecodeError:
        raise SettingsError(
            "the task file is not UTF-8 text", where=str(path), do="Convert it to JSON Lines in UTF-8."
        ) from None
    except OSError as error:
        raise SettingsError(
            f"the task file cannot be read: {error.strerror or error}",
            where=str(path),
            do="Check the path, or split the file.",
        ) from None
    return read_tasks(text, str(path))


def read_tasks(text: str, name: str) -> list[Task]:
    """Read one task per line; empty lines are skipped. Raises `SettingsError` with the line."""
    lines_by_id: dict[str, int] = {}
    tasks: list[Task] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        try:
            task = Task.model_validate_json(line)
            json.loads(line, object_pairs_hook=_reject_repeated_keys, parse_int=str)
        except _RepeatedKey as error:
            raise SettingsError(f"invalid task: {error}", where=place, do="Give it once.") from None
        except ValidationError as error:
            raise SettingsError(
                f"invalid task: {describe_invalid(error, model=Task, owner='the task')}", where=place, do="Correct it."
            ) from None
        if task.id in lines_by_id:
            raise SettingsError(
                f"the id {task.id!r} is already used in line {lines_by_id[task.id]}",
                where=place,
                do="Give each task its own id.",
            )
        lines_by_id[task.id] = number
        tasks.append(task)
    if not tasks:
        raise SettingsError("the task file contains no task", where=name, do="Write one JSON object per line.")
    return tasks


class _RepeatedKey(Exception):
    """A JSON object with a repeated key."""


def _reject_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedKey(f"{next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return fields


def select_tasks(tasks: Sequence[Task], *, only: Iterable[str] = (), limit: int | None = None) -> list[Task]:
    """Return the first `limit` tasks whose split or id is in `only`. Raises `UnknownName`, `SettingsError`."""
    names = list(only)
    known_names = {task.split for task in tasks if task.split} | {task.id for task in tasks}
    if unknown := [name for name in names if name not in known_names]:
        splits = ", ".join(sorted({task.split for task in tasks if task.split})) or "none"
        raise UnknownName(f"no split and no task is named {unknown[0]!r}", do=f"Splits: {splits}.")
    if limit is not None and limit < 1:
        raise SettingsError(f"invalid number of tasks: {limit}", where="--limit", do="Give 1 or more.")
    return [task for task in tasks if not names or task.split in names or task.id in names][:limit]
