"""A comparison as Markdown, in words at its end, and as files: JSON, CSV and, where pyarrow is there, Parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from consilience.evaluation.results import Comparison, Difference, RowResult, Run
from consilience.reporting.files import write_files
from consilience.reporting.formatting import count, duration, format_range, money, one_line, percent, printable

NOTHING = "–"
MOST_OF_AN_ANSWER = 60
TESTS = {"mcnemar": "McNemar", "sign-flip": "sign-flip"}


def markdown(comparison: Comparison) -> str:
    """The whole of it; answers of more than one task are in the files."""
    lines = [f"# {heading(comparison)}", "", *_conditions(comparison), ""]
    if len(comparison.tasks) == 1:
        lines += ["## Answers", "", *_answers(comparison), ""]
    if any(row.scored for row in comparison.rows):
        lines += ["## Right and wrong", "", *_accuracy(comparison), ""]
    lines += ["## What it took", "", *_costs(comparison), ""]
    if comparison.differences:
        lines += ["## Differences", "", *_differences(comparison), ""]
    lines += ["## In words", "", *(f"- {sentence}" for sentence in words(comparison))]
    return "\n".join(lines) + "\n"


def heading(comparison: Comparison) -> str:
    compared = ", ".join(setup.row for setup in comparison.setups if not setup.ceiling)
    return f"{compared} on {count(len(comparison.tasks), 'task')}"


def words(comparison: Comparison) -> list[str]:
    """The sentences at the end. Losses are said like wins."""
    said = [difference_words(difference) for difference in comparison.differences]
    if not said:
        said = [_no_verdict(comparison)]
    said += _hold_words(comparison) + _ceiling_words(comparison)
    unanswered = {row.row: row.unanswered for row in comparison.rows if row.unanswered}
    if unanswered:
        counted = ", ".join(f"{row} {n} of {_row(comparison, row).runs}" for row, n in unanswered.items())
        said.append(f"Not answered, and counted as wrong where there is a reference: {counted}.")
    if cut := [f"{row.row} {row.cut_short} of {row.runs}" for row in comparison.rows if row.cut_short]:
        said.append(
            f"Cut short by the budget, so that it is not their whole course that was compared: {', '.join(cut)}."
        )
    if unequal := _unequal(comparison):
        said.append(unequal)
    return [*said, *comparison.notes]


def difference_words(d: Difference) -> str:
    """Who won over whom, by how much, and whether the set can tell."""
    figures = (
        f"{points(d.difference)} points, 95 % interval {points(d.low)} to {points(d.high)}; {TESTS[d.test]} {_p(d.p)}"
    )
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
    """A difference of shares in percentage points."""
    value = round(100 * part, 1) + 0.0
    return f"{value:+g}".replace("-", "−") if sign and value else f"{abs(value):g}"


def _conditions(comparison: Comparison) -> list[str]:
    budget = comparison.budget
    limits = [run.limit for run in comparison.runs]
    bounds = format_range(min(limits), max(limits))
    if budget.matched:
        sized = [setup.row for setup in comparison.setups if setup.sized]
        unit = {"tokens": "to cost what", "calls": "to as many calls as", "cost": "to cost as much money as"}[
            budget.match
        ]
        named = f"; {', '.join(sized)} sized {unit} the dearest other row spent" if sized else ""
        said = f"what the dearest could need at most, {bounds} tokens a run{named}"
    else:
        said = f"{bounds} {'calls' if budget.calls is not None else 'tokens'} a run"
    lines = [f"- Model: {', '.join(comparison.models)}", f"- Budget: {said}"]
    if len(comparison.seeds) > 1:
        lines.append(f"- Repeats: {len(comparison.seeds)}, seeds {comparison.seeds[0]} to {comparison.seeds[-1]}")
    return lines


def _answers(comparison: Comparison) -> list[str]:
    rows = []
    for setup in comparison.setups:
        runs = comparison.of(setup.row)
        first = runs[0]
        rows.append(
            [
                setup.row,
                first.position or NOTHING,
                one_line(first.answer or "", MOST_OF_AN_ANSWER) or NOTHING,
                ", ".join(dict.fromkeys(run.stop_reason.value for run in runs)),
                first.session,
            ]
        )
    return _table(["protocol", "position", "answer", "stopped", "session"], rows)


def _accuracy(comparison: Comparison) -> list[str]:
    repeated, magnitudes = len(comparison.seeds) > 1, any(row.orders is not None for row in comparison.rows)
    head = ["protocol", "accuracy", "right", "unanswered"]
    head += ["holds"] if repeated else []
    head += ["mean error"] if magnitudes else []
    rows = []
    for row in comparison.rows:
        cells = [
            row.row,
            NOTHING if row.accuracy is None else percent(row.accuracy),
            f"{row.right} of {row.scored}",
            str(row.unanswered),
        ]
        cells += [NOTHING if row.holds is None else percent(row.holds)] if repeated else []
        cells += [NOTHING if row.orders is None else f"{row.orders:.2f} orders"] if magnitudes else []
        rows.append(cells)
    return _table(head, rows)


def _costs(comparison: Comparison) -> list[str]:
    matched, calls = comparison.budget.matched, comparison.budget.calls is not None
    dearest = max((row.tokens for row in comparison.rows if not row.ceiling), default=0.0)
    last = "of the dearest" if matched else "of the calls allowed" if calls else "of the tokens allowed"
    head = ["protocol", "calls", "tokens", last, "money", "time", "stopped", "likeness", "voices", "conformity"]
    rows = []
    for row in comparison.rows:
        part = (row.tokens / dearest if dearest else 0.0) if matched else row.spent
        rows.append(
            [
                row.row,
                f"{row.calls:.4g}",
                f"{row.tokens:,.0f}",
                percent(part),
                money(row.cost),
                duration(row.seconds),
                ", ".join(f"{reason.value} {n}" for reason, n in row.stops.items()),
                NOTHING if row.likeness is None else f"{row.likeness:.2f}",
                _voices(row, comparison.of(row.row)),
                f"{row.conformity} of {row.changes}" if row.changes else NOTHING,
            ]
        )
    return _table(head, rows)


def _voices(row: RowResult, runs: Sequence[Run]) -> str:
    """First texts given, and how many independent ones they are worth where that is known."""
    known = [run.effective for run in runs if run.effective is not None]
    own = f"{row.voices:.3g}"
    return f"{own} (worth {sum(known) / len(known):.2g})" if known and row.voices > 1 else own


def _differences(comparison: Comparison) -> list[str]:
    rows = [
        [
            f"{d.row} − {d.reference}",
            points(d.difference),
            f"{points(d.low)} to {points(d.high)}",
            f"{d.better} : {d.worse}",
            f"{_p(d.p).removeprefix('p = ').removeprefix('p ')} ({TESTS[d.test]})",
            NOTHING if d.detectable is None else points(d.detectable, sign=False),
            d.verdict,
        ]
        for d in comparison.differences
    ]
    head = ["rows", "points", "95 % interval", "better : worse", "p", "could be shown", "verdict"]
    return _table(head, rows)


def _no_verdict(comparison: Comparison) -> str:
    if len([setup for setup in comparison.setups if not setup.ceiling]) < 2:
        return "One row alone is compared with nothing."
    if not any(row.scored for row in comparison.rows):
        return "Nothing was scored: without a reference answer (--tasks) this shows what each said and cost, not who is right."
    return "One task says nothing about which protocol is better; a set of tasks may (--tasks)."


def _hold_words(comparison: Comparison) -> list[str]:
    if len(comparison.seeds) < 2 or not any(run.position for run in comparison.runs):
        return []
    held = ", ".join(f"{row.row} {percent(row.holds)}" for row in comparison.rows if row.holds is not None)
    return [f"Repeats that end in the most frequent position: {held}."]


def _ceiling_words(comparison: Comparison) -> list[str]:
    ceiling = next((row for row in comparison.rows if row.ceiling), None)
    if ceiling is None or ceiling.accuracy is None:
        return []
    tasks = (
        f" on the {count(ceiling.tasks, 'task')} with private sources" if ceiling.tasks < len(comparison.tasks) else ""
    )
    return [
        f"One agent that was shown every source was right in {percent(ceiling.accuracy)}{tasks}: "
        "what no sharing of facts can be expected to exceed."
    ]


def _unequal(comparison: Comparison) -> str:
    """Budgets bound alike; what is spent below the bound may differ."""
    spent = {row.row: row.tokens for row in comparison.rows if not row.ceiling}
    most = max(spent.values(), default=0.0)
    cheaper = [f"{row} {percent(tokens / most)}" for row, tokens in spent.items() if most and tokens < 0.8 * most]
    dearest = max(spent, key=spent.__getitem__, default="")
    return f"Tokens spent were not equal; of what {dearest} took: {', '.join(cheaper)}." if cheaper else ""


def _row(comparison: Comparison, label: str) -> RowResult:
    return next(row for row in comparison.rows if row.row == label)


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}".rstrip("0").rstrip(".")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows)]


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
    """A line per run. A text that a spreadsheet would take for a formula has a `'` in front."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows({name: _inert_cell(value) for name, value in record.items()} for record in records(comparison))
    return text.getvalue()


def _inert_cell(cell: object) -> object:
    """A cell that no spreadsheet computes, as OWASP advises (CSV injection). A number stays one, also where it is a text."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def records(comparison: Comparison) -> list[dict[str, object]]:
    """The runs as flat records."""
    return [{**run.model_dump(mode="json"), "tokens": run.tokens} for run in comparison.runs]


def _as_parquet(comparison: Comparison) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records(comparison)), file)
    return file.getvalue()
