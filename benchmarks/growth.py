"""How CPU, wall and journal grow: with messages from 10 to 10,000, with agents from 3 to 500, with the width of a family.

An exponent is fitted over the three largest sizes: what a run costs however small it is would make it look better than it is.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import chats
from consilience.engine.protocol import Protocol
from rows import EXPONENT, OURS, Results, Row, Series, exponent, short
from workload import InTurn, OneGather, emergence, fresh, run, settle_memory

GROUP = "growth"
TARGET = 1.1
TAIL = 3
FILE = "the file"
SHORT = 1_000
"""Calls of a run that is repeated five times, a longer one twice; the best is kept."""


@dataclass(frozen=True)
class Grown:
    """One size: seconds of the best run, and bytes of the file with its write-ahead log merged in."""

    size: int
    calls: int
    cpu: float
    wall: float
    file: int


@dataclass(frozen=True)
class Axis:
    """What grows: `name` says in words how, `sizes` in what, `made` what is run at a size."""

    name: str
    sizes: Sequence[int]
    made: Callable[[int], Protocol]
    counted: str = "calls"
    figures: tuple[str, ...] = ("CPU", FILE)


def axes(quick: bool) -> list[Axis]:
    return [
        Axis(
            "{first} to {last} messages of 10 agents",
            (10, 100, 1_000) if quick else (10, 100, 1_000, 10_000),
            lambda n: InTurn(size=10, messages=n, at_once=10),
        ),
        Axis(
            "emergence, 100 leaves, {first} to {last} calls",
            (1, 4, 12) if quick else (1, 4, 13, 44),
            lambda rounds: emergence(10, 3, rounds),
        ),
        Axis(
            "emergence, 3 children a family, {first} to {last} agents",
            (2, 3, 4, 5) if quick else (2, 3, 4, 5, 6),
            lambda depth: emergence(3, depth, 2),
            "agents",
            ("CPU", "wall", FILE),
        ),
        Axis(
            "one gather, {first} to {last} agents",
            (3, 10, 30, 100, 200, 500),
            lambda n: OneGather(size=n),
            "agents",
            ("CPU", "wall", FILE),
        ),
        Axis(
            "emergence, one family, {first} to {last} agents",
            (3, 8, 16, 32, 64),
            lambda children: emergence(children, 2, 2),
            "agents",
        ),
    ]


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    asyncio.run(_grown(InTurn(messages=20), 20, directory))  # warms up
    chat = asyncio.run(_chats((10, 30, 100, 300) if quick else (10, 100, 300, 1_000))) if chats.installed() else []
    if not chat:
        results.skip(chats.MISSING)
    for n, axis in enumerate(axes(quick)):
        grown = [asyncio.run(_best(axis.made(size), size, directory)) for size in axis.sizes]
        results.add(_row(axis, figure, grown, chat if n == 0 else []) for figure in axis.figures)


async def _best(protocol: Protocol, size: int, directory: Path) -> Grown:
    first = await _grown(protocol, size, directory)
    runs = [first, *[await _grown(protocol, size, directory) for _ in range(4 if first.calls < SHORT else 1)]]
    return Grown(size, first.calls, min(r.cpu for r in runs), min(r.wall for r in runs), first.file)


async def _grown(protocol: Protocol, size: int, directory: Path) -> Grown:
    path = fresh(directory)
    settle_memory()
    ran = await run(protocol, path)
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()
    return Grown(size, ran.calls, ran.cpu, ran.wall, path.stat().st_size)


async def _chats(sizes: Sequence[int]) -> list[Grown]:
    await chats.run(10, 20)
    figures = []
    for size in sizes:
        settle_memory()
        made = await chats.run(10, size, save=True)
        figures.append(Grown(size, size, made.ran.cpu, made.ran.wall, made.saved))
    return figures


def _row(axis: Axis, figure: str, grown: list[Grown], chat: list[Grown]) -> Row:
    agents = [len(axis.made(g.size).topology().agents) for g in grown]
    counted = agents if axis.counted == "agents" else [g.calls for g in grown]
    beside: tuple[Series, ...] = ()
    if chat:
        what = chats.SAVED if figure == FILE else chats.CHAT
        beside = (Series(f"{what}, to {chat[-1].calls:,} messages", (_tail(_calls(chat), _figures(chat, figure)),)),)
    figures = _figures(grown, figure)
    unit = "B" if figure == FILE else "ms"
    each = ", ".join(
        f"{count:,}: {short(value / g.calls * (1 if figure == FILE else 1000))}"
        for count, value, g in zip(counted, figures, grown, strict=True)
    )
    name = axis.name.format(first=f"{counted[0]:,}", last=f"{counted[-1]:,}")
    return Row(
        GROUP,
        f"growth of {figure}: {name}",
        EXPONENT,
        Series(OURS, (_tail(counted, figures),)),
        TARGET,
        beside,
        (f"{unit} a call by {axis.counted}: {each}; exponent over all of them {exponent(counted, figures):.3f}",),
    )


def _tail(sizes: Sequence[float], figures: Sequence[float]) -> float:
    return exponent(sizes[-TAIL:], figures[-TAIL:])


def _calls(grown: list[Grown]) -> list[int]:
    return [g.calls for g in grown]


def _figures(grown: list[Grown], figure: str) -> list[float]:
    return [{"CPU": g.cpu, "wall": g.wall, FILE: float(g.file)}[figure] for g in grown]
