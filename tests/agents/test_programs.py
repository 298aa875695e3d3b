"""`exec:COMMAND`: a program that reads a prompt and writes a reply takes a seat. Real processes throughout."""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import consilience
from consilience.domain.errors import (
    ProviderError,
    Rejected,
    ServerError,
    Timeout,
    UnavailableModel,
    UnknownName,
    UserError,
)
from consilience.domain.events import CallCompleted
from consilience.journal.sqlite import SqliteStore
from consilience.models.child_process import kill_all
from consilience.models.limiter import limiter_for
from consilience.models.port import Completion, ModelRequest
from consilience.models.program import ProgramModel, without_secret
from consilience.models.registry import paid, resolve
from consilience.testing import ScriptedModel
from kit.forks import PYTHONPATH

pytestmark = pytest.mark.processes

PATIENCE = 20.0


def python(code: str) -> str:
    return f"exec:{shlex.quote(sys.executable)} -c {shlex.quote(code)}"


def request(text: str = "What is it?", **fields: object) -> ModelRequest:
    return ModelRequest(agent="L2N1", key="round-1/x", system="Be brief.", user=text, **fields)  # type: ignore[arg-type]


async def reply(name: str, **fields: object) -> str:
    async with asyncio.timeout(PATIENCE):
        return (await resolve(name).complete(request(**fields))).text  # type: ignore[arg-type]


def is_removed(path: str) -> bool:
    return not os.path.exists(path)


