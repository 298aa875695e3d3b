"""What agents of `broadcast` are shown, when parents are satisfied, where flags go, and how runs end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.domain.errors import Rejected, SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, SpendingLimits, StopReason
from consilience.domain.panels import load_panel
from consilience.domain.topology import Topology, tree
from consilience.engine.faults import Fault
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols._common.conclusion import NO_POSITION
from consilience.protocols.broadcast import Broadcast, BroadcastReport
from consilience.protocols.broadcast.settings import read_rating
from consilience.reporting.export import report_files
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.views import view_text
from kit import runner
from kit.cases import Case, broadcasting
from kit.golden import Golden
from kit.runs import run, run_killed
from protocols.test_broadcast_calls import go, rating

Extra = Callable[[ModelRequest], dict[str, object]]


def agents(extra: Extra | None = None, points: object = 6) -> ScriptedModel:
    """Agents who rate themselves `points`; every text begins with its own key, so prompts show what was read."""

    def reply(request: ModelRequest) -> str:
        return str(rating(points, **(extra(request) if extra else {}))(request))

    return ScriptedModel(reply)


def flagging(tag: str, *keys: str) -> Extra:
    """The replies of these keys raise a flag."""
    return lambda r: {"flags": [{"tag": tag, "text": f"because of {r.key}"}]} if r.key in keys else {}


async def recorded(protocol: Broadcast, model: ScriptedModel, **options: Any) -> tuple[BroadcastReport, SessionRecord]:
    """The report, and what every call had been shown."""
    store = SqliteStore(":memory:")
    report = await runner.start("Is it so?", protocol, models=model, store=store, **options)
    assert isinstance(report, BroadcastReport)
    record = read_record(store, report.session)
    assert record.readings
    store.close()
    return report, record


def shown(record: SessionRecord, key: str) -> set[str]:
    return {quoted.message for quoted in record.readings[key].quoted}


# --- who is shown what


@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(2, 4), st.integers(0, 2), st.integers(1, 2), st.booleans())
async def test_prompt_of_every_call_quotes_only_its_goal_own_texts_and_family(
    children: int, depth: int, rounds: int, iterations: int, anonymous: bool
) -> None:
    depth = min(depth, 3) if children > 1 else depth
    protocol = Broadcast(
        children=children,
        depth=depth,
        coordination_rounds=rounds,
        max_iterations=iterations,
        anonymous_peers=anonymous,
        strange_loops=1,
    )
    _, record = await recorded(protocol, agents())
    shape = tree(children, depth)
    for key in record.readings:
        assert shown(record, key) == allowed(key, shape, rounds, iterations), key


def allowed(key: str, shape: Topology, rounds: int, iterations: int) -> set[str]:
    """The messages that a call must quote if no agent flags, each improves its text, and none is satisfied."""
    *places, what, agent = key.removeprefix("iteration-").split("/")
    path, (what, _, number) = "/".join(places), what.partition("-")
    siblings, children = (*shape.siblings(agent), agent), shape.children[agent]

    def near(path: str, *rest: str) -> str:
        return "/".join([f"iteration-{path}" if path else "", *rest]).strip("/")

    def own_before() -> set[str]:
        """What the seat went up with in its execution before this one."""
        before = predecessor(path, iterations)
        return {last_key(agent, before, shape, rounds)} if before else set()

    above, _, last = path.rpartition("/")
    goal = {near(path, "broadcast", parent) for parent in shape.parents.get(agent, ())}
    inner = {near(above, "broadcast", parent) for parent in shape.parents.get(agent, ())}
    end = f"{path}/{iterations}".strip("/")
    stated = {near(end, "broadcast", agent)}
    match what:
        case "execute":
            return goal | own_before()
        case "broadcast" if last == "1":
            return inner
        case "broadcast":
            earlier = f"{above}/{int(last) - 1}".strip("/")
            missing = {near(earlier, "self_reflect", child, "missing-1") for child in children}
            return inner | missing | {near(earlier, "broadcast", agent), near(earlier, "evaluate", agent)}
        case "coordinate":
            before = f"coordinate-{int(number) - 1}" if number != "1" else "self_reflect"
            return goal | {near(path, before, sibling) for sibling in siblings}
        case "evaluate":
            return {last_key(child, path, shape, rounds) for child in children} | {near(path, "broadcast", agent)}
        case "synthesize":
            texts = {last_key(child, end, shape, rounds) for child in children}
            return (goal or stated) | own_before() | texts | {near(end, "evaluate", agent)}
        case "strange_loop":
            texts = {last_key(child, end, shape, rounds) for child in children}
            return stated | texts | {near(end, "evaluate", agent), near(path, "synthesize", agent)}
    assert what == "self_reflect"
    if not shape.parents.get(agent):
        texts = {last_key(child, end, shape, rounds) for child in children}
        return stated | texts | {near(end, "evaluate", agent), f"strange_loop-1/{agent}"}
    return goal | {near(path, "synthesize" if children else "execute", agent)}


def last_key(agent: str, path: str, shape: Topology, rounds: int) -> str:
    talked = rounds if shape.siblings(agent) else 0
    return f"iteration-{path}/{f'coordinate-{talked}' if talked else 'self_reflect'}/{agent}"


def predecessor(path: str, iterations: int) -> str:
    """The path before, where every parent makes all its iterations: `1/2` before `2/1`. Empty for the first."""
    places = [int(place) for place in path.split("/")] if path else []
    for n in reversed(range(len(places))):
        if places[n] > 1:
            return "/".join(map(str, [*places[:n], places[n] - 1, *[iterations] * (len(places) - n - 1)]))
    return ""


async def test_prompt_without_coordination_quotes_no_sibling() -> None:
    protocol = Broadcast(children=3, depth=3, coordination_rounds=0, max_iterations=2)
    _, record = await recorded(protocol, agents())
    shape = tree(3, 3)
    for reading in record.readings.values():
        assert not {record.authors[q.message] for q in reading.quoted} & set(shape.siblings(reading.reader))
    _, record = await recorded(protocol.model_copy(update={"coordination_rounds": 1}), agents())
    talk = record.readings["iteration-1/1/coordinate-1/L3N1"]
    assert {record.authors[q.message] for q in talk.quoted} == {"L2N1", "L3N1", "L3N2", "L3N3"}, "with their goal"


async def test_broadcast_prompt_assigns_no_parts_and_peers_have_letters() -> None:
    _, model = await go(Broadcast(children=3, max_iterations=1))
    asked = {request.key: request.text for request in model.requests}
    assert "do not divide it" in asked["iteration-1/broadcast/L1N1"]
    assert not [key for key, text in asked.items() if "L2N" in text.replace(key, "") and "from L2N" in text]
    talk = asked["iteration-1/coordinate-1/L2N2"]
    assert "B is your own text" in talk
    assert [mark for mark in ("from A>", "from B>", "from C>") if mark in talk] == ["from A>", "from B>", "from C>"]
    _, model = await go(Broadcast(children=2, max_iterations=1, anonymous_peers=False))
    assert "from L2N1>" in next(r.text for r in model.requests if r.key == "iteration-1/coordinate-1/L2N2")


async def test_prompts_of_siblings_are_equal_up_to_their_own_part() -> None:
    """So a prefix cache serves the first sibling's quotations to the others."""
    _, model = await go(Broadcast(children=3, max_iterations=1))
    texts = [r.text for r in model.requests if "/coordinate-1/" in r.key]
    common = texts[0].rindex("</quote")
    assert texts[0][:common] == texts[1][:common] == texts[2][:common]


