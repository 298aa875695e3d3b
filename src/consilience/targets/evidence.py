"""SARIF of tools that ran, as a document: what linters and analysers say of the files under review. Nothing is run here."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from consilience.documents import read_text_file
from consilience.domain.errors import SourceError
from consilience.domain.messages import Source
from consilience.domain.paths import expanded

MAX_RESULTS = 200
"""Of one file. Those on files under review come first, in its order."""
MAX_MESSAGE_CHARS = 300


class _Text(BaseModel):
    text: str = ""


class _Artifact(BaseModel):
    uri: str = ""


class _Region(BaseModel):
    startLine: int = 0  # as SARIF has it


class _Physical(BaseModel):
    artifactLocation: _Artifact = _Artifact()
    region: _Region = _Region()


class _Location(BaseModel):
    physicalLocation: _Physical = _Physical()


class _Result(BaseModel):
    ruleId: str = ""
    level: str = "warning"
    kind: str = "fail"
    message: _Text = _Text()
    locations: list[_Location] = Field(default_factory=list)
    suppressions: Annotated[list[Any], BeforeValidator(lambda value: value or [])] = Field(default_factory=list)


class _Driver(BaseModel):
    name: str


class _Tool(BaseModel):
    driver: _Driver


class _Run(BaseModel):
    tool: _Tool
    results: Annotated[list[_Result], BeforeValidator(lambda value: value or [])] = Field(default_factory=list)


class _Log(BaseModel):
    """The little of a SARIF 2.1.0 log that is read."""

    version: str
    runs: list[_Run]


def read_evidence(names: Sequence[str | Path], directory: Path, files: Collection[str]) -> Iterator[Source]:
    """Yield what each SARIF file says of `files`, one result on a line, as a document beside the target; none if it says nothing.

    Suppressed results, and those that are no failures, are left out. Raises `SourceError`.
    """
    for name in map(str, names):
        log = _read(name, directory)
        lines = [line for run in log.runs for line in _lines(run, files)]
        left_out = f"{os.path.basename(name)}: {len(lines) - MAX_RESULTS} results left out"
        if lines:
            yield Source(
                text="\n".join(lines[:MAX_RESULTS]) + "\n",
                name=f"results of {', '.join(dict.fromkeys(run.tool.driver.name for run in log.runs))}"[:200],
                remarks=(left_out,) if len(lines) > MAX_RESULTS else (),
                purpose="context",
            )


def _read(name: str, directory: Path) -> _Log:
    try:
        return _Log.model_validate(json.loads(read_text_file(directory / expanded(name), "the evidence")))
    except (ValueError, RecursionError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise SourceError(f"this is not SARIF 2.1.0: {reason}", where=name, do="Give what a tool wrote.") from None


def _lines(run: _Run, files: Collection[str]) -> Iterator[str]:
    for result in run.results:
        if result.suppressions or result.kind not in ("fail", "review"):
            continue
        for location in result.locations[:1]:
            place = location.physicalLocation
            if file := _file(place.artifactLocation.uri, files):
                message = " ".join(result.message.text.split())[:MAX_MESSAGE_CHARS]
                yield f"{file}:{place.region.startLine or 1}: {result.level} {result.ruleId} ({run.tool.driver.name}): {message}"


def _file(uri: str, files: Collection[str]) -> str:
    """Return the file under review that a URI names: by its path in the repository, or by a longer one that ends with it; "" if it
    names none, or is no URI."""
    try:
        path = unquote(urlsplit(uri).path).removeprefix("./")
    except ValueError:  # an opening bracket in the place of a host
        return ""
    ends = [file for file in files if path == file or path.endswith(f"/{file}")]
    return max(ends, key=len, default="")
