"""The cases of `test_headlines`: a protocol, what goes wrong in it, and what its headline must then say."""

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
CUT = "the answer was cut at the token limit"
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
    says: tuple[str, ...]
    level: float | None = None
    limits: Limits = field(default_factory=Limits)
    answered: bool = True


INCONCLUSIVE, STEPS, BUDGET = StopReason.INCONCLUSIVE, StopReason.EXHAUSTED_STEPS, StopReason.EXHAUSTED_BUDGET
SETTLED, STALLED, FAILED_RUN = StopReason.SETTLED, StopReason.STALLED, StopReason.FAILED
NO_CALLS = SpendingLimits(calls=0)


def case(name: str, protocol: Protocol, spoil: Spoil, stop: StopReason, *items: str, **more: Any) -> Case:
    return Case(name, protocol, spoil, stop, items, **more)


def nothing(request: ModelRequest) -> None:
    return None


CASES = [
    # emergence
    case("emergence, all leaves silent", TRIO, fails("round-2/l"), STEPS, "silent in round 2: L2N1, L2N2, L2N3"),
    case(
        "emergence, most leaves silent",
        Emergence(children=5, max_rounds=2),
        fails("round-2/l", agents=("L2N1", "L2N2", "L2N3", "L2N4")),
        STEPS,
        "silent in round 2: L2N1, L2N2, L2N3, L2N4",
        "only 1 of 5 specialists spoke in round 2",
        "no reply: leaf_respond 2 L2N1, L2N2, L2N3, L2N4 (rejected)",
    ),
    case("emergence, one leaf silent", TRIO, fails("round-2/l", agents=("L2N2",)), STEPS, "silent in round 2: L2N2"),
    case(
        "emergence, no quorum for two rounds",
        Emergence(children=3, max_rounds=3),
        fails("round-2/l", "round-3/l", agents=GONE),
        STEPS,
        "only 1 of 3 specialists spoke in round 3",
    ),
    case(
        "emergence, laterals fail",
        TRIO,
        fails("/lateral/"),
        STEPS,
        "no reply to siblings in round 2: L2N1, L2N2, L2N3",
        "lateral_leaves 2 L2N1, L2N2, L2N3 (rejected)",
    ),
    case(
        "emergence, nudges fail",
        TRIO,
        fails("/signal/"),
        STEPS,
        "no nudge after round 1: L1N1",
        "signal_down 1 L1N1 (rejected)",
    ),
    case(
        "emergence, coordinators fail",
        Emergence(children=2, depth=3, max_rounds=2),
        fails("round-2/observe/L2"),
        STEPS,
        "replied only to siblings in round 2: L2N1, L2N2",
    ),
    case(
        "emergence, a leaf answers nobody but its siblings",
        TRIO,
        fails("round-2/leaf_respond", agents=("L2N2",)),
        STEPS,
        "replied only to siblings in round 2: L2N2",
    ),
    case("emergence, the root fails", TRIO, fails("round-2/observe/L1N1"), STEPS, "silent in round 2: L1N1"),
    case(
        "emergence, the judge fails",
        Emergence(max_rounds=2, similarity="judge"),
        fails("/judge"),
        STEPS,
        "check_convergence 2 L1N1 (rejected)",
    ),
    case(
        "emergence, the review fails",
        Emergence(max_rounds=2, strange_loops=1),
        fails("finalize/"),
        INCONCLUSIVE,
        "no reply in self-review 1",
        "finalize 1 L1N1 (rejected)",
    ),
    case(
        "emergence, ballots fail",
        Emergence(max_rounds=2, similarity="jaccard", answer_pattern="yes|no"),
        fails("/ballot/"),
        STEPS,
        "only 0 of 3 ballots of round 2 could be read",
    ),
    case(
        "emergence, ballots split",
        Emergence(children=2, max_rounds=2, answer_pattern="yes|no"),
        lambda r: with_fields(r, position="no") if r.agent == "L2N1" and "/ballot/" in r.key else None,
        STALLED,
        "without agreement",
        level=0.5,
    ),
    case(
        "emergence, the answer is against all ballots",
        Emergence(children=3, max_rounds=2, answer_pattern="yes|no"),
        says("/ballot/", position="no"),
        INCONCLUSIVE,
        "the answer says yes; 3 of 3 final ballots say no",
    ),
    case(
        "emergence, the answer is against most ballots",
        Emergence(children=3, max_rounds=2, answer_pattern="yes|no"),
        lambda r: with_fields(r, position="no") if r.agent != "L2N1" and "/ballot/" in r.key else None,
        STALLED,
        "the answer says yes; 2 of 3 final ballots say no",
    ),
    case(
        "emergence, the answer takes no position",
        Emergence(children=3, max_rounds=2, answer_pattern="yes|no"),
        says("/observe/L1N1", text="It depends.", position=""),
        INCONCLUSIVE,
        "the answer takes no position",
    ),
    case("emergence, cut", TRIO, cut("round-2/observe/L1N1"), INCONCLUSIVE, CUT),
    case("emergence, review cut", Emergence(max_rounds=2, strange_loops=1), cut("finalize/"), INCONCLUSIVE, CUT),
    case(
        "emergence, laterals refused",
        TRIO,
        nothing,
        BUDGET,
        "lateral_leaves 1 L2N1, L2N2, L2N3 (budget)",
        limits=Limits(phases={"lateral_leaves": NO_CALLS}),
    ),
    case("emergence, out of calls", TRIO, nothing, BUDGET, "(budget)", limits=Limits(calls=10)),
    case(
        "emergence, one round",
        Emergence(max_rounds=1),
        nothing,
        STEPS,
        "reached the limit of 1 round",
    ),
    # broadcast
    case(
        "broadcast, leaves useless",
        TREE,
        leaves_useless,
        STEPS,
        "L2N1 is not satisfied (mean rating 0.00, needed 0.7)",
        "L2N2 is not satisfied",
    ),
    case(
        "broadcast, the evaluator says no",
        PAIR,
        says("/evaluate/", satisfied=False),
        STEPS,
        "L1N1 is not satisfied (the evaluator says no)",
    ),
    case(
        "broadcast, an evaluator beneath says no",
        TREE,
        says("/evaluate/L2N2", satisfied=False),
        STEPS,
        "L2N2 is not satisfied (the evaluator says no)",
    ),
    case(
        "broadcast, a critical flag stands",
        PAIR,
        says("/coordinate-1/L2N2", flags=FLAG),
        STEPS,
        "critical flags: goal_mismatch (L2N2)",
    ),
    case(
        "broadcast, the root flags",
        PAIR,
        lambda r: with_fields(r, flags=FLAG) if r.key == "self_reflect/L1N1" else None,
        INCONCLUSIVE,
        "critical flags: goal_mismatch (L1N1)",
    ),
    case(
        "broadcast, the root rates itself low",
        PAIR,
        lambda r: with_fields(r, rating="weak") if r.key == "self_reflect/L1N1" else None,
        INCONCLUSIVE,
        "L1N1 rates its own answer 0.30, needed 0.7",
    ),
    case(
        "broadcast, the root's rating unreadable",
        PAIR,
        lambda r: with_fields(r, rating="fine") if r.key == "self_reflect/L1N1" else None,
        INCONCLUSIVE,
        "L1N1 gave no readable rating of its own answer",
    ),
    case(
        "broadcast, broadcasts fail",
        PAIR,
        fails("/broadcast/"),
        STEPS,
        "no reply: broadcast by L1N1 (iteration 2)",
        "re_broadcast 2 L1N1 (rejected)",
    ),
    case(
        "broadcast, evaluations fail",
        PAIR,
        fails("/evaluate/"),
        STEPS,
        "no reply: evaluate by L1N1 (iteration 2)",
        "evaluate 2 L1N1 (rejected)",
    ),
    case(
        "broadcast, evaluations beneath fail",
        TREE,
        fails("/evaluate/L2"),
        STEPS,
        "L2N1 is not satisfied (no reply: evaluate by L2N1 (iteration 1.2))",
        "evaluate 1 L2N1",
    ),
    case(
        "broadcast, reflections fail",
        PAIR,
        fails("/self_reflect/L2"),
        STEPS,
        "no reply: self_reflect by L2N1 (iteration 2)",
    ),
    case("broadcast, coordination fails", PAIR, fails("/coordinate-1/"), STEPS, "no readable rating of L2N1, L2N2"),
    case(
        "broadcast, a leaf falls silent",
        PAIR,
        fails("/execute/L2N2"),
        STEPS,
        "1 of 2 agents",
        "no readable rating of L2N2",
    ),
    case(
        "broadcast, the root's reflection fails",
        PAIR,
        lambda r: Rejected("gone") if r.key == "self_reflect/L1N1" else None,
        INCONCLUSIVE,
        "no reply: self_reflect by L1N1",
    ),
    case(
        "broadcast, the strange loop fails",
        PAIR,
        fails("strange_loop-1"),
        INCONCLUSIVE,
        "no reply in self-review 1",
    ),
    case(
        "broadcast, the answer is against all ballots",
        VOTING,
        lambda r: with_fields(r, position="no") if r.agent.startswith("L2") and r.returns else None,
        INCONCLUSIVE,
        "the answer says yes; 2 of 2 final ballots say no",
    ),
    case(
        "broadcast, the ballots are for others",
        VOTING,
        lambda r: (
            with_fields(r, position="no" if r.agent == "L2N1" else "maybe")
            if r.agent.startswith("L2") and r.returns
            else None
        ),
        INCONCLUSIVE,
        "the answer says yes; 2 of 2 final ballots say otherwise",
    ),
    case(
        "broadcast, the answer takes no position",
        VOTING,
        says("synthesize/L1N1", text="It depends.", position="perhaps"),
        INCONCLUSIVE,
        "the answer takes no position",
    ),
    case(
        "broadcast, the evaluator gives no verdict",
        PAIR,
        says("/evaluate/", satisfied=None),
        INCONCLUSIVE,
        "the evaluator gave no readable verdict (L1N1)",
    ),
    case(
        "broadcast, the evaluator beneath is cut",
        TREE,
        cut("/evaluate/L2N2"),
        INCONCLUSIVE,
        "the evaluator gave no readable verdict (L2N2)",
    ),
    case("broadcast, synthesis cut", Broadcast(children=2), cut("synthesize/L1N1"), INCONCLUSIVE, CUT),
    case("broadcast, strange loop cut", PAIR, cut("strange_loop-1"), INCONCLUSIVE, CUT),
    case(
        "broadcast, reflection cut",
        PAIR,
        lambda r: (
            Scripted(with_fields(r, missing="a source", text="Yes, it"), finish_reason="length")
            if r.key == "self_reflect/L1N1"
            else None
        ),
        INCONCLUSIVE,
        CUT,
    ),
    case(
        "broadcast, evaluations refused",
        PAIR,
        nothing,
        BUDGET,
        "evaluate 1 L1N1 (budget)",
        limits=Limits(phases={"evaluate": NO_CALLS}),
    ),
    # refinement
    case(
        "refinement, a part is useless",
        Refinement(hierarchy=HOUSE, max_passes=2, threshold=0.5, filter="never"),
        useless,
        STALLED,
        "marked useless: one",
    ),
    case("refinement, an author is missing", TEXT, fails("/draft/two"), STEPS, "missing parts: two", "1 of 2 agents"),
    case(
        "refinement, specialists fail",
        TEXT,
        fails("/specialist/"),
        INCONCLUSIVE,
        "no specialist replied in pass 1",
        "specialist 1 checker ×2 (rejected)",
    ),
    case(
        "refinement, revisions fail", TEXT, fails("/revise/"), INCONCLUSIVE, "not every reply came in pass 1: one, two"
    ),
    case("refinement, no whole", TEXT, fails("/integrate/"), INCONCLUSIVE, "the coordinator put no whole together"),
    case("refinement, no intent", TEXT, fails("intent/"), INCONCLUSIVE, "the coordinator gave no intent"),
    case("refinement, no critique", TEXT, fails("/critique/"), INCONCLUSIVE, "no reply: critique by critic (pass 1)"),
    case(
        "refinement, the critic is cut",
        TEXT,
        cut("/critique/"),
        INCONCLUSIVE,
        "the critic's reply was cut at the token limit in pass 1",
    ),
    case("refinement, cut", TEXT, cut("/integrate/"), INCONCLUSIVE, CUT),
    case(
        "refinement, integration refused",
        TEXT,
        nothing,
        BUDGET,
        "integrate 1 lead (budget)",
        limits=Limits(phases={"integrate": NO_CALLS}),
    ),
    # those that settle
    case("decompose, cut", Decompose(children=2), cut("synthesize/L1N1"), SETTLED, CUT),
    case("decompose, review cut", Decompose(children=2, strange_loops=1), cut("strange_loop-1"), SETTLED, CUT),
    case("decompose, no split", Decompose(children=2), fails("split/"), SETTLED, "split 1 L1N1 (rejected)"),
    case(
        "decompose, review fails",
        Decompose(children=2, strange_loops=1),
        fails("strange_loop-1"),
        SETTLED,
        "strange_loop 1 L1N1 (rejected)",
    ),
    case("solo, cut", Solo(structured=True), cut("answer/"), SETTLED, CUT),
    case(
        "solo, dead",
        Solo(),
        fails("answer/"),
        FAILED_RUN,
        "0 of 1 agents; no reply: answer 1 S1 (rejected)",
        answered=False,
    ),
    case("vote, cut", Vote(votes=3, answer_pattern="yes|no"), cut("answer/"), SETTLED, CUT),
    case(
        "vote, split",
        Vote(votes=4, answer_pattern="yes|no"),
        lambda r: "Answer: No" if r.agent in ("V1", "V3") else None,
        SETTLED,
        "a tie: 2 votes each for No, Yes",
    ),
    case(
        "vote, no answer matches",
        Vote(votes=3, answer_pattern="yes|no"),
        lambda r: "Florp.",
        INCONCLUSIVE,
        "no position was found · no answer took a position",
    ),
    case(
        "vote, one answer without a position",
        Vote(votes=4, answer_pattern="yes|no"),
        lambda r: "Florp." if r.agent == "V1" else None,
        SETTLED,
        "Finished, but 1 of 4 answers took no position",
        level=0.75,
    ),
    case(
        "vote, missing",
        Vote(votes=4, answer_pattern="yes|no"),
        fails("answer/V1", "answer/V2"),
        SETTLED,
        "Finished, but without a majority: 2 of 4 votes for Yes · 2 of 4 agents",
        level=0.5,
    ),
    case(
        "vote, no majority",
        Vote(votes=5, answer_pattern="[ABC]"),
        lambda r: {"V1": "B", "V2": "C", "V3": "None of them."}.get(r.agent, "A"),
        SETTLED,
        "Finished, but without a majority: 2 of 5 votes for A; 1 of 5 answers took no position",
        level=0.4,
    ),
    case(
        "vote, out of calls",
        Vote(votes=4, answer_pattern="yes|no"),
        nothing,
        BUDGET,
        "answer 1 V3, V4 (budget)",
        limits=Limits(calls=2),
        level=0.5,
    ),
]
