"""What agents are shown, what is kept of what they say, and how runs end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.domain.errors import RateLimited, Rejected, SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, StopReason
from consilience.domain.panels import load_panel
from consilience.domain.report import FactsKept
from consilience.domain.topology import Topology, tree
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols._common.answers import extract
from consilience.protocols._common.conclusion import NO_POSITION
from consilience.protocols.emergence import Emergence
from kit.golden import Golden
from protocols.test_emergence_calls import go, unlike


def said_in(text: str) -> set[str]:
    """Keys whose replies stand in a prompt: `unlike` and `speaking` begin every text with its own key."""
    return set(re.findall(r"(?:round|finalize)[-/][\w/-]+", text.partition("# Task")[2]))


def speaking(extra: Callable[[ModelRequest], dict[str, object]] | None = None) -> Callable[[ModelRequest], str]:
    def reply(request: ModelRequest) -> str:
        if "/signal/" in request.key:
            return f"{request.key} have you thought of the cost"
        body = {"text": f"{request.key} says {request.agent}"} | (extra(request) if extra else {})
        return json.dumps(body)

    return reply


@settings(max_examples=12)
@given(st.integers(1, 3), st.integers(2, 5), st.integers(1, 3), st.booleans(), st.booleans())
async def test_prompt_shows_exactly_what_the_visibility_table_allows(
    children: int, depth: int, rounds: int, signals: bool, anonymous: bool
) -> None:
    if children == 3 and depth > 3:
        depth = 3
    shape = tree(children, depth)
    protocol = Emergence(
        children=children, depth=depth, max_rounds=rounds, signals=signals, anonymous_peers=anonymous, strange_loops=1
    )
    _, model = await go(protocol, ScriptedModel(speaking()))
    for request in model.requests:
        assert said_in(request.text) == allowed(request.key, shape, rounds, signals), request.key


def allowed(key: str, shape: Topology, rounds: int, signals: bool) -> set[str]:
    """The keys of the texts a call must be shown, by the seed's table. A review sees what the last observation saw of the
    children, and its result."""
    if key == "finalize/1":
        root = f"round-{rounds}/observe/L1N1"
        return {root} | (allowed(root, shape, rounds, signals) - {f"round-{rounds - 1}/observe/L1N1"})
    head, kind, agent = key.split("/")
    n = int(head.removeprefix("round-"))

    def post(who: str, r: int) -> str:
        """The text with which an agent leaves the lateral talk of a round."""
        if shape.siblings(who):
            return f"round-{r}/lateral/{who}"
        return first(who, r)

    def first(who: str, r: int) -> str:
        return f"round-{r}/{'observe' if shape.children[who] else 'leaf_respond'}/{who}"

    parents = shape.parents.get(agent, ())
    nudges = {f"round-{n - 1}/signal/{parent}" for parent in parents} if signals and n > 1 else set()
    if kind == "leaf_respond":
        return ({post(agent, n - 1)} | nudges) if n > 1 else set()
    if kind == "lateral":
        return {first(agent, n), *(first(peer, n) for peer in shape.siblings(agent))}
    texts = {post(child, n) for child in shape.children[agent]}
    if kind == "observe":
        return texts | ({post(agent, n - 1)} | nudges if n > 1 else set())
    assert kind == "signal"
    return texts | {post(agent, n)}


async def test_every_nudge_is_read_by_every_child_and_by_coordinators_in_their_observation() -> None:
    report, model = await go(Emergence(children=2, depth=3, max_rounds=3))
    shape = tree(2, 3)
    prompts = {request.key: request.text for request in model.requests}
    nudges = [key for key in prompts if "/signal/" in key]
    assert len(nudges) == 2 * 3
    for key in nudges:
        head, _, sender = key.split("/")
        following = int(head.removeprefix("round-")) + 1
        for child in shape.children[sender]:
            kind = "observe" if shape.children[child] else "leaf_respond"
            assert key in prompts[f"round-{following}/{kind}/{child}"]
    assert not [warning for warning in report.warnings if "read by no" in warning]


async def test_prompt_labels_peers_by_letter_and_names_the_own_letter() -> None:
    _, model = await go(Emergence(children=3, max_rounds=1))
    lateral = {r.agent: r for r in model.requests if "/lateral/" in r.key}
    for letter, agent in zip("ABC", ("L2N1", "L2N2", "L2N3"), strict=True):
        assert f"{letter} is your own text;" in lateral[agent].text
        assert lateral[agent].schema is not None
        others = [x for x in "ABC" if x != letter]
        assert lateral[agent].schema["$defs"]["ObjectionReply"]["properties"]["to"]["enum"] == others  # type: ignore[index]


async def test_prompts_of_siblings_are_equal_up_to_their_own_part() -> None:
    """So a prefix cache serves the first sibling's quotations to the others."""
    _, model = await go(Emergence(children=3, max_rounds=1))
    texts = [r.text for r in model.requests if "/lateral/" in r.key]
    shared = texts[0].rindex("</quote")
    assert texts[0][:shared] == texts[1][:shared] == texts[2][:shared]


