"""A program as a model: it reads the prompt on standard input and writes its reply on standard output.

`exec:COMMAND` serves the agent command lines of other vendors, and anything else that reads and writes text. No shell
takes part. The program gets an empty working directory, a few variables of the environment and no key, and is killed
with all it started when it is too slow, writes too much, or is not wanted any more.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from consilience.domain.errors import ProviderError, Rejected, ServerError, SettingsError, UnavailableModel, UnknownName
from consilience.models import process
from consilience.models.failures import scrub
from consilience.models.port import Completion, JsonSchema, ModelRequest
from consilience.models.process import kill_all

PREFIX = "exec:"
DEADLINE = 900.0
"""Seconds a program may take for one reply."""
SIDE_BY_SIDE = 4
"""Copies of one program that run at a time."""
MOST_OUTPUT = 4_000_000
"""Bytes a program may write."""
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""What a program is given of the environment. `HOME`, since agents keep their log-in there."""
PASSED_ON = "CONSILIENCE_EXEC_ENV"
"""Names of further variables to give, separated by commas."""

_NAMES_A_SECRET = re.compile(r"(?i:key|token|secret|password|passwd|credentials?)$")


class ProgramModel:
    """One command line. `complete` starts it once; its price, and what it spends, are not known."""

    def __init__(self, name: str, *, most_output: int = MOST_OUTPUT) -> None:
        self._name = name
        self._argv = argv_of(name)
        self._most = most_output

    @property
    def name(self) -> str:
        return self._name

    @property
    def account(self) -> str:
        return f"{PREFIX}{Path(self._argv[0]).name}"

    async def complete(self, request: ModelRequest) -> Completion:
        """Raises `ServerError` where the program fails, `Rejected` where it cannot be run or writes without end."""
        with tempfile.TemporaryDirectory(prefix="consilience-", ignore_cleanup_errors=True) as room:
            text = await self._talk(prompt_of(request).encode("utf-8", "replace"), room)
        return Completion(text=text, model=self._name)

    async def _talk(self, prompt: bytes, room: str) -> str:
        env = environment(os.environ)
        try:
            ended = await process.run(self._argv, prompt, room=room, env=env, most=self._most)
        except (OSError, ValueError) as error:
            raise Rejected(f"{self.account}: the program cannot be started: {error}") from None
        if ended.code is None:
            raise Rejected(f"{self.account}: the program wrote more than {self._most:,} bytes")
        if ended.code:
            raise self._failed(ended.code, ended.complaint)
        return _without_secrets(ended.output.decode("utf-8", "replace").strip())

    def _failed(self, code: int, complaint: bytes) -> ProviderError:
        ended = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        said = " ".join(scrub(complaint.decode("utf-8", "replace"), _secrets(os.environ)).split())
        if len(said) > 300:  # what went wrong stands at the end
            said = f"…{said[-299:]}"
        return ServerError(f"{self.account}: the program {ended}" + (f": {said}" if said else ""))

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return None

    async def close(self) -> None:
        return None


def argv_of(name: str) -> list[str]:
    """The words of `exec:COMMAND`, the program as an absolute path.

    Raises `UnknownName` for no command, `SettingsError` for one that holds a secret, since it is recorded as it stands, and
    `UnavailableModel` for a program that is not there.
    """
    command = name.removeprefix(PREFIX).strip()
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UnknownName(f"the command cannot be read: {error}", where="exec:…", do="Close the quotation.") from None
    if not words:
        raise UnknownName("exec: names no command", do='Write exec:COMMAND, such as "exec:claude -p".')
    if holds_a_secret(command, words):
        raise SettingsError(
            f"the command of exec:{Path(words[0]).name if '=' not in words[0] else '…'} holds what looks like a secret, "
            "and the command is recorded",
            do=f"Put it into a variable of the environment, and name that in {PASSED_ON}.",
        )
    found = shutil.which(words[0])
    if found is None:
        raise UnavailableModel(
            f"{words[0]!r} is no program that may be run"
            if os.sep in words[0] and os.path.exists(words[0])
            else f"there is no program {words[0]!r}",
            where=f"{PREFIX}{command}",
            do="Install it, or give its whole path.",
        )
    return [os.path.abspath(found), *words[1:]]


def holds_a_secret(command: str, words: list[str]) -> bool:
    """`KEY=…`, `--api-key …`, what looks like a key, or what stands in the environment as one."""
    if scrub(command, []) != command:
        return True
    for word, following in zip(words, [*words[1:], ""], strict=True):
        before, equals, after = word.partition("=")
        if _NAMES_A_SECRET.search(before) and (
            after if equals else before.startswith("-") and following[:1] not in "-"
        ):
            return True
    return False


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a program gets of it: the names in `PASSED`, and those asked for by `CONSILIENCE_EXEC_ENV`."""
    asked = [name.strip() for name in environ.get(PASSED_ON, "").split(",")]
    return {name: environ[name] for name in (*PASSED, *asked) if name in environ}


def prompt_of(request: ModelRequest) -> str:
    """The prompt as the program reads it: a typed reply is asked for in words."""
    return f"{request.text}\n\n{in_words(request.schema)}" if request.schema is not None else f"{request.text}\n"


def in_words(schema: JsonSchema) -> str:
    return (
        "Reply with one JSON object and nothing else, neither before nor after it. It must follow this JSON schema:\n"
        f"{json.dumps(schema, ensure_ascii=False)}\n"
    )


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """Values that this process itself was asked to pass on."""
    return [environ[name] for name in environment(environ) if name not in PASSED and environ[name]]


def _without_secrets(text: str) -> str:
    """A reply as it came, but for what was passed on and is a secret by its name or its look."""
    for secret in sorted(_secrets(os.environ), key=len, reverse=True):
        if scrub(secret, []) != secret:
            text = text.replace(secret, "***")
    return text


__all__ = ["PREFIX", "ProgramModel", "argv_of", "environment", "kill_all", "prompt_of"]
