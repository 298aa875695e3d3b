"""Bases of models, and the one explanation of a validation error for users: which key of what, what it must be, what it is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from consilience.domain.errors import SettingsError
from consilience.domain.wording import count

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_LISTED_ERRORS = 5
MAX_NAME_CHARS = 80

_DEMANDS: Mapping[str, str] = {
    "string_type": "must be text",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
} | {
    f"{kind}_{error}": f"must be {noun}"
    for kind, noun in {"int": "a whole number", "float": "a number", "bool": "true or false"}.items()
    for error in ("type", "parsing", "from_float", "parsing_size")
}
"""By pydantic's type of the error; the value follows."""


class Frozen(BaseModel):
    """Immutable data."""

    model_config = ConfigDict(frozen=True)


class Unfit(ValueError):
    """Raised by a validator for values that do not fit each other, or the rest, with the `names` of their fields."""

    def __init__(self, what: str, *names: str) -> None:
        self.names = names
        super().__init__(what)


class InvalidValues(SettingsError, ValueError):
    """Values that fields do not take, with the `names` of the fields. A `ValueError`, as pydantic expects of a nested model."""

    def __init__(self, cause: ValidationError, what: str, *, field: str = "", where: str = "", do: str) -> None:
        self.cause = cause
        raised = [(detail["loc"], detail.get("ctx", {}).get("error")) for detail in _details(cause)]
        self.names = {str(name) for place, error in raised for name in place[:1] or getattr(error, "names", ())}
        super().__init__(what, field=field, where=where, do=do)


class UserWritten(Frozen):
    """A model that a user writes, in a file or in Python: unknown keys are refused, and white space around texts does not count.

    The constructor raises `SettingsError`.
    """

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    if not TYPE_CHECKING:  # a type checker derives it from the fields

        def __init__(self, /, *values: object, **fields: object) -> None:
            name = type(self).__name__
            if values:
                required = (f"{key}=…" for key, field in type(self).model_fields.items() if field.is_required())
                raise SettingsError(f"{name} takes its fields by name", do=f"Write {name}({', '.join(required)}).")
            try:
                super().__init__(**fields)
            except ValidationError as error:
                owner = f"the {name.lower()}{_name_words(fields)}"
                do = f"Fields of a {name}: {', '.join(type(self).model_fields)}."
                what = describe_invalid(error, fields, model=type(self), owner=owner)
                raise InvalidValues(error, what, do=do) from None


def check_fields(values: Any) -> None:
    """Raise `SettingsError` for fields of a dataclass that its annotations do not allow. No value is converted."""
    kind: Any = type(values)
    try:
        _model_of(kind).model_validate({field.name: getattr(values, field.name) for field in fields(kind)})
    except ValidationError as error:
        what, place = describe_invalid(error), f"{kind.__name__}(…)"
        raise InvalidValues(error, what, where=place, do="Change it and try again.") from None


@cache
def _model_of(kind: Any) -> type[BaseModel]:
    annotations = get_type_hints(kind, include_extras=True)
    declared: Any = {field.name: (annotations[field.name], ...) for field in fields(kind)}
    return create_model(kind.__name__, __config__=ConfigDict(strict=True, arbitrary_types_allowed=True), **declared)


def describe_invalid(
    error: ValidationError, data: object = None, *, model: type[BaseModel] | None = None, owner: str = ""
) -> str:
    """Return the errors as clauses joined by semicolons: `'name' of persona 2 (CFO) must be text, not 3`.

    `data` is the validated table, from which entries of lists get their names. `model` is its type, from which unknown keys get
    suggestions. `owner` is what the table is called; without one, keys stand alone: `depth must be at least 2, not 1`.
    """
    # pydantic counts only valid entries: a list of invalid ones seems too short as well
    details = [
        detail
        for detail in _details(error)
        if detail["type"] != "too_short" or len(detail["input"]) < detail["ctx"]["min_length"]
    ]
    clauses = [_clause(detail, data, model, owner) for detail in details[:MAX_LISTED_ERRORS]]
    if len(details) > MAX_LISTED_ERRORS:
        clauses.append(f"and {len(details) - MAX_LISTED_ERRORS} more")
    return "; ".join(clauses)


def errors_by_field(error: ValidationError) -> dict[str, str]:
    """Return what is wrong by the dotted name of the field: `{"limits.calls": "must be at least 0, not -1"}`."""
    found = dict[str, str]()
    for detail in _details(error):
        kind = detail["type"]
        own = {"missing": "is missing", "extra_forbidden": "is unknown"}.get(kind)
        words = _message(detail) if kind in ("value_error", "assertion_error") else own or _demand(detail, None)
        found.setdefault(".".join(part for part in detail["loc"] if isinstance(part, str)), words)
    return found


def _details(error: ValidationError) -> Iterator[ErrorDetails]:
    """Yield the errors; those of a nested `UserWritten` model with their place in the whole."""
    for detail in error.errors(include_url=False):
        raised = detail.get("ctx", {}).get("error")
        if isinstance(raised, InvalidValues):
            for inner in _details(raised.cause):
                inner["loc"] = (*detail["loc"], *inner["loc"])
                yield inner
        else:
            yield detail


