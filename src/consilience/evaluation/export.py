"""A comparison as files: all of it as JSON, its runs as CSV and, where pyarrow is there, as Parquet, its tables as Markdown."""

from __future__ import annotations

import csv
import io
from importlib.util import find_spec
from pathlib import Path

from consilience.domain.errors import SettingsError
from consilience.evaluation.results import Comparison, Run
from consilience.evaluation.table import markdown
from consilience.reporting.files import write_files
from consilience.reporting.words import printable

COLUMNS = [*Run.model_fields, "tokens"]


def write(comparison: Comparison, directory: Path) -> list[Path]:
    """`results.json`, `results.csv`, `report.md`, and `results.parquet`; returns their paths. Raises `SettingsError`."""
    written = write_files(
        directory,
        {
            "results.json": comparison.model_dump_json(indent=2) + "\n",
            "results.csv": as_csv(comparison),
            "report.md": printable(markdown(comparison)),
        },
    )
    if find_spec("pyarrow") is not None:
        written.append(_parquet(comparison, directory / "results.parquet"))
    return written


def as_csv(comparison: Comparison) -> str:
    """A line per run."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(records(comparison))
    return text.getvalue()


def records(comparison: Comparison) -> list[dict[str, object]]:
    """The runs as flat records."""
    return [{**run.model_dump(mode="json"), "tokens": run.tokens} for run in comparison.runs]


def _parquet(comparison: Comparison, path: Path) -> Path:
    """Whole or not at all, for its owner only, like the others."""
    import os

    import pyarrow
    import pyarrow.parquet

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records(comparison)), file)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise SettingsError(
            f"the results cannot be written: {error.strerror or error}",
            where=str(path),
            do="The runs are recorded all the same; run the same command with another --out.",
        ) from None
    return path
