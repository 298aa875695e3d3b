"""Notes of a protocol: how the event `noted` holds them, with long texts by id."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, PlainSerializer, SerializationInfo, ValidationInfo

from consilience.domain.events import Noted, text_id

MAX_NOTE_CHARS = 16_000
"""Max JSON characters of a note that its event holds itself, without its long texts; a longer one is a text too."""

N = TypeVar("N", bound=BaseModel)


class _TextIds(dict[str, str]):
    """Texts by id, filled while a note is dumped."""


class _Lookup:
    def __init__(self, text: Callable[[str], str]) -> None:
        self.text = text


def _to_id(text: str, info: SerializationInfo) -> str:
    if not isinstance(info.context, _TextIds):
        return text
    info.context[id := text_id(text)] = text
    return id


def _from_id(value: object, info: ValidationInfo) -> object:
    return info.context.text(str(value)) if isinstance(info.context, _Lookup) else value


LongText = Annotated[str, BeforeValidator(_from_id), PlainSerializer(_to_id)]
"""A field of a note that may be long: the event holds the text's id."""


def dump_note(data: BaseModel) -> tuple[dict[str, object], dict[str, str]]:
    """Return the fields `data` and `body` of the event, and all texts of the note by id. Raises `ValueError` for what JSON or UTF-8
    cannot hold. A model whose `sparse` is true keeps no default values.
    """
    texts = _TextIds()
    values = data.model_dump(mode="json", context=texts, exclude_defaults=getattr(data, "sparse", False))
    serialised = json.dumps(values, allow_nan=False)
    json.dumps([values, *texts.values()], ensure_ascii=False).encode()  # which refuses lone surrogates
    if len(serialised) <= MAX_NOTE_CHARS:
        return {"data": values}, texts
    body = text_id(serialised)
    return {"body": body}, {**texts, body: serialised}


def load_note(model: type[N], event: Noted, text: Callable[[str], str]) -> N:
    """Return a recorded note with its long texts; `text` looks one up by id. Raises `ValueError`."""
    values = event.data if event.body is None else json.loads(text(event.body))
    return model.model_validate(values, context=_Lookup(text))
