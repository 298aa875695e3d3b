"""A job of GitHub that runs the steps of `action.yml`, with a `gh` that keeps a pull request."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kit.fake_gh import new_pull
from kit.forks import launcher

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
SECONDS = 600

GH = """
import os, sys
sys.path.insert(0, {tests!r})
from kit.fake_gh import main
sys.exit(main({state!r}, sys.argv[1:], os.environ.get("GH_TOKEN")))
"""


@dataclass
class Job:
    """A workflow's job with a checkout whose last commit adds a line."""

    temp: Path
    checkout: Path
    inputs: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    number: str = "7"
    title: str = ""
    """Of the pull request; its text is the same."""
    from_repository: str = "owner/name"
    """That of the branch of the pull request."""

    @property
    def base(self) -> str:
        return self.git("rev-parse", "HEAD~1")

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    @property
    def home(self) -> Path:
        return self.temp / "consilience" / self.inputs.get("name", "code")

    @property
    def state_file(self) -> Path:
        return self.temp / "pull-request.json"

    @property
    def pull(self) -> dict[str, Any]:
        """The state of the pull request, as `fake_gh` keeps it."""
        return json.loads(self.state_file.read_text())  # type: ignore[no-any-return]

    @pull.setter
    def pull(self, state: dict[str, Any]) -> None:
        self.state_file.write_text(json.dumps(state))

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
            "github.event.pull_request.title": self.title,
            "github.event.pull_request.body": self.title,
            "github.event.pull_request.head.repo.full_name": self.from_repository,
            "github.token": "secret-token",
            **{f"steps.review.outputs.{name}": value for name, value in self.outputs.items()},
        }
        for name, case in ACTION["inputs"].items():
            known[f"inputs.{name}"] = self.inputs.get(name, self._default(case.get("default", ""), known))
        return re.sub(
            r"\$\{\{ ([\w.-]+)(?: \|\| ([\w.-]+))? \}\}",
            lambda match: known[match[1]] or (known[match[2]] if match[2] else ""),
            expression,
        )

    @staticmethod
    def _default(text: str, known: dict[str, str]) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: known[match[1]], text)

    def act(self) -> dict[str, subprocess.CompletedProcess[str]]:
        """Run the steps after the installation that their conditions let run, up to the first that fails."""
        done: dict[str, subprocess.CompletedProcess[str]] = {}
        for name, step in list(STEPS.items())[1:]:
            if self._is_due(step.get("if", "")) and not any(run.returncode for run in done.values()):
                done[name] = self.run(name)
        return done

    def _is_due(self, condition: str) -> bool:
        clauses = re.findall(r"(inputs\.[\w-]+) (==|!=) '(\w*)'", condition)
        assert len(clauses) == condition.count("inputs.")
        return all((self.value(f"${{{{ {name} }}}}") == value) == (sign == "==") for name, sign, value in clauses)

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


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def new_job(tmp_path: Path) -> Job:
    """Return a job with this environment's consilience in the place of the installed one, and with a pull request."""
    job = Job(tmp_path / "temp", tmp_path / "checkout", {"model": "exec:/bin/false"})
    job.temp.mkdir()
    job.checkout.mkdir()
    job.git("init", "--quiet")
    job.commit(pager__py="def page(items, n):\n    return items[n * 10 : n * 10 + 10]\n")
    job.commit(pager__py="def page(items, n):\n    return items[n * 10 : n * 10 + 11]\n")
    programs = job.home / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(launcher())
    (programs / "consilience").symlink_to(launcher(str(Path(sys.executable).with_name("consilience"))))
    job.pull = new_pull(job.checkout, job.base, head=job.head)
    program = GH.format(tests=str(ROOT / "tests"), state=str(job.state_file))
    (job.temp / "bin").mkdir()
    (job.temp / "bin" / "gh").symlink_to(launcher("-c", program))
    return job
