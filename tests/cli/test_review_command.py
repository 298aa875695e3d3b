"""`consilience review`: its target, its plan, its formats and exit codes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.town import MODEL, Cli, Town, recorded
from consilience.cli import execution
from consilience.models.port import ModelRequest
from consilience.protocols.review import ReviewReport
from kit.reviewing import finding, judgement, review, script
from targets.repository import IDENTITY, Repository

CODE = "def last(items):\n    return items[-1]\n"
CHANGED = "def last(items):\n    return items[len(items)]\n"
DEFECT = finding("return items[len(items)]", 2, "S2")


@pytest.fixture
def repository(here: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    repository = Repository(here)
    repository.commit({"a.py": CODE, "uv.lock": "1\n"})
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.commit({"a.py": CHANGED, "uv.lock": "2\n"})
    return repository


def reviewing(town: Town, *findings: dict[str, Any]) -> None:
    town.reply = script({"red": review(findings), "blue": review(findings)})


def asked(town: Town) -> str:
    """All that the models were shown."""
    return "\n".join(request.text for request in town.requests)


RUN = ("--model", MODEL, "--diff", "main..HEAD")


def test_range_is_reviewed_with_the_files_that_it_changes(cli: Cli, town: Town, repository: Repository) -> None:
    reviewing(town, DEFECT)
    result = cli("review", *RUN, "--focus", "bounds", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["task"] == "Review the changes main..HEAD.\n\nFocus: bounds"
    assert [finding["quotation"] for finding in report["findings"]] == ["return items[len(items)]"]
    assert report["settings"]["left_out"] == ["lock file: uv.lock"]
    assert "+    return items[len(items)]" in asked(town)
    assert "def last(items):" in asked(town)
    assert "Target: the changes main..HEAD: 1 changed file, " in result.stderr
    assert "Left out: lock file: uv.lock" in result.stderr


def test_dry_run_shows_documents_parts_calls_and_what_is_left_out(cli: Cli, town: Town, repository: Repository) -> None:
    text = cli("review", *RUN, "--dry-run").stdout
    for line in ("| red |", "| blue |", "- Calls estimated: ", "- Target: the changes main..HEAD: 1 changed file, "):
        assert line in text
    assert "- Left out: lock file: uv.lock" in text
    plan = json.loads(cli("review", *RUN, "--dry-run", "--json").stdout)
    assert plan["target"] == {
        "title": "the changes main..HEAD",
        "documents": [{"name": "diff main..HEAD", "lines": 8}, {"name": "a.py", "lines": 2}],
        "beside": [{"name": "commit messages", "lines": 1, "purpose": "intent"}],
        "left_out": ["lock file: uv.lock"],
        "not_searched": [],
    }
    assert plan["settings"]["parts"]
    assert town.requests == []
    assert recorded() == []


@pytest.mark.parametrize("arguments", [(), ("--staged",), ("--diff", "HEAD..HEAD"), ("--diff", "HEAD", "a.py")])
def test_nothing_to_review_is_a_success_without_a_call(
    cli: Cli, town: Town, repository: Repository, arguments: tuple[str, ...]
) -> None:
    result = cli("review", *arguments, "--model", MODEL)
    assert result.exit_code == 0
    assert result.stdout.startswith("Nothing to review: the ")
    report = json.loads(cli("review", *arguments, "--model", MODEL, "--fail-on", "minor", "--json").stdout)
    assert ReviewReport.model_validate(report).findings == ()
    assert cli("review", *arguments, "--model", MODEL, "--out", "out").exit_code == 0
    assert json.loads(Path("out/report.json").read_text())["answer"] == result.stdout.splitlines()[0]
    text = Path("out/report.md").read_text()
    assert "Nothing to review" in text
    assert "incomplete" not in text
    assert town.requests == []
    assert recorded() == []


def test_changed_file_that_nobody_can_read_meets_fail_on(cli: Cli, town: Town, repository: Repository) -> None:
    repository.write({"latin.php": "ä".encode("latin-1"), "uv.lock": "3\n"})
    repository.git("add", "--all")
    assert cli("review", "--model", MODEL).exit_code == 0
    result = cli("review", "--model", MODEL, "--fail-on", "minor")
    assert result.exit_code == 6
    assert "Not reviewed: latin.php." in result.stderr
    reviewing(town)
    repository.write({"a.py": CODE})
    result = cli("review", "--model", MODEL, "--fail-on", "minor", "--json")
    assert result.exit_code == 6
    assert json.loads(result.stdout)["unread_files"] == ["latin.php"]
    repository.git("rm", "--quiet", "--force", "latin.php")
    assert cli("review", "--model", MODEL, "--fail-on", "minor").exit_code == 0


@pytest.mark.parametrize("colour", ["\x1b[1m{}\x1b[m", "{}"])
def test_coloured_diff_on_standard_input_is_a_diff(cli: Cli, town: Town, here: Path, colour: str) -> None:
    lines = ["diff --git a/a.py b/a.py", "--- a/a.py", "+++ b/a.py", "@@ -1 +1 @@", "-x = 1", "+x = 2"]
    reviewing(town)
    report = json.loads(
        cli("review", "-", "--model", MODEL, "--json", input="\n".join(map(colour.format, lines))).stdout
    )
    assert len(report["hunks"]) == 1
    assert "\x1b" not in asked(town)


def test_warning_names_a_file_by_its_path(cli: Cli, town: Town, repository: Repository) -> None:
    repository.commit({"a.py": CHANGED.replace("\n    ", "\n    # consilience: ignore\n    ")})
    reviewing(town, finding("return items[len(items)]", 3, "S2"))
    text = cli("review", *RUN).stdout
    assert "- a.py:2: " in text
    assert "first drafts" not in text


def test_left_out_files_of_an_empty_target_are_reported(cli: Cli, town: Town, repository: Repository) -> None:
    repository.write({"uv.lock": "3\n", "new.py": "x\n"})
    result = cli("review", "--model", MODEL)
    assert result.stdout.splitlines() == [
        "Nothing to review: the uncommitted changes.",
        "Left out: lock file: uv.lock",
        "Left out: untracked (git add includes it): new.py",
    ]
    reviewing(town)
    assert cli("review", "--include", "*.lock", "--model", MODEL, "-q").exit_code == 0
    assert "uv.lock" in asked(town)


def test_files_directories_and_standard_input_are_reviewed(cli: Cli, town: Town, here: Path) -> None:
    (here / "src").mkdir()
    (here / "src" / "a.py").write_text(CHANGED)
    (here / "paper.md").write_text("# Paper\n\nAll is well.\n")
    reviewing(town)
    report = json.loads(cli("review", "src", "paper.md", "--model", MODEL, "--json").stdout)
    assert report["task"] == "Review src and paper.md."
    assert "src/a.py" in asked(town)
    assert "All is well." in asked(town)
    town.requests.clear()
    assert cli("review", "-", "--model", MODEL, "-q", input="A text that came in.\n").exit_code == 0
    assert "A text that came in." in asked(town)


FAIL_ON = {"critical": 0, "major": 6, "minor": 6}


@pytest.mark.parametrize(("severity", "code"), FAIL_ON.items())
def test_fail_on_exits_with_its_own_code(
    cli: Cli, town: Town, repository: Repository, severity: str, code: int
) -> None:
    reviewing(town, DEFECT)
    result = cli("review", *RUN, "--fail-on", severity)
    assert result.exit_code == code
    assert ("--fail-on" in result.stderr) == bool(code)
    reviewing(town)
    assert cli("review", *RUN, "--fail-on", severity).exit_code == 0


def test_rejection_meets_fail_on_of_any_kind_and_changes_meet_none(
    cli: Cli, town: Town, repository: Repository
) -> None:
    town.reply = script({"red": review(vote="reject", reason="The schema loses orders."), "blue": review()})
    rejected = cli("review", *RUN, "--fail-on", "reject", "--json")
    assert rejected.exit_code == 6
    assert "--fail-on reject: the verdict is reject, by red." in rejected.stderr
    assert json.loads(rejected.stdout)["verdict"] == {"vote": "reject", "by": ["red"], "split": [1]}
    assert cli("review", *RUN, "--fail-on", "critical").exit_code == 6
    assert cli("review", *RUN).exit_code == 0
    town.reply = script({"red": review(vote="changes"), "blue": review()})
    for what in ("reject", "minor"):
        assert cli("review", *RUN, "--fail-on", what).exit_code == 0


def test_fail_on_counts_a_part_that_no_agent_read(cli: Cli, town: Town, here: Path) -> None:
    (here / "long.py").write_text("\n".join(f"x{n} = {n}\n" for n in range(600)))
    reviewing(town)
    options = ("--type", "parallel_analysis", "--part-tokens", "500", "--max-calls", "4", "--model", MODEL)
    result = cli("review", "long.py", *options, "--json")
    assert result.exit_code == 0
    assert ReviewReport.model_validate_json(result.stdout).unread
    failed = cli("review", "long.py", *options, "--fail-on", "minor")
    assert failed.exit_code == 6
    assert "parts had no review" in failed.stderr


def test_fail_on_counts_findings_over_the_limit_unless_they_are_disputed(
    cli: Cli, town: Town, repository: Repository
) -> None:
    minor = finding("return items[len(items)]", 2, "S2", severity="minor", category="logic", claim="It is slow.")
    fields = {"red": review([minor]), "blue": review([DEFECT])}
    town.reply = script(fields)
    failed = cli("review", *RUN, "--max-findings", "1", "--fail-on", "minor")
    assert failed.exit_code == 6
    assert "at least minor: F1, 1 over the limit of findings." in failed.stderr
    assert cli("review", *RUN, "--max-findings", "1", "--fail-on", "critical").exit_code == 0
    town.reply = script(fields, judge=judgement("refute"))
    assert cli("review", *RUN, "--max-findings", "1", "--fail-on", "minor").exit_code == 0
    report = json.loads(cli("show", "last", "--json").stdout)
    assert [(finding["reason"], finding["disputed"]) for finding in report["dropped"]] == [("over the limit", True)]


def test_resume_of_a_review_keeps_its_output_options(cli: Cli, town: Town, repository: Repository) -> None:
    findings = ("--fail-on", "major", "--format", "sarif", "--write-baseline", "known file.json")
    required = ("--require", "converged", "--require", "settled")
    town.reply = script({"red": review([DEFECT]), "blue": broken})
    broken_off = cli("review", *RUN, *findings, *required)
    (session,) = recorded()
    again = f"consilience resume {session} {shlex.join(required)}"
    assert " ".join(broken_off.stderr.split()).endswith(again)
    reviewing(town, DEFECT)
    resumed = cli(*shlex.split(again)[1:])
    assert resumed.exit_code == 6
    assert "--fail-on major: at least major: F1." in resumed.stderr
    assert json.loads(resumed.stdout)["runs"][0]["results"]
    assert Path("known file.json").exists()
    finished = cli("resume", session, "--fail-on", "critical", "--format", "github")
    assert finished.exit_code == 0
    assert json.loads(finished.stdout)["comments"]
    assert cli("fork", session, "--at", "0", "--fail-on", "major").exit_code == 6


def broken(request: ModelRequest) -> Any:
    raise RuntimeError("boom")


@pytest.mark.parametrize("option", [("--fail-on", "minor"), ("--format", "sarif"), ("--write-baseline", "b.json")])
def test_resume_of_another_protocol_refuses_review_options(cli: Cli, town: Town, option: tuple[str, str]) -> None:
    assert cli("solo", "Is it so?", "--model", MODEL).exit_code == 0
    refused = cli("resume", "last", *option)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert option[0] in refused.stderr


def test_format_option_prints_markdown_or_json(cli: Cli, town: Town, repository: Repository) -> None:
    reviewing(town)
    assert cli("review", *RUN, "--format", "markdown").stdout.startswith("**Finished: ")
    assert json.loads(cli("review", *RUN, "--format", "json").stdout)["protocol"] == "review"


def test_format_option_prints_findings_for_other_programs(cli: Cli, town: Town, repository: Repository) -> None:
    reviewing(town, DEFECT)
    sarif = json.loads(cli("review", *RUN, "--format", "sarif", "--out", "out").stdout)
    (result,) = sarif["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a.py"
    assert json.loads(Path("out/review.sarif").read_text())["runs"][0]["results"]
    comments = json.loads(cli("review", *RUN, "--format", "github").stdout)
    assert [(comment["path"], comment["line"]) for comment in comments["comments"]] == [("a.py", 2)]
    empty = ("review", "--model", MODEL, "--format")
    assert json.loads(cli(*empty, "sarif").stdout)["runs"][0]["results"] == []
    assert "Nothing to review" in json.loads(cli(*empty, "github").stdout)["body"]


def test_baseline_option_omits_known_findings(cli: Cli, town: Town, repository: Repository) -> None:
    reviewing(town, DEFECT)
    assert cli("review", *RUN, "--write-baseline", "known.json", "--fail-on", "major").exit_code == 6
    again = cli("review", *RUN, "--baseline", "known.json", "--fail-on", "minor", "--json")
    assert again.exit_code == 0
    report = ReviewReport.model_validate_json(again.stdout)
    assert report.findings == ()
    assert {finding.reason for finding in report.dropped} == {"baseline"}


MISTAKES = {
    ("--format", "json", "--json", "--format", "markdown"): "two formats",
    ("--diff", "nowhere..HEAD"): "no commit",
    ("--diff", "HEAD", "--staged"): "exclude each other",
    ("missing.py",): "does not exist",
    ("--format", "xml"): "Invalid value",
    ("--fail-on", "bad"): "Invalid value",
    ("--type", "bad"): "Invalid value",
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.items())
def test_invalid_review_arguments_are_one_paragraph_before_any_call(
    cli: Cli, town: Town, repository: Repository, arguments: tuple[str, ...], message: str
) -> None:
    result = cli("review", *arguments, "--model", MODEL)
    assert result.exit_code == 2
    assert message in result.stderr
    assert town.requests == []


# --- sizes that follow from the documents


@pytest.fixture
def long_file(repository: Repository) -> None:
    """A change of one line of a file of 6,001."""
    lines = [f"value_{n} = {n}\n" for n in range(6_001)]
    repository.commit({"long.py": "".join(lines)})
    repository.write({"long.py": "".join([*lines[:3_000], "value_3000 = 3001\n", *lines[3_001:]])})


PRICED = ("review", "--model", "openai:gpt-5-mini", "--dry-run")


@pytest.mark.usefixtures("long_file")
def test_plan_counts_the_prompts_that_the_documents_make(cli: Cli) -> None:
    plan = json.loads(cli(*PRICED, "--max-iterations", "1", "--json").stdout)
    assert plan["estimate"]["max"] == 5
    assert 2 * 5 * 8_192 < plan["max_tokens"] < 120_000
    assert plan["max_cost"] < 0.15
    fewer = json.loads(cli(*PRICED, "--max-iterations", "1", "--max-calls", "2", "--json").stdout)
    assert fewer["max_tokens"] < plan["max_tokens"]


@pytest.mark.usefixtures("long_file")
def test_limit_that_the_usual_replies_fit_cuts_no_reply(cli: Cli) -> None:
    assert "of their size" not in cli(*PRICED, "--max-cost", "0.05").stdout
    assert "of their size" in cli(*PRICED, "--max-cost", "0.02").stdout


@pytest.mark.usefixtures("long_file")
def test_prompts_and_replies_of_a_run_are_within_its_plan(cli: Cli, town: Town) -> None:
    options = ("review", "--model", MODEL, "--thinking", "off", "--max-iterations", "1")
    plan = json.loads(cli(*options, "--dry-run", "--json").stdout)
    found = [finding(f"value_{n} = {n}", n + 1, "S2", cause="value_3000 = 3001") for n in range(2_980, 3_020)]
    town.reply = script({"red": review(found), "blue": review([{**found[0], "claim": "It is even."}])})
    assert cli(*options).exit_code == 0
    sizes = {request.key: len(request.text.encode()) / 3.5 + request.max_tokens for request in town.requests}
    assert len(sizes) == 4
    assert sum(sizes.values()) <= plan["max_tokens"]


@pytest.mark.usefixtures("long_file")
def test_reviewers_reply_one_after_the_other_under_a_limit_that_holds_one_of_full_length(cli: Cli, town: Town) -> None:
    town.reply = script({})
    done = cli("review", "--model", MODEL, "--thinking", "off", "--max-tokens", "62000", "--json")
    report = json.loads(done.stdout)
    assert [part["readers"] for part in report["parts"]] == [["red", "blue"]]
    assert not any("of their size" in warning for warning in report["warnings"])


def test_second_review_reads_what_is_new_and_keeps_what_stands(cli: Cli, town: Town, repository: Repository) -> None:
    """`--since SESSION`: no finding comes twice, changed lines are gone, a standing one fails the build."""
    reviewing(town, DEFECT)
    first = json.loads(cli("review", *RUN, "--json").stdout)
    again = cli("review", *RUN, "--since", first["session"], "--fail-on", "major", "--json")
    assert again.exit_code == 6
    assert "1 of earlier reviews that still stand" in again.stderr
    assert [entry["status"] for entry in json.loads(again.stdout)["known_findings"]] == ["stands"]
    town.requests.clear()
    moved = f"import os\n\n\n{CHANGED}\n\ndef first(items):\n    return items[1]\n"
    repository.commit({"a.py": moved})
    reviewing(town, finding("items[len(items)]", 5, "S2", claim="Other words."), finding("return items[1]", 9, "S2"))
    second = json.loads(cli("review", *RUN, "--since", first["session"], "--json").stdout)
    assert [found["quotation"] for found in second["findings"]] == ["return items[1]"]
    assert [found["reason"] for found in second["dropped"]] == ["known", "known"]
    assert town.requests
    repository.commit({"a.py": moved.replace("items[len(items)]", "items[-1]")})
    reviewing(town)
    third = json.loads(cli("review", *RUN, "--since", second["session"], "--json").stdout)
    states = {entry["quotation"]: entry["status"] for entry in third["known_findings"]}
    assert states == {"return items[len(items)]": "gone", "return items[1]": "stands"}


@pytest.mark.parametrize(
    ("since", "words"), [("nosuch", "neither a session nor a commit"), ("x.json", "cannot be read")]
)
def test_since_that_names_nothing_is_refused(
    cli: Cli, town: Town, repository: Repository, since: str, words: str
) -> None:
    Path("x.json").write_text("{}x")
    result = cli("review", *RUN, "--since", since)
    assert result.exit_code == 2
    assert words in result.stderr
    assert town.requests == []


@pytest.mark.usefixtures("long_file")
@pytest.mark.parametrize("effort", ["quick", "normal", "thorough"])
@pytest.mark.parametrize("found", [0, 1])
def test_one_line_in_a_large_file_uses_about_what_the_plan_says(cli: Cli, town: Town, effort: str, found: int) -> None:
    options = ("review", "--model", MODEL, "--effort", effort, "--thinking", "off")
    expected = json.loads(cli(*options, "--dry-run", "--json").stdout)["expected"][found]
    duties = {
        "contracts": "interface",
        "data": "data",
        "concurrency": "resources",
        "security": "security",
        "tests": "tests",
    }
    categories = {"red": "bounds", "blue": "design", **duties}
    wrong = {
        agent: finding("value_3000 = 3001", 3_001, "S2", category=name, claim=f"Its {name} is wrong.")
        for agent, name in categories.items()
    }
    town.reply = script({agent: review([defect][:found]) for agent, defect in wrong.items()})
    actual = json.loads(cli(*options, "--json").stdout)["ledger"]["actual"]
    assert (
        actual["calls"] == expected["calls"] == {"quick": (1, 2), "normal": (2, 5), "thorough": (5, 11)}[effort][found]
    )
    assert expected["tokens"] / 2 <= actual["tokens_in"] + actual["tokens_out"] <= expected["tokens"] * 2


def test_plan_of_a_limited_run_expects_no_more_than_the_limits(cli: Cli, long_file: None) -> None:
    least, usual = json.loads(cli(*PRICED, "--max-calls", "1", "--max-cost", "0.001", "--json").stdout)["expected"]
    assert least["calls"] == usual["calls"] == 1
    assert least["cost"] == usual["cost"] == 0.001
    assert "about $0.0010 to $0.0010" not in cli(*PRICED, "--max-cost", "0.001").stdout


def test_dry_run_says_what_is_expected_and_the_bound(cli: Cli, long_file: None) -> None:
    text = cli(*PRICED).stdout
    assert re.search(r"- Tokens: about [\d,]+ to [\d,]+, with the prompts counted .*; at most [\d,]+", text)
    assert re.search(r"- Cost: about \$0\.\d+ to \$0\.\d+, at most \$0\.\d+ without retries", text)


def test_open_opens_the_page_of_the_review_also_if_its_findings_fail_the_command(
    cli: Cli, town: Town, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    monkeypatch.setattr(execution, "open_in_browser", lambda page: pages.append(page.read_text()) or "Opened it.")
    reviewing(town, DEFECT)
    assert cli("review", *RUN, "--fail-on", "minor", "--open").exit_code == 6
    (page,) = pages
    assert "return items[len(items)]" in page
    assert "Ballots" in page
