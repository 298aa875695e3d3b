"""`action.yml`: its form, and its shell, run in a repository with a change and with a `gh` that records what it is given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
SECONDS = 120


def test_action_yml_matches_the_schema_of_github() -> None:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", STEPS)
def test_action_scripts_contain_no_expressions(name: str) -> None:
    assert "${{" not in STEPS[name]["run"]


def test_token_is_given_only_to_the_step_that_posts() -> None:
    holders = [name for name, step in STEPS.items() if "token" in json.dumps(step.get("env", {})).lower()]
    assert holders == ["Post the review"]


def test_action_steps_use_no_other_action() -> None:
    assert not [name for name, step in STEPS.items() if "uses" in step]


@dataclass
class Job:
    """A workflow's job with a checkout whose last commit adds a line."""

    temp: Path
    checkout: Path
    inputs: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    number: str = "7"

    @property
    def base(self) -> str:
        return self.git("rev-parse", "HEAD~1")

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    @property
    def home(self) -> Path:
        return self.temp / "consilience"

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        done = subprocess.run(("git", *who, *arguments), cwd=self.checkout, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, **files: str) -> None:
        for name, text in files.items():
            (self.checkout / name.replace("__", ".")).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "change")

    def value(self, expression: str) -> str:
        """An expression of `action.yml` as GitHub would replace it."""
        known = {
            "github.event.pull_request.base.sha": self.base,
            "github.event.pull_request.head.sha": self.head,
            "github.event.pull_request.number": self.number,
            "github.token": "secret-token",
            **{f"steps.review.outputs.{name}": value for name, value in self.outputs.items()},
        }
        for name, case in ACTION["inputs"].items():
            known[f"inputs.{name}"] = self.inputs.get(name, self._default(case.get("default", ""), known))
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: known[match[1]], expression)

    @staticmethod
    def _default(text: str, known: dict[str, str]) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: known[match[1]], text)

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run a step as a runner does."""
        step = STEPS[name]
        script, output, summary = (self.temp / file for file in ("step.sh", "output", "summary.md"))
        script.write_text(step["run"])
        output.write_text("")
        env = {
            "PATH": f"{self.temp / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.temp),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_WORKSPACE": str(self.checkout),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            **{key: value for key, value in os.environ.items() if key.startswith("PIP_")},
            **{key: self.value(text) for key, text in step.get("env", {}).items()},
        }
        command = ("bash", "--noprofile", "--norc", "-eo", "pipefail", script)
        done = subprocess.run(
            command, cwd=self.checkout, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        self.outputs |= dict(line.split("=", 1) for line in output.read_text().splitlines())
        return done


GH = """#!{python}
import json, os, pathlib, sys
body = json.loads(pathlib.Path(sys.argv[sys.argv.index("--input") + 1]).read_text())
pathlib.Path({record!r}).write_text(json.dumps([sys.argv[1:], os.environ["GH_TOKEN"], body]))
"""

RECORDING_CONSILIENCE = """#!{python}
import json, os, pathlib, sys
out = pathlib.Path(next(a for a in sys.argv if a.startswith("--out=")).removeprefix("--out="))
out.mkdir(parents=True)
{content}
pathlib.Path({record!r}).write_text(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("GH_TOKEN")]))
sys.exit({code})
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """With this environment's consilience in the place of the installed one."""
    job = Job(tmp_path / "temp", tmp_path / "checkout", {"model": "exec:/bin/false"})
    job.temp.mkdir()
    job.checkout.mkdir()
    job.git("init", "--quiet")
    job.commit(pager__py="def page(items, n):\n    return items[n * 10 : n * 10 + 10]\n")
    job.commit(pager__py="def page(items, n):\n    return items[n * 10 : n * 10 + 11]\n")
    programs = job.home / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "consilience").symlink_to(Path(sys.executable).parent / "consilience")
    write_program(job.temp / "bin" / "gh", GH.format(python=sys.executable, record=str(job.temp / "gh.json")))
    return job


