"""`action.yml`: its form, and its shell, run in a repository with a change and with a `gh` that records what it is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from review.actions import ROOT, STEPS, Job, new_job, write_program
from review.reports import finding, review


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return new_job(tmp_path)


def test_action_yml_matches_the_schema_of_github() -> None:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", STEPS)
def test_action_scripts_contain_no_expressions(name: str) -> None:
    assert "${{" not in STEPS[name]["run"]


def test_token_is_given_only_to_steps_that_call_no_model() -> None:
    holders = [name for name, step in STEPS.items() if "token" in json.dumps(step.get("env", {})).lower()]
    assert holders == ["Read the threads", "Post the review", "Resolve threads"]
    assert not [name for name in holders if "MODEL" in STEPS[name]["env"]]


def test_action_steps_use_no_other_action() -> None:
    assert not [name for name, step in STEPS.items() if "uses" in step]


RECORDING_CONSILIENCE = """#!{python}
import json, os, pathlib, sys
out = pathlib.Path(next(a for a in sys.argv if a.startswith("--out=")).removeprefix("--out="))
out.mkdir(parents=True)
{content}
pathlib.Path({record!r}).write_text(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("GH_TOKEN")]))
sys.exit({code})
"""


def replace_command(job: Job, *, code: int = 0, results: int = 1) -> None:
    """Put a program in the place of consilience that writes a report of so many results, and as many suppressed ones."""
    log = {"runs": [{"results": [{"ruleId": "a"}, {"ruleId": "a", "suppressions": [{}]}] * results}]}
    files = {
        "review.sarif": json.dumps(log),
        "comments.json": json.dumps({"event": "COMMENT", "body": "b", "comments": []}),
        "report.json": review(*[finding()] * results, reviewed_commit=job.head, hunks=()).model_dump_json(),
        "report.md": "# Report\n",
    }
    content = "\n".join(f"(out / {name!r}).write_text({text!r})" for name, text in files.items())
    program = job.home / "venv" / "bin" / "consilience"
    program.unlink()
    record = str(job.temp / "consilience.json")
    write_program(
        program, RECORDING_CONSILIENCE.format(python=sys.executable, content=content, record=record, code=code)
    )


def given_to(job: Job, program: str) -> Any:
    return json.loads((job.temp / f"{program}.json").read_text())


def test_hostile_inputs_are_passed_as_arguments_not_run_by_the_shell(job: Job, tmp_path: Path) -> None:
    replace_command(job)
    hostile = f"$(touch {tmp_path}/owned); `touch {tmp_path}/owned` \" ' && touch {tmp_path}/owned #"
    names = ("model", "type", "effort", "fail-on", "max-cost", "diff")
    job.title = hostile
    job.inputs |= (
        dict.fromkeys(names, hostile) | {"name": "code"} | {"arguments": f"--max-findings=5\n\n--note={hostile}\n"}
    )
    assert job.run("Review").returncode == 0
    arguments, directory, token = given_to(job, "consilience")
    assert arguments == [
        "review",
        f"--diff={hostile}",
        f"--type={hostile}",
        f"--model={hostile}",
        "--inline=minor",
        f"--out={job.home}/report",
        "--yes",
        f"--effort={hostile}",
        f"--fail-on={hostile}",
        f"--max-cost={hostile}",
        f"--intent={job.home}/pull-request.md",
        "--max-findings=5",
        f"--note={hostile}",
    ]
    assert (job.home / "pull-request.md").read_text() == f"{hostile}\n\n{hostile}\n"
    assert not (tmp_path / "owned").exists()
    assert os.listdir(directory) == []
    assert token is None


@pytest.mark.parametrize(
    ("name", "text"), [("extras", "openai] evil @ https://example.com/evil.zip"), ("name", "../x"), ("type", "a b")]
)
def test_invalid_extras_and_names_are_refused(job: Job, name: str, text: str) -> None:
    job.inputs[name] = text
    assert job.run("Install consilience").returncode == 2


def test_default_range_is_that_of_the_pull_request(job: Job) -> None:
    replace_command(job)
    assert job.run("Review").returncode == 0
    assert given_to(job, "consilience")[0][1] == f"--diff={job.base}...{job.head}"


def test_run_without_a_pull_request_or_a_range_is_refused(job: Job) -> None:
    job.inputs["diff"] = "..."
    done = job.run("Review")
    assert (done.returncode, "there is no pull request" in done.stdout) == (2, True)


def test_baseline_is_read_from_the_first_commit_of_the_range(job: Job) -> None:
    job.commit(known__json="old")
    job.commit(known__json="excused by the change")
    replace_command(job)
    job.inputs["baseline"] = "known.json"
    assert job.run("Review").returncode == 0
    assert (job.home / "baseline.json").read_text() == "old"


def test_uploaded_sarif_omits_suppressed_results(job: Job) -> None:
    replace_command(job)
    assert job.run("Review").returncode == 0
    (run,) = json.loads(Path(job.outputs["sarif"]).read_text())["runs"]
    assert run["results"] == [{"ruleId": "a"}]
    assert (job.temp / "summary.md").read_text() == "# Report\n"


def test_findings_above_the_threshold_fail_the_job_after_the_review_was_posted(job: Job) -> None:
    replace_command(job, code=6)
    job.inputs["post-review"] = "true"
    done = job.act()
    assert [run.returncode for run in done.values()] == [0, 0, 0, 6]
    assert job.outputs["exit-code"] == "6"
    assert len(job.pull["reviews"]) == 1


def test_review_without_findings_is_posted_once(job: Job) -> None:
    """What was read is kept nowhere else."""
    replace_command(job, results=0)
    job.inputs["post-review"] = "true"
    for _ in range(2):
        assert [run.returncode for run in job.act().values()] == [0, 0, 0, 0]
        assert [(entry["method"], entry["body"]["comments"]) for entry in job.pull["log"]] == [("POST", [])]


@pytest.mark.parametrize("number", ["", "7/../../x", "7;id"])
def test_invalid_pull_request_number_is_refused(job: Job, number: str) -> None:
    replace_command(job)
    job.run("Review")
    job.number = number
    assert job.run("Post the review").returncode == 1
    assert job.pull["log"] == []


def test_command_that_fails_without_a_report_fails_the_step_with_its_code(job: Job) -> None:
    write_program(job.temp / "none", f"#!{sys.executable}\nraise SystemExit(3)\n")
    program = job.home / "venv" / "bin" / "consilience"
    program.unlink()
    program.symlink_to(job.temp / "none")
    done = job.run("Review")
    assert (done.returncode, "exit code 3" in done.stdout) == (3, True)


MODEL = """
import json, sys
prompt = sys.stdin.read()
quotation = "return items[n * 10 : n * 10 + 11]"
finding = {"severity": "major", "category": "bounds", "document": "pager.py", "line": 2, "quotation": quotation,
    "claim": "A page has 11 items, says @octocat.\\n::error::a line that looks like a command",
    "consequence": "An item is on two pages.", "check": {"kind": "run", "text": "pytest -k page"},
    "recommendation": "Use 10.", "replacement": "    return items[n * 10 : n * 10 + 10]"}
