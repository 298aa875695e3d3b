"""What the agents of a debate say in tests: every prompt of `debate` answered from its schema, by rules a test can read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from consilience.models.port import ModelRequest
from consilience.protocols.debate.stipulations import PLACEBO

Answer = dict[str, object]
Choose = Callable[[ModelRequest, Mapping[str, Any]], Answer]

SIDES = ("YES", "NO")


def number_of(agent: str) -> int:
    """The number in a seat's id (`D3`: 3)."""
    digits = re.sub(r"\D", "", agent)
    return int(digits) if digits else 1


def side_of(agent: str) -> str:
    """Odd seats say yes, even ones no."""
    return SIDES[(number_of(agent) + 1) % 2]


def labels(request: ModelRequest) -> list[str]:
    """Labels of the messages that a prompt quotes."""
    return re.findall(r"from ([A-Z]\d+)>", request.text)


def properties(request: ModelRequest) -> dict[str, Any]:
    schema = request.schema or {}
    fields = schema.get("properties", {})
    assert isinstance(fields, dict)
    return fields


def moves_of(request: ModelRequest) -> list[str]:
    """The moves that are open in a free turn."""
    schema = properties(request).get("move", {})
    return list(schema.get("enum") or [schema["const"]])


def question_of(request: ModelRequest) -> str:
    """The question of a thread, as a request to write it down gives it; another if it has none."""
    match = re.search(r"^Its question(?:, on which [^:]*)?: (.+)$", request.text, re.MULTILINE)
    return match[1] if match else "Would queues lose orders at the peak?"


CONTROL = "Were the old queues named after rivers?"
FALSIFIER: Answer = {"metric": "orders lost in a year", "threshold": "more than 12", "deadline": "2027-12-31"}