def replace_command(job: Job, *, code: int = 0, results: int = 1) -> None:
    """Put a program in the place of consilience that writes a report of so many results, and as many suppressed ones."""
    log = {"runs": [{"results": [{"ruleId": "a"}, {"ruleId": "a", "suppressions": [{}]}] * results}]}
    files = {
        "review.sarif": json.dumps(log),
        "comments.json": json.dumps({"event": "COMMENT", "body": "b", "comments": []}),
        "report.json": json.dumps({"findings": [1] * results}),
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
    names = ("model", "type", "fail-on", "max-cost", "diff")
    job.inputs |= dict.fromkeys(names, hostile) | {"arguments": f"--max-findings=5\n\n--note={hostile}\n"}
    assert job.run("Review").returncode == 0
    arguments, directory, token = given_to(job, "consilience")
    assert arguments == [
        "review",
        f"--diff={hostile}",
        f"--type={hostile}",
        f"--model={hostile}",
        f"--out={job.home}/report",
        "--yes",
        f"--fail-on={hostile}",
        f"--max-cost={hostile}",
        "--max-findings=5",
        f"--note={hostile}",
    ]
    assert not (tmp_path / "owned").exists()
    assert os.listdir(directory) == []
    assert token is None


def test_invalid_extras_are_refused(job: Job) -> None:
    job.inputs["extras"] = "openai] evil @ https://example.com/evil.zip"
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
    assert [job.run(name).returncode for name in ("Review", "Post the review", "Result")] == [0, 0, 6]
    assert job.outputs["exit-code"] == "6"


def test_review_without_findings_is_not_posted(job: Job) -> None:
    replace_command(job, results=0)
    assert [job.run(name).returncode for name in ("Review", "Post the review", "Result")] == [0, 0, 0]
    assert not (job.temp / "gh.json").exists()


@pytest.mark.parametrize("number", ["", "7/../../x", "7;id"])
def test_invalid_pull_request_number_is_refused(job: Job, number: str) -> None:
    replace_command(job)
    job.run("Review")
    job.number = number
    assert job.run("Post the review").returncode == 2


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
finding = {"severity": "major", "category": "bounds", "document": "S2", "line": 2, "quotation": quotation,
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
    job.inputs |= {
        "model": f"exec:{sys.executable} {job.temp / 'model.py'}",
        "diff": f"{job.git('rev-parse', 'HEAD~2')}...{job.git('rev-parse', 'HEAD~1')}",
        "fail-on": "major",
        "post-review": "true",
    }
    done = job.run("Review")
    assert done.returncode == 0, done.stdout + done.stderr
    stopped, token = next((n, line) for n, line in enumerate(done.stdout.splitlines()) if "::stop-commands::" in line)
    commands = [n for n, line in enumerate(done.stdout.splitlines()) if line.startswith("::error::")]
    ended = done.stdout.splitlines().index(f"::{token.removeprefix('::stop-commands::')}::")
    assert all(stopped < n < ended for n in commands)
    assert [job.run(name).returncode for name in ("Post the review", "Result")] == [0, 6]
    arguments, token, review = given_to(job, "gh")
    assert arguments[:4] == ["api", "--method", "POST", "repos/owner/name/pulls/7/reviews"]
    assert (token, review["commit_id"], review["event"]) == ("secret-token", job.head, "COMMENT")
    (comment,) = review["comments"]
    assert (comment["path"], comment["line"], comment["side"]) == ("pager.py", 2, "RIGHT")
    assert "```suggestion\n    return items[n * 10 : n * 10 + 10]\n```" in comment["body"]
    assert "@octocat" not in comment["body"]
    (run,) = json.loads(Path(job.outputs["sarif"]).read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["bounds"]
    assert "A page is too long." in (job.temp / "summary.md").read_text()


def test_range_without_changes_is_a_success_that_posts_nothing(job: Job) -> None:
    job.inputs |= {"diff": f"{job.head}..{job.head}", "fail-on": "minor", "post-review": "true"}
    assert [job.run(name).returncode for name in ("Review", "Post the review", "Result")] == [0, 0, 0]
    assert not (job.temp / "gh.json").exists()
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
