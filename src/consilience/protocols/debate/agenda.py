"""The agenda (seed 002, "Agenda Manager"): at most two active disputes by crux score, to which agents attend more."""

from __future__ import annotations

from statistics import pvariance

from consilience.protocols.debate.attention import keywords
from consilience.protocols.debate.floor import Floor
from consilience.protocols.debate.moves import COMMIT_EVERY, FIRM, MAX_BOOST, MAX_DISPUTES
from consilience.protocols.debate.notes import AgendaNote, CruxPromoted, DcgCalculated
from consilience.protocols.debate.records import CruxScore
from consilience.protocols.debate.scoring import crux_score, declared_flips
from consilience.protocols.debate.threads import Thread


class Agenda:
    """The active disputes of one debate. Without the setting the best crux is still named, and nothing else follows from it."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self._asked_at = 0
        self._scores: dict[str, CruxScore] = {}

    def locked(self, thread: Thread) -> None:
        """Score a crux that was just locked, by what its agents declared with their commitments."""
        floor = self.floor
        score = self._scores[thread.id] = self._score(thread)
        floor.note(DcgCalculated(at=floor.now, thread=thread.id, score=score))
        self.update()

    def _score(self, thread: Thread) -> CruxScore:
        return crux_score(thread.declared_sides, declared_flips(thread), len(self.floor.debaters))

    def update(self) -> None:
        """Take the locked cruxes with the highest scores as the active disputes; one whose thread has ended makes room."""
        floor = self.floor
        self._scores |= {thread.id: self._score(thread) for thread in floor.active if thread.id in self._scores}
        ranked = sorted((t for t in floor.active if t.id in self._scores), key=self._rank, reverse=True)
        active = [thread.id for thread in ranked[:MAX_DISPUTES]]
        if active and active[0] != floor.promoted:
            floor.promoted = active[0]
            floor.promotions += 1
            score = self._scores[active[0]].score
            floor.note(CruxPromoted(at=floor.now, thread=active[0], score=score))
        if floor.settings.agenda and active != list(floor.disputes):
            floor.disputes = {
                id: (MAX_BOOST / place, self._words(floor.threads[id])) for place, id in enumerate(active, 1)
            }
            scores = tuple(self._scores[id].score for id in active)
            floor.note(AgendaNote(at=floor.now, active=tuple(active), scores=scores))

    def _rank(self, thread: Thread) -> tuple[float, int, float, int]:
        """The crux score; ties to the dispute with more agents undecided, then with more varied confidence, then the earlier. The
        seed's third criterion, dependencies, is known of ended threads only."""
        firm = sum(side in FIRM for side in thread.declared_sides.values())
        confidences = [c.confidence for c in thread.commitments.values()]
        undecided = len(self.floor.debaters) - firm
        return self._scores[thread.id].score, undecided, pvariance(confidences) if confidences else 0.0, -thread.number

    def _words(self, thread: Thread) -> frozenset[str]:
        """The words of a question that no other thread's has; all of them if there are none."""
        own = set(keywords(thread.question or thread.topic))
        others = [other for other in self.floor.threads.values() if other is not thread]
        shared = {word for other in others for word in keywords(other.question or other.topic)}
        return frozenset(own - shared or own)

    async def ask_positions(self) -> None:
        """Every 10 messages, ask the agents without a position on an active dispute to commit themselves on it."""
        floor = self.floor
        if floor.spoken - self._asked_at < COMMIT_EVERY:
            return
        self._asked_at = floor.spoken
        self.update()
        for id in floor.disputes:
            thread = floor.threads[id]
            asked = thread.members if thread.half else floor.openings
            silent = [a for a in asked if a not in thread.commitments and a not in thread.to_commit]
            if thread.busy or not thread.active or not silent:
                continue
            thread.members += [agent for agent in silent if agent not in thread.members]
            thread.to_commit += silent
            thread.grant(len(silent))
            await floor.intervene(thread, "commit", tuple(silent))
