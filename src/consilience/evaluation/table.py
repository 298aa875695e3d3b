"""A comparison as Markdown with a summary, and as files: JSON, CSV and, if pyarrow is installed, Parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from consilience.domain.sections import Block, Bullets, Item, Table
from consilience.evaluation.results import Comparison, Difference, RowResult, Run
from consilience.reporting.files import write_files
from consilience.reporting.formatting import count, duration, format_range, money, one_line, percent, printable
from consilience.reporting.markdown import blocks_markdown

NO_VALUE = "–"
MAX_ANSWER_CHARS = 60
TEST_NAMES = {"mcnemar": "McNemar", "sign-flip": "sign-flip"}


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown. Answers are included for a single task; the files have all of them."""
    sections: list[tuple[str, Block]] = [("", _list(_conditions(comparison)))]
    if len(comparison.tasks) == 1:
        sections.append(("Answers", _answers(comparison)))
    if any(row.scored for row in comparison.rows):
        sections.append(("Accuracy", _accuracy(comparison)))
    sections.append(("Cost", _costs(comparison)))
    if comparison.differences:
        sections.append(("Differences", _differences(comparison)))
    sections.append(("Summary", _list(sentences(comparison))))
    parts = [f"# {heading(comparison)}"]
    for name, block in sections:
        parts += [f"## {name}" if name else "", blocks_markdown([block], max_rows=None)]
    return "\n\n".join(filter(None, parts)) + "\n"


def heading(comparison: Comparison) -> str:
    compared = ", ".join(setup.row for setup in comparison.setups if not setup.ceiling)
    return f"{compared} on {count(len(comparison.tasks), 'task')}"


def sentences(comparison: Comparison) -> list[str]:
    """Return the summary. Losses are reported like wins."""
    summary = [describe_difference(difference) for difference in comparison.differences]
    if not summary:
        summary = [_no_verdict(comparison)]
    summary += _hold_words(comparison) + _ceiling_words(comparison)
    unanswered = {row.row: row.unanswered for row in comparison.rows if row.unanswered}
    if unanswered:
        counts = ", ".join(f"{row} {n} of {_row(comparison, row).runs}" for row, n in unanswered.items())
        summary.append(f"Not answered, and counted as wrong if the task has a reference: {counts}.")
    if cut_counts := [f"{row.row} {row.cut_short} of {row.runs}" for row in comparison.rows if row.cut_short]:
        summary.append(f"Cut short by a limit or a cancel, so not compared over a whole run: {', '.join(cut_counts)}.")
    if unequal := _unequal(comparison):
        summary.append(unequal)
    return [*summary, *comparison.notes]


def describe_difference(d: Difference) -> str:
    """Return which row won, by how much, and whether the set of tasks can show it."""
    interval = f"95 % interval {points(d.low)} to {points(d.high)}"
    figures = f"{points(d.difference)} points, {interval}; {TEST_NAMES[d.test]} p {_p(d.p, equal='= ')}"
    if d.verdict == "won":
        return f"{d.row} won over {d.reference}: {figures}."
    if d.verdict == "lost":
        return f"{d.row} lost to {d.reference}: {figures}."
    if d.detectable is None:
        limit = f"{count(d.tasks, 'task')} are too few to show any difference"
    else:
        limit = (
            f"{count(d.tasks, 'task')} would have shown {points(d.detectable, sign=False)} points in four cases of five"
        )
    ahead = "stood level with" if d.difference == 0 else "was ahead of" if d.difference > 0 else "was behind"
    return (
        f"Whether {d.row} and {d.reference} differ cannot be told: {d.row} {ahead} {d.reference} ({figures}); {limit}."
    )


def points(part: float, *, sign: bool = True) -> str:
    """Return a difference of shares in percentage points."""
    value = round(100 * part, 1) + 0.0
    return f"{value:+g}".replace("-", "−") if sign and value else f"{abs(value):g}"


