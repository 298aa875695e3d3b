"""Run the benchmarks: `python benchmarks/run.py [--quick] [--row NAME]… [--page PATH] [--json PATH]`. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

import cost
import debates
import growth
import journals
import memory
import prompts
import startup
import vectors
import walls
import workspaces
from rows import Results, machine, print_table, write_page

Measure = Callable[[Results, Path, int, bool], None]

GROUPS: dict[str, Measure] = {
    cost.GROUP: cost.measure,
    walls.GROUP: walls.measure,
    startup.GROUP: startup.measure,
    journals.GROUP: journals.measure,
    memory.GROUP: memory.measure,
    growth.GROUP: growth.measure,
    prompts.GROUP: prompts.measure,
    debates.GROUP: debates.measure,
    vectors.GROUP: vectors.measure,
    workspaces.GROUP: workspaces.measure,
}
TITLES = {
    cost.GROUP: "Cost of a call",
    walls.GROUP: "Waiting",
    startup.GROUP: "Start-up",
    journals.GROUP: "Journal",
    memory.GROUP: "Memory",
    growth.GROUP: "Growth",
    prompts.GROUP: "Prompts",
    debates.GROUP: "Debate",
    vectors.GROUP: "Vectors",
    workspaces.GROUP: "Workspace",
}
DEFAULT_JSON = Path(__file__).parent / "results.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Benchmarks of consilience: a table, and a JSON file of every figure.")
    parser.add_argument("--quick", action="store_true", help="smaller runs, fewer repeats: three minutes")
    parser.add_argument("--page", type=Path, metavar="PATH", help="put the tables into this page: docs/benchmarks.md")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, metavar="PATH", help=f"default {DEFAULT_JSON}")
    groups = ", ".join(GROUPS)
    parser.add_argument(
        "--row", action="append", choices=list(GROUPS), metavar="NAME", help=f"only one of {groups}; repeatable"
    )
    parser.add_argument("--repeats", type=int, default=0, metavar="N", help="of each figure (default 7, quick 3)")
    parser.add_argument(
        "--dir", type=Path, metavar="PATH", help="where journals are written (default: a temporary directory)"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    repeats = max(1, options.repeats or (3 if options.quick else 7))
    results = Results()
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="consilience-bench-", dir=options.dir) as directory:
        for name in options.row or GROUPS:
            began = time.perf_counter()
            with progress.status(f"measuring {name} …"):
                GROUPS[name](results, Path(directory), repeats, options.quick)
            progress.print(f"measured {name} in {time.perf_counter() - began:.0f} s")
        where = machine(Path(directory))
    options.json.write_text(json.dumps(results.as_json(where, repeats, options.quick), indent=1) + "\n", "utf-8")
    if options.page:
        write_page(options.page, results, where, TITLES)
    print_table(results, where, repeats)
    print(f"Every figure: {options.json}")


if __name__ == "__main__":
    main()