async def test_private_sources_stay_with_their_seat() -> None:
    sources = [Source(text="The well is dry.", agents=("L2N2",))]
    _, model = await go(Broadcast(children=2, max_iterations=1), sources=sources)
    assert {r.agent for r in model.requests if "The well is dry." in r.text} == {"L2N2"}


async def test_panel_or_settings_give_leaves_their_perspectives() -> None:
    panel = load_panel("markets")
    report, model = await go(Broadcast(children=2, max_iterations=1), panel=panel)
    assert [a.persona for a in report.agents] == ["", panel.personas[0].name, panel.personas[1].name]
    assert panel.personas[1].description in next(r.text for r in model.requests if r.agent == "L2N2")
    report, model = await go(Broadcast(children=2, max_iterations=1))
    assert [(a.perspective, a.persona) for a in report.agents] == [("", ""), ("use", ""), ("risks", "")]
    first, second = (next(r.text for r in model.requests if r.agent == leaf) for leaf in ("L2N1", "L2N2"))
    assert "You look for what goes wrong" in second
    assert "You look for what goes wrong" not in first
    report, model = await go(Broadcast(children=3, max_iterations=1, perspectives=("You pay for it.", "You clean it.")))
    assert [a.perspective for a in report.agents[1:]] == ["You pay for it.", "You clean it.", "You pay for it."]
    own = [request for request in model.requests if request.agent == "L2N2"]
    assert all("You clean it." in request.text for request in own)


# --- satisfaction


@pytest.mark.parametrize(
    ("ratings", "threshold", "mean"),
    [
        ((6, 7, 8), 0.7, 0.7),
        ((7, 7, 7), 0.7, 0.7),
        ((1, 2, 3), 0.2, 0.2),
        (("0.55", "0.65", "0.9"), 0.7, 0.7),
        ((10, 10, 1), 0.7, 0.7),
    ],
)
async def test_mean_rating_equal_to_the_threshold_satisfies(
    ratings: tuple[object, ...], threshold: float, mean: float
) -> None:
    """Although the float sum of some of these lies below it."""

    def mine(request: ModelRequest) -> dict[str, object]:
        return {"rating": ratings[int(request.agent[-1]) - 1] if request.agent.startswith("L2") else 10}

    report, _ = await go(Broadcast(children=3, satisfaction_threshold=threshold), agents(mine))
    assert report.check is not None
    assert report.check.score == pytest.approx(mean)
    assert (report.stop_reason, report.total_iterations) == (StopReason.CONVERGED, 1)
    below = Broadcast(children=3, satisfaction_threshold=threshold + 0.001)
    report, _ = await go(below, agents(mine))
    assert (report.stop_reason, report.total_iterations) == (StopReason.EXHAUSTED_STEPS, 2)