def _conditions(comparison: Comparison) -> list[str]:
    budget = comparison.budget
    limits = [run.limit for run in comparison.runs]
    bounds = format_range(min(limits), max(limits))
    if budget.matched:
        sized_rows = [setup.row for setup in comparison.setups if setup.sized]
        unit = {"tokens": "to cost what", "calls": "to as many calls as", "cost": "to cost as much money as"}[
            budget.match
        ]
        named = f"; {', '.join(sized_rows)} sized {unit} the most expensive other row spent" if sized_rows else ""
        budget_text = f"the max need of the most expensive row, {bounds} tokens a run{named}"
    else:
        budget_text = f"{bounds} {'calls' if budget.calls is not None else 'tokens'} a run"
    lines = [f"Model: {', '.join(comparison.models)}", f"Budget: {budget_text}"]
    if len(comparison.seeds) > 1:
        lines.append(f"Repeats: {len(comparison.seeds)}, seeds {comparison.seeds[0]} to {comparison.seeds[-1]}")
    return lines


def _answers(comparison: Comparison) -> Table:
    rows = []
    for setup in comparison.setups:
        runs = comparison.of(setup.row)
        first = runs[0]
        rows.append(
            [
                setup.row,
                first.position or NO_VALUE,
                one_line(first.answer or "", MAX_ANSWER_CHARS) or NO_VALUE,
                ", ".join(dict.fromkeys(run.stop_reason.value for run in runs)),
                first.session,
            ]
        )
    return _table(["protocol", "position", "answer", "stopped", "session"], rows)


def _accuracy(comparison: Comparison) -> Table:
    repeated, magnitudes = len(comparison.seeds) > 1, any(row.orders is not None for row in comparison.rows)
    headings = ["protocol", "accuracy", "right", "unanswered"]
    headings += ["holds"] if repeated else []
    headings += ["mean error"] if magnitudes else []
    rows = []
    for row in comparison.rows:
        cells = [
            row.row,
            NO_VALUE if row.accuracy is None else percent(row.accuracy),
            f"{row.right} of {row.scored}",
            str(row.unanswered),
        ]
        cells += [NO_VALUE if row.holds is None else percent(row.holds)] if repeated else []
        cells += [NO_VALUE if row.orders is None else f"{row.orders:.2f} orders"] if magnitudes else []
        rows.append(cells)
    return _table(headings, rows)


def _costs(comparison: Comparison) -> Table:
    is_matched, calls = comparison.budget.matched, comparison.budget.calls is not None
    max_tokens = max((row.tokens for row in comparison.rows if not row.ceiling), default=0.0)
    last = "of the most expensive" if is_matched else "of the calls allowed" if calls else "of the tokens allowed"
    headings = ["protocol", "calls", "tokens", last, "cost", "time", "stopped", "similarity", "voices", "conformity"]
    rows = []
    for row in comparison.rows:
        part = (row.tokens / max_tokens if max_tokens else 0.0) if is_matched else row.spent
        rows.append(
            [
                row.row,
                f"{row.calls:.4g}",
                f"{row.tokens:,.0f}",
                percent(part),
                money(row.cost),
                duration(row.seconds),
                ", ".join(f"{reason.value} {n}" for reason, n in row.stops.items()),
                NO_VALUE if row.draft_similarity is None else f"{row.draft_similarity:.2f}",
                _voices(row, comparison.of(row.row)),
                f"{row.conformity} of {row.changes}" if row.changes else NO_VALUE,
            ]
        )
    return _table(headings, rows)


def _voices(row: RowResult, runs: Sequence[Run]) -> str:
    """Return the number of first drafts, and how many independent ones they are worth if that is known."""
    effective = [run.effective for run in runs if run.effective is not None]
    drafts = f"{row.voices:.3g}"
    return f"{drafts} (worth {sum(effective) / len(effective):.2g})" if effective and row.voices > 1 else drafts