def gone(pid: int) -> bool:
    """Whether a process has ended and was waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_program_gets_the_prompt_on_stdin_and_replies_on_stdout() -> None:
    assert await reply("exec:cat") == "Be brief.\n\nWhat is it?"
    long = "ä" * 300_000  # more than a pipe holds, in both directions
    assert (await reply("exec:cat", text=long)).endswith(long)


async def test_program_that_ignores_stdin_can_reply() -> None:
    assert await reply(python("print('no need')"), text="x" * 300_000) == "no need"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig", "cp1252"])
async def test_reply_of_a_program_is_read_in_any_encoding(encoding: str) -> None:
    written = f"import sys; sys.stdout.buffer.write('Keep the café.'.encode('{encoding}'))"
    assert await reply(python(written)) == "Keep the café."


async def test_failed_program_without_words_on_stderr_is_quoted_from_stdout() -> None:
    with pytest.raises(ServerError, match="failed with exit code 1: Error: not logged in"):
        await ProgramModel(python("print('Error: not logged in'); raise SystemExit(1)")).complete(request())


async def test_program_is_started_without_a_shell() -> None:
    assert await reply("exec:echo $HOME `id` ; 'a  b' > out") == "$HOME `id` ; a  b > out"


async def test_program_prompt_ends_with_the_schema() -> None:
    class Answer(BaseModel):
        side: str

    sent = await reply("exec:cat", returns=Answer, schema=Answer.model_json_schema())
    assert "Reply with one JSON object" in sent
    assert '"side"' in sent


@pytest.mark.parametrize("opening", ["<think>\n", ""], ids=["whole", "without its opening tag"])
async def test_reasoning_of_a_program_is_removed(opening: str) -> None:
    """Nor does it count for the length of a reply; of a typed one only what stands behind it is read."""
    trace = f'{opening}First I doubt. {{"text": "a draft"}} ' + "Hm. " * 3000
    reply = f"{trace}\n</think>\n\n"
    store = SqliteStore(":memory:")
    model = python(
        f"import sys; typed = 'JSON schema' in sys.stdin.read(); print({reply!r} + ('{{\"text\": \"Yes.\"}}' if typed else 'Yes.'))"
    )
    for protocol in (consilience.Solo(), consilience.Emergence(children=2, max_rounds=1)):
        report = await consilience.deliberate("Is it?", protocol, model=model, store=store)
        assert report.answer == "Yes."
        ended = [event for event in store.read(report.session) if isinstance(event, CallCompleted)]
        assert ended
        assert {store.text(event.text) for event in ended} <= {"Yes.", '{"text": "Yes."}'}
        assert {event.finish for event in ended} == {"stop"}
    store.close()


async def test_program_reply_of_reasoning_only_is_empty() -> None:
    report = await consilience.deliberate("Is it?", consilience.Solo(), model=python("print('<think>\\nHm.')"))
    assert report.answer is None
    assert any("the reply is empty" in missing.reason for missing in report.missing), report.missing


async def test_sequences_for_a_terminal_are_removed_from_a_reply() -> None:
    report = await consilience.deliberate(
        "Is it?", consilience.Emergence(children=2, max_rounds=1), model=python(r"print('\x1b[32mKEEP\x1b[0m')")
    )
    assert report.answer == "KEEP"
    assert "u001b" not in report.model_dump_json()


async def test_wrapper_of_an_agent_is_removed_and_its_failure_is_one_of_the_program() -> None:
    wrapped = '{"type": "result", "is_error": %s, "result": "KEEP"}'
    assert await reply(f"exec:echo {shlex.quote(wrapped % 'false')}") == "KEEP"
    with pytest.raises(ServerError, match="the program reported a failure: KEEP"):
        await reply(f"exec:echo {shlex.quote(wrapped % 'true')}")


async def test_program_has_a_clean_environment_and_an_empty_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-programs")
    monkeypatch.setenv("AGENT_LOGIN", "asked for")
    monkeypatch.setenv("CONSILIENCE_EXEC_ENV", "AGENT_LOGIN, NOT_SET")
    text = await reply(python("import os; print(sorted(os.environ), os.listdir(), os.getcwd(), sep='|')"))
    names, listed, directory = text.split("|")
    assert set(eval(names)) - {"LC_CTYPE"} <= {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "AGENT_LOGIN")
    }
    assert "AGENT_LOGIN" in names
    assert listed == "[]"
    assert directory != os.getcwd()
    assert is_removed(directory), "it is removed afterwards"


async def test_secret_of_the_environment_is_removed_from_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "zq7-wintermute-plum-4410")
    monkeypatch.setenv("REGION", "northern-lights")
    monkeypatch.setenv("CONSILIENCE_EXEC_ENV", "OPENAI_API_KEY,REGION")
    code = "import os; print(os.environ['OPENAI_API_KEY'], 'in', os.environ['REGION'])"
    assert await reply(python(code)) == "*** in northern-lights"


async def test_failing_program_reports_its_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a-very-secret-value")
    code = "import sys; sys.stderr.write('x' * 9000 + ' no a-very-' + 'secret-value here'); sys.exit(3)"
    with pytest.raises(ServerError, match=r"failed with exit code 3: .*no .* here") as failed:
        await reply(python(code))
    assert "secret-value" not in failed.value.detail
    assert len(failed.value.detail) < 500
    with pytest.raises(ServerError, match="ended by signal 9"):
        await reply(python("import os; os.kill(os.getpid(), 9)"))


async def test_failing_program_with_a_relative_path_is_explained_and_its_cost_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clerk.py").write_text("print('yes')")
    report = await consilience.deliberate("Is it so?", consilience.Solo(), model=f"exec:{sys.executable} clerk.py")
    (failed,) = report.failed_calls
    advice = "(it runs in an empty temporary directory; if clerk.py names a file, give its absolute path): "
    assert advice in failed.detail
    assert report.ledger.actual.cost is None


async def test_failing_program_is_not_retried(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(ProviderError):
        await reply(python(f"open({str(log)!r}, 'a').write('x'); raise SystemExit(1)"))
    assert log.read_text() == "x"


async def test_endless_output_is_cut_off() -> None:
    name = python("import sys\nwhile True: sys.stdout.write('x' * 10000)")
    with pytest.raises(Rejected, match="wrote more than 50,000 bytes"):
        async with asyncio.timeout(PATIENCE):
            await ProgramModel(name, max_bytes=50_000).complete(request())


FAMILY = """
import os, subprocess, sys, time
held = os.open({path!r}, os.O_WRONLY)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[held])
{first}
os.write(held, b"%d\\n" % os.getpid())
{then}
time.sleep({seconds})
"""


class Family:
    """A program and its child, both of which hold the writing end of a pipe as long as they live."""

    def __init__(self, directory: Path, seconds: float = 60, first: str = "", then: str = "") -> None:
        self.path = directory / "pipe"
        os.mkfifo(self.path)
        self.name = python(FAMILY.format(path=str(self.path), seconds=seconds, first=first, then=then))

    async def begun(self) -> int:
        """The program's process id, once both run."""
        async with asyncio.timeout(PATIENCE):
            self.pipe = await asyncio.to_thread(self.path.open)
            return int(await asyncio.to_thread(self.pipe.readline))

    async def ended(self) -> None:
        """Once both are dead."""
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.to_thread(self.pipe.read) == ""
        self.pipe.close()