@pytest.mark.parametrize("expected", [True, False, None])
async def test_iteration_is_satisfied_only_by_ratings_and_evaluator_together(expected: bool | None) -> None:
    for points, rated in ((8, True), (6, False)):
        satisfied = rated and expected is not False
        report, _ = await go(Broadcast(children=2, max_iterations=1), agents(lambda r: {"satisfied": expected}, points))
        assert [(i.satisfied, i.said_satisfied) for i in report.iterations] == [(satisfied, expected)]
        assert (report.stop_reason is StopReason.CONVERGED) == (satisfied and expected is True)
        contrary = "in 1 of 1 iterations the evaluator contradicted the agents' own ratings and flags"
        assert (contrary in report.warnings) == (expected is not None and expected != rated)
        assert any("the evaluator says no" in reason for reason in report.unmet) == (expected is False)
        again, _ = await go(Broadcast(children=2, max_iterations=2), agents(lambda r: {"satisfied": expected}, points))
        assert again.total_iterations == (1 if satisfied else 2)


@pytest.mark.parametrize(
    "unreadable", ["", "fine", None, True, -1, 11, 1e400, "7 or 8", [8], {"value": 9}, "NaN", "120%"]
)
async def test_unreadable_rating_never_satisfies(unreadable: object) -> None:
    def mine(request: ModelRequest) -> dict[str, object]:
        return {"rating": unreadable} if request.agent == "L2N2" else {}

    report, _ = await go(Broadcast(children=2, satisfaction_threshold=0), agents(mine, 10))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert all(iteration.ratings["L2N2"] is None and iteration.mean is None for iteration in report.iterations)
    assert report.states["L2N2"].satisfaction is None
    assert any("missing or unreadable ratings: 2 (L2N2)" in w for w in report.warnings)


@pytest.mark.parametrize("nonsense", ["", "{}", "null", '{"text": ""}', "prose, no object", '{"properties": {}}'])
@pytest.mark.parametrize(("what", "rounds"), [("self_reflect", 0), ("coordinate-1", 1), ("execute", 1)])
async def test_malformed_reply_never_satisfies(nonsense: str, what: str, rounds: int) -> None:
    """Not even at a threshold of 0. The last reply of L3N2 in each iteration counts; a leaf's own text may be prose."""

    def reply(request: ModelRequest) -> str:
        struck = f"/{what}/L3N2" in request.key
        return nonsense if struck else str(rating(9)(request))

    protocol = Broadcast(children=2, depth=3, satisfaction_threshold=0, coordination_rounds=rounds)
    report, _ = await go(protocol, ScriptedModel(reply))
    family = [iteration for iteration in report.iterations if iteration.node == "L2N1"]
    assert any(reply.satisfied for reply in family) == (what == "execute" and nonsense.startswith("prose"))
    assert all(iteration.satisfied for iteration in report.iterations if iteration.node == "L2N2")


@pytest.mark.parametrize(
    "nonsense", ["", "{}", "null", '{"text": ""}', '{"properties": {}}', "x" * 300_000, "}{", "\x00\ufffd"]
)
async def test_run_with_any_nonsense_reply_ends_with_a_report(nonsense: str) -> None:
    protocol = Broadcast(children=2, depth=3, strange_loops=1, answer_pattern="yes|no", satisfaction_threshold=0)
    report, _ = await go(protocol, ScriptedModel(lambda request: nonsense))
    assert report.stop_reason in (StopReason.FAILED, StopReason.EXHAUSTED_STEPS)
    assert (report.position, report.ballots) == (None, ())


@pytest.mark.parametrize(
    ("inputs", "read"),
    [
        (0, 0.0), (7, 0.7), (10, 1.0), (7.5, 0.75), (0.85, 0.85), ("8", 0.8), ("8/10", 0.8), ("8 / 10", 0.8), ("80 %", 0.8),
        ("0.8", 0.8), ("0.8/1", 0.8), ("9 of 10", 0.9), (1, 0.1), (1.0, 1.0), ("1", 0.1), ("1.0", 1.0),
        ("12/10", None), (True, None),
        (float("nan"), None), ("-3", None), ("Good.", 0.8), ("excellent", 0.95), ("useless", 0.0),
        ("splendid", None), (None, None), ([7], None),
    ],
)  # fmt: skip
def test_read_rating_of_any_form_gives_points_or_none(inputs: object, read: float | None) -> None:
    assert read_rating(inputs) == (None if read is None else pytest.approx(read))


# --- flags


