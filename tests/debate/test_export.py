"""The final JSON of seed 002 from a scripted debate on its sample's topic, with the figures that the rules give.

The sample breaks its own rules (design §3): with one YES and two NO a polarity of 1.0, locks without steelmen, a coalition of one,
and a number of messages that is not the sum of its threads. Here the rules decide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

import consilience
from consilience.domain.panels import Panel, Persona
from consilience.models.port import ModelRequest
from consilience.protocols.debate import Debate, DebateReport
from consilience.protocols.debate.moves import Side
from consilience.protocols.debate.records import Coalition, CommonGround, Flip
from consilience.protocols.debate.scoring import crux_score
from consilience.testing import ScriptedModel
from kit.debating import Answer, Debaters, moves_of

TOPIC = "Bitcoin is a good store of value"
IDENTITY = "Is Bitcoin's long-run behavior more like a risk asset (YES) or hedge (NO)?"
ADOPTION = "Will institutions allocate >1% of AUM to Bitcoin by 2029?"
SAYLOR, HAYES, TALEB, MALLERS, SCHIFF = (
    "michael-saylor",
    "arthur-hayes",
    "nassim-taleb",
    "jack-mallers",
    "peter-schiff",
)
NAMES = ("Michael Saylor", "Arthur Hayes", "Nassim Taleb", "Jack Mallers", "Peter Schiff")
SIDES: Mapping[str, Mapping[str, Side]] = {
    IDENTITY: {SAYLOR: "NO", HAYES: "YES", TALEB: "UNCERTAIN", MALLERS: "NO", SCHIFF: "UNCERTAIN"},
    ADOPTION: {SAYLOR: "YES", HAYES: "NO", TALEB: "UNCERTAIN", MALLERS: "YES", SCHIFF: "NO"},
}
WOULD_FLIP: Mapping[str, tuple[str, ...]] = {IDENTITY: (SAYLOR, HAYES, MALLERS), ADOPTION: (MALLERS, HAYES)}
FALSIFIERS: Mapping[str, tuple[str, str, str]] = {
    SAYLOR: ("Performance during equity crash", "Drops >50% when SPY drops >30%", "2030-12-31"),
    HAYES: ("10-year Nasdaq correlation", "Correlation drops below 0.3", "2034-12-31"),
    MALLERS: ("Fortune 500 companies that disclose BTC treasury", "fewer than 5", "2029-12-31"),
    SCHIFF: ("Spot ETF AUM", ">= $100B", "2029-12-31"),
}


def question_of(request: ModelRequest) -> str:
    """The question of the thread that a prompt is about: the last of the two that its request names."""
    return max((IDENTITY, ADOPTION), key=lambda question: request.text.rfind(question))


def commit(request: ModelRequest) -> Answer:
    question, agent = question_of(request), request.agent
    side = SIDES[question][agent]
    answer: Answer = {"horizon": "10y+", "side": side, "confidence": "certain" if agent == SAYLOR else "fairly sure"}
    answer["gives_up_if"] = "either" if agent in WOULD_FLIP[question] else "neither"
    answer["flip_confidence"] = "certain"
    metric, threshold, deadline = FALSIFIERS.get(agent, ("", "", "")) if side != "UNCERTAIN" else ("", "", "")
    return {**answer, "metric": metric, "threshold": threshold, "deadline": deadline}


def flip(request: ModelRequest) -> Answer:
    question = question_of(request)
    hangs = request.agent in WOULD_FLIP[question]
    sure = "certain" if question == IDENTITY and request.agent != HAYES else "fairly sure"
    return {"side": SIDES[question][request.agent], "gives_up_if": "either" if hangs else "neither", "confidence": sure}


def turn(request: ModelRequest) -> Answer:
    return {"question": question_of(request)} if "PROPOSE_CRUX" in moves_of(request) else {}


def ballot(request: ModelRequest) -> Answer:
    """The sides of the table on the propositions and questions that a ballot lists."""
    asked = re.findall(r"^([pq]\d): (.*)$", request.text, re.MULTILINE)
    return {name: SIDES[IDENTITY if IDENTITY in line else ADOPTION][request.agent] for name, line in asked}


class FirstIncomplete:
    """Saylor finds the first steelman of his case incomplete, as in the sample."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, request: ModelRequest) -> Answer:
        if request.agent != SAYLOR or self.seen:
            return {}
        self.seen = True
        return {"grade": "INCOMPLETE", "corrections": "You leave out sovereign debt."}


@pytest.fixture(scope="module")
def report() -> DebateReport:
    changes = {
        "framing": lambda request: {"form": "yes/no", "propositions": [IDENTITY, ADOPTION], "reason": ""},
        "opening": ballot,
        "turn": turn,
        "commit": commit,
        "grade": FirstIncomplete(),
        "flip": flip,
        "final": ballot,
    }
    personas = tuple(Persona(name=name, description=f"You are {name}.") for name in NAMES)
    panel = Panel(name="sample", description="Five voices on Bitcoin.", personas=personas)
    protocol = Debate(max_duration=900, crystallization=1, test_cruxes=0)
    model, store = ScriptedModel(Debaters(changes)), consilience.SqliteStore(":memory:")
    made = consilience.run_sync(TOPIC, protocol, panel=panel, model=model, store=store)
    assert isinstance(made, DebateReport)
    return made


