"""The moderator: it opens and closes threads, leads them through their stages, and intervenes where one is stuck.

It sets topic and process and never states a conclusion. What it decides follows from typed fields and counts; a model is asked
only for a question to be framed or compared, and for falsifiers to be derived.
"""

from __future__ import annotations

from typing import Literal

from consilience.domain.positions import LEVELS
from consilience.engine.work import Reply
from consilience.protocols.debate import lock
from consilience.protocols.debate.agenda import Agenda
from consilience.protocols.debate.crystallizer import Crystallizer
from consilience.protocols.debate.floor import MODERATOR, Floor, aside
from consilience.protocols.debate.moves import (
    ADVOCATE_AFTER,
    ALIGN_AFTER,
    EXTRA_DISCOVERY_MESSAGES,
    FRAME_AFTER,
    MAX_LOCK_ATTEMPTS,
    MIN_CRYSTAL_MESSAGES,
    SPLIT_AFTER,
    Horizon,
)
from consilience.protocols.debate.notes import (
    CruxLocked,
    CruxLockFailed,
    StageTransition,
    ThreadClosed,
    ThreadConverged,
)
from consilience.protocols.debate.records import DebateMessage, Falsifier, LockAttempt
from consilience.protocols.debate.replies import (
    DerivedReply,
)
from consilience.protocols.debate.spawning import Spawning
from consilience.protocols.debate.threads import Thread, aligned_horizon, convergence_signal, is_orbiting


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
        thread.signal = convergence_signal(thread)
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
                await self.floor.intervene(thread, "settling", self._fallen_silent(thread))
            else:
                await self._remark_on_orbit(thread)

    def _fallen_silent(self, thread: Thread) -> tuple[str, ...]:
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
        if any(message.move in ("CHALLENGE", "CHALLENGE_EVIDENCE") for message in floor.messages):
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

    def _needs_framing(self, thread: Thread) -> bool:
        spent, spoken = thread.discovery_spent and not thread.granted, len(thread.spoken)
        return thread.framing_tried_at != spoken and (spent or spoken in (SPLIT_AFTER + 1, FRAME_AFTER))

    def _start(self, thread: Thread, body: object) -> None:
        """Run a coroutine of the moderator; nobody begins a reply in the thread meanwhile."""
        thread.busy = True
        self.floor.session.clock.spawn(MODERATOR, body)  # type: ignore[arg-type]

    async def _frame(self, thread: Thread) -> None:
        """Have the question of a thread framed. Where two disputes are mixed, the second gets a thread of its own."""
        floor = self.floor
        thread.framing_tried_at = len(thread.spoken)
        reply = await self.spawning.ask_question(thread, "reframe")
        thread.busy = False
        if thread.stage == "DISCOVERY":
            thread.grant(EXTRA_DISCOVERY_MESSAGES)
        if isinstance(reply, Reply) and thread.active:
            thread.question = thread.question or " ".join(reply.value.question.split())
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
        aligned = aligned_horizon(thread, list(self._horizons(thread).values()))
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
        self._transition(thread, "CRUX_LOCK", len(thread.to_commit) + 2, "the question is framed")
        self.spawning.reconsider(thread)
        await self.floor.intervene(thread, "commit", tuple(thread.to_commit))

    def _transition(self, thread: Thread, stage: Literal["CRUX_LOCK", "EVIDENCE"], budget: int, reason: str) -> None:
        before = thread.stage
        thread.enter(stage, self.floor.now, budget)
        note = StageTransition(
            at=self.floor.now, thread=thread.id, before=before, after=stage, reason=reason, question=thread.question
        )
        self.floor.note(note)

    async def _lead_lock(self, thread: Thread) -> None:
        if not thread.to_commit and thread.required is None:
            await self._require(thread)
        if lock.is_due(thread):
            await self._attempt(thread)

    async def _require(self, thread: Thread) -> None:
        """Fix the required steelmen, once the last participant has committed, and ask for what is missing."""
        if thread.has_horizon_mismatch(thread.horizons()):
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

    async def _attempt(self, thread: Thread) -> None:
        """Try to lock the crux; name each criterion that is missing."""
        floor, number = self.floor, len(thread.attempts) + 1
        thread.locked_question = thread.question
        missing = lock.missing_criteria(thread, floor.letters)
        kinds = tuple(dict.fromkeys(one.criterion for one in missing))
        failures = tuple(one.text for one in missing)
        thread.attempts.append(LockAttempt(at=floor.now, success=not missing, failures=failures, kinds=kinds))
        floor.progress()
        if not missing:
            thread.locked_at = floor.now
            question = thread.question or thread.topic
            floor.note(CruxLocked(at=floor.now, thread=thread.id, question=question, attempt=number))
            self._transition(thread, "EVIDENCE", thread.budgets.evidence, "the crux is locked")
            self.agenda.locked(thread)
            hang = tuple(floor.letters[agent] for agent, c in thread.commitments.items() if c.would_flip)
            await self.floor.intervene(thread, "evidence", tuple(thread.members), hang=hang)
            return
        floor.note(CruxLockFailed(at=floor.now, thread=thread.id, attempt=number, failures=failures))
        if number >= MAX_LOCK_ATTEMPTS or (thread.reframed and kinds == ("sides",)):
            self.close(thread, "FAILED_LOCK", f"{number} attempts to lock it failed: {'; '.join(failures)}")
            return
        thread.grant(max(0, thread.in_stage - thread.budget) + 2 * len(lock.pending_pairs(thread)) + 2)
        await self._help(thread, number, failures, "sides" in kinds, "falsifiers" in kinds)

    async def _help(
        self, thread: Thread, failed: int, failures: tuple[str, ...], sides: bool, falsifiers: bool
    ) -> None:
        """What the moderator does after a failed attempt: where nobody takes one of the sides, ask those who were not in the
        thread, then force another binary framing; after the third derive falsifiers from the dialogue; else name what is missing.
        """
        outside = (
            [a for a in self.floor.openings if a not in thread.participants]
            if sides and not thread.invited and not thread.half
            else []
        )
        if outside:
            thread.invite(outside)
            await self.floor.intervene(thread, "commit", tuple(outside))
        elif sides and not thread.reframed:
            self._start(thread, self._force_framing(thread, failures))
        elif failed == 3 and falsifiers:
            self._start(thread, self._derive(thread))
        else:
            if falsifiers:
                lacking = lock.without_falsifier(thread)
                thread.to_falsify = [a for a in lacking if not self.floor.members[a].gave_up(thread.id, "falsify")]
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
            thread.replace_question(" ".join(reply.value.question.split()))
            await self.floor.intervene(thread, "commit", tuple(thread.to_commit), missing=missing)
            await self._split(thread, reply.value.second)
        else:
            await self.floor.intervene(thread, "retry", tuple(thread.participants), missing=missing)
            await self.lead(thread)

    async def _derive(self, thread: Thread) -> None:
        """Derive missing falsifiers from what their agents said; they are marked as derived."""
        floor = self.floor
        lacking = lock.without_falsifier(thread)
        letters = tuple(floor.letters[agent] for agent in lacking)
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
        for found in reply.value.falsifiers if isinstance(reply, Reply) else ():
            agent = floor.agent_of.get(found.participant.strip())
            if agent in lacking and not found.empty:
                parts = {"metric": found.metric.strip(), "threshold": found.threshold.strip()}
                falsifier = Falsifier(**parts, deadline=found.deadline.strip(), derived=True)
                thread.commitments[agent] = thread.commitments[agent].model_copy(update={"falsifier": falsifier})
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
            floor.note(ThreadConverged(at=floor.now, thread=thread.id, reason=reason))
            thread.close(status, floor.now, reason)
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
        self._end(thread, status, reason, into)
        self.agenda.update()

    def _end(
        self, thread: Thread, status: Literal["STALE", "FAILED_LOCK", "MERGED"], reason: str, into: Thread | None = None
    ) -> None:
        thread.close(status, self.floor.now, reason, into.id if into else None)
        note = ThreadClosed(
            at=self.floor.now, thread=thread.id, status=status, reason=reason, into=into.id if into else None
        )
        self.floor.note(note)
