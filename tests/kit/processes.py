"""Cases in processes of their own, which may be killed, starved of disk, or started at the same moment.

Each is a real process: it opens the journal, runs, and ends or is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from consilience.domain.errors import ConsilienceError
from consilience.domain.events import AnyEvent
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.cases import CASES
from kit.forks import Fork
from kit.runs import TASK, seated, to_the_end

CHILD = "from kit.processes import main; main()"
PATIENCE = 300
"""Seconds after which a child that hangs is ended."""


@dataclass(frozen=True)
class Run:
    """A process to be: `start`, `resume` or `read`, killed at `fault` or so many seconds after it began, unable to make a file
    longer than `most` bytes. One that reads goes on as long as the others of its step."""

    how: str = "resume"
    fault: str = ""
    most: int | None = None
    kill_after: float | None = None


@dataclass
class Ended:
    """How it ended: `signal` where it was killed, else the report's `digest`, or the `error` (its class) and what it `said`.

    `asked` are the requests that all processes of its step sent, as `KEY ATTEMPT`.
    """

    pid: int
    signal: int | None = None
    digest: str | None = None
    error: str | None = None
    said: str = ""
    asked: list[str] = field(default_factory=list)

    @property
    def killed(self) -> bool:
        return self.signal == signal.SIGKILL


class Processes:
    """Runs steps one after the other; the runs of one step at the same moment."""

    def step(self, case: str, journal: Path, *runs: Run) -> list[Ended]:
        """Run these at the same moment; returns how each ended, in the order given."""
        log = journal.with_suffix(".log")
        before = len(log.read_text().splitlines()) if log.exists() else 0
        gate, opener = os.pipe()
        children = []
        for n, run in enumerate(runs):
            result = journal.with_suffix(f".result-{n}")
            result.unlink(missing_ok=True)
            order = json.dumps([case, str(journal), str(log), asdict(run), str(result)])
            children.append((Fork([sys.executable, "-c", CHILD, order], stdin=gate), result))
        os.close(gate)
        os.close(opener)
        for (process, _), run in zip(children, runs, strict=True):
            if run.kill_after is not None:
                time.sleep(run.kill_after)
                process.kill()
        running = [_wait(*child) if run.how != "read" else None for child, run in zip(children, runs, strict=True)]
        journal.with_suffix(".over").touch()
        ended = [process or _wait(*child) for process, child in zip(running, children, strict=True)]
        journal.with_suffix(".over").unlink()
        asked = log.read_text().splitlines()[before:] if log.exists() else []
        for finished in ended:
            finished.asked = asked
        return ended

    def one(self, case: str, journal: Path, run: Run) -> Ended:
        (ended,) = self.step(case, journal, run)
        return ended


def _wait(process: Fork, result: Path) -> Ended:
    code = process.wait()
    if code < 0:
        return Ended(process.pid, signal=-code)
    return Ended(process.pid, **json.loads(result.read_text()))


# --- in the processes


class Logged(ScriptedModel):
    """Writes every request it is sent into a file."""

    def __init__(self, script, log: Path) -> None:  # type: ignore[no-untyped-def]
        super().__init__(script)
        self._log = log

    async def complete(self, request: ModelRequest) -> Completion:
        with self._log.open("a") as log:
            log.write(f"{request.key} {request.attempt}\n")
        return await super().complete(request)


def main() -> None:
    """Run what the first argument says, when standard input is closed: all processes of the step are there."""
    case, *paths, fields_of_run, last = json.loads(sys.argv[1])
    (journal, log), run, result = map(Path, paths), Run(**fields_of_run), Path(last)
    fields: dict[str, str] = {}
    sys.stdin.read()
    try:
        signal.alarm(PATIENCE)
        if run.fault:
            os.environ["CONSILIENCE_FAULT"] = run.fault
        if run.most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (run.most, resource.RLIM_INFINITY))
        fields["digest"] = _read(journal) if run.how == "read" else asyncio.run(_run(case, journal, log, run.how))
    except BaseException as error:
        fields = {"error": type(error).__name__, "said": str(error)}
        if not isinstance(error, ConsilienceError):
            import traceback

            traceback.print_exception(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        result.write_text(json.dumps(fields))
        os._exit(0)


def _read(journal: Path) -> str:
    """Read the session again and again while others write it: what was there stays. Returns how many events were seen."""
    while not journal.exists():
        if journal.with_suffix(".over").exists():
            return "0"
        time.sleep(0.001)
    store, seen = SqliteStore(journal), list[AnyEvent]()
    over = False
    while not over:
        over = journal.with_suffix(".over").exists()
        events = store.read("s") if "s" in store.sessions() else []
        assert events[: len(seen)] == seen, "what was read once is read again"
        seen = events
    store.close()
    return str(len(seen))


async def _run(name: str, journal: Path, log: Path, how: str) -> str:
    case = next(case for case in CASES if case.name == name)
    store = SqliteStore(journal)
    seats = seated(case, Logged(case.script, log))
    options = Options(patience=0)
    if how == "start":
        begun = runner.start(
            TASK, case.protocol, sources=case.sources, models=seats, store=store, session="s", options=options
        )
    else:
        begun = runner.resume("s", store=store, models=seats, options=options)
    digest = (await to_the_end(store, seats, begun)).digest()
    store.close()
    return digest
