"""The report of `debate`, and the final JSON of seed 002: `debate.json` in its camelCase, and the same in snake_case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, get_args

from consilience.domain.events import Noted
from consilience.domain.messages import JsonObject
from consilience.domain.outcome import StopReason
from consilience.domain.report import Forecast, UnfinishedSession
from consilience.domain.sections import Presentation
from consilience.protocols.debate.moves import FIRM, Side, TurnKind
from consilience.protocols.debate.plain import plain_presentation
from consilience.protocols.debate.progress import extend_progress, note_line
from consilience.protocols.debate.records import Crux, CruxPosition, ThreadRecord
from consilience.protocols.debate.sections import presentation
from consilience.protocols.debate.state import DebateData, numbered_tries


class DebateReport(DebateData):
    """The header, and what a debate adds to it."""

    step: ClassVar[str] = "message"
    step_setting: ClassVar[str] = "max_messages"
    asides: ClassVar[frozenset[str]] = frozenset(
        {"ballot", "test", "framing", "comparison", "crystallization", "single"}
    )
    published_kinds: ClassVar[frozenset[str]] = frozenset(get_args(TurnKind))
    asks_for_dissent: ClassVar[bool] = True
    labels: ClassVar[Mapping[str, str]] = {
        "framing": "propositions",
        "opening": "opening ballot",
        "turn": "message, turn",
        "discovery": "search for the question",
        "commit": "commitment, turn",
        "crux_lock": "agreement on a question",
        "falsify": "falsifier, turn",
        "steelman": "steelman, turn",
        "flip": "what would change a mind",
        "flips": "what would change a mind",
        "crystallize": "wording of a crux",
        "crystallization": "wording of a crux",
        "grade": "grade of a steelman, turn",
        "recheck": "repeated ballot",
        "rechecks": "repeated ballots",
        "test": "test of a crux",
        "tests": "tests of cruxes",
        "YES": "told yes",
        "NO": "told no",
        "placebo": "told nothing new (placebo)",
        "told": "ballot on the new fact",
        "final": "final ballot",
        "closing": "answer",
        "single": "one call for comparison",
        "named": "comparison with the one call",
        "reframe": "wording of a question",
        "spawn": "question of a new thread",
        "synthesize": "common ground",
        "synthesis": "common ground",
        "same": "comparison of questions",
        "confirm": "wording of a crux",
        "relate": "relations of cruxes",
        "derive": "falsifiers",
    }
    glossary: ClassVar[Mapping[str, str]] = {
        "proposition": "the yes/no question on which the agents vote",
        "secret ballot": "a vote that no other agent sees",
        "crux": "a question on which the agents disagree and which, answered, would change the vote of some of them",
        "thread": "the messages about one question",
        "lock": "agents agree on the exact wording of a crux and commit to a side of it",
        "steelman": "the other side's case, put so that its holder accepts it",
        "falsifier": "a measurable result that would show an agent that it is wrong",
        "test": "agents are told an answer to a crux as if it were known, and vote again",
        "placebo": "the same with something that all agents take for granted: who changes its vote over it follows any news",
        "flipped": "an agent changed its vote in a test; ✔: it did what it had declared, ✘: it did not",
        "virtual time": "the time within the debate, by which agents take turns; it does not depend on how long a call takes",
    }
    exports: ClassVar[Mapping[str, str]] = {"debate.json": "debate_json"}
    for_people: ClassVar[Mapping[str, str]] = {
        "": "You debate with others, whom letters name. Say what you know, what you infer and what you assume.",
    }

    def presentation(self) -> Presentation:
        return presentation(self)

    def plain_presentation(self) -> Presentation:
        return plain_presentation(self)

    def debate_json(self) -> object:
        """Return the seed's final JSON, in its camelCase."""
        return camel_case(final_json(self))

    def final_state(self) -> dict[str, object]:
        """Return the seed's final JSON in snake_case."""
        return final_json(self)

    def forecasts(self) -> tuple[Forecast, ...]:
        """Return the propositions (`p1` …) with the falsifiers of opening ballots, then the cruxes (`crux-1` …), as numbered in the
        report."""
        falsifiers = tuple((b.agent, b.falsifier.finding, b.falsifier.deadline) for b in self.ballots if b.falsifier)
        forecasts = [
            Forecast(
                id=f"p{n}",
                question=text,
                sides=_firm({b.agent: (b.positions[n - 1], b.confidence) for b in self.final.values()}),
                falsifiers=falsifiers if n == 1 else (),
            )
            for n, text in enumerate(self.propositions, 1)
        ]
        for n, crux in enumerate(self.cruxes, 1):
            ballots = [ballot for ballot in self.final.values() if crux.thread in ballot.questions]
            falsifiers_by_agent = {
                agent: position.falsifier for agent, position in crux.positions.items() if position.falsifier
            }
            forecasts.append(
                Forecast(
                    id=f"crux-{n}",
                    question=crux.question,
                    sides=_firm({b.agent: (b.questions[crux.thread], b.confidence) for b in ballots}),
                    falsifiers=tuple((agent, f.finding, f.deadline) for agent, f in falsifiers_by_agent.items()),
                )
            )
        return tuple(forecasts)

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        return extend_progress(super().progress(progress), progress)

    @classmethod
    def note_line(cls, note: Noted) -> str:
        return note_line(note)


def _firm(sides: Mapping[str, tuple[Side, float]]) -> dict[str, tuple[bool, float]]:
    return {agent: (side == "YES", sure) for agent, (side, sure) in sides.items() if side in FIRM}


