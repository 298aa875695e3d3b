"""The protocols that are shaken, each with what its agents say. A new protocol joins by a line here."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consilience.domain.messages import Source
from consilience.engine.protocol import Protocol
from consilience.engine.sources import number_documents
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Solo, Vote
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.choose import Choose
from consilience.protocols.debate import Debate
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.protocols.propose import Propose
from consilience.protocols.refinement import Refinement
from consilience.protocols.review import Review
from kit.council import Council
from kit.debating import Debaters
from kit.reviewing import CODE, DIFF, UNCLOSED, closing, documents_of, finding, judgement, review, script
from kit.rounds import SettledRounds, opining
from kit.throwaways import NestedGathers, OutsideAgent, ToyDebate
from kit.tools import MAX_STEPS

Script = Callable[[ModelRequest], str]


@dataclass(frozen=True)
class Case:
    name: str
    protocol: Protocol
    script: Script
    sources: tuple[Source, ...] = ()
    outside: str | None = None
    """The agent that answers from outside, and only once the session is parked."""
    tools: str | None = None
    """The agent that has tools."""

    @property
    def need(self) -> int:
        return self.protocol.estimate().max * (MAX_STEPS if self.tools else 1)


def plain(request: ModelRequest) -> str:
    """A text that depends on all that was read."""
    return f"{request.agent} read {len(request.text)} characters for {request.key}"


def debating(request: ModelRequest) -> str:
    """Turns that depend on all that was read; some are blocked by the gate, and some malformed the first time."""
    if request.returns is None:
        return plain(request)
    if request.attempt == 1 and (len(request.text) + len(request.key)) % 7 == 0:
        return '{"to": "nobody"}'
    blocked = ", blocked" if request.agent.endswith("3") else ""
    return json.dumps({"text": f"{plain(request)}{blocked}", "to": "M1" if "M1" in request.text else None})


def emergent(request: ModelRequest) -> str:
    """Typed replies with objections, answers, declarations, claims and ballots, some of them malformed the first time."""
    body: dict[str, object] = {"text": f"{request.agent} on {request.key}: {len(request.text)}"}
    _, _, rest = request.key.partition("/")
    if rest.startswith("signal"):
        return f"Look again, says {request.agent} ({request.key})."
    if rest.startswith("ballot"):
        side = "yes" if request.agent[-1] in "13" else "no"
        return json.dumps({"position": side, "confidence": "fairly sure", "reason": f"{request.agent} thinks so"})
    if rest.startswith("leaf_respond"):
        body["points"] = [f"a fact of {request.agent}"]
        if request.agent.endswith("2") and request.attempt == 1:
            return '{"points": "none", "text": 3}'
    elif request.schema and "objections" in str(request.schema):
        body["objections"] = [{"to": "A", "text": f"{request.agent} objects in {request.key}"}]
    shown = re.findall(r"from ([A-Z]\w*\.\d+)>", request.text)
    fates = ("yielded", "refuted")
    answers = [{"objection": o, "fate": fates[n % 2], "how": request.key} for n, o in enumerate(shown[:2])]
    claims = [{"text": f"claimed by {request.agent}", "ids": ["A", "Z"]}]
    stance = "kept" if len(request.text) % 2 else "changed"
    return json.dumps({"answers": answers, "stance": stance, "claims": claims, "changes": claims, **body})


def broadcasting(request: ModelRequest) -> str:
    """Ratings that fall short in every first iteration, flags from leaves and siblings, ballots, some malformed at first."""
    words = f"{request.agent} on {request.key}: {len(request.text)}"
    *places, what, _ = request.key.split("/")
    if request.attempt == 1 and request.agent.endswith("2") and what in ("execute", "coordinate-1"):
        return '{"points": "none", "text": 3, "rating": 7}'
    body: dict[str, object] = {
        "text": words,
        "missing": "more",
        "rating": 5 if places and places[-1].endswith("1") else 8,
    }
    if what == "self_reflect" and request.agent.endswith("2") and len(request.text) % 2:
        body |= {"flags": [{"tag": "goal_mismatch", "text": f"{request.agent} doubts"}], "text": ""}
    if what == "coordinate-1":
        body |= {"flags": [{"tag": "contradiction_detected", "text": f"{words} against A"}], "cause": "A"}
    side = "yes" if what == "coordinate-1" or request.agent[-1] in "13" else "no"
    body |= {"position": side, "confidence": "fairly sure", "reason": f"{request.agent} thinks so"}
    body |= {"satisfied": True, "claims": [{"text": f"claimed by {request.agent}", "ids": ["A", "Z"]}]}
    return json.dumps(body)


def dividing(request: ModelRequest) -> str:
    """Parts for the children, one too many at the root; some replies malformed at first."""
    words = f"{request.agent} on {request.key}: {len(request.text)}"
    if request.attempt == 1 and request.agent.endswith("2"):
        return '{"parts": "none", "text": 3}'
    parts = 3 if request.agent == "L1N1" else 1 + request.agent.endswith("1")
    body: dict[str, object] = {"parts": [{"title": f"Part {n}", "instructions": words} for n in range(parts)]}
    body |= {"points": [f"a fact of {request.agent}"], "claims": [{"text": words, "ids": ["part 1", "Z"]}]}
    return json.dumps({**body, "text": words})


def proposing(request: ModelRequest) -> str:
    """Four roles, two of one name."""
    names = ("Baker", "Mayor", "baker", "Nurse")
    return json.dumps({"personas": [{"name": name, "asks": f"{name} {len(request.text)}?"} for name in names]})


def reading_of_a_task(request: ModelRequest) -> str:
    """A decision, whatever the task is."""
    return json.dumps({"kind": "decision", "divides": True, "why": f"{len(request.text)} characters"})


def weighing(request: ModelRequest) -> str:
    """A structured answer."""
    return json.dumps(
        {"options": ["yes", "no"], "cruxes": ["Who pays?"], "against": ["It costs."], "text": plain(request)}
    )


def voting(request: ModelRequest) -> str:
    """Three say yes, one no."""
    return f"{plain(request)}\n\nAnswer: {'No' if request.agent == 'V2' else 'Yes'}"


HOUSE = {
    "name": "house",
    "description": "Two parts, one of them resting on a third, a checker of all, and an adviser on the whole.",
    "roles": [
        {"name": "lead", "description": "You lead.", "children": ["one", "two", "adviser"], "vector": [1, 0]},
        {"name": "one", "description": "You write one.", "children": ["deep", "checker"], "vector": [1, 1]},
        {"name": "two", "description": "You write two.", "children": ["checker"], "vector": [-1, 1]},
        {"name": "deep", "description": "You write what one needs.", "children": ["checker"], "vector": [0, 1]},
        {"name": "checker", "description": "You check.", "vector": [-1, 0]},
        {"name": "adviser", "description": "You advise.", "vector": [1, 0.5]},
    ],
}
"""A hierarchy with everything a hierarchy may have."""


def blog(**settings: Any) -> Refinement:
    """`refinement` of a blog post, whose roles tests know by name; another hierarchy if `settings` name one."""
    return Refinement(**{"hierarchy": "blog", **settings})


def refining(request: ModelRequest) -> str:
    """Pieces of several sentences, a critic who finds fault with the first part, and one reply malformed the first time."""
    if "/critique/" in request.key:
        parts = request.schema["required"]  # type: ignore[index]
        assert isinstance(parts, list)
        scores = {"coherence": 5, "accuracy": 6, "depth": 4, "overall": 5 + len(request.text) % 2}
        return json.dumps({p: {"issues": [f"{p} is vague"] if p == parts[0] else [], **scores} for p in parts})
    text = " ".join(f"Sentence {n} of {request.agent} for {request.key}." for n in range(6))
    if "/specialist/" in request.key and request.agent == "checker" and request.attempt == 1:
        return '{"confidence": "sometimes", "text": "unusable"}'
    if request.returns is None:
        return f"{text} It read {len(request.text)} characters."
    claims = [{"text": f"claimed by {request.agent}", "ids": ["one", "nobody"]}]
    return json.dumps({"confidence": "fairly sure", "text": f"{text} {len(request.text)}.", "claims": claims})


def disputing(request: ModelRequest) -> str:
    """A debate with a steelman that is graded twice, a ballot that is asked again, and some replies malformed the first time, but
    not the closing, whose second try the least budgets do not cover."""
    if request.attempt == 1 and request.key != "closing" and (len(request.text) + len(request.key)) % 9 == 0:
        return '{"move": "SHOUT"}'
    return Debaters({"grade": _graded, "final": _slipping})(request)


def _slipping(request: ModelRequest) -> dict[str, object]:
    return {"p1": "UNCERTAIN"} if request.agent == "D3" else {}


def _graded(request: ModelRequest) -> dict[str, object]:
    accurate = len(request.text) % 3 > 0
    return {"grade": "ACCURATE" if accurate else "INCOMPLETE", "corrections": "" if accurate else "the peak is missing"}


CHANGED = (
    Source(DIFF, "diff main..HEAD"),
    Source(CODE, "first.py"),
    Source(f"# Notes\n\n{'It is so. ' * 40}", "notes.md"),
)


def reviewing(request: ModelRequest) -> str:
    """Findings on both parts, one of them with a false quotation and one that both sides find; some replies malformed at first."""
    sole = request.key.startswith(("closing", "reserve/"))  # the least budgets do not cover a second try
    if request.attempt == 1 and not sole and (len(request.text) + len(request.key)) % 5 == 0:
        return '{"findings": "none"}'
    findings = [finding(document="S2", claim=plain(request))] if "S2" in documents_of(request) else []
    if request.agent.endswith(("blue", "2")):
        findings.append(finding("It is not so.", 3, "S3") if request.key.startswith("review-1") else UNCLOSED)
    if request.agent.endswith(("red", "1")) and "S2" in documents_of(request):
        findings.append(finding("def first(values):", 1, "S2", category="naming", severity="minor"))
    refuting = judgement("refute" if len(request.text) % 2 else "confirm")
    return str(script({request.agent: review(findings, vote="changes")}, refuting, closing(plain(request)))(request))


def well_formed(script: Script) -> Script:
    """The same agents, who never have to be asked twice."""
    return lambda request: script(dataclasses.replace(request, attempt=2))


CASES = [
    Case("nested-gathers", NestedGathers(), plain),
    Case("toy-debate", ToyDebate(), debating),
    Case("outside-agent", OutsideAgent(), plain, outside="A2"),
    Case("agent-with-tools", NestedGathers(), plain, tools="A2"),
    Case("settled-rounds", SettledRounds(), opining, (Source("It is so.\nIt was not.\nWho knows?", "notes.md"),)),
    Case("council", Council(size=2), plain),
    Case("emergence", Emergence(children=2, depth=3, max_rounds=2, strange_loops=1), emergent),
    Case("broadcast", Broadcast(children=2, strange_loops=1, answer_pattern="yes|no"), broadcasting),
    Case("broadcast-deep", Broadcast(children=2, depth=3, max_iterations=1), broadcasting),
    Case("debate", Debate(debaters=3, max_messages=30, discovery_messages=6, evidence_messages=6), disputing),
    Case("decompose", Decompose(children=2, depth=3, strange_loops=1), dividing),
    Case("propose", Propose(), proposing),
    Case("choose", Choose(), reading_of_a_task),
    Case("refinement", Refinement(hierarchy=HOUSE, max_passes=2, draft="# Old\n\nIt was so."), refining),
    Case(
        "review",
        Review(part_tokens=150, max_iterations=2, changed_lines_only=False).with_documents(
            number_documents(CHANGED), None
        ),
        reviewing,
        CHANGED,
    ),
    Case(
        "review-groups",
        Review(strategy="hierarchical", reviewers=3, part_tokens=150, partial="fail").with_documents(
            number_documents(CHANGED), None
        ),
        reviewing,
        CHANGED,
    ),
    Case(
        "review-quick",
        Review(effort="quick", part_tokens=150).with_documents(number_documents(CHANGED), None),
        reviewing,
        CHANGED,
    ),
    Case("solo", Solo(structured=True), weighing),
    Case("vote", Vote(votes=4, answer_pattern="yes|no"), voting),
    Case("emergence-ballots", Emergence(children=3, max_rounds=3, answer_pattern="yes|no", fallback="vote"), emergent),
]

CALLING = [case for case in CASES if case.tools is None]
"""Those whose every request is a call. An agent with tools takes steps inside its calls, which tests/agents/test_tools.py kills."""