async def test_claims_name_messages_and_labels_not_shown_are_dropped_and_counted() -> None:
    def claiming(request: ModelRequest) -> dict[str, object]:
        return {"claims": [{"text": "costs fall", "ids": ["A", "Q", "C"]}]} if "observe" in request.key else {}

    report, _ = await go(Emergence(children=3, max_rounds=1), ScriptedModel(speaking(claiming)))
    (claim,) = report.claims
    assert claim.ids == ("round-1/lateral/L2N1", "round-1/lateral/L2N3")
    assert report.metrics["dropped_labels"] == 1


async def test_unchanged_answer_converges_and_changing_answers_exhaust_the_rounds(golden: Golden) -> None:
    same = ScriptedModel(lambda r: "nudge" if "/signal/" in r.key else '{"text": "all is well"}')
    report, _ = await go(Emergence(children=2, max_rounds=5, similarity="jaccard"), same)
    assert report.stop_reason is StopReason.CONVERGED
    assert (report.steps, report.convergence.score_trajectory) == (2, (1.0,))
    golden(report.warnings)
    report, _ = await go(Emergence(children=2, max_rounds=3))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.check is not None
    assert not report.check.met


async def test_similarity_far_from_threshold_is_a_warning(golden: Golden) -> None:
    words = iter(range(10_000))
    model = ScriptedModel(
        lambda r: "n" if "/signal/" in r.key else json.dumps({"text": f"{next(words)} {next(words)}"})
    )
    report, _ = await go(Emergence(children=2, max_rounds=3, similarity="jaccard"), model)
    golden(report.warnings)


async def test_score_at_the_margin_counts_as_near_the_threshold(golden: Golden) -> None:
    """0.8 - 0.2 is more than 0.6 in floats."""

    def reply(request: ModelRequest) -> str:
        words = range(10 if request.key.startswith("round-2") else 6)
        return "n" if "/signal/" in request.key else json.dumps({"text": " ".join(map(str, words))})

    report, _ = await go(Emergence(children=2, max_rounds=2, similarity="jaccard", threshold=0.8), ScriptedModel(reply))
    assert report.convergence.score_trajectory == (0.6,)
    golden(report.warnings)


def voting(votes: Callable[[int, str], str], causes: dict[str, str] | None = None) -> Callable[[ModelRequest], str]:
    def reply(request: ModelRequest) -> str:
        if "/ballot/" in request.key:
            step = int(request.key.removeprefix("round-").partition("/")[0])
            body: dict[str, object] = {"position": votes(step, request.agent), "confidence": "certain", "reason": "so"}
            if causes and request.key in causes:
                body["cause"] = causes[request.key]
            return json.dumps(body)
        return (
            unlike(request) if "/signal/" in request.key else json.dumps({"text": f"{request.key}: the answer is yes"})
        )

    return reply


