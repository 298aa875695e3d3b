"""Objections in `emergence`: who is shown them, how they are met, and the fate and the verdict that follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from consilience.domain.errors import Rejected
from consilience.domain.events import Noted
from consilience.domain.messages import Source
from consilience.domain.outcome import StopReason
from consilience.domain.sections import Graph
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence import Emergence
from consilience.reporting.markdown import markdown
from consilience.reporting.record import read_record
from consilience.reporting.views import tree, view_text
from kit import runner
from kit.golden import Golden, section
from protocols.test_emergence_calls import go

Fields = Callable[[ModelRequest], dict[str, object]]


def answering(fields: Fields | Mapping[str, dict[str, object]]) -> ScriptedModel:
    """Every text is new; `fields` of a reply are given by key, or by a function of the request."""

    def reply(request: ModelRequest) -> str:
        if "/signal/" in request.key:
            return f"Think again after {request.key}."
        extra = fields.get(request.key, {}) if isinstance(fields, Mapping) else fields(request)
        return json.dumps({"text": f"{request.agent} writes for {request.key}.", **extra})

    return ScriptedModel(reply)


def objects(to: str, text: str = "the sum is wrong", **more: str) -> dict[str, object]:
    return {"objections": [{"to": to, "text": text, **more}]}


def answers(objection: str, fate: str, how: str = "") -> dict[str, object]:
    return {"answers": [{"objection": objection, "fate": fate, "how": how}]}


def prompt(model: ScriptedModel, key: str) -> str:
    return next(request.text for request in model.requests if request.key == key)


TWO = Emergence(children=2, max_rounds=2)


async def test_points_are_quoted_only_with_the_first_text_of_their_author() -> None:
    """Peers read them; a lateral text, which replaces both, comes alone. Void ones and those beyond the cap are shown to nobody."""

    def listing(request: ModelRequest) -> dict[str, object]:
        points = [f"{request.agent} counted {n} sheep" for n in range(7)]
        return {"points": ["none", *points]} if "round-1/leaf_respond/" in request.key else {}

    report, model = await go(TWO, answering(listing))
    peer = prompt(model, "round-1/lateral/L2N1")
    assert "points:\n- L2N1 counted 0 sheep" in peer, "void ones are left out"
    assert "- L2N2 counted 0 sheep\n" in peer
    assert "L2N2 counted 6 sheep" not in peer, "beyond the cap"
    for key in ("round-1/observe/L1N1", "round-1/signal/L1N1", "round-2/leaf_respond/L2N2"):
        assert "sheep" not in prompt(model, key), key
    assert "L2N2" not in prompt(model, "round-2/leaf_respond/L2N1"), "a leaf is shown no peer before lateral talk"
    assert report.rounds[0].agents["L2N2"].response == "L2N2 writes for round-1/leaf_respond/L2N2."


async def test_labels_at_every_depth_are_paths_unique_to_one_agent() -> None:
    _, model = await go(Emergence(children=2, depth=4, max_rounds=1), answering({}))
    assert "A2b is your own text;" in prompt(model, "round-1/lateral/L4N4")
    assert "from A2a>" in prompt(model, "round-1/observe/L3N2")
    assert "from A2>" in prompt(model, "round-1/observe/L2N1")
    assert "from B>" in prompt(model, "round-1/observe/L1N1")
    _, named = await go(Emergence(children=2, max_rounds=1, anonymous_peers=False), answering({}))
    assert "from L2N2>" in prompt(named, "round-1/lateral/L2N1")


async def test_objection_is_quoted_to_its_target_in_the_next_turn_with_the_disputed_words() -> None:
    words = "writes  for ROUND-1/leaf_respond/L2N1"
    model = answering({"round-1/lateral/L2N2": objects("A", words=words)})
    _, model = await go(TWO, model)
    shown = prompt(model, "round-2/leaf_respond/L2N1")
    assert "from B.1>\n“writes for ROUND-1/leaf_respond/L2N1”: the sum is wrong" in shown
    assert "B.1 is an objection to your text." in shown
    assert "you before" not in shown
    assert "B.1>" not in prompt(model, "round-2/leaf_respond/L2N2"), "its author is not asked to answer it"
    assert "B.1 (to A)" in prompt(model, "round-1/observe/L1N1"), "the parent may rule on it"


async def test_objection_with_words_not_found_is_quoted_with_the_whole_disputed_text() -> None:
    _, model = await go(TWO, answering({"round-1/lateral/L2N2": objects("A", words="what nobody wrote")}))
    shown = prompt(model, "round-2/leaf_respond/L2N1")
    assert "from you before>\nL2N1 writes for round-1/leaf_respond/L2N1." in shown
    assert '"you before" is the text it was raised against' in shown
    assert "what nobody wrote" not in shown


@pytest.mark.parametrize("fate", ["yielded", "refuted"])
async def test_objection_answered_by_its_target_is_reported_with_fate_and_reason(fate: str) -> None:
    script = {
        "round-1/lateral/L2N2": objects("A"),
        "round-2/leaf_respond/L2N1": answers("[B.1]", fate, "it was counted twice"),
    }
    report, model = await go(TWO, answering(script))
    (objection,) = report.objections
    assert (objection.agent, objection.to, objection.text) == ("L2N2", "L2N1", "the sum is wrong")
    assert (objection.fate, objection.how, objection.ruling) == (fate, "it was counted twice", "")
    assert report.dissent == ()
    for key in ("round-2/lateral/L2N2", "round-2/observe/L1N1"):
        assert f"- B.1 {fate}: it was counted twice" in prompt(model, key), "its author and the parent read the answer"


async def test_objection_ignored_stands_and_objection_never_quoted_is_unanswered() -> None:
    script = {"round-1/lateral/L2N2": objects("A"), "round-2/lateral/L2N1": objects("B", "nobody asked the nurses")}
    report, _ = await go(TWO, answering(script))
    assert [(o.agent, o.fate) for o in report.objections] == [("L2N2", "stands"), ("L2N1", "unanswered")]
    assert [(d.agent, d.text) for d in report.dissent] == [
        ("L2N2", "the sum is wrong"),
        ("L2N1", "nobody asked the nurses"),
    ]


async def test_ruling_of_the_parent_is_reported_beside_the_fate(golden: Golden) -> None:
    script = {
        "round-1/lateral/L2N2": objects("A"),
        "round-1/observe/L1N1": answers("B.1", "yielded", "the answer uses the lower sum"),
    }
    report, _ = await go(Emergence(children=2, max_rounds=1), answering(script))
    (objection,) = report.objections
    assert (objection.fate, objection.ruled, objection.ruling) == (
        "unanswered",
        "upheld",
        "the answer uses the lower sum",
    )
    assert report.dissent == (), "the answer follows it"
    golden(section(markdown(report), "Where they differed"), "upheld")
    script["finalize/1"] = answers("B.1", "refuted", "the sum is right")
    report, _ = await go(Emergence(children=2, max_rounds=1, strange_loops=1), answering(script))
    assert report.objections[0].ruled == "rejected", "the last ruling counts"
    assert [dissent.text for dissent in report.dissent] == ["the sum is wrong"]
    golden(section(markdown(report), "Where they differed"), "rejected at last")


async def test_ruling_is_printed_for_a_refutation_and_not_for_a_concession(golden: Golden) -> None:
    script = {
        "round-1/lateral/L2N2": objects("A"),
        "round-1/observe/L1N1": answers("B.1", "yielded", "the lower sum"),
        "round-2/leaf_respond/L2N1": answers("B.1", "yielded", "it was counted twice"),
    }
    report, _ = await go(TWO, answering(script))
    golden(section(markdown(report), "Where they differed"), "conceded")
    script["round-2/leaf_respond/L2N1"] = answers("B.1", "refuted", "it was counted once")
    report, _ = await go(TWO, answering(script))
    golden(section(markdown(report), "Where they differed"), "refuted")


async def test_objection_upheld_by_a_coordinator_is_not_dissent(golden: Golden) -> None:
    script = {
        "round-1/lateral/L3N2": objects("A1"),
        "round-1/observe/L2N1": answers("A2.1", "yielded", "the lower sum"),
    }
    report, _ = await go(Emergence(children=2, depth=3, max_rounds=1), answering(script))
    assert report.dissent == ()
    golden(section(markdown(report), "Where they differed"))


async def test_prompt_invites_only_refuted_authors_to_object_again() -> None:
    again = "Raise one of yours again"
    script = {
        "round-1/lateral/L2N2": objects("A"),
        "round-2/leaf_respond/L2N1": answers("B.1", "refuted", "it was counted once"),
    }
    _, model = await go(Emergence(children=2, max_rounds=3), answering(script))
    askers = {request.key for request in model.requests if again in request.text}
    assert askers == {"round-2/lateral/L2N2", "round-3/lateral/L2N2"}


async def test_nudge_labels_the_texts_and_readers_know_their_label() -> None:
    _, model = await go(TWO, answering({}))
    assert 'such as "A:"' in prompt(model, "round-1/signal/L1N1")
    assert "a label other than B is not for you" in prompt(model, "round-2/leaf_respond/L2N2")


async def test_stance_changed_in_any_reply_is_reported(golden: Golden) -> None:
    script = {
        "round-1/lateral/L2N1": {"stance": "changed"},
        "round-2/leaf_respond/L2N2": {"stance": "changed"},
    }
    report, _ = await go(TWO, declaring("kept", script))
    golden(section(markdown(report), "Where they differed"))


async def test_objection_raised_again_after_a_refutation_replaces_the_earlier_one() -> None:
    script = {
        "round-1/lateral/L2N2": objects("A"),
        "round-2/leaf_respond/L2N1": answers("B.1", "refuted", "it was counted once"),
        "round-2/lateral/L2N2": objects("A", "the sum is still wrong"),
        "round-3/leaf_respond/L2N1": answers("B.2", "refuted", "once, I say"),
    }
    for rounds, how in ((2, "it was counted once"), (3, "once, I say")):
        report, _ = await go(Emergence(children=2, max_rounds=rounds), answering(script))
        assert [(o.id, o.fate, o.how) for o in report.objections] == [
            ("round-2/lateral/L2N2/objection-1", "stands", how)
        ]
    script["round-3/leaf_respond/L2N1"] = answers("B.2", "yielded")
    report, _ = await go(Emergence(children=2, max_rounds=3), answering(script))
    assert [o.fate for o in report.objections] == ["yielded"]


async def test_invalid_objections_are_dropped_before_the_cap_and_counted(golden: Golden) -> None:
    void = [
        {"to": "A", "text": "my own"},
        {"to": "Q", "text": "nobody's"},
        {"to": "B", "text": "none"},
        {"to": "B", "text": "L2N1 writes for round-1/lateral/L2N1."},
        {"to": "B", "text": "for round-1/leaf_respond/L2N2", "words": "L2N2 writes"},
    ]
    valid = [{"to": "B", "text": f"mistake {n} alone"} for n in "wxyz"]
    report, _ = await go(
        Emergence(children=2, max_rounds=1), answering({"round-1/lateral/L2N1": {"objections": void + valid}})
    )
    assert [o.text for o in report.objections] == [f"mistake {n} alone" for n in "wxy"]
    assert report.metrics["void_objections"] == 5
    golden(report.warnings)


async def test_schema_of_the_root_has_a_conclusion_and_no_objections() -> None:
    ids = ["A"]
    fields = {
        "claims": [{"text": "It rained.", "ids": ids}],
        "against": [{"text": "Stay, it may clear up.", "ids": ["B"]}],
        "would_change": ["A dry forecast."],
        "unknown": ["Who has the key."],
        "objections": [{"to": "A", "text": "nobody can read this"}],
    }
    report, model = await go(Emergence(children=2, max_rounds=1), answering({"round-1/observe/L1N1": fields}))
    root = next(request for request in model.requests if request.key == "round-1/observe/L1N1")
    assert root.schema is not None
    assert list(root.schema["properties"]) == ["claims", "against", "would_change", "unknown", "text"]  # type: ignore[arg-type]
    assert report.objections == ()
    assert [(argument.text, argument.ids) for argument in report.against] == [
        ("Stay, it may clear up.", ("round-1/lateral/L2N2",))
    ]
    assert (report.would_change, report.unknown) == (("A dry forecast.",), ("Who has the key.",))


async def test_objection_of_a_coordinator_is_answered_by_the_child_in_the_next_round() -> None:
    script = {
        "round-1/observe/L2N1": objects("A2"),
        "round-2/leaf_respond/L3N2": answers("A.1", "yielded", "corrected"),
        "round-1/lateral/L2N2": objects("A", "the groups differ"),
        "round-2/observe/L2N1": answers("B.1", "refuted", "they agree"),
    }
    report, model = await go(Emergence(children=2, depth=3, max_rounds=2), answering(script))
    assert "A.1 is an objection to your text" in prompt(model, "round-2/leaf_respond/L3N2")
    assert [(o.agent, o.to, o.fate, o.how) for o in report.objections] == [
        ("L2N1", "L3N2", "yielded", "corrected"),
        ("L2N2", "L2N1", "refuted", "they agree"),
    ]


def declaring(stance: str, fields: Mapping[str, dict[str, object]] | None = None) -> ScriptedModel:
    return answering(lambda request: {"stance": stance, **(fields or {}).get(request.key, {})})


async def test_run_with_all_stances_kept_and_no_open_objection_converges_in_round_two() -> None:
    report, model = await go(Emergence(children=2, depth=3), declaring("kept"))
    assert (report.stop_reason, report.steps) == (StopReason.CONVERGED, 2)
    assert report.check is not None
    assert (report.check.kind, report.check.score) == ("declared", 1.0)
    assert len(model.requests) == Emergence(children=2, depth=3).estimate().min
    assert report.rounds[0].agents["L1N1"].stance is None
    assert {turn.stance for turn in report.rounds[1].agents.values()} == {"kept"}


async def test_run_with_a_changed_or_missing_stance_continues() -> None:
    fields = {"round-2/lateral/L2N2": {"stance": "changed"}}
    report, _ = await go(TWO, declaring("kept", fields))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.convergence.score_trajectory == (2 / 3,)
    report, _ = await go(TWO, answering({}))
    assert report.convergence.score_trajectory == (0.0,)


async def test_open_objection_delays_the_end_and_an_ignored_one_stalls_the_run() -> None:
    raised = {"round-2/lateral/L2N2": objects("A")}
    report, _ = await go(Emergence(children=2, max_rounds=5), declaring("kept", raised))
    assert (report.stop_reason, report.steps) == (StopReason.STALLED, 3), "passed over in round 3"
    assert report.check is not None
    met = {**raised, "round-3/leaf_respond/L2N1": answers("B.1", "refuted", "no")}
    report, _ = await go(Emergence(children=2, max_rounds=5), declaring("kept", met))
    assert (report.stop_reason, report.steps) == (StopReason.CONVERGED, 3)


async def test_reused_text_counts_as_stance_kept() -> None:
    protocol = Emergence(children=1, depth=2, max_rounds=3, signals=False, leaf_reask=False)
    report, model = await go(protocol, declaring("kept"))
    assert (report.stop_reason, len(model.requests)) == (StopReason.CONVERGED, 3)


async def test_report_names_the_texts_that_changed_the_answer(golden: Golden) -> None:
    change = {"stance": "changed", "changes": [{"text": "Tuesday, not Monday", "ids": ["B"]}, {"text": "none"}]}
    review = {"stance": "kept"}
    report, _ = await go(
        Emergence(children=2, max_rounds=2, strange_loops=1),
        answering({"round-2/observe/L1N1": change, "finalize/1": review}),
    )
    changes = [
        (answer_change.key, answer_change.stance, [(c.text, c.ids) for c in answer_change.changes])
        for answer_change in report.answer_changes
    ]
    assert changes == [
        ("round-2/observe/L1N1", "changed", [("Tuesday, not Monday", ("round-2/lateral/L2N2",))]),
        ("finalize/1", "kept", []),
    ]
    golden(section(markdown(report), "Changes of the answer"))


async def test_nudge_unread_by_one_child_is_a_warning(golden: Golden) -> None:
    def reply(request: ModelRequest) -> object:
        dead = request.key == "round-2/leaf_respond/L2N2"
        text = "n" if "/signal/" in request.key else json.dumps({"text": request.key})
        return Rejected("gone") if dead else text

    report, _ = await go(TWO, ScriptedModel(reply))  # type: ignore[arg-type]
    golden(report.warnings)


async def test_quotations_in_points_are_verified() -> None:
    def quoting(request: ModelRequest) -> dict[str, object]:
        return {"points": ['It says "The quay is old" [S1:1].']} if "leaf_respond/L2N1" in request.key else {}

    report, _ = await go(
        Emergence(children=2, max_rounds=1), answering(quoting), sources=[Source(text="The quay is old.")]
    )
    assert [(q.words, q.verified) for q in report.quotations][:1] == [("The quay is old", True)]


async def test_objection_to_a_text_that_was_not_shown_is_void() -> None:
    """A child without a text has a label, too."""

    def reply(request: ModelRequest) -> str:
        if request.agent == "L3N2":
            raise Rejected("refused")
        wrong = objects("A2") if "/observe/L2N1" in request.key else {}
        return json.dumps({"text": f"{request.agent} writes for {request.key}.", **wrong})

    report, _ = await go(Emergence(children=2, depth=3, max_rounds=1), ScriptedModel(reply))
    assert report.objections == ()
    assert report.metrics["void_objections"] == 1


async def test_tree_shows_objections_with_their_state_while_it_runs_and_in_the_report() -> None:
    script = {
        "round-1/lateral/L2N2": objects("A"),
        "round-2/leaf_respond/L2N1": answers("B.1", "yielded", "corrected"),
    }
    store = SqliteStore(":memory:")
    await runner.start("Go on.", TWO, models=answering(script), store=store, session="s")
    record = read_record(store, "s")
    names = [event.name if isinstance(event, Noted) else "" for event in record.events]
    notes = []
    for n in (names.index("objection_raised") + 1, names.index("objection_met") + 1, len(names)):
        shown = replace(record, events=record.events[:n])
        picture = tree.view(shown).picture
        assert isinstance(picture, Graph)
        notes.append(next(node.note for node in picture.panels[0].nodes if node.id == "L2N1").splitlines()[0])
        assert ("conceded (creative (L2N2))" in view_text("tree", shown)) == (n > names.index("objection_met"))
    assert notes == ["1 objection, 1 open", "1 objection, none open", "1 objection, none open"]
    store.close()
