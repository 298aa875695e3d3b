"""What was measured: series of figures, rows of a table, and the table and JSON made of them."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

OURS = "consilience"
EXPONENT = "exponent"
PACKAGES = (
    OURS,
    "pydantic",
    "jinja2",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "agent-framework-core",
    "dbos",
    "pydantic-ai-slim",
    "autogen-agentchat",
)


@dataclass(frozen=True)
class Series:
    """One thing measured several times, in the order of the repeats."""

    name: str
    values: tuple[float, ...]
    more_is_better: bool = False
    at_least: float | None = None
    """How many times ours it should be, of what runs beside ours."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        return max(self.values) if self.more_is_better else min(self.values)

    def times(self, other: Series) -> float:
        """Median over the repeats of this one divided by the other, pair by pair as they ran side by side."""
        return statistics.median(a / b for a, b in zip(self.values, other.values, strict=True))


@dataclass(frozen=True)
class Row:
    """One line: ours, what it is to reach, and what ran beside it. `target` bounds from above, or below where more is better."""

    group: str
    name: str
    unit: str
    ours: Series
    target: float | None = None
    beside: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()

    def times(self, other: Series) -> float | None:
        """How many times ours another is. None for exponents: their ratio means nothing, and a flat curve has exponent 0."""
        return None if self.unit == EXPONENT else other.times(self.ours)

    @property
    def verdict(self) -> str:
        """`yes` when the median reaches the target, `best` when only the best repeat does."""
        if self.target is None:
            return ""
        return "yes" if self._reaches(self.ours.median) else "best" if self._reaches(self.ours.best) else "no"

    def _reaches(self, figure: float) -> bool:
        assert self.target is not None
        return figure >= self.target if self.ours.more_is_better else figure <= self.target

    def lines(self) -> list[Line]:
        """Its lines of the table: ours, then what ran beside it."""
        sign = "≥" if self.ours.more_is_better else "≤"
        target = "" if self.target is None else f"{sign} {self.target:,g}"
        times = "1" if any(self.times(other) for other in self.beside) else ""
        lines = [Line(self.name, self.unit, times, target, self.verdict, self.ours)]
        for other in self.beside:
            ratio = self.times(other)
            target = "" if other.at_least is None else f"≥ {other.at_least:,g}"
            verdict = "" if other.at_least is None else "yes" if (ratio or 0) >= other.at_least else "no"
            lines.append(Line(other.name, "", "" if ratio is None else f"{ratio:,.2f}", target, verdict, other))
        return lines

    def as_json(self) -> dict[str, object]:
        return {
            "group": self.group,
            "name": self.name,
            "unit": self.unit,
            "target": self.target,
            "verdict": self.verdict,
            **_figures(self.ours),
            "beside": [
                _figures(other) | {"times_ours": self.times(other), "at_least": other.at_least} for other in self.beside
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Line:
    """One line of a table. `verdict` says whether the target is met."""

    name: str
    unit: str
    times: str
    target: str
    verdict: str
    series: Series


@dataclass
class Results:
    """Rows and, for each group that could not run or ran in part, why."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)

    def skip(self, why: str) -> None:
        if why not in self.skipped:
            self.skipped.append(why)

    def as_json(self, where: Mapping[str, object], repeats: int, quick: bool) -> dict[str, object]:
        return {
            "machine": dict(where),
            "repeats": repeats,
            "quick": quick,
            "rows": [row.as_json() for row in self.rows],
            "skipped": self.skipped,
        }


def machine(directory: Path) -> dict[str, object]:
    """Where and with what this ran.

    `load` is the one-minute load average per core, this run's own included; `loop_ms` CPU milliseconds of a fixed piece of
    pure Python; `commit_ms` wall milliseconds of a small durable SQLite commit in that directory, with nothing else to do.
    """
    cores = os.cpu_count() or 1
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": cores,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0] / cores, 2) if hasattr(os, "getloadavg") else None,
        "loop_ms": round(min(_loop() for _ in range(5)), 2),
        "commit_ms": round(statistics.median(_commits(directory)), 2),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def print_table(results: Results, where: Mapping[str, object], repeats: int) -> None:
    """The table on standard output: what is ours, then what ran beside it."""
    from rich.console import Console
    from rich.table import Table

    # piped output has no terminal to fit; wrapped cells would only break lines
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    table = Table(title=f"consilience benchmarks, median and best of up to {repeats} repeats", title_justify="left")
    for column in ("measure", "times ours", "target", "met", "unit", "median", "best"):
        table.add_column(column, justify="left" if column in ("measure", "met", "unit") else "right")
    verdicts = {"yes": "[green]yes[/green]", "best": "[yellow]best only[/yellow]", "no": "[red]no[/red]", "": ""}
    group = ""
    for row in results.rows:
        if row.group != group:
            table.add_section()
            group = row.group
        for n, line in enumerate(row.lines()):
            name = f"  {line.name}" if n else f"[bold]{line.name}[/bold]"
            figures = (short(line.series.median), short(line.series.best))
            table.add_row(name, line.times, line.target, verdicts[line.verdict], line.unit, *figures)
    console.print(table)
    for row in results.rows:
        for note in row.notes:
            console.print(f"{row.name}: {note}.", soft_wrap=True)
    console.print(described(where), soft_wrap=True)
    for why in results.skipped:
        console.print(f"Skipped: {why}", soft_wrap=True)


def described(where: Mapping[str, Any]) -> str:
    """On what machine and with which packages this ran."""
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    return (
        f"{where['date']}, {where['cores']} cores ({where['processor']}), {where['system']}, Python {where['python']}, "
        f"{packages}. Load per core at the end {where['load']}; a fixed loop takes {where['loop_ms']} ms of CPU, a small "
        f"durable commit {where['commit_ms']} ms."
    )


HEADER = "| measure | times ours | target | median | best |"


def markdown_table(rows: Iterable[Row]) -> list[str]:
    """The lines of a table of docs/benchmarks.md."""
    lines = [HEADER, "|---|--:|--:|--:|--:|"]
    for row in rows:
        for n, line in enumerate(row.lines()):
            name = line.name if n else f"**{line.name}, {line.unit}**" if line.unit else f"**{line.name}**"
            target = line.target + {"no": ", missed", "best": ", best only"}.get(line.verdict, "")
            cells = (name, line.times, target, short(line.series.median), short(line.series.best))
            lines.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return lines


def write_page(page: Path, results: Results, where: Mapping[str, Any], titles: Mapping[str, str]) -> None:
    """Put the tables of these results into the page, each below the heading of its group, and where they were measured.

    Raises `ValueError` for a group without a table there.
    """
    lines = page.read_text("utf-8").splitlines()
    for group in dict.fromkeys(row.group for row in results.rows):
        title = f"## {titles[group]}"
        begin = lines.index(HEADER, lines.index(title))
        if any(line.startswith("## ") for line in lines[lines.index(title) + 1 : begin]):
            raise ValueError(f"{page} has no table below {title!r}")
        end = next((n for n in range(begin, len(lines)) if not lines[n].startswith("|")), len(lines))
        lines[begin:end] = markdown_table(row for row in results.rows if row.group == group)
    lines = [f"**Setting.** {described(where)}" if line.startswith("**Setting.**") else line for line in lines]
    page.write_text("\n".join(lines) + "\n", "utf-8")


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> float:
    """The power with which figures grow over sizes: the least-squares slope of their logarithms."""
    import math

    fit = statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in figures])
    return fit.slope


def _figures(series: Series) -> dict[str, object]:
    return {"series": series.name, "median": series.median, "best": series.best, "values": list(series.values)}


def short(figure: float) -> str:
    """A figure in as many digits as are worth reading."""
    if figure >= 1000:
        return f"{figure:,.0f}"
    return f"{figure:.3f}" if figure < 10 else f"{figure:.1f}"


def _loop() -> float:
    began = time.process_time()
    total = 0
    for i in range(200_000):
        total += i * i & 7
    return (time.process_time() - began) * 1000


def _commits(directory: Path) -> list[float]:
    took = []
    db = sqlite3.connect(directory / "commits.db", isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE IF NOT EXISTS lines(line TEXT)")
        for _ in range(50):
            began = time.perf_counter()
            db.execute("INSERT INTO lines VALUES(?)", ("x" * 500,))
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(0.005)
    finally:
        db.close()
    return took


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
