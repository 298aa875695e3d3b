"""JSON Schemas of exported reports and events."""

from __future__ import annotations

from typing import Any

from consilience.domain.events import EVENT, SCHEMA_VERSION
from consilience.domain.report import Report

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

REPORT, EVENTS = "report", "events"
"""Names of the schemas that every protocol shares."""


def report_schema(report: type[Report] = Report) -> Schema:
    """Return the schema of a protocol's report; for `Report`, of the common header. Further fields are allowed."""
    return {"$schema": DIALECT, **_open(report.model_json_schema(mode="serialization"))}


def events_schema() -> Schema:
    """Return the schema of one line of `export --format events`: an event as stored, with the fields that the export adds."""
    schema = EVENT.json_schema(mode="serialization")
    mapping: dict[str, str] = schema["discriminator"]["mapping"]
    for reference in mapping.values():
        event = schema["$defs"][reference.rpartition("/")[2]]
        event["properties"] |= _added(prompt="prompt" in event["properties"])
        event["required"] = ["type", "seq", "bodies", *(name for name in event.get("required", []) if name != "type")]
    return {
        "$schema": DIALECT,
        "title": "Event",
        "description": f"One line of an export of events, schema version {SCHEMA_VERSION}.",
        **_open(schema),
    }


def _open(node: Any, *, names: bool = False) -> Any:
    """Return a schema that allows unknown fields, without titles that repeat a name. `names`: the node maps names to schemas."""
    if isinstance(node, list):
        return [_open(item) for item in node]
    if not isinstance(node, dict):
        return node
    noise = set() if names else {"title"} if "enum" not in node and "properties" not in node else set()
    if not names and node.get("additionalProperties") is False:
        noise.add("additionalProperties")
    return {
        name: _open(value, names=not names and name in ("properties", "$defs"))
        for name, value in node.items()
        if name not in noise
    }


def _added(*, prompt: bool) -> Schema:
    added: Schema = {
        "seq": {"type": "integer", "minimum": 1, "description": "Order of commit, from 1."},
        "bodies": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "The texts this event refers to, by id.",
        },
    }
    if prompt:
        added["parts"] = {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]:"},
            "description": "The prompt: i:TEXT instructions, k:TEXT task, s:ID document, s:ID:FIRST-LAST lines of it, "
            "q:LABEL:MESSAGE quotation, t:TEXT words.",
        }
    return added
