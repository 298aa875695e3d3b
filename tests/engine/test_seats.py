"""Seats: service seats count in no figure of the panel, personas bring fields and models, a panel may make the seats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import consilience
from consilience.domain.agents import Agent
from consilience.domain.errors import ServerError, SettingsError, UnknownName, UserError
from consilience.domain.panels import Panel, Persona, load_panel
from consilience.domain.report import Report
from consilience.engine import seats
from consilience.engine.faults import Crash, Fault
from consilience.engine.protocol import PanelSeats
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.reporting.markdown import markdown
from kit import runner
from kit.council import Council

TASK = "Is it so?"

PANEL = Panel(
    name="budget",
    description="Who pays.",
    personas=(
        Persona(
            name="Sceptical CFO",
            description="You ask what it costs.",
            interests=("cost", "cash"),
            horizon="1 year",
            evidence="Audited figures.",
            claim="It is too dear",
        ),
        Persona(name="Überzeugte Ärztin", description="You ask who is healed."),
        Persona(name="納税者", description="You ask who pays."),
    ),
)
IDS = ("sceptical-cfo", "überzeugte-ärztin", "納税者")


def model(name: str = "scripted", *, failing: tuple[str, ...] = ()) -> ScriptedModel:
    def reply(request: ModelRequest) -> str | Exception:
        return ServerError("down") if request.agent in failing else f"{request.agent} on {request.key}"

    return ScriptedModel(reply, name=name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


async def play(store: SqliteStore, models: object, protocol: PanelSeats | None = None, **more: object) -> Report:
    protocol = protocol or Council()
    return await runner.start(TASK, protocol, models=models, store=store, session="s", **more)  # type: ignore[arg-type]


# --- service seats


async def test_service_seats_get_models_last_and_count_in_no_agent_total(store: SqliteStore) -> None:
    a, b = model("a"), model("b")
    report = await play(store, [a, b])
    assert [(agent.id, agent.model, agent.voice) for agent in report.agents] == [
        ("A1", "a", True),
        ("A2", "b", True),
        ("A3", "a", True),
        ("moderator", "b", False),
        ("crystallizer", "a", False),
    ]
    assert report.replied == 3
    assert [dissent.agent for dissent in report.dissent] == ["A1", "A2", "A3"]
    assert [(shared.model, shared.agents) for shared in report.independence.shared] == [("a", ("A1", "A3"))]
    assert "2 of the 3 agents run on a, so they are not two independent voices." in markdown(report)
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_service_seats_listed_first_by_a_protocol_get_models_last(store: SqliteStore) -> None:
    class Forward(Council):
        def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
            return tuple(reversed(super().agents(panel)))

    from consilience.engine.seats import make_seats

    agents = make_seats(Forward().agents(None), [model("a"), model("b")]).agents
    assert [(agent.id, agent.model) for agent in agents] == [
        ("A3", "a"),
        ("A2", "b"),
        ("A1", "a"),
        ("crystallizer", "b"),
        ("moderator", "a"),
    ]


async def test_failed_service_seat_degrades_the_run_but_is_not_a_missing_agent(store: SqliteStore) -> None:
    report = await play(store, model(failing=("moderator",)))
    assert (report.replied, report.quorum_met, report.missing) == (3, True, ())
    assert [call.agent for call in report.failed_calls] == ["moderator"]
    assert report.degraded == "no reply: open 1 moderator (server)"
    assert "moderator (service seat)" in markdown(report)


async def test_quorum_ignores_service_seats(store: SqliteStore) -> None:
    report = await play(store, model(failing=("A1", "A2")))
    assert (report.replied, report.quorum_met) == (1, False)
    assert report.degraded == "1 of 3 agents; no reply: speak 1 A1, A2 (server)"
    assert [seat.agent for seat in report.missing] == ["A1", "A2"]


async def test_fork_replaces_the_model_of_a_service_seat_and_resumes(store: SqliteStore) -> None:
    await play(store, model("a"))
    live = model("b")
    report = await consilience.fork(
        "s", store=store, at="speak/1", model=model("a"), replace={"crystallizer": live}, name="f"
    )
    assert [request.key for request in live.requests] == ["close"]
    assert [agent.id for agent in report.agents if not agent.voice] == ["moderator", "crystallizer"]
    assert report.replied == 3
    again = await runner.resume("f", store=store, models=model("a"))
    assert again.digest() == report.digest()


# --- personas


def test_persona_fields_of_a_panel_file_are_read_and_invalid_ones_named(tmp_path: Path) -> None:
    head = 'name = "p"\ndescription = "d"\n[[personas]]\nname = "CFO"\ndescription = "You ask who pays."\n'

    def read(text: str) -> Panel:
        path = tmp_path / "p.toml"
        path.write_text(head + text)
        return load_panel(path)

    (persona,) = read('interests = ["cost", "cash"]\nhorizon = "1 year"\nclaim = "No."\nmodel = "local"').personas
    assert (persona.interests, persona.horizon, persona.claim, persona.model) == (
        ("cost", "cash"),
        "1 year",
        "No.",
        "local",
    )
    assert persona.evidence is None
    for text, words in {
        'interests = "cost"': "'interests' of persona 1 (CFO) must be a list in square brackets, not 'cost'",
        'interests = ["cost", ""]': "'interests' number 2 of persona 1 (CFO) is empty",
        'interests = ["a\\nb"]': "'interests' number 1 of persona 1 (CFO) has a line break",
        f"interests = {['x'] * 13}": "'interests' of persona 1 (CFO) must have at most 12 entries, not 13",
        'horizon = ""': "'horizon' of persona 1 (CFO) is empty",
        "claim = 3": "'claim' of persona 1 (CFO) must be text, not 3",
        f'evidence = "{"x" * 501}"': "'evidence' of persona 1 (CFO) has 501 characters, at most 500",
        'modle = "local"': "persona 1 (CFO) has an unknown key 'modle' (did you mean 'model'?)",
        'model = "exec:rm -rf /"': "'model' of persona 1 (CFO) names a program; seat it yourself",
        'model = "local|exec:rm"': "names a program",
    }.items():
        with pytest.raises(SettingsError) as caught:
            read(text)
        assert words in str(caught.value)


async def test_introduction_omits_empty_persona_fields(store: SqliteStore) -> None:
    scripted = model()
    report = await play(store, scripted, panel=PANEL)
    prompts = {request.agent: request.text for request in scripted.requests if request.key.startswith("say")}
    assert prompts[IDS[0]].endswith(
        "Your role: Sceptical CFO. You ask what it costs. Your interests: cost, cash. Your time horizon: 1 year. "
        "The evidence you accept: Audited figures. Your claim at the start: It is too dear. Speak."
    )
    assert prompts[IDS[1]].endswith("Your role: Überzeugte Ärztin. You ask who is healed. Speak.")
    assert report.agents[0].claim == "It is too dear"


async def test_introduction_in_every_protocol_has_the_persona_fields(store: SqliteStore) -> None:
    from consilience.protocols.baselines import Vote
    from consilience.protocols.decompose import Decompose

    for protocol in (consilience.Emergence(children=2, max_rounds=1), consilience.Broadcast(), Vote(), Decompose()):
        seat = next(agent for agent in protocol.agents(PANEL) if agent.persona == "Sceptical CFO")
        assert seat.introduction() == (
            "Your role: Sceptical CFO. You ask what it costs. Your interests: cost, cash. Your time horizon: 1 year. "
            "The evidence you accept: Audited figures. Your claim at the start: It is too dear."
        )


PANEL_WITH_A_MODEL = Panel(
    name="mixed",
    description="d",
    personas=(
        Persona(name="One", description="You ask.", model="exec-not-used:x"),
        Persona(name="Two", description="You doubt."),
        Persona(name="Three", description="You pay."),
    ),
)


def test_persona_model_is_used_unless_the_user_names_the_seat() -> None:
    from consilience.engine.seats import with_own_models

    agents = Council().agents(PANEL_WITH_A_MODEL)
    assert with_own_models(agents, ["a", "b"]) == {
        "one": "exec-not-used:x",
        "two": "b",
        "three": "a",
        "moderator": "b",
        "crystallizer": "a",
    }
    named = {"one": "c", "two": "c", "three": "c", "moderator": "c", "crystallizer": "c"}
    assert with_own_models(agents, named) == named
    assert with_own_models(Council().agents(PANEL), "a") == "a"


def test_mapping_of_models_may_name_one_for_all_other_agents() -> None:
    agents = Council().agents(PANEL_WITH_A_MODEL)
    assert seats.models_by_agent(agents, seats.with_own_models(agents, {"*": "a", "three": "b"})) == {
        "one": "exec-not-used:x",
        "two": "a",
        "three": "b",
        "moderator": "a",
        "crystallizer": "a",
    }
    with pytest.raises(SettingsError, match=r"none for two, moderator, crystallizer\. .*one for all agents not named"):
        seats.models_by_agent(agents, seats.with_own_models(agents, {"three": "b"}))
    with pytest.raises(SettingsError, match=r"is given for four, but there is no such agent\. .*Agents: one, two"):
        seats.models_by_agent(agents, {"*": "a", "four": "b"})


@pytest.mark.parametrize(("name", "problem"), [("openai:gpt-5-mini", "needs a key"), ("opanai:x", "no provider")])
def test_unusable_model_of_a_persona_names_the_persona_in_python(name: str, problem: str, store: SqliteStore) -> None:
    personas = (Persona(name="CFO", description="You ask.", model=name),)
    here = consilience.Deliberation(
        consilience.Emergence(children=2),
        panel=Panel(name="p", description="d", personas=personas),
        model=model(),
        store=store,
    )
    where = r"Where: the model of the persona CFO \(L2N1\)\. .*model=\{'L2N1': MODEL, '\*': MODEL\}"
    with pytest.raises(UserError, match=f"{problem}.*{where}"):
        here.run_sync(TASK)


async def test_resume_of_a_session_with_a_persona_model_needs_only_the_other_model(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that is given again as one for all, which does not name the persona's seat."""
    brought = model("brought:x", failing=("moderator",))
    monkeypatch.setattr(seats, "resolve", lambda name, deadline=None: brought)
    personas = (Persona(name="One", description="You ask.", model="brought:x"), *PANEL_WITH_A_MODEL.personas[1:])
    panel = PANEL_WITH_A_MODEL.model_copy(update={"personas": personas})
    for arguments in (model("a"), model("a")):
        here = consilience.Deliberation(Council(), panel=panel, model=arguments, store=store)
        report = await here.run_or_resume("s", TASK)
        assert [agent.model for agent in report.agents] == ["brought:x", "a", "a", "a", "a"]
    with pytest.raises(SettingsError, match="other settings"):
        await consilience.Deliberation(Council(), panel=PANEL, model="a", store=store).run_or_resume("s", TASK)
    fault = Fault("after_commit", nth=2)
    with pytest.raises(Crash):
        await play(SqliteStore(tmp_path / "k.db"), model("a"), panel=panel, options=Options(faults=fault.hit))
    again = SqliteStore(tmp_path / "k.db")
    report = await runner.resume("s", store=again, models=model("a"))
    again.close()
    assert report.agents[0].own_model
    assert {request.agent for request in brought.requests} == {"one"}


