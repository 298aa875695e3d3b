"""Looking after a debate in virtual time: its end, threads that went quiet, agents who were not heard."""

from __future__ import annotations

from collections import Counter

from consilience.protocols.debate.coalitions import STABLE_AFTER
from consilience.protocols.debate.floor import Floor
from consilience.protocols.debate.graph import is_split
from consilience.protocols.debate.moderator import Moderator
from consilience.protocols.debate.moves import IDLE_MS, QUIET_MS, STALE_MS
from consilience.protocols.debate.threads import Thread


async def watch(floor: Floor, moderator: Moderator) -> None:
    """Look after the debate every few virtual seconds until it is over."""
    looks = 0
    while floor.over is None:
        looks += 1
        await floor.session.clock.sleep(floor.session.rng("watch", looks).randint(*IDLE_MS))
        if floor.over is None:
            await _look(floor, moderator)


async def _look(floor: Floor, moderator: Moderator) -> None:
    for thread in floor.active:
        if _is_held(floor, thread):
            thread.held_at = floor.now
        if not thread.busy and not thread.in_flight and floor.now - max(thread.last_at, thread.held_at) >= STALE_MS:
            moderator.close(thread, "STALE", f"nobody spoke in it for {STALE_MS // 1000} s")
    if not floor.active and not moderator.spawning.pending:
        floor.end("settled")
    elif _is_stable(floor) and not moderator.spawning.pending:
        floor.end("stable")
    elif floor.now >= floor.settings.max_duration * 1000:
        floor.end("max_duration")
    elif not floor.can_compose and not floor.in_flight and not any(thread.busy for thread in floor.active):
        floor.end("max_messages")
    else:
        await _call_on_the_quietest(floor, moderator)


def _is_stable(floor: Floor) -> bool:
    """Whether every thread that locked its question has converged, a crux among them is irreducible, and for `STABLE_AFTER`
    messages there was no new crux and no change in who stands with whom, while the threads left still look for their question."""
    if floor.settings.coalitions != "live" or any(thread.stage != "DISCOVERY" for thread in floor.active):
        return False
    later = {second for _, second in floor.duplicates}
    cruxes = [t.crux for t in floor.threads.values() if t.status == "CONVERGED" and t.crux and t.id not in later]
    irreducible = any(c.validated and is_split([p.side for p in c.positions.values()]) for c in cruxes)
    return irreducible and floor.spoken - max(floor.coalitions_since, floor.crux_since) >= STABLE_AFTER


def _is_held(floor: Floor, thread: Thread) -> bool:
    """Whether locks of other threads keep those busy from whom this one awaits something; in an open thread, all but one."""
    elsewhere = {agent for other in floor.active if other is not thread for agent in floor.owing(other)}
    if thread.stage == "CRUX_LOCK":
        return bool(floor.owing(thread) & elsewhere)
    members = set(thread.members)
    return len(members - elsewhere) < 2 and bool(members & elsewhere)


async def _call_on_the_quietest(floor: Floor, moderator: Moderator) -> None:
    """Name the agent that has spoken least, in the thread that is quiet for longest, once in each silence."""
    idle = [t for t in floor.active if not (t.busy or t.in_flight or t.called) and t.has_room and t.members]
    quiet = [t for t in idle if floor.now - t.last_at >= QUIET_MS]
    if not quiet:
        return
    thread = min(quiet, key=lambda t: t.last_at)
    said = Counter(message.agent for message in thread.spoken)
    last = thread.spoken[-1].agent if thread.spoken else None
    agent = min(thread.members, key=lambda id: (id == last, said[id], floor.members[id].spoken))
    await floor.intervene(thread, "call", (agent,))
    thread.called = True  # once: a thread in which nobody answers goes stale
