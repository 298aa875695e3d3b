"""`consilience compare` as a user meets it."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest
import typer

from cli.loopback import MODEL as LOOPBACK
from cli.loopback import begin, command, environment, provider
from cli.town import MODEL, Cli, Town, recorded
from consilience.cli import plan
from consilience.domain.paths import journal_path
from consilience.evaluation import Comparison
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import Scripted
from kit.forks import PYTHONPATH
from kit.juries import adding_up, seated

pytestmark = pytest.mark.processes

QUESTION = "Ann has 3 apples. How many apples are there?"
ASKED = ("compare", QUESTION, "--protocols", "circle,solo,vote", "--model", MODEL)
PATTERN = ("--answer", "3", "--kind", "number", "--answer-pattern", r"answer:\W*(\d+)")


@pytest.fixture(autouse=True)
def juries(monkeypatch: pytest.MonkeyPatch, town: Town) -> None:
    seated(monkeypatch)
    town.reply = adding_up


def task_file(where: Path, n: int = 8) -> Path:
    """Each of three knows one fact, so only who shares can be right."""
    lines = [
        {
            "id": f"t{k}",
            "task": "How many apples are there in all?",
            "answer": k + k + 1 + k + 2,
            "kind": "number",
            "answer_pattern": r"answer:\W*(\d+)",
            "split": "even" if k % 2 == 0 else "odd",
            "sources": [
                {"text": f"{name} has {k + i} apples.", "seat": i + 1} for i, name in enumerate(("Ann", "Ben", "Cleo"))
            ],
        }
        for k in range(1, n + 1)
    ]
    path = where / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def cells(stdout: str, row: str, section: str) -> list[str]:
    """A row of the table under a heading."""
    part = stdout.partition(f"## {section}\n")[2].partition("\n## ")[0]
    line = next(line for line in part.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_compare_one_task_prints_answers_and_usage(cli: Cli) -> None:
    result = cli(*ASKED, *PATTERN)
    assert result.exit_code == 0, result.stderr
    output = cells(result.stdout, "circle", "Answers")
    assert output[1:4] == ["3", "Ann has 3 apples. Answer: 3", "settled"]
    assert output[4] in recorded()
    took = cells(result.stdout, "vote", "Cost")
    assert took[:5] == ["vote", "4", "1,000", "100 %", "$0.004"]
    assert "One task does not show which protocol is better" in result.stdout
    assert "4 of 4" not in result.stdout
    assert "3 of 3: vote on task: 3, right; 4 calls, 1,000 tokens" in result.stderr


def test_compare_task_set_prints_winners_and_losers(cli: Cli, here: Path) -> None:
    result = cli("compare", "--tasks", str(task_file(here)), "--protocols", "circle,solo,vote", "--model", MODEL)
    assert result.exit_code == 0
    assert cells(result.stdout, "circle", "Accuracy") == ["circle", "100 %", "8 of 8", "0"]
    assert cells(result.stdout, "solo, all sources", "Accuracy")[1] == "100 %"
    words = result.stdout.partition("## Summary")[2]
    assert "circle won over solo: +100 points, 95 % interval +100 to +100; McNemar p = 0.008." in words
    assert "Whether vote and solo differ cannot be told: vote stood level with solo" in words


def test_compare_reports_losses_like_wins(cli: Cli, here: Path, town: Town) -> None:
    def poor(request: ModelRequest) -> Scripted:
        return Scripted("Answer: 0") if request.key == "close" else adding_up(request)

    town.reply = poor
    path = here / "open.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"id": str(n), "task": f"Ann has {n} apples.", "answer": n, "kind": "number"})
            for n in range(1, 11)
        )
    )
    result = cli("compare", "--tasks", str(path), "--protocols", "circle,solo", "--model", MODEL)
    assert "circle lost to solo: −100 points" in result.stdout


def test_only_and_limit_select_tasks(cli: Cli, here: Path) -> None:
    result = cli(
        "compare", "--tasks", str(task_file(here)), "--only", "odd", "--limit", "3", "--protocols", "solo",
        "--model", MODEL, "--json", "--quiet",
    )  # fmt: skip
    comparison = Comparison.model_validate_json(result.stdout)
    assert comparison.tasks == ("t1", "t3", "t5")


def test_shipped_task_set_is_found_by_name(cli: Cli) -> None:
    result = cli(
        "compare", "--tasks", "starter", "--only", "split", "--protocols", "circle,vote", "--dry-run", "--json"
    )
    assert json.loads(result.stdout)["tasks"] == [f"split-{n:02}" for n in range(1, 17)]


def test_out_files_contain_every_run(cli: Cli, here: Path) -> None:
    import pyarrow.parquet

    result = cli(
        "compare", "--tasks", str(task_file(here, 3)), "--protocols", "circle,solo", "--model", MODEL,
        "--repeat", "2", "--out", "out", "--json",
    )  # fmt: skip
    assert result.exit_code == 0
    printed = Comparison.model_validate_json(result.stdout)
    assert Comparison.model_validate_json((here / "out/results.json").read_text()) == printed
    with (here / "out/results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(printed.runs) == 3 * 2 * 3
    assert [(line["row"], line["task"], int(line["tokens"])) for line in lines] == [
        (run.row, run.task, run.tokens) for run in printed.runs
    ]
    table = pyarrow.parquet.read_table(here / "out/results.parquet").to_pylist()
    assert [(line["session"], line["correct"]) for line in table] == [(r.session, r.correct) for r in printed.runs]
    assert "circle" in (here / "out/report.md").read_text()
    assert {path.stat().st_mode & 0o777 for path in (here / "out").iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("answer", "cell"),
    [
        ('=HYPERLINK("http://evil.example","open")', '\'=HYPERLINK("http://evil.example","open")'),
        ("@SUM(1)", "'@SUM(1)"),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("＝1+1", "'＝1+1"),
        ("-12.5", "-12.5"),
        ("+3e4", "+3e4"),
        ("a=b", "a=b"),
    ],
)
def test_csv_escapes_texts_that_begin_like_formulas(cli: Cli, here: Path, town: Town, answer: str, cell: str) -> None:
    town.reply = lambda request: Scripted(answer, tokens_in=9)
    done = cli("compare", QUESTION, "--protocols", "solo,=x=vote", "--model", MODEL, "--out", "out")
    assert done.exit_code == 0, done.stderr
    with (here / "out/results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["row"] for line in lines] == ["solo", "'=x"]
    assert lines[0]["answer"] == cell
    assert all(float(line["tokens"]) > 0 for line in lines)
    assert json.loads((here / "out/results.json").read_text())["runs"][0]["answer"] == answer


def test_parquet_is_skipped_without_pyarrow(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from consilience.evaluation import table

    monkeypatch.setattr(table, "find_spec", lambda name: None)
    assert cli(*ASKED, "--out", "out").exit_code == 0
    assert sorted(path.name for path in (here / "out").iterdir()) == ["report.md", "results.csv", "results.json"]


def test_repeated_compare_resumes_without_repeating_calls(cli: Cli, here: Path, town: Town) -> None:
    path = str(task_file(here, 4))
    arguments = ("compare", "--tasks", path, "--protocols", "circle,solo,vote", "--model", MODEL, "--json")

    def stopping(request: ModelRequest) -> Scripted:
        if len(town.requests) == 20:
            raise KeyboardInterrupt
        return adding_up(request)

    town.reply = stopping
    stopped = cli(*arguments)
    assert stopped.exit_code == 130
    assert "the same command continues from there" in stopped.stderr
    asked, town.reply = len(town.requests), adding_up
    done = cli(*arguments)
    assert done.exit_code == 0
    whole = len(town.requests) - 1  # the call that was in flight was asked again
    again = cli(*arguments)
    assert len(town.requests) - 1 == whole
    assert "runs were recorded before" in again.stderr
    assert all(run.recorded for run in Comparison.model_validate_json(again.stdout).runs)
    town.requests.clear()
    cli(*arguments, "--name", "anew")
    assert len(town.requests) == whole > asked


def test_compare_store_option_records_in_that_file(cli: Cli, here: Path) -> None:
    assert cli(*ASKED, "--store", "own.db").exit_code == 0
    assert recorded() == []
    assert (here / "own.db").exists()


def test_set_applies_to_one_row_of_two_rows_of_a_protocol(cli: Cli, town: Town) -> None:
    result = cli(
        "compare", QUESTION, "--protocols", "small=circle,circle", "--set", "small.size=2",
        "--set", "circle.answer_pattern=3|4", "--set", "reply_tokens=99", "--model", MODEL, "--json",
    )  # fmt: skip
    setups = {setup.row: setup.settings for setup in Comparison.model_validate_json(result.stdout).setups}
    assert (setups["small"]["size"], setups["circle"]["size"]) == (2, 3)
    assert setups["circle"]["answer_pattern"] == "3|4"
    assert {request.max_tokens for request in town.requests} == {99}


def test_compare_source_with_number_is_shown_to_that_seat_only(cli: Cli, here: Path, town: Town) -> None:
    for name, text in {"a": "Ann has 3 apples.", "b": "Ben has 4 apples."}.items():
        (here / name).write_text(text)
    cli(
        "compare", "How many apples?", "--protocols", "circle", "--source", "1=a", "--source", "2=b",
        "--model", MODEL, "--json",
    )  # fmt: skip
    shown = {r.key: ("Ann" in r.text, "Ben" in r.text) for r in town.requests}
    assert shown["say/A1"] == (True, False)
    assert shown["say/A2"] == (False, True)
    assert shown["say/A3"] == (False, False)


def test_compare_dry_run_prints_calls_and_cost_and_records_nothing(cli: Cli, town: Town) -> None:
    result = cli(*ASKED[:-1], "openai:gpt-4o", "--budget-calls", "7", "--repeat", "3", "--dry-run")
    assert result.exit_code == 0
    assert "| circle | 3 | 12 |" in result.stdout
    assert "| vote | 3 | 21 |" in result.stdout
    assert "Cost: at most $" in result.stdout
    assert town.requests == []
    assert recorded() == []


def test_compare_never_exceeds_its_estimate(cli: Cli, town: Town) -> None:
    planned = json.loads(cli(*ASKED, "--dry-run", "--json").stdout)
    cli(*ASKED)
    assert planned["estimate"]["min"] <= len(town.requests) <= planned["estimate"]["max"]


def test_compare_with_paid_model_without_consent_is_refused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, town: Town
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    paid = (*ASKED[:-1], "openai:gpt-4o")
    refused = cli(*paid)
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert town.requests == []
    assert cli(*paid, "--yes").exit_code == 0
    bounded = cli(*paid, "--max-cost", "0.01", "--name", "bounded")
    assert bounded.exit_code == 0
    assert "at most $0.03" in bounded.stderr


def test_compare_max_time_bounds_each_run(cli: Cli, town: Town) -> None:
    assert cli(*ASKED, "--max-time", "60").exit_code == 0
    store = SqliteStore(journal_path())
    limits = [started.limits for session in store.sessions() if (started := store.beginning(session))]
    store.close()
    assert limits
    assert {limit.seconds for limit in limits} == {60}
    asked = len(town.requests)
    assert cli(*ASKED, "--max-time", "0", "--name", "none").exit_code == 3
    assert len(town.requests) == asked
    refused = cli(*ASKED, "--max-time", "-1")
    assert refused.exit_code == 2
    assert "--max-seconds" in refused.stderr


def test_compare_on_a_terminal_asks_before_spending(cli: Cli, monkeypatch: pytest.MonkeyPatch, town: Town) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    asked: list[str] = []

    def confirm(text: str, **options: object) -> bool:
        asked.append(text)
        return False

    monkeypatch.setattr(plan, "can_confirm", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    assert cli(*ASKED[:-1], "openai:gpt-4o", "--repeat", "100").exit_code == 2
    assert len(asked) == 1
    assert "openai:gpt-4o" in asked[0]
    assert town.requests == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("compare", "--model", MODEL), "either a task or a file"),
        (("compare", "x", "--tasks", "starter"), "either a task or a file"),
        (("compare", "--tasks", "none.jsonl", "--model", MODEL), "no task file and no shipped set"),
        (("compare", "--tasks", "starter", "--answer", "3", "--model", MODEL), "--answer applies to a single task"),
        (("compare", "x", "--only", "split", "--model", MODEL), "--only and --limit"),
        (("compare", "x", "--protocols", "circle,nothing", "--model", MODEL), "there is no protocol 'nothing'"),
        (("compare", "x", "--protocols", "circle,circle", "--model", MODEL), "two rows are both 'circle'"),
        (
            ("compare", "x", "--protocols", "circle", "--set", "sise=2", "--model", MODEL),
            "no row has the setting 'sise=2'",
        ),
        (("compare", "x", "--protocols", "circle", "--set", "circle.nil=2", "--model", MODEL), "nil"),
        (("compare", "x", "--protocols", "circle", "--set", "circle.size=x", "--model", MODEL), "size"),
        (
            ("compare", "x", "--protocols", "circle", "--budget", "0", "--model", MODEL),
            "'tokens' of the budget must be at least 1",
        ),
        (("compare", "x", "--protocols", "circle", "--jobs", "0", "--model", MODEL), "invalid number of jobs: 0"),
        (("compare", "x", "--protocols", "circle", "--max-cost", "-1", "--model", MODEL), "--max-cost"),
        (
            ("compare", "x", "--protocols", "circle", "--answer", "no", "--kind", "number", "--model", MODEL),
            "is a number",
        ),
        (("compare", "x", "--protocols", "circle", "--model", "nobody:x"), "nobody"),
        (("compare", " ", "--protocols", "circle", "--model", MODEL), "the task is empty"),
    ],
)
def test_compare_mistakes_are_one_paragraph(cli: Cli, town: Town, arguments: tuple[str, ...], expected: str) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert town.requests == []


def test_compare_without_any_answer_exits_nonzero(cli: Cli, town: Town) -> None:
    from consilience.testing import Refused

    town.reply = lambda request: Refused("no")
    result = cli(*ASKED, *PATTERN)
    assert result.exit_code == 3
    assert "Not answered" in result.stdout


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str]:
    """Of a command in a process of its own."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "CONSILIENCE_HOME": str(home),
        "HOME": str(here),
        "OPENAI_API_KEY": "none-needed",
    }


