"""Tasks with a reference answer, one JSON object per line. A set that is shipped is known by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.messages import Source
from consilience.domain.paths import read_bounded_text
from consilience.engine.protocol import Protocol
from consilience.protocols._common.answers import check_pattern

Kind = Literal["exact", "number", "magnitude", "choice"]

MAX_TASK_FILE_BYTES = 50_000_000


class TaskSource(BaseModel):
    """A document of a task. `seat` n shows it to the n-th agent of the first phase alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=1)]
    name: str = ""
    seat: Annotated[int | None, Field(ge=1)] = None


class Task(BaseModel):
    """A task and what is right. `answer` None: nothing is scored.

    `kind` says how an answer is judged: `exact` and `choice` by their words, `number` within `tolerance` (absolute, 0 if not
    given), `magnitude` within `tolerance` orders of magnitude (0.5 if not given). `answer_pattern` extracts the answer and is
    given to protocols that take one. `split` names the part of the set the task belongs to. `formula`, arithmetic in Python's
    notation, is how `answer` was computed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(min_length=1, max_length=200)]
    task: Annotated[str, Field(min_length=1)]
    answer: str | None = None
    answer_pattern: Annotated[str, Field(max_length=500)] = ""
    kind: Kind = "exact"
    tolerance: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    sources: tuple[TaskSource, ...] = ()
    split: str = ""
    formula: str = ""

    @field_validator("id")
    @classmethod
    def _can_be_shown(cls, value: str) -> str:
        if value.isspace() or not value.isprintable():
            raise ValueError("is blank, or has a line break or control character in it: give one that can be read")
        return value

    @model_validator(mode="before")
    @classmethod
    def _number_as_text(cls, data: object) -> object:
        """A number may be written as one."""
        if isinstance(data, dict) and type(data.get("answer")) in (int, float):
            return {**data, "answer": repr(data["answer"])}
        return data

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        check_pattern(self.answer_pattern)
        numeric = self.kind in ("number", "magnitude")
        if self.tolerance is not None and not (numeric and self.answer is not None):
            raise ValueError(f"a tolerance means nothing to a task of kind {self.kind!r} without an answer to compare")
        if self.answer is not None:
            from consilience.evaluation.scoring import check_reference

            check_reference(self.answer, self.kind, self.answer_pattern, self.tolerance)
        return self

    @property
    def private(self) -> bool:
        """Whether somebody knows what others do not."""
        return any(source.seat is not None for source in self.sources)

    def sources_for(self, protocol: Protocol, *, everything: bool = False) -> tuple[Source, ...]:
        """The documents, those for a seat shown to the agent that sits there; with `everything`, all of them to all."""
        found = []
        for source in self.sources:
            holder = None if source.seat is None or everything else protocol.seat(source.seat)
            if source.seat is None or everything:
                found.append(Source(text=source.text, name=source.name))
            elif holder is not None:
                found.append(Source(text=source.text, name=source.name, agents=(holder,)))
        return tuple(found)


def shipped() -> list[str]:
    """Names of the sets that come with the package."""
    folder = files("consilience.evaluation") / "tasks"
    return sorted(entry.name.removesuffix(".jsonl") for entry in folder.iterdir() if entry.name.endswith(".jsonl"))


def load_tasks(where: str | Path) -> list[Task]:
    """The tasks of a shipped set or of a JSONL file. Raises `SettingsError` naming file and line, `UnknownName`."""
    if isinstance(where, str) and where in shipped():
        return read_tasks((files("consilience.evaluation") / "tasks" / f"{where}.jsonl").read_text("utf-8"), where)
    path = Path(where).expanduser()
    try:
        text = read_bounded_text(path, MAX_TASK_FILE_BYTES, encoding="utf-8-sig")
    except FileNotFoundError:
        raise UnknownName(
            f"there is neither a task file nor a shipped set {str(where)!r}", do=f"Shipped: {', '.join(shipped())}."
        ) from None
    except UnicodeDecodeError:
        raise SettingsError("the task file is not UTF-8 text", where=str(path), do="Give JSON Lines.") from None
    except OSError as error:
        raise SettingsError(
            f"the task file cannot be read: {error.strerror or error}",
            where=str(path),
            do="Check the path, or split the file.",
        ) from None
    return read_tasks(text, str(path))


def read_tasks(text: str, name: str) -> list[Task]:
    """One task per line; empty lines are passed over. Raises `SettingsError` naming the line."""
    found: dict[str, int] = {}
    tasks: list[Task] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            task = Task.model_validate_json(line)
            json.loads(line, object_pairs_hook=_each_key_once, parse_int=str)
        except _TwiceGiven as error:
            raise SettingsError(f"the task cannot be used: {error}", where=where, do="Give it once.") from None
        except ValidationError as error:
            raise SettingsError(f"the task cannot be used: {_in_words(error)}", where=where, do="Correct it.") from None
        if task.id in found:
            raise SettingsError(
                f"the id {task.id!r} is that of line {found[task.id]} too", where=where, do="Give each task its own."
            )
        found[task.id] = number
        tasks.append(task)
    if not tasks:
        raise SettingsError("the task file holds no task", where=name, do="Write one JSON object per line.")
    return tasks


class _TwiceGiven(Exception):
    """An object that has a key twice."""


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceGiven(f"{next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def choose(tasks: Sequence[Task], *, only: Iterable[str] = (), limit: int | None = None) -> list[Task]:
    """Those of the splits (or with the ids) named in `only`, the first `limit` of them. Raises `UnknownName`, `SettingsError`."""
    wanted = list(only)
    known = {task.split for task in tasks if task.split} | {task.id for task in tasks}
    if unknown := [name for name in wanted if name not in known]:
        splits = ", ".join(sorted({task.split for task in tasks if task.split})) or "none"
        raise UnknownName(f"there is neither a split nor a task {unknown[0]!r}", do=f"Splits: {splits}.")
    if limit is not None and limit < 1:
        raise SettingsError(f"a set of {limit} tasks says nothing", where="--limit", do="Give 1 or more.")
    return [task for task in tasks if not wanted or task.split in wanted or task.id in wanted][:limit]


def _in_words(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, p['loc'])) or 'the line'}: {p['msg'].removeprefix('Value error, ')}"
        for p in error.errors(include_url=False, include_context=False)
    )