@pytest.fixture
def sample(report: DebateReport) -> dict[str, Any]:
    """The export of the debate, with the sample's common ground and a coalition of two put into its report."""
    statement = "Bitcoin's supply is algorithmically capped at 21 million"
    beliefs = ("Network effects replace intrinsic value",)
    members = (SAYLOR, MALLERS)
    coalition = Coalition(
        label="Bitcoin Fundamentalists",
        members=members,
        positions={"thread-1": "NO"},
        shared_beliefs=beliefs,
        cohesion=0.9,
    )
    records = {
        "common_ground": (CommonGround(statement=statement, kind="factual"),),
        "coalitions": (coalition,),
    }
    data = json.loads(json.dumps(report.model_copy(update=records).debate_json()))
    assert isinstance(data, dict)
    return data


def keys(value: object, of: str = "") -> object:
    """The keys of data as the sample has them: of lists the first entry, of objects by agent or thread any entry."""
    if isinstance(value, list):
        return [keys(value[0], of)] if value else []
    if not isinstance(value, dict):
        return None
    if of in ("positions", "counterfactual", "topClaims"):
        return {"*": keys(next((entry for entry in value.values() if isinstance(entry, dict)), None))}
    return {name: keys(entry, name) for name, entry in value.items()}


def missing_keys(wanted: object, exported: object, path: str = "") -> list[str]:
    """Paths of keys that `found` lacks."""
    if isinstance(wanted, list):
        return missing_keys(wanted[0], exported[0], path) if isinstance(exported, list) and exported and wanted else []
    if not isinstance(wanted, dict):
        return []
    if not isinstance(exported, dict):
        return [path]
    missing = [f"{path}.{name}" for name in wanted if name not in exported]
    return [
        *missing,
        *(
            p
            for name in wanted
            if name in exported
            for p in missing_keys(wanted[name], exported[name], f"{path}.{name}")
        ),
    ]


SHAPE: dict[str, object] = {
    "topic": None,
    "duration": None,
    "totalMessages": None,
    "stopReason": None,
    "endedBy": None,
    "confidence": None,
    "topClaims": {"*": {"statement": None, "side": None, "confidence": None, "lastUpdated": None}},
    "threads": [
        {
            "id": None,
            "topic": None,
            "parentThreadId": None,
            "focusDisputeId": None,
            "stages": {
                "discovery": {"messages": None, "duration": None},
                "cruxLock": {"messages": None, "duration": None, "lockAttempts": None},
                "evidence": {"messages": None, "duration": None},
            },
            "participants": None,
            "crux": {
                "question": None,
                "positions": {"*": {"side": None, "confidence": None, "statement": None}},
                "resolutionCriteria": None,
                "counterfactual": {"*": {"wouldFlip": None, "why": None}},
                "dcg": {"coverage": None, "polarity": None, "impact": None, "score": None},
                "horizonByAgent": None,
                "dominantHorizon": None,
                "steelmanPairs": [{"from": None, "to": None, "grade": None, "attempts": None}],
                "validated": None,
            },
        }
    ],
    "commonGround": [{"statement": None, "agreement": None, "type": None}],
    "coalitions": [{"members": None, "label": None, "positions": None, "sharedBeliefs": None}],
    "regime": None,
    "regimeDescription": None,
    "irreducibleCruxes": None,
    "primaryCrux": None,
    "primaryCruxReason": None,
    "cost": None,
    "systemMetrics": {
        "messagesBlocked": None,
        "reasonsBlocked": None,
        "cruxLockAttempts": None,
        "cruxLockSuccesses": None,
        "cruxLockFailures": None,
        "failureReasons": None,
        "steelmanAttempts": None,
        "steelmanRetries": None,
        "steelmanAccuracyRate": None,
        "dcgPromotions": None,
        "horizonMismatches": None,
        "horizonAlignments": None,
    },
}
"""The keys of the seed's sample, and its types TopClaim and Thread."""


def test_export_has_the_keys_of_the_documented_shape(sample: dict[str, Any]) -> None:
    assert list(sample) == list(SHAPE)
    assert missing_keys(SHAPE, keys(sample)) == []


def thread_on(sample: dict[str, Any], question: str) -> dict[str, Any]:
    return next(thread for thread in sample["threads"] if thread["crux"]["question"] == question)


def test_export_has_the_declared_positions_counterfactuals_and_falsifiers(sample: dict[str, Any]) -> None:
    for question, sides in SIDES.items():
        crux = thread_on(sample, question)["crux"]
        assert len(crux["positions"]) >= 4
        assert {agent: position["side"] for agent, position in crux["positions"].items()}.items() <= sides.items()
        flipping = {agent for agent, flip in crux["counterfactual"].items() if flip["wouldFlip"]}
        assert flipping == set(WOULD_FLIP[question]) & set(crux["positions"])
        assert crux["dominantHorizon"] == "10y+"
        for agent, position in crux["positions"].items():
            wanted = dict(zip(("metric", "threshold", "deadline"), FALSIFIERS.get(agent, ()), strict=False))
            assert position.get("falsifier", {}) == (wanted if position["side"] != "UNCERTAIN" else {})