def test_killed_compare_resumes_without_repeating_calls(env: dict[str, str], here: Path) -> None:
    """The real command in a process of its own, killed in the second task; what is installed is compared."""
    (here / "tasks.jsonl").write_text(
        "\n".join(json.dumps({"id": id, "task": f"Is {id} so?"}) for id in ("a", "b", "c"))
    )
    arguments = (
        "compare", "--tasks", "tasks.jsonl", "--protocols", "emergence", "--set", "children=2", "--set", "max_rounds=1",
        "--model", LOOPBACK, "--json",
    )  # fmt: skip
    with provider() as server:
        env |= environment(server.url)
        leaf, end, after = "after_commit@leaf_respond/1#2", "before_finish", "after_finish"
        for fault, asked in ((leaf, 2), (end, 5), (after, 5), (leaf, 7)):
            killed = command(*arguments, env={**env, "CONSILIENCE_FAULT": fault}, cwd=here)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            assert len(server.asked) == asked
        done = command(*arguments, env=env, cwd=here)
        assert done.returncode == 0, done.stderr
        comparison = Comparison.model_validate_json(done.stdout)
        assert [run.calls for run in comparison.runs] == [5, 5, 5]
        assert len(server.asked) == 15
        again = command(*arguments, env=env, cwd=here)
        assert len(server.asked) == 15
    assert all(run.recorded for run in Comparison.model_validate_json(again.stdout).runs)