async def test_one_sided_ballots_converge_and_split_ballots_stall() -> None:
    protocol = Emergence(children=3, max_rounds=4, answer_pattern="yes|no")
    report, _ = await go(protocol, ScriptedModel(voting(lambda step, agent: "Yes")))
    assert (report.stop_reason, report.steps, report.position) == (StopReason.CONVERGED, 2, "Yes")
    assert report.dissent == ()
    report, _ = await go(protocol, ScriptedModel(voting(lambda step, agent: "no" if agent == "L2N2" else "yes")))
    assert report.stop_reason is StopReason.STALLED
    assert [(d.agent, d.position) for d in report.dissent] == [("L2N2", "no")]
    assert report.pool == pytest.approx({"yes": 2 / 3, "no": 1 / 3})


async def test_pool_decides_split_positions_only_with_fallback_vote() -> None:
    split = voting(lambda step, agent: "yes" if agent == "L2N2" else "no")
    report, _ = await go(Emergence(max_rounds=3, answer_pattern="yes|no"), ScriptedModel(split))
    assert (report.position, report.decided_by) == ("yes", "answer")
    report, _ = await go(Emergence(max_rounds=3, answer_pattern="yes|no", fallback="vote"), ScriptedModel(split))
    assert (report.position, report.decided_by) == ("no", "pool")
    assert [d.agent for d in report.dissent] == ["L2N2"]


async def test_position_change_without_a_cause_counts_as_conformity() -> None:
    moving = voting(lambda step, agent: "no" if agent == "L2N3" and step == 0 else "yes")
    report, _ = await go(Emergence(max_rounds=2, answer_pattern="yes|no"), ScriptedModel(moving))
    (change,) = report.position_changes
    assert (change.agent, change.before, change.after, change.conformity) == ("L2N3", "no", "yes", True)
    caused = voting(lambda step, agent: "no" if agent == "L2N3" and step == 0 else "yes", {"round-1/ballot/L2N3": "A"})
    report, _ = await go(Emergence(max_rounds=2, answer_pattern="yes|no"), ScriptedModel(caused))
    (change,) = report.position_changes
    assert (change.cause, change.conformity) == ("round-1/leaf_respond/L2N1", False)
    own = voting(lambda step, agent: "no" if agent == "L2N3" and step == 0 else "yes", {"round-1/ballot/L2N3": "C"})
    report, _ = await go(Emergence(max_rounds=2, answer_pattern="yes|no"), ScriptedModel(own))
    assert report.position_changes[0].conformity, "one's own text is no cause"


async def test_ballots_are_in_no_prompt_and_the_first_is_cast_before_reading_peers() -> None:
    _, model = await go(
        Emergence(max_rounds=2, answer_pattern="yes|no"), ScriptedModel(voting(lambda s, a: f"yes {a}"))
    )
    for request in model.requests:
        assert "yes L2N" not in request.text, f"{request.key} was shown a ballot"
        if request.key.startswith("round-0/ballot/"):
            assert said_in(request.text) == {f"round-1/leaf_respond/{request.agent}"}


async def test_ballot_outside_the_answer_pattern_is_repaired_once_then_missing() -> None:
    def reply(request: ModelRequest) -> str:
        return voting(lambda step, agent: "perhaps" if agent == "L2N1" else "yes")(request)

    report, model = await go(Emergence(max_rounds=1, answer_pattern="yes|no"), ScriptedModel(reply))
    asked = [r.attempt for r in model.requests if r.key == "round-1/ballot/L2N1"]
    assert asked == [1, 2]
    assert {b.agent for b in report.ballots} == {"L2N2", "L2N3"}
    assert [m.agent for m in report.missing] == ["L2N1"]


async def test_run_with_a_dead_seat_names_it_and_without_quorum_fails() -> None:
    def dead(*seats: str) -> Callable[[ModelRequest], object]:
        return lambda r: Rejected("no such model") if r.agent in seats else speaking()(r)

    report, model = await go(Emergence(children=3, max_rounds=1), ScriptedModel(dead("L2N2")))  # type: ignore[arg-type]
    assert report.degraded == "2 of 3 agents; no reply: leaf_respond 1 L2N2 (rejected)"
    assert [m.agent for m in report.missing] == ["L2N2"]
    assert report.quorum_met
    assert report.answer
    assert not any("L2N2" in text for r in model.requests for text in said_in(r.text))
    report, model = await go(Emergence(children=3, max_rounds=1), ScriptedModel(dead("L2N1", "L2N2")))  # type: ignore[arg-type]
    assert (report.stop_reason, report.answer, report.quorum_met) == (StopReason.FAILED, None, False)
    assert not any(r.agent == "L1N1" for r in model.requests), "the chair was asked although no quorum was left"


