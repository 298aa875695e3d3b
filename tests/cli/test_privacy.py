"""No key reaches a journal, a report, a log or an error; what is written is for its owner only, and with --no-store not at all."""

from __future__ import annotations

import base64
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cli.loopback import MODEL, Answer, environment, prose, provider
from cli.town import Cli, recorded
from kit import forks
from kit.forks import PYTHONPATH

KEY = "zq7-wintermute-plum-4410"
"""Of no shape that a provider's keys have."""
USER, PASSWORD = "harbourmaster", "tern-gannet-skua-77"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
SECRETS = (KEY, PASSWORD, BASIC)
RUN = ("emergence", "Is a bridge better than a ferry?", "--model", MODEL, "--max-rounds", "1", "--children", "2")
COMMANDS_AFTER_THE_RUN = (
    ("show", "last"),
    ("resume", "last", "--json", "--out", "again"),
    ("doctor", "--json"),
)


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str | None]:
    """What a command gets to see; None is not set."""
    names = {"OPENAI_API_KEY": None, "OPENAI_BASE_URL": None}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "CONSILIENCE_HOME": str(home), **names}


def as_process(env: dict[str, str | None], **more: str) -> dict[str, str]:
    return {name: value for name, value in {**env, **more}.items() if value is not None}


def files_below(*directories: Path) -> list[Path]:
    return [path for top in directories for path in sorted(top.rglob("*")) if path.is_file() and not path.is_symlink()]


def check_nothing_holds(secrets: Iterable[str], text: str, files: Iterable[Path]) -> None:
    for secret in secrets:
        assert secret not in text
        assert [path.name for path in files if secret.encode() in path.read_bytes()] == []


# --- servers that give away what they were sent


def echoing(status: int, shape: str) -> Answer:
    """Answers with that status and, in its words, the key it was sent."""

    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        sent = headers["authorization"]
        content = {
            "message": {"error": {"message": f"You sent Authorization: {sent}; that is wrong.", "code": sent}},
            "key only": {"error": {"message": f"Incorrect API key provided: {sent.split()[-1]}."}},
            "headers": {"detail": {"headers": headers, "why": "no"}},
            "text": f"<html>{headers}</html>",
        }[shape]
        return status, content

    return answer


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize("status", [401, 400, 403, 429, 500])
@pytest.mark.parametrize("shape", ["message", "key only", "headers", "text"])
def test_key_echoed_in_an_error_is_stored_nowhere(
    status: int, shape: str, env: dict[str, str | None], home: Path, here: Path, cli: Cli
) -> None:
    text = ""
    with provider(echoing(status, shape)) as server:
        env |= {"OPENAI_API_KEY": KEY, **environment(server.url), "CONSILIENCE_DEBUG": "1"}
        arguments = (*RUN, "--out", "report", "--max-calls", "3")
        for command in (arguments, *COMMANDS_AFTER_THE_RUN):
            done = cli(*command, env=env)
            assert done.exit_code in (0, 1, 3), done.stderr
            text += done.stdout + done.stderr
        assert server.asked
    assert "***" in text
    assert (here / "report" / "report.json").exists()
    assert (here / "again" / "report.md").exists()
    check_nothing_holds([KEY], text, files_below(home, here))


def test_key_echoed_in_a_reply_is_stored_nowhere(env: dict[str, str | None], home: Path, here: Path, cli: Cli) -> None:
    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        status, output = prose(body, headers)
        assert isinstance(output, dict)
        sent = headers["authorization"]
        output["choices"][0]["message"]["content"] = f"You sent {sent}. The answer is yes."
        output["choices"][0]["finish_reason"] = f"at {sent}"
        return status, {**output, "model": f"of {sent}"}

    with provider(answer) as server:
        env |= {"OPENAI_API_KEY": KEY, **environment(server.url)}
        done = cli(*RUN, "--out", "report", env=env)
        assert done.exit_code == 0
    assert "You sent Bearer ***. The answer is yes." in done.stdout.replace("\\", "")
    events = cli("export", "last", "--format", "events", env=env)
    assert "of ***" in events.stdout
    assert "at ***" in events.stdout
    check_nothing_holds([KEY], done.stdout + done.stderr + events.stdout, files_below(home, here))


# --- keys and passwords wherever a user may keep them


def in_env_file(env: dict[str, str | None], here: Path, url: str) -> tuple[str, ...]:
    (here / "keys.env").write_text(
        f"export OPENAI_API_KEY='{KEY}'\nOPENAI_BASE_URL={url}/v1\nCONSILIENCE_FREE_ENDPOINTS={url}/v1\n"
    )
    return ("--env-file", "keys.env")


def in_the_address(env: dict[str, str | None], here: Path, url: str) -> tuple[str, ...]:
    env |= environment(url) | {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{url.replace('//', f'//{USER}:{PASSWORD}@')}/v1",
    }
    return ()