async def test_deadline_kills_a_program_and_its_children(tmp_path: Path) -> None:
    family = Family(tmp_path)
    call = asyncio.create_task(resolve(family.name, deadline=3.0).complete(request()))
    leader = await family.begun()
    with pytest.raises(Timeout, match="no answer within the deadline"):
        await call
    await family.ended()
    assert gone(leader), "no zombie"


async def test_cancelled_program_is_killed(tmp_path: Path) -> None:
    family = Family(tmp_path)
    call = asyncio.create_task(resolve(family.name).complete(request()))
    leader = await family.begun()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await family.ended()
    assert gone(leader), "no zombie"


async def test_background_children_end_with_the_program(tmp_path: Path) -> None:
    family = Family(tmp_path, seconds=0)
    call = asyncio.create_task(resolve(family.name).complete(request()))
    leader = await family.begun()
    assert (await call).text == ""
    await family.ended()
    assert gone(leader)


async def test_children_in_another_session_end_with_the_program() -> None:
    """It holds all pipes, and reads none of a prompt that is longer than a pipe."""
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    before = set(os.listdir("/dev/fd"))
    left = int(await reply(python(leaves), text="x" * 300_000))
    assert set(os.listdir("/dev/fd")) <= before, "pipes are open"
    long = "y" * 300_000
    assert (await reply("exec:cat", text=long)).endswith(long), "its pipes have the same numbers"
    if LINUX:
        assert gone(left)
    else:
        os.kill(left, signal.SIGKILL)


LINUX = sys.platform == "linux"
on_linux = pytest.mark.skipif(not LINUX, reason="elsewhere only the process group is ended")

DAEMONS = {
    "double fork": """
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
    """,
    "deaf, in a clean environment, without its name": """
        if os.fork():
            os._exit(0)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        os.set_inheritable(held, True)
        os.execve("/bin/sh", ["[kworker]", "-c", f"echo here >&{held}; while :; do sleep 60; done"], {})
    """,
    "a chain in which each child outlives its parent": """
        while True:
            if os.fork():
                time.sleep(0.02)
                os._exit(0)
            if not begun:
                begun = os.write(held, b"here\\n")
    """,
    "many": """
        for _ in range(30):
            if not os.fork():
                os.setsid()
                if not os.fork():
                    time.sleep(60)
                os._exit(0)
    """,
    "a reaper of its own": """
        import ctypes
        os.setsid()
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        if not os.fork():
            if os.fork():
                os._exit(0)
            os.setsid()
    """,
}
DAEMON = """
import os, signal, sys, textwrap, time
held, begun = os.open({path!r}, os.O_WRONLY), 0
if not os.fork():
    for number in (0, 1, 2):
        os.close(number)
    exec(textwrap.dedent({code!r}))
    os.write(held, b"here\\n")
    time.sleep(60)
os.read(0, 1)
{then}
"""


class Daemon:
    """A program whose child leaves it in one of several ways. They hold a pipe as long as they live."""

    def __init__(self, directory: Path, code: str, then: str) -> None:
        path = directory / "daemon"
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.name = python(DAEMON.format(path=str(path), code=code, then=then))

    async def begun(self) -> None:
        assert "here" in await asyncio.to_thread(self._read)

    async def ended(self) -> None:
        while await asyncio.to_thread(self._read):
            pass
        os.close(self._pipe)

    def _read(self) -> str:
        assert select.select([self._pipe], [], [], PATIENCE)[0], "a process lives on"
        return os.read(self._pipe, 4096).decode()


@on_linux
@pytest.mark.parametrize("end", ["by itself", "cancelled", "on the spot"])
@pytest.mark.parametrize("code", DAEMONS.values(), ids=DAEMONS.keys())
async def test_daemon_ends_with_the_program(code: str, end: str, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, code, "time.sleep(0.1)" if end == "by itself" else "time.sleep(60)")
    call = asyncio.create_task(ProgramModel(daemon.name).complete(request()))
    await daemon.begun()
    if end == "cancelled":
        call.cancel()
    elif end == "on the spot":
        kill_all()
    await wait_until_done(call)
    await daemon.ended()


KILLED = """
import asyncio, sys
from consilience.models.port import ModelRequest
from consilience.models.program import ProgramModel
asked = ModelRequest(agent="a", key="k", system="", user="What is it?")
asyncio.run(ProgramModel(sys.argv[1]).complete(asked))
"""