async def test_run_with_a_dead_root_fails_and_keeps_the_texts() -> None:
    model = ScriptedModel(lambda r: RateLimited("429") if r.agent == "L1N1" else speaking()(r))
    report, _ = await go(Emergence(children=2, max_rounds=2), model)
    assert (report.stop_reason, report.answer) == (StopReason.FAILED, None)
    assert report.rounds[0].agents["L2N1"].response


async def test_root_that_fails_in_a_later_round_keeps_its_last_answer_with_a_warning(golden: Golden) -> None:
    model = ScriptedModel(lambda r: Rejected("gone") if r.key.startswith("round-2/observe/L1N1") else speaking()(r))
    report, _ = await go(Emergence(children=2, max_rounds=2), model)
    assert report.answer == "round-1/observe/L1N1 says L1N1"
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    golden(report.warnings)


async def test_run_cut_by_the_budget_is_not_converged_even_if_texts_are_stable() -> None:
    still = ScriptedModel(lambda r: "n" if "/signal/" in r.key else '{"text": "the same words"}')
    report, model = await go(Emergence(children=2, max_rounds=5), still, limits=Limits(calls=8))
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert report.answer == "the same words"
    assert len(model.requests) <= 8


async def test_run_limited_to_one_call_gives_a_degraded_answer() -> None:
    report, model = await go(Emergence(children=3, max_rounds=2), limits=Limits(calls=1))
    assert [r.key for r in model.requests] == ["round-1/observe/L1N1"]
    assert report.closing == "reserve"
    assert (report.stop_reason, report.quorum_met, report.degraded) == (
        StopReason.EXHAUSTED_BUDGET,
        False,
        "0 of 3 agents; no reply: leaf_respond 1 L2N1, L2N2, L2N3 (budget)",
    )


async def test_self_reviews_start_from_the_last_result_with_domain_instructions_in_the_last() -> None:
    protocol = Emergence(children=2, max_rounds=1, strange_loops=2, domain_instructions="Speak to farmers.")
    report, model = await go(protocol, ScriptedModel(speaking()))
    reviews = [r for r in model.requests if r.key.startswith("finalize/")]
    assert ["Speak to farmers." in r.text for r in reviews] == [False, False, True]
    assert "round-1/observe/L1N1 says L1N1" in reviews[0].text
    assert "finalize/1 says L1N1" in reviews[1].text
    assert [loop.domain for loop in report.strange_loops] == [False, False, True]
    assert report.answer == report.strange_loops[-1].after == "finalize/3 says L1N1"


async def test_facts_of_points_kept_in_the_answer_are_counted() -> None:
    def facts(request: ModelRequest) -> dict[str, object]:
        if "leaf_respond" in request.key:
            return {"points": ["Anna counted 700 sheep" if request.agent == "L2N1" else "rain is due on Friday"]}
        if request.agent == "L1N1":
            return {"text": "There are 700 sheep. Nothing else is known."}
        return {}

    report, _ = await go(Emergence(children=2, max_rounds=1), ScriptedModel(speaking(facts)))
    assert report.facts == FactsKept(kept=1, total=2, lost=("Friday",))
    assert "fact_survival" not in report.metrics
    assert report.metrics["novelty"] == 1.0


async def test_sentence_of_another_agent_is_not_novel_in_the_answer() -> None:
    """Written first in lateral talk, in the second round: nobody's first words, and not the root's."""

    def late(request: ModelRequest) -> dict[str, object]:
        if request.agent == "L1N1":
            return {"text": "The sheep were counted twice by night. Nobody knows who counted them at all."}
        return {"text": "The sheep were counted twice by night."} if "round-2/lateral/L2N2" in request.key else {}

    report, _ = await go(Emergence(children=2, max_rounds=2, threshold=1.0), ScriptedModel(speaking(late)))
    assert report.metrics["novelty"] == 0.5


