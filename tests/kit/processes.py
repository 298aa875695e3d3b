"""Runs a case in a process of its own: `python child.py CASE JOURNAL LOG start|resume`. Every request sent is a line in the log."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from consilience.engine import runner
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from kit.cases import CASES
from kit.runs import TASK, seated, to_the_end


class Logged(ScriptedModel):
    def __init__(self, script, log: Path) -> None:  # type: ignore[no-untyped-def]
        super().__init__(script)
        self._log = log

    async def complete(self, request: ModelRequest) -> Completion:
        with self._log.open("a") as log:
            log.write(f"{request.key} {request.attempt}\n")
        return await super().complete(request)


async def main(name: str, journal: str, log: str, how: str) -> None:
    case = next(case for case in CASES if case.name == name)
    store = SqliteStore(journal)
    seats = seated(case, Logged(case.script, Path(log)))
    options = Options(patience=0)
    if how == "start":
        begun = runner.start(TASK, case.protocol, models=seats, store=store, session="s", options=options)
    else:
        begun = runner.resume("s", store=store, models=seats, options=options)
    print((await to_the_end(store, seats, begun)).digest())
    store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
