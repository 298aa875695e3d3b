"""Debates from framing to report, at the public surface: what was asked, what was published, what came out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import consilience
from consilience import Debate, DebateReport, Limits, Panel, Persona, Source
from consilience.domain.errors import SettingsError
from consilience.domain.notes import MAX_NOTE_CHARS
from consilience.domain.outcome import StopReason
from consilience.domain.positions import LEVELS
from consilience.engine import templates
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate.scoring import STABLE_AFTER
from consilience.testing import AnyModel, ScriptedModel
from kit.debating import FALSIFIER, Debaters, labels, moves_of, number_of, properties

Answer = dict[str, object]
TASK = "Should we move the orders to queues?"

pytestmark = pytest.mark.usefixtures("home")


def debate(
    protocol: Debate | None = None,
    script: Callable[[ModelRequest], str] | None = None,
    *,
    task: str = TASK,
    model: ScriptedModel | None = None,
    panel: Panel | None = None,
    sources: tuple[Source, ...] = (),
    limits: Limits | None = None,
) -> DebateReport:
    report = consilience.run_sync(
        task,
        protocol or Debate(debaters=2),
        model=model or ScriptedModel(script or Debaters()),
        panel=panel,
        sources=sources,
        limits=limits,
    )
    assert isinstance(report, DebateReport)
    return report


def kinds(model: ScriptedModel) -> list[str]:
    return [request.key.partition("/")[0] for request in model.requests]


# golden scenarios


def retried(request: ModelRequest) -> Answer:
    """D1 finds the first attempt to put its case incomplete."""
    attempts = len(re.findall(r"^STEELMAN of A:", request.text, re.MULTILINE))
    if request.agent == "D1" and attempts < 2:
        return {"grade": "INCOMPLETE", "corrections": "It is about debt crises.", "text": "Not quite."}
    return {}


def evident(request: ModelRequest) -> Answer:
    return {"move": "PROVIDE_EVIDENCE"} if "PROVIDE_EVIDENCE" in moves_of(request) else {}


def test_debate_of_two_agents_with_one_steelman_retry_matches_the_seed_scenario() -> None:
    model = ScriptedModel(Debaters({"grade": retried, "turn": evident}))
    report = debate(Debate(debaters=2, evidence_messages=12), model=model)

    (thread,) = report.threads
    assert [(stage.stage, stage.messages) for stage in thread.stages] == [
        ("DISCOVERY", 6),
        ("CRUX_LOCK", 8),
        ("EVIDENCE", 12),
    ]
    assert [(s.agent, s.of, s.grade) for s in thread.steelmen if s.of == "D1"] == [
        ("D2", "D1", "INCOMPLETE"),
        ("D2", "D1", "ACCURATE"),
    ]
    assert report.system_metrics.steelman_attempts == 3
    assert report.system_metrics.steelman_retries == 1
    assert report.system_metrics.steelman_accuracy_rate == pytest.approx(2 / 3)
    retry = [request for request in model.requests if request.key.startswith("steelman/D2")][1]
    assert "It is about debt crises." in retry.text
    assert thread.status == "CONVERGED"
    assert thread.crux is not None
    assert thread.crux.locked


def test_failed_lock_is_reframed_by_the_moderator_and_locks() -> None:
    """Both say yes at first; framed anew, the question divides them."""

    def commit(request: ModelRequest) -> Answer:
        return {} if "reframe" in request.text else {"side": "YES"}

    model = ScriptedModel(Debaters({"commit": commit}))
    report = debate(model=model)

    (thread,) = report.threads
    failed = [attempt for attempt in thread.lock_attempts if not attempt.success]
    assert [attempt.kinds for attempt in failed] == [("sides",)]
    assert [missing.sides for missing in failed[0].failures] == [("NO",)]
    assert thread.lock_attempts[-1].success
    assert thread.question is not None
    assert "reframe" in thread.question
    assert "reframe" in kinds(model)
    assert report.system_metrics.crux_lock_failures == 1
    assert report.system_metrics.failure_reasons == {"sides": 1}
    named = [m.text for m in report.messages if m.by_moderator]
    assert any("nobody commits to NO" in text for text in named)


def test_debate_goes_on_after_a_correction_of_many_escaped_characters() -> None:
    long = "Речь идёт о долге. " * 500
    report = debate(script=Debaters({"grade": lambda request: {"grade": "WRONG", "corrections": long}}))
    assert report.threads[0].status == "FAILED_LOCK"
    (corrections,) = {steelman.corrections for steelman in report.threads[0].steelmen}
    assert len(json.dumps(corrections)) > MAX_NOTE_CHARS


def test_lock_that_fails_four_times_ends_the_thread_unvalidated() -> None:
    wrong = Debaters({"grade": lambda request: {"grade": "WRONG", "corrections": "It is about debt."}})
    report = debate(script=wrong)

    (thread,) = report.threads
    assert thread.status == "FAILED_LOCK"
    assert len(thread.lock_attempts) == 4
    assert all(attempt.kinds == ("steelmen",) for attempt in thread.lock_attempts)
    assert thread.crux is not None
    assert not thread.crux.validated
    assert next((flaw.kind, flaw.n) for flaw in thread.crux.validation_failures) == ("unlocked", 4)
    assert not [m for m in report.messages if m.move == "CHALLENGE_EVIDENCE"]


@pytest.mark.parametrize(
    ("changes", "criterion"),
    [
        ({"commit": lambda request: {"side": "UNCERTAIN"}}, "sides"),
        ({"commit": lambda request: {"side": "YES"}, "reframe": lambda request: {}}, "sides"),
        ({"grade": lambda request: {"grade": "INCOMPLETE", "corrections": "more"}}, "steelmen"),
        (
            {
                "commit": lambda request: {"metric": "", "threshold": ""},
                "falsify": lambda request: {"metric": "none", "threshold": "none"},
                "derive": lambda request: {"falsifiers": []},
            },
            "falsifiers",
        ),
    ],
)
def test_lock_with_one_missing_criterion_fails_and_names_it(
    changes: dict[str, Callable[[ModelRequest], Answer]], criterion: str
) -> None:
    report = debate(script=Debaters(changes))
    (thread,) = report.threads
    assert thread.status == "FAILED_LOCK"
    assert {kind for attempt in thread.lock_attempts for kind in attempt.kinds} == {criterion}


def test_lock_with_a_single_commitment_fails_and_names_it() -> None:
    def commit(request: ModelRequest) -> Answer:
        return {"horizon": "never"} if request.agent == "D2" else {}

    (thread,) = debate(script=Debaters({"commit": commit})).threads
    assert thread.lock_attempts
    assert "commitments" in thread.lock_attempts[0].kinds
    assert not thread.lock_attempts[0].success


def test_missing_falsifiers_are_derived_after_three_failed_locks_and_marked() -> None:
    changes: dict[str, Callable[[ModelRequest], Answer]] = {
        "commit": lambda request: {"metric": "", "threshold": ""},
        "falsify": lambda request: {"metric": "none", "threshold": "none"},
    }
    (thread,) = debate(script=Debaters(changes)).threads
    assert [attempt.success for attempt in thread.lock_attempts] == [False, False, False, True]
    assert all(c.falsifier is not None and c.falsifier.derived for c in thread.commitments)


def test_reasoning_of_a_derived_falsifier_is_in_the_export() -> None:
    def derive(request: ModelRequest) -> Answer:
        why = {"reasoning": "its case rests on losses"}
        return {"falsifiers": [{"participant": letter, **FALSIFIER, **why} for letter in "ABC"]}

    undeclared: dict[str, Callable[[ModelRequest], Answer]] = {
        "commit": lambda request: {"metric": "", "threshold": ""},
        "falsify": lambda request: {"metric": "none", "threshold": "none"},
        "derive": derive,
    }
    exported = json.loads(json.dumps(debate(script=Debaters(undeclared)).debate_json()))
    positions = exported["threads"][0]["crux"]["positions"].values()
    assert {position["falsifier"]["reasoning"] for position in positions} == {"its case rests on losses"}


def test_side_without_arguments_is_assigned_to_the_least_certain_agent() -> None:
    def opening(request: ModelRequest) -> Answer:
        return {"confidence": "unsure" if request.agent == "D2" else "certain"}

    def turn(request: ModelRequest) -> Answer:
        return {"move": "CLAIM"} if "CLAIM" in moves_of(request) else {}

    script = Debaters({"opening": opening, "turn": turn, "reframe": lambda request: {"question": "?"}})
    model = ScriptedModel(script)
    report = debate(Debate(debaters=3, discovery_messages=30), model=model)

    asked = [m for m in report.messages if "argue the other side" in m.text]
    assert [m.mentions for m in asked] == [("D2",)]
    assert sum(not m.by_moderator for m in report.messages[: asked[0].number - 1]) == 20
    opposed = [m for m in report.messages if m.opposing]
    assert opposed[0].agent == "D2"
    final = {b.agent: b.positions for b in report.ballots if b.step == 1}
    assert final["D2"] == ("NO",)


# regimes and headlines


def voting(sides: str) -> Debaters:
    names = {"Y": "YES", "N": "NO", "U": "UNCERTAIN"}

    def final(request: ModelRequest) -> Answer:
        side = names[sides[number_of(request.agent) - 1]]
        return {name: side for name in properties(request) if re.fullmatch(r"[pq]\d", name)}

    return Debaters({"final": final})


@pytest.mark.parametrize(
    ("sides", "regime"), [("YYY", "consensus"), ("UUU", "inconclusive"), ("YYN", "partial"), ("YNU", "partial")]
)
def test_regime_follows_from_sealed_final_ballots(sides: str, regime: str) -> None:
    script = voting(sides)
    script.changes["crystallize"] = lambda request: {"kind": "measurement"}
    report = debate(Debate(debaters=3), script)
    assert report.regime == regime


def test_split_ballots_with_a_validated_crux_are_polarized() -> None:
    assert debate(Debate(debaters=3), voting("YYN")).regime == "polarized"


def test_split_ballots_after_unanimous_messages_are_not_a_consensus() -> None:
    def turn(request: ModelRequest) -> Answer:
        return {"move": moves_of(request)[0], "text": "CONSENSUS. We all agree, yes."}

    changes = {"turn": turn, "commit": lambda request: {"text": "CONSENSUS: yes, I agree with everybody."}}
    report = debate(Debate(debaters=4), Debaters(changes))
    assert report.regime != "consensus"
    assert {dissent.position for dissent in report.dissent} >= {"YES", "NO"}


def test_validated_crux_with_both_sides_is_polarized() -> None:
    def commit(request: ModelRequest) -> Answer:
        return {"metric": f"losses by {request.agent}"}

    report = debate(script=Debaters({"commit": commit}))
    assert report.regime == "polarized"
    assert report.irreducible_cruxes == ("thread-1",)
    assert report.primary_crux == "thread-1"
    assert "0.95" in report.primary_crux_reason
    crux = report.threads[0].crux
    assert crux is not None
    assert (crux.score.coverage, crux.score.polarity) == (1.0, 1.0)
    assert report.system_metrics.dcg_promotions == 1


def test_final_ballots_against_the_answer_are_dissent() -> None:
    report = debate(Debate(debaters=3), Debaters({"closing": lambda request: {"p1": "NO"}}))
    assert report.decided == ("NO",)
    assert sorted(dissent.agent for dissent in report.dissent) == ["D1", "D3"]


def test_position_change_names_the_message_that_caused_it() -> None:
    def final(request: ModelRequest) -> Answer:
        if request.agent != "D2":
            return {}
        shown = re.findall(r"from (A\d+)>", request.text)
        return {"p1": "YES", "q1": "YES", "cause": shown[0]}

    report = debate(script=Debaters({"final": final}))
    (change,) = report.position_changes
    assert (change.agent, change.before, change.after, change.conformity) == ("D2", "NO", "YES", False)
    assert change.cause in {message.id for message in report.messages if message.agent == "D1"}


# framing


def test_task_without_a_dispute_ends_inconclusive_after_one_call() -> None:
    nothing = Debaters({"framing": lambda request: {"form": "not disputable", "propositions": [], "reason": "a sum"}})
    model = ScriptedModel(nothing)
    report = debate(model=model, task="What is 3 times 4?")
    assert kinds(model) == ["framing"]
    assert report.stop_reason is StopReason.INCONCLUSIVE
    assert report.answer is None
    assert "a sum" in report.regime_description


def test_failed_framing_is_not_reported_as_silence_of_the_agents() -> None:
    report = debate(model=ScriptedModel(lambda request: "no JSON"))
    assert report.stop_reason is StopReason.FAILED
    assert "Stopped: nothing could be concluded · 1 call failed (malformed)" in report.markdown()


def opening_sides(**sides: str) -> Debaters:
    """Debaters who answer proposition `p1`, … by one letter for each agent: Y, N or U."""
    words = {"Y": "YES", "N": "NO", "U": "UNCERTAIN"}

    def opening(request: ModelRequest) -> Answer:
        return {name: words[letters[number_of(request.agent) - 1]] for name, letters in sides.items()}

    return Debaters({"opening": opening})


def test_option_that_ends_in_a_question_mark_is_asked_with_one() -> None:
    report = debate(Debate(debaters=3, option=("Should we take Kafka?", "Postgres")))
    assert report.framing.propositions[0] == "Is this the best of the options: Should we take Kafka?"


def test_options_that_divide_the_agents_get_one_thread_each_without_framing() -> None:
    model = ScriptedModel(opening_sides(p1="YNN", p2="NYN"))
    report = debate(Debate(debaters=3, option=("Kafka", "Postgres")), model=model)
    assert "framing" not in kinds(model)
    assert report.framing is not None
    assert report.framing.form == "choose one"
    assert [thread.topic for thread in report.threads[:2]] == list(report.framing.propositions)
    assert all(len(ballot.positions) == 2 for ballot in report.ballots)


@pytest.mark.parametrize(
    ("sides", "debated"),
    [
        ({"p1": "YNY", "p2": "NYN", "p3": "NNN"}, [0]),
        ({"p1": "NNN", "p2": "YYN", "p3": "YNN"}, [1, 2]),
        ({"p1": "NNN", "p2": "UNN", "p3": "YYY"}, [1]),
        ({"p1": "YYY", "p2": "NNN", "p3": "YYY"}, [0]),
        ({"p1": "UUU", "p2": "UUN", "p3": "YYY"}, [0]),
    ],
    ids=["mirrored and unanimous", "two divisions", "an undecided one", "unanimous", "nobody decided"],
)
def test_threads_open_on_propositions_that_divide_the_opening_ballots(
    sides: dict[str, str], debated: list[int]
) -> None:
    report = debate(Debate(debaters=3, option=("Kafka", "Postgres", "Redis")), opening_sides(**sides))
    assert report.framing is not None
    first = [thread.topic for thread in report.threads if thread.created_at == 0]
    assert first == [report.framing.propositions[n] for n in debated]


def test_propositions_dividing_the_same_agents_get_one_thread_each() -> None:
    def framing(request: ModelRequest) -> Answer:
        return {"form": "open", "propositions": ["Is it cheaper?", "Is it safer?"]}

    report = debate(Debate(debaters=3), Debaters({"framing": framing}))
    assert [thread.topic for thread in report.threads[:2]] == ["Is it cheaper?", "Is it safer?"]


def test_agent_letters_avoid_letters_used_in_the_task() -> None:
    task = "A town must choose site A or (B). Which? Site M is out."
    report = consilience.run_sync(task, Debate(debaters=3, as_is=True), model=ScriptedModel(Debaters()))
    assert isinstance(report, DebateReport)
    assert list(report.letters.values()) == ["C", "D", "E"]


def test_final_ballot_prompt_quotes_threads_without_a_question() -> None:
    def turn(request: ModelRequest) -> Answer:
        return {} if "cheaper" in request.text.split("thread on: ")[-1][:40] else {"move": "CLAIM", "question": ""}

    def framing(request: ModelRequest) -> Answer:
        return {"form": "open", "propositions": ["Is it cheaper?", "Is it safer?"]}

    model = ScriptedModel(Debaters({"framing": framing, "turn": turn, "reframe": lambda request: {"question": ""}}))
    report = debate(Debate(debaters=4, max_messages=16), model=model)
    unasked = [t for t in report.threads if not t.commitments and t.participants]
    assert unasked
    (ballot,) = [request for request in model.requests if request.key == "final/D1" and request.attempt == 1]
    for thread in unasked:
        last = [m for m in report.messages if m.thread == thread.id and not m.by_moderator][-1]
        assert f"from {last.label}>" in ballot.text


def test_task_as_is_makes_no_framing_call() -> None:
    model = ScriptedModel(Debaters())
    report = debate(Debate(debaters=2, as_is=True), model=model)
    assert "framing" not in kinds(model)
    assert report.framing is not None
    assert report.framing.propositions == (TASK,)


# panels, sources, bad input


def panel(*names: str, **fields: object) -> Panel:
    personas = tuple(Persona(name=name, description=f"You are {name}.", **fields) for name in names)  # type: ignore[arg-type]
    return Panel(name="test", description="For tests.", personas=personas)


def test_panel_gives_seats_with_interests_horizon_and_evidence() -> None:
    model = ScriptedModel(Debaters())
    seats = panel("Town treasurer", "Head cook", interests=("plate waste",), horizon="10 years", evidence="Invoices.")
    report = debate(panel=seats, model=model)
    assert [agent.id for agent in report.agents if agent.voice] == ["town-treasurer", "head-cook"]
    opening = next(request for request in model.requests if request.key == "opening/head-cook")
    for words in ("plate waste", "10 years", "Invoices."):
        assert words in opening.text


def test_turn_prompts_contain_no_names_of_peers() -> None:
    model = ScriptedModel(Debaters())
    debate(panel=panel("Treasurer", "Cook"), model=model)
    turns = [request.text for request in model.requests if request.key.startswith("turn/treasurer")]
    assert turns
    assert not any("Cook" in text for text in turns)


@pytest.mark.parametrize("names", [("Only",), tuple(f"Seat {n}" for n in range(13))])
def test_panel_of_one_or_thirteen_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="2 to 12"):
        debate(panel=panel(*names))


@pytest.mark.parametrize(
    "settings",
    [
        {"debaters": 1},
        {"debaters": 13},
        {"option": ("A",)},
        {"option": ("A", "a")},
        {"as_is": True, "option": ("A", "B")},
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        Debate(**settings)


def test_evidence_without_a_source_quotation_is_marked_as_memory() -> None:
    words = iter(['The memo has "12 orders were lost" [S1:1].', "As far as I remember, 40 were."] * 20)

    def turn(request: ModelRequest) -> Answer:
        return evident(request) | ({"text": next(words)} if "PROVIDE_EVIDENCE" in moves_of(request) else {})

    report = debate(script=Debaters({"turn": turn}), sources=(Source("In 2025 12 orders were lost.", "memo"),))
    matching_messages = [message for message in report.messages if message.move == "PROVIDE_EVIDENCE"]
    assert any(message.quotations and not message.from_memory for message in matching_messages)
    assert all(message.from_memory for message in matching_messages if "remember" in message.text)


# bounds


@pytest.mark.parametrize("seats", [2, 3, 7, 12])
@pytest.mark.parametrize("messages", [2, 9, 40])
def test_calls_and_messages_stay_within_their_bounds(seats: int, messages: int) -> None:
    protocol = Debate(debaters=seats, max_messages=messages)
    report = debate(protocol)
    estimate = protocol.estimate()
    assert estimate.min <= report.ledger.actual.calls <= estimate.max
    assert report.steps <= messages
    assert report.system_metrics.attempts <= protocol.max_attempts


def test_limit_on_steps_bounds_the_messages() -> None:
    report = debate(Debate(debaters=3), limits=Limits(steps=5))
    assert report.steps == 5
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.answer


def test_debate_limited_to_twice_its_requests_gives_the_same_report() -> None:
    script = Debaters()
    free = debate(Debate(debaters=4), script)
    bound = debate(Debate(debaters=4), script, limits=Limits(calls=2 * free.ledger.actual.requests))
    assert bound.digest() == free.digest()


def test_debate_after_the_first_refused_call_makes_only_the_closing_call() -> None:
    model = ScriptedModel(Debaters())
    report = debate(Debate(debaters=3), model=model, limits=Limits(calls=15))
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert report.answer
    assert report.closing == "reserve"
    assert len(model.requests) == 15
    assert kinds(model)[-1] == "closing"


def test_malformed_replies_are_a_warning_and_do_not_end_the_debate() -> None:
    def script(request: ModelRequest) -> str:
        return "nonsense" if request.agent == "D3" and request.key.startswith("turn") else Debaters()(request)

    report = debate(Debate(debaters=3), script)
    assert report.system_metrics.failed_turns > 0
    assert any("turns that failed" in warning for warning in report.warnings)
    assert report.stop_reason is StopReason.SETTLED


def test_agent_without_a_final_ballot_is_in_no_count() -> None:
    def script(request: ModelRequest) -> str:
        return "nonsense" if request.key == "final/D3" else Debaters()(request)

    report = debate(Debate(debaters=3), script)
    assert [ballot.agent for ballot in report.ballots if ballot.step == 1] == ["D1", "D2"]
    assert "1 of 3 agents cast no final ballot" in report.regime_description


def test_replay_gives_the_same_report_without_a_call(tmp_path: Path) -> None:
    store = consilience.open_store(str(tmp_path / "journal.db"))
    first = consilience.run_sync(TASK, Debate(debaters=3), model=ScriptedModel(Debaters()), store=store)
    again = consilience.replay_sync(first.session, store=store)
    assert again.digest() == first.digest()


def test_notes_record_the_events_of_the_seed() -> None:
    report = debate(script=Debaters({"commit": lambda r: {"metric": f"losses by {r.agent}"}, "grade": retried}))
    assert {message.move for message in report.messages} >= {"CLAIM", "COMMIT_POSITION", "STEELMAN", "GRADE_STEELMAN"}
    assert set(Debate.notes) >= {
        "thread_created",
        "thread_converged",
        "crux_extracted",
        "global_convergence",
        "stage_transition",
        "steelman_attempt",
        "steelman_graded",
        "crux_lock_failed",
        "crux_locked",
        "dcg_calculated",
        "crux_promoted",
    }
    assert json.dumps(report.model_dump(mode="json"))


class Letters:
    """An encoder that counts letters."""

    name = "letters"

    async def encode(self, texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "aeiou"] for text in texts]


def test_attention_with_an_encoder_is_by_meaning_and_reported() -> None:
    by_words = debate(Debate(debaters=3))
    store = SqliteStore(":memory:")
    report = consilience.run_sync(
        TASK, Debate(debaters=3), model=ScriptedModel(Debaters()), encoder=Letters(), store=store, session="s"
    )
    assert isinstance(report, DebateReport)
    assert consilience.replay_sync("s", store=store).digest() == report.digest()
    assert (by_words.attention_mode, report.attention_mode) == ("keyword", "embedding")
    assert report.steps > 0
    assert report.system_metrics.attended >= report.system_metrics.attended_highly > 0


def test_attention_by_meaning_without_an_encoder_is_refused() -> None:
    with pytest.raises(SettingsError, match="encoder"):
        debate(Debate(debaters=2, attention="embedding"))


def test_person_in_a_seat_speaks_only_when_asked_or_named() -> None:
    script = Debaters()
    models = {agent.id: ScriptedModel(script) for agent in Debate(debaters=3).agents(None)}
    report = consilience.run_sync(
        TASK, Debate(debaters=3), model={**models, "D1": ScriptedModel(script, name="human:Ann")}
    )
    assert isinstance(report, DebateReport)
    by_id = {message.id: message for message in report.messages}
    free = [m for m in report.messages if m.agent == "D1" and m.attention is not None]
    assert free
    for message in free:
        assert message.reply_to is not None
        assert "D1" in by_id[message.reply_to].mentions


def test_question_supported_by_a_second_agent_opens_a_thread() -> None:
    def turn(request: ModelRequest) -> Answer:
        moves, shown = moves_of(request), re.findall(r"from ([A-Z]\d+)>", request.text)
        reframed = re.findall(r"from ([A-Z]\d+)>\nREFRAME", request.text)
        if "REFRAME" in moves and not reframed and request.agent == "D2":
            return {"move": "REFRAME", "question": "Would the staff leave over it?"}
        if reframed and request.agent == "D3":
            return {"move": "CLAIM" if "CLAIM" in moves else moves[0], "supports": reframed[0], "reply_to": shown[-1]}
        return {}

    model = ScriptedModel(Debaters({"turn": turn}))
    report = debate(Debate(debaters=5), model=model)
    opened = next(thread for thread in report.threads if thread.parent == "thread-1")
    assert opened.question == "Would the staff leave over it?"
    assert "same" in kinds(model)
    proposal = next(message for message in report.messages if message.move == "REFRAME")
    assert {message.agent for message in report.messages if message.refs == (proposal.id,)} == {"D3"}


@pytest.mark.parametrize(("similarity", "compared"), [(1.0, False), (0.5, True), (-1.0, True)])
def test_questions_that_an_encoder_finds_too_far_apart_are_not_compared_by_a_call(
    similarity: float, compared: bool
) -> None:
    def turn(request: ModelRequest) -> Answer:
        reframed = re.findall(r"from ([A-Z]\d+)>\nREFRAME", request.text)
        if "REFRAME" in moves_of(request) and not reframed and request.agent == "D2":
            return {"move": "REFRAME", "question": "Would the staff leave over it?"}
        return {"supports": reframed[0]} if reframed and request.agent == "D3" else {}

    model = ScriptedModel(Debaters({"turn": turn}))
    protocol = Debate(debaters=5, question_similarity=similarity, attention="keyword")
    report = consilience.run_sync(TASK, protocol, model=model, encoder=Letters())
    assert isinstance(report, DebateReport)
    assert len(report.threads) > 1
    assert ("same" in kinds(model)) == compared


def test_question_with_two_supporters_gets_a_thread_after_another_is_adopted() -> None:
    """D1 proposes one question and D2 another; D3 supports both, the adopted one last."""

    def turn(request: ModelRequest) -> Answer:
        proposed = dict(re.findall(r"from ([A-Z]\d+)>\nPROPOSE_CRUX.*?\nQuestion: (.*?)\n", request.text, re.DOTALL))
        mine = {"D1": "Would the staff leave over it?", "D2": "Would queues lose orders at the peak?"}
        question = mine.get(request.agent)
        if "PROPOSE_CRUX" in moves_of(request) and question and question not in proposed.values():
            return {"move": "PROPOSE_CRUX", "question": question}
        for label, other in proposed.items():
            if other != question and label in json.dumps(properties(request).get("supports", {})):
                return {"move": moves_of(request)[0], "supports": label}
        return {"move": moves_of(request)[0]}

    report = debate(Debate(debaters=3), Debaters({"turn": turn}))
    first, *others = report.threads
    assert {first.question, *(thread.question for thread in others)} == {
        "Would the staff leave over it?",
        "Would queues lose orders at the peak?",
    }
    assert others[0].parent == first.id


def test_blocked_turn_is_quoted_to_its_author_with_the_reason() -> None:
    def turn(request: ModelRequest) -> Answer:
        shown = [label for label in re.findall(r"from ([A-Z]\d+)>", request.text) if label[0] != "M"]
        return {
            "move": "CLAIM" if "CLAIM" in moves_of(request) else moves_of(request)[0],
            "reply_to": min(shown, key=number_of, default=None),
        }

    model = ScriptedModel(Debaters({"turn": turn}))
    report = debate(Debate(debaters=5, max_messages=24), model=model)
    assert report.system_metrics.reasons_blocked["reply_limit"]
    matching_requests = [request for request in model.requests if '"unpublished"' in request.text]
    assert matching_requests
    assert all(request.key.startswith("turn/") for request in matching_requests)
    assert all(
        "a third reply to one message" in request.text and "from unpublished>" in request.text
        for request in matching_requests
    )


def test_supporters_of_another_thread_stay_in_a_thread_that_awaits_their_commitment() -> None:
    def turn(request: ModelRequest) -> Answer:
        proposed = re.findall(r"from ([A-Z]\d+)>\nREFRAME", request.text)
        if "REFRAME" in moves_of(request) and not proposed and request.agent == "D2":
            return {"move": "REFRAME", "question": "Would the staff leave over it?"}
        if proposed and request.agent == "D3" and "PROPOSE_CRUX" in moves_of(request):
            return {
                "move": "PROPOSE_CRUX",
                "question": "Would queues lose orders at the peak?",
                "supports": proposed[0],
            }
        return {}

    def second(request: ModelRequest) -> Answer:
        return {"same_as": 0}

    report = debate(Debate(debaters=6, discovery_messages=6), Debaters({"turn": turn, "same": second}))
    for thread in report.threads:
        committed = {commitment.agent for commitment in thread.commitments}
        if thread.stage != "DISCOVERY":
            assert committed, f"{thread.id} waited for agents who had left it: {thread.closed_by}"
            assert thread.status != "STALE", thread.closed_by


def test_many_agents_in_many_threads_hear_every_option_and_complete_every_lock() -> None:
    class Talkers(AnyModel):
        """Agents that talk at length: they propose a question rarely, and always have evidence."""

        def reply(self, request: ModelRequest) -> str:
            value = json.loads(super().reply(request))
            if value.get("move") and "PROVIDE_EVIDENCE" in str(request.schema):
                value["move"] = "PROVIDE_EVIDENCE"
            elif value.get("move") in ("PROPOSE_CRUX", "REFRAME") and len(request.text) % 8:
                value["move"] = "CLAIM"
            return json.dumps(value)

    options = ("the first way", "the second way", "the third way")
    report = debate(Debate(debaters=12, option=options, max_messages=150, max_duration=7_200), model=Talkers())
    for thread in report.threads:
        if thread.parent is None:
            assert thread.participants or thread.closed_at is None, f"nobody took up {thread.topic}"
        if thread.status == "STALE" and thread.stage == "CRUX_LOCK":
            assert {c.agent for c in thread.commitments} == set(thread.participants), thread.id


def test_agents_may_support_only_questions_that_others_have_proposed() -> None:
    def proposes(request: ModelRequest) -> Answer:
        moves = moves_of(request)
        move = "PROPOSE_CRUX" if "PROPOSE_CRUX" in moves and request.agent in ("D1", "D2") else moves[0]
        return {"move": move, "question": f"Would {request.agent} lose orders at the peak?", "conceded": "the peak"}

    model = ScriptedModel(Debaters({"turn": proposes}))
    debate(Debate(debaters=5, as_is=True), model=model)
    offered = 0
    for request in model.requests:
        if not request.key.startswith("turn/"):
            continue
        options = json.dumps((request.schema or {})["properties"].get("supports", {}))
        own = re.findall(r"You are ([A-Z]);", request.text)[-1]
        for label in re.findall(r"[A-Z]\d+", options):
            assert re.search(rf"from {label}>\nPROPOSE_CRUX.*\nQuestion: ", request.text)
            assert not label.startswith(own)
            offered += 1
    assert offered


def test_question_with_two_supporters_but_no_thread_is_reported() -> None:
    wanted, taken = "Would the vendor lose orders?", "Would queues lose orders at the peak?"
    supporters = {"D3": wanted, "D4": taken, "D5": taken}

    def turn(request: ModelRequest) -> Answer:
        if "PROPOSE_CRUX" not in moves_of(request) or "CLAIM" not in moves_of(request):
            return {}
        if (own := {"D1": taken, "D2": wanted}.get(request.agent)) and own not in request.text:
            return {"move": "PROPOSE_CRUX", "question": own}
        if taken not in request.text or wanted not in request.text:
            return {"move": "nothing"}
        label = re.findall(
            rf"from ([A-Z]\d+)>\n.*\nQuestion: {re.escape(supporters.get(request.agent, '-'))}", request.text
        )
        return {"move": "CLAIM", "supports": label[0] if label and label[0] in str(request.schema) else None}

    report = debate(Debate(debaters=5, as_is=True, max_messages=8), Debaters({"turn": turn}))
    assert taken in [thread.question for thread in report.threads]
    (unopened,) = report.unopened
    assert (unopened.question, unopened.agent) == (wanted, "D2")
    assert {id.split("/")[1] for id in unopened.supports} == {"D3"}
    assert f"**{wanted}** (proposed by " in report.markdown()
    assert "no thread was opened: the debate is over" in report.markdown()


def test_debate_with_stable_cruxes_and_coalitions_ends_despite_an_open_thread() -> None:
    def about_first(request: ModelRequest) -> bool:
        return "options: the first" in request.text.split("the thread on:")[-1]

    def turn(request: ModelRequest) -> Answer:
        if about_first(request):
            return {}
        return {"move": "CLAIM"} if "CLAIM" in moves_of(request) else {}

    def opening(request: ModelRequest) -> Answer:
        return {"p2": "YES" if number_of(request.agent) < 3 else "NO"}

    script = Debaters(
        {
            "turn": turn,
            "opening": opening,
            "commit": lambda request: {"metric": f"orders lost in year {number_of(request.agent)}"},
            "reframe": lambda request: {"question": "?"},
        }
    )
    settings = {"option": ("the first", "the second"), "discovery_messages": 40, "max_duration": 900}
    report = debate(Debate(debaters=4, **settings), script)
    converged, wandering = report.threads
    assert (converged.status, wandering.stage) == ("CONVERGED", "DISCOVERY")
    assert (report.ended_by, report.stop_reason) == ("stable", StopReason.SETTLED)
    since = sum(m.at > (converged.closed_at or 0) and not m.by_moderator for m in report.messages)
    assert since >= STABLE_AFTER
    assert "no new crux and the same coalitions for 30 messages" in report.markdown()


def test_moderator_asks_once_if_a_thread_with_a_weak_signal_is_settled() -> None:
    def turn(request: ModelRequest) -> Answer:
        if "CONCEDE" not in moves_of(request):
            return {}
        if request.agent != "D3":
            return {"move": "PROPOSE_CRUX"}
        proposal = [label for label in labels(request) if not label.startswith("M")][-1]
        return {"move": "CONCEDE", "conceded": "the peak is short", "top_claim": "NUANCED", "reply_to": proposal}

    def asked(threshold: float) -> list[tuple[str, ...]]:
        settings = Debate(debaters=3, as_is=True, evidence_messages=30, convergence_threshold=threshold)
        report = debate(settings, Debaters({"turn": turn}))
        return [message.mentions for message in report.messages if "few still speak here" in message.text]

    (mentions,) = asked(1.0)
    assert len(mentions) == 2
    assert asked(0.75) == []


def test_update_that_names_only_a_threshold_keeps_the_rest_of_the_falsifier() -> None:
    def turn(request: ModelRequest) -> Answer:
        if request.agent != "D3" or "UPDATE_POSITION" not in moves_of(request):
            return {}
        return {"move": "UPDATE_POSITION", "new_side": "YES", "threshold": "more than 20", "confidence": "unsure"}

    report = debate(Debate(debaters=3, as_is=True), Debaters({"turn": turn}))
    update = next(message for message in report.messages if message.move == "UPDATE_POSITION")
    assert update.words.endswith("New position: YES\nConfidence: unsure\nWould change its mind if: more than 20")
    (thread,) = report.threads
    held = next(commitment for commitment in thread.commitments if commitment.agent == "D3")
    assert held.falsifier is not None
    assert held.falsifier.words() == "orders lost in a year: more than 20, by 2027-12-31"
    assert held.confidence == LEVELS["unsure"]


def test_concession_that_names_a_new_position_changes_the_commitment_and_the_top_claim() -> None:
    def turn(request: ModelRequest) -> Answer:
        if request.agent != "D3" or "CONCEDE" not in moves_of(request):
            return {}
        return {"move": "CONCEDE", "conceded": "the peak is long", "new_side": "NO", "top_claim": "NO"}

    def final(request: ModelRequest) -> Answer:
        return {"p1": "NO", "q1": "NO"} if request.agent == "D3" else {}

    report = debate(Debate(debaters=3, as_is=True), Debaters({"turn": turn, "final": final}))
    conceded = next(message for message in report.messages if message.move == "CONCEDE")
    assert (conceded.prior_side, conceded.new_side, conceded.top_claim) == ("YES", "NO", "NO")
    assert "New position: NO" in conceded.words
    (thread,) = report.threads
    assert next(commitment.side for commitment in thread.commitments if commitment.agent == "D3") == "NO"
    claims = json.loads(json.dumps(report.debate_json()))["topClaims"]
    assert {agent: (claim["side"], claim["lastUpdated"]) for agent, claim in claims.items()} == {
        "D1": ("YES", 0),
        "D2": ("NO", 0),
        "D3": ("NO", conceded.at),
    }
    assert claims["D3"]["statement"] == "still YES"


def test_failed_crystallizer_or_synthesis_call_has_its_own_warning() -> None:
    script = Debaters({"crystallize": lambda request: {"outcome": "?"}, "synthesize": lambda request: {"common": 1}})
    report = debate(Debate(debaters=3, as_is=True), script)
    assert report.threads[0].crux is not None
    warnings = " ".join(report.warnings)
    assert "the crystallizer did not write down thread 1: question and falsifiers stand" in warnings
    assert "the search for common ground failed" in warnings


def test_question_already_asked_by_an_active_thread_opens_no_thread() -> None:
    def turn(request: ModelRequest) -> Answer:
        reframed = re.findall(r"from ([A-Z]\d+)>\nREFRAME", request.text)
        if "REFRAME" in moves_of(request) and not reframed and request.agent == "D2":
            return {"move": "REFRAME", "question": "Should we move the orders to queues?"}
        return {"supports": reframed[0]} if reframed and request.agent == "D3" else {}

    script = Debaters({"turn": turn, "same": lambda request: {"same_as": 1}})
    assert len(debate(Debate(debaters=5), script).threads) == 1


def test_dry_run_prints_how_the_task_is_framed() -> None:
    from typer.testing import CliRunner

    from consilience.cli.main import app

    arguments = ["debate", "Which?", "--model", "openai:gpt-5-mini", "--dry-run"]
    plain = CliRunner().invoke(app, arguments).stdout
    options = CliRunner().invoke(app, [*arguments, "--option", "Kafka", "--option", "Postgres"]).stdout
    assert "frames the task" in " ".join(plain.split())
    assert "Debates 2 options: Kafka, Postgres" in " ".join(options.split())


def test_opening_ballots_on_one_side_make_the_moderator_ask_what_would_change_them() -> None:
    against = {"opening": lambda request: {"p1": "NO"}, "commit": lambda request: {"side": "NO"}}
    model = ScriptedModel(Debaters(against))
    report = debate(Debate(debaters=3), model=model)
    opened = next(message for message in report.messages if message.by_moderator)
    assert "none of your sealed ballots takes the other side" in opened.text
    framed = [request for request in model.requests if request.key.startswith("reframe/")]
    assert framed
    assert all("none answers YES" in request.text for request in framed)


def test_second_question_of_a_reframe_after_a_failed_lock_gets_a_thread() -> None:
    def reframe(request: ModelRequest) -> Answer:
        return {"question": "Do queues lose orders in practice?", "second": "Would the staff leave over it?"}

    def commit(request: ModelRequest) -> Answer:
        return {"side": "YES"}

    report = debate(Debate(debaters=3), Debaters({"reframe": reframe, "commit": commit}))
    assert "Would the staff leave over it?" in [thread.question for thread in report.threads]


def test_quotations_in_replies_of_several_fields_are_verified() -> None:
    def opening(request: ModelRequest) -> Answer:
        return {"p1": "YES", "reason": 'The memo says "12 orders were lost" [S1:1].'}

    report = debate(script=Debaters({"opening": opening}), sources=(Source("In 2025 12 orders were lost.", "memo"),))
    assert [(q.words, q.verified) for q in report.quotations] == [("12 orders were lost", True)] * 2


def test_concession_that_changes_no_claim_does_not_end_the_evidence() -> None:
    def turn(request: ModelRequest) -> Answer:
        open_moves = moves_of(request)
        if "PROVIDE_EVIDENCE" not in open_moves:
            return {}
        if request.agent == "D1":
            return {"move": "PROPOSE_CRUX", "question": f"Is the peak over, asks {request.key}?"}
        if request.agent == "D2":
            return {"move": "CONCEDE", "conceded": "the peak is short"}
        return {"move": "PROVIDE_EVIDENCE"}

    report = debate(Debate(debaters=3, as_is=True, test_cruxes=0, spawning="moderator"), Debaters({"turn": turn}))
    evidence = [stage for thread in report.threads[:1] for stage in thread.stages if stage.stage == "EVIDENCE"]
    assert [stage.messages for stage in evidence] == [14]


def test_six_debaters_use_the_whole_budget_for_evidence() -> None:
    script = Debaters({"turn": evident})
    report = debate(Debate(debaters=6, as_is=True, evidence_messages=24, max_duration=900), script)
    (thread,) = report.threads
    assert thread.status == "CONVERGED"
    assert [stage.messages for stage in thread.stages if stage.stage == "EVIDENCE"] == [24]


@pytest.mark.parametrize("kind", ["steelman", "grade"])
def test_steelman_or_grade_that_cannot_be_had_fails_the_lock_and_names_it(kind: str) -> None:
    def unreadable(request: ModelRequest) -> Answer:
        return {"strongest_reason": "", "grade": "?"} if request.agent == "D2" else {}

    report = debate(Debate(debaters=2, as_is=True), Debaters({kind: unreadable}))
    (thread,) = report.threads
    assert thread.status == "FAILED_LOCK"
    by, of = ("B", "A") if kind == "steelman" else ("A", "B")
    assert f"steelman of {of} by {by}: " in thread.closed_by
    assert {commitment.agent for commitment in thread.commitments} == {"D1", "D2"}
    assert thread.crux is not None
    assert set(thread.crux.positions) == {"D1", "D2"}


def test_strict_grader_puts_its_own_case_before_the_other_side_tries_again() -> None:
    def grade(request: ModelRequest) -> Answer:
        return {"grade": "INCOMPLETE", "corrections": "the debt"} if request.agent == "D1" else {}

    report = debate(Debate(debaters=2, as_is=True), Debaters({"grade": grade}))
    (thread,) = report.threads
    order = [steelman.agent for steelman in thread.steelmen]
    assert set(order[:2]) == {"D1", "D2"}
    assert len(thread.lock_attempts) == 4


def test_grade_starts_no_cooldown() -> None:
    report = debate(Debate(debaters=2, as_is=True))
    spoken = [message for message in report.messages if not message.by_moderator]
    grades = [m for m in spoken if m.move == "GRADE_STEELMAN"]
    assert grades
    waits = [m.at - grade.at for grade in grades for m in spoken if m.agent == grade.agent and m.at > grade.at][:1]
    assert min(waits) < 12_000


def test_challenge_is_answered_by_its_target_alone() -> None:
    def turn(request: ModelRequest) -> Answer:
        if "CHALLENGE" not in moves_of(request):
            return {}
        others = [label for label in labels(request) if not label.startswith("M")]
        if request.agent == "D3" and others:
            return {"move": "CLARIFY", "reply_to": others[-1]}
        return (
            {"move": "CLAIM"} if request.agent == "D2" or not others else {"move": "CHALLENGE", "reply_to": others[0]}
        )

    report = debate(Debate(debaters=3, as_is=True, test_cruxes=0), Debaters({"turn": turn}))
    by_id = {message.id: message for message in report.messages}
    assert report.objections
    for objection in report.objections:
        replies = [m for m in report.messages if m.reply_to == objection.id]
        if not any(m.agent == objection.to for m in replies):
            assert objection.fate == "unanswered", (objection, [by_id[m.id].agent for m in replies])


def test_crux_with_a_failed_private_answer_keeps_what_its_agents_declared() -> None:
    plain = debate(Debate(debaters=2, as_is=True, test_cruxes=0))
    failing = debate(
        Debate(debaters=2, as_is=True, test_cruxes=0),
        Debaters({"flip": lambda request: {"side": "?"} if request.agent == "D2" else {}}),
    )
    (before,), (after,) = plain.threads, failing.threads
    assert before.crux is not None
    assert after.crux is not None
    assert set(after.crux.flips) == {"D1", "D2"}
    assert after.crux.validated == before.crux.validated is True
    assert failing.regime == plain.regime


def test_undecided_agent_turns_the_answer_only_in_the_direction_that_it_declared() -> None:
    def undecided(request: ModelRequest) -> Answer:
        if request.agent == "D2":
            return {}
        return {"side": "UNCERTAIN", "gives_up_if": "YES"}

    positions = {"final": lambda request: {"p1": "YES" if request.agent != "D2" else "NO"}}
    script = Debaters({"commit": undecided, "flip": undecided, **positions, "closing": lambda request: {"p1": "YES"}})
    text = debate(Debate(debaters=3, as_is=True, test_cruxes=0), script).markdown()
    assert "Becomes no if" in text
    assert "crux 1 is yes. By their own word" in text
    assert "crux 1 is no. By their own word" not in text


def test_ballot_and_grade_without_words_count() -> None:
    silent = {"claim": "", "reason": ""}
    script = Debaters(
        {
            "opening": lambda request: silent,
            "final": lambda request: silent,
            "grade": lambda request: {"grade": "ACCURATE", "text": ""},
        }
    )
    report = debate(Debate(debaters=2, as_is=True), script)
    assert [ballot.step for ballot in report.ballots] == [0, 0, 1, 1]
    assert {steelman.grade for steelman in report.threads[0].steelmen} == {"ACCURATE"}
    assert report.ledger.actual.requests == report.ledger.actual.calls


def test_update_of_a_position_takes_what_would_turn_the_new_side() -> None:
    def turn(request: ModelRequest) -> Answer:
        if "UPDATE_POSITION" not in moves_of(request) or request.agent != "D1":
            return evident(request)
        return {"move": "UPDATE_POSITION", "new_side": "NO", **FALSIFIER}

    script = Debaters(
        {
            "turn": turn,
            "commit": lambda request: {"gives_up_if": "NO"} if request.agent == "D1" else {},
            "flip": lambda request: {"side": "?"},
        }
    )
    report = debate(Debate(debaters=2, as_is=True, test_cruxes=0), script)
    commitment = next(c for c in report.threads[0].commitments if c.agent == "D1")
    assert (commitment.side, commitment.would_flip, commitment.gives_up_if) == ("NO", False, "NO")


def test_short_task_is_debated_as_it_stands() -> None:
    report = debate(Debate(debaters=2, as_is=True), task="Ban cars?")
    assert report.framing is not None
    assert report.framing.propositions == ("Ban cars?",)


def test_json_of_a_debate_tells_why_it_ended() -> None:
    whole = debate(Debate(debaters=2, as_is=True)).debate_json()
    cut = debate(Debate(debaters=2, as_is=True, max_messages=16)).debate_json()
    assert isinstance(whole, dict)
    assert isinstance(cut, dict)
    assert (whole["stopReason"], whole["endedBy"], whole["confidence"]) == ("settled", "settled", None)
    assert (cut["stopReason"], cut["endedBy"], cut["confidence"]) == ("exhausted_steps", "max_messages", "LOW")


def test_brief_turn_says_on_a_line_of_its_own_that_nobody_has_seen_the_last_one() -> None:
    values = {"question": "Q?", "topic": "", "state": (), "seat": "You.", "claim": "", "own": "", "target": "A"}
    offers = {"offers": (("ARGUE", "a point"),), "moves": ("ARGUE",), "proposals": (), "chars": 100}
    for opposing in (False, True):
        text = templates.load(Debate, detail="brief").render(
            "turn", **values, **offers, opposing=opposing, blocked=True
        )
        assert "\nNobody has seen your last turn" in text
        assert ("argue against your own position.\n" in text) == opposing
