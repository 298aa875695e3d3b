"""Tasks with a reference answer: one JSON object per line, a JSON list, or rows of a CSV. Shipped sets are known by name."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.messages import Source
from consilience.domain.paths import expanded, read_bounded_text
from consilience.domain.validation import describe_invalid
from consilience.engine.protocol import Protocol
from consilience.evaluation.matching import check_reference
from consilience.protocols._common.answers import AnswerPattern

AnswerKind = Literal["exact", "number", "magnitude", "choice"]

MAX_TASK_FILE_BYTES = 50_000_000
CSV_DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""By the ending of a file's name."""
CSV_COLUMNS = ("id", "task", "answer", "kind", "tolerance", "answer_pattern", "split", "formula")

_IS_LIST = re.compile(r"\s*\[\s*\{")
_ENTRY_BEGINS = re.compile(r"[^\s,\]]")


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
    def _with_defaults(cls, data: object, info: ValidationInfo) -> object:
        """Accept a number in place of its text, and name a task without an id after the line of its file."""
        if not isinstance(data, dict):
            return data
        if type(data.get("answer")) in (int, float):
            data = {**data, "answer": repr(data["answer"])}
        return data if info.context is None else {"id": f"line-{info.context}", **data}

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
    """Read a shipped set or a file: JSON Lines, a JSON list, or CSV with a header.

    Raises `SettingsError` with file and line, `UnknownName`.
    """
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
    if delimiter := CSV_DELIMITERS.get(path.suffix.lower()):
        return _collected(_csv_rows(text, str(path), delimiter), str(path))
    return read_tasks(text, str(path))


def read_tasks(text: str, name: str) -> list[Task]:
    """Read a JSON list, or one task per line; empty lines are skipped. Raises `SettingsError` with the line."""
    return _collected(_json_list(text) if _IS_LIST.match(text) else _json_lines(text), name)


class _Entry(NamedTuple):
    """A task as a file has it."""

    line: int
    fields: str | Mapping[str, object]
    """JSON, or the fields by name."""


def _collected(entries: Iterable[_Entry], name: str) -> list[Task]:
    """Return the tasks. One without an id is named after its line."""
    lines_by_id: dict[str, int] = {}
    tasks: list[Task] = []
    for line, fields in entries:
        place = f"{name}, line {line}"
        try:
            if isinstance(fields, str):
                task = Task.model_validate_json(fields, context=line)
                json.loads(fields, object_pairs_hook=_reject_repeated_keys, parse_int=str)
            else:
                task = Task.model_validate(fields, context=line)
        except _RepeatedKey as error:
            raise SettingsError(f"invalid task: {error}", where=place, do="Give it once.") from None
        except ValidationError as error:
            is_json = error.errors()[0]["type"] != "json_invalid"
            raise SettingsError(
                f"invalid task: {describe_invalid(error, model=Task, owner='the task')}",
                where=place,
                do="Correct it."
                if is_json
                else "Write one JSON object per line, or a table in a file that ends in .csv.",
            ) from None
        if task.id in lines_by_id:
            raise SettingsError(
                f"the id {task.id!r} is already used in line {lines_by_id[task.id]}",
                where=place,
                do="Give each task its own id.",
            )
        lines_by_id[task.id] = line
        tasks.append(task)
    if not tasks:
        raise SettingsError("the task file contains no task", where=name, do="Write one JSON object per line.")
    return tasks


def _json_lines(text: str) -> Iterator[_Entry]:
    return (_Entry(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _json_list(text: str) -> Iterator[_Entry]:
    """Yield the entries of a JSON list. What is no JSON is an entry, which is refused with its line."""
    decoder, position = json.JSONDecoder(parse_int=str), text.index("[") + 1
    while match := _ENTRY_BEGINS.search(text, position):
        start, line = match.start(), text.count("\n", 0, match.start()) + 1
        try:
            _, position = decoder.raw_decode(text, start)
        except ValueError:
            yield _Entry(line, text[start:].split("\n", 1)[0])
            return
        yield _Entry(line, text[start:position])


def _csv_rows(text: str, name: str, delimiter: str) -> Iterator[_Entry]:
    """Yield the rows of a table whose first row names the fields; empty cells are left out."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        header = [cell.strip().casefold() for cell in next(reader, [])]
        if "task" not in header or len(set(header)) < len(header):
            raise SettingsError(
                f"the first row must name the columns, each once, one of them 'task', not {', '.join(header) or 'nothing'}",
                where=f"{name}, line 1",
                do=f"Columns: {', '.join(CSV_COLUMNS)}.",
            )
        line = reader.line_num + 1
        for row in reader:
            if len(row) > len(header):
                raise SettingsError(
                    f"the row has {len(row)} cells, and the first row names {len(header)}",
                    where=f"{name}, line {line}",
                    do="Put a text that holds the separator into double quotes.",
                )
            if any(cell.strip() for cell in row):
                yield _Entry(line, {key: cell for key, cell in zip(header, row, strict=False) if cell.strip()})
            line = reader.line_num + 1
    except csv.Error as error:
        raise SettingsError(
            f"the table cannot be read: {error}", where=f"{name}, line {line}", do="Correct the quotation marks."
        ) from None


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