review = {"read": [{"document": "S1", "remark": "bounds"}, {"document": "S2", "remark": "bounds"}],
    "findings": [finding], "vote": "changes", "confidence": 0.9, "reason": "the bound"}
verdict = {"verdicts": [{"finding": "F1", "verdict": "confirm", "reason": "It has 11."}]}
closing = {"text": "A page is too long.", "claims": [], "duplicates": []}
print(json.dumps(verdict if '"verdicts"' in prompt else review if '"findings"' in prompt else closing))
"""


def test_real_command_reviews_a_pull_request_and_posts_the_review(job: Job) -> None:
    """With the real command. What the pull request brings to the checkout has no part in it."""
    job.commit(consilience__toml='model = "exec:/bin/false"\n[review]\nmax_findings = "none"\n')
    (job.temp / "model.py").write_text(MODEL)
    state = job.pull | {"head": job.head, "base": job.git("rev-parse", "HEAD~2")}
    job.pull = state
    job.inputs |= {
        "model": f"exec:{sys.executable} {job.temp / 'model.py'}",
        "diff": f"{state['base']}...{job.head}",
        "fail-on": "major",
        "post-review": "true",
    }
    done = job.act()
    text = done["Review"].stdout
    assert done["Review"].returncode == 0, text + done["Review"].stderr
    stopped, token = next((n, line) for n, line in enumerate(text.splitlines()) if "::stop-commands::" in line)
    commands = [n for n, line in enumerate(text.splitlines()) if line.startswith("::error::")]
    ended = text.splitlines().index(f"::{token.removeprefix('::stop-commands::')}::")
    assert all(stopped < n < ended for n in commands)
    assert [run.returncode for run in done.values()] == [0, 0, 0, 6]
    (posted,) = job.pull["log"]
    assert (posted["method"], posted["path"]) == ("POST", "repos/owner/name/pulls/7/reviews")
    sent = posted["body"]
    assert (posted["token"], sent["commit_id"], sent["event"]) == ("secret-token", job.head, "COMMENT")
    (comment,) = sent["comments"]
    assert (comment["path"], comment["line"], comment["side"]) == ("pager.py", 2, "RIGHT")
    assert "```suggestion\n    return items[n * 10 : n * 10 + 10]\n```" in comment["body"]
    assert "@octocat" not in comment["body"]
    (run,) = json.loads(Path(job.outputs["sarif"]).read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["bounds"]
    assert "A page is too long." in (job.temp / "summary.md").read_text()


def test_range_without_changes_is_a_success_that_posts_nothing(job: Job) -> None:
    job.inputs |= {"diff": f"{job.head}..{job.head}", "fail-on": "minor", "post-review": "true"}
    assert [run.returncode for run in job.act().values()] == [0, 0, 0, 0]
    assert job.pull["log"] == []
    (run,) = json.loads(Path(job.outputs["sarif"]).read_text())["runs"]
    assert run["results"] == []


@pytest.mark.packaging
def test_command_is_installed_from_the_checkout_of_the_action(job: Job) -> None:
    """A module of the pull request that is named like one of the standard library is not imported."""
    (job.home / "venv").rename(job.temp / "unused")
    job.commit(venv__py="raise SystemExit(9)\n", pip__py="raise SystemExit(9)\n")
    done = job.run("Install consilience")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""
    assert {path.name for path in (job.home / "venv" / "bin").iterdir()} >= {"consilience", "python"}