def _differences(comparison: Comparison) -> Table:
    rows = [
        [
            f"{d.row} − {d.reference}",
            points(d.difference),
            f"{points(d.low)} to {points(d.high)}",
            f"{d.better} : {d.worse}",
            f"{_p(d.p)} ({TEST_NAMES[d.test]})",
            NO_VALUE if d.detectable is None else points(d.detectable, sign=False),
            d.verdict,
        ]
        for d in comparison.differences
    ]
    headings = ["rows", "points", "95 % interval", "better : worse", "p", "could be shown", "verdict"]
    return _table(headings, rows)


def _no_verdict(comparison: Comparison) -> str:
    if len([setup for setup in comparison.setups if not setup.ceiling]) < 2:
        return "A single row is not compared with anything."
    if not any(row.scored for row in comparison.rows):
        return (
            "Nothing was scored: without a reference answer (--tasks) this shows answers and costs, not who is right."
        )
    return "One task does not show which protocol is better; a set of tasks may (--tasks)."


def _hold_words(comparison: Comparison) -> list[str]:
    if len(comparison.seeds) < 2 or not any(run.position for run in comparison.runs):
        return []
    hold_shares = ", ".join(f"{row.row} {percent(row.holds)}" for row in comparison.rows if row.holds is not None)
    return [f"Repeats that end in the most frequent position: {hold_shares}."]


def _ceiling_words(comparison: Comparison) -> list[str]:
    ceiling = next((row for row in comparison.rows if row.ceiling), None)
    if ceiling is None or ceiling.accuracy is None:
        return []
    tasks = (
        f" on the {count(ceiling.tasks, 'task')} with private sources" if ceiling.tasks < len(comparison.tasks) else ""
    )
    return [
        f"One agent with every source was right in {percent(ceiling.accuracy)}{tasks}: "
        "the most that sharing facts can be expected to reach."
    ]


def _unequal(comparison: Comparison) -> str:
    """Return which rows spent much less than the largest; budgets are equal, spending may differ."""
    tokens = {row.row: row.tokens for row in comparison.rows if not row.ceiling}
    max_spent = max(tokens.values(), default=0.0)
    cheaper = [f"{row} {percent(n / max_spent)}" for row, n in tokens.items() if max_spent and n < 0.8 * max_spent]
    largest = max(tokens, key=tokens.__getitem__, default="")
    return f"Tokens spent were not equal; share of what {largest} spent: {', '.join(cheaper)}." if cheaper else ""


def _row(comparison: Comparison, label: str) -> RowResult:
    return next(row for row in comparison.rows if row.row == label)


def _p(p: float, *, equal: str = "") -> str:
    return "< 0.001" if p < 0.001 else f"{equal}{p:.3f}".rstrip("0").rstrip(".")


def _list(texts: Sequence[str]) -> Bullets:
    return Bullets(items=tuple(Item(text=text) for text in texts))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(heads=tuple(heads), rows=tuple(map(tuple, rows)))


COLUMNS = [*Run.model_fields, "tokens"]

_FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def write(comparison: Comparison, directory: Path) -> list[Path]:
    """`results.json`, `results.csv`, `report.md`, and `results.parquet`; returns their paths. Raises `SettingsError`."""
    files: dict[str, str | bytes] = {
        "results.json": comparison.model_dump_json(indent=2) + "\n",
        "results.csv": as_csv(comparison),
        "report.md": printable(markdown(comparison)),
    }
    if find_spec("pyarrow") is not None:
        files["results.parquet"] = _as_parquet(comparison)
    return write_files(directory, files)


def as_csv(comparison: Comparison) -> str:
    """Return one line per run. A text that a spreadsheet would read as a formula starts with `'`."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows({name: _inert_cell(value) for name, value in record.items()} for record in records(comparison))
    return text.getvalue()


def _inert_cell(cell: object) -> object:
    """Return a cell that no spreadsheet computes, as OWASP advises (CSV injection). Numbers stay as they are."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def records(comparison: Comparison) -> list[dict[str, object]]:
    """Return the runs as flat records."""
    return [{**run.model_dump(mode="json"), "tokens": run.tokens} for run in comparison.runs]


def _as_parquet(comparison: Comparison) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records(comparison)), file)
    return file.getvalue()