class Debaters:
    """Debaters who disagree, put one another's case fairly and stay as they are. A test changes single answers by kind.

    `turns` chooses the free moves, in order of the turns of the whole debate; then the first open one is taken.
    """

    def __init__(self, changes: Mapping[str, Callable[[ModelRequest], Answer]] | None = None) -> None:
        self.changes = dict(changes or {})

    def __call__(self, request: ModelRequest) -> str:
        kind = request.key.partition("/")[0]
        answer = self.answer(kind, request)
        if kind in self.changes:
            answer |= self.changes[kind](request)
        known = properties(request)
        return json.dumps({name: value for name, value in answer.items() if name in known})

    def answer(self, kind: str, request: ModelRequest) -> Answer:
        side = side_of(request.agent)
        text = f"{request.agent} in {request.key}, having read {len(request.text)} characters."
        fields: Answer = {name: side for name in properties(request) if re.fullmatch(r"[pq]\d", name)}
        fields |= {name: "YES" for name in properties(request) if re.fullmatch(r"c\d", name)}
        match kind:
            case "framing":
                return {"form": "yes/no", "propositions": ["Should we move the orders to queues?"], "reason": ""}
            case "opening":
                about = {"horizon": "5y", "confidence": "fairly sure", "interests": ["orders", "queues"], **FALSIFIER}
                return {**fields, **about, "reason": "it follows", "claim": f"{request.agent} claims {side}"}
            case "turn":
                return self.turn(request, text)
            case "commit":
                body = {"horizon": "5y", "side": side, "confidence": "fairly sure", **FALSIFIER}
                return {
                    **body,
                    "gives_up_if": "either",
                    "flip_confidence": "certain",
                    "why": "it hangs on it",
                    "text": text,
                }
            case "falsify":
                return {**FALSIFIER, "text": text}
            case "steelman":
                return {
                    "claim_represented": "their claim",
                    "strongest_reason": "their reason",
                    "falsifier_represented": "their falsifier",
                    "text": text,
                }
            case "grade":
                return {"grade": "ACCURATE", "corrections": "", "text": "That is my case."}
            case "flip":
                body = {"side": side, "gives_up_if": "either", "confidence": "certain", "why": "it hangs on it"}
                return {**body, "objects": False, "objection": ""}
            case "crystallize":
                return {
                    "outcome": "crux",
                    "kind": "causal",
                    "question": question_of(request),
                    "criteria": ["over 12 orders lost in 2027", "an audit that finds none"],
                    "supporting": [label for label in labels(request) if not label.startswith("M")][:2],
                    "confidence": "certain",
                    "unclear": "",
                    "control": CONTROL,
                }
            case "relate":
                return {"relations": []}
            case "confirm":
                return {"hold": []}
            case "synthesize":
                common = {"statement": "The peak is short.", "kind": "factual", "sources": labels(request)[:1]}
                return {"common": [common], "next_questions": ["How long is the peak?"]}
            case "final":
                return {
                    **fields,
                    "confidence": "fairly sure",
                    "cause": None,
                    "reason": "still",
                    "claim": f"still {side}",
                }
            case "recheck":
                cast = r"^([pq]\d): .* (YES|NO|UNCERTAIN) in your final ballot"
                return {**dict(re.findall(cast, request.text, re.MULTILINE)), "reason": "as I voted"}
            case "test":
                return {**fields, **self.tested(request, side), "confidence": "certain", "reason": "it follows"}
            case "told":
                return {**fields, "confidence": "certain", "reason": "still", "claim": f"{request.agent} holds {side}"}
            case "closing":
                decided = dict.fromkeys(fields, "UNDECIDED")
                return {
                    **decided,
                    "claims": [],
                    "against": [],
                    "would_change": [],
                    "unknown": [],
                    "text": f"Closing: {text}",
                }
            case "single":
                decided = dict.fromkeys(fields, "NO")
                asked = ["Would queues lose orders at the peak?", "Is the old system too slow?"]
                own = {"against": ["it is late"], "would_change": ["more than 12 lost"], "unknown": ["the peak"]}
                return {**decided, "confidence": "fairly sure", "cruxes": asked, **own, "text": f"Alone: {text}"}
            case "named":
                return dict.fromkeys(fields, 0) | {"q1": 1, "same1": True}
            case "reframe" | "spawn":
                return {"question": f"Would it lose orders, asks {request.key}?", "second": ""}
            case "same":
                return {"same_as": 0}
            case "inventory":
                return {"rows": []}
            case "derive":
                return {"falsifiers": [{"participant": letter, **FALSIFIER, "reasoning": ""} for letter in "ABCDEF"]}
        raise AssertionError(f"a debate asks nothing of the kind {kind!r}")

    def tested(self, request: ModelRequest, side: str) -> Answer:
        """Its side, unless the other answer to a question is stipulated: then the other side, as it had declared."""
        stipulated = re.findall(r'^The answer to "(.*)" is (YES|NO)\.$', request.text, re.MULTILINE)
        moved = bool(stipulated) and stipulated[-1][0] not in (CONTROL, PLACEBO) and stipulated[-1][1] != side
        return {name: SIDES[SIDES.index(side) - 1] if moved else side for name in properties(request) if name[0] == "p"}

    def turn(self, request: ModelRequest, text: str) -> Answer:
        """A free turn: a challenge where one is open, and a question to propose from the fifth message on."""
        open_moves, shown = moves_of(request), labels(request)
        others = [label for label in shown if not label.startswith("M")]
        move = open_moves[0]
        if "CHALLENGE" in open_moves and others:
            move = "CHALLENGE"
        if "PROPOSE_CRUX" in open_moves and "CLAIM" in open_moves and len(others) >= 4:
            move = "PROPOSE_CRUX"
        body: Answer = {"move": move, "reply_to": shown[-1] if shown else None, "mentions": [], "topics": ["orders"]}
        if move == "PROPOSE_CRUX":
            body["question"] = "Would queues lose orders at the peak?"
        if move == "CONCEDE":
            body["conceded"] = "the peak is short"
        if move == "UPDATE_POSITION":
            body["new_side"] = "UNCERTAIN"
        return {**body, "text": text}


# --- two cruxes

SKETCH = "Queues are streams with one reader, so what loses orders in one loses them in the other."


def two_threads() -> dict[str, Callable[[ModelRequest], Answer]]:
    """Four agents whom two options, queues and streams, divide differently: two threads with a question each."""

    def opening(request: ModelRequest) -> Answer:
        return {"p2": "YES" if number_of(request.agent) < 3 else "NO"}

    def turn(request: ModelRequest) -> Answer:
        about = "streams" if "thread on: Is this the best of the options: streams" in request.text else "queues"
        return {"question": f"Would {about} lose orders?"} if "PROPOSE_CRUX" in moves_of(request) else {}

    return {"opening": opening, "turn": turn}


def related_cruxes(
    kind: str, *, hold: list[int], sketch: str = SKETCH, confidence: str = "certain"
) -> dict[str, Callable[[ModelRequest], Answer]]:
    """The same with a relation from the first crux to the second; the second opinion confirms it where it may `hold`."""
    relation = {"source": 1, "target": 2, "kind": kind, "sketch": sketch, "confidence": confidence}
    return two_threads() | {
        "relate": lambda request: {"relations": [relation]},
        "confirm": lambda request: {"hold": hold},
    }