async def test_critical_flag_causes_broadcasts_that_quote_it_up_to_max_iterations() -> None:
    """Everybody is content with its text; one says that the goal is wrong."""
    flag = flagging("goal_mismatch", "iteration-1/self_reflect/L2N2", "iteration-2/self_reflect/L2N2")
    report, record = await recorded(Broadcast(children=2), agents(flag, 9))
    broadcasts = [key for key in record.readings if "/broadcast/" in key]
    assert broadcasts == ["iteration-1/broadcast/L1N1", "iteration-2/broadcast/L1N1"]
    assert shown(record, broadcasts[1]) == {
        "iteration-1/self_reflect/L2N2/flag-1",
        "iteration-1/self_reflect/L2N1/missing-1",
        "iteration-1/self_reflect/L2N2/missing-1",
        "iteration-1/evaluate/L1N1",
        "iteration-1/broadcast/L1N1",
    }
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert [iteration.mean for iteration in report.iterations] == [pytest.approx(0.9)] * 2
    assert report.iterations[1].caused_by == (
        "iteration-1/self_reflect/L2N2/flag-1",
        "iteration-1/self_reflect/L2N1/missing-1",
        "iteration-1/self_reflect/L2N2/missing-1",
        "iteration-1/evaluate/L1N1",
    )
    assert [(f.path, f.stands, f.read) for f in report.flags] == [((1,), False, True), ((2,), True, True)]
    (dissent,) = report.dissent
    assert (dissent.agent, dissent.text) == ("L2N2", "goal_mismatch: because of iteration-2/self_reflect/L2N2")
    assert [(o.agent, o.to, o.read) for o in report.objections] == [("L2N2", "L1N1", True)]


@pytest.mark.parametrize(("text", "count"), [("None found.", 0), ("No issues.", 0), ("", 1), ("The goal is wrong.", 1)])
async def test_flag_whose_text_says_that_there_is_none_is_no_flag(text: str, count: int) -> None:
    """It takes no place of a flag that is one, and causes no broadcast."""
    void = [{"tag": "goal_mismatch", "text": text}]

    def extra(request: ModelRequest) -> dict[str, object]:
        return {"flags": void * 3} if request.key == "iteration-1/self_reflect/L2N1" else {}

    report, _ = await go(Broadcast(children=2), agents(extra, 9))
    assert (len(report.flags), report.total_iterations) == (count, 1 + count)


@pytest.mark.parametrize(("task", "kept"), [("Is it so?", True), ("Is it so? Answer in one sentence.", False)])
@pytest.mark.parametrize("agent", ["L2N1", "L1N1"])
async def test_reflection_that_loses_the_text_leaves_it(agent: str, task: str, kept: bool) -> None:
    long = "The market feeds four villages, and none of them has a shop. " * 10

    def reply(request: ModelRequest) -> str:
        text = "The text is about a market." if f"self_reflect/{agent}" in request.key else long
        return json.dumps({"rating": 9, "satisfied": True, "text": text})

    store = SqliteStore(":memory:")
    protocol = Broadcast(children=2, max_iterations=1, coordination_rounds=0)
    report = await runner.start(task, protocol, models=ScriptedModel(reply), store=store)
    read = read_record(store, report.session).readings["synthesize/L1N1"].quoted
    store.close()
    if agent == "L1N1":
        assert (report.answer == long) == kept
    else:
        assert ("iteration-1/execute/L2N1" in {quoted.message for quoted in read}) == kept
    warned = "left out: 1 revision that kept less than a third of the text; the text stands" in report.warnings
    assert warned == kept


async def test_flag_not_raised_again_is_settled_and_stays_in_the_signal_chain() -> None:
    report, _ = await go(Broadcast(children=2), agents(flagging("needs_reframing", "iteration-1/self_reflect/L2N1"), 8))
    assert (report.stop_reason, report.total_iterations) == (StopReason.CONVERGED, 2)
    assert report.signal_chain == ("needs_reframing (L2N1)",)
    assert (report.dissent, report.objections) == ((), ())


async def test_critical_flag_repeats_the_nearest_parent_and_higher_ones_only_while_open() -> None:
    """Raised by L3N2 in the first broadcast of L2N1, and no more in its second: the root hears of it and goes on."""
    once = flagging("goal_mismatch", "iteration-1/1/self_reflect/L3N2")
    report, record = await recorded(Broadcast(children=2, depth=3), agents(once, 8))
    assert [key for key in record.readings if "/broadcast/" in key] == [
        "iteration-1/broadcast/L1N1",
        "iteration-1/1/broadcast/L2N1",
        "iteration-1/2/broadcast/L2N1",
        "iteration-1/1/broadcast/L2N2",
    ]
    assert (report.stop_reason, report.total_iterations) == (StopReason.CONVERGED, 1)
    assert {node: state.iterations for node, state in report.states.items()} == {
        "L1N1": 1, "L2N1": 2, "L2N2": 1, "L3N1": 1, "L3N2": 1, "L3N3": 1, "L3N4": 1,
    }  # fmt: skip
    twice = flagging("goal_mismatch", "iteration-1/1/self_reflect/L3N2", "iteration-1/2/self_reflect/L3N2")
    report, record = await recorded(Broadcast(children=2, depth=3), agents(twice, 8))
    assert "iteration-2/broadcast/L1N1" in record.readings
    assert "iteration-1/2/self_reflect/L3N2/flag-1" in shown(record, "iteration-2/broadcast/L1N1")
    assert "iteration-1/1/self_reflect/L3N2/flag-1" not in shown(record, "iteration-2/broadcast/L1N1")
    assert "iteration-1/2/broadcast/L2N2" not in record.readings, "the other family was satisfied"
    assert (report.stop_reason, report.total_iterations) == (StopReason.CONVERGED, 2)


