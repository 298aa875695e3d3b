"""Settings of protocols as fields of a form, from their JSON Schema, and values back from what was typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from consilience.domain.messages import FILE, ShippedName
from consilience.engine.protocol import Protocol, find_protocol
from consilience.reporting.forms import FormControl, bounds_of
from consilience.reporting.questions import Form, SchemaNode, choices
from consilience.server.replies import ProtocolView

LONG_TEXT = 1_000
"""A text that may be longer has a field of several lines."""


def setting_controls(view: ProtocolView, current: Mapping[str, object] | None = None) -> list[FormControl]:
    """Return the fields of a protocol's settings. An empty field leaves a setting as it is: `current`, or its default."""
    form, cls = Form(view.settings), find_protocol(view.protocol)
    found = (_control(form, cls, name, node, current or view.defaults) for name, node in form.fields().items())
    return [control for control in found if control is not None]


def typed_settings(view: ProtocolView, typed: Mapping[str, str]) -> dict[str, object]:
    """Return the settings for which something was typed. What does not fit is returned as it is, for the check of the whole."""
    form = Form(view.settings)
    nodes = form.fields()
    return {
        name: _value(form, nodes[name], raw.strip()) for name, raw in typed.items() if raw.strip() and name in nodes
    }


def _control(
    form: Form, cls: type[Protocol], name: str, node: SchemaNode, current: Mapping[str, object]
) -> FormControl | None:
    whole = form.schema["properties"][name]  # type: ignore[index]
    about = str(whole.get("description", ""))
    usual = current.get(name, whole.get("default"))
    words = usual if isinstance(usual, str) else json.dumps(usual, ensure_ascii=False)
    if usual not in (None, "", [], ()) and len(words) <= 60:
        about += f". Empty: {words}"
    control = FormControl(name=name, kind="lines", explanation=f"{about[:1].upper()}{about[1:]}.")
    metadata = cls.model_fields[name].metadata
    shipped = next((item for item in metadata if isinstance(item, ShippedName)), None)
    kind = node.get("type")
    options = choices(node) or (list(shipped.names()) if shipped else ["true", "false"] if kind == "boolean" else [])
    if options:
        return replace(control, kind="choice", options=("", *options))
    if kind in ("integer", "number"):
        return replace(control, **bounds_of(node))
    if kind == "array":
        return replace(control, explanation=f"{control.explanation} One to a line.")
    if kind != "string":
        return None
    most = node.get("maxLength")
    most = most if isinstance(most, int) else None
    is_long = FILE in metadata or (most or 0) > LONG_TEXT
    return replace(control, kind="lines" if is_long else "line", max_chars=most)


def _value(form: Form, node: SchemaNode, raw: str) -> object:
    kind = node.get("type")
    if choices(node):
        return raw
    if kind == "array":
        items = form.items(node)
        return [_value(form, items, line.strip()) for line in raw.split("\n") if line.strip()]
    if kind in ("integer", "number", "boolean"):
        try:
            return json.loads(raw)
        except ValueError:
            return raw
    return raw
