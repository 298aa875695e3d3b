"""The same tree and the same fan-out as plain phases of jobs: what the others beside ours are given to run.

Prompts are plain string formatting, replies are validated by the same pydantic types; nothing else of ours is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypedDict

from consilience.domain.messages import LeafReply
from consilience.domain.topology import Topology, tree
from consilience.models.port import ModelRequest
from consilience.protocols.emergence.turns import PeerReply, RootReply
from workload import TASK

ROOT = "L1N1"
SYSTEM = "Several people think about the same task, each from their own point of view."


class Job(TypedDict):
    """One call: everything its prompt is made of, since a fanned-out node sees nothing else."""

    key: str
    agent: str
    texts: list[str]


def last_rounds(kept: dict[str, str], added: dict[str, str]) -> dict[str, str]:
    """What was said in this round and the one before: no prompt shows anything older, and a checkpoint holds the whole state."""
    both = kept | added
    newest = max(map(_round, both), default=0)
    return {key: text for key, text in both.items() if _round(key) >= newest - 1}


def _round(key: str) -> int:
    name = key.partition("/")[0]
    return int(name.removeprefix("round-")) if name.startswith("round-") else 0


class Talk(TypedDict):
    round: int
    said: Annotated[dict[str, str], last_rounds]


Plan = Callable[[Talk], list[Job]]
Steps = Sequence[tuple[str, Plan]]
Call = Callable[[Job], Awaitable[str]]


def returns(key: str) -> type[LeafReply] | type[PeerReply] | type[RootReply] | None:
    if "/leaf_respond/" in key:
        return LeafReply
    if key.endswith(f"/observe/{ROOT}"):
        return RootReply
    return PeerReply if "/lateral/" in key or "/observe/" in key else None


def prompt(job: Job) -> str:
    quoted = "\n\n".join(f"<quote>\n{text}\n</quote>" for text in job["texts"])
    return f"# Task\n{TASK}\n\n{quoted}\n\nYou are {job['agent']}. Answer in two or three sentences."


def request(job: Job) -> ModelRequest:
    return ModelRequest(
        agent=job["agent"], key=job["key"], system=SYSTEM, user=prompt(job), returns=returns(job["key"])
    )


def validated(job: Job, text: str) -> str:
    """The words of a reply, read as the type its call asked for."""
    asked = returns(job["key"])
    return asked.model_validate_json(text).text if asked else text


async def in_phases(steps: Steps, rounds: int, call: Call) -> Talk:
    """Phases one after the other, round after round, each a plain gather."""
    talk: Talk = {"round": 0, "said": {}}
    for n in range(1, rounds + 1):
        talk["round"] = n
        for _, plan in steps:
            jobs = plan(talk)
            texts = await asyncio.gather(*(call(job) for job in jobs))
            made = {job["key"]: text for job, text in zip(jobs, texts, strict=True)}
            talk["said"] = last_rounds(talk["said"], made)
    return talk


def gather_steps(size: int) -> Steps:
    """One fan-out of `size` calls."""
    return [("answer", lambda talk: [Job(key=f"answer/A{i}", agent=f"A{i}", texts=[]) for i in range(1, size + 1)])]


def chain_job(n: int, texts: list[str]) -> Job:
    return Job(key=f"turn/{n}", agent=f"A{n % 12 + 1}", texts=texts)


def tree_steps(children: int, depth: int) -> Steps:
    """Nudges, leaves, their lateral talk, then observation and lateral talk of every level up to the root."""
    shape = tree(children, depth)
    by_level: dict[int, list[str]] = {}
    for agent in shape.agents:
        by_level.setdefault(shape.levels[agent], []).append(agent)
    deepest = max(by_level)
    steps: list[tuple[str, Plan]] = [
        ("leaf_respond", _each(_leaf, shape, shape.leaves)),
        ("lateral_leaves", _each(_lateral, shape, shape.leaves)),
    ]
    for level in range(deepest - 1, 0, -1):
        here = by_level[level]
        steps.append((f"observe_L{level}", _each(_observe, shape, here)))
        if len(here) > 1:
            steps.append((f"lateral_L{level}", _each(_lateral, shape, here)))
    inner = [agent for agent in shape.agents if shape.children[agent]]
    return [("signal_down", lambda s: [_signal(shape, s, n) for n in inner] if s["round"] > 1 else []), *steps]


def _each(job: Callable[[Topology, Talk, str], Job], shape: Topology, agents: Sequence[str]) -> Plan:
    return lambda state: [job(shape, state, agent) for agent in agents]


def _leaf(shape: Topology, state: Talk, leaf: str) -> Job:
    key = f"round-{state['round']}/leaf_respond/{leaf}"
    (parent,) = shape.parents[leaf]
    before = [f"round-{state['round'] - 1}/{what}" for what in (f"lateral/{leaf}", f"signal/{parent}")]
    return Job(key=key, agent=leaf, texts=[state["said"][k] for k in before if k in state["said"]])


def _lateral(shape: Topology, state: Talk, agent: str) -> Job:
    first = "observe" if shape.children[agent] else "leaf_respond"
    peers = sorted((agent, *shape.siblings(agent)))
    texts = [state["said"][f"round-{state['round']}/{first}/{peer}"] for peer in peers]
    return Job(key=f"round-{state['round']}/lateral/{agent}", agent=agent, texts=texts)


def _observe(shape: Topology, state: Talk, node: str) -> Job:
    n = state["round"]
    keys = [f"round-{n}/lateral/{child}" for child in shape.children[node]]
    before = f"round-{n - 1}/observe/{node}"
    nudges = [f"round-{n - 1}/signal/{parent}" for parent in shape.parents.get(node, ())]
    texts = [state["said"][k] for k in (*keys, before, *nudges) if k in state["said"]]
    return Job(key=f"round-{n}/observe/{node}", agent=node, texts=texts)


def _signal(shape: Topology, state: Talk, node: str) -> Job:
    n = state["round"] - 1
    own = f"round-{n}/observe/{node}"
    keys = [own, *(f"round-{n}/lateral/{child}" for child in shape.children[node])]
    return Job(key=f"round-{n}/signal/{node}", agent=node, texts=[state["said"][k] for k in keys])