async def test_flag_of_a_deep_leaf_is_in_the_signal_chain_of_the_root() -> None:
    def flags(request: ModelRequest) -> dict[str, object]:
        if request.key.endswith("self_reflect/L3N2"):
            return {"flags": [{"tag": "unexpected_finding", "text": "a well"}]}
        if request.key.endswith("coordinate-1/L2N1"):
            return {"flags": [{"tag": "contradiction_detected", "text": "B says otherwise"}]}
        return {}

    report, record = await recorded(Broadcast(children=2, depth=3, max_iterations=1), agents(flags, 8))
    assert report.signal_chain == ("unexpected_finding (L3N2)", "contradiction_detected (L2N1)")
    assert report.stop_reason is StopReason.CONVERGED, "neither is critical"
    for reader in ("iteration-1/1/evaluate/L2N1", "iteration-1/evaluate/L1N1", "synthesize/L1N1"):
        assert "iteration-1/1/self_reflect/L3N2/flag-1" in shown(record, reader)
    assert [d.text for d in report.dissent] == ["contradiction_detected: B says otherwise"]
    assert report.states["L2N1"].flags == ("contradiction_detected", "unexpected_finding")


async def test_flag_is_quoted_only_to_parents_and_its_author() -> None:
    flag = flagging("goal_mismatch", "iteration-1/1/self_reflect/L3N2")
    _, record = await recorded(Broadcast(children=2, depth=3), agents(flag, 8))
    readers = {
        reading.reader
        for reading in record.readings.values()
        if "iteration-1/1/self_reflect/L3N2/flag-1" in {quoted.message for quoted in reading.quoted}
    }
    assert readers == {"L2N1", "L3N2"}
    talk = next(r for r in record.readings.values() if r.reader == "L3N2" and "/coordinate-1/" in r.key)
    assert "A2.flag1" in {quoted.label for quoted in talk.quoted}, "so that it need not be raised again"


async def test_critical_flags_setting_decides_which_flags_repeat_an_iteration() -> None:
    flag = flagging("contradiction_detected", "iteration-1/coordinate-1/L2N1")
    for critical, iterations in (((), 1), (("contradiction_detected",), 2), (("goal_mismatch",), 1)):
        report, _ = await go(Broadcast(children=2, critical_flags=critical), agents(flag, 8))
        assert report.total_iterations == iterations
        assert report.flags[0].critical == (iterations == 2)


async def test_flag_of_the_last_call_is_unread_without_a_warning() -> None:
    def flags(request: ModelRequest) -> dict[str, object]:
        return {"flags": [{"tag": "resource_request", "text": f"for {request.key}"}]}

    report, _ = await go(Broadcast(children=2, depth=3, strange_loops=1), agents(flags, 8))
    unread = [flag.id for flag in report.flags if not flag.read]
    assert unread == ["self_reflect/L1N1/flag-1"], "it is for the reader of the report"
    assert not [w for w in report.warnings if "was read by no later call" in w]


async def test_flag_whose_parent_does_not_reply_is_a_warning(golden: Golden) -> None:
    flag = flagging("resource_request", "iteration-1/1/coordinate-1/L3N2")

    def reply(request: ModelRequest) -> object:
        silent = request.agent == "L2N1" and "/broadcast/" not in request.key
        return Rejected("gone") if silent else rating(8, **flag(request))(request)

    model = ScriptedModel(lambda r: Rejected("gone") if r.agent == "L1N1" else reply(r))  # type: ignore[arg-type,return-value]
    report, _ = await go(Broadcast(children=2, depth=3, max_iterations=1), model)
    golden(report.warnings)


async def test_quoted_flags_are_capped_with_critical_flags_first(golden: Golden) -> None:
    def flags(request: ModelRequest) -> dict[str, object]:
        tags = ["unexpected_finding", "resource_request", "goal_mismatch"] * 30
        return {"flags": [{"tag": tag, "text": f"{request.key} {n}"} for n, tag in enumerate(tags)]}

    protocol = Broadcast(children=4, depth=3, max_iterations=1, critical_flags=("resource_request",))
    report, record = await recorded(protocol, agents(flags, 8))
    most = max(len([q for q in r.quoted if "/flag-" in q.message]) for r in record.readings.values())
    assert most == 12
    golden(report.warnings)
    quoted = [q.message for q in record.readings["synthesize/L1N1"].quoted if "/flag-" in q.message]
    tags = {flag.id: flag.tag for flag in report.flags}
    assert {tags[id] for id in quoted} == {"resource_request"}, "critical ones first"


async def test_flag_repeated_in_the_same_words_counts_once() -> None:
    def flags(request: ModelRequest) -> dict[str, object]:
        return {"flags": [{"tag": "goal_mismatch", "text": "the bridge is gone"}]} if request.agent == "L2N1" else {}

    report, _ = await go(Broadcast(children=2, max_iterations=1), agents(flags))
    assert [flag.id for flag in report.flags] == ["iteration-1/self_reflect/L2N1/flag-1"]


# --- texts


