"""What a model is sent: characters of a prompt as the talk grows longer, ours beside a group chat's."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

import chats
from rows import EXPONENT, OURS, Results, Row, Series, exponent, short
from workload import emergence, fresh, run

GROUP = "prompts"
AGENTS = 12
A_ROUND = 24
"""Calls of 11 leaves below one root in a round: leaves, lateral talk, the root and its nudge."""
JUDGED = 200
SHARE = 5
FLAT = 0.1


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    marks = (20, 50, 100, 200) if quick else (20, 50, 100, 200, 400)
    protocol = emergence(AGENTS - 1, 2, marks[-1] // A_ROUND + 2)
    ours = [len(request.text) for request in asyncio.run(run(protocol, fresh(directory))).requests]
    chat = asyncio.run(chats.run(AGENTS, marks[-1])).characters if chats.installed() else ()
    if not chat:
        results.skip(chats.MISSING)
    results.add(_at(mark, ours, chat) for mark in marks)
    sizes = marks[-3:]
    beside = (_slope(chats.CHAT, sizes, [_mean(chat, mark, AGENTS) for mark in sizes]),) if chat else ()
    results.add(
        [
            Row(
                GROUP,
                f"growth of prompts: {AGENTS} agents, {sizes[0]} to {sizes[-1]} messages",
                EXPONENT,
                _slope(OURS, sizes, [_mean(ours, mark, A_ROUND) for mark in sizes]),
                FLAT,
                beside,
            ),
            asyncio.run(_rounds((2, 5, 10, 20) if quick else (2, 5, 10, 20, 40), directory)),
        ]
    )


def _at(mark: int, ours: Sequence[int], chat: Sequence[int]) -> Row:
    """Around a message: the mean over those of the round, or turn of all agents, that ends with it."""
    other = _mean(chat, mark, AGENTS) if chat else 0.0
    return Row(
        GROUP,
        f"prompt characters per message, {AGENTS} agents, at message {mark}",
        "",
        Series(OURS, (_mean(ours, mark, A_ROUND),)),
        round(other / SHARE) if chat and mark == JUDGED else None,
        (Series(chats.CHAT, (other,)),) if chat else (),
    )


async def _rounds(rounds: Sequence[int], directory: Path) -> Row:
    """A tree of 3×3, by the rounds it ran: characters per call of its last round."""
    ran = await run(emergence(3, 3, rounds[-1]), fresh(directory))
    by_round: dict[int, list[int]] = {}
    for request in ran.requests:
        by_round.setdefault(int(request.key.partition("/")[0].removeprefix("round-")), []).append(len(request.text))
    means = [statistics.mean(by_round[n]) for n in rounds]
    each = ", ".join(f"{n}: {short(mean)}" for n, mean in zip(rounds, means, strict=True))
    return Row(
        GROUP,
        f"growth of prompts: a tree of 3×3, {rounds[-3]} to {rounds[-1]} rounds",
        EXPONENT,
        _slope(OURS, rounds[-3:], means[-3:]),
        FLAT,
        notes=(f"characters a call by round: {each}",),
    )


def _mean(characters: Sequence[int], mark: int, cycle: int) -> float:
    return statistics.mean(characters[max(0, mark - cycle) : mark])


def _slope(name: str, sizes: Sequence[int], figures: Sequence[float]) -> Series:
    return Series(name, (exponent(sizes, figures),))
