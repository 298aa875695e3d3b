"""A model that answers any schema, so that a new protocol runs without a script."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from consilience.models.port import ModelRequest
from consilience.models.scripted import Latency, ScriptedModel

MAX_DEPTH = 5
"""Levels of nesting below which a recursive schema gets the shortest value."""
DRAWS = 50
"""Max attempts at a value that the validators of the reply type accept."""
FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "agent@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class AnyModel(ScriptedModel):
    """Answers every request with a value of its schema, or with a sentence if free text is requested.

    A reply depends on the whole request and nothing else: agents that read different texts reply differently. Bounds,
    enumerations, required fields, nesting and the labels in the prompt are respected. A field with a rare pattern raises
    `AssertionError`. `malformed`: share of typed calls whose first reply is invalid JSON, 0 to 1.
    """

    def __init__(self, *, malformed: float = 0.0, latency: Latency = 0.0, name: str = "any") -> None:
        super().__init__(self.reply, latency, name=name)
        self._malformed = malformed

    def reply(self, request: ModelRequest) -> str:
        """Return the reply to a request."""
        if request.schema is None:
            return _Writer(request, 0).sentence()
        writer = _Writer(request, 0)
        if request.attempt == 1 and writer.random.random() < self._malformed:
            return "{"
        value: object = None
        for draw in range(DRAWS):
            writer = _Writer(request, draw)
            value = writer.value(request.schema, "reply", 0)
            if request.returns is None or not issubclass(request.returns, BaseModel):
                break
            try:
                request.returns.model_validate(value)
                break
            except ValidationError:
                continue
        return json.dumps(value)


class _Writer:
    """Draws a value for a schema from a generator seeded by the request."""

    def __init__(self, request: ModelRequest, draw: int) -> None:
        self.request = request
        self.random = random.Random(
            "\n".join([request.agent, request.key, str(request.attempt), str(draw), request.text])
        )
        definitions = (request.schema or {}).get("$defs")
        self.definitions: Mapping[str, Any] = definitions if isinstance(definitions, Mapping) else {}

    def sentence(self, field: str = "reply") -> str:
        return f"{self.request.agent} on {self.request.key}: {field} {self.random.randrange(16**6):06x}."

    def value(self, schema: Mapping[str, Any], field: str, depth: int) -> object:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        for kind in ("anyOf", "oneOf"):
            if kind in schema:
                return self.value(self._option(schema[kind], depth), field, depth)
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        kind = kinds[0] if isinstance(kinds, list) else kinds
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, field, depth)
            case "integer" | "number":
                return self._number(schema, whole=kind == "integer")
            case "boolean":
                return self.random.random() < 0.5
            case "null":
                return None
        return self._text(schema, field)

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the schema with its references and combined schemas merged."""
        while "$ref" in schema or "allOf" in schema:
            parts = [self.definitions[schema["$ref"].rpartition("/")[2]]] if "$ref" in schema else []
            parts += schema.get("allOf", [])
            own_keys = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
            schema = {name: value for part in [*parts, own_keys] for name, value in part.items()}
        return schema

    def _option(self, options: list[Mapping[str, Any]], depth: int) -> Mapping[str, Any]:
        flat = [option for option in options if "$ref" not in option and option.get("type") not in ("array", "object")]
        return self.random.choice(flat if flat and depth >= MAX_DEPTH else options)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, object]:
        properties = schema.get("properties", {})
        fields = {name: self.value(inner, name, depth + 1) for name, inner in properties.items()}
        additional = schema.get("additionalProperties")
        if isinstance(additional, Mapping) and not properties:
            fields = {name: self.value(additional, name, depth + 1) for name in ("first", "second")}
        return fields

    def _array(self, schema: Mapping[str, Any], field: str, depth: int) -> list[object]:
        if "prefixItems" in schema:
            return [self.value(item, field, depth + 1) for item in schema["prefixItems"]]
        min_items = schema.get("minItems", 0)
        max_items = min(schema.get("maxItems", math.inf), max(min_items, 0 if depth >= MAX_DEPTH else 3))
        length = self.random.randint(min_items, max_items)
        items: list[object] = []
        for _ in range(length * 4):  # as some draws may be equal
            item = self.value(schema.get("items", {}), field, depth + 1)
            if len(items) < length and not (schema.get("uniqueItems") and item in items):
                items.append(item)
        return items

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> float:
        step = schema.get("multipleOf", 1 if whole else None)
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        low = low if low is not None else high - 10 if high is not None else 0
        high = high if high is not None else low + 10
        if step is None:
            return float(low + (high - low) * self.random.randrange(1, 100) / 100)
        first = math.ceil(low / step) + (low == schema.get("exclusiveMinimum") and low % step == 0)
        last = math.floor(high / step) - (high == schema.get("exclusiveMaximum") and high % step == 0)
        return self.random.randint(first, max(first, last)) * step  # type: ignore[no-any-return]

    def _text(self, schema: Mapping[str, Any], field: str) -> str:
        text: str = FORMATS.get(schema.get("format", ""), self.sentence(field))
        min_length, max_length = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        text = text.ljust(min_length, ".")[: None if max_length == math.inf else max_length]
        pattern = schema.get("pattern")
        if pattern is None or re.search(pattern, text):
            return text
        bare = re.sub(r"^\^|\$$|[()]|\?:", "", pattern).split("|")
        texts = [
            *bare,
            field,
            field.upper(),
            self.request.agent,
            "0",
            "1",
            "10",
            "0.5",
            "2026-01-31",
            "a" * max(min_length, 1),
        ]
        fitting = [word for word in texts if re.search(pattern, word) and min_length <= len(word) <= max_length]
        if not fitting:
            raise AssertionError(
                f"AnyModel has no text for {field!r} of pattern {pattern!r}; answer it with ScriptedModel"
            )
        return str(self.random.choice(fitting))
