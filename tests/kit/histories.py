"""What real processes leave of one session, checked after each of them: killed where a fault says, or at any instant."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from consilience.domain.events import AnyEvent, canonical_digest
from consilience.journal.sqlite import SqliteStore
from kit.cases import CALLING, CASES, Case
from kit.processes import Ended, Processes, Run
from kit.runs import run

SESSION = "s"


@cache
def reference(name: str) -> tuple[str, str]:
    """Digests of the canonical journal and the report of the case when nothing goes wrong."""
    case = next(case for case in CASES if case.name == name)
    return asyncio.run(run(case)).same


@dataclass
class History:
    """What each process of one session left behind, seen from outside after it ended."""

    case: Case
    journal: Path
    ended: list[Ended] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)
    """Attempts of calls whose reply is recorded."""
    done: set[str] = field(default_factory=set)
    """These, and those whose reply is kept until it is recorded."""
    flights: list[tuple[str, str]] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    """Keys of calls that were in flight whenever a process ended, whose agents are models."""

    def add(self, ended: Ended) -> None:
        """Take the next process, after checking it against what was there before it."""
        again = self.done & set(ended.asked)
        assert not again, f"completed calls were asked again: {again}"
        repeated = {line for earlier in self.ended for line in earlier.asked} & set(ended.asked)
        keys = {line.partition(" ")[0] for line in repeated}
        assert keys <= set(self.lost), "only a call in flight may be paid for twice"
        assert max(Counter(ended.asked).values(), default=1) == 1, "one process asks nothing twice"
        self.ended.append(ended)
        store = SqliteStore(self.journal)
        events = store.read("s")
        self.recorded = {f"{e.key} {e.attempt}" for e in events if e.type in ("call_completed", "reply_rejected")}
        kept = {arrival.key: arrival.attempt for arrival in store.arrivals("s")}
        self.done = self.recorded | {f"{key} {attempt}" for key, attempt in kept.items()}
        left = [f for f in store.flights("s") if f.agent != self.case.outside and f.key not in kept]
        reported = Counter(event.key for event in events if event.type == "call_lost")
        # one that is counted and not reported yet was left by an earlier process, and this one died before it could say so
        self.lost.update(flight.key for flight in left if self.lost[flight.key] == reported[flight.key])
        assert store.holder("s") is None, "the lease is given back by whoever ended it"
        store.close()

    def check_the_end(self) -> list[AnyEvent]:
        """The last one ended as if nothing had happened."""
        assert self.ended[-1].digest is not None, self.ended[-1]
        store = SqliteStore(self.journal)
        events = store.read("s")
        assert store.flights("s") == []
        store.close()
        assert (canonical_digest(events), self.ended[-1].digest) == reference(self.case.name)
        reported = Counter(event.key for event in events if event.type == "call_lost")
        assert reported == self.lost, "every call in flight at a death is reported as lost, once"
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        return events


@cache
def seconds(name: str, processes: Processes) -> float:
    """How long a process of the case takes that nobody kills."""
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        processes.one(name, Path(directory) / "j.db", Run("start"))
        return time.perf_counter() - began


def kill_at_random(seed: int, directory: Path, processes: Processes) -> History:
    """Kill a session up to four times, each time at an instant of its own, while another process reads it; then let it end."""
    dice = random.Random(seed)
    case = dice.choice(CALLING)
    longest = seconds(case.name, processes)
    history = History(case, directory / "j.db")
    for _ in range(dice.randint(1, 4)):
        run = Run(_next(history.journal), kill_after=dice.uniform(0, 1.1 * longest))
        ended, reader = processes.step(case.name, history.journal, run, Run("read"))
        assert reader.error is None, f"a reader was told {reader.error}: {reader.said}"
        if _next(history.journal) == "start":
            assert ended.killed
            assert not ended.asked, "nothing is asked before the session is on record"
        else:
            history.add(ended)
    history.add(processes.one(case.name, history.journal, Run(_next(history.journal))))
    history.check_the_end()
    return history


def _next(journal: Path) -> str:
    """How a process takes the session up: one that was killed before its beginning was on record has to be begun anew."""
    store = SqliteStore(journal)
    try:
        if SESSION not in store.sessions():
            return "start"
        if store.beginning(SESSION) is None:
            store.admin.remove([SESSION])
            return "start"
        return "resume"
    finally:
        store.close()


def main() -> None:
    """`python tests/kit/histories.py --minutes 20`: kill at random for so long, and count."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    args = parser.parse_args()
    processes, end = Processes(), time.monotonic() + 60 * args.minutes
    counted: Counter[str] = Counter()
    seed = args.seed
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as directory:
            try:
                history = kill_at_random(seed, Path(directory), processes)
                counted["kills"] += sum(ended.killed for ended in history.ended)
                counted["calls in flight at a kill"] += sum(history.lost.values())
            except AssertionError as failed:
                counted["LOSSES"] += 1
                print(f"seed {seed}: {failed}", file=sys.stderr, flush=True)
        counted["sessions"] += 1
        seed += 1
    print(dict(counted))


if __name__ == "__main__":
    main()