@pytest.mark.parametrize(
    ("missing", "text", "replaced"),
    [
        ("the price", "better", True),
        ("the price", "  ", False),
        ("", "better", True),
        ("Nothing.", "better", True),
        ("the price", "None.", False),
        ("", "<quote 028373d0 from goal>\nIs it so?\n</quote 028373d0>", False),
        ("", "No.", True),
    ],
)
async def test_self_reflection_text_replaces_the_earlier_text_unless_empty_or_a_placeholder(
    missing: str, text: str, replaced: bool
) -> None:
    def some(request: ModelRequest) -> str:
        body = json.loads(rating(8)(request))
        if "self_reflect" in request.key and request.agent != "L2N1":
            body |= {"missing": missing, "text": text}
        return json.dumps(body)

    report, record = await recorded(Broadcast(children=2, coordination_rounds=0), ScriptedModel(some))
    assert shown(record, "iteration-1/evaluate/L1N1") == {
        "iteration-1/self_reflect/L2N1",
        f"iteration-1/{'self_reflect' if replaced else 'execute'}/L2N2",
        "iteration-1/broadcast/L1N1",
    }
    assert (report.states["L2N2"].refined, report.states["L2N1"].refined) == (replaced, True)
    assert report.answer == (text if replaced else "synthesize/L1N1 says L1N1")
    assert report.states["L2N2"].missing == ("the price" if missing == "the price" else "")


async def test_strange_loops_start_from_the_last_result_with_domain_instructions_in_the_last() -> None:
    protocol = Broadcast(children=2, max_iterations=1, strange_loops=2, domain_instructions="Speak to farmers.")
    report, model = await go(protocol)
    loops = [request for request in model.requests if request.key.startswith("strange_loop-")]
    assert ["Speak to farmers." in request.text for request in loops] == [False, True]
    assert "synthesize/L1N1 says" in loops[0].text
    assert "strange_loop-1/L1N1 says" in loops[1].text
    assert [loop.domain for loop in report.strange_loops] == [False, True]
    assert report.answer == "self_reflect/L1N1 says L1N1"


async def test_claims_name_messages_and_labels_not_shown_are_dropped_and_counted(golden: Golden) -> None:
    def claiming(request: ModelRequest) -> dict[str, object]:
        return {"claims": [{"text": "costs fall", "ids": ["A", "Q", "C"]}]}

    report, _ = await go(Broadcast(children=3, max_iterations=1), agents(claiming))
    (claim,) = report.claims
    assert claim.ids == ("iteration-1/coordinate-1/L2N1", "iteration-1/coordinate-1/L2N3")
    assert report.metrics["dropped_labels"] == 1
    golden(report.warnings)


# --- ballots


async def test_ballots_are_cast_in_replies_before_and_after_coordination() -> None:
    def voting(request: ModelRequest) -> dict[str, object]:
        talk = "/coordinate-" in request.key
        side = "yes" if request.agent == "L2N1" or (talk and request.agent == "L2N2") else "no"
        cause = {"cause": "A"} if talk and request.agent == "L2N2" else {}
        return {"position": f"{side}!", "confidence": "certain", "reason": f"{request.key}: secret", **cause}

    protocol = Broadcast(children=3, answer_pattern="yes|no", max_iterations=1)
    plain, _ = await go(protocol.model_copy(update={"answer_pattern": ""}), agents(voting))
    report, model = await go(protocol, agents(lambda r: voting(r) | {"claims": []}))
    assert report.ledger.actual.calls == plain.ledger.actual.calls, "a ballot costs no call"
    assert plain.ballots == ()
    assert [(b.agent, b.step, b.position) for b in report.ballots] == [
        ("L2N1", 0, "yes"), ("L2N1", 1, "yes"), ("L2N2", 0, "no"), ("L2N2", 1, "yes"), ("L2N3", 0, "no"), ("L2N3", 1, "no"),
    ]  # fmt: skip
    (change,) = report.position_changes
    assert (change.agent, change.cause, change.conformity) == ("L2N2", "iteration-1/self_reflect/L2N1", False)
    assert not [r.key for r in model.requests if "secret" in r.text], "peers never see ballots"
    assert report.pool == {"no": 0.5, "yes": 0.5}


async def test_ballots_of_later_iterations_are_cast_in_coordination_if_there_is_any() -> None:
    def voting(request: ModelRequest) -> dict[str, object]:
        return {"position": "yes" if "/coordinate-" in request.key else "no", "confidence": "certain", "cause": "B"}

    protocol = Broadcast(children=2, answer_pattern="yes|no", max_iterations=2)
    report, model = await go(protocol, agents(voting))
    assert report.total_iterations == 2
    voted = [r.key for r in model.requests if r.agent == "L2N1" and "position" in str(r.schema)]
    assert voted == ["iteration-1/self_reflect/L2N1", "iteration-1/coordinate-1/L2N1", "iteration-2/coordinate-1/L2N1"]
    assert [(c.agent, c.conformity) for c in report.position_changes] == [("L2N1", False), ("L2N2", True)]
    silent, model = await go(protocol.model_copy(update={"coordination_rounds": 0}), agents(voting))
    assert silent.total_iterations == 2
    assert [b.step for b in silent.ballots if b.agent == "L2N1"] == [0, 1], "without talk the reflections take them all"


