"""How tests are dealt to workers: file by file, the files with real processes in two lanes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

MARKS = re.compile(r"\bmark\.(processes|local_model|packaging)\b")
"""Of tests that start real processes and wait for them."""
BROWSERS = "browser"
"""The directory of those that start a browser."""


@cache
def starts_processes(file: Path) -> bool:
    return MARKS.search(file.read_text()) is not None


def order(file: Path) -> tuple[bool, bool]:
    """Sort key: the lanes of the processes first, then the tests of the whole project, whose single tests take longest."""
    return not starts_processes(file), file.parent.name != "tests"


class Lanes(LoadScopeScheduling):
    """Browsers in one lane, all other processes in another, each on a worker of its own: together they take as long as all the
    rest, and mostly wait.

    By the text of the files: pytest 9.2 with xdist 3.8 does not group by mark (pytest-xdist, issue 1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not starts_processes(self.config.rootpath / file):
            return file
        return BROWSERS if Path(file).parent.name == BROWSERS else "processes"