_FAILURES = {
    "commitments": "commitments_missing",
    "sides": "side_missing",
    "steelmen": "steelman_not_passed",
    "falsifiers": "falsifier_missing",
}
_OURS = {"attempts", "failed_turns", "attended", "attended_highly"}
"""System metrics that the seed does not have."""
_KEPT = frozenset({"positions", "counterfactual", "horizon_by_agent", "top_claims"})
"""Objects whose keys are ids of agents, which stay as they are."""


def final_json(report: DebateData) -> JsonObject:
    """Return the seed's final JSON in snake_case."""
    failures = {_FAILURES.get(kind, kind): n for kind, n in report.system_metrics.failure_reasons.items()}
    return {
        "topic": report.task,
        "duration": report.duration,
        "total_messages": report.steps,
        "stop_reason": report.stop_reason.value,
        "ended_by": report.ended_by,
        "confidence": None if report.stop_reason is StopReason.SETTLED else "LOW",
        "top_claims": _top_claims(report),
        "threads": [_thread(thread) for thread in report.threads],
        "common_ground": [
            {"statement": ground.statement, "agreement": "all", "type": ground.kind} for ground in report.common_ground
        ],
        "coalitions": [
            {
                "members": list(coalition.members),
                "label": coalition.label,
                "positions": dict(coalition.positions),
                "shared_beliefs": list(coalition.shared_beliefs),
            }
            for coalition in report.coalitions
        ],
        "regime": report.regime,
        "regime_description": report.regime_description,
        "irreducible_cruxes": list(report.irreducible_cruxes),
        "primary_crux": report.primary_crux,
        "primary_crux_reason": report.primary_crux_reason,
        "cost": report.ledger.actual.cost,
        "system_metrics": report.system_metrics.model_dump(exclude=_OURS) | {"failure_reasons": failures},
    }


def _top_claims(report: DebateData) -> JsonObject:
    """The last claim of each agent on the first proposition, with the virtual time at which its side last changed."""
    claims: dict[str, JsonObject] = {}
    for ballot in (ballot for ballot in report.ballots if ballot.positions):
        claim = claims.setdefault(ballot.agent, {"statement": "", "side": None})
        said = [(m.top_claim, m.at) for m in report.messages if ballot.step and m.agent == ballot.agent and m.top_claim]
        cast = "NUANCED" if ballot.positions[0] == "UNCERTAIN" else ballot.positions[0]
        for side, at in (*said, (cast, report.duration if ballot.step else 0)):
            if side != claim["side"]:
                claim |= {"side": side, "last_updated": at}
        claim |= {"statement": ballot.claim or claim["statement"], "confidence": ballot.confidence}
    return dict(claims)


def _thread(thread: ThreadRecord) -> JsonObject:
    stages: JsonObject = {}
    for record in thread.stages:
        entry: JsonObject = {"messages": record.messages, "duration": record.duration}
        if record.stage == "CRUX_LOCK":
            entry["lock_attempts"] = len(thread.lock_attempts)
        stages[record.stage.lower()] = entry
    return {
        "id": thread.id,
        "topic": thread.topic,
        "parent_thread_id": thread.parent,
        "focus_dispute_id": thread.id if thread.question else None,
        "status": thread.status,
        "stages": stages,
        "participants": list(thread.participants),
        "crux": crux_json(thread.crux, thread) if thread.crux else None,
    }


def crux_json(crux: Crux, thread: ThreadRecord) -> JsonObject:
    """Return a crux of a thread as the seed's final JSON has it, in snake_case."""
    return {
        "question": crux.question,
        "positions": {agent: _position(position) for agent, position in crux.positions.items()},
        "resolution_criteria": list(crux.resolution_criteria),
        "counterfactual": {
            agent: {"would_flip": flip.would_flip, "why": flip.why, "confidence": flip.confidence}
            for agent, flip in crux.flips.items()
        },
        "evidence_provided": [
            {"agent": e.agent, "evidence": e.text, "target_falsifier": e.bears_on, "at": e.at} for e in crux.evidence
        ],
        "dcg": crux.score.model_dump(),
        "horizon_by_agent": {agent: position.horizon for agent, position in crux.positions.items() if position.horizon},
        "dominant_horizon": crux.dominant_horizon,
        "steelman_pairs": _pairs(thread),
        "supporting_messages": list(crux.supporting_messages),
        "validated": crux.validated,
        "validation_failures": [flaw.name for flaw in crux.validation_failures],
    }


def _position(position: CruxPosition) -> JsonObject:
    entry: JsonObject = {"side": position.side, "confidence": position.confidence, "statement": position.statement}
    if position.falsifier:
        falsifier = position.falsifier.model_dump(include={"metric", "threshold", "deadline", "reasoning"})
        entry["falsifier"] = {name: value for name, value in falsifier.items() if name != "reasoning" or value}
    if position.concessions:
        entry["concessions"] = list(position.concessions)
    return entry


def _pairs(thread: ThreadRecord) -> list[JsonObject]:
    """The last grade of every pair; `ACCURATE` stays once it is reached."""
    pairs: dict[tuple[str, str], JsonObject] = {}
    for number, steelman in numbered_tries(thread.steelmen):
        pair = (steelman.agent, steelman.of)
        if pairs.get(pair, {}).get("grade") != "ACCURATE":
            pairs[pair] = {"from": pair[0], "to": pair[1], "grade": steelman.grade, "attempts": number}
    return list(pairs.values())


def camel_case(value: object, *, keep: bool = False) -> object:
    """Return data with its keys in camelCase. `keep`: the keys of this object are ids and stay."""
    if isinstance(value, dict):
        return {key if keep else _camel(str(key)): camel_case(entry, keep=key in _KEPT) for key, entry in value.items()}
    if isinstance(value, list):
        return [camel_case(entry) for entry in value]
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