def similar_names(word: str, known: Iterable[str]) -> str:
    """Return the known names most similar to a word, `'policy' or 'security'`; "" if there are none."""
    return " or ".join(map(repr, difflib.get_close_matches(word.casefold(), list(known), n=3, cutoff=0.5)))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'policy' or 'security'? `, with the known names most similar to a word; "" if there are none."""
    similar = similar_names(word, known)
    return f"Did you mean {similar}? " if similar else ""


def _clause(detail: ErrorDetails, data: object, model: type[BaseModel] | None, owner: str) -> str:
    place, kind, value = detail["loc"], detail["type"], detail["input"]
    if len(place) > 1 and isinstance(place[1], int) and (model_at(model, place[:1]) or len(place) > 2):
        owner = _entry_name(place, data)
        model, place = model_at(model, place[:1]), place[2:]
    if not place and kind.startswith("model_"):
        return f"{owner} {_table_demand(model, value)}"
    is_own = kind in ("value_error", "assertion_error")
    if not place:
        return _message(detail) if is_own else _demand(detail, None)
    key = _key(place, quoted=bool(owner))
    if kind == "missing":
        return f"{owner} has no {key}" if owner else f"{key} is missing"
    if kind == "extra_forbidden":
        similar = similar_names(str(place[-1]), model.model_fields) if model and len(place) == 1 else ""
        hint = f" (did you mean {similar}?)" if similar else ""
        return f"{owner} has an unknown key {key}{hint}" if owner else f"{key} is unknown{hint}"
    name = f"{key} of {owner}" if owner else key
    if is_own:
        return f"{name}: {_message(detail)}"
    return f"{name} {_demand(detail, model_at(model, place))}"


def _message(detail: ErrorDetails) -> str:
    """Return the message of a validator of this project."""
    return str(detail.get("ctx", {}).get("error")).rstrip(".")


def _demand(detail: ErrorDetails, entry: type[BaseModel] | None) -> str:
    """Return what a value must be, and what it is. `entry`: the model of the entries, if the value is a list of tables."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    actual = f"not {value!r:.60}"
    if kind in ("tuple_type", "list_type", "set_type", "frozen_set_type"):
        key = detail["loc"][-1]
        return f"must be {f'written as [[{key}]] tables' if entry else 'a list in square brackets'}, {actual}"
    if kind in ("too_short", "too_long"):
        bound = context["min_length"] if kind == "too_short" else context["max_length"]
        return (
            f"must have {'at least' if kind == 'too_short' else 'at most'} {count(bound, 'entry')}, not {len(value):,}"
        )
    if kind == "string_too_short":
        return "is empty"
    if kind == "string_too_long":
        return f"has {len(value.strip()):,} characters, at most {context['max_length']:,}"
    if kind.startswith("model_") or kind == "dict_type":
        return _table_demand(entry, value)
    if kind in _DEMANDS:
        plain = {name: int(to) if isinstance(to, float) and to.is_integer() else to for name, to in context.items()}
        return f"{_DEMANDS[kind].format(**plain)}, {actual}"
    if detail["msg"].startswith("Input should "):
        return f"{detail['msg'].replace('Input should', 'must', 1)}, {actual}"
    return detail["msg"]


def _table_demand(model: type[BaseModel] | None, value: object) -> str:
    required = " and ".join(name for name, field in model.model_fields.items() if field.is_required()) if model else ""
    return f"must be a table{' with ' if required else ''}{required}, not {value!r:.60}"


def _key(place: Sequence[str | int], *, quoted: bool) -> str:
    """Return `'children' number 2`: dotted names, and numbers of entries from 1."""
    names = ".".join(str(part) for part in place if isinstance(part, str))
    numbers = "".join(f" number {part + 1}" for part in place if isinstance(part, int))
    return f"{names!r}{numbers}" if quoted else f"{names}{numbers}".strip()


def _entry_name(place: Sequence[str | int], data: object) -> str:
    """Return `persona 2 (Sceptical CFO)`; without the name if it cannot be read on one line."""
    key, number = str(place[0]), int(place[1])
    entries = data.get(key) if isinstance(data, Mapping) else None
    entry = entries[number] if isinstance(entries, list | tuple) and number < len(entries) else None
    return f"{key.removesuffix('s')} {number + 1}{_name_words(entry)}"


def _name_words(entry: object) -> str:
    """Return ` (Sceptical CFO)` for the name of an entry; "" if it has none that can be read on one line."""
    name = entry.get("name") if isinstance(entry, Mapping) else None
    readable = isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_NAME_CHARS
    return f" ({name})" if readable else ""


def model_at(model: type[BaseModel] | None, place: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the model of the entries of a list field; None for other fields."""
    field = model.model_fields.get(str(place[0])) if model and len(place) == 1 else None
    return _first_model(field.annotation) if field else None


def _first_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _first_model(inner))), None)