def in_the_query(env: dict[str, str | None], here: Path, url: str) -> tuple[str, ...]:
    env |= environment(url) | {"OPENAI_API_KEY": "none-needed", "OPENAI_BASE_URL": f"{url}/v1?api_key={KEY}"}
    return ()


PLACES = [in_env_file, in_the_address, in_the_query]


@pytest.mark.parametrize("answer", [prose, echoing(401, "headers")], ids=["well", "badly"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_env_file_secret_is_stored_nowhere_else(
    place: Any, answer: Answer, env: dict[str, str | None], home: Path, here: Path, cli: Cli
) -> None:
    text = ""
    with provider(answer) as server:
        more = place(env, here, server.url)
        for command in ((*RUN, "--out", "report", *more), ("doctor", *more), ("show", "last", "--json")):
            done = cli(*command, env=env)
            assert done.exit_code in (0, 1, 3), done.stderr
            text += done.stdout + done.stderr
        assert server.asked
    check_nothing_holds(SECRETS, text, [path for path in files_below(home, here) if path.name != "keys.env"])


@pytest.mark.parametrize(
    "text",
    [
        f'model = "openai-chat:stub"\napi_key = "{KEY}"\n',
        f'model = "{KEY}"\n',
        f'[emergence]\nkey = "{KEY}"\n',
        f'model = "openai-chat:stub\nkey = {KEY}',
        f'[emergence]\nchildren = "{KEY}"\n',
    ],
)
def test_key_in_an_invalid_configuration_is_not_printed(
    text: str, env: dict[str, str | None], home: Path, here: Path, cli: Cli
) -> None:
    (here / "consilience.toml").write_text(text)
    done = cli("emergence", "x", env={**env, "OPENAI_API_KEY": KEY})
    assert done.exit_code == 2
    assert "consilience.toml" in done.stderr or "***" in done.stderr
    check_nothing_holds([KEY], done.stdout + done.stderr, files_below(home))


def test_invalid_env_file_error_shows_only_the_line_number(env: dict[str, str | None], here: Path, cli: Cli) -> None:
    (here / "keys.env").write_text(f"OPENAI_API_KEY {KEY}\n")
    done = cli(*RUN, "--env-file", "keys.env", env=env)
    assert done.exit_code == 2
    assert "line 1" in done.stderr
    check_nothing_holds([KEY], done.stdout + done.stderr, [])


def test_password_of_an_unreachable_address_is_not_printed(
    env: dict[str, str | None], home: Path, here: Path, cli: Cli
) -> None:
    env |= environment("http://127.0.0.1:9")
    env |= {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"http://{USER}:{PASSWORD}@127.0.0.1:9/v1?token={KEY}"}
    done = cli(*RUN, "--max-calls", "2", env=env)
    assert done.exit_code in (1, 3), done.stderr
    check_nothing_holds(SECRETS, done.stdout + done.stderr, files_below(home, here))


# --- logs


LOGGING = """
import logging, sys
from consilience.cli.main import main
before = {name: (logger.level, list(logger.handlers)) for name, logger in logging.root.manager.loggerDict.items()
          if isinstance(logger, logging.Logger)}
logging.getLogger("consilience").setLevel(logging.DEBUG)
logging.getLogger("consilience").addHandler(logging.StreamHandler(sys.stderr))
root = (logging.root.level, list(logging.root.handlers))
try:
    main()
finally:
    assert (logging.root.level, logging.root.handlers) == root, "the root logger is the user's"
    for name in ("httpx", "httpcore", "openai"):
        logger = logging.getLogger(name)
        assert logger.level == logging.NOTSET and not logger.handlers, f"{name} was made to talk"
    print("LOGGERS LEFT ALONE", file=sys.stderr)
"""


def test_debug_log_contains_no_key_and_enables_no_other_logger(
    env: dict[str, str | None], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "talk.py").write_text(LOGGING)
    with provider(echoing(401, "message")) as server:
        env |= {"OPENAI_API_KEY": KEY, **environment(server.url)}
        done = forks.run(
            [sys.executable, "talk.py", *RUN],
            env=env,
            cwd=here,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert server.asked
    assert "LOGGERS LEFT ALONE" in done.stderr
    check_nothing_holds([KEY], done.stdout + done.stderr, [])


# --- who may read what is written


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_all_written_files_are_private(env: dict[str, str | None], here: Path) -> None:
    """Though the umask allows everything; killed once, so that the write-ahead log and its index are seen too."""
    own = here / "made" / "by" / "us"
    with provider() as server:
        env |= {"OPENAI_API_KEY": "none-needed", **environment(server.url), "CONSILIENCE_HOME": str(own)}
        open_to_all = "import os; os.umask(0); from consilience.cli.main import main; main()"
        for arguments, more in (
            (RUN, {"CONSILIENCE_FAULT": "after_commit#2"}),
            (("resume", "last", "--out", "reports/first"), {}),
        ):
            forks.run(
                [sys.executable, "-c", open_to_all, *arguments],
                env=as_process(env, **more),
                cwd=here,
                capture_output=True,
                timeout=300,
                check=False,
            )
            written = [
                path for top in (here / "made", here / "reports") for path in (top, *top.rglob("*")) if path.exists()
            ]
            for path in written:
                if path.is_dir():
                    assert mode(path) == 0o700, f"{path} is {mode(path):o}"
                else:
                    assert mode(path) == 0o600, f"{path} is {mode(path):o}"
            if more:
                assert {"journal.db", "journal.db-wal", "journal.db-shm"} <= {path.name for path in written}
                assert any(path.suffix == ".lock" for path in written)
    assert (here / "reports" / "first" / "report.json").exists()


def test_no_store_writes_only_the_requested_report(
    env: dict[str, str | None], home: Path, here: Path, cli: Cli
) -> None:
    before = [(path, path.lstat().st_mtime_ns) for path in (home, *home.iterdir())]
    with provider() as server:
        env |= {"OPENAI_API_KEY": KEY, **environment(server.url)}
        done = cli(*RUN, "--no-store", env=env)
        assert done.exit_code == 0, done.stderr
        assert list(here.iterdir()) == []
        done = cli(*RUN, "--no-store", "--out", "report", env=env)
        assert done.exit_code == 0, done.stderr
    assert [(path, path.lstat().st_mtime_ns) for path in (home, *home.iterdir())] == before
    assert {path.name for path in files_below(here)} >= {"report.json", "report.md"}
    assert {path.parent for path in files_below(here)} == {here / "report"}
    assert recorded() == []


# --- programs


PLANTED = [
    ("--pass", KEY),
    ("-u", f"me:{KEY}"),
    ("-u", "me", "-p", KEY),
    ("--password", KEY),
    ("-H", f"Authorization: Basic {BASIC}"),
    ("-H", f"Cookie: session={KEY}"),
    ("-H", f"X-Api-Key: {KEY}"),
    (f"https://me:{KEY}@host/x",),
    ("sh", "-c", f"cat --token {KEY}"),
]


@pytest.mark.parametrize("words", PLANTED, ids=" ".join)
def test_secret_in_a_program_command_is_not_printed(
    words: tuple[str, ...], env: dict[str, str | None], home: Path, here: Path, cli: Cli
) -> None:
    """Wherever the command is named, and also in the form of an error for other programs."""
    command = f"exec:{shlex.join(('cat', *words))}"
    (here / "consilience.toml").write_text(f"model = {json.dumps(command)}\n")
    text = ""
    for arguments, more in (
        (("solo", "Is it so?", "--yes", "--model", command), {}),
        (("solo", "Is it so?", "--yes", "--model", command, "--json"), {}),
        (("emergence", "Is it so?", "--yes", "--model", "exec:cat", "--agent", f"L2N1={command}"), {}),
        (("compare", "Is it so?", "--yes", "--models", command), {}),
        (("solo", "Is it so?", "--yes"), {}),
        (("solo", "Is it so?", "--yes"), {"CONSILIENCE_MODEL": command}),
        (("doctor",), {}),
        (("doctor", "--json"), {"CONSILIENCE_MODEL": command}),
        (("doctor",), {"CONSILIENCE_MODEL": f"ollama:x|{command}"}),
        (("solo", "Is it so?", "--yes", "--model", f"ollama:x|{command}"), {}),
    ):
        done = cli(*arguments, env={**env, **more})
        assert done.exit_code == 2, done.output
        text += done.stdout + done.stderr
    assert "looks like a secret" in text
    assert recorded() == []
    check_nothing_holds(SECRETS, text, files_below(home))


def test_secret_in_a_command_error_shows_how_to_use_a_variable(env: dict[str, str | None], cli: Cli) -> None:
    done = cli("solo", "Is it so?", "--yes", "--model", f"exec:cat --token {KEY}", env=env)
    assert done.exit_code == 2
    assert r"""exec:sh -c 'agent --token \$NAME'""" in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", PLANTED, ids=" ".join)
def test_secret_in_a_program_error_is_not_printed(
    words: tuple[str, ...], env: dict[str, str | None], home: Path, here: Path, cli: Cli
) -> None:
    script = here / "agent"
    script.write_text(f"#!/bin/sh\necho {shlex.quote('run as: agent ' + ' '.join(words))} >&2\nexit 3\n")
    script.chmod(0o700)
    text = ""
    with provider(lambda body, headers: (400, {"error": {"message": f"not taken: {' '.join(words)}"}})) as server:
        env |= {"OPENAI_API_KEY": "none-needed", "OPENAI_BASE_URL": f"{server.url}/v1"}
        for model in (f"exec:{script}", MODEL):
            done = cli("solo", "Is it so?", "--yes", "--model", model, "--out", "report", env=env)
            assert done.exit_code in (1, 3), done.output
            text += done.stdout + done.stderr
            text += cli("export", "last", "--format", "events", env=env).stdout
    assert "***" in text
    check_nothing_holds(SECRETS, text, [path for path in files_below(home, here) if path != script])
