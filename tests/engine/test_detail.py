"""The detail of a session: which prompts agents are shown, how long replies may be, and who keeps it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

import consilience
from consilience import Deliberation, Emergence, Refinement, Solo
from consilience.domain.agents import Agent
from consilience.domain.detail import CAPS, DetailChoice
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.topology import Topology, independent
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel

EMBEDDED, CAPABLE = "local:qwen2.5-coder-1.5b", "openai:capable"
FULL, BRIEF = "Let the task decide the form and the length.", "Be concrete and brief."
"""Words of the instructions that only one of the two sets of `solo` and `emergence` has."""


def model(name: str = CAPABLE) -> ScriptedModel:
    return ScriptedModel(lambda request: f"{request.agent} at {request.key}", name=name)


def shown(*models: ScriptedModel) -> set[str]:
    """The details of the instructions that were sent."""
    systems = {request.system for model in models for request in model.requests}
    return {"full" if FULL in system else "brief" for system in systems}


@pytest.fixture
def store() -> SqliteStore:
    return SqliteStore(":memory:")


@pytest.mark.parametrize(
    ("seats", "choice", "expected"),
    [
        ((CAPABLE,), None, "full"),
        ((EMBEDDED,), None, "brief"),
        ((EMBEDDED,), "auto", "brief"),
        ((CAPABLE, EMBEDDED), None, "brief"),
        (("local:/weights/mine.gguf",), None, "full"),
        ((EMBEDDED,), "full", "full"),
        ((CAPABLE,), "brief", "brief"),
    ],
)
async def test_detail_by_default_follows_the_models_of_the_voices(
    seats: tuple[str, ...], choice: DetailChoice | None, expected: str, store: SqliteStore
) -> None:
    models = [model(name) for name in seats]
    await Deliberation(Emergence(max_rounds=1), model=models, detail=choice, store=store).run("Why?", session="s")
    assert shown(*models) == {expected}
    started = store.beginning("s")
    assert started is not None
    assert (started.detail, started.settings["reply_tokens"]) == (expected, 4096 if expected == "full" else 1024)
    assert {r.max_tokens for m in models for r in m.requests} == {started.settings["reply_tokens"]}


class Chaired(Protocol):
    """One agent speaks, a service seat closes."""

    templates: ClassVar = {"instructions": "Speak."}

    def topology(self) -> Topology:
        return independent(("A1", "host"))

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return Agent(id="A1", role="agent"), Agent(id="host", role="host", voice=False)

    def estimate(self) -> Estimate:
        return Estimate(min=1, max=1)

    async def run(self, session: Session) -> Report:
        reply = await session.ask("A1", Prompt(f"{session.detail}: {session.caps.claims}"), key="say", closing=True)
        return await session.report(Report, first=[reply], stop_reason=StopReason.SETTLED, steps=1)


@pytest.mark.parametrize(("voice", "expected"), [(CAPABLE, "full: 5"), (EMBEDDED, "brief: 2")])
async def test_detail_ignores_the_model_of_a_service_seat(voice: str, expected: str) -> None:
    other = EMBEDDED if voice == CAPABLE else CAPABLE
    models = {"A1": model(voice), "host": model(other)}
    await Deliberation(Chaired(), model=models, store=SqliteStore(":memory:")).run("Why?")
    assert models["A1"].requests[0].text.endswith(expected)


async def test_deliberate_takes_the_detail_from_its_options(store: SqliteStore) -> None:
    asked = model()
    await consilience.deliberate("Why?", Solo(), model=asked, store=store, options=Options(detail="brief"))
    assert shown(asked) == {"brief"}


def test_unknown_detail_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"detail must be 'auto', 'full' or 'brief', not 'long'"):
        Deliberation(Solo(), model=model(), detail="long").run_sync("Why?")  # type: ignore[arg-type]


async def test_reply_tokens_set_by_the_user_are_kept_under_any_detail(store: SqliteStore) -> None:
    asked = model()
    await Deliberation(Solo(reply_tokens=300), model=asked, detail="brief", store=store).run("Why?")
    assert asked.requests[0].max_tokens == 300


async def test_resume_and_replay_keep_the_recorded_detail(store: SqliteStore) -> None:
    id = await Deliberation(Emergence(max_rounds=1), model=model(), detail="brief", store=store).prepare("Why?")
    asked = model()
    report = await Deliberation[Report](model=asked, detail="full", store=store).resume(id)
    assert shown(asked) == {"brief"}
    assert (await Deliberation[Report](store=store).replay(id)).digest() == report.digest()


@pytest.mark.parametrize(("detail", "expected"), [(None, "brief"), ("full", "full"), ("auto", "full")])
async def test_fork_without_a_detail_keeps_that_of_its_parent(
    detail: DetailChoice | None, expected: str, store: SqliteStore
) -> None:
    await Deliberation(Emergence(max_rounds=1), model=model(EMBEDDED), store=store).run("Why?", session="parent")
    asked = model()
    again: Deliberation[Report] = Deliberation(model=asked, detail=detail, store=store)
    report = await again.fork("parent", at=0, name="fork")
    assert shown(asked) == {expected}
    assert asked.requests[0].max_tokens == (4096 if expected == "full" else 1024)
    assert (await again.replay("fork")).digest() == report.digest()


async def test_fork_keeps_reply_tokens_set_by_the_user(store: SqliteStore) -> None:
    await Deliberation(Solo(reply_tokens=300), model=model(EMBEDDED), store=store).run("Why?", session="parent")
    asked = model()
    await Deliberation[Report](model=asked, detail="full", store=store).fork("parent", at=0)
    assert (shown(asked), asked.requests[0].max_tokens) == ({"full"}, 300)


async def test_run_or_resume_with_another_detail_is_refused(store: SqliteStore) -> None:
    await Deliberation(Solo(), model=model(), detail="brief", store=store).run_or_resume("s", "Why?")
    await Deliberation(Solo(), model=model(), store=store).run_or_resume("s", "Why?")
    with pytest.raises(SettingsError, match="another detail"):
        await Deliberation(Solo(), model=model(), detail="full", store=store).run_or_resume("s", "Why?")


@pytest.mark.parametrize("name", protocol_names())
@pytest.mark.parametrize("detail", ["full", "brief"])
def test_full_and_brief_prompts_of_a_protocol_have_the_same_templates(name: str, detail: Any) -> None:
    protocol = find_protocol(name)
    assert protocol.load_templates(detail=detail).sources.keys() == protocol.load_templates().sources.keys()


async def test_prompts_outside_a_detail_folder_serve_both_details_unless_overridden(tmp_path: Path) -> None:
    """A protocol of somebody else's, in a module of its own."""
    prompts = tmp_path / "prompts"
    (prompts / "brief").mkdir(parents=True)
    (prompts / "instructions.j2").write_text("Plain instructions.")
    (prompts / "say.j2").write_text("Plain.")
    (prompts / "brief" / "say.j2").write_text("Short.")
    sys.modules["outside"] = outside = ModuleType("outside")
    outside.__file__ = str(tmp_path / "outside.py")
    try:

        class Outside(Chaired):
            __module__ = "outside"

            async def run(self, session: Session) -> Report:
                reply = await session.ask("A1", Prompt(session.render_template("say")), key="say", closing=True)
                return await session.report(Report, first=[reply], stop_reason=StopReason.SETTLED, steps=1)

        for detail, expected in (("full", "Plain."), ("brief", "Short.")):
            asked = model()
            await Deliberation(Outside(), model=asked, detail=detail, store=SqliteStore(":memory:")).run("Why?")  # type: ignore[arg-type]
            assert asked.requests[0].text.endswith(expected)
            mine = tmp_path / "mine"
            mine.mkdir(exist_ok=True)
            (mine / "say.j2").write_text("Mine.")
            asked = model()
            own = Deliberation(Outside(), model=asked, detail=detail, prompts=mine, store=SqliteStore(":memory:"))  # type: ignore[arg-type]
            await own.run("Why?")
            assert asked.requests[0].text.endswith("Mine.")
    finally:
        del sys.modules["outside"]


