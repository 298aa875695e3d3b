"""How long a person waits for nothing: the help of the command, and the import, in fresh processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from rows import OURS, Results, Row, Series

GROUP = "startup"
PROCESSES = 7


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    bare = [sys.executable, "-c", "pass"]
    imported = [sys.executable, "-c", "import consilience"]
    pydantic = [sys.executable, "-c", "from pydantic import BaseModel"]
    seconds = _in_turn({"import": imported, "bare": bare, "pydantic": pydantic}, PROCESSES)
    beside: tuple[Series, ...] = (
        Series("the bare interpreter", tuple(seconds["bare"])),
        Series("from pydantic import BaseModel", tuple(seconds["pydantic"])),
    )
    results.add([Row(GROUP, "import consilience", "s", Series(OURS, tuple(seconds["import"])), 0.15, beside)])
    command = Path(sys.executable).parent / "consilience"
    if not command.exists():
        results.skip(f"start-up of `consilience --help`: {command} is not installed")
        return
    seconds = _in_turn({"help": [str(command), "--help"], "bare": bare}, PROCESSES)
    beside = (Series("the bare interpreter", tuple(seconds["bare"])),)
    results.add([Row(GROUP, "consilience --help", "s", Series(OURS, tuple(seconds["help"])), 0.25, beside)])


def _in_turn(commands: dict[str, list[str]], times: int) -> dict[str, list[float]]:
    """Wall seconds of each command, one after the other, `times` times; one run before, not counted, fills the caches.

    Raises `CalledProcessError` if a command fails.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for n in range(times + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            if n:
                seconds[name].append(time.perf_counter() - began)
    return seconds
