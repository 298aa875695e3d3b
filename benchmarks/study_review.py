"""What a review finds of planted defects, beside one call of the same model: `make study-review`.

`--key` chooses the project: the service (default) or the paper (`benchmarks/planted_paper_key.toml`). `--score report.json` scores
finished reports instead of running any. Findings that match nothing are listed for a person to judge.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from consilience.deliberation import Deliberation
from consilience.domain.detail import Detail
from consilience.domain.errors import UserError
from consilience.domain.outcome import Limits
from consilience.domain.usage import LedgerReport
from consilience.engine.runner import Models
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.review import Review, ReviewReport
from study_planted import Found, Key, Score, load_key, score
from study_reading import SingleReading, rival_of

KEY = Path(__file__).with_name("planted_key.toml")
MAX_FINDINGS = 200
"""A study lists everything that holds: the limit of a report would hide what was found."""


class ReportFile(BaseModel):
    """The part of a review's `report.json` that is scored."""

    model_config = ConfigDict(extra="ignore")

    session: str = ""
    stop_reason: str = ""
    findings: tuple[Found, ...]
    dropped: tuple[dict[str, object], ...] = ()
    ledger: LedgerReport | None = None


@dataclass(frozen=True)
class Run:
    """A review, and how it scored."""

    name: str
    report: ReportFile
    score: Score

    def dropped(self, reason: str) -> int:
        return sum(finding.get("reason") == reason for finding in self.report.dropped)


def scored(name: str, text: str, key: Key) -> Run:
    """Return the score of a report as JSON. Raises `ValueError` if it is not one of a review."""
    report = ReportFile.model_validate_json(text)
    return Run(name, report, score(key, report.findings))


