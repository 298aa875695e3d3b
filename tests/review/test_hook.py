"""The hook for pre-commit, run as pre-commit runs it: its words, then the user's arguments, with references in the environment."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from review.actions import ROOT, write_program
from targets.repository import IDENTITY, Repository

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
MODEL = """
import json, sys
prompt = sys.stdin.read()
finding = {"severity": "major", "category": "bounds", "document": "a.py", "line": 1, "quotation": "x = items[1]",
    "claim": "The first item is lost.", "consequence": "It fails.", "check": {"kind": "read", "text": "a.py"},
    "recommendation": "Use 0.", "replacement": None}
found = [finding] if "x = items[1]" in prompt else []
print(json.dumps({"read": [], "findings": found, "vote": "changes" if found else "approve", "confidence": 1, "reason": "so"}))
"""


def test_hook_is_one_of_pushes_and_takes_no_files() -> None:
    assert HOOK["stages"] == ["pre-push", "manual"]
    assert (HOOK["language"], HOOK["pass_filenames"], HOOK["always_run"]) == ("python", False, True)


@pytest.mark.parametrize("agreed", [True, False])
def test_hook_reviews_what_is_pushed_once_the_cost_is_agreed_to(tmp_path: Path, agreed: bool) -> None:
    repository = Repository(tmp_path / "top")
    pushed = repository.commit({"a.py": "x = items[0]\n"})
    wrong, right = repository.commit({"a.py": "x = items[1]\n"}), repository.commit({"a.py": "x = items[0]\n"})
    (tmp_path / "model.py").write_text(MODEL)
    arguments = [f"--model=exec:{sys.executable} {tmp_path / 'model.py'}", "--fail-on=major", "--no-store"]

    def run(first: str, last: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*shlex.split(HOOK["entry"]), *arguments, *(["--yes"] if agreed else [])],
            cwd=repository.path,
            env={
                **os.environ,
                **IDENTITY,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                **({"PRE_COMMIT_FROM_REF": first, "PRE_COMMIT_TO_REF": last} if first else {}),
            },
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    done = run(pushed, wrong)
    if not agreed:
        assert (done.returncode, "Give --yes" in done.stderr) == (2, True)
        return
    assert (done.returncode, "The first item is lost." in done.stdout) == (6, True)
    assert run(pushed, right).returncode == 0
    repository.write({"a.py": "x = items[1]\n"})
    assert "Nothing to review: the staged changes" in run("", "").stdout
    repository.git("add", "--all")
    assert run("", "").returncode == 6


def test_hostile_arguments_and_references_are_no_text_of_the_shell(tmp_path: Path) -> None:
    write_program(
        tmp_path / "bin" / "consilience", f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    )
    hostile = f"$(touch {tmp_path}/owned) `touch {tmp_path}/owned` \" ' ; touch {tmp_path}/owned #"
    done = subprocess.run(
        [*shlex.split(HOOK["entry"]), f"--focus={hostile}"],
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PRE_COMMIT_FROM_REF": hostile, "PRE_COMMIT_TO_REF": hostile},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [
        "review",
        "--effort=quick",
        f"--diff={hostile}...{hostile}",
        f"--focus={hostile}",
    ]
    assert not (tmp_path / "owned").exists()
