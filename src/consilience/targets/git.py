"""Git as a subprocess that obeys this program and not the repository: no pager, hook, filter, external diff or network."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

from consilience.domain.errors import SourceError

TIMEOUT_SECONDS = 120
"""Max duration of one command of Git."""

_SETTINGS = {
    "color.ui": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.quotePath": "false",
    "core.sshCommand": "false",
    "core.untrackedCache": "false",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.suppressBlankEmpty": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
}
"""What a repository's own configuration could otherwise have run or print."""

_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_DROPPED = (
    *("GIT_DIFF_OPTS", "GIT_EXTERNAL_DIFF", "GIT_GLOB_PATHSPECS", "GIT_ICASE_PATHSPECS", "GIT_NOGLOB_PATHSPECS"),
    *("GIT_TRACE", "GIT_TRACE_SETUP", "GIT_TRACE2", "LANGUAGE"),
)

DIFF_OPTIONS = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "--find-renames", "-l1000"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=histogram", "--indent-heuristic", f"-O{os.devnull}"),
    *("--submodule=short", "--ignore-submodules=dirty"),
)
PATCH_OPTIONS = ("--patch", "--text", "--unified=3", "--inter-hunk-context=0")
"""With `--text`: what is binary is decided by the content of a file, not by the repository's `.gitattributes`."""

_TRUSTED_SCOPES = ("system", "global", "command")
_FILTER = re.compile(r"filter\.(.+)\.(?:clean|smudge|process|required)", re.DOTALL)