@on_linux
async def test_program_and_children_end_when_the_owner_is_killed(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, DAEMONS["double fork"], "time.sleep(60)")
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, daemon.name, env={**os.environ, "PYTHONPATH": PYTHONPATH}
    )
    await daemon.begun()
    owner.kill()
    await owner.wait()
    await daemon.ended()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_program_that_signals_its_supervisor_is_still_ended(number: int, tmp_path: Path) -> None:
    family = Family(tmp_path, first=f"os.kill(os.getppid(), {int(number)})")
    call = asyncio.create_task(ProgramModel(family.name).complete(request()))
    leader = await family.begun()
    call.cancel()
    await wait_until_done(call)
    await family.ended()
    assert gone(leader)


async def test_program_that_kills_its_supervisor_fails_and_its_children_end(tmp_path: Path) -> None:
    family = Family(tmp_path, then="os.kill(os.getppid(), 9)")
    call = asyncio.create_task(ProgramModel(family.name).complete(request()))
    await family.begun()
    await wait_until_done(call)
    assert "ended by signal 9" in str(call.exception())
    await family.ended()


async def test_unusable_program_is_a_rejected_call(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    with pytest.raises(Rejected, match=r"cannot be started: .*No such file or directory: .*script"):
        await reply(f"exec:{script}")
    script.write_bytes(b"\x7fELF no program")
    with pytest.raises(Rejected, match=r"cannot be started: .*Exec format error"):
        await reply(f"exec:{script}")


async def test_program_has_default_signals_and_no_added_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C")
    lines = (await reply("exec:env")).splitlines()
    assert {line.partition("=")[0] for line in lines} <= {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "TZ",
        "TMPDIR",
    }
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")
    assert "LC_CTYPE=C.UTF-8" in await reply("exec:env")
    if LINUX:
        ignored = (await reply("exec:grep SigIgn: /proc/self/status")).split()[1]
        assert int(ignored, 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1 | 1 << signal.SIGTERM - 1) == 0
    await reply("exec:sh -c 'yes | head -1'")


WRAPPER = """
exec 8<&0 9>{pipe}
cat <&8 >/dev/null &
echo $$ >&9
sleep 60
"""


class Wrapper:
    """A shell and its children, one of which waits for the end of its input. They hold a pipe as long as they live."""

    def __init__(self, directory: Path) -> None:
        path = directory / "pipe"
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.name = f"exec:sh -c {shlex.quote(WRAPPER.format(pipe=shlex.quote(str(path))))}"

    def begun(self) -> int:
        """The shell's process id, once all run. The loop makes no turn meanwhile."""
        return int(self._read())

    def ended(self) -> bool:
        """True once all are dead."""
        return self._read() == ""

    def close(self) -> None:
        os.close(self._pipe)

    def _read(self) -> str:
        assert select.select([self._pipe], [], [], PATIENCE)[0], "nothing came, and it was not closed"
        return os.read(self._pipe, 4096).decode()


@pytest.fixture
def wrapper(tmp_path: Path) -> Iterator[Wrapper]:
    wrapper = Wrapper(tmp_path)
    yield wrapper
    wrapper.close()


@pytest.fixture
def program_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs get their directories."""
    program_directories = tmp_path / "rooms"
    program_directories.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(program_directories))
    return program_directories


async def wait_until_done(call: asyncio.Task[Completion]) -> None:
    done, _ = await asyncio.wait({call}, timeout=PATIENCE)
    assert done, "it hangs"


@pytest.mark.parametrize("turns", range(12))
async def test_program_cancelled_while_starting_is_killed(
    turns: int, wrapper: Wrapper, program_directories: Path
) -> None:
    call = asyncio.create_task(ProgramModel(wrapper.name).complete(request()))
    await asyncio.sleep(0)
    leader = wrapper.begun()
    for _ in range(turns):
        await asyncio.sleep(0)
    call.cancel()
    await wait_until_done(call)
    assert call.cancelled()
    assert wrapper.ended()
    assert gone(leader), "no zombie"
    assert os.listdir(program_directories) == []


@pytest.mark.parametrize("turns", range(12))
async def test_immediate_exit_ends_a_program_that_is_starting(
    turns: int, wrapper: Wrapper, program_directories: Path
) -> None:
    call = asyncio.create_task(ProgramModel(wrapper.name).complete(request()))
    await asyncio.sleep(0)
    wrapper.begun()
    for _ in range(turns):
        await asyncio.sleep(0)
    kill_all()
    assert wrapper.ended()
    assert os.listdir(program_directories) == []
    await wait_until_done(call)
    assert isinstance(call.exception(), ServerError)


@pytest.mark.parametrize("end", [asyncio.Task.cancel, lambda call: kill_all()], ids=["cancelled", "on the spot"])
async def test_program_cancelled_in_the_queue_is_not_started(
    end: Callable[[asyncio.Task[Completion]], object], wrapper: Wrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[threading.Thread] = []
    release = threading.Event()
    run = threading.Thread.run

    def late(thread: threading.Thread) -> None:
        held.append(thread)
        release.wait()
        run(thread)

    monkeypatch.setattr(threading.Thread, "run", late)
    call = asyncio.create_task(ProgramModel(wrapper.name).complete(request()))
    await asyncio.sleep(0)
    end(call)
    await asyncio.sleep(0)
    release.set()
    await wait_until_done(call)
    for thread in held:
        thread.join(PATIENCE)
    assert [thread.is_alive() for thread in held] == [False], "it waits for a program to end"
    assert call.cancelled() or isinstance(call.exception(), Rejected)


PROGRAM_ENDED_DURING_START = """
import asyncio, os, sys
from consilience.models.port import ModelRequest
from consilience.models.program import ProgramModel

def begin():
    asked = ModelRequest(agent="a", key="k", system="", user="What is it?")
    return asyncio.create_task(ProgramModel(sys.argv[1]).complete(asked))

async def main():
    before = set(os.listdir("/dev/fd"))
    for turns in range(30):
        call = begin()
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
    assert set(os.listdir("/dev/fd")) == before, "pipes are open"
    global last
    last = begin()
    await asyncio.sleep(0)

asyncio.run(main())
assert last.cancelled()
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no process is left")
"""


def test_program_cancelled_at_once_leaves_no_process_and_no_pipe(wrapper: Wrapper) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM_ENDED_DURING_START, wrapper.name],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
    )
    assert (run.stdout, run.stderr) == ("no process is left\n", "")


async def test_at_most_four_programs_run_at_a_time() -> None:
    model = resolve(python("import time; time.sleep(60)"))
    calls = [asyncio.create_task(model.complete(request())) for _ in range(6)]
    for _ in range(3):
        await asyncio.sleep(0)
    limiter = limiter_for(model.account)
    assert (limiter.in_flight, limiter.waiting) == (4, 2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert limiter.in_flight == 0


def test_invalid_command_is_a_user_error() -> None:
    with pytest.raises(UnknownName, match="names no command"):
        resolve("exec: ")
    with pytest.raises(UnknownName, match="invalid command"):
        resolve("exec:cat 'x")
    with pytest.raises(UnavailableModel, match="no program 'not-a-program-here'"):
        resolve("exec:not-a-program-here -p")


COMMANDS_WITH_SECRET = [
    "cat --api-key abcdef",
    "cat --token=abcdef",
    "env API_KEY=abcdef cat",
    "cat sk-abcdefghijklmnopqrst",
    "SECRET=abcdef cat",
    "cat the-value-of-a-key",
    "cat --pass abcdef",
    "cat --password=abcdef",
    "cat --db-pass abcdef",
    "cat --passphrase abcdef",
    "cat -u me:abcdef",
    "cat -ume:abcdef",
    "cat --user=me:abcdef",
    "cat --auth me:abcdef",
    "cat -u me -p abcdef12",
    "cat -H 'Authorization: Basic bWU6YWJjZGVm'",
    "cat -H 'authorization: abcdef'",
    "cat -H 'Proxy-Authorization: Digest abcdef'",
    "cat -H 'X-Api-Key: abcdef'",
    "cat -H 'X-Goog-Api-Key: abcdef'",
    "cat -H 'Cookie: session=abcdef; b=c'",
    "cat --cookie abcdef",
    "cat https://me:abcdef@host/",
    "cat https://abcdefabcdefabcdefabcdef@host/",
    "cat 'https://host/?key=abcdef&x=1'",
    "cat 'https://host/?access_token=abcdef'",
    "cat AKIAABCDEFGHIJKLMNOP",
    "cat aws_secret_access_key=abcdef/abcdef+abcdef",
    "cat eyJabcdefghi.eyJabcdefghi.abcdef-abcdef",
    "cat ghp_abcdefabcdefabcdef",
    "cat glpat-abcdefabcdef",
    "cat xoxb-abcdefabcdef",
    "cat '-----BEGIN RSA PRIVATE KEY-----\nabcdef'",
    """cat '{"api_key": "abcdef"}'""",
    "sh -c 'exec cat --pass abcdef'",
    """sh -c 'sh -c "exec cat -u me:abcdef"'""",
    "sh -c 'export TOKEN=abcdef; cat'",
    "cat 'it is not closed --pass abcdef",
    "curl -su me:abcdef https://host/",
    "curl -sSu me:abcdef https://host/",
    "env GH_PAT=abcdef cat",
    "cat --pat abcdef",
    "cat -H 'Ocp-Apim-Subscription-Key: abcdef'",
    "cat -H 'X-Auth: abcdef'",
    "curl -d 'grant=password&pwd=abcdef'",
    "env API_KEY=$'abcdef' cat",
    """sh -c "API_KEY=\\$'abcdef' cat\"""",
    "sh -c 'TOKEN=$X-abcdefgh12345 cat'",
    "cat -H 'Authorization: Bearer $X-abcdefgh12345'",
    "python3 -c \"token = 'abcdef'\"",
    "cat sk-or-v1-abcdef0123456789abcdef",
]


