"""Crystallization at the public surface: what is written of a thread, what stays declared, relations of cruxes, common ground."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import pytest

import consilience
from consilience import Debate, DebateReport, Limits
from consilience.domain.events import MessagePublished, Noted, SessionStarted
from consilience.domain.report import UnfinishedSession
from consilience.domain.sections import Graph, Table
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate.crux_map import crux_map
from consilience.protocols.debate.moves import CruxKind, DependencyKind, Side
from consilience.protocols.debate.records import Coalition, Crux, Dependency, Flip
from consilience.protocols.debate.scoring import (
    acyclic,
    contradictions_of,
    irreducible_of,
    roots_of,
    validation_failures,
)
from consilience.reporting.terminal import view_text
from consilience.reporting.views.charts import draw
from consilience.testing import ScriptedModel
from kit.debating import SKETCH, Debaters, moves_of, related_cruxes

Answer = dict[str, object]
Changes = dict[str, Callable[[ModelRequest], Answer]]
TASK = "Should we move the orders to queues?"
QUESTION = "Would queues lose orders at the peak?"

pytestmark = pytest.mark.usefixtures("home")


def debate(
    changes: Changes | None = None,
    *,
    model: ScriptedModel | None = None,
    limits: Limits | None = None,
    detail: Literal["full", "brief"] = "full",
    **settings: object,
) -> tuple[DebateReport, ScriptedModel]:
    chosen = model or ScriptedModel(Debaters(changes))
    protocol = Debate(**{"debaters": 2, "as_is": True, "test_cruxes": 0, **settings})  # type: ignore[arg-type]
    deliberation = consilience.Deliberation(protocol, model=chosen, limits=limits, detail=detail)
    report = deliberation.run_sync(TASK)
    assert isinstance(report, DebateReport)
    return report, chosen


def asked(model: ScriptedModel, kind: str) -> list[ModelRequest]:
    return [request for request in model.requests if request.key.partition("/")[0] == kind]


def crux_in(report: DebateReport) -> Crux:
    (thread,) = report.threads
    assert thread.crux is not None
    return thread.crux


# level 1


def test_crystallizer_writes_the_question_and_declared_positions_are_kept() -> None:
    def crystallize(request: ModelRequest) -> Answer:
        return {"question": "Would queues lose orders in December?", "kind": "prediction"}

    report, model = debate({"crystallize": crystallize})
    crux = crux_in(report)
    assert (crux.question, crux.locked_question) == ("Would queues lose orders in December?", QUESTION)
    assert (crux.kind, crux.extractions, crux.validated) == ("prediction", 1, True)
    assert crux.resolution_criteria == ("over 12 orders lost in 2027", "an audit that finds none")
    assert {agent: position.side for agent, position in crux.positions.items()} == {"D1": "YES", "D2": "NO"}
    committed = {c.agent: c for c in report.threads[0].commitments}
    assert {a: (p.statement, p.falsifier) for a, p in crux.positions.items()} == {
        agent: (c.statement, c.falsifier) for agent, c in committed.items()
    }
    assert set(crux.supporting_messages) <= {message.id for message in report.messages}
    (written,) = asked(model, "crystallize")
    assert f"Its question, on which the participants committed themselves: {QUESTION}" in written.text
    final = asked(model, "final")[0]
    assert "q1: Would queues lose orders in December? YES, NO or UNCERTAIN." in final.text


def names(crux: Crux) -> list[str]:
    """Why it is not validated, as `debate.json` names it."""
    return [flaw.name for flaw in crux.validation_failures]


def objecting(times: int) -> Changes:
    """D2 objects to that many extractions."""

    def flip(request: ModelRequest) -> Answer:
        objections = len(re.findall(r"^CHALLENGE on M\d+: It asks about the wrong month", request.text, re.MULTILINE))
        if request.agent != "D2" or objections >= times:
            return {}
        return {"objects": True, "objection": "It asks about the wrong month."}

    return {"flip": flip}


def test_challenged_crux_is_rewritten_with_the_objection_and_validated() -> None:
    report, model = debate(objecting(1))
    crux = crux_in(report)
    (challenge,) = crux.challenges
    assert (challenge.agent, challenge.extraction) == ("D2", 1)
    published = next(message for message in report.messages if message.id == challenge.message)
    assert (published.move, published.targets, published.text) == (
        "CHALLENGE",
        ("thread-1",),
        "It asks about the wrong month.",
    )
    first, second = asked(model, "crystallize")
    assert published.label in second.text.rsplit("did not hold: ", 1)[1].splitlines()[0]
    assert "did not hold" not in first.text
    assert (crux.extractions, crux.validated) == (2, True)


def test_crux_that_is_challenged_three_times_is_not_validated() -> None:
    report, model = debate(objecting(9))
    crux = crux_in(report)
    assert len(asked(model, "crystallize")) == 3
    assert [challenge.extraction for challenge in crux.challenges] == [1, 2, 3]
    assert not crux.validated
    assert names(crux) == ["challenged: It asks about the wrong month."]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ({"kind": "measurement"}, "a question of measurement"),
        ({"criteria": ["an audit"]}, "resolution criteria: 1, at least 2 are needed"),
        ({"criteria": ["an audit", "it probably fails"]}, 'vague criterion: "it probably fails"'),
        ({"outcome": "NEEDS_CLARIFICATION", "unclear": "which peak"}, "needs clarification: which peak"),
    ],
)
def test_crux_text_that_fails_validation_is_rewritten_twice_then_reported(answer: Answer, failure: str) -> None:
    report, model = debate({"crystallize": lambda request: answer})
    assert len(asked(model, "crystallize")) == 3
    assert all(f"did not hold: {failure}" in request.text for request in asked(model, "crystallize")[1:])
    assert names(crux_in(report)) == [failure]


def test_crux_text_corrected_on_rewrite_is_validated() -> None:
    def crystallize(request: ModelRequest) -> Answer:
        return {} if "did not hold" in request.text else {"kind": "measurement"}

    report, _ = debate({"crystallize": crystallize})
    crux = crux_in(report)
    assert (crux.extractions, crux.kind, crux.validated) == (2, "causal", True)


def test_declared_opposite_sides_are_a_crux_even_if_the_crystallizer_denies_it() -> None:
    report, _ = debate({"crystallize": lambda request: {"outcome": "no disagreement", "question": ""}})
    crux = crux_in(report)
    assert crux.question == QUESTION
    assert report.threads[0].crystallized == "crux"


def test_private_answer_that_fails_in_a_second_review_keeps_the_first() -> None:
    def flip(request: ModelRequest) -> Answer:
        if request.key.endswith("/2"):
            return {"side": "?"} if request.agent == "D2" else {"objects": False}
        return {"gives_up_if": "either", "objects": request.agent == "D1", "objection": "misread"}

    report, _ = debate({"flip": flip, "commit": lambda request: {"gives_up_if": "neither"}})
    crux = crux_in(report)
    assert crux.extractions == 2
    assert {agent: answer.would_flip for agent, answer in crux.flips.items()} == {"D1": True, "D2": True}
    assert crux.validated


def test_agents_who_agree_have_no_crux_and_no_crystallizer_call() -> None:
    def committed(request: ModelRequest) -> Answer:
        return {"side": "YES"}

    report, model = debate({"commit": committed})
    assert not asked(model, "crystallize")
    assert [thread.crystallized for thread in report.threads] == ["null"]


def test_agents_who_agree_after_the_evidence_have_no_crux() -> None:
    report, _ = debate({"flip": lambda request: {"side": "NO"}})
    assert report.threads[0].status == "CONVERGED"
    assert report.threads[0].crystallized == "null"
    assert "no firm agent on each side" in names(crux_in(report))


def lost(request: ModelRequest) -> Answer:
    """Claims without a question, so that the thread ends without a lock."""
    return {"move": "CLAIM", "question": ""} if "CLAIM" in moves_of(request) else {}


@pytest.mark.parametrize(
    ("answer", "crystallized"),
    [
        ({"outcome": "no disagreement", "question": ""}, "null"),
        ({"outcome": "NEEDS_CLARIFICATION", "question": "", "unclear": "two subjects"}, "NEEDS_CLARIFICATION"),
        ({"question": QUESTION}, "crux"),
    ],
)
def test_thread_that_ends_without_a_lock_is_crystallized_from_its_messages(answer: Answer, crystallized: str) -> None:
    report, _ = debate(
        {"turn": lost, "reframe": lambda request: {"question": "?"}, "crystallize": lambda request: answer},
        discovery_messages=14,
        max_duration=900,
    )
    (thread,) = report.threads
    assert (thread.status, thread.crystallized) == ("STALE", crystallized)
    assert (thread.crux is not None) == (crystallized == "crux")
    if thread.crux is not None:
        assert {agent: position.side for agent, position in thread.crux.positions.items()} == {"D1": "YES", "D2": "NO"}
        assert "not locked" in names(thread.crux)


def test_brief_detail_crystallizes_a_thread_once_and_keeps_its_question() -> None:
    changes: Changes = {"crystallize": lambda request: {"question": "Something else?", "criteria": ["an audit"]}}
    report, model = debate(changes, detail="brief")
    crux = crux_in(report)
    assert (crux.question, crux.extractions) == (QUESTION, 1)
    assert not asked(model, "synthesize")


def test_failed_crystallizer_keeps_the_declared_question_and_criteria() -> None:
    report, model = debate({"crystallize": lambda request: {"kind": "nonsense"}})
    crux = crux_in(report)
    assert (crux.question, crux.kind, crux.extractions) == (QUESTION, None, 0)
    assert crux.resolution_criteria == ("orders lost in a year: more than 12, by 2027-12-31",)
    assert len(asked(model, "flip")) == 2


@pytest.mark.parametrize("calls", range(6, 40, 3))
def test_limit_on_calls_without_a_synthesis_reports_no_common_ground(calls: int) -> None:
    report, model = debate(limits=Limits(calls=calls))
    assert len(model.requests) <= calls
    if not asked(model, "synthesize"):
        assert report.common_ground == ()
        assert report.next_questions == ()


GOOD: dict[str, object] = {
    "question": "Will Bitcoin's volatility prevent institutional adoption within 5 years?",
    "sides": ["NO", "YES"],
    "criteria": [
        "SEC approval of spot Bitcoin ETF",
        "Sovereign wealth fund allocation >$1B",
        "30-day rolling volatility <20% for 6 consecutive months",
    ],
    "flipping": 2,
    "kind": "causal",
}
BAD: dict[str, object] = {
    "question": "Is Bitcoin volatile?",
    "sides": ["YES", "YES"],
    "criteria": ["Price movements", "It seems that sentiment turns"],
    "flipping": 0,
    "kind": "measurement",
}


@pytest.mark.parametrize(
    ("example", "failures"),
    [
        (GOOD, ()),
        (
            BAD,
            (
                "no firm agent on each side",
                'vague criterion: "It seems that sentiment turns"',
                "a question of measurement",
                "top claims that hang on it: 0, at least 2 are needed",
            ),
        ),
        (GOOD | {"question": "Will correlation stay above 0.7?"}, ("a question of measurement",)),
        (GOOD | {"criteria": ["Price movements"]}, ("resolution criteria: 1, at least 2 are needed",)),
    ],
)
def test_validation_failures_of_the_seed_examples_match(example: dict[str, object], failures: tuple[str, ...]) -> None:
    sides: list[Side] = example["sides"]  # type: ignore[assignment]
    kind: CruxKind = example["kind"]  # type: ignore[assignment]
    flips = {
        str(n): Flip(agent=str(n), side=side, would_flip=n < int(str(example["flipping"])), confidence=0.8)
        for n, side in enumerate(sides)
    }
    criteria: list[str] = example["criteria"]  # type: ignore[assignment]
    flaws = validation_failures(str(example["question"]), sides, criteria, flips, True, kind=kind)
    assert tuple(flaw.name for flaw in flaws) == failures


def test_falsifier_with_a_vague_threshold_fails_validation() -> None:
    def commit(request: ModelRequest) -> Answer:
        return {"threshold": "it generally fails"} if request.agent == "D1" else {}

    failures = names(crux_in(debate({"commit": commit})[0]))
    assert failures == ['vague falsifier: "orders lost in a year: it generally fails, by 2027-12-31"']


# levels 2 and 3


def related(
    kind: str, *, hold: list[int], sketch: str = SKETCH, confidence: str = "certain", **settings: object
) -> tuple[DebateReport, ScriptedModel]:
    changes = related_cruxes(kind, hold=hold, sketch=sketch, confidence=confidence)
    report, model = debate(changes, **{"debaters": 4, "as_is": False, "option": ("queues", "streams"), **settings})
    assert [thread.status for thread in report.threads] == ["CONVERGED", "CONVERGED"]
    return report, model


def test_dependency_confirmed_by_the_second_opinion_is_reported() -> None:
    report, model = related("ENTAILS", hold=[1])
    assert report.dependencies == (
        Dependency(
            source="thread-1", target="thread-2", kind="ENTAILS", confidence=0.95, sketch=SKETCH, same_model=True
        ),
    )
    assert report.roots == {"thread-1": ("thread-2",)}
    assert len(asked(model, "relate")) == len(asked(model, "confirm")) == 1
    (confirm,) = asked(model, "confirm")
    assert confirm.agent == "second_opinion"
    assert report.irreducible_cruxes == ("thread-1",)


@pytest.mark.parametrize(("kind", "mark"), [("ENTAILS", "⇒"), ("CONTRADICTS", "✕"), ("SUPPORTS", "+")])
def test_crux_map_draws_relations_and_the_coalition_that_says_yes(kind: DependencyKind, mark: str) -> None:
    report, _ = related(kind, hold=[1])
    members = tuple(report.names)[:4]
    camps = [
        Coalition(label=label, members=of, positions=positions, cohesion=1)
        for label, of, positions in (
            ("careful", members[:2], {"thread-1": "YES", "thread-2": "NO"}),
            ("bold", members[2:], {"thread-1": "NO", "thread-2": "YES"}),
        )
    ]
    view = crux_map(report, camps)
    assert isinstance(view.picture, Graph)
    (panel,) = view.picture.panels
    assert [(node.group, node.label, node.note, node.level) for node in panel.nodes] == [
        ("A", "1. Would queues lose", "orders?\nA yes · B no", 0),
        ("B", "2. Would streams", "lose orders?\nA no · B yes", 1),
    ]
    assert [(edge.source, edge.target, edge.near_source) for edge in panel.edges] == [("thread-1", "thread-2", mark)]
    table = next(block for block in view.blocks if isinstance(block, Table))
    assert [row[1:] for row in table.rows] == [("yes", "no"), ("no", "yes")]
    assert all(table.refs), "a crux leads to its messages"
    assert [node.refs for node in panel.nodes] == list(table.refs)
    svg = draw(view).svg()
    assert 'role="img"' in svg
    linked = draw(view, lambda refs: f"#{refs[0]}" if refs == panel.nodes[1].refs else "").svg()
    assert re.findall(r'<a href="([^"]+)" aria-label="2\. [^"]+: A no, B yes">', linked) == [
        f"#{panel.nodes[1].refs[0]}"
    ]
    assert 'role="img"' not in linked, "nobody can follow a link within an image"
    assert "cv-group-0" in svg
    assert "cv-group-1" in svg
    assert f">{mark}<" in svg


async def test_crux_map_is_drawn_while_the_debate_runs() -> None:
    store = SqliteStore(":memory:")
    changes = related_cruxes("ENTAILS", hold=[1])
    protocol = Debate(debaters=4, option=("queues", "streams"), test_cruxes=0)
    report = await consilience.deliberate(TASK, protocol, model=ScriptedModel(Debaters(changes)), store=store)
    events = store.read(report.session)
    related = next(
        n for n, event in enumerate(events, 1) if isinstance(event, Noted) and event.name == "cruxes_related"
    )
    started = next(event for event in events if isinstance(event, SessionStarted))
    shown = DebateReport.progress(UnfinishedSession(started, events[:related], store.text))
    store.close()
    (running,) = (view for view in shown.views if view.name == "crux-map")
    (finished,) = (view for view in report.presentation().views if view.name == "crux-map")
    assert isinstance(running.picture, Graph)
    assert isinstance(finished.picture, Graph)
    assert running.picture.panels[0].edges == finished.picture.panels[0].edges
    assert {node.label for node in running.picture.panels[0].nodes} == {
        node.label for node in finished.picture.panels[0].nodes
    }
    assert SKETCH in view_text(running, 400)
    published = {event.id for event in events if isinstance(event, MessagePublished)}
    assert all(published.intersection(node.refs) for node in running.picture.panels[0].nodes)


def test_crux_map_with_a_circle_marks_each_edge_at_its_source() -> None:
    report, _ = related("SUPPORTS", hold=[1])
    back = report.dependencies[0].model_copy(update={"source": "thread-2", "target": "thread-1", "kind": "CONTRADICTS"})
    picture = crux_map(report.model_copy(update={"dependencies": (*report.dependencies, back)}), ()).picture
    assert isinstance(picture, Graph)
    marks = {(edge.source, edge.near_source, edge.near_target) for edge in picture.panels[0].edges}
    assert {near_source or near_target for _, near_source, near_target in marks} == {"+", "✕"}
    assert len({source for source, _, _ in marks}) == 1, "both lead downward"


@pytest.mark.parametrize(
    ("hold", "sketch", "confidence"),
    [([], SKETCH, "certain"), ([2], SKETCH, "certain"), ([1], "obvious", "certain"), ([1], SKETCH, "fairly sure")],
)
def test_dependency_without_confirmation_argument_or_certainty_is_dropped(
    hold: list[int], sketch: str, confidence: str
) -> None:
    report, _ = related("ENTAILS", hold=hold, sketch=sketch, confidence=confidence)
    assert report.dependencies == ()
    assert report.roots == {"thread-1": (), "thread-2": ()}


def test_duplicate_cruxes_count_once() -> None:
    report, _ = related("SAME", hold=[1])
    assert report.duplicates == (("thread-1", "thread-2"),)
    assert list(report.roots) == ["thread-1"]
    assert report.irreducible_cruxes == ("thread-1",)


def test_contradiction_names_the_agents_who_answer_yes_to_both() -> None:
    report, _ = related("CONTRADICTS", hold=[1])
    final = {ballot.agent: ballot.questions for ballot in report.ballots if ballot.step == 1}
    both = tuple(a for a in ("D1", "D2", "D3", "D4") if set(final[a].values()) == {"YES"})
    (contradiction,) = report.contradictions
    assert both
    assert (contradiction.source, contradiction.target, contradiction.agents) == ("thread-1", "thread-2", both)


def test_crystallization_level_one_makes_no_relation_or_synthesis_call() -> None:
    report, model = related("ENTAILS", hold=[1], crystallization=1)
    assert not asked(model, "relate")
    assert not asked(model, "synthesize")
    assert (report.dependencies, report.roots, report.next_questions) == ((), {}, ())


def test_statement_is_common_ground_if_every_final_ballot_says_yes() -> None:
    report, model = debate()
    (common,) = report.common_ground
    assert (common.statement, common.kind) == ("The peak is short.", "factual")
    assert common.sources
    assert report.next_questions == ("How long is the peak?",)
    assert "c1: The peak is short. YES if you hold it exactly as it stands" in asked(model, "final")[0].text
    assert "- The peak is short." in asked(model, "closing")[0].text


@pytest.mark.parametrize("side", ["NO", "UNCERTAIN", "nonsense"])
def test_one_ballot_without_a_yes_leaves_no_common_ground(side: str) -> None:
    report, model = debate({"final": lambda request: {"c1": side} if request.agent == "D2" else {}})
    assert report.common_ground == ()
    told = "- The peak is short. (not B)" in asked(model, "closing")[0].text
    assert told == (side != "nonsense"), "without its ballot nobody knows"


def test_synthesis_prompt_names_concessions_and_settled_questions() -> None:
    def turn(request: ModelRequest) -> Answer:
        return {"move": "CONCEDE", "conceded": "the peak is short"} if "CONCEDE" in moves_of(request) else {}

    report, model = debate({"turn": turn, "flip": lambda request: {"side": "NO"}})
    (request,) = asked(model, "synthesize")
    conceded = [message.label for message in report.messages if message.move == "CONCEDE"]
    assert conceded
    assert f"Concessions stand in {', '.join(conceded)}." in request.text
    assert f"- {QUESTION}" in request.text


# graphs


def depends(source: str, target: str, kind: DependencyKind = "ENTAILS", confidence: float = 0.95) -> Dependency:
    return Dependency(source=source, target=target, kind=kind, confidence=confidence, sketch=SKETCH)


@pytest.mark.parametrize(
    ("edges", "roots"),
    [
        ([], {"a": (), "b": (), "c": ()}),
        ([("a", "b"), ("b", "c")], {"a": ("b", "c")}),
        ([("a", "c"), ("b", "c")], {"a": ("c",), "b": ("c",)}),
        ([("a", "b"), ("b", "a")], {"a": ("b",), "c": ()}),
        ([("a", "b"), ("b", "c"), ("c", "a")], {"a": ("b", "c")}),
    ],
)
def test_roots_of_dependencies_are_the_cruxes_nothing_entails(
    edges: list[tuple[str, str]], roots: dict[str, tuple[str, ...]]
) -> None:
    assert roots_of("abc", [depends(*edge) for edge in edges]) == roots


def test_acyclic_drops_the_least_certain_edge_of_a_cycle() -> None:
    weak, strong = depends("a", "b", confidence=0.8), depends("b", "a")
    assert acyclic([weak, strong]) == (strong,)


@pytest.mark.parametrize(
    ("edges", "irreducible"),
    [
        ([("a", "b", "ENTAILS")], ["a"]),
        ([("a", "b", "CONTRADICTS")], ["a"]),
        ([("a", "b", "SUPPORTS")], ["a", "b"]),
        ([("x", "b", "ENTAILS")], ["a", "b"]),
    ],
)
def test_crux_settled_by_another_crux_is_not_irreducible(
    edges: list[tuple[str, str, DependencyKind]], irreducible: list[str]
) -> None:
    assert irreducible_of("ab", [depends(*edge) for edge in edges]) == irreducible


@pytest.mark.parametrize(
    ("kind", "target", "agents"),
    [
        ("ENTAILS", "NO", ("A",)),
        ("ENTAILS", "YES", ()),
        ("ENTAILS", "UNCERTAIN", ()),
        ("CONTRADICTS", "YES", ("A",)),
        ("CONTRADICTS", "NO", ()),
        ("SUPPORTS", "NO", ()),
    ],
)
def test_contradiction_is_a_yes_with_a_denied_consequence(
    kind: DependencyKind, target: Side, agents: tuple[str, ...]
) -> None:
    answers: dict[str, dict[str, Side]] = {"a": {"A": "YES", "B": "NO"}, "b": {"A": target, "B": target}}
    contradictions = contradictions_of([depends("a", "b", kind)], answers)
    assert [contradiction.agents for contradiction in contradictions] == ([agents] if agents else [])
