"""Git as a subprocess that obeys this program and not the repository: no pager, hook, filter, external diff or network."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

from consilience.documents import MAX_SOURCE_BYTES
from consilience.domain.errors import SourceError
from consilience.targets.files import repository_of

TIMEOUT_SECONDS = 120
"""Max duration of one command of Git."""

_MAX_REMEDY_CHARS = 500

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

_KEPT = ("core.autocrlf", "core.eol", "core.filemode", "core.ignorecase", "core.precomposeunicode", "core.symlinks")
"""What counts of a repository's own configuration: how its files are stored. None of it names a program."""


NO_VARIABLES: dict[str, str] = {}


class Git:
    """Git in one directory. Every method raises `SourceError` if Git is missing, fails or takes too long.

    Commands that read contents run in a Git directory of this program's, which borrows objects and index of the repository: without
    the repository's configuration there is no program that an attribute could name. The user's own filters (Git LFS) stay. It is
    removed at the end of the `with` block.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._settings = dict(_SETTINGS)
        self._borrowed: dict[str, str] = {}
        self._check_repository()
        self._scrubbed = tempfile.TemporaryDirectory(prefix="consilience-git-")
        try:
            self._borrowed = self._borrow(Path(self._scrubbed.name))
        except BaseException:
            self._scrubbed.cleanup()
            raise

    def __enter__(self) -> Git:
        return self

    def __exit__(self, *exception: object) -> None:
        self._scrubbed.cleanup()

    def run(self, *arguments: str | bytes, directory: Path | None = None, stdin: bytes = b"") -> bytes:
        """Return the standard output of a command, run in `directory`, default: the directory."""
        done = self._start(arguments, directory or self.directory, stdin, self._borrowed)
        if done.returncode:
            raise _failure(done.stderr, self.directory)
        return done.stdout

    def search(self, *arguments: str, directory: Path | None, seconds: float, max_bytes: int) -> tuple[bytes, bool]:
        """Return the output of `git grep`, whole records of it, and whether that is all: not if it takes longer, or is longer."""
        with subprocess.Popen(
            self._command("grep", *arguments),
            cwd=directory or self.directory,
            env=self._environment() | self._borrowed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            timer = Timer(seconds, process.kill)
            timer.start()
            is_cut = True
            try:
                output = process.stdout.read(max_bytes)
                is_cut = bool(process.stdout.read(1)) or timer.finished.is_set()
            finally:
                timer.cancel()
                if is_cut:
                    process.kill()
        return output[: output.rfind(b"\n") + 1], not is_cut and process.returncode in (0, 1)

    @contextmanager
    def blobs(self) -> Iterator[Callable[[str], bytes]]:
        """A function that returns the content of a blob that this clone has; one process serves all."""
        with subprocess.Popen(
            self._command("cat-file", "--batch"),
            cwd=self.directory,
            env=self._environment() | self._borrowed,
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

    def blob(self, name: str) -> bytes | None:
        """Return the content of a file by its name for Git, as in `HEAD:src/x.py`; None if there is none, or a larger one than any
        text that is read."""
        size = self.line("cat-file", "-s", name)
        if size is None or int(size) > MAX_SOURCE_BYTES:
            return None
        done = self._start(("cat-file", "blob", name), self.directory, b"", self._borrowed)
        return None if done.returncode else done.stdout

    def empty_tree(self) -> str:
        """Return the id of the tree without files, which a repository need not contain."""
        return _text(self.run("hash-object", "-t", "tree", "--stdin")).strip()

    def top(self) -> Path | None:
        """Return the directory of the files; None in a bare repository.

        Raises `SourceError` if the configuration of the repository puts the files, or its `.git` file the repository, anywhere
        else, so that it could show any file of the user.
        """
        done = self._start(("rev-parse", "--show-toplevel"), self.directory, b"")
        if done.returncode:
            return None
        top = Path(os.fsdecode(done.stdout.removesuffix(b"\n")))
        if {"GIT_DIR", "GIT_WORK_TREE"} & os.environ.keys():
            return top
        own = repository_of(os.path.abspath(self.directory))
        if own is None or not os.path.samefile(own, top):
            raise _leads_out("the configuration of the repository puts its files elsewhere (core.worktree)", top)
        if not _is_own_git_directory(top / ".git", self.line("rev-parse", "--absolute-git-dir") or ""):
            raise _leads_out("the file .git names a repository elsewhere, which does not name it in turn", top / ".git")
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

    def _borrow(self, scrubbed: Path) -> dict[str, str]:
        """Fill a Git directory that has no configuration of the repository; return the variables that have Git use it."""
        places = ("objects", "index", "shallow", "info/exclude", "info/attributes")
        options = (option for place in places for option in ("--git-path", place))
        output = self.run("rev-parse", "--path-format=absolute", *options)
        objects, index, shallow, *rules = (os.fsdecode(line) for line in output.splitlines())
        self._settings |= {key: value for key in _KEPT if (value := self.line("config", "--get", key)) is not None}
        algorithm = self.line("rev-parse", "--show-object-format") or "sha1"
        for name in ("info", "refs"):
            (scrubbed / name).mkdir()
        (scrubbed / "HEAD").write_text(f"{self.commit('HEAD') or 'ref: refs/heads/none'}\n")
        (scrubbed / "config").write_text(
            f"[core]\nrepositoryFormatVersion = 1\nbare = false\n[extensions]\nobjectFormat = {algorithm}\n"
        )
        for rule in filter(os.path.isfile, rules):
            (scrubbed / "info" / Path(rule).name).symlink_to(rule)
        if os.path.isfile(shallow):  # else a missing parent is an error
            (scrubbed / "shallow").symlink_to(shallow)
        for shared in Path(index).parent.glob("sharedindex.*"):  # a split index
            (scrubbed / shared.name).symlink_to(shared)
        top = self.top()
        borrowed = {"GIT_DIR": str(scrubbed), "GIT_OBJECT_DIRECTORY": objects, "GIT_INDEX_FILE": index}
        return borrowed | ({"GIT_WORK_TREE": str(top)} if top else {})

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

    def _start(
        self, arguments: Sequence[str | bytes], cwd: Path, stdin: bytes, variables: dict[str, str] = NO_VARIABLES
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                self._command(*arguments),
                cwd=cwd,
                env=self._environment() | variables,
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


def _is_own_git_directory(entry: Path, git_directory: str) -> bool:
    """Return whether `.git` is the Git directory, or a file that it names in turn: of a linked work tree, a submodule."""
    if entry.is_dir() and not entry.is_symlink():
        return True
    back = Path(git_directory, "gitdir")
    if back.is_file() and os.path.realpath(os.fsdecode(back.read_bytes().rstrip(b"\n"))) == os.path.realpath(entry):
        return True
    outer = repository_of(str(entry.parent.parent.absolute()))
    return outer is not None and Path(os.path.realpath(git_directory)).is_relative_to(os.path.realpath(outer))


def _leads_out(what: str, where: Path) -> SourceError:
    return SourceError(what, where=str(where), do="If you made that yourself, name it in GIT_DIR and GIT_WORK_TREE.")


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
    lines = [line.removeprefix("hint:").strip() for line in _text(stderr).splitlines()]
    first = next((n for n, line in enumerate(lines) if line.startswith(("fatal:", "error:"))), 0)
    message = lines[first] if lines else "no reason"
    message = message.partition(":")[2].strip() if message.startswith(("fatal:", "error:")) else message
    remedy = " ".join(filter(None, lines[first + 1 :]))[:_MAX_REMEDY_CHARS]
    if "not a git repository" in message:
        return SourceError(
            "the directory is not in a Git repository",
            where=str(directory),
            do="Go to a repository, or name files, directories or a .diff file.",
        )
    return SourceError(f"Git failed: {message}", where=str(directory), do=remedy or "Correct that, and try again.")
