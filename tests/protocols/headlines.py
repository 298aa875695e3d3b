"""The cases of `test_headlines`: a protocol, what goes wrong, and how the run must end. Its golden file has the headlines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from consilience import Broadcast, Decompose, Emergence, Limits, Refinement, Solo, StopReason, Vote
from consilience.domain.errors import Rejected
from consilience.domain.outcome import SpendingLimits
from consilience.engine.protocol import Protocol
from consilience.models.port import ModelRequest
from consilience.testing import Scripted

Answer = Any
Spoil = Callable[[ModelRequest], Answer]
"""The answer to a request, None for the agreeable one."""

MARKS = ("coherence", "accuracy", "depth", "overall")
HOUSE = {
    "name": "house",
    "description": "Two parts and a checker.",
    "roles": [
        {"name": "lead", "description": "You lead.", "children": ["one", "two"]},
        {"name": "one", "description": "You write one.", "children": ["checker"]},
        {"name": "two", "description": "You write two.", "children": ["checker"]},
        {"name": "checker", "description": "You check."},
    ],
}
TREE = Broadcast(children=2, depth=3)
PAIR = Broadcast(children=2, skip_when_satisfied=False, strange_loops=1)
VOTING = Broadcast(children=2, answer_pattern="yes|no|maybe")
TRIO = Emergence(children=3, max_rounds=2)
TEXT = Refinement(hierarchy=HOUSE, max_passes=2, filter="never")


def agreeable(request: ModelRequest) -> str:
    """Everybody says the same, is satisfied, and finds nothing to criticise."""
    if "/critique/" in request.key:
        assert request.schema is not None
        return json.dumps(dict.fromkeys(request.schema["required"], dict.fromkeys(MARKS, "excellent")))  # type: ignore[call-overload]
    if request.returns is None:
        return "It is so.\n\nAnswer: Yes"
    text = "" if "self_reflect/" in request.key else "Yes, it is so."  # empty: the text stands
    body: dict[str, object] = {"text": text, "rating": "excellent", "satisfied": True, "missing": "", "stance": "kept"}
    body |= {"position": "yes", "confidence": "certain", "reason": "It is so.", "parts": [{"title": "All of it"}]}
    return json.dumps(body)


def with_fields(request: ModelRequest, **fields: object) -> str:
    return json.dumps({**json.loads(agreeable(request)), **fields})


def fails(*parts: str, agents: tuple[str, ...] = ()) -> Spoil:
    """Calls whose key holds one of `parts`, of these agents or of all, fail for good."""
    return lambda r: Rejected("gone") if any(p in r.key for p in parts) and (not agents or r.agent in agents) else None


def cut(*parts: str) -> Spoil:
    return lambda r: Scripted(agreeable(r), finish_reason="length") if any(p in r.key for p in parts) else None


def says(part: str, **fields: object) -> Spoil:
    return lambda r: with_fields(r, **fields) if part in r.key and r.returns else None


def useless(request: ModelRequest) -> Answer:
    """The critic likes both parts, and calls the first useless as a whole."""
    if "/critique/" not in request.key:
        return None
    assert request.schema is not None
    first, *others = request.schema["required"]  # type: ignore[misc]
    fine = dict.fromkeys(MARKS, "excellent")
    return json.dumps({first: {**fine, "overall": "useless"}, **dict.fromkeys(others, fine)})


def leaves_useless(request: ModelRequest) -> Answer:
    return with_fields(request, rating="useless") if request.agent.startswith("L3") and request.returns else None


FLAG = [{"tag": "goal_mismatch", "text": "The question is another one."}]
GONE = ("L2N1", "L2N2")


@dataclass(frozen=True)
class Case:
    name: str
    protocol: Protocol
    spoil: Spoil
    stop: StopReason
    level: float | None = None
    limits: Limits = field(default_factory=Limits)
    answered: bool = True
    cut: bool = False
    """Whether the answer was cut at the token limit."""


INCONCLUSIVE, STEPS, BUDGET = StopReason.INCONCLUSIVE, StopReason.EXHAUSTED_STEPS, StopReason.EXHAUSTED_BUDGET
SETTLED, STALLED, FAILED_RUN = StopReason.SETTLED, StopReason.STALLED, StopReason.FAILED
NO_CALLS = SpendingLimits(calls=0)


def nothing(request: ModelRequest) -> None:
    return None


CASES = [
    # emergence
    Case("emergence, all leaves silent", TRIO, fails("round-2/l"), STEPS),
    Case(
        "emergence, most leaves silent",
        Emergence(children=5, max_rounds=2),
        fails("round-2/l", agents=("L2N1", "L2N2", "L2N3", "L2N4")),
        STEPS,
    ),
    Case("emergence, one leaf silent", TRIO, fails("round-2/l", agents=("L2N2",)), STEPS),
    Case(
        "emergence, no quorum for two rounds",
        Emergence(children=3, max_rounds=3),
        fails("round-2/l", "round-3/l", agents=GONE),
        STEPS,
    ),
    Case(
        "emergence, laterals fail",
        TRIO,
        fails("/lateral/"),
        STEPS,
    ),
    Case(
        "emergence, nudges fail",
        TRIO,
        fails("/signal/"),
        STEPS,
    ),
    Case(
        "emergence, coordinators fail",
        Emergence(children=2, depth=3, max_rounds=2),
        fails("round-2/observe/L2"),
        STEPS,
    ),
    Case(
        "emergence, a leaf answers nobody but its siblings",
        TRIO,
        fails("round-2/leaf_respond", agents=("L2N2",)),
        STEPS,
    ),
    Case("emergence, the root fails", TRIO, fails("round-2/observe/L1N1"), STEPS),
    Case(
        "emergence, the judge fails",
        Emergence(max_rounds=2, similarity="judge"),
        fails("/judge"),
        STEPS,
    ),
    Case(
        "emergence, the review fails",
        Emergence(max_rounds=2, strange_loops=1),
        fails("finalize/"),
        INCONCLUSIVE,
    ),
    Case(
        "emergence, ballots fail",
        Emergence(max_rounds=2, similarity="jaccard", answer_pattern="yes|no"),
        fails("/ballot/"),
        STEPS,
    ),
    Case(
        "emergence, ballots split",
        Emergence(children=2, max_rounds=2, answer_pattern="yes|no"),
        lambda r: with_fields(r, position="no") if r.agent == "L2N1" and "/ballot/" in r.key else None,
        STALLED,
        level=0.5,
    ),
    Case(
        "emergence, the answer is against all ballots",
        Emergence(children=3, max_rounds=2, answer_pattern="yes|no"),
        says("/ballot/", position="no"),
        INCONCLUSIVE,
    ),
    Case(
        "emergence, the answer is against most ballots",
        Emergence(children=3, max_rounds=2, answer_pattern="yes|no"),
        lambda r: with_fields(r, position="no") if r.agent != "L2N1" and "/ballot/" in r.key else None,
        STALLED,
    ),
    Case(
        "emergence, the answer takes no position",
        Emergence(children=3, max_rounds=2, answer_pattern="yes|no"),
        says("/observe/L1N1", text="It depends.", position=""),
        INCONCLUSIVE,
    ),
    Case("emergence, cut", TRIO, cut("round-2/observe/L1N1"), INCONCLUSIVE, cut=True),
    Case("emergence, review cut", Emergence(max_rounds=2, strange_loops=1), cut("finalize/"), INCONCLUSIVE, cut=True),
    Case(
        "emergence, laterals refused",
        TRIO,
        nothing,
        BUDGET,
        limits=Limits(phases={"lateral_leaves": NO_CALLS}),
    ),
    Case("emergence, out of calls", TRIO, nothing, BUDGET, limits=Limits(calls=10)),
    Case(
        "emergence, one round",
        Emergence(max_rounds=1),
        nothing,
        STEPS,
    ),
    # broadcast
    Case(
        "broadcast, leaves useless",
        TREE,
        leaves_useless,
        STEPS,
    ),
    Case(
        "broadcast, the evaluator says no",
        PAIR,
        says("/evaluate/", satisfied=False),
        STEPS,
    ),
    Case(
        "broadcast, an evaluator beneath says no",
        TREE,
        says("/evaluate/L2N2", satisfied=False),
        STEPS,
    ),
    Case(
        "broadcast, a critical flag stands",
        PAIR,
        says("/coordinate-1/L2N2", flags=FLAG),
        STEPS,
    ),
    Case(
        "broadcast, the root flags",
        PAIR,
        lambda r: with_fields(r, flags=FLAG) if r.key == "self_reflect/L1N1" else None,
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, the root rates itself low",
        PAIR,
        lambda r: with_fields(r, rating="weak") if r.key == "self_reflect/L1N1" else None,
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, the root's rating unreadable",
        PAIR,
        lambda r: with_fields(r, rating="fine") if r.key == "self_reflect/L1N1" else None,
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, broadcasts fail",
        PAIR,
        fails("/broadcast/"),
        STEPS,
    ),
    Case(
        "broadcast, evaluations fail",
        PAIR,
        fails("/evaluate/"),
        STEPS,
    ),
    Case(
        "broadcast, evaluations beneath fail",
        TREE,
        fails("/evaluate/L2"),
        STEPS,
    ),
    Case(
        "broadcast, reflections fail",
        PAIR,
        fails("/self_reflect/L2"),
        STEPS,
    ),
    Case("broadcast, coordination fails", PAIR, fails("/coordinate-1/"), STEPS),
    Case(
        "broadcast, a leaf falls silent",
        PAIR,
        fails("/execute/L2N2"),
        STEPS,
    ),
    Case(
        "broadcast, the root's reflection fails",
        PAIR,
        lambda r: Rejected("gone") if r.key == "self_reflect/L1N1" else None,
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, the strange loop fails",
        PAIR,
        fails("strange_loop-1"),
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, the answer is against all ballots",
        VOTING,
        lambda r: with_fields(r, position="no") if r.agent.startswith("L2") and r.returns else None,
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, the ballots are for others",
        VOTING,
        lambda r: (
            with_fields(r, position="no" if r.agent == "L2N1" else "maybe")
            if r.agent.startswith("L2") and r.returns
            else None
        ),
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, the answer takes no position",
        VOTING,
        says("synthesize/L1N1", text="It depends.", position="perhaps"),
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, the evaluator gives no verdict",
        PAIR,
        says("/evaluate/", satisfied=None),
        INCONCLUSIVE,
    ),
    Case(
        "broadcast, the evaluator beneath is cut",
        TREE,
        cut("/evaluate/L2N2"),
        INCONCLUSIVE,
    ),
    Case("broadcast, synthesis cut", Broadcast(children=2), cut("synthesize/L1N1"), INCONCLUSIVE, cut=True),
    Case("broadcast, strange loop cut", PAIR, cut("strange_loop-1"), INCONCLUSIVE, cut=True),
    Case(
        "broadcast, reflection cut",
        PAIR,
        lambda r: (
            Scripted(with_fields(r, missing="a source", text="Yes, it"), finish_reason="length")
            if r.key == "self_reflect/L1N1"
            else None
        ),
        INCONCLUSIVE,
        cut=True,
    ),
    Case(
        "broadcast, evaluations refused",
        PAIR,
        nothing,
        BUDGET,
        limits=Limits(phases={"evaluate": NO_CALLS}),
    ),
    # refinement
    Case(
        "refinement, a part is useless",
        Refinement(hierarchy=HOUSE, max_passes=2, threshold=0.5, filter="never"),
        useless,
        STALLED,
    ),
    Case("refinement, an author is missing", TEXT, fails("/draft/two"), STEPS),
    Case(
        "refinement, specialists fail",
        TEXT,
        fails("/specialist/"),
        INCONCLUSIVE,
    ),
    Case("refinement, revisions fail", TEXT, fails("/revise/"), INCONCLUSIVE),
    Case("refinement, no whole", TEXT, fails("/integrate/"), INCONCLUSIVE),
    Case("refinement, no intent", TEXT, fails("intent/"), INCONCLUSIVE),
    Case("refinement, no critique", TEXT, fails("/critique/"), INCONCLUSIVE),
    Case(
        "refinement, the critic is cut",
        TEXT,
        cut("/critique/"),
        INCONCLUSIVE,
    ),
    Case("refinement, cut", TEXT, cut("/integrate/"), INCONCLUSIVE, cut=True),
    Case(
        "refinement, integration refused",
        TEXT,
        nothing,
        BUDGET,
        limits=Limits(phases={"integrate": NO_CALLS}),
    ),
    # those that settle
    Case("decompose, cut", Decompose(children=2), cut("synthesize/L1N1"), SETTLED, cut=True),
    Case("decompose, review cut", Decompose(children=2, strange_loops=1), cut("strange_loop-1"), SETTLED, cut=True),
    Case("decompose, no split", Decompose(children=2), fails("split/"), SETTLED),
    Case(
        "decompose, review fails",
        Decompose(children=2, strange_loops=1),
        fails("strange_loop-1"),
        SETTLED,
    ),
    Case("solo, cut", Solo(structured=True), cut("answer/"), SETTLED, cut=True),
    Case(
        "solo, dead",
        Solo(),
        fails("answer/"),
        FAILED_RUN,
        answered=False,
    ),
    Case("vote, cut", Vote(votes=3, answer_pattern="yes|no"), cut("answer/"), SETTLED, cut=True),
    Case(
        "vote, split",
        Vote(votes=4, answer_pattern="yes|no"),
        lambda r: "Answer: No" if r.agent in ("V1", "V3") else None,
        SETTLED,
    ),
    Case(
        "vote, no answer matches",
        Vote(votes=3, answer_pattern="yes|no"),
        lambda r: "Florp.",
        INCONCLUSIVE,
    ),
    Case(
        "vote, one answer without a position",
        Vote(votes=4, answer_pattern="yes|no"),
        lambda r: "Florp." if r.agent == "V1" else None,
        SETTLED,
        level=0.75,
    ),
    Case(
        "vote, missing",
        Vote(votes=4, answer_pattern="yes|no"),
        fails("answer/V1", "answer/V2"),
        SETTLED,
        level=0.5,
    ),
    Case(
        "vote, no majority",
        Vote(votes=5, answer_pattern="[ABC]"),
        lambda r: {"V1": "B", "V2": "C", "V3": "None of them."}.get(r.agent, "A"),
        SETTLED,
        level=0.4,
    ),
    Case(
        "vote, out of calls",
        Vote(votes=4, answer_pattern="yes|no"),
        nothing,
        BUDGET,
        limits=Limits(calls=2),
        level=0.5,
    ),
]
