"""Sessions as files: Markdown, JSON, events that stand alone."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from consilience.domain.errors import SettingsError
from consilience.domain.events import (
    EVENT,
    AnswerReceived,
    BlindnessLifted,
    CallAwaited,
    CallFailed,
    CallLost,
    CancelRequested,
    CheckRecorded,
    CommentPosted,
    Event,
    MessagePublished,
    Noted,
    ReplyRejected,
    SearchExpired,
    SessionParked,
    SessionResumed,
    Settled,
    StepCompleted,
    TextsEmbedded,
    text_id,
)
from consilience.domain.outcome import Check, FailureKind, Limits
from consilience.domain.topology import complete, tree
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.emergence import Emergence
from consilience.reporting.export import (
    FORMATS,
    as_events,
    as_json,
    as_markdown,
    format_of,
)
from consilience.reporting.markdown import markdown
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.views import view_svg, view_text, views_of
from consilience.testing import ScriptedModel, ServerError
from kit import runner
from kit.cases import CASES, Case
from kit.runner import fork
from reporting.sessions import HOSTILE, Counted, by_hand, call, ran, saying

SCHEMAS = Path(__file__).parent.parent.parent / "docs" / "schema"


def schema(name: str) -> jsonschema.Draft202012Validator:
    output = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(output)
    return jsonschema.Draft202012Validator(output)


# --- Markdown


def test_markdown_export_is_the_report(recorded: SessionRecord) -> None:
    assert recorded.report is not None
    assert as_markdown(recorded) == markdown(recorded.report, recorded.presentation)


# --- JSON and events


def test_json_export_is_the_stored_report(recorded: SessionRecord) -> None:
    assert recorded.state.finished is not None
    assert json.loads(as_json(recorded)) == json.loads(recorded.text(recorded.state.finished.report))


def rows(record: SessionRecord) -> list[dict[str, Any]]:
    return [json.loads(line) for line in as_events(record).splitlines()]


def test_exported_event_contains_its_texts(recorded: SessionRecord) -> None:
    for row, event in zip(rows(recorded), recorded.events, strict=True):
        assert row["seq"] == event.seq
        texts = row["bodies"]
        assert all(text_id(text) == id for id, text in texts.items())
        if row["type"] in ("call_completed", "message_published"):
            assert texts[row["text"]] == recorded.text(row["text"])
        if row["type"] == "session_started":
            assert texts[row["task"]].startswith("Should a team of five")
            assert set(row["templates"].values()) <= texts.keys()
        if row["type"] == "session_finished":
            assert json.loads(texts[row["report"]])["session"] == recorded.session
        if row["type"] == "call_completed":
            assert row["parts"] == list(recorded.prompt(row["prompt"]))
            assert {part[2:] for part in row["parts"] if part.startswith("t:")} <= texts.keys()


def test_exported_events_can_be_read_as_events_again(recorded: SessionRecord) -> None:
    for row, event in zip(rows(recorded), recorded.events, strict=True):
        kept = {name: value for name, value in row.items() if name not in ("seq", "bodies", "parts")}
        assert EVENT.validate_python(kept).model_dump() == event.model_dump()


EVERY: list[Event] = [
    call("talk-1/A1", "said", "0", "i:in", "k:task", "s:S1", "t:own"),
    ReplyRejected(key="talk-1/A2", agent="A2", text="unread", error="no JSON", prompt="k:task t:own"),
    CallFailed(key="talk-1/A3", agent="A3", failure=FailureKind.SERVER, detail="down"),
    CallLost(key="talk-1/A1", agent="A1"),
    AnswerReceived(key="talk-1/A1", text="answered", by="a person"),
    MessagePublished(id="talk-1/A1/objection-1", sender="A1", kind="objection", text="against"),
    Noted(name="thread_opened", data={"title": "t", "body": "against"}, texts=("against",)),
    CheckRecorded(index=2, check=Check(met=False, kind="all", parts=(Check(met=False, kind="judge"),))),
    TextsEmbedded(encoder="e", texts=("said", "against"), vectors="00ff"),
    TextsEmbedded(encoder="e", texts=("said",), error="down"),
    SessionResumed(lost=1),
    SessionParked(awaited=("talk-1/A1",)),
    CallAwaited(key="talk-1/A1", agent="A1", prompt="k:task t:own", form="{}", asked_at=0.0),
    StepCompleted(key="talk-1/A1/step-1", call="talk-1/A1", agent="A1", kind="tool", digest="d", text="found"),
    SearchExpired(search="00ff"),
    CancelRequested(by="a person", answer=True),
    CommentPosted(text="t", by="a person"),
    BlindnessLifted(by="a person"),
    Settled(name="round", index=1, until=3, body="own"),
]


def test_every_event_type_is_exported_with_its_references() -> None:
    table = rows(by_hand(complete(3), copy.deepcopy(EVERY)))
    line = schema("events")
    for row in table:
        line.validate(row)
    assert [set(row["bodies"]) for row in table[1:]] == [
        {"said", "own"}, {"unread", "own"}, set(), set(), {"answered"}, {"against"}, {"against"}, set(),
        {"said", "against", "00ff"}, {"said"}, set(), set(), {"own", "{}"}, {"found"}, set(), set(), {"t"}, set(), {"own"},
    ]  # fmt: skip
    stored = set(EVENT.json_schema()["discriminator"]["mapping"]) - {"call_started"}
    assert stored - {row["type"] for row in table} == {"session_finished"}


@pytest.fixture
async def several(store: SqliteStore) -> dict[str, SessionRecord]:
    """Every way in which a session can be: failed, cut short, forked, broken off, parked, killed before it began."""

    def breaking(request: ModelRequest) -> object:
        if "/observe/" in request.key:
            raise RuntimeError("boom")
        return saying(request)

    await ran(store, session="whole")
    await ran(store, reply=lambda request: ServerError("down"), session="failed")
    with pytest.raises(RuntimeError, match="boom"):
        await ran(store, reply=breaking, session="broken")
    await runner.start(
        "Is it so?",
        Emergence(max_rounds=2),
        models=ScriptedModel(saying),
        store=store,
        limits=Limits(calls=4),
        session="cut",
    )
    await fork("whole", store=store, at="round-1/observe/L1N1", models=ScriptedModel(saying), session="fork")
    await ran(store, reply=lambda request: saying(request, HOSTILE), task=HOSTILE, session="hostile")
    await store.create("nothing").close()
    records = {session: read_record(store, session) for session in store.sessions()}
    return records | {"parked": by_hand(tree(2, 2), [SessionParked(awaited=("talk-1/L2N1",))])}


async def test_every_session_exports_in_every_format(several: dict[str, SessionRecord]) -> None:
    line = schema("events")
    for session, record in several.items():
        for name, write in FORMATS.items():
            written = write(record)
            assert written.endswith("\n") or not record.events, (session, name)
            if name == "events":
                for row in map(json.loads, written.splitlines()):
                    line.validate(row)
            if name == "json":
                assert json.loads(written)["session"] == record.session
            if name == "markdown" and record.events:
                assert written.startswith("# ")


@pytest.mark.parametrize(
    "limits", [Limits(calls=0), Limits(calls=4), Limits(steps=0)], ids=["no calls", "4 calls", "no steps"]
)
@pytest.mark.parametrize("case", [case for case in CASES if not case.outside], ids=lambda case: case.name)
async def test_session_cut_by_budget_is_exported(store: SqliteStore, case: Case, limits: Limits) -> None:
    models = ScriptedModel(case.script)
    await runner.start(
        "Q?", case.protocol, sources=case.sources, models=models, store=store, session="s", limits=limits
    )
    record = read_record(store, "s")
    for format, write in FORMATS.items():
        assert write(record).strip(), format
    for view in views_of(record):
        assert view_text(view, record).strip(), view
        ElementTree.fromstring(view_svg(view, record))


async def test_fork_export_names_parent_and_other_forks(several: dict[str, SessionRecord]) -> None:
    written = as_markdown(several["fork"])
    assert "## Forks\n\n- `whole`\n  - **`fork`** (this one) from event" in written
    assert {read.key for read in several["fork"].readings.values()} == {
        read.key for read in several["whole"].readings.values()
    }


def large(calls: int) -> SessionRecord:
    """Agents that each read the last three messages."""
    keys = [f"talk-{n // 10 + 1}/A{n % 10 + 1}" for n in range(calls)]
    return by_hand(
        complete(10),
        [
            call(key, f"{key} says {'something ' * 20}", str(n), *(f"q:A:{read}" for read in keys[max(0, n - 3) : n]))
            for n, key in enumerate(keys)
        ],
    )


@pytest.mark.parametrize("name", FORMATS)
def test_export_cost_grows_linearly(name: str) -> None:
    sizes, looked = [], []
    for calls in (500, 1000):
        counted = Counted(large(calls))
        sizes.append(len(FORMATS[name](counted.record)))
        looked.append(counted.texts + counted.prompts)
    assert sizes[1] <= 2.1 * sizes[0]
    assert looked[1] <= 2.1 * looked[0] + 5
    assert looked[1] <= 10 * 1000


@pytest.mark.parametrize(
    ("name", "format"),
    [("a.json", "json"), ("a.b.MD", "markdown"), ("x/a.html", "html"), ("a.svg", "svg"), ("a.jsonl", "events")],
)
def test_export_format_follows_the_suffix(name: str, format: str) -> None:
    assert format_of(Path(name)) == format


@pytest.mark.parametrize("name", ["a", "a.txt", ".json"])
def test_export_with_unknown_suffix_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="--format"):
        format_of(Path(name))