class Git:
    """Git in one directory. Every method raises `SourceError` if Git is missing, fails or takes too long."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._settings = dict(_SETTINGS)
        self._check_repository()
        self._settings |= self._without_filters()

    def run(self, *arguments: str | bytes, directory: Path | None = None, stdin: bytes = b"") -> bytes:
        """Return the standard output of a command, run in `directory`, default: the directory."""
        done = self._start(arguments, directory or self.directory, stdin)
        if done.returncode:
            raise _failure(done.stderr, self.directory)
        return done.stdout

    @contextmanager
    def blobs(self) -> Iterator[Callable[[str], bytes]]:
        """A function that returns the content of a blob that this clone has; one process serves all."""
        with subprocess.Popen(
            self._command("cat-file", "--batch"),
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            requests, contents = process.stdin, process.stdout
            timer = Timer(TIMEOUT_SECONDS, process.kill)

            def read(blob: str) -> bytes:
                with suppress(BrokenPipeError):  # it has ended; then there is no line to read
                    requests.write(f"{blob}\n".encode("ascii"))
                    requests.flush()
                fields = contents.readline().split()
                size = int(fields[2]) if len(fields) == 3 else 0
                data = contents.read(size + 1) if len(fields) == 3 else b""
                if len(data) <= size:
                    raise (
                        _too_slow(self.directory)
                        if timer.finished.is_set()
                        else SourceError(f"Git cannot read {blob}", where=str(self.directory), do="Run git fsck.")
                    )
                return data[:-1]

            timer.start()
            try:
                yield read
            finally:
                timer.cancel()

    def line(self, *arguments: str) -> str | None:
        """Return the first line of the output of a command; None if the command fails or prints nothing."""
        done = self._start(arguments, self.directory, b"")
        return _text(done.stdout).partition("\n")[0] or None if not done.returncode else None

    def commit(self, name: str) -> str | None:
        """Return the id of a commit, or None if there is no commit of that name."""
        return self.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")

    def empty_tree(self) -> str:
        """Return the id of the tree without files, which a repository need not contain."""
        return _text(self.run("hash-object", "-t", "tree", "--stdin")).strip()

    def top(self) -> Path | None:
        """Return the directory of the files; None in a bare repository.

        Raises `SourceError` if the repository's configuration moves it elsewhere, so that it could show any file of the user.
        """
        done = self._start(("rev-parse", "--show-toplevel"), self.directory, b"")
        if done.returncode:
            return None
        top = Path(os.fsdecode(done.stdout.removesuffix(b"\n")))
        is_elsewhere = not os.path.lexists(top / ".git") and not {"GIT_DIR", "GIT_WORK_TREE"} & os.environ.keys()
        if is_elsewhere:
            raise SourceError(
                "the configuration of the repository puts its files elsewhere (core.worktree)",
                where=str(top),
                do="Remove that setting if you did not make it, or name files.",
            )
        return top

    def is_shallow(self) -> bool:
        return self.line("rev-parse", "--is-shallow-repository") == "true"

    def _check_repository(self) -> None:
        """Raise the error that says why this is not a repository, before anything else is asked of it."""
        if not self.directory.is_dir():
            raise SourceError("the directory does not exist", where=str(self.directory), do="Check the path.")
        self.run("rev-parse", "--git-dir")
        if (
            self.line("config", "core.hooksPath") != os.devnull
        ):  # Git before 2.31 reads no settings from the environment
            raise SourceError(
                "this Git takes no settings from the environment, so the repository could have it run commands",
                where="git",
                do="Install Git 2.31 or newer, or pipe a diff in: git diff | consilience review -",
            )

    def _without_filters(self) -> Mapping[str, str]:
        """Return settings that switch off the filters that the repository itself defines. Those of the user stay, such as LFS."""
        done = self._start(
            ("config", "--show-scope", "--name-only", "-z", "--get-regexp", r"^filter\..*"), self.directory, b""
        )
        fields = os.fsdecode(done.stdout).split("\0")
        off: dict[str, str] = {}
        for scope, key in zip(fields[::2], fields[1::2], strict=False):
            match = _FILTER.fullmatch(key)
            if match and scope not in _TRUSTED_SCOPES:
                off |= {f"filter.{match[1]}.{part}": "" for part in ("clean", "smudge", "process")}
                off[f"filter.{match[1]}.required"] = "false"
        return off

    def _command(self, *arguments: str | bytes) -> list[bytes]:
        return [b"git", b"--no-pager", *map(os.fsencode, arguments)]

    def _environment(self) -> dict[str, str]:
        variables = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        count = variables.get("GIT_CONFIG_COUNT", "")
        first = int(count) if count.isdecimal() else 0
        settings: dict[str, str] = {}
        for n, (key, value) in enumerate(self._settings.items(), first):  # -c would cut a key that contains "="
            settings |= {f"GIT_CONFIG_KEY_{n}": key, f"GIT_CONFIG_VALUE_{n}": value}
        return variables | _ENVIRONMENT | settings | {"GIT_CONFIG_COUNT": str(first + len(self._settings))}

    def _start(self, arguments: Sequence[str | bytes], cwd: Path, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                self._command(*arguments),
                cwd=cwd,
                env=self._environment(),
                input=stdin,
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise SourceError(
                "the program git was not found", where="PATH", do="Install Git, or give the changes as a file."
            ) from None
        except subprocess.TimeoutExpired:
            raise _too_slow(cwd) from None
        except (OSError, ValueError) as error:
            raise SourceError(f"git could not be started: {error}", where=str(cwd), do="Check the paths.") from None


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")


def _too_slow(directory: Path) -> SourceError:
    return SourceError(
        f"Git took longer than {TIMEOUT_SECONDS} seconds",
        where=str(directory),
        do="Name paths, or give the changes as a file.",
    )


def _failure(stderr: bytes, directory: Path) -> SourceError:
    """Return the error that a command of Git reports."""
    lines = _text(stderr).splitlines()
    message = next(
        (line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else "no reason"
    )
    message = message.partition(":")[2].strip() if message.startswith(("fatal:", "error:")) else message
    if "not a git repository" in message:
        return SourceError(
            "the directory is not in a Git repository",
            where=str(directory),
            do="Go to a repository, or name files, directories or a .diff file.",
        )
    return SourceError(f"Git failed: {message}", where=str(directory), do="Correct that, and try again.")
