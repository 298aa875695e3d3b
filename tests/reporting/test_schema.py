"""The published schemas are those of the code, and what was stored and exported is as they say."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from consilience.domain.events import EVENT
from consilience.engine.protocol import ENTRY_POINT_GROUP
from consilience.reporting.export import as_events, as_json, events_schema, report_schema
from consilience.reporting.record import SessionRecord

PUBLISHED = Path(__file__).parent.parent.parent / "docs" / "schema"


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((PUBLISHED / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_protocol_has_a_published_schema() -> None:
    there = {path.name.removesuffix(".schema.json") for path in PUBLISHED.glob("*.schema.json")}
    ours = {point.name for point in entry_points(group=ENTRY_POINT_GROUP) if point.value.startswith("consilience.")}
    assert there == {"report", "events", "error", *ours}


@pytest.mark.parametrize("name", ["report", "emergence"])
def test_stored_report_matches_its_schema(name: str, recorded: SessionRecord) -> None:
    report = json.loads(as_json(recorded))
    validator(name).validate(report)
    broken = copy.deepcopy(report)
    broken["stop_reason"] = "bored"
    assert not validator(name).is_valid(broken)
    del report["task"]
    assert not validator(name).is_valid(report)


def test_every_published_schema_is_listed() -> None:
    listed = set(re.findall(r"\]\((.+?)\)", (PUBLISHED / "README.md").read_text()))
    assert listed == {path.name for path in PUBLISHED.glob("*.json")}


def test_fields_of_a_protocol_are_only_in_its_own_schema(recorded: SessionRecord) -> None:
    report = json.loads(as_json(recorded))
    report["rounds"] = "two"
    assert validator("report").is_valid(report)
    assert not validator("emergence").is_valid(report)


def test_exported_events_match_their_schema(recorded: SessionRecord) -> None:
    line = validator("events")
    rows = [json.loads(row) for row in as_events(recorded).splitlines()]
    for row in rows:
        line.validate(row)
    del rows[1]["bodies"]
    assert not line.is_valid(rows[1])
    rows[2]["tokens_in"] = "many"
    assert not line.is_valid(rows[2])


def test_schema_allows_additional_fields(recorded: SessionRecord) -> None:
    report = json.loads(as_json(recorded))
    report["later"] = report["ledger"]["later"] = 1
    validator("emergence").validate(report)
    for row in map(json.loads, as_events(recorded).splitlines()):
        validator("events").validate({**row, "later": 1})


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for child in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from nodes(child)


def test_every_type_of_event_has_a_schema() -> None:
    schema = events_schema()
    assert set(schema["discriminator"]["mapping"]) == set(EVENT.json_schema()["discriminator"]["mapping"])
    for reference in schema["discriminator"]["mapping"].values():
        assert {"type", "seq", "bodies"} <= set(schema["$defs"][reference.rpartition("/")[2]]["required"])


def test_every_schema_reference_resolves() -> None:
    for schema in (events_schema(), report_schema()):
        for node in nodes(schema):
            if isinstance(reference := node.get("$ref"), str):
                assert reference.removeprefix("#/$defs/") in schema["$defs"]
