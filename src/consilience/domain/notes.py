"""Notes of a protocol: how the event `noted` holds them, with long texts by id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, PlainSerializer, SerializationInfo, ValidationInfo

from consilience.domain.events import Noted, text_id

MAX_NOTE_CHARS = 16_000
"""Max JSON characters of a note, without its long texts."""

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
    """Return the note as the event holds it, and its long texts by id. A model whose `sparse` is true keeps no default values."""
    texts = _TextIds()
    return data.model_dump(mode="json", context=texts, exclude_defaults=getattr(data, "sparse", False)), texts


def load_note(model: type[N], event: Noted, text: Callable[[str], str]) -> N:
    """Return a recorded note with its long texts; `text` looks one up by id. Raises `ValidationError`."""
    return model.model_validate(event.data, context=_Lookup(text))