def rows(key: Key, runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the lines of the table: a name, and a figure for each run."""
    together = [defect for defect in key.defects if defect.together]
    lines: list[tuple[str, Callable[[Run], object]]] = [
        (f"found, of {len(key.defects)}", lambda run: len(run.score.found)),
        *(
            (f"  {severity}, of {len(of)}", lambda run, of=of: run.score.of(of))
            for severity in ("critical", "major", "minor")
            if (of := [defect for defect in key.defects if defect.severity == severity])
        ),
        *(
            [(f"  seen in two files together, of {len(together)}", lambda run: run.score.of(together))]
            if together
            else []
        ),
        (f"false: about one of {len(key.decoys)} decoys", lambda run: len(run.score.decoys)),
        ("duplicates", lambda run: len(run.score.duplicates)),
        ("at the right place, something else", lambda run: len(run.score.elsewhere)),
        ("other, for a person to judge", lambda run: len(run.score.other)),
        ("findings listed", lambda run: run.score.findings),
        ("dropped: false quotation", lambda run: run.dropped("false quotation")),
        ("dropped: over the limit", lambda run: run.dropped("over the limit")),
        ("calls", lambda run: _ledger(run, "calls")),
        ("tokens read", lambda run: _ledger(run, "tokens_in")),
        ("tokens written", lambda run: _ledger(run, "tokens_out")),
        ("cost, US dollars", lambda run: _ledger(run, "cost")),
        ("seconds", lambda run: _ledger(run, "seconds")),
        ("stopped", lambda run: run.report.stop_reason or "?"),
    ]
    return [(name, [_text(figure(run)) for run in runs]) for name, figure in lines]


def _ledger(run: Run, name: str) -> object:
    return getattr(run.report.ledger.actual, name) if run.report.ledger else None


def _text(figure: object) -> str:
    if figure is None:
        return "?"
    return f"{figure:,.2f}" if isinstance(figure, float) else f"{figure:,}" if isinstance(figure, int) else str(figure)


def print_table(key: Key, runs: Sequence[Run]) -> None:
    width = max(16, *(len(run.name) + 2 for run in runs))
    print(f"{key.project}: {len(key.defects)} defects, {len(key.decoys)} decoys\n")
    print(" " * 44 + "".join(f"{run.name:>{width}}" for run in runs))
    for name, figures in rows(key, runs):
        print(f"{name:<44}" + "".join(f"{figure:>{width}}" for figure in figures))


def print_findings(key: Key, run: Run) -> None:
    """Print what a run missed, and every finding that is not simply right."""
    print(f"\n## {run.name}")
    missed = [defect.id for defect in key.defects if defect.id not in run.score.found]
    print(f"missed: {', '.join(missed) or 'nothing'}")
    named = {
        "decoys": run.score.decoys,
        "duplicates": run.score.duplicates,
        "at the right place, something else": run.score.elsewhere,
        "other": [("", finding) for finding in run.score.other],
    }
    for heading, findings in named.items():
        if findings:
            print(f"{heading}:")
        for id, finding in findings:
            print(
                f"  {finding.file}:{finding.first_line} {f'({id}) ' if id else ''}[{finding.severity}] {finding.claim}"
            )


def as_json(run: Run) -> Mapping[str, object]:
    """Return a run as it is written with `--json`."""
    score = {name: value for name, value in asdict(run.score).items() if name != "found"}
    findings = {id: finding.model_dump() for id, finding in run.score.found.items()}
    data = {"name": run.name, "session": run.report.session, "found": findings, **score}
    return {**data, "ledger": run.report.ledger and run.report.ledger.model_dump(mode="json")}


@dataclass(frozen=True)
class Study:
    """How reviews are run."""

    key: Key
    model: Models
    detail: Detail
    settings: Mapping[str, object]
    limits: Limits | None = None

    async def run(self, seed: int) -> list[tuple[str, ReviewReport]]:
        """Run a review, then its rival with the tokens that the review wrote."""
        review = Review(**{"review_type": self.key.review_type, "max_findings": MAX_FINDINGS, **self.settings})
        report = await self._deliberate(review, seed)
        return [("review", report), ("one call", await self._deliberate(rival_of(review, report), seed))]

    async def _deliberate(self, protocol: Review | SingleReading, seed: int) -> ReviewReport:
        store = SqliteStore(":memory:")
        try:
            deliberation = Deliberation(
                protocol,
                model=self.model,
                sources=self.key.sources(),
                seed=seed,
                limits=self.limits,
                store=store,
                detail=self.detail,
            )
            return await deliberation.run(self.key.task)
        finally:
            store.close()


async def run_all(study: Study, repeat: int, out: Path | None) -> list[Run]:
    """Run a study several times. The reports are written to `out`, to be scored again."""
    runs = []
    for n in range(1, repeat + 1):
        for name, report in await study.run(n):
            text = report.model_dump_json()
            if out is not None:
                write(out / f"{name.replace(' ', '-')}-{n}.json", text)
            runs.append(scored(name if repeat == 1 else f"{name} {n}", text, study.key))
    return runs


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def setting(text: str) -> tuple[str, object]:
    """Return a setting, NAME=VALUE; a value that is no JSON is a text."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What a review finds of planted defects.")
    parser.add_argument("--key", type=Path, default=KEY, metavar="PATH", help="the key of the project")
    parser.add_argument("--model", default="local", help="model of all agents (default local)")
    parser.add_argument(
        "--detail", choices=["full", "brief"], help="prompts (default brief for local models, else full)"
    )
    parser.add_argument(
        "--set", type=setting, nargs="*", default=[], metavar="NAME=VALUE", help="settings of the review"
    )
    parser.add_argument("--max-seconds", type=float, metavar="N", help="limit for each of the two")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="how often (default 1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the reports")
    parser.add_argument(
        "--score", type=Path, nargs="+", metavar="PATH", help="finished reports to score; nothing is run"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write what was matched with what")
    return parser


def main() -> None:
    parser = options()
    args = parser.parse_args()
    key = load_key(args.key)
    try:
        if args.score:
            same = len({path.stem for path in args.score}) < len(args.score)
            names = [str(path) if same else path.stem for path in args.score]
            texts = [path.read_text(encoding="utf-8") for path in args.score]
            runs = [scored(name, text, key) for name, text in zip(names, texts, strict=True)]
        else:
            detail: Detail = args.detail or ("brief" if args.model.partition(":")[0] == "local" else "full")
            limits = Limits(seconds=args.max_seconds) if args.max_seconds else None
            study = Study(key, args.model, detail, dict(args.set), limits)
            runs = asyncio.run(run_all(study, args.repeat, args.out))
    except (OSError, ValueError, UserError) as error:
        parser.error(str(error))
    print_table(key, runs)
    for run in runs:
        print_findings(key, run)
    if args.json:
        text = json.dumps([as_json(run) for run in runs], indent=1, default=lambda value: value.model_dump())
        write(args.json, text)


if __name__ == "__main__":
    main()
