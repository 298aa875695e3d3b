"""Memory of a long session, in fresh processes: `python benchmarks/memory.py run|resume PATH ROUNDS`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import consilience
from consilience.engine.faults import Crash, Fault
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from rows import EXPONENT, OURS, Results, Row, Series, exponent
from workload import TASK, emergence, fresh, reply

GROUP = "memory"
ROUNDS = (12, 57)
"""With 400 leaves, about 10,000 and 50,000 events."""
MAX_RUN_MB, MAX_RESUME_MB = 350, 200


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    if not Path("/proc/self/status").exists():
        results.skip("memory is read from /proc, which this system lacks.")
        return
    sizes, seconds = [], []
    for rounds in (2, 4) if quick else ROUNDS:
        path = fresh(directory)
        run = _apart("run", path, rounds)
        resumed = _apart("resume", path, rounds)
        sizes.append(resumed["events"])
        seconds.append(resumed["seconds"])
    what = f"{sizes[-1]:,.0f} events"
    each = ", ".join(f"{size:,.0f} events: {took:.2f} s" for size, took in zip(sizes, seconds, strict=True))
    imported = f"{resumed['imported']:.0f} MB of them before the journal is opened"
    growth = f"growth of CPU of a resume to its first call, {sizes[0]:,.0f} to {what}"
    results.add(
        [
            Row(GROUP, f"most memory of a run of {what}", "MB", Series(OURS, (run["most"],)), MAX_RUN_MB),
            Row(
                GROUP,
                f"most memory of a resume of {what}, to its first call",
                "MB",
                Series(OURS, (resumed["first"],)),
                MAX_RESUME_MB,
            ),
            Row(GROUP, "the same, to its end", "MB", Series(OURS, (resumed["most"],)), MAX_RUN_MB, notes=(imported,)),
            Row(GROUP, growth, EXPONENT, Series(OURS, (exponent(sizes, seconds),)), 1.1, notes=(each,)),
        ]
    )


def _apart(what: str, path: Path, rounds: int) -> dict[str, float]:
    command = [sys.executable, __file__, what, str(path), str(rounds)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def _most() -> float:
    """Peak resident memory of this process. `getrusage` would begin with that of the process which started it."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class Forgetful(ScriptedModel):
    """Keeps no list of its requests."""

    async def complete(self, request: ModelRequest) -> Completion:
        self.requests.clear()
        return await super().complete(request)


async def _run(path: Path, rounds: int) -> dict[str, float]:
    """Run until the last call, and break off."""
    options = Options(faults=Fault("closing_call", nth=rounds).hit)
    with suppress(Crash):
        await consilience.deliberate(
            TASK,
            emergence(20, 3, rounds),
            model=Forgetful(reply),
            store=SqliteStore(path),
            session="s",
            options=options,
        )
    return {"most": _most()}


async def _resume(path: Path) -> dict[str, float]:
    figures: dict[str, float] = {"imported": _most()}

    def noted(request: ModelRequest) -> str:
        figures.setdefault("first", _most())
        figures.setdefault("seconds", time.process_time() - began)
        return reply(request)

    began = time.process_time()
    store = SqliteStore(path)
    await consilience.resume("s", store=store, model=Forgetful(noted))
    figures["most"] = _most()
    figures["events"] = len(store.read("s"))
    store.close()
    return figures


if __name__ == "__main__":
    what, path, rounds = sys.argv[1:]
    print(json.dumps(asyncio.run(_run(Path(path), int(rounds)) if what == "run" else _resume(Path(path)))))