async def test_sentence_shown_to_the_root_is_not_novel_in_the_answer() -> None:
    """A sentence of a document, one of an objection, and one of its own."""

    def reply(request: ModelRequest) -> dict[str, object]:
        if request.agent == "L1N1":
            return {"text": "The quay was built in 1890. Nobody has counted the sheep here. So the ferry may run."}
        objection = {"to": "B", "text": "Nobody has counted the sheep here."}
        return {"objections": [objection]} if "/lateral/L2N1" in request.key else {}

    documents = [Source(text="The quay was built in 1890.")]
    report, _ = await go(Emergence(children=2, max_rounds=1), ScriptedModel(speaking(reply)), sources=documents)
    assert report.metrics["novelty"] == pytest.approx(1 / 3)


async def test_reused_text_is_the_last_lateral_response() -> None:
    protocol = Emergence(children=2, max_rounds=2, threshold=1.0, leaf_reask=False, signals=False)
    report, _ = await go(protocol)
    for n in ("L2N1", "L2N2"):
        first, second = (one_round.agents[n] for one_round in report.rounds)
        assert second.response == first.lateral_response
        assert (second.revised, second.lateral_response) != (False, None)


async def test_pool_decides_split_ballots_of_a_run_stalled_by_stable_texts() -> None:
    """Texts that stand still stop it; two of three are against what the root says."""

    def reply(request: ModelRequest) -> dict[str, object]:
        if "/ballot/" in request.key:
            side = "yes" if request.agent == "L2N1" else "no"
            return {"position": side, "confidence": "certain", "reason": "so"}
        return {"position": "yes", "text": "They say so."}

    split = Emergence(max_rounds=2, similarity="jaccard", answer_pattern="yes|no", fallback="vote")
    report, _ = await go(split, ScriptedModel(speaking(reply)))
    assert report.stop_reason is StopReason.STALLED, "what stood still were the texts; the ballots differ"
    assert not report.convergence.converged
    assert (report.position, report.decided_by) == ("no", "pool")
    alone, _ = await go(split.model_copy(update={"fallback": "none"}), ScriptedModel(speaking(reply)))
    assert (alone.position, alone.decided_by) == ("yes", "answer")


LAUNCH = "Yes. Launch in June. There is no reason to wait."


async def test_answer_has_the_position_that_it_declares_whatever_its_text_names() -> None:
    def reply(request: ModelRequest) -> dict[str, object]:
        if "/ballot/" in request.key:
            return {"position": "yes", "confidence": "certain", "reason": "so"}
        return {"text": LAUNCH, "position": "yes"} if request.agent == "L1N1" else {}

    report, model = await go(Emergence(max_rounds=2, answer_pattern="yes|no"), ScriptedModel(speaking(reply)))
    assert (report.position, report.decided_by, report.dissent) == ("yes", "answer", ())
    assert report.stop_reason is StopReason.CONVERGED
    asked = next(request for request in model.requests if request.key == "round-1/observe/L1N1")
    assert asked.schema is not None
    name, field = next(iter(asked.schema["properties"].items()))  # type: ignore[attr-defined]
    assert (name, field["enum"]) == ("position", ["yes", "no", "none of these"])
    assert 'position: the answer that "text" gives, in the form: yes or no' in asked.text


@pytest.mark.parametrize(
    ("fields", "position"),
    [
        ({"text": LAUNCH}, None),
        ({"text": LAUNCH, "position": "perhaps"}, None),
        ({"text": LAUNCH, "position": None}, None),
        ({"text": LAUNCH + "\n\nAnswer: Yes"}, "yes"),
        ({"text": LAUNCH, "position": "none of these"}, "none of these"),
        ({"text": LAUNCH, "position": "Yes, since there is no reason to wait"}, "yes"),
    ],
)
async def test_answer_without_a_declared_position_has_that_of_an_explicit_line_and_is_not_asked_again(
    fields: dict[str, object], position: str | None
) -> None:
    def reply(request: ModelRequest) -> dict[str, object]:
        ballot = {"position": "yes", "confidence": "certain", "reason": "so"}
        return ballot if "/ballot/" in request.key else fields if request.agent == "L1N1" else {}

    report, _ = await go(Emergence(max_rounds=1, answer_pattern="yes|no"), ScriptedModel(speaking(reply)))
    assert (report.answer, report.position) == (fields["text"], position)
    assert (NO_POSITION in report.warnings) == (position is None)
    assert report.ledger.actual.repairs == 0


