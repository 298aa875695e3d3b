"""The moderator: it opens and closes threads, leads them through their stages, and intervenes where one is stuck.

It sets topic and process and never states a conclusion. What it decides follows from typed fields and counts; a model is asked
only for a question to be framed or compared, and for falsifiers to be derived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from typing import Any, Literal

from consilience.domain.positions import LEVELS
from consilience.engine.work import Reply
from consilience.protocols.debate import lock, notes
from consilience.protocols.debate.agenda import Agenda, Spawning
from consilience.protocols.debate.crystallizer import Crystallizer
from consilience.protocols.debate.floor import MODERATOR, Floor, aside
from consilience.protocols.debate.moves import (
    ADVOCATE_AFTER,
    ALIGN_AFTER,
    EXTRA_DISCOVERY_MESSAGES,
    FRAME_AFTER,
    IDLE_MS,
    MAX_LOCK_ATTEMPTS,
    MIN_CRYSTAL_MESSAGES,
    QUIET_MS,
    SPLIT_AFTER,
    STALE_MS,
    Horizon,
)
from consilience.protocols.debate.reasons import Criterion
from consilience.protocols.debate.records import DebateMessage
from consilience.protocols.debate.replies import (
    DerivedReply,
    falsifier_of,
)
from consilience.protocols.debate.scoring import STABLE_AFTER, is_split
from consilience.protocols.debate.threads import Thread, aligned_horizon, is_orbiting


class Moderator:
    """Leads the threads of one debate."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.spawning = Spawning(floor)
        self.crystallizer = Crystallizer(floor)
        self.agenda = Agenda(floor)

    # after each turn

    async def after(self, thread: Thread, message: DebateMessage) -> None:
        """Take in a message of a debater that was just published."""
        floor = self.floor
        await self._seek_advocate(thread)
        if thread.stage != "CRUX_LOCK":
            await self.spawning.consider(thread, message)
        self.crystallizer.relate_when_due()
        await self.agenda.ask_positions()
        if floor.spoken - floor.last_progress >= floor.settings.stagnation * max(1, len(floor.active)):
            floor.end("stalled")

    async def lead(self, thread: Thread) -> None:
        """Lead a thread on after a turn in it, published or not. The end of a stage waits for what is being composed."""
        if thread.busy or not thread.active or self.floor.over:
            return
        if thread.stage == "CRUX_LOCK":
            await self._lead_lock(thread)
        elif thread.stage == "DISCOVERY":
            await self._lead_discovery(thread)
        elif not thread.in_flight:
            if thread.is_stable:
                self.end_evidence(thread, "the evidence was stable")
            elif thread.signal >= self.floor.settings.convergence_threshold:
                self.end_evidence(thread, "positions were stable")
            elif thread.signal and not thread.settling:
                thread.settling = True
                await self.floor.intervene(thread, "settling", self._quietest_members(thread))
            else:
                await self._remark_on_orbit(thread)

    def _quietest_members(self, thread: Thread) -> tuple[str, ...]:
        """The two members of a thread who spoke longest ago."""
        last = {message.agent: message.number for message in thread.spoken}
        return tuple(sorted(thread.members, key=lambda agent: last.get(agent, 0))[:2])

    async def _remark_on_orbit(self, thread: Thread) -> None:
        """Where a thread goes round in circles, ask its members to take a stand."""
        if is_orbiting(thread):
            thread.orbited_at = len(thread.spoken)
            await self.floor.intervene(thread, "orbit", ())

    async def _seek_advocate(self, thread: Thread) -> None:
        """Where the first messages brought no challenge, ask the least committed agent to argue the other side."""
        floor = self.floor
        if floor.advocate is not None or floor.spoken < ADVOCATE_AFTER or thread.stage != "DISCOVERY":
            return
        if any(message.move in ("CHALLENGE", "CHALLENGE_EVIDENCE") for message in floor.said):
            floor.advocate = ""
            return
        openings = floor.openings
        agent = min(thread.members, key=lambda id: openings[id].confidence if id in openings else LEVELS["unsure"])
        floor.advocate = agent
        floor.members[agent].opposing = True
        await self.floor.intervene(thread, "advocate", (agent,))

    # discovery

    async def _lead_discovery(self, thread: Thread) -> None:
        if thread.in_flight:
            return
        if thread.ready_to_lock:
            self._start(thread, self._enter_lock(thread))
        elif thread.question is None and self._needs_framing(thread):
            self._start(thread, self._frame(thread))
        elif thread.discovery_failed:
            self.close(thread, "STALE", "fewer than two agents took it up")
        elif len(thread.spoken) == ALIGN_AFTER and self._align(thread):
            await self.floor.intervene(thread, "horizon", tuple(thread.members))
        else:
            await self._remark_on_orbit(thread)

    def _put(self, thread: Thread, question: str, *, replaces: bool = False, silent: tuple[str, ...] = ()) -> None:
        """Make a question that was framed that of a thread."""
        words = " ".join(question.split())
        note = notes.QuestionFramed(
            at=self.floor.now, thread=thread.id, question=words, replaces=replaces, silent=silent
        )
        self.floor.note(note)

    def _needs_framing(self, thread: Thread) -> bool:
        spent, spoken = thread.discovery_spent and not thread.granted, len(thread.spoken)
        return thread.framing_tried_at != spoken and (spent or spoken in (SPLIT_AFTER + 1, FRAME_AFTER))

    def _start(self, thread: Thread, body: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine of the moderator; nobody begins a reply in the thread meanwhile."""
        thread.busy = True
        self.floor.session.clock.spawn(MODERATOR, body)

    async def _frame(self, thread: Thread) -> None:
        """Have the question of a thread framed. Where two disputes are mixed, the second gets a thread of its own."""
        floor = self.floor
        thread.framing_tried_at = len(thread.spoken)
        reply = await self.spawning.ask_question(thread, "reframe")
        thread.busy = False
        if thread.stage == "DISCOVERY":
            thread.grant(EXTRA_DISCOVERY_MESSAGES)
        if isinstance(reply, Reply) and thread.active:
            if not thread.question:
                self._put(thread, reply.value.question)
            floor.progress()
            await self.floor.intervene(thread, "binary", tuple(thread.members))
            await self._split(thread, reply.value.second)
        await self.lead(thread)

    async def _split(self, thread: Thread, second: str) -> None:
        """Give the second dispute that the moderator found in a thread a thread of its own; an empty one is none."""
        if question := " ".join(second.split()):
            await self.spawning.split(thread, question)

    def _align(self, thread: Thread) -> bool:
        """Align horizons that differ. Return whether they were aligned now."""
        aligned = aligned_horizon(list(self._horizons(thread).values()))
        if aligned is None or thread.horizon is not None:
            return False
        self.floor.mismatches += 1
        self.floor.alignments += 1
        thread.horizon = aligned
        return True

    def _horizons(self, thread: Thread) -> dict[str, Horizon]:
        """The horizons that participants named in their opening ballots."""
        ballots = ((agent, self.floor.openings.get(agent)) for agent in thread.participants if agent not in thread.left)
        return {agent: ballot.horizon for agent, ballot in ballots if ballot is not None and ballot.horizon is not None}

    # lock

    async def _enter_lock(self, thread: Thread) -> None:
        """Merge the thread where another asks the same; else ask every participant for its commitment."""
        floor = self.floor
        others = [
            other
            for other in floor.active
            if other is not thread and other.question and other.stage != "DISCOVERY" and not thread.is_other_half(other)
        ]
        same = await self.spawning.same_as(thread.question or "", others) if others else None
        thread.busy = False
        if not thread.active:
            return
        if same is not None:
            for agent in thread.members:
                if agent not in same.members:
                    same.members.append(agent)
            self.close(thread, "MERGED", "another thread asks the same question", into=same)
            return
        if await self.spawning.split_by_horizon(thread):
            floor.mismatches += 1
        self._align(thread)
        thread.await_commitments()
        budget = len(thread.to_commit) + 2
        thread.granted += budget
        self._transition(thread, "CRUX_LOCK", budget, "the question is framed")
        self.spawning.reconsider(thread)
        await self.floor.intervene(thread, "commit", tuple(thread.to_commit))

    def _transition(self, thread: Thread, stage: Literal["CRUX_LOCK", "EVIDENCE"], budget: int, reason: str) -> None:
        note = notes.StageTransition(
            at=self.floor.now,
            thread=thread.id,
            before=thread.stage,
            after=stage,
            reason=reason,
            question=thread.question,
            budget=budget,
        )
        self.floor.note(note)

    async def _lead_lock(self, thread: Thread) -> None:
        if not thread.to_commit and thread.required is None:
            await self._require(thread)
        if lock.is_due(thread) or (thread.required is not None and not self.floor.owing(thread)):
            await self._attempt_lock(thread)

    async def _require(self, thread: Thread) -> None:
        """Fix the required steelmen, once the last participant has committed, and ask for what is missing."""
        if aligned_horizon(thread.horizons()):
            self.floor.mismatches += 1
        thread.required = lock.required_pairs(thread.commitments)
        thread.to_falsify = lock.without_falsifier(thread)
        thread.grant(max(0, lock.lock_budget(thread) - thread.budget))
        if thread.to_falsify:
            await self.floor.intervene(thread, "falsifier", tuple(thread.to_falsify))
        if thread.required:
            pairs = tuple((self.floor.letters[a], self.floor.letters[b]) for a, b in thread.required)
            await self.floor.intervene(
                thread, "steelman", tuple(dict.fromkeys(a for a, _ in thread.required)), missing=pairs
            )

    async def _attempt_lock(self, thread: Thread) -> None:
        """Try to lock the crux; name each criterion that is missing."""
        floor, number = self.floor, len(thread.attempts) + 1
        missing = lock.missing_criteria(thread)
        kinds = tuple(dict.fromkeys(reason.criterion for reason in missing))
        failures = tuple(reason.words(floor.letters, {}) for reason in missing)
        floor.progress()
        if not missing:
            question = thread.question or thread.topic
            floor.note(notes.CruxLocked(at=floor.now, thread=thread.id, question=question, attempt=number))
            self._transition(thread, "EVIDENCE", thread.budgets.evidence, "the crux is locked")
            self.agenda.locked(thread)
            hang = tuple(floor.letters[agent] for agent, c in thread.commitments.items() if c.would_flip)
            await self.floor.intervene(thread, "evidence", tuple(thread.members), hang=hang)
            return
        floor.note(notes.CruxLockFailed(at=floor.now, thread=thread.id, attempt=number, failures=missing))
        if number >= MAX_LOCK_ATTEMPTS or self._is_hopeless(thread, kinds):
            why = "; ".join(reason.words(floor.letters) for reason in missing)
            self.close(thread, "FAILED_LOCK", f"{number} attempts to lock it failed: {why}")
            return
        thread.grant(max(0, thread.in_stage - thread.budget) + 2 * len(lock.pending_pairs(thread)) + 2)
        await self._respond_to_failed_lock(thread, number, failures, "sides" in kinds, "falsifiers" in kinds)

    def _is_hopeless(self, thread: Thread, missing: tuple[Criterion, ...]) -> bool:
        """Whether no agent is left from whom another attempt could have what is missing. Falsifiers can be derived."""
        owing, outside = self.floor.owing(thread), self._outside(thread)
        if "sides" not in missing:
            return "steelmen" in missing and not owing
        if thread.reframed:
            return not outside and (missing == ("sides",) or not owing)
        return len({*thread.commitments, *owing, *outside}) < 2

    def _outside(self, thread: Thread) -> list[str]:
        """Agents that may be invited to commit themselves, since nobody in the thread takes one of the sides."""
        closed = thread.invited or thread.half
        return [] if closed else [agent for agent in self.floor.openings if agent not in thread.participants]

    async def _respond_to_failed_lock(
        self, thread: Thread, failed: int, failures: tuple[str, ...], sides: bool, falsifiers: bool
    ) -> None:
        """What the moderator does after a failed attempt: where nobody takes one of the sides, ask those who were not in the
        thread, then force another binary framing; after the third derive falsifiers from the dialogue; else name what is missing.
        """
        outside = self._outside(thread)
        if sides and outside:
            thread.invite(outside)
            await self.floor.intervene(thread, "commit", tuple(outside))
        elif sides and not thread.reframed:
            self._start(thread, self._force_framing(thread, failures))
        elif failed == 3 and falsifiers:
            self._start(thread, self._derive(thread))
        else:
            if falsifiers:
                unready = lock.without_falsifier(thread)
                thread.to_falsify = [a for a in unready if not self.floor.members[a].gave_up(thread.id, "falsify")]
            owing = self.floor.owing(thread)
            names = tuple(agent for agent in thread.participants if agent in owing)
            await self.floor.intervene(thread, "retry", names or thread.participants, missing=failures)

    async def _force_framing(self, thread: Thread, missing: tuple[str, ...]) -> None:
        """Frame the question anew, so that it divides its participants, and have them commit again."""
        reply = await self.spawning.ask_question(thread, "reframe")
        thread.busy, thread.reframed = False, True
        if not thread.active:
            return
        if isinstance(reply, Reply):
            silent = tuple(a for a, member in self.floor.members.items() if member.gave_up(thread.id, "commit"))
            self._put(thread, reply.value.question, replaces=True, silent=silent)
            await self.floor.intervene(thread, "commit", tuple(thread.to_commit), missing=missing)
            await self._split(thread, reply.value.second)
        else:
            await self.floor.intervene(thread, "retry", tuple(thread.participants), missing=missing)
            await self.lead(thread)

    async def _derive(self, thread: Thread) -> None:
        """Derive missing falsifiers from what their agents said; they are marked as derived."""
        floor = self.floor
        unready = lock.without_falsifier(thread)
        letters = tuple(floor.letters[agent] for agent in unready)
        words = floor.session.render_template("derive", question=thread.question or "", names=letters)
        async with floor.session.phase("falsifiers", thread.number):
            ask = floor.session.ask(
                MODERATOR,
                aside(floor.session, words, (), floor.quotes(thread)),
                key=f"derive/{thread.id}",
                returns=DerivedReply,
                kind="framing",
            )
            reply = await floor.call(MODERATOR, ask)
        thread.busy = False
        for derivation in reply.value.falsifiers if isinstance(reply, Reply) else ():
            agent = floor.agent_of.get(derivation.participant.strip())
            falsifier = falsifier_of(derivation)
            if agent in unready and falsifier is not None:
                derived = falsifier.model_copy(update={"derived": True})
                commitment = thread.commitments[agent].model_copy(update={"falsifier": derived, "statement": ""})
                floor.note(commitment)
                thread.to_falsify = [other for other in thread.to_falsify if other != agent]
        await self.lead(thread)

    # evidence

    def end_evidence(self, thread: Thread, reason: str) -> None:
        """End the evidence stage: the thread is crystallized and has converged."""
        if not thread.busy and thread.active:
            self._start(thread, self._conclude(thread, "CONVERGED", reason))

    async def _conclude(
        self, thread: Thread, status: Literal["CONVERGED", "FAILED_LOCK", "STALE"], reason: str
    ) -> None:
        """Have a thread crystallized, then end it."""
        floor = self.floor
        await self.crystallizer.crystallize(thread)
        thread.busy = False
        if status == "CONVERGED":
            floor.note(notes.ThreadConverged(at=floor.now, thread=thread.id, reason=reason))
            floor.progress()
        else:
            self._end(thread, status, reason)
        self.agenda.update()

    def close(
        self, thread: Thread, status: Literal["STALE", "FAILED_LOCK", "MERGED"], reason: str, into: Thread | None = None
    ) -> None:
        """End a thread that did not converge; one that failed to lock, or has enough messages, is crystallized first."""
        long = len(thread.spoken) >= MIN_CRYSTAL_MESSAGES
        if status == "FAILED_LOCK" or (status == "STALE" and long):
            self._start(thread, self._conclude(thread, status, reason))
            return
        if status == "STALE":
            self.crystallizer.extract(thread)  # what its agents declared stands
        self._end(thread, status, reason, into)
        self.agenda.update()

    def _end(
        self, thread: Thread, status: Literal["STALE", "FAILED_LOCK", "MERGED"], reason: str, into: Thread | None = None
    ) -> None:
        note = notes.ThreadClosed(
            at=self.floor.now, thread=thread.id, status=status, reason=reason, into=into.id if into else None
        )
        self.floor.note(note)


# --- looking after the debate: its end, threads that went quiet, agents who were not heard


async def watch(moderator: Moderator) -> None:
    """Look after the debate every few virtual seconds until it is over."""
    floor, looks = moderator.floor, 0
    while floor.over is None:
        looks += 1
        await floor.session.clock.sleep(floor.session.rng("watch", looks).randint(*IDLE_MS))
        if floor.over is None:
            await _check_threads(moderator)


async def _check_threads(moderator: Moderator) -> None:
    floor = moderator.floor
    for thread in floor.active:
        if _is_held(floor, thread):
            thread.held_at = floor.now
        if not thread.busy and not thread.in_flight and floor.now - max(thread.last_at, thread.held_at) >= STALE_MS:
            moderator.close(thread, "STALE", f"nobody spoke in it for {STALE_MS // 1000} s")
    if not floor.active and not moderator.spawning.pending:
        floor.end("settled")
    elif _is_stable(floor) and not moderator.spawning.pending:
        floor.end("stable")
    elif floor.now >= floor.duration_ms:
        floor.end("max_duration")
    elif not floor.can_compose and not floor.in_flight and not any(thread.busy for thread in floor.active):
        floor.end("max_messages")
    else:
        await _call_on_the_quietest(floor)


def _is_stable(floor: Floor) -> bool:
    """Whether every thread that locked its question has converged, a crux among them is irreducible, and for `STABLE_AFTER`
    messages there was no new crux and no change in who stands with whom, while the threads left still look for their question."""
    if floor.settings.coalitions != "live" or any(thread.stage != "DISCOVERY" for thread in floor.active):
        return False
    later = floor.fold.repeated
    cruxes = [t.crux for t in floor.threads.values() if t.status == "CONVERGED" and t.crux and t.id not in later]
    irreducible = any(c.validated and is_split([p.side for p in c.positions.values()]) for c in cruxes)
    return irreducible and floor.spoken - max(floor.coalitions_since, floor.crux_since) >= STABLE_AFTER


def _is_held(floor: Floor, thread: Thread) -> bool:
    """Whether somebody it mentions has not answered yet, or locks of other threads keep those busy from whom this one awaits
    something; in an open thread, all but one."""
    if thread.stage != "CRUX_LOCK" and floor.awaits_answer(thread):
        return True
    busy_agents = {agent for other in floor.active if other is not thread for agent in floor.owing(other)}
    if thread.stage == "CRUX_LOCK":
        return bool(floor.owing(thread) & busy_agents)
    members = set(thread.members)
    return len(members - busy_agents) < 2 and bool(members & busy_agents)


async def _call_on_the_quietest(floor: Floor) -> None:
    """Name the agent that has spoken least, in the thread that is quiet for longest, once in each silence."""
    idle_threads = [t for t in floor.active if not (t.busy or t.in_flight or t.called) and t.has_room and t.members]
    quiet = [t for t in idle_threads if floor.now - t.last_at >= QUIET_MS]
    if not quiet:
        return
    thread = min(quiet, key=lambda t: t.last_at)
    counts = Counter(message.agent for message in thread.spoken)
    last = thread.spoken[-1].agent if thread.spoken else None
    agent = min(thread.members, key=lambda id: (id == last, counts[id], floor.members[id].spoken))
    await floor.intervene(thread, "call", (agent,))
    thread.called = True  # once: a thread in which nobody answers goes stale
