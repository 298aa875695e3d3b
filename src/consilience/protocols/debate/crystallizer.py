"""The crystallizer of seed 002: threads as cruxes, relations among cruxes, candidates for common ground.

It writes questions, criteria and references. Positions, falsifiers, concessions and whether a top claim hangs on a crux are what
agents declared; nothing that it writes overrides them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from consilience.domain.positions import LEVELS
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.debate import notes
from consilience.protocols.debate.floor import CRYSTALLIZER, MODERATOR, SECOND_OPINION, Floor, aside, quotes_of, window
from consilience.protocols.debate.moves import MAX_CHARS, MAX_EXTRACTIONS, RELATE_EVERY, is_question
from consilience.protocols.debate.records import (
    CommonGround,
    CruxChallenge,
    DebateMessage,
    Dependency,
    Extraction,
    Flip,
)
from consilience.protocols.debate.replies import (
    CrystalReply,
    FlipReply,
    Relation,
    RelationsReply,
    SynthesisReply,
    VerdictsReply,
    refuse_no_crux,
)
from consilience.protocols.debate.scoring import crux_of, is_split, written_failures
from consilience.protocols.debate.threads import Thread

MIN_DEPENDENCY_CONFIDENCE = 0.8
MIN_SKETCH_CHARS = 20


class Crystallizer:
    """Writes down what the threads of one debate came to."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.runs = 0
        """Times that cruxes were related to each other."""
        self._related_at = 0
        self._relating = False
        self._compared: set[tuple[str, str]] = set()

    # level 1: the crux of a thread

    async def crystallize(self, thread: Thread) -> None:
        """Write a thread down as a crux and publish it back; at most twice again, after a challenge or a failed test of its words.

        Without a dispute nothing is written: agents who agree have no crux. An extraction that fails leaves what was declared.
        """
        draft: Extraction | None = None
        remarks: tuple[str, ...] = ()
        number = windows = 0
        failed = False
        while True:
            if self._is_disputed(thread):
                number += 1
                reply = await self._write(thread, number, remarks)
                failed = isinstance(reply, Failure)
                if isinstance(reply, Reply):
                    draft = self._take(thread, number, reply)
                if draft is None and not thread.commitments:
                    return
            challenges_made: list[CruxChallenge] = []
            if not (failed and windows) and (draft is not None or thread.locked_at is not None):
                windows += 1
                challenges_made = await self._review(thread, draft, windows)
            if draft is not None:
                flaws = written_failures(draft.question, draft.criteria, draft.kind, draft.unclear)
                objections = (self.floor.by_id[c.message].label for c in challenges_made if c.message)
                remarks = (*(flaw.name for flaw in flaws), *objections)
            is_accepted = not challenges_made and not remarks if draft is not None else not self._is_disputed(thread)
            if failed or is_accepted or number >= self._max_extractions or not self._reserve(thread):
                break
        self.extract(thread, written=draft is not None)

    @property
    def _max_extractions(self) -> int:
        return 1 if self.floor.session.detail == "brief" else MAX_EXTRACTIONS

    def _is_disputed(self, thread: Thread) -> bool:
        """Whether the sides that were declared last differ, or none was declared yet."""
        return (not thread.declared_sides and not thread.flips) or is_split(thread.declared_sides.values())

    def _reserve(self, thread: Thread) -> bool:
        """Return whether another review fits the limits, and count its turns like other replies of debaters."""
        floor, turns = self.floor, len(_asked(thread))
        if not floor.can_compose or floor.attempts + turns > floor.settings.max_attempts:
            return False
        floor.attempts += turns
        return True

    async def _write(self, thread: Thread, number: int, remarks: tuple[str, ...]) -> Reply[CrystalReply] | Failure:
        floor = self.floor
        words = floor.session.render_template(
            "crystallize",
            topic=thread.topic,
            question=thread.question or "",
            locked=thread.locked_at is not None,
            sides=tuple(
                f"{floor.letters[agent]} answers {side}" + (f", in {floor.by_id[c.message].label}" if c else "")
                for agent, side in thread.declared_sides.items()
                for c in (thread.commitments.get(agent),)
            ),
            remarks=remarks,
        )
        async with floor.session.phase("crystallization", thread.number):
            return await floor.call(
                CRYSTALLIZER,
                floor.session.ask(
                    CRYSTALLIZER,
                    aside(floor.session, words, thread_quotes(floor, thread), floor.quotes(thread)),
                    key=f"crystallize/{thread.id}/{number}",
                    returns=CrystalReply,
                    kind="crystallization",
                    accept=None if thread.question else refuse_no_crux,
                ),
            )

    def _take(self, thread: Thread, number: int, reply: Reply[CrystalReply]) -> Extraction | None:
        """Return what was extracted, None where there is no crux. Declared sides that differ are a dispute whatever it says, and
        brief prompts leave a locked question as it is."""
        floor, value = self.floor, reply.value
        question = " ".join(value.question.split())
        keep = thread.question is not None and (floor.session.detail == "brief" or not is_question(question))
        declared = bool(thread.commitments)
        unclear = value.unclear.strip() or "no reason given"
        extraction = Extraction(
            question=thread.question if keep and thread.question else question,
            kind=value.kind,
            criteria=tuple(dict.fromkeys(" ".join(c.split()) for c in value.criteria if c.strip())),
            supporting=tuple(floor.session.named(reply, value.supporting)),
            confidence=LEVELS[value.confidence],
            number=number,
            unclear=unclear if value.outcome == "NEEDS_CLARIFICATION" else "",
        )
        outcome: Literal["crux", "null", "NEEDS_CLARIFICATION"] = "crux"
        if value.outcome == "NEEDS_CLARIFICATION":
            outcome = "NEEDS_CLARIFICATION"
        elif value.outcome == "no disagreement" and not declared:
            outcome = "null"
        floor.note(notes.CrystallizedNote(at=floor.now, thread=thread.id, outcome=outcome, extraction=extraction))
        thread.control = " ".join(value.control.split())
        return extraction if outcome == "crux" or declared else None

    async def _review(self, thread: Thread, draft: Extraction | None, window: int) -> list[CruxChallenge]:
        """Publish a crux back. Each participant answers it in private, says whether its top claim hangs on it, and objects if it is
        misrepresented; objections are published."""
        floor, asked = self.floor, _asked(thread)
        shown: DebateMessage | None = None
        if draft is not None:
            shown = await floor.intervene(thread, "review", asked, criteria=draft.criteria, unclear=draft.unclear)
        session = floor.session
        async with session.phase("flips", thread.number):
            pending = [session.start(self._flip_ask(thread, agent, window, shown)) for agent in asked]
            await floor.think(CRYSTALLIZER)
            replies = [await flip for flip in pending]
        flips: list[Flip] = []
        challenges: list[CruxChallenge] = []
        for reply in replies:
            if isinstance(reply, Failure):
                continue
            value = reply.value
            flip = Flip(
                agent=reply.agent,
                side=value.side,
                would_flip=value.would_flip,
                gives_up_if=value.gives_up_if,
                confidence=LEVELS[value.confidence],
                why=value.why.strip(),
                message=reply.key,
            )
            flips.append(flip)
            if draft is not None and shown is not None and value.challenge:
                challenges.append(await self._challenge(thread, reply, draft.number, shown))
        if flips:  # an agent whose answer failed keeps what it answered before
            floor.note(notes.FlipsDeclared(at=floor.now, thread=thread.id, flips=tuple(flips)))
        return challenges

    def _flip_ask(self, thread: Thread, agent: str, window: int, shown: DebateMessage | None) -> Ask[FlipReply]:
        floor = self.floor
        words = floor.session.render_template(
            "flip",
            letter=floor.letters[agent],
            question=thread.question or "",
            claim=floor.claims.get(agent, ""),
            label=shown.label if shown else "",
        )
        return floor.session.ask(
            agent,
            Prompt(words, (), floor.quotes(thread), preface=floor.rules),
            key=f"flip/{agent}/{thread.id}" + (f"/{window}" if window > 1 else ""),
            returns=FlipReply,
            kind="ballot",
        )

    async def _challenge(
        self, thread: Thread, reply: Reply[FlipReply], extraction: int, shown: DebateMessage
    ) -> CruxChallenge:
        """Publish an objection to a crux, which needs no steelman; over the limit on messages it is kept without."""
        floor, agent = self.floor, reply.agent
        text = reply.value.challenge[: MAX_CHARS[floor.session.detail]]
        published: str | None = None
        if floor.spoken + floor.in_flight < floor.settings.message_limit(floor.session.limits.steps):
            fields = {"move": "CHALLENGE", "text": text, "reply_to": shown.id}
            message = floor.message(thread, agent, id=f"{reply.key}/said", **fields)
            await floor.publish(message, f"CHALLENGE on {shown.label}: {text}", ("flips", thread.number))
            published = message.id
        challenge = CruxChallenge(agent=agent, text=text, extraction=extraction, message=published)
        floor.note(notes.CruxChallenged(at=floor.now, thread=thread.id, **challenge.model_dump()))
        return challenge

    def extract(self, thread: Thread, *, written: bool = False) -> None:
        """Make the crux of a thread from what was declared and, if it was `written`, its extraction; record its tests and score."""
        floor = self.floor
        if not thread.question or not (thread.commitments or written):
            return
        floor.crux_since = floor.spoken
        crux = crux_of(thread, len(floor.debaters), written=written)
        floor.note(
            notes.CruxExtracted(
                at=floor.now,
                thread=thread.id,
                written=written,
                failures=crux.validation_failures,
            )
        )
        floor.note(notes.DcgCalculated(at=floor.now, thread=thread.id, score=crux.score))
        floor.progress()
        if floor.settings.coalitions == "live":
            floor.find_coalitions()

    # level 2: relations among cruxes

    def relate_when_due(self) -> None:
        """Every 20 messages, relate cruxes that were not compared yet, while the debate goes on."""
        floor = self.floor
        is_due = floor.spoken - self._related_at >= RELATE_EVERY
        if floor.settings.crystallization_level < 2 or self._relating or not is_due:
            return
        self._related_at = floor.spoken
        if self._new_pairs():
            self._relating = True
            floor.session.clock.spawn(MODERATOR, self._relate())

    def _cruxes(self) -> list[Thread]:
        """Converged threads with a dispute; duplicates are compared no more."""
        later = self.floor.fold.repeated
        return [
            thread
            for thread in self.floor.threads.values()
            if thread.status == "CONVERGED" and thread.crystallized == "crux" and thread.id not in later
        ]

    def _new_pairs(self) -> list[tuple[str, str]]:
        pairs = combinations([thread.id for thread in self._cruxes()], 2)
        return [pair for pair in pairs if pair not in self._compared]

    async def _relate(self) -> None:
        """Ask which cruxes ask the same, and how the answer to one bears on another; keep what the second opinion confirms."""
        floor, cruxes, new = self.floor, self._cruxes(), self._new_pairs()
        self._compared |= set(new)
        self.runs += 1
        questions = tuple(thread.question or "" for thread in cruxes)
        words = floor.session.render_template("relate", questions=questions)
        async with floor.session.phase("relations", self.runs):
            reply = await floor.call(
                CRYSTALLIZER,
                floor.session.ask(
                    CRYSTALLIZER,
                    Prompt(words, documents=()),
                    key=f"relate/{self.runs}",
                    returns=RelationsReply,
                    kind="comparison",
                ),
            )
            proposed = self._proposed(reply.value, cruxes, new) if isinstance(reply, Reply) else []
            confirmed = await self._confirm(proposed, questions) if proposed else []
        self._relating = False
        same_model = floor.session.agent(CRYSTALLIZER).model == floor.session.agent(SECOND_OPINION).model
        dependencies: list[Dependency] = []
        duplicates: list[tuple[str, str]] = []
        for relation in confirmed:
            source, target = cruxes[relation.source - 1].id, cruxes[relation.target - 1].id
            if relation.kind == "SAME":
                first, second = sorted((source, target), key=list(floor.threads).index)
                duplicates.append((first, second))
            else:
                dependencies.append(
                    Dependency(
                        source=source,
                        target=target,
                        kind=relation.kind,
                        confidence=LEVELS[relation.confidence],
                        sketch=relation.sketch.strip(),
                        same_model=same_model,
                    )
                )
        floor.note(
            notes.RelationsNote(
                at=floor.now,
                pairs=tuple(new),
                proposed=len(proposed),
                dependencies=tuple(dependencies),
                duplicates=tuple(duplicates),
            )
        )

    def _proposed(
        self, reply: RelationsReply, cruxes: Sequence[Thread], new: Sequence[tuple[str, str]]
    ) -> list[Relation]:
        """Relations of a new pair that are argued and certain enough, one for each pair: the first."""
        by_pair: dict[frozenset[str], Relation] = {}
        wanted = {frozenset(pair) for pair in new}
        for relation in reply.relations:
            if not {relation.source, relation.target} <= set(range(1, len(cruxes) + 1)):
                continue
            pair = frozenset((cruxes[relation.source - 1].id, cruxes[relation.target - 1].id))
            argued = len(relation.sketch.strip()) >= MIN_SKETCH_CHARS
            if pair in wanted and argued and LEVELS[relation.confidence] >= MIN_DEPENDENCY_CONFIDENCE:
                by_pair.setdefault(pair, relation)
        return list(by_pair.values())

    async def _confirm(self, proposed: Sequence[Relation], questions: Sequence[str]) -> list[Relation]:
        """Return the relations that the second opinion confirms; none if it does not answer."""
        floor = self.floor
        claims = tuple((r.kind, questions[r.source - 1], questions[r.target - 1], r.sketch.strip()) for r in proposed)
        words = floor.session.render_template("confirm", claims=claims)
        reply = await floor.call(
            CRYSTALLIZER,
            floor.session.ask(
                SECOND_OPINION,
                Prompt(words, documents=()),
                key=f"confirm/{self.runs}",
                returns=VerdictsReply,
                kind="comparison",
            ),
        )
        confirmed_numbers = set(reply.value.hold) if isinstance(reply, Reply) else set()
        return [relation for n, relation in enumerate(proposed, 1) if n in confirmed_numbers]

    # level 3: the whole debate

    async def finish(self) -> None:
        """After the exchange: relate the cruxes that were not compared yet, and write candidates for common ground and what to ask
        next. The candidates count only if every final ballot confirms them."""
        floor, level = self.floor, self.floor.settings.crystallization_level
        if level >= 2 and self._new_pairs():
            await self._relate()
        if level < 3 or not floor.spoken:
            return
        agreed = tuple(t.question for t in floor.threads.values() if t.crystallized == "null" and t.question)
        conceded = tuple(floor.by_id[c.message].label for t in floor.threads.values() for c in t.concessions)
        words = floor.session.render_template("synthesize", agreed=agreed, conceded=conceded)
        async with floor.session.phase("synthesis", 1):
            reply = await floor.call(
                CRYSTALLIZER,
                floor.session.ask(
                    CRYSTALLIZER,
                    aside(floor.session, words, (), floor.key_quotes()),
                    key="synthesize",
                    returns=SynthesisReply,
                    kind="crystallization",
                ),
            )
        if isinstance(reply, Failure):
            return
        value = reply.value
        candidates = [
            CommonGround(
                statement=" ".join(statement.statement.split()),
                question=" ".join(statement.question.split()),
                kind=statement.kind,
                sources=tuple(floor.session.named(reply, statement.sources)),
            )
            for statement in value.common
            if statement.statement.strip()
        ]
        asked_next = tuple(" ".join(question.split()) for question in value.next_questions if is_question(question))
        floor.note(notes.CandidatesNote(at=floor.now, candidates=tuple(candidates), next_questions=asked_next))


def thread_quotes(floor: Floor, thread: Thread) -> tuple[Quote, ...]:
    """Commitments, evidence, updates and concessions that the window of a thread shows no more."""
    shown = {message.id for message in window(thread.messages)}
    kept_moves = {"COMMIT_POSITION", "PROVIDE_EVIDENCE", "UPDATE_POSITION", "CONCEDE"}
    return quotes_of(m for m in thread.messages if m.move in kept_moves and m.id not in shown)


def _asked(thread: Thread) -> tuple[str, ...]:
    """Who reviews a crux: those who committed themselves, without commitments all participants."""
    return tuple(thread.commitments) or thread.participants