async def test_ballots_below_quorum_do_not_stop_the_run() -> None:
    """Two of three write nothing that could be counted: the third agrees with itself alone."""
    protocol = Emergence(max_rounds=2, answer_pattern="yes|no")
    report, _ = await go(protocol, ScriptedModel(voting(lambda step, agent: "yes" if agent == "L2N1" else "undecided")))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.check is not None
    assert not report.check.met
    assert report.check.detail.startswith("ballots that could be read: 1 of 3, which is no quorum")
    assert report.unmet == ("only 1 of 3 ballots of round 2 could be read",)
    most, _ = await go(protocol, ScriptedModel(voting(lambda step, agent: "undecided" if agent == "L2N1" else "yes")))
    assert most.stop_reason is StopReason.CONVERGED


async def test_unreadable_ballot_keeps_the_last_readable_one() -> None:
    def votes(step: int, agent: str) -> str:
        return "yes" if agent != "L2N1" else "undecided" if step else "no"

    report, _ = await go(Emergence(max_rounds=3, answer_pattern="yes|no"), ScriptedModel(voting(votes)))
    assert [(b.step, b.position) for b in report.ballots if b.agent == "L2N1"] == [(0, "no")]
    assert report.stop_reason is StopReason.STALLED
    assert [(d.agent, d.position) for d in report.dissent] == [("L2N1", "no")]


async def test_answer_without_a_position_is_a_warning() -> None:
    protocol = Emergence(max_rounds=1, answer_pattern="reopen|close")
    votes = voting(lambda step, agent: "close" if agent == "L2N1" else "reopen")
    report, _ = await go(protocol, ScriptedModel(votes))
    assert report.position is None
    assert [(d.agent, d.position) for d in report.dissent] == [("L2N1", "close")]
    assert NO_POSITION in report.warnings


async def test_panel_replaces_the_perspectives() -> None:
    panel = load_panel("markets")
    report, model = await go(Emergence(children=2, max_rounds=1), panel=panel)
    assert [a.persona for a in report.agents] == ["", panel.personas[0].name, panel.personas[1].name]
    assert panel.personas[1].description in next(r.text for r in model.requests if r.agent == "L2N2")


async def test_perspectives_repeat_from_the_first() -> None:
    report, _ = await go(Emergence(children=3, depth=3, max_rounds=1))
    leaves = [a.perspective for a in report.agents if a.role == "specialist"]
    assert leaves[0] == leaves[8] == "analytical"
    assert len(set(leaves)) == 8