def test_export_scores_follow_the_scoring_rules(sample: dict[str, Any]) -> None:
    scores = {}
    for question in SIDES:
        crux = thread_on(sample, question)["crux"]
        dcg, sides = crux["dcg"], [position["side"] for position in crux["positions"].values()]
        flipping = [flip["confidence"] for flip in crux["counterfactual"].values() if flip["wouldFlip"]]
        yes, no = sides.count("YES"), sides.count("NO")
        assert dcg["coverage"] == pytest.approx(len(flipping) / 5)
        assert dcg["polarity"] == pytest.approx(2 * min(yes, no) / (yes + no))
        assert dcg["impact"] == pytest.approx(sum(flipping) / len(flipping))
        assert dcg["score"] == pytest.approx(dcg["coverage"] * dcg["polarity"] * dcg["impact"])
        if crux["validated"]:
            scores[thread_on(sample, question)["id"]] = dcg["score"]
    assert scores
    assert sample["primaryCrux"] == max(scores, key=lambda thread: scores[thread])
    assert f"{scores[sample['primaryCrux']]:.2f}" in sample["primaryCruxReason"]
    assert set(sample["irreducibleCruxes"]) == set(scores)
    assert sample["regime"] == "polarized"


def test_crux_scores_of_the_sample_positions_follow_the_scoring_rules() -> None:
    flips = {
        IDENTITY: {SAYLOR: 0.85, HAYES: 0.85, MALLERS: 0.85},
        ADOPTION: {MALLERS: 0.75, HAYES: 0.75},
    }
    participants = {IDENTITY: (SAYLOR, HAYES, TALEB, MALLERS), ADOPTION: (SAYLOR, MALLERS, HAYES, SCHIFF)}
    scores = {
        question: crux_score(
            {agent: SIDES[question][agent] for agent in participants[question]},
            {a: Flip(agent=a, side=SIDES[question][a], would_flip=True, confidence=c) for a, c in sure.items()},
            agents=5,
        )
        for question, sure in flips.items()
    }
    identity, adoption = scores[IDENTITY], scores[ADOPTION]
    assert (identity.coverage, identity.impact) == (pytest.approx(0.6), pytest.approx(0.85))
    assert identity.polarity == pytest.approx(2 / 3)  # one YES and two NO; the sample has 1.0
    assert identity.score == pytest.approx(0.34)  # the sample has 0.51
    assert (adoption.coverage, adoption.polarity) == (pytest.approx(0.4), pytest.approx(1.0))
    assert adoption.score == pytest.approx(0.30)


def test_export_has_a_steelman_for_every_required_pair_and_one_retry(sample: dict[str, Any]) -> None:
    for thread in sample["threads"]:
        crux = thread["crux"]
        sides = {side: [a for a, p in crux["positions"].items() if p["side"] == side] for side in ("YES", "NO")}
        ordered = 2 * len(sides["YES"]) * len(sides["NO"])
        assert len(crux["steelmanPairs"]) in {
            2,
            min(ordered, 4),
        }  # all pairs while they are four at most, else champions
        assert {pair["grade"] for pair in crux["steelmanPairs"]} == {"ACCURATE"}
    attempts = sum(pair["attempts"] for thread in sample["threads"] for pair in thread["crux"]["steelmanPairs"])
    metrics = sample["systemMetrics"]
    assert (metrics["steelmanAttempts"], metrics["steelmanRetries"]) == (attempts, 1)
    assert metrics["steelmanAccuracyRate"] == pytest.approx((attempts - 1) / attempts)


def test_export_counts_are_sums_of_their_parts(report: DebateReport, sample: dict[str, Any]) -> None:
    staged = sum(stage["messages"] for thread in sample["threads"] for stage in thread["stages"].values())
    assert sample["totalMessages"] == staged == sum(not message.by_moderator for message in report.messages)
    metrics = sample["systemMetrics"]
    tried = sum(thread["stages"]["cruxLock"]["lockAttempts"] for thread in sample["threads"])
    assert metrics["cruxLockAttempts"] == tried == metrics["cruxLockSuccesses"] + metrics["cruxLockFailures"]
    assert metrics["messagesBlocked"] == sum(metrics["reasonsBlocked"].values())
    assert sample["duration"] == report.duration


def test_export_has_the_common_ground_and_coalitions_of_the_report(sample: dict[str, Any]) -> None:
    assert sample["commonGround"][0]["agreement"] == "all"
    assert sample["commonGround"][0]["type"] == "factual"
    assert sample["coalitions"][0]["positions"] == {"thread-1": "NO"}
    assert len(sample["coalitions"][0]["members"]) == 2