async def test_final_ballots_against_the_answer_are_the_dissent() -> None:
    def reply(request: ModelRequest) -> str:
        side = "no" if request.agent == "L2N2" else "yes"
        body = {"position": side, "confidence": "certain", "reason": f"{side}, says {request.agent}"}
        return json.dumps({**body, "rating": 8, "satisfied": True, "text": f"{side}: {request.key}"})

    report, _ = await go(Broadcast(children=3, answer_pattern="yes|no"), ScriptedModel(reply))
    assert (report.position, report.stop_reason) == ("yes", StopReason.CONVERGED)
    assert [(d.agent, d.position, d.text) for d in report.dissent] == [("L2N2", "no", "no, says L2N2")]
    assert (report.confidence.kind, report.confidence.level) == ("share of pooled ballots", pytest.approx(2 / 3))


async def test_unreadable_later_ballot_keeps_the_earlier_with_a_warning(golden: Golden) -> None:
    def reply(request: ModelRequest) -> dict[str, object]:
        lost = request.agent == "L2N1" and "coordinate" in request.key
        voter = request.agent != "L1N1"
        return {"position": "undecided" if lost or not voter else "yes", "text": "It should reopen."}

    report, _ = await go(Broadcast(children=2, answer_pattern="yes|no", max_iterations=1), agents(reply))
    assert [(b.step, b.position) for b in report.ballots if b.agent == "L2N1"] == [(0, "yes")]
    golden(report.warnings)
    assert report.position is None
    assert NO_POSITION in report.warnings


async def test_position_outside_the_answer_pattern_is_not_a_ballot(golden: Golden) -> None:
    report, _ = await go(
        Broadcast(children=2, answer_pattern="yes|no", max_iterations=1), agents(lambda r: {"position": "maybe"})
    )
    assert report.ballots == ()
    golden(report.warnings)


# --- ends


def dead(*who: str, frm: str = "") -> ScriptedModel:
    return ScriptedModel(
        lambda r: Rejected("gone") if r.agent in who and r.key.startswith(frm) else rating(8)(r)  # type: ignore[arg-type,return-value]
    )


async def test_run_with_a_dead_seat_continues_and_never_satisfies() -> None:
    report, model = await go(Broadcast(children=3), dead("L2N2"))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.degraded == "2 of 3 agents; no reply: execute 1 L2N2 (rejected); execute 2 L2N2 (rejected)"
    assert report.answer is not None
    assert [m.agent for m in report.missing] == ["L2N2"]
    failed = "no reply: execute by L2N2 (iteration 2)"
    assert failed in report.iterations[1].unmet, "worded as in the headline"
    assert report.check is not None
    assert failed in report.check.detail
    assert "from B>" not in next(r.text for r in model.requests if r.key == "synthesize/L1N1")


async def test_run_without_quorum_fails_before_the_root_is_asked() -> None:
    report, model = await go(Broadcast(children=3), dead("L2N1", "L2N2"))
    assert (report.stop_reason, report.answer, report.quorum_met) == (StopReason.FAILED, None, False)
    assert not [r for r in model.requests if r.key.startswith("synthesize")]


async def test_run_with_a_dead_root_fails_without_an_answer() -> None:
    report, model = await go(Broadcast(children=2, max_iterations=1), dead("L1N1"))
    assert (report.stop_reason, report.answer) == (StopReason.FAILED, None)
    assert report.quorum_met
    assert "from goal>" not in next(r.text for r in model.requests if r.key == "iteration-1/execute/L2N1")


async def test_failed_root_reflection_keeps_the_synthesis_as_answer() -> None:
    report, _ = await go(Broadcast(children=2), dead("L1N1", frm="self_reflect"))
    assert (report.answer, report.root_satisfaction) == ("synthesize/L1N1 says L1N1", None)


async def test_run_limited_to_one_call_gives_a_degraded_answer() -> None:
    report, model = await go(Broadcast(children=3), limits=Limits(calls=1))
    assert [r.key for r in model.requests] == ["synthesize/L1N1"]
    assert "No other text is available" in model.requests[0].text
    assert (report.stop_reason, report.closing) == (StopReason.EXHAUSTED_BUDGET, "reserve")
    assert report.degraded == (
        "0 of 3 agents; no reply: broadcast 1 L1N1 (budget); execute 1 L2N1, L2N2, L2N3 (budget); self_reflect 1 L1N1 (budget)"
    )


async def test_limit_in_the_second_iteration_keeps_the_texts_of_the_first() -> None:
    """Two calls are left when it begins: the broadcast, and the closing call out of the reserve."""
    protocol = Broadcast(children=2)
    whole = 1 + 2 * 2 + 2 + 1
    report, record = await recorded(protocol, agents(), limits=Limits(calls=whole + 2))
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert shown(record, "synthesize/L1N1") == {
        "iteration-1/coordinate-1/L2N1",
        "iteration-1/coordinate-1/L2N2",
        "iteration-1/evaluate/L1N1",
        "iteration-2/broadcast/L1N1",
    }
    assert report.states["L2N1"].text == "iteration-1/coordinate-1/L2N1 says L2N1"