@pytest.mark.parametrize("detail", ["full", "brief"])
async def test_caps_bound_the_schema_and_the_claims_in_the_report(detail: Any, store: SqliteStore) -> None:
    """A model without a grammar may exceed the schema; the report keeps as many claims as the cap."""

    def reply(request: ModelRequest) -> str:
        if request.schema is None or "claims" not in request.schema["properties"]:  # type: ignore[operator]
            return "Words."
        claims = [{"text": text} for text in ("", *(f"Claim {n}." for n in range(9)))]
        return json.dumps({"claims": claims, "text": "Words."})

    asked = ScriptedModel(reply, name=CAPABLE)
    report = await Deliberation(Emergence(max_rounds=1), model=asked, detail=detail, store=store).run("Why?")
    assert [claim.text for claim in report.claims] == [f"Claim {n}." for n in range(CAPS[detail].claims)]
    root = next(r for r in asked.requests if r.schema and "claims" in r.schema["properties"])  # type: ignore[operator]
    assert root.schema["properties"]["claims"]["maxItems"] == CAPS[detail].claims  # type: ignore[index]


async def test_panel_proposal_runs_in_the_detail_of_the_deliberation(store: SqliteStore) -> None:
    asked = model()
    deliberation = Deliberation(Emergence(max_rounds=1), model=asked, detail="brief", store=store)
    with pytest.raises(SettingsError):
        await replace(deliberation, panel="auto").run("Why?")
    events = [store.beginning(session) for session in store.sessions()]
    assert [event.detail for event in events if event is not None] == ["brief"]


@pytest.mark.parametrize(
    ("protocol", "setting", "bounded", "kept"),
    [
        (Emergence(), "max_rounds", 2, 5),
        (Emergence(max_rounds=4), "max_rounds", 4, 4),
        (Emergence(max_rounds=1), "max_rounds", 1, 1),
        (Refinement(), "max_passes", 2, 3),
        (Refinement(max_passes=4), "max_passes", 4, 4),
    ],
)
def test_brief_prompts_mean_two_steps_at_most_unless_the_settings_name_a_number(
    protocol: Emergence | Refinement, setting: str, bounded: int, kept: int
) -> None:
    assert getattr(protocol.with_panel(None).with_detail("brief"), setting) == bounded
    assert getattr(protocol.with_detail("full"), setting) == kept
