"""A Git repository for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

IDENTITY = {
    **{
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", "A"), ("EMAIL", "a@b"))
    },
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Repository:
    """A repository in a directory; `bare` has no files."""

    def __init__(self, path: Path, *options: str) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main", *options)

    def git(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env={**os.environ, **IDENTITY},
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.decode()

    def write(self, files: dict[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, files: dict[str, str | bytes] | None = None, message: str = "change") -> str:
        """Commit all files, after writing some; return the commit's id."""
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").strip()
