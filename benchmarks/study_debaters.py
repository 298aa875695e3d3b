"""Agents of a planted world in a debate: every request of `debate` answered from what its agent believes.

An agent reads its prompt (in the words of `prompts/full`) and knows its own mind, nothing else. What it says in public follows
the visible majority with the world's `sycophancy`; what it answers in private suffers the world's `ballot_noise`; whether its claim
rests on a question it declares wrongly with the world's `misreport`. The service seats have no beliefs: they take questions from
what they read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from consilience.domain.messages import JsonObject
from consilience.models.port import ModelRequest
from consilience.protocols.debate.moves import Side
from simulation.worlds import PROPOSITION, Firm, Mind, World, opposite

_ASKED = re.compile(r"^([pqc]\d+): (.+?) (?:YES|NO)\b", re.MULTILINE)
_QUESTION = re.compile(r"\b[Ii]ts question[^:\n]*: (.+)$", re.MULTILINE)
_COMMITTED = re.compile(r"^- ([A-Z]) answers (YES|NO|UNCERTAIN)", re.MULTILINE)
_QUOTE = re.compile(r"^<quote \S+ from ([A-Z])(\d+)>\n(.*?)^</quote", re.MULTILINE | re.DOTALL)
_PROPOSED = re.compile(r"^Question: (.+)$", re.MULTILINE)
_STIPULATED = re.compile(r'The answer to "(.+?)" is (YES|NO)\.')
_NEW = re.compile(r"^A new question: (.+)$", re.MULTILINE)
_NUMBERED = re.compile(r"^(\d+)\. (.+)$", re.MULTILINE)

GRADE_ACCURATE = 0.85
"""The chance that an agent accepts the first restatement of its case."""
SUPPORTS = 0.3
"""The chance that a free turn supports a proposed question on which its own claim does not rest."""
PROPOSES, PROPOSES_DISTRACTOR, CHALLENGES = 0.4, 0.3, 0.5
"""The chances that a free turn proposes a question, that this is one on which nothing rests, and that it challenges otherwise."""
UPDATES = 0.3
"""The chance, times the sycophancy, that a free turn goes over to the majority."""


def simulate(request: ModelRequest, world: World) -> JsonObject:
    """Return the answer to a request of `debate`."""
    kind = request.key.partition("/")[0]
    mind = world.minds.get(request.agent)
    return _service(kind, request, world) if mind is None else _Voice(request, world, mind).answer(kind)


class _Voice:
    """One debater at one request."""

    def __init__(self, request: ModelRequest, world: World, mind: Mind) -> None:
        self.text, self.world, self.mind = request.text, world, mind
        self.fields: Mapping[str, Any] = (request.schema or {}).get("properties", {})  # type: ignore[assignment]
        self.random = world.random(mind.agent, request.key)

    def answer(self, kind: str) -> JsonObject:
        match kind:
            case "opening":
                interests = [
                    statement.subject for statement in self.world.statements if statement.question in self.mind.grounds
                ]
                claim = {"claim": f"I answer {self.mind.beliefs[PROPOSITION]}.", "reason": "It follows."}
                extra = {"horizon": "5y", "interests": interests}
                return self._ballot() | self._draw_confidence() | claim | self._falsifier() | extra
            case "final" | "test" | "told":
                claim = {"claim": "I have said it.", "reason": "It follows."}
                return self._ballot() | self._draw_confidence() | claim | {"cause": None}
            case "recheck":
                return self._ballot() | {"reason": "So I hold it."}
            case "commit":
                side, hangs = self._public(self._question()), self._declare_flip(self._question())
                fields = {"horizon": "5y", "side": side, "text": f"I answer {side}."}
                return self._draw_confidence() | self._falsifier() | hangs | fields
            case "flip":
                hangs, held = (
                    self._declare_flip(self._question()),
                    self._add_noise(self.mind.answer(self._question(), {})),
                )
                return self._draw_confidence() | hangs | {"side": held, "objects": False, "objection": ""}
            case "steelman":
                reason = {"strongest_reason": "Their reason.", "falsifier_represented": "A count."}
                return {"claim_represented": "Their claim.", **reason}
            case "grade":
                accurate = self.random.random() < GRADE_ACCURATE or self.random.random() < self.world.sycophancy
                remark = {"corrections": "" if accurate else "The count is missing.", "text": "So I grade it."}
                return {"grade": "ACCURATE" if accurate else "INCOMPLETE", **remark}
            case "falsify":
                return self._falsifier() | {"text": "A count would show it."}
            case "turn":
                return self._turn()
        raise AssertionError(f"a simulated debater is asked nothing of the kind {kind!r}")

    def _falsifier(self) -> JsonObject:
        """What would change its mind: each agent has a threshold of its own."""
        threshold = f"more than {self.world.random('falsifier', self.mind.agent).randrange(20, 60)},000"
        return {"metric": "crossings a year", "threshold": threshold, "deadline": "2030-12-31"}

    # private

    def _ballot(self) -> JsonObject:
        """A sealed answer to each question that the prompt asks, with what it stipulates taken as established."""
        match = _STIPULATED.search(self.text)
        stipulated: dict[str, Firm] = {}
        if match and (question := _known(self.world, match[1])):
            stipulated[question] = "YES" if match[2] == "YES" else "NO"
        asked = ((name, _known(self.world, text)) for name, text in _ASKED.findall(self.text) if name in self.fields)
        return {
            name: self._add_noise(self.mind.answer(question, stipulated)) if question else "UNCERTAIN"
            for name, question in asked
        }

    def _add_noise(self, side: Firm) -> Side:
        if self.random.random() >= self.world.ballot_noise:
            return side
        return self.random.choice((opposite(side), "UNCERTAIN"))

    def _draw_confidence(self) -> JsonObject:
        return {"confidence": self.random.choice(("fairly sure", "certain"))}

    def _declare_flip(self, question: str) -> JsonObject:
        """What the agent declares: whether its claim rests on a question. Where it misreports, it does so each time."""
        rests = question in self.mind.grounds
        wrong = self.world.random("misreport", self.mind.agent, question).random() < self.world.misreport
        gives_up_if = opposite(self.mind.beliefs[question]) if rests != wrong else "neither"
        return {"gives_up_if": gives_up_if, "flip_confidence": "fairly sure", "why": "It follows."}

    # public

    def _question(self) -> str:
        return _known(self.world, _last(_QUESTION, self.text)) or PROPOSITION

    def _public(self, question: str) -> Firm:
        """The side that an agent takes before others: its own, or that of most who have taken one."""
        seen = [side for _, side in _COMMITTED.findall(self.text)]
        yes, no = seen.count("YES"), seen.count("NO")
        if yes != no and self.random.random() < self.world.sycophancy:
            return "YES" if yes > no else "NO"
        return self.mind.beliefs[question]

    def _turn(self) -> JsonObject:
        """A free turn: support a question on which its claim rests, propose one, go over to the majority, or argue."""
        moves = self.fields["move"].get("enum") or [self.fields["move"]["const"]]
        question = _known(self.world, _last(_QUESTION, self.text))
        body: JsonObject = {"reply_to": None, "mentions": [], "text": "One point about the bridge, with its figure."}
        if "PROPOSE_CRUX" in moves and (proposal := self._proposal(question)):
            label, proposed = proposal
            if label:
                return {**body, **self._topics(proposed), "move": self._argue(moves), "supports": label}
            return {**body, **self._topics(proposed), "move": "PROPOSE_CRUX", "question": proposed}
        if "UPDATE_POSITION" in moves and question and self.random.random() < UPDATES:
            side = self._public(question)
            if side != self.mind.beliefs[question]:
                update = {"move": "UPDATE_POSITION", "new_side": side}
                return body | self._topics(question) | update | self._falsifier()
        return {**body, **self._topics(question or PROPOSITION), "move": self._argue(moves)}

    def _argue(self, moves: list[str]) -> str:
        challenge = next((move for move in ("CHALLENGE", "CHALLENGE_EVIDENCE") if move in moves), None)
        if challenge and self.random.random() < CHALLENGES:
            return challenge
        return next((move for move in ("PROVIDE_EVIDENCE", "CLAIM") if move in moves), moves[0])

    def _topics(self, question: str) -> JsonObject:
        subjects = [statement.subject for statement in self.world.statements if statement.question == question]
        return {"topics": subjects}

    def _proposal(self, current: str | None) -> tuple[str, str] | None:
        """A question that another proposed, with its label, or one to propose; None for neither."""
        read = [(f"{m[1]}{m[2]}", proposed) for m in _QUOTE.finditer(self.text) if (proposed := _last(_PROPOSED, m[3]))]
        allowed = _allowed(self.fields.get("supports", {}))
        open_ones = [
            (label, q) for label, text in read if label in allowed and (q := _known(self.world, text)) and q != current
        ]
        wanted = [(label, q) for label, q in open_ones if q in self.mind.grounds]
        if wanted or (open_ones and self.random.random() < SUPPORTS):
            return self.random.choice(wanted or open_ones)
        if self.random.random() >= PROPOSES:
            return None
        known = {current, *(_known(self.world, text) for _, text in read)}
        idle = self.random.random() < PROPOSES_DISTRACTOR
        pool = (
            [statement.question for statement in self.world.statements if statement.kind == "distractor"]
            if idle
            else sorted(self.mind.grounds)
        )
        mine = [q for q in pool if q not in known]
        return ("", self.random.choice(mine)) if mine else None


def _service(kind: str, request: ModelRequest, world: World) -> JsonObject:
    """What a seat without beliefs answers."""
    text = request.text
    match kind:
        case "framing":
            return {"form": "yes/no", "propositions": [PROPOSITION], "reason": ""}
        case "reframe" | "spawn":
            current = _known(world, _last(_QUESTION, text))
            read = [
                statement.question
                for statement in world.statements
                if statement.question in text and statement.question != current
            ]
            return {"question": max(read, key=text.count, default=current or PROPOSITION), "second": ""}
        case "same":
            new = _last(_NEW, text).strip()
            same = (number for number, question in _NUMBERED.findall(text) if question.strip() == new)
            return {"same_as": int(next(same, 0))}
        case "crystallize":
            question = _known(world, _last(_QUESTION, text)) or PROPOSITION
            criteria = ["more than 40,000 crossings by 2030-12-31", "fewer than 20,000 crossings by 2030-12-31"]
            control = "Will the plans of the bridge be kept in the new archive?"
            body: JsonObject = {
                "question": question,
                "criteria": criteria,
                "supporting": [],
                "unclear": "",
                "control": control,
            }
            return {"outcome": "crux", "kind": "causal", "confidence": "certain", **body}
        case "relate":
            return {"relations": []}
        case "confirm":
            return {"hold": []}
        case "synthesize":
            candidates = [statement.question for statement in world.statements if statement.kind != "distractor"][-4:]
            common = [{"statement": question, "kind": "causal", "sources": []} for question in candidates]
            return {"common": common, "next_questions": []}
        case "derive":
            return {"falsifiers": []}
        case "closing":
            decided: JsonObject = {f"p{n}": "UNDECIDED" for n in (1, 2, 3)}
            return {**decided, "claims": [], "against": [], "would_change": [], "unknown": [], "text": "It depends."}
        case "single":
            return {"p1": "UNDECIDED", "p2": "UNDECIDED", "p3": "UNDECIDED", "text": "It depends."}
    raise AssertionError(f"a service seat of a debate is asked nothing of the kind {kind!r}")


def _known(world: World, text: str) -> str | None:
    """The question of the world that a text holds."""
    questions = (*(statement.question for statement in world.statements), PROPOSITION)
    return next((question for question in questions if question in text), None)


def _allowed(schema: Mapping[str, Any]) -> list[str]:
    """The labels that a field takes."""
    options = schema.get("anyOf", [])
    return [label for option in options for label in option.get("enum") or [option.get("const")] if label]


def _last(pattern: re.Pattern[str], text: str) -> str:
    matches = pattern.findall(text)
    return str(matches[-1]) if matches else ""