@pytest.mark.parametrize("command", COMMANDS_WITH_SECRET)
def test_secret_in_a_command_is_refused_without_repeating_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "the-value-of-a-key")
    with pytest.raises(UserError, match=r"looks like a secret|invalid command") as refused:
        resolve(f"exec:{command}")
    assert not [word for word in ("abcdef", "ABCDEF", "YWJj", "the-value") if word in str(refused.value)]


@pytest.mark.parametrize(
    "command",
    [
        "cat --max-tokens 100 --key-file /x --tokens=5 KEY",
        "cat -p",
        "cat -p --output-format json",
        "cat -p 'Answer in one sentence.'",
        "cat -p work",
        "cat -p 8080 -u me",
        "cat -u me",
        "cat --user 1000:1000",
        "cat --token-limit 5 --password-file /x/y --no-auth --auth oauth",
        "sh -c 'mkdir -p out && exec cat'",
        "sh -c 'exec cat --token $AGENT_TOKEN'",
        """sh -c 'exec cat --token "$AGENT_TOKEN" -u "me:$PASSWORD" -H "Authorization: Bearer ${TOKEN}"'""",
        "sh -c 'TOKEN=$(cat /x/y) exec cat'",
        "cat http://host:8080/v1 https://me@host/ ssh://git@host/x",
        "cat 'a basic understanding: keys, tokens and passwords'",
        *(
            f"cat {word}"
            for word in (
                "/x/key_value_server_main.py",
                "key-value-store-server",
                "/opt/sk-models-server/run",
                "hf_transformers_runner",
                "fw-update-manager-cli",
                "exec -p work2025eu",
                "--profile work -p prod2024eu",
                "-p summarise2024",
                "--key=2",
                "-pass 1",
                "--key work",
                "--max-token=1000",
            )
        ),
        """env python3 -c "import os; token=os.environ['T']\"""",
        """python3 -c "print(max(x, key=abs))\"""",
        """env node -e "const token = process.env.T\"""",
        "sh -c 'API_KEY=`cat k` foo'",
        "sh -c 'token=$(cat k) && foo --token $token'",
        "env docker run -u app:app img",
        "env curl -su me https://host/",
    ],
)
def test_ordinary_options_are_not_taken_for_secrets(command: str) -> None:
    name = resolve(f"exec:{command}").name
    assert name == f"exec:{command}"
    assert without_secret(name) == name
    assert not paid(name)


async def test_program_in_a_seat_replies_and_replays(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    others = ScriptedModel(lambda r: f"{r.agent} on {r.key}")
    program = python("print('The program says yes.')")
    report = await consilience.deliberate(
        "Is it so?",
        consilience.Emergence(children=2, max_rounds=1),
        model={"L1N1": others, "L2N1": program, "L2N2": others},
        store=store,
    )
    assert report.stop_reason != "failed"
    assert {agent.id: agent.model for agent in report.agents}["L2N1"] == program
    assert report.ledger.actual.cost is None
    assert any("price of a model is not known" in warning for warning in report.warnings)
    replayed = await consilience.replay(report.session, store=store)
    assert replayed.digest() == report.digest()
    store.close()