def test_compare_after_ctrl_c_prints_how_to_continue(env: dict[str, str], here: Path) -> None:
    arguments = (
        "compare", "Is it so?", "--protocols", "emergence", "--set", "children=2", "--set", "max_rounds=1", "--repeat", "2",
        "--model", LOOPBACK, "--json",
    )  # fmt: skip
    with provider() as server:
        env |= environment(server.url)
        server.open.clear()
        process = begin(*arguments, env=env, cwd=here)
        assert server.arrived.wait(60)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=300)
        assert process.returncode == 130
        assert "the same command continues from there" in " ".join(output.split())
        server.open.set()
        done = command(*arguments, env=env, cwd=here)
    assert done.returncode == 0, done.stderr
    assert [run.calls for run in Comparison.model_validate_json(done.stdout).runs] == [5, 5]


def test_compare_dry_run_names_rows_that_the_budget_may_cut_short(cli: Cli) -> None:
    output = cli(*ASKED, "--budget-calls", "3", "--dry-run").stdout
    assert "**circle may be cut short:** it needs up to 4 calls and the budget surely pays for 3" in " ".join(
        output.split()
    )
    assert "cut short" not in cli(*ASKED, "--budget-calls", "4", "--dry-run").stdout
    rows = json.loads(cli(*ASKED, "--budget-calls", "3", "--dry-run", "--json").stdout)["rows"]
    assert [(row["row"], row["needs"], row["allowed"]) for row in rows] == [
        ("circle", 4, 3),
        ("solo", 0, 0),
        ("vote", 0, 0),
    ]
