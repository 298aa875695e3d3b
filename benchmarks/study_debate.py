"""What a debate recovers of planted worlds: `make study-debate`, or `python benchmarks/study_debate.py [--worlds N] [--json PATH]`.

Worlds are planted from fixed seeds: `REPORTED` for what is published, `DEVELOPED` (`--develop`) for work on the protocol, so that
nothing is tuned on what is reported. A quarter of the worlds agree on everything; the others are divided. Half as many further
worlds have one dissenter. Sycophancy, ballot
noise and misreport go round their grids, independently of the seed. Every figure is a mean over worlds with an interval of 95 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import consilience
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.debate import Debate, DebateReport
from consilience.protocols.debate.moves import FIRM
from consilience.protocols.debate.reasons import MIN_FLIPS
from simulation import Interval, SimulatedModel, World, adjusted_rand, bootstrap, f1, plant
from simulation.worlds import PROPOSITION
from study_debaters import simulate

REPORTED, DEVELOPED = 20_261_123, 1
"""First seeds."""
DISSENTERS = 10_000_000
"""Added to the first seed for worlds in which one agent stands against all others: half as many as the rest."""
SYCOPHANCY, NOISE, MISREPORT = (0.0, 0.3, 0.6, 0.9), (0.0, 0.1, 0.2, 0.3), (0.0, 0.2)
MAX_TEST_CALLS = 48


@dataclass(frozen=True)
class Recovery:
    """What one debate recovered of its world. None where the world or the debate has nothing to compare."""

    seed: int
    agents: int
    sycophancy: float
    noise: float
    misreport: float
    seconds: float
    """Of CPU."""
    calls: int
    test_calls: int
    rechecks: int
    """Calls that asked answers of final ballots again."""
    messages: int
    threads: int
    planted: int
    named: int
    agreed: bool
    """Whether the agents believe alike on all that their final ballots asked."""
    consensus: bool
    """Whether the debate reported a consensus."""
    public: bool | None
    """Whether the last sides taken in public were unanimous on every question; None where no two agents took one."""
    precision: float | None
    recall: float | None
    f1: float | None
    f1_declared: float | None
    """By declared flips alone: the validated cruxes."""
    opened: float | None
    """Share of the planted cruxes that got a crux record, valid or not."""
    rand: float | None
    declared_right: float | None
    observed_right: float | None
    """Share of tested pairs of agent and crux whose flip was declared, or observed, as it is in the world."""
    unconfirmed: int
    """Statements of common ground to which not every agent answered YES in its final ballot."""
    common: int
    common_right: float | None
    """Share of the common ground that all agents believe alike."""


def world_of(n: int, first: int) -> World:
    """The n-th world of a study. The grids have coprime or nested periods, so that every combination occurs."""
    return plant(
        first + n,
        consensus=n % 4 == 3,
        sycophancy=SYCOPHANCY[(n // 4) % 4],
        ballot_noise=NOISE[(n // 16) % 4],
        misreport=MISREPORT[(n // 64 + n // 4) % 2],
    )


def dissenter_of(n: int, first: int) -> World:
    """The n-th world in which one agent stands against all others."""
    return plant(
        first + DISSENTERS + n,
        dissenter=True,
        sycophancy=SYCOPHANCY[n % 4],
        ballot_noise=NOISE[(n // 4) % 4],
    )


async def run(world: World) -> Recovery:
    """Debate a world and compare."""
    agents = len(world.minds)
    tests = max(0, min(4, (MAX_TEST_CALLS // agents - 1) // 2))
    protocol = Debate(debaters=agents, as_is=True, max_duration=900, test_cruxes=tests)
    model, store = SimulatedModel(world, simulate), SqliteStore(":memory:")
    began = time.process_time()
    report = await consilience.deliberate(PROPOSITION, protocol, model=model, store=store, seed=world.seed)
    seconds = time.process_time() - began
    store.close()
    assert isinstance(report, DebateReport)
    return compare(model, report, seconds)


def compare(model: SimulatedModel, report: DebateReport, seconds: float) -> Recovery:
    world = model.world
    cruxes = {thread.id: thread.crux for thread in report.threads if thread.crux}
    asked = {id: question for id, crux in cruxes.items() if (question := question_of(world, crux.question))}
    validated = {asked[id] for id, crux in cruxes.items() if crux.validated and id in asked}
    named = {asked[id] for id in cruxes if id in asked and is_named(report, id)}
    precision, recall, score = f1(named, world.cruxes)
    declared, observed = flips(world, report, asked)
    camps = {agent: n for n, coalition in enumerate(report.coalitions) for agent in coalition.members}
    groups = [camps.get(agent, -1 - n) for n, agent in enumerate(world.minds)]
    public = [
        {c.side for c in thread.commitments} & set(FIRM) for thread in report.threads if len(thread.commitments) > 1
    ]
    statements = [question_of(world, common.statement) for common in report.common_ground]
    ballots = [ballot for ballot in report.ballots if ballot.step == 1]
    on_ballot = {q for ballot in ballots for id in ballot.questions if (q := thread_question(world, report, id))}
    divided = not world.cruxes
    return Recovery(
        seed=world.seed,
        agents=len(world.minds),
        sycophancy=world.sycophancy,
        noise=world.ballot_noise,
        misreport=world.misreport,
        seconds=seconds,
        calls=len(model.requests),
        test_calls=sum(request.key.startswith("test/") for request in model.requests),
        rechecks=sum(request.key.startswith("recheck/") for request in model.requests),
        messages=report.steps,
        threads=len(report.threads),
        planted=len(world.cruxes),
        named=len(named),
        agreed=all(len(world.sides(question)) == 1 for question in (PROPOSITION, *on_ballot)),
        consensus=report.regime == "consensus",
        public=all(len(sides) == 1 for sides in public) if public else None,
        precision=None if divided else precision,
        recall=None if divided else recall,
        f1=None if divided else score,
        f1_declared=None if divided else f1(validated, world.cruxes)[2],
        opened=None if divided else f1(set(asked.values()), world.cruxes)[1],
        rand=None if divided else adjusted_rand(groups, world.camps),
        declared_right=declared,
        observed_right=observed,
        unconfirmed=unconfirmed(model, report),
        common=len(statements),
        common_right=sum(bool(q and q in world.agreed) for q in statements) / len(statements) if statements else None,
    )


def unconfirmed(model: SimulatedModel, report: DebateReport) -> int:
    """Count statements of common ground without a typed YES of every agent, by the replies themselves."""
    yes: Counter[str] = Counter()
    for request in model.requests:
        if request.key.startswith("final/"):
            reply = json.loads(model.reply(request))
            asked = re.findall(r"^(c\d+): (.+?) YES", request.text, re.MULTILINE)
            yes.update(statement for name, statement in asked if reply.get(name) == "YES")
    return sum(yes[common.statement] < len(model.world.minds) for common in report.common_ground)


def question_of(world: World, text: str) -> str | None:
    return next((statement.question for statement in world.statements if statement.question in text), None)


def thread_question(world: World, report: DebateReport, id: str) -> str | None:
    thread = next((thread for thread in report.threads if thread.id == id), None)
    return question_of(world, thread.question or "") if thread else None


def is_named(report: DebateReport, id: str) -> bool:
    """Whether a debate names a crux: at least two answers rest on it by declared flips, corrected by observed ones.

    What an agent showed whose ballot moved under the placebo, too, corrects nothing. Without tests: whether it is validated.
    """
    crux = next(thread.crux for thread in report.threads if thread.id == id)
    records = report.flip_records.get(id)
    if not records:
        return crux is not None and crux.validated
    corrected = [r.declared if r.observed is None or r.placebo else r.observed for r in records]
    return sum(bool(flip) for flip in corrected) >= MIN_FLIPS


def flips(world: World, report: DebateReport, asked: dict[str, str]) -> tuple[float | None, float | None]:
    """Shares of flips that were declared and observed as they are planted."""
    declared, observed = [], []
    for id, records in report.flip_records.items():
        for record in records:
            if id not in asked:
                continue
            rests = asked[id] in world.minds[record.agent].grounds
            declared += [] if record.declared is None else [record.declared == rests]
            observed += [] if record.observed is None else [record.observed == rests]
    return tuple(sum(records) / len(records) if records else None for records in (declared, observed))  # type: ignore[return-value]


def rows(recoveries: Sequence[Recovery], alone: Sequence[Recovery]) -> list[tuple[str, Interval | None, str]]:
    """Name, figure and target of every line that is printed; `alone` are the worlds with one dissenter."""

    def mean(name: str, of: Sequence[Recovery] = recoveries) -> Interval | None:
        values = [getattr(recovery, name) for recovery in of]
        return bootstrap([float(value) for value in values if value is not None])

    quiet, noisy = [item for item in recoveries if not item.noise], [item for item in recoveries if item.noise]
    wrong = [recovery for recovery in recoveries if recovery.misreport]
    lines = [
        ("false consensus, noiseless ballots", mean("consensus", _split(quiet)), "0"),
        ("false consensus, noise 0.1 to 0.3", mean("consensus", _split(noisy)), "≤ 0.05"),
        ("recall of true consensus, noiseless ballots", mean("consensus", _agreed(quiet)), "≥ 0.95"),
        ("recall of true consensus, noise 0.1 to 0.3", mean("consensus", _agreed(noisy)), "≥ 0.95"),
        ("the same with one dissenter", mean("consensus", [recovery for recovery in alone if recovery.noise]), ""),
        ("calls that ask ballots again, noise 0.1 to 0.3", mean("rechecks", noisy), ""),
        ("unanimous in public though divided", mean("public", _split(recoveries)), ""),
        ("crux precision", mean("precision"), ""),
        ("crux recall", mean("recall"), ""),
        ("crux F1", mean("f1"), "≥ 0.75"),
        ("crux F1 by declared flips alone", mean("f1_declared"), ""),
        ("planted cruxes that came to a crux record", mean("opened"), ""),
        ("coalitions, adjusted Rand index", mean("rand"), "≥ 0.45"),
        ("flips declared right where agents misreport", mean("declared_right", wrong), ""),
        ("flips observed right in the same worlds", mean("observed_right", wrong), ""),
        ("crux F1 where agents misreport", mean("f1", wrong), ""),
        ("crux F1 there by declared flips alone", mean("f1_declared", wrong), ""),
        ("common ground without every typed yes", mean("unconfirmed"), "0"),
        ("statements of common ground", mean("common"), ""),
        ("common ground that all believe", mean("common_right"), ""),
        ("test calls", mean("test_calls"), f"≤ {MAX_TEST_CALLS}"),
        ("calls", mean("calls"), ""),
        ("messages", mean("messages"), ""),
        ("seconds of CPU", mean("seconds"), ""),
    ]
    for name, grid in (("sycophancy", SYCOPHANCY), ("noise", NOISE), ("misreport", MISREPORT)):
        for value in grid:
            part = [recovery for recovery in recoveries if getattr(recovery, name) == value]
            lines.append((f"crux F1 at {name} {value:g}", mean("f1", part), ""))
            lines.append((f"adjusted Rand index at {name} {value:g}", mean("rand", part), ""))
            lines.append((f"false consensus at {name} {value:g}", mean("consensus", _split(part)), ""))
            lines.append((f"recall of true consensus at {name} {value:g}", mean("consensus", _agreed(part)), ""))
    return lines


def _split(recoveries: Sequence[Recovery]) -> list[Recovery]:
    return [recovery for recovery in recoveries if not recovery.agreed]


def _agreed(recoveries: Sequence[Recovery]) -> list[Recovery]:
    return [recovery for recovery in recoveries if recovery.agreed]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a debate recovers of planted worlds.")
    parser.add_argument("--worlds", type=int, default=208, metavar="N", help="how many (default 208)")
    parser.add_argument("--develop", action="store_true", help="other seeds than those of the published figures")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every world's figures")
    args = parser.parse_args()
    first = DEVELOPED if args.develop else REPORTED
    worlds = [world_of(n, first) for n in range(args.worlds)]
    worlds += [dissenter_of(n, first) for n in range(args.worlds // 2)]
    recoveries = []
    for n, world in enumerate(worlds, 1):
        recoveries.append(asyncio.run(run(world)))
        if sys.stderr.isatty():
            print(f"\r{n} of {len(worlds)} worlds", end="", file=sys.stderr, flush=True)
    print(f"{args.worlds} worlds from seed {first}\n")
    for name, figure, target in rows(recoveries[: args.worlds], recoveries[args.worlds :]):
        print(f"{name:<48} {figure or '–'!s:<42} {f'target {target}' if target else ''}".rstrip())
    if args.json:
        args.json.write_text(
            json.dumps([asdict(recovery) for recovery in recoveries], indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