async def test_session_recorded_with_another_spelling_of_its_model_resumes_without_a_repeated_call(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions recorded a chain as it was written."""
    earlier, now = model("local|ollama:x"), model("local:qwen2.5-coder-1.5b|ollama:x")
    monkeypatch.setattr(seats, "resolve", lambda name, deadline=None: {now.name: now}[name])
    crashing = SqliteStore(tmp_path / "k.db")
    with pytest.raises(Crash):
        await play(crashing, earlier, options=Options(faults=Fault("after_commit", nth=2).hit))
    again = SqliteStore(tmp_path / "k.db")
    report = await runner.resume("s", store=again)
    assert {agent.model for agent in report.agents} == {earlier.name}
    assert (await runner.replay("s", store=again)).digest() == report.digest()
    again.close()
    recorded_before = {request.key for request in earlier.requests} - {request.key for request in now.requests}
    assert recorded_before, "replies recorded under the earlier spelling are used"


def test_persona_that_names_its_model_in_another_spelling_keeps_it_as_its_own() -> None:
    agent = Agent(id="A1", role="member", model="local", own_model=True)
    (seated,) = seats.make_seats([agent], "local").agents
    assert (seated.model, seated.own_model) == ("local:qwen2.5-coder-1.5b", True)


# --- seats from the panel


async def test_seats_from_a_panel_replay_without_the_panel(store: SqliteStore) -> None:
    report = await play(store, model(), panel=PANEL)
    assert tuple(agent.id for agent in report.agents) == (*IDS, "moderator", "crystallizer")
    assert report.settings["seats"] == list(IDS)
    assert report.ledger.estimated.max == 5
    assert (await runner.replay("s", store=store)).digest() == report.digest()


@pytest.mark.parametrize("name", ["Farm vet", "the treasurer", "Dr. Ada Lin", "CTO"])
def test_introduction_names_any_persona_after_a_label(name: str) -> None:
    seat = Persona(name=name, description="You ask who pays.").seat(Agent(id="A1", role="member"))
    assert seat.introduction() == f"Your role: {name}. You ask who pays."


async def test_fork_keeps_seats_from_a_panel_and_changes_one_perspective(store: SqliteStore) -> None:
    await play(store, model("a"), panel=PANEL)
    live = model("b")
    report = await consilience.fork(
        "s",
        store=store,
        at="open",
        model=model("a"),
        replace={"納税者": live},
        perspectives={"sceptical-cfo": "You give."},
        name="f",
    )
    assert [request.key for request in live.requests] == ["say/納税者"]
    assert [(agent.persona, agent.perspective) for agent in report.agents[:2]] == [
        ("", "You give."),
        ("Überzeugte Ärztin", "You ask who is healed."),
    ]
    assert report.agents[0].claim == "", "of the persona it was"
    with pytest.raises(UnknownName, match="there is no agent 'A1'"):
        await consilience.fork("s", store=store, perspectives={"A1": "x"})


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("C++ dev", "C dev"), "the personas 'C++ dev' and 'C dev' would both be the agent 'c-dev'"),
        (("A. B", "ａ-Ｂ"), "'A. B' and 'ａ-Ｂ' would both be the agent 'a-b'"),
        (("ok", "!!!"), "the name of the persona '!!!' has no letter or digit"),
        (("Moderator", "x"), "the persona 'Moderator' would be the agent 'moderator', which is a service seat"),
        (("a", "b", "c", "d", "e"), "the panel 'p' has 5 personas; council takes 1 to 4"),
    ],
)
async def test_persona_names_that_give_no_valid_seats_are_refused(
    names: tuple[str, ...], words: str, store: SqliteStore
) -> None:
    personas = tuple(Persona(name=name, description="You ask.") for name in names)
    scripted = model()
    with pytest.raises(SettingsError) as caught:
        await play(store, scripted, panel=Panel(name="p", description="d", personas=personas))
    assert words in str(caught.value)
    assert scripted.requests == []
    assert store.sessions() == []


def test_agent_recorded_without_persona_fields_is_read() -> None:
    kept = {"id": "L1N1", "role": "r", "perspective": "", "persona": "", "model": "m"}
    agent = Agent.model_validate(kept)
    assert agent.model_dump(mode="json", exclude_defaults=True) == {"id": "L1N1", "role": "r", "model": "m"}
