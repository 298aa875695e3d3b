"""What is typed into the form of a new session, as the bodies of the API, and what is wrong with it beside each field."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from consilience.domain.errors import ConsilienceError, UserError
from consilience.domain.messages import Source
from consilience.domain.model_names import PERSON
from consilience.domain.outcome import Limits, SpendingLimits
from consilience.domain.panels import CATALOG, load_panel
from consilience.domain.validation import InvalidValues, errors_by_field
from consilience.server.bodies import ChoicesBody, NewSession, SourceBody
from consilience.server.callers import Caller
from consilience.server.checks import allowed_models
from consilience.server.pages import PostedForm, problem_of
from consilience.server.replies import ProtocolView
from consilience.server.setting_fields import typed_settings
from consilience.server.settings import ServerSettings
from consilience.server.uploads import source_of

ASK = "ask"
"""What is chosen where Consilience shall propose a protocol."""
FIELDS = (
    "task",
    "sources",
    "protocol",
    "panel",
    "models",
    "people",
    "limits",
    "name",
    "thinking",
    "team",
    "fact",
    "at",
)
"""Fields beside which an error can stand; others stand above the form."""


class WrongFields(Exception):
    """What was typed cannot be used. `fields`: what is wrong, by field; "" for the whole."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(fields.values()))
        self.fields = dict(fields)


def placed(error: ConsilienceError, settings: str = "settings") -> WrongFields:
    """Return an error with the field that it is about. `settings`: what the names of the fields of settings begin with."""
    if isinstance(error, InvalidValues) and error.field == "settings":
        return wrong_fields(error.cause, prefix=f"{settings}.")
    where = (error.field or error.where) if isinstance(error, UserError) else ""
    head, _, rest = where.partition(".")
    if head in ("replace", "perspectives", "limits") and rest:
        return WrongFields({where: problem_of(error)})
    if head == "settings" and rest:
        return WrongFields({f"{settings}.{rest}": problem_of(error)})
    name = "protocol" if head == "settings" else head
    return WrongFields({name if name in FIELDS else "": problem_of(error)})


def wrong_fields(error: ValidationError, *, prefix: str = "") -> WrongFields:
    """Return the errors of a body beside its fields."""
    found = errors_by_field(error)
    return WrongFields(
        {f"{prefix}{name}" if name else "": f"{what[:1].upper()}{what[1:]}." for name, what in found.items()}
    )


@dataclass(frozen=True)
class SessionDraft:
    """A form of a new session as it was posted."""

    form: PostedForm
    documents: tuple[Source, ...]
    """Those of earlier posts that are kept, and the files of this one."""
    unread: Sequence[str] = ()
    """Why files are left out."""

    @classmethod
    async def read(cls, form: PostedForm, conversions: asyncio.Semaphore) -> Self:
        """Return the draft of a form, with its files converted. Raises `WrongFields`."""
        try:
            kept = [Source(**SourceBody.model_validate_json(text).model_dump()) for text in form.all("document")]
        except ValidationError as error:
            raise WrongFields({"sources": f"A document is damaged: {error.errors()[0]['msg']}."}) from None
        unread = []
        for name, data in form.files:
            try:
                source = await source_of(name, data, conversions)
            except UserError as error:
                unread.append(f"{name} is left out: {problem_of(error)}")
                continue
            kept = [document for document in kept if document.name != source.name] + [source]
        return cls(form, tuple(kept), unread)

    @property
    def carried(self) -> list[tuple[Source, str]]:
        """The documents, each with the text by which the form keeps it until the next post."""
        return [(document, json.dumps(document.model_dump(mode="json"))) for document in self.documents]

    @property
    def people(self) -> list[str]:
        """The seats of people that were asked for, as names of models."""
        names = (" ".join(name.split()) for name in re.split(r"[,;\n]", self.form.get("people")))
        return [PERSON if name.casefold() == PERSON else f"{PERSON}:{name}" for name in names if name]

    @property
    def limits(self) -> dict[str, str]:
        units = (*SpendingLimits.model_fields, "steps")
        return {unit: text for unit in units if (text := self.form.get(f"limits.{unit}").strip())}

    def body(self, view: ProtocolView, sources: Sequence[Source], settings: Mapping[str, Any] = {}) -> NewSession:
        """Return the request for a session. Raises `WrongFields`."""
        form = self.form
        self.check_task()
        typed = typed_settings(view, form.below(f"{view.name}."))
        given: dict[str, Any] = {
            "protocol": view.name,
            "task": form.get("task"),
            "settings": {**settings, **typed},
            "panel": form.get("panel") or None,
            "models": tuple(form.all("models")),
            "sources": tuple(sources),
            "limits": self.limits,
            "thinking": form.get("thinking") or None,
            "name": form.get("name").strip(),
            "team": bool(form.get("team")),
        }
        try:
            return NewSession.model_validate(given)
        except ValidationError as error:
            raise wrong_fields(error) from None

    def choices(self, caller: Caller, settings: ServerSettings, sources: Sequence[Source], reading: str) -> ChoicesBody:
        """Return the question how `ask` would work on the task. Raises `WrongFields`."""
        self.check_task()
        panel = self.form.get("panel")
        models = (*(self.form.all("models") or allowed_models(caller, settings)[:1]), *self.people)
        try:
            return ChoicesBody(
                task=self.form.get("task"),
                sources=tuple(sources),
                models=models,
                personas=len(load_panel(panel).personas) if panel in CATALOG.names() else 0,
                limits=Limits.model_validate(self.limits),
                reading=reading,
            )
        except ValidationError as error:
            raise wrong_fields(error) from None
        except InvalidValues as error:
            raise wrong_fields(error.cause, prefix="limits.") from None

    def check_task(self) -> None:
        if not self.form.get("task").strip():
            raise WrongFields({"task": "Write the question, or the piece of work."})