async def test_limit_on_a_leaf_ends_the_iterations_of_its_ancestors_only() -> None:
    """L3N2 may be asked twice: its parent does not begin again without it, nor does the root."""
    report, model = await go(Broadcast(children=2, depth=3), limits=Limits(agents={"L3N2": SpendingLimits(calls=2)}))
    broadcasts = [request.key for request in model.requests if "/broadcast/" in request.key]
    assert "iteration-1/2/broadcast/L2N1" not in broadcasts
    assert "iteration-1/2/broadcast/L2N2" in broadcasts, "another family goes on"
    assert "iteration-2/broadcast/L1N1" not in broadcasts
    assert (report.stop_reason, report.answer) == (StopReason.EXHAUSTED_BUDGET, "self_reflect/L1N1 says L1N1")


async def test_limit_on_one_agent_ends_the_iterations_and_keeps_the_answer() -> None:
    report, _ = await go(
        Broadcast(children=2, max_iterations=3), limits=Limits(agents={"L2N2": SpendingLimits(calls=2)})
    )
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert (report.total_iterations, report.answer) == (1, "self_reflect/L1N1 says L1N1")


async def test_nested_iterations_give_the_same_result_in_any_order_and_after_any_kill(
    tmp_path: Path,
) -> None:
    """Eighty-two calls, side by side where they can be; on any budget too."""
    case = Case("tree", Broadcast(children=2, depth=3), broadcasting)
    for calls in (None, 30, 60):
        reference = await run(case, calls=calls)
        arrived = set()
        for order in range(12):
            outcome = await run(case, order=order, calls=calls)
            assert outcome.same == reference.same
            arrived.add(outcome.arrived)
        assert len(arrived) > 1
        for nth in (2, 5, 9):
            fault = Fault("after_commit", nth=nth)
            killed = await run_killed(case, tmp_path / f"{calls}-{nth}.db", fault, order=nth, calls=calls)
            assert killed.crashes
            assert killed.same == reference.same
            assert not killed.asked_again


# --- the report


async def test_mca_metadata_has_the_fields_of_the_seed() -> None:
    report, _ = await go(
        Broadcast(children=2, depth=3), agents(flagging("unexpected_finding", "iteration-1/1/self_reflect/L3N2"), 8)
    )
    assert report.mca_metadata() == {
        "mode": "mca",
        "total_iterations": 1,
        "total_coordination_rounds": 1,
        "root_satisfaction": 0.8,
        "signal_chain": ["unexpected_finding (L3N2)"],
        "satisfaction_map": {
            "L1N1": 0.8, "L2N1": 0.8, "L2N2": 0.8, "L3N1": 0.8, "L3N2": 0.8, "L3N3": 0.8, "L3N4": 0.8,
        },
    }  # fmt: skip
    state = report.final_state()
    assert {"task", "final_response", "strange_loops", "child_responses", "mca_metadata"} <= state.keys()
    assert state["child_responses"] == {
        "L2N1": "iteration-1/coordinate-1/L2N1 says L2N1",
        "L2N2": "iteration-1/coordinate-1/L2N2 says L2N2",
    }
    json.dumps(state)


async def test_run_limited_to_zero_calls_has_complete_metadata() -> None:
    report, _ = await go(Broadcast(children=2), limits=Limits(calls=0))
    assert (report.answer, report.stop_reason) == (None, StopReason.EXHAUSTED_BUDGET)
    assert set(report.mca_metadata()["satisfaction_map"]) == {"L1N1", "L2N1", "L2N2"}  # type: ignore[arg-type]
    json.dumps(report.final_state())


async def test_report_files_contain_final_state_json_with_mca_metadata(tmp_path: Path) -> None:
    report, _ = await go(Broadcast(children=2, max_iterations=1))
    files = report_files(report)
    assert json.loads(files["final_state.json"])["mca_metadata"] == report.mca_metadata()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"depth": 1}, "depth"),
        ({"children": 0}, "children"),
        ({"children": 60, "depth": 8}, "agents"),
        ({"coordination_rounds": -1}, "coordination_rounds"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"satisfaction_threshold": 1.1}, "satisfaction_threshold"),
        ({"critical_flags": ("bored",)}, "critical_flags"),
        ({"perspectives": ()}, "perspectives"),
        ({"answer_pattern": "("}, "regular expression"),
        ({"domain_instructions": "Be kind."}, "strange_loops"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_invalid_settings_are_refused_with_a_reason(wrong: dict[str, object], word: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        Broadcast(**wrong)
    assert word in str(refusal.value)
    assert "settings of broadcast" in str(refusal.value)


async def test_evolution_of_an_agent_that_keeps_its_text_shows_that_text() -> None:
    def silent(request: ModelRequest) -> str:
        body = json.loads(rating(10)(request))
        return json.dumps(body | ({"text": ""} if "self_reflect" in request.key else {}))

    store = SqliteStore(":memory:")
    report = await runner.start("Is it so?", Broadcast(children=2), models=ScriptedModel(silent), store=store)
    text = view_text("evolution", read_record(store, report.session))
    store.close()
    assert "  iteration 1 [first words] iteration-1/execute/L2N1 says L2N1\n" in text
