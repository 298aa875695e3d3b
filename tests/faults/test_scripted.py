"""Scripted provider faults end to end: every protocol with every fault in any seat ends typed and loses no recorded call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import consilience
from consilience.cli.execution import exit_code
from consilience.domain.agents import voices
from consilience.domain.events import (
    CallCompleted,
    CallFailed,
    CallStarted,
    CheckRecorded,
    Event,
    ReplyRejected,
    place_key,
)
from consilience.domain.outcome import FailureKind, StopReason
from consilience.domain.report import Report
from consilience.engine.faults import POINTS
from consilience.engine.faults import Fault as Kill
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.models.visible import without_controls
from consilience.reporting.markdown import markdown
from consilience.reporting.record import AnyReport
from consilience.testing import Scripted
from faults.table import FAULTS, Fault
from kit.cases import CALLING, Case, well_formed
from kit.runs import TASK, run, run_killed, seated, to_the_end

Strikes = Callable[[str, int], bool]
"""Whether a request fails: by its agent, and how many calls that agent was asked before."""


@dataclass(frozen=True)
class Scene:
    name: str
    strikes: Callable[[Sequence[str]], Strikes]


SCENES = (
    Scene("a seat dead from the start", lambda agents: lambda agent, asked: agent == agents[-1]),
    Scene("a seat dying mid-run", lambda agents: lambda agent, asked: agent == agents[-1] and asked >= 1),
    Scene("the chair dead", lambda agents: lambda agent, asked: agent == agents[0]),
    Scene("the chair dying mid-run", lambda agents: lambda agent, asked: agent == agents[0] and asked >= 1),
    Scene("all dead", lambda agents: lambda agent, asked: True),
    Scene("all dying mid-run", lambda agents: lambda agent, asked: asked >= 1),
)


@dataclass
class Struck:
    """A script that the fault strikes, and what it did: `broken` maps a key to what its call must come to, `most` a
    sending to the characters that are kept of its reply: a closing call that was cut has twice the room the second time."""

    case: Case
    fault: Fault
    strikes: Strikes
    asked: dict[str, set[str]] = field(default_factory=dict)
    said: dict[tuple[str, int], Any] = field(default_factory=dict)
    most: dict[tuple[str, int], int] = field(default_factory=dict)
    broken: dict[str, FailureKind] = field(default_factory=dict)
    endless: set[tuple[str, int]] = field(default_factory=set)
    """Sendings whose reply was readable, and no whole of its parts."""

    def __call__(self, request: ModelRequest) -> Any:
        keys = self.asked.setdefault(request.agent, set())
        struck = self.strikes(request.agent, len(keys - {request.key}))
        keys.add(request.key)
        answer = self.fault.answer(request) if struck else well_formed(self.case.script)(request)
        if struck and (kind := self.fault.kind(request)):
            self.broken[request.key] = kind
        self.said[request.key, request.attempt] = answer
        self.most[request.key, request.attempt] = 8 * request.max_tokens
        return answer


async def strike(case: Case, fault: Fault, scene: Scene, store: SqliteStore) -> tuple[Report, Struck]:
    agents = [agent.id for agent in case.protocol.agents(None)]
    struck = Struck(case, fault, scene.strikes(agents))
    seats = seated(case, ScriptedModel(struck))
    options = Options(patience=0)
    begun = consilience.deliberate(TASK, case.protocol, sources=case.sources, model=seats, store=store, options=options)
    report = await to_the_end(store, seats, begun)
    events = store.read(report.session)
    endless = [event for event in events if isinstance(event, ReplyRejected) and "stop at the end" in event.error]
    struck.endless |= {(event.key, event.attempt) for event in endless}
    cut = {event.key for event in events if isinstance(event, CallCompleted)}  # what came before is kept
    struck.broken |= {event.key: FailureKind.MALFORMED for event in endless if event.key not in cut}
    return report, struck


GRID = list(itertools.product(CALLING, FAULTS, SCENES))


@pytest.mark.matrix(keep=60)
@pytest.mark.parametrize(
    ("case", "fault", "scene"), GRID, ids=[f"{case.name}-{fault.name}-{scene.name}" for case, fault, scene in GRID]
)
async def test_faulty_run_ends_with_a_typed_report_and_recorded_calls(case: Case, fault: Fault, scene: Scene) -> None:
    store = SqliteStore(":memory:")
    try:
        report, struck = await strike(case, fault, scene, store)
        events = store.read(report.session)
        check_record(events, store, struck)
        check_report(report, events, struck)
        check_shown(report)
        await check_again(report, events, store, struck)
    finally:
        store.close()


def check_record(events: Sequence[Event], store: SqliteStore, struck: Struck) -> None:
    """Every call asked has ended on record as it must, with every word that came, up to 8 characters a token."""
    ended = {
        (e.key, e.attempt): e
        for e in events
        if isinstance(e, CallCompleted | ReplyRejected | CallFailed) and (e.key, e.attempt) in struck.said
    }
    assert ended.keys() == struck.said.keys()
    for (key, attempt), event in ended.items():
        if isinstance(event, CallFailed):
            assert event.failure is struck.broken[key]
            assert event.detail
        else:
            answer = struck.said[key, attempt]
            text = without_controls(answer if isinstance(answer, str) else answer.value)
            assert text.startswith(store.text(event.text))
            assert len(store.text(event.text)) >= min(len(text), struck.most[key, attempt])
            unusable = struck.broken.get(key) is FailureKind.MALFORMED or (key, attempt) in struck.endless
            assert isinstance(event, ReplyRejected) == unusable


def check_report(report: Report, events: Sequence[Event], struck: Struck) -> None:
    missing = {m.agent: m for m in report.missing}
    failed = {call.key: call.kind for call in report.failed_calls}
    unsent = failed.keys() - struck.broken.keys()  # nothing more is sent once nobody was reached in a first phase
    assert {key: kind for key, kind in failed.items() if key not in unsent} == struck.broken
    assert {failed[key] for key in unsent} <= {FailureKind.UNREACHABLE}
    assert unsent.isdisjoint(key for key, _ in struck.said)
    voiced = {agent.id for agent in voices(report.agents)}
    for agent, keys in struck.asked.items():
        if agent in voiced and keys <= struck.broken.keys():
            assert missing[agent].reason.startswith(f"{struck.broken[missing[agent].since].value}: ")
        elif agent not in voiced or not keys & struck.broken.keys():
            assert agent not in missing
    assert all(m.since in failed for m in report.missing)

    spent = report.ledger.actual
    keys = {e.key for e in events if isinstance(e, CallCompleted | ReplyRejected | CallFailed)}
    from_outside = len(keys) - len({key for key, _ in struck.said}) - len(unsent)
    assert spent.calls == len(keys)
    assert spent.requests == len(struck.said) + from_outside
    assert spent.repairs == sum(attempt > 1 for _, attempt in struck.said)
    assert spent.retries == 0

    if report.stop_reason is StopReason.CONVERGED:  # nothing was broken that the check rests on
        decided = max(place_key(e.place) for e in events if isinstance(e, CheckRecorded))
        ended = [e for e in events if isinstance(e, ReplyRejected | CallFailed) and e.key in struck.broken]
        assert all(place_key(e.place) > decided for e in ended)
    if not report.quorum_met or report.answer is None:
        assert exit_code(report) == (1 if report.stop_reason is StopReason.FAILED else 3)
    else:
        assert exit_code(report) == 0
    cut = [e for e in events if isinstance(e, CallCompleted) and e.finish == "length"]
    assert len(cut) == sum(isinstance(answer, Scripted) for answer in struck.said.values()) - len(
        [e for e in events if isinstance(e, ReplyRejected) and e.tokens_out == 200_000]
    )
    assert set(report.cut_replies) == {event.key for event in cut}


def _names(line: str, agent: str, report: Report) -> bool:
    """Whether a line names an agent, by its id, in words, or by the letter that a debate gives it."""
    letter = getattr(report, "letters", {}).get(agent)
    return agent in line or agent.replace("_", " ") in line or (letter is not None and f"({letter})" in line)


def check_shown(report: Report) -> None:
    """In Markdown who is missing stands in the report by its name, and the JSON says all that the report does."""
    text = markdown(report)
    assert text.splitlines()[2].startswith(("**Finished", "**Stopped: "))
    heading = text.splitlines()[2].replace("\\", "")
    assert (report.degraded or "").partition("no reply: ")[0].rstrip("; ") in heading
    assert (f"{len(report.failed_calls)} call" in heading) == bool(report.failed_calls)
    assert all(reason[:190] in heading for reason in report.unmet)
    failed = text.partition("### Calls without a reply\n\n")[2].partition("\n\n")[0]
    for call in report.failed_calls:
        assert any(
            line.startswith("- ") and call.kind.value in line and _names(line, call.agent, report)
            for line in failed.splitlines()
        ), (call.key, call.agent, failed[:300])
    silent = text.partition("### Missing agents\n\n")[2].partition("\n\n")[0].replace("\\", "").splitlines()
    for missing in report.missing:
        assert any(_names(line, missing.agent, report) for line in silent)
    assert ("## No answer" in text) == (report.answer is None)
    assert markdown(AnyReport.model_validate_json(report.model_dump_json())) == text


async def check_again(report: Report, events: Sequence[Event], store: SqliteStore, struck: Struck) -> None:
    """Shown, gone on with and replayed it is the same, and nothing more is asked."""
    asked = len(struck.said)
    assert (await consilience.replay(report.session, store=store)).digest() == report.digest()
    assert await consilience.resume(report.session, store=store, model="no model is needed") == report
    assert len(struck.said) == asked
    assert len(store.read(report.session)) == len(events)
    assert not store.flights(report.session)


@pytest.mark.matrix(keep=20)
@pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.prose], ids=lambda fault: fault.name)
async def test_run_without_any_reply_reports_each_failure(case: Case, fault: Fault) -> None:
    assert fault.prose is not None
    store = SqliteStore(":memory:")
    report, struck = await strike(case, fault, SCENES[4], store)
    store.close()
    outside = case.outside is not None
    assert report.answer is None
    assert not report.quorum_met
    assert report.stop_reason not in (StopReason.CONVERGED, StopReason.SETTLED)
    assert report.degraded is not None
    asked = {agent.id for agent in voices(report.agents) if agent.id in struck.asked}
    assert f"{report.replied} of " in report.degraded or not asked
    assert f"({fault.prose.value})" in report.degraded
    assert report.replied == outside
    assert asked <= {m.agent for m in report.missing} <= {call.agent for call in report.failed_calls}


EMERGENT = [case for case in CALLING if case.name.startswith("emergence")]


@pytest.mark.matrix(keep=12)
@pytest.mark.parametrize("case", EMERGENT, ids=lambda case: case.name)
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.typed], ids=lambda fault: fault.name)
async def test_emergence_with_a_failing_leaf_continues_and_with_a_failing_root_fails(case: Case, fault: Fault) -> None:
    assert fault.typed is not None
    leaves = len(case.protocol.topology().leaves)
    ends = {}
    for scene in SCENES[:4]:
        store = SqliteStore(":memory:")
        ends[scene.name], _ = await strike(case, fault, scene, store)
        store.close()
    dead = ends["a seat dead from the start"]
    assert dead.degraded is not None
    assert dead.degraded.startswith(f"{leaves - 1} of {leaves} agents; no reply: leaf_respond 1 ")
    assert (dead.quorum_met, exit_code(dead)) == (True, 0)
    dying = ends["a seat dying mid-run"]
    assert dying.degraded is not None
    assert dying.degraded.startswith("no reply: ")
    assert exit_code(dying) == 0
    assert [m.agent for m in dying.missing] == [case.protocol.agents(None)[-1].id]
    chair = ends["the chair dead"]
    assert (chair.stop_reason, chair.answer, exit_code(chair)) == (StopReason.FAILED, None, 1)
    late = ends["the chair dying mid-run"]
    assert late.answer is not None
    assert any("the answer is that of an earlier round" in w or "the one before it" in w for w in late.warnings)


@pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)
async def test_kill_among_faults_loses_no_recorded_call(case: Case, tmp_path: Path, sample: Callable[..., Any]) -> None:
    agents = [agent.id for agent in case.protocol.agents(None)]
    script = case.script
    faults = [f for f in FAULTS if f.typed]
    calls = range(1, min(case.need, 40))  # of a debate, whose agents may fall silent, not all that it may need are made
    grid = list(itertools.product(calls, faults, (agents[0], agents[-1]), POINTS[:3]))
    crashes = 0
    for n, (nth, fault, dead, point) in enumerate(sample(grid, 5, whole=30)):

        def struck(request: ModelRequest, fault: Fault = fault, dead: str = dead) -> Any:
            return fault.answer(request) if request.agent == dead else script(request)

        faulty = replace(case, script=struck)
        reference = await run(faulty)
        outcome = await run_killed(faulty, tmp_path / f"{n}.db", Kill(point, nth=nth), order=n)
        assert outcome.same == reference.same, f"{fault.name} at {dead}, killed {point} #{nth}"
        assert not outcome.asked_again
        crashes += outcome.crashes
    assert crashes or case.need == 1


async def test_observers_receive_start_and_end_of_every_call() -> None:
    """What a watcher counts as under way comes to nothing in the end, whatever failed."""
    flying: set[str] = set()

    def observe(event: Event) -> None:
        if isinstance(event, CallStarted):
            flying.add(event.key)
        elif isinstance(event, CallCompleted | CallFailed | ReplyRejected):
            flying.discard(event.key)

    case = EMERGENT[0]
    for fault in FAULTS:
        struck = Struck(case, fault, lambda agent, asked: asked % 2 == 1)
        options = Options(observer=observe)
        store = SqliteStore(":memory:")
        await consilience.deliberate(
            TASK, case.protocol, sources=case.sources, model=ScriptedModel(struck), store=store, options=options
        )
        store.close()
        assert not flying