async def test_mca_report_and_final_state_have_the_fields_of_the_seed() -> None:
    report, _ = await go(Emergence(children=2, max_rounds=2, strange_loops=1))
    mca = report.mca_report()
    assert list(mca) == [
        "task", "config", "rounds", "convergence", "summary_metrics", "final_response", "strange_loops",
    ]  # fmt: skip
    agent = mca["rounds"][0]["agents"]["L2N1"]  # type: ignore[index]
    assert set(agent) == {
        "role", "perspective", "response", "lateral_response", "revised", "signal_sent", "signal_received",
    }  # fmt: skip
    assert mca["rounds"][0]["agents"]["L1N1"]["signal_sent"] == mca["rounds"][1]["agents"]["L2N2"]["signal_received"]  # type: ignore[index]
    assert mca["rounds"][0]["convergence_score"] is None  # type: ignore[index]
    state = report.final_state()
    assert len(state["agent_states"]["L2N1"]["responses"]) == 2  # type: ignore[index]
    assert state["final_response"] == report.answer
    json.dumps([mca, state])


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"depth": 1}, "depth"),
        ({"children": 0}, "children"),
        ({"children": -3}, "children"),
        ({"children": 60, "depth": 8}, "agents"),
        ({"max_rounds": 0}, "max_rounds"),
        ({"threshold": 2}, "threshold"),
        ({"similarity": "vibes"}, "vibes"),
        ({"similarity": "positions"}, "answer_pattern"),
        ({"answer_pattern": "("}, "regular expression"),
        ({"fallback": "vote"}, "answer_pattern"),
        ({"similarity": "judge | jaccard & judge"}, "name 'judge' once"),
        ({"answer_pattern": "(?i)(yes"}, "not a regular expression"),
        ({"perspectives": ()}, "perspectives"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_invalid_settings_are_refused_with_a_reason(wrong: dict[str, object], word: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        Emergence(**wrong)
    assert word in str(refusal.value)
    assert "settings of emergence" in str(refusal.value)


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "   ",
        "{}",
        "null",
        "[1, 2]",
        '{"text": ""}',
        '{"properties": {"text": {}}}',
        "\x00\ufffd",
        "x" * 300_000,
        "}{",
    ],
)
async def test_run_with_any_nonsense_reply_ends_with_a_report(nonsense: str) -> None:
    protocol = Emergence(children=2, depth=3, max_rounds=2, strange_loops=1, answer_pattern="yes|no")
    report, _ = await go(protocol, ScriptedModel(lambda request: nonsense))
    assert report.stop_reason in (StopReason.FAILED, StopReason.EXHAUSTED_STEPS, StopReason.CONVERGED)
    assert report.position is None


@settings(max_examples=30)
@given(st.data())
async def test_run_with_any_replies_ends_within_max_calls_with_a_stop_reason(data: st.DataObject) -> None:
    def reply(request: ModelRequest) -> object:
        return data.draw(
            st.one_of(
                st.text(max_size=40),
                st.sampled_from([RateLimited("slow"), Rejected("no"), '{"text": "ok"}', '{"position": "yes"}', "yes"]),
                st.builds(
                    lambda t: json.dumps(
                        {
                            "text": t,
                            "objections": [{"to": "A", "text": t}],
                            "answers": [{"objection": "A.1", "fate": "refuted", "how": t}],
                        }
                    ),
                    st.text(max_size=9),
                ),
            )
        )

    protocol = Emergence(children=2, max_rounds=2, answer_pattern="yes|no", strange_loops=1)
    calls = data.draw(st.none() | st.integers(0, 30))
    report, model = await go(protocol, ScriptedModel(reply), limits=Limits(calls=calls))  # type: ignore[arg-type]
    assert report.ledger.actual.calls <= protocol.estimate().max
    assert calls is None or len(model.requests) <= calls
    assert isinstance(report.stop_reason, StopReason)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("Yes. Nothing would change that.", None),
        ("I cannot decide.", None),
        ("It is unknown.", None),
        ("There is no doubt that it pays, so yes.", None),
        ("There is no doubt that it pays.\n\n**Yes.**", "Yes"),
        ("Answer: no, unless they say yes", "no"),
        ("The answer: YES!", "YES"),
    ],
)
def test_extract_finds_the_choice_that_a_text_says_is_its_answer(text: str, position: str | None) -> None:
    assert extract("yes|no", text) == position


async def test_prompt_with_an_answer_pattern_lists_alternatives_not_the_pattern() -> None:
    _, model = await go(Emergence(max_rounds=1, answer_pattern="yes|no"), ScriptedModel(voting(lambda s, a: "yes")))
    asked = [r.text for r in model.requests if "/ballot/" in r.key or "observe" in r.key]
    assert all("in the form: yes or no" in text for text in asked)
    assert not any("yes|no" in text for text in asked)


async def test_split_ballots_never_converge_under_any_similarity() -> None:
    split = voting(lambda step, agent: "no" if agent == "L2N2" else "yes")

    def reply(request: ModelRequest) -> str:
        return '{"sameness": "same"}' if "/judge" in request.key else split(request).replace(request.key, "the same")

    for similarity in ("positions & jaccard", "positions & jaccard & judge", "judge & positions | jaccard & positions"):
        protocol = Emergence(children=3, max_rounds=3, answer_pattern="yes|no", similarity=similarity)
        report, _ = await go(protocol, ScriptedModel(reply))
        assert report.stop_reason is StopReason.STALLED, similarity


async def test_judge_refused_by_a_limit_ends_the_run_as_exhausted() -> None:
    protocol = Emergence(children=2, max_rounds=2, similarity="judge", signals=False)
    report, _ = await go(protocol, limits=Limits(calls=protocol.estimate().max - 1))
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET


async def test_seat_that_fails_in_a_later_round_is_not_converged() -> None:
    model = ScriptedModel(lambda r: Rejected("gone") if r.agent == "L2N2" and r.key[6] == "2" else speaking()(r))
    report, _ = await go(Emergence(children=3, max_rounds=2), model)
    silent = report.rounds[1].agents["L2N2"]
    assert (silent.similarity, silent.converged, silent.response) == (None, False, None)


async def test_reused_texts_count_as_unrevised() -> None:
    protocol = Emergence(children=2, max_rounds=2, signals=False, leaf_reask=False)
    same = ScriptedModel(lambda r: json.dumps({"text": r.agent}))
    report, _ = await go(protocol, same)
    assert report.lateral_revision_rate == 0.0


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("(?i)yes|no", "I say: no way out.\nAnswer: YES", "YES"),
        ("(?is)answer:.(\\w+)", "Answer:\nmaybe", "maybe"),
        ("(?x) yes # agreed\n | no # not", "No.", "No"),
        ("(?i)(?x)a b", "ab", "ab"),
    ],
)
def test_answer_pattern_with_leading_flags_is_accepted(pattern: str, text: str, expected: str) -> None:
    assert Emergence(answer_pattern=pattern).answer_pattern == pattern
    assert extract(pattern, text) == expected


@pytest.mark.parametrize(
    ("texts", "alike"),
    [
        (lambda request: "Keep the market where it is.", True),
        (lambda request: f"Keep the market where it is, says {request.agent} for its own reasons.", False),
        (lambda request: f"Keep it. {'Really.' if '/lateral/' in request.key else ''}", False),
    ],
)
async def test_specialists_who_write_alike_and_never_revise_are_reported_as_one_view(
    texts: Callable[[ModelRequest], str], alike: bool
) -> None:
    def reply(request: ModelRequest) -> str:
        return json.dumps({"text": texts(request), "stance": "kept"}) if request.returns else "Why?"

    report, _ = await go(Emergence(children=3, max_rounds=3), ScriptedModel(reply))
    words = "the first texts of the 3 agents are alike (similarity 1.00), and no agent revised its text"
    assert any(warning.startswith(words) for warning in report.warnings) == alike


async def test_self_reviews_that_lose_the_answer_step_by_step_keep_a_third_of_it() -> None:
    sentence = "The ferry carries nurses home, and bakers to work. "

    def reply(request: ModelRequest) -> str:
        count = {"finalize/1": 6, "finalize/2": 3}.get(request.key.removesuffix("/L1N1"), 12)
        return json.dumps({"text": sentence * count})

    report, _ = await go(Emergence(children=2, max_rounds=1, strange_loops=2), ScriptedModel(reply))
    assert report.answer == sentence * 6
    assert [loop.discarded for loop in report.strange_loops] == [None, sentence * 3]


async def test_self_review_that_loses_the_answer_leaves_it(golden: Golden) -> None:
    long = "The ferry carries nurses home, and bakers to work. " * 12

    def reply(request: ModelRequest) -> str:
        return json.dumps({"text": "It is asked." if request.key.startswith("finalize/") else f"{long}{request.key}"})

    report, _ = await go(Emergence(children=2, max_rounds=1, strange_loops=1), ScriptedModel(reply))
    assert report.answer == f"{long}round-1/observe/L1N1"
    assert [(loop.after, loop.discarded) for loop in report.strange_loops] == [(None, "It is asked.")]
    golden(report.warnings)
